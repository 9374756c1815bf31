"""Shots to clips: training windows inside one shot, decided while frames stream past.

A window never crosses a cut. It closes at the target length once the shot has gone on for the
minimum length after that; a shorter tail joins the window before it, so that every window is
between the minimum and target + minimum long. What is shorter than the minimum gives no clip.
"""

from collections import deque
from dataclasses import dataclass, field
from fractions import Fraction


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


@dataclass(frozen=True, slots=True)
class Opened:
    """A window begins at `start_pts`; the frames that follow belong to it."""

    start_pts: int
    shot_index: int
    window_index: int


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


Event = Opened | Kept | Dropped | Closed


@dataclass(slots=True)
class Windower:
    """Decides which window each frame belongs to; holds back at most `min_s` of frames."""

    time_base: Fraction
    rule: WindowRule = field(default_factory=WindowRule)
    num_shots: int = 0
    _start: int | None = None
    _index: int = 0
    _is_open: bool = False
    _boundary: int | None = None
    _held: deque[int] = field(default_factory=deque[int])

    @property
    def possible_starts(self) -> tuple[int, ...]:
        """Starts of the windows that the newest frame may come to belong to."""
        return tuple(start for start in (self._start, self._boundary) if start is not None)

    def _ticks(self, seconds: float) -> Fraction:
        return Fraction(seconds) / self.time_base

    def push(self, pts: int, end_pts: int, *, is_cut: bool) -> list[Event]:
        """Take the next frame, shown in [pts, end_pts); `is_cut` where a shot begins with it."""
        events: list[Event] = []
        if is_cut or self._start is None:
            events += self.finish(pts)
            self._start, self._index = pts, 0
            self.num_shots += 1
        self._held.append(pts)
        if self._is_open and self._boundary is None and self._is_long(pts, self.rule.target_s):
            self._boundary = pts
        if self._boundary is not None and end_pts - self._boundary >= self._ticks(self.rule.min_s):
            events.append(Closed(self._boundary))
            self._start, self._boundary, self._is_open = self._boundary, None, False
            self._index += 1
        if not self._is_open and self._is_long(end_pts, self.rule.min_s):
            events.append(Opened(self._start, self.num_shots - 1, self._index))
            self._is_open = True
        if self._is_open and self._boundary is None:
            events += self._release()
        return events

    def finish(self, end_pts: int) -> list[Event]:
        """End the shot at `end_pts`: at a cut, at a gap, or where the file ends."""
        events: list[Event] = []
        if self._is_open:
            events = [*self._release(), Closed(end_pts)]
        else:
            events += [Dropped(pts) for pts in self._held]
            self._held.clear()
        self._start, self._boundary, self._is_open = None, None, False
        return events

    def _is_long(self, pts: int, seconds: float) -> bool:
        return self._start is not None and pts - self._start >= self._ticks(seconds)

    def _release(self) -> list[Event]:
        events: list[Event] = [Kept(pts) for pts in self._held]
        self._held.clear()
        return events
