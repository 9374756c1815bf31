"""The label steps over real clips: who is labelled, what differs, what a kill leaves."""

import dataclasses
import itertools
import json

import numpy as np
import pytest

from wsdata.catalog.objects import read_object
from wsdata.errors import CaptionerUnavailable, RecipeError
from wsdata.label import audio_labels, camera, caption, embed, qc
from wsdata.label.audio_labels import audio_label
from wsdata.label.facts import SCORE_TABLES
from wsdata.recipe import Recipe
from wsdata.store import FolderStore
from wsdata_tests.label.label_support import Drop, put_pack, real_pack, server

EMBEDDINGS = {"embeddings": dataclasses.asdict(Recipe(name="t").embeddings)}
CAPTIONS = {"captions": {"engine": "describer", "model": "", "variants": ["dense", "short"],
                         "dense_tiers": ["T0", "T1"]}}  # fmt: skip

# name, kind, tier (None: stopped by a gate), sound
CLIPS = (
    ("stream_of_water.webm", "video", "T1", "kept"),
    ("flower.webm", "video", "T0", "silent"),
    ("chelsea.png", "image", "T3", "none"),
    ("testsrc_av1.mkv", "video", None, "none"),
)
AUDIO = {"silence_share": 0.02, "voiced_share": 0.0, "speech_share": 0.0, "singing_share": 0.0,
         "music_share": 0.05}  # fmt: skip


def clip_id(index: int) -> str:
    return f"{index:024x}-0-000000000-000002000"


def score_row(index: int, filter_name: str, name: str, score: float, detail=None) -> dict:
    return {
        "clip_id": clip_id(index), "asset_id": f"{index:064x}", "source": "web",
        "filter": filter_name, "score_name": name, "score": score, "model_version": "m",
        "status": "ok", "detail_json": json.dumps(detail) if detail else None,
    }  # fmt: skip


@pytest.fixture(scope="module")
def packs():
    return {name: real_pack(name) for name, *_ in CLIPS}


@pytest.fixture
def drop(tmp_path, packs):
    drop = Drop(FolderStore(tmp_path / "store"))
    ids = [(index, *entry) for index, entry in enumerate(CLIPS)]
    drop.put("clips", [
        {"clip_id": clip_id(i), "asset_id": f"{i:064x}", "source": "web", "media_kind": kind,
         "duration_s": 2.0, "width_px": 480, "height_px": 360, "aspect": "4:3"}
        for i, _, kind, _, _ in ids
    ])  # fmt: skip
    drop.put("gates", [
        {"clip_id": clip_id(i), "asset_id": f"{i:064x}", "passed": tier is not None,
         "provisional_tier": tier}
        for i, _, _, tier, _ in ids
    ])  # fmt: skip
    drop.put("frame_packs", [
        {"clip_id": clip_id(i), "asset_id": f"{i:064x}", **put_pack(drop.store, name, packs[name])}
        for i, name, *_ in ids
    ])  # fmt: skip
    drop.put("audio_tracks", [
        {"clip_id": clip_id(i), "asset_id": f"{i:064x}", "status": sound}
        for i, _, _, _, sound in ids
    ])  # fmt: skip
    drop.put("audio_scores", [score_row(0, "audio", name, v) for name, v in AUDIO.items()])
    for table in SCORE_TABLES:
        drop.put(table, [])
    drop.put("overlay_scores", [
        score_row(0, "overlay", "text_share", 0.1, {"words": ["LIVE NEWS", "7pm"]}),
        score_row(1, "overlay", "text_share", 0.0),
    ])  # fmt: skip
    drop.put("faces_scores", [score_row(0, "faces", "face_count", 2.0)])
    return drop


def rows(drop, table):
    return read_object(drop.store, drop.refs[table][0]).to_dicts()


def label_all(drop, captions=CAPTIONS, settings=None):
    drop.run(embed.STEP, params=EMBEDDINGS)
    drop.run(camera.STEP)
    drop.run(audio_labels.STEP)
    return drop.run(caption.STEP, params=captions, settings=settings)


def test_real_clips_that_passed_get_different_captions_and_the_stopped_one_none(drop):
    report = label_all(drop)
    drop.run(qc.STEP)
    captions = rows(drop, "captions")

    wanted = {(0, "dense"), (0, "short"), (1, "dense"), (1, "short"), (2, "short")}
    assert {(row["clip_id"], row["variant"]) for row in captions} == {
        (clip_id(index), variant) for index, variant in wanted
    }
    assert {row["captioner_version"] for row in captions} == {"describer-measured-1"}
    texts = {(row["clip_id"], row["variant"]): row["text"] for row in captions}
    assert len(set(texts.values())) == len(texts)
    assert 'reads "LIVE NEWS 7pm"' in texts[clip_id(0), "dense"]
    assert "Two faces are visible" in texts[clip_id(0), "dense"]
    assert "Ambient sound" in texts[clip_id(0), "dense"]
    assert "No text was read" in texts[clip_id(1), "dense"]
    assert "sound track is silent" in texts[clip_id(1), "dense"]
    assert "cat" in texts[clip_id(2), "short"]
    assert all(row["num_words"] == len(row["text"].split()) for row in captions)
    assert all(row["passed"] for row in rows(drop, "label_qc"))

    shown = report.display["captions"]
    assert shown["contact_sheet"]["raw_value"].startswith("![contact sheet](data:image/jpeg;")
    assert drop.store.get(shown["contact_sheet_blob"]["raw_value"])[:2] == b"\xff\xd8"
    assert texts[clip_id(0), "short"] in shown["samples"]["raw_value"]


