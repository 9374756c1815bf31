"""Cuts are found at the very frame, near both ends, and nowhere else."""

import numpy as np
import pytest

from wsdata.preprocess.looks import feature_picture
from wsdata.preprocess.shots import ShotDetector, Word
from wsdata_tests import synthetic

SIZE = (160, 90)


def _look(image_rgb):
    import av

    frame = av.VideoFrame.from_ndarray(np.clip(image_rgb, 0, 255).astype(np.uint8), "rgb24")
    return feature_picture(frame.reformat(format="yuv420p"))


def _decide(detector, pictures, fps=24):
    told = [
        word
        for index, image in enumerate(pictures)
        for word in detector.push(_look(image), index / fps)
    ]
    return told + detector.finish()


def _is_cut(words):
    return [word is Word.CUT for word in words]


def _series(*runs):
    """Pictures of several patterns, so many frames each."""
    return [
        synthetic.picture(pattern, SIZE, index / 24)
        for pattern, count in runs
        for index in range(count)
    ]


@pytest.mark.parametrize(
    ("runs", "cuts"),
    [
        ([("bars", 20), ("rings", 20), ("checker", 20)], [20, 40]),
        ([("bars", 1), ("rings", 20)], [1]),
        ([("bars", 2), ("rings", 20)], [2]),
        ([("rings", 20), ("bars", 1)], [20]),
        ([("rings", 20), ("bars", 2)], [20]),
        ([("bars", 20), ("rings", 7), ("checker", 7), ("gradient", 20)], [20, 27, 34]),
        ([("black", 20), ("bars", 20)], [20]),
        ([("gradient", 60)], []),
        ([("bars", 1)], []),
    ],
)
def test_cuts_are_where_the_pattern_changes(runs, cuts):
    told = _decide(ShotDetector(), _series(*runs))
    assert len(told) == sum(count for _, count in runs)
    assert [index for index, word in enumerate(told) if word is Word.CUT] == cuts
    assert not any(word.is_between for word in told)


def test_a_finished_detector_starts_anew():
    detector = ShotDetector()
    first = _decide(detector, _series(("bars", 10), ("rings", 10)))
    assert _decide(detector, _series(("checker", 12))) == [Word.SAME] * 12
    assert _decide(detector, _series(("bars", 10), ("rings", 10))) == first


def test_nothing_in_nothing_out():
    assert ShotDetector().finish() == []


def test_slow_brightening_is_no_cut():
    ramp = [np.full((90, 160, 3), 40 + 2 * i, np.uint8) for i in range(60)]
    assert set(_decide(ShotDetector(), ramp)) == {Word.SAME}
