"""A proxy in front of an S3 server that fails some requests, by a seed.

Four ways, as real servers and networks do: an answer of 503; the connection reset before the
request was carried out; reset after it was, so that its answer is lost; and an answer whose body
is cut in the middle. By a script there are more: an answer of 500; a body that ends early without
a word; one that comes late; and one that stops in the middle for a while.
"""

import contextlib
import http.client
import os
import random
import select
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

FAULTS = ("unavailable", "reset_before", "reset_after", "cut_body")
SLOW_DOWN = b'<?xml version="1.0"?><Error><Code>SlowDown</Code><Message>later</Message></Error>'
HOP_BY_HOP = {"connection", "transfer-encoding", "keep-alive", "expect"}


@dataclass
class Faults:
    """Which requests fail, and how; counts what was done."""

    share: float
    seed: int
    endpoint: str = ""
    counts: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)  # noqa: S311
        self._lock = threading.Lock()

    def draw(self) -> str | None:
        """The fault of the next request, or None."""
        with self._lock:
            self.counts["requests"] += 1
            if self._random.random() >= self.share:
                return None
            fault = self._random.choice(FAULTS)
            self.counts[fault] += 1
            return fault


@dataclass
class Script:
    """Faults of the next requests, one after the other; then of all, `always`.

    `slow_s` is how long late answers wait. `ranges` has the range of each request, in order.
    """

    faults: list[str | None] = field(default_factory=list[str | None])
    always: str | None = None
    slow_s: float = 0.5
    endpoint: str = ""
    counts: Counter[str] = field(default_factory=Counter[str])
    ranges: list[str] = field(default_factory=list[str])
    ended: threading.Event = field(default_factory=threading.Event)

    def draw(self) -> str | None:
        """The fault of the next request, or None."""
        fault = self.faults.pop(0) if self.faults else self.always
        self.counts.update(["requests", *([fault] if fault else [])])
        return fault


@contextmanager
def scripted_proxy(endpoint: str) -> Iterator[Script]:
    """Run a proxy in front of a server that fails as told; see `failing_proxy`."""
    script = Script()
    with _running(endpoint, script):
        yield script


@contextmanager
def failing_proxy(endpoint: str, *, share: float, seed: int) -> Iterator[Faults]:
    """Run a proxy in front of a server; `Faults.endpoint` is its own address.

    Args:
        endpoint: The server's.
        share: Share of requests that fail, in [0, 1].
        seed: Of which and how.
    """
    faults = Faults(share=share, seed=seed)
    with _running(endpoint, faults):
        yield faults


@contextmanager
def _running(endpoint: str, faults: Faults | Script) -> Iterator[None]:
    class Handler(_Handler):
        upstream = urlsplit(endpoint).netloc
        drawn = faults

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    faults.endpoint = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        if isinstance(faults, Script):
            faults.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # headers and body are written one after the other
    upstream: str
    drawn: Faults | Script

    def _proxy(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if isinstance(self.drawn, Script):
            self.drawn.ranges.append(self.headers.get("Range", ""))
        fault = self.drawn.draw()
        if fault in ("unavailable", "error"):
            self._answer(503 if fault == "unavailable" else 500, [], SLOW_DOWN)
        elif isinstance(self.drawn, Script) and fault in ("late", "stuck", "ends_early"):
            self._answer_badly(body, fault, self.drawn)
        elif fault == "reset_before":
            self._reset()
        else:
            status, headers, data = self._forward(body)
            if fault == "cut_body" and len(data) > 1:
                self._answer(status, headers, data, sent=len(data) // 2)
                self._reset()
            elif fault in ("reset_after", "cut_body"):
                self._reset()
            else:
                self._answer(status, headers, data)

    def _answer_badly(self, body: bytes, fault: str, script: Script) -> None:
        status, headers, data = self._forward(body)
        if fault == "late":
            script.ended.wait(script.slow_s)
        half = len(data) // 2
        try:
            self._answer(status, headers, data, sent=len(data) if fault == "late" else half)
            if fault == "stuck":
                self.wfile.flush()
                # Who asked says nothing meanwhile; what can be read is that they are gone.
                if select.select([self.connection], [], [], script.slow_s)[0]:
                    raise ConnectionResetError
                self.wfile.write(data[half:])
        except OSError:
            script.counts["hung_up"] += 1
            self.close_connection = True
        if fault == "ends_early":
            self.close_connection = True

    def handle(self) -> None:
        """Serve a connection until who asks is gone."""
        with contextlib.suppress(ConnectionResetError):
            super().handle()

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.upstream, timeout=60)
        kept = {k: v for k, v in self.headers.items() if k.lower() not in HOP_BY_HOP}
        try:
            connection.request(self.command, self.path, body=body, headers=kept)
            answer = connection.getresponse()
            return answer.status, answer.getheaders(), answer.read()
        finally:
            connection.close()

    def _answer(
        self, status: int, headers: list[tuple[str, str]], data: bytes, *, sent: int | None = None
    ) -> None:
        self.send_response_only(status)
        length = str(len(data))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in HOP_BY_HOP | {"content-length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[:sent])

    def _reset(self) -> None:
        """End the connection the hard way: what was not read is lost."""
        self.close_connection = True
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _proxy  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""
