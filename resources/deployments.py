"""Bundles: which resources one deployment runs on. Nothing else differs between deployments."""

from pathlib import Path

import dagster as dg

from resources.blob_store import BlobStoreResource
from resources.catalog import CatalogResource
from resources.compute_pool import ComputePools
from resources.recipes import RecipesResource
from wsdata.deployment import Deployment, load_deployment

SHIPPED_RECIPE = "recipes/v1.toml"


class DeploymentResource(dg.ConfigurableResource):
    """The addresses and constants of this deployment."""

    home: str

    def open(self) -> Deployment:
        """Read the deployment."""
        return load_deployment(Path(self.home))


def local(root: Path, home: Path | None = None) -> dict[str, dg.ConfigurableResource]:
    """Everything embedded: a folder as store, SQLite as ledger, subprocesses as pools.

    Args:
        root: The checkout.
        home: Local state; ``WSDATA_HOME`` without it.

    Raises:
        WsdataError: The deployment's file is wrong; the key is named.
    """
    deployment = load_deployment(home)
    return {
        "deployment": DeploymentResource(home=deployment.home),
        "catalog": CatalogResource(url=deployment.catalog),
        "blob_store": BlobStoreResource(address=deployment.store),
        "recipes": RecipesResource(
            operating_file=deployment.operating_recipe, shipped_file=str(root / SHIPPED_RECIPE)
        ),
        "compute_pools": ComputePools(),
    }
