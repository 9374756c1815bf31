"""The samples of a late step: our closed form against replaying an epoch sampler up to it."""

import json
import time
from collections.abc import Iterator

import polars as pl
import torch

from wsdata.shard.plan import StepPlan

NUM_SAMPLES = 400_000
BATCH = 64
STEP = 100_000
BUCKET = "256p/256x144/33"


def index_rows() -> pl.DataFrame:
    """Make up an index of one stream and bucket."""
    ids = [f"{n:024x}-0-000000000-000002000" for n in range(NUM_SAMPLES)]
    return pl.DataFrame(
        {
            "sample_id": [f"{clip}.256p.000000.0033.plain" for clip in ids],
            "clip_id": ids,
            "stream": "video",
            "tier": "T0",
            "bucket": BUCKET,
            "num_tokens": 1296,
        }
    )


def replay() -> Iterator[list[int]]:
    """Yield the batches of a seeded epoch sampler for ever, as a plain training script does."""
    epoch = 0
    while True:
        generator = torch.Generator().manual_seed(epoch)
        order = torch.randperm(NUM_SAMPLES, generator=generator).tolist()
        for start in range(0, NUM_SAMPLES - BATCH + 1, BATCH):
            yield order[start : start + BATCH]
        epoch += 1


def main() -> None:
    """Time one seek each, and print the ratio."""
    phase = {
        "name": "only",
        "steps": STEP + 1,
        "rungs": ("256p",),
        "tiers": ("T0",),
        "weights": {"video": 1.0},
    }
    stream = {"modality": "video", "max_epochs": 0.0, "multiplier": 1.0}
    plan = StepPlan.compile(
        index_rows(),
        seed=1,
        phases=[phase],
        streams={"video": stream},
        samples={"global_batch": BATCH, "batch_of_bucket": {}, "min_bucket_samples": 0},
    )
    plan.samples(0)
    begun = time.process_time()
    planned = plan.samples(STEP)
    ours_s = time.process_time() - begun
    begun = time.process_time()
    for step, batch in enumerate(replay()):
        if step == STEP:
            assert len(batch) == len(planned)
            break
    replay_s = time.process_time() - begun
    print(
        json.dumps(
            {
                "num_samples": NUM_SAMPLES,
                "step": STEP,
                "seek_ms": ours_s * 1e3,
                "replay_ms": replay_s * 1e3,
                "replay_over_seek": replay_s / ours_s,
            }
        )
    )


if __name__ == "__main__":
    main()
