"""The landing zone on a disk and in a bucket: the same answers, whatever it lies in."""

import hashlib
import json
import os
import threading

import pytest

from wsdata import s3_client
from wsdata.cli.main import run_command
from wsdata.errors import DropRefused, ObjectMissing, StoreDenied
from wsdata.ids import raw_key
from wsdata.ingest import land
from wsdata.ingest.delivery import Declaration, check_drop, inspect_drop, make_drop, read_records
from wsdata.ingest.landing import FolderLanding, LandedFile, open_landing, ready_drops
from wsdata.store import FolderStore, open_store
from wsdata.vault import sidecar_key
from wsdata_tests.cluster.s3_servers import SERVERS, running_s3
from wsdata_tests.orders_support import order_of, rows_made, run_step

FILES = {"a.mp4": b"aaaa", "sub/b.PNG": b"bb", "sub-c.mp4": b"cc", "secret.mp4": b"eval"}
SEALED = hashlib.sha256(b"eval").hexdigest()
DECLARED = Declaration(source_tier="licensed", source="acme", license_id="CC0-1.0")
RECORDS = [{"path": "secret.mp4", "title": "sealed"}, {"path": "a.mp4", "license_id": "X"}]
KEY = "licensed.acme.20261101.001"
IN_BUCKETS = pytest.mark.parametrize("server", SERVERS, indirect=True)


@pytest.fixture(scope="module", params=["folder", *SERVERS])
def server(request):
    """An S3 server, or None where the zone is to be a folder."""
    if request.param == "folder":
        yield None
        return
    with running_s3(request.param) as s3:
        yield s3


@pytest.fixture
def as_owner(server, monkeypatch):
    _become_owner(server, monkeypatch)
    return server


def _become_owner(server, monkeypatch):
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(s3_client, "BASE_PAUSE_S", 0.001)


def bucket_address(server):
    return server.address(server.make_bucket(), "landing")


@pytest.fixture
def address(server, tmp_path, monkeypatch):
    if server is None:
        return str(tmp_path / "landing")
    _become_owner(server, monkeypatch)
    return bucket_address(server)


@pytest.fixture
def zone(address):
    return open_landing(address)


@pytest.fixture
def media(tmp_path):
    for name, data in FILES.items():
        path = tmp_path / "media" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    (tmp_path / "media" / "notes.txt").write_text("not media")
    return tmp_path / "media"


def deliver(zone, key, files):
    """Put a folder as an outside uploader does."""
    for name, data in files.items():
        if isinstance(zone, FolderLanding):
            path = zone.root / key / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        else:
            open_store(zone.address).put(f"{key}/{name}", data)


def test_addresses(tmp_path):
    assert open_landing(tmp_path).address == str(tmp_path)
    assert open_landing(f"file://{tmp_path}").address == str(tmp_path)
    assert open_landing("s3://b/in").address == "s3://b/in/"
    with pytest.raises(ValueError, match="expected a folder or s3"):
        open_landing("ftp://x/y")


def test_a_zone_that_is_empty_or_not_there_yet(zone):
    assert zone.folders() == []
    assert list(ready_drops(zone)) == []
    assert (zone.marker(KEY), zone.files(KEY), zone.read(KEY, "drop.toml")) == (None, [], None)
    zone.purge(KEY, "a.mp4")


def test_folders_come_page_by_page_in_one_order_everywhere(zone):
    # '-' and '.' sort before the slash that ends a folder's name, digits after it.
    names = ["a", "a-b", "a.b", "a0", "b", "crawl.web.20261101.001", "z"]
    for name in names:
        deliver(zone, name, {"x.mp4": b"", "sub/y.mp4": b""})
    deliver(zone, "a", {"_READY": b""})
    walked, after = [], ""
    while page := zone.folders(after=after, limit=2):
        assert len(page) <= 2
        walked, after = walked + page, page[-1]
    assert walked == zone.folders() == sorted(names, key=lambda name: f"{name}/")
    assert zone.folders(limit=3) == walked[:3]
    assert [name for name, _ in ready_drops(zone)] == ["a"]
    assert list(ready_drops(zone, after="a")) == []


