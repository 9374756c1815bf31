"""What came, what went and what changed between two dataset versions, and why."""

import polars as pl

from wsdata.curate.losses import PARTIAL_REASONS

COLUMNS = {
    "sample_id": pl.String, "clip_id": pl.String, "asset_id": pl.String,
    "change": pl.String,  # came | went | changed
    "why": pl.String,
}  # fmt: skip
_FLIPS = "(flips of the recipe)"
_TOLD = ("tier", "stream", "bucket", "source_tier", "license_id", "domain", "cluster",
         "transcode_version", "audio_key", "actions_key", "weight", "crop_x", "crop_y")  # fmt: skip


def diff_manifests(
    old_rows: pl.DataFrame,
    old_exclusions: pl.DataFrame,
    new_rows: pl.DataFrame,
    new_exclusions: pl.DataFrame,
) -> pl.DataFrame:
    """Compare two dataset versions sample by sample.

    Args:
        old_rows: Rows of ``manifests`` of the one.
        old_exclusions: Its rows of ``exclusions``; their subjects may be samples too.
        new_rows: Rows of ``manifests`` of the other.
        new_exclusions: Its rows of ``exclusions``.

    Returns:
        Columns of `COLUMNS`, sorted by change and sample. ``why`` of a sample that went is the
        new version's reason for it or its clip; of one that came, what no longer excludes it; of
        one that changed, old and new values. Where the other version has the same sample mirrored,
        or not mirrored, that is what is told.
    """
    names = ["sample_id", "clip_id", "asset_id"]
    came = new_rows.join(old_rows, on="sample_id", how="anti").select(names)
    went = old_rows.join(new_rows, on="sample_id", how="anti").select(names)
    frames = [
        _told(came, old_exclusions, old_rows, "came", "no longer {}", "new material", "cut anew"),
        _told(went, new_exclusions, new_rows, "went", "{}", "no longer in the catalog", "cut anew"),
        _changed(old_rows, new_rows),
    ]
    return pl.concat(frames).sort("change", "sample_id")


def _told(
    samples: pl.DataFrame,
    exclusions: pl.DataFrame,
    other_rows: pl.DataFrame,
    change: str,
    wording: str,
    unknown: str,
    recut: str,
) -> pl.DataFrame:
    reasons = (
        exclusions.with_columns(
            pl.col("reason").is_in(list(PARTIAL_REASONS)).alias("is_partial"),
            pl.format("{}: {}", "reason", "detail").alias("told"),
        )
        .sort("is_partial", "reason")
        .group_by("subject", maintain_order=True)
        .agg(pl.col("told").first(), pl.col("is_partial").first())
    )
    still_in = other_rows.select("clip_id", pl.lit(value=True).alias("is_in")).unique("clip_id")
    told = pl.coalesce("told", "told_of_asset")
    for name, of in (("told_of_sample", "sample_id"), ("told", "clip_id"),
                     ("told_of_asset", "asset_id")):  # fmt: skip
        of_it = reasons.select("subject", pl.col("told").alias(name))
        samples = samples.join(of_it, left_on=of, right_on="subject", how="left")
    return (
        samples.join(still_in, on="clip_id", how="left")
        .join(_mirror_words(samples, other_rows, change), on="sample_id", how="left")
        .with_columns(
            pl.lit(change).alias("change"),
            pl.when(pl.col("told_of_sample").is_not_null())
            .then(pl.format(wording, "told_of_sample"))
            .when(pl.col("told_of_twin").is_not_null())
            .then(pl.col("told_of_twin"))
            .when(pl.col("is_in").fill_null(value=False) & told.is_null())
            .then(pl.lit(recut))
            .when(told.is_not_null())
            .then(pl.format(wording, told))
            .otherwise(pl.lit(unknown))
            .alias("why"),
        )
        .select(list(COLUMNS))
    )


def _mirror_words(samples: pl.DataFrame, other_rows: pl.DataFrame, change: str) -> pl.DataFrame:
    """What is told of samples that the other version has mirrored, or not mirrored."""
    place = pl.col("sample_id").str.replace(r"\.[^.]*$", "").alias("place")  # but for the variant
    is_flip = pl.col("sample_id").str.ends_with(".flip")
    others_flips = other_rows.filter(is_flip)["stream"].unique()
    twins = other_rows.select(place, "stream").unique("place")
    if change == "came":
        first = f"its stream now asks for mirror images {_FLIPS}"
        more = f"its stream now asks for more mirror images {_FLIPS}, or its clip may now have one"
        plain = "its mirror image no longer stands in for it"
    else:
        first = f"its stream no longer asks for mirror images {_FLIPS}"
        more = (
            f"its stream asks for fewer mirror images {_FLIPS}, or its clip may no longer have one"
        )
        plain = "its mirror image stands in for it (flips of the recipe: half)"
    had_any = pl.col("stream").is_in(others_flips.implode())
    words = pl.when(~is_flip).then(pl.lit(plain)).when(had_any).then(pl.lit(more))
    return (
        samples.select("sample_id", place)
        .join(twins, on="place", how="inner")
        .select("sample_id", words.otherwise(pl.lit(first)).alias("told_of_twin"))
    )


def _changed(old_rows: pl.DataFrame, new_rows: pl.DataFrame) -> pl.DataFrame:
    both = new_rows.join(
        old_rows.select("sample_id", *(pl.col(name).alias(f"old_{name}") for name in _TOLD)),
        on="sample_id",
        how="inner",
    )
    words = [
        pl.when(pl.col(name).ne_missing(pl.col(f"old_{name}"))).then(
            pl.format(
                f"{name} {{}} -> {{}}",
                pl.col(f"old_{name}").cast(pl.String).fill_null("none"),
                pl.col(name).cast(pl.String).fill_null("none"),
            )
        )
        for name in _TOLD
    ]
    return (
        both.with_columns(
            pl.lit("changed").alias("change"),
            pl.concat_str(words, separator="; ", ignore_nulls=True).alias("why"),
        )
        .filter(pl.col("why") != "")
        .select(list(COLUMNS))
    )
