import hashlib

import cv2
import numpy as np
import pytest

from wsdata.ids import raw_key
from wsdata.ingest import fingerprint
from wsdata.ingest.fingerprint import print_file
from wsdata.ingest.print_match import MIN_QUALITY
from wsdata.media.phash import (
    CARD_QUALITY,
    HASH_BITS,
    crop_bars,
    distances,
    hamming,
    hash_picture,
    unpack_hashes,
)
from wsdata.media.sandbox import reachable_level
from wsdata_tests.ingest import media_support as made
from wsdata_tests.orders_support import new_store, order_of, put_rows, rows_made, run_step

MATCH, STRANGER = 31, 64
LEVEL = min(reachable_level(), "seccomp", key=("limits", "seccomp", "bubblewrap").index)


def _picture(seed=1):
    return made.scene(seed, 1, 480, 270)[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda rgb: cv2.resize(rgb, (240, 136), interpolation=cv2.INTER_AREA),
        lambda rgb: cv2.imdecode(cv2.imencode(".jpg", rgb, [1, 30])[1], cv2.IMREAD_COLOR),
        lambda rgb: np.pad(rgb, ((60, 60), (0, 0), (0, 0))),
        lambda rgb: np.pad(rgb, ((0, 0), (105, 105), (0, 0)), constant_values=16),
    ],
    ids=["rescaled", "re-encoded", "letterboxed", "pillarboxed"],
)
def test_what_looks_the_same_has_a_near_hash(change):
    rgb = _picture()
    ours, _, quality, *_ = hash_picture(rgb)
    theirs, *_ = hash_picture(np.ascontiguousarray(change(rgb)))
    assert quality >= 50
    assert hamming(ours, theirs) <= MATCH


def test_another_picture_has_a_far_hash():
    hashes = [hash_picture(_picture(seed))[0] for seed in range(8)]
    apart = distances(unpack_hashes(hashes), unpack_hashes(hashes))
    assert apart[~np.eye(8, dtype=bool)].min() > STRANGER


def test_a_mirrored_picture_is_found_by_the_mirrored_hash():
    rgb = _picture()
    ours, mirror, *_ = hash_picture(rgb)
    theirs, their_mirror, *_ = hash_picture(np.ascontiguousarray(rgb[:, ::-1]))
    assert hamming(mirror, theirs) <= MATCH
    assert hamming(ours, their_mirror) <= MATCH
    assert hamming(ours, theirs) > STRANGER


def test_a_frame_with_little_in_it_says_so():
    assert hash_picture(np.zeros((144, 256, 3), np.uint8))[2] == 0
    assert hash_picture(np.full((144, 256, 3), 200, np.uint8))[2] < 50


def test_a_dark_sky_is_no_bar():
    rgb = _picture()
    rgb[:100] = 5
    assert crop_bars(rgb).shape == rgb.shape
    black = np.zeros((90, 160, 3), np.uint8)
    assert crop_bars(black).shape == black.shape


def _bars():
    colors = [
        (192, 192, 192),
        (192, 192, 0),
        (0, 192, 192),
        (0, 192, 0),
        (192, 0, 192),
        (192, 0, 0),
    ]
    rgb = np.zeros((270, 480, 3), np.uint8)
    for index, color in enumerate(colors):
        rgb[:200, 80 * index : 80 * (index + 1)] = color
    rgb[200:, 160:320] = (0, 33, 76)
    rgb[200:, 320:] = 20
    return rgb


def _title():
    rgb = np.zeros((270, 480, 3), np.uint8)
    cv2.putText(rgb, "PRESENTS", (60, 150), cv2.FONT_HERSHEY_SIMPLEX, 2, (255, 255, 255), 5)
    return rgb


@pytest.mark.parametrize("card", [_bars(), _title()], ids=["bars", "title"])
def test_a_drawn_card_tells_nothing(card):
    jpeg = cv2.imdecode(cv2.imencode(".jpg", card, [1, 40])[1], cv2.IMREAD_COLOR)
    for rgb in (card, np.asarray(jpeg, np.uint8)):
        found = hash_picture(rgb)
        assert found.quality == CARD_QUALITY < MIN_QUALITY
        assert found.core is None


def test_a_logo_in_a_corner_changes_the_core_little():
    rgb = _picture(3)
    marked = rgb.copy()
    marked[8:38, 412:472] = (250, 210, 20)
    ours, theirs = hash_picture(rgb), hash_picture(marked)
    assert hamming(ours.core, theirs.core) <= MATCH
    assert hamming(ours.core_mirror, hash_picture(marked[:, ::-1]).core) <= MATCH


