"""Latents from fp8: our way against torch's cast, on one thread, bit-equality checked."""

import json
import time

import numpy as np
import torch

from wsdata.shard.quantize import dequantize, quantize

SHAPE_TCHW = (31, 16, 36, 64)  # 121 frames of 512p
ROUNDS = 20


def main() -> None:
    """Interleave both, and print seconds per sample and their ratio."""
    torch.set_num_threads(1)
    latents = np.random.default_rng(0).standard_normal(SHAPE_TCHW).astype(np.float32)
    packed = quantize(latents, "fp8")
    codes, scale = packed

    def by_bits() -> np.ndarray:
        return dequantize(codes, scale, "fp8")

    def by_torch() -> np.ndarray:
        values = torch.from_numpy(codes).view(torch.float8_e4m3fn).to(torch.float32)
        return (values * torch.from_numpy(scale)[:, None, None]).numpy()

    assert np.array_equal(by_bits(), by_torch())
    spent = {"bits": 0.0, "torch": 0.0}
    for _ in range(ROUNDS):
        for name, read in (("bits", by_bits), ("torch", by_torch)):
            begun = time.process_time()
            read()
            spent[name] += time.process_time() - begun
    print(
        json.dumps(
            {
                "shape_tchw": SHAPE_TCHW,
                "bits_ms": spent["bits"] / ROUNDS * 1e3,
                "torch_ms": spent["torch"] / ROUNDS * 1e3,
                "torch_over_bits": spent["torch"] / spent["bits"],
            }
        )
    )


if __name__ == "__main__":
    main()
