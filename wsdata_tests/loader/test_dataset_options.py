"""Options of the torch dataset: second requests for slow reads, and where a run's steps end."""

import gc
import pickle
import threading
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

from wsdata.errors import PlanError
from wsdata.loader.dataset import PlanDataset
from wsdata.loader.hedging import Hedging
from wsdata.loader.run import Segment
from wsdata.store import FolderStore
from wsdata_tests.loader.published import publish


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = FolderStore(tmp_path_factory.mktemp("version"))
    publish(made)
    return made


def dataset(store, **options):
    if "segments" not in options:
        options["version"] = "v1"
    return PlanDataset(store=store, num_threads=1, **options)


def steps(batches):
    return [batch["step"] for batch in batches]


class StuckOnce(FolderStore):
    """The first read of a shard's range does not return before a second one of the same has."""

    def __init__(self, root):
        super().__init__(root)
        self._asked, self._lock = {}, threading.Lock()
        self.num_reads = 0

    def read_into(self, key, offset, buffers, *, watch=None):
        if not key.startswith("training/shards/"):
            super().read_into(key, offset, buffers, watch=watch)
            return
        with self._lock:
            self.num_reads += 1
            is_first = (key, offset) not in self._asked
            overtaken = self._asked.setdefault((key, offset), threading.Event())
        if is_first:
            overtaken.wait(30)
        super().read_into(key, offset, buffers, watch=watch)
        overtaken.set()


def test_reads_are_raced_where_the_trainer_says_so(store):
    stuck = StuckOnce(store.root)
    every = Hedging(max_share=1, min_delay_s=0.0, max_delay_s=0.001)
    plain = dataset(store, num_steps=3)
    raced = dataset(stuck, num_steps=3, hedging=every)
    assert [b["sample_ids"] for b in raced] == [b["sample_ids"] for b in plain]
    report = raced.telemetry_report()
    assert stuck.num_reads == 24, "twice for each sample"
    assert report["num_hedges_won"] >= 12
    assert plain.telemetry_report()["num_hedges"] == 0, "a folder is asked once"


def test_a_dataset_that_says_how_to_race_goes_on_when_pickled(store):
    never = Hedging(max_share=0)
    other = pickle.loads(pickle.dumps(dataset(store, num_steps=2, hedging=never)))  # noqa: S301
    assert steps(other) == [0, 1]


@pytest.mark.parametrize("wrong", [{"max_share": 0}, True, 0.05, "never"])
def test_racing_that_is_no_hedging_is_refused(store, wrong):
    with pytest.raises(ValueError, match=r"hedging .*expected wsdata.loader.hedging.Hedging"):
        dataset(store, hedging=wrong)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_share": 1.1}, "max_share 1.1"),
        ({"quantile": 1.0}, "quantile 1.0"),
        ({"min_delay_s": 3.0}, "delays of 3.0 to 2.0 s"),
        ({"max_delay_s": float("inf")}, "delays of 0.02 to inf s"),
        ({"max_delay_s": float("nan")}, "delays of 0.02 to nan s"),
        ({"num_warm": 0}, "num_warm 0"),
    ],
)
def test_impossible_racing_says_so(options, words):
    with pytest.raises(ValueError, match=words):
        Hedging(**options)


@pytest.mark.parametrize("saved_after", [1, 4, 6])
def test_a_resumed_run_ends_where_the_first_one_would_have(store, saved_after):
    options = {"start_step": 5, "num_steps": 6}
    first = dataset(store, **options)
    whole = steps(dataset(store, **options))
    assert whole == list(range(5, 11))
    state = next(batch["cursor"] for batch in first if batch["step"] == 4 + saved_after)
    resumed = dataset(store, **options)
    resumed.load_state_dict(state)
    assert steps(resumed) == whole[saved_after:]
    assert steps(resumed) == [], "it is at its end, and stays there"
    twice = dataset(store, **options, world_size=2, rank=1, micro_batch=1)
    twice.load_state_dict(state)
    assert sorted({*steps(twice)}) == whole[saved_after:]


def test_workers_end_there_too(store):
    state = next(iter(dataset(store, start_step=5, num_steps=1)))["cursor"]
    data = dataset(store, start_step=5, num_steps=4)
    data.load_state_dict(state)
    assert steps(DataLoader(data, batch_size=None, num_workers=2)) == [6, 7, 8]


def test_steps_are_counted_from_the_start_and_not_from_the_cursor(store):
    state = next(iter(dataset(store, start_step=5, num_steps=1)))["cursor"]
    for options, served in (
        ({"num_steps": 3}, []),  # ended at 3
        ({"start_step": 2, "num_steps": 6}, [6, 7]),
        ({"start_step": 8, "num_steps": 1}, [6, 7, 8]),  # a cursor may lie before the start
    ):
        data = dataset(store, **options)
        data.load_state_dict(state)
        assert steps(data) == served


def test_a_closed_run_ends_where_it_says_however_many_steps_are_asked_for(store):
    closed = {"segments": [Segment(version="v1", end_step=7)]}
    assert steps(dataset(store, start_step=5, num_steps=50, **closed)) == [5, 6]
    assert steps(dataset(store, start_step=7, num_steps=50, **closed)) == []
    with pytest.raises(PlanError, match="7"):
        dataset(store, start_step=8, **closed)


def test_datasets_that_are_gone_leave_nothing_open(store):
    def read_once():
        assert steps(dataset(FolderStore(store.root), num_steps=3, latents="stored")) == [0, 1, 2]

    def num_open():
        gc.collect()
        return len(list(Path("/proc/self/fd").iterdir()))

    read_once()
    before = num_open()
    for _ in range(5):
        read_once()
    assert num_open() <= before
