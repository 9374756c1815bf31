"""Rights at the cut: what may be trained on at an as-of date, and by which rule not.

Provenance of one raw asset may come from several drops that declare different things: the
strictest wins. Refused by one declaration is refused; the source tier is the one of which least
may be assumed (synthetic before crawl before licensed: synthetic material is capped and kept
from eval, crawled material has no contract). Nothing is corrected here, and takedowns are not
rights but tombstones (`losses`).
"""

import datetime as dt

import polars as pl

from wsdata.errors import RecipeError
from wsdata.recipe import Rights

RULES = ("opt_out", "licence", "territory", "window", "robots")
TIER_STRICTNESS = ("synthetic", "crawl", "licensed")  # strictest first
EVERYWHERE = "world"


def check_as_of_date(text: str | None) -> str:
    """Accept an ISO day.

    Raises:
        RecipeError: There is none, or it is something else.
    """
    try:
        return dt.date.fromisoformat(text or "").isoformat()
    except ValueError:
        raise RecipeError(
            f"as_of_date is {text!r}, expected an ISO day such as 2026-11-01: rights are judged "
            "by it, so a cut must name one"
        ) from None


def judge_rights(provenance: pl.DataFrame, rights: Rights, *, as_of_date: str) -> pl.DataFrame:
    """Merge the provenance of each raw asset over all drops, and judge it.

    Args:
        provenance: Rows of table ``provenance`` of all drops, in any order.
        rights: What a licence must allow.
        as_of_date: ISO day. A rights window is half-open: [rights_from, rights_until).

    Returns:
        One row per raw asset, sorted: ``asset_id, source, source_tier, license_id,
        is_generated, refusal``. The refusal names every rule broken with what was found, and is
        null where training is allowed.
    """
    strictness = pl.col("source_tier").replace_strict(
        list(TIER_STRICTNESS), range(len(TIER_STRICTNESS)), default=-1, return_dtype=pl.Int64
    )
    judged = provenance.with_columns(
        strictness.alias("strictness"),
        _refusal(rights, as_of_date).alias("refusal"),
        (pl.col("record_json").str.json_path_match("$.is_generated") == "true")
        .fill_null(value=False)
        .alias("is_generated"),
    ).sort("asset_id", "strictness", "source", "license_id", "drop", "path", nulls_last=False)
    return (
        judged.group_by("asset_id", maintain_order=True)
        .agg(
            pl.col("source").first(),
            pl.col("source_tier").first(),
            pl.col("license_id").first(),
            pl.col("is_generated").any(),
            pl.col("refusal").drop_nulls().unique().sort().str.join("; ").alias("refusal"),
        )
        .with_columns(pl.when(pl.col("refusal") != "").then(pl.col("refusal")).alias("refusal"))
    )


def _refusal(rights: Rights, as_of_date: str) -> pl.Expr:
    """Null, or all rules that one declaration breaks."""
    shown = pl.col("license_id").fill_null("none")
    refused_license = (
        pl.col("license_id").is_in(list(rights.refused_licenses)).fill_null(value=False)
    )
    if rights.licenses:
        allowed = pl.col("license_id").is_in(list(rights.licenses)).fill_null(value=False)
        refused_license = refused_license | ~allowed
    start, until = pl.col("rights_from"), pl.col("rights_until")
    outside = (start > as_of_date).fill_null(value=False) | (until <= as_of_date).fill_null(
        value=False
    )
    window = pl.format("window: [{}, {})", start.fill_null("open"), until.fill_null("open"))
    no_robots = (pl.col("robots_allowed") == False).fill_null(value=False) | (  # noqa: E712
        (pl.col("source_tier") == "crawl") & pl.col("robots_allowed").is_null()
    )
    robots = (
        pl.when(pl.col("robots_allowed").is_null())
        .then(pl.lit("robots: crawled without a verdict"))
        .otherwise(pl.lit("robots: crawling was not allowed"))
    )
    territory = pl.col("territory").fill_null("none")
    found = (
        pl.when(pl.col("opt_out").fill_null(value=False)).then(pl.lit("opt_out: declared")),
        pl.when(refused_license).then(pl.format("licence: {}", shown)),
        pl.when(~_covers(territory, rights.territories)).then(
            pl.format("territory: {}", territory)
        ),
        pl.when(outside).then(pl.format(f"{{}} at {as_of_date}", window)),
        pl.when(no_robots).then(robots),
    )
    joined = pl.concat_str(found, separator="; ", ignore_nulls=True)
    return pl.when(joined != "").then(joined)


def _covers(territory: pl.Expr, wanted: tuple[str, ...]) -> pl.Expr:
    """Whether a declared territory (names split by commas) covers all that are wanted."""
    named = territory.str.to_lowercase().str.replace_all(r"\s", "").str.split(",")
    everywhere = named.list.contains(EVERYWHERE)
    all_named = pl.lit(value=True)
    for name in wanted:
        all_named = all_named & named.list.contains(name.lower())
    return everywhere | all_named
