"""Streams: which weighted part of the mixture a clip belongs to.

How often a stream is drawn is told by the phases and computed by `shard.plan_mixture`.
"""

import polars as pl

from wsdata.recipe import Stream


def assign_streams(clips: pl.DataFrame, streams: dict[str, Stream]) -> pl.DataFrame:
    """Give every clip its stream: the most specific one that admits it.

    A stream of model-generated material admits that alone, and others admit none of it. More
    specific is: names domains, needs actions, needs sound, lists fewer source tiers; of equals,
    the name that sorts first.

    Args:
        clips: Columns ``source_tier, domain, media_kind, is_generated, has_sound, has_actions``.
        streams: The recipe's streams.

    Returns:
        The clips with a column ``stream``, null where none admits the clip.
    """
    stream = pl.lit(None, dtype=pl.String)
    for name in sorted(streams, key=lambda name: (_breadth(streams[name]), name), reverse=True):
        stream = pl.when(_admits(streams[name])).then(pl.lit(name)).otherwise(stream)
    return clips.with_columns(stream.alias("stream"))


def _breadth(stream: Stream) -> tuple[bool, bool, bool, int]:
    return (
        not stream.domains,
        not stream.needs_actions,
        not stream.needs_audio,
        len(stream.source_tiers),
    )


def _admits(stream: Stream) -> pl.Expr:
    admits = (
        (pl.col("media_kind") == stream.modality)
        & pl.col("source_tier").is_in(list(stream.source_tiers))
        & (pl.col("is_generated") == stream.generated)
    )
    if stream.domains:
        admits = admits & pl.col("domain").is_in(list(stream.domains)).fill_null(value=False)
    if stream.needs_audio:
        admits = admits & pl.col("has_sound")
    if stream.needs_actions:
        admits = admits & pl.col("has_actions")
    return admits
