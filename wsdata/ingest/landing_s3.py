"""A landing zone in a bucket: folders are common prefixes, and the marker is put last.

Purging means purging: where the bucket keeps versions, those of a vault member go too.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wsdata.errors import ObjectMissing, StoreDenied, StoreError
from wsdata.ids import DropKey
from wsdata.ingest.landing import (
    MARKER,
    PAGE_FOLDERS,
    LandedFile,
    drop_keys,
    no_free_number,
    write_hashing,
)
from wsdata.s3_client import MISSING, S3Bucket
from wsdata.s3_store import S3Store

log = logging.getLogger(__name__)

CLAIM = ".claim"
_CLAIMED = b'{"format_version":1}'
AFTER_SLASH = "0"  # every key of a folder sorts between its name with a slash and with this


class S3Landing:
    """A landing zone in a bucket, or under a prefix of one.

    Args:
        bucket: The bucket; nothing is contacted before the first use.
    """

    def __init__(self, bucket: S3Bucket) -> None:
        self._bucket = bucket
        self._store = S3Store(bucket)
        self.address = str(bucket.address)

    def folders(self, *, after: str = "", limit: int = PAGE_FOLDERS) -> list[str]:
        """Names of at most `limit` folders that sort after a name, sorted."""
        start = f"{after}{AFTER_SLASH}" if after else ""
        prefix = self._bucket.address.prefix
        names: list[str] = []
        for page in self._bucket.pages("", after=start, delimiter="/", limit=min(1000, limit)):
            names += [each["Prefix"][len(prefix) : -1] for each in page.get("CommonPrefixes", [])]
            if len(names) >= limit:
                break
        return names[:limit]

    def marker(self, drop: str) -> str | None:
        """The marker's ETag and time."""
        answer = self._bucket.head(f"{drop}/{MARKER}")
        if answer.code:
            return None
        tag = str(answer.response["ETag"]).strip('"')
        return f"{tag}@{answer.response['LastModified'].timestamp():.0f}"

    def files(self, drop: str) -> list[LandedFile]:
        """All files of a folder, sorted by the parts of their paths."""
        start = len(drop) + 1
        found = [
            LandedFile(key[start:], size_bytes)
            for key, size_bytes in self._store.list(f"{drop}/")
            if not key.endswith("/") and key[start:] != CLAIM  # placeholders that consoles make
        ]
        return sorted(found, key=lambda file: file.path.split("/"))

    def read(self, drop: str, path: str) -> bytes | None:
        """A small file's bytes, or None where there is none."""
        try:
            return self._store.get(f"{drop}/{path}")
        except ObjectMissing:
            return None

    def fetch(self, drop: str, path: str, target: Path) -> tuple[str, int]:
        """Copy a file, hashing it on the way. Raises ObjectMissing."""
        return write_hashing(self._bucket.stream(f"{drop}/{path}"), target)

    def purge(self, drop: str, path: str) -> None:
        """Remove a file, with all its versions; no error where there is none."""
        key = f"{drop}/{path}"
        answer = self._bucket.call("delete_object", key, accept=MISSING)
        if answer.response.get("VersionId") or answer.response.get("DeleteMarker"):
            self._purge_versions(key, keep=None)

    def rewrite(self, drop: str, path: str, data: bytes) -> None:
        """Put other bytes in a file's place, and purge what versions were kept of it."""
        key = f"{drop}/{path}"
        answer = self._bucket.call("put_object", key, Body=data)
        if version := answer.response.get("VersionId"):
            self._purge_versions(key, keep=version)

    def _purge_versions(self, key: str, *, keep: str | None) -> None:
        try:
            for version in self._versions(key):
                if version != keep:
                    self._bucket.call("delete_object", key, accept=MISSING, VersionId=version)
        except StoreDenied as error:
            error.add_note(
                f"the bucket keeps versions, and earlier ones of {key} are still there: a vault "
                "member must be purged whole. Grant s3:ListBucketVersions and "
                "s3:DeleteObjectVersion on the landing zone, or suspend its versioning"
            )
            raise

    def _versions(self, key: str) -> list[str]:
        full = self._bucket.address.prefix + key
        asked: dict[str, Any] = {"Prefix": full}
        found: list[str] = []
        while True:
            page = self._bucket.call("list_object_versions", None, **asked).response
            for kind in ("Versions", "DeleteMarkers"):
                found += [e["VersionId"] for e in page.get(kind, []) if e["Key"] == full]
            if not page.get("IsTruncated"):
                return found
            asked["KeyMarker"] = page["NextKeyMarker"]
            asked["VersionIdMarker"] = page["NextVersionIdMarker"]

    def claim(self, stem: str, files: Mapping[str, Path | bytes]) -> DropKey:
        """Put a new folder under the first free number; where that fails, nothing of it is left.

        A small object put first holds the number against others who make drops meanwhile. It
        stays: who looked before it was there must still find it in the way.
        """
        for key in drop_keys(stem):
            if self._is_taken(key) or not self._store.put(f"{key}/{CLAIM}", _CLAIMED):
                continue
            try:
                for name, content in files.items():
                    if isinstance(content, Path):
                        self._store.put_file(f"{key}/{name}", content)
                    else:
                        self._store.put(f"{key}/{name}", content)
            except BaseException:
                self._give_up(key)
                raise
            return key
        raise no_free_number(stem)

    def _is_taken(self, drop: str) -> bool:
        return bool(next(self._bucket.pages(f"{drop}/", limit=1)).get("Contents"))

    def _give_up(self, drop: str) -> None:
        try:
            self.discard(drop)
        except StoreError:
            log.warning("%s was left without a marker: no run will take it", self.place(drop))

    def mark(self, drop: str, data: bytes) -> None:
        """Write the marker: the drop is complete."""
        self._bucket.call("put_object", f"{drop}/{MARKER}", Body=data)

    def discard(self, drop: str) -> None:
        """Remove a folder; the claim goes last."""
        for file in self.files(drop):
            self.purge(drop, file.path)
        self.purge(drop, CLAIM)

    def place(self, drop: str) -> str:
        """The folder's address, without how to reach it."""
        return f"s3://{self._bucket.address.bucket}/{self._bucket.address.prefix}{drop}"
