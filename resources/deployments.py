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


def bundle(root: Path, home: Path | None = None) -> dict[str, dg.ConfigurableResource]:
    """The resources of one deployment: embedded on a laptop, or S3, Postgres and pods.

    What a deployment is made of stands in its home; the same graph runs on either.

    Args:
        root: The checkout.
        home: The deployment's home; ``WSDATA_HOME`` without it.

    Raises:
        WsdataError: The deployment's file is wrong; the key is named.
    """
    deployment = load_deployment(home)
    return {
        "deployment": DeploymentResource(home=deployment.home),
        "catalog": CatalogResource(
            url=deployment.catalog, password_env=deployment.catalog_password_env
        ),
        "blob_store": BlobStoreResource(address=deployment.store),
        "recipes": RecipesResource(
            operating_file=deployment.operating_recipe, shipped_file=str(root / SHIPPED_RECIPE)
        ),
        "compute_pools": ComputePools(home=deployment.home),
    }


def executor(home: Path | None = None) -> dg.ExecutorDefinition:
    """How a run works its steps: in its own process, or some at once on a cluster."""
    deployment = load_deployment(home)
    at_once = deployment.kubernetes.steps_at_once if deployment.bundle == "kubernetes" else 1
    if at_once == 1:
        return dg.in_process_executor
    return dg.multiprocess_executor.configured({"max_concurrent": at_once})
