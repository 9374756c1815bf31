"""Cuts are found at the very frame, near both ends, and nowhere else."""

import itertools

import numpy as np
import pytest

from wsdata.preprocess.looks import compare, feature_picture
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


def _shot(seed, count, pace=0):
    """Pictures of one scene of soft spots; the camera moves by so many pixels a frame."""
    import cv2

    spots = np.random.default_rng(seed).uniform(0, 255, (90, 160)).astype(np.float32)
    soft = cv2.GaussianBlur(spots, (0, 0), 5)
    soft = 30 + 190 * (soft - soft.min()) / np.ptp(soft)
    scene = np.repeat(soft[..., None], 3, axis=2)
    return [np.roll(scene, pace * index, axis=1) for index in range(count)]


@pytest.mark.parametrize("is_moving_first", [True, False])
def test_a_cut_between_motion_and_a_quiet_shot_is_seen_though_motion_differs_as_much(
    is_moving_first,
):
    moving, quiet = _shot(1, 20, pace=6), _shot(2, 20)
    pictures = [*moving, *quiet] if is_moving_first else [*quiet, *moving]
    steps = [float(np.abs(two - one).mean()) for one, two in itertools.pairwise(pictures)]
    others = steps[:19] if is_moving_first else steps[20:]
    assert steps[19] < 2 * max(others), "no frame stands out"
    told = _decide(ShotDetector(), pictures)
    assert [index for index, word in enumerate(told) if word is not Word.SAME] == [20]


def test_the_edge_of_bars_makes_no_two_shots_alike():
    def behind_bars(picture):
        shown = picture.copy()
        shown[:12] = shown[-12:] = 0  # of a look's rows the fifth is half bar
        return shown

    bare = [_shot(seed, 1)[0] for seed in (1, 2)]
    unlike = [
        compare(*(_look(picture) for picture in pictures)).unlike
        for pictures in (bare, [behind_bars(picture) for picture in bare])
    ]
    assert unlike[1] == pytest.approx(unlike[0], abs=0.1)
