import cv2
import numpy as np
import pytest

from wsdata.preprocess.filters import overlay
from wsdata_tests.preprocess.picture_support import fog, picture


def caption(frame: np.ndarray, text: str, *, at=(60, 320), scale=1.4) -> tuple[np.ndarray, float]:
    """Burn a text in; also the share of the frame that its bounding box covers."""
    drawn = frame.copy()
    cv2.putText(drawn, text, at, cv2.FONT_HERSHEY_SIMPLEX, scale, (255, 255, 255), 3)
    (width, height), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, scale, 3)
    return drawn, width * height / (frame.shape[0] * frame.shape[1])


def test_burned_in_text_is_measured_read_and_lasting():
    frame, box_share = caption(fog(90), "BREAKING NEWS")
    found = overlay.overlay_scores([frame] * 5)
    assert box_share < found["text_share"]["score"] < 2.5 * box_share
    assert found["lasting_share"]["score"] == pytest.approx(found["text_share"]["score"], rel=0.05)
    detail = found["text_share"]["detail"]
    assert detail["words"] == ["BREAKING NEWS"]
    assert [told["size"] for told in detail["frames"]] == [[frame.shape[1], frame.shape[0]]] * 3
    text, confidence, corners, light, flat = detail["frames"][0]["lines"][0]
    assert text == "BREAKING NEWS"
    assert 0.8 <= confidence <= 1.0
    assert max(corners[0::2]) <= frame.shape[1]
    assert abs(light - 90) < 20  # the fog that it stands on
    assert flat > 0.3


def test_a_title_in_one_of_three_frames_counts_a_third_and_does_not_last():
    plain = fog(90)
    titled, _ = caption(plain, "THE END")
    alone = overlay.overlay_scores([titled])
    once = overlay.overlay_scores([plain, titled, plain])
    assert once["text_share"]["score"] == pytest.approx(alone["text_share"]["score"] / 3, rel=1e-3)
    assert once["lasting_share"]["score"] == 0.0
    assert alone["lasting_share"]["reason"] == "one frame"
    assert once["text_seen"]["score"] >= alone["text_share"]["score"], "the most of any frame"


def test_what_is_too_large_or_too_short_for_a_word_is_seen_nonetheless():
    plain = np.full((360, 640, 3), 90, np.uint8)
    huge = caption(plain, "BUNNY", at=(20, 260), scale=7.0)[0]
    single = caption(plain, "Q", at=(300, 200), scale=2.0)[0]
    for titled, at_least in ((huge, 0.1), (single, 0.001)):
        found = overlay.overlay_scores([plain, titled, plain])
        assert found["text_share"]["score"] == 0.0
        assert at_least < found["text_seen"]["score"] <= 1.0
    assert overlay.overlay_scores([plain] * 3)["text_seen"]["score"] == 0.0


@pytest.mark.parametrize("name", ["gravel.png", "coffee.png", "chelsea.png", "rocket.jpg"])
def test_texture_and_round_things_are_not_text(name):
    found = overlay.overlay_scores([picture(name)])
    assert found["text_share"]["score"] == 0.0
    assert found["text_share"]["detail"] is None


def test_fog_and_no_picture_hold_no_text():
    flat = np.zeros((90, 160, 3), np.uint8)
    assert overlay.overlay_scores([fog(), flat])["text_share"]["score"] == 0.0
    nothing = overlay.overlay_scores([])
    assert {nothing[name]["status"] for name in overlay.FILTER.score_names} == {"unscored"}


def test_the_same_frames_give_the_same_scores():
    frame, _ = caption(picture("astronaut.png"), "Ten past nine", at=(20, 480))
    assert overlay.overlay_scores([frame]) == overlay.overlay_scores([frame.copy()])
