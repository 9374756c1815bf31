"""A recipe, evaluated against the rows of a catalog: which samples, and why not the others.

Pure: the same rows, recipe and as-of date give the same result, whatever order the rows are in.
Reading the rows and keeping the result belongs to `manifest`.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl
import polars.selectors as cs

from wsdata import tables
from wsdata.curate import losses, semdedup
from wsdata.curate.centroids import hash_rank
from wsdata.curate.columns import SAME_SAMPLE, TRACKS, kept_tracks, name_columns
from wsdata.curate.corpus import unify_clips, unify_of_clips, unify_rows
from wsdata.curate.decontam import eval_hits
from wsdata.curate.flips import mirror_samples, unfit_clips
from wsdata.curate.generated import generated_clips, retag_clips
from wsdata.curate.handdown import HandDown, hand_down, minimum_of
from wsdata.curate.losses import Remaining
from wsdata.curate.mixture import assign_streams
from wsdata.curate.rights import check_as_of_date, judge_rights
from wsdata.curate.samples import Sample, cut_samples, sample_rows
from wsdata.curate.tiers import check_phases, phases_of_sample
from wsdata.curate.withheld import listed_assets, withheld_clips
from wsdata.ids import make_shard_group
from wsdata.ingest.neardup import canonical_copies
from wsdata.preprocess.funnel import evaluate_gates
from wsdata.recipe import Recipe

Rows = Mapping[str, pl.DataFrame]  # by partition
_NO_SCORES = tables.empty("safety_list_scores")
_TRANSCODES = tuple(f"transcodes_{ending}" for ending in tables.TRANSCODES)


@dataclass(frozen=True, kw_only=True, slots=True)
class Cut:
    """What a recipe makes of a catalog.

    Attributes:
        manifest: Rows of table ``manifests``.
        exclusions: Rows of table ``exclusions``.
        hits: Rows of table ``eval_matches``, as found again at this cut.
        generated: Clips that show registered generated material, as `generated_clips` tells.
        clips: Every clip once, with its ``tier`` (null where gated).
        left_after: (reason, clips left), in the order asked.
        moves: Samples handed down, by bucket and move.
        flips: Samples that streams want mirrored, by stream and what became of them; see `flips`.
    """

    manifest: pl.DataFrame
    exclusions: pl.DataFrame
    hits: pl.DataFrame
    generated: pl.DataFrame
    clips: pl.DataFrame
    left_after: list[tuple[str, int]]
    moves: Counter[Any]
    flips: Counter[tuple[str, str]]


def make_cut(
    read: Mapping[str, Rows],
    recipe: Recipe,
    *,
    as_of_date: str | None,
    tombstones: Mapping[str, Mapping[str, Any]],
) -> Cut:
    """Evaluate a recipe.

    Args:
        read: For every table that `manifest.STEP` reads, its rows by partition.
        recipe: The whole declaration.
        as_of_date: ISO day by which rights are judged.
        tombstones: The present of facts ``tombstone``: raw asset -> body.

    Raises:
        RecipeError: The recipe has no streams or no phases, or there is no as-of date.
    """
    check_phases(recipe)
    as_of_date = check_as_of_date(as_of_date)
    clips = unify_clips(read["clips"])
    prints = pl.concat(
        [unify_rows(table, read[table]) for table in ("fingerprints", "pass_fingerprints")]
    )
    generated = generated_clips(
        clips, prints, unify_rows("generated_prints", read["generated_prints"]),
        recipe.decontamination,
    )  # fmt: skip
    decided = retag_clips(_describe(clips, read, recipe, as_of_date), generated)
    hits = _hits(clips, prints, read, recipe)
    remaining = Remaining(decided)
    _leave_out_sources(remaining, read, tombstones, hits)
    _leave_out_meanings(remaining, read, clips)
    _leave_out_unmixed(remaining, recipe)
    tracks = _tracks(remaining, read, clips, recipe)
    samples, handed = _sample(remaining, tracks, recipe)
    unfit = unfit_clips(
        remaining.clips, recipe.streams, read["overlay_scores"].values(), read["captions"].values()
    )
    mirrored = mirror_samples(samples, recipe.streams, unfit)
    manifest = _manifest_rows(mirrored.samples, remaining.clips, tracks, recipe)
    return Cut(
        manifest=manifest,
        exclusions=tables.rows_of("exclusions", [dict(row) for row in remaining.exclusions]),
        hits=hits,
        generated=generated,
        clips=decided.select("clip_id", "asset_id", "tier", "media_kind", "duration_s"),
        left_after=remaining.left_after,
        moves=handed.moves,
        flips=mirrored.counts,
    )


def _describe(
    clips: pl.DataFrame, read: Mapping[str, Rows], recipe: Recipe, as_of_date: str
) -> pl.DataFrame:
    """Clips with verdict, tier, merged provenance, domain, and the tracks kept beside them."""
    scores = pl.concat(
        [unify_of_clips(f"{f}_scores", read[f"{f}_scores"], clips) for f in tables.FILTERS]
    )
    verdicts = evaluate_gates(scores, clips.drop("home"), recipe.gates, recipe.tiers)
    provenance = pl.concat([*read["provenance"].values(), tables.empty("provenance")])
    rights = judge_rights(provenance, recipe.rights, as_of_date=as_of_date)
    tracks = kept_tracks(*(unify_of_clips(name, read[name], clips) for name in TRACKS.values()))
    placed = unify_of_clips("cluster_assignments", read["cluster_assignments"], clips)
    domains = unify_rows("centroids", read["centroids"]).select("cluster", "domain")
    return (
        clips.select("clip_id", "asset_id", "media_kind", "start_s", "end_s", "duration_s")
        .join(verdicts, on="clip_id", how="left")
        .join(rights, on="asset_id", how="left")
        .join(placed.select("clip_id", "cluster"), on="clip_id", how="left")
        .join(domains, on="cluster", how="left")
        .join(tracks, on="clip_id", how="left")
        .with_columns(
            pl.col("passed").fill_null(value=False),
            pl.col("is_generated").fill_null(value=False),
            pl.col("kept_audio_key").is_not_null().alias("has_sound"),
            pl.col("kept_actions_key").is_not_null().alias("has_actions"),
        )
        .sort("clip_id")
    )


def _hits(
    clips: pl.DataFrame, prints: pl.DataFrame, read: Mapping[str, Rows], recipe: Recipe
) -> pl.DataFrame:
    return eval_hits(
        clips,
        prints,
        unify_of_clips("clip_embeddings", read["clip_embeddings"], clips),
        unify_rows("vault_prints", read["vault_prints"]),
        recipe.decontamination,
    )


def _leave_out_sources(
    remaining: Remaining,
    read: Mapping[str, Rows],
    tombstones: Mapping[str, Mapping[str, Any]],
    hits: pl.DataFrame,
) -> None:
    pairs = unify_rows("match_pairs", read["match_pairs"])
    quality = unify_rows("asset_quality", read["asset_quality"])
    decoded = remaining.clips["asset_id"].unique()
    status = unify_rows("decode_status", read["decode_status"])
    groups = canonical_copies(pairs, quality, decoded, status)
    remaining.leave_out("tombstoned", lambda c: withheld_clips(c, groups, pairs, tombstones))
    listed = listed_assets(pl.concat([*read["safety_list_scores"].values(), _NO_SCORES]))
    remaining.leave_out("unsafe", lambda c: withheld_clips(c, groups, pairs, listed, by="matches"))
    remaining.leave_out("gated", losses.gated)
    remaining.leave_out(
        "near_duplicate", lambda c: losses.near_duplicates(c, groups, pairs, quality)
    )
    remaining.leave_out("refused_rights", losses.refused_rights)
    remaining.leave_out("purged", lambda c: losses.purged(c, hits))


def _leave_out_meanings(
    remaining: Remaining, read: Mapping[str, Rows], clips: pl.DataFrame
) -> None:
    redundant = unify_of_clips("semantic_duplicates", read["semantic_duplicates"], clips)
    captions = unify_of_clips("captions", read["captions"], clips)
    qc = unify_of_clips("label_qc", read["label_qc"], clips)
    remaining.leave_out(
        "semantic_duplicate",
        lambda c: losses.semantic_duplicates(semdedup.settle_groups(redundant, c)),
    )
    remaining.leave_out("no_caption", lambda c: losses.without_caption(c, captions))
    remaining.leave_out("failed_qc", lambda c: losses.failed_qc(c, captions, qc))


def _leave_out_unmixed(remaining: Remaining, recipe: Recipe) -> None:
    """Leave out what no phase or stream takes, and give the others their stream."""
    admitted = {tier for phase in recipe.phases for tier in phase.tiers}
    remaining.leave_out(
        "tier_not_admitted",
        lambda c: losses.flagged(
            c,
            where=~pl.col("tier").is_in(sorted(admitted)),
            detail=pl.format("no phase admits {}", "tier"),
        ),
    )
    remaining.clips = assign_streams(remaining.clips, recipe.streams)
    remaining.leave_out(
        "no_stream",
        lambda c: losses.flagged(
            c,
            where=pl.col("stream").is_null(),
            detail=pl.format(
                "no stream takes {} {} of domain {}{}",
                "source_tier",
                "media_kind",
                pl.col("domain").fill_null("unknown"),
                pl.when(pl.col("is_generated")).then(pl.lit(", generated")).otherwise(pl.lit("")),
            ),
        ),
    )


def _tracks(
    remaining: Remaining, read: Mapping[str, Rows], clips: pl.DataFrame, recipe: Recipe
) -> pl.DataFrame:
    """One row per clip left and rung that a phase draws it at; clips without any are left out."""
    asked = [
        (tier, name, rung, list(phases))
        for tier, name in remaining.clips.select("tier", "stream").unique().rows()
        for rung in tables.SAMPLED_RUNGS
        if (phases := phases_of_sample(recipe.phases, tier=tier, stream=name, rung=rung))
    ]
    wanted = pl.DataFrame(
        asked,
        schema={"tier": pl.String, "stream": pl.String, "rung": pl.String,
                "phases": pl.List(pl.String)},
        orient="row",
    )  # fmt: skip
    remaining.leave_out(
        "tier_not_admitted",
        lambda c: losses.flagged(
            c.join(wanted, on=["tier", "stream"], how="anti"),
            where=pl.lit(value=True),
            detail=pl.format("no phase that admits {} gives stream {} weight", "tier", "stream"),
        ),
    )
    rungs = pl.concat([unify_of_clips(name, read[name], clips) for name in _TRANSCODES]).drop(
        "asset_id"
    )
    remaining.leave_out("no_sample", lambda c: losses.at_no_rung(c, wanted, rungs))
    return (
        remaining.clips.join(wanted, on=["tier", "stream"], how="inner")
        .join(rungs, on=["clip_id", "rung"], how="inner")
        .sort("clip_id", "rung")
    )


def _sample(
    remaining: Remaining, tracks: pl.DataFrame, recipe: Recipe
) -> tuple[list[Sample], HandDown]:
    cut, capped = cut_samples(tracks, recipe)
    sampled = pl.DataFrame({"clip_id": sorted({s.clip_id for s in [*cut, *capped]})},
                           schema={"clip_id": pl.String})  # fmt: skip
    shortest = min((n for n in recipe.samples.frame_counts if n > 1), default=1)
    remaining.leave_out(
        "no_sample",
        lambda c: losses.flagged(
            c.join(sampled, on="clip_id", how="anti"),
            where=pl.lit(value=True),
            detail=f"shorter than the shortest sample ({shortest} frames), or of no sample length",
        ),
    )
    handed = hand_down(cut, recipe.samples, seed=recipe.seed)
    _note(remaining, "sample_cap", {s.clip_id: _cap_detail(recipe) for s in capped})
    _note(remaining, "bucket_too_small", _small_details(handed, recipe))
    _note(remaining, "remainder", _remainders(handed, tracks))
    kept = pl.DataFrame({"clip_id": sorted({sample.clip_id for sample in handed.samples})},
                        schema={"clip_id": pl.String})  # fmt: skip
    remaining.clips = remaining.clips.join(kept, on="clip_id", how="semi")
    remaining.left_after.append(("bucket_too_small", remaining.clips.height))
    return handed.samples, handed


def _note(remaining: Remaining, reason: str, details: Mapping[str, str]) -> None:
    """Add exclusions of some samples of clips; the clips themselves may stay."""
    asset_of = dict(remaining.clips.select("clip_id", "asset_id").iter_rows())
    remaining.exclusions += [
        {"subject": clip, "asset_id": asset_of[clip], "reason": reason, "detail": details[clip]}
        for clip in sorted(details)
    ]


def _cap_detail(recipe: Recipe) -> str:
    return f"samples beyond samples.max_samples_per_asset = {recipe.samples.max_samples_per_asset}"


def _small_details(handed: HandDown, recipe: Recipe) -> dict[str, str]:
    """For each clip that lost samples: from which buckets, and what would help."""
    unused = sorted({"fewer_frames", "smaller_rung", "crop"} - set(recipe.samples.hand_down))
    by_clip: dict[str, Counter[str]] = {}
    needed: dict[str, int] = {}
    for sample in handed.lost:
        by_clip.setdefault(sample.clip_id, Counter())[sample.bucket.name] += 1
        needed[sample.bucket.name] = minimum_of(sample.bucket, recipe.samples)
    allow = f", allow {' and '.join(unused)} in samples.hand_down" if unused else ""
    return {
        clip: "; ".join(
            f"{count} sample(s) of {bucket}, which cannot reach {needed[bucket]}: lower "
            f"samples.batch_of_bucket for it or add material of that shape{allow}"
            for bucket, count in sorted(buckets.items())
        )
        for clip, buckets in by_clip.items()
    }


def _remainders(handed: HandDown, tracks: pl.DataFrame) -> dict[str, str]:
    """For each clip with a sample: frames of each rung that are in none."""
    used: Counter[tuple[str, str]] = Counter()
    for sample in [*handed.samples, *handed.lost]:
        used[sample.clip_id, sample.bucket.rung] += sample.bucket.num_frames
    kept = {sample.clip_id for sample in handed.samples}
    details: dict[str, list[str]] = {}
    for clip, rung, frames in tracks.select("clip_id", "rung", "num_frames").iter_rows():
        if clip in kept and (left := frames - used[clip, rung]) > 0:
            details.setdefault(clip, []).append(f"{left} of {frames} frames at {rung}")
    return {clip: f"{', '.join(found)} fit no sample" for clip, found in details.items()}


def _manifest_rows(
    samples: list[Sample], clips: pl.DataFrame, tracks: pl.DataFrame, recipe: Recipe
) -> pl.DataFrame:
    about = clips.select(
        "clip_id", "asset_id", "source", "source_tier", "license_id", "domain", "cluster", "tier",
        "media_kind", cs.starts_with("kept_"),
    )  # fmt: skip
    stored = tracks.select(
        "clip_id", "rung", "fps", pl.col("key").alias("transcode_key"),
        pl.col("sha256").alias("transcode_sha256"), "transcode_version",
    )  # fmt: skip
    streams = pl.DataFrame(
        [(name, stream.multiplier) for name, stream in recipe.streams.items()],
        schema={"stream": pl.String, "weight": pl.Float64},
        orient="row",
    )
    rows = (
        sample_rows(samples)
        .join(about, on="clip_id", how="inner")
        .join(stored, on=["clip_id", "rung"], how="inner")
        .join(streams, on="stream", how="inner")
    )
    rows = name_columns(rows, recipe.streams)
    return tables.conform("manifests", rows.select(list(tables.TABLES["manifests"].columns)))


def assign_shards(
    manifest: pl.DataFrame,
    placements: pl.DataFrame,
    recipe: Recipe,
    *,
    version: str,
    tokenizer_version: str | None,
) -> pl.DataFrame:
    """Give every sample that no live shard holds a shard group of this dataset version.

    A clip's group is a seeded hash, so a long raw asset spreads over all groups.

    Args:
        manifest: Rows of ``manifests``.
        placements: Live rows of ``placements``.
        recipe: Dtype of latents, samples per group, seed.
        version: The dataset version.
        tokenizer_version: Placements of other tokenizers do not count; None for any.

    Returns:
        Rows of table ``shard_assignments``.
    """
    usable = placements.filter(pl.col("latent_dtype") == recipe.tokenizer.dtype)
    if tokenizer_version:
        usable = usable.filter(pl.col("tokenizer_version") == tokenizer_version)
    fresh = manifest.join(usable, on=SAME_SAMPLE, how="anti")
    num_groups = -(-fresh.height // recipe.shards.samples_per_group)
    groups = [
        make_shard_group(version, hash_rank(clip, recipe.seed) % num_groups)
        for clip in fresh["clip_id"]
    ]
    return tables.conform(
        "shard_assignments",
        fresh.select("sample_id").with_columns(pl.Series("shard_group", groups, dtype=pl.String)),
    )
