"""Speeds as workers left them: against sums by hand, and one that a real worker left."""

import json
from collections import defaultdict

import pytest

from wsdata.cli.main import run_command
from wsdata.cli.stage import run_stage
from wsdata.ingest.delivery import Declaration, make_drop
from wsdata.ingest.landing import FolderLanding
from wsdata.lifecycle.retention import collect_garbage
from wsdata.observability import capacity_speeds
from wsdata.observability.capacity_measure import BESIDE_DECODE, measure
from wsdata.observability.capacity_speeds import read_speeds, speed_inputs
from wsdata.orders import build_order
from wsdata.recipe import Recipe
from wsdata.steps import STEPS
from wsdata.tables import FILTERS, ROW_FILTERS
from wsdata.units import SPEEDS
from wsdata_tests.lifecycle.fabricated import A, B
from wsdata_tests.orders_support import new_store

HOUR_S = 3600
EVEN = dict.fromkeys(BESIDE_DECODE, 0.5)


class Workers:
    """Leaves what workers leave, one later than the other."""

    def __init__(self, store):
        self.store = store
        self.num = 0

    def leave(self, step, num_made, made_s, *, kind="unit", gpus=1, code="1", params="p", kept=0,
              **amounts):  # fmt: skip
        stage, name = step.split("/")
        pace = {"num_made": num_made, "num_kept": kept, "made_s": made_s, "amounts": amounts}
        body = {
            "format_version": 1, "stage": stage, "step": name, "partition": "drop",
            "code_version": code, "params_digest": params, "num_gpus": gpus, "kinds": {kind: pace},
        }  # fmt: skip
        self.num += 1
        key = f"{SPEEDS}{stage}.{name}/20261101T0000{self.num:02d}.000000Z-{'0' * 16}.json"
        self.store.put(key, json.dumps(body).encode())
        return key

    def beside_decode(self, made_s=100.0):
        for step in BESIDE_DECODE:
            self.leave(step, 10, made_s, media_s=1000.0)


@pytest.fixture
def workers(tmp_path):
    return Workers(new_store(tmp_path))


def found(workers, least_s=0.0, shares=EVEN):
    return speed_inputs(read_speeds(workers.store), least_s, shares)


def values(workers, **more):
    return {name: value for name, (value, _) in found(workers, **more).values.items()}


def test_workers_are_summed_and_their_gpus_billed(workers):
    workers.leave("preprocess/decode", 100, 50.0, gpus=2, media_s=6000.0)
    workers.leave("preprocess/decode", 20, 10.0, gpus=2, media_s=3000.0, kept=9000)
    workers.leave("label/captions", 30, 90.0, gpus=8)
    workers.leave("label/clip_embeddings", 40, 10.0)
    workers.leave("ingest/land", 3, 4.0, gpus=0, size_bytes=2e9)
    workers.leave("ingest/vault_prints", 3, 4.0, gpus=0, media_s=80.0)
    assert values(workers) == {
        "decode_realtime_factor": pytest.approx(9000 / (60 * 2)),
        "caption_gpu_s_per_clip": pytest.approx(90 * 8 / 30),
        "embed_gpu_s_per_clip": 0.25,
        "landing_bytes_per_s": 5e8,
        "vault_realtime_factor": 20.0,
    }
    _, origin = found(workers).values["decode_realtime_factor"]
    assert origin.kind == "measured"
    assert "120 units" in origin.note
    assert "2 workers, 2 GPUs each" in origin.note


def test_what_worked_too_little_is_told_and_not_used(workers):
    workers.leave("preprocess/decode", 100, 50.0, media_s=6000.0)
    workers.leave("label/clip_embeddings", 40, 400.0)
    told = found(workers, least_s=360.0)
    assert set(told.values) == {"embed_gpu_s_per_clip"}
    assert told.too_little == ["preprocess/decode"]
    assert values(workers, least_s=50.0)["decode_realtime_factor"] == 120.0


