"""Step ``manifest``: the frozen sample list of a dataset version.

Reads live rows of all drops and hands them to `cut`; what a person looks at is made by
`summary`. A version is cut once: cutting again later, from other rows, is another version.
"""

import hashlib
from collections.abc import Mapping
from typing import Any

import polars as pl

from wsdata import tables
from wsdata.catalog.objects import read_matching
from wsdata.curate.columns import SAME_SAMPLE, TRACKS
from wsdata.curate.cut import assign_shards, make_cut
from wsdata.curate.summary import show_cut
from wsdata.errors import NotReady
from wsdata.orders import FactInput, Input, Step, StepResult, StepRun
from wsdata.recipe import Recipe, recipe_from

READS = (
    "clips",
    "decode_status",
    *(f"transcodes_{rung}" for rung in tables.TRANSCODES),
    *TRACKS.values(),
    *(f"{name}_scores" for name in tables.FILTERS),
    "clip_embeddings",
    "captions",
    "label_qc",
    "match_pairs",
    "asset_quality",
    "provenance",
    "raw_assets",
    "fingerprints",
    "pass_fingerprints",
    "vault_prints",
    "generated_prints",
    "cluster_assignments",
    "semantic_duplicates",
)
_OPTIONAL = frozenset(
    {
        *TRACKS.values(),
        "vault_prints",
        "generated_prints",
        "cluster_assignments",
        "semantic_duplicates",
    }
)
_DIGEST_BLOCK = 65_536  # rows hashed at a time; bounds memory


def manifest_digest(rows: pl.DataFrame) -> str:
    """Digest of a manifest's content: its rows, in order of sample id. 64 hex digits.

    Runs, times, versions' names and the order of the rows have no part in it.
    """
    found = ManifestDigest()
    for block in rows.sort("sample_id").iter_slices(_DIGEST_BLOCK):
        found.add(block)
    return found.hexdigest()


class ManifestDigest:
    """As `manifest_digest`, of rows that come in order of sample id, some at a time."""

    def __init__(self) -> None:
        self._columns = sorted(tables.TABLES["manifests"].columns)
        self._content = hashlib.sha256()

    def add(self, rows: pl.DataFrame) -> None:
        """Take the next rows."""
        self._content.update(rows.select(self._columns).write_ndjson().encode())

    def hexdigest(self) -> str:
        """Digest of all rows taken so far, 64 hex digits."""
        return self._content.hexdigest()


def run(run: StepRun) -> StepResult:
    """Cut a dataset version; tables ``manifests``, ``shard_assignments``, ``exclusions``."""
    recipe = recipe_from(run.params["recipe"])
    read = {table: run.read_by_partition(table) for table in (*READS, "centroids")}
    _require_material(read)
    cut = make_cut(
        read,
        recipe,
        as_of_date=run.params.get("as_of_date"),
        tombstones=run.order.facts.get("tombstone", {}),
    )
    assignments = assign_shards(
        cut.manifest,
        read_matching(
            run.store,
            "placements",
            run.order.context.get("placements", []),
            cut.manifest,
            SAME_SAMPLE,
        ),
        recipe,
        version=run.order.partition,
        tokenizer_version=run.params.get("tokenizer_version"),
    )
    assets = pl.concat([*read["raw_assets"].values(), tables.empty("raw_assets")])
    return StepResult(
        tables={
            "manifests": cut.manifest,
            "shard_assignments": assignments,
            "exclusions": cut.exclusions,
        },
        metrics={
            "num_samples": float(cut.manifest.height),
            "num_clips": float(cut.manifest["clip_id"].n_unique()),
            "num_tokens": float(cut.manifest["num_tokens"].sum()),
            "num_mirrored": float(cut.manifest.filter(pl.col("variant") == "flip").height),
            "num_retagged": float(cut.generated.height),
            "num_purged": float(cut.exclusions.filter(pl.col("reason") == "purged").height),
        },
        display={
            "manifest": {
                "digest": {"type": "text", "raw_value": manifest_digest(cut.manifest)},
                "as-of date": {"type": "text", "raw_value": str(run.params["as_of_date"])},
                **show_cut(cut, assets, assignments, recipe),
            }
        },
    )


def _require_material(read: Mapping[str, Mapping[str, pl.DataFrame]]) -> None:
    """Check that there is anything to cut from.

    Raises:
        NotReady: No drop has been preprocessed.
    """
    if not read["clips"]:
        raise NotReady("no drop has clips yet: `wsdata run` with a drop comes before a cut")


def _params(recipe: Recipe) -> dict[str, Any]:
    return {"recipe": recipe.to_json()}


STEP = Step(
    stage="curate",
    name="manifest",
    function="wsdata.curate.manifest:run",
    code_version="manifest-3",
    partition="dataset_version",
    assets={"manifest": ("manifests", "shard_assignments", "exclusions")},
    inputs=(
        *(Input(table=table, scope="all", is_optional=table in _OPTIONAL) for table in READS),
        Input(table="centroids", scope="latest", is_optional=True),
        Input(table="placements", scope="all", is_context=True),
    ),
    facts=(FactInput(kind="tombstone"),),
    params_of=_params,
    description="What a recipe makes of the catalog: tiers, streams, the frozen list of samples, "
    "and the reason for everything that is not in it.",
)
