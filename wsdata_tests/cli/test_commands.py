"""Every command that asks or states, in process: exit codes, fields of the JSON, words."""

import json
import logging
import subprocess
import sys

import pytest

from wsdata.cli.main import run_command
from wsdata.lifecycle.patch import patch_version
from wsdata.lifecycle.snapshot import STEP as SNAPSHOT
from wsdata.records import Order
from wsdata.store import open_store
from wsdata_tests.lifecycle.fabricated import LISTED, A, B, asset_id, clip_id

FILM = clip_id("film", 0)


@pytest.fixture
def ask(home, capsys):
    """Run a command on the fabricated home, check its exit code, and return its JSON."""

    def _ask(*words, code=0):
        assert run_command([*words, "--json", "--home", str(home.path)]) == code
        return json.loads(capsys.readouterr().out)

    return _ask


@pytest.fixture
def say(home, capsys):
    """As `ask`, for a person: returns the lines."""

    def _say(*words, code=0):
        assert run_command([*words, "--home", str(home.path)]) == code
        return capsys.readouterr().out.splitlines()

    return _say


def test_funnel(ask, say):
    data = ask("funnel")
    assert {
        "raw_assets", "vault", "exact_duplicates", "near_duplicates", "quarantined", "salvaged",
        "clips", "gated", "purged", "semantic_duplicates", "refused_rights", "tombstoned",
        "tiers", "in_manifest", "lost",
    } <= set(data["totals"])  # fmt: skip
    assert set(data["totals"]["tiers"]) == {"T0", "T1", "T2", "T3"}
    names = {"path", "drop", "asset_id", "status", "reason", "clips"}
    assert all(names <= set(each) for each in data["files"])
    assert ask("funnel", "--drop", A)["totals"]["raw_assets"] == 3
    assert ask("funnel", "--source", "web")["totals"]["raw_assets"] == 4
    lines = say("funnel")
    assert any(line.split() == ["gated:", "safety", "1"] for line in lines)
    assert ask("funnel", "--version", "v9", code=1)["kind"] == "CatalogError"


def test_lineage(ask, say):
    clip = ask("lineage", "clip", FILM)
    assert {
        "clip_id", "asset_id", "drop", "provenance", "span", "scores", "captions", "placements",
        "manifests", "tombstoned",
    } <= set(clip)  # fmt: skip
    assert {"start_s", "end_s"} <= set(clip["span"])
    assert {"filter", "score", "model_version"} <= set(clip["scores"][0])
    assert {"captioner_version", "variant", "text", "status"} == set(clip["captions"][0])
    assert {"shard", "row", "rung", "tokenizer"} <= set(clip["placements"][0])
    assert {"version", "stream", "tier"} <= set(clip["manifests"][0])
    asset = ask("lineage", "asset", asset_id("film")[:16])
    assert clip in asset["clips"]
    sample = ask("lineage", "sample", "v1:3:0")
    assert (sample["version"], sample["step"], sample["slot"]) == ("v1", 3, 0)
    assert say("lineage", "clip", FILM)[0].startswith(f"clip {FILM}  0.000-5.000 s")
    assert "  sealed in the eval vault" in say("lineage", "asset", asset_id("sealed"))
    assert say("lineage", "sample", "v1:3:0")


def test_plan_show_and_where_agree(ask, say):
    for step in (0, 7, 59):
        shown = ask("plan", "show", "v1", "--step", str(step))
        assert (shown["version"], shown["step"]) == ("v1", step)
        assert len(shown["samples"]) == 4
        for slot, sample in enumerate(shown["samples"]):
            assert {"clip_id", "stream", "epoch", "shard", "row"} <= set(sample)
            where = ask("plan", "where", "v1", "--clip", sample["clip_id"])
            assert {"step": step, "slot": slot, "epoch": sample["epoch"]} in where["served"]
    served = {clip: ask("plan", "where", "v1", "--clip", clip)["served"] for clip in LISTED}
    assert sum(map(len, served.values())) == 60 * 4
    until = ask("plan", "where", "v1", "--clip", FILM, "--until", "10")
    assert until["served"] == [each for each in served[FILM] if each["step"] < 10]
    assert ask("plan", "where", "v1", "--clip", clip_id("copy", 0))["served"] == []
    assert len(say("plan", "show", "v1", "--step", "0")) == 2 + 4
    assert say("plan", "where", "v1", "--clip", FILM)[0].endswith("times before step 60")


