"""What one decode leaves of the sound of its clips: a file for each that is kept, and the word.

A clip's sound is judged a little later than its pictures: when the sound has been read as far,
or when the file is over. What only the ends of the file can tell is told last, and takes back
what was kept. Everything here runs in the sandboxed child.
"""

from collections import deque
from pathlib import Path
from typing import Any

from wsdata.media.audio import AudioTimeline
from wsdata.media.encode_sound import MUSIC_RATE_HZ
from wsdata.preprocess.sound import (
    MAX_DRIFT_MS,
    ClipSound,
    Span,
    clip_sound,
    file_drift_ms,
    stored_sound,
)

SOUND_AHEAD_S = 0.1  # sound read beyond a clip's end before it is judged


def sound_timeline(folder: Path) -> AudioTimeline:
    """Make the timeline that a pass reads sound into: as music is stored, its widest form."""
    return AudioTimeline(rate_hz=MUSIC_RATE_HZ, num_channels=2, folder=folder)


class SoundOutput:
    """Writes the sound of finished clips into the child's folder, and tells of it in their rows."""

    def __init__(self, out_dir: Path, timeline: AudioTimeline | None, origin_s: float) -> None:
        self._out_dir = out_dir
        self._timeline = timeline
        self._origin_s = origin_s
        self._waiting: deque[dict[str, Any]] = deque()
        self._told: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        """Take the row of a finished clip; it gets its ``audio`` when its sound has been read."""
        self._waiting.append(row)

    def judge(
        self, *, num_errors: int = 0, is_over: bool = False, needed_from_s: float | None = None
    ) -> None:
        """Judge the sound of finished clips, as far as sound has been read.

        Args:
            num_errors: Packets of sound that did not decode so far.
            is_over: Nothing more will be read.
            needed_from_s: Where the earliest frame stands that a later clip may have, by the
                container's clock; sound before it and before all waiting clips is forgotten.
        """
        timeline = self._timeline
        if timeline is not None and is_over:
            timeline.finish()
        while self._waiting:
            row = self._waiting[0]
            start_s, end_s = row["start_s"] + self._origin_s, row["end_s"] + self._origin_s
            if timeline is not None and not is_over and timeline.end_s < end_s + SOUND_AHEAD_S:
                break
            self._waiting.popleft()
            sound = clip_sound(
                timeline,
                start_s=start_s,
                end_s=end_s,
                video_start_s=self._origin_s,
                num_errors=num_errors,
            )
            row["audio"] = self._save(row, sound)
            self._told.append(row)
        if timeline is not None and needed_from_s is not None:
            waits = [self._waiting[0]["start_s"] + self._origin_s] if self._waiting else []
            timeline.forget_before(min([needed_from_s, *waits]))

    def settle(self, video_end_s: float, *, is_whole: bool) -> None:
        """Take back the sound of clips from which the whole file's has drifted away.

        Args:
            video_end_s: Where the pictures end, by the container's clock.
            is_whole: Whether the file was read to its end.
        """
        timeline = self._timeline
        if timeline is None or timeline.start_s is None:
            return
        video = Span(start_s=self._origin_s, end_s=video_end_s)
        sound = Span(start_s=timeline.start_s, end_s=timeline.end_s)
        for row in self._told:
            told = row["audio"]
            at_s = row["end_s"] + self._origin_s
            drift_ms = file_drift_ms(video, sound, at_s=at_s, is_whole=is_whole)
            if told["status"] not in ("kept", "silent") or drift_ms <= MAX_DRIFT_MS:
                continue
            if file := told.get("file"):
                (self._out_dir / file).unlink()
            levels = {name: told[name] for name in ("rms_db", "peak_db", "clipped_share")}
            reason = f"the file's sound is {drift_ms:.0f} ms from its pictures there"
            told.clear()
            told |= {"status": "unsynced", "reason": reason, "drift_ms": drift_ms} | levels

    def _save(self, row: dict[str, Any], sound: ClipSound) -> dict[str, Any]:
        told: dict[str, Any] = {
            "status": sound.status,
            "reason": sound.reason,
            "drift_ms": sound.drift_ms,
            "rms_db": sound.rms_db,
            "peak_db": sound.peak_db,
            "clipped_share": sound.clipped_share,
        }
        if self._timeline is not None:
            told["source_rate_hz"] = self._timeline.source_rate_hz
            told["source_channels"] = self._timeline.source_channels
        if sound.samples is None or self._timeline is None:
            return told
        rate_hz = self._timeline.rate_hz
        stored = stored_sound(sound.samples, rate_hz, self._timeline.source_rate_hz or rate_hz)
        file = f"{row['start_ms']:09d}_sound{stored.suffix}"
        (self._out_dir / file).write_bytes(stored.data)
        return told | {
            "file": file,
            "codec": stored.codec,
            "sample_rate_hz": stored.sample_rate_hz,
            "channels": stored.channels,
            "duration_s": len(sound.samples) / rate_hz,
            "loudness_lufs": stored.loudness_lufs,
            "music_share": stored.music_share,
        }
