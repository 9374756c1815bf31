"""What leaves the vault: prints of its members, and never their bytes.

Runs in the `vault` pool, the only one with the vault's credentials. Members are few, so they are
printed more densely than the pipeline prints its own assets, at key frames and four times a
second: a copy's key frames and its prints of the decode pass both fall near one. Clips of a member
are windows of equal length: no recipe cuts it. Pictures for the embedding live in a temporary
folder of this worker alone.
"""

import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wsdata import tables
from wsdata.ids import parse_drop_key, raw_key
from wsdata.ingest.fingerprint import METHOD, print_file, print_rows, raw_file
from wsdata.media.imagenet import EMBEDDING_VERSION, embed_frames
from wsdata.media.sandbox import Sandbox
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.store import BlobStore, open_store

NUM_EMBEDDED = 8  # pictures of a member, at least
CLIP_S = 8.0
MAX_CLIPS = 128  # of a long member, whose clips are longer then
PICTURES_PER_CLIP = 2
_PROBE_WALL_S = 600.0

STEP = Step(
    stage="ingest",
    name="vault_prints",
    function="wsdata.ingest.vault_prints:run",
    code_version="vault-prints-2",
    partition="drop",
    assets={"vault_prints": ("vault_prints",)},
    inputs=(Input(table="raw_assets"),),
    pool="vault",
    params_of=lambda _: {
        "method": METHOD,
        "embedding_version": EMBEDDING_VERSION,
        "num_embedded": NUM_EMBEDDED,
        "clip_s": CLIP_S,
    },
    settings_of=lambda deployment, _: {
        "vault": deployment.vault,
        "sandbox_minimum": deployment.sandbox_minimum,
    },
    description="Fingerprints and embeddings of vault members: all that ever leaves the vault.",
)


def _read_pictures(folder: Path, colors: list[list[Any]]) -> list[NDArray[np.uint8]]:
    return [
        np.fromfile(folder / Path(name).name, np.uint8, count=height * width * 3).reshape(
            height, width, 3
        )
        for name, _, height, width in colors
    ]


def _print_member(
    vault: BlobStore, asset_id: str, minimum_level: str, box: Sandbox
) -> dict[str, Any]:
    with (
        raw_file(vault, raw_key(asset_id)) as path,
        tempfile.TemporaryDirectory(prefix="wsdata-vault-") as folder,
    ):
        probe = box.run(
            "wsdata.media.probe:probe_job",
            {},
            source=path,
            out_dir=Path(folder),
            wall_s=_PROBE_WALL_S,
            minimum_level=minimum_level,
        ).result
        num_clips = _num_clips((probe or {}).get("duration_s"))
        found, _ = print_file(
            path,
            Path(folder),
            minimum_level=minimum_level,
            is_dense=True,
            num_color=max(NUM_EMBEDDED, PICTURES_PER_CLIP * num_clips),
            runner=box.run,
        )
        vectors, _ = embed_frames(_read_pictures(Path(folder), found["colors"]))
    return {
        "status": found["probe"]["status"],
        "reason": found["probe"].get("reason"),
        "duration_s": found["probe"].get("duration_s") or 0.0,
        "num_clips": num_clips,
        "prints": found["prints"],
        "frames": [
            [time_s, vector.tolist()]
            for (_, time_s, _, _), vector in zip(found["colors"], vectors, strict=True)
        ],
    }


def _num_clips(duration_s: float | None) -> int:
    """How many clips a member is cut into; a still is one."""
    return min(MAX_CLIPS, max(1, math.ceil((duration_s or 0.0) / CLIP_S)))


def _mean(vectors: list[list[float]]) -> list[float] | None:
    if not vectors:
        return None
    mean = np.array(vectors, np.float32).mean(axis=0)
    return (mean / np.linalg.norm(mean)).tolist()