def test_quarantine(ask, say):
    (held,) = ask("quarantine", "list")
    assert ask("quarantine", "list", "--source", "elsewhere") == []
    dry = ask("quarantine", "release", "--matching", "READ", "--reason", "x", "--dry-run")
    assert dry["asset_ids"] == [held["asset_id"]]
    assert (held["asset_id"], held["released"]) == (asset_id("broken"), False)
    assert say("quarantine", "list")[1].split()[:2] == [asset_id("broken")[:16], B]
    done = ask("quarantine", "release", asset_id("broken")[:10], "--reason", "new codec")
    assert done == {"asset_ids": [asset_id("broken")], "reason": "new codec"}
    assert ask("quarantine", "list")[0]["released"] is True
    assert ask("quarantine", "release", "f" * 8, "--reason", "x", code=1)["kind"] == "CatalogError"


def test_takedown(ask, say):
    words = ("takedown", "request", "--asset", asset_id("film")[:12], "--reason", "asked")
    fields = {"request_id", "assets", "twins", "clips", "versions", "next_version"}
    dry = ask(*words, "--dry-run")
    assert fields <= set(dry)
    assert ask("takedown", "report", dry["request_id"], code=1)["kind"] == "CatalogError"
    made = ask(*words)
    assert {**made, "is_dry_run": True} == dry
    assert {"version", "samples", "first_step"} <= set(made["versions"][0])
    report = ask("takedown", "report", made["request_id"])
    assert report["clips"] == made["clips"]
    assert ask("lineage", "clip", clip_id("copy", 0))["tombstoned"] is True
    first = say(*words)[0]
    assert "excludes 1 raw assets, 1 twins and 6 clips from v2 on" in first
    assert say("takedown", "report", made["request_id"])[-1].startswith("digest ")
    assert ask("takedown", "request", "--reason", "none", code=1)["kind"] == "CatalogError"


def test_a_patch_that_changes_nothing_says_so_and_a_binary_list_is_named(ask, say, tmp_path):
    cohort = tmp_path / "cohort.txt"
    cohort.write_bytes(b"\x80\x04\x95 no ids")
    told = ask("dataset", "patch", "v1", "--exclude", str(cohort), "--from-step", "20", code=1)
    assert str(cohort) in told["error"]
    assert "expected asset, clip or sample ids, one a line, in UTF-8" in told["error"]
    cohort.write_text(f"{FILM}\n")
    words = ("--exclude", str(cohort), "--from-step", "20")
    assert len(say("dataset", "patch", "v1", *words)) == 1
    made, note = say("dataset", "patch", "v1.1", *words)
    assert made.startswith("v1.2: v1.1 without 2 samples from step 20 on, 0 slots changed")
    assert note.startswith("nothing changed: v1.1 serves none of these samples from step 20 on")


def test_dataset_list_patch_and_diff(ask, say, tmp_path):
    (v1,) = ask("dataset", "list")
    assert (v1["version"], v1["num_samples"], v1["num_lost"]) == ("v1", 18, 1)
    assert v1["as_of_date"] == "2026-11-30"
    cohort = tmp_path / "cohort.txt"
    cohort.write_text(f"# a cohort\n{FILM}  # the first\n\n")
    words = ("dataset", "patch", "v1", "--exclude", str(cohort), "--from-step", "20")
    made = ask(*words)
    assert (made["version"], made["parent"], len(made["excluded"])) == ("v1.1", "v1", 2)
    v11 = ask("dataset", "list")[1]
    assert (v11["version"], v11["parent"], v11["num_samples"]) == ("v1.1", "v1", 16)
    went = ask("dataset", "diff", "v1", "v1.1")["changes"]
    assert [(c["clip_id"], c["change"], c["why"]) for c in went] == [
        (FILM, "went", "patched: v1.1")
    ] * 2
    back = ask("dataset", "diff", "v1.1", "v1")["changes"]
    assert {(c["change"], c["why"]) for c in back} == {("came", "no longer patched: v1.1")}
    assert say("dataset", "diff", "v1", "v1") == ["no change"]
    assert [line.split()[0] for line in say("dataset", "list")] == ["version", "v1", "v1.1"]
    assert ask("plan", "show", "v1.1", "--step", "30")["version"] == "v1.1"
    missing = ask(*words[:4], str(tmp_path / "none"), "--from-step", "1", code=1)
    assert "is not a file" in missing["error"]
    assert ask("dataset", "diff", "v1", "v9", code=1)["kind"] == "CatalogError"
    assert ask("dataset", "diff", "v1", "third", code=2)["kind"] == "ValueError"


