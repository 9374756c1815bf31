"""Safety-list filter: does anything of a raw asset look like a listed picture?

Compares the prints that ingest and the decode pass left, so a list that grows later screens all
stored material without decoding any. Vault members are screened by the prints that left the
vault. A hit is a hard kill of the whole raw asset at the gates, and a fact ``safety_report`` for
the team that answers for it; pictures are shown nowhere.

Distances are bits of 256. PDQ's authors call 31 and less a match, and give no vote to pictures
of a quality below 50; unrelated pictures lie around 128, and above 70 in practice.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl

from wsdata.deployment import Deployment
from wsdata.digest import short_digest
from wsdata.ingest.neardup import MIN_QUALITY
from wsdata.ingest.print_index import near_pairs
from wsdata.media.phash import unpack_hashes
from wsdata.orders import FactInput, Input, Step, StepResult, StepRun
from wsdata.preprocess.filters.rows import (
    Entries,
    Entry,
    Filter,
    score_clips,
    scored,
    unscored,
)
from wsdata.preprocess.safety_lists import SafetyList, list_digests, read_lists
from wsdata.recipe import Recipe
from wsdata.records import Fact

FILTER = Filter(
    name="safety_list",
    model_version="pdq-lists-1",
    score_names=(
        "asset_hits",  # listed entries that any print of the raw asset matches; the gate reads it
        "hits",  # listed entries that a print within the clip matches
    ),
)
REPORT = "safety_report"  # kind of fact
MAX_SHOWN = 20  # hits in a row's detail

_PRINT = ["asset_id", "time_s", "hash", "mirror_hash", "quality", "method"]

_HITS = {
    "asset_id": pl.String, "time_s": pl.Float64, "method": pl.String, "list": pl.String,
    "entry": pl.String, "source": pl.String, "distance": pl.Int64, "is_mirrored": pl.Boolean,
}  # fmt: skip


def _constants(deployment: Deployment) -> dict[str, Any]:
    return {
        "lists": list_digests(deployment.safety_lists),
        "max_distance": deployment.safety_max_distance,
        "min_quality": MIN_QUALITY,
    }


def _settings(deployment: Deployment, recipe: Recipe) -> dict[str, Any]:
    del recipe
    return {"safety_lists": deployment.safety_lists}


STEP = Step(
    stage="preprocess",
    name="safety_list_scores",
    function="wsdata.preprocess.filters.safety_list:run",
    code_version=FILTER.model_version,
    partition="drop",
    assets={"safety_list_scores": ("safety_list_scores",)},
    inputs=(
        Input(table="clips"),
        Input(table="fingerprints"),
        Input(table="pass_fingerprints"),
        Input(table="vault_prints", is_optional=True),
    ),
    facts=(
        FactInput(kind="safety_list", in_digest=False),
        FactInput(kind=REPORT, in_digest=False, of_drop=True),
    ),
    constants_of=_constants,
    settings_of=_settings,
    description="Does anything of a raw asset match a picture on the deployment's safety lists.",
)


def run(run: StepRun) -> StepResult:
    """Screen a drop's prints against every list; state reports of what is new.

    Raises:
        StepFailed: A list is not the one that the order names, or is no longer what it was with
            lines appended.
    """
    facts = run.settings.get("facts", {})
    lists = read_lists(
        run.settings.get("safety_lists", ""),
        wanted=run.params["lists"],
        known=facts.get("safety_list", {}),
    )
    clips, sealed = run.read("clips"), run.read("vault_prints")
    prints = pl.concat(
        [run.read("fingerprints"), run.read("pass_fingerprints")], how="vertical"
    ).select(_PRINT)
    sealed = sealed.filter(pl.col("level") == "frame").with_columns(method=pl.lit("vault"))
    found = list_hits(
        pl.concat([prints, sealed.select(_PRINT)]), lists, max_distance=run.params["max_distance"]
    )
    has_lists = any(each.entries for each in lists)
    result = score_clips(run, FILTER, _scorer(prints, found, has_lists=has_lists))
    in_vault = set(sealed["asset_id"])
    shown = {"lists": {"type": "md", "raw_value": _show(lists, found, in_vault)}}
    return StepResult(
        tables=result.tables,
        facts=_news(lists, _reports(found, clips, in_vault, drop=run.order.partition), facts),
        metrics=result.metrics | {"num_assets_listed": found["asset_id"].n_unique()},
        display={FILTER.table: shown | result.display[FILTER.table]},
    )


def list_hits(
    prints: pl.DataFrame, lists: Sequence[SafetyList], *, max_distance: int
) -> pl.DataFrame:
    """Find listed pictures among prints, mirrored or not.

    Args:
        prints: ``asset_id, time_s, hash, mirror_hash, quality, method``.
        lists: The lists.
        max_distance: Bits of 256 up to which two hashes are one picture.

    Returns:
        One row per printed frame and entry that it matches: ``asset_id, time_s, method, list,
        entry, source, distance, is_mirrored``, sorted.
    """
    voting = _voting(prints)
    told = pl.DataFrame(
        [(each.name, *entry[1:], entry.pdq) for each in lists for entry in each.entries],
        schema={"list": pl.String, "entry": pl.String, "source": pl.String, "pdq": pl.Binary},
        orient="row",
    )
    if voting.is_empty() or told.is_empty():
        return pl.DataFrame(schema=_HITS)
    sides = [
        voting.select("asset_id", "time_s", "method", column, is_mirrored=pl.lit(flag))
        .rename({column: "pdq"})
        .filter(pl.col("pdq").is_not_null())
        for column, flag in (("hash", False), ("mirror_hash", True))
    ]
    seen = pl.concat(sides)
    near = _near(seen["pdq"].unique().sort(), told["pdq"].unique().sort(), max_distance)
    return (
        seen.join(near, on="pdq", how="inner")
        .join(told.rename({"pdq": "listed"}), on="listed", how="inner")
        .sort("asset_id", "list", "entry", "time_s", "method", "distance", "is_mirrored")
        .unique(
            ["asset_id", "list", "entry", "time_s", "method"], keep="first", maintain_order=True
        )
        .select(pl.col(name).cast(dtype) for name, dtype in _HITS.items())
    )


def _near(seen: pl.Series, listed: pl.Series, max_distance: int) -> pl.DataFrame:
    """Pairs (pdq, listed, distance) within a distance; exact, whatever the length of a list."""
    pairs = near_pairs(
        unpack_hashes(seen.to_list()), unpack_hashes(listed.to_list()), radius=max_distance
    )
    return pl.DataFrame(
        {
            "pdq": seen.gather(pairs.left),
            "listed": listed.gather(pairs.right),
            "distance": pairs.distance,
        }
    )


def _scorer(
    prints: pl.DataFrame, found: pl.DataFrame, *, has_lists: bool
) -> Callable[[dict[str, Any]], Entries]:
    """What is said of a clip: the hits of its raw asset, and those within its span."""
    times = {
        str(asset_id): np.asarray(sorted(each), np.float64)
        for asset_id, each in _voting(prints).group_by("asset_id").agg("time_s").iter_rows()
    }
    hits = {str(key[0]): rows for key, rows in found.group_by("asset_id", maintain_order=True)}

    def score(clip: dict[str, Any]) -> Entries:
        if not has_lists:
            return dict.fromkeys(FILTER.score_names, unscored("no safety list has an entry"))
        if clip["asset_id"] not in times:
            return dict.fromkeys(FILTER.score_names, unscored("no print with enough in it"))
        mine = hits.get(clip["asset_id"], found.clear())
        if clip["media_kind"] == "image":
            return {"asset_hits": _counted(mine), "hits": _counted(mine)}
        start_s, end_s = clip["start_s"], clip["end_s"]
        at = times[clip["asset_id"]]
        is_printed = bool(((at >= start_s) & (at < end_s)).any())
        inside = mine.filter((pl.col("time_s") >= start_s) & (pl.col("time_s") < end_s))
        return {
            "asset_hits": _counted(mine),
            "hits": _counted(inside) if is_printed else unscored("no print within the clip"),
        }

    return score


def _counted(hits: pl.DataFrame) -> Entry:
    best = _nearest(hits)
    if best.is_empty():
        return scored(0.0)
    first = best.sort("distance", "list", "entry").row(0, named=True)
    more = f" and {best.height - 1} more" if best.height > 1 else ""
    why = f"list {first['list']} entry {first['entry']} at {first['distance']} of 256 bits{more}"
    listed = best.select("list", "entry", "distance", "time_s").head(MAX_SHOWN).rows()
    return scored(float(best.height), {"why": why, "hits": [list(each) for each in listed]})


def _nearest(hits: pl.DataFrame) -> pl.DataFrame:
    """Of each raw asset, list and entry the nearest print, the first of equals."""
    return hits.sort("asset_id", "list", "entry", "distance", "time_s", "method").unique(
        ["asset_id", "list", "entry"], keep="first", maintain_order=True
    )


def _voting(prints: pl.DataFrame) -> pl.DataFrame:
    return prints.filter(pl.col("hash").is_not_null() & (pl.col("quality") >= MIN_QUALITY))


# what the ledger is told ---------------------------------------------------------------------


def _reports(
    found: pl.DataFrame, clips: pl.DataFrame, sealed: set[str], *, drop: str
) -> list[Fact]:
    """One fact ``safety_report`` for each raw asset of this drop, list and entry."""
    of_asset = dict(clips.group_by("asset_id").agg(pl.col("clip_id").sort()).iter_rows())
    return [
        Fact(
            kind=REPORT,
            subject=f"{row['asset_id']}/{short_digest([drop, row['list'], row['entry']])}",
            body={
                **{name: row[name] for name in _HITS},
                "drop": drop,
                "in_vault": row["asset_id"] in sealed,
                "clips": of_asset.get(row["asset_id"], []),
                "is_held": True,
            },
        )
        for row in _nearest(found).iter_rows(named=True)
    ]


def _news(
    lists: Sequence[SafetyList], reports: Sequence[Fact], facts: Mapping[str, Any]
) -> list[Fact]:
    """What the ledger does not know yet: lists that grew, reports, and reports withdrawn.

    A report stays although its print is gone: only the list itself takes it back.
    """
    known_lists, known = facts.get("safety_list", {}), facts.get(REPORT, {})
    news = [
        Fact(kind="safety_list", subject=each.name, body=each.body)
        for each in lists
        if known_lists.get(each.name) != each.body
    ]
    news += [fact for fact in reports if known.get(fact.subject) != fact.body]
    withdrawn = {(each.name, entry) for each in lists for entry in each.withdrawn}
    news += [
        Fact(kind=REPORT, subject=subject, body={**body, "is_held": False, "withdrawn": True})
        for subject, body in known.items()
        if (body["list"], body["entry"]) in withdrawn
    ]
    return news


def _show(lists: Sequence[SafetyList], found: pl.DataFrame, sealed: set[str]) -> str:
    """Counts alone: neither pictures nor hashes."""
    if not lists:
        return "no safety list in this deployment"
    lines = ["| list | entries | digest | raw assets | of these in the vault |"]
    lines.append("|---|---:|---|---:|---:|")
    for each in lists:
        assets = set(found.filter(pl.col("list") == each.name)["asset_id"])
        lines.append(
            f"| {each.name} | {len(each.entries)} | {each.sha256[:12]} | {len(assets)} "
            f"| {len(assets & sealed)} |"
        )
    return "\n".join(lines)
