"""Contact sheets are pictures that can be read back, with the frames where they belong."""

import base64
import io

import numpy as np
import pytest
from PIL import Image

from wsdata.label.sheet import contact_sheet, sheet_markdown


def frame(color, width=320, height=180) -> np.ndarray:
    return np.full((height, width, 3), color, np.uint8)


def test_frames_lie_in_reading_order():
    colors = [(200, 0, 0), (0, 200, 0), (0, 0, 200), (200, 200, 0), (0, 200, 200)]
    data = contact_sheet([frame(color) for color in colors], ["words"] * 5, columns=4)
    page = np.asarray(Image.open(io.BytesIO(data)))

    cell_height = page.shape[0] // 2
    assert page.shape[1] == 4 * 240
    for index, color in enumerate(colors):
        seen = page[index // 4 * cell_height + 60, index % 4 * 240 + 120]
        assert np.abs(seen.astype(int) - color).max() < 25


def test_a_sheet_of_twelve_busy_frames_stays_small_and_is_the_same_each_time():
    rng = np.random.default_rng(0)
    frames = [rng.integers(0, 255, (252, 448, 3), dtype=np.uint8) for _ in range(12)]
    captions = ["a long caption that goes on and on " * 10] * 12

    data = contact_sheet(frames, captions)

    assert data == contact_sheet(frames, captions)
    assert len(data) < 300_000  # noise is the worst that there can be
    smooth = [np.asarray(Image.fromarray(f).resize((16, 9)).resize((448, 252))) for f in frames]
    assert len(contact_sheet(smooth, captions)) < 120_000


def test_upright_and_single_frames_fit():
    data = contact_sheet([frame((9, 9, 9), width=180, height=320)], ["x" * 400])
    assert Image.open(io.BytesIO(data)).size[0] == 240


def test_the_markdown_carries_the_picture():
    data = contact_sheet([frame((1, 2, 3))], [""])
    head, _, body = sheet_markdown(data).partition("base64,")
    assert head == "![contact sheet](data:image/jpeg;"
    assert base64.b64decode(body.removesuffix(")")) == data


@pytest.mark.parametrize(("num_frames", "num_captions"), [(0, 0), (2, 1)])
def test_frames_and_captions_must_match(num_frames, num_captions):
    with pytest.raises(ValueError, match=f"{num_frames} frames and {num_captions} captions"):
        contact_sheet([frame((0, 0, 0))] * num_frames, ["a"] * num_captions)