def test_a_made_drop_keeps_the_contract(zone, media):
    key = make_drop(media, zone, DECLARED, records=RECORDS, date="20261101")
    assert key == KEY
    found = inspect_drop(zone, key)
    assert found.faults == []
    # by the parts of their paths, as a walk over folders gives them
    assert [file.path for file in found.media] == ["a.mp4", "secret.mp4", "sub/b.PNG", "sub-c.mp4"]
    assert found.size_bytes == sum(map(len, FILES.values()))
    assert read_records(zone, key)["a.mp4"] == RECORDS[1]
    assert make_drop(media, zone, DECLARED, records=RECORDS, date="20261102") == key
    (media / "a.mp4").write_bytes(b"new")
    assert make_drop(media, zone, DECLARED, date="20261101") == "licensed.acme.20261101.002"
    assert [name for name, _ in ready_drops(zone)] == [key, "licensed.acme.20261101.002"]


def test_a_drop_that_would_break_the_contract_leaves_nothing(zone, media):
    crawled = Declaration(source_tier="crawl", source="web", license_id="unknown")
    with pytest.raises(DropRefused, match="says nothing of it"):
        make_drop(media, zone, crawled)
    assert zone.folders() == []


def test_drops_made_at_once_get_numbers_of_their_own(zone, tmp_path):
    keys = []

    def make(number):
        path = tmp_path / f"{number}.mp4"
        path.write_bytes(b"%d" % number)
        keys.append(make_drop([path], zone, DECLARED, date="20261101"))

    threads = [threading.Thread(target=make, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(keys) == [f"licensed.acme.20261101.{n:03d}" for n in range(1, 5)]
    assert all(len(inspect_drop(zone, key).media) == 1 for key in keys)


def test_every_fault_is_listed(zone):
    key = "crawl.acme.20261101.001"
    text = 'source_tier = "licensed"\nsource = "acme"\nlicense_id = "x"\ncolour = "red"\n'
    sidecar = b'{"path": "gone.mp4"}\nnot json\n{"nopath": 1}\n'
    deliver(zone, key, {"drop.toml": text.encode(), "records.jsonl": sidecar, "tool.exe": b"MZ"})
    faults = "\n".join(check_drop(zone, key))
    for expected in (
        "no _READY", "unknown key 'colour'", "line 2 is not JSON", "line 3: no path",
        "'gone.mp4' is not in the drop", "tool.exe",
    ):  # fmt: skip
        assert expected in faults


def test_a_marker_written_again_has_another_stamp(zone):
    zone.mark(KEY, b"1") if not isinstance(zone, FolderLanding) else deliver(
        zone, KEY, {"_READY": b"1"}
    )
    first = zone.marker(KEY)
    assert zone.marker(KEY) == first
    zone.rewrite(KEY, "_READY", b"2")
    if isinstance(zone, FolderLanding):
        os.utime(zone.root / KEY / "_READY", ns=(1, 1))
    assert zone.marker(KEY) not in (first, None)


def test_a_file_is_fetched_and_hashed_in_one_go(zone, tmp_path):
    deliver(zone, KEY, {"sub/a.mp4": b"abc"})
    assert zone.files(KEY) == [LandedFile("sub/a.mp4", 3)]
    assert zone.fetch(KEY, "sub/a.mp4", tmp_path / "f") == (hashlib.sha256(b"abc").hexdigest(), 3)
    assert (tmp_path / "f").read_bytes() == b"abc"
    with pytest.raises(ObjectMissing):
        zone.fetch(KEY, "no.mp4", tmp_path / "f")


# landing ---------------------------------------------------------------------------------------


def land_drop(tmp_path, address, name="store"):
    settings = {
        "landing": address,
        "vault": f"file://{tmp_path}/{name}-vault",
        "carve_salt": "s",
        "carve_share": 0.0,
        "eval_list": [SEALED],
        "sandbox_minimum": "limits",
    }
    store = FolderStore(tmp_path / name)
    return store, run_step(land.STEP, order_of(land.STEP, KEY, {}, settings=settings), store)


@IN_BUCKETS
def test_rows_do_not_tell_what_a_drop_lay_in(as_owner, media, tmp_path):
    made = []
    for address in (str(tmp_path / "landing"), bucket_address(as_owner)):
        make_drop(media, open_landing(address), DECLARED, records=RECORDS, date="20261101")
        store, report = land_drop(tmp_path, address, name=f"store{len(made)}")
        made.append((report.objects, sorted(key for key, _ in store.list("raw/"))))
    assert made[0] == made[1]


def test_a_vault_member_leaves_no_trace_outside(zone, media, tmp_path):
    make_drop(media, zone, DECLARED, records=RECORDS, date="20261101")
    store, report = land_drop(tmp_path, zone.address)
    (row,) = [r for r in rows_made(store, report, "raw_assets").to_dicts() if r["in_vault"]]
    assert (row["key"], row["carve_reason"]) == (None, "listed")
    vault = open_store(f"file://{tmp_path}/store-vault")
    assert vault.get(raw_key(SEALED)) == b"eval"
    assert json.loads(vault.get(sidecar_key(SEALED)))["title"] == "sealed"
    assert "secret.mp4" not in [file.path for file in zone.files(KEY)]
    assert b"sealed" not in zone.read(KEY, "records.jsonl")
    again = land_drop(tmp_path, zone.address)[1]
    assert again.objects == report.objects


@IN_BUCKETS
def test_a_bucket_that_keeps_versions_keeps_none_of_a_vault_member(as_owner, media, tmp_path):
    address = bucket_address(as_owner)
    bucket, client = address.split("/")[2], as_owner.client()
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    make_drop(media, open_landing(address), DECLARED, records=RECORDS, date="20261101")
    land_drop(tmp_path, address)
    versions = client.list_object_versions(Bucket=bucket)
    kept = [(each["Key"], each["VersionId"]) for each in versions["Versions"]]
    bodies = [
        client.get_object(Bucket=bucket, Key=key, VersionId=version)["Body"].read()
        for key, version in kept
    ]
    assert b"aaaa" in bodies
    assert b"eval" not in bodies
    assert not [body for body in bodies if b'"sealed"' in body]
    assert not [m for m in versions.get("DeleteMarkers", []) if "secret" in m["Key"]]


@IN_BUCKETS
def test_who_may_not_purge_versions_is_told_what_is_left(as_owner, media):
    address = bucket_address(as_owner)
    bucket, client = address.split("/")[2], as_owner.client()
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    zone = open_landing(address)
    make_drop(media, zone, DECLARED, date="20261101")
    from botocore.exceptions import ClientError

    answer = {"Error": {"Code": "AccessDenied"}, "ResponseMetadata": {"HTTPStatusCode": 403}}

    def refuse(**_arguments):
        raise ClientError(answer, "list_object_versions")

    zone._bucket.client.list_object_versions = refuse
    with pytest.raises(StoreDenied) as refused:
        zone.purge(KEY, "secret.mp4")
    assert "s3:DeleteObjectVersion" in refused.value.__notes__[0]


def test_a_lost_raw_object_comes_back_from_the_landing_copy(zone, media, tmp_path):
    make_drop(media, zone, DECLARED, date="20261101")
    store, _ = land_drop(tmp_path, zone.address)
    asset = hashlib.sha256(b"bb").hexdigest()
    store.delete(raw_key(asset))
    land_drop(tmp_path, zone.address)
    assert store.get(raw_key(asset)) == b"bb"
    store.delete(raw_key(asset))
    zone.purge(KEY, "sub/b.PNG")
    with pytest.raises(ObjectMissing, match="deliver the same bytes again"):
        land_drop(tmp_path, zone.address)


def test_what_is_not_in_the_zone_is_refused(zone, tmp_path):
    with pytest.raises(DropRefused, match="no folder"):
        land_drop(tmp_path, zone.address)


@IN_BUCKETS
def test_a_key_that_no_folder_could_have_is_refused(as_owner):
    zone = open_landing(bucket_address(as_owner))
    deliver(zone, KEY, {"a/../../b.mp4": b"", "x//y.mp4": b"", "_READY": b"", "sub/": b""})
    faults = "\n".join(check_drop(zone, KEY))
    assert faults.count("empty or relative part") == 2
    assert "sub/" not in faults, "a placeholder that consoles make is no file"


def test_drops_are_made_and_listed_by_command(address, media, tmp_path, capsys):
    home = tmp_path / "home"
    home.mkdir()
    (home / "deployment.toml").write_text(f'landing = "{address}"\n')
    made = ["drop", "make", str(media), "--license", "CC0-1.0", "--source", "acme"]
    assert run_command([*made, "--home", str(home), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["folder"] == open_landing(address).place(told["drop"])
    deliver(open_landing(address), "licensed.bad.20261101.001", {"_READY": b""})
    assert run_command(["drop", "list", "--home", str(home), "--json"]) == 0
    states = {row["drop"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    assert states == {told["drop"]: "ready", "licensed.bad.20261101.001": "refused"}
