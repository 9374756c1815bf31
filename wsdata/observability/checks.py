"""What each table promises: functions that say, of rows, every way in which a promise is broken.

Each returns faults in words, none for a kept promise; each is a Dagster asset check, blocking
where what follows would build on something broken. Thresholds are here, beside what they judge.
"""

import json
from collections.abc import Iterable
from typing import Any

import polars as pl

from wsdata.label.qc import caption_faults as verdict_on_captions
from wsdata.preprocess.ladder import MIN_FAST_FPS

MAX_QUARANTINED_SHARE = 0.1
MAX_STOPPED_SHARE = 0.9
MAX_SHIFT_OF_SPREAD = 0.25
MAX_STORED_OF_RAW = 2.0
SMALL_CORPUS_BYTES = 10**12  # below a terabyte the ratio says nothing
MIN_ASSETS_TO_JUDGE = 20  # a share of fewer says nothing
SHOWN = 3


def _such_as(ids: Iterable[Any]) -> str:
    listed = sorted(str(each) for each in ids)
    more = f" and {len(listed) - SHOWN} more" if len(listed) > SHOWN else ""
    return ", ".join(listed[:SHOWN]) + more


def _missing(wanted: Iterable[str], found: Iterable[str], what: str) -> list[str]:
    missing = set(wanted) - set(found)
    return [f"{len(missing)} {what}: {_such_as(missing)}"] if missing else []


# ingest ------------------------------------------------------------------------------------------


def empty_faults(raw_assets: pl.DataFrame) -> list[str]:
    """A drop that gave no raw asset is likely a mistake of whoever delivered it."""
    return [] if raw_assets.height else ["the drop holds no media: look at the folder delivered"]


def print_faults(raw_assets: pl.DataFrame, probes: pl.DataFrame) -> list[str]:
    """Every raw asset outside the vault was probed."""
    return _missing(_outside_vault(raw_assets), probes["asset_id"], "raw assets were not probed")


def pair_faults(pairs: pl.DataFrame) -> list[str]:
    """Every match pair names two assets in their order, and shares that are shares."""
    bad = pairs.filter(
        (pl.col("asset_a") >= pl.col("asset_b"))
        | ~pl.col("coverage_a").is_between(0, 1)
        | ~pl.col("coverage_b").is_between(0, 1)
    )
    return [f"{bad.height} pairs are not what a pair is: {_such_as(bad['asset_a'])}"] * (
        bad.height > 0
    )


def vault_faults(raw_assets: pl.DataFrame, prints: pl.DataFrame) -> list[str]:
    """Every vault member has prints, or copies of it could not be found in training material."""
    sealed = raw_assets.filter("in_vault")["asset_id"]
    printed = prints.filter(pl.col("hash").is_not_null())["asset_id"]
    return _missing(sealed, printed, "vault members have no print to compare with")


def _outside_vault(raw_assets: pl.DataFrame) -> list[str]:
    return raw_assets.filter(~pl.col("in_vault"))["asset_id"].to_list()


# preprocess --------------------------------------------------------------------------------------


def lost_asset_faults(raw_assets: pl.DataFrame, decode_status: pl.DataFrame) -> list[str]:
    """Every raw asset outside the vault ended in a decode status, and no vault member did."""
    wanted, found = set(_outside_vault(raw_assets)), set(decode_status["asset_id"])
    faults = _missing(wanted, found, "raw assets have no decode status")
    sealed = set(raw_assets.filter("in_vault")["asset_id"]) & found
    if sealed:
        faults.append(f"{len(sealed)} vault members were decoded: {_such_as(sealed)}")
    return faults


def quarantine_faults(decode_status: pl.DataFrame, provenance: pl.DataFrame) -> list[str]:
    """No source gives more undecodable files than a tenth, where it gave enough to judge."""
    rates = (
        provenance.select("asset_id", "source")
        .unique()
        .join(decode_status, on="asset_id")
        .group_by("source")
        .agg(
            total=pl.len(),
            broken=pl.col("status").is_in(["quarantined", "failed"]).sum(),
        )
        .filter(pl.col("total") >= MIN_ASSETS_TO_JUDGE)
        .sort("source")
    )
    return [
        f"source {source}: {broken} of {total} files could not be decoded"
        for source, total, broken in rates.iter_rows()
        if broken > MAX_QUARANTINED_SHARE * total
    ]


