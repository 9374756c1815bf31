"""Opening media by content, its main streams, and stored transcodes back as exact pixels.

Reading a raw asset's frames is `media.reader`, what a file says about itself `media.probe`. Raw
assets are opened in sandboxed children alone; transcodes are our own bytes.
"""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import DecodeFailed

if TYPE_CHECKING:
    from av import VideoFrame
    from av.container import InputContainer
    from av.video.reformatter import VideoReformatter

STILL_FORMATS = ("image2",)  # and everything that ends in _pipe

_CLOSED = {"protocol_whitelist": "none"}  # a playlist may name no other file
_CAREFUL = {
    "fflags": "+genpts+igndts+discardcorrupt",
    "probesize": "100000000",
    "analyzeduration": "100000000",
}


def open_media(
    source: "BinaryIO | bytes | Path", *, is_careful: bool = False, acceleration: Any = None
) -> "InputContainer":
    """Open a media file by its content; a name counts for nothing.

    Of a raw asset, which comes as a file, a picture is opened as `media.stills` shows it.
    `acceleration` is what `media.engines` gives.

    Raises:
        DecodeFailed: Nothing recognises it, or it is a damaged picture.
    """
    import av
    import av.error
    import av.logging

    av.logging.set_level(av.logging.PANIC)
    file = _shown(source)
    options = {**_CLOSED, **(_CAREFUL if is_careful else {})}
    try:
        if isinstance(file, Path):
            file = io.BytesIO(file.read_bytes())
        return cast(
            "InputContainer", av.open(file, mode="r", options=options, hwaccel=acceleration)
        )
    except (av.error.FFmpegError, ValueError, EOFError, OSError) as error:
        raise DecodeFailed(f"cannot be opened: {told_error(error)}") from error


def _shown(source: "BinaryIO | bytes | Path") -> "BinaryIO | Path":
    from wsdata.media.stills import read_still

    if isinstance(source, bytes):
        return io.BytesIO(source)
    still = None if isinstance(source, Path) else read_still(source)
    return io.BytesIO(still.data) if still else cast("BinaryIO | Path", source)


def main_video(container: "InputContainer") -> Any | None:
    """Return the main video stream: cover art never, then by disposition, then by size.

    A stream in a codec that this build does not know counts only where there is no other.
    """
    from av.stream import Disposition

    art = _cover_art()
    found = [stream for stream in container.streams.video if not stream.disposition & art]

    def rank(stream: Any) -> tuple[bool, bool, int, int]:
        context = stream.codec_context
        known = context is not None
        area = (context.width or 0) * (context.height or 0) if known else 0
        return known, bool(stream.disposition & Disposition.default), area, -stream.index

    return max(found, key=rank, default=None)


def main_audio(container: "InputContainer") -> Any | None:
    """Return the main audio stream: by disposition, then size, then the pictures' language.

    A commentary, a dub or a description for those who do not see or hear counts only where there
    is nothing else. Size is channels x sample rate.
    """
    from av.stream import Disposition

    aside = (
        Disposition.comment
        | Disposition.dub
        | Disposition.hearing_impaired
        | Disposition.visual_impaired
    )
    spoken = {video.language for video in container.streams.video} - {None, "und"}

    def rank(stream: Any) -> tuple[bool, bool, int, bool, int]:
        size = (stream.codec_context.channels or 0) * (stream.codec_context.sample_rate or 0)
        is_default = bool(stream.disposition & Disposition.default)
        is_main = not stream.disposition & aside
        return is_main, is_default, size, stream.language in spoken, -stream.index

    usable = [stream for stream in container.streams.audio if stream.codec_context is not None]
    return max(usable, key=rank, default=None)


def describe_streams(container: "InputContainer") -> str:
    """Name what a container holds, for the reasons of files without video."""
    art = _cover_art()
    kinds = [
        "cover picture" if stream.type == "video" and stream.disposition & art else stream.type
        for stream in container.streams
    ]
    counts = [f"{kinds.count(kind)} {kind}" for kind in sorted(set(kinds))]
    return f"{container.format.name} with {', '.join(counts) or 'no stream'}"


