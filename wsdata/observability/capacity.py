"""The capacity model: from tokens and hours to latents, GPU-hours, bytes, money and rates.

Each figure is a named pure function of `Assumptions`, with its unit and the section of the
reference design that states it. Storage and egress follow in `capacity_storage`, pools and
request rates in `capacity_fleet`; where the design contradicts itself, in `capacity_notes`.
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from wsdata.observability.capacity_inputs import ASSUMED, MEASURED, STATED, Assumptions, Inputs
from wsdata.shard.latents import NUM_CHANNELS, SPATIAL_FACTOR, TEMPORAL_FACTOR

PATCH = 2  # latent positions of one token along each side
RUNG_PIXELS = {"256p": (256, 144), "512p": (512, 288), "720p": (1280, 720)}  # 16:9
HOUR_S = 3600
DAY_S = 86_400

Value = float | tuple[float, float]


class Figure(NamedTuple):
    """One figure of the model.

    Attributes:
        compute: Takes `Assumptions`, and gives a number, or (low, high).
        unit: What it counts.
        section: Where the reference design states it; empty where it does not.
    """

    compute: Callable[[Any], Value]
    unit: str
    section: str = ""

    @property
    def name(self) -> str:
        """The function's own name."""
        return self.compute.__name__


class Found(NamedTuple):
    """A figure's value, and what it rests on.

    Attributes:
        basis: ``assumed``, ``measured`` or ``stated`` where all inputs are of that kind;
            else ``mixed``.
        rests_on: Names of the inputs that it was computed from.
    """

    value: Value
    unit: str
    section: str
    basis: str
    rests_on: list[str]


class _Traced:
    """Assumptions that remember which of them were asked for."""

    def __init__(self, values: Assumptions) -> None:
        self._values = values
        self.asked: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        return getattr(self._values, name)


def evaluate(figures: Iterable[Figure], inputs: Inputs) -> dict[str, Found]:
    """Compute figures, and say for each whether it is assumed or measured."""
    found: dict[str, Found] = {}
    for figure in figures:
        traced = _Traced(inputs.values)
        value = figure.compute(traced)
        kinds = {inputs.origins[name].kind for name in traced.asked}
        basis = next((k for k in (ASSUMED, MEASURED, STATED) if kinds <= {k}), "mixed")
        found[figure.name] = Found(value, figure.unit, figure.section, basis, sorted(traced.asked))
    return found


def scaled(amount: float, price: tuple[float, float]) -> tuple[float, float]:
    """An amount at a low and a high price."""
    return amount * price[0], amount * price[1]


# corpus ---------------------------------------------------------------------------------------


def raw_bytes(a: Assumptions) -> float:
    """What is delivered."""
    return a.raw_hours * a.raw_bytes_per_hour


def deduped_bytes(a: Assumptions) -> float:
    """What is left without exact and near duplicates."""
    return raw_bytes(a) * a.kept_after_dedup_share


def num_assets(a: Assumptions) -> float:
    """Raw assets."""
    return a.raw_hours / a.raw_hours_per_asset


def num_drops(a: Assumptions) -> float:
    """Drops, the partitions of arriving material."""
    return num_assets(a) / a.assets_per_drop


def surviving_hours(a: Assumptions) -> float:
    """Hours that pass the gates."""
    return a.raw_hours * a.surviving_share


def num_clips(a: Assumptions) -> float:
    """Clips that pass the gates: what is captioned and embedded."""
    return surviving_hours(a) * HOUR_S / a.clip_s


def curated_hours(a: Assumptions) -> float:
    """Hours that a dataset version serves."""
    return a.raw_hours * a.curated_share


CORPUS = (
    Figure(raw_bytes, "bytes", "0"),
    Figure(deduped_bytes, "bytes", "1.2"),
    Figure(num_assets, "raw assets", "1"),
    Figure(num_drops, "drops"),
    Figure(surviving_hours, "hours", "2"),
    Figure(num_clips, "clips", "3.1"),
    Figure(curated_hours, "hours", "2.7"),
)

# tokens ---------------------------------------------------------------------------------------


def tokens_per_frame(rung: str) -> float:
    """Tokens of one latent frame of a rung, at 16:9."""
    width, height = RUNG_PIXELS[rung]
    side = SPATIAL_FACTOR * PATCH
    return (width / side) * (height / side)


def tokens_per_video_s(a: Assumptions, rung: str) -> float:
    """Tokens of one second of video."""
    return tokens_per_frame(rung) * a.fps / TEMPORAL_FACTOR


