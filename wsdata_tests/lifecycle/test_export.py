"""`dataset export`: the very same samples for other loaders, and nobody else's bytes."""

import itertools
import json
import subprocess
import sys
import time

import numpy as np
import polars as pl
import pytest
import webdataset

from wsdata.cli.main import run_command
from wsdata.errors import IntegrityError, PlanError, StoreError, WsdataError
from wsdata.lifecycle import export as export_module
from wsdata.lifecycle.export import export_version
from wsdata.lifecycle.export_choice import ExportOptions
from wsdata.lifecycle.patch import patch_version
from wsdata.lifecycle.takedown import report_takedown, request_takedown
from wsdata.lifecycle.tombstone import Criteria
from wsdata.loader.dataset import PlanDataset
from wsdata.records import Fact
from wsdata.shard.export_check import check_export
from wsdata.shard.export_folder import STATE
from wsdata.shard.format import FORMAT_VERSION
from wsdata.shard.quantize import dequantize
from wsdata_tests.lifecycle.fabricated import BUCKET, asset_id
from wsdata_tests.loader.published import latents_of

FOLDER = "256p_64x32_5"
FORMATS = ("mds", "webdataset")


def export(home, folder, format="webdataset", *, version="v1", store=None, **options):  # noqa: A002
    return export_version(
        home.ledger, store or home.store, version, folder,
        ExportOptions(format=format, **options), num_threads=2,
    )  # fmt: skip