def span_faults(clips: pl.DataFrame, probes: pl.DataFrame) -> list[str]:
    """Every clip starts before it ends, and ends within its source (a frame's grace)."""
    spans = clips.join(probes.select("asset_id", of_source="duration_s"), "asset_id", how="left")
    bad = spans.filter(
        (pl.col("start_s") < 0)
        | (pl.col("start_s") >= pl.col("end_s"))
        | (pl.col("start_pts") >= pl.col("end_pts"))
        | (
            (pl.col("media_kind") == "video")
            & (pl.col("end_s") > pl.col("of_source") + 1 / pl.col("source_fps").clip(1, None) + 0.5)
        )
    )
    if bad.is_empty():
        return []
    return [f"{bad.height} clips have impossible spans: {_such_as(bad['clip_id'])}"]


def one_each_faults(clips: pl.DataFrame, rows: pl.DataFrame, what: str) -> list[str]:
    """Every clip has its row, whatever the row says."""
    return _missing(clips["clip_id"], rows["clip_id"], f"clips have no {what}")


def rung_faults(
    clips: pl.DataFrame, transcodes: pl.DataFrame, rung: str, rungs: tuple[str, ...]
) -> list[str]:
    """Every clip whose source reaches a rung has a transcode of it, and no other has one."""
    reaching = rungs[rungs.index(rung) :]
    wanted = set(clips.filter(pl.col("top_rung").is_in(reaching))["clip_id"])
    found = set(transcodes["clip_id"])
    return _missing(wanted, found, f"clips lack their {rung} rung") + _missing(
        found, wanted, f"clips were scaled up to {rung}"
    )


def fast_rung_faults(clips: pl.DataFrame, transcodes: pl.DataFrame) -> list[str]:
    """Every clip of a source of 48 frames a second has them, once, and no other clip does."""
    reaching = clips.filter(
        (pl.col("source_fps") >= MIN_FAST_FPS) & pl.col("top_rung").is_not_null()
    )
    wanted, found = set(reaching["clip_id"]), set(transcodes["clip_id"])
    faults = _missing(wanted, found, "clips lack their rung at 48 fps")
    faults += _missing(found, wanted, "clips have frames at 48 fps that their source has not")
    slow = transcodes.join(clips.select("clip_id", slow="num_frames"), "clip_id").filter(
        (pl.col("num_frames") - 2 * pl.col("slow")).abs() > 1
    )
    if slow.height:
        faults.append(
            f"{slow.height} clips have other than twice their frames at 48 fps: "
            f"{_such_as(slow['clip_id'])}"
        )
    return faults


def score_faults(clips: pl.DataFrame, scores: pl.DataFrame) -> list[str]:
    """Every clip has a row from the filter: a score, or why there is none."""
    faults = _missing(clips["clip_id"], scores["clip_id"], "clips have no row")
    blank = scores.filter((pl.col("status") == "ok") != pl.col("score").is_not_null())
    if blank.height:
        faults.append(
            f"{blank.height} rows are ok without a score, or not ok with one: "
            f"{_such_as(blank['clip_id'].unique())}"
        )
    errors = scores.filter(pl.col("status") == "error")["clip_id"].n_unique()
    if errors * 10 > max(clips.height, 10):
        faults.append(f"the filter failed on {errors} of {clips.height} clips")
    return faults


def listed_faults(scores: pl.DataFrame) -> list[str]:
    """Nothing matches a safety list; told as a number alone."""
    hits = scores.filter((pl.col("score_name") == "asset_hits") & (pl.col("score") > 0))
    assets = hits["asset_id"].n_unique()
    if not assets:
        return []
    return [
        f"{assets} raw assets match a safety list: the safety team looks at `wsdata safety list`"
    ]


def gate_faults(clips: pl.DataFrame, gates: pl.DataFrame) -> list[str]:
    """Every clip was decided, with a tier where it passed and a reason where it did not."""
    faults = _missing(clips["clip_id"], gates["clip_id"], "clips were not decided")
    unclear = gates.filter(
        pl.when("passed").then(pl.col("provisional_tier")).otherwise(pl.col("stopped_by")).is_null()
    )
    if unclear.height:
        faults.append(
            f"{unclear.height} clips have neither tier nor reason: {_such_as(unclear['clip_id'])}"
        )
    return faults


# label -------------------------------------------------------------------------------------------


def coverage_faults(gates: pl.DataFrame, rows: pl.DataFrame, what: str) -> list[str]:
    """Every clip that passed the gates has a row."""
    passed = gates.filter("passed")["clip_id"]
    return _missing(passed, rows["clip_id"], f"clips that passed have no {what}")


