"""Dissolves and fades, told by their law: every frame is a mix of the pictures at both ends.

A bracket is a pair of frames some tenths of a second apart. Between them the share of the later
picture grows from 0 to 1 in small steps, little is left that neither picture explains, fine
detail dims in the middle, and the later picture cannot be found in the earlier one by moving its
parts: then they are two shots. A pan, a zoom or an object leaves much unexplained, keeps its
detail or is found again; a cut is one big step. For a dissolve these are weighed together, and
over a longer bracket they weigh more; for a fade, whose plain end is like anything, each is asked
for alone.
"""

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wsdata.preprocess.looks import Look, brightness, compare, detail, tint

SPANS_S = 0.25, 0.4, 0.6, 0.9, 1.35  # of brackets
PERIODS = 2, 2, 4, 4, 4  # a bracket of this span is tried every so many frames
MIN_STEP_S = 1 / 35  # frames closer than this to the last are skipped here
HISTORY = 96  # frames: 2.7 s at the most frames a second
ROOM = 2 * HISTORY
MIN_DISTANCE = 12.0  # mean square difference of the ends, in levels
MAX_UNEXPLAINED = 0.33
MAX_STEP = 0.65
MAX_BACKWARDS = 0.4
MAX_BEND = 0.08  # of the shares from a straight line, held at 0 and 1
BEND_MORE = 1.0  # how much more of it the more unlike the ends are: what moves in them bends it
MOST_BEND = 0.35
MAX_DETAIL_SHARE = 1.35  # of what is expected of the ends' fine detail, left in between
MIN_UNLIKE, MOST_UNLIKE = 0.25, 0.8  # less is motion; none is more
# A dissolve's evidence: fitted by logistic regression, as the page of the benchmark tells.
PER_SPAN_S, PER_UNEXPLAINED, PER_DETAIL, PER_STEP = 0.8, 1.3, 1.8, 1.7
MIN_EVIDENCE = -0.26  # with how unlike the ends are
MIN_DETAIL = 0.6  # less of it is no better: in the middle of a mix half is left
MAX_FADE_UNEXPLAINED, MAX_FADE_STEP, MAX_FADE_BACKWARDS = 0.18, 0.5, 0.2
MAX_FADE_DETAIL, MAX_FADE_BEND = 0.8, 0.15
INNER = 0.2  # shares nearer to 0 and 1 may be motion
OVER_SHARE = 0.98  # of the later picture, where nothing of the earlier is left to see
MIN_PACE = 0.4  # of the line's: slower growth before and after it is motion
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


class _Mix(NamedTuple):
    """How a bracket's frames are a mix of its ends.

    Attributes:
        shares: Of the later end, for each frame.
        unexplained: Mean square of what fits neither end, of that between the ends.
        step: The largest growth of a share from frame to frame.
        backwards: How far the shares go back, together.
        detail_share: Fine detail seen in between, of what is there where nothing is mixed.
    """

    shares: NDArray[np.float64]
    unexplained: float
    step: float
    backwards: float
    detail_share: float

    @property
    def may_fade(self) -> bool:
        """Whether it would do for a fade: one end's plainness is little evidence."""
        return (
            self.unexplained <= MAX_FADE_UNEXPLAINED
            and self.step <= MAX_FADE_STEP
            and self.backwards <= MAX_FADE_BACKWARDS
            and self.detail_share <= MAX_FADE_DETAIL
        )

    def evidence(self, span_s: float) -> float:
        """What speaks for a dissolve over a bracket of that length, beside its ends' unlikeness."""
        against = PER_UNEXPLAINED * self.unexplained + PER_STEP * self.step
        return PER_SPAN_S * span_s - against - PER_DETAIL * max(self.detail_share, MIN_DETAIL)


class _Line(NamedTuple):
    """When the later picture's share, as a straight line, leaves 0 and reaches 1.

    Attributes:
        bend: How far the shares are from the line, at most.
    """

    begin_s: float
    end_s: float
    bend: float


