"""Writes down which program opens what under a vault or a landing zone, when asked to."""

import os
import sys

_log = os.environ.get("WSDATA_AUDIT")


def _see(event, arguments):
    if event == "open" and isinstance(arguments[0], str):
        path = arguments[0]
        if "/vault/" in path or "/landing/" in path:
            who = " ".join(getattr(sys, "argv", ["?"]))
            line = f"{arguments[1]}\t{path}\t{who}\n"
            handle = os.open(_log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(handle, line.encode())
            os.close(handle)


if _log:
    sys.addaudithook(_see)
