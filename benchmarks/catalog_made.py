"""A synthetic catalog, made through the code that steps use; see `catalog_scale`."""

from pathlib import Path

import numpy as np
import polars as pl

from wsdata import tables
from wsdata.catalog.ledger import Ledger
from wsdata.digest import sha256_bytes
from wsdata.ids import make_shard_group
from wsdata.records import ObjectRef, Order, Report, table_key
from wsdata.store import FolderStore

CLIPS_PER_ASSET = 4
FILTERS = tables.FILTERS[:6]
CAPTIONED = 0.3
VERSIONS = ("v1", "v2", "v3")
LISTED = 0.3  # of all clips, in each version
SAMPLES_PER_GROUP = 20_000


def commit(
    ledger: Ledger, store: FolderStore, partition: str, frames: dict[str, pl.DataFrame]
) -> None:
    """Put rows and make them live, as a step and its asset do."""
    order = Order(
        stage="bench", step=min(frames), partition=partition, code_version="1",
        params={}, inputs={}, tables=tuple(frames),
    )  # fmt: skip
    objects: dict[str, ObjectRef] = {}
    for table, frame in frames.items():
        missing = set(tables.TABLES[table].columns) - set(frame.columns)
        full = frame.with_columns(pl.lit(None).alias(name) for name in missing)
        data = tables.to_parquet(tables.conform(table, full))
        sha256 = sha256_bytes(data)
        store.put(table_key(sha256), data)
        objects[table] = ObjectRef(
            table=table, partition=partition, version="1", version_digest="d", sha256=sha256,
            num_rows=frame.height,
        )  # fmt: skip
    ledger.commit(order, Report(order_digest=order.digest, version_digest="d", objects=objects))


def drop_rows(drop: str, number: int, num_clips: int) -> dict[str, pl.DataFrame]:
    """Rows of one drop: raw assets, provenance, clips, scores of six filters, captions."""
    random = np.random.default_rng(number)
    num_assets = max(1, num_clips // CLIPS_PER_ASSET)
    digits = random.bytes(32 * num_assets).hex()
    assets = pl.DataFrame(
        {"asset_id": [digits[at : at + 64] for at in range(0, len(digits), 64)]}
    ).with_columns(in_vault=pl.lit(False), num_files=1, suffix=pl.lit(".mp4"))  # noqa: FBT003
    provenance = assets.select(
        "asset_id", drop=pl.lit(drop), source=pl.lit("acme"), license_id=pl.lit("acme-1"),
        path=pl.col("asset_id").str.slice(0, 12) + ".mp4",
    )  # fmt: skip
    shots = pl.DataFrame({"window_index": range(CLIPS_PER_ASSET)})
    clips = assets.select("asset_id").join(shots, how="cross").head(num_clips)
    clips = clips.with_columns(
        clip_id=pl.format(
            "{}-0-00000{}000-00000{}500", pl.col("asset_id").str.slice(0, 24), "window_index",
            "window_index",
        ),
        drop=pl.lit(drop), start_s=pl.col("window_index") * 1.0, media_kind=pl.lit("video"),
    )  # fmt: skip
    ids = clips.select("clip_id", "asset_id")
    frames = {"raw_assets": assets, "provenance": provenance, "clips": clips}
    for name in FILTERS:
        frames[f"{name}_scores"] = ids.with_columns(
            pl.Series("score", random.random(ids.height)), source=pl.lit("acme"),
            filter=pl.lit(name), score_name=pl.lit("value"), model_version=pl.lit(f"{name}-1"),
            status=pl.lit("ok"),
        )  # fmt: skip
    frames["captions"] = ids.head(int(ids.height * CAPTIONED)).select(
        "clip_id", captioner_version=pl.lit("c-1"), variant=pl.lit("dense"), status=pl.lit("ok"),
        text=pl.format("A clip of {} in which little happens and a lot is seen", "asset_id"),
    )  # fmt: skip
    return frames


def version_rows(version: str, clips: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Manifest and shard groups of a dataset version."""
    samples = clips.with_columns(
        sample_id=pl.col("clip_id") + ".256p.000000.0033.plain", stream=pl.lit("video"),
        tier=pl.lit("T1"), bucket=pl.lit("256p/256x144/33"), rung=pl.lit("256p"), weight=1.0,
        num_tokens=1296,
    )  # fmt: skip
    num_groups = -(-samples.height // SAMPLES_PER_GROUP)
    names = pl.Series([make_shard_group(version, number) for number in range(num_groups)])
    group = samples["sample_id"].hash(seed=1) % num_groups
    assigned = samples.select("sample_id").with_columns(shard_group=names.gather(group))
    return {"manifests": samples, "shard_assignments": assigned}


def commit_placements(
    ledger: Ledger, store: FolderStore, samples: pl.DataFrame, assigned: pl.DataFrame
) -> None:
    """Place every sample in the shard group it was assigned to."""
    placed = samples.select("sample_id", "clip_id", "bucket").with_columns(
        shard=pl.lit("s"), row=1, tokenizer_version=pl.lit("t-1")
    )
    for key, rows in placed.join(assigned, on="sample_id").group_by("shard_group"):
        commit(ledger, store, str(key[0]), {"placements": rows.drop("shard_group")})


def fill(home: Path, num_clips: int, num_drops: int) -> tuple[Ledger, FolderStore, list[str]]:
    """Make the catalog; return ten clips that are everywhere: scored, captioned, listed."""
    ledger, store = Ledger(str(home / "catalog.db")), FolderStore(home / "store")
    listed: list[pl.DataFrame] = []
    for number in range(num_drops):
        drop = f"licensed.acme.20261101.{number:04d}"
        frames = drop_rows(drop, number, num_clips // num_drops)
        commit(ledger, store, drop, frames)
        share = int(frames["clips"].height * LISTED)
        listed.append(frames["clips"].head(share).select("clip_id", "asset_id"))
    for version in VERSIONS:
        frames = version_rows(version, pl.concat(listed))
        commit(ledger, store, version, frames)
        if version == VERSIONS[0]:  # later versions list the same shards
            commit_placements(ledger, store, frames["manifests"], frames["shard_assignments"])
    every = max(1, len(listed) // 10)
    return ledger, store, [rows["clip_id"][0] for rows in listed[::every]][:10]
