"""Prints of the decode pass: perceptual hashes of the frames shown at each whole second.

The hash is `media.phash`'s, and the picture that is hashed is made as for key frames, so that
both kinds compare.
"""

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from wsdata.media.keyframes import hashed_rgb
from wsdata.media.phash import HASH_VERSION, hash_picture

if TYPE_CHECKING:
    from av import VideoFrame

PRINT_METHOD = f"pass-1fps-{HASH_VERSION}"


class Prints:
    """Rows of the prints of one track, whose times count from `origin_pts`."""

    def __init__(self, origin_pts: int, time_base: Fraction) -> None:
        self.rows: list[dict[str, Any]] = []
        self._origin = origin_pts
        self._num, self._den = time_base.numerator, time_base.denominator
        self._next_s = 0

    def see(self, frame: "VideoFrame", pts: int, end_pts: int, sar: Fraction) -> None:
        """Print a frame shown in [pts, end_pts), if it is the first shown at a whole second."""
        end = (end_pts - self._origin) * self._num
        if end <= self._next_s * self._den:
            return
        self._next_s = -(-end // self._den)
        made = hash_picture(hashed_rgb(frame, sar))
        self.rows.append(
            {
                "frame_index": len(self.rows),
                "time_s": (pts - self._origin) * self._num / self._den,
                "hash": made.plain.hex(),
                "mirror_hash": made.mirror.hex(),
                "quality": made.quality,
                "core_hash": made.core.hex() if made.core else None,
                "core_mirror_hash": made.core_mirror.hex() if made.core_mirror else None,
                "method": PRINT_METHOD,
            }
        )