class GradualFinder:
    """Keeps the last seconds of looks and their distances; tells of mixes that end now.

    Args:
        more_unlike: How much more unlike than usual the ends of a dissolve must be.
    """

    def __init__(self, more_unlike: float = 0.0) -> None:
        self._min_evidence = MIN_EVIDENCE + more_unlike
        self._count = 0  # of all frames taken
        self._times: list[float] = []  # of those kept, as are the looks; oldest first
        self._looks: list[Look] = []
        self._details = np.zeros(ROOM)
        self._vectors: NDArray[np.float32] | None = None
        self._norms = np.zeros(ROOM, np.float32)
        self._distances = np.zeros((ROOM, ROOM), np.float32)
        self._scale = 1.0
        self._barred_s = -1e9

    def bar(self, time_s: float) -> None:
        """Let no bracket reach back over a cut."""
        self._barred_s = max(self._barred_s, time_s)

    def push(self, look: Look, time_s: float) -> list[Transition]:
        """Take the next frame; return the transitions that the newest brackets show."""
        if self._times and time_s - self._times[-1] < MIN_STEP_S:
            return []
        self._keep(look, time_s)
        self._count += 1
        last = len(self._times) - 1
        found: list[Transition] = []
        for phase, (span_s, period) in enumerate(zip(SPANS_S, PERIODS, strict=True)):
            if (self._count - 1 + phase) % period:
                continue
            told = self._try(self._first_within(last, span_s), last)
            if told is not None:
                found.append(told)
        return found

    def _keep(self, look: Look, time_s: float) -> None:
        """Note a frame's distance to the `HISTORY` before it.

        Half levels around grey: sums of products stay below 2^24, so that float32 is exact and
        no order of summing can change a verdict.
        """
        height, width = look.shape[0] // 2, look.shape[1] // 2
        if self._vectors is None:
            self._vectors = np.zeros((ROOM, height * width), np.float32)
            self._scale = 4.0 / (height * width * 2 / 3)
        if len(self._times) == ROOM:
            self._make_room(self._vectors)
        new = len(self._times)
        oldest = max(0, new - HISTORY + 1)
        vector = self._vectors[new]
        _fill(vector.reshape(height, width), look)
        norms = self._norms[oldest : new + 1]
        self._norms[new] = vector @ vector
        row = self._vectors[oldest : new + 1] @ vector
        row *= -2.0
        row += norms
        row += norms[-1]
        row *= self._scale
        self._distances[new, oldest : new + 1] = self._distances[oldest : new + 1, new] = row
        self._times.append(time_s)
        self._details[new] = detail(look)
        self._looks.append(look)

    def _make_room(self, vectors: NDArray[np.float32]) -> None:
        """Move what later frames are compared with to the front."""
        kept = HISTORY - 1
        del self._times[:-kept], self._looks[:-kept]
        for rows in (self._details, self._norms, vectors):
            rows[:kept] = rows[-kept:]
        self._distances[:kept, :kept] = self._distances[-kept:, -kept:].copy()

    def _oldest(self) -> int:
        return max(0, len(self._times) - HISTORY)

    def _try(self, first: int, last: int) -> Transition | None:
        if last - first < 3 or self._distances[first, last] < MIN_DISTANCE:
            return None
        mix = self._mix(first, last)
        if mix is None:
            return None
        evidence = mix.evidence(self._times[last] - self._times[first])
        if evidence + MOST_UNLIKE < self._min_evidence and not mix.may_fade:
            return None
        line = self._extent(first, last, mix.shares)
        if line is None:
            return None
        likeness = compare(self._looks[first], self._looks[last])
        plainer = first if likeness.texture[0] < likeness.texture[1] else last
        is_fade = likeness.is_one_plain and tint(self._looks[plainer]) <= MAX_TINT
        if is_fade:
            is_told = mix.may_fade and line.bend <= MAX_FADE_BEND
        else:
            bent = MAX_BEND + BEND_MORE * (likeness.unlike - MIN_UNLIKE)
            is_told = likeness.unlike >= max(MIN_UNLIKE, self._min_evidence - evidence)
            is_told = is_told and line.bend <= bent and not self._returns(first, last)
        if not is_told or self._is_light(first, last):
            return None
        return Transition(line.begin_s, line.end_s, is_fade)

    def _first_within(self, last: int, span_s: float) -> int:
        """Index of the first frame less than `span_s`, and one step, before another."""
        earliest = max(self._barred_s, self._times[last] - span_s - 0.02)
        return bisect_left(self._times, earliest, self._oldest(), last)

    def _mix(self, first: int, last: int) -> _Mix | None:
        """Tell the shares, if they grow in small steps and explain what is seen between."""
        from_first = self._distances[first, first : last + 1]
        from_last = self._distances[last, first : last + 1]
        whole = float(from_first[-1])
        shares = np.asarray((from_first - from_last) * (0.5 / whole) + 0.5, np.float64)
        left = from_first - shares * shares * whole
        unexplained = float(np.maximum(left, 0.0)[1:-1].sum()) / (whole * (last - first - 1))
        # most brackets end here: the best ends and detail could not make up for it
        allowed = self._most_against(self._times[last] - self._times[first])
        most = max(MAX_FADE_UNEXPLAINED, allowed / PER_UNEXPLAINED)
        if unexplained > min(MAX_UNEXPLAINED, most):
            return None
        steps = shares[1:] - shares[:-1]
        step = float(steps.max())
        most = max(MAX_FADE_STEP, (allowed - PER_UNEXPLAINED * unexplained) / PER_STEP)
        if step > min(MAX_STEP, most):
            return None
        backwards = (float(np.abs(steps).sum()) - 1.0) / 2  # of a way that leads from 0 to 1
        if backwards > MAX_BACKWARDS:
            return None
        detail_share = self._detail_share(first, last, shares)
        if detail_share > MAX_DETAIL_SHARE:
            return None
        return _Mix(shares, unexplained, step, backwards, detail_share)

    def _most_against(self, span_s: float) -> float:
        """What may speak against a dissolve over such a bracket, with the best ends and detail."""
        best = PER_SPAN_S * span_s - PER_DETAIL * MIN_DETAIL + MOST_UNLIKE
        return best - self._min_evidence

    def _detail_share(self, first: int, last: int, shares: NDArray[np.float64]) -> float:
        """How much fine detail is seen between the ends, of what motion alone would leave.

        Of two pictures that have nothing in common half of it is left in the middle of a mix.
        """
        details = self._details[first : last + 1]
        share = np.minimum(np.maximum(shares, 0.0), 1.0)
        weights = share - share * share
        before, after = float(details[0]), float(details[-1])
        of_ends = before * float(weights.sum()) + (after - before) * float(weights @ share)
        return float(weights @ details) / max(of_ends, 1e-9)

    def _is_light(self, first: int, last: int) -> bool:
        """Whether the bracket only comes down from a light that lit the same picture up."""
        bright = brightness(self._looks[first]) - BRIGHTER
        after = self._looks[last]
        if brightness(after) > bright:
            return False
        earliest = self._returns_from(first)
        for before in self._looks[earliest:first][::-2]:
            if brightness(before) < bright and compare(before, after).unlike < RETURN_UNLIKE:
                return True
        return False

    def _returns(self, first: int, last: int) -> bool:
        """Whether the bracket ends with what was there before it: something passed by."""
        earliest = self._returns_from(first)
        if earliest == first:
            return False
        nearest = float(self._distances[last, earliest:first].min())
        return nearest < RETURN_SHARE * float(self._distances[first, last])

    def _returns_from(self, first: int) -> int:
        return bisect_left(self._times, self._times[first] - RETURN_S, self._oldest(), first)

    def _extent(self, first: int, last: int, shares: NDArray[np.float64]) -> _Line | None:
        """Follow the straight line of the shares to where it meets 0 and 1."""
        times = np.array(self._times[first : last + 1])
        inner = np.flatnonzero((shares > INNER) & (shares < 1 - INNER))
        if len(inner) == 0:
            return None
        if len(inner) == 1:  # one frame between the two pictures
            return _Line(float(times[inner[0] - 1]), float(times[inner[0] + 1]), 0.0)
        at, share = times[inner], shares[inner]
        middle, mean = at.sum() / len(at), share.sum() / len(at)
        slope = ((at - middle) * share).sum() / ((at - middle) ** 2).sum()
        if slope <= 0:
            return None
        begin_s = middle - mean / slope
        end_s = begin_s + 1 / slope
        line = np.clip((times - begin_s) / (end_s - begin_s), 0.0, 1.0)
        bend = float(np.abs(shares - line).max())
        if bend > MOST_BEND:
            return None
        over = np.flatnonzero(shares >= OVER_SHARE)  # the last frame is always one
        paces = (shares[1:] - shares[:-1]) / (times[1:] - times[:-1])
        going = np.flatnonzero(paces >= MIN_PACE * slope)  # some, as the mean is the slope
        return _Line(
            max(float(times[going[0]]), begin_s),
            min(float(times[over[0]]), float(times[going[-1] + 1]), end_s),
            bend,
        )


def _fill(vector: NDArray[np.float32], look: Look) -> None:
    """Luma and chroma at half the look's size, in half levels around grey."""
    import cv2

    small = cv2.resize(look, vector.shape[::-1], interpolation=cv2.INTER_AREA)
    np.subtract(np.asarray(small, np.uint8) >> 1, np.float32(64), out=vector)
