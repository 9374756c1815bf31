"""Compute pools: where heavy steps run, and who starts them there.

A pool is a named kind of machine. `POOLS` is the only place that says what each is; how a
worker is started belongs to a launcher, which is all that differs between a laptop and a
cluster. What a worker does belongs to `wsdata.orders`.
"""

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, get_type_hints

import dagster as dg
from pydantic import Field

from resources.fan_out import num_parts, work_in_parts
from resources.local_launcher import LocalLauncher
from resources.workers import WorkerJob, WorkerLost
from wsdata.declared import build
from wsdata.deployment import Deployment, load_deployment
from wsdata.errors import WsdataError
from wsdata.orders import Step
from wsdata.records import Order, Report

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
        scratch_gib: Its room for temporary files.
        runtime_class_name: Sandbox of its pods; empty for the cluster's own.
        service_account_name: Whose credentials its pods carry.
        identity: Which access policy those credentials are under; see `wsdata.access`.
        priority_class_name: Who is preempted for whom; empty for the cluster's default.
        env_secrets: Secrets whose keys become its environment: credentials of the store.
        extra_env: Further environment of its pods.
        concurrency_limit: Steps at work at once, on a cluster.
        units_per_worker: Raw assets or clips that one worker is given, of an order that several
            may share.
        max_workers_per_order: Workers at once on one such order, on a cluster.
        local_limit: Workers at once, on one machine.
        max_attempts: How often an order is tried when the machinery under it fails.
        max_preemptions: How often it may be put off for others, which is no fault of its own.
        ttl_seconds_after_finished: How long an ended Job can be looked at.
        active_deadline_seconds: Wall-clock limit of one order.
    """

    name: str
    image: str
    node_selector: dict[str, str]
    tolerations: tuple[dict[str, str], ...] = ()
    gpu_count: int = 0
    cpu_count: float = 4
    memory_gib: float = 16
    scratch_gib: float = 50
    runtime_class_name: str = ""
    service_account_name: str = "wsdata-decode"
    identity: str = "decode"
    priority_class_name: str = ""
    env_secrets: tuple[str, ...] = ("wsdata-decode-s3",)
    extra_env: dict[str, str] = field(default_factory=dict[str, str])
    concurrency_limit: int = 64
    units_per_worker: int = 2000
    max_workers_per_order: int = 1
    local_limit: int = 1
    max_attempts: int = 3
    max_preemptions: int = 20
    ttl_seconds_after_finished: int = 3600
    active_deadline_seconds: int = 20 * 3600  # an order outlives it: see lifecycle.retention

    def __post_init__(self) -> None:
        for name in (
            *("cpu_count", "memory_gib", "scratch_gib", "concurrency_limit", "local_limit"),
            *("max_attempts", "active_deadline_seconds"),
            *("units_per_worker", "max_workers_per_order"),
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"pool {self.name}: {name} {getattr(self, name)} is not positive")


def _pool(name: str, **values: Any) -> PoolSpec:
    return PoolSpec(name=name, node_selector={"wsdata/pool": name}, **values)


POOLS: dict[str, PoolSpec] = {
    pool.name: pool
    for pool in (
        # It lands deliveries: hence the pipeline's identity, which may put into the vault.
        _pool(
            "cpu",
            image="wsdata-orchestrator",
            service_account_name="wsdata-pipeline",
            identity="pipeline",
            env_secrets=("wsdata-pipeline-s3",),
            concurrency_limit=256,
            local_limit=2,
        ),
        # The only pool that parses bytes from outside on a GPU node: hence its sandbox.
        _pool(
            "nvdec",
            image="wsdata-gpu",
            tolerations=(GPU_TAINT,),
            gpu_count=1,
            cpu_count=8,
            memory_gib=32,
            scratch_gib=200,
            runtime_class_name="gvisor",
            concurrency_limit=512,
            max_workers_per_order=32,
        ),
        _pool(
            "vlm",
            image="wsdata-gpu",
            tolerations=(GPU_TAINT,),
            gpu_count=8,
            cpu_count=32,
            memory_gib=512,
            concurrency_limit=16,
            units_per_worker=20_000,
            max_workers_per_order=4,
        ),
        _pool(
            "encode",
            image="wsdata-gpu",
            tolerations=(GPU_TAINT,),
            gpu_count=1,
            cpu_count=8,
            memory_gib=64,
            concurrency_limit=256,
            units_per_worker=20_000,
            max_workers_per_order=16,
        ),
        # The only pool whose identity may read the vault.
        _pool(
            "vault",
            image="wsdata-orchestrator",
            runtime_class_name="gvisor",
            service_account_name="wsdata-vault",
            identity="vault",
            env_secrets=("wsdata-vault-s3",),
            concurrency_limit=4,
        ),
    )
}


def pools_to_json(pools: Mapping[str, PoolSpec]) -> dict[str, dict[str, Any]]:
    """Say what pools are as the chart's values do: by pool, in camel case."""
    return {
        name: {
            _camel(each.name): list(value) if isinstance(value, tuple) else value
            for each in fields(PoolSpec)
            if each.name not in ("name", "local_limit")
            for value in [getattr(pool, each.name)]
        }
        for name, pool in pools.items()
    }