def _clearest(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The print that stands for several: of the best quality, and of these the first."""
    if not rows:
        return {}
    best = max(rows, key=lambda row: row["quality"])
    names = ("hash", "mirror_hash", "core_hash", "core_mirror_hash", "quality")
    return {name: best[name] for name in names}


def _span_row(
    found: dict[str, Any], frames: list[dict[str, Any]], start_s: float, end_s: float
) -> dict[str, Any]:
    """What stands for a span of a member: its mean vector, and its clearest print."""
    mean = _mean([vector for time_s, vector in found["frames"] if start_s <= time_s < end_s])
    return {
        **_clearest([row for row in frames if start_s <= row["time_s"] < end_s]),
        "vector": mean,
        "embedding_version": EMBEDDING_VERSION if mean else None,
    }


def _rows_of_member(asset_id: str, found: dict[str, Any], *, is_fit: bool) -> list[dict[str, Any]]:
    vectors: dict[float, list[float]] = dict(found["frames"])
    rows = [
        {
            **row,
            "level": "frame",
            "vector": vectors.get(row["time_s"]),
            "embedding_version": EMBEDDING_VERSION if row["time_s"] in vectors else None,
        }
        for row in print_rows(asset_id, found["prints"])
    ]
    whole = {
        "asset_id": asset_id,
        "level": "asset",
        "frame_index": 0,
        **_span_row(found, rows, 0.0, math.inf),
    }
    length_s = found["duration_s"] / found["num_clips"]
    clips = []
    for index in range(found["num_clips"] if rows else 0):
        is_last = index + 1 == found["num_clips"]
        start_s, end_s = index * length_s, math.inf if is_last else (index + 1) * length_s
        clips.append(
            {
                "asset_id": asset_id,
                "level": "clip",
                "frame_index": index,
                "time_s": round(start_s, 6),
                "end_s": round((index + 1) * length_s, 6),
                **_span_row(found, rows, start_s, end_s),
            }
        )
    return [{**row, "is_fit_for_eval": is_fit} for row in [*rows, *clips, whole]]


def run(run: StepRun) -> StepResult:
    """Print every vault member of a drop.

    Rows: per member one of level ``asset`` with its mean vector and clearest print, null where
    nothing in it could be seen; one of level ``clip`` for each of its windows, alike; and one of
    level ``frame`` per printed frame. Members from synthetic drops are marked
    unfit as eval material, and stay sealed all the same.
    """
    assets = run.read("raw_assets")
    asset_ids = sorted(assets.filter(assets["in_vault"])["asset_id"])
    vault = open_store(run.settings["vault"])
    is_fit = parse_drop_key(run.order.partition).source_tier != "synthetic"
    level = run.settings["sandbox_minimum"]
    rows: list[dict[str, Any]] = []
    unread: list[str] = []
    with Sandbox() as box:
        for done, asset_id in enumerate(asset_ids, 1):
            found = run.unit(
                asset_id,
                lambda asset_id=asset_id: _print_member(vault, asset_id, level, box),
                amounts=lambda told: {
                    "media_s": max((p["time_s"] for p in told["prints"]), default=0)
                },
            )
            rows += _rows_of_member(asset_id, found, is_fit=is_fit)
            if not found["prints"]:
                unread.append(
                    f"{asset_id[:12]}: {found['status']}, {found['reason'] or 'no picture'}"
                )
            run.progress(done, len(asset_ids), f"vault member {asset_id[:12]}")
    num_frames = sum(row["level"] == "frame" for row in rows)
    num_clips = sum(row["level"] == "clip" for row in rows)
    return StepResult(
        tables={"vault_prints": tables.rows_of("vault_prints", rows)},
        metrics={"num_members": len(asset_ids), "num_prints": num_frames},
        display={
            "vault_prints": {
                "members": {"type": "int", "raw_value": len(asset_ids)},
                "printed frames": {"type": "int", "raw_value": num_frames},
                "clips": {"type": "int", "raw_value": num_clips},
                "without prints": {"type": "md", "raw_value": "\n".join(unread) or "none"},
            }
        },
    )
