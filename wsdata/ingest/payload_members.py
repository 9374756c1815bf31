"""What both kinds of payload share: members with their records, faults, and notes.

Runs in the sandbox, on text that nobody has looked at yet. A member's record has the fields of
the drop's own sidecar; the names that other people's data sets use for these are taken too.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from wsdata.ingest.sidecars import TEXT_FIELDS, Record, record_faults

MAX_FAULTS = 100  # of a payload, told one by one; the others are counted
MAX_NOTES = 20
MEMBERS = "members.jsonl"

# Field of a record <- the names that it is known by, first found first taken.
ALIASES: Mapping[str, tuple[str, ...]] = {
    "page_text": ("page_text", "caption", "text", "TEXT", "alt_text", "alt", "txt"),
    "crawl_url": ("crawl_url", "url", "URL", "image_url", "source_url"),
    "title": ("title", "TITLE"),
}

_HEADS = (
    (0, b"\xff\xd8\xff", ".jpg"), (0, b"\x89PNG\r\n\x1a\n", ".png"), (0, b"GIF8", ".gif"),
    (8, b"WEBP", ".webp"), (4, b"ftypavi", ".avif"), (4, b"ftyp", ".mp4"),
    (0, b"\x1aE\xdf\xa3", ".mkv"), (8, b"AVI ", ".avi"), (8, b"WAVE", ".wav"),
    (0, b"OggS", ".ogg"), (0, b"fLaC", ".flac"), (0, b"ID3", ".mp3"),
    (0, b"FLV\x01", ".flv"), (0, b"II*\0", ".tif"), (0, b"MM\0*", ".tif"),
)  # fmt: skip


def media_suffix(head: bytes) -> str:
    """The suffix of a media file by its first bytes, or nothing where they are not known."""
    for offset, magic, suffix in _HEADS:
        if head[offset : offset + len(magic)] == magic:
            return suffix
    return ""


class Findings:
    """Faults, which refuse the drop, and notes on what was left out. Long lists are counted."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self._notes: list[str] = []
        self._num_more_faults = self._num_more_notes = 0

    def fault(self, text: str) -> None:
        """Add a fault."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(text)
        else:
            self._num_more_faults += 1

    def note(self, text: str) -> None:
        """Add a note."""
        if len(self._notes) < MAX_NOTES:
            self._notes.append(text)
        else:
            self._num_more_notes += 1

    def to_json(self) -> dict[str, list[str]]:
        """``faults`` and ``notes``, each with a last line that counts what was not listed."""
        faults, notes = [*self.faults], [*self._notes]
        if self._num_more_faults:
            faults.append(f"and {self._num_more_faults:,} more faults")
        if self._num_more_notes:
            notes.append(f"and {self._num_more_notes:,} more left out")
        return {"faults": faults, "notes": notes}


class MemberWriter:
    """Writes members to ``members.jsonl`` of a folder: name, record, offset, size, place.

    Args:
        out_dir: The folder.
    """

    def __init__(self, out_dir: Path) -> None:
        self._file = (out_dir / MEMBERS).open("w", encoding="utf-8")
        self.num_members = 0

    def add(self, name: str, record: Record, *, offset: int, size: int) -> None:
        """Add a member whose bytes are `size` from `offset` on."""
        line = {"name": name, "record": record, "offset": offset, "size": size}
        self._file.write(json.dumps(line) + "\n")
        self.num_members += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()


def taken_record(member: str, said: Mapping[str, Any], findings: Findings) -> Record:
    """Make a record of what is said of a member.

    What is known by another name is copied to its own. A text field that is no text, as data of
    many hands has it, is kept under ``as_delivered`` and not taken; a right or a verdict that
    cannot be read is a fault, since to leave it out would be to widen it.
    """
    record: Record = dict(said)
    odd = {name: record.pop(name) for name in ("path", "actions") if name in record}
    for name in (*TEXT_FIELDS, "chapters", "image_text_pairs"):
        if name in record and record_faults({name: record[name]}):
            odd[name] = record.pop(name)
    for name, known in ALIASES.items():
        for alias in known:
            if isinstance(record.get(alias), str) and record[alias].strip():
                record.setdefault(name, record[alias])
                break
    if odd:
        record["as_delivered"] = odd
    for fault in record_faults(record):
        findings.fault(f"{member!r}: {fault}")
    return record
