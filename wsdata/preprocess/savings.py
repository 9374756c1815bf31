"""What the order of the filters saves: clips that a gate stopped before a later filter's work.

Filters that can stop a clip come first, the cheapest of them before the others; those that stop
nothing spare nobody anything, so they come last, side by side, and no chain is longer than the
links that it needs. In processor seconds for a clip of 7 s (45 real clips, one core):

| link | filter | reads | costs |
|---:|---|---|---:|
| 1 | safety_list, technical | rows | under 0.001 |
| 2 | safety | up to 8 pictures | 0.20 |
| 3 | motion | up to 16 pairs of pictures | 0.06 |
| 3 | quality | up to 8 pictures | 0.08 |
| 3 | faces | 4 pictures | 0.17 |
| 3 | audio | sound | 0.2 to 0.5 |
| 3 | overlay | 3 pictures | 0.40 |
| 3 | actions | the 256p rung, of a clip with a track alone | 0.4 s |
| 4 | text_tags | rows of overlay | under 0.001 |

What a filter was spared is in its rows, as ``gated by X``; the seconds are those clips times what
a clip took the filter's own workers (`wsdata.units`), and in no row: a clock is not repeatable.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import TYPE_CHECKING

import polars as pl

from wsdata.units import SPEEDS_FORMAT, speeds_of

if TYPE_CHECKING:
    from wsdata.store import BlobStore

NEWEST = 8  # workers of a filter whose pace is asked
NEWEST_DAYS = 7  # of what workers of a filter left: keys begin with the day
GATED_BY = "gated by {}: {}"  # the reason of a row that was spared

_WHO = r"^gated by ([a-z_]+): "


def spared(scores: pl.DataFrame, clips: pl.DataFrame) -> pl.DataFrame:
    """Clips that each filter was spared, by the gate that had stopped them.

    Args:
        scores: Rows of any score tables, together.
        clips: Rows of ``clips``.

    Returns:
        ``filter, source, gated_by, num_clips, media_s``, sorted.
    """
    gated = scores.filter(pl.col("status") == "unscored").with_columns(
        gated_by=pl.col("reason").str.extract(_WHO, 1)
    )
    lengths = clips.select("clip_id", media_s=pl.col("duration_s").fill_null(0.0)).unique("clip_id")
    return (
        gated.filter(pl.col("gated_by").is_not_null())
        .select("clip_id", "filter", "source", "gated_by")
        .unique()
        .join(lengths, on="clip_id", how="inner")
        .group_by("filter", "source", "gated_by")
        .agg(num_clips=pl.len(), media_s=pl.col("media_s").sort().sum())
        .sort("filter", "source", "gated_by")
    )


def clip_cost_s(store: BlobStore, filter_name: str, *, today: dt.date) -> float | None:
    """Seconds that a clip took a filter's newest workers, of the last day that they worked on.

    None where nobody worked on the last NEWEST_DAYS days.
    """
    prefix = speeds_of("preprocess", f"{filter_name}_scores")
    for days in range(NEWEST_DAYS):
        seconds, made = 0.0, 0
        day = f"{prefix}{today - dt.timedelta(days=days):%Y%m%d}"
        for key in sorted(key for key, _ in store.list(day))[-NEWEST:]:
            told = json.loads(store.get(key))
            if told.get("format_version") != SPEEDS_FORMAT:
                continue
            for pace in told["kinds"].values():
                seconds, made = seconds + pace["made_s"], made + pace["num_made"]
        if made:
            return seconds / made
    return None


def show_spared(scores: pl.DataFrame, clips: pl.DataFrame, store: BlobStore) -> str:
    """What each filter was spared, as a Markdown table for people."""
    found = (
        spared(scores, clips)
        .group_by("filter", "gated_by")
        .agg(pl.col("num_clips").sum(), pl.col("media_s").sort().sum())
        .sort("filter", "gated_by")
    )
    today = dt.datetime.now(dt.UTC).date()
    if found.is_empty():
        return "no gate stopped a clip before a later filter's work"
    lines = [
        "| filter | spared by | clips | media s | s a clip | saved s |",
        "|---|---|" + "---:|" * 4,
    ]
    for name, by, num_clips, media_s in found.iter_rows():
        cost_s = clip_cost_s(store, name, today=today)
        told = ("", "") if cost_s is None else (f"{cost_s:.3g}", f"{cost_s * num_clips:.3g}")
        lines.append(f"| {name} | {by} | {num_clips} | {media_s:.1f} | {told[0]} | {told[1]} |")
    return "\n".join(lines)
