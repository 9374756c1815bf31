"""Render ``spheres.mp4``: lit spheres on crossing orbits, 6 s of 640x360 at 24 fps.

Simulated material for the synthetic drop: no photograph, no model. Run once; the result is
kept in ``samples/media``.
"""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np

WIDTH, HEIGHT, FPS, SECONDS = 640, 360, 24, 6
COLORS = np.array(
    [[230, 80, 60], [70, 160, 230], [240, 200, 70], [120, 210, 120], [190, 110, 220]], np.float64
)
LIGHT = np.array([-0.5, -0.6, -0.62])


def draw_frame(index: int) -> np.ndarray:
    """Draw frame `index`: uint8 RGB of shape (HEIGHT, WIDTH, 3)."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float64)
    floor = 60 + 50 * y / HEIGHT + 14 * ((np.floor(x / 40) + np.floor(y / 40)) % 2)
    image = np.stack([floor * 0.8, floor * 0.9, floor * 1.1], axis=-1)
    turn = 2 * np.pi * index / (FPS * SECONDS)
    for number, color in sorted(
        enumerate(COLORS), key=lambda each: np.sin(turn * (1 + each[0] % 3) + each[0])
    ):
        angle = turn * (1 + number % 3) + number * 1.3
        depth = 1 + 0.35 * np.sin(turn * (1 + number % 3) + number)
        radius = 34 * depth + 6 * number
        cx = WIDTH / 2 + (90 + 38 * number) * np.cos(angle)
        cy = HEIGHT / 2 + (36 + 14 * number) * np.sin(angle * (1 + number % 2))
        dx, dy = (x - cx) / radius, (y - cy) / radius
        inside = dx**2 + dy**2 < 1
        dz = -np.sqrt(np.clip(1 - dx**2 - dy**2, 0, 1))
        shade = np.clip(dx * LIGHT[0] + dy * LIGHT[1] + dz * LIGHT[2], 0, 1)
        lit = color * (0.25 + 0.75 * shade[..., None]) + 90 * shade[..., None] ** 24
        image = np.where(inside[..., None], lit, image)
    return np.clip(image, 0, 255).astype(np.uint8)


def main() -> None:
    """Encode all frames."""
    target = Path(__file__).parent / "media" / "spheres.mp4"
    with av.open(str(target), "w", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.time_base = Fraction(1, FPS)
        stream.options = {"crf": "20", "preset": "slow", "threads": "1"}
        for index in range(FPS * SECONDS):
            frame = av.VideoFrame.from_ndarray(draw_frame(index), format="rgb24")
            frame.pts = index
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


if __name__ == "__main__":
    main()