def vector_faults(embeddings: pl.DataFrame) -> list[str]:
    """Every embedding has unit length: dot products are read as cosines."""
    off = embeddings.filter(
        (pl.col("vector").list.eval(pl.element().cast(pl.Float64) ** 2).list.sum() - 1).abs() > 1e-3
    )
    return [f"{off.height} vectors are not of unit length"] if off.height else []


def caption_faults(captions: pl.DataFrame, qc: pl.DataFrame) -> list[str]:
    """Captions are neither broken, repetitive nor all alike, and say what is seen."""
    agreement = qc.select("clip_id", "variant", "captioner_version", "agreement")
    keys = ["clip_id", "variant", "captioner_version"]
    return verdict_on_captions(captions.join(agreement, on=keys, how="left").to_dicts())


# curate ------------------------------------------------------------------------------------------


def compared_faults(
    gates: pl.DataFrame, embeddings: pl.DataFrame, prints: pl.DataFrame
) -> list[str]:
    """Every clip that passed the gates can be compared with eval material, by both methods."""
    passed = gates.filter("passed")
    return _missing(
        passed["clip_id"], embeddings["clip_id"], "clips have no embedding to compare"
    ) + _missing(passed["asset_id"], prints["asset_id"], "raw assets have no print to compare")


def cluster_faults(embeddings: pl.DataFrame, assignments: pl.DataFrame) -> list[str]:
    """Every embedded clip lies in a cluster."""
    return _missing(embeddings["clip_id"], assignments["clip_id"], "clips lie in no cluster")


def centroid_faults(centroids: pl.DataFrame) -> list[str]:
    """There are clusters, and each centroid is of unit length."""
    if centroids.is_empty():
        return ["there is no cluster: nothing was embedded"]
    length = centroids["vector"].list.eval(pl.element() ** 2).list.sum().sqrt()
    bad = centroids.filter((length - 1).abs() > 1e-3)["cluster"]
    return [f"{len(bad)} centroids are not of unit length: {_such_as(bad)}"] if len(bad) else []


def redundant_faults(duplicates: pl.DataFrame) -> list[str]:
    """Every redundant clip names another that stays."""
    gone = set(duplicates["clip_id"])
    bad = [row["clip_id"] for row in duplicates.to_dicts() if row["kept_clip_id"] in gone]
    return [f"{len(bad)} clips are redundant to one that goes: {_such_as(bad)}"] if bad else []


def manifest_faults(
    clips: pl.DataFrame, manifest: pl.DataFrame, exclusions: pl.DataFrame
) -> list[str]:
    """Every clip as of the cut is in the manifest, or excluded with a reason; none is both."""
    listed = set(manifest["clip_id"])
    excluded = set(exclusions["subject"])
    out = clips.filter(
        ~pl.col("clip_id").is_in(listed | excluded) & ~pl.col("asset_id").is_in(excluded)
    )
    faults = [] if manifest.height else [_why_empty(exclusions)]
    return faults + _missing(out["clip_id"], [], "clips are neither listed nor excluded")


def _why_empty(exclusions: pl.DataFrame) -> str:
    counts = exclusions.group_by("reason").len().sort("len", "reason", descending=[True, False])
    why = ", ".join(f"{num} {reason}" for reason, num in counts.iter_rows())
    details = exclusions.filter(pl.col("reason") == "refused_rights")["detail"].drop_nulls()
    rights = f" ({'; '.join(sorted(set(details))[:3])})" if len(details) else ""
    return (
        "the manifest is empty: nothing can be trained on; left out are "
        f"{why or 'no clips, for there are none'}{rights}: see `wsdata funnel`"
    )


# shard -------------------------------------------------------------------------------------------


def placement_faults(
    assigned: pl.DataFrame, placements: pl.DataFrame, losses: pl.DataFrame, group: str
) -> list[str]:
    """Every sample of a shard group lies in a shard, or is listed as lost with a reason."""
    assigned = assigned.filter(pl.col("shard_group") == group)
    return _missing(
        assigned["sample_id"],
        [*placements["sample_id"], *losses["sample_id"]],
        "samples were neither placed nor lost",
    )


def pack_faults(placements: pl.DataFrame, packs: pl.DataFrame) -> list[str]:
    """Every shard has a caption pack with a row for each of its samples."""
    faults = _missing(placements["shard"], packs["shard"], "shards have no caption pack")
    sizes = placements.group_by("shard").agg(wanted=pl.len())
    uneven = packs.join(sizes, on="shard").filter(pl.col("num_samples") != pl.col("wanted"))
    if uneven.height:
        faults.append(f"packs not aligned with their shards: {_such_as(uneven['shard'])}")
    return faults


