"""Costs: what the store holds, by kind of object, and what keeping it costs a month.

Prices are list prices of a cool object tier, as the reference design takes them (section 1.4:
10 to 12 USD per TB and month; section 9.1). What a corpus will take belongs to `capacity`.
"""

from wsdata import tables
from wsdata.orders import Input, Step, StepResult, StepRun

USD_PER_TB_MONTH = 11.0
EGRESS_USD_PER_TB = (20.0, 50.0)  # between regions or providers, at list price (section 9.3)
BYTES_PER_TB = 10**12

# Orders, reports and speeds are in none: how many there are depends on which workers were lost,
# and these rows do not.
KINDS = {
    "raw": "raw/",
    "transcodes": "derived/transcodes",
    "audio": "derived/audio_tracks",
    "actions": "derived/action_tracks",
    "frame packs": "derived/frame_packs",
    "other derived": "derived/",
    "shards": "training/shards/",
    "other training": "training/",
    "rows": "tables/",
    "unit memory": "progress/",
}

STEP = Step(
    stage="observability",
    name="costs",
    function="wsdata.observability.cost:run",
    code_version="costs-2",
    partition="none",
    assets={"costs": ("costs",)},
    inputs=tuple(
        Input(table=table, scope="all", is_optional=True)
        for table in tables.TABLES
        if table not in tables.SELF_REPORTS
    ),
    description="Bytes by kind of object, and their monthly storage cost.",
)


def run(run: StepRun) -> StepResult:
    """Roll up the whole store."""
    totals = dict.fromkeys(KINDS, 0)
    for key, size in run.store.list(""):
        kind = next((kind for kind, prefix in KINDS.items() if key.startswith(prefix)), None)
        if kind is not None:
            totals[kind] += size
    rows = [
        {
            "item": f"storage: {kind}",
            "unit": "bytes",
            "amount": float(size),
            "cost_usd": size / BYTES_PER_TB * USD_PER_TB_MONTH,
            "note": f"a month, at {USD_PER_TB_MONTH} USD per TB",
        }
        for kind, size in totals.items()
    ]
    raw = totals["raw"]
    lines = ["| kind | bytes | of raw |", "|---|---:|---:|"]
    lines += [
        f"| {kind} | {size:,} | {size / raw:.2f} |" if raw else f"| {kind} | {size:,} | |"
        for kind, size in totals.items()
    ]
    return StepResult(
        tables={"costs": tables.rows_of("costs", rows)},
        metrics={"bytes": sum(totals.values())},
        display={"costs": {"storage": {"type": "md", "raw_value": "\n".join(lines)}}},
    )
