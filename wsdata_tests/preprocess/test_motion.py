import numpy as np
import pytest

from wsdata.digest import sha256_bytes
from wsdata.preprocess.filters import motion
from wsdata.preprocess.framepack import FramePack, PackedFrame, write_framepack
from wsdata_tests.preprocess.score_support import clip, step_run

WIDTH, HEIGHT = 320, 180
FRAME_S = 1 / 24


def texture(width: int = WIDTH + 64) -> np.ndarray:
    """Smooth noise, such as flow can follow."""
    noise = np.random.default_rng(7).random((HEIGHT + 64, width))
    for axis in (0, 1):
        for _ in range(4):
            noise = (noise + np.roll(noise, 1, axis) + np.roll(noise, -1, axis)) / 3
    noise = (noise - noise.min()) / (noise.max() - noise.min())
    return (noise * 255).astype(np.uint8)


def view(x: int, y: int = 16) -> np.ndarray:
    return texture()[y : y + HEIGHT, x : x + WIDTH]


def pairs(*moves: int, start: int = 32) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(view(start), view(start + move)) for move in moves]


def value(found, name):
    return found[name]["score"]


@pytest.mark.parametrize("move_px", [1, 3, 8])
def test_a_pan_is_its_known_share_of_the_width(move_px):
    found = motion.motion_scores(pairs(move_px, move_px), [FRAME_S, FRAME_S])
    assert value(found, "magnitude") == pytest.approx(move_px / WIDTH, rel=0.15)
    assert value(found, "jitter") == pytest.approx(0.0, abs=1e-6)
    assert value(found, "moving_share") > 0.8


def test_speed_does_not_depend_on_how_far_apart_a_pair_is():
    near = motion.motion_scores(pairs(2, 2), [FRAME_S, FRAME_S])
    far = motion.motion_scores(pairs(4, 4), [2 * FRAME_S, 2 * FRAME_S])
    assert value(near, "magnitude") == pytest.approx(value(far, "magnitude"), rel=0.1)


def test_shake_is_jitter_and_a_steady_pan_of_the_same_speed_is_not():
    steady = motion.motion_scores(pairs(4, 4, 4, 4), [FRAME_S] * 4)
    shaking = motion.motion_scores(pairs(4, -4, 4, -4), [FRAME_S] * 4)
    assert value(shaking, "jitter") == pytest.approx(8 / WIDTH, rel=0.15)
    assert value(shaking, "magnitude") == pytest.approx(value(steady, "magnitude"), rel=0.15)
    assert value(steady, "jitter") < 1e-6


def test_a_frozen_video_has_no_motion_at_all():
    found = motion.motion_scores([(view(32), view(32))] * 3, [FRAME_S] * 3)
    assert [value(found, name) for name in motion.FILTER.score_names] == [0.0, 0.0, 0.0]


def test_a_flat_frame_has_no_motion_at_all():
    flat = np.zeros((HEIGHT, WIDTH), np.uint8)
    assert value(motion.motion_scores([(flat, flat)], [FRAME_S]), "magnitude") == 0.0


def test_without_pairs_motion_is_unknown_and_one_pair_tells_no_jitter():
    nothing = motion.motion_scores([], [])
    assert {entry["status"] for entry in nothing.values()} == {"unscored"}
    one = motion.motion_scores(pairs(3), [FRAME_S])
    assert one["jitter"]["reason"] == "one frame pair"
    assert one["magnitude"]["status"] == "ok"


def put_pack(run, row, pack):
    data = write_framepack(pack)
    assert sha256_bytes(data) == row["sha256"]
    run.store.put(row["key"], data)


def test_the_step_reads_times_from_the_pack_and_leaves_stills_unscored(tmp_path):
    moving, still = clip(0), clip(1, media_kind="image")
    gap_s = 1 / 12
    frames = [
        (PackedFrame(at, first), PackedFrame(at + gap_s, second))
        for at, (first, second) in zip((0.25, 0.75), pairs(6, 6), strict=True)
    ]
    pack = FramePack(colors=[], luma_pairs=frames)
    rows = [
        {"clip_id": row["clip_id"], "asset_id": row["asset_id"], "key": f"packs/{index}",
         "sha256": sha256_bytes(write_framepack(pack))}
        for index, row in enumerate((moving, still))
    ]  # fmt: skip
    run = step_run(tmp_path, motion.STEP, {"clips": [moving, still], "frame_packs": rows})
    for row in rows:
        put_pack(run, row, pack)
    table = motion.run(run).tables["motion_scores"]
    found = {(row["clip_id"], row["score_name"]): row for row in table.to_dicts()}
    assert found[moving["clip_id"], "magnitude"]["score"] == pytest.approx(3 / WIDTH, rel=0.15)
    assert found[still["clip_id"], "magnitude"]["reason"] == "still"
    assert motion.run(run).tables["motion_scores"].equals(table)
