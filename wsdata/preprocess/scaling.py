"""Frames cropped, scaled, turned and brought to BT.709, on one thread.

What is kept of a frame and at which sizes is `ladder`'s; what its numbers mean `media.color`'s.
"""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wsdata.media.color import ColorDecision, color_key, decide_color, tone_cube
from wsdata.media.encode import encode_png
from wsdata.preprocess.framepack import COLOR_SIDE_PX, LUMA_SIDE_PX
from wsdata.preprocess.ladder import SCALER, Geometry
from wsdata.preprocess.looks import Look, feature_picture, look_size

if TYPE_CHECKING:
    from av import VideoFrame

LOOK_LINES = 4  # of the frame at most, that a line of its look is the mean of

_TURNS = {1: (("transpose", "dir=clock"),), 2: (("hflip", ""), ("vflip", "")),
          3: (("transpose", "dir=cclock"),)}  # fmt: skip


class Scaler:
    """Crops, scales and turns frames of one geometry and kind to one size, on one thread."""

    def __init__(
        self,
        frame: "VideoFrame",
        geometry: Geometry,
        size: tuple[int, int],
        pixel_format: str,
        *,
        flags: str = SCALER,
    ) -> None:
        import av.filter

        self.decision = decide_color(frame)
        self._range = 2 if self.decision.is_full_range else 1
        x, y, crop_width, crop_height = geometry.coded_crop
        width, height = size[::-1] if geometry.turns % 2 else size
        self._graph = av.filter.Graph()
        self._graph.threads = 1
        with tempfile.TemporaryDirectory(prefix="wsdata-cube-") as folder:
            nodes = [
                (
                    "buffer",
                    f"video_size={frame.width}x{frame.height}:pix_fmt={frame.format.name}"
                    f":time_base=1/1000:pixel_aspect=1/1"
                    f":colorspace={self.decision.matrix}:range={self._range}",
                ),
                ("crop", f"w={crop_width}:h={crop_height}:x={x}:y={y}"),
                *_scaling(self.decision, f"{width}:{height}:flags={flags}", pixel_format, folder),
                *_TURNS.get(geometry.turns, ()),
                ("buffersink", ""),
            ]
            made = [self._graph.add(name, args) for name, args in nodes]
            self._graph.link_nodes(*made).configure()

    def scale(self, frame: "VideoFrame") -> "VideoFrame":
        """Return the frame at the wanted size and format."""
        before = frame.colorspace, frame.color_range
        frame.colorspace, frame.color_range = self.decision.matrix, self._range
        self._graph.vpush(frame)
        scaled = self._graph.vpull()
        frame.colorspace, frame.color_range = before
        return scaled


def _scaling(
    decision: ColorDecision, size: str, pixel_format: str, folder: str
) -> list[tuple[str, str]]:
    is_rgb = pixel_format == "rgb24"
    to_yuv = "" if is_rgb else ":out_color_matrix=bt709:out_range=limited"
    if not decision.is_mapped:
        return [("scale", size + to_yuv), ("format", f"pix_fmts={pixel_format}")]
    cube = Path(folder) / "tone.cube"
    cube.write_bytes(tone_cube(decision))
    return [
        ("scale", size + ":out_range=full"),
        ("format", "pix_fmts=gbrp16le"),
        ("lut3d", f"file={cube}:interp=tetrahedral"),
        ("setparams", "color_primaries=bt709:color_trc=bt709"),
        ("scale", "flags=accurate_rnd" + to_yuv),
        ("format", f"pix_fmts={pixel_format}"),
    ]


