import errno
import sqlite3

from wsdata.errors import StoreFull, is_disk_full


def test_a_full_disk_is_known_whoever_meets_it():
    assert is_disk_full(OSError(errno.ENOSPC, "No space left on device"))
    assert is_disk_full(StoreFull("no space left"))
    wrapped = RuntimeError("the run failed")
    wrapped.__cause__ = sqlite3.OperationalError("database or disk is full")
    assert is_disk_full(wrapped)
    assert not is_disk_full(OSError(errno.ENOENT, "no such file"))
    assert not is_disk_full(ValueError("another matter"))
