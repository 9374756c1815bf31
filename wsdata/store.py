"""The object store: a folder on a laptop, S3 on a cluster, one protocol.

Objects are immutable: a key is put once, and a second put of the same key is no change.
What belongs elsewhere: which keys exist and what they mean (`catalog`, `orders`).
"""

import errno
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import parse_qs, urlsplit

from wsdata.errors import ObjectMissing, StoreError, StoreFull

_TEMP_PREFIX = ".tmp-"


class BlobStore(Protocol):
    """Immutable objects under string keys."""

    address: str

    def put(self, key: str, data: bytes) -> bool:
        """Write an object unless the key is taken. Return whether it was written."""
        ...

    def put_file(self, key: str, path: Path) -> bool:
        """As `put`, from a file that nobody writes any more; the file itself stays."""
        ...

    def get(self, key: str) -> bytes:
        """Return a whole object. Raises ObjectMissing."""
        ...

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`. Raises ObjectMissing, StoreError."""
        ...

    def size(self, key: str) -> int | None:
        """Return an object's size in bytes, or None where there is none."""
        ...

    def age_s(self, key: str) -> float:
        """Return the seconds since an object was put. Raises ObjectMissing."""
        ...

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield (key, size in bytes) of every object under a prefix, sorted by key."""
        ...

    def delete(self, key: str) -> None:
        """Remove an object; no error where there is none."""
        ...


class FolderStore:
    """A folder as object store. Writers never see or leave half an object under a key."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.address = f"file://{root.absolute()}"

    def _path(self, key: str) -> Path:
        parts = key.split("/")
        if not key or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"object key {key!r}: empty or relative parts are not allowed")
        return self.root / key

    def path_of(self, key: str) -> Path:
        """Where the object lies on disk, for readers that map files."""
        return self._path(key)

    def put(self, key: str, data: bytes) -> bool:
        """Write an object unless the key is taken. Return whether it was written."""
        return self._publish(key, lambda temp: temp.write_bytes(data))

    def put_file(self, key: str, path: Path) -> bool:
        """As `put`, from a file that nobody writes any more; the file itself stays."""
        return self._publish(key, lambda temp: shutil.copyfile(path, temp))

    def _publish(self, key: str, write) -> bool:  # noqa: ANN001
        path = self._path(key)
        if path.exists():
            return False
        temp = path.parent / f"{_TEMP_PREFIX}{secrets.token_hex(8)}"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write(temp)
            with temp.open("rb") as handle:
                os.fsync(handle.fileno())
            os.link(temp, path)  # fails where the key exists: the first writer wins
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreFull(
                    f"no space left in {self.root} while writing {key}: free some and run again; "
                    "nothing half written was left"
                ) from error
            raise
        finally:
            temp.unlink(missing_ok=True)
        return True

    def get(self, key: str) -> bytes:
        """Return a whole object."""
        try:
            return self._path(key).read_bytes()
        except FileNotFoundError:
            raise self._missing(key) from None

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        try:
            with self._path(key).open("rb") as handle:
                data = os.pread(handle.fileno(), length, offset)
        except FileNotFoundError:
            raise self._missing(key) from None
        if len(data) != length:
            raise StoreError(
                f"{key}: wanted {length} bytes at {offset}, got {len(data)}: the object is shorter"
            )
        return data

    def size(self, key: str) -> int | None:
        """Return an object's size in bytes, or None where there is none."""
        try:
            return self._path(key).stat().st_size
        except FileNotFoundError:
            return None

    def age_s(self, key: str) -> float:
        """Return the seconds since an object was put."""
        try:
            return time.time() - self._path(key).stat().st_mtime
        except FileNotFoundError:
            raise self._missing(key) from None

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield (key, size in bytes) of every object under a prefix, sorted by key."""
        base = self.root / prefix.rpartition("/")[0]
        found = [
            (path.relative_to(self.root).as_posix(), path.stat().st_size)
            for path in base.rglob("*")
            if path.is_file() and "/." not in f"/{path.relative_to(self.root).as_posix()}"
        ]
        yield from sorted(entry for entry in found if entry[0].startswith(prefix))

    def delete(self, key: str) -> None:
        """Remove an object; no error where there is none."""
        self._path(key).unlink(missing_ok=True)

    def _missing(self, key: str) -> ObjectMissing:
        return ObjectMissing(
            f"{key} is not in {self.address}: run `wsdata fsck`, then `wsdata run`"
        )


class S3Store:
    """A bucket, or a prefix of one, at any S3 endpoint with conditional puts."""

    def __init__(self, bucket: str, prefix: str, endpoint: str | None) -> None:
        import boto3

        self.bucket = bucket
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        query = f"?endpoint={endpoint}" if endpoint else ""
        self.address = f"s3://{bucket}/{self.prefix}{query}"
        self._client = boto3.client("s3", endpoint_url=endpoint)

    def put(self, key: str, data: bytes) -> bool:
        """Write an object unless the key is taken. Return whether it was written."""
        return self._put(key, data)

    def put_file(self, key: str, path: Path) -> bool:
        """As `put`, from a file that nobody writes any more; the file itself stays."""
        with path.open("rb") as body:
            return self._put(key, body)

    def _put(self, key: str, body) -> bool:  # noqa: ANN001
        from botocore.exceptions import ClientError

        try:
            self._client.put_object(
                Bucket=self.bucket, Key=self.prefix + key, Body=body, IfNoneMatch="*"
            )
        except ClientError as error:
            if error.response["Error"]["Code"] in (
                "PreconditionFailed",
                "ConditionalRequestConflict",
            ):
                return False
            raise StoreError(f"put of {key} to {self.address} failed: {error}") from error
        return True

    def get(self, key: str) -> bytes:
        """Return a whole object."""
        return self._get(key, None)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        """Return exactly `length` bytes from `offset`."""
        if length == 0:
            return b""
        data = self._get(key, f"bytes={offset}-{offset + length - 1}")
        if len(data) != length:
            raise StoreError(f"{key}: wanted {length} bytes at {offset}, got {len(data)}")
        return data

    def _get(self, key: str, byte_range: str | None) -> bytes:
        from botocore.exceptions import ClientError

        extra = {"Range": byte_range} if byte_range else {}
        try:
            answer = self._client.get_object(Bucket=self.bucket, Key=self.prefix + key, **extra)
            return answer["Body"].read()
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                raise ObjectMissing(f"{key} is not in {self.address}") from error
            raise StoreError(f"get of {key} from {self.address} failed: {error}") from error

    def size(self, key: str) -> int | None:
        """Return an object's size in bytes, or None where there is none."""
        head = self._head(key)
        return None if head is None else head["ContentLength"]

    def _head(self, key: str) -> dict[str, Any] | None:
        from botocore.exceptions import ClientError

        try:
            return self._client.head_object(Bucket=self.bucket, Key=self.prefix + key)
        except ClientError as error:
            if error.response["Error"]["Code"] in ("NoSuchKey", "404"):
                return None
            raise StoreError(f"head of {key} at {self.address} failed: {error}") from error

    def age_s(self, key: str) -> float:
        """Return the seconds since an object was put."""
        head = self._head(key)
        if head is None:
            raise ObjectMissing(f"{key} is not in {self.address}")
        return time.time() - head["LastModified"].timestamp()

    def list(self, prefix: str) -> Iterator[tuple[str, int]]:
        """Yield (key, size in bytes) of every object under a prefix, sorted by key."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=self.prefix + prefix
        )
        for page in pages:
            for entry in page.get("Contents", []):
                yield entry["Key"][len(self.prefix) :], entry["Size"]

    def delete(self, key: str) -> None:
        """Remove an object; no error where there is none."""
        self._client.delete_object(Bucket=self.bucket, Key=self.prefix + key)


def open_store(address: str) -> BlobStore:
    """Open the store that an address names; nothing is contacted before its first use.

    Args:
        address: ``file:///folder``, a plain path, or ``s3://bucket/prefix?endpoint=http://...``.

    Raises:
        ValueError: Another scheme.
    """
    parts = urlsplit(address)
    if parts.scheme in ("", "file"):
        return FolderStore(Path(parts.path))
    if parts.scheme == "s3":
        endpoint = parse_qs(parts.query).get("endpoint", [None])[0]
        return S3Store(parts.netloc, parts.path, endpoint)
    raise ValueError(f"store address {address!r}: expected file:///folder or s3://bucket/prefix")
