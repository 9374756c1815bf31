"""The print of a sound track, and how two of them compare.

Chromaprint's codes: 32 bits for each eighth of a second, each about the 2.6 s that begin there.
A copy in another codec or at another level keeps nearly all bits; a changed speed does not. A
sound print never tells alone that two videos show the same: a song lies under many. What is made
of an agreement belongs to the matchers.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import SandboxError
from wsdata.media.decode import main_audio, open_media

if TYPE_CHECKING:
    from collections.abc import Iterator

    from av import AudioFrame
    from av.container import InputContainer

SOUND_VERSION = "chromaprint-2-600s-1"  # its algorithm 2, "test2", which AcoustID uses
RATE_HZ = 11_025  # what Chromaprint itself would resample to
CODE_S = 4096 / 3 / RATE_HZ  # frames of 4096 samples, two thirds shared with the next
MAX_SOUND_S = 600.0  # of each track; the rest adds nothing to tell two tracks apart
MIN_SHARED_CODES = 24  # 3 s: over fewer, strangers agree by chance at one offset or other
_HELD = 8  # so many equal codes in a row are silence or hum, and have no vote
_CODE_BITS = 32


def require_chromaprint() -> None:
    """Check that the library is here, so that its absence is not taken for a file without sound.

    Raises:
        SandboxError: It is not.
    """
    try:
        import chromaprint  # noqa: F401  pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SandboxError(
            f"sound cannot be printed here ({error}): install the system package libchromaprint1 "
            "and the Python package pyacoustid, as tools/setup.sh and the Dockerfile do"
        ) from error


def sound_codes(source: BinaryIO, *, video_start_s: float) -> dict[str, Any] | None:
    """Print the main sound track of a file, in a sandboxed child.

    Args:
        source: The file.
        video_start_s: Time stamp of its first picture; 0 where it has none.

    Returns:
        ``codes``, little-endian 32-bit words in hex; ``start_s``, when the first begins after
        the first picture. None where there is no sound, or too little for one code.
    """
    import chromaprint  # pyright: ignore[reportMissingImports]

    printer = chromaprint.Fingerprinter()
    printer.start(RATE_HZ, 1)
    first_s: float | None = None
    for time_s, samples in _samples(source):
        first_s = time_s if first_s is None else first_s
        printer.feed(samples)
    if first_s is None:
        return None
    codes, _ = chromaprint.decode_fingerprint(printer.finish())
    if not codes:
        return None
    return {
        "codes": np.array(codes, "<u4").tobytes().hex(),
        "start_s": round(first_s - video_start_s, 6),
    }


def _samples(source: BinaryIO) -> "Iterator[tuple[float, bytes]]":
    """Mono 16-bit samples, piece by piece, each with the time stamp of its frame in seconds."""
    import av

    source.seek(0)
    with open_media(source) as container:
        audio = main_audio(container)
        if audio is None:
            return
        audio.codec_context.thread_count = 1
        resampler = av.AudioResampler(format="s16", layout="mono", rate=RATE_HZ)
        num_left = round(MAX_SOUND_S * RATE_HZ)
        for frame in _frames(container, audio):
            time_s = float(frame.time or 0.0)
            frame.pts = None  # a jump of the clock is no silence
            for out in resampler.resample(frame):
                samples = out.to_ndarray().reshape(-1)[:num_left].astype("<i2")
                num_left -= len(samples)
                yield time_s, samples.tobytes()
            if num_left <= 0:
                return


def _frames(container: "InputContainer", audio: Any) -> "Iterator[AudioFrame]":
    """What decodes of one track; a packet that does not is skipped."""
    import av.error

    packets = container.demux(audio)
    while True:
        try:
            packet = next(packets)
        except (StopIteration, av.error.FFmpegError, ValueError):
            return
        try:
            yield from packet.decode()  # pyright: ignore[reportReturnType]
        except (av.error.FFmpegError, ValueError):
            continue


def unpack_codes(packed: bytes) -> NDArray[np.uint32]:
    """Return stored codes as an array."""
    return np.frombuffer(packed, "<u4").astype(np.uint32)


@dataclass(frozen=True, slots=True)
class SharedSound:
    """The offset at which two prints agree best.

    Attributes:
        offset: Codes by which the second is ahead: a[i] is compared with b[i + offset].
        error: Share of bits that differ there, in [0, 1].
        num_codes: Codes with a vote in both that were compared.
    """

    offset: int
    error: float
    num_codes: int


def voting_codes(codes: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Return which codes have a vote: all but those that are held, as in silence and hum."""
    if not len(codes):
        return np.zeros(0, np.bool_)
    starts = np.flatnonzero(np.concatenate([[True], codes[1:] != codes[:-1]]))
    lengths = np.diff(np.concatenate([starts, [len(codes)]]))
    return np.repeat(lengths < _HELD, lengths)


def shared_sound(
    a: NDArray[np.uint32], b: NDArray[np.uint32], *, min_share: float = 0.5
) -> SharedSound | None:
    """Find the offset at which two prints agree best.

    Args:
        a: Codes of one.
        b: Codes of the other.
        min_share: Share of the voting codes of the shorter that an offset must compare.

    Returns:
        The best offset, of equals the nearest to 0, of those the smaller; None where no offset
        compares enough.
    """
    votes_a, votes_b = voting_codes(a), voting_codes(b)
    least = max(MIN_SHARED_CODES, min_share * min(votes_a.sum(), votes_b.sum()))
    shared = _correlate(votes_a.astype(np.float64), votes_b.astype(np.float64))
    if not shared.size or shared.max() < least:
        return None
    agreed = np.zeros_like(shared)
    for bit in range(_CODE_BITS):
        agreed += _correlate(_signs(a, votes_a, bit), _signs(b, votes_b, bit))
    compared = _CODE_BITS * np.maximum(shared, 1)
    error = np.where(shared >= least, (compared - agreed) / (2 * compared), np.inf)
    offsets = np.arange(len(error)) - (len(a) - 1)
    best = np.lexsort((offsets, np.abs(offsets), error))[0]
    return SharedSound(int(offsets[best]), float(error[best]), int(shared[best]))


def _signs(codes: NDArray[np.uint32], votes: NDArray[np.bool_], bit: int) -> NDArray[np.float64]:
    is_set = ((codes >> np.uint32(bit)) & np.uint32(1)).astype(np.float64)
    return (is_set * 2 - 1) * votes


def _correlate(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Sums of a[i] x b[i + k] for k from 1 - len(a) to len(b) - 1; exact, for they are integers."""
    if not len(a) or not len(b):
        return np.zeros(0)
    count = len(a) + len(b) - 1
    size = 1 << (count - 1).bit_length()
    spectrum = np.fft.rfft(a[::-1], size) * np.fft.rfft(b, size)
    return np.rint(np.fft.irfft(spectrum, size)[:count])
