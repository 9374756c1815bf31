"""Writing pictures: H.264 rungs, stills and JPEGs, the same bytes for the same input.

Sound is written by `encode_sound`; which frames go where belongs to `preprocess`. Every encoder
runs on one thread with bit-exact flags and writes no date, no program name and no random serial.
"""

import tempfile
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import EncoderFailed

if TYPE_CHECKING:
    from av import VideoFrame

FPS = 24
X264 = {
    "preset": "veryfast",
    "crf": "18",
    "x264-params": (
        "threads=1:lookahead-threads=1:sliced-threads=0:open-gop=0:cpu-independent=1"
        ":rc-lookahead=2:bframes=2:b-pyramid=none"  # frames that it holds: at 1080p 70 MB less
    ),
}
NVENC = {"preset": "p5", "tune": "hq", "rc": "vbr", "cq": "19", "b": "0", "strict_gop": "1"}
ENCODERS = {"x264": ("libx264", X264), "h264_nvenc": ("h264_nvenc", NVENC)}
GOP_S = 2  # closed
JPEG_QUALITY = 95

_BITEXACT = {"fflags": "+bitexact"}


class ClipEncoder:
    """One H.264 mp4 of one rung of one clip: BT.709 limited range yuv420p.

    Args:
        width_px: Even.
        height_px: Even.
        fps: Frames a second.
        encoder: One of `ENCODERS`. Those on a GPU are not the same to the last bit every time.

    Raises:
        EncoderFailed: The encoder does not start here.
    """

    codec = "h264"

    def __init__(
        self, width_px: int, height_px: int, fps: int = FPS, encoder: str = "x264"
    ) -> None:
        import av
        import av.error
        from av.codec.context import Flags
        from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

        name, options = ENCODERS[encoder]
        self.num_frames = 0
        self._fps = fps
        self._file: Any = tempfile.TemporaryFile()  # noqa: SIM115  not in memory: a clip is long
        self._container = av.open(self._file, "w", format="mp4", options=dict(_BITEXACT))
        stream: Any = self._container.add_stream(name, rate=fps, options=dict(options))
        stream.width, stream.height, stream.pix_fmt = width_px, height_px, "yuv420p"
        context = stream.codec_context
        context.gop_size = GOP_S * fps
        context.time_base = Fraction(1, fps)
        context.flags |= Flags.bitexact | Flags.closed_gop
        context.thread_count = 1
        context.colorspace = Colorspace.ITU709
        context.color_primaries = ColorPrimaries.BT709
        context.color_trc = ColorTrc.BT709
        context.color_range = ColorRange.MPEG
        try:
            context.open()
        except (av.error.FFmpegError, ValueError) as error:
            self._file.close()
            raise EncoderFailed(
                f"{name} does not start for {width_px}x{height_px} at {fps}: {error}"
            ) from error
        self._stream = stream

    def write(self, frame: "VideoFrame") -> None:
        """Append one frame, already of the rung's size and format."""
        frame.pts = self.num_frames
        frame.time_base = Fraction(1, self._fps)
        frame.pict_type = 0  # a key frame of the source is none of ours
        self._container.mux(self._stream.encode(frame))
        self.num_frames += 1

    def finish(self) -> bytes:
        """Close the file and return it."""
        self._container.mux(self._stream.encode(None))
        self._container.close()
        with self._file as file:
            file.seek(0)
            return file.read()


def encode_png(pixels_hwc: NDArray[np.uint8]) -> bytes:
    """Write RGB or grey pixels as a PNG, exactly."""
    return _encode_image(".png", pixels_hwc, "IMWRITE_PNG_COMPRESSION", 6)


def encode_jpeg(pixels_hwc: NDArray[np.uint8]) -> bytes:
    """Write RGB (height, width, 3) or grey (height, width) pixels as a JPEG of quality 95."""
    return _encode_image(".jpg", pixels_hwc, "IMWRITE_JPEG_QUALITY", JPEG_QUALITY)


def _encode_image(suffix: str, pixels: NDArray[np.uint8], option: str, value: int) -> bytes:
    import cv2

    is_rgb = pixels.ndim == 3
    ordered = cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR) if is_rgb else pixels  # thrice as fast
    is_done, data = cv2.imencode(suffix, ordered, [getattr(cv2, option), value])
    if not is_done:
        raise ValueError(f"a {suffix} of shape {pixels.shape} was refused")
    return data.tobytes()