def test_dataset_pins(ask, say, home):
    assert ask("dataset", "pins") == [
        {"version": "v1", "is_pinned": False, "num_objects": 0, "num_own": 0, "reason": None}
    ]
    home.run_step(SNAPSHOT, "v1")
    seq = home.ledger.seq
    told = ask("dataset", "pin", "v1")
    assert (told["keys"], told["is_new"]) == (home.ledger.present("pin")["v1"]["keys"], False)
    assert home.ledger.seq == seq, "what is pinned already is told alone"
    made = patch_version(home.ledger, home.store, "v1", [FILM], from_step=20)
    patch = ask("dataset", "pin", "v1.1")
    own = ["training/datasets/v1.1.json", f"training/plans/{made.plan_id}.json"]
    assert sorted({*patch["keys"]} - {*told["keys"]}) == own
    assert say("dataset", "pin", "v1.1")[0].startswith("v1.1 is pinned: ")
    assert "its base v1 among them" in say("dataset", "pin", "v1.1")[0]
    assert say("dataset", "pin", "v1")[1].endswith("pins of their own: v1.1 (pinned)")
    freed = ask("dataset", "unpin", "v1.1", "--reason", "a test run")
    assert freed == {
        "version": "v1.1", "free": own, "still_pinned_by": {"v1": len(told["keys"])}
    }  # fmt: skip
    assert [line.split()[:2] for line in say("dataset", "pins")] == [
        ["version", "pinned"], ["v1", "yes"], ["v1.1", "no"]
    ]  # fmt: skip
    assert ask("dataset", "pin", "v1")["patches"] == {"v1.1": False}
    assert ask("dataset", "pin", "v1.1")["is_new"] is True
    assert ask("dataset", "unpin", "v1.2", "--reason", "x", code=1)["kind"] == "CatalogError"
    assert ask("dataset", "unpin", "v1", "--reason", "", code=2)["kind"] == "ValueError"


def test_a_patch_says_what_it_needs(ask, tmp_path):
    for words in ((), ("--from-step", "1"), ("--exclude", "x"), ("--again", "--from-step", "1")):
        assert ask("dataset", "patch", "v1", *words, code=2)["kind"] == "ValueError"
    assert "v1 is no patch" in ask("dataset", "patch", "v1", "--again", code=1)["error"]


def test_a_cut_is_checked_before_anything_starts(ask, tmp_path):
    recipe = tmp_path / "recipe.toml"
    assert "no recipe at" in ask("dataset", "cut", str(recipe), code=1)["error"]
    recipe.write_text('name = "r"\n')
    for words in (("--version", "v1.1"), ("--version", "three"), ("--as-of-date", "soon")):
        assert ask("dataset", "cut", str(recipe), *words, code=2)["kind"] == "ValueError"


def test_fsck(ask, say, home):
    data = ask("fsck", "--deep")
    assert data["ok"] is True
    key = home.rows("placements")["shard_key"][0]
    home.store.delete(key)
    data = ask("fsck", code=1)
    assert (data["ok"], [each["key"] for each in data["missing"]]) == (False, [key])
    assert f"  missing {key}: named by placements of v1.0000" in say("fsck", code=1)
    open_store(home.deployment.store).put(key, b"other")
    assert ask("fsck")["ok"] is True
    assert [each["key"] for each in ask("fsck", "--deep", code=1)["damaged"]] == [key]


def test_gc(ask, say, home):
    assert ask("gc") == {"applied": False, "objects": [], "bytes": 0}
    home.store.put("derived/frame_packs/t0/old.tar", b"loose")
    assert ask("gc")["objects"] == [], "it is young: a running step may need it"
    young = ("gc", "--min-age-hours", "0")
    data = ask(*young)
    assert ([each["key"] for each in data["objects"]], data["bytes"]) == (
        ["derived/frame_packs/t0/old.tar"], 5
    )  # fmt: skip
    assert say(*young)[-1] == "1 objects, 5 bytes could be deleted (--apply does it)"
    assert ask(*young, "--apply")["applied"] is True
    assert ask(*young)["objects"] == []
    assert ask("fsck")["ok"] is True


