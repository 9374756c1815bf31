"""A small home made without media: two drops, all that became of them, and a published version.

| raw asset | drop | what it is |
|---|---|---|
| film | A, and again in B | three clips, all in the manifest |
| lake | A | two clips in the manifest; `broken` is a better copy that never decoded |
| sealed | A | a vault member |
| copy | B | a worse copy of film: three clips, left out |
| tape | B | six clips: one gated, one purged, four in the manifest |
| broken | B | in quarantine |
"""

import shutil
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from wsdata import tables
from wsdata.catalog.ledger import Ledger
from wsdata.catalog.objects import read_table
from wsdata.deployment import Deployment, load_deployment
from wsdata.digest import sha256_bytes
from wsdata.ids import make_clip_id, make_sample_id, raw_key
from wsdata.orders import Step, build_order, execute
from wsdata.recipe import Recipe
from wsdata.records import Fact, ObjectRef, Order, Report, table_key
from wsdata.shard.latents import latent_shape
from wsdata.store import BlobStore, open_store
from wsdata_tests.loader.published import PLAN_STEP, publish
from wsdata_tests.orders_support import rows_made

A, B = "licensed.acme.20261101.001", "crawl.web.20261102.001"
BUCKET = "256p/64x32/5"
NUM_STEPS = 60
PLAN = {
    "seed": 3,
    "phases": [
        {"name": "all", "steps": NUM_STEPS, "rungs": ["256p"], "tiers": ["T0", "T1"],
         "weights": {"video": 1.0}}
    ],
    "streams": {"video": {}},
    "samples": {"global_batch": 4, "batch_of_bucket": {}},
}  # fmt: skip
NUM_CLIPS = {"film": 3, "lake": 2, "copy": 3, "tape": 6}
IN_DROP = {A: ("film", "lake", "sealed"), B: ("broken", "copy", "film", "tape")}
RANKS = {"film": 4.0, "copy": 1.0, "lake": 2.0, "tape": 3.0, "broken": 9.0}
URL = "https://example.org/tape"


def asset_id(name: str) -> str:
    return sha256_bytes(name.encode())


def clip_id(name: str, number: int) -> str:
    start = number * 5000
    return make_clip_id(asset_id(name), track=0, start_ms=start, end_ms=start + 5000)


def sample_ids(clip: str) -> list[str]:
    return [make_sample_id(clip, rung="256p", start_frame=n * 5, num_frames=5) for n in (0, 1)]


GATED, PURGED = clip_id("tape", 4), clip_id("tape", 5)
LISTED = [
    clip_id(name, n)
    for name, count in (("film", 3), ("lake", 2), ("tape", 4))
    for n in range(count)
]
LOST = sample_ids(clip_id("lake", 1))[1]


CLIPS = [clip_id(name, n) for name, count in NUM_CLIPS.items() for n in range(count)]


@dataclass(frozen=True)
class Home:
    """A WSDATA_HOME of this kind, opened."""

    path: Path

    @cached_property
    def deployment(self) -> Deployment:
        return load_deployment(self.path)

    @cached_property
    def ledger(self) -> Ledger:
        return self.deployment.open_ledger()

    @cached_property
    def store(self) -> BlobStore:
        return self.deployment.open_store()

    def rows(self, table: str, partition: str | None = None) -> pl.DataFrame:
        return read_table(self.ledger, self.store, table, partition)

    def keys(self) -> dict[str, int]:
        return dict(self.store.list(""))

    def copy_to(self, path: Path) -> "Home":
        shutil.copytree(self.path, path)
        return Home(path)

    def commit(
        self,
        partition: str,
        rows: dict[str, Any],
        facts: tuple[Fact, ...] = (),
        *,
        version: str = "1",
    ) -> None:
        """Commit rows of some tables as a step of theirs would."""
        order = Order(
            stage="test", step=min(rows), partition=partition, code_version=version,
            params={"digests": {t: sha256_bytes(repr(r).encode()) for t, r in rows.items()}},
            inputs={}, tables=tuple(rows),
        )  # fmt: skip
        objects: dict[str, ObjectRef] = {}
        for table, given in rows.items():
            frame = tables.rows_of(table, given) if isinstance(given, list) else given
            data = tables.to_parquet(tables.conform(table, frame))
            sha256 = sha256_bytes(data)
            self.store.put(table_key(sha256), data)
            objects[table] = ObjectRef(
                table=table, partition=partition, version=version,
                version_digest=order.version_digest, sha256=sha256, num_rows=frame.height,
            )  # fmt: skip
        report = Report(
            order_digest=order.digest, version_digest=order.version_digest, objects=objects,
            facts=list(facts),
        )  # fmt: skip
        self.ledger.commit(order, report)

    def run_step(self, step: Step, partition: str) -> Report:
        """Run a real step over what is live, and commit it."""
        order = build_order(
            step, partition, ledger=self.ledger, deployment=self.deployment,
            recipe=Recipe(name="test"),
        )  # fmt: skip
        report = execute(order, step.function, self.store, lambda *_: None, self.ledger)
        self.ledger.commit(order, report)
        return report


