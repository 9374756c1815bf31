"""Dissolves and fades, told by their law: every frame is a mix of the pictures at both ends.

A bracket is a pair of frames some tenths of a second apart. Between them the share of the later
picture grows from 0 to 1 in small steps, little is left that neither picture explains, fine
detail dims in the middle, and the later picture cannot be found in the earlier one by moving its
parts: then they are two shots. A pan, a zoom or an object leaves much unexplained, keeps its
detail or is found again; a cut is one big step.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wsdata.preprocess.looks import Look, brightness, compare, detail, tint

SPANS_S = 0.25, 0.4, 0.6, 0.9, 1.35  # of brackets
PERIODS = 2, 2, 4, 4, 4  # a bracket of this span is tried every so many frames
MIN_STEP_S = 1 / 35  # frames closer than this to the last are skipped here
HISTORY = 96  # frames: 2.7 s at the most frames a second
MIN_DISTANCE = 12.0  # mean square difference of the ends, in levels
MAX_UNEXPLAINED = 0.18
MAX_STEP = 0.5
MAX_BEND = 0.15  # of the shares from a straight line, held at 0 and 1
MAX_BACKWARDS = 0.2
INNER = 0.2  # shares nearer to 0 and 1 may be motion
OVER_SHARE = 0.98  # of the later picture, where nothing of the earlier is left to see
MAX_DETAIL_SHARE = 0.8  # of the ends' fine detail, left in between
MIN_UNLIKE = 0.36
UNEXPLAINED_COUNTS = 0.5  # how much more unlike the ends must be, by what is unexplained
RETURN_S = 1.2  # a brighter picture between two of the same shot is light, not a transition
RETURN_UNLIKE = 0.3
RETURN_SHARE = 0.2
BRIGHTER = 15.0
MAX_TINT = 14.0  # levels of chroma from grey; fades are to black, grey or white


class Transition(NamedTuple):
    """Frames shown strictly between `begin_s` and `end_s` belong to two shots or to none."""

    begin_s: float
    end_s: float
    is_fade: bool


@dataclass(slots=True)
class _Mix:
    """Shares of the later end along a bracket, and what fits neither."""

    shares: NDArray[np.float64]
    unexplained: float

    def is_steady(self) -> bool:
        steps = np.diff(self.shares)
        backwards = float(-steps[steps < 0].sum())
        return bool(
            self.unexplained <= MAX_UNEXPLAINED
            and steps.max() <= MAX_STEP
            and backwards <= MAX_BACKWARDS
        )


class _Line(NamedTuple):
    """When the later picture's share, as a straight line, leaves 0 and reaches 1."""

    begin_s: float
    end_s: float


