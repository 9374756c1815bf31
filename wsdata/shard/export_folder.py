"""The folder of an export: whose it is, what of it is done, and what it says of itself.

While an export is being written its folder holds ``.wsdata-export.json``: what is exported, and
one line for each file that is whole. Files are written beside their name and renamed, so one that
was killed goes on where it was. Last comes ``export.json``, and the other goes. Where what should
tell is damaged, everything is written anew if the ledger knows that it is ours, and else nothing.
Nothing that is not ours is overwritten or removed.
"""

import contextlib
import hashlib
import json
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from wsdata.digest import canonical_json, sha256_bytes
from wsdata.errors import StoreFull, WsdataError, is_disk_full

MANIFEST = "export.json"
STATE = ".wsdata-export.json"
FORMAT_VERSION = 1

_TEMP_PREFIX = ".wsdata-export-tmp-"
_STORES_TEMP = ".tmp-*"  # what a store that was killed while it fetched leaves beside a file

FileRecord = dict[str, Any]  # path, bytes, sha256, num_samples, and what the writer adds


class ExportFolder:
    """A folder that holds, or will hold, one export and nothing else.

    Args:
        root: The folder; it may be absent or empty.
        spec: What is exported: another one is refused, and a rerun of the same goes on.
        is_known: Whether it is known from elsewhere that this very export was begun in this folder:
            one that no longer tells what it is is then made anew.

    Raises:
        WsdataError: It holds something else, or another process writes it.
    """

    def __init__(self, root: Path, spec: Mapping[str, Any], *, is_known: bool = False) -> None:
        self.root, self.spec = root, json.loads(canonical_json(spec))
        self._is_known = is_known
        root.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(root)
        try:
            self._done = {record["path"]: record for record in self._resume()}
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> "ExportFolder":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._lock)

    def _resume(self) -> list[FileRecord]:
        told = self._told()
        if told is None:
            self._refuse_foreign()
        spec, *records = told or [self.spec]
        self._check(spec)
        for pattern in (f"{_TEMP_PREFIX}*", _STORES_TEMP):
            for path in self.root.rglob(pattern):
                path.unlink()
        if told is None:
            with self.renamed(STATE) as temp:
                temp.write_bytes(canonical_json(self.spec).encode() + b"\n")
        if (self.root / STATE).is_file() and _parsed(self.root / MANIFEST) is None:
            (self.root / MANIFEST).unlink(missing_ok=True)  # damaged, and of this very export
        return records

    def _told(self) -> list[Any] | None:
        """What the folder tells of itself: the spec, then a record a file. None: nothing."""
        manifest = self.root / MANIFEST
        if (body := _parsed(manifest)) is not None:
            return [body.get("spec"), *body.get("files", [])]
        if (self.root / STATE).is_file():
            with contextlib.suppress(ValueError):
                return [json.loads(line) for line in self._whole_lines()] or None
        return None

    def _refuse_foreign(self) -> None:
        """Raise where the folder holds anything, and nothing tells that this export made it."""
        found = sorted(path.name for path in self.root.iterdir())
        names = [name for name in found if not name.startswith(_TEMP_PREFIX)]
        damaged = [name for name in (MANIFEST, STATE) if name in names]
        if damaged and not self._is_known:
            raise WsdataError(
                f"{self.root / damaged[0]} is damaged, so that nothing tells what lies there, and "
                "the ledger knows of no export with this version and these options into this "
                "folder of this host: export with those it was made with, to another folder, or "
                "delete this one first"
            )
        if names and not damaged:
            raise WsdataError(
                f"{self.root} holds {len(names)} things that no export made, such as "
                f"{names[0]}: give an empty folder, or a new one"
            )

    def _whole_lines(self) -> list[bytes]:
        """Lines of the state; one that a kill cut short is taken away, as more will follow it."""
        data = (self.root / STATE).read_bytes()
        *lines, rest = data.split(b"\n")
        if rest:
            with self.renamed(STATE) as temp:
                temp.write_bytes(data[: -len(rest)])
        return lines

    def _check(self, spec: Mapping[str, Any] | None) -> None:
        if spec == self.spec:
            return
        names = {*self.spec, *(spec or {})}
        differing = sorted(n for n in names if (spec or {}).get(n) != self.spec.get(n))
        raise WsdataError(
            f"{self.root} holds an export with another {', '.join(differing)}: export to another "
            "folder, or delete this one first"
        )

    def add(self, path: str, write: Callable[[Path], FileRecord], **about: Any) -> FileRecord:
        """Write one file, unless it is there whole, and note it.

        Args:
            path: Relative to the folder.
            write: Writes it, and returns what else is to be noted. Called with a new path.
            about: What is known of it before, noted too.

        Raises:
            StoreFull: No space is left.
        """
        known, place = self._done.get(path), self.root / path
        if known is not None and _is_whole(place, known):
            return known
        place.parent.mkdir(exist_ok=True)
        with self.renamed(path) as temp:
            told = write(temp)
            record = {"path": path, **_measure(temp), **about, **told}
        self._note(record)
        return record

    def _note(self, record: FileRecord) -> None:
        self._done[record["path"]] = record
        if (manifest := self.root / MANIFEST).is_file():  # one of its files was damaged: once more
            with self.renamed(STATE) as temp:
                done = self._done.values()
                lines = [canonical_json(self.spec), *(canonical_json(each) for each in done)]
                temp.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            manifest.unlink()
            return
        with (self.root / STATE).open("a", encoding="utf-8") as file:
            file.write(f"{canonical_json(record)}\n")
            file.flush()
            os.fsync(file.fileno())

    def finish(self, records: list[FileRecord], **about: Any) -> str:
        """Write the export's manifest, and return the sha256 of its bytes."""
        body = {"format_version": FORMAT_VERSION, "spec": self.spec, "files": records, **about}
        data = json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"
        manifest = self.root / MANIFEST
        if not manifest.is_file() or manifest.read_bytes() != data:
            with self.renamed(MANIFEST) as temp:
                temp.write_bytes(data)
        (self.root / STATE).unlink(missing_ok=True)
        return sha256_bytes(data)

    @contextlib.contextmanager
    def renamed(self, path: str) -> Iterator[Path]:
        """Give a new path beside a file, which becomes the file's once it is written."""
        place = self.root / path
        temp = place.with_name(f"{_TEMP_PREFIX}{secrets.token_hex(8)}")
        try:
            yield temp
            with temp.open("rb") as file:
                os.fsync(file.fileno())
            temp.replace(place)
        except OSError as error:
            if is_disk_full(error):
                raise StoreFull(
                    f"no space left in {self.root} while writing {path}: free some and export "
                    "again; it goes on from there"
                ) from error
            raise
        finally:
            temp.unlink(missing_ok=True)


