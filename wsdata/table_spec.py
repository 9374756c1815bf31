"""What a table is: its columns, and the columns that sort and identify its rows."""

from dataclasses import dataclass

import polars as pl

STR, INT, F64, BOOL, BIN = pl.String, pl.Int64, pl.Float64, pl.Boolean, pl.Binary
VECTOR = pl.List(pl.Float32)
INTS, TEXTS = pl.List(pl.Int64), pl.List(pl.String)


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """One table: its columns, the columns that sort and identify a row, and its blob keys."""

    columns: dict[str, pl.DataType | type[pl.DataType]]
    key: tuple[str, ...]
    blobs: tuple[str, ...] = ()


def make_table(key: tuple[str, ...], blobs: tuple[str, ...] = (), /, **columns) -> Table:  # noqa: ANN003
    """Make a table of named columns, its key and the columns that name blobs first."""
    return Table(columns=columns, key=key, blobs=blobs)
