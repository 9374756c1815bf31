"""Opening by content, the main streams, honest health, and transcodes read back exactly."""

import io

import numpy as np
import pytest

from wsdata.errors import DecodeFailed
from wsdata.media.decode import main_audio, main_video, open_media, read_transcode
from wsdata.media.reader import Gap, MediaReader
from wsdata_tests import synthetic


def _read(path, *, is_careful=False):
    """(pts in seconds of every video frame, number of gaps seen, health)."""
    import av

    with path.open("rb") as source, open_media(source, is_careful=is_careful) as container:
        reader = MediaReader(
            container, main_video(container), main_audio(container), is_careful=is_careful
        )
        items = list(reader.frames())
        times = [float(f.pts * reader.time_base) for f in items if isinstance(f, av.VideoFrame)]
        return times, sum(isinstance(item, Gap) for item in items), reader.health


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("media")


@pytest.fixture(scope="module")
def whole(folder):
    segments = (("bars", 3), ("rings", 3), ("checker", 4))
    return synthetic.make_video(folder / "whole.mp4", segments, audio="sine", faststart=True)


def test_a_whole_file_decodes_as_promised(whole):
    times, gaps, health = _read(whole)
    assert times == pytest.approx([i / 24 for i in range(240)], abs=1e-6)
    assert gaps == 0
    assert (health.frames_promised, health.frames_decoded, health.num_errors) == (240, 240, 0)
    assert health.reason is None


def test_h1_h3_a_truncated_file_gives_its_prefix_and_says_where_it_broke(folder, whole):
    times, _, health = _read(synthetic.truncate(whole, 0.6, folder / "cut.mp4"))
    assert health.frames_promised == 240
    assert 0 < health.frames_decoded == len(times) < 240
    assert times == pytest.approx([i / 24 for i in range(len(times))], abs=1e-6)
    assert health.num_errors >= 1
    assert health.reason is not None
    assert f"{times[-1]:.1f}"[:2] in health.reason


def test_h4_noise_in_the_middle_ends_the_plain_way_and_is_skipped_by_the_careful_one(folder, whole):
    noisy = synthetic.corrupt(whole, 0.55, 4000, folder / "noise.mp4")
    plain, _, health = _read(noisy)
    assert health.num_errors >= 1
    assert health.frames_decoded < 240
    careful, gaps, careful_health = _read(noisy, is_careful=True)
    assert len(careful) >= len(plain)
    assert gaps == careful_health.num_gaps
    assert careful_health.reason is not None
    assert careful[-1] > plain[-1]


def test_h2_what_cannot_be_read_says_so(folder):
    made = synthetic.make_h2(folder)
    for name in ("empty", "no_header", "text"):
        with pytest.raises(DecodeFailed, match="cannot be opened"), made[name].open("rb") as file:
            open_media(file)


def test_a_hole_in_the_time_stamps_is_a_gap(folder):
    import av

    path = folder / "hole.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=24)
        stream.width, stream.height, stream.pix_fmt = 160, 90, "yuv420p"
        for i in range(96):
            pixels = synthetic.picture("bars", (160, 90), i / 24)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = i if i < 48 else i + 240
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    times, gaps, health = _read(path)
    assert len(times) == 96
    assert gaps == health.num_gaps == 1


def test_h16_the_larger_default_stream_is_the_main_one(folder):
    made = synthetic.make_h16(folder)
    with made["two_videos"].open("rb") as source, open_media(source) as container:
        assert len(container.streams.video) == 2
        main = main_video(container)
        assert main.index == 0  # the default one, though the other is larger
        assert main_audio(container) is not None
    with made["cover_art"].open("rb") as source, open_media(source) as container:
        assert len(container.streams.video) == 1
        assert main_video(container) is None
    with made["no_audio"].open("rb") as source, open_media(source) as container:
        assert main_audio(container) is None


def test_of_two_default_streams_the_larger_is_the_main_one(pytestconfig):
    nasa = pytestconfig.rootpath / "samples" / "media" / "nasa_13013.mp4"
    with nasa.open("rb") as source, open_media(source) as container:
        main = main_video(container)
        assert (main.codec_context.width, main.codec_context.height) == (480, 270)


def test_a_playlist_cannot_reach_other_files(folder):
    other = folder / "whole.mp4"
    playlist = f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile://{other}\n#EXT-X-ENDLIST\n"
    with pytest.raises(DecodeFailed), open_media(io.BytesIO(playlist.encode())) as container:
        MediaReader(container, main_video(container), None)


def test_transcodes_read_the_same_every_time_and_near_a_plain_conversion(whole):
    data = whole.read_bytes()
    frames_thwc = read_transcode(data)
    assert frames_thwc.shape == (240, 180, 320, 3)
    assert frames_thwc.dtype == np.uint8
    assert np.array_equal(frames_thwc, read_transcode(whole))


def test_a_transcode_of_nothing_is_refused():
    with pytest.raises(DecodeFailed):
        read_transcode(b"\x00" * 64)
