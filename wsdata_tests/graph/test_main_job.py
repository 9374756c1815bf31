"""The main job over fabricated steps: does what is left, once; converges; names versions."""

import io
import os
from dataclasses import replace

import dagster as dg
import pytest

from assets import partitions
from assets.work import Workbench
from resources.instances import PID_TAG, end_abandoned_runs, prepare_home
from sensors.cutting import choose_version
from sensors.jobs import JOB_SPECS, build_job
from sensors.main_job import MainJob, complete_versions
from sensors.progress import Progress
from sensors.runs import InProcessRuns
from wsdata.catalog.objects import read_table
from wsdata.errors import CatalogError
from wsdata.ingest.landing import FolderLanding
from wsdata.recipe import Recipe
from wsdata.records import Fact
from wsdata_tests.graph.graph_steps import MANIFEST, THROUGH_TO_A_VERSION
from wsdata_tests.graph.graph_support import (
    DROP,
    ROOT,
    Site,
    fabricated_assets,
    make_drop_folder,
    make_site,
    no_asset_lost,
)

SECOND = "crawl.web.20261101.001"
# In this process: starting workers is tested with the pools.
STEPS = {f"{step.stage}/{step.name}": replace(step, pool=None) for step in THROUGH_TO_A_VERSION}
RECIPE = Recipe(name="test")
DAY = "2026-11-01"


@pytest.fixture
def site(tmp_path, monkeypatch) -> Site:
    monkeypatch.chdir(ROOT)
    return make_site(tmp_path / "home")


@pytest.fixture
def instance():
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


class Main:
    """The whole sequence, as `launch.py run` does it, over a site."""

    def __init__(self, site: Site, instance, steps=STEPS) -> None:
        self.site, self.instance, self.steps = site, instance, steps
        self.said = io.StringIO()

    def job(self) -> MainJob:
        defs = dg.Definitions(
            assets=fabricated_assets(self.steps),
            asset_checks=[no_asset_lost()],
            jobs=[build_job(spec, self.steps) for spec in JOB_SPECS if spec.steps(self.steps)],
            resources=self.site.resources,
            executor=dg.in_process_executor,
        )
        progress = Progress(self.said)
        return MainJob(
            steps=self.steps, instance=self.instance, bench=self.site.bench, progress=progress,
            runs=InProcessRuns(defs, self.instance, progress),
        )  # fmt: skip

    def run(self, recipe=RECIPE, *, day=DAY, wanted=()):
        job = self.job()
        job.process_drops(job.look_at_landing(FolderLanding(self.site.home / "landing"), wanted))
        job.find_duplicates(recipe, job.look_at_all())
        job.mend_versions()
        version = choose_version(job.bench, self.steps["curate/manifest"], recipe, as_of_date=day)
        job.make_version(version)
        job.report()
        job.summary.version = version
        return job.summary


def steps_run(summary):
    return [step for run in summary.runs for step in run["steps"]]


def test_everything_is_done_once(site, instance):
    main = Main(site, instance)
    first = main.run()
    assert not first.failed
    assert first.version == "v1"
    assert steps_run(first) == [
        "ingest/land", "preprocess/decode", "curate/manifest", "shard/latent_shards",
        "lifecycle/snapshots", "observability/costs",
    ]  # fmt: skip
    assert instance.get_dynamic_partitions(partitions.shard_groups.name) == ["v1.0000"]
    runs = instance.get_runs_count()
    second = main.run()
    assert second.runs == []
    assert second.failed == []
    assert second.version == "v1"
    assert instance.get_runs_count() == runs


def test_one_lost_object_makes_one_step_run(site, instance):
    main = Main(site, instance)
    main.run()
    bench = site.bench
    (placed,) = bench.ledger.live("placements", "v1.0000")
    key = read_table(bench.ledger, bench.store, "placements")["shard_key"][0]
    for lost, step in (
        (key, "shard/latent_shards"),
        (placed.key, "shard/latent_shards"),
        (bench.ledger.live("decode_status", DROP)[0].key, "preprocess/decode"),
        (bench.ledger.live("manifests", "v1")[0].key, "curate/manifest"),
        (bench.ledger.live("costs", "all")[0].key, "observability/costs"),
    ):
        bench.store.delete(lost)
        summary = main.run()
        assert steps_run(summary) == [step]
        assert not summary.failed
        assert bench.store.size(lost) is not None
        assert summary.version == "v1"


def test_a_new_drop_makes_the_next_version_and_leaves_the_last_alone(site, instance):
    main = Main(site, instance)
    main.run()
    old = site.ledger.live("manifests", "v1")
    make_drop_folder(site.home / "landing", SECOND, num_files=3)
    site_records(site)
    summary = main.run()
    assert summary.version == "v2"
    assert not summary.failed
    assert {run["partition"] for run in summary.runs} == {SECOND, "v2", "v2.0000", "all"}
    assert site.ledger.live("manifests", "v1") == old
    site.bench.store.delete(old[0].key)  # rebuilt from what was live when it was cut
    again = main.run()
    assert steps_run(again) == ["curate/manifest"]
    assert again.version == "v2"
    assert site.bench.store.size(old[0].key) is not None
    assert site.ledger.live("manifests", "v1") == old


def site_records(site: Site) -> None:
    folder = site.home / "landing" / SECOND
    lines = [
        f'{{"path": "{i}.mp4", "crawl_url": "http://x/{i}", "fetched_at": "2026-11-01", '
        '"robots_allowed": true}'
        for i in range(3)
    ]
    (folder / "records.jsonl").write_text("\n".join(lines))