def everything(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def read_tars(folder):
    """Samples as webdataset's own reader gives them."""
    urls = [str(path) for path in sorted(folder.rglob("*.tar"))]
    return list(webdataset.WebDataset(urls, shardshuffle=False).decode())


def exported_ids(folder):
    return check_export(folder).sample_ids


def ids_of(home):
    return set(home.rows("dataset_index", "v1")["sample_id"])


def test_webdatasets_reader_gives_the_samples_of_the_version(home, tmp_path):
    export(home, tmp_path / "out")
    index = {row["sample_id"]: row for row in home.rows("dataset_index", "v1").to_dicts()}
    samples = read_tars(tmp_path / "out")
    assert {sample["json"]["sample_id"] for sample in samples} == set(index)
    assert len({sample["__key__"] for sample in samples}) == len(index)
    for sample in samples:
        told, row = sample["json"], index[sample["json"]["sample_id"]]
        latents = dequantize(sample["latents.npy"], sample["scale.npy"], told["dtype"])
        shape = json.loads(row["latent_shape_json"])
        assert np.array_equal(latents, latents_of(row["sample_id"], shape))
        assert (told["clip_id"], told["bucket"], told["shape"]) == (row["clip_id"], BUCKET, shape)
        assert told["captions"] == {"dense": f"dense words on {row['clip_id']}",
                                    "short": f"short words on {row['clip_id']}"}  # fmt: skip
        assert sample["txt"] == told["captions"]["dense"]


def test_whole_shards_leave_as_they_are_with_captions_beside_them(home, tmp_path):
    done = export(home, tmp_path / "out", "mds")
    (row,) = home.rows("dataset_index", "v1").unique("shard_key").to_dicts()
    folder = tmp_path / "out" / FOLDER
    assert (folder / "shard.00000.mds").read_bytes() == home.store.get(row["shard_key"])
    assert done.num_whole_shards == 1
    index = json.loads((folder / "index.json").read_text())
    assert [(s["samples"], s["raw_data"]["basename"]) for s in index["shards"]] == [
        (done.num_samples, "shard.00000.mds")
    ]
    assert index["version"] == FORMAT_VERSION
    lines = (folder / "shard.00000.captions.jsonl").read_text().splitlines()
    beside = [json.loads(line) for line in lines]
    assert [line["sample_id"] for line in beside] == exported_ids(tmp_path / "out")
    assert all(line["captions"].keys() == {"dense", "short"} for line in beside)


def test_linked_shards_are_the_stores_own_files_with_the_same_bytes(home, tmp_path):
    export(home, tmp_path / "copied", "mds")
    options = ExportOptions(format="mds")
    for _ in range(2):
        out = tmp_path / "linked"
        export_version(home.ledger, home.store, "v1", out, options, is_linked=True)
    assert everything(tmp_path / "linked") == everything(tmp_path / "copied")
    path = tmp_path / "linked" / FOLDER / "shard.00000.mds"
    (key,) = home.rows("dataset_index", "v1")["shard_key"].unique()
    assert path.samefile(home.store.path_of(key))
    copied = tmp_path / "copied" / FOLDER / "shard.00000.mds"
    assert not copied.samefile(home.store.path_of(key))


@pytest.mark.parametrize("format", FORMATS)
def test_in_the_plans_order_a_reader_meets_what_training_is_served(home, tmp_path, format):  # noqa: A002
    export(home, tmp_path / "out", format, order="plan", steps=(3, 13), max_bytes=20_000)
    assert len(list((tmp_path / "out").rglob("shard.*"))) > 1
    batches = list(PlanDataset(version="v1", store=home.store, start_step=3, num_steps=10))
    assert exported_ids(tmp_path / "out") == [i for batch in batches for i in batch["sample_ids"]]
    export(home, tmp_path / "seeded", format, order="plan", steps=(3, 5), seed=99)
    other = PlanDataset(version="v1", store=home.store, start_step=3, num_steps=2, seed=99)
    served = [sample for batch in other for sample in batch["sample_ids"]]
    assert exported_ids(tmp_path / "seeded") == served
    if format == "mds":
        return  # which columns are added is MosaicML's reader's to say: test_export_peers
    samples = read_tars(tmp_path / "out")
    assert [sample.get("txt", "") for sample in samples] == [
        caption for batch in batches for caption in batch["captions"]
    ]
    assert [(s["json"]["step"], s["json"]["epoch"]) for s in samples] == [
        (batch["step"], epoch) for batch in batches for epoch in batch["epochs"]
    ]
    latents = np.concatenate([batch["latents"].numpy() for batch in batches])
    read = [dequantize(s["latents.npy"], s["scale.npy"], "fp8") for s in samples]
    assert np.array_equal(np.stack(read), latents)


@pytest.mark.parametrize("format", FORMATS)
def test_what_a_patch_leaves_out_never_leaves(home, tmp_path, format):  # noqa: A002
    gone = patch_version(home.ledger, home.store, "v1", [asset_id("film")], from_step=20).excluded
    done = export(home, tmp_path / "out", format, version="v1.1")
    assert set(exported_ids(tmp_path / "out")) == ids_of(home) - set(gone)
    assert (done.num_whole_shards, done.num_left_out) == (0, len(gone))
    assert not any(sample.encode() in data for data in everything(tmp_path / "out").values()
                   for sample in gone)  # fmt: skip
    with pytest.raises(PlanError, match="the patch leaves out"):
        export(home, tmp_path / "early", format, version="v1.1", order="plan", steps=(0, 30))
    export(home, tmp_path / "late", format, version="v1.1", order="plan", steps=(20, 40))
    assert set(exported_ids(tmp_path / "late")).isdisjoint(gone)
    plan = PlanDataset(version="v1.1", store=home.store, start_step=20, num_steps=20)
    served = [sample for batch in plan for sample in batch["sample_ids"]]
    assert exported_ids(tmp_path / "late") == served


def test_a_takedown_keeps_back_its_samples_and_tells_who_holds_them(home, tmp_path):
    export(home, tmp_path / "before", "mds")
    export(home, tmp_path / "steps", order="plan", steps=(0, 12))
    export(home, tmp_path / "few", order="plan", steps=(0, 1), seed=99)
    asked = Criteria(assets=(asset_id("film"),))
    report = request_takedown(home.ledger, home.store, asked, reason="asked")
    index = home.rows("dataset_index", "v1")
    taken = set(index.filter(pl.col("asset_id") == asset_id("film"))["sample_id"])
    export(home, tmp_path / "after", "mds")
    assert set(exported_ids(tmp_path / "after")) == ids_of(home) - taken
    with pytest.raises(PlanError, match="withholds"):
        export(home, tmp_path / "never", order="plan", steps=(0, 12))
    with pytest.raises(WsdataError, match="another withheld"):
        export(home, tmp_path / "before", "mds")

    def holding(report):
        return {each["address"].rpartition("/")[2]: each["samples"] for each in report["exports"]}

    few = len(taken & set(exported_ids(tmp_path / "few")))
    wanted = {"before": len(taken), "steps": len(taken), **({"few": few} if few else {})}
    assert holding(report) == wanted
    assert holding(report_takedown(home.ledger, home.store, report["request_id"])) == wanted
    (first,) = [e for e in report["exports"] if e["address"].endswith("before")]
    command = ["dataset", "exports", "--home", str(home.path), "--json"]
    assert run_command([*command, "--gone", first["export_id"], "--reason", "deleted"]) == 0
    del wanted["before"]
    assert holding(report_takedown(home.ledger, home.store, report["request_id"])) == wanted


def test_one_path_on_two_hosts_is_two_exports(home, tmp_path, monkeypatch, capsys):
    made = {}
    for host in ("one", "two", "one"):
        monkeypatch.setattr("socket.gethostname", lambda host=host: host)
        done = export(home, tmp_path / "out", "mds")
        assert made.setdefault(host, done.export_id) == done.export_id
    assert run_command(["dataset", "exports", "--home", str(home.path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {each["export_id"]: each["host"] for each in told} == {
        export_id: host for host, export_id in made.items()
    }
    asked = Criteria(assets=(asset_id("film"),))
    report = request_takedown(home.ledger, home.store, asked, reason="asked")
    assert sorted(each["host"] for each in report["exports"]) == ["one", "two"]


def test_exports_that_were_known_by_other_ids_stay_known(home, tmp_path, monkeypatch):
    """Once an id did not tell the host, and the oldest facts do not either."""
    digested = export_module.short_digest
    with monkeypatch.context() as patch:
        patch.setattr("socket.gethostname", lambda: "one")
        patch.setattr(export_module, "short_digest", lambda told: digested(told[:2]))
        old = export(home, tmp_path / "out").export_id
        patch.setattr(export_module, "short_digest", digested)
        assert export(home, tmp_path / "out").export_id == old
        patch.setattr("socket.gethostname", lambda: "two")
        assert export(home, tmp_path / "out").export_id != old
    body = home.ledger.present("export")[old]
    del body["host"]
    oldest = Fact(kind="export", subject="e0", body=body)
    home.ledger.state([oldest], step="dataset/export")
    asked = Criteria(assets=(asset_id("film"),))
    report = request_takedown(home.ledger, home.store, asked, reason="asked")
    assert sorted(each["host"] for each in report["exports"]) == ["one", "two", "unknown"]
    assert run_command(["dataset", "exports", "--home", str(home.path)]) == 0


class Failing:
    """A store that fails at its n-th read of a sample."""

    def __init__(self, store, fail_at):
        self._store, self.address = store, store.address
        self._left = itertools.count(-fail_at)

    def get_range(self, key, offset, length):
        if next(self._left) == 0:
            raise StoreError(f"read of {key} failed")
        return self._store.get_range(key, offset, length)

    def __getattr__(self, name):
        return getattr(self._store, name)


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_that_ends_anywhere_is_finished_by_the_next(home, tmp_path, format):  # noqa: A002
    options = {"format": format, "max_bytes": 3_000}
    export(home, tmp_path / "whole", **options)
    wanted = everything(tmp_path / "whole")
    assert len(wanted) > 4
    for fail_at in (0, 9):
        out = tmp_path / str(fail_at)
        with pytest.raises(StoreError, match="read of"):
            export(home, out, store=Failing(home.store, fail_at), **options)
        assert not (out / "export.json").exists()
        with (out / STATE).open("a") as file:
            file.write('{"bytes": 1')  # a kill may leave a line like that
        half = {path: data for path, data in everything(out).items() if path in wanted}
        assert half.items() <= wanted.items()
        export(home, out, **options)
        assert everything(out) == wanted
    states = {body["address"].rpartition("/")[2]: body["state"]
              for body in home.ledger.present("export").values()}  # fmt: skip
    assert set(states.values()) == {"done"}


def test_an_unfinished_export_is_known_to_hold_bytes(home, tmp_path):
    with pytest.raises(StoreError):
        export(home, tmp_path / "out", store=Failing(home.store, 3))
    (body,) = home.ledger.present("export").values()
    assert body["state"] == "started"
    report = request_takedown(
        home.ledger, home.store, Criteria(assets=(asset_id("lake"),)), reason="asked"
    )
    assert [each["state"] for each in report["exports"]] == ["started"]
    with pytest.raises(WsdataError, match="not finished"):
        check_export(tmp_path / "out")


def test_a_rerun_repairs_what_was_damaged_and_changes_nothing_else(home, tmp_path):
    export(home, tmp_path / "out", "mds", max_bytes=5_000)
    wanted, before = everything(tmp_path / "out"), home.ledger.seq
    path = tmp_path / "out" / FOLDER / "shard.00001.mds"
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (tmp_path / "out" / "mine.txt").write_text("mine")
    assert [fault.split(":")[0] for fault in check_export(tmp_path / "out").faults] == [
        f"{FOLDER}/shard.00001.mds", "mine.txt"
    ]  # fmt: skip
    export(home, tmp_path / "out", "mds", max_bytes=5_000)
    (tmp_path / "out" / "mine.txt").unlink()
    assert everything(tmp_path / "out") == wanted
    assert not check_export(tmp_path / "out").faults
    assert {seq for seq, _ in home.ledger.facts("export")} <= {*range(before + 3)}


@pytest.mark.parametrize("cut", [b"", b"files", None])
def test_a_manifest_that_was_cut_short_is_named_and_made_anew(home, tmp_path, cut):
    out = tmp_path / "out"
    export(home, out, "mds", max_bytes=5_000)
    wanted, manifest = everything(out), out / "export.json"
    manifest.write_bytes(wanted["export.json"][:-200] if cut is None else cut)
    (out / "mine.txt").write_text("mine")
    damaged = everything(out)
    with pytest.raises(WsdataError, match=r"out/export.json is damaged.*Export again"):
        check_export(out)
    with pytest.raises(WsdataError, match=r"out/export.json is damaged.*to another folder"):
        export(home, out, "webdataset")
    assert everything(out) == damaged, "not known to be of those options"
    with pytest.raises(StoreError, match="read of"):
        export(home, out, "mds", max_bytes=5_000, store=Failing(home.store, 3))
    with (out / STATE).open("rb") as file:
        assert file.readline().startswith(b"{"), "it goes on where it was"
    export(home, out, "mds", max_bytes=5_000)
    assert everything(out) == wanted | {"mine.txt": b"mine"}
    (out / "mine.txt").unlink()
    assert not check_export(out).faults


def test_a_state_that_was_damaged_is_made_anew_or_named(home, tmp_path):
    out, options = tmp_path / "out", {"format": "mds", "max_bytes": 3_000}
    with pytest.raises(StoreError):
        export(home, out, store=Failing(home.store, 9), **options)
    for data in (b"", b"{\n{}\n"):
        (out / STATE).write_bytes(data)
        with pytest.raises(WsdataError, match=f"{STATE} is damaged"):
            export(home, out, "webdataset")
    export(home, out, **options)
    export(home, tmp_path / "whole", **options)
    assert everything(out) == everything(tmp_path / "whole")


def test_a_foreign_folder_is_left_alone(home, tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "model.bin").write_bytes(b"theirs")
    with pytest.raises(WsdataError, match="no export made"):
        export(home, tmp_path / "theirs")
    assert everything(tmp_path / "theirs") == {"model.bin": b"theirs"}
    assert not home.ledger.present("export")
    export(home, tmp_path / "out", "mds")
    with pytest.raises(WsdataError, match="another format"):
        export(home, tmp_path / "out", "webdataset")
    assert not check_export(tmp_path / "out").faults


@pytest.mark.parametrize("format", FORMATS)
def test_damaged_bytes_of_the_store_never_leave(home, tmp_path, format):  # noqa: A002
    (row,) = home.rows("dataset_index", "v1").filter(pl.col("row") == 5).to_dicts()
    path = home.store.path_of(row["shard_key"])
    data = bytearray(path.read_bytes())
    data[row["offset"] + row["length"] // 2] ^= 1
    path.write_bytes(bytes(data))
    with pytest.raises(IntegrityError, match=row["shard"] if format == "mds" else row["clip_id"]):
        export(home, tmp_path / "out", format)
    assert not list((tmp_path / "out").rglob("shard.*"))


@pytest.mark.parametrize(
    "options",
    [
        {"order": "plan"},
        {"steps": (0, 3)},
        {"order": "plan", "steps": (3, 3)},
        {"max_bytes": 0},
        {"order": "hash"},
        {"seed": 3},
        {"format": "csv"},
    ],
)
def test_options_that_do_not_go_together_are_refused(options):
    with pytest.raises(ValueError, match=r"expected|needs"):
        ExportOptions(**{"format": "mds", **options})


def test_the_command_exports_and_reads_back(home, tmp_path, capsys):
    command = ["dataset", "export", "v1", "--home", str(home.path), "--json"]
    out = str(tmp_path / "out")
    assert run_command([*command, "--format", "mds", "--out", out, "--bucket", BUCKET]) == 0
    done = json.loads(capsys.readouterr().out)
    assert done["num_samples"] == len(ids_of(home))
    assert run_command(["dataset", "export-check", out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_whole"]
    (tmp_path / "out" / FOLDER / "index.json").write_text("{}")
    assert run_command(["dataset", "export-check", out, "--json"]) == 1
    asked = ["--format", "mds", "--out", f"{out}2"]
    assert run_command([*command, *asked, "--bucket", "512p/8x8/1"]) == 1
    assert run_command([*command, *asked, "--order", "plan", "--steps", "3"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("format", FORMATS)
def test_a_killed_export_is_finished_by_the_next(home, tmp_path, format):  # noqa: A002
    """The real command, killed as soon as its folder holds so many files."""
    options = ["--format", format, "--max-bytes", "1500", "--threads", "1"]
    export(home, tmp_path / "whole", format, max_bytes=1500)
    wanted, out = everything(tmp_path / "whole"), tmp_path / "out"
    words = ["dataset", "export", "v1", "--home", str(home.path), "--out", str(out), *options]
    for num_there in range(0, len(wanted), 3):
        process = subprocess.Popen([sys.executable, "-m", "wsdata", *words])  # noqa: S603
        while process.poll() is None and (
            not out.exists() or sum(1 for path in out.rglob("shard.*")) < num_there
        ):
            time.sleep(0.0005)
        process.kill()
        process.wait()
        there = everything(out)
        assert all(wanted[path] == there[path] for path in wanted.keys() & there.keys())
        assert home.ledger.present("export") or not wanted.keys() & there.keys()
        assert "export.json" not in there or there == wanted
    assert run_command(words) == 0
    assert everything(out) == wanted
