"""The exporter: numbers of a Dagster instance, and what stays when a collector fails."""

import threading
import urllib.error
import urllib.request
from datetime import UTC, datetime, timedelta

import dagster as dg
import pytest
from dagster import DagsterRunStatus
from dagster._core.code_pointer import ModuleCodePointer
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.test_utils import create_run_for_test
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from resources.exporter import DagsterMetrics, Exporter, Watched, build_exporter, exporting, serve
from wsdata.catalog.ledger import Ledger
from wsdata.store import FolderStore
from wsdata_tests.observability.scraped import samples

DROPS = dg.DynamicPartitionsDefinition(name="drops")


@dg.asset(partitions_def=DROPS, pool="nvdec")
def clips():
    """Cuts nothing."""


@dg.asset_check(asset=clips)
def whole(context: dg.AssetCheckExecutionContext):
    """Passes unless its run is tagged."""
    return dg.AssetCheckResult(passed="broken" not in context.run.tags)


CODE = ModuleCodePointer("nothing", "defs")
DEFS = dg.Definitions(
    assets=[clips],
    asset_checks=[whole],
    jobs=[dg.define_asset_job("process_drop", dg.AssetSelection.all())],
)


@pytest.fixture(scope="module")
def instance():
    with dg.instance_for_test() as instance:
        yield instance


def scrape(server, path="/metrics"):
    url = f"http://127.0.0.1:{server.port}{path}"
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()


def told(exporter):
    return samples(text_string_to_metric_families(exporter.metrics()[2].decode()))


def queue_run(instance, job):
    location = GrpcServerCodeLocationOrigin(host="nowhere", port=1, location_name="wsdata")
    origin = RemoteRepositoryOrigin(code_location_origin=location, repository_name="defs")
    create_run_for_test(
        instance,
        job_name=job,
        status=DagsterRunStatus.QUEUED,
        remote_job_origin=origin.get_job_origin(job),
        job_code_origin=JobPythonOrigin(job, RepositoryPythonOrigin("python", CODE)),
    )


def run_checks(instance, key, **tags):
    DEFS.resolve_job_def("process_drop").execute_in_process(
        instance=instance, partition_key=key, tags=tags, raise_on_error=False
    )


def test_an_instance_is_told_by_name(instance):
    instance.add_dynamic_partitions("drops", ["a", "b", "c"])
    for status, job in (
        (DagsterRunStatus.STARTED, "process_drop"),
        (DagsterRunStatus.FAILURE, "a_job_of_old"),
    ):
        create_run_for_test(instance, job_name=job, status=status)
    for _ in range(2):
        queue_run(instance, "process_drop")
    instance.event_log_storage.set_concurrency_slots("nvdec", 3)
    instance.event_log_storage.claim_concurrency_slot("nvdec", "some-run", "clips")
    for at in range(2):
        instance.add_backfill(
            PartitionBackfill(
                backfill_id=f"b{at}", status=BulkActionStatus.REQUESTED, from_failure=False,
                tags={}, backfill_timestamp=0.0, partition_names=["a"],
            )
        )  # fmt: skip
    found = samples(
        family
        for collect in DagsterMetrics(instance, Watched.of(DEFS)).collectors().values()
        for family in collect()
    )
    assert found["wsdata_dagster_runs", "process_drop", "queued"] == 2
    assert found["wsdata_dagster_runs", "process_drop", "started"] == 1
    assert found["wsdata_dagster_runs", "_other", "failure"] == 1
    assert found["wsdata_pool_slots", "nvdec"] == 3
    assert found["wsdata_pool_slots_used", "nvdec"] == 1
    assert found["wsdata_pool_pending_steps", "nvdec"] == 0
    assert found["wsdata_dagster_backfills", "requested"] == 2
    assert found["wsdata_dagster_partitions", "drops"] == 3
    assert 0 < found["wsdata_dagster_oldest_queued_run_age_seconds",] < 600
    assert ("wsdata_dagster_daemon_healthy", "SENSOR") in found


