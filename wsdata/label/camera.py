"""How the camera moves in a clip: one class, from optical flow over the pack's luma pairs.

Every pair gives one global motion (shift, scale, rotation) that most of the textured picture
agrees on, so that a subject crossing a still frame does not count as a pan. The pairs of a clip
then agree on a direction, or they do not: a pan does, a hand does not.

Array axes: h height, w width, n grid points, k components, p pairs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wsdata import tables
from wsdata.label.packs import kept_clips, read_pack
from wsdata.orders import Input, Step, StepResult, StepRun

MODEL_VERSION = "dis-global-1"
LABELS = ("static", "pan", "tilt", "zoom", "handheld", "complex", "none")

_GRID_PX = 8
_MIN_POINTS = 24  # textured grid points below which a pair says nothing
_MIN_TEXTURE = 5.0  # mean absolute gradient around a point, in luma levels
_STATIC_SPEED = 0.02  # widths per second: a fifth of a pixel per frame at 256 wide and 24 fps
_INLIER = 0.15  # of the motion, plus a quarter pixel: agreement with the global motion
_COHERENT, _DIRECTED = 0.7, 1.5
_EDGE = 0.25  # mean distance of a picture's points from its centre, in widths


@dataclass(frozen=True, kw_only=True, slots=True)
class PairMotion:
    """Global motion between two frames, per second.

    Attributes:
        right: Camera travel to the right, in widths; `down` likewise downward.
        zoom: Relative growth of what is seen: positive where the camera goes in.
        agreement: Share of textured points that move this way, in [0, 1].
    """

    right: float
    down: float
    zoom: float
    agreement: float


@dataclass(frozen=True, kw_only=True, slots=True)
class CameraMotion:
    """Class of a clip's camera motion and what it was read from.

    `shake` is the mean departure of the pairs from their common motion, in widths per second.
    """

    label: str
    confidence: float
    pan_x: float
    pan_y: float
    zoom: float
    shake: float


def pair_motion(
    first_hw: NDArray[np.uint8], second_hw: NDArray[np.uint8], gap_s: float
) -> PairMotion | None:
    """Estimate the global motion from one frame to a later one.

    Args:
        first_hw: Luma in [0, 255].
        second_hw: Luma of the later frame, of the same shape.
        gap_s: Seconds between them, above 0.

    Returns:
        The motion, or None where too little of the picture has texture to tell.
    """
    import cv2

    cv2.setNumThreads(1)
    height, width = first_hw.shape
    if min(height, width) < 3 * _GRID_PX:
        return None
    engine = cv2.DISOpticalFlow.create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
    flow_hwk = engine.calc(first_hw, second_hw, None)  # pyright: ignore[reportCallIssue, reportArgumentType]
    across = cv2.Sobel(first_hw, cv2.CV_32F, 1, 0, scale=0.25)
    down = cv2.Sobel(first_hw, cv2.CV_32F, 0, 1, scale=0.25)
    texture = cv2.blur(np.abs(across) + np.abs(down), (_GRID_PX, _GRID_PX))
    rows = np.arange(_GRID_PX, height - _GRID_PX, _GRID_PX)
    columns = np.arange(_GRID_PX, width - _GRID_PX, _GRID_PX)
    ys, xs = np.meshgrid(rows, columns, indexing="ij")
    is_textured = texture[ys, xs] >= _MIN_TEXTURE
    ys, xs = ys[is_textured], xs[is_textured]
    if xs.size < _MIN_POINTS:
        return None
    points_nk = np.stack([xs - width / 2, ys - height / 2], axis=1)
    moves_nk = flow_hwk[ys, xs].astype(np.float64)
    shift_x, shift_y, scale, agreement = _fit(points_nk, moves_nk)
    per_s = 1.0 / gap_s
    return PairMotion(
        right=-shift_x / width * per_s,
        down=-shift_y / width * per_s,
        zoom=scale * per_s,
        agreement=agreement,
    )


def _fit(
    points_nk: NDArray[np.float64], moves_nk: NDArray[np.float64]
) -> tuple[float, float, float, float]:
    """Fit shift, scale and rotation by reweighted least squares, from the median outward."""
    x, y = points_nk[:, 0], points_nk[:, 1]
    zero, one = np.zeros_like(x), np.ones_like(x)
    design = np.concatenate(
        [np.stack([one, zero, x, -y], axis=1), np.stack([zero, one, y, x], axis=1)]
    )
    target = np.concatenate([moves_nk[:, 0], moves_nk[:, 1]])
    solution = np.array([*np.median(moves_nk, axis=0), 0.0, 0.0])
    for _ in range(10):
        residual_n = _residual(design, target, solution)
        width_px = max(float(np.median(residual_n)), 0.1)
        weight_n = 1.0 / (1.0 + (residual_n / width_px) ** 2) ** 2
        # einsum sums in one order whatever the thread count; BLAS products need not
        weighted = design * np.concatenate([weight_n, weight_n])[:, None]
        normal = np.einsum("ni,nj->ij", weighted, design) + 1e-9 * np.eye(4)
        solution = np.linalg.solve(normal, np.einsum("ni,n->i", weighted, target))
    residual_n = _residual(design, target, solution)
    shift_x, shift_y, scale, _ = (float(value) for value in solution)
    typical_px = float(np.hypot(shift_x, shift_y) + abs(scale) * np.abs(points_nk).mean())
    agreement = float((residual_n <= 0.25 + _INLIER * typical_px).mean())
    return shift_x, shift_y, scale, agreement


def _residual(
    design: NDArray[np.float64], target: NDArray[np.float64], solution: NDArray[np.float64]
) -> NDArray[np.float64]:
    off = (target - np.einsum("ni,i->n", design, solution)).reshape(2, -1)
    return np.hypot(off[0], off[1])


def classify(motions: Sequence[PairMotion]) -> CameraMotion:
    """Name the camera motion of a clip from the global motions of its pairs.

    Returns:
        One of LABELS; "none" with confidence 0 where there is no pair to tell from.
    """
    if not motions:
        return CameraMotion(label="none", confidence=0.0, pan_x=0.0, pan_y=0.0, zoom=0.0, shake=0.0)
    moves_pk = np.array([[m.right, m.down, m.zoom * _EDGE] for m in motions])
    agreement = float(np.median([m.agreement for m in motions]))
    mean_k = moves_pk.mean(axis=0)
    speeds_p = np.linalg.norm(moves_pk, axis=1)
    speed = float(np.median(speeds_p))
    coherence = float(np.linalg.norm(mean_k) / max(float(speeds_p.mean()), 1e-9))
    label, margin = _label(mean_k, speed, coherence, agreement)
    # a cut or a flash spoils single pairs, which the median passes over
    typical_k = np.median(moves_pk, axis=0)
    shake = float(np.linalg.norm(moves_pk - typical_k, axis=1).mean())
    return CameraMotion(
        label=label,
        confidence=round(min(margin, 1.0) * agreement, 4),
        pan_x=round(float(typical_k[0]), 5),
        pan_y=round(float(typical_k[1]), 5),
        zoom=round(float(typical_k[2]) / _EDGE, 5),
        shake=round(shake, 5),
    )


def _label(
    mean_k: NDArray[np.float64], speed: float, coherence: float, agreement: float
) -> tuple[str, float]:
    """Return the class and how far it is from its border, 1 and above being far."""
    if speed < _STATIC_SPEED:
        return "static", 0.4 + (1 - speed / _STATIC_SPEED)
    if agreement < 0.3:
        return "complex", 0.8
    if coherence < _COHERENT:
        # a hand trembles slowly; what is fast and has no direction is something else
        is_hand = speed < 0.5
        return ("handheld" if is_hand else "complex"), 0.4 + (1 - coherence / _COHERENT)
    strength = np.abs(mean_k)
    order = np.argsort(-strength, kind="stable")
    lead = float(strength[order[0]] / max(float(strength[order[1]]), 1e-9))
    if lead < _DIRECTED:
        return "complex", 0.4 + (1 - lead / _DIRECTED)
    return ("pan", "tilt", "zoom")[int(order[0])], 0.4 + 0.3 * (lead / _DIRECTED - 1) + 0.4 * (
        speed / _STATIC_SPEED - 1
    )


def camera_motion(
    pairs_hw: Sequence[tuple[NDArray[np.uint8], NDArray[np.uint8]]], intervals_s: Sequence[float]
) -> CameraMotion:
    """Name the camera motion of a clip.

    Args:
        pairs_hw: Luma pairs in [0, 255], in the order of the clip.
        intervals_s: Seconds between the frames of each pair; pairs without any are passed over.

    Returns:
        One of LABELS: "none" without a pair; "static", hardly believed, where no pair has
        texture by which a motion could be seen.
    """
    found = [
        pair_motion(first_hw, second_hw, interval_s)
        for (first_hw, second_hw), interval_s in zip(pairs_hw, intervals_s, strict=True)
        if interval_s > 0
    ]
    motions = [motion for motion in found if motion is not None]
    if pairs_hw and not motions:
        return CameraMotion(
            label="static", confidence=0.1, pan_x=0.0, pan_y=0.0, zoom=0.0, shake=0.0
        )
    return classify(motions)


def run(run: StepRun) -> StepResult:
    """Name the camera motion of every clip of a drop that passed the gates."""
    clips = kept_clips(run)
    records: list[dict[str, Any]] = []
    for done, clip in enumerate(clips, start=1):
        records.append(_label_clip(run, clip))
        run.progress(done, len(clips), clip["clip_id"])
    counts = Counter(record["label"] for record in records)
    lines = [f"| {label} | {counts[label]} |" for label in LABELS if counts[label]]
    table = "\n".join(["| camera | clips |", "|---|---|", *lines])
    return StepResult(
        tables={"camera_motion": tables.rows_of("camera_motion", records)},
        metrics={"clips": len(records)},
        display={
            "camera_motion": {
                "clips": {"type": "int", "raw_value": len(records)},
                "classes": {"type": "md", "raw_value": table},
            }
        },
    )


def _label_clip(run: StepRun, clip: Mapping[str, Any]) -> dict[str, Any]:
    def compute() -> dict[str, Any]:
        pairs = read_pack(run, clip).luma_pairs
        intervals_s = [second.time_s - first.time_s for first, second in pairs]
        pairs_hw = [(first.pixels, second.pixels) for first, second in pairs]
        return asdict(camera_motion(pairs_hw, intervals_s))

    length_s = clip["duration_s"] or 0.0
    found = run.unit(
        f"{clip['clip_id']}/{clip['pack_sha256']}", compute, amounts=lambda _: {"media_s": length_s}
    )
    return {"clip_id": clip["clip_id"], **found, "model_version": MODEL_VERSION}


STEP = Step(
    stage="label",
    name="camera_motion",
    function="wsdata.label.camera:run",
    code_version=MODEL_VERSION,
    partition="drop",
    assets={"camera_motion": ("camera_motion",)},
    inputs=(Input(table="gates"), Input(table="clips"), Input(table="frame_packs")),
    pool="nvdec",
    description=(
        "How the camera moves in each clip that passed the gates: static, pan, tilt, zoom, "
        "handheld or complex, with how sure that is."
    ),
)
