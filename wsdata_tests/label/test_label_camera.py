"""Camera motion against pictures that are moved by a known amount."""

import cv2
import numpy as np
import pytest

from wsdata.label.camera import camera_motion, pair_motion

WIDTH, HEIGHT, GAP_S = 256, 144, 1 / 24


def texture(seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).integers(0, 255, (HEIGHT * 3, WIDTH * 3), dtype=np.uint8)
    soft = cv2.GaussianBlur(noise, (0, 0), 3)
    return cv2.normalize(soft, np.zeros_like(soft), 0, 255, cv2.NORM_MINMAX)


def view(scene: np.ndarray, x: float = 0.0, y: float = 0.0, scale: float = 1.0) -> np.ndarray:
    """What a camera sees whose centre has travelled (x, y) pixels and gone in by `scale`."""
    centre_x, centre_y = scene.shape[1] / 2 + x, scene.shape[0] / 2 + y
    matrix = np.array(
        [
            [scale, 0, WIDTH / 2 - scale * centre_x],
            [0, scale, HEIGHT / 2 - scale * centre_y],
        ]
    )
    return cv2.warpAffine(scene, matrix, (WIDTH, HEIGHT), flags=cv2.INTER_LINEAR)


def pairs_along(path):
    """Luma pairs of a camera that is at path[i] first and at path[i + 1] one frame later."""
    scene = texture()
    frames = [view(scene, *at) for at in path]
    pairs = list(zip(frames[::2], frames[1::2], strict=True))
    return pairs, [GAP_S] * len(pairs)


@pytest.mark.parametrize(
    ("step", "label", "sign_of"),
    [
        ((2.0, 0.0), "pan", ("pan_x", 1)),
        ((-2.0, 0.0), "pan", ("pan_x", -1)),
        ((0.0, 1.5), "tilt", ("pan_y", 1)),
        ((0.0, -1.5), "tilt", ("pan_y", -1)),
    ],
)
def test_a_travelling_camera_is_named_with_its_direction_and_speed(step, label, sign_of):
    at = [(k * step[0], k * step[1]) for k in range(8)]
    found = camera_motion(*pairs_along(at))

    assert found.label == label
    assert found.confidence > 0.5
    field, sign = sign_of
    speed = max(abs(step[0]), abs(step[1])) / WIDTH / GAP_S
    assert getattr(found, field) == pytest.approx(sign * speed, rel=0.1)


@pytest.mark.parametrize("direction", [1, -1])
def test_a_zoom_is_named_with_its_direction(direction):
    scales = [1.02 ** (direction * k) for k in range(8)]
    found = camera_motion(*pairs_along([(0.0, 0.0, scale) for scale in scales]))

    assert found.label == "zoom"
    assert found.zoom == pytest.approx(direction * 0.02 / GAP_S, rel=0.15)


def test_a_still_camera_is_static_though_a_subject_crosses_the_picture():
    scene = texture()
    subject = texture(1)[:60, :60]
    frames = []
    for k in range(8):
        frame = view(scene).copy()
        frame[40:100, 20 + 6 * k : 80 + 6 * k] = subject
        frames.append(frame)
    pairs = list(zip(frames[::2], frames[1::2], strict=True))

    found = camera_motion(pairs, [GAP_S] * len(pairs))

    assert found.label == "static"
    assert abs(found.pan_x) < 0.005


def test_a_trembling_camera_is_handheld():
    rng = np.random.default_rng(3)
    at = [tuple(rng.normal(0, 1.2, 2)) for _ in range(24)]

    found = camera_motion(*pairs_along(at))

    assert found.label == "handheld"
    assert found.shake > 0.05


def test_a_still_has_no_camera_motion_and_a_blank_clip_a_hardly_believed_one():
    assert camera_motion([], []).label == "none"

    blank = np.full((HEIGHT, WIDTH), 90, np.uint8)
    found = camera_motion([(blank, blank)], [GAP_S])
    assert (found.label, found.confidence) == ("static", 0.1)


def test_a_pair_without_time_between_its_frames_is_passed_over():
    pairs, intervals_s = pairs_along([(2.0 * k, 0.0) for k in range(8)])
    with_twin = camera_motion([*pairs, pairs[0]], [*intervals_s, 0.0])
    assert with_twin == camera_motion(pairs, intervals_s)


def test_a_picture_too_small_to_tell_from_says_nothing():
    tiny = np.zeros((16, 16), np.uint8)
    assert pair_motion(tiny, tiny, GAP_S) is None
