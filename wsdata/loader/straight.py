"""Samples straight out of open files into a batch, many in one call.

Reader threads share one interpreter, whose lock changes hands between two reads; that costs about
as much as reading a small sample. So a compiled module reads and checks samples without the lock.
Where it was not built, `sample_reader` reads them one by one, which gives the same bytes.
"""

import functools
from types import ModuleType
from typing import NamedTuple

import xxhash


class Asked(NamedTuple):
    """A sample that is wanted whole.

    Attributes:
        descriptor: Of its shard's file.
        offset: Of the sample in it; bytes.
        length: Bytes of the sample.
        start: Of its latents within the sample.
        id_at: Where its id lies in what is left once the latents are cut out; so `scale_at`.
        xxh3: Digest of its bytes, 64 bits.
    """

    descriptor: int
    offset: int
    length: int
    start: int
    id_at: int
    scale_at: int
    xxh3: int
    sample_id: str


class Range(NamedTuple):
    """Bytes that are wanted: of a file, from `offset` on; `xxh3` is their digest, 64 bits."""

    descriptor: int
    offset: int
    length: int
    xxh3: int


def read_samples(samples: list[Asked], codes: memoryview, scales: memoryview) -> list[float]:
    """Read samples in turn until one is not as it should be: short, of another digest or id.

    Args:
        samples: At least one.
        codes: Writable bytes: latents of all of them, of equal size, one after the other.
        scales: Likewise; what was not read is left alone, or holds anything.

    Returns:
        The seconds that each took that was read; none at all without the compiled module.

    Raises:
        ValueError: Parts of a sample lie outside of it.
    """
    module = _compiled()
    return module.read_samples(samples, codes, scales) if module is not None else []


def read_ranges(ranges: list[Range]) -> list[tuple[bytes, float]]:
    """Read ranges in turn until one is short or of another digest.

    Returns:
        Bytes, and the seconds it took, of each that was read; none without the compiled module.

    Raises:
        ValueError: A negative length.
    """
    module = _compiled()
    return module.read_ranges(ranges) if module is not None else []


def is_compiled() -> bool:
    """Whether the compiled module is there."""
    return _compiled() is not None


@functools.cache
def _compiled() -> ModuleType | None:
    try:
        from wsdata.loader import _straight
    except ImportError:
        return None
    # The extension module of `xxhash` exports the library that it is made of.
    library: str = xxhash._xxhash.__file__  # pyright: ignore[reportAttributeAccessIssue]
    return _straight if _straight.bind(library) else None