def test_the_age_of_the_queue_is_that_of_its_oldest_run():
    with dg.instance_for_test() as instance:
        metrics = DagsterMetrics(instance, Watched())
        assert samples(metrics.queue()) == {("wsdata_dagster_oldest_queued_run_age_seconds",): 0}
        for _ in range(2):
            queue_run(instance, "x")
        (oldest,) = instance.get_run_records(limit=1, ascending=True)
        age = (datetime.now(UTC) - oldest.create_timestamp.astimezone(UTC)) / timedelta(seconds=1)
        (found,) = samples(metrics.queue()).values()
        assert found == pytest.approx(age, abs=5)


def test_a_check_fails_until_its_next_evaluation_passes(instance):
    instance.add_dynamic_partitions("drops", ["x", "y"])
    metrics = DagsterMetrics(instance, Watched.of(DEFS))
    series = ("wsdata_asset_check_failing", "clips", "whole")
    run_checks(instance, "x", broken="yes")
    assert samples(metrics.checks())[series] == 1
    run_checks(instance, "y")
    assert samples(metrics.checks())[series] == 0


def test_our_own_definitions_name_their_jobs_partitions_and_checks():
    from assets import partitions
    from definitions import defs

    watched = Watched.of(defs)
    kinds = [kind for kind in partitions.BY_KIND.values() if kind is not None]
    dynamic = {kind.name for kind in kinds if isinstance(kind, dg.DynamicPartitionsDefinition)}
    assert dynamic <= set(watched.partition_names)
    assert "process_drop" in watched.job_names
    assert len(watched.check_keys) > 20


def test_a_collector_that_fails_is_counted_and_hides_no_other():
    answers = iter([1.0, None, 3.0])

    def flaky():
        value = next(answers)
        if value is None:
            raise ConnectionError("the database is away")
        return [GaugeMetricFamily("flaky", "x", value=value)]

    turns = iter(range(9))
    exporter = Exporter(
        {"flaky": flaky, "sound": lambda: [GaugeMetricFamily("turns", "x", value=next(turns))]}
    )
    assert told(exporter)["wsdata_exporter_last_success_timestamp_seconds", "flaky"] == 0
    exporter.turn()
    before = told(exporter)
    exporter.turn()
    after = told(exporter)
    assert after["flaky",] == before["flaky",] == 1.0  # what was found before is still told
    assert after["turns",] == 1
    assert after["wsdata_exporter_errors_total", "flaky"] == 1
    assert after["wsdata_exporter_errors_total", "sound"] == 0
    stamp = "wsdata_exporter_last_success_timestamp_seconds"
    assert after[stamp, "flaky"] == before[stamp, "flaky"] > 0
    assert after[stamp, "sound"] > before[stamp, "sound"]
    exporter.turn()
    assert told(exporter)["flaky",] == 3.0
    assert exporter.healthz()[0] == 200


def test_scrapes_are_answered_while_a_collection_runs(tmp_path):
    hangs, goes_on = threading.Event(), threading.Event()

    def slow():
        hangs.set()
        goes_on.wait(30)
        return [GaugeMetricFamily("late", "x", value=1)]

    exporter = Exporter({"slow": slow})
    with exporting(exporter, 0, 0.01, address="127.0.0.1") as server:
        try:
            assert hangs.wait(30)
            assert "late" not in scrape(server)
            assert scrape(server, "/healthz") == "ok\n"
        finally:
            goes_on.set()


def test_the_whole_exporter_serves_an_instance_and_a_ledger(instance, tmp_path):
    ledger = Ledger(str(tmp_path / "catalog.db"))
    store = FolderStore(tmp_path / "store")
    exporter = build_exporter(instance, ledger, store, Watched.of(DEFS))
    exporter.turn()
    with exporting(exporter, 0, 60, address="127.0.0.1") as server:
        found = samples(text_string_to_metric_families(scrape(server)))
        with pytest.raises(urllib.error.HTTPError):
            scrape(server, "/elsewhere")
    assert not [key for key, n in found.items() if key[0].endswith("errors_total") and n]
    collectors = {key[1] for key in found if key[0] == "wsdata_exporter_collection_seconds"}
    assert {"runs", "pools", "checks", "commits", "kill_rates"} <= collectors


def test_a_bad_interval_is_refused(instance, tmp_path):
    with pytest.raises(ValueError, match="interval_s 0"):
        serve(instance, Ledger(str(tmp_path / "c.db")), FolderStore(tmp_path), 0, 0)
