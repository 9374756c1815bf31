"""Why a clip is not in a dataset version: the reasons, asked in one fixed order.

A clip is told the first reason that applies, so a funnel adds up. Reasons are asked of the
clips that are left; what follows from samples (remainders, small buckets) is added by
`manifest`. Facts and rows come from outside: nothing here reads a store or a clock.
"""

from collections.abc import Callable

import polars as pl

from wsdata.tables import SAMPLED_RUNGS

REASONS = (
    "tombstoned",
    "unsafe",
    "gated",
    "near_duplicate",
    "refused_rights",
    "purged",
    "semantic_duplicate",
    "no_caption",
    "failed_qc",
    "tier_not_admitted",
    "no_stream",
    "no_sample",
    "bucket_too_small",
    "sample_cap",
    "remainder",
)
PARTIAL_REASONS = ("bucket_too_small", "sample_cap", "remainder")  # the clip may still be in
SPAN_SHARE = 0.5  # of a clip that a span covers, from which on the clip is a copy

Lost = pl.DataFrame  # columns clip_id, detail


class Remaining:
    """The clips that are left, and what was said of those that are not.

    Attributes:
        clips: Rows still in; any columns beside ``clip_id`` and ``asset_id``.
        exclusions: (subject, raw asset, reason, detail) so far.
        left_after: (reason, clips left), in the order asked.
    """

    def __init__(self, clips: pl.DataFrame) -> None:
        self.clips = clips
        self.exclusions: list[dict[str, str]] = []
        self.left_after: list[tuple[str, int]] = []

    def leave_out(self, reason: str, find: Callable[[pl.DataFrame], Lost]) -> None:
        """Ask one reason of the clips that are left."""
        lost = find(self.clips).select("clip_id", pl.col("detail").fill_null(""))
        rows = self.clips.join(lost, on="clip_id", how="inner")
        self.exclusions += [
            {"subject": clip, "asset_id": asset, "reason": reason, "detail": detail}
            for clip, asset, detail in rows["clip_id", "asset_id", "detail"].sort("clip_id").rows()
        ]
        self.clips = self.clips.join(lost, on="clip_id", how="anti")
        self.left_after.append((reason, self.clips.height))


def gated(clips: pl.DataFrame) -> Lost:
    """Clips that the gates stop; columns ``passed, stopped_by, reason``."""
    return clips.filter(~pl.col("passed")).select(
        "clip_id", pl.format("{}: {}", "stopped_by", pl.col("reason").fill_null("")).alias("detail")
    )


def near_duplicates(
    clips: pl.DataFrame,
    groups: pl.DataFrame,
    match_pairs: pl.DataFrame,
    asset_quality: pl.DataFrame,
) -> Lost:
    """Clips of raw assets that are copies of a better one, and clips that a span covers.

    `groups` as `neardup.canonical_copies` returns: a raw asset without clips never stands for
    others. One whose clips were stopped does: its copies were never labelled where they came
    later, and order of arrival must not matter.
    """
    copies = groups.filter(pl.col("asset_id") != pl.col("canonical_id"))
    whole = clips.join(copies, on="asset_id", how="inner").select(
        "clip_id", pl.format("copy of {}", pl.col("canonical_id").str.slice(0, 24)).alias("detail")
    )
    left = clips.join(whole, on="clip_id", how="anti")
    return pl.concat([whole, _covered_by_spans(left, match_pairs, asset_quality)])


def _covered_by_spans(clips: pl.DataFrame, pairs: pl.DataFrame, quality: pl.DataFrame) -> Lost:
    """Clips of the lesser side of each span, at least half inside it.

    The lesser side is that of lower rank, of equals the id that sorts last, as for whole copies.
    """
    assets = clips.select("asset_id").unique()
    rank = dict(quality.select("asset_id", "rank_value").iter_rows())
    spans: list[tuple[str, str, float, float]] = []
    for row in pairs.filter(pl.col("kind") == "span").iter_rows(named=True):
        a, b = row["asset_a"], row["asset_b"]
        keeps_a = (-(rank.get(a) or 0.0), a) < (-(rank.get(b) or 0.0), b)
        side = "b" if keeps_a else "a"
        spans.append((b, a, row["b_start_s"], row["b_end_s"]) if side == "b"
                     else (a, b, row["a_start_s"], row["a_end_s"]))  # fmt: skip
    frame = pl.DataFrame(
        spans,
        schema={"asset_id": pl.String, "kept_id": pl.String, "from_s": pl.Float64,
                "to_s": pl.Float64},
        orient="row",
    ).join(assets.rename({"asset_id": "kept_id"}), on="kept_id", how="semi")  # fmt: skip
    overlap = pl.min_horizontal("end_s", "to_s") - pl.max_horizontal("start_s", "from_s")
    return (
        clips.join(frame, on="asset_id", how="inner")
        .filter(overlap >= SPAN_SHARE * (pl.col("end_s") - pl.col("start_s")))
        .sort("clip_id", "kept_id", "from_s")
        .unique(subset="clip_id", keep="first", maintain_order=True)
        .select(
            "clip_id",
            pl.format("excerpt of {}", pl.col("kept_id").str.slice(0, 24)).alias("detail"),
        )
    )


