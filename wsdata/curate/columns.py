"""Tracks that samples carry beside their latents: a clip's kept sound, and its kept actions.

A stream asks for them, and the manifest names them, so that a cut freezes them with all else.
Cutting them to a sample's span belongs to `shard.columns`. Sound that is silent, broken or out of
sync is not kept, and so is never named here.
"""

import polars as pl

from wsdata.recipe import Stream

SAMPLE_FORMAT = 2  # of what is stored for a sample: latents of another are not taken for these
TRACKS = {"audio": "audio_tracks", "actions": "action_tracks"}
NAMED = ("key", "sha256")
NO_COLUMNS = f"{SAMPLE_FORMAT}:-:-"  # digest of no tracks; of manifests of before they named any
# What makes old latents fit, for a cut and for the index alike.
SAME_SAMPLE = ["sample_id", "bucket", "transcode_sha256", "columns_digest"]


def kept_tracks(sound: pl.DataFrame, actions: pl.DataFrame) -> pl.DataFrame:
    """Name the kept tracks of clips.

    Args:
        sound: Rows of ``audio_tracks``.
        actions: Rows of ``action_tracks``.

    Returns:
        One row for each clip that has any: ``clip_id``, ``kept_audio_key``, ``kept_audio_sha256``,
        ``kept_actions_key``, ``kept_actions_sha256``, ``kept_channels_json``.
    """
    is_kept = pl.col("status") == "kept"
    heard = sound.filter(is_kept).select(
        "clip_id", *(pl.col(name).alias(f"kept_audio_{name}") for name in NAMED)
    )
    done = actions.filter(is_kept).select(
        "clip_id",
        *(pl.col(name).alias(f"kept_actions_{name}") for name in NAMED),
        pl.col("channels_json").alias("kept_channels_json"),
    )
    return heard.join(done, on="clip_id", how="full", coalesce=True)


def name_columns(rows: pl.DataFrame, streams: dict[str, Stream]) -> pl.DataFrame:
    """Add a manifest's columns about tracks to rows with ``stream`` and `kept_tracks`."""
    asking = {
        "audio": [name for name, stream in streams.items() if stream.audio],
        "actions": [name for name, stream in streams.items() if stream.actions],
    }
    named = {f"{track}_{name}": track for track in asking for name in NAMED}
    named["channels_json"] = "actions"
    rows = rows.with_columns(
        pl.when(pl.col("stream").is_in(asking[track])).then(pl.col(f"kept_{column}")).alias(column)
        for column, track in named.items()
    )
    content = [pl.col(f"{track}_sha256").str.head(16).fill_null("-") for track in asking]
    return rows.with_columns(
        pl.concat_str(pl.lit(str(SAMPLE_FORMAT)), *content, separator=":").alias("columns_digest")
    )
