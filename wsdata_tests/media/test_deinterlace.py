"""Interlaced frames come out whole, one for one, with their time stamps."""

import av
import numpy as np

from wsdata.media.decode import main_video, open_media
from wsdata.media.deinterlace import deinterlace
from wsdata.media.reader import Gap, MediaReader
from wsdata_tests import synthetic

SIZE = (320, 180)


def _combed(path, count=12):
    """A square that moves between the two fields of every frame."""
    with av.open(str(path), "w") as container:
        options = {"preset": "veryfast", "crf": "10", "x264-params": "tff=1"}
        stream = container.add_stream("libx264", rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = *SIZE, "yuv420p"
        for i in range(count):
            fields = [np.full((SIZE[1], SIZE[0], 3), 40, np.uint8) for _ in range(2)]
            for late, field in enumerate(fields):
                left = 10 + 20 * i + 10 * late
                field[60:120, left : left + 40] = 220
            fields[0][1::2] = fields[1][1::2]
            frame = av.VideoFrame.from_ndarray(fields[0], format="rgb24").reformat(format="yuv420p")
            frame.pts = i
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


def _frames(path, passes):
    with path.open("rb") as source, open_media(source) as container:
        reader = MediaReader(container, main_video(container), None)
        return [
            (frame.pts, frame.to_ndarray(format="gray"), frame.interlaced_frame)
            for frame in passes(reader.frames())
        ]


def _comb(picture):
    """How much neighbouring lines differ more than lines two apart."""
    lines = picture.astype(int)
    near, far = np.abs(np.diff(lines, axis=0)).mean(), np.abs(lines[2:] - lines[:-2]).mean()
    return near / max(far, 0.01)


def test_combing_goes_and_time_stamps_stay(tmp_path):
    path = _combed(tmp_path / "combed.mp4")
    before, after = _frames(path, iter), _frames(path, deinterlace)
    assert all(is_interlaced for *_, is_interlaced in before)
    assert [pts for pts, *_ in after] == [pts for pts, *_ in before]
    assert _comb(before[5][1]) > 1.5
    assert _comb(after[5][1]) < 1.0


def test_progressive_frames_pass_untouched(tmp_path):
    path = synthetic.make_video(tmp_path / "plain.mp4", (("bars", 0.5),))
    before, after = _frames(path, iter), _frames(path, deinterlace)
    for (pts, picture, _), (same_pts, same, _) in zip(before, after, strict=True):
        assert pts == same_pts
        assert np.array_equal(picture, same)


def test_a_gap_stays_where_it_is(tmp_path):
    path = _combed(tmp_path / "combed.mp4")
    with path.open("rb") as source, open_media(source) as container:
        reader = MediaReader(container, main_video(container), None)
        items = list(reader.frames())
        items.insert(5, Gap())
        kinds = [isinstance(item, Gap) for item in deinterlace(items)]
    assert kinds.index(True) == 5
    assert len(kinds) == len(items)
