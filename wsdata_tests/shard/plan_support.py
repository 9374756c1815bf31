"""Made-up dataset indexes and mixtures for tests of step plans."""

import polars as pl
from hypothesis import strategies as st

BUCKETS = ("256p/448x256/1", "256p/448x256/33", "256p/256x448/33", "512p/896x512/65")
STREAMS = ("crawl", "image", "video")
TIERS = ("T0", "T1", "T2")


def tokens_of(bucket):
    _, size, frames = bucket.split("/")
    width, height = (int(side) for side in size.split("x"))
    return ((int(frames) - 1) // 4 + 1) * (width // 16) * (height // 16)


def make_rows(counts):
    """Rows of an index: `counts` maps (stream, bucket, tier) to a number of samples."""
    return [
        {
            "sample_id": f"{stream}-{bucket}-{tier}-{number:05d}",
            "clip_id": f"{stream}-{tier}-{number // 2:05d}",
            "stream": stream,
            "bucket": bucket,
            "tier": tier,
            "num_tokens": tokens_of(bucket),
        }
        for (stream, bucket, tier), count in sorted(counts.items())
        for number in range(count)
    ]


def make_phase(name="only", steps=40, *, rungs=("256p", "512p"), tiers=TIERS, weights=None):
    return {
        "name": name,
        "steps": steps,
        "rungs": list(rungs),
        "tiers": list(tiers),
        "weights": weights or {"video": 1.0},
    }


def frame(rows):
    return pl.DataFrame(rows)


@st.composite
def mixtures(draw):
    """Arguments of `StepPlan.compile` (index rows as a list of dicts, no epoch caps)."""
    size = st.integers(0, 12)
    names = [(s, b, t) for s in STREAMS for b in BUCKETS for t in TIERS[:2]]
    counts = {name: draw(size) for name in draw(st.lists(st.sampled_from(names), max_size=12))}
    base = draw(st.sampled_from(BUCKETS[:3]))  # one pool that every phase admits and that fills
    counts["video", base, "T0"] = draw(st.integers(12, 30))
    batch = draw(st.sampled_from([1, 2, 4]))
    # Buckets that cannot fill a batch are refused: hand their samples over, as a cut would.
    for bucket in BUCKETS:
        if 0 < sum(n for (_, b, t), n in counts.items() if b == bucket and t == "T0") < batch:
            counts = {name: n for name, n in counts.items() if name[1] != bucket}
        if any(b == bucket and n for (_, b, _), n in counts.items()):
            counts["video", bucket, "T0"] = max(counts.get(("video", bucket, "T0"), 0), batch)
    weight = st.sampled_from([0.1, 0.2, 0.25, 0.5, 1.0, 3.0])
    phases = [
        make_phase(
            f"p{number}",
            draw(st.integers(1, 25)),
            rungs=draw(st.sampled_from([("256p",), ("256p", "512p")])),
            tiers=draw(st.sampled_from([("T0",), ("T0", "T1")])),
            weights={"video": draw(weight), "crawl": draw(weight), "image": draw(weight)},
        )
        for number in range(draw(st.integers(1, 3)))
    ]
    return {
        "rows": make_rows(counts),
        "seed": draw(st.integers(0, 2**32)),
        "phases": phases,
        "streams": {"video": {}, "crawl": {"multiplier": 2.0}, "image": {}},
        "samples": {
            "global_batch": batch,
            "batch_of_bucket": {base: draw(st.sampled_from([batch, 2 * batch, 3 * batch]))},
        },
    }
