"""Compute pools: where heavy steps run, and who starts them there.

A pool is a named kind of machine. `POOLS` is the only place that says what each is; how a
worker is started belongs to a launcher, which is all that differs between a laptop and a
cluster. What a worker does belongs to `wsdata.orders`.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import dagster as dg
from pydantic import Field

from resources.local_launcher import LocalLauncher, WorkerLost
from wsdata.orders import Step
from wsdata.records import Order, Report

ORDER_FORMAT = 1
GPU_TAINT = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolSpec:
    """What one pool is made of.

    Attributes:
        image: Container image, without its registry and tag.
        node_selector: Labels of the nodes that its pods may run on.
        tolerations: Taints of those nodes, as Kubernetes spells them.
        gpu_count: GPUs of one worker.
        cpu_count: CPU cores of one worker.
        memory_gib: Memory of one worker.
        runtime_class: Sandbox of its pods; empty for the cluster's own.
        service_account: Whose credentials its pods carry.
        concurrency_limit: Workers at once, on a cluster.
        local_limit: Workers at once, on one machine.
        max_attempts: How often an order is tried when the machinery under it fails.
    """

    name: str
    image: str
    node_selector: dict[str, str]
    tolerations: tuple[dict[str, str], ...] = ()
    gpu_count: int = 0
    cpu_count: int = 4
    memory_gib: int = 16
    runtime_class: str = ""
    service_account: str = "wsdata-worker"
    concurrency_limit: int = 64
    local_limit: int = 1
    max_attempts: int = 3

    def __post_init__(self) -> None:
        for name in ("cpu_count", "memory_gib", "concurrency_limit", "local_limit", "max_attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"pool {self.name}: {name} {getattr(self, name)} is not positive")


def _pool(name: str, **values: Any) -> PoolSpec:
    return PoolSpec(name=name, node_selector={"wsdata/pool": name}, **values)


POOLS: dict[str, PoolSpec] = {
    pool.name: pool
    for pool in (
        _pool("cpu", image="wsdata-orchestrator", concurrency_limit=256, local_limit=2),
        # The only pool that parses bytes from outside on a GPU node: hence its sandbox.
        _pool(
            "nvdec",
            image="wsdata-gpu",
            tolerations=(GPU_TAINT,),
            gpu_count=1,
            cpu_count=8,
            memory_gib=32,
            runtime_class="gvisor",
            concurrency_limit=512,
        ),
        _pool(
            "vlm",
            image="wsdata-gpu",
            tolerations=(GPU_TAINT,),
            gpu_count=8,
            cpu_count=32,
            memory_gib=512,
            concurrency_limit=16,
        ),
        _pool(
            "encode",
            image="wsdata-gpu",
            tolerations=(GPU_TAINT,),
            gpu_count=1,
            cpu_count=8,
            memory_gib=64,
            concurrency_limit=256,
        ),
        # The only pool whose account may read the vault.
        _pool(
            "vault",
            image="wsdata-orchestrator",
            runtime_class="gvisor",
            service_account="wsdata-vault",
            concurrency_limit=4,
        ),
    )
}


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerJob:
    """What a launcher is handed: one step's order and the store that it is worked in."""

    stage: str
    step: str
    order: Order
    store: str
    environment: dict[str, str] = field(default_factory=dict[str, str])

    def to_json(self) -> dict[str, Any]:
        """Return the order file that ``wsdata stage`` reads."""
        return {
            "format_version": ORDER_FORMAT,
            "store": self.store,
            "order": self.order.to_json(),
        }


class WorkerLauncher(Protocol):
    """Starts one worker somewhere, and waits for its report."""

    def launch(self, context: dg.AssetExecutionContext, pool: PoolSpec, job: WorkerJob) -> Report:
        """Run a job to its end, its logs reaching the run.

        Raises:
            WorkerLost: The machinery failed under it; the same job may be tried again.
            dagster.Failure: The step itself failed; trying again would fail again.
        """
        ...


class ComputePools(dg.ConfigurableResource):
    """Runs orders in pools.

    Attributes:
        command: What runs ``stage STAGE STEP ORDER.json``.
        grace_s: Seconds that an interrupted worker has to end by itself.
    """

    command: list[str] = Field(default_factory=lambda: [sys.executable, "-m", "wsdata"])
    grace_s: float = 5.0

    def run(
        self, context: dg.AssetExecutionContext, step: Step, order: Order, *, store: str
    ) -> Report:
        """Run an order in its step's pool.

        Raises:
            KeyError: The step names no known pool.
            dagster.Failure: The step failed, or its worker was lost as often as the pool allows.
        """
        pool = POOLS[step.pool or "cpu"]
        job = WorkerJob(stage=step.stage, step=step.name, order=order, store=store)
        launcher: WorkerLauncher = LocalLauncher(command=self.command, grace_s=self.grace_s)
        return _with_attempts(context, pool, lambda: launcher.launch(context, pool, job), job)


def _with_attempts(
    context: dg.AssetExecutionContext, pool: PoolSpec, launch: Callable[[], Report], job: WorkerJob
) -> Report:
    said = ""
    for attempt in range(1, pool.max_attempts + 1):
        try:
            return launch()
        except WorkerLost as lost:
            said = str(lost)
            context.log.warning(
                f"{job.stage}/{job.step} of {job.order.partition}: {said} "
                f"(attempt {attempt} of {pool.max_attempts} in pool {pool.name})"
            )
    raise dg.Failure(
        description=(
            f"{job.stage}/{job.step} of {job.order.partition}: {said}, {pool.max_attempts} times "
            f"in pool {pool.name}. What it finished is kept: give the pool more memory "
            f"(now {pool.memory_gib} GiB) or look into the kernel's log, and run again."
        ),
        allow_retries=False,
    )