class Pictures:
    """All pictures that a pass takes of frames of one geometry and kind."""

    def __init__(self, frame: "VideoFrame", geometry: Geometry) -> None:
        self.geometry = geometry
        self._frame = frame
        self._kind = color_key(frame)
        decision = decide_color(frame)
        self.color_json = decision.to_json()
        self._look_size = look_size(*geometry.fit(LUMA_SIDE_PX))
        is_usual = frame.format.name == "yuv420p" and not decision.is_full_range
        self._is_plain = is_usual and not decision.is_mapped and not geometry.turns
        self._made: dict[str, Scaler] = {}

    def fits(self, frame: "VideoFrame") -> bool:
        """Whether a frame's numbers mean the same as those that the scalers were made for."""
        return self._kind == color_key(frame)

    def _scaler(self, name: str, size: tuple[int, int], pixel_format: str, flags: str) -> Scaler:
        if name not in self._made:
            shown = self.geometry if name == "top" else self.geometry.uncropped
            self._made[name] = Scaler(self._frame, shown, size, pixel_format, flags=flags)
        return self._made[name]

    def small(self, frame: "VideoFrame") -> "VideoFrame":
        """The whole picture, 320 px on its long side, limited-range yuv420p."""
        size = self.geometry.fit(LUMA_SIDE_PX)
        return self._scaler("small", size, "yuv420p", "area").scale(frame)

    def look(self, frame: "VideoFrame") -> Look:
        """The whole picture as shots are told by it.

        Most frames are as a look wants them but for their size; of these some lines are enough.
        """
        if not self._is_plain or min(plane.line_size for plane in frame.planes) <= 0:
            return feature_picture(self.small(frame))
        return _look(frame, self._look_size)

    def color(self, frame: "VideoFrame") -> NDArray[np.uint8]:
        """The whole picture, 640 px on its long side, RGB of shape (height, width, 3)."""
        size = self.geometry.fit(COLOR_SIDE_PX)
        scaler = self._scaler("color", size, "rgb24", "area+accurate_rnd")
        return scaler.scale(frame).to_ndarray().astype(np.uint8, copy=False)

    def top(self, frame: "VideoFrame") -> "VideoFrame | None":
        """The kept part at the size of the top rung; None for a source below all rungs."""
        rung = self.geometry.top_rung
        if rung is None:
            return None
        return self._scaler("top", self.geometry.size_of(rung), "yuv420p", SCALER).scale(frame)


def _look(frame: "VideoFrame", size: tuple[int, int]) -> Look:
    """Return the look of a limited-range yuv420p frame from evenly spread lines of it."""
    import cv2

    width, height = size
    look = np.empty((height * 3 // 2, width), np.uint8)
    chroma = look[height:].reshape(2, height // 2, width // 2)
    planes: list[Any] = list(frame.planes)
    for plane, into in zip(planes, (look[:height], *chroma), strict=True):
        lines = np.frombuffer(plane, np.uint8).reshape(plane.height, plane.line_size)
        high, wide = into.shape
        step = _line_step(plane.height, high)
        count = LOOK_LINES * high
        if step > 1:
            lines = lines[step // 2 :: step]
        elif count < plane.height:  # whole numbers of lines and columns each, which is faster
            lines = lines[(2 * np.arange(count) + 1) * plane.height // (2 * count)]
        lines = lines[:, : plane.width]
        if plane.width > wide and plane.width % wide:
            lines = cv2.resize(lines, (plane.width // wide * wide, len(lines)))
        into[:] = cv2.resize(lines, (wide, high), interpolation=cv2.INTER_AREA)
    return look


def _line_step(height: int, wanted: int) -> int:
    """Every how-many-th line of `height` makes as many for each of `wanted` lines, 4 or 3.

    Such lines are read where they lie; 1 where there is no such step.
    """
    each, rest = divmod(height, wanted)
    steps = [each // count for count in (LOOK_LINES, LOOK_LINES - 1) if each % count == 0]
    return steps[0] if steps and not rest else 1


def still_rungs(frame: "VideoFrame", geometry: Geometry) -> dict[str, bytes]:
    """Return a PNG of every rung of one picture."""
    return {
        rung: encode_png(
            Scaler(frame, geometry, geometry.size_of(rung), "rgb24")
            .scale(frame)
            .to_ndarray()
            .astype(np.uint8)
        )
        for rung in geometry.rungs
    }
