"""Frames that wait come back as they were, however little memory they may have."""

import random

import numpy as np
import pytest

from wsdata.preprocess.holding import FrameHold

SIZES = ((64, 48), (50, 34))


def _frame(seed):
    import av

    width, height = SIZES[seed % 2]
    pixels = np.random.default_rng(seed).integers(0, 256, (height * 3 // 2, width), np.uint8)
    return av.VideoFrame.from_ndarray(pixels, format="yuv420p")


@pytest.mark.parametrize("memory_bytes", [0, 10_000, 1 << 30])
def test_frames_come_back_bit_by_bit_in_any_order(tmp_path, memory_bytes):
    hold = FrameHold(tmp_path, memory_bytes)
    order = random.Random(7)  # noqa: S311
    waiting = []
    for key in range(60):
        hold.put(key, _frame(key))
        waiting.append(key)
        while len(waiting) > order.randint(1, 20):
            one = waiting.pop(order.randrange(len(waiting)))
            if one % 5 == 0:
                hold.drop(one)
            else:
                back = hold.take(one)
                assert np.array_equal(back.to_ndarray(), _frame(one).to_ndarray())
            assert hold.take(one) is None
    assert list(tmp_path.iterdir()) == [], "what is written has no name"


def test_a_frame_that_was_never_put_is_none(tmp_path):
    hold = FrameHold(tmp_path)
    hold.drop(3)
    assert hold.take(3) is None
