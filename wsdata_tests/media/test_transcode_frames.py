"""Frames out of the middle of a transcode are those that decoding from its start gives."""

from types import SimpleNamespace

import av
import numpy as np
import pytest

from wsdata.errors import DecodeFailed
from wsdata.media.decode import read_transcode
from wsdata.media.encode import ClipEncoder
from wsdata.media.transcode_frames import transcode_decoder


@pytest.fixture(scope="module")
def transcode():
    """Four key frames, motion and noise between them."""
    writer = ClipEncoder(64, 48)
    noise = np.random.default_rng(3).integers(0, 256, (48, 160, 3), np.uint8)
    for number in range(180):
        picture = np.ascontiguousarray(noise[:, number // 2 : number // 2 + 64])
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
        writer.write(frame.reformat(format="yuv420p"))
    data = writer.finish()
    return SimpleNamespace(data=data, frames_thwc=read_transcode(data))


@pytest.mark.parametrize("start", [0, 12, 13, 47, 48, 100, 151])
def test_a_range_of_frames_is_a_slice_of_all(transcode, start):
    found = list(transcode_decoder(transcode.data, range(start, start + 9)))
    assert np.array_equal(np.stack(found), transcode.frames_thwc[start : start + 9])


def test_past_the_end_fewer_come(transcode):
    assert len(list(transcode_decoder(transcode.data, range(170, 203)))) == 10
    assert not list(transcode_decoder(transcode.data, range(180, 181)))


def test_what_is_no_transcode_is_refused(transcode):
    with pytest.raises(DecodeFailed):
        list(transcode_decoder(b"\x00" * 64, range(1)))
    with pytest.raises(ValueError, match="consecutive"):
        list(transcode_decoder(transcode.data, range(5, 0, -1)))
