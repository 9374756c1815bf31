"""Shot boundaries, frame by frame, a few frames behind the decoder.

Where windows are cut inside a shot belongs to `windows`. The detector sees neighbouring frames
alone and no clock, so that a variable frame rate cannot move a cut.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from av import VideoFrame
    from scenedetect.detectors import AdaptiveDetector

MODEL_VERSION = "adaptive-3.0-scenedetect-0.7.2"
ADAPTIVE_THRESHOLD = 3.0
MIN_CONTENT_VALUE = 15.0
REACH = 2  # frames on each side that a cut is judged by


def feature_picture(small: "VideoFrame") -> NDArray[np.uint8]:
    """Return what the detector looks at: BGR at half the size of a small yuv420p frame."""
    import cv2

    planes = np.ascontiguousarray(small.to_ndarray())
    picture = cv2.cvtColor(planes, cv2.COLOR_YUV2BGR_I420)
    size = (max(8, small.width // 2), max(8, small.height // 2))
    return np.asarray(cv2.resize(picture, size, interpolation=cv2.INTER_AREA), np.uint8)


class ShotDetector:
    """Says of every frame whether a shot begins with it, `REACH` frames later.

    The first and last frame are repeated to the detector, so that cuts near either end are
    judged like all others. Cuts may follow one another at once: what is too short to train on
    is for `windows` to leave out, and a cut that went unnoticed would end up inside a clip.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._detector: AdaptiveDetector | None = None
        self._num_fed = 0
        self._num_told = 0
        self._cuts: set[int] = set()
        self._last: NDArray[np.uint8] | None = None

    def push(self, picture_bgr: NDArray[np.uint8]) -> list[bool]:
        """Take the next frame, BGR in [0, 255] at a fixed small size.

        Returns:
            For each frame decided by it, oldest first, whether it begins a shot. The first frame
            of all does not: it begins one anyway.
        """
        if self._last is None:
            for _ in range(REACH):
                self._feed(picture_bgr)
        self._last = picture_bgr
        self._feed(picture_bgr)
        return self._tell(self._num_fed - 2 * REACH)

    def finish(self) -> list[bool]:
        """Decide the frames that are left, and be ready for a new, unrelated series."""
        if self._last is None:
            return []
        for _ in range(REACH):
            self._feed(self._last)
        told = self._tell(self._num_fed - 2 * REACH)
        self._start()
        return told

    def _feed(self, picture_bgr: NDArray[np.uint8]) -> None:
        from scenedetect import FrameTimecode
        from scenedetect.detectors import AdaptiveDetector

        if self._detector is None:
            self._detector = AdaptiveDetector(
                adaptive_threshold=ADAPTIVE_THRESHOLD,
                min_content_val=MIN_CONTENT_VALUE,
                min_scene_len=1,
                window_width=REACH,
            )
        # the frame number alone goes in and comes out: 1 frame a second keeps it exact
        code = FrameTimecode(self._num_fed, fps=1.0)
        self._cuts |= {cut.frame_num for cut in self._detector.process_frame(code, picture_bgr)}
        self._num_fed += 1

    def _tell(self, num_decided: int) -> list[bool]:
        told = [index + REACH in self._cuts for index in range(self._num_told, num_decided)]
        self._num_told = max(self._num_told, num_decided)
        self._cuts = {cut for cut in self._cuts if cut >= self._num_told + REACH}
        return told
