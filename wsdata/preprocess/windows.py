"""Shots to clips: training windows inside one shot, decided while frames stream past.

A window never crosses a cut, and holds no frame of a fade or a dissolve. It closes at the target
length once the shot has gone on for the minimum length after that; a shorter tail joins the
window before it, so that every window is between the minimum and target + minimum long. What is
shorter than the minimum gives no clip.

Continuous sources are cut into episodes: the target is a part of the file's own length that
leaves no short rest, and `shots` takes nothing for a cut but what no camera could do.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

from wsdata.preprocess.shots import Word

CUT, FADE, DISSOLVE, WINDOW, GAP, FILE = KINDS = (
    "cut",
    "fade",
    "dissolve",
    "window",
    "gap",
    "file",
)  # what a window begins and ends at
_KIND_OF = {
    Word.CUT: CUT, Word.TRIM: CUT, Word.FADE: FADE, Word.DISSOLVE: DISSOLVE, Word.SAME: FILE,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowRule:
    """Lengths in seconds. Every window is in [min_s, max_s], most in 5-10 s."""

    min_s: float = 2.0
    target_s: float = 8.0
    max_s: float = 20.0

    def __post_init__(self) -> None:
        if not 0 < self.min_s <= self.target_s or self.target_s + 2 * self.min_s > self.max_s:
            raise ValueError(
                f"windows of {self.min_s} s at least and {self.max_s} s at most cannot have a "
                f"target of {self.target_s} s: expected min <= target <= max - 2 x min"
            )

    def planned(self, length_s: float | None) -> "WindowRule":
        """Return the rule for a file that is one episode, with windows of equal length.

        Args:
            length_s: What the file is said to last. It need not be right: the target stays at
                least what it was, and the maximum is kept.
        """
        if length_s is None or length_s < self.target_s:
            return self
        longest_s = self.max_s - 2 * self.min_s
        target_s = length_s / int(length_s / self.target_s)
        return replace(self, target_s=min(target_s, longest_s))


WINDOWS = WindowRule()
EPISODES = WindowRule(target_s=30.0, max_s=64.0)  # of continuous sources


def window_params() -> dict[str, float]:
    """What of the rules is part of the decode step's parameters."""
    return {
        "window_min_s": WINDOWS.min_s,
        "window_target_s": WINDOWS.target_s,
        "window_max_s": WINDOWS.max_s,
        "episode_target_s": EPISODES.target_s,
        "episode_max_s": EPISODES.max_s,
    }


def rule_of(args: Mapping[str, Any], duration_us: int | None) -> WindowRule:
    """Return the rule for a file, from the parameters and ``is_continuous``.

    Args:
        args: What `window_params` gives.
        duration_us: What the file is said to last.
    """
    kind = "episode" if args.get("is_continuous") else "window"
    rule = WindowRule(
        min_s=args["window_min_s"],
        target_s=args[f"{kind}_target_s"],
        max_s=args[f"{kind}_max_s"],
    )
    if kind == "window":
        return rule
    return rule.planned(duration_us / 1e6 if duration_us else None)


@dataclass(frozen=True, slots=True)
class Opened:
    """A window begins at `start_pts`; the frames that follow belong to it."""

    start_pts: int
    shot_index: int
    window_index: int
    start_kind: str = FILE


@dataclass(frozen=True, slots=True)
class Kept:
    """A frame belongs to the open window."""

    pts: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """A frame belongs to no window."""

    pts: int


@dataclass(frozen=True, slots=True)
class Closed:
    """The open window ends before `end_pts`."""

    end_pts: int
    end_kind: str = FILE


Event = Opened | Kept | Dropped | Closed


@dataclass(slots=True)
class Windower:
    """Decides which window each frame belongs to; holds back at most `min_s` of frames."""

    time_base: Fraction
    rule: WindowRule = field(default_factory=WindowRule)
    num_shots: int = 0
    num_transitions: int = 0
    _start: int | None = None
    _index: int = 0
    _is_open: bool = False
    _boundary: int | None = None
    _held: deque[int] = field(default_factory=deque[int])
    _word: Word = Word.SAME  # the last that was no `SAME`, while no shot has begun after it
    _kind: str = FILE

    @property
    def possible_starts(self) -> tuple[int, ...]:
        """Starts of the windows that the newest frame may come to belong to."""
        return tuple(start for start in (self._start, self._boundary) if start is not None)

    def _ticks(self, seconds: float) -> Fraction:
        return Fraction(seconds) / self.time_base

    def push(self, pts: int, end_pts: int, word: Word = Word.SAME) -> list[Event]:
        """Take the next frame, shown in [pts, end_pts), and what the detector says of it."""
        events: list[Event] = []
        if word is not Word.SAME:
            was_gradual = self._word.is_gradual
            events += self.finish(pts, _KIND_OF[word])
            self.num_transitions += word.is_gradual and not was_gradual
            self._word = word
        if word.is_between:
            return [*events, Dropped(pts)]
        if self._start is None:
            self._begin(pts)
        self._held.append(pts)
        if self._is_open and self._boundary is None and self._is_long(pts, self.rule.target_s):
            self._boundary = pts
        if self._boundary is not None and end_pts - self._boundary >= self._ticks(self.rule.min_s):
            events.append(Closed(self._boundary, WINDOW))
            self._start, self._boundary, self._is_open = self._boundary, None, False
            self._index, self._kind = self._index + 1, WINDOW
        if (
            not self._is_open
            and self._start is not None
            and self._is_long(end_pts, self.rule.min_s)
        ):
            shot_index = self.num_shots - 1
            events.append(Opened(self._start, shot_index, self._index, self._kind))
            self._is_open = True
        if self._is_open and self._boundary is None:
            events += self._release()
        return events

    def _begin(self, pts: int) -> None:
        if self._word is not Word.SAME:
            self._kind = _KIND_OF[self._word]
        self._start, self._index, self._word = pts, 0, Word.SAME
        self.num_shots += 1

    def finish(self, end_pts: int, kind: str = FILE) -> list[Event]:
        """End the shot at `end_pts`, for a reason of `KINDS`; what follows begins for it too."""
        events: list[Event] = []
        if self._is_open:
            events = [*self._release(), Closed(end_pts, kind)]
        else:
            events += [Dropped(pts) for pts in self._held]
            self._held.clear()
        self._start, self._boundary, self._is_open = None, None, False
        self._word, self._kind = Word.SAME, kind
        return events

    def _is_long(self, pts: int, seconds: float) -> bool:
        return self._start is not None and pts - self._start >= self._ticks(seconds)

    def _release(self) -> list[Event]:
        events: list[Event] = [Kept(pts) for pts in self._held]
        self._held.clear()
        return events
