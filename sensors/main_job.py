"""The main job: every unfinished step of every partition, as a sequence of runs.

What is finished is asked of the ledger and the store; Dagster is started for the rest alone.
One `MainJob` does one pass and keeps what it did.
"""

import datetime as dt
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import dagster as dg

from assets import partitions
from assets.building import dependencies, step_keys
from assets.work import NO_PARTITION, Workbench
from sensors import jobs
from sensors.drops import observation, refusal_check
from sensors.jobs import JobSpec
from sensors.progress import Progress
from sensors.runs import Runs
from wsdata.catalog.objects import read_table
from wsdata.curate.centroids import centroids_version_for
from wsdata.ids import parse_version
from wsdata.ingest.delivery import Inspection, inspect_drop
from wsdata.ingest.landing import LandingZone, ready_drops
from wsdata.lifecycle.patch_mend import mend_patches
from wsdata.lifecycle.pins import pin_forgotten_patches
from wsdata.loader.inbox import REPORTED, take_in
from wsdata.orders import Step
from wsdata.recipe import Recipe

SHOWN_SHARDS = 5
MAX_WAVES = 4  # runs of one partition before a step that never gets done is called a fault
MAX_PASSES = 3  # over all drops: what lands later can matter to what was landed before
MAX_COUNTED = 1000  # drops whose rows are read to tell the funnel after a pass


@dataclass(kw_only=True, slots=True)
class Summary:
    """What one pass did. `runs` are Dagster's, with seconds; `skipped` needed none.

    Of what `failed`, the runs of those in `lost` went away in the middle. Patches in `mended` had
    lost a pointer or a plan, which was published again.
    """

    runs: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    skipped: list[str] = field(default_factory=list[str])
    refused: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    failed: list[str] = field(default_factory=list[str])
    lost: list[str] = field(default_factory=list[str])
    mended: list[str] = field(default_factory=list[str])
    version: str | None = None


