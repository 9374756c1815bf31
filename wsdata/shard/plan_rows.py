"""Rows of a dataset version in the order of the plan, out of tables larger than memory.

Tables are sorted by sample, the plan's rows by bucket, stream and tier before that. So both tables
are read once, side by side, some rows at a time, and each row is appended to a file of its (bucket,
stream, tier): there they lie in order. Memory is that of some rows, whatever their number; the disk
holds both tables and, packed, what the training index takes of them.
"""

import hashlib
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata.curate.manifest import ManifestDigest
from wsdata.errors import IntegrityError, PlanError
from wsdata.records import ObjectRef
from wsdata.shard.plan_atoms import Atom, AtomBuilder
from wsdata.shard.training_index_write import INDEXED, ROWS_AT_ONCE, SOURCED, Widths
from wsdata.store import BlobStore
from wsdata.tables import TABLES

I64 = NDArray[np.int64]

_LENGTH_BYTES = 8
_OF_MANIFEST = ("sample_id", "bucket", *SOURCED)


class AtomsAlone:
    """A `SampleIndex` that knows how many samples there are, and none of them: enough to compile.

    Whoever asks for a sample gets a LookupError.
    """

    def __init__(self, atoms: tuple[Atom, ...]) -> None:
        self.atoms = atoms

    def names(self, rows: I64) -> list[tuple[str, str]]:
        """Refuse."""
        raise LookupError(f"{len(rows)} rows: only their number is known yet")

    def rows_of_clip(self, clip_id: str) -> I64:
        """Refuse."""
        raise LookupError(f"clip {clip_id}: only the number of samples is known yet")

    def rows_of_samples(self, sample_ids: Sequence[str]) -> I64:
        """Refuse."""
        raise LookupError(f"{len(sample_ids)} samples: only their number is known yet")


@dataclass(frozen=True, kw_only=True, slots=True)
class SortedRows:
    """Rows of a version, sorted.

    Attributes:
        atoms: What they are, in order.
        widths: For `write_training_index`.
        lost: Samples of each bucket that are in the manifest and not in the index.
        manifest_digest: As `curate.manifest.manifest_digest`.
        index_path: The table ``dataset_index``, as it was stored.
        piece_paths: Where the rows of each atom lie.
    """

    atoms: tuple[Atom, ...]
    widths: Widths
    lost: dict[str, int]
    manifest_digest: str
    index_path: Path
    piece_paths: tuple[Path, ...]

    def chunks(self) -> Iterator[pl.DataFrame]:
        """Yield all rows in order, columns `INDEXED` and `SOURCED`, some at a time."""
        for path in self.piece_paths:
            waiting, num_waiting = list[pl.DataFrame](), 0
            for piece in _pieces(path):
                waiting.append(piece)
                num_waiting += piece.height
                if num_waiting >= ROWS_AT_ONCE:
                    yield pl.concat(waiting)
                    waiting, num_waiting = [], 0
            if waiting:
                yield pl.concat(waiting)


def sort_tables(
    store: BlobStore,
    index: ObjectRef,
    manifest: ObjectRef,
    folder: Path,
    *,
    rows_at_once: int = ROWS_AT_ONCE,
) -> SortedRows:
    """Sort a dataset index, joined with the manifest that it was made of.

    Args:
        store: Where both lie.
        index: An object of table ``dataset_index``.
        manifest: One of table ``manifests``, with every sample of the index.
        folder: An empty one, for what does not fit into memory; to be deleted afterwards.
        rows_at_once: Rows of each table in memory.

    Raises:
        IntegrityError: Bytes of a table are not what the ledger says.
        ObjectMissing: The store has lost one.
        PlanError: A table lists a sample twice, or is not sorted by sample.
    """
    index_path = _fetch(store, index, folder / "dataset_index.parquet")
    manifest_path = _fetch(store, manifest, folder / "manifests.parquet")
    columns = tuple(TABLES["manifests"].columns)
    merge = _Merge(_batches(manifest_path, manifest, columns, rows_at_once))
    spill = _Spill(folder)
    for rows in _batches(index_path, index, INDEXED, rows_at_once):
        spill.add(merge.sourced(rows))
    merge.finish()
    atoms, paths = spill.close()
    return SortedRows(
        atoms=atoms,
        widths=Widths(spill.id_width, merge.key_width),
        lost=merge.lost,
        manifest_digest=merge.digest.hexdigest(),
        index_path=index_path,
        piece_paths=paths,
    )


