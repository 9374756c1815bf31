import numpy as np
import pytest

from wsdata.preprocess.filters import safety
from wsdata.recipe import Gates
from wsdata_tests.preprocess.picture_support import fog, picture


@pytest.mark.parametrize(
    "name", ["astronaut.png", "chelsea.png", "coffee.png", "gravel.png", "hubble_deep_field.jpg"]
)
def test_harmless_pictures_are_far_from_the_gate(name):
    assert safety.safety_scores([picture(name)])["nsfw"]["score"] < 0.3


@pytest.mark.parametrize("level", [0, 60, 128, 200, 255])
def test_grey_and_foggy_frames_pass_the_gate(level):
    flat = np.full((120, 160, 3), level, np.uint8)
    for frame in (flat, fog(level)):
        assert safety.safety_scores([frame])["nsfw"]["score"] < Gates().safety_max


def test_the_score_is_the_median_and_the_largest_stands_beside_it():
    names = ["astronaut.png", "coffee.png", "chelsea.png"]
    each = [safety.safety_scores([picture(name)])["nsfw"]["score"] for name in names]
    found = safety.safety_scores([picture(name) for name in names])
    assert found["nsfw"]["score"] == sorted(each)[1]
    assert found["nsfw_max"]["score"] == max(each)
    assert found["nsfw"]["detail"] == {"frames": each}


def test_without_a_frame_it_is_unknown():
    assert safety.safety_scores([])["nsfw"] == {
        "score": None,
        "status": "unscored",
        "reason": "no colour frame",
        "detail": None,
    }
