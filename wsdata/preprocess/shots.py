"""Shot boundaries, frame by frame, about a second behind the decoder.

Hard cuts are told here, dissolves and fades by `gradual`; where windows are cut inside a shot
belongs to `windows`. Time is that of the time stamps, never a count of frames, so that neither a
variable frame rate nor a high one moves a boundary.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from wsdata.preprocess.gradual import GradualFinder, Transition
from wsdata.preprocess.looks import Look, brightness, compare, difference, is_plain, white_share

if TYPE_CHECKING:
    from wsdata.recipe import Shots

MODEL_VERSION = "looks-3"
LOOK_AHEAD_S = 1.25
MAX_UNDECIDED = 80  # frames; bounds memory above 64 frames a second
NEIGHBOURS = 4  # frames on either side whose differences a cut must stand out from
BUSY_RANK = 3  # so many large differences nearby are motion; fewer are other cuts
MIN_DIFFERENCE = 2.5  # levels of 255
MIN_RATIO = 2.0
MIN_BUSY = 0.3  # levels: what noise alone may do
MIN_UNLIKE = 0.36
GREAT_RATIO, LESS_UNLIKE = 8.0, 0.04  # what stands out so much need be so much less unlike
SUDDEN_UNLIKE, SUDDEN_MORE = 0.45, 0.15  # of a cut between motion and a quieter shot
FLASH_S = 0.6  # a light that is over by then ends no shot
FLASH_UNLIKE = 0.3
FLASH_WHITE_SHARE = 0.25
BRIGHTER = 15.0  # levels
RETURN_SHARE = 0.5  # of the way there: what comes nearer than this has turned back
MORE_UNLIKE = 0.1  # asked for in a continuous source
RETURN_EVERY = 3  # frames: how often it is looked for
JOIN_S = 0.2  # two transitions this near are one


def shot_params(shots: "Shots") -> dict[str, Any]:
    """What of a recipe, and of the detector itself, is part of the decode step's parameters."""
    return {"trim_s": shots.trim_s, "shot_detector": MODEL_VERSION}


class Word(StrEnum):
    """What the detector says of a frame."""

    SAME = "same"  # of the shot of the frame before, or the first after a transition
    CUT = "cut"  # the first of a new shot
    FADE = "fade"  # between two shots: it belongs to neither
    DISSOLVE = "dissolve"
    TRIM = "trim"  # too near a cut

    @property
    def is_between(self) -> bool:
        """Whether a frame belongs to no shot."""
        return self in (Word.FADE, Word.DISSOLVE, Word.TRIM)

    @property
    def is_gradual(self) -> bool:
        """Whether a frame is part of a transition."""
        return self in (Word.FADE, Word.DISSOLVE)


@dataclass(slots=True)
class _Seen:
    """A frame, as far as it is judged."""

    look: Look
    time_s: float
    step: float  # difference to the frame before
    word: Word = Word.SAME
    is_step: bool = False  # a cut, unless it is a flash


