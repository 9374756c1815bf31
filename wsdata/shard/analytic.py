"""The embedded tokenizer: sixteen cosine coefficients of a causal block, in exact integers.

It has the geometry of the causal 3D VAEs (8x8 spatial, 4x temporal, 16 channels), needs no
weights, and is of low fidelity, as its version says: 16 numbers stand for 768. The first frame is
encoded alone, then groups of four, so that the latents of a temporal prefix are a prefix of the
latents.

Colour and cosine bases are orthogonal integer matrices: RGB -> (R+G+B, R-B, R-2G+B), and the
4- and 8-point transforms of H.264. All sums are integers below 2^24 (encode, float32) or 2^53
(decode, float64), hence exact in any order: results are bitwise equal whatever the thread count,
the BLAS or the chunk.
"""

import numpy as np

from wsdata.digest import short_digest
from wsdata.shard.latents import (
    NUM_CHANNELS,
    SPATIAL_FACTOR,
    TEMPORAL_FACTOR,
    Latents,
    Pixels,
    Reference,
    check_frames,
    check_latents,
)

NAME = "analytic-lofi-1"

_COLOR = ((1, 1, 1), (1, 0, -1), (1, -2, 1))
_COSINE_4 = ((1, 1, 1, 1), (2, 1, -1, -2), (1, -1, -1, 1), (1, -2, 2, -1))
_COSINE_8 = (
    (1, 1, 1, 1, 1, 1, 1, 1),
    (12, 10, 6, 3, -3, -6, -10, -12),
    (2, 1, -1, -2, -2, -1, 1, 2),
    (10, -3, -12, -6, 6, 12, 3, -10),
    (1, -1, -1, 1, 1, -1, -1, 1),
    (6, -12, 3, 10, -10, -3, 12, -6),
    (1, -2, 2, -1, -1, 2, -2, 1),
    (3, -6, 10, -12, 12, -10, 6, -3),
)

# Basis functions as (colour, time, row, column), with the standard deviation of their orthonormal
# coefficient (a group's counted as its mean per frame). The sixteen of highest energy over 68
# groups from 16 clips of cartoons, film, phone and lab footage; which they are decides the PSNR.
_SHARED = (
    ((0, 0, 0, 0), 964.0),
    ((1, 0, 0, 0), 280.0),
    ((2, 0, 0, 0), 233.0),
    ((0, 0, 0, 1), 135.0),
    ((0, 0, 1, 0), 110.0),
    ((0, 0, 2, 0), 59.0),
    ((0, 0, 0, 2), 57.0),
    ((0, 0, 1, 1), 49.0),
    ((0, 0, 0, 3), 40.0),
    ((0, 0, 3, 0), 33.0),
    ((1, 0, 1, 0), 32.0),
    ((1, 0, 0, 1), 30.5),
    ((0, 0, 2, 1), 32.0),
    ((0, 0, 1, 2), 30.0),
)
_FIRST = (*_SHARED, ((2, 0, 0, 1), 24.0), ((0, 0, 2, 2), 23.0))
_GROUP = (*_SHARED, ((0, 1, 0, 0), 62.0), ((0, 2, 0, 0), 32.0))

# Of latents of 33 frames at 256p of each of those clips.
_REFERENCE_MEAN = (-0.5, 0.23, -0.05, *(0.0,) * 13)
_REFERENCE_STD = (
    0.83, 1.07, 1.14, 1.14, 1.2, 1.3, 1.08, 1.19, 1.17, 1.42, 1.2, 1.1, 1.26, 1.25, 0.54, 0.53,
)  # fmt: skip

_MIDDLE = 128  # grey, subtracted before all else
_FRACTION_BITS = 20  # of fixed-point coefficients in decode
_MAX_COEFFICIENT = float(1 << 20)

VERSION = f"{NAME}-{short_digest([_COLOR, _COSINE_4, _COSINE_8, _FIRST, _GROUP, _FRACTION_BITS])}"


