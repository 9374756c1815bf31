import json

import polars as pl
import pytest

from wsdata.errors import DropRefused, WsdataError
from wsdata.ingest.delivery import check_drop, make_drop, read_declaration, read_records
from wsdata.ingest.landing import FolderLanding
from wsdata.ingest.making import plan_drop
from wsdata.media.sandbox import reachable_level

LEVEL = min(reachable_level(), "seccomp", key=("limits", "seccomp", "bubblewrap").index)
BY = "Creative Commons Attribution 4.0 International Public License"
BY_SA = "Attribution-ShareAlike 4.0 International"
CRAWL = {
    "url": "https://e.org/a",
    "fetched_at": "2026-10-31T12:00:00+00:00",
    "robots_allowed": True,
}


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "My Films (2026)"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.mp4").write_bytes(b"aaa")
    (folder / "sub" / "b.png").write_bytes(b"bbb")
    return folder


def plan(folder, records=None, **stated):
    return plan_drop(folder, stated, records=records, minimum_level=LEVEL)


def made(folder, found):
    zone = FolderLanding(folder.parent / "landing")
    key = make_drop(
        folder, zone, found.declaration, records=found.records, tracks=found.tracks,
        date="20261101", minimum_level=LEVEL,
    )  # fmt: skip
    assert check_drop(zone, key, is_deep=True, minimum_level=LEVEL) == []
    return zone, key


def test_a_folder_says_all_that_is_asked(folder):
    (folder / "LICENSE.txt").write_text(BY)
    (folder / "a.json").write_text(json.dumps({"title": "A", "opt_out": True, "path": "x"}))
    (folder / "a.mp4.txt").write_text("what is seen\n")
    (folder / "a.csv").write_text("time_s,steer\n0,0\n")
    (folder / "notes.md").write_text("of the team")
    found = plan(folder)
    zone, key = made(folder, found)
    assert key == "licensed.my-films-2026.20261101.001"
    stated = read_declaration(zone, key)
    assert (stated.license_id, stated.territory) == ("CC-BY-4.0", "world")
    (record,) = read_records(zone, key).values()
    assert (record["path"], record["title"]) == ("a.mp4", "A")
    assert (record["page_text"], record["actions"]) == ("what is seen", "a.csv")
    assert record["opt_out"] is True
    assert found.left_out == ["LICENSE.txt", "notes.md"]
    told = "\n".join(found.assumed)
    for choice in ("'my-films-2026', from the folder's name", "'CC-BY-4.0', from LICENSE.txt",
                   "tier 'licensed', the default", "territory 'world', the default"):  # fmt: skip
        assert choice in told


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({}, "no licence file"),
        ({"LICENSE": "All rights reserved."}, "nothing that is known in LICENSE"),
        ({"LICENSE": BY, "ATTRIBUTION.md": BY_SA}, "CC-BY-4.0 and CC-BY-SA-4.0 are named"),
    ],
)
def test_a_license_that_is_not_plain_is_unknown(folder, texts, expected):
    for name, text in texts.items():
        (folder / name).write_text(text)
    found = plan(folder)
    assert found.declaration.license_id == "unknown"
    assert any(expected in choice and "state --license" in choice for choice in found.assumed)
    assert plan(folder, license_id="X-1").declaration.license_id == "X-1"


def test_longer_names_of_licences_are_not_taken_for_shorter_ones(folder):
    (folder / "LICENSE").write_text(BY_SA)
    assert plan(folder).declaration.license_id == "CC-BY-SA-4.0"
    (folder / "LICENSE").write_text("SPDX-License-Identifier: CC0-1.0")
    assert plan(folder).declaration.license_id == "CC0-1.0"


def test_evidence_of_a_crawl_makes_a_crawl_and_a_generator_synthetic(folder):
    for name in ("a.json", "sub/b.json"):
        (folder / name).write_text(json.dumps(CRAWL))
    found = plan(folder)
    assert found.declaration.source_tier == "crawl"
    zone, key = made(folder, found)
    assert read_records(zone, key)["sub/b.png"]["crawl_url"] == CRAWL["url"]
    assert plan(folder, generator="sim").declaration.source_tier == "synthetic"
    assert plan(folder, source_tier="licensed").declaration.source_tier == "licensed"


