"""Faults of captions, against texts that are broken in known ways."""

import pytest

from wsdata.label.qc import (
    ascii_share,
    caption_faults,
    caption_flags,
    has_mojibake,
    has_repetition,
    tag_agreement,
)

GOOD = (
    "A wide video clip, 5.1 seconds long, probably shows a daisy. The picture is bright and "
    "colourful, with strong contrast. Its main colour is green, over about 45 percent, followed "
    "by white and yellow. There is slight movement. The camera stands still. No face is visible."
)
FOREIGN = (
    "caf\u00e9 fa\u00e7ade na\u00efve", "\u00dcber die Stra\u00dfe",
    "\u041f\u0440\u0438\u0432\u0435\u0442",
    "\u6620\u753b", "5 \u20ac, 20 \u00b0C \u2014 \u201cquoted\u201d", "\u00c5ngstr\u00f6m", GOOD,
)  # fmt: skip


@pytest.mark.parametrize("text", FOREIGN)
def test_well_decoded_text_of_any_language_is_no_mojibake(text):
    assert not has_mojibake(text)


@pytest.mark.parametrize("codec", ["latin-1", "cp1252"])
@pytest.mark.parametrize("text", [text for text in FOREIGN if not text.isascii()])
def test_utf8_read_as_a_one_byte_code_page_is_mojibake(text, codec):
    # cp1252 has no character for five bytes, which its readers replace
    assert has_mojibake(text.encode().decode(codec, errors="replace"))


def test_the_replacement_character_is_mojibake():
    assert has_mojibake(b"caf\xe9 table".decode(errors="replace"))


@pytest.mark.parametrize(
    "text",
    [
        "a man walks walks walks",
        "The man walks into the room and " * 5,
        "the camera pans left and the camera pans left and then the camera pans left again",
    ],
)
def test_text_that_goes_round_in_circles_is_found(text):
    assert has_repetition(text)


def test_ordinary_prose_does_not_go_round_in_circles():
    assert not has_repetition(GOOD)
    assert not has_repetition("")


def test_lengths_and_language_are_bounded_per_variant():
    assert caption_flags(GOOD, "dense") == []
    assert caption_flags("A dog.", "short") == ["too_short"]
    assert caption_flags(GOOD, "short") == ["too_long"]
    assert caption_flags("\u6620\u753b \u6620\u753b2 \u753b3 \u753b4", "short") == ["not_ascii"]


def test_words_that_the_picture_shows_are_not_the_captioners_language():
    text = 'A square still image with the text "\u6620\u753b\u6620\u753b\u6620\u753b\u6620\u753b"'
    assert caption_flags(text, "short") == []


def test_agreement_asks_only_for_what_the_network_is_sure_of():
    tags = [("tabby cat", 0.6), ("sock", 0.1)]
    assert tag_agreement("Two cats sleep", tags) == 1.0
    assert tag_agreement("A dog runs", tags) == 0.0
    assert tag_agreement("A dog runs", [("sock", 0.1)]) is None


def test_ascii_share():
    assert ascii_share("ab\u00e9\u00e8") == 0.5
    assert ascii_share("") == 1.0


def rows(texts, *, version="vlm-1", variant="dense", agreement=None, failed=0):
    made = [
        {"captioner_version": version, "variant": variant, "status": "ok", "text": text,
         "agreement": agreement}
        for text in texts
    ]  # fmt: skip
    lost = {"captioner_version": version, "variant": variant, "status": "failed", "text": None}
    return made + [lost] * failed


def various(count):
    return [f"{GOOD} Shot number {index} of the reel follows." for index in range(count)]


def test_a_sound_captioner_has_no_faults():
    assert caption_faults(rows(various(50), agreement=0.8)) == []
    assert caption_faults([]) == []


def test_the_version_that_writes_mojibake_is_named_and_the_other_is_not():
    broken = [text.replace("daisy", "caf\u00c3\u00a9") for text in various(5)]
    found = caption_faults(rows(various(95), version="vlm-1") + rows(broken, version="vlm-2"))

    assert len(found) == 1
    assert found[0].startswith("vlm-2: 5 of 5")
    assert "mojibake" in found[0]


def test_failures_sameness_and_disagreement_are_faults():
    assert "2 of 12 captions failed" in caption_faults(rows(various(10), failed=2))[0]
    assert "one and the same text" in caption_faults(rows([GOOD] * 10))[0]
    assert "image network" in caption_faults(rows(various(10), agreement=0.1))[0]
