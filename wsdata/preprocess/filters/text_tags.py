"""Text tags: number plates and documents, told from the text that the overlay filter read.

A tag; it neither drops nor tiers. No detector of plates ships in a package with its weights, so
this is a rule over what was read: where, in which shape, on what ground. It reads rows alone: a
new version of it scores all stored material anew, and reads no picture and runs no network.

A plate is a line of letters and digits that stands alone on a flat ground, in the shape of a
plate; plates of Europe are 520 x 110 mm, of North America 305 x 152 mm. A document is many lines
close together on one light, flat ground.
"""

import json
import re
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata.orders import Input, Step, StepResult, StepRun
from wsdata.preprocess.filters.rows import Entries, Filter, score_clips, scored, unscored

FILTER = Filter(
    name="text_tags",
    model_version="ocr-heuristic-1",
    score_names=(
        "plate_likeness",  # of the most plate-like line of all frames, in [0, 1]; 0 without any
        "plate_count",  # lines of at least PLATE_MIN in one frame, the largest number
        "document_share",  # of a frame's area under a page of text, the largest of the frames
        "document_lines",  # lines of that page
    ),
)

STEP = Step(
    stage="preprocess",
    name="text_tags_scores",
    function="wsdata.preprocess.filters.text_tags:run",
    code_version=FILTER.model_version,
    partition="drop",
    assets={"text_tags_scores": ("text_tags_scores",)},
    inputs=(Input(table="clips"), Input(table="overlay_scores")),
    description="Number plates and documents, by rule from the text that was read; tags.",
)

PLATE_MIN = 0.5
PLATE_SIGNS = (5, 8)
PLATE_ASPECT = (1.6, 8.0)  # of the text, which fills most of a plate's width and half its height
PLATE_HEIGHT_SHARE = (0.012, 0.2)  # of the frame's height; smaller is not read, larger is a sign
FLAT_PLATE = 0.4  # of the line's box, pixels of the ground's lightness; signs cover the rest

PAGE_LINES = 5
PAGE_COVER = 0.2  # of the page's hull under boxes of lines; captions and signs lie scattered
PAGE_LIGHT = 140  # luma of the ground, in [0, 255]
PAGE_FLAT = 0.45
PAGE_SPREAD = 30.0  # luma between the grounds of a page's lines, as interquartile range

_PLATE = re.compile(r"[A-Z0-9]+(?:[ .\-][A-Z0-9]+){0,3}")
# Letters then digits, digits then letters, and either within the other.
_SHAPES = re.compile(r"[A-Z]{1,4}\d{2,5}[A-Z]{0,3}|\d{1,4}[A-Z]{1,3}\d{1,4}|\d{2,4}[A-Z]{2,3}")
_NO_PLATE = re.compile(
    r"\d{3,4}[PIK]\d*|[HX]26[45]|MP[34]|[48]K\d*|(?:JAN|FEB|MAR|APR|MAY|JUNE?|JULY?|AUG|SEPT?|OCT"
    r"|NOV|DEC)\d+|\d{1,2}(?:JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC)\d*|\d+(?:ST|ND|RD|TH"
    r"|AM|PM|MM|CM|KM|KG|FPS|HZ|MB|GB)|(?:EPISODE|PART|CHAPTER|SEASON|ISO|CAM|CH|NO|VOL)\d+"
)


class Line(NamedTuple):
    """One line of text as it was read.

    `quad` are its corners in pixels, shape (4, 2), clockwise from the upper left; `light` is the
    luma of its ground in [0, 255], and `flat` the share of its box that has it.
    """

    text: str
    confidence: float
    quad: NDArray[np.float64]
    light: float
    flat: float

    @property
    def width_px(self) -> float:
        """Length of its upper and lower sides."""
        return float(np.hypot(*(self.quad[1] - self.quad[0] + self.quad[2] - self.quad[3])) / 2)

    @property
    def height_px(self) -> float:
        """Length of its left and right sides."""
        return float(np.hypot(*(self.quad[3] - self.quad[0] + self.quad[2] - self.quad[1])) / 2)


