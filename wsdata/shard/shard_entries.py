"""Sorting which samples each shard holds, for the training index, in a bound of memory."""

import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

Entries = NDArray[np.void]

FIELDS = (("shard", "<u8"), ("row", "<u8"))  # the shard's first eight bytes, as a number
MAX_KEPT = 1 << 21  # entries of 16 bytes, in memory

_FIRST_BYTE = np.uint64(56)  # shift to it; digests are spread evenly over its 256 values


class EntrySorter:
    """Takes entries in the order of rows, and yields them sorted by shard, then row.

    Many are put into files by the first byte of their shard, in a folder that goes with the sorter;
    each file is sorted by itself. A context manager.
    """

    def __init__(self, max_kept: int = MAX_KEPT) -> None:
        self._max_kept = max_kept
        self._kept: list[Entries] = []
        self._num_kept = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def __enter__(self) -> "EntrySorter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._folder is not None:
            self._folder.cleanup()

    def add(self, entries: Entries) -> None:
        """Take the next entries, as `FIELDS`."""
        self._kept.append(entries)
        self._num_kept += len(entries)
        if self._num_kept > self._max_kept:
            self._spill()

    def sorted(self) -> Iterator[Entries]:
        """Yield all entries that were taken, in parts; the sorter then holds none."""
        if self._folder is None:
            yield self._take()
            return
        self._spill()
        for path in sorted(Path(self._folder.name).iterdir()):
            yield _sorted(np.fromfile(path, np.dtype(list(FIELDS))))

    def _take(self) -> Entries:
        entries = np.concatenate([np.zeros(0, np.dtype(list(FIELDS))), *self._kept])
        self._kept, self._num_kept = [], 0
        return _sorted(entries)

    def _spill(self) -> None:
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="wsdata-entries-")
        entries = self._take()
        firsts = entries["shard"] >> _FIRST_BYTE
        cuts = np.searchsorted(firsts, np.arange(257, dtype=np.uint64))
        for byte, (low, high) in enumerate(itertools.pairwise(cuts)):
            if low < high:
                with (Path(self._folder.name) / f"{byte:02x}").open("ab") as file:
                    entries[low:high].tofile(file)


def _sorted(entries: Entries) -> Entries:
    return entries[np.argsort(entries["shard"], kind="stable")]
