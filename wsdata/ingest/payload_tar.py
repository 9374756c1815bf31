"""Web-dataset tars, read in the sandbox: where each media member lies, and what is said of it.

Members are grouped by stem, the path up to the first dot of its last part, wherever in the tar
they lie. A member's text (``.txt``, ``.json``, ``.cls`` and the like) becomes the record of the
media of its stem; the media themselves are named by offset and size, and never copied here.
"""

import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from wsdata.ingest.payload_members import (
    MAX_FAULTS,
    Findings,
    MemberWriter,
    media_suffix,
    taken_record,
)
from wsdata.ingest.sidecars import Record, parse_object
from wsdata.media.suffixes import MEDIA_SUFFIXES

MAX_MEMBERS = 1_000_000
MAX_TEXT_BYTES = 16 << 20  # of all that is said of one media member
TEXT_SUFFIXES = frozenset([".txt", ".text", ".caption", ".cls", ".url", ".title", ".tag", ".tags"])
_BLOCK = tarfile.BLOCKSIZE
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_KINDS = {
    tarfile.LNKTYPE: "a hard link", tarfile.SYMTYPE: "a symbolic link",
    tarfile.CHRTYPE: "a device", tarfile.BLKTYPE: "a device", tarfile.FIFOTYPE: "a pipe",
    tarfile.GNUTYPE_SPARSE: "a sparse file", tarfile.CONTTYPE: "a contiguous file",
}  # fmt: skip


class _Entry(NamedTuple):
    """A file in the tar: its name, and where its bytes are."""

    name: str
    offset: int
    size: int


@dataclass(slots=True)
class _Group:
    """The files of one stem."""

    media: list[_Entry] = field(default_factory=list[_Entry])
    texts: list[_Entry] = field(default_factory=list[_Entry])
    others: list[_Entry] = field(default_factory=list[_Entry])


