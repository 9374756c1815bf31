"""The sound of one clip: is it there, is it in sync, and in which form is it worth keeping.

Placing samples on the clock belongs to `media.audio`, what the sound is to `label`. Sync is
measured from time stamps and lengths alone: how sound and pictures of the whole file start and
end, and how the sound's stamps keep to its samples. Whether lips move with what is heard is not
measured: no part that could tell it for any content is to be had.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wsdata.media.audio import RATE_HZ, AudioTimeline, resample
from wsdata.media.encode_sound import MUSIC_RATE_HZ, encode_aac, encode_opus
from wsdata.media.heard import event_shares
from wsdata.media.loudness import integrated_loudness_lufs

MAX_DRIFT_MS = 50.0
MAX_SLIP_S = 1.0  # nothing begins so little late by design; beyond, the ends tell which it is
SAME_SHIFT_S = 0.25  # encoders pad an end by up to an eighth of a second
SILENT_DB = -60.0
FLOOR_DB = -120.0
CLIPPED_AT = 0.985  # resampling ripples a clipped wave by about this much
MUSIC_MIN = 0.4  # share of the clip with music in it from which on its full band is kept
MS = 1000

# Sound of one rate beside pictures of another, by which players and converters go wrong: film as
# NTSC, film as PAL, NTSC film as PAL, and 44.1 against 48 kHz.
WRONG_RATES = (1001 / 1000, 25 / 24, 25025 / 24000, 48000 / 44100)
RATE_TOLERANCE_S = 0.04
MIN_RATE_GAP_S = 0.3  # lengths that differ by less do so by habit

_BLOCK = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipSound:
    """Verdict and levels of one clip's sound.

    `status` is kept, silent, none, unsynced or broken, and `reason` says why it is not kept;
    `samples` are the timeline's where kept. Levels are in dB of full scale, -120 at least;
    null where there is no sound.
    """

    status: str
    reason: str | None = None
    samples: NDArray[np.float32] | None = None
    drift_ms: float | None = None
    rms_db: float | None = None
    peak_db: float | None = None
    clipped_share: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredSound:
    """A kept sound as it is stored. Loudness is the source's; the share decided on the form."""

    data: bytes
    suffix: str
    codec: str  # opus | aac
    sample_rate_hz: int
    channels: int
    loudness_lufs: float
    music_share: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """From where to where a file has pictures, or sound, in seconds of the container's clock."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Seconds from end to end."""
        return self.end_s - self.start_s


def clip_sound(
    timeline: AudioTimeline | None,
    *,
    start_s: float,
    end_s: float,
    video_start_s: float,
    num_errors: int = 0,
) -> ClipSound:
    """Judge the sound of [start_s, end_s), in seconds of the container's clock.

    The drift is the largest of: how far the sound starts from where the video starts, if that is
    at most `MAX_SLIP_S`; how much of the clip has no sound before its first or after its last;
    and how far the sound's time stamps stray from its samples within the clip. What can be told
    from the whole file alone is told by `file_drift_ms`.

    Args:
        timeline: Sound read so far; None for a file without any.
        start_s: Where the clip starts.
        end_s: Where it ends.
        video_start_s: Where the first frame of the file stands.
        num_errors: Packets of sound in the file that did not decode.
    """
    if timeline is None:
        return ClipSound(status="none", reason="the file has no sound")
    if timeline.start_s is None:
        if num_errors:
            return ClipSound(status="broken", reason=f"none of its sound decodes: {num_errors}")
        return ClipSound(status="none", reason="the file's sound track holds nothing")
    absent_s = max(timeline.start_s - start_s, 0) + max(end_s - timeline.end_s, 0)
    if absent_s >= (end_s - start_s) - MAX_DRIFT_MS / MS and not num_errors:
        return ClipSound(status="none", reason="the file's sound is elsewhere")
    lead_s = timeline.start_s - video_start_s
    slip_s = abs(lead_s) if abs(lead_s) <= MAX_SLIP_S else 0.0
    found = {
        f"the sound starts {MS * lead_s:+.0f} ms from the pictures": slip_s,
        f"{MS * absent_s:.0f} ms of the clip have no sound": min(absent_s, end_s - start_s),
        "its time stamps leave its samples": _straying_s(timeline, start_s, end_s),
    }
    why = max(found, key=lambda reason: found[reason])
    drift_ms = round(MS * found[why], 3)
    samples = timeline.take(start_s, end_s)
    levels = _levels(samples)
    if drift_ms > MAX_DRIFT_MS:
        is_broken = num_errors and slip_s * MS <= MAX_DRIFT_MS
        status = "broken" if is_broken else "unsynced"
        return ClipSound(status=status, reason=why, drift_ms=drift_ms, **levels)
    if levels["rms_db"] < SILENT_DB:
        why = f"its level is {levels['rms_db']:.0f} dB"
        return ClipSound(status="silent", reason=why, drift_ms=drift_ms, **levels)
    return ClipSound(status="kept", samples=samples, drift_ms=drift_ms, **levels)