class GradualFinder:
    """Keeps the last seconds of looks and their distances; tells of mixes that end now.

    Args:
        more_unlike: How much more unlike than usual the ends of a dissolve must be.
    """

    def __init__(self, more_unlike: float = 0.0) -> None:
        self._min_unlike = MIN_UNLIKE + more_unlike
        self._count = 0
        self._times = np.zeros(HISTORY)
        self._details = np.zeros(HISTORY)
        self._looks: list[Look | None] = [None] * HISTORY
        self._vectors: NDArray[np.float32] | None = None
        self._norms = np.zeros(HISTORY, np.float32)
        self._distances = np.zeros((HISTORY, HISTORY))
        self._scale = 1.0
        self._barred_s = -1e9

    def bar(self, time_s: float) -> None:
        """Let no bracket reach back over a cut."""
        self._barred_s = max(self._barred_s, time_s)

    def push(self, look: Look, time_s: float) -> list[Transition]:
        """Take the next frame; return the transitions that the newest brackets show."""
        if self._count and time_s - self._time(self._count - 1) < MIN_STEP_S:
            return []
        self._keep(look, time_s)
        newest = self._count - 1
        found: list[Transition] = []
        for phase, (span_s, period) in enumerate(zip(SPANS_S, PERIODS, strict=True)):
            if (newest + phase) % period:
                continue
            told = self._try(newest, span_s)
            if told is not None:
                found.append(told)
        return found

    def _time(self, index: int) -> float:
        return float(self._times[index % HISTORY])

    def _look(self, index: int) -> Look:
        look = self._looks[index % HISTORY]
        if look is None:
            raise IndexError(f"frame {index} is no longer kept, the newest is {self._count - 1}")
        return look

    def _keep(self, look: Look, time_s: float) -> None:
        """Note a frame's distance to all that are kept.

        Half levels around grey: sums of products stay below 2^24, so that float32 is exact and
        no order of summing can change a verdict.
        """
        vector = _vector(look)
        if self._vectors is None:
            self._vectors = np.zeros((HISTORY, len(vector)), np.float32)
            self._scale = 4.0 / (len(vector) * 2 / 3)
        slot = self._count % HISTORY
        self._vectors[slot] = vector
        self._norms[slot] = vector @ vector
        products = self._vectors @ vector
        row = (self._norms + self._norms[slot] - 2.0 * products) * self._scale
        self._distances[slot] = self._distances[:, slot] = row
        self._times[slot] = time_s
        self._details[slot] = detail(look)
        self._looks[slot] = look
        self._count += 1

    def _oldest(self) -> int:
        return max(0, self._count - HISTORY)

    def _try(self, last: int, span_s: float) -> Transition | None:
        first = self._first_within(last, span_s)
        if last - first < 3:
            return None
        if self._distances[first % HISTORY, last % HISTORY] < MIN_DISTANCE:
            return None
        mix = self._mix(first, last)
        if not mix.is_steady() or not self._dims(first, last, mix.shares):
            return None
        line = self._extent(first, last, mix.shares)
        if line is None:
            return None
        likeness = compare(self._look(first), self._look(last))
        plainer = first if likeness.texture[0] < likeness.texture[1] else last
        is_fade = likeness.is_one_plain and tint(self._look(plainer)) <= MAX_TINT
        needed = self._min_unlike + UNEXPLAINED_COUNTS * mix.unexplained
        if not is_fade and likeness.unlike < needed:
            return None
        if self._is_light(first, last) or (not is_fade and self._returns(first, last)):
            return None
        return Transition(line.begin_s, line.end_s, is_fade)

    def _first_within(self, last: int, span_s: float) -> int:
        """Index of the first frame less than `span_s`, and one step, before another."""
        earliest = max(self._barred_s, self._time(last) - span_s - 0.02)
        first = last
        while first > self._oldest() and self._time(first - 1) >= earliest:
            first -= 1
        return first

    def _mix(self, first: int, last: int) -> _Mix:
        slots = np.arange(first, last + 1) % HISTORY
        from_first = self._distances[slots[0], slots]
        from_last = self._distances[slots[-1], slots]
        whole = from_first[-1]
        shares = (from_first + whole - from_last) / (2 * whole)
        left = np.maximum(0.0, from_first - shares * shares * whole)[1:-1]
        return _Mix(shares, float(left.mean() / whole))

    def _dims(self, first: int, last: int, shares: NDArray[np.float64]) -> bool:
        """Whether fine detail is lost between the ends, as in a mix, and not in any motion.

        Of two pictures that have nothing in common half of it is left in the middle.
        """
        slots = np.arange(first, last + 1) % HISTORY
        details = self._details[slots]
        share = np.clip(shares, 0.0, 1.0)
        ends = (1 - share) * details[0] + share * details[-1]
        weights = share * (1 - share)
        return float((weights * details).sum()) <= MAX_DETAIL_SHARE * float((weights * ends).sum())

    def _is_light(self, first: int, last: int) -> bool:
        """Whether the bracket only comes down from a light that lit the same picture up."""
        bright = brightness(self._look(first)) - BRIGHTER
        after = self._look(last)
        if brightness(after) > bright:
            return False
        earliest = self._time(first) - RETURN_S
        index = first - 1
        while index >= self._oldest() and self._time(index) >= earliest:
            before = self._look(index)
            if brightness(before) < bright and compare(before, after).unlike < RETURN_UNLIKE:
                return True
            index -= 2
        return False

    def _returns(self, first: int, last: int) -> bool:
        """Whether the bracket ends with what was there before it: something passed by."""
        slots = [
            index % HISTORY
            for index in range(self._oldest(), first)
            if self._time(index) >= self._time(first) - RETURN_S
        ]
        if not slots:
            return False
        slot = last % HISTORY
        nearest = float(self._distances[slot, slots].min())
        return nearest < RETURN_SHARE * self._distances[first % HISTORY, slot]

    def _extent(self, first: int, last: int, shares: NDArray[np.float64]) -> _Line | None:
        """Follow the straight line of the shares to where it meets 0 and 1."""
        times = np.array([self._time(index) for index in range(first, last + 1)])
        inner = np.flatnonzero((shares > INNER) & (shares < 1 - INNER))
        if len(inner) == 0:
            return None
        if len(inner) == 1:  # one frame between the two pictures
            return _Line(float(times[inner[0] - 1]), float(times[inner[0] + 1]))
        at, share = times[inner], shares[inner]
        middle = at.mean()
        slope = ((at - middle) * share).sum() / ((at - middle) ** 2).sum()
        if slope <= 0:
            return None
        begin_s = middle - share.mean() / slope
        end_s = begin_s + 1 / slope
        line = np.clip((times - begin_s) / (end_s - begin_s), 0.0, 1.0)
        if np.abs(shares - line).max() > MAX_BEND:
            return None
        over = np.flatnonzero(shares >= OVER_SHARE)  # the last frame is always one
        return _Line(max(float(times[0]), begin_s), min(float(times[over[0]]), end_s))


def _vector(look: Look) -> NDArray[np.float32]:
    """Luma and chroma at half the look's size, in half levels around grey."""
    import cv2

    size = look.shape[1] // 2, look.shape[0] // 2
    small = cv2.resize(look, size, interpolation=cv2.INTER_AREA)
    return (np.asarray(small).reshape(-1).astype(np.int16) - 128 >> 1).astype(np.float32)
