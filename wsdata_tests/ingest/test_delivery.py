import json

import pytest

from wsdata.errors import DropRefused, WsdataError
from wsdata.ingest.delivery import (
    Declaration,
    check_drop,
    inspect_drop,
    make_drop,
    read_records,
)
from wsdata.ingest.landing import FolderLanding, ready_drops

DECLARED = Declaration(source_tier="licensed", source="acme", license_id="CC0-1.0")


@pytest.fixture
def media(tmp_path):
    folder = tmp_path / "media"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.mp4").write_bytes(b"aaa")
    (folder / "sub" / "b.PNG").write_bytes(b"bbb")
    (folder / "notes.txt").write_text("not media")
    return folder


def test_a_made_drop_keeps_the_contract(tmp_path, media):
    landing = FolderLanding(tmp_path / "landing")
    key = make_drop(media, landing, DECLARED, date="20261101")
    assert key == "licensed.acme.20261101.001"
    assert check_drop(landing, key) == []
    assert [file.path for file in inspect_drop(landing, key).media] == ["a.mp4", "sub/b.PNG"]
    assert [name for name, _ in ready_drops(landing)] == [key]


def test_making_it_again_gives_the_same_drop(tmp_path, media):
    landing = FolderLanding(tmp_path / "landing")
    first = make_drop(media, landing, DECLARED, date="20261101")
    assert make_drop(media, landing, DECLARED, date="20261202") == first
    (media / "a.mp4").write_bytes(b"new bytes at the same path")
    assert make_drop(media, landing, DECLARED, date="20261101") == "licensed.acme.20261101.002"
    assert len(list(landing.root.iterdir())) == 2


def test_a_folder_that_is_not_there_or_holds_no_media(tmp_path):
    with pytest.raises(WsdataError, match="not a folder"):
        make_drop(tmp_path / "no", FolderLanding(tmp_path / "landing"), DECLARED)
    (tmp_path / "empty").mkdir()
    with pytest.raises(WsdataError, match="holds no media"):
        make_drop(tmp_path / "empty", FolderLanding(tmp_path / "landing"), DECLARED)


def test_every_fault_is_listed(tmp_path):
    drop = tmp_path / "crawl.acme.20261101.001"
    drop.mkdir()
    (drop / "drop.toml").write_text(
        'source_tier = "licensed"\nsource = "acme"\nlicense_id = "x"\n'
        'rights_from = "yesterday"\nopt_out = "no"\ncolour = "red"\n'
    )
    (drop / "records.jsonl").write_text('{"path": "gone.mp4"}\nnot json\n{"nopath": 1}\n')
    (drop / "tool.exe").write_bytes(b"MZ")
    (drop / "link.mp4").symlink_to("/etc/passwd")
    faults = "\n".join(check_drop(FolderLanding(tmp_path), drop.name))
    for expected in (
        "no _READY", "unknown key 'colour'", "opt_out is 'no'", "line 2 is not JSON",
        "line 3: no path", "'gone.mp4' is not in the drop", "tool.exe", "link.mp4 is a link",
    ):  # fmt: skip
        assert expected in faults


def test_the_folder_name_and_the_declaration_must_agree(tmp_path, media):
    landing = FolderLanding(tmp_path / "landing")
    key = make_drop(media, landing, DECLARED, date="20261101")
    other = (landing.root / key).rename(landing.root / "synthetic.acme.20261101.001")
    assert any(
        "source_tier 'licensed' is not the 'synthetic'" in f
        for f in check_drop(landing, other.name)
    )


def test_crawled_files_carry_their_evidence(tmp_path, media):
    declared = Declaration(source_tier="crawl", source="web", license_id="unknown")
    record = {"path": "a.mp4", "crawl_url": "https://example.org/a", "robots_allowed": True}
    with pytest.raises(DropRefused) as refused:
        make_drop(media, FolderLanding(tmp_path / "landing"), declared, records=[record])
    assert len(refused.value.faults) == 2
    assert "lacks fetched_at" in str(refused.value)
    assert not list(ready_drops(FolderLanding(tmp_path / "landing"))), "nothing half landed"


def test_a_drop_without_media_is_a_drop(tmp_path):
    drop = tmp_path / "licensed.acme.20261101.001"
    drop.mkdir()
    (drop / "drop.toml").write_text('source_tier="licensed"\nsource="acme"\nlicense_id="x"\n')
    (drop / "_READY").write_text("")
    assert check_drop(FolderLanding(tmp_path), drop.name) == []


def test_records_are_read_by_path(tmp_path, media):
    landing = FolderLanding(tmp_path / "landing")
    record = {"path": "a.mp4", "title": "A"}
    key = make_drop(media, landing, DECLARED, records=[record], date="20261101")
    assert read_records(landing, key) == {"a.mp4": record}
    assert json.loads((landing.root / key / "_READY").read_text())["format_version"] == 1
