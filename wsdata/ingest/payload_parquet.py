"""Image-text Parquet and Parquet sidecars, read in the sandbox, a batch of rows at a time.

Of an image-text table one column holds the encoded image, binary or a struct with ``bytes`` in
it; all others that have a plain value become the row's record.
"""

import contextlib
import datetime as dt
import json
import math
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from wsdata.errors import WsdataError
from wsdata.ingest.payload_members import (
    ALIASES,
    Findings,
    MemberWriter,
    media_suffix,
    taken_record,
)
from wsdata.ingest.sidecars import RECORDS, RECORDS_PARQUET, Record

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

IMAGE_COLUMNS = (
    "image", "jpg", "jpeg", "png", "webp", "image_bytes", "img", "image_data", "bytes", "content",
)  # fmt: skip
IMAGES = "images.bin"
ROWS_PER_SLICE, BYTES_PER_SLICE = 256, 256 << 20
MAX_EXPANSION = 64  # bytes of images per byte of file: a dictionary can repeat one endlessly
MIN_EXPANDED_BYTES = 1 << 30
_ROWS_AT_ONCE = 16


def parquet_job(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Sandboxed job: list, and if asked for copy out, the images of an image-text table.

    Args:
        args: ``first`` and ``count`` of the rows whose images are to be copied to
            ``images.bin``, whole row groups as ``slices`` has them; without them all rows are
            listed, and none is copied.
        source: The Parquet file.
        out_dir: Gets ``members.jsonl``, as `MemberWriter` spells it, and ``images.bin``.

    Returns:
        ``faults``, ``notes``, ``num_members``, and ``slices``: first row and number of rows of
        parts that can be copied by themselves.
    """
    findings = Findings()
    slices: list[list[int]] = []
    num_members = 0
    with _opened(source, findings) as file:
        column = _image_column(file.schema_arrow, findings) if file else ""
        if file and column:
            slices = _slices(file)
            with MemberWriter(out_dir) as writer, (out_dir / IMAGES).open("wb") as images:
                _write_rows(file, column, args, findings, writer, images)
                num_members = writer.num_members
    return {**findings.to_json(), "num_members": num_members, "slices": slices}


@contextlib.contextmanager
def _opened(source: BinaryIO, findings: Findings) -> "Iterator[pq.ParquetFile | None]":
    import pyarrow as pa
    import pyarrow.parquet as pq

    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    size_bytes = source.seek(0, 2)
    source.seek(0)
    try:
        file = pq.ParquetFile(source, pre_buffer=False, buffer_size=1 << 20)
        if sum(_group_rows(file)) != file.metadata.num_rows:
            raise pa.ArrowInvalid("row groups and rows do not agree")
    except (pa.ArrowException, OSError, ValueError) as error:
        findings.fault(f"it cannot be read as Parquet ({size_bytes:,} bytes): {_told(error)}")
        yield None
        return
    try:
        yield file
    except (pa.ArrowException, OSError, ValueError) as error:
        findings.fault(f"its rows cannot be read: {_told(error)}")


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"


def _group_rows(file: "pq.ParquetFile") -> list[int]:
    return [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]


def _slices(file: "pq.ParquetFile") -> list[list[int]]:
    """Cut the table between row groups, into parts of about so many rows or bytes."""
    slices: list[list[int]] = []
    first = rows = size = 0
    for index in range(file.num_row_groups):
        group = file.metadata.row_group(index)
        rows, size = rows + group.num_rows, size + group.total_byte_size
        if rows >= ROWS_PER_SLICE or size >= BYTES_PER_SLICE:
            slices.append([first, rows])
            first, rows, size = first + rows, 0, 0
    return [*slices, [first, rows]] if rows else slices


def _image_column(schema: "pa.Schema", findings: Findings) -> str:
    """The column of images by name and type, or nothing, told as a fault."""
    named = {name.lower(): name for name in reversed(schema.names)}
    for wanted in IMAGE_COLUMNS:
        name = named.get(wanted)
        if name is not None and _is_bytes(schema.field(name).type):
            return name
    found = ", ".join(f"{field.name} ({field.type})" for field in schema) or "none"
    findings.fault(
        f"no column of images: expected a binary column, or a struct with binary `bytes`, named "
        f"one of {', '.join(IMAGE_COLUMNS)}; a caption is looked for as "
        f"{', '.join(ALIASES['page_text'])}, an address as {', '.join(ALIASES['crawl_url'])}. "
        f"Its columns are {found:.2000}"
    )
    return ""


def _is_bytes(kind: "pa.DataType") -> bool:
    import pyarrow as pa

    if pa.types.is_struct(kind):
        index = kind.get_field_index("bytes")
        return index >= 0 and _is_bytes(kind.field(index).type)
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def _write_rows(
    file: "pq.ParquetFile",
    column: str,
    args: dict[str, Any],
    findings: Findings,
    writer: MemberWriter,
    images: BinaryIO,
) -> None:
    is_copy = "first" in args
    first, groups = 0, list(range(file.num_row_groups))
    if is_copy:
        first = args["first"]
        groups = _groups_of(file, first, args["count"])
    expanded, most = 0, max(MIN_EXPANDED_BYTES, MAX_EXPANSION * _stored_bytes(file, column))
    for row, values in _rows(file, groups, first):
        image = values.pop(column, None)
        if isinstance(image, dict):
            values |= {f"{column}.{key}": value for key, value in image.items() if key != "bytes"}
            image = image.get("bytes")
        name = f"{row:08d}"
        if not image:
            findings.note(f"row {row}: no image")
            continue
        expanded += len(image)
        if not is_copy and expanded > most:
            findings.fault(f"over {most >> 20:,} MiB of images in its rows: it is no plain table")
            return
        name += media_suffix(image[:64])
        record = taken_record(name, _plain(values, name, findings), findings)
        offset = images.tell()
        if is_copy:
            images.write(image)
        writer.add(name, record, offset=offset, size=len(image))


def _stored_bytes(file: "pq.ParquetFile", column: str) -> int:
    found = 0
    for index in range(file.num_row_groups):
        group = file.metadata.row_group(index)
        chunks = (group.column(i) for i in range(group.num_columns))
        found += sum(c.total_compressed_size for c in chunks if c.path_in_schema.startswith(column))
    return found


def _groups_of(file: "pq.ParquetFile", first: int, count: int) -> list[int]:
    groups: list[int] = []
    at = 0
    for index, num_rows in enumerate(_group_rows(file)):
        if first <= at < first + count:
            groups.append(index)
        at += num_rows
    return groups


def _rows(
    file: "pq.ParquetFile", groups: list[int], first: int
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number, values) of rows, few of them in memory at once."""
    number = first
    for batch in file.iter_batches(_ROWS_AT_ONCE, row_groups=groups, use_threads=False):
        for values in batch.to_pylist():
            yield number, values
            number += 1


def _plain(values: dict[str, Any], name: str, findings: Findings) -> Record:
    """The columns that JSON can say; null ones are not stated."""
    record: Record = {}
    for key, value in values.items():
        try:
            plain = _json_value(value)
        except TypeError:
            findings.note(f"{name}: column {key} holds {type(value).__name__}, which no record can")
            continue
        if plain is not None:
            record[key] = plain
    return record


def _json_value(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (dt.datetime, dt.date, dt.time)):
        return value.isoformat()
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [_json_value(inner) for inner in value]
    if isinstance(value, dict):
        plain = {str(key): _json_value(inner) for key, inner in value.items()}
        return {key: inner for key, inner in plain.items() if inner is not None}
    raise TypeError(type(value).__name__)


def records_job(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Sandboxed job: write ``records.parquet`` as JSON lines; without some rows, as Parquet again.

    Args:
        args: ``without``, paths of files whose rows are to be left out.
        source: The Parquet file.
        out_dir: Gets ``records.jsonl``, and where `without` is stated ``records.parquet``.

    Returns:
        ``faults``.

    Raises:
        WsdataError: Rows are to be left out of a file that cannot be read.
    """
    findings = Findings()
    with _opened(source, findings) as file:
        if file and "path" not in file.schema_arrow.names:
            findings.fault(f"it has no column path, but {', '.join(file.schema_arrow.names):.500}")
        elif file and "without" in args:
            _write_without(file, set(args["without"]), out_dir / RECORDS_PARQUET)
        elif file:
            _write_lines(file, out_dir / RECORDS, findings)
    if "without" in args and findings.faults:
        raise WsdataError(f"{RECORDS_PARQUET}: {findings.faults[0]}")
    return {"faults": findings.to_json()["faults"]}


def _write_lines(file: "pq.ParquetFile", path: Path, findings: Findings) -> None:
    with path.open("w", encoding="utf-8") as lines:
        for row, values in _rows(file, list(range(file.num_row_groups)), 0):
            lines.write(json.dumps(_plain(values, f"row {row}", findings)) + "\n")
    for note in findings.to_json()["notes"]:
        findings.fault(note)  # a sidecar is ours: what it says must be read whole


def _write_without(file: "pq.ParquetFile", paths: set[str], target: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with pq.ParquetWriter(target, file.schema_arrow) as writer:
        for batch in file.iter_batches(4096, use_threads=False):
            kept = [path not in paths for path in batch.column("path").to_pylist()]
            writer.write_batch(batch.filter(pa.array(kept, pa.bool_())))