def test_what_the_folder_states_itself_is_kept(folder):
    (folder / "drop.toml").write_text(
        'source_tier = "synthetic"\nsource = "sim"\nlicense_id = "own"\ngenerator = "g"\n'
        'rights_until = "2030-01-01"\n'
    )
    rows = {"path": ["a.mp4", "sub/b.png"], "title": ["A", None], "robots_allowed": [True, None]}
    pl.DataFrame(rows).write_parquet(folder / "records.parquet")
    found = plan(folder)
    assert (found.declaration.source, found.declaration.rights_until) == ("sim", "2030-01-01")
    _, key = made(folder, found)
    assert key.startswith("synthetic.sim.")
    assert found.records == [
        {"path": "a.mp4", "title": "A", "robots_allowed": True}, {"path": "sub/b.png"}
    ]  # fmt: skip
    (folder / "records.jsonl").write_text("{}")
    with pytest.raises(WsdataError, match="both"):
        plan(folder)


def test_a_sidecar_that_cannot_be_read_stops_it(folder):
    (folder / "a.json").write_text("{")
    with pytest.raises(WsdataError, match=r"a\.json is not JSON"):
        plan(folder)
    (folder / "a.json").write_text('{"rights_until": "soon"}')
    with pytest.raises(WsdataError, match="rights_until 'soon' is not an ISO day"):
        plan(folder)


def drop_with(tmp_path, sidecars):
    drop = tmp_path / "landing" / "licensed.acme.20261101.001"
    drop.mkdir(parents=True, exist_ok=True)
    (drop / "drop.toml").write_text('source_tier="licensed"\nsource="acme"\nlicense_id="x"\n')
    for name in ("a.mp4", "b.mp4"):
        (drop / name).write_bytes(b"x")
    for name, rows in sidecars.items():
        if name.endswith(".parquet"):
            pl.DataFrame(rows).write_parquet(drop / name)
        else:
            (drop / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    (drop / "_READY").write_text("")
    return FolderLanding(drop.parent), drop.name


RICH = [
    {"path": "a.mp4", "title": "A", "chapters": [{"start_s": 0.0, "title": "one"}],
     "image_text_pairs": [{"image": "https://e.org/i.jpg", "text": "said"}], "views": 5},
    {"path": "b.mp4", "opt_out": True, "chapters": None, "views": None},
]  # fmt: skip


def test_lines_and_tables_mean_the_same(tmp_path):
    lines = read_records(*drop_with(tmp_path / "1", {"records.jsonl": RICH}), minimum_level=LEVEL)
    table = read_records(*drop_with(tmp_path / "2", {"records.parquet": RICH}), minimum_level=LEVEL)
    assert lines == table
    assert lines["a.mp4"]["chapters"] == [{"start_s": 0.0, "title": "one"}]
    assert lines["b.mp4"] == {"path": "b.mp4", "opt_out": True}
    both = drop_with(tmp_path / "3", {"records.parquet": RICH, "records.jsonl": RICH})
    with pytest.raises(DropRefused, match=r"both records\.jsonl and records\.parquet"):
        read_records(*both, minimum_level=LEVEL)


def test_fields_of_the_wrong_kind_are_told(tmp_path):
    rows = [
        {"path": "a.mp4", "title": 5, "opt_out": "no"},
        {"path": "b.mp4", "fetched_at": "yesterday", "chapters": [{"title": "no start"}]},
        {"path": "c.mp4", "actions": "track.exe"},
    ]
    zone, key = drop_with(tmp_path, {"records.jsonl": rows})
    faults = "\n".join(check_drop(zone, key))
    for expected in (
        "line 1: title is 5, expected text", "line 1: opt_out is 'no', expected true or false",
        "line 2: fetched_at 'yesterday' is not an ISO time", "line 2: chapters 0 is",
        "'c.mp4' is not in the drop", "expected the path within the drop of a file ending in .csv",
    ):  # fmt: skip
        assert expected in faults