def test_embeddings_are_unit_vectors_with_tags(drop, packs):
    drop.run(embed.STEP, params=EMBEDDINGS)
    found = rows(drop, "clip_embeddings")

    assert len(found) == 3
    vectors = np.array([row["vector"] for row in found])
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-4)
    cosines = vectors @ vectors.T
    assert max(cosines[a, b] for a, b in itertools.combinations(range(3), 2)) < 0.8
    assert json.loads(found[2]["tags_json"])[0][0] in ("Egyptian cat", "tabby", "tiger cat")


def test_every_step_run_twice_or_in_a_fresh_store_gives_the_same_objects(drop, tmp_path):
    label_all(drop)
    first = {table: refs[0].sha256 for table, refs in drop.refs.items()}
    label_all(drop)
    assert first == {table: refs[0].sha256 for table, refs in drop.refs.items()}

    for key, _ in list(drop.store.list("progress/")):
        drop.store.delete(key)
    label_all(drop)
    assert first == {table: refs[0].sha256 for table, refs in drop.refs.items()}


def test_real_still_cameras_are_static_and_a_still_has_no_camera(drop):
    drop.run(camera.STEP)
    labels = {row["clip_id"]: row["label"] for row in rows(drop, "camera_motion")}
    assert labels == {clip_id(0): "static", clip_id(1): "static", clip_id(2): "none"}


SERVED = {"captions": {**CAPTIONS["captions"], "engine": "openai", "model": "cap-7b",
                       "dense_tiers": []}}  # fmt: skip
GOOD = (200, '{"short": "A brown dog runs over a beach."}')


def test_a_captioner_that_dies_half_way_is_asked_only_for_the_rest(drop):
    with server([GOOD, (401, "key expired")]) as (endpoint, asked):
        with pytest.raises(CaptionerUnavailable, match="401"):
            label_all(drop, SERVED, {"endpoint": endpoint, "concurrency": 1})
        assert len(asked) >= 2
    with server([GOOD]) as (endpoint, asked):
        drop.run(caption.STEP, params=SERVED, settings={"endpoint": endpoint, "concurrency": 1})
        assert len(asked) == 2
    captions = rows(drop, "captions")
    assert [row["status"] for row in captions] == ["ok"] * 3
    assert captions[0]["captioner_version"].startswith("openai-cap-7b-")


def test_clips_are_captioned_best_tier_first(drop):
    with server([GOOD]) as (endpoint, asked):
        label_all(drop, SERVED, {"endpoint": endpoint, "concurrency": 1})
    kinds = [entry["body"]["messages"][1]["content"][-1]["text"] for entry in asked]
    assert ["silence" in kinds[0], "ambience" in kinds[1], "kind: image" in kinds[2]] == [True] * 3


def test_a_caption_that_failed_is_a_row_with_its_reason_and_is_asked_for_again(drop):
    with server([(400, "too long"), GOOD]) as (endpoint, _):
        label_all(drop, SERVED, {"endpoint": endpoint, "concurrency": 1})
    failed = [row for row in rows(drop, "captions") if row["status"] == "failed"]
    assert [row["text"] for row in failed] == [None]
    assert failed[0]["reason"].startswith("refused: 400")

    drop.run(qc.STEP)
    flags = {row["clip_id"]: row["flags_json"] for row in rows(drop, "label_qc")}
    assert flags[failed[0]["clip_id"]] == '["failed"]'

    with server([GOOD]) as (endpoint, asked):
        drop.run(caption.STEP, params=SERVED, settings={"endpoint": endpoint, "concurrency": 1})
        assert len(asked) == 1
    assert {row["status"] for row in rows(drop, "captions")} == {"ok"}


def test_another_engine_or_model_is_another_order_and_another_endpoint_is_not(drop):
    label_all(drop)

    def order_of(**changes):
        section = {**CAPTIONS["captions"], **changes}
        return drop.order(caption.STEP, params={"captions": section}).digest

    assert len({order_of(), order_of(engine="vllm", model="a"), order_of(model="b")}) == 3
    recipe = Recipe(name="t")
    moved = dataclasses.replace(
        recipe, captions=dataclasses.replace(recipe.captions, endpoint="http://elsewhere/v1")
    )
    assert caption.STEP.params_of is not None
    assert caption.STEP.params_of(recipe) == caption.STEP.params_of(moved)


def test_an_unknown_embedding_engine_or_missing_weights_are_said(drop):
    with pytest.raises(RecipeError, match="expected 'imagenet' or 'siglip'"):
        drop.run(embed.STEP, params={"embeddings": {"engine": "clip", "weights": ""}})
    with pytest.raises(RecipeError, match=r"config\.json"):
        drop.run(embed.STEP, params={"embeddings": {"engine": "siglip", "weights": "/nowhere"}})


@pytest.mark.parametrize(
    ("status", "scores", "label"),
    [
        ("none", {}, "none"),
        ("unsynced", {}, "none"),
        ("silent", {}, "silence"),
        ("kept", {}, None),
        ("kept", {"voiced_share": 0.8, "speech_share": 0.9, "music_share": 0.99}, "speech"),
        ("kept", {"voiced_share": 0.0, "speech_share": 0.9, "music_share": 0.9}, "music"),
        ("kept", {"singing_share": 0.7}, "music"),
        ("kept", {"music_share": 0.2}, "ambience"),
        ("kept", {"silence_share": 0.99, "music_share": 0.0}, "silence"),
    ],
)
def test_sound_gets_the_label_that_its_scores_ask_for(status, scores, label):
    full = {**dict.fromkeys(AUDIO, 0.0), **scores} if scores else {}
    found = audio_label(status, full)
    assert found["label"] == label
    if label is None or status == "unsynced":
        assert found["reason"]
