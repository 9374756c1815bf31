import dataclasses
import hashlib
import io
import json
import os
import tarfile
from typing import Literal

import polars as pl
import pytest

from wsdata.errors import DropRefused, ObjectMissing
from wsdata.ids import raw_key
from wsdata.ingest import land
from wsdata.ingest.delivery import check_drop
from wsdata.ingest.landing import FolderLanding
from wsdata.media.sandbox import reachable_level
from wsdata.store import FolderStore, open_store
from wsdata.vault import sidecar_key
from wsdata_tests.orders_support import order_of, put_rows, rows_made, run_step

LEVEL = min(reachable_level(), "seccomp", key=("limits", "seccomp", "bubblewrap").index)
DROP = "licensed.acme.20261101.001"
JPEG, PNG = b"\xff\xd8\xff jpeg", b"\x89PNG\r\n\x1a\n png"
SECRET = b"\xff\xd8\xff sealed"


def sha(data):
    return hashlib.sha256(data).hexdigest()


def tar_of(members, *, mode: Literal["w", "w:gz"] = "w", kinds=None):
    """A tar of (name, bytes); `kinds`: name -> a type other than a plain file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode, format=tarfile.PAX_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            if kinds and name in kinds:
                info.type, info.linkname, info.size = kinds[name], "/etc/passwd", 0
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def images_parquet(rows, **options):
    buffer = io.BytesIO()
    pl.DataFrame(rows).write_parquet(buffer, **options)
    return buffer.getvalue()


def lay(tmp_path, files, tier="licensed", records=()):
    """A drop of these files, ready."""
    drop = tmp_path / "landing" / DROP.replace("licensed", tier)
    drop.mkdir(parents=True)
    stated = f'source_tier="{tier}"\nsource="acme"\nlicense_id="x"\n'
    (drop / "drop.toml").write_text(stated)
    for name, data in files.items():
        (drop / name).write_bytes(data)
    if records:
        (drop / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    (drop / "_READY").write_text("")
    return drop


def landed(tmp_path, drop=DROP, *, code_version=None, context=None):
    """Land; return the store, rows of assets by id, and provenance by path."""
    store = FolderStore(tmp_path / "store")
    settings = {
        "landing": str(tmp_path / "landing"),
        "vault": f"file://{tmp_path}/vault",
        "carve_salt": "s",
        "carve_share": 0.0,
        "eval_list": [sha(SECRET)],
        "sandbox_minimum": LEVEL,
    }
    order = order_of(land.STEP, drop, {}, settings=settings, context=context)
    if code_version:
        order = dataclasses.replace(order, code_version=code_version)
    report = run_step(land.STEP, order, store)
    assets = rows_made(store, report, "raw_assets")
    provenance = rows_made(store, report, "provenance")
    return store, assets, {row["path"]: row for row in provenance.to_dicts()}


def deep_faults(tmp_path, drop=DROP):
    zone = FolderLanding(tmp_path / "landing")
    return check_drop(zone, drop, is_deep=True, minimum_level=LEVEL)


TAR = tar_of(
    [
        ("./a/0001.json", json.dumps({"title": "one", "url": "https://e.org/1", "n": 1}).encode()),
        ("a/0001.jpg", JPEG),
        ("a/0002.png", PNG),
        ("a/0001.txt", b"a caption"),
        ("a/0003.dat", b"GIF89a what the name does not tell"),
        ("a/0004.npy", b"\x93NUMPY"),
        ("a/0002.txt", b"zweite"),
    ]
)


def test_a_tar_is_unpacked_member_by_member(tmp_path):
    lay(tmp_path, {"shard-0.tar": TAR, "loose.png": b"loose"}, records=[
        {"path": "shard-0.tar", "license_id": "CC-BY-4.0"},
        {"path": "shard-0.tar!a/0002.png", "title": "two"},
    ])  # fmt: skip
    store, assets, rows = landed(tmp_path)
    assert set(rows) == {
        "loose.png", "shard-0.tar!a/0001.jpg", "shard-0.tar!a/0002.png", "shard-0.tar!a/0003.dat",
    }  # fmt: skip
    first = rows["shard-0.tar!a/0001.jpg"]
    assert first["asset_id"] == sha(JPEG)
    assert (first["title"], first["page_text"]) == ("one", "a caption")
    assert (first["crawl_url"], first["license_id"]) == ("https://e.org/1", "CC-BY-4.0")
    assert json.loads(first["record_json"])["n"] == 1
    second = rows["shard-0.tar!a/0002.png"]
    assert (second["title"], second["page_text"]) == ("two", "zweite")
    assert rows["loose.png"]["license_id"] == "x"
    for row in rows.values():
        assert sha(store.get(raw_key(row["asset_id"]))) == row["asset_id"]
    sizes = dict(assets.select("asset_id", "size_bytes").iter_rows())
    assert sizes[sha(PNG)] == len(PNG)
    assert (tmp_path / "landing" / DROP / "shard-0.tar").exists(), "nothing of it is sealed"


def test_a_table_of_images_is_unpacked_row_by_row(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _handle: None)  # what is tested is not the disk
    images = [JPEG, None, PNG, *(b"GIF8%d" % n for n in range(600))]
    count = len(images)
    table = images_parquet(
        {
            "jpg": images,
            "caption": [f"text {n}" for n in range(count)],
            "url": [f"https://e.org/{n}" for n in range(count)],
            "width": list(range(count)),
            "score": [float("nan")] * count,
        },
        row_group_size=100,
    )
    lay(tmp_path, {"part.parquet": table})
    store, assets, rows = landed(tmp_path)
    assert len(rows) == count - 1
    assert assets.height == count - 1
    row = rows["part.parquet!00000002.png"]
    assert (row["page_text"], row["crawl_url"]) == ("text 2", "https://e.org/2")
    record = json.loads(row["record_json"])
    assert record["width"] == 2
    assert "score" not in record
    assert rows["part.parquet!00000602.gif"]["asset_id"] == sha(b"GIF8599")
    assert store.get(raw_key(sha(b"GIF8599"))) == b"GIF8599"


def test_a_table_without_images_lists_what_it_has(tmp_path):
    lay(tmp_path, {"t.parquet": images_parquet({"picture": [1], "words": ["x"]})})
    (fault,) = deep_faults(tmp_path)
    assert "picture (int64), words (" in fault
    assert "named one of image, jpg" in fault
    with pytest.raises(DropRefused, match="no column of images"):
        landed(tmp_path)
    assert list(FolderStore(tmp_path / "store").list("raw/")) == []


def test_pictures_of_other_people_s_tables_are_found(tmp_path):
    table = images_parquet({"image": [{"bytes": JPEG, "path": "x.jpg"}], "text": ["said"]})
    lay(tmp_path, {"t.parquet": table})
    _, _, rows = landed(tmp_path)
    row = rows["t.parquet!00000000.jpg"]
    assert row["page_text"] == "said"
    assert json.loads(row["record_json"])["image.path"] == "x.jpg"


def test_a_sealed_member_leaves_no_trace_outside(tmp_path):
    members = [("1.jpg", JPEG), ("2.jpg", SECRET), ("2.txt", b"of the sealed one")]
    table = images_parquet({"image": [PNG, SECRET + b""], "caption": ["p", "of the sealed one"]})
    drop = lay(
        tmp_path, {"s.tar": tar_of(members), "t.parquet": table, "u.tar": tar_of([("3.jpg", JPEG)])}
    )
    store, assets, rows = landed(tmp_path)
    assert dict(assets.select("asset_id", "in_vault").iter_rows())[sha(SECRET)]
    assert rows["s.tar!2.jpg"]["page_text"] is None
    vault = open_store(f"file://{tmp_path}/vault")
    assert vault.get(raw_key(sha(SECRET))) == SECRET
    assert "of the sealed one" in vault.get(sidecar_key(sha(SECRET))).decode()
    outside = [p for p in tmp_path.rglob("*") if p.is_file() and "vault" not in p.parts]
    for path in outside:
        assert SECRET not in path.read_bytes(), path
        assert b"of the sealed one" not in path.read_bytes(), path
    assert sorted(p.name for p in drop.iterdir()) == ["_READY", "drop.toml", "u.tar"]
    assert landed(tmp_path)[1].equals(assets), "again, from what is remembered"
    # By other code, which remembers no unit: the rows of the first landing tell the rest.
    context = {
        "raw_assets": [put_rows(store, "raw_assets", assets)],
        "provenance": [put_rows(store, "provenance", list(rows.values()))],
    }
    later = landed(tmp_path, code_version="land-next", context=context)
    assert later[1].equals(assets)
    assert later[2] == rows
    store.delete(raw_key(sha(PNG)))
    with pytest.raises(ObjectMissing, match="deliver the same bytes again"):
        landed(tmp_path, code_version="land-after-next", context=context)


BOMB = tarfile.TarInfo("big.jpg")
BOMB.size = 1 << 40
SPARSE = tarfile.TarInfo("sparse.jpg")
SPARSE.type = tarfile.GNUTYPE_SPARSE
LINKS = {"hard.jpg": tarfile.LNKTYPE, "soft.jpg": tarfile.SYMTYPE, "dev.jpg": tarfile.CHRTYPE,
         "pipe.jpg": tarfile.FIFOTYPE}  # fmt: skip
MANY = tar_of([(f"{n:04d}.jpg", JPEG) for n in range(8)])
HOSTILE = {
    "traversal": (tar_of([("../../a.jpg", JPEG), ("/b.jpg", JPEG), ("c//d.jpg", JPEG)]),
                  ["'../../a.jpg'", "'/b.jpg'", "'c//d.jpg'"]),
    "links": (tar_of([(name, b"") for name in LINKS], kinds=LINKS),
              ["'hard.jpg' is a hard link", "symbolic link", "a device", "a pipe"]),
    "bomb": (BOMB.tobuf() + JPEG, ["it is cut short"]),
    "sparse": (SPARSE.tobuf(tarfile.GNU_FORMAT) + bytes(1024), ["sparse"]),
    "truncated": (MANY[:3000], ["is cut short"]),
    "no end mark": (MANY[: 8 * 1024], ["its end mark is missing"]),
    "damaged header": (MANY[:2048] + b"\x55" + MANY[2049:], ["header at byte 2,048 is damaged"]),
    "twice": (tar_of([("a.jpg", JPEG), ("a.jpg", PNG)]), ["'a.jpg' is there twice"]),
    "compressed": (tar_of([("a.jpg", JPEG)], mode="w:gz"), ["compressed (gzip)"]),
    "no tar": (b"hello, this is no tar at all" * 100, ["cannot be read as a tar"]),
    "empty": (b"", ["cannot be read as a tar"]),
    "bad JSON": (tar_of([("a.jpg", JPEG), ("a.json", b"{nope")]), ["'a.json' is not JSON"]),
    "deep JSON": (tar_of([("a.jpg", JPEG), ("a.json", b"[" * 100_000)]), ["'a.json' is not JSON"]),
    "surrogate": (tar_of([("a.jpg", JPEG), ("a.json", b'{"t": "\\ud800"}')]), ["is not JSON"]),
    "right unread": (tar_of([("a.jpg", JPEG), ("a.json", b'{"opt_out": "yes"}')]),
                     ["opt_out is 'yes', expected true or false"]),
    "two archives": (MANY + MANY, ["more follows its end mark"]),
}  # fmt: skip


def test_hostile_tars_are_refused_with_every_fault(tmp_path):
    lay(tmp_path, {f"{name}.tar": data for name, (data, _) in HOSTILE.items()})
    with pytest.raises(DropRefused) as refused:
        landed(tmp_path)
    faults = refused.value.faults
    for name, (_, expected) in HOSTILE.items():
        told = "\n".join(fault for fault in faults if fault.startswith(f"{name}.tar: "))
        for text in expected:
            assert text in told, name
    assert list(FolderStore(tmp_path / "store").list("raw/")) == [], "nothing half landed"


def test_hostile_tables_are_refused(tmp_path):
    good = images_parquet({"image": [JPEG] * 50, "caption": ["c"] * 50})
    lay(tmp_path, {
        "cut.parquet": good[: len(good) // 2],
        "text.parquet": b"hello",
        "flipped.parquet": good[:40] + bytes(x ^ 0x5A for x in good[40:80]) + good[80:],
        "rights.parquet": images_parquet({"image": [JPEG], "rights_until": [5]}),
    })  # fmt: skip
    faults = "\n".join(deep_faults(tmp_path))
    for expected in ("cut.parquet: it cannot be read as Parquet", "text.parquet: it cannot be",
                     "rights.parquet: '00000000.jpg': rights_until is 5"):  # fmt: skip
        assert expected in faults
    assert "flipped.parquet: it" in faults


def test_each_crawled_member_carries_its_evidence(tmp_path):
    good = {"url": "https://e.org/a", "fetched_at": "2026-10-31T12:00:00+00:00"}
    tar = tar_of([("a.jpg", JPEG), ("a.json", json.dumps(good).encode()), ("b.jpg", PNG)])
    records = [{"path": "s.tar", "robots_allowed": True}, {"path": "s.tar!no.jpg", "title": "t"}]
    drop = lay(tmp_path, {"s.tar": tar}, tier="crawl", records=records)
    assert deep_faults(tmp_path, drop.name) == [
        "s.tar: b.jpg: crawl record lacks crawl_url, fetched_at",
        "s.tar: records.jsonl: 's.tar!no.jpg' is no member of it",
    ]


@pytest.mark.slow
def test_a_hundred_thousand_tiny_members(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _handle: None)  # what is tested is not the disk
    counts = {"listed": 100_000, "landed": 3_000}
    for name, count in counts.items():
        tar = tar_of([(f"{n:06d}.jpg", b"%d" % n) for n in range(count)])
        lay(tmp_path / name, {"many.tar": tar})
    assert deep_faults(tmp_path / "listed") == []
    _, assets, rows = landed(tmp_path / "landed")
    assert (assets.height, len(rows)) == (3_000, 3_000)
