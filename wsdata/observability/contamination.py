"""Contamination: how much of a dataset version was checked against the vault, and what was hit."""

import polars as pl

from wsdata import tables
from wsdata.orders import Input, Step, StepResult, StepRun

STEP = Step(
    stage="observability",
    name="contamination",
    function="wsdata.observability.contamination:run",
    code_version="contamination-1",
    partition="dataset_version",
    assets={"contamination": ("contamination",)},
    inputs=(
        Input(table="manifests"),
        Input(table="exclusions"),
        Input(table="pass_fingerprints", scope="all"),
        Input(table="clip_embeddings", scope="all"),
        Input(table="vault_prints", scope="all", is_optional=True),
    ),
    description="Coverage of the scan against the vault, and its hits: a release gate.",
)


def run(run: StepRun) -> StepResult:
    """Measure one dataset version."""
    manifest = run.read("manifests")
    purged = run.read("exclusions").filter(pl.col("reason") == "purged").height
    prints = set(run.read("pass_fingerprints")["asset_id"])
    vectors = set(run.read("clip_embeddings")["clip_id"])
    clips = manifest.select("clip_id", "asset_id").unique()
    checked = {
        "fingerprint": clips.filter(pl.col("asset_id").is_in(prints)).height,
        "embedding": clips.filter(pl.col("clip_id").is_in(vectors)).height,
    }
    rows = [
        {
            "method": method,
            "num_checked": count,
            "num_unchecked": clips.height - count,
            "num_hits": purged,
            "coverage_share": count / clips.height if clips.height else 1.0,
        }
        for method, count in checked.items()
    ]
    members = run.read("vault_prints")["asset_id"].n_unique()
    return StepResult(
        tables={"contamination": tables.rows_of("contamination", rows)},
        metrics={"purged": purged, "vault_members": members},
        display={
            "contamination": {
                f"{row['method']}_coverage": {"type": "float", "raw_value": row["coverage_share"]}
                for row in rows
            }
        },
    )


def coverage_faults(rows: pl.DataFrame) -> list[str]:
    """Say what keeps a version from release: a method that did not see every clip."""
    return [
        f"{row['method']}: {row['num_unchecked']} of {row['num_checked'] + row['num_unchecked']} "
        "clips of the manifest were never compared with the vault"
        for row in rows.iter_rows(named=True)
        if row["num_unchecked"]
    ]
