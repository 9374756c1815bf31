"""Pictures for the tests of filters that look at colour frames."""

from pathlib import Path

import numpy as np
from PIL import Image

MEDIA = Path(__file__).parents[2] / "samples" / "media"
SIDE_PX = 640


def picture(name: str) -> np.ndarray:
    """A shipped picture as a pack would hold it: RGB, long side at most 640."""
    image = Image.open(MEDIA / name).convert("RGB")
    image.thumbnail((SIDE_PX, SIDE_PX))
    return np.asarray(image)


def fog(level: int = 140, *, width: int = 640, height: int = 360, seed: int = 3) -> np.ndarray:
    """Soft grey clouds."""
    rough = np.random.default_rng(seed).normal(level, 25, (9, 16))
    cloud = Image.fromarray(rough.clip(0, 255).astype(np.uint8)).resize(
        (width, height), Image.Resampling.BICUBIC
    )
    return np.stack([np.asarray(cloud)] * 3, axis=-1)
