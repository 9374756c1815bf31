import hashlib

import numpy as np
import pytest

from wsdata.errors import ObjectMissing
from wsdata.ids import raw_key
from wsdata.ingest import vault_prints
from wsdata.ingest.fingerprint import print_file
from wsdata.media.imagenet import EMBEDDING_VERSION, embed_frames
from wsdata.media.phash import distances, unpack_hashes
from wsdata.media.sandbox import reachable_level
from wsdata.store import FolderStore
from wsdata_tests import synthetic
from wsdata_tests.ingest import media_support as made
from wsdata_tests.orders_support import new_store, order_of, put_rows, rows_made, run_step

LEVEL = min(reachable_level(), "seccomp", key=("limits", "seccomp", "bubblewrap").index)
MEMBER = made.video(made.scene(31, 72, 640, 360))
MEMBER_ID = hashlib.sha256(MEMBER).hexdigest()
TEXT = b"no media at all\n" * 20
TEXT_ID = hashlib.sha256(TEXT).hexdigest()


def _step(tmp_path, drop="licensed.acme.20261101.001", members=(MEMBER, TEXT)):
    store, vault = new_store(tmp_path), FolderStore(tmp_path / "vault")
    rows = []
    for data in members:
        asset_id = hashlib.sha256(data).hexdigest()
        vault.put(raw_key(asset_id), data)
        rows.append({"asset_id": asset_id, "in_vault": True})
    rows.append({"asset_id": "f" * 64, "in_vault": False})  # not in any store: never touched
    inputs = {"raw_assets": [put_rows(store, "raw_assets", rows)]}
    order = order_of(
        vault_prints.STEP, drop, inputs,
        settings={"vault": vault.address, "sandbox_minimum": LEVEL},
    )  # fmt: skip
    report = run_step(vault_prints.STEP, order, store)
    return store, vault, report, rows_made(store, report, "vault_prints")


def test_members_are_printed_and_their_bytes_stay(tmp_path):
    store, vault, _, rows = _step(tmp_path)
    frames = rows.filter(rows["level"] == "frame")
    assert set(frames["asset_id"]) == {MEMBER_ID}
    assert frames.height >= 3
    assets = {row["asset_id"]: row for row in rows.filter(rows["level"] == "asset").to_dicts()}
    assert set(assets) == {MEMBER_ID, TEXT_ID}
    assert assets[TEXT_ID]["vector"] is None
    assert assets[MEMBER_ID]["embedding_version"] == EMBEDDING_VERSION
    assert np.linalg.norm(assets[MEMBER_ID]["vector"]) == pytest.approx(1.0, abs=1e-5)
    assert rows["is_fit_for_eval"].all()
    for key, _ in store.list(""):
        assert MEMBER[:4096] not in store.get(key)
    assert vault.get(raw_key(MEMBER_ID)) == MEMBER


def test_clips_of_a_member_have_a_print_and_a_vector_of_their_own(tmp_path):
    frames = [
        np.asarray(synthetic.picture(pattern, (320, 180), n / 4), np.uint8)
        for pattern in ("bars", "rings")
        for n in range(40)
    ]
    member = made.video(frames, fps=4)  # 20 s
    rows = _step(tmp_path, members=(member,))[3]
    clips = rows.filter(rows["level"] == "clip").sort("time_s").to_dicts()
    assert [clip["frame_index"] for clip in clips] == [0, 1, 2]
    assert [clip["end_s"] for clip in clips] == pytest.approx([20 / 3, 40 / 3, 20.0])
    scenes, _ = embed_frames([frames[0], frames[-1]])
    told = scenes @ np.array([clip["vector"] for clip in clips]).T
    assert told[0, 0] > told[0, 2] + 0.2
    assert told[1, 2] > told[1, 0] + 0.2
    of_frames = set(rows.filter(rows["level"] == "frame")["hash"])
    assert all(clip["hash"] in of_frames for clip in clips)


def test_a_reencode_outside_is_found_by_print_and_by_vector(tmp_path):
    rows = _step(tmp_path, members=(MEMBER,))[3]
    copy = tmp_path / "copy.mp4"
    copy.write_bytes(made.video(made.scene(31, 72, 640, 360), quality=32, gop=20))
    found, _ = print_file(copy, tmp_path, minimum_level=LEVEL, num_color=1)
    ours = unpack_hashes([bytes.fromhex(one["hash"]) for one in found["prints"]])
    theirs = unpack_hashes(rows["hash"].drop_nulls().to_list())
    assert (distances(ours, theirs).min(axis=1) <= 31).all()
    name, _, height, width = found["colors"][0]
    picture = np.frombuffer((tmp_path / name).read_bytes(), np.uint8).reshape(height, width, 3)
    vectors, _ = embed_frames([picture])
    (mean,) = rows.filter(rows["level"] == "asset")["vector"].to_list()
    stranger, _ = embed_frames(made.scene(32, 1, 640, 360))
    assert vectors[0] @ np.array(mean) > 0.9
    assert vectors[0] @ np.array(mean) > stranger[0] @ np.array(mean)


def test_synthetic_members_are_sealed_but_unfit(tmp_path):
    rows = _step(tmp_path, drop="synthetic.gen.20261101.001", members=(MEMBER,))[3]
    assert not rows["is_fit_for_eval"].any()


def test_a_second_run_reads_nothing_again(tmp_path):
    store, vault, report, _ = _step(tmp_path, members=(MEMBER,))
    vault.delete(raw_key(MEMBER_ID))
    inputs = {
        "raw_assets": [put_rows(store, "raw_assets", [{"asset_id": MEMBER_ID, "in_vault": True}])]
    }
    settings = {"vault": vault.address, "sandbox_minimum": LEVEL}
    order = order_of(vault_prints.STEP, "licensed.acme.20261101.001", inputs, settings=settings)
    again = run_step(vault_prints.STEP, order, store)
    assert again.objects["vault_prints"].sha256 == report.objects["vault_prints"].sha256


def test_a_lost_member_is_an_error(tmp_path):
    store, vault = new_store(tmp_path), FolderStore(tmp_path / "vault")
    inputs = {
        "raw_assets": [put_rows(store, "raw_assets", [{"asset_id": MEMBER_ID, "in_vault": True}])]
    }
    settings = {"vault": vault.address, "sandbox_minimum": LEVEL}
    order = order_of(vault_prints.STEP, "licensed.acme.20261101.001", inputs, settings=settings)
    with pytest.raises(ObjectMissing, match=MEMBER_ID):
        run_step(vault_prints.STEP, order, store)
