"""Pairs against an oracle that compares all with all, and real copies through the steps."""

import hashlib
import itertools
from fractions import Fraction
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import near_duplicates_made as copying
from wsdata import tables
from wsdata.ids import raw_key
from wsdata.ingest import fingerprint, neardup
from wsdata.ingest.neardup import Printed, group_near_duplicates, match_prints, quality_rows
from wsdata.ingest.print_match import match_assets, printed_assets
from wsdata.media.sandbox import reachable_level
from wsdata_tests.ingest import media_support as made
from wsdata_tests.orders_support import new_store, order_of, put_rows, rows_made, run_step

LEVEL = min(reachable_level(), "seccomp", key=("limits", "seccomp", "bubblewrap").index)
MEDIA = Path(__file__).parents[2] / "samples" / "media"
SOUND = np.random.default_rng(9).integers(0, 2**32, 200, dtype=np.uint32)


def _noisy(rng, value: bytes, most: int) -> bytes:
    bits = np.unpackbits(np.frombuffer(value, np.uint8))
    bits[rng.choice(256, rng.integers(0, most + 1), replace=False)] ^= 1
    return np.packbits(bits).tobytes()


def _printed(assets: dict[str, list[tuple]], *, sounds=None) -> Printed:
    """Assets of frames (hash, mirror, core, quality), one a second."""
    prints = [
        {
            "asset_id": name, "frame_index": i, "time_s": float(i), "hash": h, "mirror_hash": m,
            "core_hash": c, "core_mirror_hash": c and bytes(255 - x for x in c), "quality": q,
        }
        for name, frames in assets.items()
        for i, (h, m, c, q) in enumerate(frames)
    ]  # fmt: skip
    probes = [
        {"asset_id": name, "media_kind": "video", "status": "ok", "bit_rate": 1000 + len(frames),
         "width_px": 64, "height_px": 36, "duration_s": float(len(frames))}
        for name, frames in assets.items()
    ]  # fmt: skip
    heard = [
        {"asset_id": name, "start_s": 0.0, "codes": codes.astype("<u4").tobytes(), "version": "t"}
        for name, codes in (sounds or {}).items()
    ]
    return Printed(
        tables.rows_of("fingerprints", prints),
        tables.rows_of("probes", probes),
        tables.rows_of("audio_prints", heard),
    )


def _frames(rng, count, quality=100):
    return [(rng.bytes(32), rng.bytes(32), rng.bytes(32), quality) for _ in range(count)]


def _copy_of(rng, frames, most):
    return [
        (_noisy(rng, h, most), _noisy(rng, m, most), _noisy(rng, c, most), q)
        for h, m, c, q in frames
    ]


def _world(seed: int) -> dict[str, list[tuple]]:
    """Bodies, copies of them within and beyond reach, mirrors, excerpts and strangers."""
    rng = np.random.default_rng(seed)
    world: dict[str, list[tuple]] = {}
    for body in range(3):
        frames = _frames(rng, int(rng.integers(3, 9)))
        world[f"{rng.bytes(4).hex()}"] = frames
        for most in (20, 34, 60):
            world[f"{rng.bytes(4).hex()}"] = _copy_of(rng, frames, most)
        world[f"{rng.bytes(4).hex()}"] = [(m, h, None, q) for h, m, _, q in frames]
        world[f"{rng.bytes(4).hex()}"] = _frames(rng, 6) + frames[:5] + _frames(rng, 5)
        logo = [(rng.bytes(32), rng.bytes(32), c, q) for _, _, c, q in frames]
        world[f"{rng.bytes(4).hex()}"] = logo
        del body
    return world


def _by_comparing_all(known: Printed) -> pl.DataFrame:
    assets = printed_assets(known.prints, known.probes, known.sounds)
    rows = [row for a, b in itertools.combinations(assets, 2) for row in match_assets(a, b)]
    return tables.rows_of("match_pairs", rows)


