"""A whole drop: neighbours unharmed, quarantine, release, resume, nothing of the vault read."""

import numpy as np
import pytest

from wsdata.digest import sha256_bytes
from wsdata.errors import DecodeFailed, ObjectMissing
from wsdata.ids import raw_key
from wsdata.media.encode import encode_png
from wsdata.media.jobs import JobReport
from wsdata.orders import StepRun
from wsdata.preprocess import decode_drop
from wsdata.preprocess.decode_step import STEP
from wsdata.preprocess.onepass import decode_job
from wsdata.recipe import Recipe
from wsdata_tests import synthetic
from wsdata_tests.orders_support import new_store, order_of, put_rows, rows_made, run_step

DROP = "licensed.acme.20261101.001"


class Runner:
    """Runs jobs here, in this process; what `faults` says of a path's bytes happens instead."""

    def __init__(self, faults=None):
        self.faults = faults or {}
        self.calls = []

    def __call__(self, job, args, *, source, out_dir, wall_s, limits, minimum_level):
        asset_id = sha256_bytes(source.read_bytes())
        self.calls.append((asset_id, args["path"], wall_s))
        if asset_id in self.faults:
            status = self.faults[asset_id]
            return JobReport(status=status, result=None, detail="killed", level="limits")
        with source.open("rb") as file:
            try:
                result = decode_job(args, file, out_dir)
            except (DecodeFailed, OSError) as error:
                detail = f"{type(error).__name__}: {error}"
                return JobReport(status="failed", result=None, detail=detail, level="limits")
        return JobReport(status="ok", result=result, detail="", level="limits")

    def paths_of(self, asset_id):
        return [path for asset, path, _ in self.calls if asset == asset_id]


class Drop:
    """A store with a drop of files in it."""

    def __init__(self, tmp_path, paths, *, in_vault=()):
        self.store = new_store(tmp_path)
        self.ids = {}
        raw, provenance, probes = [], [], []
        for path in paths:
            data = path.read_bytes()
            asset_id = sha256_bytes(data)
            self.ids[path.name] = asset_id
            sealed = path.name in in_vault
            if not sealed:
                self.store.put(raw_key(asset_id), data)
            raw.append(
                {"asset_id": asset_id, "key": None if sealed else raw_key(asset_id),
                 "size_bytes": len(data), "suffix": path.suffix, "in_vault": sealed,
                 "num_files": 1}
            )  # fmt: skip
            provenance.append({"asset_id": asset_id, "drop": DROP, "path": path.name})
            probes.append({"asset_id": asset_id, "duration_s": 3.0})
        self.inputs = {
            "raw_assets": [put_rows(self.store, "raw_assets", raw, DROP)],
            "probes": [put_rows(self.store, "probes", probes, DROP)],
            "provenance": [put_rows(self.store, "provenance", provenance, DROP)],
        }

    def order(self, *, release=None, quarantine=None, num_threads=2):
        return order_of(
            STEP, DROP, self.inputs, params=STEP.params_of(Recipe(name="r")),
            settings={"num_threads": num_threads, "facts": {"quarantine": quarantine or {}}},
            facts={"release": release or {}},
        )  # fmt: skip

    def run(self, runner, **options):
        run = StepRun(self.order(**options), self.store, progress=lambda *_: None)
        return decode_drop.run(run, job_runner=runner)


def _status(result):
    rows = result.tables["decode_status"].iter_rows(named=True)
    return {row["asset_id"]: row for row in rows}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drop")
    hostile = synthetic.make_h2(folder)
    return {
        "good.mp4": synthetic.make_video(
            folder / "good.mp4", (("bars", 3), ("rings", 2.5)), size=(512, 288), audio="sine"
        ),
        "other.mp4": synthetic.make_video(folder / "other.mp4", (("checker", 2.5),)),
        **{path.name: path for path in hostile.values()},
    }