def pools_from(values: Mapping[str, Mapping[str, Any]]) -> dict[str, PoolSpec]:
    """Return the pools as one deployment has them: what it states, over what is shipped.

    Args:
        values: By pool, fields in camel case; see `pools_to_json`.

    Raises:
        WsdataError: A pool or a field that does not exist, or a value that cannot be.
    """
    if unknown := set(values) - set(POOLS):
        raise WsdataError(f"no pools {sorted(unknown)}; known are {sorted(POOLS)}")
    hints = get_type_hints(PoolSpec)
    known = {_camel(name): name for name in hints if name != "name"}
    made = dict(POOLS)
    for name, stated in values.items():
        if unknown := set(stated) - set(known):
            raise WsdataError(f"pool {name}: no {sorted(unknown)}; known are {sorted(known)}")
        changes = {
            known[key]: build(hints[known[key]], value, f"pool {name}: {key}")
            for key, value in stated.items()
        }
        try:
            made[name] = replace(POOLS[name], **changes)
        except ValueError as error:
            raise WsdataError(str(error)) from error
    return made


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(part.title() for part in rest)


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
        home: Home of the deployment, which says what its pools are and whether they are pods;
            empty for what is shipped, on this machine.
        command: What runs ``stage STAGE STEP ORDER``, in a local worker.
        grace_s: Seconds that an interrupted local worker has to end by itself.
    """

    home: str = ""
    command: list[str] = Field(default_factory=lambda: [sys.executable, "-m", "wsdata"])
    grace_s: float = 5.0

    def run(
        self, context: dg.AssetExecutionContext, step: Step, order: Order, *, store: str
    ) -> Report:
        """Run an order in its step's pool.

        Raises:
            KeyError: The step names no known pool.
            WsdataError: The deployment describes a pool wrongly.
            dagster.Failure: The step failed, or its worker was lost as often as the pool allows.
        """
        deployment = load_deployment(Path(self.home)) if self.home else None
        pool = pools_from(deployment.pool_values() if deployment else {})[step.pool or "cpu"]
        job = WorkerJob(stage=step.stage, step=step.name, order=order, store=store)
        if deployment is not None and deployment.bundle == "kubernetes":
            return _run_on_cluster(context, step, pool, job, deployment)
        local = LocalLauncher(command=self.command, grace_s=self.grace_s)
        return with_attempts(lambda: local.launch(context, pool, job), pool, job, context.log)


def _run_on_cluster(
    context: dg.AssetExecutionContext,
    step: Step,
    pool: PoolSpec,
    job: WorkerJob,
    deployment: Deployment,
) -> Report:
    """Run an order as a Job, or as several at once where its units are many."""
    from resources.kubernetes_launcher import KubernetesLauncher  # only a cluster needs it

    launcher = KubernetesLauncher(cluster=deployment.kubernetes)

    def work(part: WorkerJob) -> Report:
        return with_attempts(lambda: launcher.launch(context, pool, part), pool, part, context.log)

    parts = num_parts(
        step,
        job.order,
        units_per_worker=pool.units_per_worker,
        max_workers=pool.max_workers_per_order,
    )
    if parts == 1:
        return work(job)
    context.log.info(f"{job}: {parts} workers share its {step.units_of}")
    return work_in_parts(job, parts, work, launcher.stop)


def with_attempts(
    launch: Callable[[], Report], pool: PoolSpec, job: WorkerJob, log: logging.Logger
) -> Report:
    """Launch a job until it reports, as often as its pool allows.

    A worker that was preempted is no mark against its order, and counts apart from one that
    was killed, which may be its order's doing.

    Raises:
        dagster.Failure: The step failed, or the attempts are used up.
    """
    num_lost = num_preempted = 0
    while True:
        try:
            return launch()
        except WorkerLost as lost:
            if lost.is_preempted:
                num_preempted += 1
                count = f"preemption {num_preempted}, of {pool.max_preemptions} allowed"
            else:
                num_lost += 1
                count = f"attempt {num_lost} of {pool.max_attempts}"
            log.warning(f"{job}: {lost} ({count}, in pool {pool.name})")
            if num_lost >= pool.max_attempts or num_preempted > pool.max_preemptions:
                raise _given_up(pool, job, lost, num_lost, num_preempted) from lost


def _given_up(
    pool: PoolSpec, job: WorkerJob, lost: WorkerLost, num_lost: int, num_preempted: int
) -> dg.Failure:
    advice = (
        "What it finished is kept: give the pool nodes or a higher priority, and run again."
        if lost.is_preempted
        else f"What it finished is kept: give the pool more memory (now {pool.memory_gib:g} GiB) "
        "or look into the kernel's log, and run again."
    )
    times = num_preempted if lost.is_preempted else num_lost
    return dg.Failure(
        description=f"{job}: {lost}, {times} times in pool {pool.name}. {advice}",
        metadata={"lost": num_lost, "preempted": num_preempted},
        allow_retries=False,
    )
