"""H16: of several sound tracks the main one, whatever their order in the file."""

from fractions import Fraction

import av
import numpy as np
import pytest
from av.stream import Disposition

from wsdata.media.decode import main_audio, open_media

DEFAULT, COMMENT, NONE = Disposition.default, Disposition.comment, Disposition(0)


def _file(path, tracks):
    """Half a second of sound in tracks of (layout, disposition, language)."""
    with av.open(str(path), "w") as container:
        streams = []
        for layout, disposition, language in tracks:
            stream = container.add_stream("aac", rate=48000, layout=layout)
            stream.disposition = disposition
            stream.metadata["language"] = language
            streams.append(stream)
        for stream, (layout, *_) in zip(streams, tracks, strict=True):
            shape = (2 if layout == "stereo" else 1, 1024)
            for index in range(24):
                frame = av.AudioFrame.from_ndarray(
                    np.zeros(shape, np.float32), format="fltp", layout=layout
                )
                frame.sample_rate, frame.time_base = 48000, Fraction(1, 48000)
                frame.pts = 1024 * index
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
    return path


@pytest.mark.parametrize(
    ("tracks", "main"),
    [
        ([("mono", NONE, "eng"), ("mono", DEFAULT, "fra")], 1),
        ([("mono", NONE, "eng"), ("stereo", NONE, "fra")], 1),
        ([("stereo", COMMENT, "eng"), ("mono", NONE, "eng")], 1),
        ([("stereo", NONE, "eng"), ("stereo", NONE, "eng")], 0),
    ],
)
def test_the_main_sound_is_found(tmp_path, tracks, main):
    with _file(tmp_path / "two.mkv", tracks).open("rb") as source, open_media(source) as container:
        assert main_audio(container).index == main
