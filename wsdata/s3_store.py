"""The object store in a bucket: any S3 endpoint with conditional puts.

A key is put once. Who was first is told by the server (``If-None-Match``); where an answer was
lost, by a mark that each put leaves with its object. How requests are made and tried again
belongs to `s3_client`.
"""

import io
import os
import secrets
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, BinaryIO

from wsdata import s3_read
from wsdata.buffers import ReadWatch
from wsdata.errors import ObjectMissing, StoreDenied, StoreError
from wsdata.s3_client import MISSING, S3Bucket, pause

PART_BYTES = 64 << 20
MAX_PARTS = 10_000  # of one upload
NUM_STREAMS = 4  # parts or ranges of one object under way at once
TAKEN = ("PreconditionFailed", "412")
BEGIN_AGAIN = ("NoSuchUpload", "ConditionalRequestConflict", "409")
PUT_MARK = "wsdata-put"


class S3Store:
    """A bucket, or a prefix of one. Opening it contacts nothing.

    Args:
        bucket: The bucket.
        part_bytes: Files above this are put, and fetched, in parts of this size.
    """

    def __init__(self, bucket: S3Bucket, *, part_bytes: int = PART_BYTES) -> None:
        self.bucket = bucket
        self.address = str(bucket.address)
        self.part_bytes = part_bytes
        # Reads that a training step waits for have shorter waits, and retries of their own.
        self._ranges = S3Bucket(bucket.address, max_tries=1, read_timeout_s=s3_read.READ_TIMEOUT_S)

    @property
    def num_retries(self) -> int:
        """Tries of requests beyond the first, so far."""
        return self.bucket.num_retries

    def put(self, key: str, data: bytes) -> bool:
        """Write an object unless the key is taken. Return whether it was written."""
        return self._put(key, data)

    def put_file(self, key: str, path: Path) -> bool:
        """As `put`, from a file that nobody writes any more; the file itself stays."""
        size_bytes = path.stat().st_size
        if size_bytes > self.part_bytes:
            return self._put_parts(key, path, size_bytes)
        with path.open("rb") as body:
            return self._put(key, body)

    def _put(self, key: str, body: bytes | BinaryIO) -> bool:
        mark = secrets.token_hex(8)
        answer = self.bucket.call(
            "put_object",
            key,
            accept=TAKEN,
            Body=body,
            IfNoneMatch="*",
            Metadata={PUT_MARK: mark},
        )
        if not answer.code:
            return True
        # An earlier try may have been carried out, and what is in its way be its own object.
        return answer.num_tries > 1 and self._is_marked(key, mark)

    def _is_marked(self, key: str, mark: str) -> bool:
        try:
            head = self.bucket.head(key)
        except StoreDenied:
            return False  # who may put alone cannot tell; the object is there all the same
        return head.response.get("Metadata", {}).get(PUT_MARK) == mark

    # large files -------------------------------------------------------------------------------

    def _put_parts(self, key: str, path: Path, size_bytes: int) -> bool:
        mark = secrets.token_hex(8)
        for num_tries in range(1, self.bucket.max_tries + 1):
            if self.size(key) is not None:
                return self._is_marked(key, mark)
            if (is_done := self._upload(key, path, size_bytes, mark)) is not None:
                return is_done
            pause(num_tries)
        raise StoreError(f"put of {key} to {self.address}: other writers were always in the way")

    def _upload(self, key: str, path: Path, size_bytes: int, mark: str) -> bool | None:
        """Upload in parts; None where the server wants it begun again."""
        begun = self.bucket.call("create_multipart_upload", key, Metadata={PUT_MARK: mark})
        upload_id = begun.response["UploadId"]
        is_complete = False
        try:
            parts = self._send_parts(key, path, size_bytes, upload_id)
            # Not every server looks at the condition of a completion: it is asked before, too.
            if self.size(key) is not None:
                return False
            answer = self.bucket.call(
                "complete_multipart_upload",
                key,
                accept=(*TAKEN, *BEGIN_AGAIN),
                UploadId=upload_id,
                MultipartUpload={"Parts": parts},
                IfNoneMatch="*",
            )
            is_complete = not answer.code or self._is_marked(key, mark)
        finally:
            if not is_complete:
                self._abort(key, upload_id)
        if answer.code in BEGIN_AGAIN and not is_complete:
            return None
        return is_complete

    def _send_parts(
        self, key: str, path: Path, size_bytes: int, upload_id: str
    ) -> list[dict[str, Any]]:
        part_bytes = max(self.part_bytes, -(-size_bytes // MAX_PARTS))

        def send(number: int) -> dict[str, Any]:
            start = (number - 1) * part_bytes
            with _Slice(path, start, min(part_bytes, size_bytes - start)) as body:
                sent = self.bucket.call(
                    "upload_part", key, UploadId=upload_id, PartNumber=number, Body=body
                )
            return {"PartNumber": number, "ETag": sent.response["ETag"]}

        return _in_parallel(send, range(1, -(-size_bytes // part_bytes) + 1))

    def _abort(self, key: str, upload_id: str) -> None:
        # What cannot be aborted costs space until the bucket's lifecycle rule ends it; the
        # error that led here is the one to be told.
        try:
            self.bucket.call(
                "abort_multipart_upload", key, accept=("NoSuchUpload", "404"), UploadId=upload_id
            )
        except StoreError as error:
            import logging

            logging.getLogger(__name__).warning("upload %s was left: %s", upload_id, error)

    # reading -----------------------------------------------------------------------------------

    def get(self, key: str) -> bytes:
        """Return a whole object. Raises ObjectMissing."""
        return b"".join(self.bucket.stream(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`. Raises ObjectMissing, StoreError."""
        return b"".join(self.bucket.stream(key, offset, offset + length))

    def read_into(
        self,
        key: str,
        offset: int,
        buffers: Sequence[memoryview],
        *,
        watch: ReadWatch | None = None,
    ) -> None:
        """Fill buffers with the bytes from `offset` on; raises as `s3_read.read_into`."""
        s3_read.read_into(self._ranges, key, offset, buffers, watch=watch or ReadWatch())

    def reopen(self, key: str) -> None:
        """Nothing to do: every read asks the bucket."""

    def fetch(self, key: str, path: Path) -> int:
        """Copy an object to a file, in ranges at once; return its size in bytes.

        Where it fails nothing is left at `path`.

        Raises:
            ObjectMissing: There is no such object.
            StoreError: It cannot be read, or was replaced meanwhile.
        """
        answer = self.bucket.head(key)
        if answer.code:
            raise self._missing(key)
        size_bytes, etag = answer.response["ContentLength"], answer.response["ETag"]
        temp = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        try:
            with temp.open("wb") as handle:
                handle.truncate(size_bytes)

                def copy(start: int) -> None:
                    end, at = min(size_bytes, start + self.part_bytes), start
                    for block in self.bucket.stream(key, start, end, etag=etag):
                        os.pwrite(handle.fileno(), block, at)
                        at += len(block)

                _in_parallel(copy, range(0, size_bytes, self.part_bytes))
            temp.rename(path)
        finally:
            temp.unlink(missing_ok=True)
        return size_bytes

    def size(self, key: str) -> int | None:
        """Return an object's size in bytes, or None where there is none.

        Who may list and not read, as the pipeline may of the vault, gets an answer all the same.
        """
        try:
            answer = self.bucket.head(key)
        except StoreDenied:
            page = next(self.bucket.pages(key, limit=1))
            found = {entry["Key"]: entry["Size"] for entry in page.get("Contents", [])}
            return found.get(self.bucket.address.prefix + key)
        return None if answer.code else answer.response["ContentLength"]

    def age_s(self, key: str) -> float:
        """Return the seconds since an object was put. Raises ObjectMissing."""
        answer = self.bucket.head(key)
        if answer.code:
            raise self._missing(key)
        return time.time() - answer.response["LastModified"].timestamp()

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield (key, size in bytes) of every object under a prefix, sorted by key."""
        start = len(self.bucket.address.prefix)
        for page in self.bucket.pages(prefix):
            for entry in page.get("Contents", []):
                yield entry["Key"][start:], entry["Size"]

    def delete(self, key: str) -> None:
        """Remove an object; no error where there is none."""
        self.bucket.call("delete_object", key, accept=MISSING)

    def _missing(self, key: str) -> ObjectMissing:
        return ObjectMissing(
            f"{key} is not in {self.address}: run `wsdata fsck`, then `wsdata run`"
        )


def _in_parallel(work, items: range) -> list[Any]:  # noqa: ANN001
    """Do all items, a few at once; the first failure ends those that have not begun."""
    if len(items) < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(NUM_STREAMS, len(items))) as executor:
        waiting = [executor.submit(work, item) for item in items]
        try:
            return [each.result() for each in waiting]
        except BaseException:
            executor.shutdown(wait=False, cancel_futures=True)
            raise


class _Slice(io.RawIOBase):
    """A span of a file as a body that is sent, and sent again, without being held in memory."""

    def __init__(self, path: Path, start: int, length: int) -> None:
        self._file = path.open("rb")
        self._start, self._length, self._at = start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._length}[whence]
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)[: max(0, self._length - self._at)]
        data = os.pread(self._file.fileno(), len(view), self._start + self._at)
        view[: len(data)] = data
        self._at += len(data)
        return len(data)

    def close(self) -> None:
        self._file.close()
        super().close()
