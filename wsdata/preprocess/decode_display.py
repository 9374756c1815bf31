"""What people look at after a drop was decoded: counts, a histogram, and the files that failed.

Rows are made by `decode_drop`.
"""

from typing import Any

import polars as pl

from wsdata.tables import TRANSCODES

MAX_FILES = 200  # of a table that the UI draws at once
SEVERITIES = ("quarantined", "salvaged", "empty")  # before files that are well


def decode_display(
    tables: dict[str, pl.DataFrame], paths: dict[str, str]
) -> dict[str, dict[str, Any]]:
    """Return Dagster metadata by asset name.

    Args:
        tables: The step's rows by table.
        paths: Of each asset id, a path that people know it by.
    """
    shown: dict[str, dict[str, Any]] = {
        "clips": {
            "num_clips": _int(tables["clips"].height),
            "duration_histogram": _md(_durations(tables["clips"])),
            "aspects": _md(_counted(tables["clips"], "aspect")),
        },
        "audio_tracks": {
            "num_kept": _int(tables["audio_tracks"].filter(pl.col("status") == "kept").height),
            "status": _md(_counted(tables["audio_tracks"], "status")),
        },
        "frame_packs": {
            "num_packs": _int(tables["frame_packs"].height),
            "num_frames": _int(_total(tables["frame_packs"], "num_color")),
            "size_bytes": _int(_total(tables["frame_packs"], "size_bytes")),
            "num_prints": _int(tables["pass_fingerprints"].height),
        },
        "decode_status": {
            "num_assets": _int(tables["decode_status"].height),
            "status": _md(_counted(tables["decode_status"], "status")),
            "files": _md(_files(tables["decode_status"], paths)),
        },
    }
    for rung in TRANSCODES:
        made = tables[f"transcodes_{rung}"]
        shown[f"transcodes_{rung}"] = {
            "num_transcodes": _int(made.height),
            "num_frames": _int(_total(made, "num_frames")),
            "size_bytes": _int(_total(made, "size_bytes")),
            "sizes": _md(_counted(made.with_columns(_size_name()), "size")),
        }
    return shown


def _size_name() -> pl.Expr:
    return pl.format("{}x{}", "width_px", "height_px").alias("size")


def _int(value: int) -> dict[str, Any]:
    return {"type": "int", "raw_value": value}


def _md(text: str) -> dict[str, Any]:
    return {"type": "md", "raw_value": text}


def _total(rows: pl.DataFrame, column: str) -> int:
    return int(rows[column].sum() or 0)


def _table_md(heads: list[str], rows: list[list[Any]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    lines += [f"| {' | '.join(_cell(value) for value in row)} |" for row in rows]
    return "\n".join(lines)


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "/").replace("\n", " ")


def _counted(rows: pl.DataFrame, column: str) -> str:
    counts = rows.group_by(column).len().sort(column)
    return _table_md([column, "count"], [list(row) for row in counts.iter_rows()])


def _durations(clips: pl.DataFrame) -> str:
    videos = clips.filter(pl.col("media_kind") == "video")
    edges = [(low, low + 1) for low in range(2, 14)]
    counts = [
        (low, high, videos.filter(pl.col("duration_s").is_between(low, high, closed="left")).height)
        for low, high in edges
    ]
    most = max([count for _, _, count in counts], default=0)
    rows = [
        [f"{low}-{high} s", count, "#" * round(30 * count / most)]
        for low, high, count in counts
        if count
    ]
    stills = clips.height - videos.height
    return _table_md(["length", "clips", ""], [*rows, *([["still", stills, ""]] if stills else [])])


def _files(status: pl.DataFrame, paths: dict[str, str]) -> str:
    """Every file and what became of it, the worst first; of a large drop the first alone."""
    shown = ("status", "num_clips", "frames_decoded", "frames_promised", "attempts", "reason")
    rows = [
        [paths.get(row["asset_id"], row["asset_id"][:12]), *(row[name] for name in shown)]
        for row in status.iter_rows(named=True)
    ]
    heads = ["file", "status", "clips", "frames", "promised", "attempts", "reason"]
    rows.sort(key=lambda row: (_severity(row[1], row[2]), str(row[0])))
    told = _table_md(heads, rows[:MAX_FILES])
    if len(rows) <= MAX_FILES:
        return told
    return (
        f"{told}\n\nThe {MAX_FILES} worst of {len(rows)} files. All of them: "
        "`wsdata funnel --drop KEY --json`, with this drop's key."
    )


def _severity(status: str, num_clips: int) -> int:
    if status == "ok":
        return len(SEVERITIES) + (num_clips > 0)
    return SEVERITIES.index(status) if status in SEVERITIES else 0