def _some(known: Printed, names) -> Printed:
    return Printed(
        *(
            rows.filter(pl.col("asset_id").is_in(list(names)))
            for rows in (known.prints, known.probes, known.sounds)
        )
    )


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), order=st.randoms(use_true_random=False))
def test_pairs_and_groups_of_drops_in_any_order_are_those_of_comparing_all(seed, order):
    known = _printed(_world(seed))
    names = sorted(known.probes["asset_id"])
    order.shuffle(names)
    drops = [names[i::4] for i in range(4)]
    found, arrived = [tables.empty("match_pairs")], []
    for drop in drops:
        found.append(match_prints(_some(known, drop), [_some(known, one) for one in arrived]))
        arrived.append(drop)
        present = _some(known, [name for one in arrived for name in one])
        pairs = pl.concat(found).sort(tables.TABLES["match_pairs"].key)
        expected = _by_comparing_all(present)
        assert pairs.equals(expected)
        groups = group_near_duplicates(
            pairs.sample(fraction=1, shuffle=True, seed=1), quality_rows(present.probes)
        )
        assert groups.equals(group_near_duplicates(expected, quality_rows(present.probes)))


def _kinds(assets, **options):
    return match_prints(_printed(assets, **options), [])["kind"].to_list()


def test_a_logo_that_spares_the_inner_part_is_a_whole_match():
    rng = np.random.default_rng(1)
    body = _frames(rng, 6)
    logo = [(rng.bytes(32), rng.bytes(32), _noisy(rng, c, 20), q) for _, _, c, q in body]
    assert _kinds({"a": body, "b": logo}) == ["whole"]


def _cropped(rng, frames):
    """As a crop by a tenth leaves them: every frame some 80 bits away."""

    def far(value):
        bits = np.unpackbits(np.frombuffer(value, np.uint8))
        bits[rng.choice(256, 80, replace=False)] ^= 1
        return np.packbits(bits).tobytes()

    return [(far(h), far(m), far(c), q) for h, m, c, q in frames]


def test_the_same_sound_tells_that_cropped_pictures_are_the_same():
    rng = np.random.default_rng(2)
    body = _frames(rng, 12)
    cropped = _cropped(rng, body)
    assert _kinds({"a": body, "b": cropped}) == []
    other = rng.integers(0, 2**32, 200, dtype=np.uint32)
    assert _kinds({"a": body, "b": cropped}, sounds={"a": SOUND, "b": other}) == []
    assert _kinds({"a": body, "b": cropped}, sounds={"a": SOUND, "b": SOUND}) == ["whole"]


def test_a_song_under_other_pictures_is_no_match():
    rng = np.random.default_rng(3)
    strangers = {"a": _frames(rng, 12), "b": _frames(rng, 12)}
    assert _kinds(strangers, sounds={"a": SOUND, "b": SOUND}) == []


def test_a_picture_that_stands_still_matches_by_sound_alone():
    rng = np.random.default_rng(4)
    (one,) = _frames(rng, 1)
    stills = {"a": [one] * 30, "b": [(_noisy(rng, one[0], 4), *one[1:])] * 30}
    assert _kinds(stills) == []
    other = rng.integers(0, 2**32, 200, dtype=np.uint32)
    assert _kinds(stills, sounds={"a": SOUND, "b": other}) == []
    assert _kinds(stills, sounds={"a": SOUND, "b": SOUND}) == ["whole"]


def test_a_still_that_two_bodies_share_has_one_vote():
    rng = np.random.default_rng(5)
    (card,) = _frames(rng, 1)
    assert _kinds({"a": [card] * 20 + _frames(rng, 5), "b": [card] * 20 + _frames(rng, 5)}) == []


def test_an_intro_before_cards_without_a_vote_is_no_match():
    rng = np.random.default_rng(6)
    intro = _frames(rng, 4)
    cards = [_frames(rng, 9, 40) for _ in range(2)]
    assert "whole" not in _kinds({"a": intro + cards[0], "b": intro + cards[1]})


def test_a_body_among_cards_is_a_whole_match_where_the_cards_agree_too():
    rng = np.random.default_rng(7)
    body, cards = _frames(rng, 5), _frames(rng, 10, 40)
    assert _kinds({"a": cards + body, "b": _copy_of(rng, cards + body, 20)}) == ["whole"]


