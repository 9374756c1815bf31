"""Where the reference design contradicts itself, computed from its own numbers.

The model keeps the arithmetic that is right; what was stated otherwise is told here, with how it
may have come about. What a plan should be warned of is here too.
"""

from typing import NamedTuple

from wsdata.observability import capacity as model
from wsdata.observability import capacity_fleet as fleet
from wsdata.observability import capacity_storage as storage
from wsdata.observability.capacity_inputs import Assumptions

PB = 1e15


class Contradiction(NamedTuple):
    """One place where the reference design does not agree with itself.

    Attributes:
        sections: Where.
        stated: What it says.
        found: What its own numbers give, and how the statement may have come about.
    """

    sections: str
    stated: str
    found: str


def contradictions() -> list[Contradiction]:
    """All that were found, by what they change most."""
    a = Assumptions()
    return [*_latents(a), *_training(a), *_funnel(a), *_money(a)]


def _latents(a: Assumptions) -> list[Contradiction]:
    video_s = model.curated_hours(a) * model.HOUR_S
    full = model.latent_bytes_full_ladder(a)
    rest = storage.kept_bytes(a) - storage.latent_bytes(a)
    raw = model.raw_bytes(a)
    all_hours = full * model.surviving_hours(a) / model.curated_hours(a)
    return [
        Contradiction(
            "2.7, 9.1, 9.3",
            "5M hours x ladder at 1.5 MB/s are 3 to 4 PB of latents",
            f"The product is {video_s * 1.5e6 / PB:.0f} PB; by the rungs' own sizes the whole "
            f"ladder is {full / PB:.1f} PB. 1.5 megabits a second would be "
            f"{video_s * 1.5e6 / 8 / PB:.1f} PB, so bits may have been taken for bytes. 3 to 4 PB "
            f"is also what a rung mix gives: all 5M hours at 256p, a quarter at 512p, 6 % at 720p "
            f"are {model.latent_bytes_curriculum(a) / PB:.1f} PB. Both plans are computed.",
        ),
        Contradiction(
            "2.7, 9.2",
            "encoding costs 470K GPU-hours, beside 3 to 4 PB of latents",
            f"{model.encode_gpu_hours_full_ladder(a):,.0f} GPU-hours encode the whole ladder, "
            f"{full / PB:.0f} PB; the mix that is 3 to 4 PB takes "
            f"{model.encode_gpu_hours_curriculum(a):,.0f}.",
        ),
        Contradiction(
            "0, 2.7",
            "1 to 5M curated hours are read 2 to 5 times by 10^13 tokens; latents pay off by that",
            f"10^13 tokens are {model.run_total_bytes(a) / PB:.2f} PB read, every epoch counted: "
            f"{model.latent_bytes_curriculum(a) / model.run_total_bytes(a):.1f} times less than "
            f"3.5 PB, {full / model.run_total_bytes(a):.0f} times less than the whole ladder. At "
            "256p alone 1 to 5M hours read 2 to 5 times are 0.6 to 7.8 x 10^13 tokens.",
        ),
        Contradiction(
            "9.1",
            "1.6 to 2x raw if latents were bf16 and the full corpus were encoded",
            f"{(rest + full) / raw:.1f}x and {(rest + 2 * full) / raw:.1f}x are the 5M curated "
            f"hours at every rung, fp8 and bf16; all {model.surviving_hours(a) / 1e6:.1f}M "
            f"surviving hours are {(rest + all_hours) / raw:.1f}x and "
            f"{(rest + 2 * all_hours) / raw:.1f}x.",
        ),
    ]


def _training(a: Assumptions) -> list[Contradiction]:
    interval_s = model.sample_interval_s(a)
    return [
        Contradiction(
            "6",
            "a 6 to 8 MB sample every 50 to 100 s per rank at 720p",
            f"{model.sample_bytes_720p(a) / 1e6:.1f} MB at "
            f"{model.bytes_per_s_per_accelerator(a) / 1e3:.1f} KB/s last {interval_s:.0f} s. 50 to "
            f"100 s are right for a rank of {interval_s / 100:.0f} to {interval_s / 50:.0f} "
            "accelerators that share a sample.",
        ),
        Contradiction(
            "0, 9.2",
            "a run of 100 days; a run of 120 days",
            "Rates are of 100 days, GPU-hours are billed for 120: billed_days_factor 1.2. Over "
            f"120 days the cluster takes {model.run_tokens_per_s(a) / 1.2e6:.2f}M tokens/s.",
        ),
    ]


