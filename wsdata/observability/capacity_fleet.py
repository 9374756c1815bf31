"""GPU-hours of the offline pipeline, the pools that spend them in a given time, request rates.

What is not sized: steps without a pool, which run in the orchestrator, and decoding that falls
back to the CPU, which takes an `nvdec` pod's own cores.
"""

import math
from typing import NamedTuple

from wsdata.observability.capacity import (
    DAY_S,
    HOUR_S,
    Figure,
    encode_gpu_hours,
    num_assets,
    num_clips,
    num_drops,
    raw_bytes,
    run_tokens_per_s,
    sample_tokens_720p,
    scaled,
    tokens_per_frame,
)
from wsdata.observability.capacity_inputs import Assumptions
from wsdata.shard.latents import TEMPORAL_FACTOR


def decode_gpu_hours(a: Assumptions) -> float:
    """One full pass over the corpus."""
    return a.raw_hours / a.decode_realtime_factor


def filter_gpu_hours(a: Assumptions) -> float:
    """Filters that look at frames."""
    return a.raw_hours / a.filter_realtime_factor


def preprocess_gpu_hours(a: Assumptions) -> float:
    """Decode, split, transcode and filters."""
    return decode_gpu_hours(a) + filter_gpu_hours(a)


def caption_gpu_hours(a: Assumptions) -> float:
    """Captions of all surviving clips."""
    return num_clips(a) * a.caption_gpu_s_per_clip / HOUR_S


def caption_everything_gpu_hours(a: Assumptions) -> float:
    """Captions of the corpus, were it captioned before it is filtered."""
    return a.raw_hours * HOUR_S / a.clip_s * a.caption_gpu_s_per_clip / HOUR_S


def embed_gpu_hours(a: Assumptions) -> float:
    """Clip embeddings."""
    return num_clips(a) * a.embed_gpu_s_per_clip / HOUR_S


def training_gpu_hours(a: Assumptions) -> float:
    """The flagship run, restarts and evaluation billed."""
    return a.accelerators * a.run_days * a.billed_days_factor * 24


def proxy_gpu_hours(a: Assumptions) -> float:
    """Proxy runs of candidate recipes."""
    return training_gpu_hours(a) * a.proxy_share


def offline_gpu_hours(a: Assumptions) -> float:
    """All but the flagship run."""
    return (
        preprocess_gpu_hours(a)
        + caption_gpu_hours(a)
        + encode_gpu_hours(a)
        + embed_gpu_hours(a)
        + proxy_gpu_hours(a)
    )


def offline_over_training(a: Assumptions) -> float:
    """The data pipeline over the run that it feeds."""
    return offline_gpu_hours(a) / training_gpu_hours(a)


def preprocess_usd(a: Assumptions) -> tuple[float, float]:
    """Price of decode, split, transcode and filters."""
    return scaled(preprocess_gpu_hours(a), a.gpu_hour_usd)


def caption_usd(a: Assumptions) -> tuple[float, float]:
    """Price of captions."""
    return scaled(caption_gpu_hours(a), a.gpu_hour_usd)


def encode_usd(a: Assumptions) -> tuple[float, float]:
    """Price of latents."""
    return scaled(encode_gpu_hours(a), a.gpu_hour_usd)


def curate_usd(a: Assumptions) -> tuple[float, float]:
    """Price of embeddings and proxy runs."""
    return scaled(embed_gpu_hours(a) + proxy_gpu_hours(a), a.gpu_hour_usd)


def offline_usd(a: Assumptions) -> tuple[float, float]:
    """Price of all but the flagship run."""
    return scaled(offline_gpu_hours(a), a.gpu_hour_usd)


def training_usd(a: Assumptions) -> tuple[float, float]:
    """Price of the flagship run."""
    return scaled(training_gpu_hours(a), a.gpu_hour_usd)


COMPUTE = (
    Figure(decode_gpu_hours, "GPU-hours", "2.1"),
    Figure(preprocess_gpu_hours, "GPU-hours", "9.2"),
    Figure(preprocess_usd, "USD", "9.2"),
    Figure(caption_gpu_hours, "GPU-hours", "3.1"),
    Figure(caption_usd, "USD", "9.2"),
    Figure(caption_everything_gpu_hours, "GPU-hours", "9.2"),
    Figure(encode_gpu_hours, "GPU-hours", "9.2"),
    Figure(encode_usd, "USD", "9.2"),
    Figure(embed_gpu_hours, "GPU-hours"),
    Figure(proxy_gpu_hours, "GPU-hours", "4.4"),
    Figure(curate_usd, "USD", "9.2"),
    Figure(offline_gpu_hours, "GPU-hours", "9.2"),
    Figure(offline_usd, "USD", "9.2"),
    Figure(training_gpu_hours, "GPU-hours", "9.2"),
    Figure(training_usd, "USD", "9.2"),
    Figure(offline_over_training, "x", "2.7"),
)

# pools ----------------------------------------------------------------------------------------


class PoolSize(NamedTuple):
    """What a pool must be to do its work in time.

    Attributes:
        work_hours: GPU-hours; of `cpu` and `vault`, pod-hours.
        num_gpus: GPUs that are busy all the time; 0 for pools without.
        num_pods: Workers at once: the pool's ``concurrencyLimit``.
    """

    work_hours: float
    num_gpus: int
    num_pods: int


def available_hours(a: Assumptions) -> float:
    """Hours that one GPU, or one pod, works in the time given."""
    return a.weeks * 7 * 24 * a.busy_share


