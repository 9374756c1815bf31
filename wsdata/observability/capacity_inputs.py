"""What the capacity model takes as given: each number with its unit, its source, and who set it.

Defaults are those of the reference design, whose section a field's source names; ``ours`` marks
what that design leaves open. A deployment's measurements, a measured file, a config file and
options replace them, in that order. What follows from the numbers belongs to `capacity`.
"""

import dataclasses
import difflib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from wsdata.observability.cost import EGRESS_USD_PER_TB

ENCODE_PLANS = ("curriculum", "full_ladder")
MEASURED_FORMAT = 1
ASSUMED = "assumed"
MEASURED = "measured"
STATED = "stated"


def _of(default: Any, source: str) -> Any:
    return field(default=default, metadata={"source": source})


@dataclass(frozen=True, kw_only=True, slots=True)
class Assumptions:
    """Inputs of the model. Shares are in [0, 1]; a pair is (low, high)."""

    # corpus
    raw_hours: float = _of(50e6, "0: 100 PB at 2 GB an hour")
    raw_bytes_per_hour: float = _of(2e9, "0: mixed 480p to 4K at 2 to 8 Mbit/s")
    raw_hours_per_asset: float = _of(0.05, "1: 10^9 assets of 50M hours")
    licensed_share: float = _of(0.4, "0: source mix; cool class, all other is archived")
    kept_after_dedup_share: float = _of(0.85, "1.2: 100 to 85 PB")
    eval_share: float = _of(0.001, "1.4: 0.1 % of each source tier")
    laddered_share: float = _of(0.35, "2: a ladder of the 15 to 20M hours that survive")
    surviving_share: float = _of(0.35, "2: 15 to 20M of 50M hours pass the gates")
    clip_s: float = _of(10.0, "3.1: about 10 s a clip")
    curated_share: float = _of(0.10, "2.7: 5M of 50M hours")
    # tokens and latents
    tokens: float = _of(1e13, "0: upper end of the token target")
    run_days: float = _of(100.0, "0: lower end of 100 to 150 days")
    accelerators: int = _of(10_000, "0")
    fps: float = _of(24.0, "0: 720p24")
    latent_bytes_per_value: float = _of(1.0, "0: fp8")
    shard_overhead_share: float = _of(0.0, "0: not counted there")
    sample_frames: int = _of(121, "5.2: the longest frame bucket, about 5 s")
    shard_bytes: float = _of(256e6, "5.1: 256 to 512 MB")
    encode_plan: str = _of("curriculum", "ours: what 9.1 can mean; see docs/capacity.md")
    encoded_256p_share: float = _of(1.0, "ours: all curated hours; P0 and P1 read all tiers")
    encoded_512p_share: float = _of(0.25, "ours: of curated hours, for the end of P1")
    encoded_720p_share: float = _of(0.06, "ours: of curated hours; P2 and P3 read T0 and T1")
    loader_overhead_factor: float = _of(10.0, "0: captions, embeddings, inefficiency")
    burst_factor: float = _of(5.0, "5.4: prefetch after a restart of all ranks")
    store_bytes_per_s: float = _of(10e9, "6: one object store gives 10s of GB/s")
    source_bits_per_s: float = _of(5e6, "2.7: 5 Mbit/s H.264 at 720p")
    # speed, of one GPU
    decode_realtime_factor: float = _of(100.0, "2.1: several NVDEC engines, batched")
    filter_realtime_factor: float = _of(100.0, "9.2: 1M GPU-hours with decode's 0.5M")
    caption_gpu_s_per_clip: float = _of(1.5, "3.1: 1 to 2 GPU-seconds")
    embed_gpu_s_per_clip: float = _of(0.1, "ours: what 9.2 leaves beside proxy runs")
    encode_720p_realtime_factor: float = _of(15.0, "2.7: 10 to 20x")
    encode_512p_realtime_factor: float = _of(59.0, "2.7: pixels + 9.5 %, for 1.39 a ladder")
    encode_256p_realtime_factor: float = _of(111.0, "2.7: pixels + 9.5 %, for 1.39 a ladder")
    online_256p_realtime_factor: float = _of(50.0, "2.7: option A")
    proxy_share: float = _of(0.011, "4.4: 1 to 2 % of the flagship's GPU-hours")
    billed_days_factor: float = _of(1.2, "9.2: bills 120 days where 0 counts 100")
    # speed, of one pod without a GPU
    landing_bytes_per_s: float = _of(200e6, "ours: hash and copy, one pod")
    vault_realtime_factor: float = _of(50.0, "1.2: keyframes alone, 50x cheaper than decode")
    # fleet
    weeks: float = _of(8.0, "ours: how long the build may take")
    busy_share: float = _of(0.8, "ours: of a pool's time, the rest is starts and tails")
    nvdec_gpus_per_pod: int = _of(1, "ours: POOLS")
    vlm_gpus_per_pod: int = _of(8, "ours: POOLS")
    encode_gpus_per_pod: int = _of(1, "ours: POOLS")
    reencode_gpus: int = _of(2000, "2.7: burst for another tokenizer")
    # bytes
    transcode_bytes_per_hour: float = _of(30e15 / 17.5e6, "2: 30 PB of 17.5M hours, all rungs")
    frame_pack_bytes_per_hour: float = _of(0.12e9, "ours: a tenth of the 720p rung")
    text_bytes_per_clip: float = _of(32e3, "9.1: 0.2 PB of captions, embeddings, metadata")
    # requests
    assets_per_drop: float = _of(1e5, "ours: 10,000 drops of 10^9 assets")
    steps_per_drop: int = _of(25, "ours: steps of the graph that a drop goes through")
    events_per_step: float = _of(40.0, "ours: rows of Dagster's event log a step")
    puts_per_clip: float = _of(14.0, "ours: 3 rungs, pack, sound, memory of 10 units")
    gets_per_clip: float = _of(20.0, "ours: pack or rung for 9 steps, their memory")
    puts_per_prefix_per_s: float = _of(3500.0, "S3's documented floor for one prefix")
    gets_per_prefix_per_s: float = _of(5500.0, "S3's documented floor for one prefix")
    # prices
    gpu_hour_usd: tuple[float, float] = _of((2.0, 3.0), "2.1, 9.2")
    cool_usd_per_tb_month: tuple[float, float] = _of((10.0, 12.0), "1.4")
    archive_usd_per_tb_month: tuple[float, float] = _of((1.0, 2.0), "7: deep archive")
    standard_usd_per_tb_month: tuple[float, float] = _of((18.0, 22.0), "9.1: 60-80K USD, 3-4 PB")
    egress_usd_per_tb: tuple[float, float] = _of(EGRESS_USD_PER_TB, "9.3")
    put_usd_per_million: float = _of(5.0, "S3's list price")
    get_usd_per_million: float = _of(0.4, "S3's list price")
    link_bits_per_s: float = _of(100e9, "1.1: 100 Gbit/s")

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):
            _check(each.name, getattr(self, each.name))