def index_faults(manifest: pl.DataFrame, index: pl.DataFrame, losses: pl.DataFrame) -> list[str]:
    """Every sample of the manifest is in the index, or listed as lost with a reason."""
    return _missing(
        manifest["sample_id"],
        [*index["sample_id"], *losses["sample_id"]],
        "samples of the manifest are lost without a reason",
    )


def plan_faults(plans: pl.DataFrame) -> list[str]:
    """Every promise that the plan was asked for held."""
    return [
        f"plan {row['plan_id'][:12]}: {name}: {check}"
        for row in plans.iter_rows(named=True)
        for name, check in sorted(json.loads(row["proof_json"]).get("checks", {}).items())
        if not check["passed"]
    ]


# loader, lifecycle, observability ----------------------------------------------------------------


def proof_faults(proofs: pl.DataFrame) -> list[str]:
    """Every part of the loader proof passed, and there is one."""
    if not proofs.height:
        return ["nothing was proved"]
    return [
        f"{row['check']}: {row['detail_json']}"
        for row in proofs.filter(~pl.col("passed")).sort("check").iter_rows(named=True)
    ]


def takedown_faults(takedowns: pl.DataFrame) -> list[str]:
    """Every takedown names at least one raw asset."""
    empty = set(takedowns["request_id"]) - set(
        takedowns.filter(pl.col("role") == "named")["request_id"]
    )
    return [f"{len(empty)} takedowns name nothing: {_such_as(empty)}"] if empty else []


def cost_faults(costs: pl.DataFrame) -> list[str]:
    """Derived material stays within its multiple of raw (reference design 9.1: 1.35 in all)."""
    size = dict(costs.select("item", "amount").iter_rows())
    raw, total = size.get("storage: raw", 0.0), sum(size.values())
    if raw < SMALL_CORPUS_BYTES or total <= MAX_STORED_OF_RAW * raw:
        return []
    return [f"{total / raw:.2f} bytes are stored for a raw one, above {MAX_STORED_OF_RAW}"]


def drift_faults(drift: pl.DataFrame) -> list[str]:
    """No model version shifts a score of the reference slice by much of its own spread."""
    spread = (drift["p90"] - drift["p10"]).clip(1e-9, None)
    bad = drift.filter(
        (drift["shift"].abs() > MAX_SHIFT_OF_SPREAD * spread)
        & (drift["num_clips"] >= MIN_ASSETS_TO_JUDGE)
    )
    return [
        f"{row['filter']}.{row['score_name']} moved by {row['shift']:+.4f} with "
        f"{row['model_version']}: look before a recipe adopts it"
        for row in bad.to_dicts()
    ]


def mirror_faults(mirror: pl.DataFrame) -> list[str]:
    """Something is mirrored, and every mirrored table has objects."""
    bare = mirror.filter(pl.col("num_objects") == 0)["table"]
    if mirror.is_empty():
        return ["no table is mirrored: this kind of store has no mirror"]
    return [f"{len(bare)} mirrored tables hold no object: {_such_as(bare)}"] if len(bare) else []


def pin_faults(snapshots: pl.DataFrame) -> list[str]:
    """The version is pinned, and holds shards."""
    if snapshots.height != 1:
        return [f"{snapshots.height} snapshots of one version"]
    return [] if snapshots["num_shards"][0] else ["the snapshot holds no shard"]


def kill_faults(rates: pl.DataFrame) -> list[str]:
    """No filter stops nearly everything of a source that gave enough to judge."""
    extreme = rates.filter(
        (pl.col("num_in") >= MIN_ASSETS_TO_JUDGE) & (pl.col("kill_share") > MAX_STOPPED_SHARE)
    ).sort("source", "filter")
    return [
        f"{row['filter']} stopped {row['num_stopped']} of {row['num_in']} clips of {row['source']}"
        for row in extreme.iter_rows(named=True)
    ]


def collectable_faults(retention: pl.DataFrame) -> list[str]:
    """Nothing lies in the store that no row and no pin refers to."""
    loose = retention.filter(pl.col("verdict") == "collectable")
    if not loose.height:
        return []
    size = sum(loose["size_bytes"].to_list()) / 1e6
    return [f"{loose.height} objects of {size:.1f} MB are referred to by nothing: see `wsdata gc`"]
