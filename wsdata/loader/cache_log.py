"""The node cache's bytes on disk: a log of segment files, and an index of fixed size over them.

Ranges are appended to the newest segment; where there is no room, the oldest segment goes, with
all that lies in it, at the cost of one deleted file whatever the number of ranges. The index is a
table of buckets: a range's tag, drawn from its name, says which bucket tells its place. Places are
told after the bytes are written, so that what a killed process leaves is not found. Whether bytes
are right is for the caller to check: nothing here is believed without.

Files are read and written, never mapped: a full disk is an error, and not a signal.
"""

import contextlib
import fcntl
import os
import re
import struct
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from wsdata.buffers import num_bytes, pread_into, pwrite_from
from wsdata.open_files import OpenFiles

MIN_BYTES = 1 << 16  # of a bound: the index alone takes a few KiB
TAG_BYTES = 16
SPACE_WAIT_S = 1.0  # for a lock that is held for microseconds
PAUSE_S = 30.0  # without appending, after a full disk or a stopped neighbour
_MAGIC = b"wsdata-2"
_INDEX_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
_HEADER = struct.Struct("<8sQQQQQI")
_MAX_SEGMENTS = 1024  # alive at once
_SIZE = struct.Struct("<Q")
_TABLE_AT = 64 + _SIZE.size * _MAX_SEGMENTS
_SLOT = struct.Struct("<16sQI")  # tag, offset, segment; then a CRC of the three
_SLOTS_OF = struct.Struct("<16sQII")
_SLOT_BYTES = _SLOTS_OF.size
_SLOTS = 16  # of a bucket
_BUCKET_BYTES = _SLOTS * _SLOT_BYTES
_BYTES_PER_SLOT = 32 << 10  # so that the index takes a thousandth of the bound
_MIN_BUCKETS, _MAX_BUCKETS = 16, 1 << 21  # 8 KiB to 1 GiB of index
_SEGMENT_BYTES = 256 << 20
_DISK_BLOCK = 4096  # what a file system gives out
_OURS = re.compile(r"[0-9]{10}\.segment")
_HOT_FILL = 0.9  # share of the bound from which on what is read in old segments is kept
_OLD_SHARE = 0.25  # of the segments
_FINDS_A_LOOK = 64


class Place(NamedTuple):
    """Where the bytes of a range lie."""

    segment: int
    offset: int


class _State(NamedTuple):
    """The index's header: segments [oldest, head] are alive."""

    num_buckets: int
    oldest: int
    head: int
    head_bytes: int
    used_bytes: int


