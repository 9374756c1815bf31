"""Pieces of objects that were read last, kept in memory."""

import threading
from collections import OrderedDict
from typing import Any

DEFAULT_CACHE_BYTES = 16 << 20


class BlockCache:
    """Pieces of packed tables that were read last, in a bound of bytes; for any thread."""

    def __init__(self, max_bytes: int = DEFAULT_CACHE_BYTES) -> None:
        self._max_bytes = max_bytes
        self._pieces: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._num_bytes = 0
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockCache, (self._max_bytes,)

    @property
    def num_bytes(self) -> int:
        """Bytes of the pieces that are kept."""
        return self._num_bytes

    def find(self, key: tuple[str, int]) -> bytes | None:
        """Return a piece that is kept."""
        with self._lock:
            piece = self._pieces.get(key)
            if piece is not None:
                self._pieces.move_to_end(key)
            return piece

    def keep(self, key: tuple[str, int], piece: bytes) -> None:
        """Keep a piece that was read; two threads that found none may both have read it."""
        with self._lock:
            if key not in self._pieces and len(piece) <= self._max_bytes:
                self._pieces[key] = piece
                self._num_bytes += len(piece)
            while self._num_bytes > self._max_bytes:
                _, dropped = self._pieces.popitem(last=False)
                self._num_bytes -= len(dropped)
