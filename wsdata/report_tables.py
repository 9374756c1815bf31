"""Columns of the tables that report: proofs, training runs, rates, costs, takedowns.

What they report on are the tables of `wsdata.tables`, which holds these too.
"""

from wsdata.table_spec import BOOL, F64, INT, STR, Table
from wsdata.table_spec import make_table as _table

REPORT_TABLES: dict[str, Table] = {
    # loader ---------------------------------------------------------------------------------
    "loader_proofs": _table(
        ("check",), check=STR, passed=BOOL, detail_json=STR
    ),
    "runs_served": _table(  # as trainers told it
        ("run", "attempt", "first_step", "version", "is_replayed"), run=STR,
        attempt=STR,  # one life of rank 0; they sort as they began
        run_id=STR,  # digest of its segments
        first_step=INT, end_step=INT,  # of the run
        version=STR, plan_id=STR, seed=INT,
        segment_step=INT,  # first step of the run that the segment serves
        plan_step=INT,  # step of the plan that served `first_step`
        world_size=INT,
        is_replayed=BOOL,  # a later attempt served these steps again
        is_reported=BOOL,  # False: nobody reported them, a cursor says that they were delivered
    ),
    "rank_telemetry": _table(
        ("run", "rank"), run=STR, rank=INT,  # -1: all that are current
        num_sessions=INT, step=INT, is_current=BOOL,  # told something in the last attempt
        num_samples=INT, num_bytes=INT, num_cache_hits=INT, num_cache_misses=INT, num_reread=INT,
        num_retries=INT, num_batches=INT, num_stalls=INT, stalled_s=F64,
        fetch_p50_s=F64, fetch_p99_s=F64, fetch_p999_s=F64,  # of all sessions
        ring_depth=INT, step_s=F64, last_p999_s=F64, is_too_slow=BOOL,  # of the newest session
    ),
    # observability --------------------------------------------------------------------------
    "kill_rates": _table(
        ("filter", "source"), drop=STR, source=STR, filter=STR, num_in=INT, num_stopped=INT,
        num_errors=INT, kill_share=F64,
        num_unscored=INT,  # not measured, for want of what they are measured by
        num_spared=INT, spared_media_s=F64,  # not measured, as a gate had stopped them before
        saved_scorings=INT,  # scorings that this filter's stops spared the later ones
        duration_s=F64,  # of all clips of the source, whatever the filter saw
    ),
    "score_histograms": _table(
        ("filter", "score_name", "source", "model_version", "bin"),
        filter=STR, score_name=STR, source=STR,
        model_version=STR, bin=INT, low=F64, high=F64, num_clips=INT,
    ),
    "drift": _table(
        ("filter", "score_name", "model_version"), filter=STR, score_name=STR,
        model_version=STR, num_clips=INT,
        mean=F64, p10=F64, p50=F64, p90=F64, shift=F64,
    ),
    "realised_order": _table(
        ("run", "part", "measure", "subject"), run=STR,
        part=STR,  # "all", or a phase of a plan: "v3 3f2a99c1 base"
        measure=STR,  # autocorrelation | counts | coverage | stream_share | bucket_share | epochs
        subject=STR,  # "source@1025": trait and lag in slots; a stream, a bucket
        value=F64, target=F64, bound=F64,  # null where there is none
        is_off=BOOL, num_samples=INT,  # what the value was taken from
    ),
    "contamination": _table(
        ("method",), method=STR, num_checked=INT, num_unchecked=INT, num_hits=INT,
        coverage_share=F64,
    ),
    "costs": _table(
        ("item",), item=STR, unit=STR, amount=F64, cost_usd=F64, note=STR
    ),
    "engine_mirror": _table(("table",), table=STR, num_objects=INT, num_rows=INT, address=STR),
    "retention": _table(
        ("key",), key=STR, size_bytes=INT, verdict=STR,  # pinned | leased | live | collectable
        reason=STR,
    ),
    "takedowns": _table(
        ("request_id", "asset_id"), request_id=STR, asset_id=STR, role=STR,  # named | twin
        num_clips=INT, reason=STR,
    ),
    "snapshots": _table(
        ("version",), version=STR, manifest_digest=STR, num_shards=INT, num_bytes=INT,
        num_pinned=INT,
    ),
}  # fmt: skip
