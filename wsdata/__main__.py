"""``wsdata`` and ``python -m wsdata``."""

import sys


def main() -> int:
    """Run the command line, and return its exit code."""
    from wsdata.cli.main import run_command

    return run_command(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
