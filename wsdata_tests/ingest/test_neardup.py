import itertools

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata import tables
from wsdata.ingest import neardup
from wsdata.ingest.neardup import Printed, group_near_duplicates, match_prints, quality_rows
from wsdata_tests.orders_support import new_store, order_of, put_rows, rows_made, run_step


def _hash(seed: int) -> bytes:
    return np.random.default_rng(seed).bytes(32)


def _flip(value: bytes, num_bits: int, seed: int = 0) -> bytes:
    bits = np.unpackbits(np.frombuffer(value, np.uint8))
    bits[np.random.default_rng(seed).choice(256, num_bits, replace=False)] ^= 1
    return np.packbits(bits).tobytes()


def _asset(asset_id, frames, *, kind="video", duration_s=None, rate=1000, height=360):
    """Rows of one asset: `frames` are (hash, mirror hash, quality), one a second."""
    prints = [
        {
            "asset_id": asset_id, "frame_index": i, "time_s": float(i), "hash": h,
            "mirror_hash": m, "quality": q, "method": "test",
        }
        for i, (h, m, q) in enumerate(frames)
    ]  # fmt: skip
    probe = {
        "asset_id": asset_id, "media_kind": kind, "status": "ok", "bit_rate": rate,
        "duration_s": float(len(frames)) if duration_s is None else duration_s,
        "width_px": 640, "height_px": height,
    }  # fmt: skip
    return prints, probe


def _body(seeds, quality=100):
    return [(_hash(seed), _hash(seed + 10_000), quality) for seed in seeds]


def _like(frames, num_bits, seed=1):
    return [(_flip(h, num_bits, seed + i), _flip(m, num_bits, seed + i), q)
            for i, (h, m, q) in enumerate(frames)]  # fmt: skip


def _match(*assets):
    prints = tables.rows_of("fingerprints", [row for rows, _ in assets for row in rows])
    probes = tables.rows_of("probes", [probe for _, probe in assets])
    sounds = tables.empty("audio_prints")
    return match_prints(Printed(prints, probes, sounds), []).to_dicts()


BODY = _body(range(10))
OTHER = _body(range(100, 110))
BLACK = [(b"\0" * 32, b"\0" * 32, 0)] * 2


def test_a_copy_is_a_whole_match():
    (pair,) = _match(_asset("b", BODY), _asset("a", _like(BODY, 20)))
    assert (pair["asset_a"], pair["asset_b"], pair["kind"]) == ("a", "b", "whole")
    assert (pair["coverage_a"], pair["coverage_b"], pair["mean_distance"]) == (1.0, 1.0, 20.0)
    assert not pair["is_mirrored"]


def test_strangers_do_not_match():
    assert _match(_asset("a", BODY), _asset("b", OTHER)) == []


def test_the_distance_is_inclusive():
    assert len(_match(_asset("a", BODY), _asset("b", _like(BODY, 31)))) == 1
    far = _like(BODY, 32)
    assert _match(_asset("a", BODY), _asset("b", far)) == []


def test_a_mirrored_copy_is_a_whole_match():
    mirrored = [(m, h, q) for h, m, q in BODY]
    (pair,) = _match(_asset("a", BODY), _asset("b", mirrored))
    assert pair["kind"] == "whole"
    assert pair["is_mirrored"]


def test_an_added_intro_is_a_whole_match():
    (pair,) = _match(_asset("a", BODY), _asset("b", OTHER[:3] + BODY))
    assert pair["kind"] == "whole"
    assert (pair["coverage_a"], pair["b_start_s"]) == (1.0, 3.0)


def test_an_excerpt_in_a_compilation_is_a_span():
    compilation = _body(range(200, 230)) + BODY[2:8] + _body(range(300, 330))
    (pair,) = _match(_asset("a", BODY + _body(range(50, 60))), _asset("b", compilation))
    assert pair["kind"] == "span"
    assert (pair["a_start_s"], pair["a_end_s"]) == (2.0, 7.0)
    assert (pair["b_start_s"], pair["b_end_s"]) == (30.0, 35.0)
    assert pair["num_matched"] == 6


def test_two_excerpts_are_two_spans():
    a = BODY + _body(range(50, 70))
    b = _body(range(200, 220)) + BODY[:5] + _body(range(230, 260)) + BODY[5:]
    pairs = _match(_asset("a", a), _asset("b", b))
    spans = sorted((pair["a_start_s"], pair["b_start_s"]) for pair in pairs)
    assert spans == [(0.0, 20.0), (5.0, 55.0)]


def test_the_same_black_intro_is_no_match():
    assert _match(_asset("a", BLACK + BODY), _asset("b", BLACK + OTHER)) == []


def test_a_shared_title_card_alone_is_no_match():
    card = _body([900, 901])
    assert _match(_asset("a", card + BODY), _asset("b", card + OTHER)) == []


def test_few_voting_frames_make_no_whole_match():
    dark = [(_hash(seed), _hash(seed), 10) for seed in range(400, 410)]
    pairs = _match(_asset("a", BODY[:2] + dark), _asset("b", BODY[:2] + dark))
    assert [pair["kind"] for pair in pairs] == []