def fabricate(path: Path) -> Home:
    """Make the whole home."""
    home = Home(path)
    for drop, names in IN_DROP.items():
        _land(home, drop, names)
        _preprocess(home, drop, names)
        _label(home, drop, names)
    _dataset(home)
    live = {ref.key for ref in home.ledger.all_objects()}
    for key, _ in list(home.store.list("tables/")):
        if key not in live:  # what publishing needed beside what is committed
            home.store.delete(key)
    return home


def pair(one: str, other: str, **changes: Any) -> dict[str, Any]:
    a, b = sorted((asset_id(one), asset_id(other)))
    return {
        "asset_a": a, "asset_b": b, "kind": "whole", "coverage_a": 1.0, "coverage_b": 1.0,
        "mean_distance": 2.0, "is_mirrored": False, "a_start_s": 0.0, "a_end_s": 15.0,
        "b_start_s": 0.0, "b_end_s": 15.0, "num_matched": 15, **changes,
    }  # fmt: skip


def _land(home: Home, drop: str, names: tuple[str, ...]) -> None:
    vault = open_store(home.deployment.vault)
    raw, provenance, probes = [], [], []
    tier, source = drop.split(".")[:2]
    for name in names:
        sealed = name == "sealed"
        (vault if sealed else home.store).put(raw_key(asset_id(name)), name.encode())
        raw.append(
            {"asset_id": asset_id(name), "key": None if sealed else raw_key(asset_id(name)),
             "size_bytes": len(name), "suffix": ".mp4", "in_vault": sealed, "num_files": 1}
        )  # fmt: skip
        provenance.append(
            {"asset_id": asset_id(name), "drop": drop, "path": f"{name}.mp4", "in_vault": sealed,
             "source_tier": tier, "source": source, "license_id": f"{source}-1",
             "territory": "world", "crawl_url": URL if name == "tape" else None}
        )  # fmt: skip
        if not sealed:
            probes.append({"asset_id": asset_id(name), "media_kind": "video", "status": "ok"})
    home.commit(drop, {"raw_assets": raw, "provenance": provenance})
    pairs = [pair("film", "copy"), pair("broken", "lake")] if drop == B else []
    quality = [
        {"asset_id": asset_id(name), "rank_value": RANKS[name]} for name in names if name in RANKS
    ]
    home.commit(drop, {"probes": probes})
    home.commit(drop, {"match_pairs": pairs, "asset_quality": quality})


def _preprocess(home: Home, drop: str, names: tuple[str, ...]) -> None:
    tier, source = drop.split(".")[:2]
    clips = [
        {"clip_id": clip_id(name, n), "asset_id": asset_id(name), "drop": drop, "source": source,
         "source_tier": tier, "media_kind": "video", "track": 0, "start_pts": n * 120,
         "end_pts": (n + 1) * 120, "time_base": "1/24", "start_s": n * 5.0, "end_s": (n + 1) * 5.0,
         "duration_s": 5.0, "num_frames": 120, "aspect": "16:9", "top_rung": "256p"}
        for name in names
        for n in range(NUM_CLIPS.get(name, 0))
    ]  # fmt: skip
    status = [
        {"asset_id": asset_id(name), "status": "quarantined" if name == "broken" else "ok",
         "reason": "could not be read" if name == "broken" else None,
         "num_clips": NUM_CLIPS.get(name, 0)}
        for name in names
        if name != "sealed"
    ]  # fmt: skip
    transcodes = [
        {"clip_id": c["clip_id"], "asset_id": c["asset_id"], "rung": "256p",
         **_blob(home, f"derived/transcodes_256p/t1/{c['clip_id']}.mp4")}
        for c in clips
    ]  # fmt: skip
    packs = [
        {"clip_id": c["clip_id"], "asset_id": c["asset_id"],
         **_blob(home, f"derived/frame_packs/t1/{c['clip_id']}.tar")}
        for c in clips
    ]  # fmt: skip
    prints = [
        {"asset_id": c["asset_id"], "frame_index": n, "time_s": c["start_s"], "hash": b"0" * 32}
        for n, c in enumerate(clips)
    ]
    held = {"drop": drop, "reason": "could not be read", "attempts": 3}
    facts = (Fact(kind="quarantine", subject=asset_id("broken"), body=held),) if drop == B else ()
    home.commit(
        drop,
        {"clips": clips, "decode_status": status, "transcodes_256p": transcodes,
         "frame_packs": packs, "pass_fingerprints": prints},
        facts,
    )  # fmt: skip
    for name in tables.FILTERS:
        home.commit(drop, {f"{name}_scores": _scores(name, clips, source)})
    gates = [
        {"clip_id": c["clip_id"], "asset_id": c["asset_id"], "passed": c["clip_id"] != GATED,
         "stopped_by": "safety" if c["clip_id"] == GATED else None,
         "provisional_tier": None if c["clip_id"] == GATED else "T0"}
        for c in clips
    ]  # fmt: skip
    home.commit(drop, {"gates": gates})


