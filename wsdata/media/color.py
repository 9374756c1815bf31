"""What the numbers of a frame mean, and how they become BT.709 pixels for a usual screen.

The decision is taken once per kind of frame and told with the rungs. Wide gamuts and high
dynamic range go through a cube of BT.709 values (`tone_cube`); what applies it is in
`preprocess.scaling`.

Reference of the mapping: PQ and HLG as ITU-R BT.2100-2, HLG seen on a screen of 1,000 cd/m2 (system
gamma 1.2); tone curve as ITU-R BT.2390-8, 5.4.1 (EETF), from the stated peak down to 203 cd/m2,
which BT.2408 calls reference white and which becomes white here; applied to the largest of R, G
and B, so that hues stay; primaries to BT.709 in linear light, cut at both ends; BT.1886 (gamma
2.4) for the screen.
"""

import functools
import json
import struct
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from wsdata.media.decode import canonical_color

if TYPE_CHECKING:
    from av import VideoFrame

MAPPING_VERSION = "bt2390-203nits-1"
CUBE_SIDE = 49
WHITE_NITS = 203.0
DEFAULT_PEAK_NITS = 1000.0
MAX_PEAK_NITS = 10000.0
SCREEN_GAMMA = 2.4
_HLG_GAMMA = 1.2

_PQ, _HLG = 16, 18  # ITU-T H.273 codes of transfers
_LINEAR_TRANSFERS = {8: 1.0, 4: 2.2, 5: 2.8}  # others of SDR are meant for a BT.1886 screen
_UNSTATED = (0, 2, 3)
_D65 = (0.3127, 0.329)
_XY = {  # of red, green, blue and white
    1: ((0.64, 0.33), (0.3, 0.6), (0.15, 0.06), _D65),
    9: ((0.708, 0.292), (0.17, 0.797), (0.131, 0.046), _D65),
    11: ((0.68, 0.32), (0.265, 0.69), (0.15, 0.06), (0.314, 0.351)),
    12: ((0.68, 0.32), (0.265, 0.69), (0.15, 0.06), _D65),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class ColorDecision:
    """How a kind of frame is read, and what is done to it. Codes are those of ITU-T H.273.

    Attributes:
        matrix: Luma and chroma to RGB; 0 for RGB.
        is_full_range: Whether black is 0 and white the largest value.
        primaries: Of the source; 1 where it states none.
        transfer: Of the source; 1 where it states none.
        assumed: What of these the source does not state.
        mapping: ``none``, ``matrix`` (to that of BT.709), or `MAPPING_VERSION`.
        peak_nits: Brightest light that the source is graded for; null for standard range.
        peak_from: ``content``, ``mastering`` or ``default``; null for standard range.
    """

    matrix: int
    is_full_range: bool
    primaries: int
    transfer: int
    assumed: tuple[str, ...]
    mapping: str
    peak_nits: float | None = None
    peak_from: str | None = None

    @property
    def is_mapped(self) -> bool:
        """Whether a cube is needed, more than another matrix."""
        return self.mapping == MAPPING_VERSION

    def to_json(self) -> str:
        """For rows."""
        return json.dumps(asdict(self), sort_keys=True)


def is_rgb_format(name: str) -> bool:
    """Whether a pixel format holds no luma and chroma; palettes are colours too."""
    return not name.startswith(("yuv", "nv", "p0", "p2", "p4", "gray", "ya", "y2", "uyvy", "vuy"))


def decide_color(frame: "VideoFrame") -> ColorDecision:
    """Decide how a frame's numbers are read, as a player would.

    A matrix that is not stated is BT.709 from 1280 x 720 on and BT.601 below; a range that is
    not stated is limited, but for RGB.
    """
    is_rgb = is_rgb_format(frame.format.name)
    matrix, is_full = canonical_color(frame)
    primaries, transfer = int(frame.color_primaries), int(frame.color_trc)
    stated = {
        "matrix": is_rgb or int(frame.colorspace) not in _UNSTATED,
        "range": is_full or is_rgb or int(frame.color_range) != 0,
        "primaries": primaries not in _UNSTATED,
        "transfer": transfer not in _UNSTATED,
    }
    primaries = primaries if stated["primaries"] else 1
    transfer = transfer if stated["transfer"] else 1
    matrix = 0 if is_rgb else matrix
    is_mapped = transfer in (_PQ, _HLG) or primaries in _XY.keys() - {1}
    peak = _peak_nits(frame) if transfer == _PQ else (DEFAULT_PEAK_NITS, "default")
    other = "none" if matrix in (0, 1) and not is_full else "matrix"
    return ColorDecision(
        matrix=matrix,
        is_full_range=is_full or is_rgb,
        primaries=primaries,
        transfer=transfer,
        assumed=tuple(name for name, is_stated in stated.items() if not is_stated),
        mapping=MAPPING_VERSION if is_mapped else other,
        peak_nits=peak[0] if transfer in (_PQ, _HLG) else None,
        peak_from=peak[1] if transfer in (_PQ, _HLG) else None,
    )


def color_key(frame: "VideoFrame") -> tuple[Any, ...]:
    """What two frames of one kind have in common; cheap enough for every frame."""
    return (
        frame.format.name, frame.colorspace, frame.color_range, frame.color_primaries,
        frame.color_trc,
    )  # fmt: skip


def _peak_nits(frame: "VideoFrame") -> tuple[float, str]:
    """Peak of a PQ frame by its metadata: of its content, else of the screen it was graded on."""
    held: dict[str, bytes] = {}
    for data in frame.side_data:
        one: Any = data
        held[one.type.name] = bytes(one)
    content = held.get("CONTENT_LIGHT_LEVEL", b"")
    graded = held.get("MASTERING_DISPLAY_METADATA", b"")
    found = {
        "content": float(struct.unpack_from("=I", content)[0]) if len(content) >= 8 else 0.0,
        "mastering": _mastering_nits(graded),
    }
    for source, nits in found.items():
        if WHITE_NITS <= nits <= MAX_PEAK_NITS:
            return nits, source
    return DEFAULT_PEAK_NITS, "default"


def _mastering_nits(raw: bytes) -> float:
    """Largest luminance of libavutil's structure: six, two and two ratios of int, then flags."""
    if len(raw) < 88:
        return 0.0
    numbers = struct.unpack_from("=22i", raw)
    top, below, has_luminance = numbers[18], numbers[19], numbers[21]
    return top / below if has_luminance and below > 0 else 0.0


# light ---------------------------------------------------------------------------------------


def pq_to_nits(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Light in cd/m2 of PQ values in [0, 1] (BT.2100 table 4)."""
    root = np.clip(values, 0, 1) ** (32 / 2523)
    below = 2413 / 128 - 2392 / 128 * root
    return 10000 * (np.maximum(root - 107 / 128, 0) / below) ** (16384 / 2610)


def nits_to_pq(nits: NDArray[np.float64]) -> NDArray[np.float64]:
    """PQ values in [0, 1] of light in cd/m2."""
    root = np.clip(nits / 10000, 0, 1) ** (2610 / 16384)
    return ((107 / 128 + 2413 / 128 * root) / (1 + 2392 / 128 * root)) ** (2523 / 32)


def hlg_to_nits(rgb: NDArray[np.float64]) -> NDArray[np.float64]:
    """Light of a 1,000 cd/m2 screen of HLG values in [0, 1] (BT.2100 table 5); last axis is RGB."""
    a = 0.17883277
    b, c = 1 - 4 * a, 0.5 - a * np.log(4 * a)
    low = np.clip(rgb, 0, 1)
    scene = np.where(low <= 0.5, low**2 / 3, (np.exp((low - c) / a) + b) / 12)
    luma = scene @ np.array([0.2627, 0.678, 0.0593])
    return 1000 * scene * np.maximum(luma, 1e-9)[..., None] ** (_HLG_GAMMA - 1)


def tone_curve(nits: NDArray[np.float64], peak_nits: float) -> NDArray[np.float64]:
    """Bring light in [0, peak] down to [0, 203] cd/m2 (BT.2390 5.4.1, no lift of black)."""
    whole = float(nits_to_pq(np.array(peak_nits)))
    most = float(nits_to_pq(np.array(WHITE_NITS))) / whole
    if most >= 1:
        return nits
    knee = 1.5 * most - 0.5
    value = np.clip(nits_to_pq(nits) / whole, 0, 1)
    t = np.maximum(value - knee, 0) / (1 - knee)
    spline = (
        (2 * t**3 - 3 * t**2 + 1) * knee
        + (t**3 - 2 * t**2 + t) * (1 - knee)
        + (3 * t**2 - 2 * t**3) * most
    )
    return pq_to_nits(np.where(value < knee, value, spline) * whole)


def _rgb_to_xyz(primaries: int) -> NDArray[np.float64]:
    *corners, white = (np.array([x / y, 1, (1 - x - y) / y]) for x, y in _XY.get(primaries, _XY[1]))
    matrix = np.stack(corners, axis=1)
    return matrix * np.linalg.solve(matrix, white)


def to_bt709(rgb: NDArray[np.float64], decision: ColorDecision) -> NDArray[np.float64]:
    """Map full-range RGB of a source to full-range RGB of BT.709; this is the reference.

    Args:
        rgb: In [0, 1], last axis R, G, B, as the source's transfer has it.
        decision: What the source's values mean.

    Returns:
        In [0, 1], same shape.
    """
    if decision.peak_nits is not None:
        nits = pq_to_nits(rgb) if decision.transfer == _PQ else hlg_to_nits(rgb)
        largest = np.maximum(nits.max(axis=-1, keepdims=True), 1e-6)
        light = nits * tone_curve(largest, decision.peak_nits) / largest / WHITE_NITS
    else:
        light = np.clip(rgb, 0, 1) ** _LINEAR_TRANSFERS.get(decision.transfer, SCREEN_GAMMA)
    turn = np.linalg.solve(_rgb_to_xyz(1), _rgb_to_xyz(decision.primaries))
    return np.clip(light @ turn.T, 0, 1) ** (1 / SCREEN_GAMMA)


@functools.lru_cache(maxsize=8)
def tone_cube(decision: ColorDecision) -> bytes:
    """Return the mapping of a decision as a .cube file, red running fastest."""
    grid = np.linspace(0, 1, CUBE_SIDE)
    blue, green, red = np.meshgrid(grid, grid, grid, indexing="ij")
    mapped = to_bt709(np.stack([red, green, blue], -1), decision).reshape(-1, 3)
    lines = [
        f"LUT_3D_SIZE {CUBE_SIDE}",
        *(f"{r:.7f} {g:.7f} {b:.7f}" for r, g, b in mapped.tolist()),
    ]
    return ("\n".join(lines) + "\n").encode()
