"""Which detector finds the shots of a pass: ours of `shots`, or the network of `transnet`.

The recipe chooses, by `[shots] engine`. Sources that state to be one take are left to ours
whichever is chosen: the network does not know what comes back.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wsdata.preprocess import transnet
from wsdata.preprocess.scaling import Pictures
from wsdata.preprocess.shots import ShotDetector, Word, shot_params

if TYPE_CHECKING:
    from av import VideoFrame

    from wsdata.recipe import Shots

LOOKS, TRANSNET = "looks", "transnetv2"


class Detector(Protocol):
    """What finds shots: takes pictures in order, and tells a word on each some time later."""

    def push(self, look: NDArray[np.uint8], time_s: float, /) -> list[Word]:
        """Take the next picture; return the words that are decided by it, oldest first."""
        ...

    def finish(self) -> list[Word]:
        """Decide what is left, and be ready for a new, unrelated series."""
        ...


class ShotFinder:
    """A detector with the pictures that it looks at."""

    def __init__(
        self,
        picture: Callable[[Pictures, "VideoFrame"], NDArray[np.uint8]],
        detector: Detector,
    ) -> None:
        self._picture = picture
        self._detector = detector

    def push(self, frame: "VideoFrame", pictures: Pictures, time_s: float) -> list[Word]:
        """Take the next frame, and what takes pictures of it; see `shots.ShotDetector.push`."""
        return self._detector.push(self._picture(pictures, frame), time_s)

    def finish(self) -> list[Word]:
        """Decide the frames that are left; see `shots.ShotDetector.finish`."""
        return self._detector.finish()


def make_finder(args: Mapping[str, Any]) -> ShotFinder:
    """Make the finder for a file, from the parameters of `finder_params` and ``is_continuous``."""
    trim_s = args.get("trim_s", 0.0)
    is_continuous = bool(args.get("is_continuous"))
    if args.get("shot_engine", LOOKS) == TRANSNET and not is_continuous:
        return ShotFinder(_network_picture, transnet.TransNetDetector(trim_s))
    return ShotFinder(Pictures.look, ShotDetector(trim_s, is_continuous=is_continuous))


def _network_picture(pictures: Pictures, frame: "VideoFrame") -> NDArray[np.uint8]:
    return transnet.network_picture(pictures.small(frame))


def finder_params(shots: "Shots") -> dict[str, Any]:
    """What of the choice is part of the decode step's parameters: ours where nothing is said."""
    if shots.engine == LOOKS:
        return shot_params(shots)
    return shot_params(shots) | {"shot_engine": shots.engine, "network": transnet.MODEL_VERSION}


def check_engine(params: Mapping[str, Any]) -> None:
    """Find what the chosen engine needs.

    Raises:
        StepFailed: It is not installed.
    """
    if params.get("shot_engine", LOOKS) == TRANSNET:
        transnet.check_installed()


def engine_modules(params: Mapping[str, Any]) -> tuple[str, ...]:
    """Modules that a warm sandbox imports once for all files."""
    return ("torch",) if params.get("shot_engine", LOOKS) == TRANSNET else ()
