"""Sets of ranks that the proof lets read, as processes, and what they read put together again.

What is proved by it belongs to `proof`.
"""

import contextlib
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wsdata.digest import canonical_json
from wsdata.errors import StepFailed
from wsdata.loader.rank_fleet import error_file

MAX_WAIT_S = 900.0
_POLL_S = 0.02
_MAX_NAMED = 5
_LISTS = ("sample_ids", "clip_ids", "epochs")

Line = dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Ask:
    """Ranks that read the same steps together, each its part.

    Attributes:
        world_size: Number of data-parallel ranks.
        end_step: Where they stop.
        micro_batch: Samples of one batch; None is all of a rank's.
        latents: ``float32`` or ``stored``.
        sp_size: Ranks that share the frames of each sample.
        is_torch: Through the torch dataset.
        cursor: Where they resume.
    """

    world_size: int
    end_step: int
    micro_batch: int | None = None
    latents: str = "float32"
    sp_size: int = 1
    is_torch: bool = False
    cursor: dict[str, Any] | None = None


class Ranks:
    """Starts sets of ranks as processes, and reads what they wrote."""

    def __init__(self, store: str, version: str, folder: Path) -> None:
        self._store, self._version, self._folder = store, version, folder
        self._count = itertools.count()

    def read(self, asks: Sequence[Ask]) -> list[list[Line]]:
        """Let all sets of ranks run to the end, side by side; return the global batches of each.

        Raises:
            StepFailed: A rank ended with an error; its words are quoted.
        """
        outs = [self._outs(ask) for ask in asks]
        process = self._start(list(zip(asks, outs, strict=True)))
        with _ended(process):
            codes = self._codes(process)
        for ask, files in zip(asks, outs, strict=True):
            _check_codes(ask, files, [codes.pop(0) for _ in files])
        return [_merge(ask, files) for ask, files in zip(asks, outs, strict=True)]

    def kill_at(self, ask: Ask, step: int) -> list[dict[str, Any]]:
        """Start ranks, SIGKILL them once all have delivered a step; return their cursors.

        Raises:
            StepFailed: A rank ended before, or does not get there.
        """
        outs = self._outs(ask)
        cursors = [out.with_suffix(".cursor") for out in outs]
        process = self._start([(ask, outs)], hold_after=step)
        deadline = time.monotonic() + MAX_WAIT_S
        with _ended(process):
            while not all(_next_step(cursor) == step + 1 for cursor in cursors):
                if process.poll() is not None:
                    _check_codes(ask, outs, self._codes(process))
                    raise StepFailed(f"{len(outs)} ranks ended before step {step} was killed")
                if time.monotonic() > deadline:
                    raise StepFailed(
                        f"{len(outs)} ranks did not reach step {step} in {MAX_WAIT_S:g} s"
                    )
                time.sleep(_POLL_S)
        return [json.loads(cursor.read_text()) for cursor in cursors]

    def _outs(self, ask: Ask) -> list[Path]:
        number = next(self._count)
        num_ranks = ask.world_size * ask.sp_size
        return [self._folder / f"ranks-{number}-{rank}.jsonl" for rank in range(num_ranks)]

    def _start(
        self, asked: Sequence[tuple[Ask, list[Path]]], hold_after: int | None = None
    ) -> subprocess.Popen[str]:
        wanted = [
            [*self._arguments(ask, number, out), *_extra(ask, out, hold_after)]
            for ask, outs in asked
            for number, out in enumerate(outs)
        ]
        file = self._folder / f"fleet-{next(self._count)}.json"
        file.write_text(canonical_json(wanted))
        return subprocess.Popen(  # noqa: S603 - our own module, our own arguments
            [sys.executable, "-m", "wsdata.loader.rank_fleet", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # killed together, with all that they started
        )

    def _arguments(self, ask: Ask, number: int, out: Path) -> list[str]:
        rank, sp_rank = divmod(number, ask.sp_size)
        words = {
            "--store": self._store,
            "--version": self._version,
            "--rank": rank,
            "--world-size": ask.world_size,
            "--sp-rank": sp_rank,
            "--sp-size": ask.sp_size,
            "--latents": ask.latents,
            "--end-step": ask.end_step,
            "--out": out,
        }
        return [str(part) for pair in words.items() for part in pair]

    def _codes(self, process: subprocess.Popen[str]) -> list[int]:
        answer, told = process.communicate(timeout=MAX_WAIT_S)
        if process.returncode:
            raise StepFailed(f"the ranks could not be started:\n{_tail(told)}")
        return json.loads(answer)


def _extra(ask: Ask, out: Path, hold_after: int | None) -> list[str]:
    extra = ["--torch"] if ask.is_torch else []
    if ask.micro_batch is not None:
        extra += ["--micro-batch", str(ask.micro_batch)]
    cursor = out.with_suffix(".cursor")
    if ask.cursor is not None:
        cursor.write_text(canonical_json(ask.cursor))
    if hold_after is not None:
        extra += ["--hold-after", str(hold_after)]
    if ask.cursor is not None or hold_after is not None:
        extra += ["--cursor", str(cursor)]
    return extra


@contextlib.contextmanager
def _ended(process: subprocess.Popen[str]) -> Iterator[None]:
    """Leave none of the processes of a fleet behind."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _check_codes(ask: Ask, outs: Sequence[Path], codes: Sequence[int]) -> None:
    for number, (out, code) in enumerate(zip(outs, codes, strict=True)):
        if code:
            rank, file = number // ask.sp_size, error_file(out)
            told = file.read_text(encoding="utf-8") if file.is_file() else ""
            raise StepFailed(
                f"rank {rank} of {ask.world_size} ended with exit code {code}:\n{_tail(told)}"
            )


def _tail(told: str) -> str:
    return "\n".join(told.strip().splitlines()[-_MAX_NAMED:])


def _next_step(cursor: Path) -> int | None:
    return json.loads(cursor.read_text())["step"] if cursor.is_file() else None


def _steps(out: Path) -> list[Line]:
    """What one rank read, its micro-batches joined."""
    steps: list[Line] = []
    for text in out.read_text().splitlines():
        line = json.loads(text)
        if line["micro"][0] == 0:
            steps.append(line)
        else:
            for name in (*_LISTS, "latents_digests"):
                steps[-1][name] += line[name]
    return steps


def _merge(ask: Ask, outs: Sequence[Path]) -> list[Line]:
    """Join the ranks' parts of each step, in rank order: the global batches.

    Raises:
        StepFailed: Ranks delivered different steps or buckets, or a group other samples.
    """
    parts_of = [_steps(out) for out in outs]
    merged: list[Line] = []
    for parts in zip(*parts_of, strict=True):
        seen = {(part["step"], part["bucket"]) for part in parts}
        if len(seen) != 1:
            raise StepFailed(f"ranks delivered different steps or buckets at once: {sorted(seen)}")
        groups = [parts[at : at + ask.sp_size] for at in range(0, len(parts), ask.sp_size)]
        joined = [_join_group(group) for group in groups]
        line = {name: parts[0][name] for name in ("step", "bucket")}
        for name in (*_LISTS, "latents_digests"):
            line[name] = [item for part in joined for item in part[name]]
        merged.append(line)
    return merged


def _join_group(group: Sequence[Line]) -> Line:
    """Join the frames of each sample that a sequence-parallel group split."""
    first = group[0]
    if any(part[name] != first[name] for part in group for name in _LISTS):
        raise StepFailed(f"a sequence-parallel group read other samples at step {first['step']}")
    frames = zip(*(part["latents_digests"] for part in group), strict=True)
    return {**first, "latents_digests": [list(itertools.chain(*parts)) for parts in frames]}
