"""The describer says what was measured: the facts are in the words, and nothing else is."""

import dataclasses

import numpy as np
import pytest

from wsdata.label.describer import Describer, dense_caption, short_caption
from wsdata.label.engine import CaptionRequest, ClipFacts
from wsdata.label.looks import measure_looks
from wsdata.label.qc import caption_flags

STREAM = ClipFacts(
    clip_id="a" * 24 + "-0-000000000-000003120",
    media_kind="video",
    duration_s=3.12,
    width_px=480,
    height_px=360,
    aspect="4:3",
    tags=(("dam", 0.41), ("valley", 0.2), ("lakeside", 0.08)),
    camera="static",
    camera_confidence=0.8,
    motion=0.004,
    moving_share=0.35,
    text_share=0.0,
    num_faces=0,
    sharpness=0.7,
    sound="ambience",
)
TITLE = dataclasses.replace(
    STREAM,
    aspect="16:9",
    tags=(("television", 0.7),),
    camera="pan",
    camera_confidence=0.3,
    pan_x=-0.2,
    text_words=("HIS", "GIRL", "FRIDAY"),
    text_share=0.05,
    num_faces=2,
    sound="speech",
)
UNKNOWN = ClipFacts(
    clip_id="b" * 24 + "-0-000000000-000000001",
    media_kind="image",
    duration_s=0.001,
    width_px=512,
    height_px=512,
    aspect="1:1",
)


def picture(*colors) -> np.ndarray:
    """Vertical stripes of equal width."""
    stripes = [np.full((90, 160 // len(colors), 3), color, np.uint8) for color in colors]
    return np.concatenate(stripes, axis=1)


def test_a_dense_caption_states_every_measurement():
    looks = measure_looks([picture((200, 30, 30), (20, 60, 220))])
    said = dense_caption(TITLE, looks)

    for words in (
        "3.1 seconds", "shows a television", "red", "blue", "moderate movement", "35 percent",
        "probably pans to the left", "Two faces", '"HIS GIRL FRIDAY"', "Speech is heard",
    ):  # fmt: skip
        assert words in said


def test_doubt_about_the_subject_is_said():
    assert "shows a television" in dense_caption(TITLE, None)
    assert "probably shows a dam" in dense_caption(STREAM, None)
    weak = dataclasses.replace(STREAM, tags=(("obelisk", 0.2),))
    assert "may show an obelisk" in dense_caption(weak, None)
    weaker = dataclasses.replace(STREAM, tags=(("obelisk", 0.05),))
    assert "not clear. It resembles an obelisk." in dense_caption(weaker, None)
    assert "obelisk" not in short_caption(weaker, None)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("sunglasses", "shows sunglasses"), ("school bus", "shows a school bus"),
        ("abacus", "shows an abacus"), ("unicycle", "shows a unicycle"),
        ("magnetic compass", "shows a magnetic compass"), ("hip", "shows a rose hip"),
    ],
)  # fmt: skip
def test_names_are_given_their_article(name, said):
    assert said in short_caption(dataclasses.replace(STREAM, tags=((name, 0.9),)), None)


def test_a_camera_motion_that_is_hardly_believed_is_not_mentioned():
    unsure = dataclasses.replace(TITLE, camera_confidence=0.2)
    assert "camera" not in dense_caption(unsure, None) + short_caption(unsure, None)


def test_what_was_not_measured_is_not_mentioned():
    said = dense_caption(UNKNOWN, None).lower()
    for word in ("camera", "face", "text", "sound", "speech", "second", "movement"):
        assert word not in said


@pytest.mark.parametrize("facts", [STREAM, TITLE])
def test_captions_of_fully_measured_clips_have_the_lengths_that_training_wants(facts):
    looks = measure_looks([picture((200, 30, 30), (20, 60, 220))])
    assert 60 <= len(dense_caption(facts, looks).split()) <= 150
    assert 8 <= len(short_caption(facts, looks).split()) <= 20
    for variant, text in (
        ("dense", dense_caption(facts, looks)),
        ("short", short_caption(facts, looks)),
    ):
        assert caption_flags(text, variant) == []


def test_the_same_facts_give_the_same_words_and_others_give_others():
    frames = [picture((200, 30, 30))]
    requests = [
        CaptionRequest(
            facts=facts, variants=("dense", "short"), pack_sha256="0", frames=lambda: frames
        )
        for facts in (STREAM, TITLE, STREAM)
    ]
    first, other, again = Describer().caption(requests)

    assert first == again
    assert first.texts["dense"] != other.texts["dense"]
    assert first.texts["short"] != other.texts["short"]
    assert Describer.version.startswith("describer-")


def test_only_the_wanted_variants_are_written():
    request = CaptionRequest(
        facts=STREAM, variants=("short",), pack_sha256="0", frames=lambda: [picture((0, 0, 0))]
    )
    assert set(next(Describer().caption([request])).texts) == {"short"}


@pytest.mark.parametrize(
    ("rgb", "name"),
    [
        ((5, 5, 5), "black"), ((250, 250, 250), "white"), ((128, 128, 128), "grey"),
        ((220, 20, 20), "red"), ((90, 10, 10), "dark red"), ((110, 70, 30), "brown"),
        ((30, 160, 40), "green"), ((10, 70, 20), "dark green"), ((20, 50, 220), "blue"),
        ((150, 190, 230), "pale blue"), ((240, 220, 40), "yellow"), ((250, 140, 20), "orange"),
        ((250, 130, 190), "pink"), ((110, 30, 150), "purple"), ((30, 190, 190), "turquoise"),
    ],
)  # fmt: skip
def test_plain_colours_have_their_plain_names(rgb, name):
    looks = measure_looks([np.full((48, 64, 3), rgb, np.uint8)])
    assert looks.colors == ((name, 100),)


def test_colours_and_light_are_placed():
    looks = measure_looks([picture((20, 20, 20), (20, 20, 20), (240, 240, 240))])
    assert looks.brighter == "right"
    assert ("white", "right") in looks.places
    assert dict(looks.colors) == {"black": 66, "white": 33}


def test_a_clip_that_fades_in_grows_brighter():
    frames = [np.full((48, 64, 3), level, np.uint8) for level in range(0, 240, 20)]
    looks = measure_looks(frames)
    assert looks.luma_change > 100
    assert "grows brighter" in dense_caption(STREAM, looks)


def test_looks_of_pictures_smaller_than_the_grid_and_of_none():
    assert measure_looks([np.full((5, 7, 3), 255, np.uint8)]).colors == (("white", 100),)
    assert measure_looks([]) is None
