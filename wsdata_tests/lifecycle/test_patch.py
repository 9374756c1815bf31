import json

import pytest

from wsdata.errors import CatalogError, PlanError
from wsdata.lifecycle.patch import patch_version
from wsdata.lifecycle.plans import load_plan
from wsdata.lifecycle.versions import all_versions, latest_version, next_version, summarize
from wsdata.loader.dataset import PlanDataset
from wsdata.shard.publish import publish_dataset, read_dataset
from wsdata_tests.lifecycle.fabricated import LISTED, NUM_STEPS, asset_id, clip_id, sample_ids

FROM = 20


def _steps(home, version):
    plan = load_plan(home.ledger, home.store, version)
    return [[sample.sample_id for sample in plan.samples(step)] for step in range(NUM_STEPS)]


def _patch(home, subjects, version="v1", from_step=FROM):
    return patch_version(home.ledger, home.store, version, subjects, from_step=from_step)


@pytest.mark.parametrize(
    ("subject", "clips"),
    [
        (asset_id("film"), [clip_id("film", n) for n in range(3)]),
        (clip_id("tape", 0), [clip_id("tape", 0)]),
    ],
)
def test_nothing_but_the_excluded_slots_changes(home, subject, clips):
    before = _steps(home, "v1")
    made = _patch(home, [subject])
    gone = {sample for clip in clips for sample in sample_ids(clip)}
    assert (made.version, made.parent, made.from_step) == ("v1.1", "v1", FROM)
    assert set(made.excluded) == gone
    after = _steps(home, "v1.1")
    assert after[:FROM] == before[:FROM]
    changed = 0
    for old, new in zip(before[FROM:], after[FROM:], strict=True):
        assert not gone & set(new)
        for one, other in zip(old, new, strict=True):
            assert (one in gone) == (one != other)
            changed += one != other
    assert made.num_changed_slots == changed > 0
    assert _steps(home, "v1") == before


def test_a_patch_of_a_patch_leaves_out_both_cohorts(home):
    _patch(home, [clip_id("film", 0)])
    second = _patch(home, [clip_id("tape", 1)], version="v1.1", from_step=30)
    assert (second.version, second.parent) == ("v1.2", "v1.1")
    served = {sample for step in _steps(home, "v1.2")[30:] for sample in step}
    assert not served & {*sample_ids(clip_id("film", 0)), *sample_ids(clip_id("tape", 1))}
    told = summarize(home.ledger, home.store, "v1.2")
    assert (told.parent, told.as_of_date, told.num_samples) == ("v1.1", "2026-11-30", 14)


def test_a_patch_is_listed_and_a_trainer_reads_it(home):
    made = _patch(home, [sample_ids(LISTED[0])[0]])
    assert all_versions(home.ledger) == ["v1", "v1.1"]
    assert (latest_version(home.ledger), next_version(home.ledger)) == ("v1", "v2")
    pointer = read_dataset(home.store, "v1.1")
    assert pointer["plan_id"] == made.plan_id
    assert pointer["index_key"] == read_dataset(home.store, "v1")["index_key"]
    assert json.loads(home.store.get(pointer["plan_key"]))["patches"]
    batches = PlanDataset(version="v1.1", store=home.store.address, start_step=FROM, num_steps=3)
    planned = load_plan(home.ledger, home.store, "v1.1")
    for step, batch in zip(range(FROM, FROM + 3), batches, strict=True):
        assert batch["clip_ids"] == [sample.clip_id for sample in planned.samples(step)]


def test_a_killed_patch_is_finished_by_the_same_alone(home, template, tmp_path):
    made = _patch(home, [clip_id("film", 0)])
    for name, subject in (("same", "film"), ("other", "tape")):
        killed = template.copy_to(tmp_path / name)
        plan = home.store.get(read_dataset(home.store, "v1.1")["plan_key"])
        body = read_dataset(home.store, "v1.1")
        killed.store.put(body["plan_key"], plan)
        stated = {k: v for k, v in body.items() if k not in ("format_version", "version")}
        publish_dataset(killed.store, "v1.1", stated)
        again = _patch(killed, [clip_id(subject, 0)])
        assert again.version == ("v1.1" if name == "same" else "v1.2")
        assert (again.plan_id == made.plan_id) == (name == "same")


def test_what_cannot_be_patched_is_refused(home):
    before = home.ledger.seq, home.keys()
    with pytest.raises(CatalogError, match="1 of 2 ids are not in this dataset version"):
        _patch(home, [clip_id("film", 0), clip_id("copy", 0)])
    with pytest.raises(CatalogError, match="nothing to exclude"):
        _patch(home, [])
    with pytest.raises(CatalogError, match="no dataset version 'v7'"):
        _patch(home, [clip_id("film", 0)], version="v7")
    with pytest.raises(ValueError, match="steps count from 0"):
        _patch(home, [clip_id("film", 0)], from_step=-1)
    tier_0 = [clip for number, clip in enumerate(LISTED) if number % 2 == 0]
    tier_1 = [clip for number, clip in enumerate(LISTED) if number % 2]
    with pytest.raises(PlanError, match="excludes all"):
        _patch(home, [*tier_0, *tier_1])
    assert (home.ledger.seq, home.keys()) == before
