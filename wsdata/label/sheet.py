"""Contact sheets: frames with a caption under each, as one small JPEG to look at."""

import base64
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_CELLS = 12
_TEXT_PX, _LINE_PX, _MAX_LINES, _MARGIN_PX = 12, 15, 4, 6
_PAPER, _INK = (250, 250, 248), (30, 30, 34)
_MAX_BYTES = 120_000


def contact_sheet(
    frames: Sequence[NDArray[np.uint8]],
    captions: Sequence[str],
    *,
    columns: int = 4,
    cell_width_px: int = 240,
) -> bytes:
    """Lay frames out in a grid with their captions beneath.

    Args:
        frames: RGB frames in [0, 255], each (height, width, 3), of any size.
        captions: As many texts; what does not fit four lines is cut with an ellipsis.
        columns: Cells per row.
        cell_width_px: Width of a cell.

    Returns:
        A JPEG; its quality falls until some 120 kB are kept, at most to 40.

    Raises:
        ValueError: There is no frame, or not one caption per frame.
    """
    if not frames or len(frames) != len(captions):
        raise ValueError(f"contact sheet: {len(frames)} frames and {len(captions)} captions")
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(_TEXT_PX)
    picture_px = cell_width_px * 3 // 4
    cell_px = picture_px + _MAX_LINES * _LINE_PX + 2 * _MARGIN_PX
    columns = min(columns, len(frames))
    rows = -(-len(frames) // columns)
    page = Image.new("RGB", (columns * cell_width_px, rows * cell_px), _PAPER)
    pen = ImageDraw.Draw(page)
    for index, (frame, caption) in enumerate(zip(frames, captions, strict=True)):
        left = index % columns * cell_width_px + _MARGIN_PX
        top = index // columns * cell_px + _MARGIN_PX
        width_px = cell_width_px - 2 * _MARGIN_PX
        picture = Image.fromarray(frame)
        picture.thumbnail((width_px, picture_px - _MARGIN_PX), Image.Resampling.BILINEAR)
        page.paste(picture, (left + (width_px - picture.width) // 2, top))
        lines = _wrapped(caption, lambda text: pen.textlength(text, font=font), width_px)
        for number, line in enumerate(lines):
            pen.text((left, top + picture_px + number * _LINE_PX), line, fill=_INK, font=font)
    return _small_jpeg(page)


def _wrapped(text: str, length: Any, width_px: int) -> list[str]:
    lines: list[str] = []
    current = ""
    for word in text.split():
        joined = f"{current} {word}".strip()
        if current and length(joined) > width_px:
            lines.append(current)
            current = word
        else:
            current = joined
    lines.append(current)
    if len(lines) > _MAX_LINES:
        lines = lines[:_MAX_LINES]
        while lines[-1] and length(lines[-1] + " ...") > width_px:
            lines[-1] = lines[-1].rpartition(" ")[0]
        lines[-1] += " ..."
    return lines


def _small_jpeg(page: Any) -> bytes:
    data = b""
    for quality in (80, 70, 60, 50, 40):
        buffer = io.BytesIO()
        page.save(buffer, "JPEG", quality=quality, optimize=True)
        data = buffer.getvalue()
        if len(data) <= _MAX_BYTES:
            break
    return data


def sheet_markdown(jpeg: bytes) -> str:
    """The sheet as markdown that carries its own picture."""
    return f"![contact sheet](data:image/jpeg;base64,{base64.b64encode(jpeg).decode()})"
