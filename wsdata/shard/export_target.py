"""An export being written: what it is of, what of it is done, and what it says of itself.

While it is being written, its place keeps notes: what is exported, and one line for each file that
is whole, so that one that was killed goes on where it was. Last comes ``export.json``, and the
notes go. Where what should tell is damaged, everything is written anew if the ledger knows that it
is ours, and else nothing. Nothing that is not ours is overwritten or removed.
"""

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from wsdata.digest import canonical_json, sha256_bytes
from wsdata.errors import WsdataError
from wsdata.shard.export_folder import STATE, sha256_of
from wsdata.shard.export_place import ExportPlace

MANIFEST = "export.json"
FORMAT_VERSION = 1

FileRecord = dict[str, Any]  # path, bytes, sha256, num_samples, and what the writer adds


class ExportTarget:
    """A place that holds, or will hold, one export and nothing else.

    Args:
        place: Where; it may be absent or empty.
        spec: What is exported: another one is refused, and a rerun of the same goes on.
        is_known: Whether it is known from elsewhere that this very export was begun in this place:
            one that no longer tells what it is is then made anew.

    Raises:
        WsdataError: It holds something else, or an export of another format, or another process
            writes it.
    """

    def __init__(
        self, place: ExportPlace, spec: Mapping[str, Any], *, is_known: bool = False
    ) -> None:
        self.place, self.spec = place, json.loads(canonical_json(spec))
        self._is_known = is_known
        with contextlib.ExitStack() as stack:
            stack.enter_context(place.lock())
            self._done = {record["path"]: record for record in self._resume()}
            self._is_finished = place.size(MANIFEST) is not None
            self._held = stack.pop_all()

    def __enter__(self) -> "ExportTarget":
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _resume(self) -> list[FileRecord]:
        told = self._told()
        if told is None:
            told = self._refuse_foreign()
        spec, *records = told or [self.spec]
        self._check(spec)
        self.place.sweep()
        if told is None:
            self.place.begin([canonical_json(self.spec).encode()])
            self._check(next(iter(self._noted() or []), None))  # another host may have begun too
        if self.place.size(STATE) is not None and _manifest(self.place) is None:
            self.place.remove(MANIFEST)  # damaged, and of this very export
        return records

    def _told(self) -> list[Any] | None:
        """What the place tells of itself: the spec, then a record a file. None: nothing."""
        if (body := _manifest(self.place)) is not None:
            return [body["spec"], *body["files"]]
        return self._noted()

    def _noted(self) -> list[Any] | None:
        spec, *records = [_parsed(line) for line in self.place.notes() or []] or [None]
        return [spec, *records] if _is_spec(spec) and all(map(_is_record, records)) else None

    def _refuse_foreign(self) -> list[Any] | None:
        """Raise where the place holds anything, and nothing tells that this export made it.

        Returns what it tells by now: another host may have begun between two looks.
        """
        damaged = [name for name in (MANIFEST, STATE) if self.place.size(name) is not None]
        names = [] if damaged else self.place.some_names()
        if not names and (self._is_known or not damaged):
            return None
        if (told := self._told()) is not None:
            return told
        if damaged:
            raise WsdataError(
                f"{self.place.named(damaged[0])} is damaged, so that nothing tells what lies "
                "there, and the ledger knows of no export with this version and these options "
                f"into this {self.place.kind}{' of this host' if self.place.host else ''}: export "
                f"with those it was made with, to another {self.place.kind}, or delete this one "
                "first"
            )
        raise WsdataError(
            f"{self.place.name} holds things that no export made, such as {names[0]}: give "
            f"an empty {self.place.kind}, or a new one"
        )

    def _check(self, spec: Mapping[str, Any] | None) -> None:
        if spec == self.spec:
            return
        names = {*self.spec, *(spec or {})}
        differing = sorted(n for n in names if (spec or {}).get(n) != self.spec.get(n))
        raise WsdataError(
            f"{self.place.name} holds an export with another {', '.join(differing)}: export to "
            f"another {self.place.kind}, or delete this one first"
        )

    def add(self, path: str, write: Callable[[Path], FileRecord], **about: Any) -> FileRecord:
        """Write one file, unless it is there whole, and note it.

        Args:
            path: Relative to the place.
            write: Writes it, and returns what else is to be noted. Called with a new path.
            about: What is known of it before, noted too.

        Raises:
            StoreFull: No space is left.
        """
        known = self._done.get(path)
        if known is not None and self.place.is_whole(path, known):
            return known
        if self._is_finished:  # one of its files was damaged: once more
            self._reopen()
        with self.place.written(path) as made:
            told = write(made)
            size, sha256 = made.stat().st_size, sha256_of(made)
        record = {"path": path, "bytes": size, "sha256": sha256, **about, **told}
        self._done[path] = record
        self.place.note(path, canonical_json(record).encode())
        return record

    def _reopen(self) -> None:
        """Say of a finished export that it is being written, before anything in it changes."""
        notes = [self.spec, *self._done.values()]
        self.place.begin(canonical_json(each).encode() for each in notes)
        self.place.remove(MANIFEST)
        self._is_finished = False

    def finish(self, records: list[FileRecord], **about: Any) -> str:
        """Write the export's manifest, and return the sha256 of its bytes."""
        body = {"format_version": FORMAT_VERSION, "spec": self.spec, "files": records, **about}
        data = json.dumps(body, indent=1, sort_keys=True).encode() + b"\n"
        if self.place.read(MANIFEST) != data:
            with self.place.written(MANIFEST) as made:
                made.write_bytes(data)
        self.place.end()
        return sha256_bytes(data)