def test_neighbours_of_bad_files_pass_and_every_file_has_its_word(tmp_path, files):
    drop = Drop(tmp_path, files.values())
    result = drop.run(Runner())
    status = {name: _status(result)[asset_id] for name, asset_id in drop.ids.items()}
    assert {name: row["status"] for name, row in status.items()} == {
        "good.mp4": "ok",
        "other.mp4": "ok",
        "h2_empty.mp4": "empty",
        "h2_jpeg.mp4": "ok",
        "h2_no_header.mp4": "quarantined",
        "h2_text.mp4": "quarantined",
    }
    text = status["h2_text.mp4"]
    assert text["attempts"] == 3
    assert text["path_used"] == "careful"
    assert "3 attempts" in text["reason"]
    assert "cannot be opened" in text["reason"]
    assert {fact.subject for fact in result.facts} == {
        drop.ids["h2_text.mp4"], drop.ids["h2_no_header.mp4"],
    }  # fmt: skip
    assert {(fact.kind, fact.body["drop"]) for fact in result.facts} == {("quarantine", DROP)}
    clips = result.tables["clips"]
    assert clips.height == 4
    assert set(clips["source"]) == {"acme"}
    assert set(clips["source_tier"]) == {"licensed"}
    assert result.tables["transcodes_256p"].height == 4
    assert result.tables["transcodes_512p"].height == 2
    assert result.tables["frame_packs"].height == 4
    assert "h2_text.mp4" in result.display["decode_status"]["files"]["raw_value"]


def test_every_blob_named_is_there_and_has_its_digest(tmp_path, files):
    drop = Drop(tmp_path, [files["good.mp4"]])
    result = drop.run(Runner())
    for table in ("transcodes_256p", "transcodes_512p", "audio_tracks", "frame_packs"):
        rows = result.tables[table]
        assert rows.height == 2
        for row in rows.iter_rows(named=True):
            data = drop.store.get(row["key"])
            assert sha256_bytes(data) == row["sha256"]
            assert len(data) == row["size_bytes"]


def test_a_second_run_decodes_nothing_and_a_lost_blob_redoes_its_asset_alone(tmp_path, files):
    drop = Drop(tmp_path, files.values())
    first = drop.run(Runner())
    again = Runner()
    assert drop.run(again).tables["clips"].equals(first.tables["clips"])
    assert again.calls == []
    lost = first.tables["transcodes_512p"]["key"][0]
    drop.store.delete(lost)
    once = Runner()
    healed = drop.run(once, num_threads=1)
    assert [asset for asset, *_ in once.calls] == [drop.ids["good.mp4"]]
    assert healed.tables["transcodes_512p"].equals(first.tables["transcodes_512p"])
    assert drop.store.size(lost) is not None


@pytest.mark.parametrize("status", ["crashed", "timeout", "memory"])
def test_a_child_that_dies_is_tried_on_another_path_then_recorded(tmp_path, files, status):
    drop = Drop(tmp_path, [files["good.mp4"], files["other.mp4"]])
    bad = drop.ids["good.mp4"]
    runner = Runner({bad: status})
    result = drop.run(runner)
    assert runner.paths_of(bad) == ["plain", "plain", "careful"]
    assert _status(result)[bad]["status"] == "quarantined"
    assert f"{status}: killed" in _status(result)[bad]["reason"]
    assert _status(result)[drop.ids["other.mp4"]]["status"] == "ok"
    assert {wall_s for *_, wall_s in runner.calls} == {60.0 + 20.0 * 3.0}


def test_quarantine_is_kept_until_a_release_and_withdrawn_when_it_then_decodes(tmp_path, files):
    drop = Drop(tmp_path, [files["good.mp4"], files["other.mp4"]])
    bad = drop.ids["good.mp4"]
    (fact,) = drop.run(Runner({bad: "crashed"})).facts
    known = {bad: fact.body}
    silent = Runner()
    kept = drop.run(silent, quarantine=known)
    assert silent.calls == []
    assert kept.facts == []
    assert _status(kept)[bad]["status"] == "quarantined"
    release = {bad: {"drop": DROP, "number": 1, "reason": "decoder repaired"}}
    retried = Runner()
    healed = drop.run(retried, quarantine=known, release=release)
    assert retried.paths_of(bad) == ["plain"]
    assert [asset for asset, *_ in retried.calls] == [bad]
    assert _status(healed)[bad]["status"] == "ok"
    (withdrawn,) = healed.facts
    assert (withdrawn.subject, withdrawn.body["withdrawn"]) == (bad, True)


