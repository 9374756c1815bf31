"""What a person sees of a filter's scores: counts, histograms as bars, and the extreme clips."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

NUM_BINS = 8
NUM_EXTREMES = 5
BAR_WIDTH = 24


def show_scores(table: pl.DataFrame, score_names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Display metadata of one filter's rows.

    Args:
        table: Rows of a score table.
        score_names: In the order in which they are to be shown; the first one is the main one.
    """
    main = table.filter(pl.col("score_name") == score_names[0])
    counts = dict(main.group_by("status").len().iter_rows())
    histograms = "\n\n".join(
        _histogram(table.filter(pl.col("score_name") == name), name) for name in score_names
    )
    return {
        "clips": {"type": "int", "raw_value": main.height},
        "scored": {"type": "int", "raw_value": counts.get("ok", 0)},
        "unscored": {"type": "int", "raw_value": counts.get("unscored", 0)},
        "errors": {"type": "int", "raw_value": counts.get("error", 0)},
        "histograms": {"type": "md", "raw_value": histograms},
        "extremes": {"type": "md", "raw_value": _extremes(main, score_names[0])},
        "not_scored": {"type": "md", "raw_value": _reasons(main)},
    }


def _histogram(rows: pl.DataFrame, name: str) -> str:
    known = rows.filter(pl.col("score").is_not_null())
    if known.is_empty():
        return f"**{name}**: no clip has it"
    values = known["score"].to_numpy()
    edges = np.histogram_bin_edges(values, bins=NUM_BINS if values.min() < values.max() else 1)
    sources = sorted(known["source"].drop_nulls().unique())
    lines = [
        f"**{name}** ({known.height} clips)",
        "",
        "| from | to | " + " | ".join(sources) + " |",
        "|---:|---:|" + "---|" * len(sources),
    ]
    counts = {
        source: np.histogram(known.filter(pl.col("source") == source)["score"].to_numpy(), edges)[0]
        for source in sources
    }
    most = max((int(count.max()) for count in counts.values()), default=1)
    for index in range(len(edges) - 1):
        bars = " | ".join(_bar(int(counts[source][index]), most) for source in sources)
        lines.append(f"| {edges[index]:.4g} | {edges[index + 1]:.4g} | {bars} |")
    return "\n".join(lines)


def _bar(count: int, most: int) -> str:
    if count == 0:
        return ""
    return "#" * max(1, round(BAR_WIDTH * count / most)) + f" {count}"


def _extremes(main: pl.DataFrame, name: str) -> str:
    known = main.filter(pl.col("score").is_not_null()).sort("score", "clip_id")
    low = known.head(NUM_EXTREMES)
    high = known.tail(min(NUM_EXTREMES, known.height - low.height)).reverse()
    lines = [f"| {name} | clip | source |", "|---:|---|---|"]
    for part in (high, low.reverse()):
        lines += [
            f"| {row['score']:.4g} | {row['clip_id']} | {row['source']} |"
            for row in part.iter_rows(named=True)
        ]
    return "\n".join(lines)


def _reasons(main: pl.DataFrame) -> str:
    missing = main.filter(pl.col("status") != "ok")
    if missing.is_empty():
        return "every clip was scored"
    counted = missing.group_by("status", "reason").len().sort("len", "reason", descending=True)
    lines = ["| status | reason | clips |", "|---|---|---:|"]
    lines += [f"| {status} | {reason} | {count} |" for status, reason, count in counted.iter_rows()]
    return "\n".join(lines)