def _funnel(a: Assumptions) -> list[Contradiction]:
    kept = [0.80 * 0.75 * 0.80 * 0.95, 0.90 * 0.85 * 0.90 * 0.99]  # 2.6, kill rates high and low
    low, high = (share * a.kept_after_dedup_share for share in kept)
    mbit = a.transcode_bytes_per_hour * 8 / model.HOUR_S / 1e6
    ladder_pb = model.surviving_hours(a) * model.HOUR_S * a.source_bits_per_s / 8 * 1.4 / PB
    return [
        Contradiction(
            "2, 3.1",
            "1 to 3 x 10^9 clips; 5 to 7 x 10^9 clips",
            f"15 to 20M hours at 10 s a clip are {15e6 * 360 / 1e9:.1f} to "
            f"{20e6 * 360 / 1e9:.1f} x 10^9; 1 to 3 x 10^9 would be clips of 18 to 72 s.",
        ),
        Contradiction(
            "2, 2.6",
            "15 to 20M of 50M hours survive (30 to 40 %)",
            f"The kill rates stated leave {low:.0%} to {high:.0%} after deduplication, so floors "
            "of length and resolution at the cut must take the rest.",
        ),
        Contradiction(
            "1.2",
            "10 to 25 % of crawled bytes are near duplicates, so 100 PB become 85",
            "A tenth to a quarter of 50 PB is 5 to 12.5 PB: 87.5 to 95 PB are left.",
        ),
        Contradiction(
            "2, 2.7, 5.4",
            "30 PB of transcodes; 5 Mbit/s H.264 at 720p",
            f"30 PB of 17.5M hours are {mbit:.1f} Mbit/s for all rungs together, about "
            f"{mbit / 1.4:.1f} for the top one; at 5 Mbit/s they were {ladder_pb:.0f} PB.",
        ),
    ]


def _money(a: Assumptions) -> list[Contradiction]:
    low, high = (usd / 1e3 for usd in storage.raw_usd_per_month(a))
    read_pb = 1e9 * storage.MONTH_S / PB
    egress = [read_pb * 1e3 * usd / 1e3 for usd in a.egress_usd_per_tb]
    ratio = fleet.caption_gpu_hours(a) / fleet.decode_gpu_hours(a)
    return [
        Contradiction(
            "2.1",
            "decode is about 10x smaller than captioning",
            f"0.5M against 2.5M GPU-hours is {ratio:.0f}x.",
        ),
        Contradiction(
            "5.4, 9.3",
            "1 GB/s across regions is 2.6 PB a month, 130 to 250K USD",
            f"{read_pb:.1f} PB at the 20 to 50 USD per TB of 9.3 are {egress[0]:.0f} to "
            f"{egress[1]:.0f}K USD.",
        ),
        Contradiction(
            "1.4, 9.1",
            "raw storage at 200 to 500K USD a month, licensed cool and crawl archived",
            f"40 PB at 10 to 12 and 60 PB at 1 to 2 USD per TB are {low:.0f} to {high:.0f}K USD; "
            "only with nearly all of it archived it is 200K.",
        ),
    ]


def warnings(a: Assumptions) -> list[str]:
    """What a plan with these inputs should be warned of."""
    found: list[str] = []
    drops = model.num_drops(a)
    for name, pool in fleet.size_pools(a).items():
        if pool.num_pods > drops:
            found.append(
                f"pool {name} wants {pool.num_pods:,} workers at once, and the corpus is "
                f"{drops:,.0f} drops: one worker takes one drop, so make smaller drops "
                "(assets_per_drop) or give it more weeks"
            )
    reads, stored = model.run_total_bytes(a), model.latent_bytes(a)
    if reads < stored:
        found.append(
            f"the run reads {reads / PB:.3g} PB of latents in all, {reads / stored:.0%} of the "
            f"{stored / PB:.3g} PB stored: encode less, or count on more than one run"
        )
    if model.store_margin(a) < 1:
        found.append(
            f"training reads {model.run_bytes_per_s_with_overhead(a) / 1e9:.3g} GB/s, more than "
            f"the {a.store_bytes_per_s / 1e9:.3g} GB/s assumed of the object store"
        )
    return found