class MainJob:
    """One pass of the main job.

    Args:
        steps: All steps, in flow order.
        instance: Where runs are kept.
        bench: The ledger, the store and the recipes that decide what is left to do. The job's own
            `bench` is one for a pass: what it says is as of when the job last looked, which it
            does before it asks about partitions, before a run and after it.
        progress: Where it is told.
        runs: How runs are worked.
    """

    def __init__(
        self,
        *,
        steps: Mapping[str, Step],
        instance: dg.DagsterInstance,
        bench: Workbench,
        progress: Progress,
        runs: Runs,
    ) -> None:
        self.steps = steps
        self.instance = instance
        self.bench = bench.for_one_pass()
        self.progress = progress
        self.runs = runs
        self.summary = Summary()
        self._skipped: set[str] = set()

    # one partition -----------------------------------------------------------------------------

    def do(self, spec: JobSpec, partition: str = NO_PARTITION, *, only_lost: bool = False) -> bool:
        """Do what is unfinished of one job's partition; return whether nothing failed.

        Args:
            spec: The job.
            partition: The partition.
            only_lost: Leave alone what was made under another order; only put back what the
                store has lost.
        """
        self.bench.renew()
        return self._do(spec, partition, only_lost=only_lost)

    def _do(self, spec: JobSpec, partition: str, *, only_lost: bool) -> bool:
        steps = spec.steps(self.steps)
        name = f"{spec.name}[{partition}]"
        ask = self._is_lost if only_lost else self._is_unfinished
        asked_at = self.bench.ledger.seq
        unfinished = [step for step in steps if ask(step, partition)]
        if unfinished and self.bench.renew() != asked_at:  # done meanwhile, by a sensor's run?
            unfinished = [step for step in steps if ask(step, partition)]
        if not unfinished:
            if name not in self._skipped:  # a version is asked twice: mended, then made
                self._skipped.add(name)
                self.summary.skipped.append(name)
            return True
        self._add_partition(spec.partition, partition)
        chosen = unfinished
        for _ in range(MAX_WAVES):
            if not self._execute(spec, partition, chosen):
                self.summary.failed.append(name)
                return False
            unfinished = [step for step in steps if ask(step, partition)]
            if not unfinished:
                return True
            chosen = self._with_downstream(unfinished, steps)
        left = ", ".join(f"{step.stage}/{step.name}" for step in unfinished)
        self.progress.say(f"{name}: {left} ran {MAX_WAVES} times and is still not done")
        self.summary.failed.append(name)
        return False

    def _is_unfinished(self, step: Step, partition: str) -> bool:
        return not self.bench.is_finished(step, partition)

    def _is_lost(self, step: Step, partition: str) -> bool:
        return self.bench.kept(step, partition) is None

    def _with_downstream(self, chosen: Sequence[Step], steps: Sequence[Step]) -> list[Step]:
        keys = {key for step in chosen for key in step_keys(step)}
        grown: list[Step] = []
        for step in steps:
            reads = {dep.asset_key for dep in dependencies(step, self.steps)}
            if step in chosen or reads & keys:
                grown.append(step)
                keys |= set(step_keys(step))
        return grown

    def _add_partition(self, kind: str, partition: str) -> None:
        definition = partitions.BY_KIND[kind]
        if isinstance(definition, dg.DynamicPartitionsDefinition) and definition.name:
            self.instance.add_dynamic_partitions(definition.name, [partition])

    def _execute(self, spec: JobSpec, partition: str, chosen: Sequence[Step]) -> bool:
        """Run steps of one partition, and tell what failed.

        Raises:
            KeyboardInterrupt: The run was interrupted.
        """
        self.progress.start_run(spec.name, partition, len(chosen))
        started_s = time.monotonic()
        done = self.runs.work(spec, partition, [key for step in chosen for key in step_keys(step)])
        self.bench.renew()
        self.summary.runs.append(
            {
                "job": spec.name,
                "partition": partition,
                "run_id": done.run_id,
                "ok": done.is_ok,
                "seconds": round(time.monotonic() - started_s, 2),
                "steps": [f"{step.stage}/{step.name}" for step in chosen],
            }
        )
        for line in done.faults:
            self.progress.say(line)
        if done.is_lost:
            self.summary.lost.append(f"{spec.name}[{partition}]")
        return done.is_ok

    def do_all(
        self, spec: JobSpec, these: Iterable[str], *, only_lost: bool = False
    ) -> dict[str, bool]:
        """Do what is unfinished of several partitions, as many at once as runs may be.

        Returns:
            For each partition, whether nothing of it failed.
        """
        these = list(these)
        self.bench.renew()
        if self.runs.at_once == 1:
            return {each: self._do(spec, each, only_lost=only_lost) for each in these}
        with ThreadPoolExecutor(self.runs.at_once) as threads:
            done = threads.map(lambda each: self._do(spec, each, only_lost=only_lost), these)
            return dict(zip(these, done, strict=True))

    # the sequence ------------------------------------------------------------------------------

    def look_at_landing(self, landing: LandingZone, wanted: Sequence[str]) -> list[str]:
        """Return the drops to process, sorted; broken ones are refused, and shown so.

        Args:
            landing: The landing zone.
            wanted: Keys of single drops; none for all that landed or are ready to.
        """
        known = set(self.look_at_all())
        ready = {name for name, _ in ready_drops(landing, known=known)}
        for name in sorted(set(wanted) - known - ready):
            self.summary.refused[name] = [f"no ready folder {name} in {landing.address}"]
        names = sorted((known | ready) & set(wanted) if wanted else known | ready)
        seen = {name: inspect_drop(landing, name) for name in names if name not in known}
        refused = {name: found.faults for name, found in seen.items() if found.faults}
        for name, found in seen.items():
            self._add_delivery(landing, name, found)
        if seen:
            self.instance.report_runless_asset_event(refusal_check(refused))
        for name, found in refused.items():
            self.progress.say(f"refused: {name}")
            for fault in found:
                self.progress.say(f"  - {fault}")
        self.summary.refused |= refused
        return [name for name in names if name not in refused]

    def look_at_all(self) -> list[str]:
        """Every drop that has been landed, sorted."""
        self.bench.renew()
        return sorted({ref.partition for ref in self.bench.ledger.live("raw_assets")})

    def _add_delivery(self, landing: LandingZone, name: str, found: Inspection) -> None:
        self.instance.add_dynamic_partitions(partitions.deliveries.name or "", [name])
        self.instance.report_runless_asset_event(observation(landing, name, found))

    def process_drops(self, drops: Sequence[str]) -> None:
        """Process drops until none of them is made unfinished by another.

        A drop may bring eval material that clips of an earlier drop must be matched against.
        """
        broken: set[str] = set()
        for _ in range(MAX_PASSES):
            num_runs = len(self.summary.runs)
            done = self.do_all(jobs.PROCESS_DROP, [each for each in drops if each not in broken])
            broken |= {drop for drop, is_ok in done.items() if not is_ok}
            if len(self.summary.runs) == num_runs:
                return
            if len(drops) == 1:
                return

    def find_duplicates(self, recipe: Recipe, drops: Sequence[str]) -> None:
        """Cluster all clips, and find those that mean the same."""
        version = centroids_version_for(self.bench.ledger, recipe)
        self.do(jobs.FIT_CENTROIDS, version)
        embedded = {ref.partition for ref in self.bench.ledger.live("clip_embeddings")}
        self.do_all(jobs.ASSIGN_CLUSTERS, [drop for drop in drops if drop in embedded])
        self.do_all(jobs.FIND_SEMANTIC_DUPLICATES, partitions.cluster_ranges.get_partition_keys())

    def make_version(self, version: str) -> None:
        """Cut a dataset version, encode its shards, index, plan and prove it.

        A version that is complete is done: of it, only what the store has lost is put back.
        """
        is_complete = bool(self.bench.ledger.live("snapshots", version))
        if not self.do(jobs.CUT_MANIFEST, version, only_lost=is_complete):
            return
        self.do_all(jobs.ENCODE_SHARDS, shard_groups(self.bench, version), only_lost=is_complete)
        self.do(jobs.PUBLISH_VERSION, version, only_lost=is_complete)

    def mend_versions(self) -> None:
        """Put back what the store has lost of complete dataset versions, and of patches."""
        for version in complete_versions(self.bench):
            self.make_version(version)
        mended, failed = mend_patches(self.bench.ledger, self.bench.store)
        for name, keys in mended.items():
            self.progress.say(f"patch {name} is published again: {', '.join(keys)}")
        for name, why in failed.items():
            self.progress.say(f"patch {name} stays lost: {why}")
        self.summary.mended += mended
        self.summary.failed += [f"patch {name}" for name in failed]
        pin_forgotten_patches(self.bench.ledger, self.bench.store)

    def report(self) -> None:
        """Bring the reports over everything up to date."""
        self.do(jobs.KEEP_HOUSE)
        self.follow_runs()
        self.do(jobs.REPORT_STORE)

    def follow_runs(self) -> None:
        """Take in what trainers told, and report on it, where any ever told something."""
        take_in(self.bench.ledger, self.bench.store)
        self.bench.renew()
        if any(self.bench.ledger.present(kind) for kind in REPORTED):
            self.do(jobs.FOLLOW_RUNS)


