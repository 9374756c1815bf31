"""Frames cropped, scaled, turned and brought to BT.709, on one thread.

What is kept of a frame and at which sizes is `ladder`'s; what its numbers mean `media.color`'s.
"""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wsdata.media.color import ColorDecision, color_key, decide_color, tone_cube
from wsdata.media.encode import encode_png
from wsdata.preprocess.framepack import COLOR_SIDE_PX, LUMA_SIDE_PX
from wsdata.preprocess.ladder import SCALER, Geometry

if TYPE_CHECKING:
    from av import VideoFrame

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
        self.color_json = decide_color(frame).to_json()
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
