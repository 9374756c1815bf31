"""Runs of segments through the torch dataset: borders, resumption, and what the inbox is told."""

import dataclasses

import pytest
import torch

from wsdata.errors import CursorError, PlanError
from wsdata.loader import served
from wsdata.loader.batch_reader import tokens_of
from wsdata.loader.dataset import PlanDataset
from wsdata.loader.run import Segment
from wsdata.loader.served import parse_report
from wsdata.loader.version import open_version
from wsdata.store import FolderStore
from wsdata_tests.loader.published import PARAMS, publish

RUN = [Segment(version="v1", end_step=6), Segment(version="v2", plan_step=2)]
BORDERS = (5, 6, 7)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = FolderStore(tmp_path_factory.mktemp("runs"))
    publish(made, "v1")
    publish(made, "v2", params={**PARAMS, "seed": 12})
    return made


def batches(store, **options):
    return list(PlanDataset(store=store, **{"segments": RUN, "num_steps": 10, **options}))


def told(read):
    return [(batch["step"], batch["bucket"], batch["sample_ids"]) for batch in read]


@pytest.fixture(scope="module")
def whole(store):
    return batches(store)


def test_each_segment_serves_what_its_version_serves_alone(store, whole):
    alone = batches(store, segments=None, version="v1", num_steps=6)
    after = batches(store, segments=None, version="v2", start_step=2, num_steps=4)
    assert told(whole[:6]) == told(alone)
    assert [step[1:] for step in told(whole[6:])] == [step[1:] for step in told(after)]
    for mine, other in zip(whole, [*alone, *after], strict=True):
        assert torch.equal(mine["latents"], other["latents"])
        assert mine["captions"] == other["captions"]
    assert [(b["segment"], b["version"]) for b in whole] == [(0, "v1")] * 6 + [(1, "v2")] * 4
    assert {(b["tokenizer_version"], b["latent_dtype"]) for b in whole} == {("noise-1", "fp8")}


@pytest.mark.parametrize("step", BORDERS)
def test_resumes_exactly_at_a_border_and_beside_it_in_another_world(store, whole, step):
    one = PlanDataset(store=store, segments=RUN, num_steps=10)
    iterator = iter(one)
    for _ in range(step):
        next(iterator)
    iterator.close()
    ranks = []
    for rank in range(2):
        other = PlanDataset(store=store, segments=RUN, num_steps=10, rank=rank, world_size=2,
                            micro_batch=1)  # fmt: skip
        other.load_state_dict(one.state_dict())
        ranks.append(list(other))
    found = {}
    for batch in [batch for rank in ranks for batch in rank]:
        found.setdefault(batch["step"], []).extend(batch["sample_ids"])
    assert found == {batch["step"]: batch["sample_ids"] for batch in whole[step:]}


def test_a_run_of_one_version_goes_on_with_another_and_not_with_a_third(store):
    alone = PlanDataset(store=store, version="v1", num_steps=6)
    list(alone)
    longer = PlanDataset(store=store, segments=RUN)
    longer.load_state_dict(alone.state_dict())
    assert next(iter(longer))["version"] == "v2"
    with pytest.raises(CursorError, match="its samples would be others"):
        PlanDataset(store=store, version="v2").load_state_dict(alone.state_dict())


def test_a_closed_run_ends_at_its_end_however_many_steps_are_asked_for(store):
    closed = [Segment(version="v1", end_step=5)]
    assert [b["step"] for b in batches(store, segments=closed, start_step=3)] == [3, 4]
    assert batches(store, segments=closed, start_step=5) == []
    with pytest.raises(PlanError, match="step 6 is none of the run's"):
        batches(store, segments=closed, start_step=6)


def test_the_inbox_is_told_of_each_segment_and_where_it_was_resumed(store, tmp_path):
    inbox = FolderStore(tmp_path)
    first = PlanDataset(store=store, segments=RUN, num_steps=8, report_to=inbox, run="r1")
    list(first)
    again = PlanDataset(store=store, segments=RUN, num_steps=11, report_to=inbox, run="r1")
    again.load_state_dict(first.state_dict())
    list(again)
    reports = [parse_report(inbox.get(key)) for key, _ in inbox.list(served.PREFIX)]
    ranges = sorted((each.resumed_step or 0, *each.ranges[0][:3]) for each in reports)
    assert ranges == [(0, 0, 6, "v1"), (0, 6, 8, "v2"), (8, 8, 11, "v2")]
    assert {each.ranges[0].plan_step for each in reports} == {0, 2, 4}
    before = {each.before for each in reports if each.resumed_step == 8}
    firsts = sorted(each.ranges[0] for each in reports if each.resumed_step is None)
    assert before == {tuple(firsts)}


def test_what_dataloader_workers_read_is_told_by_whoever_consumes_it(store, tmp_path):
    inbox = FolderStore(tmp_path)
    data = PlanDataset(store=store, segments=RUN, num_steps=8, report_to=inbox, run="r1")
    for batch in batches(store, num_steps=7, micro_batch=2):
        data.consumed(batch)
    assert data.state_dict()["step"] == 7
    del data
    (one, other) = [parse_report(inbox.get(key)) for key, _ in inbox.list(served.PREFIX)]
    assert [one.ranges[0][:2], other.ranges[0][:2]] == [(0, 6), (6, 7)]


def test_a_version_of_two_tokenizers_is_refused_before_anything_is_read(store):
    opened = open_version(store, "v1")
    other = opened.index.root.kinds[0]._replace(tokenizer_version="noise-2")
    root = dataclasses.replace(opened.index.root, kinds=(*opened.index.root.kinds, other))
    opened.index.root = root
    with pytest.raises(PlanError, match=r"2 kinds \(noise-1 as fp8, noise-2 as fp8\)"):
        tokens_of(opened)
