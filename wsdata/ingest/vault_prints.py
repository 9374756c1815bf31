"""What leaves the vault: prints of its members, and never their bytes.

Runs in the `vault` pool, the only one with the vault's credentials. Members are few, so they are
printed more densely than the pipeline prints its own assets, at key frames and four times a
second: a copy's key frames and its prints of the decode pass both fall near one. Pictures for
the embedding live in a temporary folder of this worker alone.
"""

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

NUM_EMBEDDED = 8

STEP = Step(
    stage="ingest",
    name="vault_prints",
    function="wsdata.ingest.vault_prints:run",
    code_version="vault-prints-1",
    partition="drop",
    assets={"vault_prints": ("vault_prints",)},
    inputs=(Input(table="raw_assets"),),
    pool="vault",
    params_of=lambda _: {
        "method": METHOD,
        "embedding_version": EMBEDDING_VERSION,
        "num_embedded": NUM_EMBEDDED,
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
        found, _ = print_file(
            path,
            Path(folder),
            minimum_level=minimum_level,
            is_dense=True,
            num_color=NUM_EMBEDDED,
            runner=box.run,
        )
        vectors, _ = embed_frames(_read_pictures(Path(folder), found["colors"]))
    mean = vectors.mean(axis=0) if len(vectors) else None
    return {
        "status": found["probe"]["status"],
        "reason": found["probe"].get("reason"),
        "prints": found["prints"],
        "mean": None if mean is None else (mean / np.linalg.norm(mean)).tolist(),
        "frames": [
            [time_s, vector.tolist()]
            for (_, time_s, _, _), vector in zip(found["colors"], vectors, strict=True)
        ],
    }


def _rows_of_member(asset_id: str, found: dict[str, Any], *, is_fit: bool) -> list[dict[str, Any]]:
    vectors: dict[float, list[float]] = dict(found["frames"])
    rows = [
        {
            **row,
            "level": "frame",
            "vector": vectors.get(row["time_s"]),
            "embedding_version": EMBEDDING_VERSION if row["time_s"] in vectors else None,
            "is_fit_for_eval": is_fit,
        }
        for row in print_rows(asset_id, found["prints"])
    ]
    whole = {
        "asset_id": asset_id,
        "level": "asset",
        "frame_index": 0,
        "vector": found["mean"],
        "embedding_version": EMBEDDING_VERSION if found["mean"] else None,
        "is_fit_for_eval": is_fit,
    }
    return [*rows, whole]


def run(run: StepRun) -> StepResult:
    """Print every vault member of a drop.

    Rows: per member one of level ``asset`` with its mean vector, null where nothing in it could
    be seen, and one of level ``frame`` per printed frame. Members from synthetic drops are marked
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
    num_frames = len(rows) - len(asset_ids)
    return StepResult(
        tables={"vault_prints": tables.rows_of("vault_prints", rows)},
        metrics={"num_members": len(asset_ids), "num_prints": num_frames},
        display={
            "vault_prints": {
                "members": {"type": "int", "raw_value": len(asset_ids)},
                "printed frames": {"type": "int", "raw_value": num_frames},
                "without prints": {"type": "md", "raw_value": "\n".join(unread) or "none"},
            }
        },
    )
