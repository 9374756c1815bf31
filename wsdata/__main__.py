"""``wsdata`` and ``python -m wsdata``."""

import os
import sys


def main() -> int:
    """Run the command line, and return its exit code."""
    from wsdata.cli.main import run_command

    try:
        code = run_command(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever reads has seen enough (``| head``); nothing more is said to a closed pipe.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


if __name__ == "__main__":
    sys.exit(main())