def test_a_logo_in_a_bar_does_not_end_the_bar():
    barred = np.pad(_picture(4), ((60, 60), (0, 0), (0, 0)))
    marked = barred.copy()
    marked[10:50, 10:60] = 230
    assert crop_bars(marked).shape == crop_bars(barred).shape == _picture(4).shape


def test_distances_count_bits():
    rng = np.random.default_rng(0)
    a, b = rng.bytes(32), rng.bytes(32)
    bits = sum(bin(x ^ y).count("1") for x, y in zip(a, b, strict=True))
    assert hamming(a, b) == bits == distances(unpack_hashes([a]), unpack_hashes([b]))[0, 0]
    assert hamming(a, bytes(255 - x for x in a)) == HASH_BITS


def _prints(tmp_path, data: bytes, **options):
    path, out_dir = tmp_path / "file", tmp_path / "out"
    path.write_bytes(data)
    out_dir.mkdir(exist_ok=True)
    found, report = print_file(path, out_dir, minimum_level=LEVEL, **options)
    assert report.status == "ok"
    return found


def test_a_reencode_has_the_same_prints_and_a_stranger_has_not(tmp_path):
    frames = made.scene(11, 96, 640, 360)
    original = _prints(tmp_path, made.video(frames, gop=96))["prints"]
    small = [cv2.resize(frame, (426, 240), interpolation=cv2.INTER_AREA) for frame in frames]
    copy = _prints(tmp_path, made.video(small, quality=35, gop=30))["prints"]
    other = _prints(tmp_path, made.video(made.scene(12, 96, 640, 360)))["prints"]
    assert len(original) >= 4  # one key frame alone, and yet one print a second

    def apart(a, b):
        packed = [
            unpack_hashes([bytes.fromhex(one["hash"]) for one in prints]) for prints in (a, b)
        ]
        return distances(*packed).min(axis=1)

    assert (apart(original, copy) <= MATCH).all()
    assert apart(original, other).min() > STRANGER


def test_pictures_are_left_where_they_are_asked_for(tmp_path):
    found = _prints(tmp_path, made.video(made.scene(13, 96)), is_dense=True, num_color=3)
    assert len(found["colors"]) == 3
    for name, _, height, width in found["colors"]:
        assert (tmp_path / "out" / name).stat().st_size == height * width * 3
        assert (width, height) == (made.WIDTH, made.HEIGHT)


def _step(tmp_path, files: dict[str, bytes]):
    store = new_store(tmp_path)
    rows = []
    for name, data in files.items():
        asset_id = hashlib.sha256(data).hexdigest()
        is_sealed = name.startswith("sealed")
        if not is_sealed:
            store.put(raw_key(asset_id), data)
        rows.append({"asset_id": asset_id, "size_bytes": len(data), "in_vault": is_sealed})
    inputs = {"raw_assets": [put_rows(store, "raw_assets", rows)]}
    order = order_of(
        fingerprint.STEP, "licensed.acme.20261101.001", inputs,
        settings={"sandbox_minimum": LEVEL},
    )  # fmt: skip
    report = run_step(fingerprint.STEP, order, store)
    probes, prints = (rows_made(store, report, table) for table in ("probes", "fingerprints"))
    return store, order, report, probes, prints


def test_the_step_probes_and_prints_all_but_vault_members(tmp_path):
    files = {
        "video": made.video(made.scene(14, 48)),
        "image": made.png(_picture(15)),
        "text": b"no media\n" * 30,
        "nothing": b"",
        "sealed": made.video(made.scene(16, 24)),
    }
    store, order, report, probes, prints = _step(tmp_path, files)
    ids = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    told = dict(probes.select("asset_id", "status").iter_rows())
    assert told == {
        ids["video"]: "ok", ids["image"]: "ok", ids["text"]: "failed", ids["nothing"]: "empty",
    }  # fmt: skip
    counts = dict(prints.group_by("asset_id").len().iter_rows())
    assert set(counts) == {ids["video"], ids["image"]}
    assert counts[ids["image"]] == 1
    assert set(prints["method"]) == {fingerprint.METHOD}
    again = run_step(fingerprint.STEP, order, store)
    assert {t: ref.sha256 for t, ref in again.objects.items()} == {
        t: ref.sha256 for t, ref in report.objects.items()
    }


def test_the_same_files_give_the_same_rows_anywhere(tmp_path):
    files = {"a": made.video(made.scene(17, 48)), "b": made.jpeg(_picture(18))}
    first = _step(tmp_path / "1", files)[2]
    second = _step(tmp_path / "2", dict(reversed(files.items())))[2]
    assert {t: ref.sha256 for t, ref in first.objects.items()} == {
        t: ref.sha256 for t, ref in second.objects.items()
    }


def test_an_empty_drop_has_no_rows(tmp_path):
    probes, prints = _step(tmp_path, {})[3:]
    assert probes.height == prints.height == 0
