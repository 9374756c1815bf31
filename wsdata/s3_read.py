"""Ranges of an object of a bucket, streamed into memory of the caller's.

A training step waits for them, so that time is what counts: a failure that may pass is met again
until a deadline, after pauses that grow and are never alike, and a body that is cut goes on where
it stopped. How requests are made belongs to `s3_client`; second requests that race the first to
`loader.hedging`.
"""

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from wsdata.buffers import ReadWatch, num_bytes, write_at
from wsdata.errors import StoreError, StoreUnavailable
from wsdata.s3_client import S3Bucket, broken_connections, pause

READ_TIMEOUT_S = 20  # without a byte: then the connection is taken for dead
DEADLINE_S = 300.0  # in all: a restart of the store, or a spell of SlowDown, is outlived
READ_BYTES = 256 << 10  # at a time: what is lost where a body is cut
_LONGEST_PAUSE = 16  # failures in a row after which pauses grow no more


def read_into(
    bucket: S3Bucket,
    key: str,
    offset: int,
    buffers: Sequence[memoryview],
    *,
    watch: ReadWatch,
    deadline_s: float | None = None,
) -> None:
    """Fill buffers with the bytes of an object from `offset` on.

    Args:
        bucket: Makes each request once; retries are here.
        key: The object.
        offset: First byte.
        buffers: What is filled, one after the other.
        watch: Told of retries; may give the read up.
        deadline_s: Seconds after which a failure that may pass is told all the same; None is
            DEADLINE_S.

    Raises:
        ObjectMissing: There is no such object.
        StoreDenied: This identity may not read it.
        StoreUnavailable: The store failed until the deadline.
        StoreError: It is shorter, or was replaced while being read.
        ReadGivenUp: `watch` gave it up.
    """
    began = time.monotonic()
    deadline_s = DEADLINE_S if deadline_s is None else deadline_s
    done, wanted, num_fails, etag = 0, num_bytes(buffers), 0, None
    while done < wanted:
        before = done
        try:
            body, etag = _open(bucket, key, offset + done, offset + wanted, etag)
            for block in _blocks(body, wanted - done, watch):
                with watch.writing():
                    write_at(buffers, done, block)
                done += len(block)
        except StoreUnavailable as error:
            _check_deadline(error, began, deadline_s)
        if done < wanted:  # failed, or cut: what came counts
            watch.check()
            num_fails = 1 if done > before else num_fails + 1
            watch.num_retries += 1
            pause(min(num_fails, _LONGEST_PAUSE))


def _open(bucket: S3Bucket, key: str, start: int, end: int, etag: str | None) -> tuple[Any, str]:
    response = bucket.open_body(key, start, end)
    if response["ContentLength"] < end - start:
        response["Body"].close()
        raise bucket.too_short(key, start, end, start + response["ContentLength"])
    if etag not in (None, response["ETag"]):
        response["Body"].close()
        raise StoreError(f"{key} in {bucket.address} was replaced while being read: read it again")
    return response["Body"], response["ETag"]


def _blocks(body: Any, wanted: int, watch: ReadWatch) -> Any:
    """Yield at most `wanted` bytes in blocks. A connection that breaks raises StoreUnavailable."""
    left = wanted
    try:
        with watch.interruptible(lambda: _shut(body)):
            while left and (block := body.read(min(READ_BYTES, left))):
                left -= len(block)
                yield block
    except broken_connections() as error:
        watch.check()
        raise StoreUnavailable(f"the connection broke in the middle of a body: {error}") from error
    finally:
        body.close()
    if left:
        raise StoreUnavailable(f"a body ended {left} bytes early")


def _shut(body: Any) -> None:
    """Wake a thread that waits for bytes; closing it is that thread's own work."""
    with contextlib.suppress(OSError, ValueError, RuntimeError):
        body._raw_stream.shutdown()  # botocore hands urllib3's response on


def _check_deadline(error: StoreUnavailable, began: float, deadline_s: float) -> None:
    waited = time.monotonic() - began
    if waited > deadline_s:
        error.add_note(f"tried for {waited:.0f} s; reads wait for the store {deadline_s:.0f} s")
        raise error
