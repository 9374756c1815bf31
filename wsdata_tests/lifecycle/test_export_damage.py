"""Exports to places that are none, and exports of which what tells is malformed."""

import json

import pytest

from wsdata.cli.main import run_command
from wsdata.errors import StoreError, WsdataError
from wsdata.lifecycle.export_choice import ExportOptions
from wsdata.loader.run import Segment
from wsdata.shard.export_check import check_export
from wsdata.shard.export_folder import STATE
from wsdata.shard.export_place import open_place
from wsdata.shard.export_target import ExportTarget
from wsdata.store import FolderStore
from wsdata_tests.lifecycle.test_export import Failing, everything, export


def test_a_link_into_the_store_is_no_place_for_an_export(home, tmp_path):
    inside = home.store.root / "training"
    inside.mkdir(exist_ok=True)
    (tmp_path / "sneak").symlink_to(inside, target_is_directory=True)
    before = home.keys()
    for out in (tmp_path / "sneak" / "exp", tmp_path / "sneak", inside / ".." / "exp"):
        with pytest.raises(WsdataError, match="within the object store"):
            export(home, out)
    (tmp_path / "as_a_store").symlink_to(home.store.root, target_is_directory=True)
    linked = FolderStore(tmp_path / "as_a_store")
    with pytest.raises(WsdataError, match="within the object store"):
        export(home, inside / "exp", store=linked)
    assert home.keys() == before
    assert not home.ledger.present("export")


def without(body, name):
    return {key: value for key, value in body.items() if key != name}


def malformed_manifests(body):
    """JSON in which something is missing, or is of another kind."""
    record = body["files"][0]
    yield from ({}, [], None, 5, {"files": 5}, {"files": None}, {"format_version": 1})
    yield from ({**body, "files": files} for files in ([{}], ["a"], [None], {}, 5, None))
    yield from (without(body, name) for name in ("format_version", "spec", "files", "num_samples"))
    yield from ({**body, "spec": spec} for spec in ({}, [], "mds", None))
    yield from ({**body, "format_version": kind} for kind in ("1", None, True))
    wrong = {
        "path": (5, "../x", "/x", "", "a//b", "a/.."),
        "bytes": ("9", -1, True),
        "sha256": (None, 5),
        "num_samples": (1.5, -1, None),
    }
    for name, value in ((name, value) for name, values in wrong.items() for value in values):
        yield {**body, "files": [{**record, name: value}]}
        yield {**body, "files": [without(record, name)]}


def test_a_manifest_that_is_json_but_no_manifest_is_damaged_and_made_anew(home, tmp_path):
    out = tmp_path / "out"
    export(home, out, "mds", max_bytes=50_000)
    wanted, manifest = everything(out), out / "export.json"
    texts = [json.dumps(body) for body in malformed_manifests(json.loads(wanted["export.json"]))]
    assert len(texts) > 30
    for number, text in enumerate([*texts, "[" * 100_000]):
        manifest.write_text(text)
        with pytest.raises(WsdataError, match=r"export.json is damaged.*Export again"):
            check_export(out)
        with pytest.raises(WsdataError, match=r"export.json is damaged.*to another folder"):
            ExportTarget(open_place(out), {"format": "mds", "version": "v1"})
        if number % 9 == 0:  # each is taken for the same
            export(home, out, "mds", max_bytes=50_000)
            assert everything(out) == wanted, text[:200]


def test_a_manifest_of_another_format_is_left_alone(home, tmp_path):
    out = tmp_path / "out"
    export(home, out, "mds")
    manifest = out / "export.json"
    manifest.write_text(json.dumps({"format_version": 2, "of": "another kind"}))
    before = everything(out)
    for read in (check_export, lambda out: export(home, out, "mds")):
        with pytest.raises(WsdataError, match="has format 2, this code reads 1"):
            read(out)
    assert everything(out) == before


@pytest.mark.parametrize("note", [b"{}", b"5", b'"a"', b"null", b'{"path":"x"}'])
def test_a_note_that_is_no_note_is_damaged(home, tmp_path, note):
    out, options = tmp_path / "out", {"format": "mds", "max_bytes": 3_000}
    with pytest.raises(StoreError):
        export(home, out, store=Failing(home.store, 9), **options)
    spec = (out / STATE).read_bytes().split(b"\n")[0]
    for data in (note + b"\n", spec + b"\n" + note + b"\n"):
        (out / STATE).write_bytes(data)
        with pytest.raises(WsdataError, match=f"{STATE} is damaged"):
            export(home, out, "webdataset")
    export(home, out, **options)
    assert not check_export(out).faults


def test_what_is_no_folder_is_no_place_for_an_export(home, tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    (tmp_path / "round").symlink_to(tmp_path / "round")
    for name in ("file", "file/below", "nowhere", "round"):
        with pytest.raises(WsdataError, match=f"{name} .*no folder.*new or empty"):
            export(home, tmp_path / name)
        with pytest.raises(WsdataError, match=r"no export: give the folder that holds"):
            check_export(tmp_path / name)
    for read in (check_export, lambda where: export(home, where)):
        for nothing in ("", " "):
            with pytest.raises(ValueError, match="names no place"):
                read(nothing)
    assert (tmp_path / "file").read_text() == "mine"
    assert not home.ledger.present("export")


def test_a_file_that_no_export_made_is_to_be_removed_by_hand(home, tmp_path, capsys):
    out = tmp_path / "out"
    export(home, out, "mds")
    (out / "mine.txt").write_text("mine")
    assert run_command(["dataset", "export-check", str(out)]) == 1
    told = capsys.readouterr().out
    assert "mine.txt: is none of the export's files" in told
    assert "by hand" in told
    assert "export it again" not in told
    (out / STATE).write_text("{}\n")  # what a kill left behind: an export takes it away
    (out / "mine.txt").unlink()
    assert run_command(["dataset", "export-check", str(out)]) == 1
    told = capsys.readouterr().out
    assert f"{STATE}: " in told
    assert "by hand" not in told
    assert "export it again" in told
    export(home, out, "mds")
    assert run_command(["dataset", "export-check", str(out)]) == 0


@pytest.mark.parametrize("seed", [-7, 99999999999999999999, 2**48, 1.5, True])
def test_a_seed_that_no_loader_takes_is_refused(seed):
    with pytest.raises(ValueError, match=r"seed .*expected a seed >= 0, an integer below 2\^48"):
        Segment(version="v1", seed=seed)
    with pytest.raises(ValueError, match=r"seed .*expected a seed >= 0, an integer below 2\^48"):
        ExportOptions(format="mds", order="plan", steps=(0, 3), seed=seed)
