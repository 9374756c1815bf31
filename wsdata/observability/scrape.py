"""A small HTTP server that answers scrapes of metrics and questions of health.

Which numbers are told belongs to `worker_metrics` and `metrics`.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Pods answer whoever scrapes them; a network policy says who may.
ANY_ADDRESS = "0.0.0.0"  # noqa: S104
POLL_S = 0.05  # what closing may wait
TEXT = "text/plain; charset=utf-8"

Page = tuple[int, str, bytes]  # status, content type, body


class ScrapeServer:
    """Answers GET of a few paths, from threads of its own, until it is closed.

    Raises:
        OSError: The port is taken, or is not ours to take.
        OverflowError: The port is beyond 65535.
    """

    def __init__(
        self, port: int, pages: Mapping[str, Callable[[], Page]], *, address: str = ANY_ADDRESS
    ) -> None:
        self._server = _Server((address, port), _handler(pages))
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(POLL_S,), name="scrapes", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop answering, and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def server_bind(self) -> None:
        """Bind alone: HTTPServer would also ask DNS for a name, which pods may not reach."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # pyright: ignore[reportAttributeAccessIssue]


def _handler(pages: Mapping[str, Callable[[], Page]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # a scraper that says nothing holds no thread for long

        def do_GET(self) -> None:
            page = pages.get(self.path.partition("?")[0])
            known = f"expected one of {', '.join(sorted(pages))}\n".encode()
            status, kind, body = page() if page is not None else (404, TEXT, known)
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing: a scrape every few seconds is no news."""

    return Handler
