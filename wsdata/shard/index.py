"""The dataset index: a manifest joined with where each of its samples lies.

Samples that an older version's shards hold are listed where they are; nothing is copied. Every
sample of the manifest is either indexed or listed as lost, with the reason. Which step gets which
sample is `plan`.
"""

from typing import Any

import polars as pl

from wsdata import tables
from wsdata.catalog.objects import read_matching
from wsdata.curate.columns import NO_COLUMNS, SAME_SAMPLE
from wsdata.digest import sha256_bytes
from wsdata.errors import StepFailed
from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.recipe import Recipe
from wsdata.shard.fidelity import FIDELITY_HEADER, fidelity_table
from wsdata.shard.latent_shards import latent_params
from wsdata.shard.latent_stats import markdown_table, psnr_histogram
from wsdata.shard.publish import index_key

_NUM_NAMED = 3


def _params(recipe: Recipe) -> dict[str, Any]:
    return {"tokenizer": latent_params(recipe)}


STEP = Step(
    stage="shard",
    name="dataset_index",
    function="wsdata.shard.index:run",
    code_version="dataset-index-3",
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
    # what a sample carries is told by where it lies
    wanting = manifest.drop("channels_json").with_columns(
        pl.col("columns_digest").fill_null(NO_COLUMNS)
    )
    others = _elsewhere(run, "placements", wanting, SAME_SAMPLE)
    wanted = run.params["tokenizer"]
    others = others.filter(
        (pl.col("tokenizer_version") == wanted["version"])
        & (pl.col("latent_dtype") == wanted["dtype"])
    )
    placed = _first_of(own, others, subset=SAME_SAMPLE, order=["shard", "row"])
    placed = placed.join(wanting, on=SAME_SAMPLE, how="semi")
    packs = _first_of(
        run.read("caption_packs"),
        _elsewhere(run, "caption_packs", placed, ["shard"]).sort(
            "caption_version", descending=True
        ),
        subset=["shard"],
        order=["shard"],
    )
    index = _with_captions(
        wanting.join(placed.drop("clip_id", "job"), on=SAME_SAMPLE, how="inner"), packs
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
        display={"dataset_index": _display(rows, losses, own) | _quality(placed)},
    )


def _with_captions(index: pl.DataFrame, packs: pl.DataFrame) -> pl.DataFrame:
    """Join rows with the place of their captions in the pack of their shard.

    Raises:
        StepFailed: A pack does not say where the captions of a sample of its shard lie.
    """
    records = packs.select(
        "shard",
        "caption_version",
        pl.int_ranges(pl.col("record_offsets").list.len()).alias("row"),
        pl.col("key").alias("caption_pack_key"),
        pl.col("record_offsets").alias("caption_offset"),
        pl.col("record_lengths").alias("caption_length"),
        pl.col("record_xxh3").alias("caption_xxh3"),
    ).explode("row", "caption_offset", "caption_length", "caption_xxh3")
    joined = index.join(records, on=["shard", "row"], how="left")
    untold = joined.filter(pl.col("caption_offset").is_null()).join(packs, on="shard", how="semi")
    if untold.height:
        shards = untold["shard"].unique().sort().head(_NUM_NAMED).to_list()
        raise StepFailed(
            f"caption packs do not say where captions of {untold.height} samples lie, such as "
            f"those of shards {', '.join(shards)}: they are of an older format, or of other rows; "
            "run shard/caption_packs of the groups of these shards again"
        )
    return joined


def _elsewhere(run: StepRun, table: str, wanted: pl.DataFrame, on: list[str]) -> pl.DataFrame:
    return read_matching(run.store, table, run.order.context.get(table, []), wanted, on)


def _quality(placed: pl.DataFrame) -> dict[str, dict[str, Any]]:
    text = markdown_table(FIDELITY_HEADER, fidelity_table(placed))
    return {"fidelity": {"type": "md", "raw_value": text}} if text else {}


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
        "num_with_audio": float(rows.select(_carries("audio").sum()).item()),
        "num_with_actions": float(rows.select(_carries("actions").sum()).item()),
    }


def _carries(column: str) -> pl.Expr:
    """Whether a row's sample has something in a column of bytes."""
    length = pl.col("columns_json").str.json_path_match(f"$.{column}[1]")
    return length.cast(pl.Int64).fill_null(0) > 0


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
            _carries("audio").sum().alias("with sound"),
            _carries("actions").sum().alias("with actions"),
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
