"""Plates and documents, told from text that was read; the reading itself is tried on one page."""

import cv2
import numpy as np
import pytest

from wsdata import tables
from wsdata.digest import canonical_json
from wsdata.preprocess.filters import overlay, text_tags
from wsdata_tests.preprocess.picture_support import fog, picture
from wsdata_tests.preprocess.score_support import clip, score, step_run


def line(text, *, at=(300, 200), size=(90, 22), light=200, flat=0.6, confidence=0.95):
    (x, y), (w, h) = at, size
    return [text, confidence, [x, y, x + w, y, x + w, y + h, x, y + h], light, flat]


def tags(*lines):
    found = text_tags.text_tags([{"size": [640, 360], "lines": list(lines)}])
    return {name: entry["score"] for name, entry in found.items()}


@pytest.mark.parametrize(
    "text", ["B MW 1234", "AB12 CDE", "ABC-1234", "7ABC123", "1234 BCD", "WA 12345", "ab 123 cd"]
)
def test_a_line_in_the_shape_of_a_plate_is_one(text):
    assert tags(line(text))["plate_likeness"] >= text_tags.PLATE_MIN
    assert tags(line(text))["plate_count"] == 1.0


@pytest.mark.parametrize(
    "text",
    ["BREAKING", "1080P", "2160P60", "H264", "10:45:12", "MAY 2019", "24FPS", "2026", "A1",
     "EPISODE 12", "ISO 800", "12345678", "ABCDEF12345", "100 MB"],
)  # fmt: skip
def test_words_times_and_formats_are_no_plates(text):
    assert tags(line(text))["plate_likeness"] == 0.0


def test_the_shape_the_ground_and_the_neighbours_count():
    plate = line("ABC 1234")
    assert tags(line("ABC 1234", size=(300, 22)))["plate_likeness"] == 0.0
    assert tags(line("ABC 1234", size=(20, 22)))["plate_likeness"] == 0.0
    assert tags(line("ABC 1234", size=(400, 120)))["plate_likeness"] == 0.0
    assert tags(line("ABC 1234", flat=0.2))["plate_count"] == 0.0
    beside = line("and so on", at=(395, 200))
    assert tags(plate, beside)["plate_count"] == 0.0
    assert tags(plate, line("far away", at=(20, 20)))["plate_count"] == 1.0


def page(count, *, light=220, step=16):
    return [
        line("words upon words", at=(100, 40 + step * row), size=(300, 12), light=light)
        for row in range(count)
    ]


def test_many_lines_close_together_on_light_ground_are_a_document():
    found = tags(*page(10))
    assert found["document_lines"] == 10.0
    assert found["document_share"] == pytest.approx(300 * (9 * 16 + 12) / (640 * 360), abs=1e-6)
    assert tags(*page(4))["document_share"] == 0.0
    assert tags(*page(10, light=40))["document_share"] == 0.0
    scattered = [line("a sign", at=(60 * i, 150 * (i % 2)), size=(60, 12)) for i in range(10)]
    assert tags(*scattered)["document_share"] == 0.0
    # A page is full of numbers: none of them is a plate.
    assert tags(*page(10), line("ABC 1234", at=(450, 300)))["plate_count"] == 0.0


def test_a_page_and_a_plate_are_found_in_pictures():
    sheet = np.full((360, 640, 3), 235, np.uint8)
    for row in range(9):
        cv2.putText(sheet, f"the agreed sum of line {row + 1} is due", (60, 50 + 32 * row),
                    cv2.FONT_HERSHEY_SIMPLEX, 0.8, (20, 20, 20), 2)  # fmt: skip
    car = fog(110)
    height, width = car.shape[:2]
    left, top = width // 3, height // 2
    cv2.rectangle(car, (left, top), (left + 170, top + 44), (245, 245, 240), -1)
    cv2.putText(car, "WGK 4821", (left + 10, top + 32), cv2.FONT_HERSHEY_SIMPLEX, 0.95,
                (15, 15, 15), 2)  # fmt: skip
    noted = [
        overlay.overlay_scores([frame])["text_share"]["detail"]["frames"] for frame in (sheet, car)
    ]
    on_sheet, on_car = (text_tags.text_tags(frames) for frames in noted)
    assert on_sheet["document_share"]["score"] > 0.3
    assert on_sheet["plate_count"]["score"] == 0.0
    assert on_car["plate_count"]["score"] == 1.0
    assert on_car["document_share"]["score"] == 0.0


def test_pictures_without_text_have_neither():
    found = overlay.overlay_scores([picture("gravel.png")])["text_share"]
    assert found["detail"] is None
    assert tags() == dict.fromkeys(text_tags.FILTER.score_names, 0.0)


def test_what_overlay_does_not_know_is_not_known_here_either(tmp_path):
    clips = [clip(index) for index in range(4)]
    noted = {"size": [640, 360], "lines": [line("ABC 1234")]}
    detail = canonical_json({"words": ["x"], "frames": [noted]})
    read = [
        score(clips[0], "overlay", "text_share", 0.02, detail_json=detail),
        score(clips[1], "overlay", "text_share", None, reason="gated by technical: too short"),
        score(clips[2], "overlay", "text_share", None, status="error", reason="ValueError: x"),
    ]
    run = step_run(tmp_path, text_tags.STEP, {"clips": clips, "overlay_scores": read})
    table = tables.conform("text_tags_scores", text_tags.run(run).tables["text_tags_scores"])
    told = table.filter(table["score_name"] == "plate_count").select("status", "score", "reason")
    assert told.rows() == [
        ("ok", 1.0, None),
        ("unscored", None, "gated by technical: too short"),
        ("unscored", None, "no text: overlay failed"),
        ("unscored", None, "no overlay score"),
    ]