def tokens_per_s_256p(a: Assumptions) -> float:
    """The token identity at the lowest rung."""
    return tokens_per_video_s(a, "256p")


def tokens_per_s_720p(a: Assumptions) -> float:
    """The token identity."""
    return tokens_per_video_s(a, "720p")


def tokens_per_hour_720p(a: Assumptions) -> float:
    """The same by the hour."""
    return tokens_per_s_720p(a) * HOUR_S


def token_hours_256p(a: Assumptions) -> float:
    """Unique hours that the token target is, all at 256p and read once."""
    return a.tokens / (tokens_per_s_256p(a) * HOUR_S)


def token_hours_720p(a: Assumptions) -> float:
    """Unique hours that the token target is, all at 720p and read once."""
    return a.tokens / tokens_per_hour_720p(a)


def latent_bytes_per_token(a: Assumptions) -> float:
    """Bytes that a token takes in a shard."""
    stored = PATCH**2 * NUM_CHANNELS * a.latent_bytes_per_value
    return stored * (1 + a.shard_overhead_share)


def bf16_bytes_per_s_720p(a: Assumptions) -> float:
    """Latents of one second at 720p as bf16."""
    return tokens_per_s_720p(a) * PATCH**2 * NUM_CHANNELS * 2


def latent_bytes_per_s_720p(a: Assumptions) -> float:
    """The same as stored."""
    return tokens_per_s_720p(a) * latent_bytes_per_token(a)


def bf16_over_source(a: Assumptions) -> float:
    """Latents at bf16 over the compressed video that they are made of."""
    return bf16_bytes_per_s_720p(a) / (a.source_bits_per_s / 8)


TOKENS = (
    Figure(tokens_per_s_256p, "tokens/s of video", "0"),
    Figure(tokens_per_s_720p, "tokens/s of video", "0"),
    Figure(tokens_per_hour_720p, "tokens/hour", "0"),
    Figure(token_hours_256p, "hours", "0"),
    Figure(token_hours_720p, "hours", "0"),
    Figure(latent_bytes_per_token, "bytes/token", "0"),
    Figure(bf16_bytes_per_s_720p, "bytes/s of video", "2.7"),
    Figure(latent_bytes_per_s_720p, "bytes/s of video", "2.7"),
    Figure(bf16_over_source, "x", "2.7"),
)

# training and its loader ----------------------------------------------------------------------


def run_tokens_per_s(a: Assumptions) -> float:
    """Tokens that the whole cluster takes."""
    return a.tokens / (a.run_days * DAY_S)


def run_bytes_per_s(a: Assumptions) -> float:
    """Latents that the whole cluster reads."""
    return run_tokens_per_s(a) * latent_bytes_per_token(a)


def run_bytes_per_s_with_overhead(a: Assumptions) -> float:
    """The same with captions, embeddings and whatever is read twice."""
    return run_bytes_per_s(a) * a.loader_overhead_factor


def burst_bytes_per_s(a: Assumptions) -> float:
    """The same while all ranks refill their rings after a restart."""
    return run_bytes_per_s_with_overhead(a) * a.burst_factor


def run_total_bytes(a: Assumptions) -> float:
    """Latents that the run reads, every epoch counted: no run can use more than this."""
    return a.tokens * latent_bytes_per_token(a)


def video_s_per_s_256p(a: Assumptions) -> float:
    """Seconds of video that the cluster takes in a second, all at 256p."""
    return run_tokens_per_s(a) / tokens_per_s_256p(a)


def video_s_per_s_720p(a: Assumptions) -> float:
    """Seconds of video that the cluster takes in a second, all at 720p."""
    return run_tokens_per_s(a) / tokens_per_s_720p(a)


def online_encode_gpus_256p(a: Assumptions) -> float:
    """GPUs that would encode on the fly at 256p, were latents not stored."""
    return video_s_per_s_256p(a) / a.online_256p_realtime_factor


def tokens_per_s_per_accelerator(a: Assumptions) -> float:
    """Tokens that one accelerator takes."""
    return run_tokens_per_s(a) / a.accelerators


def bytes_per_s_per_accelerator(a: Assumptions) -> float:
    """Latents that one accelerator takes."""
    return run_bytes_per_s(a) / a.accelerators


def sample_tokens_720p(a: Assumptions) -> float:
    """Tokens of one sample: the first frame is a latent frame of its own."""
    return tokens_per_frame("720p") * (1 + (a.sample_frames - 1) / TEMPORAL_FACTOR)