def test_a_release_that_does_not_help_is_stated_anew(tmp_path, files):
    drop = Drop(tmp_path, [files["h2_text.mp4"]])
    (fact,) = drop.run(Runner()).facts
    release = {fact.subject: {"drop": DROP, "number": 1}}
    (again,) = drop.run(Runner(), quarantine={fact.subject: fact.body}, release=release).facts
    assert again.body != fact.body
    known = {fact.subject: again.body}
    assert drop.run(Runner(), quarantine=known, release=release).facts == []


def test_vault_members_are_never_read(tmp_path, files):
    drop = Drop(tmp_path, [files["good.mp4"], files["other.mp4"]], in_vault=("good.mp4",))
    runner = Runner()
    result = drop.run(runner)
    assert {asset for asset, *_ in runner.calls} == {drop.ids["other.mp4"]}
    assert set(_status(result)) == {drop.ids["other.mp4"]}


def test_an_empty_drop_ends_with_empty_tables(tmp_path):
    drop = Drop(tmp_path, [])
    result = drop.run(Runner())
    assert all(rows.height == 0 for rows in result.tables.values())
    assert set(result.tables) == set(STEP.tables)


def test_a_raw_object_that_is_lost_is_a_clear_error(tmp_path, files):
    drop = Drop(tmp_path, [files["other.mp4"]])
    drop.store.delete(raw_key(drop.ids["other.mp4"]))
    with pytest.raises(ObjectMissing, match="raw/sha256"):
        drop.run(Runner())


def test_a_child_that_names_what_it_did_not_leave_has_a_bad_file(tmp_path, files):
    drop = Drop(tmp_path, [files["other.mp4"], files["h2_jpeg.mp4"]])
    bad = drop.ids["other.mp4"]

    def lying(job, args, **options):
        told = Runner()(job, args, **options)
        if sha256_bytes(options["source"].read_bytes()) == bad:
            told.result["clips"][0]["pack"]["file"] = "../../etc/passwd"
        return told

    status = _status(drop.run(lying))
    assert status[bad]["status"] == "quarantined"
    assert "did not leave" in status[bad]["reason"]
    assert status[drop.ids["h2_jpeg.mp4"]]["status"] == "ok"


def test_through_the_real_sandbox_the_rows_are_the_same(tmp_path, files):
    drop = Drop(tmp_path, [files["other.mp4"], files["h2_text.mp4"]])
    report = run_step(STEP, drop.order(), drop.store)
    made = rows_made(drop.store, report, "clips")
    alone = Drop(tmp_path / "alone", [files["other.mp4"], files["h2_text.mp4"]])
    direct = alone.run(Runner(), num_threads=1)
    assert made.equals(direct.tables["clips"])
    assert rows_made(drop.store, report, "frame_packs").equals(direct.tables["frame_packs"])
    status = rows_made(drop.store, report, "decode_status")
    assert sorted(status["status"]) == ["ok", "quarantined"]
    assert set(status["sandbox_level"]) <= {"limits", "seccomp", "bubblewrap"}


@pytest.mark.slow
def test_h8_five_thousand_tiny_files_are_decoded(tmp_path):
    folder = tmp_path / "tiny"
    folder.mkdir()
    draw = np.random.default_rng(0)
    paths = [folder / f"{index}.png" for index in range(5000)]
    for path in paths:
        path.write_bytes(encode_png(draw.integers(0, 256, (16, 16, 3), np.uint8)))
    drop = Drop(tmp_path, paths)
    report = run_step(STEP, drop.order(), drop.store)
    status = rows_made(drop.store, report, "decode_status")
    assert status.height == 5000
    assert set(status["status"]) == {"ok"}
    assert set(status["attempts"]) == {1}
    assert rows_made(drop.store, report, "clips").height == 5000
