"""Latents in eight bits, and back: fp8 (e4m3) or int8, one float32 scale per channel.

A cast saturates an infinity silently, so what is not finite is found first. Reading is exact: what
a table of 256 numbers says, times the scale, rounded once; the way there is chosen for speed.
"""

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

DTYPES = ("fp8", "int8")
FP8_MAX = 448.0
INT8_MAX = 127.0

_MIN_SCALE = float(np.finfo(np.float32).tiny)
_CUT_BITS = 20  # of float32's 23 bits of mantissa, those that e4m3 does not have
_BIAS_GAP = 127 - 7  # between their exponents
_SUBNORMAL_BITS = 9  # e4m3 counts in steps of 2^-9 below its least normal number
_LEAST_NORMAL_BITS = np.uint32((127 - 6) << 23)  # float32's of 2^-6

_FP8_LIFT = np.float32(2.0**120)  # e4m3 has exponent bias 7, float32 has 127
_FP8_BITS = np.int32(-(2**31) | 0x7F << 20)  # sign, exponent, mantissa
_MAX_SHIFT_SCALE = 128.0  # times 2**120 stays finite
_CACHED_VALUES = 1 << 16  # of float32, which stay in a core's own cache
_SMALLEST = np.array([1 << 20], np.int32).view(np.float32)  # code 1, as `_shift_fp8` sees it


class Quantized(NamedTuple):
    """Latents in eight bits.

    Attributes:
        codes_tchw: One byte a value: the bits of an e4m3 number, or of an int8.
        scale_c: What a channel's numbers are multiplied with.
    """

    codes_tchw: NDArray[np.uint8]
    scale_c: NDArray[np.float32]


@functools.cache
def number_table(dtype: str) -> NDArray[np.float32]:
    """Return the number that each of the 256 bytes stands for; e4m3 has NaN at 0x7f and 0xff.

    Raises:
        ValueError: Another dtype than DTYPES.
    """
    bytes_n = np.arange(256, dtype=np.uint8)
    if dtype == "int8":
        return bytes_n.view(np.int8).astype(np.float32)
    if dtype != "fp8":
        raise ValueError(f"latent dtype {dtype!r}: expected one of {DTYPES}")
    exponent_n, mantissa_n = (bytes_n >> 3 & 15).astype(np.int32), (bytes_n & 7).astype(np.float32)
    normal_n = np.ldexp(1 + mantissa_n / 8, exponent_n - 7)
    subnormal_n = np.ldexp(mantissa_n / 8, -6)
    numbers_n = np.where(exponent_n == 0, subnormal_n, normal_n)
    numbers_n[bytes_n & 127 == 127] = np.nan
    return np.where(bytes_n >> 7, -numbers_n, numbers_n).astype(np.float32)


def latent_fault(latents_tchw: NDArray[np.float32]) -> tuple[str, str] | None:
    """Say why latents cannot be stored, as (reason, detail), or None if they can.

    Reasons: ``not_finite``; ``flat``, where every channel holds one value throughout and there is
    nothing to learn from.
    """
    finite_tchw = np.isfinite(latents_tchw)
    if not finite_tchw.all():
        num_bad_c = np.count_nonzero(~finite_tchw, axis=(0, 2, 3))
        channels = np.flatnonzero(num_bad_c).tolist()
        return "not_finite", f"{int(num_bad_c.sum())} values in channels {channels}"
    if (latents_tchw == latents_tchw[:1, :, :1, :1]).all():
        return "flat", "every channel holds one value in all places and frames"
    return None


def quantize(latents_tchw: NDArray[np.float32], dtype: str) -> Quantized:
    """Cast latents to eight bits, each channel scaled to the dtype's full range.

    Raises:
        ValueError: A NaN or an infinity (see `latent_fault`), or another dtype than DTYPES.
    """
    if dtype not in DTYPES:
        raise ValueError(f"latent dtype {dtype!r}: expected one of {DTYPES}")
    if not np.isfinite(latents_tchw).all():
        raise ValueError("latents hold NaN or infinity: a cast would saturate them silently")
    largest_c = np.abs(latents_tchw).max(axis=(0, 2, 3)).astype(np.float32)
    full = np.float32(FP8_MAX if dtype == "fp8" else INT8_MAX)
    scale_c = np.where(largest_c > 0, np.maximum(largest_c / full, _MIN_SCALE), 1).astype(
        np.float32
    )
    scaled_tchw = latents_tchw / scale_c[:, None, None]
    if dtype == "int8":
        rounded_tchw = np.clip(np.rint(scaled_tchw), -INT8_MAX, INT8_MAX)
        return Quantized(rounded_tchw.astype(np.int8).view(np.uint8), scale_c)
    return Quantized(_cast_fp8(scaled_tchw), scale_c)


