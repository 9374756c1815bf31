import numpy as np
import pytest

from wsdata.preprocess.filters import faces
from wsdata_tests.preprocess.picture_support import fog, picture

FACE_ROWS, FACE_COLUMNS = slice(60, 200), slice(160, 290)  # of astronaut.png, a little wide


def test_a_face_is_counted_and_its_area_is_about_right():
    found = faces.faces_scores([picture("astronaut.png")])
    wide_share = (200 - 60) * (290 - 160) / 512**2
    assert found["face_count"]["score"] == 1.0
    assert wide_share / 3 < found["face_share"]["score"] < wide_share
    assert found["face_frames_share"]["score"] == 1.0


def test_two_people_are_two_faces():
    frame = picture("astronaut.png")
    two = np.concatenate([frame, frame], axis=1)
    assert faces.faces_scores([two])["face_count"]["score"] == 2.0


def test_without_the_face_the_same_picture_has_none():
    frame = picture("astronaut.png").copy()
    frame[FACE_ROWS, FACE_COLUMNS] = 128
    assert faces.faces_scores([frame])["face_count"]["score"] == 0.0


@pytest.mark.parametrize("name", ["coffee.png", "gravel.png", "hubble_deep_field.jpg"])
def test_things_have_no_face(name):
    assert faces.faces_scores([picture(name)])["face_share"]["score"] == 0.0


def test_it_is_the_largest_of_the_frames():
    found = faces.faces_scores([fog(), picture("astronaut.png"), fog(), fog()])
    assert found["face_count"]["score"] == 1.0
    assert found["face_frames_share"]["score"] == 0.25


def test_frames_too_small_for_a_face_have_none_and_no_frame_is_unknown():
    assert faces.faces_scores([np.zeros((8, 8, 3), np.uint8)])["face_count"]["score"] == 0.0
    assert faces.faces_scores([])["face_count"]["status"] == "unscored"
