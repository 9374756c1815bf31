"""Tracks of actions and sensors from outside, parsed and cut with their clips: the child's job.

A track is a CSV file (comma, semicolon or tab) or a Parquet file of one row per sample. One
column holds the time since the first picture: ``time``, ``timestamp``, ``t`` or ``ts`` in
seconds, or with one of the endings ``_s``, ``_ms``, ``_us``, ``_ns``, or a unit in brackets.
Every other column of numbers is a channel; a unit may follow its name in brackets, as in
``speed [m/s]``. Which clip gets which track belongs to `actions`.
"""

import csv
import io
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import DecodeFailed

MAX_ROWS = 20_000_000  # 1 kHz for five hours
MAX_CHANNELS = 256
MAX_NAME = 64
MAX_BAD_SHARE = 0.5  # of rows without a time; beyond, the column is no time
MIN_COVERAGE = 0.5  # of a clip's frames
MAX_GAP_STEPS, MAX_GAP_S = 5, 0.5  # between rows; over a longer one nothing is interpolated
MAX_LEVELS = 32  # of a discrete channel: whole numbers, few of them
OUTSIDE_FACTOR = 100  # times that reach so much further than the video are of another unit
FRAMES_PER_S = 24
HEAD_BYTES = 1 << 16

TIME_NAMES = ("time", "timestamp", "t", "ts")
TIME_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
COLUMNS = ("kind", "frame_index", "time_s")  # of a cut track, before its channels

Column = tuple[str, NDArray[np.float64]]  # its header, and a number or NaN of every row

_HEADER = re.compile(r"^(?P<name>.*?)\s*[\[(](?P<unit>[^\])]{1,24})[\])]$")


@dataclass(frozen=True, slots=True)
class Channel:
    """One column of numbers; `kind` is discrete where only few whole numbers occur."""

    name: str
    unit: str | None
    kind: str  # continuous | discrete

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        return {"name": self.name, "unit": self.unit, "kind": self.kind}


@dataclass(frozen=True, kw_only=True, slots=True)
class Track:
    """A parsed track: times increase, n rows by c channels; a value that was not told is NaN."""

    times_n: NDArray[np.float64]
    values_nc: NDArray[np.float64]
    channels: list[Channel]
    num_dropped: int  # rows without a time, or with that of a later row

    step_s: float  # median seconds between rows; 0 for one alone


def cut_job(args: dict[str, Any], source: BinaryIO, out_dir: Path) -> dict[str, Any]:
    """Cut one track along the clips of its asset; runs in the sandboxed child.

    Args:
        args: ``suffix``, and ``clips``, each with ``clip_id``, ``start_s``, ``end_s`` and
            ``num_frames``.
        source: The track.
        out_dir: Where cut tracks are left; the result names them by file name.

    Returns:
        ``clips``: one dict per clip, with ``file`` where there is one.

    Raises:
        DecodeFailed: It is no track of the form told above; the message says what it lacks.
    """
    os.environ.setdefault("POLARS_MAX_THREADS", "1")
    track = parse_track(source, args["suffix"])
    end_s = max(clip["end_s"] for clip in args["clips"])
    _check_unit(track, end_s)
    told: list[dict[str, Any]] = []
    for index, clip in enumerate(args["clips"]):
        made, data = cut_track(track, clip)
        if data is not None:
            made["file"] = f"{index:06d}_actions.parquet"
            (out_dir / made["file"]).write_bytes(data)
        told.append({"clip_id": clip["clip_id"], **made})
    return {"clips": told}


# parsing -------------------------------------------------------------------------------------


def parse_track(source: BinaryIO, suffix: str) -> Track:
    """Read a track.

    Args:
        source: Its file.
        suffix: ``.csv`` or ``.parquet``.

    Raises:
        DecodeFailed: It is not one; the message says why.
    """
    named = _read_parquet(source) if suffix == ".parquet" else _read_csv(source)
    num_rows = len(named[0][1]) if named else 0
    if num_rows > MAX_ROWS:
        raise DecodeFailed(f"more than {MAX_ROWS} rows: deliver it at a lower rate, or in parts")
    index, scale = _time_column([name for name, _ in named])
    name, times_n = named.pop(index)
    times_n = times_n * scale
    is_timed_n = np.isfinite(times_n)
    num_bad = int(np.count_nonzero(~is_timed_n))
    if not num_rows or num_bad > MAX_BAD_SHARE * num_rows:
        raise DecodeFailed(f"{num_bad} of {num_rows} rows have no number as {name!r}")
    channels, columns = _channels(named, is_timed_n)
    times_n = times_n[is_timed_n]
    order_n = np.argsort(times_n, kind="stable")
    times_n = times_n[order_n]
    is_last_n = np.append(np.diff(times_n) > 0, True)  # of rows of one time the last stands
    values_nc = np.stack([column[order_n][is_last_n] for column in columns], axis=1)
    times_n = times_n[is_last_n]
    return Track(
        times_n=times_n,
        step_s=float(np.median(np.diff(times_n))) if len(times_n) > 1 else 0.0,
        values_nc=values_nc,
        channels=channels,
        num_dropped=num_rows - int(np.count_nonzero(is_last_n)),
    )


