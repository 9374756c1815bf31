"""Registered fingerprints: what generators made, known before any of it arrives in a drop.

A registration is an immutable object of table ``generated_prints``, named by its content, and is
never taken back. What follows from a match is told by `curate.generated`.
"""

import hashlib
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import polars as pl

from wsdata import tables
from wsdata.digest import sha256_bytes
from wsdata.errors import WsdataError
from wsdata.ingest.fingerprint import print_file, print_rows
from wsdata.media.phash import HASH_BYTES
from wsdata.media.sandbox import run_job
from wsdata.media.suffixes import MEDIA_SUFFIXES
from wsdata.records import ObjectRef, Order, Report, table_key

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore

TABLE = "generated_prints"
REGISTRATION_VERSION = "registered-1"
HASHES = ("hash", "mirror_hash", "core_hash", "core_mirror_hash")
COLUMNS = ("item_id", "frame_index", "time_s", "quality", *HASHES)
MAX_FAULTS = 20
_WALL_S = 600.0

_TYPES: dict[str, tuple[type, ...]] = {
    "item_id": (str,),
    "frame_index": (int,),
    "time_s": (int, float),
    "quality": (int,),
}


def registration_job(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Sandboxed job: read a registration, Parquet or JSON Lines, as rows with hashes in hex.

    Args:
        args: None.
        source: The file.
        out_dir: Gets ``rows.jsonl``.

    Returns:
        ``num_rows``.

    Raises:
        ValueError: It is neither.
    """
    del args
    is_parquet = source.read(4) == b"PAR1"
    source.seek(0)
    num_rows = 0
    with (out_dir / "rows.jsonl").open("w") as out:
        for row in _parquet_rows(source) if is_parquet else _json_rows(source):
            out.write(json.dumps(row) + "\n")
            num_rows += 1
    return {"num_rows": num_rows}


def _parquet_rows(source: BinaryIO) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet as pq

    file = pq.ParquetFile(source)
    for batch in file.iter_batches(batch_size=4096):
        for row in batch.to_pylist():
            yield {
                name: value.hex() if isinstance(value, bytes) else value
                for name, value in row.items()
            }


def _json_rows(source: BinaryIO) -> Iterator[dict[str, Any]]:
    for number, line in enumerate(source, 1):
        if not line.strip():
            continue
        row = json.loads(line)
        if not isinstance(row, dict):
            raise ValueError(f"line {number}: expected an object")  # noqa: TRY004  not a caller's
        yield row


def read_registration(path: Path, *, minimum_level: str) -> pl.DataFrame:
    """Read the fingerprints that a generator wrote down, in a sandboxed child.

    Args:
        path: Parquet or JSON Lines, one row per frame: ``item_id``, what was made; ``hash``, PDQ
            of 32 bytes, in JSON 64 hex digits; and, where they are known, ``frame_index``,
            ``time_s``, ``quality``, ``mirror_hash``, ``core_hash``, ``core_mirror_hash``.
        minimum_level: The sandbox level that the deployment demands.

    Returns:
        Columns `COLUMNS`, hashes as bytes.

    Raises:
        WsdataError: It cannot be read, or rows break the contract; faults are listed.
    """
    with tempfile.TemporaryDirectory(prefix="wsdata-registration-") as folder:
        report = run_job(
            "wsdata.ingest.registered:registration_job",
            {},
            source=path,
            out_dir=Path(folder),
            wall_s=_WALL_S,
            minimum_level=minimum_level,
        )
        if report.status != "ok":
            raise WsdataError(
                f"{path}: expected fingerprints as Parquet or JSON Lines: {report.detail}"
            )
        with (Path(folder) / "rows.jsonl").open() as lines:
            rows = [json.loads(line) for line in lines]
    return _checked(rows, str(path))


def _checked(rows: list[dict[str, Any]], name: str) -> pl.DataFrame:
    faults: list[str] = []
    taken: list[dict[str, Any]] = []
    next_index: dict[str, int] = {}
    for number, row in enumerate(rows, 1):
        wrong = list(_row_faults(row))
        faults += [f"row {number}: {fault}" for fault in wrong]
        if wrong:
            continue
        item = row["item_id"]
        index = row.get("frame_index")
        index = next_index.get(item, 0) if index is None else index
        next_index[item] = max(next_index.get(item, 0), index + 1)
        hashes = {one: bytes.fromhex(row[one]) if row.get(one) else None for one in HASHES}
        taken.append(
            {
                "item_id": item,
                "frame_index": index,
                "time_s": row.get("time_s"),
                "quality": row.get("quality"),
                **hashes,
            }
        )
    times = Counter((row["item_id"], row["frame_index"]) for row in taken)
    if twice := sorted(key for key, count in times.items() if count > 1)[:3]:
        faults.append(f"item_id and frame_index occur twice, such as {twice}")
    if not rows:
        faults.append("no rows")
    if faults:
        more = f"; {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
        raise WsdataError(f"{name}: {'; '.join(faults[:MAX_FAULTS])}{more}")
    return pl.DataFrame(taken, schema={one: tables.TABLES[TABLE].columns[one] for one in COLUMNS})


def _row_faults(row: dict[str, Any]) -> Iterator[str]:
    if unknown := sorted(set(row) - set(COLUMNS)):
        yield f"unknown columns {unknown}, known are {list(COLUMNS)}"
    for name in ("item_id", "hash"):
        if not row.get(name):
            yield f"no {name}"
    for name, kinds in _TYPES.items():
        value = row.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, kinds)):
            yield f"{name} is {value!r}, expected {kinds[-1].__name__}"
        elif name != "item_id" and value is not None and not 0 <= value < float("inf"):
            yield f"{name} is {value!r}, expected 0 or more"
    for name in HASHES:
        if row.get(name) and not _is_hash(row[name]):
            yield f"{name} is {row[name]!r}, expected {2 * HASH_BYTES} hex digits"


def _is_hash(value: Any) -> bool:
    try:
        return isinstance(value, str) and len(bytes.fromhex(value)) == HASH_BYTES
    except ValueError:
        return False


def print_folder(folder: Path, *, minimum_level: str) -> tuple[pl.DataFrame, list[str]]:
    """Print generated media, every file in the sandbox, as a drop's files are printed.

    Args:
        folder: A folder of media, searched whole; or one file.
        minimum_level: The sandbox level that the deployment demands.

    Returns:
        Columns `COLUMNS`, an item per file, named by the sha256 of its bytes; and what could not
        be printed, with its reason.

    Raises:
        WsdataError: There is no media.
    """
    files = [folder] if folder.is_file() else sorted(folder.rglob("*"))
    files = [file for file in files if file.suffix.lower() in MEDIA_SUFFIXES and file.is_file()]
    if not files:
        raise WsdataError(f"{folder}: expected media files, found none")
    rows: list[dict[str, Any]] = []
    unread: list[str] = []
    for file in files:
        with tempfile.TemporaryDirectory(prefix="wsdata-prints-") as out:
            found, _ = print_file(file, Path(out), minimum_level=minimum_level, is_dense=True)
        with file.open("rb") as data:
            item = hashlib.file_digest(data, "sha256").hexdigest()
        if not found["prints"]:
            unread.append(f"{file}: {found['probe'].get('reason') or 'no picture'}")
        rows += [
            {"item_id": item, **{name: row[name] for name in COLUMNS if name != "item_id"}}
            for row in print_rows(item, found["prints"])
        ]
    frame = pl.DataFrame(rows, schema={one: tables.TABLES[TABLE].columns[one] for one in COLUMNS})
    return frame.unique(["item_id", "frame_index"], maintain_order=True), unread


def register(
    ledger: "Ledger", store: "BlobStore", rows: pl.DataFrame, *, generator: str
) -> dict[str, Any]:
    """Make fingerprints of generated material known to every cut from now on.

    Args:
        ledger: The ledger.
        store: The store.
        rows: Columns `COLUMNS`, as `read_registration` or `print_folder` returns.
        generator: Name and version of what made them.

    Returns:
        ``registration, generator, num_items, num_prints, is_new``. The same rows under the same
        generator are one registration, however often they are sent.

    Raises:
        WsdataError: No generator, or no rows.
    """
    if not generator.strip() or not generator.isprintable() or rows.is_empty():
        raise WsdataError(
            f"generator {generator!r} with {rows.height} fingerprints: expected a name on one "
            "line, and at least one fingerprint"
        )
    made = tables.conform(TABLE, rows.with_columns(pl.lit(generator.strip()).alias("generator")))
    data = tables.to_parquet(made)
    sha256 = sha256_bytes(data)
    store.put(table_key(sha256), data)
    order = Order(
        stage="ingest",
        step=TABLE,
        partition=f"registered-{sha256[:16]}",
        code_version=REGISTRATION_VERSION,
        params={"generator": generator.strip(), "rows": sha256},
        inputs={},
        tables=(TABLE,),
    )
    ref = ObjectRef(
        table=TABLE,
        partition=order.partition,
        version=order.code_version,
        version_digest=order.version_digest,
        sha256=sha256,
        num_rows=made.height,
    )
    report = Report(
        order_digest=order.digest, version_digest=order.version_digest, objects={TABLE: ref}
    )
    changed = ledger.commit(order, report)
    return {
        "registration": order.partition,
        "generator": generator.strip(),
        "num_items": made["item_id"].n_unique(),
        "num_prints": made.height,
        "is_new": changed[TABLE],
    }
