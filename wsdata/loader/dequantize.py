"""Latents as stored become numbers, on whatever device they are; for training loops with torch.

A quarter of the bytes cross to the device, and the cast costs nothing there.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from wsdata.shard import quantize

_CODES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8}


def dequantize(
    batch: Mapping[str, Any],
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> torch.Tensor:
    """Return the latents of a batch of `PlanDataset(latents="stored")`.

    In float32 they are bit-equal to those of `PlanDataset(latents="float32")`, on any device;
    other dtypes are rounded from float32 once. A batch of float32 latents is passed through.

    Args:
        batch: With ``latents``, ``scales`` and ``latent_dtype``.
        device: Where to; None is where the latents are. Copies from page-locked memory are
            asynchronous, on the current stream.
        dtype: Of the result.

    Returns:
        Shape (b, t, c, h, w).

    Raises:
        ValueError: Another latent dtype than fp8 or int8.
    """
    codes: torch.Tensor = batch["latents"]
    target = codes.device if device is None else torch.device(device)
    if codes.dtype != torch.uint8:
        return codes.to(device=target, dtype=dtype, non_blocking=True)
    if batch["latent_dtype"] not in _CODES:
        raise ValueError(f"latent_dtype {batch['latent_dtype']!r}: expected one of {list(_CODES)}")
    if target.type == "cpu" and codes.device.type == "cpu":
        return _on_cpu(batch).to(dtype)
    codes = codes.to(target, non_blocking=True)
    scales = batch["scales"].to(target, non_blocking=True)
    numbers = codes.view(_CODES[batch["latent_dtype"]]).to(torch.float32)
    return numbers.mul_(scales[:, None, :, None, None]).to(dtype)


def _on_cpu(batch: Mapping[str, Any]) -> torch.Tensor:
    """By the reader's own way: torch's cast of fp8 takes several times as long there."""
    codes, scales = batch["latents"].numpy(), batch["scales"].numpy()
    numbers = np.empty(codes.shape, np.float32)
    for index, scale_c in enumerate(scales):
        out_tchw = numbers[index, ...]
        quantize.dequantize(codes[index, ...], scale_c, batch["latent_dtype"], out_tchw)
    return torch.from_numpy(numbers)