def _blob(home: Home, key: str) -> dict[str, Any]:
    home.store.put(key, key.encode())
    return {"key": key, "sha256": sha256_bytes(key.encode()), "size_bytes": len(key)}


def _scores(name: str, clips: list[dict[str, Any]], source: str) -> list[dict[str, Any]]:
    return [
        {"clip_id": c["clip_id"], "asset_id": c["asset_id"], "source": source, "filter": name,
         "score_name": "value", "model_version": f"{name}-1",
         **_score(name, CLIPS.index(c["clip_id"]))}
        for c in clips
    ]  # fmt: skip


def _score(name: str, number: int) -> dict[str, Any]:
    if name == "audio" and number == 1:
        return {"status": "error", "reason": "failed"}
    if name == "faces" and number % 2:
        return {"status": "unscored", "reason": "gated"}
    return {"status": "ok", "score": -30.0 - number if name == "audio" else number / 10}


def _label(home: Home, drop: str, names: tuple[str, ...]) -> None:
    clips = [clip_id(name, n) for name in names for n in range(NUM_CLIPS.get(name, 0))]
    passed = [clip for clip in clips if clip != GATED]
    captions = [
        {"clip_id": clip, "captioner_version": "told-1", "variant": variant, "status": "ok",
         "text": f"{variant} words", "num_words": 2}
        for clip in passed
        for variant in ("dense", "short")
    ]  # fmt: skip
    vectors = [
        {
            "clip_id": clip,
            "asset_id": asset_id(name),
            "vector": [1.0, 0.0],
            "model_version": "net-1",
        }
        for name in names
        for clip in passed
        if clip.startswith(asset_id(name)[:24]) and clip != clip_id("tape", 3)
    ]
    home.commit(drop, {"captions": captions})
    home.commit(drop, {"clip_embeddings": vectors})


def _sample_rows() -> list[dict[str, Any]]:
    shape = latent_shape(5, 32, 64)
    names = {asset_id(name)[:24]: name for name in NUM_CLIPS}
    return [
        {"sample_id": sample, "clip_id": clip, "asset_id": asset_id(names[clip[:24]]),
         "stream": "video", "tier": f"T{number % 2}", "cluster": 0, "bucket": BUCKET,
         "source": "web" if names[clip[:24]] == "tape" else "acme", "weight": 1.0,
         "num_tokens": shape[0] * shape[2] * shape[3] // 4, "shape": shape}
        for number, clip in enumerate(LISTED)
        for sample in sample_ids(clip)
    ]  # fmt: skip


def _dataset(home: Home) -> None:
    rows = _sample_rows()
    manifest = [
        {**{name: row[name] for name in row if name not in ("shape",)}, "rung": "256p"}
        for row in rows
    ]
    exclusions = [
        {"subject": clip_id("copy", n), "asset_id": asset_id("copy"), "reason": "near_duplicate",
         "detail": f"copy of {asset_id('film')[:24]}"}
        for n in range(3)
    ]  # fmt: skip
    exclusions += [
        {"subject": GATED, "asset_id": asset_id("tape"), "reason": "gated", "detail": "safety"},
        {"subject": PURGED, "asset_id": asset_id("tape"), "reason": "purged", "detail": "leak"},
    ]
    home.ledger.state(
        [Fact(kind="dataset_version", subject="v1",
              body={"as_of_date": "2026-11-30", "parent": None, "recipe": {}})],
        step="curate/manifest",
    )  # fmt: skip
    home.commit("v1", {"manifests": manifest, "exclusions": exclusions})
    index, report = publish(
        home.store, "v1", params=PLAN, rows=[row for row in rows if row["sample_id"] != LOST]
    )
    placed = pl.DataFrame(list(index.values()))
    placements = tables.rows_of(
        "placements",
        [{name: row.get(name) for name in tables.TABLES["placements"].columns}
         for row in index.values()],
    )  # fmt: skip
    packs = [
        {"shard": shard, "caption_version": "told-1", "key": key, "num_samples": count,
         "sha256": sha256_bytes(home.store.get(key)), "size_bytes": home.store.size(key),
         **{f"record_{name}": placed.filter(pl.col("shard") == shard).sort("row")[column].to_list()
            for name, column in (("offsets", "caption_offset"), ("lengths", "caption_length"),
                                 ("xxh3", "caption_xxh3"))}}
        for shard, key, count in placed.group_by("shard", "caption_pack_key").len().iter_rows()
    ]  # fmt: skip
    lost = [{"sample_id": LOST, "clip_id": clip_id("lake", 1), "reason": "flat"}]
    home.commit("v1.0000", {"placements": placements, "latent_losses": lost})
    home.commit("v1.0000", {"caption_packs": packs})
    home.commit("v1", {"dataset_index": list(index.values()), "index_losses": lost})
    home.commit("v1", {table: rows_made(home.store, report, table) for table in PLAN_STEP.tables})
