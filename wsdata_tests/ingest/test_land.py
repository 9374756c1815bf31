import hashlib
import json
from pathlib import Path

import pytest

from wsdata.errors import DropRefused, ObjectMissing
from wsdata.ids import raw_key
from wsdata.ingest import land
from wsdata.ingest.carve import carve_reason
from wsdata.ingest.delivery import Declaration, make_drop
from wsdata.ingest.landing import FolderLanding
from wsdata.media.sandbox import reachable_level
from wsdata.store import FolderStore, open_store
from wsdata.vault import actions_key, sidecar_key
from wsdata_tests.orders_support import order_of, rows_made, run_step

FILES = {"a.mp4": b"aaaa", "copy_of_a.mp4": b"aaaa", "b.png": b"bb", "secret.mp4": b"eval"}
LEVEL = min(reachable_level(), "seccomp", key=("limits", "seccomp", "bubblewrap").index)
SEALED = hashlib.sha256(b"eval").hexdigest()


@pytest.fixture
def site(tmp_path):
    media = tmp_path / "media"
    media.mkdir()
    for name, data in FILES.items():
        (media / name).write_bytes(data)
    declared = Declaration(source_tier="licensed", source="acme", license_id="CC0-1.0")
    records = [{"path": "secret.mp4", "title": "sealed"}, {"path": "a.mp4", "license_id": "X"}]
    key = make_drop(
        media, FolderLanding(tmp_path / "landing"), declared, records=records, date="20261101"
    )
    return tmp_path, key


def _order(tmp_path: Path, key: str, **changes):
    settings = {
        "landing": str(tmp_path / "landing"),
        "vault": f"file://{tmp_path}/vault",
        "carve_salt": "s",
        "carve_share": 0.0,
        "eval_list": [SEALED],
        "sandbox_minimum": LEVEL,
    }
    return order_of(land.STEP, key, {}, settings=settings | changes)


def test_files_become_raw_assets_and_provenance(site):
    tmp_path, key = site
    store = FolderStore(tmp_path / "store")
    report = run_step(land.STEP, _order(tmp_path, key), store)
    assets = {row["asset_id"]: row for row in rows_made(store, report, "raw_assets").to_dicts()}
    assert len(assets) == 3
    first = assets[hashlib.sha256(b"aaaa").hexdigest()]
    assert (first["num_files"], first["size_bytes"], first["suffix"]) == (2, 4, ".mp4")
    assert store.get(first["key"]) == b"aaaa"
    provenance = rows_made(store, report, "provenance")
    assert provenance.height == 4
    licences = dict(provenance.select("path", "license_id").iter_rows())
    assert licences["a.mp4"] == "X"
    assert licences["copy_of_a.mp4"] == "CC0-1.0"


def test_a_vault_member_leaves_no_trace_outside(site):
    tmp_path, key = site
    store = FolderStore(tmp_path / "store")
    report = run_step(land.STEP, _order(tmp_path, key), store)
    (row,) = [r for r in rows_made(store, report, "raw_assets").to_dicts() if r["in_vault"]]
    assert (row["key"], row["carve_reason"]) == (None, "listed")
    vault = open_store(f"file://{tmp_path}/vault")
    assert vault.get(raw_key(SEALED)) == b"eval"
    assert json.loads(vault.get(sidecar_key(SEALED)))["title"] == "sealed"
    landing = tmp_path / "landing" / key
    assert not (landing / "secret.mp4").exists()
    assert "sealed" not in (landing / "records.jsonl").read_text()
    outside = [path for path in tmp_path.rglob("*") if path.is_file() and "vault" not in path.parts]
    outside = [path for path in outside if "media" not in path.parts]
    assert not [path for path in outside if path.read_bytes() == b"eval"]
    assert not [path for path in outside if b'"sealed"' in path.read_bytes()]


def test_landing_again_gives_the_same_rows(site):
    tmp_path, key = site
    store = FolderStore(tmp_path / "store")
    first = run_step(land.STEP, _order(tmp_path, key), store)
    again = run_step(land.STEP, _order(tmp_path, key), store)
    assert again.objects == first.objects


def test_a_lost_raw_object_comes_back_from_the_landing_copy(site):
    tmp_path, key = site
    store = FolderStore(tmp_path / "store")
    run_step(land.STEP, _order(tmp_path, key), store)
    asset = hashlib.sha256(b"bb").hexdigest()
    store.delete(raw_key(asset))
    run_step(land.STEP, _order(tmp_path, key), store)
    assert store.get(raw_key(asset)) == b"bb"
    store.delete(raw_key(asset))
    (tmp_path / "landing" / key / "b.png").unlink()
    with pytest.raises(ObjectMissing, match="deliver the same bytes again"):
        run_step(land.STEP, _order(tmp_path, key), store)


def test_a_broken_drop_lands_nothing(site):
    tmp_path, key = site
    (tmp_path / "landing" / key / "extra.exe").write_bytes(b"")
    store = FolderStore(tmp_path / "store")
    with pytest.raises(DropRefused, match=r"extra\.exe"):
        run_step(land.STEP, _order(tmp_path, key), store)
    assert list(store.list("raw/")) == []


