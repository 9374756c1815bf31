"""A made-up catalog: clips of drops with everything that a cut reads, as rows by partition."""

import hashlib
from collections import defaultdict
from typing import Any

import numpy as np
import polars as pl

from wsdata import tables
from wsdata.curate.manifest import READS
from wsdata.ids import make_clip_id, parse_drop_key
from wsdata.recipe import Recipe, recipe_from

SIZES = {
    "256p": {"16:9": (256, 144), "4:3": (192, 144), "1:1": (192, 192), "9:16": (144, 256)},
    "512p": {"16:9": (512, 288), "4:3": (384, 288), "1:1": (384, 384), "9:16": (288, 512)},
    "720p": {"16:9": (1280, 720), "4:3": (960, 720), "1:1": (960, 960), "9:16": (720, 1280)},
}
DROP = "licensed.acme.20261101.001"
CRAWL = "crawl.web.20261102.001"
SYNTHETIC = "synthetic.render.20261103.001"


def asset_id(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def vector(name: str, dims: int = 16) -> list[float]:
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])
    row = np.random.RandomState(seed).randn(dims)
    return [float(x) for x in row / np.linalg.norm(row)]


def frame_hash(name: str) -> bytes:
    return hashlib.sha256(f"frame {name}".encode()).digest()


class Catalog:
    """Rows by table and partition; `read` is what a cut is given."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, list[dict[str, Any]]]] = defaultdict(
            lambda: defaultdict(list)
        )

    def add(self, table: str, partition: str, **row: Any) -> None:
        self._rows[table][partition].append(row)

    def add_asset(
        self,
        name: str,
        *,
        drop: str = DROP,
        clips: tuple[tuple[float, float], ...] = ((0.0, 5.0),),
        kind: str = "video",
        aspect: str = "16:9",
        rungs: tuple[str, ...] = ("256p",),
        quality: float = 0.9,
        nsfw: float = 0.01,
        caption: str = "ok",
        rank: float = 1.0,
        vectors: list[list[float]] | None = None,
        hashes: str | None = None,
        **rights: Any,
    ) -> str:
        """Add a raw asset with its clips and everything known of them; return its id."""
        asset = asset_id(name)
        parts = parse_drop_key(drop)
        self.add("raw_assets", drop, asset_id=asset, in_vault=False, num_files=1, size_bytes=1)
        self.add(
            "provenance", drop,
            **{
                "asset_id": asset, "drop": drop, "path": f"{name}.mp4",
                "source_tier": parts.source_tier, "source": parts.source,
                "license_id": "CC0-1.0", "territory": "world", "opt_out": False,
                "robots_allowed": True if parts.source_tier == "crawl" else None,
                "in_vault": False, "record_json": '{"is_generated":false}',
                **rights,
            },
        )  # fmt: skip
        self.add("asset_quality", drop, asset_id=asset, rank_value=rank)
        for index in range(int(clips[-1][1]) if kind == "video" else 1):
            self.add(
                "pass_fingerprints", drop, asset_id=asset, frame_index=index,
                time_s=float(index), hash=frame_hash(f"{hashes or name} {index}"),
                mirror_hash=frame_hash(f"{hashes or name} {index} mirror"), quality=100,
                method="pass-1fps-1",
            )  # fmt: skip
        for place, (start, end) in enumerate(clips):
            clip = make_clip_id(asset, track=0, start_ms=int(start * 1000), end_ms=int(end * 1000))
            frames = round((end - start) * 24) if kind == "video" else 1
            self.add(
                "clips", drop, clip_id=clip, asset_id=asset, drop=drop, source=parts.source,
                source_tier=parts.source_tier, media_kind=kind, start_s=start, end_s=end,
                duration_s=end - start, num_frames=frames, aspect=aspect,
                width_px=1280, height_px=720, has_audio=False,
            )  # fmt: skip
            for rung in rungs:
                width, height = SIZES[tables.FAST_RUNGS.get(rung, rung)][aspect]
                is_fast = rung in tables.FAST_RUNGS
                self.add(
                    f"transcodes_{'48fps' if is_fast else rung}", drop, clip_id=clip,
                    asset_id=asset, rung=rung, key=f"derived/{rung}/{clip}",
                    sha256=asset_id(f"{rung}{clip}"), width_px=width, height_px=height,
                    num_frames=frames * 2 if is_fast else frames, fps=48.0 if is_fast else 24.0,
                    transcode_version="t1",
                )  # fmt: skip
            self._add_scores(drop, clip, asset, end - start, quality, nsfw)
            self.add(
                "clip_embeddings", drop, clip_id=clip, asset_id=asset, model_version="net-1",
                vector=(vectors or [vector(f"{name} {n}") for n in range(len(clips))])[place],
                tags_json='[["lake",0.9],["tree",0.1]]',
            )  # fmt: skip
            self.add(
                "captions", drop, clip_id=clip, variant="dense", captioner_version="c1",
                text="A lake.", status=caption, reason=None if caption == "ok" else "timed out",
            )  # fmt: skip
            self.add(
                "label_qc", drop, clip_id=clip, variant="dense", captioner_version="c1",
                passed=True, flags_json="[]",
            )  # fmt: skip
            self.add(
                "gates", drop, clip_id=clip, asset_id=asset, passed=True, provisional_tier="T0",
                quality_value=quality,
            )  # fmt: skip
        return asset

    def _add_scores(
        self, drop: str, clip: str, asset: str, duration_s: float, quality: float, nsfw: float
    ) -> None:
        scores = {
            "technical": {"is_decodable": 1.0, "rung_px": 256.0, "duration_s": duration_s,
                          "error_share": 0.0},
            "safety": {"nsfw": nsfw},
            "motion": {"magnitude": 0.02, "jitter": 0.0},
            "overlay": {"text_share": 0.0, "text_seen": 0.0},
            "quality": {"quality": quality},
        }  # fmt: skip
        for name, values in scores.items():
            for score_name, score in values.items():
                self.add(
                    f"{name}_scores", drop, clip_id=clip, asset_id=asset, filter=name,
                    score_name=score_name, score=score, model_version="m1", status="ok",
                )  # fmt: skip

    @property
    def read(self) -> dict[str, dict[str, pl.DataFrame]]:
        """Rows by table and partition, as a step reads them."""
        return {
            table: {
                partition: tables.rows_of(table, rows)
                for partition, rows in self._rows[table].items()
            }
            for table in (*READS, "centroids", "gates")
        }


def make_recipe(**changes: Any) -> Recipe:
    """A small recipe: two streams, one phase at 256p, a global batch of 1."""
    base: dict[str, Any] = {
        "name": "test",
        "samples": {"global_batch": 1},
        "streams": {"video": {}, "image": {"modality": "image"}},
        "phases": [
            {
                "name": "all",
                "steps": 10,
                "rungs": ["256p"],
                "tiers": ["T0", "T1", "T2", "T3"],
                "weights": {"video": 0.8, "image": 0.2},
            }
        ],
    }
    return recipe_from({**base, **changes})
