"""How fast this deployment's own workers were: inputs of the model that need a clock.

Every worker leaves the pace of its units beside its report (`wsdata.units`); what an earlier
worker had made costs nothing there and counts for nothing here. What needs no clock belongs to
`capacity_measure`.
"""

from __future__ import annotations

import json
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from wsdata.observability.capacity import HOUR_S, RUNG_PIXELS
from wsdata.observability.capacity_inputs import MEASURED, Origin
from wsdata.observability.capacity_measure import BESIDE_DECODE, RUNG_FPS
from wsdata.units import SPEEDS, SPEEDS_FORMAT, UNIT

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from wsdata.store import BlobStore

NEWEST = 100  # workers of each step that are asked; a worker does a whole drop
ASKED_AT_ONCE = 16
DECODE = "preprocess/decode"
ENCODE = "shard/latent_shards"
WITHOUT_GPU = ("ingest/land", "ingest/vault_prints")  # by design
SHARD = "shard"  # a kind of unit: the samples of the group, joined

Told = tuple[str, float, str]  # input of the model, its value, and what that rests on


@dataclass(kw_only=True, slots=True)
class Speed:
    """Pace of like workers of one step: the same code, parameters and number of GPUs.

    Attributes:
        step: ``stage/name``.
        kind: Which of the step's units; see `wsdata.orders.StepRun.unit`.
        num_gpus: GPUs of one worker; 0 where it has none.
        num_units: Units that they made; those kept from earlier workers are not in it.
        worker_s: Seconds that they were at it, together.
        amounts: What those units amount to, such as ``media_s`` or ``size_bytes``.
    """

    step: str
    kind: str
    code_version: str
    num_gpus: int
    num_workers: int = 0
    num_units: int = 0
    worker_s: float = 0.0
    amounts: dict[str, float] = field(default_factory=lambda: defaultdict[str, float](float))

    @property
    def gpu_s(self) -> float:
        """GPU-seconds; a worker without a GPU stands for one."""
        return self.worker_s * max(1, self.num_gpus)

    @property
    def media_s(self) -> float:
        """Seconds of video that the units are about; 0 where that is not known."""
        return self.amounts["media_s"] or self.amounts["num_frames"] / RUNG_FPS

    @property
    def name(self) -> str:
        """Its step, and kind where the step has several."""
        return self.step if self.kind == UNIT else f"{self.step} {self.kind}"

    @property
    def note(self) -> str:
        """What a number from it rests on."""
        gpus = f"{self.num_gpus} GPUs each" if self.num_gpus else "no GPU"
        workers = "1 worker" if self.num_workers == 1 else f"{self.num_workers} workers"
        return (
            f"{self.name} {self.code_version}: {self.num_units} units in "
            f"{self.worker_s / HOUR_S:.3g} hours of {workers}, {gpus}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able form, with what follows; null where the amount is not known."""
        size_bytes = self.amounts["size_bytes"]
        return {
            "step": self.step, "kind": self.kind, "code_version": self.code_version,
            "num_gpus": self.num_gpus, "num_workers": self.num_workers,
            "num_units": self.num_units, "worker_s": self.worker_s, "media_s": self.media_s,
            "units_per_worker_s": _over(self.num_units, self.worker_s),
            "realtime_factor": _over(self.media_s, self.gpu_s),
            "bytes_per_worker_s": _over(size_bytes, self.worker_s),
        }  # fmt: skip


Used = dict[tuple[str, str], Speed]  # by step and kind


class Found(NamedTuple):
    """What workers measured.

    Attributes:
        values: Inputs of the model by name, with what each rests on.
        too_little: Names of speeds that are not used: less work than asked for.
        without_gpu: Names of those used of workers that had no GPU, and stand for one each.
    """

    values: dict[str, tuple[float, Origin]]
    too_little: list[str]
    without_gpu: list[str]


def read_speeds(store: BlobStore) -> list[Speed]:
    """Read what the newest workers of every step left.

    Of one kind of unit, workers that are unlike come apart, the newest first. Objects of
    another format are left out.
    """
    keys: defaultdict[str, list[str]] = defaultdict(list)
    for key, _ in store.list(SPEEDS):
        keys[key.removeprefix(SPEEDS).split("/")[0]].append(key)
    newest = [key for of_step in keys.values() for key in sorted(of_step, reverse=True)[:NEWEST]]
    speeds: dict[tuple[Any, ...], Speed] = {}
    with ThreadPoolExecutor(ASKED_AT_ONCE) as threads:
        for body in map(json.loads, threads.map(store.get, newest)):
            if body["format_version"] == SPEEDS_FORMAT:
                _add(speeds, body)
    return list(speeds.values())


def _add(speeds: dict[tuple[Any, ...], Speed], body: dict[str, Any]) -> None:
    step = f"{body['stage']}/{body['step']}"
    for kind, pace in body["kinds"].items():
        if pace["num_made"]:
            like = (step, kind, body["code_version"], body["num_gpus"])
            speed = speeds.setdefault(
                (*like, body["params_digest"]),
                Speed(step=step, kind=kind, code_version=like[2], num_gpus=like[3]),
            )
            speed.num_workers += 1
            speed.num_units += pace["num_made"]
            speed.worker_s += pace["made_s"]
            for what, amount in pace["amounts"].items():
                speed.amounts[what] += amount


def speed_inputs(
    speeds: Iterable[Speed], min_worker_s: float, worked_shares: Mapping[str, float]
) -> Found:
    """Turn speeds into inputs of the model.

    Args:
        speeds: Of one step and kind, those are used that come first and were at it long enough.
        min_worker_s: Seconds of work from which on a speed is used.
        worked_shares: By step of `BESIDE_DECODE`, seconds that it worked over seconds of raw
            video, where that is known.
    """
    used: Used = {}
    little: Used = {}
    speeds = list(speeds)
    for speed in speeds:
        enough = speed.worker_s > 0 and speed.worker_s >= min_worker_s
        (used if enough else little).setdefault((speed.step, speed.kind), speed)
    told = [*_of_one_step(used), *_encoding(used, speeds), *_beside(used, worked_shares)]
    values = {name: (value, Origin(MEASURED, note)) for name, value, note in told if value > 0}
    sized = [s for s in used.values() if s.kind in (UNIT, *RUNG_PIXELS)]
    return Found(
        values,
        [s.name for w, s in little.items() if w not in used and s.kind in (UNIT, *RUNG_PIXELS)],
        [s.name for s in sized if not s.num_gpus and s.step not in WITHOUT_GPU],
    )


def _of_one_step(used: Used) -> Iterable[Told]:
    for name, step, value in (
        ("decode_realtime_factor", DECODE, lambda s: s.media_s / s.gpu_s),
        ("caption_gpu_s_per_clip", "label/captions", lambda s: s.gpu_s / s.num_units),
        ("embed_gpu_s_per_clip", "label/clip_embeddings", lambda s: s.gpu_s / s.num_units),
        ("landing_bytes_per_s", "ingest/land", lambda s: s.amounts["size_bytes"] / s.worker_s),
        ("vault_realtime_factor", "ingest/vault_prints", lambda s: s.media_s / s.worker_s),
    ):
        if (speed := used.get((step, UNIT))) is not None:
            yield name, value(speed), speed.note


def _encoding(used: Used, speeds: Iterable[Speed]) -> Iterable[Told]:
    """Speed of each rung; joining samples to shards is put on all alike."""
    gpu_s = {True: 0.0, False: 0.0}
    for speed in speeds:
        if speed.step == ENCODE:
            gpu_s[speed.kind == SHARD] += speed.gpu_s
    for rung in RUNG_PIXELS:
        if (speed := used.get((ENCODE, rung))) is not None:
            factor = speed.media_s / speed.gpu_s / (1 + gpu_s[True] / gpu_s[False])
            yield f"encode_{rung}_realtime_factor", factor, speed.note


def _beside(used: Used, worked_shares: Mapping[str, float]) -> Iterable[Told]:
    """All that the pool of decode does beside it for a second of raw video, if all is known."""
    gpu_s = worker_s = 0.0
    for name in BESIDE_DECODE:
        speed, share = used.get((name, UNIT)), worked_shares.get(name)
        if speed is None or share is None or not speed.media_s:
            return
        gpu_s += share * speed.gpu_s / speed.media_s
        worker_s += speed.worker_s
    said = f"{len(BESIDE_DECODE)} steps beside decode, {worker_s / HOUR_S:.3g} hours of workers"
    yield "filter_realtime_factor", 1 / gpu_s if gpu_s else 0.0, said


def _over(upper: float, lower: float) -> float | None:
    return upper / lower if upper and lower else None
