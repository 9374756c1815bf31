"""How long work shows on a terminal, and in a log, how far it is."""

import sys
import time
from collections.abc import Callable

_TERMINAL_S, _LOG_S = 0.2, 10.0


def progress_line(what: str, verb: str) -> Callable[[int, int, int], None]:
    """Return what tells standard error of (things done, things in all, bytes).

    On a terminal one line is written over, five times a second; else a line each ten seconds.

    Args:
        what: What is counted, such as ``objects``.
        verb: What was done with the bytes, such as ``copied``.
    """
    is_terminal = sys.stderr.isatty()
    last_s = time.monotonic()

    def tell(done: int, total: int, num_bytes: int) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if done < total and now_s - last_s < (_TERMINAL_S if is_terminal else _LOG_S):
            return
        last_s = now_s
        text = f"{done:,} of {total:,} {what}, {num_bytes:,} bytes {verb}"
        sys.stderr.write(f"\r\x1b[K{text}" if is_terminal else f"{text}\n")
        if is_terminal and done == total:
            sys.stderr.write("\n")
        sys.stderr.flush()

    return tell