def test_drop_make_check_and_list(ask, say, tmp_path):
    folder = tmp_path / "media"
    folder.mkdir()
    (folder / "one.mp4").write_bytes(b"bytes")
    words = ("drop", "make", str(folder), "--tier", "licensed", "--license", "x", "--source", "new")
    sidecar = tmp_path / "records.jsonl"
    sidecar.write_text("{")
    assert "one JSON record a line" in ask(*words, "--records", str(sidecar), code=1)["error"]
    made = ask(*words)
    assert made["drop"].startswith("licensed.new.")
    assert ask("drop", "check", made["folder"]) == {
        "drop": made["drop"], "ok": True, "faults": []
    }  # fmt: skip
    states = {row["drop"]: row["state"] for row in ask("drop", "list")}
    assert states == {A: "landed", B: "landed", made["drop"]: "ready"}
    assert say("drop", "list")[0].split() == ["drop", "state", "raw", "assets", "clips", "faults"]
    assert say(*words)[:-1] == [f"assumed: {choice}" for choice in made["assumed"]]
    faults = ask("drop", "check", str(folder), code=1)
    assert faults["ok"] is False
    assert faults["faults"]
    assert "is not a folder" in ask("drop", "check", str(tmp_path / "none"), code=1)["error"]


def test_stage_runs_one_order_and_prints_its_report(ask, home, tmp_path):
    refs = {
        table: home.ledger.live(table, "v1")
        for table in ("manifests", "dataset_index", "step_plans", "training_index_parts")
    }
    order = Order(
        stage="lifecycle", step="snapshots", partition="v1", code_version=SNAPSHOT.code_version,
        params={}, inputs=refs, tables=SNAPSHOT.tables,
    )  # fmt: skip
    path = tmp_path / "order.json"
    body = {"format_version": 1, "store": home.deployment.store, "order": order.to_json()}
    path.write_text(json.dumps(body))
    root = logging.getLogger()
    before = list(root.handlers), root.level
    try:
        report = ask("stage", "lifecycle", "snapshots", str(path))
        assert report["order_digest"] == order.digest
        assert report["objects"]["snapshots"]["num_rows"] == 1
        assert (
            "not shard/step_plan" in ask("stage", "shard", "step_plan", str(path), code=1)["error"]
        )
        path.write_text(json.dumps({**body, "format_version": 9}))
        assert (
            "order file format 9"
            in ask("stage", "lifecycle", "snapshots", str(path), code=1)["error"]
        )
    finally:
        root.handlers[:], level = before
        root.setLevel(level)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("plan", "show", "v9", "--step", "1"), 1),
        (("plan", "show", "v1", "--step", "-1"), 2),
        (("plan", "where", "v1", "--clip", "nonsense"), 2),
        (("plan", "where", "v9", "--clip", FILM), 1),
        (("lineage", "clip", "nonsense"), 2),
        (("lineage", "asset", "0" * 16), 1),
        (("lineage", "sample", "v1:1"), 2),
        (("lineage", "sample", "v1:1:99"), 1),
        (("dataset", "pin", "v9"), 1),
        (("stage", "ingest", "land", "/nowhere/order.json"), 1),
    ],
)
def test_a_call_that_fails_says_why_in_both_tongues(home, capsys, words, code):
    assert run_command([*words, "--json", "--home", str(home.path)]) == code
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert set(told) == {"error", "kind"}
    assert err == f"wsdata: {told['error']}\n"
    assert run_command([*words, "--home", str(home.path)]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"wsdata: {told['error']}\n"


@pytest.mark.parametrize(
    "words",
    [(), ("dance",), ("plan",), ("plan", "show", "v1"), ("drop", "make"), ("funnel", "--dorp"),
     ("plan", "show", "v1", "--step", "one"), ("quarantine", "release", "x")],
)  # fmt: skip
def test_a_wrong_call_exits_with_2(words, capsys):
    with pytest.raises(SystemExit) as ended:
        run_command(list(words))
    assert ended.value.code == 2
    assert "usage: wsdata" in capsys.readouterr().err


def test_the_home_may_come_from_the_environment(home, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("WSDATA_HOME", str(home.path))
    assert run_command(["dataset", "list", "--json"]) == 0
    assert [v["version"] for v in json.loads(capsys.readouterr().out)] == ["v1"]
    assert run_command(["dataset", "list", "--home", str(tmp_path / "fresh")]) == 0
    assert capsys.readouterr().out == "no dataset version yet\n"
    (tmp_path / "fresh" / "deployment.toml").write_text("stroe = 'x'")
    assert run_command(["dataset", "list", "--home", str(tmp_path / "fresh")]) == 1
    assert "unknown keys ['stroe']" in capsys.readouterr().err


def test_a_reader_that_has_enough_is_no_fault(tmp_path):
    command = [sys.executable, "-m", "wsdata", "drop", "list", "--json", "--home", str(tmp_path)]
    with subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()  # as `| head` does, before anything was written
        said = process.stderr.read()
    assert (process.returncode, said) == (0, b"")
