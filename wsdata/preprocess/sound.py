"""The sound of one clip: is it there, is it in sync, is it worth keeping.

Placing samples on the clock belongs to `media.audio`, what the sound is to `label`.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from wsdata.media.audio import AudioTimeline

MAX_DRIFT_MS = 50.0
SILENT_DB = -60.0
FLOOR_DB = -120.0
CLIPPED_AT = 0.985  # resampling ripples a clipped wave by about this much


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipSound:
    """Verdict and levels of one clip's sound.

    `status` is kept, silent, none, unsynced or broken; `samples` are mono at 16 kHz where kept.
    Levels are in dB of full scale, -120 at least; null where there is no sound.
    """

    status: str
    samples: NDArray[np.float32] | None = None
    drift_ms: float | None = None
    rms_db: float | None = None
    peak_db: float | None = None
    clipped_share: float | None = None


def clip_sound(
    timeline: AudioTimeline | None,
    *,
    start_s: float,
    end_s: float,
    video_start_s: float,
    num_errors: int = 0,
) -> ClipSound:
    """Judge the sound of [start_s, end_s), in seconds of the container's clock.

    The drift is the largest of: how far the sound starts from where the video starts, how much
    of the clip lies after its end, and the jumps of its time stamps within the clip.

    Args:
        timeline: Sound read so far; None for a file without any.
        start_s: Where the clip starts.
        end_s: Where it ends.
        video_start_s: Where the first frame of the file stands.
        num_errors: Packets of sound in the file that did not decode.
    """
    if timeline is None:
        return ClipSound(status="none")
    if timeline.start_s is None:
        return ClipSound(status="broken" if num_errors else "none")
    jumps_s = sum(abs(by) for at, by in timeline.jumps if start_s <= at < end_s)
    late_s = abs(timeline.start_s - video_start_s)
    short_s = min(max(0.0, end_s - timeline.end_s), end_s - start_s)
    drift_ms = round(1000 * max(late_s, short_s, jumps_s), 3)
    samples = timeline.take(start_s, end_s)
    levels = _levels(samples)
    if drift_ms > MAX_DRIFT_MS:
        status = "broken" if num_errors and late_s * 1000 <= MAX_DRIFT_MS else "unsynced"
    else:
        status = "silent" if levels["rms_db"] < SILENT_DB else "kept"
    return ClipSound(
        status=status, samples=samples if status == "kept" else None, drift_ms=drift_ms, **levels
    )


def _levels(samples: NDArray[np.float32]) -> dict[str, float]:
    if not len(samples):
        return {"rms_db": FLOOR_DB, "peak_db": FLOOR_DB, "clipped_share": 0.0}
    size = np.abs(samples.astype(np.float64))
    return {
        "rms_db": _db(float(np.sqrt(np.mean(size**2)))),
        "peak_db": _db(float(size.max())),
        "clipped_share": float(np.mean(size >= CLIPPED_AT)),
    }


def _db(value: float) -> float:
    return round(max(FLOOR_DB, 20 * math.log10(value)), 3) if value > 0 else FLOOR_DB