def _match_files(tmp_path, files: dict[str, bytes]) -> dict[tuple[str, str], set[str]]:
    """Run both steps over files; return the kinds of match by names of files."""
    store = new_store(tmp_path)
    names = {hashlib.sha256(data).hexdigest(): name for name, data in files.items()}
    for asset_id, name in names.items():
        store.put(raw_key(asset_id), files[name])
    rows = [
        {"asset_id": one, "size_bytes": len(files[names[one]]), "in_vault": False} for one in names
    ]
    printed = run_step(
        fingerprint.STEP,
        order_of(
            fingerprint.STEP, "crawl.web.20261101.001",
            {"raw_assets": [put_rows(store, "raw_assets", rows)]},
            settings={"sandbox_minimum": LEVEL},
        ),
        store,
    )  # fmt: skip
    inputs = {table: [ref] for table, ref in printed.objects.items()}
    report = run_step(neardup.STEP, order_of(neardup.STEP, "crawl.web.20261101.001", inputs), store)
    found: dict[tuple[str, str], set[str]] = {}
    for row in rows_made(store, report, "match_pairs").iter_rows(named=True):
        pair = tuple(sorted((names[row["asset_a"]], names[row["asset_b"]])))
        found.setdefault(pair, set()).add(row["kind"])
    return found


def test_copies_of_a_real_clip_are_found_and_what_strangers_share_is_not(tmp_path):
    clip = copying.read_clip(MEDIA / "bottle.mp4", most_s=6.0)
    clip = clip.changed(lambda one: copying.scaled(one, 320, 180))
    water = copying.read_clip(MEDIA / "stream_of_water.webm").changed(
        lambda one: copying.scaled(one, 320, 180)
    )
    kinds = ("crf35", "half", "25fps", "logo", "letterbox", "mirror")
    files = {
        kind: path.read_bytes() for kind, path in copying.copies(clip, water, tmp_path, "c", kinds)
    }
    files["original"] = copying.write_clip(clip, tmp_path / "o.mp4").read_bytes()
    stranger = made.scene(31, 96, 320, 180)
    body = copying.Clip(stranger, [i / 24 for i in range(96)])
    black = copying.black(2.0, clip)
    files["black+clip"] = copying.write_clip(
        copying.joined(black, clip), tmp_path / "b"
    ).read_bytes()
    files["black+other"] = copying.write_clip(
        copying.joined(black, body), tmp_path / "s"
    ).read_bytes()
    compilation = copying.joined(body, clip.cut(1.0, 5.5), body, water, body)
    files["compilation"] = copying.write_clip(compilation, tmp_path / "k").read_bytes()
    found = _match_files(tmp_path, files)
    for kind in (*kinds, "black+clip"):
        assert found[tuple(sorted((kind, "original")))] == {"whole"}, kind
    assert found["compilation", "original"] == {"span"}
    assert not [pair for pair in found if pair == ("black+clip", "black+other")]
    assert {kind for pair, kinds in found.items() if "black+other" in pair for kind in kinds} <= {
        "span"
    }


def test_a_file_is_known_by_its_bytes_and_not_by_where_it_lay(tmp_path):
    first = made.video(made.scene(41, 24))
    other = made.video(made.scene(42, 24))
    assert _match_files(tmp_path / "1", {"there": first, "elsewhere": first}) == {}
    assert _match_files(tmp_path / "2", {"there": first, "there again": other}) == {}


@pytest.mark.parametrize("rate", [Fraction(15), Fraction(30)])
def test_another_frame_rate_keeps_the_body(tmp_path, rate):
    frames = made.scene(43, 120, 320, 180)
    clip = copying.Clip(frames, [i / 24 for i in range(120)])
    files = {
        "a": copying.write_clip(clip, tmp_path / "a").read_bytes(),
        "b": copying.write_clip(clip, tmp_path / "b", fps=rate).read_bytes(),
    }
    assert _match_files(tmp_path, files)["a", "b"] == {"whole"}