class _Block:
    """The basis of one kind of block: the first frame, or a group of four.

    `basis_kp` holds one integer function a row, over a block's (time, row, column, colour).
    """

    def __init__(self, functions: tuple, num_frames: int) -> None:
        self.num_frames = num_frames
        color, cosine_8 = np.array(_COLOR), np.array(_COSINE_8)
        cosine_4 = np.array(_COSINE_4) if num_frames > 1 else np.ones((1, 1), int)
        rows = [
            np.einsum("t,v,u,c->tvuc", cosine_4[t], cosine_8[v], cosine_8[u], color[c]).ravel()
            for (c, t, v, u), _ in functions
        ]
        self.basis_kp = np.stack(rows)
        largest = _MIDDLE * int(np.abs(self.basis_kp).sum(axis=1).max())
        assert largest < 1 << 24, "sums would not be exact in float32"  # noqa: S101
        squares_k = (self.basis_kp**2).sum(axis=1).astype(np.float64)
        std_k = np.array([std for _, std in functions])
        spread_k = np.sqrt(squares_k) * np.sqrt(float(num_frames)) * std_k
        self.gain_k = 1 / spread_k  # from integer sum to latent
        self.amplitude_k = spread_k / squares_k  # from latent to the function's amplitude
        self._encode_pk = np.ascontiguousarray(self.basis_kp.T, dtype=np.float32)
        self._decode_kp = self.basis_kp.astype(np.float64)

    def encode(self, frames_thwc: Pixels) -> Latents:
        """Encode one block of frames into latents (c, h, w)."""
        num_frames, height, width, _ = frames_thwc.shape
        rows, columns = height // SPATIAL_FACTOR, width // SPATIAL_FACTOR
        blocks = frames_thwc.reshape(
            num_frames, rows, SPATIAL_FACTOR, columns, SPATIAL_FACTOR, 3
        ).transpose(1, 3, 0, 2, 4, 5)
        values_np = blocks.astype(np.float32).reshape(rows * columns, -1)
        values_np -= _MIDDLE
        sums_nk = values_np @ self._encode_pk
        latents_nk = (sums_nk.astype(np.float64) * self.gain_k).astype(np.float32)
        return latents_nk.T.reshape(NUM_CHANNELS, rows, columns)

    def decode(self, latents_chw: Latents) -> Pixels:
        """Decode one block of latents into its frames (t, h, w, c)."""
        _, rows, columns = latents_chw.shape
        latents_nk = latents_chw.reshape(NUM_CHANNELS, -1).T.astype(np.float64)
        amplitude_nk = np.clip(latents_nk * self.amplitude_k, -_MAX_COEFFICIENT, _MAX_COEFFICIENT)
        fixed_nk = np.rint(amplitude_nk * (1 << _FRACTION_BITS))
        values_np = fixed_nk @ self._decode_kp
        values_np += (_MIDDLE << _FRACTION_BITS) + (1 << (_FRACTION_BITS - 1))
        values_np /= 1 << _FRACTION_BITS
        np.floor(values_np, out=values_np)
        pixels_np = np.clip(values_np, 0, 255, out=values_np).astype(np.uint8)
        blocks = pixels_np.reshape(
            rows, columns, self.num_frames, SPATIAL_FACTOR, SPATIAL_FACTOR, 3
        ).transpose(2, 0, 3, 1, 4, 5)
        return blocks.reshape(self.num_frames, rows * SPATIAL_FACTOR, columns * SPATIAL_FACTOR, 3)


class AnalyticTokenizer:
    """See the module docstring. Keeps the `latents.Tokenizer` protocol."""

    def __init__(self) -> None:
        self.version = VERSION
        self.is_prefix_exact = True
        self.reference = Reference(
            np.array(_REFERENCE_MEAN, np.float32), np.array(_REFERENCE_STD, np.float32)
        )
        self._first = _Block(_FIRST, 1)
        self._group = _Block(_GROUP, TEMPORAL_FACTOR)

    def encode(self, frames_thwc: Pixels) -> Latents:
        """Encode RGB frames, 4k + 1 of them, into latents (t, c, h, w).

        Raises:
            ValueError: Frames of another dtype, shape or geometry.
        """
        latents_tchw = np.empty(check_frames(frames_thwc), np.float32)
        latents_tchw[0] = self._first.encode(frames_thwc[:1])
        for index in range(1, len(latents_tchw)):
            start = 1 + (index - 1) * TEMPORAL_FACTOR
            latents_tchw[index] = self._group.encode(frames_thwc[start : start + TEMPORAL_FACTOR])
        return latents_tchw

    def decode(self, latents_tchw: Latents) -> Pixels:
        """Decode latents into RGB frames (t, h, w, c).

        Raises:
            ValueError: Latents of another shape, or not finite.
        """
        check_latents(latents_tchw)
        if not np.isfinite(latents_tchw).all():
            raise ValueError("latents hold NaN or infinity: they decode to nothing")
        parts = [self._first.decode(latents_tchw[0])]
        parts += [self._group.decode(latents_chw) for latents_chw in latents_tchw[1:]]
        return np.concatenate(parts)
