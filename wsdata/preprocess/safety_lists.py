"""Safety hash lists: PDQ hashes of pictures that must never be trained on, as files.

Lists belong to a deployment, whoever's recipe is run, and are append-only: the ledger remembers
how far each was read, and what was read once may not go again. An entry is withdrawn by a line
that says so. Nothing of a list is copied into the store. Matching belongs to
`preprocess.filters.safety_list`.

One file is one list, named by the file: a line is ``HASH [ID [SOURCE]]``, parted by blanks or
commas, where HASH is 64 hex digits; ``-HASH`` withdraws; ``#`` begins a comment.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from wsdata.digest import sha256_bytes
from wsdata.errors import StepFailed, WsdataError

SUFFIXES = (".txt", ".csv", ".tsv", ".pdq")
ID_DIGITS = 12  # of the hash, which name an entry without an id

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_HASH = re.compile(r"[0-9a-f]{64}")


class Entry(NamedTuple):
    """One listed picture: its PDQ hash (32 bytes), and how its list names it."""

    pdq: bytes
    entry_id: str
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SafetyList:
    """One list as it was read.

    Attributes:
        name: The file's, without its suffix.
        sha256: Of the file's bytes.
        num_bytes: How many there were.
        entries: What is listed and not withdrawn, in the order of the file, each hash once.
        withdrawn: Names of entries that were listed and withdrawn.
    """

    name: str
    sha256: str
    num_bytes: int
    entries: tuple[Entry, ...]
    withdrawn: frozenset[str]

    @property
    def body(self) -> dict[str, Any]:
        """What the ledger remembers of it, as fact ``safety_list``."""
        return {
            "sha256": self.sha256,
            "num_bytes": self.num_bytes,
            "num_entries": len(self.entries),
        }


def list_files(where: str) -> dict[str, Path]:
    """Files of all lists, by list.

    Args:
        where: A file, or a folder of files; what is not there holds no list, nor does "".

    Raises:
        WsdataError: Two files have one name, or a name has odd characters.
    """
    path = Path(where)
    if not where:
        return {}
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = sorted(
            each
            for each in path.iterdir()
            if each.suffix in SUFFIXES and each.is_file() and not each.name.startswith(".")
        )
    else:
        return {}
    found: dict[str, Path] = {}
    for each in files:
        if _NAME.fullmatch(each.stem) is None:
            raise WsdataError(
                f"safety list {each}: its name has signs other than letters, digits, _ . and -: "
                "rename the file, facts and reports name the list by it"
            )
        if each.stem in found:
            raise WsdataError(f"{each} and {found[each.stem]} are one list by name: rename one")
        found[each.stem] = each
    return found


def list_digests(where: str) -> dict[str, str]:
    """sha256 of every list's bytes, by list: what orders depend on."""
    found: dict[str, str] = {}
    for name, path in list_files(where).items():
        stat = path.stat()
        found[name] = _digest_of(str(path), stat.st_mtime_ns, stat.st_size)
    return found


@functools.lru_cache(maxsize=256)
def _digest_of(path: str, mtime_ns: int, size_bytes: int) -> str:
    """A pass over all drops asks for each of them: read once while the file stays as it is."""
    del mtime_ns, size_bytes
    return sha256_bytes(Path(path).read_bytes())


def read_lists(
    where: str, *, wanted: Mapping[str, str], known: Mapping[str, Mapping[str, Any]]
) -> list[SafetyList]:
    """Read all lists, and hold them against what was read before.

    Args:
        where: As for `list_files`.
        wanted: Digest of each list that the order names.
        known: The present of facts ``safety_list``: list -> `SafetyList.body`.

    Raises:
        StepFailed: A list changed since the order was built, is gone, or is no longer what it
            was with lines appended.
        WsdataError: A line is not an entry.
    """
    files = list_files(where)
    if gone := sorted(set(known) - set(files)):
        raise StepFailed(
            f"safety lists {', '.join(gone)} were in force before and are not in {where}: put "
            "them back, or mount the folder where this step runs; without them what they name "
            "would pass"
        )
    lists = [parse_list(name, path.read_bytes(), where=str(path)) for name, path in files.items()]
    if {each.name: each.sha256 for each in lists} != dict(wanted):
        raise StepFailed(f"the safety lists in {where} changed while the step began: run it again")
    for name, told in known.items():
        start = files[name].read_bytes()[: told["num_bytes"]]
        if sha256_bytes(start) != told["sha256"]:
            raise StepFailed(
                f"safety list {files[name]}: its first {told['num_bytes']} bytes are no longer "
                f"those of digest {told['sha256'][:12]} that were in force before: lists are "
                "append-only, so restore them and append; '-HASH' withdraws an entry"
            )
    return lists


def parse_list(name: str, data: bytes, *, where: str = "") -> SafetyList:
    """Parse one list.

    Args:
        name: The list's.
        data: Its bytes.
        where: Its place, for errors.

    Raises:
        WsdataError: A line is not an entry; the line is named.
    """
    entries: dict[bytes, Entry] = {}
    withdrawn: set[str] = set()
    for number, line in enumerate(data.decode("utf-8-sig", "replace").splitlines(), start=1):
        text = line.split("#")[0].strip()
        if not text:
            continue
        first, entry_id, source = (*re.split(r"[,\s]+", text, maxsplit=2), "", "")[:3]
        hexed = first.removeprefix("-").lower()
        if _HASH.fullmatch(hexed) is None:
            raise WsdataError(
                f"safety list {where or name}, line {number}: {first[:80]!r} is not a PDQ hash of "
                "64 hex digits; expected 'HASH [ID [SOURCE]]' or '-HASH'"
            )
        pdq = bytes.fromhex(hexed)
        if first.startswith("-"):
            if (gone := entries.pop(pdq, None)) is not None:
                withdrawn.add(gone.entry_id)
            continue
        entries.setdefault(pdq, Entry(pdq, entry_id or hexed[:ID_DIGITS], source.strip()))
    return SafetyList(
        name=name,
        sha256=sha256_bytes(data),
        num_bytes=len(data),
        entries=tuple(entries.values()),
        withdrawn=frozenset(withdrawn - {each.entry_id for each in entries.values()}),
    )
