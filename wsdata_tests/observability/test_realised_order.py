"""The realised order of fabricated runs, against counting their samples one by one."""

from collections import Counter

import polars as pl
import pytest

from wsdata.lifecycle.plans import load_plan
from wsdata.loader import runs_served
from wsdata.loader.inbox import take_in
from wsdata.loader.run import Segment, Tokens, bind_run
from wsdata.loader.served_log import ServedLog
from wsdata.observability import realised_order
from wsdata.observability.realised_order import order_faults


@pytest.fixture
def plan(home):
    return load_plan(home.ledger, home.store, "v1")


ALL_OF_IT = (Segment(version="v1"),)


def train(home, plan, *stretches, run="r1", segments=ALL_OF_IT):
    """Deliver stretches of steps, each by an attempt of its own; make the rows."""
    for first, end in stretches:
        log = ServedLog(
            home.store, run, bind_run(segments, lambda _: (plan, Tokens("noise-1", "fp8")))
        )
        for step in range(first, end):
            log.delivered(step)
        log.close()
    take_in(home.ledger, home.store)
    home.run_step(runs_served.STEP, "all")
    return home.run_step(realised_order.STEP, "all")


def rows(home, **wanted):
    return home.rows("realised_order").filter(**wanted).to_dicts()


def test_shares_epochs_and_buckets_are_those_of_the_samples_that_were_served(home, plan):
    train(home, plan, (0, 20), (10, 47))
    index = {row["sample_id"]: row for row in home.rows("dataset_index").to_dicts()}
    served = [sample for step in range(47) for sample in plan.samples(step)]
    tokens = Counter()
    for sample in served:
        tokens[sample.stream] += index[sample.sample_id]["num_tokens"]
    for row in rows(home, measure="stream_share"):
        assert row["value"] == pytest.approx(tokens[row["subject"]] / sum(tokens.values()))
        assert row["num_samples"] == len(served)
    buckets = Counter(plan.bucket(step) for step in range(47))
    for row in rows(home, measure="bucket_share"):
        assert row["value"] == pytest.approx(buckets[row["subject"]] / 47)
    by_pool = Counter(sample.pool for sample in served)
    most = max(count / plan.pools[pool].num_samples for pool, count in by_pool.items())
    assert [row["value"] for row in rows(home, measure="epochs")] == [pytest.approx(most)]
    (counts,) = rows(home, measure="counts")
    assert (counts["value"], counts["num_samples"]) == (0.0, len(served))
    assert not any(row["is_off"] for row in rows(home))


def test_a_share_outside_its_bound_and_clustered_sources_are_named(home, plan):
    train(home, plan, (0, 47))
    frame = home.rows("realised_order")
    shifted = frame.with_columns(
        value=pl.when(pl.col("measure") == "autocorrelation").then(0.5).otherwise("value"),
        is_off=pl.col("measure").is_in(["autocorrelation", "stream_share"]),
    ).with_columns(bound=pl.col("bound").fill_null(0.1))
    found = "\n".join(order_faults(shifted))
    assert "samples of one source follow each other 5 slots apart: correlation 0.5000" in found
    assert "video got 100.000% of the latent tokens, due are 100.000%" in found
    assert order_faults(frame) == []


def test_sources_that_follow_each_other_are_seen_in_the_samples_served(home, plan):
    """An index that says: two steps, one source, and so on."""
    index = home.rows("dataset_index", "v1")
    seen: dict[str, str] = {}
    for step in range(60):
        for sample in plan.samples(step):
            seen.setdefault(sample.sample_id, f"source-{step // 2}")
    sources = [seen.get(sample_id, "none") for sample_id in index["sample_id"]]
    home.commit("v1", {"dataset_index": index.with_columns(source=pl.Series(sources))}, version="x")
    train(home, plan, (0, 5), run="short")  # about one epoch of its 17 samples, as above
    found = {row["subject"]: row for row in rows(home, measure="autocorrelation")}
    assert found["source@1"]["value"] > 0.3


def test_steps_of_a_plan_that_is_gone_are_told_as_not_covered(home, plan):
    train(home, plan.replaced(seed=9), (0, 12), run="kept")
    train(home, plan, (0, 12), run="gone", segments=(Segment(version="v7"),))
    assert [row["run"] for row in rows(home, measure="stream_share")] == ["kept"]
    (fault,) = order_faults(home.rows("realised_order"))
    assert "run gone, all: only 0.0% of its steps" in fault


def test_what_people_see_has_a_bar_for_each_lag_and_a_second_run_measures_nothing_anew(home, plan):
    report = train(home, plan, (0, 47))
    shown = report.display["realised_order"]
    assert "| r1 | v1" in shown["shares"]["raw_value"]
    assert " source " in shown["autocorrelation"]["raw_value"]
    again = train(home, plan, (0, 12), run="r2")
    assert again.metrics["runs"] == 2
    assert {row["run"] for row in rows(home, measure="coverage")} == {"r1", "r2"}
