"""A small deployment in a folder, and Dagster over the fabricated steps."""

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import dagster as dg
import pytest

from assets import partitions
from assets.building import Shown, step_assets
from assets.checking import promise
from assets.curate import open_shard_groups
from assets.work import Workbench
from resources import deployments
from resources.compute_pool import ComputePools
from wsdata.catalog.ledger import Ledger
from wsdata.deployment import load_deployment
from wsdata.observability.checks import lost_asset_faults
from wsdata_tests.graph.graph_steps import DECODE, FABRICATED

ROOT = Path(__file__).resolve().parents[2]
DROP = "licensed.films.20261101.001"
RECIPE = 'name = "test"\n'


@dataclass(frozen=True, kw_only=True)
class Site:
    """A home with one drop, its resources, and the assets of fabricated steps."""

    home: Path
    resources: dict[str, dg.ConfigurableResource]

    @property
    def bench(self) -> Workbench:
        deployment = load_deployment(self.home)
        return Workbench(
            deployment=deployment,
            ledger=deployment.open_ledger(),
            store=deployment.open_store(),
            recipes=self.resources["recipes"],
        )

    @property
    def ledger(self) -> Ledger:
        return load_deployment(self.home).open_ledger()

    def starts(self) -> int:
        """How many workers were started."""
        path = self.home / "starts"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def set_mood(self, mood: str) -> None:
        (self.home / "mood").write_text(mood)


def make_drop_folder(landing: Path, key: str, *, num_files: int = 2) -> Path:
    folder = landing / key
    folder.mkdir(parents=True)
    for i in range(num_files):
        (folder / f"{i}.mp4").write_bytes(b"x")
    tier, source, *_ = key.split(".")
    (folder / "drop.toml").write_text(
        f'source_tier = "{tier}"\nsource = "{source}"\nlicense_id = "CC0-1.0"\n'
    )
    (folder / "_READY").touch()
    return folder


def make_site(home: Path) -> Site:
    home.mkdir(parents=True, exist_ok=True)
    (home / "operating.toml").write_text(RECIPE)
    make_drop_folder(home / "landing", DROP)
    resources = deployments.bundle(ROOT, home)
    resources["compute_pools"] = ComputePools(
        command=[sys.executable, "-m", "wsdata_tests.graph.graph_worker"], grace_s=0.5
    )
    return Site(home=home, resources=resources)


def fabricated_assets(steps=FABRICATED):
    return [
        step_assets(
            step,
            {name: Shown(description=f"{name}.") for name in step.assets},
            steps=steps,
            after_commit=open_shard_groups if step.name == "manifest" else None,
        )
        for step in steps.values()
    ]


def no_asset_lost():
    return promise(
        DECODE, "decode_status", "no_asset_lost", lost_asset_faults,
        ("raw_assets", "decode_status"), is_blocking=True, description="None is lost.",
    )  # fmt: skip


@contextmanager
def instance_with_drops(*keys: str):
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions(partitions.drops.name, list(keys or (DROP,)))
        yield instance


def materialize(site: Site, instance, *, selection=None, steps=FABRICATED, partition=DROP):
    assets = [*fabricated_assets(steps), no_asset_lost()]
    return dg.materialize(
        assets,
        selection=selection,
        partition_key=partition,
        instance=instance,
        resources=site.resources,
        raise_on_error=False,
    )


def failure_text(result) -> str:
    """What a person reads of a failed run."""
    said = []
    for event in result.all_events:
        if event.is_step_failure:
            data = event.step_failure_data
            if data.user_failure_data and data.user_failure_data.description:
                said.append(data.user_failure_data.description)
            error = data.error
            while error is not None:
                said.append(error.message)
                error = error.cause
    return "\n".join(said)


def needs_proc() -> pytest.MarkDecorator:
    return pytest.mark.skipif(not Path("/proc/self").exists(), reason="reads /proc")
