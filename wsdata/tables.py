"""Columns and dtypes of every table of rows, and how a table becomes bytes.

One quantity has one name in all tables. Units end names; times in rows are seconds for people
and pts with a time base for truth. `_json` columns hold canonical JSON.
"""

import io

import polars as pl

from wsdata.report_tables import REPORT_TABLES
from wsdata.table_spec import BIN, BOOL, F64, INT, INTS, STR, TEXTS, VECTOR, Table
from wsdata.table_spec import make_table as _table

RUNGS = ("256p", "512p", "720p", "1080p")
TRANSCODES = (*RUNGS, "48fps")  # endings of tables; 48fps has a clip's largest rung up to 720p
FAST_RUNGS = {"256p48": "256p", "512p48": "512p", "720p48": "720p"}  # 48 fps: rung of like size
SAMPLED_RUNGS = (  # what phases name, smallest first; at 24 fps but for `FAST_RUNGS`
    "256p", "256p48", "512p", "512p48", "720p", "720p48", "1080p",
)  # fmt: skip


_BLOB = {"key": STR, "sha256": STR, "size_bytes": INT}
_TRANSCODE = _table(
    ("clip_id",), ("key",), clip_id=STR, asset_id=STR, rung=STR, **_BLOB,
    width_px=INT, height_px=INT, fps=F64, num_frames=INT, codec=STR,
    crop_x=INT, crop_y=INT, crop_width_px=INT, crop_height_px=INT,  # display pixels of the source
    encoder=STR,  # x264 | h264_nvenc; null for a still
    color_decision_json=STR,  # how the source's colours were read and mapped; see `media.color`
    transcode_version=STR,
)  # fmt: skip
_SCORES = _table(
    ("clip_id", "score_name"),
    clip_id=STR, asset_id=STR, source=STR, filter=STR, score_name=STR,
    score=F64,  # null where status is not "ok"
    model_version=STR,
    status=STR,  # ok | unscored (reason says gated by what, or what was missing) | error
    reason=STR, detail_json=STR,
)  # fmt: skip
FILTERS = (  # as they follow each other; see `preprocess.savings`
    "safety_list", "technical", "safety", "motion", "quality", "faces", "audio", "overlay",
    "text_tags", "actions",
)  # fmt: skip
ROW_FILTERS = ("safety_list", "technical", "text_tags")  # they read rows alone, in no pool