def test_a_recipe_makes_a_version_and_the_other_stays_known(site, instance):
    main = Main(site, instance)
    assert main.run().version == "v1"
    assert main.run(replace(RECIPE, seed=7)).version == "v2"
    assert main.run(day="2027-01-01").version == "v1"  # the day alone makes no new version
    assert site.ledger.present("dataset_version")["v1"]["as_of_date"] == DAY


def test_a_version_is_never_cut_twice(site, instance):
    main = Main(site, instance)
    main.run()
    bench = site.bench
    ask = {"step": MANIFEST, "as_of_date": DAY, "version": "v1"}
    assert choose_version(bench, recipe=RECIPE, **ask) == "v1"
    with pytest.raises(CatalogError, match="never cut twice"):
        choose_version(bench, recipe=replace(RECIPE, seed=7), **ask)


def test_a_version_that_could_not_be_cut_gives_its_name_to_the_next_try(site, instance):
    main = Main(site, instance)
    job = main.job()
    job.process_drops(job.look_at_landing(FolderLanding(site.home / "landing"), ()))
    ask = {"step": STEPS["curate/manifest"], "as_of_date": DAY}
    assert choose_version(job.bench, recipe=replace(RECIPE, seed=3), **ask) == "v1"
    assert choose_version(job.bench, recipe=RECIPE, **ask) == "v1"
    seqs = [fact.body["seq"] for _, fact in site.ledger.facts("dataset_version")]
    assert choose_version(job.bench, recipe=RECIPE, **ask) == "v1"
    assert len(site.ledger.facts("dataset_version")) == len(seqs) == 2


def test_a_failed_drop_does_not_stop_the_others(site, instance):
    site.set_mood("fail")
    main = Main(site, instance)
    make_drop_folder(site.home / "landing", SECOND, num_files=3)
    site_records(site)
    job = main.job()
    job.process_drops(job.look_at_landing(FolderLanding(site.home / "landing"), ()))
    assert job.summary.failed == [f"process_drop[{SECOND}]", f"process_drop[{DROP}]"]
    assert "third box is cut off" in main.said.getvalue()
    assert {ref.partition for ref in site.ledger.live("raw_assets")} == {DROP, SECOND}


def test_a_code_bump_does_that_step_and_what_changes_below(site, instance):
    main = Main(site, instance)
    main.run()
    bumped = {**STEPS, "preprocess/decode": replace(STEPS["preprocess/decode"], code_version="2")}
    summary = Main(site, instance, bumped).run()
    assert steps_run(summary)[0] == "preprocess/decode"
    assert "ingest/land" not in steps_run(summary)


def test_a_refused_drop_is_told_and_shown(site, instance):
    folder = make_drop_folder(site.home / "landing", SECOND)
    (folder / "drop.toml").unlink()
    main = Main(site, instance)
    job = main.job()
    assert job.look_at_landing(FolderLanding(site.home / "landing"), ()) == [DROP]
    assert list(job.summary.refused) == [SECOND]
    assert "no drop.toml" in main.said.getvalue()
    seen = instance.fetch_observations(
        dg.AssetRecordsFilter(dg.AssetKey(["ingest", "deliveries"]), asset_partitions=[SECOND]),
        limit=1,
    ).records
    assert "no drop.toml" in seen[0].asset_observation.metadata["faults"].value


def test_a_drop_that_is_not_there_is_told(site, instance):
    job = Main(site, instance).job()
    assert job.look_at_landing(FolderLanding(site.home / "landing"), [SECOND]) == []
    assert SECOND in job.summary.refused


def test_a_step_that_never_gets_done_is_called_a_fault(site, instance, monkeypatch):
    main = Main(site, instance)
    monkeypatch.setattr(Workbench, "is_finished", lambda *_: False)
    job = main.job()
    job.process_drops([DROP])
    assert job.summary.failed == [f"process_drop[{DROP}]"]
    assert "still not done" in main.said.getvalue()


def test_complete_versions_are_sorted_as_numbers(site):
    bench = site.bench
    assert complete_versions(bench) == []
    bench.ledger.state([Fact(kind="pin", subject="v1", body={})], step="test")
    assert complete_versions(bench) == []


# abandoned runs ----------------------------------------------------------------------------------


def abandoned(instance, pid: int):
    @dg.asset(name=f"left_by_{pid}")
    def left() -> None: ...

    made = dg.define_asset_job("left", [left])
    job = dg.Definitions(assets=[left], jobs=[made]).resolve_job_def("left")
    run = instance.create_run_for_job(
        job, status=dg.DagsterRunStatus.STARTED, tags={PID_TAG: str(pid)}
    )
    return run.run_id


def test_runs_whose_process_is_gone_are_failed(instance):
    gone, mine = abandoned(instance, 2**22 - 1), abandoned(instance, os.getpid())
    assert end_abandoned_runs(instance) == [gone]
    assert instance.get_run_by_id(gone).status is dg.DagsterRunStatus.FAILURE
    assert instance.get_run_by_id(mine).status is dg.DagsterRunStatus.STARTED
    assert end_abandoned_runs(instance) == []


def test_a_home_is_prepared_once(tmp_path):
    home = prepare_home(tmp_path)
    settings = home / "dagster.yaml"
    assert "telemetry: {enabled: false}" in settings.read_text()
    settings.write_text("telemetry: {enabled: false}\n")
    assert prepare_home(tmp_path) == home
    assert settings.read_text() == "telemetry: {enabled: false}\n"