def test_an_empty_drop_lands_nothing_and_ends(tmp_path):
    drop = tmp_path / "landing" / "licensed.acme.20261101.001"
    drop.mkdir(parents=True)
    (drop / "drop.toml").write_text('source_tier="licensed"\nsource="acme"\nlicense_id="x"\n')
    (drop / "_READY").write_text("")
    store = FolderStore(tmp_path / "store")
    report = run_step(land.STEP, _order(tmp_path, drop.name), store)
    assert rows_made(store, report, "raw_assets").is_empty()


def test_h21_new_bytes_at_a_path_and_old_bytes_at_another(site):
    tmp_path, _ = site
    media = tmp_path / "media"
    (media / "a.mp4").write_bytes(b"new bytes")
    (media / "b.png").rename(media / "elsewhere.png")
    declared = Declaration(source_tier="licensed", source="acme", license_id="CC0-1.0")
    second = make_drop(media, FolderLanding(tmp_path / "landing"), declared, date="20261102")
    store = FolderStore(tmp_path / "store")
    rows = rows_made(store, run_step(land.STEP, _order(tmp_path, second), store), "provenance")
    ids = dict(rows.select("path", "asset_id").iter_rows())
    assert ids["a.mp4"] == hashlib.sha256(b"new bytes").hexdigest()
    assert ids["elsewhere.png"] == hashlib.sha256(b"bb").hexdigest()


def test_the_carve_keeps_its_share_and_never_changes_its_mind():
    ids = [hashlib.sha256(str(n).encode()).hexdigest() for n in range(20_000)]
    carved = {i for i in ids if carve_reason(i, salt="s", share=0.01, eval_list=())}
    assert 140 < len(carved) < 260
    more = {i for i in ids if carve_reason(i, salt="s", share=0.02, eval_list=())}
    assert carved < more
    assert carve_reason(ids[0], salt="s", share=0.0, eval_list={ids[0]}) == "listed"
    assert all(carve_reason(i, salt="s", share=1.0, eval_list=()) == "share" for i in ids[:9])


def test_h8_five_thousand_tiny_files(tmp_path, monkeypatch):
    import os

    monkeypatch.setattr(os, "fsync", lambda _handle: None)  # what is tested is not the disk
    drop = tmp_path / "landing" / "licensed.acme.20261101.001"
    drop.mkdir(parents=True)
    (drop / "drop.toml").write_text('source_tier="licensed"\nsource="acme"\nlicense_id="x"\n')
    for n in range(5000):
        (drop / f"{n:05d}.png").write_bytes(b"%d" % (n % 4990))
    (drop / "_READY").write_text("")
    store = FolderStore(tmp_path / "store")
    report = run_step(land.STEP, _order(tmp_path, drop.name), store)
    rows = rows_made(store, report, "raw_assets")
    assert rows.height == 4990
    assert rows["num_files"].sum() == 5000


def test_a_track_of_actions_goes_where_its_file_goes(tmp_path):
    media = tmp_path / "media"
    media.mkdir()
    for name, data in {"a.mp4": b"aaaa", "secret.mp4": b"eval"}.items():
        (media / name).write_bytes(data)
        (media / name).with_suffix(".csv").write_bytes(b"time_s,x\n0," + data)
    drop = tmp_path / "landing" / "licensed.acme.20261101.001"
    media.rename(tmp_path / "landing_made")
    drop.parent.mkdir()
    (tmp_path / "landing_made").rename(drop)
    (drop / "drop.toml").write_text('source_tier="licensed"\nsource="acme"\nlicense_id="x"\n')
    records = [{"path": f"{n}.mp4", "actions": f"{n}.csv"} for n in ("a", "secret")]
    (drop / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (drop / "_READY").write_text("")
    store = FolderStore(tmp_path / "store")
    report = run_step(land.STEP, _order(tmp_path, drop.name), store)
    rows = {r["path"]: r for r in rows_made(store, report, "provenance").to_dicts()}
    track = hashlib.sha256(b"time_s,x\n0,aaaa").hexdigest()
    assert (rows["a.mp4"]["actions_key"], rows["a.mp4"]["actions_suffix"]) == (
        raw_key(track),
        ".csv",
    )
    assert store.get(raw_key(track)) == b"time_s,x\n0,aaaa"
    assert set(rows) == {"a.mp4", "secret.mp4"}, "a track is no asset"
    assert rows["secret.mp4"]["actions_key"] is None
    assert rows_made(store, report, "raw_assets").height == 2
    vault = open_store(f"file://{tmp_path}/vault")
    sealed = hashlib.sha256(b"time_s,x\n0,eval").hexdigest()
    assert vault.get(actions_key(SEALED, sealed, ".csv")) == b"time_s,x\n0,eval"
    assert store.size(raw_key(sealed)) is None
    assert not (drop / "secret.csv").exists()