def _straying_s(timeline: AudioTimeline, start_s: float, end_s: float) -> float:
    """How far samples played without a break from the clip's start would leave their stamps."""
    strayed_s = worst_s = 0.0
    for at, by in timeline.jumps:
        if start_s <= at < end_s:
            strayed_s += by
            worst_s = max(worst_s, abs(strayed_s))
    return worst_s


def file_drift_ms(video: Span, sound: Span, *, at_s: float, is_whole: bool = True) -> float:
    """How far the sound of a whole file is from its pictures at one time, as its ends tell.

    A track that starts and ends by the same amount late was shifted. One that starts much later
    and ends with the pictures begins so by design, and drifts nowhere. One that starts with the
    pictures and whose length is theirs times a rate by which conversions go wrong drifts
    steadily. Other lengths are left as they are: sound often ends before its pictures.

    Args:
        video: Of the pictures.
        sound: Of the sound.
        at_s: The time asked for, on the same clock.
        is_whole: Whether both were read to their end; if not, a late start is taken for a shift.
    """
    lead_s, tail_s = sound.start_s - video.start_s, sound.end_s - video.end_s
    if abs(lead_s) > MAX_DRIFT_MS / MS:
        is_shift = abs(lead_s) <= MAX_SLIP_S or not is_whole
        is_shift = is_shift or abs(tail_s - lead_s) <= SAME_SHIFT_S
        return round(MS * abs(lead_s), 3) if is_shift else 0.0
    if not is_whole:
        return 0.0
    share = (at_s - video.start_s) / max(video.length_s, 1e-9)
    for rate in WRONG_RATES:
        for ratio in (rate, 1 / rate):
            gap_s = (ratio - 1) * video.length_s
            if abs(gap_s) >= MIN_RATE_GAP_S and abs(tail_s - gap_s) <= RATE_TOLERANCE_S:
                return round(MS * abs(tail_s) * min(1.0, share), 3)
    return 0.0


def stored_sound(samples: NDArray[np.float32], rate_hz: int, source_rate_hz: int) -> StoredSound:
    """Bring kept sound to the form it is stored in.

    Music keeps its band and both its sides, 44.1 kHz stereo, if its source has more than 16 kHz
    mono can hold; whatever else is heard beside it. All other sound is speech or ambience, and
    goes as 16 kHz mono, which is what the models hear.

    Args:
        samples: In [-1, 1], of shape (samples,) or (samples, 2).
        rate_hz: Their rate.
        source_rate_hz: The rate of the file that they are from.
    """
    mono_n = resample(samples, rate_hz, to_rate_hz=RATE_HZ, num_channels=1)
    heard = event_shares(mono_n)
    told = {
        "loudness_lufs": integrated_loudness_lufs(samples, rate_hz),
        "music_share": round(max(heard["music"], heard["singing"]), 6),
    }
    if told["music_share"] < MUSIC_MIN or source_rate_hz <= RATE_HZ:
        return StoredSound(
            data=encode_opus(mono_n), suffix=".ogg", codec="opus",
            sample_rate_hz=RATE_HZ, channels=1, **told,
        )  # fmt: skip
    if samples.ndim == 1 or rate_hz != MUSIC_RATE_HZ:
        samples = resample(samples, rate_hz, to_rate_hz=MUSIC_RATE_HZ, num_channels=2)
    return StoredSound(
        data=encode_aac(samples), suffix=".m4a", codec="aac",
        sample_rate_hz=MUSIC_RATE_HZ, channels=2, **told,
    )  # fmt: skip


def _levels(samples: NDArray[np.float32]) -> dict[str, Any]:
    flat = samples.reshape(-1)
    if not len(flat):
        return {"rms_db": FLOOR_DB, "peak_db": FLOOR_DB, "clipped_share": 0.0}
    power = peak = 0.0
    num_clipped = 0
    for start in range(0, len(flat), _BLOCK):
        size = np.abs(flat[start : start + _BLOCK].astype(np.float64))
        power += float(np.sum(size**2))
        peak = max(peak, float(size.max()))
        num_clipped += int(np.count_nonzero(size >= CLIPPED_AT))
    return {
        "rms_db": _db(math.sqrt(power / len(flat))),
        "peak_db": _db(peak),
        "clipped_share": num_clipped / len(flat),
    }


def _db(value: float) -> float:
    return round(max(FLOOR_DB, 20 * math.log10(value)), 3) if value > 0 else FLOOR_DB