def _cover_art() -> Any:
    from av.stream import Disposition

    return Disposition.attached_pic | Disposition.timed_thumbnails


def is_still(container: "InputContainer", video: Any) -> bool:
    """Whether the file is one picture rather than a video."""
    name = container.format.name
    if name in STILL_FORMATS or name.endswith("_pipe"):
        return True
    brand = container.metadata.get("major_brand", "")
    return brand in ("avif", "avis", "mif1", "heic", "heix") and video.frames <= 1


def told_error(error: BaseException) -> str:
    """Error text without what differs between runs (paths, addresses)."""
    text = getattr(error, "strerror", None) or str(error)
    return f"{type(error).__name__}: {text}"


def read_transcode(data: bytes | Path) -> NDArray[np.uint8]:
    """Read a stored transcode, of a video or of a still, as exact pixels.

    Args:
        data: The bytes of an mp4 or a PNG that this package wrote, or the path of one.

    Returns:
        RGB in [0, 255], shape (frames, height, width, 3). The same bytes give the same array.

    Raises:
        DecodeFailed: It is neither, or does not decode.
    """
    content = data.read_bytes() if isinstance(data, Path) else data
    frames = list(iterate_transcode(content))
    if not frames:
        raise DecodeFailed(f"transcode of {len(content)} bytes holds no frame")
    return np.stack(frames)


def iterate_transcode(content: bytes) -> Iterator[NDArray[np.uint8]]:
    """Yield the frames of a stored transcode, RGB of shape (height, width, 3), one at a time.

    Raises:
        DecodeFailed: It is not a transcode.
    """
    import av.error
    from av.video.reformatter import VideoReformatter

    with open_media(content) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        reformatter = VideoReformatter()
        try:
            for frame in container.decode(stream):
                yield exact_rgb(frame, reformatter)
        except av.error.FFmpegError as error:
            raise DecodeFailed(f"transcode does not decode: {told_error(error)}") from error


def exact_rgb(frame: "VideoFrame", reformatter: "VideoReformatter") -> NDArray[np.uint8]:
    """Return the pixels of a transcode's frame, RGB of shape (height, width, 3), on every CPU."""
    from av.video.reformatter import ColorRange, Colorspace

    picture = frame
    if frame.format.name != "rgb24":
        picture = reformatter.reformat(
            frame,
            format="rgb24",
            src_colorspace=Colorspace.ITU709,
            dst_colorspace=Colorspace.ITU709,
            src_color_range=ColorRange.MPEG,
            dst_color_range=ColorRange.JPEG,
            interpolation=exact_flags(),
            threads=1,
        )
    return np.ascontiguousarray(picture.to_ndarray()).astype(np.uint8, copy=False)


def exact_flags(*, is_mean: bool = False) -> int:
    """Scaler flags whose result is the same on every CPU: bicubic, or means of areas."""
    from av.video.reformatter import Interpolation

    return int(
        (Interpolation.AREA if is_mean else Interpolation.BICUBIC)
        | Interpolation.ACCURATE_RND
        | Interpolation.FULL_CHR_H_INT
        | Interpolation.BITEXACT
    )


def canonical_color(frame: "VideoFrame") -> tuple[int, bool]:
    """Return the matrix of a frame and whether it is full range, as a player would take it.

    A matrix that is not stated is BT.709 from 1280 x 720 on and BT.601 below.
    """
    from av.video.reformatter import ColorRange

    full = frame.color_range == ColorRange.JPEG or frame.format.name.startswith("yuvj")
    matrix = int(frame.colorspace)
    if matrix in (0, 2, 3):  # RGB, unspecified, reserved
        matrix = 1 if frame.width >= 1280 or frame.height > 576 else 6
    return matrix, full