def _lock(root: Path) -> int:
    import fcntl

    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        raise WsdataError(f"{root} is being written by another export: wait for it") from error
    return handle


def _parsed(path: Path) -> dict[str, Any] | None:
    """A file's JSON object; None where there is no file, or where it is damaged."""
    try:
        body = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return None
    return body if isinstance(body, dict) else None


def _measure(path: Path) -> FileRecord:
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": sha256}


def _is_whole(path: Path, record: Mapping[str, Any]) -> bool:
    if not path.is_file() or path.stat().st_size != record["bytes"]:
        return False
    return _measure(path)["sha256"] == record["sha256"]


def read_export(root: Path) -> dict[str, Any]:
    """Read an export's manifest.

    Raises:
        WsdataError: The folder holds no export, an unfinished one, a damaged one, or one of another
            format.
    """
    path = root / MANIFEST
    if not path.is_file():
        state = "an export that was not finished: export again" if (root / STATE).is_file() else (
            "no export: give the folder that holds export.json"
        )  # fmt: skip
        raise WsdataError(f"{root} holds {state}")
    body = _parsed(path)
    if body is None:
        raise WsdataError(
            f"{path} is damaged: its {path.stat().st_size} bytes are no list of an export's files. "
            f"Export again, with the same version and options, into {root}: that repairs it"
        )
    if body.get("format_version") != FORMAT_VERSION:
        raise WsdataError(
            f"{path} has format {body.get('format_version')!r}, this code reads {FORMAT_VERSION}: "
            "use the release of wsdata that wrote it"
        )
    return body
