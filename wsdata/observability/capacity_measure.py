"""What a deployment's own catalog says about yields and bytes: inputs that need no clock.

Read from rows alone: probes, clips, gates, transcodes, frame packs, kill rates, and the newest
dataset index. How fast machines are is not in the catalog; that is for `capacity_speeds`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from wsdata.catalog.objects import read_table
from wsdata.digest import sha256_bytes
from wsdata.ids import parse_clip_id
from wsdata.lifecycle.versions import latest_version
from wsdata.observability.capacity import HOUR_S, PATCH, RUNG_PIXELS
from wsdata.observability.capacity_inputs import MEASURED, Origin
from wsdata.shard.latents import NUM_CHANNELS
from wsdata.tables import FAST_RUNGS, FILTERS, ROW_FILTERS

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger
    from wsdata.store import BlobStore

MAX_HOURS = 100_000.0  # of raw video looked at; drops beyond it would say the same
MAX_INDEX_ROWS = 20_000_000  # of the newest dataset index; a larger one is not read whole
MS_PER_S = 1000
RUNG_FPS = 24  # at which a rung's seconds count

# What the pool of `preprocess/decode` does beside it.
BESIDE_DECODE = (
    "ingest/fingerprints",
    *(f"preprocess/{name}_scores" for name in FILTERS if name not in ROW_FILTERS),
    "label/camera_motion",
)
_GATED = "gated by "  # how the reason begins of a score that cost nothing

TYPICAL_KILL_SHARES = {  # section 2.6, of each filter's own input
    "technical": (0.10, 0.20),
    "motion": (0.15, 0.25),
    "overlay": (0.10, 0.20),
    "safety": (0.01, 0.05),
}


class KillRate(NamedTuple):
    """What one filter saw and stopped, all sources together.

    Attributes:
        typical: What the reference design expects, or None where it names no rate.
    """

    filter: str
    num_in: int
    num_stopped: int
    typical: tuple[float, float] | None

    @property
    def kill_share(self) -> float:
        """Share of what it saw that it stopped."""
        return self.num_stopped / self.num_in if self.num_in else 0.0


class Measured(NamedTuple):
    """What was found in a catalog.

    Attributes:
        raw_hours: Hours of raw video that it rests on.
        values: Inputs of the model by name, with what each rests on.
        kill_rates: By filter, in the order of the funnel.
        worked_shares: Of the steps of `BESIDE_DECODE` that worked, seconds of video that they
            looked at over seconds of raw video.
    """

    raw_hours: float
    values: dict[str, tuple[float, Origin]]
    kill_rates: list[KillRate]
    worked_shares: dict[str, float]


def measure(ledger: Ledger, store: BlobStore) -> Measured:
    """Measure yields and bytes of what this deployment has processed.

    Drops are taken in the order of a hash of their key, so that the choice is no choice, until
    `MAX_HOURS` of raw video have been seen. Stills and vault members are left out.
    """
    sums: defaultdict[str, float] = defaultdict(float)
    stopped: Counter[str] = Counter()
    version = _readable_version(ledger)
    index = _video_samples(read_table(ledger, store, "dataset_index", version or "-"))
    curated = index.select("clip_id").unique()
    drops = {ref.partition for ref in ledger.live("clips")}
    num_drops = 0
    for drop in sorted(drops, key=lambda name: sha256_bytes(name.encode())):
        if sums["raw_s"] > MAX_HOURS * HOUR_S:
            break
        num_drops += 1
        _add_drop(sums, stopped, ledger, store, drop, curated)
    hours = sums["raw_s"] / HOUR_S
    note = f"{num_drops} drops, {hours:.3g} hours of raw video"
    values = {
        name: (value, Origin(MEASURED, note)) for name, value in _yields(sums).items() if value > 0
    }
    if version is not None and index.height:
        values |= _latents(version, index, curated)
    shares = {name: sums[name] / sums["raw_s"] for name in BESIDE_DECODE if sums[name]}
    return Measured(hours, values, _kill_rates(stopped), shares)


def _add_drop(
    sums: defaultdict[str, float],
    stopped: Counter[str],
    ledger: Ledger,
    store: BlobStore,
    drop: str,
    curated: pl.DataFrame,
) -> None:
    def rows(table: str) -> pl.DataFrame:
        return read_table(ledger, store, table, drop)

    raw = rows("raw_assets").filter(~pl.col("in_vault")).select("asset_id", "size_bytes")
    probes = rows("probes").filter((pl.col("media_kind") == "video") & (pl.col("status") == "ok"))
    timed = raw.join(probes, on="asset_id").filter(pl.col("duration_s") > 0)
    clips = rows("clips").filter(pl.col("media_kind") == "video").select("clip_id", "duration_s")
    passed = rows("gates").filter(pl.col("passed")).select("clip_id")
    stored = (*RUNG_PIXELS, "48fps")
    rungs = [rows(f"transcodes_{ending}").select("clip_id", "size_bytes") for ending in stored]
    transcodes = pl.concat(rungs).join(clips, on="clip_id")
    packs = rows("frame_packs").join(clips, on="clip_id")
    laddered = clips.join(transcodes, on="clip_id", how="semi")
    surviving = clips.join(passed, on="clip_id", how="semi")
    sums["num_assets"] += timed.height
    sums["num_clips"] += clips.height
    for name, frame, column in (
        ("raw_s", timed, "duration_s"),
        ("raw_bytes", timed, "size_bytes"),
        ("clip_s", clips, "duration_s"),
        ("surviving_s", surviving, "duration_s"),
        ("laddered_s", laddered, "duration_s"),
        ("transcode_bytes", transcodes, "size_bytes"),
        ("pack_s", packs, "duration_s"),
        ("pack_bytes", packs, "size_bytes"),
        ("curated_s", clips.join(curated, on="clip_id", how="semi"), "duration_s"),
    ):
        sums[name] += float(frame[column].sum())
    sums["ingest/fingerprints"] += float(timed["duration_s"].sum())
    for name in BESIDE_DECODE[1:]:
        made = rows(name.partition("/")[2])
        if "reason" in made.columns:
            made = made.filter(~pl.col("reason").fill_null("").str.starts_with(_GATED))
        sums[name] += float(clips.join(made, on="clip_id", how="semi")["duration_s"].sum())
    for row in rows("kill_rates").iter_rows(named=True):
        stopped[f"{row['filter']} in"] += row["num_in"]
        stopped[f"{row['filter']} stopped"] += row["num_stopped"]


def _yields(sums: defaultdict[str, float]) -> dict[str, float]:
    """Inputs that follow from sums over drops; what nothing is known of is zero."""

    def over(upper: str, lower: str) -> float:
        return sums[upper] / sums[lower] if sums[lower] else 0.0

    return {
        "raw_bytes_per_hour": over("raw_bytes", "raw_s") * HOUR_S,
        "raw_hours_per_asset": over("raw_s", "num_assets") / HOUR_S,
        "clip_s": over("clip_s", "num_clips"),
        "surviving_share": min(1.0, over("surviving_s", "raw_s")),
        "laddered_share": min(1.0, over("laddered_s", "raw_s")),
        "curated_share": min(1.0, over("curated_s", "raw_s")),
        "transcode_bytes_per_hour": over("transcode_bytes", "laddered_s") * HOUR_S,
        "frame_pack_bytes_per_hour": over("pack_bytes", "pack_s") * HOUR_S,
    }


def _readable_version(ledger: Ledger) -> str | None:
    """The newest dataset version, unless its index is too large to be read here."""
    version = latest_version(ledger)
    refs = ledger.live("dataset_index", version) if version else []
    return version if sum(ref.num_rows for ref in refs) <= MAX_INDEX_ROWS else None


def _video_samples(index: pl.DataFrame) -> pl.DataFrame:
    parts = pl.col("bucket").str.split("/")  # "<rung>/<width>x<height>/<frames>"
    return index.select(
        "clip_id", "num_tokens", "length", parts.list.first().alias("rung"),
        parts.list.last().cast(pl.Int64).alias("num_frames"),
    ).filter(pl.col("num_frames") > 1)  # fmt: skip


def _latents(
    version: str, index: pl.DataFrame, curated: pl.DataFrame
) -> dict[str, tuple[float, Origin]]:
    """What the newest dataset version says of its latents."""
    parts = [parse_clip_id(clip_id) for clip_id in curated["clip_id"]]
    curated_s = sum(part.end_ms - part.start_ms for part in parts) / MS_PER_S
    stored = float(index["num_tokens"].sum()) * PATCH**2 * NUM_CHANNELS
    like_24 = pl.col("rung").replace(FAST_RUNGS)  # a second at 48 fps stands for two
    frames = dict(index.group_by(like_24).agg(pl.col("num_frames").sum()).iter_rows())
    values = {
        f"encoded_{rung}_share": min(1.0, frames.get(rung, 0) / RUNG_FPS / curated_s)
        for rung in RUNG_PIXELS
    }
    overhead = float(index["length"].sum()) / stored - 1  # fp8 and int8 take a byte a value
    values["shard_overhead_share"] = min(1.0, max(0.0, overhead))
    note = f"{version}: {index.height} video samples of {curated.height} clips"
    return {name: (value, Origin(MEASURED, note)) for name, value in values.items()}


def _kill_rates(stopped: Counter[str]) -> list[KillRate]:
    return [
        KillRate(
            name, stopped[f"{name} in"], stopped[f"{name} stopped"], TYPICAL_KILL_SHARES.get(name)
        )
        for name in FILTERS
        if stopped[f"{name} in"]
    ]
