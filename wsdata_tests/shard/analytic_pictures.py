"""Generated pictures, the same on every machine, and the bits that a tokenizer makes of them."""

import hashlib

import numpy as np


def noise(num_frames, height, width, seed=0):
    """Bytes of a hash: numpy's generators may change with its version."""
    size = num_frames * height * width * 3
    data = hashlib.shake_256(str(seed).encode()).digest(size)
    return np.frombuffer(data, np.uint8).reshape(num_frames, height, width, 3)


def gradient(num_frames, height, width):
    """Smooth planes that move, from integers alone so that every machine makes the same."""
    t, y, x = np.meshgrid(np.arange(num_frames), np.arange(height), np.arange(width), indexing="ij")
    ramps = (3 * x + y + 5 * t, x + 4 * y - 3 * t, 2 * x + 2 * y + 9 * t)
    return np.stack([np.abs(ramp % 510 - 255) for ramp in ramps], axis=-1).astype(np.uint8)


def cartoon(num_frames, height, width):
    """Flat areas, one of them moving by a pixel a frame."""
    frames = np.full((num_frames, height, width, 3), (200, 180, 90), np.uint8)
    frames[:, height // 2 :] = (60, 120, 40)
    for index in range(num_frames):
        frames[index, 19:43, 3 + index : 27 + index] = (220, 40, 50)
    return frames


PICTURES = {
    "gradient": gradient(17, 128, 128),
    "cartoon": cartoon(17, 128, 128),
    "noise": noise(17, 128, 128),
}


def golden_digest(tokenizer):
    """Digest of the bits of latents and decoded pixels of all pictures."""
    hasher = hashlib.sha256()
    for name in sorted(PICTURES):
        latents = tokenizer.encode(PICTURES[name])
        hasher.update(latents.tobytes() + tokenizer.decode(latents).tobytes())
    return hasher.hexdigest()
