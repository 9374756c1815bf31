import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wsdata import tables
from wsdata.curate.decontam import STEP, eval_hits
from wsdata.recipe import Decontamination
from wsdata_tests.curate.catalog_support import DROP, Catalog, asset_id, frame_hash, vector
from wsdata_tests.orders_support import new_store, order_of, put_rows, rows_made, run_step

SETTINGS = Decontamination()


def flip_bits(data: bytes, count: int) -> bytes:
    bits = np.unpackbits(np.frombuffer(data, np.uint8)).copy()
    bits[:count] ^= 1
    return np.packbits(bits).tobytes()


def vault_frame(asset: str, index: int, hash_: bytes, mirror: bytes | None = None, quality=90):
    return {
        "asset_id": asset, "level": "frame", "frame_index": index, "time_s": float(index),
        "hash": hash_, "mirror_hash": mirror or frame_hash(f"mirror of {asset} {index}"),
        "quality": quality,
    }  # fmt: skip


def vault_vector(asset: str, values: list[float], version="net-1"):
    return {
        "asset_id": asset, "level": "asset", "frame_index": 0, "vector": values,
        "embedding_version": version,
    }  # fmt: skip


def hits(catalog: Catalog, vault: list[dict], settings_=SETTINGS) -> pl.DataFrame:
    read = catalog.read
    return eval_hits(
        read["clips"][DROP],
        read["pass_fingerprints"][DROP],
        read["clip_embeddings"][DROP],
        tables.rows_of("vault_prints", vault),
        settings_,
    )


@pytest.mark.parametrize(("bits", "is_hit"), [(0, True), (31, True), (32, False)])
def test_the_distance_is_inclusive(bits, is_hit):
    catalog = Catalog()
    catalog.add_asset("clip")
    vault = [vault_frame("e", i, flip_bits(frame_hash(f"clip {i}"), bits)) for i in range(3)]
    found = hits(catalog, vault)
    assert (found.height > 0) == is_hit
    if is_hit:
        assert found.row(0, named=True)["value"] == bits
        assert found.row(0, named=True)["num_matched"] == 3


def test_a_mirrored_copy_is_a_hit():
    catalog = Catalog()
    catalog.add_asset("clip")
    vault = [
        vault_frame("e", i, frame_hash(f"other {i}"), mirror=frame_hash(f"clip {i}"))
        for i in range(3)
    ]
    assert hits(catalog, vault)["method"].to_list() == ["fingerprint"]


def test_one_frame_is_enough_for_a_still_and_not_for_a_video():
    vault = [vault_frame("e", 0, frame_hash("seen 0"))]
    for kind, expected in (("image", 1), ("video", 0)):
        catalog = Catalog()
        catalog.add_asset("clip", kind=kind, hashes="seen")
        assert hits(catalog, vault).height == expected


def test_frames_with_little_in_them_have_no_vote():
    catalog = Catalog()
    catalog.add_asset("clip")
    vault = [vault_frame("e", i, frame_hash(f"clip {i}"), quality=49) for i in range(5)]
    assert hits(catalog, vault).is_empty()


def test_only_frames_inside_a_clip_count_for_it():
    catalog = Catalog()
    catalog.add_asset("clip", clips=((0.0, 4.0), (4.0, 8.0), (8.0, 12.0)))
    vault = [vault_frame("e", i, frame_hash(f"clip {i}")) for i in (4, 5)]
    found = hits(catalog, vault)
    assert [clip.endswith("000004000-000008000") for clip in found["clip_id"]] == [True]


def test_an_asset_hit_in_half_its_clips_goes_whole():
    catalog = Catalog()
    catalog.add_asset("clip", clips=((0.0, 4.0), (4.0, 8.0)))
    vault = [vault_frame("e", i, frame_hash(f"clip {i}")) for i in (0, 1, 2)]
    found = hits(catalog, vault)
    assert dict(found["method"].value_counts().rows()) == {"fingerprint": 1, "asset": 1}
    whole = found.row(by_predicate=pl.col("method") == "asset", named=True)
    assert whole["value"] == 0.5


def test_a_near_vector_of_the_same_model_is_a_hit():
    catalog = Catalog()
    catalog.add_asset("clip", vectors=[vector("seen")])
    near = (np.array(vector("seen")) + 0.02).tolist()
    assert hits(catalog, [vault_vector("e", near)])["method"].to_list() == ["embedding"]
    assert hits(catalog, [vault_vector("e", vector("unlike"))]).is_empty()
    assert hits(catalog, [vault_vector("e", near, version="net-2")]).is_empty()


def test_no_vault_no_hits():
    catalog = Catalog()
    catalog.add_asset("clip")
    assert hits(catalog, []).is_empty()


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), order=st.randoms(use_true_random=False))
def test_fingerprint_hits_agree_with_comparing_everything(seed, order):
    rng = np.random.RandomState(seed)
    catalog = Catalog()
    for number in range(6):
        catalog.add_asset(str(number), clips=((0.0, 3.0), (3.0, 6.0)))
    prints = catalog.read["pass_fingerprints"][DROP]
    vault = []
    for index in range(12):
        source = prints.row(int(rng.randint(prints.height)), named=True)["hash"]
        bits = int(rng.randint(0, 60))
        vault.append(vault_frame(f"e{rng.randint(3)}", index, flip_bits(source, bits)))
    found = hits(catalog, vault)
    order.shuffle(vault)
    assert hits(catalog, vault).equals(found)

    expected: dict[tuple[str, str], set[int]] = {}
    for clip in catalog.read["clips"][DROP].iter_rows(named=True):
        for frame in prints.filter(pl.col("asset_id") == clip["asset_id"]).iter_rows(named=True):
            if not clip["start_s"] <= frame["time_s"] < clip["end_s"]:
                continue
            ours = np.unpackbits(np.frombuffer(frame["hash"], np.uint8))
            for sealed in vault:
                theirs = np.unpackbits(np.frombuffer(sealed["hash"], np.uint8))
                if (ours != theirs).sum() <= SETTINGS.max_hash_distance:
                    pair = (clip["clip_id"], sealed["asset_id"])
                    expected.setdefault(pair, set()).add(frame["frame_index"])
    wanted = {pair: len(frames) for pair, frames in expected.items() if len(frames) >= 2}
    direct = found.filter(pl.col("method") == "fingerprint")
    assert {(c, e): n for c, e, n in direct["clip_id", "eval_asset_id", "num_matched"].rows()} == (
        wanted
    )


def test_the_step_runs_with_and_without_a_vault(tmp_path):
    catalog = Catalog()
    catalog.add_asset("clip")
    read = catalog.read
    store = new_store(tmp_path)
    inputs = {
        table: [put_rows(store, table, read[table].get(DROP, tables.empty(table)), DROP)]
        for table in ("clips", "fingerprints", "pass_fingerprints", "clip_embeddings")
    }
    params = {
        "decontamination": {"max_hash_distance": 31, "min_matched_frames": 2, "min_cosine": 0.95}
    }
    none = run_step(STEP, order_of(STEP, DROP, inputs, params=params), store)
    assert rows_made(store, none, "eval_matches").is_empty()
    sealed = [vault_frame(asset_id("e"), i, frame_hash(f"clip {i}")) for i in range(5)]
    inputs["vault_prints"] = [put_rows(store, "vault_prints", sealed, DROP)]
    made = run_step(STEP, order_of(STEP, DROP, inputs, params=params), store)
    assert rows_made(store, made, "eval_matches")["eval_asset_id"].to_list() == [asset_id("e")]
    assert made.display["eval_matches"]["clips hit"]["raw_value"] == 1
