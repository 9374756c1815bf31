"""Memory that batches lie in: slabs that come back to be used again when nobody looks at them.

Fresh memory costs a page fault for every 4 KiB, which is more than reading into it. A slab is
handed out as an array; whoever holds any view of it (an array, a torch tensor, a slice of one)
keeps it, and when the last view dies the slab is free again. It is never used again before.
"""

import threading
from collections import deque
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

U8 = NDArray[np.uint8]

_GRAIN = 1 << 20  # slabs are whole MiB, so that buckets of nearly one size share them


class Memory(Protocol):
    """Where batches get their memory from."""

    def take(self, num_bytes: int) -> U8:
        """Return writable memory, shape (num_bytes,), of which nobody else has a view."""
        ...


class _Lease:
    """Owner of the views of a slab: numpy keeps it alive for as long as any of them lives."""

    __slots__ = ("__array_interface__", "_returns", "_slab")

    def __init__(self, slab: U8, returns: deque[U8]) -> None:
        self._slab, self._returns = slab, returns
        self.__array_interface__ = slab.__array_interface__

    def __del__(self) -> None:
        # May run in any thread, in the middle of anything: nothing here may wait for a lock.
        self._returns.append(self._slab)


class SlabPool:
    """Slabs of ordinary memory.

    Slabs in use are as many as batches that are read ahead or held by the caller; besides them at
    most `max_free` are kept.

    Attributes:
        num_made: Slabs made so far, for tests and the curious.
    """

    def __init__(self, max_free: int) -> None:
        self._max_free = max_free
        self._lock = threading.Lock()
        self._free: list[U8] = []
        self._returned: deque[U8] = deque()
        self.num_made = 0

    @property
    def num_free(self) -> int:
        """Slabs that nobody looks at."""
        return len(self._free) + len(self._returned)

    def take(self, num_bytes: int) -> U8:
        """Return memory as `Memory.take`; the smallest free slab that fits, else a new one."""
        with self._lock:
            slab = self._find(num_bytes)
        if slab is None:
            slab = np.empty(max(1, -(-num_bytes // _GRAIN)) * _GRAIN, np.uint8)
        return np.asarray(_Lease(slab, self._returned))[:num_bytes]

    def _find(self, num_bytes: int) -> U8 | None:
        self._collect()
        for index, slab in enumerate(self._free):
            if slab.size >= num_bytes:
                return self._free.pop(index)
        del self._free[:1]  # too small for this batch: it makes way for one that is not
        self.num_made += 1
        return None

    def _collect(self) -> None:
        while self._returned:
            self._free.append(self._returned.popleft())
        self._free.sort(key=len)
        del self._free[: max(0, len(self._free) - self._max_free)]  # the smallest go