TABLES: dict[str, Table] = {
    # ingest ---------------------------------------------------------------------------------
    "raw_assets": _table(
        ("asset_id",), ("key",), asset_id=STR, key=STR,  # key: null for vault members
        size_bytes=INT, suffix=STR,  # lower case, with its dot
        in_vault=BOOL, carve_reason=STR,  # null | share | listed
        num_files=INT,  # files of this drop with these bytes
    ),
    "provenance": _table(
        ("asset_id", "path"), ("actions_key",), asset_id=STR, drop=STR,
        path=STR,  # within the drop; of a payload's member "shard.tar!member"
        source_tier=STR, source=STR, license_id=STR, territory=STR,
        rights_from=STR, rights_until=STR,  # ISO dates, null for open
        opt_out=BOOL, pii_policy=STR, generator=STR, crawl_url=STR, fetched_at=STR,
        robots_allowed=BOOL, title=STR, page_text=STR, in_vault=BOOL, record_json=STR,
        actions_key=STR,  # raw object of the action/sensor track delivered with it; null without
        actions_suffix=STR,  # .csv | .parquet
        is_continuous=BOOL,  # one take, cut into episodes
    ),
    "probes": _table(
        ("asset_id",), asset_id=STR, media_kind=STR,  # video | image | audio, by content
        container=STR, codec=STR, profile=STR, pixel_format=STR,
        width_px=INT, height_px=INT,  # display geometry: after SAR and rotation
        coded_width_px=INT, coded_height_px=INT, sar=STR, rotation_deg=INT, color_json=STR,
        time_base=STR, source_fps=F64, is_vfr=BOOL, start_s=F64, duration_s=F64, bit_rate=INT,
        video_track=INT, num_video_tracks=INT, audio_track=INT, num_audio_tracks=INT,
        audio_codec=STR, sample_rate_hz=INT, channels=INT, streams_json=STR,
        num_frames=INT,  # of a still's file: above 1 for an animation; null for videos
        status=STR,  # ok | empty | failed
        reason=STR,
    ),
    "fingerprints": _table(
        ("asset_id", "frame_index"), asset_id=STR, frame_index=INT, time_s=F64,
        hash=BIN, mirror_hash=BIN,  # 32 bytes each
        quality=INT,  # 0..100; below the matcher's floor a frame has no vote
        method=STR,  # keyframe-... | pass-1fps-...
        core_hash=BIN, core_mirror_hash=BIN,  # of the inner part; null where that says too little
    ),
    "audio_prints": _table(
        ("asset_id",), asset_id=STR, start_s=F64,  # of the first code, after the first picture
        codes=BIN,  # little-endian 32-bit words, one for each 0.12384 s
        version=STR,
    ),
    "match_pairs": _table(
        ("asset_a", "asset_b", "kind", "a_start_s", "b_start_s"), asset_a=STR, asset_b=STR,  # a < b
        kind=STR,  # whole | span
        coverage_a=F64, coverage_b=F64, mean_distance=F64, is_mirrored=BOOL,
        a_start_s=F64, a_end_s=F64, b_start_s=F64, b_end_s=F64, num_matched=INT,
    ),
    "asset_quality": _table(  # what picks the canonical copy of a near-duplicate group
        ("asset_id",), asset_id=STR, bit_rate=INT, width_px=INT, height_px=INT, rank_value=F64
    ),
    "vault_prints": _table(
        ("asset_id", "level", "frame_index"), asset_id=STR, level=STR,  # frame | clip | asset
        frame_index=INT, time_s=F64, end_s=F64,  # end: of a clip
        hash=BIN, mirror_hash=BIN, quality=INT, core_hash=BIN,
        core_mirror_hash=BIN, vector=VECTOR,
        embedding_version=STR, is_fit_for_eval=BOOL,
    ),
    "generated_prints": _table(  # of what models made, registered without any drop
        ("generator", "item_id", "frame_index"), generator=STR, item_id=STR, frame_index=INT,
        time_s=F64, hash=BIN, mirror_hash=BIN, quality=INT,  # null: it votes
        core_hash=BIN, core_mirror_hash=BIN,
    ),
    # preprocess -----------------------------------------------------------------------------
    "clips": _table(
        ("clip_id",), clip_id=STR, asset_id=STR, drop=STR, source=STR, source_tier=STR,
        media_kind=STR,  # video | image
        track=INT, start_pts=INT, end_pts=INT, time_base=STR,  # "1/90000"; the span that governs
        start_s=F64, end_s=F64, duration_s=F64, shot_index=INT, window_index=INT,
        width_px=INT, height_px=INT, source_fps=F64, num_frames=INT,  # frames at the rung's 24 fps
        aspect=STR,  # 16:9 | 9:16 | 1:1 | 4:3
        top_rung=STR,  # null where the source is below the smallest rung
        is_salvaged=BOOL, has_audio=BOOL,
        start_kind=STR, end_kind=STR,  # cut | fade | dissolve | window | gap | file
    ),
    **{f"transcodes_{rung}": _TRANSCODE for rung in TRANSCODES},
    "audio_tracks": _table(
        ("clip_id",), ("key",), clip_id=STR, asset_id=STR,
        status=STR,  # kept | silent | none | unsynced | broken
        **_BLOB,  # key, sha256, size_bytes: null unless kept
        codec=STR,  # opus | aac, as it is stored
        sample_rate_hz=INT, channels=INT, duration_s=F64, drift_ms=F64, rms_db=F64, peak_db=F64,
        clipped_share=F64,
        loudness_lufs=F64,  # integrated, EBU R 128; of the source
        music_share=F64,  # of the clip; what decided on the form it is stored in
        source_rate_hz=INT, source_channels=INT,
        reason=STR,  # why it is not kept
    ),
    "action_tracks": _table(
        ("clip_id",), ("key",), clip_id=STR, asset_id=STR,
        status=STR,  # kept | none | misaligned | broken
        **_BLOB,  # of the cut track as Parquet: null unless kept
        num_rows=INT,  # as delivered, within the clip
        num_dropped=INT,  # of the whole track: without a time, or with that of a later row
        rate_hz=F64, coverage_share=F64,  # of the clip's frames, those with a value
        channels_json=STR,  # [{"name": ..., "unit": ..., "kind": continuous | discrete}, ...]
        reason=STR,
    ),
    "frame_packs": _table(
        ("clip_id",), ("key",), clip_id=STR, asset_id=STR, **_BLOB, num_color=INT, num_luma=INT,
    ),
    "pass_fingerprints": _table(
        ("asset_id", "frame_index"), asset_id=STR, frame_index=INT, time_s=F64,
        hash=BIN, mirror_hash=BIN, quality=INT, method=STR, core_hash=BIN, core_mirror_hash=BIN,
    ),
    "decode_status": _table(
        ("asset_id",), asset_id=STR,
        status=STR,  # ok | salvaged | quarantined | empty | failed
        reason=STR, attempts=INT, frames_promised=INT, frames_decoded=INT, num_errors=INT,
        decoded_s=F64, num_shots=INT, num_clips=INT, sandbox_level=STR, path_used=STR,
        num_transitions=INT,  # fades and dissolves
    ),
    **{f"{name}_scores": _SCORES for name in FILTERS},
    "gates": _table(
        ("clip_id",), clip_id=STR, asset_id=STR, passed=BOOL, stopped_by=STR, reason=STR,
        provisional_tier=STR,  # T0..T3; null where not passed
        quality_value=F64,  # [0, 1], what the tier was read from
    ),
    # label ----------------------------------------------------------------------------------
    "clip_embeddings": _table(
        ("clip_id",), clip_id=STR, asset_id=STR, vector=VECTOR,  # unit length
        model_version=STR, tags_json=STR,  # [[tag, share], ...]
    ),
    "camera_motion": _table(
        ("clip_id",), clip_id=STR, label=STR, confidence=F64, pan_x=F64, pan_y=F64, zoom=F64,
        shake=F64, model_version=STR,
    ),
    "audio_labels": _table(
        ("clip_id",), clip_id=STR, label=STR,  # speech | music | ambience | silence | none
        speech_share=F64, music_share=F64, ambience_share=F64, model_version=STR, reason=STR,
    ),
    "captions": _table(
        ("clip_id", "variant"), clip_id=STR, captioner_version=STR, variant=STR,  # dense | short
        text=STR, status=STR,  # ok | failed
        reason=STR, num_words=INT,
    ),
    "label_qc": _table(
        ("clip_id", "variant"), clip_id=STR, captioner_version=STR, variant=STR, passed=BOOL,
        flags_json=STR, agreement=F64,
    ),
    # curate ---------------------------------------------------------------------------------
    "eval_matches": _table(
        ("clip_id", "eval_asset_id", "method"), clip_id=STR, asset_id=STR, eval_asset_id=STR,
        method=STR,  # fingerprint | embedding
        value=F64,  # bits, or cosine
        num_matched=INT,
    ),
    "centroids": _table(("cluster",), cluster=INT, vector=VECTOR, num_fitted=INT, domain=STR),
    "cluster_assignments": _table(
        ("clip_id",), clip_id=STR, asset_id=STR, cluster=INT, similarity=F64
    ),
    "semantic_duplicates": _table(
        ("clip_id",), clip_id=STR, asset_id=STR, cluster=INT, kept_clip_id=STR, similarity=F64
    ),
    "manifests": _table(
        ("sample_id",), sample_id=STR, clip_id=STR, asset_id=STR, source=STR, source_tier=STR,
        license_id=STR, stream=STR, domain=STR, cluster=INT, tier=STR, media_kind=STR,
        bucket=STR,  # "<rung>/<width>x<height>/<frames>", in pixels of what is encoded
        rung=STR, fps=F64,  # of the rung
        width_px=INT, height_px=INT, num_frames=INT, start_frame=INT, variant=STR,
        crop_x=INT, crop_y=INT,  # of width_px x height_px inside the transcode
        transcode_key=STR, transcode_sha256=STR, transcode_version=STR,
        audio_key=STR, audio_sha256=STR,  # null where none is wanted or kept; so are
        actions_key=STR, actions_sha256=STR, channels_json=STR,  # those of the actions
        columns_digest=STR,  # of the two tracks: whether older latents have the same beside them
        num_tokens=INT,  # latent tokens after 2x2 patches
        weight=F64,
    ),
    "shard_assignments": _table(  # samples that no live shard holds yet
        ("sample_id",), sample_id=STR, shard_group=STR
    ),
    "exclusions": _table(
        ("subject", "reason"), subject=STR,  # a clip id, or an asset id
        asset_id=STR, reason=STR,  # refused_rights | tombstoned | purged | near_duplicate | ...
        detail=STR,
    ),
    # shard ----------------------------------------------------------------------------------
    "placements": _table(
        ("sample_id",), ("shard_key",), sample_id=STR, clip_id=STR, bucket=STR,
        tokenizer_version=STR, latent_dtype=STR,  # fp8 | int8
        shard=STR, shard_key=STR, row=INT, offset=INT, length=INT,  # bytes within the shard
        columns_json=STR,  # {column: [offset, length]} from the start of the shard
        latent_shape_json=STR,  # [t, c, h, w]
        xxh3=STR, psnr_db=F64,  # of what the stored latents decode to
        uncast_psnr_db=F64,  # the same before the cast to eight bits; null of most
        cast_rms_share=F64, cast_max_share=F64,  # error of the cast: of the latents' RMS, maximum
        is_prefix_exact=BOOL,  # the latents of a temporal prefix are a prefix of the latents
        job=STR, transcode_sha256=STR,  # of what was encoded
        columns_digest=STR,  # as the manifest's
        channels_json=STR,  # of column `actions`, one for each of its dims; null without
        remarks_json=STR,  # {column: why it is empty, or not whole}; null where nothing is to tell
    ),
    "latent_losses": _table(("sample_id",), sample_id=STR, clip_id=STR, reason=STR, detail=STR),
    "caption_packs": _table(
        ("shard", "caption_version"), ("key",), shard=STR, caption_version=STR, **_BLOB,
        num_samples=INT,
        record_offsets=INTS, record_lengths=INTS, record_xxh3=TEXTS,  # of each row of the shard
    ),
    "dataset_index": _table(
        ("sample_id",), sample_id=STR, clip_id=STR, asset_id=STR, stream=STR, tier=STR,
        source=STR, cluster=INT, bucket=STR, weight=F64, num_tokens=INT,
        tokenizer_version=STR, latent_dtype=STR, latent_shape_json=STR,
        shard=STR, shard_key=STR, row=INT, offset=INT, length=INT, columns_json=STR, xxh3=STR,
        psnr_db=F64, is_prefix_exact=BOOL, channels_json=STR,
        caption_pack_key=STR, caption_version=STR,
        caption_offset=INT, caption_length=INT, caption_xxh3=STR,  # within the pack
    ),
    "index_losses": _table(("sample_id",), sample_id=STR, clip_id=STR, reason=STR, detail=STR),
    "step_plans": _table(
        ("plan_id",), ("key", "index_key", "training_index_key", "pointer_key"), plan_id=STR,
        key=STR, index_key=STR, training_index_key=STR,  # what the pointer names
        pointer_key=STR,
        num_samples=INT, num_steps=INT, num_pools=INT, proof_json=STR,
    ),
    "training_index_parts": _table(("key",), ("key",), **_BLOB),
    **REPORT_TABLES,
}  # fmt: skip