def shard_groups(bench: Workbench, version: str) -> list[str]:
    """Shard groups that a version's cut opened, sorted."""
    assigned = read_table(bench.ledger, bench.store, "shard_assignments", version)
    return assigned["shard_group"].unique().sort().to_list()


def complete_versions(bench: Workbench) -> list[str]:
    """Versions that were snapshot, oldest first."""
    names = {ref.partition for ref in bench.ledger.live("snapshots")}
    return sorted(names, key=parse_version)


def today() -> str:
    """The day that rights are judged by where none is named."""
    return dt.datetime.now(dt.UTC).date().isoformat()


def describe(job: MainJob) -> tuple[dict[str, Any], list[str]]:
    """Say what a pass did and where its version lies: as JSON, and in lines for a person."""
    from wsdata.cli.questions import funnel_lines
    from wsdata.lifecycle.versions import summarize
    from wsdata.observability.funnel import funnel

    done, bench = job.summary, job.bench
    data: dict[str, Any] = {
        "ok": not done.failed,
        "runs": done.runs,
        "skipped": done.skipped,
        "refused": done.refused,
        "failed": done.failed,
        "lost": done.lost,
        "mended": done.mended,
        "version": done.version,
    }
    seconds = sum(run["seconds"] for run in done.runs)
    lines = [
        f"{len(done.runs)} runs in {seconds:.0f} s; {len(done.skipped)} partitions were done before"
        if done.runs
        else f"everything is done: {len(done.skipped)} partitions asked, nothing run"
    ]
    lines += [f"failed: {name}" for name in done.failed]
    version = done.version
    if version is None or not bench.ledger.live("dataset_index", version):
        return data, lines
    counted = summarize(bench.ledger, bench.store, version)
    (manifest,) = bench.ledger.live("manifests", version)
    index = read_table(bench.ledger, bench.store, "dataset_index", version)
    proofs = read_table(bench.ledger, bench.store, "loader_proofs", version)
    data |= {
        "manifest": manifest.key,
        "manifest_digest": counted.manifest_digest,
        "samples": counted.num_samples,
        "shards": counted.num_shards,
        "lost": counted.num_lost,
    }
    is_counted = len(job.look_at_all()) <= MAX_COUNTED
    told = funnel_lines(funnel(bench.ledger, bench.store, version=version)) if is_counted else []
    lines += [
        "",
        *(told or [f"funnel    over {MAX_COUNTED} drops: `wsdata funnel` counts it"]),
        "",
        f"dataset version {version}: {counted.num_samples} samples in {counted.num_shards} shards, "
        f"{counted.num_lost} lost",
        f"store     {bench.store.address}",
        f"manifest  {manifest.key}",
        *(f"shard     {key}" for key in index["shard_key"].unique().sort().head(SHOWN_SHARDS)),
    ]
    if counted.num_shards > SHOWN_SHARDS:
        lines.append(f"shard     and {counted.num_shards - SHOWN_SHARDS} more")
    lines += [
        f"proof     {'passed' if row['passed'] else 'FAILED'}  {row['check']}"
        for row in proofs.sort("check").iter_rows(named=True)
    ]
    return data, lines
