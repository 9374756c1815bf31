"""When a dataset version is cut, and what is stated about it before it is.

A version is a statement first: recipe, as-of date and the commit that it reads the catalog as
of. Its manifest then follows, the same whenever it is made. What a manifest is belongs to
`wsdata.curate.manifest`.
"""

from typing import Any

from assets.work import CUT, Workbench
from resources.recipes import NEXT_CUT
from wsdata import orders
from wsdata.digest import canonical_json, digest
from wsdata.errors import CatalogError
from wsdata.ids import parse_version
from wsdata.lifecycle.versions import latest_version
from wsdata.orders import Step
from wsdata.recipe import Recipe
from wsdata.records import Fact, Order


def state_next_recipe(bench: Workbench, recipe: Recipe) -> None:
    """State which recipe the next cut follows, unless that is what was stated last."""
    stated = bench.ledger.present("cut_recipe").get(NEXT_CUT)
    body = {"recipe": recipe.to_json()}
    if stated is None or canonical_json(stated) != canonical_json(body):
        bench.ledger.state([Fact(kind="cut_recipe", subject=NEXT_CUT, body=body)], step=CUT)


def choose_version(
    bench: Workbench, step: Step, recipe: Recipe, *, as_of_date: str, version: str | None = None
) -> str:
    """Name the dataset version that a recipe makes of what is live, stating it where it is new.

    The version that was cut from the same recipe and the same live inputs is that version.

    Args:
        bench: The ledger and store.
        step: The step that cuts.
        recipe: What is to be evaluated.
        as_of_date: The ISO day that rights are judged by, of a new version.
        version: The name that the version is to have; the next free one without it.

    Raises:
        CatalogError: `version` exists, and was cut from something else.
        NotReady: Nothing is there to be cut from.
    """
    seq = bench.ledger.seq
    order = orders.build_order(
        step, version or "v0", ledger=bench.ledger, deployment=bench.deployment, recipe=recipe,
        as_of=seq,
    )  # fmt: skip
    inputs_digest = digest_of_inputs(order)
    cut = {ref.partition for ref in bench.ledger.live("manifests")}
    stated = {
        name: body for name, body in bench.ledger.present("dataset_version").items()
        if "patch" not in body
    }  # fmt: skip
    same = [name for name in cut if stated.get(name, {}).get("inputs_digest") == inputs_digest]
    if version is not None and version in cut and version not in same:
        raise CatalogError(
            f"dataset version {version} exists and was cut from other inputs: a version is never "
            "cut twice; name another, or none for the next"
        )
    if version is None and same:
        return max(same, key=parse_version)
    name = version or _next_name(cut)
    body: dict[str, Any] = {
        "recipe": recipe.to_json(),
        "as_of_date": as_of_date,
        "inputs_digest": inputs_digest,
        "parent": latest_version(bench.ledger),
        "seq": seq,
    }
    if name not in cut and not _is_stated(stated.get(name), body):
        bench.ledger.state([Fact(kind="dataset_version", subject=name, body=body)], step=CUT)
    return name


def digest_of_inputs(order: Order) -> str:
    """Digest of a recipe's part and the live objects and facts that a cut reads."""
    return digest(
        {
            "params": order.params,
            "inputs": {
                table: [[ref.partition, ref.version, ref.sha256] for ref in refs]
                for table, refs in order.inputs.items()
            },
            "facts": order.facts,
        }
    )


def _is_stated(stated: dict[str, Any] | None, body: dict[str, Any]) -> bool:
    """Whether a version that was never cut is stated alike already: a killed cut goes on."""
    return stated is not None and all(
        stated.get(key) == body[key] for key in ("inputs_digest", "as_of_date")
    )


def _next_name(cut: set[str]) -> str:
    return f"v{max((parse_version(name)[0] for name in cut), default=0) + 1}"
