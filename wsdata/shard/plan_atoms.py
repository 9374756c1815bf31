"""Rows of a training index as plans count them: sorted by bucket, stream, tier and sample id.

All samples of one (bucket, stream, tier), an atom, are then one range of rows, and a pool is a
few ranges: a plan holds some integers for each, and no list of samples. What is known of single
samples is asked of a `SampleIndex`; the packed one is `training_index`.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata.errors import PlanError

I64 = NDArray[np.int64]

ORDER = ("bucket", "stream", "tier", "sample_id")

_PLANNED = ("sample_id", "clip_id", "stream", "bucket", "tier", "num_tokens")
_ROWS_AT_ONCE = 1_000_000
_NUM_NAMED = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Atom:
    """Rows [first_row, first_row + num_samples): all samples of one bucket, stream and tier.

    `digest` is the sha256 of their ids, in order, each followed by a newline.
    """

    bucket: str
    stream: str
    tier: str
    first_row: int
    num_samples: int
    num_tokens: int
    digest: str

    @property
    def end_row(self) -> int:
        """Row after the last."""
        return self.first_row + self.num_samples

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        return asdict(self)


class SampleIndex(Protocol):
    """What is asked about single samples, by row or for their rows."""

    atoms: tuple[Atom, ...]

    def names(self, rows: I64) -> list[tuple[str, str]]:
        """Return (sample id, clip id) of each row, in the order asked for."""
        ...

    def rows_of_clip(self, clip_id: str) -> I64:
        """Return the rows of a clip's samples, ascending; none where it is unknown."""
        ...

    def rows_of_samples(self, sample_ids: Sequence[str]) -> I64:
        """Return the row of each sample, in the order asked for; -1 where it is unknown."""
        ...


class SampleTable:
    """A `SampleIndex` in memory, over rows of table ``dataset_index``.

    `frame` is sorted as rows count.
    """

    def __init__(self, index_rows: pl.DataFrame) -> None:
        """Sort the rows.

        Raises:
            PlanError: A sample occurs twice.
        """
        self.frame = sort_rows(index_rows.select(_PLANNED))
        self.atoms = atoms_of([self.frame])

    def names(self, rows: I64) -> list[tuple[str, str]]:
        """Return (sample id, clip id) of each row, in the order asked for."""
        taken = self.frame.select("sample_id", "clip_id")[rows]
        return cast("list[tuple[str, str]]", taken.rows())

    def rows_of_clip(self, clip_id: str) -> I64:
        """Return the rows of a clip's samples, ascending; none where it is unknown."""
        return self.rows_of_clips([clip_id])

    def rows_of_clips(self, clip_ids: Sequence[str]) -> I64:
        """Return the rows of the samples of any of some clips, ascending."""
        return self.frame["clip_id"].is_in(list(clip_ids)).arg_true().to_numpy().astype(np.int64)

    def rows_of_samples(self, sample_ids: Sequence[str]) -> I64:
        """Return the row of each sample, in the order asked for; -1 where it is unknown."""
        wanted = pl.DataFrame({"sample_id": pl.Series(list(sample_ids), dtype=pl.String)})
        rows = self.frame.select("sample_id").with_row_index("row")
        found = wanted.join(rows, on="sample_id", how="left", maintain_order="left")
        return found["row"].cast(pl.Int64).fill_null(-1).to_numpy()


def sort_rows(index_rows: pl.DataFrame) -> pl.DataFrame:
    """Sort rows of a dataset index as plans count them.

    Raises:
        PlanError: A sample occurs twice.
    """
    ids = index_rows["sample_id"]
    if ids.n_unique() != len(ids):
        twice = ids.filter(ids.is_duplicated()).unique().sort().head(_NUM_NAMED).to_list()
        raise PlanError(
            f"the dataset index lists samples twice, such as {twice}: rebuild it before planning"
        )
    return index_rows.sort(ORDER).rechunk()


def atoms_of(chunks: Iterable[pl.DataFrame]) -> tuple[Atom, ...]:
    """Find the atoms of rows that come sorted, in chunks of any size.

    Raises:
        PlanError: Rows are not sorted.
    """
    builder = AtomBuilder()
    for chunk in chunks:
        builder.add(chunk)
    return builder.close()


class AtomBuilder:
    """Finds the atoms of rows that come sorted; holds one atom's counts and no rows."""

    def __init__(self) -> None:
        self._done: list[Atom] = []
        self._name: tuple[str, str, str] | None = None
        self._num_samples = self._num_tokens = self._first_row = 0
        self._state = hashlib.sha256()

    def add(self, chunk: pl.DataFrame) -> None:
        """Take the next rows.

        Raises:
            PlanError: They are not sorted, atom by atom.
        """
        if not chunk.height:
            return
        names = chunk.select(pl.struct("bucket", "stream", "tier").rle().struct.unnest())
        low = 0
        for length, name in cast("list[tuple[int, dict[str, str]]]", names.rows()):
            atom = (name["bucket"], name["stream"], name["tier"])
            if atom != self._name:
                self._end()
                self._begin(atom)
            part = chunk.slice(low, length)
            self._hash(part["sample_id"])
            self._num_samples += length
            self._num_tokens += int(part["num_tokens"].sum())
            low += length

    def close(self) -> tuple[Atom, ...]:
        """Return the atoms, in order."""
        self._end()
        return tuple(self._done)

    def _begin(self, name: tuple[str, str, str]) -> None:
        if self._done:
            last = self._done[-1]
            if name <= (last.bucket, last.stream, last.tier):
                raise PlanError(
                    f"rows of {name} come after those of {last.bucket}, {last.stream}, "
                    f"{last.tier}: sort the index by {', '.join(ORDER)}"
                )
        self._name = name

    def _end(self) -> None:
        if self._name is None:
            return
        bucket, stream, tier = self._name
        self._done.append(
            Atom(
                bucket=bucket,
                stream=stream,
                tier=tier,
                first_row=self._first_row,
                num_samples=self._num_samples,
                num_tokens=self._num_tokens,
                digest=self._state.hexdigest(),
            )
        )
        self._first_row += self._num_samples
        self._num_samples = self._num_tokens = 0
        self._state = hashlib.sha256()

    def _hash(self, ids: pl.Series) -> None:
        for low in range(0, len(ids), _ROWS_AT_ONCE):
            part = cast("list[str]", ids.slice(low, _ROWS_AT_ONCE).to_list())
            self._state.update("".join(f"{sample_id}\n" for sample_id in part).encode())