class _Merge:
    """Joins rows that come sorted with those of a manifest, which is read as far as they reach."""

    def __init__(self, batches: Iterator[pl.DataFrame]) -> None:
        self.lost: dict[str, int] = {}
        self.key_width = 1
        self.digest = ManifestDigest()
        self._batches = batches
        self._waiting = pl.DataFrame(schema=TABLES["manifests"].columns).select(_OF_MANIFEST)

    def sourced(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Join rows that follow those of the call before."""
        last = cast("str", rows["sample_id"][-1])
        parts = [self._waiting]
        while not parts[-1].height or parts[-1]["sample_id"][-1] < last:
            batch = self._next()
            if batch is None:
                break
            parts.append(batch)
        read = pl.concat(parts)
        num_passed = int((read["sample_id"] <= last).sum())
        passed, self._waiting = read[:num_passed], read[num_passed:]
        self._count_lost(passed.join(rows, on="sample_id", how="anti"))
        sources = passed.select("sample_id", *SOURCED)
        return rows.join(sources, on="sample_id", how="left", maintain_order="left")

    def finish(self) -> None:
        """Read what is left: no row of the index follows."""
        self._count_lost(self._waiting)
        while (batch := self._next()) is not None:
            self._count_lost(batch)

    def _next(self) -> pl.DataFrame | None:
        batch = next(self._batches, None)
        if batch is None:
            return None
        self.digest.add(batch)
        self.key_width = max(self.key_width, _longest(batch["transcode_key"]))
        return batch.select(_OF_MANIFEST)

    def _count_lost(self, rows: pl.DataFrame) -> None:
        for bucket, count in rows["bucket"].value_counts().iter_rows():
            self.lost[bucket] = self.lost.get(bucket, 0) + count


class _Spill:
    """Appends rows to a file of their atom, and counts what it holds."""

    def __init__(self, folder: Path) -> None:
        self.id_width = 1
        self._folder = folder
        self._builders: dict[tuple[Any, ...], AtomBuilder] = {}
        self._paths: dict[tuple[Any, ...], Path] = {}

    def add(self, rows: pl.DataFrame) -> None:
        self.id_width = max(self.id_width, _longest(rows["sample_id"]))
        parts = rows.partition_by("bucket", "stream", "tier", as_dict=True, maintain_order=True)
        for name, piece in parts.items():
            if name not in self._builders:
                self._builders[name] = AtomBuilder()
                self._paths[name] = self._folder / f"{len(self._paths):05d}.rows"
            self._builders[name].add(piece)
            _append(self._paths[name], piece)

    def close(self) -> tuple[tuple[Atom, ...], tuple[Path, ...]]:
        """Return the atoms in order, and the file of each."""
        names = sorted(self._builders)
        atoms: list[Atom] = []
        for name in names:
            (atom,) = self._builders[name].close()
            first_row = atoms[-1].end_row if atoms else 0
            atoms.append(replace(atom, first_row=first_row))
        return tuple(atoms), tuple(self._paths[name] for name in names)


def _append(path: Path, piece: pl.DataFrame) -> None:
    packed = io.BytesIO()
    piece.write_ipc_stream(packed, compression="lz4")
    with path.open("ab") as file:
        file.write(len(packed.getbuffer()).to_bytes(_LENGTH_BYTES, "little"))
        file.write(packed.getbuffer())


def _pieces(path: Path) -> Iterator[pl.DataFrame]:
    with path.open("rb") as file:
        while length := file.read(_LENGTH_BYTES):
            yield pl.read_ipc_stream(io.BytesIO(file.read(int.from_bytes(length, "little"))))


def _fetch(store: BlobStore, ref: ObjectRef, path: Path) -> Path:
    store.fetch(ref.key, path)
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != ref.sha256:
        raise IntegrityError(
            f"{ref.table} of {ref.partition} ({ref.key}): bytes have digest {found[:12]}, the "
            f"ledger says {ref.sha256[:12]}: delete the object and run again"
        )
    return path


def _batches(
    path: Path, ref: ObjectRef, columns: tuple[str, ...], rows_at_once: int
) -> Iterator[pl.DataFrame]:
    """Yield rows of a table as they lie, none twice and in order of sample."""
    scan = pl.scan_parquet(
        path,
        schema=TABLES[ref.table].columns,
        missing_columns="insert",
        extra_columns="ignore",
        glob=False,
    ).select(columns)
    last = ""
    for low in range(0, scan.select(pl.len()).collect().item(), rows_at_once):
        rows = scan.slice(low, rows_at_once).collect()
        ids = rows["sample_id"]
        before = pl.concat([pl.Series("sample_id", [last]), ids[:-1]])
        if (wrong := ids.filter(ids <= before)).len():
            raise PlanError(
                f"{ref.table} of {ref.partition} ({ref.key}) lists samples twice, or not in their "
                f"order, such as {wrong[0]}: rebuild it before planning"
            )
        last = cast("str", ids[-1])
        yield rows


def _longest(texts: pl.Series) -> int:
    return cast("int | None", texts.str.len_bytes().max()) or 0
