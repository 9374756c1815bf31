"""Engine mirror: the live objects registered as Delta tables, for other engines, uncopied.

Each table becomes a folder ``mirror/<table>`` of a folder store: hard links to the very Parquet
objects that the ledger says are live, and a log that names them (engines do not follow names
that lead out of a table's folder). Other kinds of store are left alone.
"""

import json
import os
from pathlib import Path

import polars as pl

from wsdata import tables
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.records import ObjectRef
from wsdata.store import FolderStore

STEP = Step(
    stage="observability",
    name="engine_mirror",
    function="wsdata.observability.mirror:run",
    code_version="mirror-1",
    partition="none",
    assets={"engine_mirror": ("engine_mirror",)},
    inputs=tuple(
        Input(table=table, scope="all", is_optional=True)
        for table in tables.TABLES
        if table not in tables.SELF_REPORTS
    ),
    description="Live rows as Delta tables over the same objects, for any engine that reads Delta.",
)

# Of each type that a column of a table may have.
DELTA_TYPES: dict[object, object] = {
    tables.STR: "string",
    tables.INT: "long",
    tables.F64: "double",
    tables.BOOL: "boolean",
    tables.BIN: "binary",
    tables.VECTOR: {"type": "array", "elementType": "float", "containsNull": True},
    tables.INTS: {"type": "array", "elementType": "long", "containsNull": True},
    tables.TEXTS: {"type": "array", "elementType": "string", "containsNull": True},
}


def run(run: StepRun) -> StepResult:
    """Write the mirror's logs anew."""
    rows: list[dict] = []
    for table, refs in sorted(run.order.inputs.items()):
        if not refs or not isinstance(run.store, FolderStore):
            continue
        root = run.store.root / "mirror" / table
        _write_log(run.store, root, table, refs)
        rows.append(
            {
                "table": table,
                "num_objects": len({ref.sha256 for ref in refs}),
                "num_rows": sum(ref.num_rows for ref in refs),
                "address": f"mirror/{table}",
            }
        )
    frame = tables.rows_of("engine_mirror", rows)
    return StepResult(
        tables={"engine_mirror": frame},
        metrics={"tables": len(rows), "rows": float(frame["num_rows"].sum())},
        display={"engine_mirror": {"read_with": {"type": "text", "raw_value": _HINT}}},
    )


_HINT = "polars.read_delta('<store>/mirror/<table>'), or any engine that reads Delta tables"


def _write_log(store: FolderStore, root: Path, table: str, refs: list[ObjectRef]) -> None:
    """Write version 0 of a Delta log (protocol reader 1, writer 2) by atomic replacement."""
    fields = [
        {"name": name, "type": DELTA_TYPES[dtype], "nullable": True, "metadata": {}}
        for name, dtype in tables.TABLES[table].columns.items()
    ]
    actions: list[dict] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {
            "metaData": {
                "id": f"00000000-0000-0000-0000-{abs(hash_name(table)):012d}",
                "name": table,
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps({"type": "struct", "fields": fields}),
                "partitionColumns": [],
                "configuration": {},
                "createdTime": 0,
            }
        },
    ]
    objects = sorted({ref.sha256: ref for ref in refs}.items())
    log = root / "_delta_log"
    log.mkdir(parents=True, exist_ok=True)
    for sha256, ref in objects:
        path, source = root / f"{sha256}.parquet", store.path_of(ref.key)
        if not (path.exists() and path.samefile(source)):  # none yet, or of an object made anew
            path.unlink(missing_ok=True)
            os.link(source, path)
        actions.append(
            {
                "add": {
                    "path": path.name,
                    "partitionValues": {},
                    "size": path.stat().st_size,
                    "modificationTime": 0,
                    "dataChange": True,
                    "stats": json.dumps({"numRecords": ref.num_rows}),
                    "tags": {"sha256": sha256},
                }
            }
        )
    temp = log / ".new"
    temp.write_text("".join(f"{json.dumps(action)}\n" for action in actions))
    temp.rename(log / f"{0:020d}.json")
    for old in root.glob("*.parquet"):
        if old.stem not in dict(objects):
            old.unlink()  # a link that an earlier log named; the object stays


def hash_name(name: str) -> int:
    """A number of at most 12 digits made of a name, the same everywhere."""
    import hashlib

    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def read_mirror(store: FolderStore, table: str) -> pl.DataFrame:
    """Read a mirrored table through Delta, as another engine would."""
    return pl.read_delta(str(store.root / "mirror" / table))
