"""Caption packs: the words that go with a shard, row by row, beside it and never inside it.

One pack per (shard, caption version), so that a new captioner never rewrites a latent. Making
captions belongs to `label`; which pack a dataset version uses, to `index`.
"""

from collections.abc import Sequence
from typing import Any

import polars as pl

from wsdata import tables
from wsdata.curate.flips import names_a_side
from wsdata.digest import sha256_bytes, short_digest
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.recipe import Recipe
from wsdata.shard.latent_stats import markdown_table
from wsdata.shard.packs import build_pack, pack_key

_MIRRORED = ".flip"  # how the ids of mirror images end
NO_CAPTIONS = "none"  # caption version of a pack without a caption


def _params(recipe: Recipe) -> dict[str, Any]:
    return {
        "variants": sorted(recipe.captions.variants),
        "captioner": [recipe.captions.engine, recipe.captions.model],
        "captions_version": recipe.versions.get("captions", ""),
    }


STEP = Step(
    stage="shard",
    name="caption_packs",
    function="wsdata.shard.captions:run",
    code_version="caption-packs-2",
    partition="shard_group",
    assets={"caption_packs": ("caption_packs",)},
    inputs=(
        Input(table="placements"),
        Input(table="captions", scope="all", is_context=True),
    ),
    params_of=_params,
    description=(
        "Captions of the samples of every shard of a group, one pack per shard and caption "
        "version, a record for each of the shard's rows."
    ),
)


def run(run: StepRun) -> StepResult:
    """Write the caption packs of one shard group."""
    placements = run.read("placements").select("shard", "row", "sample_id", "clip_id")
    variants: list[str] = run.params["variants"]
    captions = choose_captions(run.read_context("captions"), variants)
    packs: list[dict[str, Any]] = []
    counts: list[list[Any]] = []
    for (shard,), rows in sorted(placements.group_by(["shard"])):
        mine = captions_of(rows, captions)
        pack, version = build_pack(rows, mine), caption_version(mine)
        stored = run.put_blob(pack_key(sha256_bytes(pack.data)), pack.data)
        num = {"num_samples": rows.height}
        packs.append({"shard": shard, "caption_version": version, **num, **stored, **pack.columns})
        counts.append([shard[:12], version, rows.height, *_counts(rows, mine, variants)])
    return StepResult(
        tables={"caption_packs": tables.rows_of("caption_packs", packs)},
        metrics={
            "num_packs": float(len(packs)),
            "num_samples": float(placements.height),
            "num_without_caption": float(sum(row[3] for row in counts)),
        },
        display={"caption_packs": _display(counts, variants)},
    )


def choose_captions(captions: pl.DataFrame, variants: Sequence[str]) -> pl.DataFrame:
    """Pick one caption for each clip and variant, whatever order they come in.

    A clip that two drops brought may have several: the highest captioner version wins, then the
    text that sorts first. Failed captions are none.

    Returns:
        Columns ``clip_id, variant, captioner_version, text``.
    """
    return (
        captions.filter(
            (pl.col("status") == "ok")
            & pl.col("text").is_not_null()
            & pl.col("variant").is_in(list(variants))
        )
        .select("clip_id", "variant", "captioner_version", "text")
        .sort(
            "clip_id",
            "variant",
            "captioner_version",
            "text",
            descending=[False, False, True, False],
        )
        .unique(subset=["clip_id", "variant"], keep="first", maintain_order=True)
    )


def captions_of(samples: pl.DataFrame, captions: pl.DataFrame) -> pl.DataFrame:
    """Captions of samples: those of their clips, but for what is not true of a mirror image.

    A cut mirrors no clip whose captions name a side; those that are made later are left out here.

    Args:
        samples: Rows with ``sample_id, clip_id``.
        captions: What `choose_captions` returns.

    Returns:
        Columns ``sample_id, variant, captioner_version, text``.
    """
    found = samples.select("sample_id", "clip_id").join(captions, on="clip_id").drop("clip_id")
    untrue = [
        sample_id.endswith(_MIRRORED) and names_a_side(text)
        for sample_id, text in found["sample_id", "text"].iter_rows()
    ]
    return found.filter(~pl.Series(untrue, dtype=pl.Boolean))


def caption_version(captions: pl.DataFrame) -> str:
    """Name the captioner of a pack's captions; one name for several, and one for none."""
    found = sorted(captions["captioner_version"].unique())
    if len(found) > 1:
        return f"mixed-{short_digest(found)}"
    return found[0] if found else NO_CAPTIONS


def _counts(rows: pl.DataFrame, captions: pl.DataFrame, variants: Sequence[str]) -> list[int]:
    """How many rows have no caption at all, then how many have each variant."""
    bare = rows.join(captions, on="sample_id", how="anti").height
    return [bare, *(captions.filter(pl.col("variant") == variant).height for variant in variants)]


def _display(counts: list[list[Any]], variants: Sequence[str]) -> dict[str, dict[str, Any]]:
    header = ["shard", "caption version", "samples", "without a caption", *variants]
    return {
        "packs": {"type": "int", "raw_value": len(counts)},
        "samples": {"type": "int", "raw_value": sum(row[2] for row in counts)},
        "without_caption": {"type": "int", "raw_value": sum(row[3] for row in counts)},
        "by_shard": {"type": "md", "raw_value": markdown_table(header, counts[:50])},
    }
