"""A store whose small training objects come from the node's cache: the training index.

For readers that ask a store and check what they get themselves. Samples and captions are not read
this way: `fetch` reads them into the caller's memory.
"""

import re
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash

from wsdata.buffers import ReadWatch
from wsdata.digest import sha256_bytes
from wsdata.loader.cache import NodeCache
from wsdata.store import BlobStore

_DIGEST_BYTES = 8
_NAMED_BY_CONTENT = re.compile(r"[0-9a-f]{64}")
_MAX_SERVED = 256


class CachedStore:
    """A store, read through the node's cache where its objects never change.

    Whole objects are kept whose name is the sha256 of their bytes, and ranges of any, under a
    digest of the cache's own. A range that is asked for again soon was wrong: readers keep what was
    right. It is then read past the cache, and takes the place of what lay there.

    Args:
        store: Where objects lie.
        cache: The node's, or None: then all comes from the store.
    """

    def __init__(self, store: BlobStore, cache: NodeCache | None) -> None:
        self._store = store
        self._cache = cache
        self.address = store.address
        self._lock = threading.Lock()
        self._last = threading.local()
        self._served: OrderedDict[tuple[str, int, int], None] = OrderedDict()

    def __reduce__(self) -> tuple[Any, ...]:
        return CachedStore, (self._store, self._cache)

    def get(self, key: str) -> bytes:
        """Return a whole object. Raises ObjectMissing."""
        name = PurePosixPath(key).stem
        if self._cache is None or not _NAMED_BY_CONTENT.fullmatch(name):
            return self._store.get(key)
        cache, fetched = self._cache, list[bytes]()
        length = memoryview(bytearray(2 * _DIGEST_BYTES))

        def fetch() -> None:
            """Fetch it, and keep it before its length: who finds the length finds the bytes."""
            fetched.append(data := self._store.get(key))
            if sha256_bytes(data) != name:
                return
            cache.replace(key, 0, [memoryview(data)])
            _seal(length, len(data).to_bytes(_DIGEST_BYTES, "little"))

        cache.read_into(
            f"{key}\0length", 0, [length], fill=fetch, is_valid=lambda: _is_sealed(length)
        )
        if fetched:
            return fetched[0]
        buffer = memoryview(bytearray(int.from_bytes(length[:_DIGEST_BYTES], "little")))

        def fill() -> None:
            data = self._store.get(key)
            fetched.append(data)
            if len(data) == len(buffer):
                buffer[:] = data

        cache.read_into(key, 0, [buffer], fill=fill, is_valid=lambda: sha256_bytes(buffer) == name)
        return fetched[0] if fetched else bytes(buffer)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`. Raises ObjectMissing, StoreError.

        Without a cache, out of files that a folder holds open; one is opened anew where its reader
        asks for the same range twice.
        """
        if self._cache is None:
            asked = (key, offset, length)
            if getattr(self._last, "asked", None) == asked:
                self._store.reopen(key)
            self._last.asked = asked
            data = bytearray(length)
            self._store.read_into(key, offset, [memoryview(data)])
            return bytes(data)
        sealed = memoryview(bytearray(length + _DIGEST_BYTES))

        def fetch() -> None:
            _seal(sealed, self._store.get_range(key, offset, length))

        name = f"{key}\0sealed"
        if self._is_asked_again((key, offset, length)):
            fetch()
            self._cache.replace(name, offset, [sealed])
        else:
            self._cache.read_into(
                name, offset, [sealed], fill=fetch, is_valid=lambda: _is_sealed(sealed)
            )
        return bytes(sealed[:length])

    def _is_asked_again(self, wanted: tuple[str, int, int]) -> bool:
        with self._lock:
            is_served = wanted in self._served
            self._served[wanted] = None
            self._served.move_to_end(wanted)
            while len(self._served) > _MAX_SERVED:
                self._served.popitem(last=False)
            return is_served

    # the store's own ----------------------------------------------------------------------------

    def put(self, key: str, data: bytes) -> bool:
        """As the store's."""
        return self._store.put(key, data)

    def put_file(self, key: str, path: Path) -> bool:
        """As the store's."""
        return self._store.put_file(key, path)

    def read_into(
        self,
        key: str,
        offset: int,
        buffers: Sequence[memoryview],
        *,
        watch: ReadWatch | None = None,
    ) -> None:
        """As the store's, past the cache: `fetch` knows what the bytes should be."""
        self._store.read_into(key, offset, buffers, watch=watch)

    def reopen(self, key: str) -> None:
        """As the store's."""
        self._store.reopen(key)

    def fetch(self, key: str, path: Path) -> int:
        """As the store's."""
        return self._store.fetch(key, path)

    def size(self, key: str) -> int | None:
        """As the store's."""
        return self._store.size(key)

    def age_s(self, key: str) -> float:
        """As the store's."""
        return self._store.age_s(key)

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """As the store's."""
        return self._store.list(prefix)

    def delete(self, key: str) -> None:
        """As the store's."""
        self._store.delete(key)


def _seal(target: memoryview, data: bytes) -> None:
    target[: len(data)] = data
    target[len(data) :] = xxhash.xxh3_64_digest(data)


def _is_sealed(found: memoryview) -> bool:
    return xxhash.xxh3_64_digest(found[:-_DIGEST_BYTES]) == found[-_DIGEST_BYTES:]