# Made by what people state, and by no step: its stage, and who states it.
STATED = {"generated_prints": "ingest"}

MIN_GROUP_ROWS = 4096  # of a Parquet row group

# Made of everything else: a step that reads these to report on all tables would never be done.
SELF_REPORTS = ("retention", "drift", "costs", "engine_mirror")


def empty(table: str) -> pl.DataFrame:
    """Return a table with its columns and no rows."""
    return pl.DataFrame(schema=TABLES[table].columns)


def conform(table: str, rows: pl.DataFrame) -> pl.DataFrame:
    """Bring rows to a table's columns, dtypes and order, sorted by its key.

    Raises:
        ValueError: A column is missing or unknown, a cast fails, or a key occurs twice.
    """
    spec = TABLES[table]
    missing, unknown = set(spec.columns) - set(rows.columns), set(rows.columns) - set(spec.columns)
    if missing or unknown:
        raise ValueError(
            f"table {table}: missing columns {sorted(missing)}, unknown {sorted(unknown)}"
        )
    try:
        rows = rows.select(pl.col(name).cast(dtype) for name, dtype in spec.columns.items())
    except pl.exceptions.InvalidOperationError as error:
        raise ValueError(f"table {table}: {error}") from error
    rows = rows.sort(spec.key)
    if rows.select(spec.key).is_duplicated().any():
        twice = rows.filter(rows.select(spec.key).is_duplicated()).select(spec.key).head(3).rows()
        raise ValueError(f"table {table}: key {spec.key} occurs twice, such as {twice}")
    return rows