def test_the_newest_hardware_counts_once_it_worked_enough(workers):
    workers.leave("preprocess/decode", 100, 500.0, code="old", media_s=5000.0)
    workers.leave("preprocess/decode", 100, 100.0, code="new", media_s=9000.0)
    workers.leave("preprocess/decode", 10, 10.0, code="new", params="other", media_s=10.0)
    assert len(read_speeds(workers.store)) == 3
    assert values(workers, least_s=200.0)["decode_realtime_factor"] == 10.0
    assert values(workers, least_s=50.0)["decode_realtime_factor"] == 90.0
    assert values(workers)["decode_realtime_factor"] == 1.0
    workers.leave("preprocess/decode", 10, 10.0, code="new", gpus=0, media_s=20.0)
    told = found(workers)
    assert told.values["decode_realtime_factor"][0] == 2.0, "without a GPU it stands for one"
    assert told.without_gpu == ["preprocess/decode"]


def test_only_the_newest_workers_are_asked(workers, monkeypatch):
    for media_s in (100.0, 200.0, 300.0):
        workers.leave("preprocess/decode", 1, 1.0, media_s=media_s)
    monkeypatch.setattr(capacity_speeds, "NEWEST", 2)
    assert values(workers)["decode_realtime_factor"] == 250.0


def test_another_format_is_left_out(workers):
    key = workers.leave("preprocess/decode", 1, 1.0, media_s=100.0)
    other = json.loads(workers.store.get(key)) | {"format_version": 2}
    workers.store.put(key.replace("2026", "2027"), json.dumps(other).encode())
    (speed,) = read_speeds(workers.store)
    assert speed.num_workers == 1


def test_joining_shards_is_put_on_all_rungs_alike(workers):
    step = "shard/latent_shards"
    workers.leave(step, 10, 100.0, kind="256p", num_frames=24 * 5000)
    workers.leave(step, 10, 100.0, kind="720p", num_frames=24 * 1000)
    workers.leave(step, 1, 50.0, kind="shard")
    assert values(workers) == {
        "encode_256p_realtime_factor": pytest.approx(5000 / 100 / 1.25),
        "encode_720p_realtime_factor": pytest.approx(1000 / 100 / 1.25),
    }


def test_filters_are_all_that_their_pool_does_beside_decode(workers):
    pool = STEPS["preprocess/decode"].pool
    beside = {name for name, step in STEPS.items() if step.pool == pool}
    assert set(BESIDE_DECODE) == beside - {"preprocess/decode"}
    workers.beside_decode()
    each = 0.5 * 100 / 1000  # GPU-seconds of a step for a second of raw video
    assert values(workers) == {
        "filter_realtime_factor": pytest.approx(1 / (each * len(BESIDE_DECODE)))
    }
    some = dict(list(EVEN.items())[1:])
    assert values(workers, shares=some) == {}, "one step of them is not known"


def test_what_a_step_looked_at_is_in_the_catalog(timed):
    gated = {"status": "unscored", "reason": "gated by technical: too short"}
    rows = timed.rows("motion_scores", B).to_dicts()
    timed.commit(B, {"motion_scores": [row | gated for row in rows[:2]] + rows[2:]}, version="2")
    shares = measure(timed.ledger, timed.store).worked_shares
    num_a, num_b = 5, 12  # clips, of five seconds each; film is in both drops
    assert shares["preprocess/overlay_scores"] == pytest.approx((num_a + num_b) * 5 / 100)
    assert shares["preprocess/motion_scores"] == pytest.approx((num_a + num_b - 2) * 5 / 100)
    assert shares["ingest/fingerprints"] == 1
    assert "label/camera_motion" not in shares, "it has not run"


@pytest.fixture
def ask(timed, capsys):
    def _ask(*words):
        assert run_command(["capacity", "--json", "--home", str(timed.path), *words]) == 0
        return json.loads(capsys.readouterr().out)

    return _ask


