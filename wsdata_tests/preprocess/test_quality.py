import cv2
import numpy as np
import pytest

from wsdata.preprocess.filters import quality
from wsdata_tests.preprocess.picture_support import fog, picture

PICTURES = ["astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg"]


def value(frame: np.ndarray, name: str = "quality") -> float:
    return quality.quality_scores([frame])[name]["score"]


@pytest.mark.parametrize("name", PICTURES)
def test_blur_lowers_it_step_by_step(name):
    frame = picture(name)
    blurred = [cv2.GaussianBlur(frame, (0, 0), sigma) for sigma in (1.5, 3, 6)]
    values = [value(each) for each in (frame, *blurred)]
    assert values == sorted(values, reverse=True)
    assert value(blurred[-1], "sharpness") < value(frame, "sharpness") - 0.3


@pytest.mark.parametrize("name", PICTURES)
def test_each_fault_lowers_its_own_part(name):
    frame = picture(name)
    flat = (frame.astype(np.float32) * 0.3 + 90).astype(np.uint8)
    burnt = np.clip(frame.astype(np.int16) + 140, 0, 255).astype(np.uint8)
    grey = np.repeat(cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)[..., None], 3, axis=2)
    noisy = np.random.default_rng(1).normal(0, 15, frame.shape) + frame
    for part, faulty in (
        ("contrast", flat),
        ("exposure", burnt),
        ("colorfulness", grey),
        ("cleanness", noisy.clip(0, 255).astype(np.uint8)),
    ):
        assert value(faulty, part) < value(frame, part)
        assert 0.0 <= value(faulty) <= 1.0


def test_bars_and_a_soft_background_are_no_fault():
    frame = picture("chelsea.png")
    bars = cv2.copyMakeBorder(frame, 40, 40, 0, 0, cv2.BORDER_CONSTANT, value=(0, 0, 0))
    assert value(bars) == pytest.approx(value(frame), abs=1e-6)
    soft = cv2.GaussianBlur(frame, (0, 0), 8)
    height, width = frame.shape[:2]
    subject = slice(height // 4, height * 3 // 4), slice(width // 4, width * 3 // 4)
    soft[subject] = frame[subject]
    assert value(soft, "sharpness") > value(cv2.GaussianBlur(frame, (0, 0), 2), "sharpness")


def test_it_is_the_median_of_the_frames_and_the_weighted_mean_of_its_parts():
    frame = picture("coffee.png")
    broken = np.full_like(frame, 128)
    found = quality.quality_scores([frame, broken, frame])
    assert found["sharpness"]["score"] == value(frame, "sharpness")
    weighted = sum(quality.WEIGHTS[name] * found[name]["score"] for name in quality.WEIGHTS)
    assert found["quality"]["score"] == pytest.approx(weighted, abs=1e-5)
    assert sum(quality.WEIGHTS.values()) == pytest.approx(1.0)


def test_fog_scores_low_and_black_frames_count_as_nothing():
    assert value(fog()) < 0.5 < value(picture("coffee.png"))
    black, coffee = np.zeros((90, 160, 3), np.uint8), picture("coffee.png")
    assert value(black) == 0.0  # it was looked at: that is low, and not unknown
    assert value(black, "black_share") == 1.0
    fades = quality.quality_scores([black, coffee, coffee])
    assert fades["quality"]["score"] == value(coffee)
    assert fades["black_share"]["score"] == pytest.approx(1 / 3, abs=1e-6)
    assert quality.quality_scores([black, black, coffee])["quality"]["score"] == 0.0
    assert quality.quality_scores([])["quality"]["status"] == "unscored"


@pytest.mark.parametrize("name", [*PICTURES, "gravel.png"])
def test_noise_is_no_sharpness(name):
    frame = picture(name).astype(np.float32)
    rng = np.random.default_rng(2)
    noisy = [
        value((frame + rng.normal(0, sigma, frame.shape)).clip(0, 255).astype(np.uint8))
        for sigma in (10, 20, 40)
    ]
    clean = value(picture(name))
    assert noisy[0] <= clean + 0.02  # a grain that few see
    assert noisy[1] < clean - 0.02
    assert noisy == sorted(noisy, reverse=True)
    assert noisy[-1] < clean - 0.25


def test_noise_alone_is_of_no_quality():
    noise = np.random.default_rng(3).integers(0, 256, (360, 640, 3)).astype(np.uint8)
    assert value(noise, "sharpness") == 0.0
    assert value(noise) < 0.45
