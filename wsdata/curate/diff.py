"""What came, what went and what changed between two dataset versions, and why."""

import polars as pl

from wsdata.curate.losses import PARTIAL_REASONS

COLUMNS = {
    "sample_id": pl.String, "clip_id": pl.String, "asset_id": pl.String,
    "change": pl.String,  # came | went | changed
    "why": pl.String,
}  # fmt: skip
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
        old_exclusions: Its rows of ``exclusions``.
        new_rows: Rows of ``manifests`` of the other.
        new_exclusions: Its rows of ``exclusions``.

    Returns:
        Columns of `COLUMNS`, sorted by change and sample. ``why`` of a sample that went is the
        new version's reason for its clip; of one that came, what no longer excludes it; of one
        that changed, old and new values.
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
    return (
        samples.join(reasons, left_on="clip_id", right_on="subject", how="left")
        .join(
            reasons.select("subject", pl.col("told").alias("told_of_asset")),
            left_on="asset_id",
            right_on="subject",
            how="left",
        )
        .join(still_in, on="clip_id", how="left")
        .with_columns(
            pl.lit(change).alias("change"),
            pl.when(pl.col("is_in").fill_null(value=False) & told.is_null())
            .then(pl.lit(recut))
            .when(told.is_not_null())
            .then(pl.format(wording, told))
            .otherwise(pl.lit(unknown))
            .alias("why"),
        )
        .select(list(COLUMNS))
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
