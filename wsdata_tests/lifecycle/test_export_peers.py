"""MosaicML's own reader opens our exports: the same samples, in the same order.

It lives in an environment of its own, which `tools/interop.sh` makes; a missing one is made.
"""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from wsdata.lifecycle.export import export_version
from wsdata.lifecycle.export_choice import ExportOptions
from wsdata.lifecycle.patch import patch_version
from wsdata.loader.dataset import PlanDataset
from wsdata_tests.cluster.s3_servers import running_moto
from wsdata_tests.lifecycle.fabricated import asset_id

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
READER = """
import hashlib, json, sys, tempfile
from streaming import StreamingDataset
from torch.utils.data import DataLoader

def read(folder, num_workers):
    place = {"local": folder}
    if "://" in folder:
        place = {"remote": folder, "local": tempfile.mkdtemp(dir=".")}
    dataset = StreamingDataset(**place, shuffle=False, batch_size=4)
    loader = DataLoader(dataset, batch_size=4, num_workers=num_workers)
    for batch in loader:
        latents = [hashlib.sha256(data).hexdigest() for data in batch["latents"]]
        texts = ("sample_id", "clip_id", "dtype", "tokenizer", "caption", "variant", "stream")
        numbers = ("scale", "shape", "step", "slot", "epoch")
        yield {
            "latents": latents,
            **{name: list(batch[name]) for name in texts if name in batch},
            **{name: batch[name].tolist() for name in numbers if name in batch},
        }

if __name__ == "__main__":
    print(json.dumps([list(read(*asked)) for asked in json.loads(sys.argv[1])]))
"""


def read(tmp_path, *asked):
    """Batches of some (where, number of workers), read by MosaicML's reader in its environment.

    A missing environment is made, which downloads some 50 MB.
    """
    folder = ROOT / ".venv" / "interop"
    subprocess.run([ROOT / "tools" / "interop.sh", folder], check=True, capture_output=True)  # noqa: S603
    (tmp_path / "reader.py").write_text(READER)
    jobs = json.dumps([(str(path), num_workers) for path, num_workers in asked])
    done = subprocess.run(  # noqa: S603
        [folder / "bin" / "python", "-W", "ignore", tmp_path / "reader.py", jobs],
        capture_output=True, text=True, check=False, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def flat(batches, name):
    return [value for batch in batches for value in batch[name]]


def test_mosaicmls_reader_opens_what_was_exported(home, tmp_path):
    """Whole shards, a patched version packed anew, and the order of training."""
    gone = patch_version(home.ledger, home.store, "v1", [asset_id("film")], from_step=5).excluded
    for name, version, options in (
        ("whole", "v1", {}),
        ("patched", "v1.1", {"max_bytes": 4_000}),
        ("steps", "v1.1", {"order": "plan", "steps": (5, 15), "max_bytes": 9_000}),
    ):
        export_version(
            home.ledger, home.store, version, tmp_path / name,
            ExportOptions(format="mds", **options),
        )  # fmt: skip
    bucket = "256p_64x32_5"
    whole, apart, patched, steps = read(
        tmp_path,
        (tmp_path / "whole" / bucket, 0),
        (tmp_path / "whole" / bucket, 2),
        (tmp_path / "patched" / bucket, 0),
        (tmp_path / "steps" / "sequence", 1),
    )
    index = {row["sample_id"]: row for row in home.rows("dataset_index", "v1").to_dicts()}
    assert set(flat(whole, "sample_id")) == set(index)
    assert sorted(flat(apart, "sample_id")) == sorted(index)
    assert set(flat(patched, "sample_id")) == set(index) - set(gone)
    for batch in (*whole, *apart, *patched, *steps):
        for number, name in enumerate(batch["sample_id"]):
            row = index[name]
            told = {key: values[number] for key, values in batch.items()}
            assert told["shape"] == json.loads(row["latent_shape_json"])
            assert (told["clip_id"], told["tokenizer"]) == (row["clip_id"], "noise-1")
            offset, length = json.loads(row["columns_json"])["latents"]
            stored = home.store.get_range(row["shard_key"], offset, length)
            assert told["latents"] == hashlib.sha256(stored).hexdigest()
    ours = list(PlanDataset(version="v1.1", store=home.store, start_step=5, num_steps=10))
    for theirs, name in (
        ("sample_id", "sample_ids"), ("caption", "captions"), ("variant", "variants"),
        ("stream", "streams"), ("epoch", "epochs"),
    ):  # fmt: skip
        assert [batch[theirs] for batch in steps] == [batch[name] for batch in ours]
    assert [batch["step"] for batch in steps] == [[batch["step"]] * 4 for batch in ours]


def test_mosaicmls_reader_opens_what_was_exported_to_a_bucket(home, tmp_path, monkeypatch):
    with running_moto() as server:
        for name, value in server.environment().items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("S3_ENDPOINT_URL", server.endpoint)
        bucket = server.make_bucket()
        export_version(
            home.ledger, home.store, "v1", server.address(bucket, "exports/v1"),
            ExportOptions(format="mds", max_bytes=4_000),
        )  # fmt: skip
        export_version(
            home.ledger, home.store, "v1", tmp_path / "folder",
            ExportOptions(format="mds", max_bytes=4_000),
        )  # fmt: skip
        there = f"s3://{bucket}/exports/v1/256p_64x32_5"
        remote, local = read(tmp_path, (there, 0), (tmp_path / "folder" / "256p_64x32_5", 0))
    assert remote == local
    assert set(flat(remote, "sample_id")) == set(home.rows("dataset_index", "v1")["sample_id"])