class ShotDetector:
    """Says of every frame what it is to the shots, `LOOK_AHEAD_S` later at most.

    Cuts may follow one another at once: what is too short to train on is for `windows` to leave
    out, and a cut that went unnoticed would end up inside a clip.

    Args:
        trim_s: What is shown within this of a cut, on either side, belongs to no shot. In
            [0, 0.5]: further ahead than that a flash cannot be told from a cut.
        is_continuous: The source is one take: only a picture that has nothing to do with what
            was before, and does not come back, ends it.
    """

    def __init__(self, trim_s: float = 0.0, *, is_continuous: bool = False) -> None:
        self._trim_s = trim_s
        self._is_continuous = is_continuous
        self._min_unlike = MIN_UNLIKE + (MORE_UNLIKE if is_continuous else 0.0)
        self._start()

    def _start(self) -> None:
        self._finder = GradualFinder(MORE_UNLIKE if self._is_continuous else 0.0)
        self._past: deque[_Seen] = deque(maxlen=32)  # decided, newest last
        self._frames: deque[_Seen] = deque()  # undecided, oldest first
        self._last: Look | None = None
        self._last_cut_s = -math.inf

    def push(self, look: Look, time_s: float) -> list[Word]:
        """Take the next frame.

        Args:
            look: Its feature picture.
            time_s: When it is shown, increasing.

        Returns:
            The words on the frames that are decided by it, oldest first. The first frame of all
            is no cut: it begins a shot anyway.
        """
        step = 0.0 if self._last is None else difference(self._last, look)
        self._last = look
        self._frames.append(_Seen(look, time_s, step))
        self._find_step(len(self._frames) - 1 - NEIGHBOURS)
        for found in self._finder.push(look, time_s):
            self._mark(found)
        told: list[Word] = []
        while time_s - self._frames[0].time_s >= LOOK_AHEAD_S or len(self._frames) > MAX_UNDECIDED:
            told.append(self._decide())
        return told

    def finish(self) -> list[Word]:
        """Decide the frames that are left, and be ready for a new, unrelated series."""
        for index in range(max(0, len(self._frames) - NEIGHBOURS), len(self._frames)):
            self._find_step(index)
        told = [self._decide() for _ in range(len(self._frames))]
        self._start()
        return told

    # gradual -----------------------------------------------------------------------------------

    def _mark(self, found: Transition) -> None:
        word = Word.FADE if found.is_fade else Word.DISSOLVE
        begin_s = found.begin_s
        for seen in itertools.chain(self._past, self._frames):  # join to one that ends just before
            if seen.word.is_gradual and begin_s - JOIN_S <= seen.time_s < begin_s:
                begin_s = seen.time_s
                break
        for seen in self._frames:
            if begin_s < seen.time_s < found.end_s and seen.word is not Word.FADE:
                seen.word = word
        if found.is_fade:
            self._mark_plain_before(begin_s)

    def _mark_plain_before(self, begin_s: float) -> None:
        """What a picture fades in from belongs to no shot either."""
        for seen in reversed(self._frames):
            if seen.time_s <= begin_s and not seen.word.is_gradual:
                if seen.is_step or not is_plain(seen.look):
                    return
                seen.word = Word.FADE

    def _unmark_return(self) -> None:
        """Take a transition back that ends where it began: a light, or something that passed."""
        before = self._past[-1] if self._past else None
        marked = self._leading_run()
        if before is None or not marked:
            return
        away = [difference(before.look, seen.look) for seen in marked]
        top = max(range(len(away)), key=away.__getitem__)
        peak = marked[top]
        is_light = brightness(peak.look) > brightness(before.look) + BRIGHTER
        if peak.word is Word.FADE:
            is_blank = compare(before.look, peak.look).is_one_plain
            if is_blank or not is_light:
                return
        for seen in list(self._frames)[top + 1 :: 2]:
            near = difference(before.look, seen.look) < RETURN_SHARE * away[top]
            if near and self._is_like(before, seen):
                for other in marked:
                    other.word = Word.SAME
                return

    def _agree(self) -> None:
        """Call a transition a fade if any of it is: half a fade is a mix with one colour too."""
        run = self._leading_run()
        if any(seen.word is Word.FADE for seen in run):
            for seen in run:
                seen.word = Word.FADE

    def _leading_run(self) -> list[_Seen]:
        run: list[_Seen] = []
        for seen in self._frames:
            if not seen.word.is_gradual:
                break
            run.append(seen)
        return run

    # cuts --------------------------------------------------------------------------------------

    def _decide(self) -> Word:
        frame = self._frames[0]
        was = self._past[-1].word if self._past else None
        if frame.word.is_gradual and not (was and was.is_gradual):
            self._unmark_return()
            self._agree()
        if was is Word.FADE and not frame.word.is_gradual and is_plain(frame.look):
            frame.word = Word.FADE
        if not frame.word.is_gradual:
            frame.word = self._word_on_cuts(frame)
        self._past.append(self._frames.popleft())
        return frame.word

    def _word_on_cuts(self, frame: _Seen) -> Word:
        is_cut = self._is_cut(0)
        if is_cut:
            self._last_cut_s = frame.time_s
        if self._trim_s <= 0:
            return Word.CUT if is_cut else Word.SAME
        if frame.time_s - self._last_cut_s < self._trim_s:
            return Word.TRIM
        for index in range(1, len(self._frames)):
            if self._frames[index].time_s - frame.time_s > self._trim_s:
                break
            if self._is_cut(index):
                return Word.TRIM
        return Word.SAME

    def _before(self, index: int) -> _Seen | None:
        if index:
            return self._frames[index - 1]
        return self._past[-1] if self._past else None

    def _find_step(self, index: int) -> None:
        """Note whether an undecided frame, whose neighbours are known, differs like a cut."""
        if index < 0 or self._frames[index].step < MIN_DIFFERENCE:
            return
        frame, before = self._frames[index], self._before(index)
        if before is None:
            return
        earlier, later = self._steps_around(index)
        busy = sorted(earlier + later, reverse=True)[:BUSY_RANK]  # a few other cuts aside
        ratio = frame.step / ((busy[-1] if busy else 0.0) + MIN_BUSY)
        if ratio < MIN_RATIO:
            frame.is_step = self._is_sudden(
                index, max(earlier, default=0.0), max(later, default=0.0)
            )
        else:
            likeness = compare(before.look, frame.look)
            needed = self._min_unlike - (LESS_UNLIKE if ratio >= GREAT_RATIO else 0.0)
            frame.is_step = likeness.unlike >= needed or likeness.is_one_plain
        if frame.is_step:
            self._finder.bar(frame.time_s)

    def _steps_around(self, index: int) -> tuple[list[float], list[float]]:
        """How much the frames near one differ, on either side."""
        earlier = [seen.step for seen in self._near(index - NEIGHBOURS, index)]
        return earlier, [seen.step for seen in self._near(index + 1, index + 1 + NEIGHBOURS)]

    def _near(self, first: int, end: int) -> list[_Seen]:
        """Frames by index; below 0 are those decided, the newest last. What is not there lacks."""
        past = [self._past[i] for i in range(max(first, -len(self._past)), min(end, 0))]
        return past + list(itertools.islice(self._frames, max(first, 0), max(end, 0)))

    def _is_sudden(self, index: int, most_before: float, most_after: float) -> bool:
        """Whether motion begins or ends with a picture that it does not lead to."""
        quiet, loud = sorted((most_before, most_after))
        step = self._frames[index].step
        if step < loud or step < MIN_RATIO * (quiet + MIN_BUSY):
            return False
        near = self._near(index - 2, index + 2)
        unlike = [compare(one.look, two.look).unlike for one, two in itertools.pairwise(near)]
        here = unlike.pop(-2 if len(self._frames) > index + 1 else -1)
        needed = SUDDEN_UNLIKE + self._min_unlike - MIN_UNLIKE
        return here >= max(needed, max(unlike, default=0.0) + SUDDEN_MORE)

    def _is_cut(self, index: int) -> bool:
        frame, before = self._frames[index], self._before(index)
        if before is None or not frame.is_step or before.word.is_gradual:
            return False
        if frame.word.is_gradual or self._is_flash(index):
            return False
        return not self._is_continuous or not self._comes_back(index, before)

    def _comes_back(self, index: int, before: _Seen) -> bool:
        """Whether the picture before is seen again: something was in front of the camera."""
        after = itertools.islice(self._frames, index, None, RETURN_EVERY)
        return any(self._is_like(before, seen) for seen in after)

    def _is_flash(self, index: int) -> bool:
        """Whether the picture turns white here, or was, with one shot on both sides of that."""
        frame, before = self._frames[index], self._before(index)
        if before is None:
            return False
        if self._is_white(frame, before):
            return any(self._is_like(before, seen) for seen in self._soon(index))
        if self._is_white(before, frame):
            return any(self._is_like(seen, frame) for seen in self._lately(index))
        return False

    @staticmethod
    def _is_white(bright: _Seen, other: _Seen) -> bool:
        return (
            white_share(bright.look) >= FLASH_WHITE_SHARE
            and brightness(bright.look) > brightness(other.look) + BRIGHTER
        )

    @staticmethod
    def _is_like(one: _Seen, two: _Seen) -> bool:
        likeness = compare(one.look, two.look)
        return likeness.unlike < FLASH_UNLIKE and not likeness.is_one_plain

    def _soon(self, index: int) -> Iterator[_Seen]:
        now_s = self._frames[index].time_s
        for seen in itertools.islice(self._frames, index + 1, None):
            if seen.time_s - now_s > FLASH_S:
                return
            yield seen

    def _lately(self, index: int) -> Iterator[_Seen]:
        now_s = self._frames[index].time_s
        for seen in reversed([*self._past, *itertools.islice(self._frames, index)][:-1]):
            if now_s - seen.time_s > FLASH_S:
                return
            yield seen