def _check(name: str, value: Any) -> None:
    if name == "encode_plan":
        if value not in ENCODE_PLANS:
            raise ValueError(f"encode_plan {value!r}: expected one of {ENCODE_PLANS}")
        return
    numbers = value if isinstance(value, tuple) else (value,)
    for number in numbers:
        if not isinstance(number, (int, float)) or isinstance(number, bool):
            raise ValueError(f"{name} {value!r}: expected a number")  # noqa: TRY004
        if not math.isfinite(number) or number < 0:
            raise ValueError(f"{name} {value!r}: expected a finite number, not negative")
        if number > 1 and name.endswith("_share"):
            raise ValueError(f"{name} {value!r}: expected a share in [0, 1]")
        if number == 0 and not ("usd" in name or name.endswith("_share")):
            raise ValueError(f"{name} 0: expected a positive number")
    if list(numbers) != sorted(numbers):
        raise ValueError(f"{name} {value!r}: expected [low, high]")


class Origin(NamedTuple):
    """Who set an input.

    Attributes:
        kind: ``assumed`` (the default), ``measured`` or ``stated`` (a config file or option).
        note: Section of the reference design, what was measured, or the file or option.
    """

    kind: str
    note: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """All assumptions, and where each is from."""

    values: Assumptions
    origins: dict[str, Origin]


def reference_inputs() -> Inputs:
    """The reference design's own numbers."""
    return Inputs(
        values=Assumptions(),
        origins={
            each.name: Origin(ASSUMED, each.metadata["source"])
            for each in dataclasses.fields(Assumptions)
        },
    )


def replace_inputs(inputs: Inputs, changes: Mapping[str, tuple[Any, Origin]]) -> Inputs:
    """Replace some inputs.

    Args:
        inputs: What was before.
        changes: New value and origin of each input, by its name.

    Raises:
        ValueError: An unknown name, or a value that its input cannot have.
    """
    known = {each.name: each for each in dataclasses.fields(Assumptions)}
    values: dict[str, Any] = {}
    for name, (value, _) in changes.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=3)
            hint = f"did you mean {', '.join(near)}?" if near else f"known are {', '.join(known)}"
            raise ValueError(f"unknown capacity input {name!r}: {hint}")
        values[name] = _shaped(name, value, known[name].default)
    return Inputs(
        values=dataclasses.replace(inputs.values, **values),
        origins={**inputs.origins, **{name: origin for name, (_, origin) in changes.items()}},
    )


def _shaped(name: str, value: Any, default: Any) -> Any:
    """Bring a value to its input's shape: one number, or a pair where prices are a range."""
    if isinstance(default, tuple):
        pair = (value, value) if isinstance(value, (int, float)) else tuple(value)
        if len(pair) != len(default):
            raise ValueError(f"{name} {value!r}: expected a number or [low, high]")
        return pair
    if isinstance(value, (list, tuple)):
        raise ValueError(f"{name} {value!r}: expected one number")  # noqa: TRY004
    return value


def load_config(path: Path) -> dict[str, tuple[Any, Origin]]:
    """Read a TOML file of inputs, ``name = value`` or ``name = [low, high]``.

    Raises:
        ValueError: It is no TOML.
        OSError: It cannot be read.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path}: not TOML: {error}") from error
    return {name: (value, Origin(STATED, path.name)) for name, value in values.items()}


def load_measured(path: Path) -> dict[str, tuple[Any, Origin]]:
    """Read measured inputs.

    The file is ``{"format_version": 1, "measured": {NAME: {"value": NUMBER, "from": TEXT}}}``,
    where TEXT says which run, material and hardware.

    Raises:
        ValueError: It is another format, or a number without where it is from.
        OSError: It cannot be read.
    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not JSON: {error}") from error
    if not isinstance(body, dict) or body.get("format_version") != MEASURED_FORMAT:
        raise ValueError(
            f'{path}: expected {{"format_version": {MEASURED_FORMAT}, "measured": {{...}}}}'
        )
    found: dict[str, tuple[Any, Origin]] = {}
    for name, entry in body.get("measured", {}).items():
        if not isinstance(entry, dict) or "value" not in entry or not entry.get("from"):
            raise ValueError(
                f'{path}: {name} is {entry!r}: expected {{"value": NUMBER, "from": TEXT}}'
            )
        found[name] = (entry["value"], Origin(MEASURED, str(entry["from"])))
    return found
