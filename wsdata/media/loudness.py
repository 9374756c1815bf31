"""Loudness of a programme as EBU R 128 defines it, measured by libavfilter."""

import contextlib
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wsdata.media.audio import audio_frames

FLOOR_LUFS = -70.0  # the standard's absolute gate: nothing louder was heard

_INTEGRATED = "lavfi.r128.I"


def integrated_loudness_lufs(samples: NDArray[np.float32], rate_hz: int) -> float:
    """Measure the integrated loudness of one clip.

    Args:
        samples: In [-1, 1], of shape (samples,) or (samples, 1 or 2).
        rate_hz: Their rate.

    Returns:
        LUFS to a thousandth, at least -70, which is also the word for less than 0.4 s of sound.
    """
    import av.error
    from av.filter import Graph

    samples_nc = samples[:, None] if samples.ndim == 1 else samples
    graph = Graph()  # its filters die with it
    source, sink = _add_meter(graph, rate_hz, "stereo" if samples_nc.shape[1] == 2 else "mono")
    told = FLOOR_LUFS
    for frame in (*audio_frames(samples_nc, rate_hz, "flt", rate_hz), None):
        source.push(frame)
        # asking for more than there is, and for what follows the end, raises
        with contextlib.suppress(av.error.BlockingIOError, av.error.EOFError):
            while True:
                told = float(sink.pull().metadata.get(_INTEGRATED, told))
    return max(FLOOR_LUFS, told)


def _add_meter(graph: Any, rate_hz: int, layout: str) -> tuple[Any, Any]:
    source = graph.add_abuffer(
        sample_rate=rate_hz, format="flt", layout=layout, time_base=Fraction(1, rate_hz)
    )
    meter = graph.add("ebur128", "metadata=1:video=0")
    sink = graph.add("abuffersink")
    source.link_to(meter)
    meter.link_to(sink)
    graph.configure()
    return source, sink
