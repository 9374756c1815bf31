"""Container logs: written line by line with their times, read as ``kubectl logs`` asks."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

_POLL_S = 0.03


@dataclass(frozen=True, kw_only=True, slots=True)
class LogRequest:
    is_following: bool = False
    has_timestamps: bool = False
    tail_lines: int | None = None
    since_s: float | None = None


def _stamp() -> str:
    # one form for all lines, of one length, so that times sort as text
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")


class PodLogs:
    """The logs of one pod: a file per container, of its newest run; older runs beside it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._current: dict[str, Path] = {}
        self._open: set[Path] = set()
        self._lock = threading.Lock()

    @contextmanager
    def writing(self, container: str, restart: int) -> Iterator[Callable[[bytes], None]]:
        """Open the log of a container's run; yields what takes its lines."""
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{container}.{restart}.log"
        with path.open("wb", buffering=0) as file:
            with self._lock:
                self._open.add(path)
                self._current[container] = path

            def write(line: bytes) -> None:
                file.write(_stamp().encode() + b" " + line.rstrip(b"\n") + b"\n")

            try:
                yield write
            finally:
                with self._lock:
                    self._open.discard(path)

    def has(self, container: str) -> bool:
        return container in self._current

    def tail(self, container: str, num_lines: int) -> str:
        request = LogRequest(tail_lines=num_lines)
        return b"".join(self.lines(container, request)).decode(errors="replace").strip()

    def lines(
        self, container: str, request: LogRequest, *, is_previous: bool = False
    ) -> Iterator[bytes]:
        """Yield lines, with their ends; following ends with the container's run."""
        path = self._current[container]
        if is_previous:
            number = int(path.suffixes[-2][1:])
            path = self._folder / f"{container}.{number - 1}.log"
        with path.open("rb") as file:
            written = file.read().splitlines(keepends=True)
            rest = b""
            if written and not written[-1].endswith(b"\n"):
                rest = written.pop()
            yield from (self._shown(line, request) for line in _wanted(written, request))
            while request.is_following:
                is_open = path in self._open
                chunk = file.read()
                *whole, rest = (rest + chunk).split(b"\n")
                yield from (self._shown(line + b"\n", request) for line in whole)
                if not chunk:
                    if not is_open:
                        return
                    time.sleep(_POLL_S)

    def _shown(self, line: bytes, request: LogRequest) -> bytes:
        return line if request.has_timestamps else line.partition(b" ")[2]


def _wanted(lines: list[bytes], request: LogRequest) -> list[bytes]:
    if request.since_s is not None:
        since = datetime.now(UTC) - timedelta(seconds=request.since_s)
        border = since.strftime("%Y-%m-%dT%H:%M:%S.%f").encode()
        lines = [line for line in lines if line[: len(border)] >= border]
    if request.tail_lines is not None:
        lines = lines[max(len(lines) - request.tail_lines, 0) :]
    return lines
