"""Many ranks as processes, started at the price of one: modules are loaded once, then forked.

``python -m wsdata.loader.rank_fleet FILE``, where FILE is JSON: a list of ranks, each the list of
arguments of `rank_process`. Every rank is a process of its own, which can be killed like any;
what it says goes to ``<out>.err``. Prints the ranks' exit codes, as JSON, once all have ended.
"""

import json
import os
import sys
import time
import traceback
from pathlib import Path

from wsdata.loader import rank_process

_POLL_S = 0.02


def error_file(out: Path) -> Path:
    """Where the words of the rank are that writes its lines to `out`."""
    return out.with_suffix(".err")


def _fork(arguments: list[str]) -> int:
    """Start one rank; return its process id. Nothing has started a thread so far."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        args = rank_process.parse_args(arguments)
        words = os.open(error_file(args.out), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(words, 2)
        rank_process.deliver(args)
        code = 0
    except BaseException:  # noqa: BLE001 - this process ends here, whatever it was
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _wait(ranks: list[int]) -> list[int]:
    """Wait for all ranks; they are ended where whoever started this is gone."""
    parent, codes = os.getppid(), dict[int, int]()
    while len(codes) < len(ranks):
        for rank in ranks:
            if rank in codes:
                continue
            ended, status = os.waitpid(rank, os.WNOHANG)
            if ended:
                codes[rank] = os.waitstatus_to_exitcode(status)
        time.sleep(_POLL_S)
        if os.getppid() != parent:
            for rank in set(ranks) - set(codes):
                os.kill(rank, 9)
    return [codes[rank] for rank in ranks]


def main() -> None:
    """Start all ranks, and tell how each ended."""
    wanted: list[list[str]] = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    json.dump(_wait([_fork(arguments) for arguments in wanted]), sys.stdout)


if __name__ == "__main__":
    main()
