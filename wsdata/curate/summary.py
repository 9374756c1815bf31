"""What a person looks at after a cut: the funnel, streams and buckets, and gaps."""

from typing import Any

import polars as pl

from wsdata.curate.cut import Cut
from wsdata.curate.flips import MIRRORED
from wsdata.recipe import TIERS, Recipe
from wsdata.tables import FAST_RUNGS

_WHEN_FAST = ": 48 fps is stored of a clip's largest rung up to 720p, where its source has it"


def show_cut(
    cut: Cut, assets: pl.DataFrame, assignments: pl.DataFrame, recipe: Recipe
) -> dict[str, dict[str, Any]]:
    """Metadata of a manifest: label -> {type, raw_value}."""
    manifest = cut.manifest
    texts = {
        "funnel": funnel_markdown(cut, assets),
        "streams": streams_markdown(manifest),
        "buckets": buckets_markdown(manifest),
        "handed down": moves_markdown(cut),
        "mirrored": flips_markdown(cut),
        "gaps": "\n".join(f"- {note}" for note in gap_notes(manifest, recipe)) or "none seen",
    }
    counts = {
        "samples": manifest.height,
        "clips": manifest["clip_id"].n_unique(),
        "samples to encode": assignments.height,
        "shard groups": assignments["shard_group"].n_unique(),
    }
    return {
        **{label: {"type": "int", "raw_value": value} for label, value in counts.items()},
        **{label: {"type": "md", "raw_value": text} for label, text in texts.items()},
    }


def funnel_markdown(cut: Cut, assets: pl.DataFrame) -> str:
    """From raw assets to samples, one line per loss."""
    once = assets.unique(subset="asset_id")
    lines = [
        "| step | lost | left |",
        "|---|---|---|",
        f"| raw assets | | {once.height} |",
        f"| in the vault | {once.filter(pl.col('in_vault')).height} "
        f"| {once.filter(~pl.col('in_vault')).height} |",
        f"| clips | | {cut.clips.height} |",
    ]
    left = cut.clips.height
    for reason, remaining in cut.left_after:
        if remaining != left:
            lines.append(f"| {reason} | {left - remaining} | {remaining} |")
        left = remaining
    in_manifest = cut.manifest.unique(subset="clip_id")
    for tier in TIERS:
        total = cut.clips.filter(pl.col("tier") == tier).height
        kept = in_manifest.filter(pl.col("tier") == tier).height
        lines.append(f"| of {tier} ({total} passed the gates) | {total - kept} | {kept} |")
    lines.append(f"| samples | | {cut.manifest.height} |")
    return "\n".join(lines)


def streams_markdown(manifest: pl.DataFrame) -> str:
    """Streams with their clips, samples and share of tokens."""
    total = max(manifest["num_tokens"].sum(), 1)
    rows = manifest.group_by("stream").agg(
        pl.col("clip_id").n_unique().alias("clips"),
        pl.len().alias("samples"),
        pl.col("num_tokens").sum().alias("tokens"),
    )
    lines = ["| stream | clips | samples | tokens | share of tokens |", "|---|---|---|---|---|"]
    lines += [
        f"| {s} | {c} | {n} | {t} | {t / total:.1%} |" for s, c, n, t in rows.sort("stream").rows()
    ]
    return "\n".join(lines)


def buckets_markdown(manifest: pl.DataFrame, limit: int = 60) -> str:
    """Buckets with their samples, crops and share of tokens."""
    total = max(manifest["num_tokens"].sum(), 1)
    rows = manifest.group_by("bucket").agg(
        pl.col("stream").unique().sort().str.join(", "),
        pl.len().alias("samples"),
        ((pl.col("crop_x") > 0) | (pl.col("crop_y") > 0)).sum().alias("cropped"),
        pl.col("num_tokens").sum().alias("tokens"),
    )
    lines = ["| bucket | streams | samples | cropped | share of tokens |", "|---|---|---|---|---|"]
    lines += [
        f"| {b} | {s} | {n} | {c} | {t / total:.1%} |"
        for b, s, n, c, t in rows.sort("bucket").head(limit).rows()
    ]
    return "\n".join(lines)


def moves_markdown(cut: Cut) -> str:
    """Samples that left a bucket that could not fill a batch."""
    lines = ["| from bucket | move | samples |", "|---|---|---|"]
    lines += [
        f"| {bucket.name} | {move} | {count} |"
        for (bucket, move), count in sorted(cut.moves.items())
    ]
    return "\n".join(lines) if cut.moves else "every bucket fills its batch as cut"


def flips_markdown(cut: Cut) -> str:
    """Samples that streams want mirrored: how many are, and why others are not."""
    lines = ["| stream | to be mirrored | samples |", "|---|---|---|"]
    lines += [
        f"| {stream} | {outcome if outcome == MIRRORED else f'not: {outcome}'} | {count} |"
        for (stream, outcome), count in sorted(cut.flips.items())
    ]
    return "\n".join(lines) if cut.flips else "no stream asks for mirror images"


def gap_notes(manifest: pl.DataFrame, recipe: Recipe) -> list[str]:
    """What the recipe asks for and the material lacks."""
    notes: list[str] = []
    for phase in recipe.phases:
        drawn = manifest.filter(
            pl.col("rung").is_in(list(phase.rungs)) & pl.col("tier").is_in(list(phase.tiers))
        )
        have = set(drawn["stream"])
        notes += [
            f"phase {phase.name}: stream {stream} has weight {weight:g} and no sample"
            for stream, weight in sorted(phase.weights.items())
            if weight > 0 and stream not in have
        ]
        notes += [
            f"phase {phase.name}: nothing at {rung}{_WHEN_FAST if rung in FAST_RUNGS else ''}"
            for rung in phase.rungs
            if rung not in set(drawn["rung"])
        ]
    clips = manifest.unique(subset="clip_id")
    by_domain = clips["domain"].drop_nulls().value_counts().sort("count", "domain")
    notes += [
        f"domain {domain}: {count} clip(s) of {clips.height}"
        for domain, count in by_domain.rows()
        if count * by_domain.height * 4 < clips.height
    ]
    return notes
