"""What DataLoader workers fetched is told by the rank: histograms and counts that add up."""

import gc

import pytest
from torch.utils.data import DataLoader

from wsdata.loader.dataset import PlanDataset
from wsdata.loader.rank_reports import RunReports, parse_rank_report
from wsdata.loader.telemetry import Telemetry, merge
from wsdata.shard.plan_patch import changed_slots
from wsdata.store import FolderStore
from wsdata_tests.loader.published import publish, publish_patch

FETCHED = ("num_samples", "num_bytes", "num_reread", "num_retries", "num_cache_misses")


def worker(times):
    made = Telemetry()
    for seconds in times:
        made.fetched(seconds, 1000, is_hit=seconds > 0.01, num_retries=1)
    made.hedged(is_won=True)
    made.delivered(5.0, is_stall=True)  # it waited: the trainer may not have
    return made


def test_fetches_of_workers_add_up_to_those_of_one_rank():
    parts = [[0.001 * (1 + n + 7 * r) for n in range(50)] for r in range(3)]
    rank, alone = Telemetry(), worker([each for part in parts for each in part])
    for part in parts:
        told = worker(part)
        early, _ = told.told(3), told.fetched(0.5, 7)
        rank.take(told.told(3))
        rank.take(early)  # of what a worker told the most counts, whatever comes last
    report = rank.report(ring_depth=2)
    for _ in parts:
        alone.fetched(0.5, 7)
    wanted = alone.report(ring_depth=2)
    assert {name: report[name] for name in FETCHED} == {name: wanted[name] for name in FETCHED}
    assert report["fetches"]["counts"] == wanted["fetches"]["counts"]
    assert (report["num_hedges"], report["num_hedges_won"]) == (3, 3)
    assert (report["num_batches"], report["num_stalls"], report["stalled_s"]) == (6, 0, 0.0)
    assert sum(report["steps"]["counts"].values()) == 5, "from one batch to the next"
    assert report["ring_depth"] == 6, "each worker reads ahead"
    assert merge([report, report])["num_samples"] == 2 * wanted["num_samples"]


def test_workers_of_many_passes_are_summed_up():
    rank = Telemetry()
    for _ in range(300):
        rank.take(worker([0.02]).told(2))
    report = rank.report(ring_depth=1)
    assert (report["num_samples"], report["num_cache_hits"], report["num_batches"]) == (300,) * 3
    assert sum(report["fetches"]["counts"].values()) == 300


def test_what_a_swap_changed_is_counted_where_workers_read(tmp_path):
    store = FolderStore(tmp_path)
    publish(store)
    data = PlanDataset(version="v1", store=store, num_steps=20)
    plan = data.plan
    bad = sorted({sample.sample_id for sample in plan.samples(9)})[:2]
    publish_patch(store, plan, "v1.1", bad, 4)
    for batch in DataLoader(data, batch_size=None, num_workers=2):
        data.consumed(batch)
        if batch["step"] == 3:
            break
    data.swap_to("v1.1")
    for batch in DataLoader(data, batch_size=None, num_workers=2):
        data.consumed(batch)
    patched = PlanDataset(version="v1.1", store=store).plan
    changed = changed_slots(plan, patched, 20)
    told = data.telemetry_report()
    assert told["num_skipped"] == len(changed) > 0
    assert [(s["step"], s["slot"], s["before"], s["after"]) for s in told["skipped"]] == [
        (slot.step, slot.slot, slot.before, slot.after) for slot in changed
    ]


@pytest.mark.parametrize(
    "start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)]
)  # fmt: skip
def test_a_rank_tells_what_its_workers_fetched(tmp_path, start):
    store, inbox = FolderStore(tmp_path / "store"), FolderStore(tmp_path / "inbox")
    publish(store)
    options = {"version": "v1", "store": store, "num_steps": 12, "num_threads": 1}
    options["cache_dir"] = tmp_path / "cache"
    plain = PlanDataset(**options)
    batches = list(plain)
    assert all("telemetry" not in batch for batch in batches)
    data = PlanDataset(**options, report_to=inbox, run="r1")
    loader = DataLoader(data, batch_size=None, num_workers=2, multiprocessing_context=start)
    for number, batch in enumerate(loader, 1):
        data.consumed(batch)
        assert data.telemetry_report()["num_batches"] == number
    report, wanted = data.telemetry_report(step_s=60.0), plain.telemetry_report(step_s=60.0)
    assert report["num_samples"] == wanted["num_samples"] > 0
    assert report["num_bytes"] == wanted["num_bytes"]
    assert report["num_cache_hits"] == report["num_samples"], "plain iteration filled the cache"
    assert sum(report["fetches"]["counts"].values()) == report["num_samples"]
    assert report["fetch_p999_s"] > 0
    assert report["is_too_slow"] is False
    assert (report["ring_depth"], wanted["ring_depth"]) == (4, 2)
    del data, loader, batch
    gc.collect()
    kept = RunReports()
    for key, _ in inbox.list("inbox/telemetry/"):
        kept.add(parse_rank_report(inbox.get(key)))
    assert kept.num_ranks == 1
    (row, _) = kept.rows("r1", 0)
    assert (row["num_samples"], row["num_batches"]) == (report["num_samples"], 12)
    assert row["fetch_p99_s"] == report["fetch_p99_s"]