def rows_of(table: str, records: list[dict]) -> pl.DataFrame:
    """Build a table from dicts; absent columns are null. Checked as `conform` does."""
    columns = TABLES[table].columns
    for record in records:
        if unknown := set(record) - set(columns):
            raise ValueError(f"table {table}: unknown columns {sorted(unknown)}")
    full = [{name: record.get(name) for name in columns} for record in records]
    return conform(table, pl.DataFrame(full, schema=columns))


def to_parquet(rows: pl.DataFrame) -> bytes:
    """Write rows as Parquet; the same rows give the same bytes.

    A question about one subject reads one row group of a sorted table, so groups are small; but
    not so many that reading what they hold (64 x columns) costs more than they spare.
    """
    buffer = io.BytesIO()
    rows_per_group = min(max(MIN_GROUP_ROWS, -(-rows.height // 64)), 512 * 512)
    rows.write_parquet(
        buffer, compression="zstd", compression_level=3, statistics=True,
        row_group_size=rows_per_group,
    )  # fmt: skip
    return buffer.getvalue()


def from_parquet(table: str, data: bytes) -> pl.DataFrame:
    """Read rows; columns that an older object lacks are null, ones that it has too much go."""
    rows = pl.read_parquet(io.BytesIO(data))
    spec = TABLES[table].columns
    return rows.select(
        pl.col(name).cast(dtype) if name in rows.columns else pl.lit(None, dtype=dtype).alias(name)
        for name, dtype in spec.items()
    )