def _read_parquet(source: BinaryIO) -> list[Column]:
    import polars as pl

    try:
        schema = pl.read_parquet_schema(source)
        is_number = {
            name: dtype.is_numeric() or dtype == pl.Boolean for name, dtype in schema.items()
        }
        named = [name for name, is_one in is_number.items() if is_one]
        _check_width(len(named))
        source.seek(0)
        table = pl.read_parquet(source, columns=named, n_rows=MAX_ROWS + 1)
        table = table.select(pl.all().cast(pl.Float64, strict=False))
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise DecodeFailed(f"no readable Parquet: {_first_line(error)}") from error
    return [(name, table[name].to_numpy()) for name in named]


def _read_csv(source: BinaryIO) -> list[Column]:
    import polars as pl

    names, separator, num_lines = _csv_header(source)
    _check_width(len(names))
    source.seek(0)
    schema = {f"column_{index}": pl.Float64 for index in range(len(names))}
    try:
        table = pl.read_csv(
            source, has_header=False, skip_lines=num_lines, schema=schema, separator=separator,
            comment_prefix="#", ignore_errors=True, truncate_ragged_lines=True,
            encoding="utf8-lossy", n_rows=MAX_ROWS + 1,
        )  # fmt: skip
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError) as error:
        raise DecodeFailed(f"no readable CSV: {_first_line(error)}") from error
    return [(name, table[column].to_numpy()) for name, column in zip(names, schema, strict=True)]


def _csv_header(source: BinaryIO) -> tuple[list[str], str, int]:
    """Names of the columns, what parts them, and the number of lines up to the first row."""
    head = source.read(HEAD_BYTES)
    if b"\0" in head:
        raise DecodeFailed("it holds null bytes: text of one byte per ASCII character is expected")
    try:
        text = head.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = head.decode("latin-1")
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            separator = max(",;\t", key=line.count)
            return next(csv.reader([line], delimiter=separator)), separator, number
    raise DecodeFailed(f"no header line in its first {HEAD_BYTES} bytes")


def _check_width(num_columns: int) -> None:
    if num_columns > MAX_CHANNELS + 1:
        raise DecodeFailed(f"{num_columns} columns, {MAX_CHANNELS + 1} at most")


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or ["no word on why"])[0][:200]


def _split_unit(header: str) -> tuple[str, str | None]:
    printable = "".join(c for c in header if c.isprintable()).strip().strip('"').strip()
    found = _HEADER.match(printable)
    if found is None:
        return printable[:MAX_NAME], None
    return found["name"][:MAX_NAME], found["unit"].strip()


def _time_column(names: list[str]) -> tuple[int, float]:
    """Index of the column that holds the time, and how many seconds one of it is."""
    for wanted in TIME_NAMES:
        for index, name in enumerate(names):
            plain, unit = _split_unit(name)
            base, _, ending = plain.lower().rpartition("_")
            if plain.lower() == wanted and (unit or "s").lower() in TIME_UNITS:
                return index, TIME_UNITS[(unit or "s").lower()]
            if base == wanted and ending in TIME_UNITS:
                return index, TIME_UNITS[ending]
    raise DecodeFailed(
        f"no column of times among {[name[:MAX_NAME] for name in names[:8]]}: one of {TIME_NAMES} "
        f"is expected, in seconds or with one of the endings _{', _'.join(TIME_UNITS)}"
    )


def _channels(
    named: list[Column], is_timed_n: NDArray[np.bool_]
) -> tuple[list[Channel], list[NDArray[np.float64]]]:
    """Columns that hold numbers, named so that each name occurs once and none is taken."""
    channels: list[Channel] = []
    columns: list[NDArray[np.float64]] = []
    taken: set[str] = set(COLUMNS)
    for header, whole_n in named:
        column_n = whole_n[is_timed_n]
        column_n = np.where(np.isfinite(column_n), column_n, np.nan)
        known_n = column_n[np.isfinite(column_n)]
        if not len(known_n):
            continue
        name, unit = _split_unit(header)
        unique, number = name or "channel", 2
        while unique in taken:
            unique, number = f"{name or 'channel'}_{number}", number + 1
        taken.add(unique)
        channels.append(Channel(unique, unit, _kind(known_n)))
        columns.append(column_n)
    if not channels:
        raise DecodeFailed(f"no column of numbers beside the time, among {len(named)}")
    return channels, columns


def _kind(known_n: NDArray[np.float64]) -> str:
    is_whole = bool(np.all(known_n == np.rint(known_n)))
    if is_whole and len(np.unique(known_n[: 1 << 20])) <= MAX_LEVELS:
        return "discrete"
    return "continuous"


