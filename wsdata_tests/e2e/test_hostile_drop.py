"""A drop of damaged and awkward files, through Dagster: each is accounted for, and why."""

import json
import shutil
import subprocess
import sys

import dagster as dg
import pytest

from wsdata.ingest.delivery import Declaration, make_drop
from wsdata.ingest.landing import FolderLanding
from wsdata_tests import synthetic
from wsdata_tests.e2e.homes import MICRO_RECIPE, ROOT, Home

DECLARED = Declaration(source_tier="licensed", source="hostile", license_id="CC0-1.0")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    path = tmp_path_factory.mktemp("hostile")
    media = path / "media"
    media.mkdir()
    synthetic.make_h1(media)
    synthetic.make_h2(media)
    synthetic.make_h16(media)
    synthetic.make_h14(media / "rotated.mp4", 90)
    synthetic.make_h4(media)
    shutil.copy(ROOT / "samples" / "media" / "testsrc_av1.mkv", media)
    (media / "spliced.mp4").write_bytes((media / "h16_two.mp4").read_bytes()[:9000] + b"RIFF" * 99)
    (path / "operating.toml").write_text(MICRO_RECIPE.read_text())
    home = Home(path)
    make_drop(media, FolderLanding(path / "landing"), DECLARED, date="20261101")
    home.run("run", code=None)
    return home


@pytest.fixture(scope="module")
def files(home):
    return {f["path"]: f for f in home.ask("funnel")["files"]}


def test_nothing_is_lost_without_a_record(home, files):
    assert {path.name for path in (home.path / "media").iterdir()} == set(files)
    assert {f["status"] for f in files.values()} <= {"ok", "salvaged", "quarantined", "empty"}
    assert all(f["reason"] for f in files.values() if f["status"] != "ok")


def test_nothing_in_it_is_not_the_same_as_unreadable(files):
    assert files["h2_empty.mp4"]["status"] == "empty"
    assert files["h2_text.mp4"]["status"] == "quarantined"
    assert files["h2_no_header.mp4"]["status"] == "quarantined"
    assert files["h2_jpeg.mp4"]["status"] == "ok"
    assert files["h16_sound.m4a"]["status"] == files["h16_cover.m4a"]["status"] == "empty"


def test_a_broken_file_is_salvaged_or_held_with_a_reason(files):
    broken = files["h1_trunc_faststart.mp4"]
    assert broken["status"] == "salvaged"
    assert broken["clips"] >= 1


def test_noise_inside_a_file_is_told_from_its_frames(files):
    noisy = files["h4_noise.mp4"]
    assert noisy["status"] == "salvaged"
    assert "after 8" in noisy["reason"] or "after 7" in noisy["reason"]
    assert files["testsrc_av1.mkv"]["status"] == "ok"


def test_the_ui_tells_of_each_file_what_became_of_it_and_why(home, files):
    with dg.DagsterInstance.from_config(str(home.path / "dagster")) as instance:
        event = instance.get_latest_materialization_event(
            dg.AssetKey(["preprocess", "decode_status"])
        )
    assert event is not None
    assert event.asset_materialization is not None
    told = event.asset_materialization.metadata["files"].value
    rows = {line.split(" | ")[0].strip("| "): line for line in str(told).splitlines()[2:]}
    assert set(rows) == set(files)
    for path, file in files.items():
        assert f"| {file['status']} |" in rows[path]
        if file["status"] in ("quarantined", "empty"):  # of others a later stage may have its say
            assert file["reason"].replace("|", "/")[:60] in rows[path]
        assert rows[path].endswith("|  |") == (file["status"] == "ok"), rows[path]


def test_quarantine_is_sticky_and_a_release_tries_again(home):
    held = home.ask("quarantine", "list")
    assert held
    assert all(each["attempts"] == 3 for each in held)
    before = home.objects()
    summary = home.process_drops()
    assert not [run for run in summary["runs"] if "preprocess/decode" in run["steps"]]
    home.ask("quarantine", "release", held[0]["asset_id"][:12], "--reason", "decoder was mended")
    summary = home.process_drops()
    assert [run for run in summary["runs"] if "preprocess/decode" in run["steps"]]
    assert {e["asset_id"] for e in home.ask("quarantine", "list")} == {e["asset_id"] for e in held}
    key = next(key for key in before if key[0] == "decode_status")
    assert home.objects()[key] == before[key], "the same file fails the same way"
    home.ask("quarantine", "release", "00000000", "--reason", "x", code=1)


def test_the_funnel_counts_them(home, files):
    totals = home.ask("funnel")["totals"]
    assert totals["quarantined"] == sum(f["status"] == "quarantined" for f in files.values())
    assert totals["salvaged"] == sum(f["status"] == "salvaged" for f in files.values())


def test_a_drop_that_breaks_the_contract_is_refused_beside_good_ones(home):
    bad = home.path / "landing" / "crawl.bad.20261101.001"
    bad.mkdir()
    (bad / "drop.toml").write_text('source_tier = "crawl"\nsource = "bad"\n')
    (bad / "a.mp4").write_bytes(b"x")
    (bad / "_READY").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "wsdata", "run", "--json"],
        capture_output=True, text=True, cwd=ROOT, env=home.environment(), check=False,
    )  # fmt: skip
    refused = json.loads(done.stdout)["refused"]
    assert list(refused) == ["crawl.bad.20261101.001"]
    assert any("license_id" in fault for fault in refused["crawl.bad.20261101.001"])
