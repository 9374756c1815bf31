"""What a sandboxed child leaves behind: plain files are kept, all else is removed.

Names, modes, links and depths are the child's to choose, and may be meant to be in the way. What
the files hold is judged by whoever asked for them.
"""

import errno
import os
import shutil
import stat
import subprocess
from pathlib import Path


def keep_plain_files(folder: Path) -> None:
    """Leave of a child's output only plain files of ours to read, straight in the folder."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode):
                Path(entry.path).chmod(0o600)
            else:
                remove(Path(entry.path))


def remove(path: Path) -> None:
    """Remove what a child has left, whatever it is: depth and modes may be meant to be in the way.

    Raises:
        OSError: It is still there.
    """
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    try:
        shutil.rmtree(path)
    except (OSError, RecursionError):
        for command in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            subprocess.run([*command, "--", str(path)], capture_output=True, check=False)  # noqa: S603
    if path.exists():
        raise OSError(errno.ENOTEMPTY, "a sandboxed child left what cannot be removed", str(path))


def move_plain_files(made: Path, out_dir: Path) -> None:
    """Move the plain files that a child has left in `made` to another folder."""
    if made.is_symlink() or not made.is_dir():  # a child may replace what is its own
        return
    keep_plain_files(made)
    with os.scandir(made) as entries:
        for entry in entries:
            shutil.move(entry.path, out_dir / entry.name)