def test_the_command_takes_what_workers_left(timed, ask, tmp_path):
    workers = Workers(timed.store)
    workers.leave("preprocess/decode", 100, 720.0, media_s=36_000.0)
    workers.leave("label/captions", 5, 1.0)
    data = ask()
    decode = data["inputs"]["decode_realtime_factor"]
    assert (decode["value"], decode["origin"]) == (50.0, "measured")
    assert data["figures"]["compute"]["decode_gpu_hours"]["value"] == 50e6 / 50
    assert data["figures"]["compute"]["decode_gpu_hours"]["basis"] == "mixed"
    assert data["inputs"]["caption_gpu_s_per_clip"]["origin"] == "assumed"
    assert any("not used" in n and "label/captions" in n for n in data["notes"])
    assert [s["units_per_worker_s"] for s in data["speeds"] if s["step"] == "label/captions"] == [5]
    assert ask("--min-worker-hours", "0")["inputs"]["caption_gpu_s_per_clip"]["value"] == 0.2
    assert ask("--reference")["inputs"]["decode_realtime_factor"]["origin"] == "assumed"
    file = tmp_path / "m.json"
    stated = {"decode_realtime_factor": {"value": 77, "from": "the vendor"}}
    file.write_text(json.dumps({"format_version": 1, "measured": stated}))
    decode = ask("--measured", str(file))["inputs"]["decode_realtime_factor"]
    assert decode == {"value": 77, "origin": "measured", "note": "the vendor"}


def test_filters_need_yields_that_count(timed, ask):
    camera = [{"clip_id": clip_id} for clip_id in timed.rows("clips", A)["clip_id"]]
    timed.commit(A, {"camera_motion": camera})
    Workers(timed.store).beside_decode(made_s=1000.0)
    assert ask()["inputs"]["filter_realtime_factor"]["origin"] == "assumed"
    factor = ask("--min-hours", "0")["inputs"]["filter_realtime_factor"]
    assert factor["origin"] == "measured"
    num_scored = len(FILTERS) - len(ROW_FILTERS)  # film and lake alone have camera motion
    assert factor["value"] == pytest.approx(1 / (1 + num_scored * 17 * 5 / 100 + 5 * 5 / 100))


def test_a_person_is_shown_speeds(timed, capsys):
    Workers(timed.store).leave("preprocess/decode", 100, 720.0, gpus=0, media_s=36_000.0)
    assert run_command(["capacity", "--home", str(timed.path)]) == 0
    out = capsys.readouterr().out
    assert "SPEEDS, measured" in out
    assert "without a GPU" in out


def test_speeds_stay_when_reports_are_collected(home):
    key = Workers(home.store).leave("preprocess/decode", 1, 1.0)
    home.store.put("reports/abc/def.json", b"{}")
    gone = collect_garbage(home.ledger, home.store, is_applied=True, min_age_s=0)
    assert "reports/abc/def.json" in {each.key for each in gone}
    assert home.store.size(key) is not None


def test_a_worker_leaves_its_speed_and_a_second_one_none(home, tmp_path):
    """A real order of landing, worked as a pool works it."""
    media = tmp_path / "film.mp4"
    media.write_bytes(b"x" * 5000)
    declared = Declaration(source_tier="licensed", source="new", license_id="CC0-1.0")
    zone = FolderLanding(home.path / "landing")
    drop = make_drop([media], zone, declared, date="20261103")
    step = STEPS["ingest/land"]
    order = build_order(
        step, drop, ledger=home.ledger, deployment=home.deployment, recipe=Recipe(name="test")
    )
    path = tmp_path / "order.json"
    body = {"format_version": 1, "store": home.store.address, "order": order.to_json()}
    path.write_text(json.dumps(body))
    made = run_stage("ingest", "land", str(path))["metrics"]
    again = run_stage("ingest", "land", str(path))["metrics"]
    assert (made["num_units_made"], again["num_units_made"]) == (2, 0), "a listing and a file"
    assert (made["num_units_kept"], again["num_units_kept"]) == (0, 2)
    speeds = {speed.kind: speed for speed in read_speeds(home.store)}
    assert set(speeds) == {"listing", "unit"}
    landed = speeds["unit"]
    assert (landed.num_workers, landed.num_units) == (1, 1)
    assert landed.amounts == defaultdict(float, size_bytes=5000.0)
    told = speed_inputs(speeds.values(), 0.0, {}).values["landing_bytes_per_s"]
    assert told[0] == pytest.approx(5000 / landed.worker_s)