def test_a_still_does_not_merge_with_a_video():
    still = _asset("a", BODY[:1], kind="image", duration_s=0.0)
    assert _match(still, _asset("b", BODY[:1] * 3)) == []
    (pair,) = _match(still, _asset("b", _like(BODY[:1], 9), kind="image", duration_s=0.0))
    assert pair["kind"] == "whole"


def test_a_logo_over_every_frame_is_a_whole_match_where_times_agree():
    logo = BODY[:1] + _like(BODY[1:], 55)
    (pair,) = _match(_asset("a", BODY), _asset("b", logo))
    assert pair["kind"] == "whole"
    shifted = _asset("b", logo, duration_s=40.0)
    assert _match(_asset("a", BODY), shifted) == []


def _quality(ranks: dict[str, float]) -> pl.DataFrame:
    return tables.rows_of(
        "asset_quality", [{"asset_id": key, "rank_value": rank} for key, rank in ranks.items()]
    )


def _pairs(edges) -> pl.DataFrame:
    return pl.concat(
        [tables.empty("match_pairs")]
        + [
            tables.rows_of("match_pairs", [{
                "asset_a": min(a, b), "asset_b": max(a, b), "kind": kind,
                "a_start_s": 0.0, "b_start_s": 0.0,
            }])
            for a, b, kind in edges
        ]
    )  # fmt: skip


def test_the_canonical_copy_has_the_highest_rank_and_then_the_smallest_id():
    pairs = _pairs([("a", "b", "whole"), ("b", "c", "whole"), ("d", "e", "whole")])
    groups = group_near_duplicates(pairs, _quality({"a": 1, "b": 5, "c": 2, "d": 3, "e": 3}))
    assert dict(groups.iter_rows()) == {"a": "b", "b": "b", "c": "b", "d": "d", "e": "d"}


def test_a_span_merges_nothing():
    groups = group_near_duplicates(_pairs([("a", "b", "span")]), _quality({"a": 1, "b": 5}))
    assert dict(groups.iter_rows()) == {"a": "a", "b": "b"}


def _groups_by_hand(edges, ranks):
    """Oracle: spread each asset's label over its neighbours until nothing changes."""
    reach = {key: {key} for key in ranks}
    for _ in ranks:
        for a, b, kind in edges:
            if kind == "whole":
                reach[a] |= reach[b]
                reach[b] |= reach[a]
    return {key: min(reach[key], key=lambda one: (-ranks[one], one)) for key in ranks}


NAMES = list("abcdefgh")


@settings(max_examples=60, deadline=None)
@given(
    edges=st.lists(
        st.tuples(
            st.sampled_from(NAMES), st.sampled_from(NAMES), st.sampled_from(["whole", "span"])
        ).filter(lambda edge: edge[0] != edge[1]),
        max_size=10,
    ),
    ranks=st.lists(st.integers(0, 3), min_size=8, max_size=8),
    order=st.randoms(use_true_random=False),
)  # fmt: skip
def test_grouping_follows_from_the_pairs_in_any_order(edges, ranks, order):
    known = dict(zip(NAMES, map(float, ranks), strict=True))
    shuffled = list(edges) + edges[:2]
    order.shuffle(shuffled)
    qualities = list(known.items())
    order.shuffle(qualities)
    groups = group_near_duplicates(_pairs(shuffled), _quality(dict(qualities)))
    assert dict(groups.iter_rows()) == _groups_by_hand(edges, known)
    assert groups["asset_id"].to_list() == sorted(known)


def test_quality_is_bit_rate_times_resolution():
    _, probe = _asset("a", BODY, rate=3000, height=480)
    unread = {"asset_id": "b", "status": "failed"}
    (row,) = quality_rows(tables.rows_of("probes", [probe, unread])).to_dicts()
    assert (row["asset_id"], row["rank_value"]) == ("a", 3000.0 * 640 * 480)


def _run_drops(tmp_path, order):
    """Run the step drop by drop in an order of arrival; return the union of its pairs."""
    store = new_store(tmp_path)
    drops = {
        "x": _asset("a", BODY),
        "y": _asset("c", _like(BODY, 12)),
        "z": _asset("b", _like(BODY, 9, seed=5)),
    }
    refs = {"fingerprints": [], "probes": [], "audio_prints": []}
    found = []
    for drop in order:
        prints, probe = drops[drop]
        mine = {
            "fingerprints": [put_rows(store, "fingerprints", prints, drop)],
            "probes": [put_rows(store, "probes", [probe], drop)],
            "audio_prints": [put_rows(store, "audio_prints", [], drop)],
        }
        for table, made in mine.items():
            refs[table] = refs[table] + made
        report = run_step(
            neardup.STEP, order_of(neardup.STEP, drop, mine, context=dict(refs)), store
        )
        found.append(rows_made(store, report, "match_pairs"))
    return pl.concat(found).sort("asset_a", "asset_b")


@pytest.mark.parametrize("order", list(itertools.permutations("xyz")))
def test_pairs_of_all_drops_are_the_same_in_any_order_of_arrival(tmp_path, order):
    pairs = _run_drops(tmp_path, order)
    assert pairs.select("asset_a", "asset_b").rows() == [("a", "b"), ("a", "c"), ("b", "c")]
    assert pairs.equals(_run_drops(tmp_path / "again", "xyz"))