def _check_unit(track: Track, end_s: float) -> None:
    first_s, last_s = float(track.times_n[0]), float(track.times_n[-1])
    if last_s - first_s > OUTSIDE_FACTOR * max(end_s, 1.0):
        raise DecodeFailed(
            f"its times span {last_s - first_s:g} s, the clips end at {end_s:g} s: name the unit "
            "of its times, as in time_ms"
        )


# cutting -------------------------------------------------------------------------------------


def cut_track(track: Track, clip: dict[str, Any]) -> tuple[dict[str, Any], bytes | None]:
    """Cut a track along one clip.

    Args:
        track: The track.
        clip: ``start_s`` and ``end_s`` in seconds from the first picture, and ``num_frames``.

    Returns:
        Columns of ``action_tracks``, and the cut track as Parquet where it meets the clip. Its
        rows are those of [start, end) as they came (kind ``raw``), then one for each frame of the
        clip at 24 a second (kind ``frame``); both in seconds from the clip's start. A frame's
        values lie on the line between the rows around it, for a discrete channel they are
        the last row's; where the next row is too far they are null.
    """
    start_s, end_s = clip["start_s"], clip["end_s"]
    first, last = np.searchsorted(track.times_n, [start_s, end_s]).tolist()
    frame_times_t = np.arange(clip["num_frames"]) / FRAMES_PER_S
    frames_tc, is_covered_t = _at_frames(track, start_s + frame_times_t)
    coverage = float(is_covered_t.mean()) if len(is_covered_t) else 0.0
    told: dict[str, Any] = {
        "num_rows": last - first,
        "num_dropped": track.num_dropped,
        "rate_hz": round(1 / track.step_s, 6) if track.step_s > 0 else None,
        "coverage_share": round(coverage, 6),
        "channels_json": json.dumps([channel.to_json() for channel in track.channels]),
    }
    if coverage < MIN_COVERAGE:
        spans = f"[{track.times_n[0]:.3f}, {track.times_n[-1]:.3f}] s"
        reason = (
            f"{coverage:.0%} of [{start_s:.3f}, {end_s:.3f}) s are covered; its rows span {spans}"
        )
        return told | {"status": "misaligned", "reason": reason}, None
    data = _write(track, first, last, start_s, frame_times_t, frames_tc)
    return told | {"status": "kept", "reason": None}, data


def _at_frames(
    track: Track, times_t: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Values at some times, and whether the track has any there."""
    gap_s = max(MAX_GAP_STEPS * track.step_s, MAX_GAP_S)
    ends_s = times_t[[0, -1]] + [-gap_s, gap_s]  # nothing further off has a say
    first, last = np.searchsorted(track.times_n, ends_s).tolist()
    near_s, near_nc = track.times_n[first : last + 1], track.values_nc[first : last + 1]
    values_tc = np.full((len(times_t), len(track.channels)), np.nan)
    for index, channel in enumerate(track.channels):
        is_known_n = np.isfinite(near_nc[:, index])
        known_s, known_n = near_s[is_known_n], near_nc[is_known_n, index]
        if not len(known_s):
            continue
        after_t = np.searchsorted(known_s, times_t, side="right")
        before_t = np.clip(after_t - 1, 0, len(known_s) - 1)
        next_t = np.clip(after_t, 0, len(known_s) - 1)
        since_t = times_t - known_s[before_t]
        between_t = known_s[next_t] - known_s[before_t]
        is_near_t = (after_t > 0) & (since_t <= gap_s)
        if channel.kind == "discrete":
            values_t = known_n[before_t]
        else:
            share_t = np.divide(since_t, between_t, out=np.zeros_like(since_t), where=between_t > 0)
            values_t = known_n[before_t] + share_t * (known_n[next_t] - known_n[before_t])
            is_near_t &= (between_t <= gap_s) & ((after_t < len(known_s)) | (since_t == 0))
        values_tc[is_near_t, index] = values_t[is_near_t]
    return values_tc, np.asarray(np.isfinite(values_tc).any(axis=1))


def _write(
    track: Track,
    first: int,
    last: int,
    start_s: float,
    frame_times_t: NDArray[np.float64],
    frames_tc: NDArray[np.float64],
) -> bytes:
    import polars as pl

    num_raw, num_frames = last - first, len(frame_times_t)
    columns = [
        pl.Series("kind", ["raw"] * num_raw + ["frame"] * num_frames, dtype=pl.String),
        pl.Series("frame_index", [None] * num_raw + list(range(num_frames)), dtype=pl.Int64),
        pl.Series("time_s", np.concatenate([track.times_n[first:last] - start_s, frame_times_t])),
    ]
    for index, channel in enumerate(track.channels):
        values = np.concatenate([track.values_nc[first:last, index], frames_tc[:, index]])
        columns.append(pl.Series(channel.name, values).fill_nan(None))
    buffer = io.BytesIO()
    table = pl.DataFrame(columns)
    table.write_parquet(buffer, compression="zstd", compression_level=3, statistics=False)
    return buffer.getvalue()