def _with_gpus(a: Assumptions, gpu_hours: float, gpus_per_pod: int) -> PoolSize:
    num_pods = math.ceil(gpu_hours / available_hours(a) / gpus_per_pod)
    return PoolSize(gpu_hours, num_pods * gpus_per_pod, max(1, num_pods))


def _without(a: Assumptions, pod_hours: float) -> PoolSize:
    return PoolSize(pod_hours, 0, max(1, math.ceil(pod_hours / available_hours(a))))


def nvdec_pool(a: Assumptions) -> PoolSize:
    """Decode, split, transcode, filters."""
    return _with_gpus(a, preprocess_gpu_hours(a), a.nvdec_gpus_per_pod)


def vlm_pool(a: Assumptions) -> PoolSize:
    """Captions."""
    return _with_gpus(a, caption_gpu_hours(a), a.vlm_gpus_per_pod)


def encode_pool(a: Assumptions) -> PoolSize:
    """Embeddings and latents."""
    return _with_gpus(a, embed_gpu_hours(a) + encode_gpu_hours(a), a.encode_gpus_per_pod)


def cpu_pool(a: Assumptions) -> PoolSize:
    """Landing: hash, carve, copy."""
    return _without(a, raw_bytes(a) / a.landing_bytes_per_s / HOUR_S)


def vault_pool(a: Assumptions) -> PoolSize:
    """Prints of sealed material."""
    return _without(a, a.raw_hours * a.eval_share / a.vault_realtime_factor)


POOL_SIZES = {
    "cpu": cpu_pool,
    "nvdec": nvdec_pool,
    "vlm": vlm_pool,
    "encode": encode_pool,
    "vault": vault_pool,
}


def size_pools(a: Assumptions) -> dict[str, PoolSize]:
    """Size every pool for building the corpus in ``weeks``."""
    return {name: size(a) for name, size in POOL_SIZES.items()}


# requests -------------------------------------------------------------------------------------


def _build_s(a: Assumptions) -> float:
    return a.weeks * 7 * DAY_S


def _num_cut_clips(a: Assumptions) -> float:
    """Clips that get a ladder and go through the funnel, gated or not."""
    return a.raw_hours * a.laddered_share * HOUR_S / a.clip_s


def s3_puts(a: Assumptions) -> float:
    """Objects put: four for a raw asset (itself and memory of three units), and a clip's."""
    return 4 * num_assets(a) + _num_cut_clips(a) * a.puts_per_clip


def s3_gets(a: Assumptions) -> float:
    """Objects asked for: five for a raw asset, and a clip's."""
    return 5 * num_assets(a) + _num_cut_clips(a) * a.gets_per_clip


def s3_puts_per_s(a: Assumptions) -> float:
    """Mean over the build."""
    return s3_puts(a) / _build_s(a)


def s3_gets_per_s(a: Assumptions) -> float:
    """Mean over the build."""
    return s3_gets(a) / _build_s(a)


def s3_prefixes(a: Assumptions) -> float:
    """Key prefixes that the requests must be spread over; clips and shards are over 256."""
    return math.ceil(
        max(s3_puts_per_s(a) / a.puts_per_prefix_per_s, s3_gets_per_s(a) / a.gets_per_prefix_per_s)
    )


def s3_requests_usd(a: Assumptions) -> float:
    """Price of the requests of the build."""
    puts = s3_puts(a) / 1e6 * a.put_usd_per_million
    return puts + s3_gets(a) / 1e6 * a.get_usd_per_million


def s3_read_bytes_per_s(a: Assumptions) -> float:
    """Raw bytes that landing and decode read, mean over the build."""
    return 2 * raw_bytes(a) / _build_s(a)


def s3_write_bytes_per_s(a: Assumptions) -> float:
    """Raw bytes, transcodes and frame packs written, mean over the build."""
    derived = a.transcode_bytes_per_hour + a.frame_pack_bytes_per_hour
    return (raw_bytes(a) + a.raw_hours * a.laddered_share * derived) / _build_s(a)


def ledger_commits_per_s(a: Assumptions) -> float:
    """Commits of steps, mean over the build."""
    return num_drops(a) * a.steps_per_drop / _build_s(a)


def event_rows_per_s(a: Assumptions) -> float:
    """Rows of Dagster's event log, mean over the build."""
    return ledger_commits_per_s(a) * a.events_per_step


def loader_gets_per_s_720p(a: Assumptions) -> float:
    """Samples that the cluster reads, all at 720p, from no cache."""
    return run_tokens_per_s(a) / sample_tokens_720p(a)


def loader_gets_per_s_256p(a: Assumptions) -> float:
    """Samples that the cluster reads, all at 256p, from no cache."""
    frames = 1 + (a.sample_frames - 1) / TEMPORAL_FACTOR
    return run_tokens_per_s(a) / (tokens_per_frame("256p") * frames)


REQUESTS = (
    Figure(s3_puts_per_s, "requests/s"),
    Figure(s3_gets_per_s, "requests/s"),
    Figure(s3_prefixes, "prefixes"),
    Figure(s3_requests_usd, "USD"),
    Figure(s3_read_bytes_per_s, "bytes/s"),
    Figure(s3_write_bytes_per_s, "bytes/s"),
    Figure(ledger_commits_per_s, "commits/s"),
    Figure(event_rows_per_s, "rows/s"),
    Figure(loader_gets_per_s_256p, "requests/s"),
    Figure(loader_gets_per_s_720p, "requests/s"),
)
