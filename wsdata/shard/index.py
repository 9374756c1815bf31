"""The dataset index: a manifest joined with where each of its samples lies.

Samples that an older version's shards hold are listed where they are; nothing is copied. Every
sample of the manifest is either indexed or listed as lost, with the reason. Which step gets which
sample is `plan`.
"""

from typing import Any

import polars as pl

from wsdata import tables
from wsdata.digest import sha256_bytes
from wsdata.errors import StepFailed
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.recipe import Recipe
from wsdata.shard.latent_shards import latent_params
from wsdata.shard.latent_stats import markdown_table, psnr_histogram
from wsdata.shard.publish import index_key

SAME_SAMPLE = ["sample_id", "bucket", "transcode_sha256"]  # what makes old latents fit

_NUM_NAMED = 3


def _params(recipe: Recipe) -> dict[str, Any]:
    return {"tokenizer": latent_params(recipe)}


STEP = Step(
    stage="shard",
    name="dataset_index",
    function="wsdata.shard.index:run",
    code_version="dataset-index-2",
    partition="dataset_version",
    assets={"dataset_index": ("dataset_index", "index_losses")},
    inputs=(
        Input(table="manifests"),
        Input(table="shard_assignments"),
        Input(table="placements", scope="groups_of_version", is_optional=True),
        Input(table="caption_packs", scope="groups_of_version", is_optional=True),
        Input(table="latent_losses", scope="groups_of_version", is_optional=True),
        Input(table="placements", scope="all", is_context=True),
        Input(table="caption_packs", scope="all", is_context=True),
    ),
    params_of=_params,
    description=(
        "Where every sample of a dataset version lies: shard, row and bytes, with its captions; "
        "and which samples were lost on the way, and why."
    ),
)


def run(run: StepRun) -> StepResult:
    """Join a version's manifest with placements and caption packs.

    Raises:
        StepFailed: The version's own shards are of another tokenizer than its recipe names, or a
            sample is neither placed nor lost.
    """
    manifest = run.read("manifests")
    own = run.read("placements")
    _check_one_tokenizer(run, own)
    wanted = run.params["tokenizer"]
    placed = _first_of(
        own,
        run.read_context("placements").filter(
            (pl.col("tokenizer_version") == wanted["version"])
            & (pl.col("latent_dtype") == wanted["dtype"])
        ),
        subset=SAME_SAMPLE,
        order=["shard", "row"],
    )
    packs = _first_of(
        run.read("caption_packs"),
        run.read_context("caption_packs").sort("caption_version", descending=True),
        subset=["shard"],
        order=["shard"],
    ).select("shard", "caption_version", pl.col("key").alias("caption_pack_key"))
    index = manifest.join(placed.drop("clip_id", "job"), on=SAME_SAMPLE, how="inner").join(
        packs, on="shard", how="left"
    )
    losses = _losses(run, manifest, index)
    rows = tables.conform(
        "dataset_index", index.select(list(tables.TABLES["dataset_index"].columns))
    )
    data = tables.to_parquet(rows)
    run.store.put(index_key(sha256_bytes(data)), data)
    return StepResult(
        tables={"dataset_index": rows, "index_losses": losses},
        metrics=_metrics(rows, losses, own),
        display={"dataset_index": _display(rows, losses, own)},
    )


def _check_one_tokenizer(run: StepRun, own: pl.DataFrame) -> None:
    wanted = (run.params["tokenizer"]["version"], run.params["tokenizer"]["dtype"])
    found = set(own.select("tokenizer_version", "latent_dtype").unique().rows())
    if found - {wanted}:
        raise StepFailed(
            f"dataset version {run.order.partition}: its shard groups hold latents of "
            f"{sorted(found)}, its recipe names {wanted}: one version has one tokenizer; encode "
            "its groups again under this recipe, or cut the next version"
        )


def _first_of(
    own: pl.DataFrame, others: pl.DataFrame, *, subset: list[str], order: list[str]
) -> pl.DataFrame:
    """One row for each key, the version's own before those of others."""
    ranked = pl.concat(
        [own.with_columns(pl.lit(0).alias("_rank")), others.with_columns(pl.lit(1).alias("_rank"))]
    )
    ranked = ranked.sort(["_rank", *order], maintain_order=True)
    return ranked.unique(subset=subset, keep="first", maintain_order=True).drop("_rank")


def _losses(run: StepRun, manifest: pl.DataFrame, index: pl.DataFrame) -> pl.DataFrame:
    """Account for samples that are not indexed; one without a reason fails the step."""
    missing = manifest.join(index, on="sample_id", how="anti").select("sample_id")
    reasons = run.read("latent_losses").unique("sample_id")
    unknown = missing.join(reasons, on="sample_id", how="anti").sort("sample_id")
    if unknown.height:
        groups = unknown.join(run.read("shard_assignments"), on="sample_id", how="left")
        waiting = sorted(groups["shard_group"].drop_nulls().unique())
        raise StepFailed(
            f"dataset version {run.order.partition}: {unknown.height} of {manifest.height} samples "
            f"are neither in a shard nor lost, such as "
            f"{', '.join(unknown['sample_id'].head(_NUM_NAMED))}: "
            + (
                f"run shard/latent_shards of {', '.join(waiting[:_NUM_NAMED])}"
                if waiting
                else "no shard group of this version has them; cut the version again"
            )
        )
    return tables.conform("index_losses", missing.join(reasons, on="sample_id", how="inner"))


def _metrics(rows: pl.DataFrame, losses: pl.DataFrame, own: pl.DataFrame) -> dict[str, float]:
    return {
        "num_samples": float(rows.height),
        "num_lost": float(losses.height),
        "num_shards": float(rows["shard"].n_unique()),
        "num_reused_samples": float(_num_reused(rows, own)),
        "num_tokens": float(rows["num_tokens"].sum()),
        "latent_bytes": float(rows["length"].sum()),
        "num_without_captions": float(rows["caption_pack_key"].null_count()),
    }


def _num_reused(rows: pl.DataFrame, own: pl.DataFrame) -> int:
    return rows.join(own, on="shard", how="anti").height


def _display(
    rows: pl.DataFrame, losses: pl.DataFrame, own: pl.DataFrame
) -> dict[str, dict[str, Any]]:
    by_bucket = (
        rows.group_by("bucket", "stream")
        .agg(
            pl.len().alias("samples"),
            pl.col("shard").n_unique().alias("shards"),
            pl.col("num_tokens").sum().alias("tokens"),
            (pl.col("length").sum() / 1e6).round(2).alias("MB"),
            pl.col("psnr_db").median().round(1).alias("median PSNR dB"),
        )
        .sort("bucket", "stream")
    )
    by_reason = losses.group_by("reason").agg(pl.len().alias("samples")).sort("reason")
    texts = {
        "buckets": markdown_table(by_bucket.columns, by_bucket.rows()),
        "psnr": psnr_histogram(rows["psnr_db"].to_list()),
        "losses": markdown_table(by_reason.columns, by_reason.rows()),
    }
    return {
        "samples": {"type": "int", "raw_value": rows.height},
        "lost": {"type": "int", "raw_value": losses.height},
        "reused": {"type": "int", "raw_value": _num_reused(rows, own)},
        **{label: {"type": "md", "raw_value": text} for label, text in texts.items() if text},
    }