def tar_job(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Sandboxed job: list the media members of a tar, in the order of their offsets.

    Returns:
        ``faults``; ``notes``, what was left out and why; ``num_members``. The members themselves
        are written to ``members.jsonl``, as `MemberWriter` spells them.
    """
    del args
    findings = Findings()
    groups = _groups(source, findings)
    num_members = 0
    if not findings.faults:
        with MemberWriter(out_dir) as writer:
            for entry, group in _media_in_order(groups):
                record = _record(source, entry, group, findings)
                writer.add(entry.name, record, offset=entry.offset, size=entry.size)
            num_members = writer.num_members
    _note_leftovers(groups, findings)
    return {**findings.to_json(), "num_members": num_members}


def _media_in_order(groups: dict[str, _Group]) -> Iterator[tuple[_Entry, _Group]]:
    pairs = [(entry, group) for group in groups.values() for entry in group.media]
    yield from sorted(pairs, key=lambda pair: pair[0].offset)


def _groups(source: BinaryIO, findings: Findings) -> dict[str, _Group]:
    groups: defaultdict[str, _Group] = defaultdict(_Group)
    seen: Counter[str] = Counter()
    for member in _members(source, findings):
        name, fault = _plain_name(member)
        if fault:
            findings.fault(fault)
        if fault or member.isdir():
            continue
        seen[name] += 1
        if seen[name] == 2:
            findings.fault(f"{name!r} is there twice: which of them is meant cannot be told")
        if len(seen) > MAX_MEMBERS:
            findings.fault(f"more than {MAX_MEMBERS:,} members: deliver it as several tars")
            break
        _sort_in(groups, source, _Entry(name, member.offset_data, member.size))
    return groups


def _sort_in(groups: dict[str, _Group], source: BinaryIO, entry: _Entry) -> None:
    """Put a member into its group; what its name does not tell, its first bytes do."""
    suffix = PurePosixPath(entry.name).suffix.lower()
    parts = entry.name.split("/")
    group = groups["/".join([*parts[:-1], parts[-1].split(".")[0]])]
    if parts[-1].startswith("."):  # what systems leave behind: ._0001.jpg, .DS_Store
        group.others.append(entry)
    elif suffix in MEDIA_SUFFIXES:
        group.media.append(entry)
    elif suffix == ".json" or suffix in TEXT_SUFFIXES:
        group.texts.append(entry)
    else:
        head = _read(source, entry.offset, min(entry.size, 64))
        (group.media if media_suffix(head) else group.others).append(entry)


def _members(source: BinaryIO, findings: Findings) -> Iterator[tarfile.TarInfo]:
    """Yield all members; whatever ends them early is a fault."""
    size = source.seek(0, 2)
    source.seek(0)
    head = source.read(8)
    source.seek(0)
    for magic, kind in _COMPRESSED.items():
        if head.startswith(magic):
            findings.fault(
                f"it is compressed ({kind}): deliver the tar itself, media shrink no more"
            )
            return
    try:
        with tarfile.open(fileobj=source, mode="r:", encoding="utf-8", errors="strict") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # pyright: ignore[reportAttributeAccessIssue]  else all are held
                if member.size < 0:
                    findings.fault(f"{member.name!r} has {member.size} bytes: it is damaged")
                    return
                if member.offset_data + member.size > size:
                    findings.fault(
                        f"{member.name!r} has {member.size:,} bytes, the tar ends after "
                        f"{max(0, size - member.offset_data):,} of them: it is cut short"
                    )
                    return
                yield member
            end = tar.offset
    except (tarfile.TarError, ValueError, EOFError, OSError, OverflowError) as error:
        findings.fault(
            f"it cannot be read as a tar, or is cut short: {type(error).__name__}: {error}"
        )
        return
    _check_end(source, end, size, findings)


def _check_end(source: BinaryIO, end: int, size: int, findings: Findings) -> None:
    """A tar ends with blocks of zeros; the reader stops at any block that it does not know."""
    source.seek(end)
    mark = source.read(_BLOCK)
    if mark.strip(b"\0"):
        findings.fault(f"the header at byte {end:,} is damaged: what follows cannot be told")
    elif len(mark) < _BLOCK:
        findings.fault(f"its end mark is missing at byte {end:,} of {size:,}: it is cut short")
    else:
        while block := source.read(1 << 20):
            if block.strip(b"\0"):
                findings.fault(f"more follows its end mark at byte {end:,}: deliver one tar a file")
                return


def _plain_name(member: tarfile.TarInfo) -> tuple[str, str]:
    """The name of a member without a leading ``./``, and what is wrong with it."""
    name = member.name.removeprefix("./") or "."
    if member.issparse() or not (member.isreg() or member.isdir()):
        kind = "a sparse file" if member.issparse() else _KINDS.get(member.type, "of no known kind")
        return name, f"{name!r} is {kind}: deliver plain files"
    if member.isdir():
        return name, ""
    if name.startswith("/") or set(name.split("/")) & {"", ".", ".."}:
        return name, f"{name!r} has an empty or relative part, or begins at the root"
    if not name.isprintable():
        return name, f"{name!r} has characters that cannot be printed"
    return name, ""


def _read(source: BinaryIO, offset: int, size: int) -> bytes:
    source.seek(offset)
    return source.read(size)


def _record(source: BinaryIO, media: _Entry, group: _Group, findings: Findings) -> Record:
    """What the texts of a stem say of one of its media members."""
    own = media.name.rsplit(".", 1)[0]
    texts = [text for text in group.texts if text.name.rsplit(".", 1)[0] == own]
    texts += [text for text in group.texts if not _belongs_to_another(text, own, group)]
    record: Record = {}
    left_bytes = MAX_TEXT_BYTES
    for text in dict.fromkeys(texts):
        left_bytes -= text.size
        if left_bytes < 0:
            findings.fault(f"{text.name!r}: over {MAX_TEXT_BYTES >> 20} MiB of text for one member")
            return {}
        record |= {
            key: value for key, value in _said(source, text, findings).items() if key not in record
        }
    return taken_record(media.name, record, findings)


def _belongs_to_another(text: _Entry, own: str, group: _Group) -> bool:
    """Of ``clip.1.mp4 clip.2.mp4 clip.1.json clip.txt``, the JSON says nothing of the second."""
    stem = text.name.rsplit(".", 1)[0]
    return stem != own and any(media.name.rsplit(".", 1)[0] == stem for media in group.media)


def _said(source: BinaryIO, text: _Entry, findings: Findings) -> Record:
    data = _read(source, text.offset, text.size)
    suffix = PurePosixPath(text.name).suffix.lower()
    if suffix == ".json":
        record, fault = parse_object(data)
        if record is None:
            findings.fault(f"{text.name!r} {fault}")
        return record or {}
    try:
        said = data.decode("utf-8").strip()
    except UnicodeDecodeError:
        findings.fault(f"{text.name!r} is not UTF-8 text")
        return {}
    name = {".txt": "text", ".text": "text"}.get(suffix, suffix[1:])
    return {name: said} if said else {}


def _note_leftovers(groups: dict[str, _Group], findings: Findings) -> None:
    for group in groups.values():
        for entry in group.others:
            findings.note(f"{entry.name!r}: neither media nor text ({entry.size:,} bytes)")
        if not group.media:
            for entry in group.texts:
                findings.note(f"{entry.name!r}: text without media of its stem")


__all__ = ["MAX_FAULTS", "MAX_MEMBERS", "TEXT_SUFFIXES", "tar_job"]
