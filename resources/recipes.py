"""Which recipe an order is built under.

Arriving drops follow the operating recipe: the deployment's file where there is one, the
shipped recipe otherwise. Everything of a dataset version follows the recipe that the version
was stated with, so that it stays what it is when the operating recipe moves on. Centroids and
semantic duplicates, which a cut needs before its version has a name, follow the recipe stated
for the next cut.
"""

import os
import stat
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import dagster as dg

from wsdata.catalog.ledger import Ledger
from wsdata.ids import parse_shard_group
from wsdata.lifecycle.versions import base_of
from wsdata.recipe import Recipe, load_recipe, recipe_from

NEXT_CUT = "next"


class RecipesResource(dg.ConfigurableResource):
    """Finds recipes. Both paths are absolute."""

    operating_file: str
    shipped_file: str

    def operating(self) -> Recipe:
        """Return the operating recipe.

        Raises:
            RecipeError: The file is not a recipe; it is named.
        """
        for name in (self.operating_file, self.shipped_file):
            with suppress(FileNotFoundError):
                found = os.stat(name)  # noqa: PTH116 - asked 10^5 times in a pass
                if stat.S_ISREG(found.st_mode):
                    return _read(name, (found.st_ino, found.st_mtime_ns, found.st_size))
        return load_recipe(Path(self.shipped_file))  # which says what is missing

    def stated(self, ledger: Ledger, kind: str, partition: str) -> dict[str, Any]:
        """What was stated about the cut that a partition belongs to, or nothing.

        Args:
            ledger: The ledger.
            kind: One of `wsdata.orders.PARTITION_KINDS`.
            partition: A partition of that kind.
        """
        if kind == "shard_group":
            version = parse_shard_group(partition)[0]
        elif kind == "dataset_version":
            version = base_of(partition)
        elif kind in ("centroids_version", "cluster_range"):
            return ledger.present("cut_recipe").get(NEXT_CUT, {})
        else:
            return {}
        return ledger.present("dataset_version").get(version, {})

    def for_partition(self, ledger: Ledger, kind: str, partition: str) -> Recipe:
        """Return the recipe that governs a partition."""
        stated = self.stated(ledger, kind, partition)
        return recipe_from(stated["recipe"]) if "recipe" in stated else self.operating()


@lru_cache(maxsize=16)
def _read(name: str, _stamp: tuple[int, int, int]) -> Recipe:
    return load_recipe(Path(name))