def _cast_fp8(values_tchw: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Cast numbers of at most FP8_MAX to e4m3, ties to the even code, frame by frame."""
    codes_tchw = np.empty(values_tchw.shape, np.uint8)
    for values_chw, codes_chw in zip(values_tchw, codes_tchw, strict=True):
        bits_chw = values_chw.view(np.uint32)
        sizes_chw = bits_chw & np.uint32(0x7FFFFFFF)
        is_small_chw = sizes_chw < _LEAST_NORMAL_BITS
        odd_chw = (sizes_chw >> np.uint32(_CUT_BITS)) & np.uint32(1)
        sizes_chw += odd_chw
        sizes_chw += np.uint32((1 << (_CUT_BITS - 1)) - 1)  # rounds to nearest, ties to even
        sizes_chw >>= np.uint32(_CUT_BITS)
        sizes_chw -= np.uint32(_BIAS_GAP << 3)
        codes_chw[...] = sizes_chw  # of those below the least normal number: nonsense, so far
        steps_n = np.rint(np.abs(values_chw[is_small_chw]) * np.float32(1 << _SUBNORMAL_BITS))
        codes_chw[is_small_chw] = steps_n
        codes_chw |= ((bits_chw >> np.uint32(24)) & np.uint32(128)).astype(np.uint8)
    return codes_tchw


def dequantize(
    codes_tchw: NDArray[np.uint8],
    scale_c: NDArray[np.float32],
    dtype: str,
    out_tchw: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Return latents as float32, bit-equal to casting each byte and multiplying by its scale.

    Args:
        codes_tchw: Bytes as `quantize` makes them.
        scale_c: Scale of each channel.
        dtype: One of DTYPES.
        out_tchw: Where to; of the same shape. Made where there is none.

    Raises:
        ValueError: As many scales as channels are wanted; or another dtype; or `out_tchw` is of
            another shape or dtype.
    """
    if codes_tchw.ndim != 4 or scale_c.shape != (codes_tchw.shape[1],):
        raise ValueError(f"codes {codes_tchw.shape} with scales {scale_c.shape}: one per channel")
    latents_tchw = np.empty(codes_tchw.shape, np.float32) if out_tchw is None else out_tchw
    if latents_tchw.shape != codes_tchw.shape or latents_tchw.dtype != np.float32:
        raise ValueError(
            f"codes {codes_tchw.shape} into {latents_tchw.dtype} {latents_tchw.shape}: expected "
            "float32 of the same shape"
        )
    if dtype == "int8":
        for codes_chw, latents_chw in zip(codes_tchw, latents_tchw, strict=True):
            np.copyto(latents_chw, codes_chw.view(np.int8))
            np.multiply(latents_chw, scale_c[:, None, None], out=latents_chw)
    elif dtype == "fp8" and _can_shift(codes_tchw, scale_c):
        _shift_fp8(codes_tchw, scale_c, latents_tchw)
    else:
        _look_up(codes_tchw, scale_c, dtype, latents_tchw)
    return latents_tchw


def _look_up(
    codes_tchw: NDArray[np.uint8],
    scale_c: NDArray[np.float32],
    dtype: str,
    out_tchw: NDArray[np.float32],
) -> None:
    tables_cn = number_table(dtype) * scale_c[:, None]
    for channel, table_n in enumerate(tables_cn):
        np.take(table_n, codes_tchw[:, channel], out=out_tchw[:, channel])


def _can_shift(codes_tchw: NDArray[np.uint8], scale_c: NDArray[np.float32]) -> bool:
    """Whether `_shift_fp8` is exact: no NaN among the codes, no overflow, subnormals kept.

    A thread that flushes subnormals to zero (a training script may ask for that) would lose the
    smallest codes.
    """
    if codes_tchw.size == 0 or not 0 < float(scale_c.max()) < _MAX_SHIFT_SCALE:
        return False
    is_kept = float(np.multiply(_SMALLEST, _FP8_LIFT)[0]) > 0
    return is_kept and int(codes_tchw.max()) != 255 and int(codes_tchw.view(np.int8).max()) != 127


def _shift_fp8(
    codes_tchw: NDArray[np.uint8], scale_c: NDArray[np.float32], out_tchw: NDArray[np.float32]
) -> None:
    """Move each code's bits to where float32 has them, then make up for the exponent's bias.

    Twice as fast as a table, some frames at a time in the cache. Both factors are exact, so the
    one rounding is that of number times scale.
    """
    lifted_c11 = (scale_c * _FP8_LIFT)[:, None, None]
    stride = max(1, _CACHED_VALUES // codes_tchw[0].size)
    for start in range(0, len(codes_tchw), stride):
        latents_tchw = out_tchw[start : start + stride]
        bits_tchw = latents_tchw.view(np.int32)
        # The sign spreads over the upper bits.
        np.copyto(bits_tchw, codes_tchw[start : start + stride].view(np.int8))
        np.left_shift(bits_tchw, 20, out=bits_tchw)
        np.bitwise_and(bits_tchw, _FP8_BITS, out=bits_tchw)
        np.multiply(latents_tchw, lifted_c11, out=latents_tchw)
