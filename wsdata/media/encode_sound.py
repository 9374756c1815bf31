"""Writing sound: Opus for speech and ambience, AAC for music, the same bytes for the same input.

Which form a clip's sound takes belongs to `preprocess.sound`. Each encoder runs on one thread with
bit-exact flags, and writes no date, no program name and no random serial.
"""

import io
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wsdata.media.audio import RATE_HZ, audio_frames

OPUS_BIT_RATE = 32_000
MUSIC_RATE_HZ = 44_100  # a rate that Opus does not have
AAC_BIT_RATE = 192_000
AAC_FRAME = 1024

_BITEXACT = {"fflags": "+bitexact"}


def encode_opus(samples: NDArray[np.float32]) -> bytes:
    """Write mono samples in [-1, 1] at 16 kHz, of shape (samples,), as Opus in Ogg."""
    stream = {"codec": "libopus", "rate": RATE_HZ, "layout": "mono", "bit_rate": OPUS_BIT_RATE}
    return _encode(samples[:, None], "s16", stream, "ogg", {"serial_offset": "1"})


def encode_aac(samples_nc: NDArray[np.float32]) -> bytes:
    """Write stereo samples in [-1, 1] at 44.1 kHz, of shape (samples, 2), as AAC-LC in mp4.

    The encoder's delay is told by an edit list, so that a reader gets the first sample first.
    """
    stream = {"codec": "aac", "rate": MUSIC_RATE_HZ, "layout": "stereo", "bit_rate": AAC_BIT_RATE}
    return _encode(np.clip(samples_nc, -1, 1), "fltp", stream, "mp4", {})


def _encode(
    samples_nc: NDArray[np.float32],
    sample_format: str,
    wanted: dict[str, Any],
    container_format: str,
    options: dict[str, str],
) -> bytes:
    import av
    from av.codec.context import Flags

    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container_format, options=_BITEXACT | options) as container:
        stream: Any = container.add_stream(
            wanted["codec"], rate=wanted["rate"], layout=wanted["layout"]
        )
        context = stream.codec_context
        context.bit_rate = wanted["bit_rate"]
        context.flags |= Flags.bitexact
        context.thread_count = 1
        context.open()
        block = context.frame_size or AAC_FRAME
        for frame in audio_frames(samples_nc, wanted["rate"], sample_format, block):
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return buffer.getvalue()
