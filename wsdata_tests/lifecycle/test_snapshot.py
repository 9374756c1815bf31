import shutil

from wsdata.curate.manifest import manifest_digest
from wsdata.lifecycle.snapshot import STEP
from wsdata.loader.dataset import PlanDataset


def test_a_pin_holds_all_that_reading_the_version_takes(home, tmp_path):
    """A store with nothing but what is pinned serves the very same batches."""
    home.run_step(STEP, "v1")
    body = home.ledger.present("pin")["v1"]
    assert body["keys"] == sorted(set(body["keys"]))
    other = tmp_path / "other"
    for key in body["keys"]:
        (other / key).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(home.store.path_of(key), other / key)
    here, there = (
        [(b["clip_ids"], b["captions"], b["latents"].sum().item()) for b in
         PlanDataset(version="v1", store=address, num_steps=4)]
        for address in (home.store.address, str(other))
    )  # fmt: skip
    assert here == there


def test_a_snapshot_says_what_it_pinned(home):
    report = home.run_step(STEP, "v1")
    (row,) = home.rows("snapshots").to_dicts()
    digest = manifest_digest(home.rows("manifests", "v1"))
    shards = set(home.rows("dataset_index", "v1")["shard_key"])
    assert row == {
        "version": "v1",
        "manifest_digest": digest,
        "num_shards": len(shards),
        "num_bytes": sum(home.store.size(key) for key in shards),
        "num_pinned": len(home.ledger.present("pin")["v1"]["keys"]),
    }
    assert report.display["snapshots"]["manifest_digest"]["raw_value"] == digest


def test_pinning_twice_is_no_change(home):
    home.run_step(STEP, "v1")
    before = home.ledger.seq
    home.run_step(STEP, "v1")
    assert home.ledger.seq == before