class SegmentLog:
    """See the module docstring. Safe to use from threads, processes of one user, and after forks.

    Args:
        folder: Where; made where there is none.
        max_bytes: Bound of index and segments together.

    Raises:
        OSError: The folder cannot be written.
        TimeoutError: A neighbour holds the log and does not go on.
    """

    def __init__(self, folder: Path, max_bytes: int) -> None:
        if max_bytes < MIN_BYTES:
            raise ValueError(f"cache bound of {max_bytes} bytes: expected at least {MIN_BYTES}")
        self._folder = folder
        self._segments = folder / "segments"
        self._segments.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._index = os.open(folder / "index", _INDEX_FLAGS, 0o600)  # for good
        self._files = OpenFiles(256, os.O_RDWR)
        slots = max_bytes // _BYTES_PER_SLOT
        wanted = min(_MAX_BUCKETS, max(_MIN_BUCKETS, slots // _SLOTS))
        with self._locked():
            state = self._state() or self._begin(wanted)
            self._num_buckets = state.num_buckets
            index_bytes = _in_blocks(_index_bytes(state.num_buckets))
            self._bound = max_bytes - index_bytes - _DISK_BLOCK  # the head's last one
            if self._bound < max_bytes // 4:
                raise ValueError(
                    f"cache bound of {max_bytes} bytes, and an index in {folder} that was made for "
                    "a far larger one: delete the folder, or give it the bound it had"
                )
            self._segment_bytes = min(_SEGMENT_BYTES, max(_DISK_BLOCK, self._bound // 64))
            self._segment_bytes = max(self._segment_bytes, self._bound // (_MAX_SEGMENTS // 2))
            state = self._make_room(state, 0)
            self._remove_strays(state)
        self._old_below = self._num_finds = 0
        self._see(state)
        self._skip_until = 0.0

    def __del__(self) -> None:
        if hasattr(self, "_index"):
            os.close(self._index)

    @property
    def size_bytes(self) -> int:
        """Bytes of ranges that are kept or reserved."""
        state = self._state()
        return state.used_bytes if state else 0

    # reading -----------------------------------------------------------------------------------

    def load(self, tag: bytes, buffers: Sequence[memoryview], length: int) -> Place | None:
        """Fill buffers of `length` bytes with a range, and return where it lies; None if not here.

        What a place holds is not known to be the range before the caller has checked it.
        """
        place = self.find(tag)
        if place is None:
            return None
        try:
            file = self._files.acquire(self._path(place.segment))
            try:
                found = pread_into(file.descriptor, buffers, place.offset)
            finally:
                self._files.release(file)
        except OSError:  # the segment has gone
            return None
        return place if found == length else None

    @contextlib.contextmanager
    def held(self, tags: Sequence[bytes]) -> Iterator[list[tuple[int, int]]]:
        """Hold open the segments that ranges lie in, of the first ones that are here and not old.

        Yields:
            Descriptor and offset of each.

        Raises:
            OSError: A segment has gone.
        """
        places: list[Place] = []
        for tag in tags:
            place = self.find(tag)
            if place is None or self.is_old(place):
                break
            places.append(place)
        with self._files.held([self._path(place.segment) for place in places]) as descriptors:
            yield [(file, place.offset) for file, place in zip(descriptors, places, strict=True)]

    def find(self, tag: bytes) -> Place | None:
        """Where a range lies, as far as the index knows."""
        bucket = os.pread(self._index, _BUCKET_BYTES, self._bucket_at(tag))
        at = _slot_of(bucket, tag)
        return None if at is None else _place_in(bucket, at)

    def is_old(self, place: Place) -> bool:
        """Whether a range in use will soon go, and should be appended again."""
        self._num_finds += 1
        if self._num_finds % _FINDS_A_LOOK == 0 and (state := self._state()):
            self._see(state)
        return place.segment < self._old_below

    def _see(self, state: _State) -> None:
        """Draw from the header which segments are old: none before the bound is near."""
        is_full = state.used_bytes > _HOT_FILL * self._bound
        alive = state.head - state.oldest + 1
        self._old_below = state.oldest + int(_OLD_SHARE * alive) if is_full else 0

    def forget(self, tag: bytes, place: Place) -> None:
        """Find a range no more at a place where its bytes were wrong."""
        bucket_at = self._bucket_at(tag)
        bucket = os.pread(self._index, _BUCKET_BYTES, bucket_at)
        at = _slot_of(bucket, tag)
        if at is not None and _place_in(bucket, at) == place:
            with contextlib.suppress(OSError):
                os.pwrite(self._index, bytes(_SLOT_BYTES), bucket_at + at)

    # writing -----------------------------------------------------------------------------------

    def append(self, tag: bytes, buffers: Sequence[memoryview]) -> bool:
        """Keep a range; return False where that cannot be, and nothing is left of it."""
        length = num_bytes(buffers)
        if not 0 < length <= self._bound or time.monotonic() < self._skip_until:
            return False
        try:
            place = self._reserve(length)
            file = self._files.acquire(self._path(place.segment))
            try:
                pwrite_from(file.descriptor, buffers, place.offset)
            finally:
                self._files.release(file)
            self._tell(tag, place)
        except FileNotFoundError:
            return False  # its segment went while we wrote
        except OSError:  # full or read-only disk, a stopped neighbour
            self._skip_until = time.monotonic() + PAUSE_S
            return False
        return True

    def _reserve(self, length: int) -> Place:
        with self._locked():
            state = self._state() or self._begin(self._num_buckets)
            if state.head_bytes + length > self._segment_bytes or state.oldest > state.head:
                state = self._new_head(state)
            state = self._make_room(state, length)
            place = Place(state.head, state.head_bytes)
            state = state._replace(
                head_bytes=state.head_bytes + length, used_bytes=state.used_bytes + length
            )
            self._write(state)
        self._see(state)
        return place

    def _make_room(self, state: _State, length: int) -> _State:
        while (
            state.used_bytes + length > self._bound
            or state.head - state.oldest >= _MAX_SEGMENTS - 2
        ):
            if state.oldest == state.head:
                if not state.head_bytes:  # nothing is left, whatever the sum says
                    return state._replace(used_bytes=0)
                state = self._new_head(state)
            (size,) = _SIZE.unpack(os.pread(self._index, _SIZE.size, _size_at(state.oldest)))
            _remove(self._path(state.oldest))
            used = max(0, state.used_bytes - size)
            state = state._replace(oldest=state.oldest + 1, used_bytes=used)
            self._write(state)
        return state

    def _new_head(self, state: _State) -> _State:
        size = _in_blocks(state.head_bytes)
        os.pwrite(self._index, _SIZE.pack(size), _size_at(state.head))
        path = self._path(state.head + 1)
        Path(path).unlink(missing_ok=True)  # of a process that was killed right here
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        used = state.used_bytes + size - state.head_bytes
        state = state._replace(head=state.head + 1, head_bytes=0, used_bytes=used)
        self._write(state)
        return state

    def _tell(self, tag: bytes, place: Place) -> None:
        """Put a place into its bucket, instead of the one that goes first where that is full.

        Without a lock: of two that take one slot at a time, one range is fetched again.
        """
        bucket_at = self._bucket_at(tag)
        bucket = os.pread(self._index, _BUCKET_BYTES, bucket_at)
        bucket = bucket.ljust(_BUCKET_BYTES, b"\0")  # somebody cut the index, or begins it anew
        at = _slot_of(bucket, tag)
        if at is None:
            segments = [segment for _, _, segment, _ in _SLOTS_OF.iter_unpack(bucket)]
            at = segments.index(min(segments)) * _SLOT_BYTES  # an empty slot says 0
        slot = _SLOT.pack(tag, place.offset, place.segment)
        os.pwrite(self._index, slot + _crc(slot), bucket_at + at)

    # the whole ---------------------------------------------------------------------------------

    def _begin(self, num_buckets: int) -> _State:
        """Make an empty index in place, where there is none or a crash of the host broke it."""
        head = max((int(path.name[:10]) for path in self._listed()), default=0) + 1
        os.ftruncate(self._index, 0)
        os.ftruncate(self._index, _index_bytes(num_buckets))
        state = _State(num_buckets, head + 1, head, 0, 0)  # no segment is alive
        self._write(state)
        self._remove_strays(state)
        return state

    def _state(self) -> _State | None:
        """Read the header; None where it is none, or where the table behind it was cut short."""
        data = os.pread(self._index, _HEADER.size, 0)
        if len(data) < _HEADER.size or _crc(data[:-4]) != data[-4:]:
            return None
        magic, *numbers, _ = _HEADER.unpack(data)
        if magic != _MAGIC:
            return None
        state = _State(*numbers)
        is_cut = os.fstat(self._index).st_size < _index_bytes(state.num_buckets)
        return None if is_cut else state

    def _write(self, state: _State) -> None:
        body = _HEADER.pack(_MAGIC, *state, 0)[:-4]
        os.pwrite(self._index, body + _crc(body), 0)

    def _remove_strays(self, state: _State) -> None:
        for path in self._listed():
            if not state.oldest <= int(path.name[:10]) <= state.head:
                _remove(str(path))

    def _listed(self) -> list[Path]:
        return [path for path in self._segments.iterdir() if _OURS.fullmatch(path.name)]

    def _path(self, segment: int) -> str:
        return f"{self._segments}/{segment:010d}.segment"

    def _bucket_at(self, tag: bytes) -> int:
        return _TABLE_AT + int.from_bytes(tag[:8], "little") % self._num_buckets * _BUCKET_BYTES

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Hold the header. An open file holds the lock, so that it ends with its process."""
        handle = os.open(f"{self._folder}/space.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _wait_for(handle)
            yield
        finally:
            os.close(handle)


def _wait_for(handle: int) -> None:
    deadline, pause_s = time.monotonic() + SPACE_WAIT_S, 0.0002
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError("a neighbour holds the cache's lock, and is stopped") from None
            time.sleep(pause_s)
            pause_s = min(0.01, 2 * pause_s)
        else:
            return


def _index_bytes(num_buckets: int) -> int:
    return _TABLE_AT + num_buckets * _BUCKET_BYTES


def _in_blocks(num_bytes: int) -> int:
    return -(-num_bytes // _DISK_BLOCK) * _DISK_BLOCK


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.truncate(path, 0)  # neighbours may have it open: its space is free at once
        Path(path).unlink()


def _size_at(segment: int) -> int:
    return 64 + segment % _MAX_SEGMENTS * _SIZE.size


def _slot_of(bucket: bytes, tag: bytes) -> int | None:
    at = bucket.find(tag)
    while at >= 0:
        slot = bucket[at : at + _SLOT_BYTES]
        if at % _SLOT_BYTES == 0 and _crc(slot[:-4]) == slot[-4:]:  # else half written
            return at
        at = bucket.find(tag, at + 1)
    return None


def _crc(data: bytes) -> bytes:
    return zlib.crc32(data).to_bytes(4, "little")


def _place_in(bucket: bytes, at: int) -> Place:
    _, offset, segment = _SLOT.unpack_from(bucket, at)
    return Place(segment, offset)