def refused_rights(clips: pl.DataFrame) -> Lost:
    """Clips whose declarations refuse training; column ``refusal``. None at all refuses too."""
    return clips.filter(pl.col("refusal").is_not_null() | pl.col("source_tier").is_null()).select(
        "clip_id", pl.col("refusal").fill_null("no provenance").alias("detail")
    )


def purged(clips: pl.DataFrame, hits: pl.DataFrame) -> Lost:
    """Clips that show eval material; `hits` as `decontam.eval_hits` returns."""
    told = (
        hits.group_by("clip_id", "eval_asset_id")
        .agg(pl.col("method").unique().sort().str.join(", "))
        .sort("clip_id", "eval_asset_id")
        .group_by("clip_id", maintain_order=True)
        .agg(
            pl.format(
                "shows eval asset {} ({})", pl.col("eval_asset_id").str.slice(0, 12), "method"
            )
            .str.join("; ")
            .alias("detail")
        )
    )
    return clips.select("clip_id").join(told, on="clip_id", how="inner")


def semantic_duplicates(settled: pl.DataFrame) -> Lost:
    """Redundant clips; `settled` as `semdedup.settle_groups` returns."""
    return settled.select(
        "clip_id",
        pl.format(
            "means the same as {} (cosine {})", "kept_clip_id", pl.col("similarity").round(3)
        ).alias("detail"),
    )


def without_caption(clips: pl.DataFrame, captions: pl.DataFrame) -> Lost:
    """Clips without any caption that was made."""
    made = captions.filter(pl.col("status") == "ok")
    why = captions.group_by("clip_id").agg(pl.col("reason").drop_nulls().sort().first())
    return (
        clips.select("clip_id")
        .join(made, on="clip_id", how="anti")
        .join(why, on="clip_id", how="left")
        .select("clip_id", pl.col("reason").fill_null("never captioned").alias("detail"))
    )


def failed_qc(clips: pl.DataFrame, captions: pl.DataFrame, label_qc: pl.DataFrame) -> Lost:
    """Clips of which no caption passed; one that was never checked counts as passed."""
    checked = (
        captions.filter(pl.col("status") == "ok")
        .join(
            label_qc.select("clip_id", "variant", "captioner_version", "passed", "flags_json"),
            on=["clip_id", "variant", "captioner_version"],
            how="left",
        )
        .sort("clip_id", "variant")
        .group_by("clip_id", maintain_order=True)
        .agg(
            pl.col("passed").fill_null(value=True).any(),
            pl.format("{}: {}", "variant", pl.col("flags_json").fill_null("[]"))
            .str.join(", ")
            .alias("detail"),
        )
    )
    return (
        clips.select("clip_id")
        .join(checked.filter(~pl.col("passed")), on="clip_id", how="inner")
        .select("clip_id", "detail")
    )


def at_no_rung(clips: pl.DataFrame, wanted: pl.DataFrame, transcodes: pl.DataFrame) -> Lost:
    """Clips that are not stored at any rung that a phase asks of them.

    Args:
        clips: With ``tier`` and ``stream``.
        wanted: One row per tier, stream and rung that a phase draws.
        transcodes: One row per clip and rung that is stored.
    """
    rungs = pl.col("rung").cast(pl.Enum(SAMPLED_RUNGS)).sort().cast(pl.String).str.join(", ")
    drawable = clips.join(wanted, on=["tier", "stream"]).join(transcodes, on=["clip_id", "rung"])
    return (
        clips.join(drawable, on="clip_id", how="anti")
        .join(wanted.group_by("tier", "stream").agg(rungs.alias("asked")), on=["tier", "stream"])
        .join(transcodes.group_by("clip_id").agg(rungs.alias("made")), on="clip_id", how="left")
        .select(
            "clip_id",
            pl.format(
                "phases ask for it at {}; it is stored at {}",
                "asked",
                pl.col("made").fill_null("no rung"),
            ).alias("detail"),
        )
    )


def flagged(clips: pl.DataFrame, *, where: pl.Expr, detail: pl.Expr | str) -> Lost:
    """Clips that an expression over their columns picks, with a detail made likewise."""
    told = pl.lit(detail) if isinstance(detail, str) else detail
    return clips.filter(where).select("clip_id", told.alias("detail"))