def run(run: StepRun) -> StepResult:
    """Tag every clip of a drop from the text that its overlay row holds."""
    read = run.read("overlay_scores").filter(pl.col("score_name") == "text_share")
    rows = {row["clip_id"]: row for row in read.iter_rows(named=True)}

    def compute(clip: dict[str, Any]) -> Entries:
        row = rows.get(clip["clip_id"])
        if row is None:
            return dict.fromkeys(FILTER.score_names, unscored("no overlay score"))
        if row["status"] == "error":
            return dict.fromkeys(FILTER.score_names, unscored("no text: overlay failed"))
        if row["status"] != "ok":
            return dict.fromkeys(FILTER.score_names, unscored(row["reason"] or "no text was read"))
        detail = json.loads(row["detail_json"]) if row["detail_json"] else {}
        return text_tags(detail.get("frames", []))

    return score_clips(run, FILTER, compute)


def text_tags(frames: list[dict[str, Any]]) -> Entries:
    """Tag one clip.

    Args:
        frames: As the overlay filter notes them, see `overlay.noted_frame`; only frames with text.

    Returns:
        By name, see `FILTER`; the texts taken for plates are not kept.
    """
    likeness, counts, pages = [0.0], [0], [(0.0, 0)]
    for frame in frames:
        width_px, height_px = frame["size"]
        lines = [_line(told) for told in frame["lines"]]
        page = _page(lines, width_px * height_px)
        pages.append(page)
        if page[1]:
            continue  # a page is full of numbers
        found = [_plate_likeness(line, lines, height_px) for line in lines]
        likeness += found
        counts.append(sum(value >= PLATE_MIN for value in found))
    share, num_lines = max(pages)
    return {
        "plate_likeness": scored(max(likeness)),
        "plate_count": scored(float(max(counts))),
        "document_share": scored(share),
        "document_lines": scored(float(num_lines)),
    }


def _line(told: list[Any]) -> Line:
    text, confidence, corners, light, flat = told
    return Line(text, confidence, np.asarray(corners, np.float64).reshape(4, 2), light, flat)


def is_plate_text(text: str) -> bool:
    """Whether a line reads like a number plate: some letters, some digits, and no known word."""
    upper = text.strip().upper()
    core = "".join(sign for sign in upper if sign.isalnum())
    return (
        _PLATE.fullmatch(upper) is not None
        and PLATE_SIGNS[0] <= len(core) <= PLATE_SIGNS[1]
        and sum(sign.isdigit() for sign in core) >= 2
        and any(sign.isalpha() for sign in core)
        and _SHAPES.fullmatch(core) is not None
        and _NO_PLATE.fullmatch(core) is None
    )


def _plate_likeness(line: Line, lines: list[Line], frame_height_px: int) -> float:
    height_px = line.height_px
    if not is_plate_text(line.text) or height_px <= 0:
        return 0.0
    if not PLATE_ASPECT[0] <= line.width_px / height_px <= PLATE_ASPECT[1]:
        return 0.0
    if not PLATE_HEIGHT_SHARE[0] <= height_px / frame_height_px <= PLATE_HEIGHT_SHARE[1]:
        return 0.0
    ground = 1.0 if line.flat >= FLAT_PLATE else 0.5
    alone = 0.5 if any(_is_beside(line, other) for other in lines if other is not line) else 1.0
    return line.confidence * ground * alone


def _is_beside(line: Line, other: Line) -> bool:
    """Whether another line of like height goes on with this one, as in a caption."""
    mine, theirs = line.quad.mean(axis=0), other.quad.mean(axis=0)
    tall = max(line.height_px, other.height_px)
    is_level = abs(mine[1] - theirs[1]) < tall / 2
    gap = abs(mine[0] - theirs[0]) - (line.width_px + other.width_px) / 2
    return bool(is_level and gap < 3 * tall and min(line.height_px, other.height_px) > tall / 2)


def _page(lines: list[Line], frame_px: int) -> tuple[float, int]:
    """The share of the frame under a page of text and its number of lines; nothing for no page."""
    on_paper = [line for line in lines if line.light >= PAGE_LIGHT and line.flat >= PAGE_FLAT]
    if len(on_paper) < PAGE_LINES or frame_px <= 0:
        return 0.0, 0
    grounds = np.array([line.light for line in on_paper])
    low, high = np.percentile(grounds, [25, 75])
    hull_px = _hull_area(np.concatenate([line.quad for line in on_paper]))
    covered_px = sum(line.width_px * line.height_px for line in on_paper)
    if hull_px <= 0 or covered_px < PAGE_COVER * hull_px or high - low > PAGE_SPREAD:
        return 0.0, 0
    return min(1.0, hull_px / frame_px), len(on_paper)


def _hull_area(points: NDArray[np.float64]) -> float:
    import cv2

    return float(cv2.contourArea(cv2.convexHull(points.astype(np.float32))))
