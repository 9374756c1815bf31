"""Ready batches ahead of their use: reader threads fill a ring, batches come out in order.

The core of the loader, free of torch. Threads only: no worker process, no shared memory, no
collective, and nothing is read from the environment. A rank reads its own slots and waits for
no other rank.
"""

import functools
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from wsdata.loader.batch_reader import BatchReader, Skipped, Work
from wsdata.loader.batches import Batch
from wsdata.loader.order import Piece
from wsdata.loader.telemetry import Telemetry

MAX_TASK_BYTES = 4 << 20  # of small samples that one thread reads in a row


class _Threads:
    """Reader threads, which do the earliest work first. They start with the first work."""

    def __init__(self, num_threads: int) -> None:
        self._num_threads = num_threads
        self._changed = threading.Condition()
        self._tasks: list[tuple[int, int, Callable[[], None]]] = []
        self._is_started = self._is_closed = False

    def add(self, sequence: int, number: int, task: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._tasks, (sequence, number, task))
            self._changed.notify()
            if self._is_started:
                return
            self._is_started = True
        for index in range(self._num_threads):
            # Daemons: a read that hangs must not keep a finished program alive.
            threading.Thread(target=self._work, name=f"wsdata-read-{index}", daemon=True).start()

    def close(self) -> None:
        """Let threads end after what they are doing; nobody waits for them."""
        with self._changed:
            self._is_closed = True
            self._tasks.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._tasks and not self._is_closed:
                    self._changed.wait()
                if self._is_closed:
                    return
                task = heapq.heappop(self._tasks)[2]
            task()
            del task  # lest an idle thread keep the memory of a batch


class _Reading:
    """A batch that threads are reading."""

    def __init__(self, piece: Piece) -> None:
        self.piece = piece
        self.is_done = threading.Event()
        self.is_dropped = False
        self.work: Work
        self.error: BaseException | None = None
        self._lock = threading.Lock()
        self._num_left = 0

    def begun(self, work: Work, num_tasks: int) -> None:
        self.work, self._num_left = work, num_tasks

    def task_done(self) -> None:
        with self._lock:
            self._num_left -= 1
            if not self._num_left:
                self.is_done.set()

    def failed(self, error: BaseException) -> None:
        self.error = self.error or error
        self.is_done.set()

    def result(self) -> Work:
        self.is_done.wait()
        if self.error is not None:
            raise self.error
        return self.work


class Ring:
    """Batches of one rank, read ahead. An iterator; `close` it to let its threads end.

    Args:
        reader: Reads batches.
        pieces: Which batches, in order.
        num_threads: Reader threads; 0 reads in the caller's own, when a batch is asked for.
        depth: Batches that are read ahead of the one in use, at least 1.
        telemetry: Told how long batches were waited for.
        on_skipped: Told which slots of a delivered batch a swapped-in patch changed.

    Raises:
        ValueError: A negative number of threads, or a depth under 1.
    """

    def __init__(
        self,
        reader: BatchReader,
        pieces: Iterator[Piece],
        *,
        num_threads: int = 2,
        depth: int = 2,
        telemetry: Telemetry | None = None,
        on_skipped: Callable[[list[Skipped]], None] | None = None,
    ) -> None:
        if num_threads < 0 or depth < 1:
            raise ValueError(f"{num_threads} threads, depth {depth}: expected >= 0, and >= 1")
        self.reader, self._pieces = reader, pieces
        self._num_threads, self._depth = num_threads, depth
        self._telemetry, self._on_skipped = telemetry, on_skipped
        self._delivered = (-1, 0)
        self._threads = _Threads(num_threads)
        self._ahead: deque[_Reading] = deque()
        self._sequence = itertools.count()

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        """Return the next batch.

        Raises:
            IntegrityError: Bytes are wrong in the store; raised at the batch that has them.
        """
        asked = time.monotonic()
        if self._num_threads == 0:
            work = self._read_now(next(self._pieces))
            is_stall = True
        else:
            self._fill_ring()
            if not self._ahead:
                self.close()
                raise StopIteration
            reading = self._ahead[0]
            is_stall = not reading.is_done.is_set()
            work = reading.result()
            self._ahead.popleft()
            self._fill_ring()
        if self._telemetry is not None:
            self._telemetry.delivered(time.monotonic() - asked, is_stall=is_stall)
        if self._on_skipped is not None and work.skipped:
            self._on_skipped(work.skipped)
        self._delivered = _place(work.batch.piece)
        return work.batch

    def replace(self, reader: BatchReader, pieces: Iterator[Piece], from_step: int) -> None:
        """Go on with another reader from a step on; what was read ahead of it is read again.

        Args:
            reader: Takes the old one's place.
            pieces: Batches in order; those that were delivered, or are kept, are passed over.
            from_step: First step of the run that the new reader serves.
        """
        kept = [reading for reading in self._ahead if reading.piece.step < from_step]
        for reading in self._ahead:
            reading.is_dropped = reading not in kept
        self._ahead = deque(kept)
        last = _place(kept[-1].piece) if kept else self._delivered
        self.reader = reader
        self._pieces = itertools.dropwhile(lambda piece: _place(piece) <= last, pieces)

    def close(self) -> None:
        """Read nothing more."""
        self._threads.close()
        for reading in self._ahead:
            reading.is_dropped = True
        self._ahead.clear()
        self._pieces = iter(())

    def _fill_ring(self) -> None:
        while len(self._ahead) < self._depth:
            piece = next(self._pieces, None)
            if piece is None:
                return
            reading = _Reading(piece)
            self._ahead.append(reading)
            sequence = next(self._sequence)
            begin = functools.partial(self._begin, self.reader, reading, sequence)
            self._threads.add(-1, sequence, begin)  # quick, and without it threads run dry

    def _read_now(self, piece: Piece) -> Work:
        work = self.reader.begin(piece)
        self.reader.fill(work, 0, len(work.placements))
        return work

    def _begin(self, reader: BatchReader, reading: _Reading, sequence: int) -> None:
        if reading.is_dropped:
            return
        try:
            work = reader.begin(reading.piece)
        except BaseException as error:  # noqa: BLE001 - raised again where the batch is asked for
            reading.failed(error)
            return
        tasks = split_evenly(work.sizes, self._num_threads)
        reading.begun(work, len(tasks))
        for number, (start, stop) in enumerate(tasks):
            fill = functools.partial(_fill, reader, reading, start, stop)
            self._threads.add(sequence, number + 1, fill)


def _place(piece: Piece) -> tuple[int, int]:
    return piece.step, piece.number


def _fill(reader: BatchReader, reading: _Reading, start: int, stop: int) -> None:
    try:
        if not reading.is_dropped and reading.error is None:
            reader.fill(reading.work, start, stop)
    except BaseException as error:  # noqa: BLE001 - raised again where the batch is asked for
        reading.failed(error)
    else:
        reading.task_done()


def split_evenly(sizes: list[int], num_threads: int) -> list[tuple[int, int]]:
    """Cut samples of these sizes into runs [start, stop) that threads read in a row.

    Few enough that small samples cost no more than their reading, and enough that all threads
    have some, whatever the samples' size.
    """
    wanted = max(-(-sum(sizes) // MAX_TASK_BYTES), num_threads)
    stride = max(1, len(sizes) // wanted)
    return [(start, min(start + stride, len(sizes))) for start in range(0, len(sizes), stride)]
