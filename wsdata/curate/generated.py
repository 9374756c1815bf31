"""Registered generated material: which clips show what a model made.

Asked anew at every cut, as eval material is: a registration that comes after a drop re-tags that
drop's clips too. A clip that is found keeps its rights and scores; it goes to streams of
generated material, where those cap it, and to no other. Registering belongs to
`ingest.registered`.
"""

import polars as pl

from wsdata.curate.decontam import asset_hits, fingerprint_hits
from wsdata.recipe import Decontamination


def generated_clips(
    clips: pl.DataFrame,
    prints: pl.DataFrame,
    registered: pl.DataFrame,
    settings: Decontamination,
) -> pl.DataFrame:
    """Name clips that show registered material.

    Args:
        clips: Columns ``clip_id, asset_id, media_kind, start_s, end_s``; each clip once.
        prints: Rows of ``fingerprints`` and ``pass_fingerprints``.
        registered: Rows of ``generated_prints`` of any registrations, repeats allowed.
        settings: When a clip counts as a copy; embeddings have no part in it.

    Returns:
        ``clip_id`` and ``generator``, each clip once, sorted; of several generators the first.
    """
    known = clips.select("clip_id", "asset_id", "media_kind", "start_s", "end_s")
    references = registered.with_columns(
        pl.concat_str("generator", "item_id", separator="\n").alias("asset_id"),
        pl.lit("frame").alias("level"),
    )
    hits = fingerprint_hits(known, prints, references, settings)
    return (
        pl.concat([hits, asset_hits(known, hits)])
        .select("clip_id", pl.col("eval_asset_id").str.split("\n").list.first().alias("generator"))
        .sort("clip_id", "generator")
        .unique("clip_id", keep="first", maintain_order=True)
    )


def retag_clips(clips: pl.DataFrame, generated: pl.DataFrame) -> pl.DataFrame:
    """Count what shows registered material as generated, whatever its drop declares.

    Args:
        clips: With a column ``is_generated``.
        generated: As `generated_clips` returns.
    """
    is_found = pl.col("clip_id").is_in(generated["clip_id"].to_list())
    return clips.with_columns(pl.col("is_generated") | is_found)