def sample_bytes_720p(a: Assumptions) -> float:
    """Bytes of one sample."""
    return sample_tokens_720p(a) * latent_bytes_per_token(a)


def sample_interval_s(a: Assumptions) -> float:
    """Seconds that one accelerator takes for a sample at 720p, were it alone with it."""
    return sample_tokens_720p(a) / tokens_per_s_per_accelerator(a)


def store_margin(a: Assumptions) -> float:
    """What one object store gives over what the run reads, overhead included."""
    return a.store_bytes_per_s / run_bytes_per_s_with_overhead(a)


def pixel_bytes_per_s_720p(a: Assumptions) -> float:
    """One stream of raw pixels, for comparison."""
    width, height = RUNG_PIXELS["720p"]
    return width * height * 3 * a.fps


TRAINING = (
    Figure(run_tokens_per_s, "tokens/s", "0"),
    Figure(run_bytes_per_s, "bytes/s", "0"),
    Figure(run_bytes_per_s_with_overhead, "bytes/s", "0"),
    Figure(burst_bytes_per_s, "bytes/s", "5.4"),
    Figure(run_total_bytes, "bytes"),
    Figure(video_s_per_s_256p, "video s/s", "2.7"),
    Figure(video_s_per_s_720p, "video s/s", "2.7"),
    Figure(online_encode_gpus_256p, "GPUs", "2.7"),
    Figure(tokens_per_s_per_accelerator, "tokens/s", "6"),
    Figure(bytes_per_s_per_accelerator, "bytes/s", "6"),
    Figure(sample_bytes_720p, "bytes", "6"),
    Figure(sample_interval_s, "s"),
    Figure(store_margin, "x", "6"),
    Figure(pixel_bytes_per_s_720p, "bytes/s", "5.4"),
)

# latents --------------------------------------------------------------------------------------


def encoded_hours(a: Assumptions, rung: str, plan: str | None = None) -> float:
    """Hours that are encoded at a rung under a plan; the assumed one without it."""
    share = 1.0
    if (plan or a.encode_plan) == "curriculum":
        share = getattr(a, f"encoded_{rung}_share")
    return curated_hours(a) * share


def _latent_bytes(a: Assumptions, plan: str | None = None) -> float:
    return sum(
        encoded_hours(a, rung, plan)
        * HOUR_S * tokens_per_video_s(a, rung) * latent_bytes_per_token(a)
        for rung in RUNG_PIXELS
    )  # fmt: skip


def _encode_gpu_hours(a: Assumptions, plan: str | None = None) -> float:
    return sum(
        encoded_hours(a, rung, plan) / getattr(a, f"encode_{rung}_realtime_factor")
        for rung in RUNG_PIXELS
    )


def latent_bytes(a: Assumptions) -> float:
    """Stored latents under the assumed plan."""
    return _latent_bytes(a)


def latent_bytes_curriculum(a: Assumptions) -> float:
    """Latents where each rung holds what its curriculum phases admit."""
    return _latent_bytes(a, "curriculum")


def latent_bytes_full_ladder(a: Assumptions) -> float:
    """Latents of all curated hours at every rung."""
    return _latent_bytes(a, "full_ladder")


def encode_gpu_hours(a: Assumptions) -> float:
    """Encoding under the assumed plan."""
    return _encode_gpu_hours(a)


def encode_gpu_hours_curriculum(a: Assumptions) -> float:
    """Encoding what curriculum phases admit."""
    return _encode_gpu_hours(a, "curriculum")


def encode_gpu_hours_full_ladder(a: Assumptions) -> float:
    """Encoding all curated hours at every rung."""
    return _encode_gpu_hours(a, "full_ladder")


def num_shards(a: Assumptions) -> float:
    """Shards of the assumed plan."""
    return latent_bytes(a) / a.shard_bytes


def reencode_days(a: Assumptions) -> float:
    """Days of a burst that encodes all curated hours at every rung for another tokenizer."""
    return encode_gpu_hours_full_ladder(a) / a.reencode_gpus / 24


LATENTS = (
    Figure(latent_bytes, "bytes", "9.1"),
    Figure(latent_bytes_curriculum, "bytes"),
    Figure(latent_bytes_full_ladder, "bytes", "2.7"),
    Figure(encode_gpu_hours_curriculum, "GPU-hours"),
    Figure(encode_gpu_hours_full_ladder, "GPU-hours", "2.7"),
    Figure(num_shards, "shards", "5.1"),
    Figure(reencode_days, "days", "2.7"),
)