def _manifest(place: ExportPlace) -> dict[str, Any] | None:
    """What ``export.json`` says; None where there is none, or where anything in it is malformed.

    Raises:
        WsdataError: It is of another format.
    """
    body = _parsed(place.read(MANIFEST))
    if body is None or type(body.get("format_version")) is not int:
        return None
    if body["format_version"] != FORMAT_VERSION:
        raise WsdataError(
            f"{place.named(MANIFEST)} has format {body['format_version']}, this code reads "
            f"{FORMAT_VERSION}: use the release of wsdata that wrote it"
        )
    files = body.get("files")
    is_sound = (
        _is_spec(body.get("spec"))
        and _is_count(body.get("num_samples"))
        and isinstance(files, list)
        and all(map(_is_record, files))
    )
    return body if is_sound else None


def _parsed(data: bytes | None) -> dict[str, Any] | None:
    """A JSON object out of bytes; None where there are none, or where they are damaged."""
    try:
        body = json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
    return body if isinstance(body, dict) else None


def _is_spec(spec: object) -> bool:
    return isinstance(spec, dict) and all(
        isinstance(spec.get(name), str) for name in ("format", "version")
    )


def _is_record(record: object) -> bool:
    return (
        isinstance(record, dict)
        and _is_path(record.get("path"))
        and isinstance(record.get("sha256"), str)
        and all(_is_count(record.get(name)) for name in ("bytes", "num_samples"))
    )


def _is_path(path: object) -> bool:
    """Whether it is a path of a file within the place."""
    if not isinstance(path, str):
        return False
    pure = PurePosixPath(path)
    is_below = bool(pure.name) and not pure.is_absolute() and ".." not in pure.parts
    return is_below and str(pure) == path


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0


def read_export(place: ExportPlace) -> dict[str, Any]:
    """Read an export's manifest.

    Raises:
        WsdataError: The place holds no export, an unfinished one, a damaged one, or one of another
            format.
    """
    data = place.read(MANIFEST)
    if data is None:
        is_begun = place.size(STATE) is not None
        state = "an export that was not finished: export again" if is_begun else (
            f"no export: give the {place.kind} that holds {MANIFEST}"
        )  # fmt: skip
        raise WsdataError(f"{place.name} holds {state}")
    body = _manifest(place)
    if body is None:
        raise WsdataError(
            f"{place.named(MANIFEST)} is damaged: its {len(data)} bytes are no list of an "
            f"export's files. Export again, with the same version and options, into {place.name}: "
            "that repairs it"
        )
    return body
