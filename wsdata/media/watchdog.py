"""The watchdog: how long a sandboxed job may take, stand still, and how much it may leave.

It only looks and judges; whoever asked kills. What a job may use of the kernel's own limits
belongs to `jobs`.
"""

import mmap
import os
import select
import time
from dataclasses import dataclass, field
from pathlib import Path

from wsdata.media.progress import SIZE_BYTES

_TAIL_BYTES = 4096
_LONGEST_TICK_S = 1.0


class Progress:
    """The page in which a job counts frames and bytes; see `wsdata.media.progress`.

    Attributes:
        fd: Its descriptor, for the child.
    """

    def __init__(self) -> None:
        self.fd = os.memfd_create("progress")
        os.truncate(self.fd, SIZE_BYTES)
        self._page = mmap.mmap(self.fd, SIZE_BYTES, prot=mmap.PROT_READ)

    def counts(self) -> tuple[int, int]:
        """Frames done, and bytes read."""
        return int.from_bytes(self._page[:8], "little"), int.from_bytes(self._page[8:16], "little")

    def close(self) -> None:
        """Let go of the page."""
        self._page.close()
        os.close(self.fd)


@dataclass(kw_only=True, slots=True)
class Watch:
    """What one job is held to, and what was seen of it.

    Attributes:
        wall_s: Seconds that it may take in all.
        stall_s: Seconds without a new frame or byte after which it counts as hung.
        out_dir: Where it leaves files.
        out_bytes: Bytes that it may leave there in all.
        progress: Its page of progress.
        output: Descriptor of what it writes to stdout and stderr; drained, so that it never waits.
        tail: The last of its output.
    """

    wall_s: float
    stall_s: float
    out_dir: Path
    out_bytes: int
    progress: Progress
    output: int = field(default=-1, init=False)
    tail: bytes = field(default=b"", init=False)

    def until(self, end: int) -> tuple[str, str] | None:
        """Look on until a descriptor tells the end of the job.

        The end of the process counts, not the end of its output: a grandchild may hold that open.

        Args:
            end: Descriptor that is readable once the job has ended.

        Returns:
            None where it ended by itself, else the status and the reason to kill it for.
        """
        os.set_blocking(self.output, False)
        poll = select.poll()
        poll.register(end, select.POLLIN)
        poll.register(self.output, select.POLLIN)
        tick_s = min(_LONGEST_TICK_S, self.wall_s / 4, self.stall_s / 4)
        deadline = time.monotonic() + self.wall_s
        moved, counts = time.monotonic(), self.progress.counts()
        looked = moved
        while True:
            now = time.monotonic()
            left_s = min(tick_s, deadline - now)
            ready = dict(poll.poll(max(0.0, left_s) * 1000))
            self._drain(ready, poll)
            if end in ready:
                return None
            now = time.monotonic()
            if self.progress.counts() != counts:
                moved, counts = now, self.progress.counts()
            if now >= deadline:
                return "timeout", "killed by the watchdog: the wall-clock limit passed"
            if now - moved >= self.stall_s:
                return "timeout", f"killed by the watchdog: no progress since frame {counts[0]}"
            if now - looked >= tick_s and size_of(self.out_dir) > self.out_bytes:
                return "failed", f"killed by the watchdog: it left over {self.out_bytes} bytes"
            looked = now if now - looked >= tick_s else looked

    def _drain(self, ready: dict[int, int], poll: select.poll) -> None:
        if self.output not in ready:
            return
        try:
            told = os.read(self.output, 1 << 16)
        except BlockingIOError:
            return
        if not told:  # nobody holds the other end any more
            poll.unregister(self.output)
        self.tail = (self.tail + told)[-_TAIL_BYTES:]

    @property
    def tail_text(self) -> str:
        """The last of what was written, for people."""
        return self.tail.decode(errors="replace").strip()


def size_of(folder: Path) -> int:
    """Bytes that the files straight in a folder take on disk."""
    try:
        with os.scandir(folder) as entries:
            return sum(512 * entry.stat(follow_symlinks=False).st_blocks for entry in entries)
    except OSError:  # it is being written to: another look follows
        return 0
