"""A training run as a list of segments: which plan serves which of the run's steps.

A segment is a dataset version, a seed and a range of the run's steps; the next one begins where
it ends. Whatever may not change in the middle (tokenizer, latent dtype) changes at such a border
alone. A run says which step of which plan a step of the run is; where to resume belongs to
`cursor`, reading to the dataset. Nothing here reads a store: `bind_run` is handed opened plans.
"""

import functools
import itertools
import json
import math
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from wsdata.digest import digest
from wsdata.errors import PlanError
from wsdata.ids import parse_version
from wsdata.loader.ranks import check_world
from wsdata.shard.plan import StepPlan

FORMAT_VERSION = 1
ID_DIGITS = 32  # of run ids: 128 bits
MAX_NUMBER = 2**48  # of steps and seeds: what reports of served steps can tell
_INTEGERS = {"seed": "a seed", "first_step": "a step", "end_step": "a step", "plan_step": "a step"}
_NAMES = ("version", "seed", "first_step", "end_step", "plan_step", "plan_id")


def check_number(value: object, what: str, kind: str) -> None:
    """Raise ValueError where a value is no step or seed that a run may have."""
    if type(value) is not int or not 0 <= value < MAX_NUMBER:
        raise ValueError(f"{what} {value!r}, expected {kind} >= 0, an integer below 2^48")


@dataclass(frozen=True, kw_only=True, slots=True)
class Segment:
    """What one part of a run is declared to be.

    Attributes:
        version: ``v3`` or ``v3.1``.
        seed: Another order of the same mixture; None is the plan's own.
        first_step: First step of the run that it serves; None is where the one before ends.
        end_step: End of its steps; None, for the last segment alone, is open.
        plan_step: Step of its plan that serves `first_step`. None is `first_step` itself: the
            phases of the new plan go on at the step that the run has reached.
        plan_id: What the plan must be, with or without patches; "" takes what is published.
    """

    version: str
    seed: int | None = None
    first_step: int | None = None
    end_step: int | None = None
    plan_step: int | None = None
    plan_id: str = ""

    def __post_init__(self) -> None:
        for name in ("version", "plan_id"):
            if not isinstance(value := getattr(self, name), str):
                raise ValueError(f"segment of a run: {name} {value!r}, expected a text in quotes")  # noqa: TRY004
        parse_version(self.version)
        for name, kind in _INTEGERS.items():
            if (value := getattr(self, name)) is not None:
                check_number(value, f"segment of {self.version}: {name}", kind)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able form, without what is not stated."""
        stated = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in stated.items() if value not in (None, "")}


class Tokens(NamedTuple):
    """What the latents of a dataset version are: one tokenizer, one dtype of codes."""

    tokenizer_version: str
    dtype: str


class Bound(NamedTuple):
    """A segment with its plan: steps [first_step, end_step) of the run; None is open."""

    version: str
    plan: StepPlan
    tokens: Tokens
    first_step: int
    end_step: int | None
    plan_step: int

    @property
    def last_end(self) -> int:
        """End of the run's steps that it serves; of an open one, where its plan ends."""
        if self.end_step is not None:
            return self.end_step
        return max(self.first_step, self.first_step + self.plan.num_steps - self.plan_step)

    def to_plan(self, step: int) -> int:
        """Step of the plan that serves a step of the run."""
        return step - self.first_step + self.plan_step

    def identity(self) -> dict[str, Any]:
        """What decides which samples it serves, patches and its end aside."""
        return {
            "version": f"v{parse_version(self.version)[0]}",  # a patch is of the same version
            "plan": self.plan.base_plan_id[:ID_DIGITS],
            "seed": self.plan.seed,
            "first_step": self.first_step,
            "plan_step": self.plan_step,
        }


class Located(NamedTuple):
    """A step of a run: number of its segment, the segment, and the step of its plan."""

    number: int
    segment: Bound
    plan_step: int


class Stretch(NamedTuple):
    """Steps [first_step, end_step) of a run that one segment serves, from `plan_step` on."""

    number: int
    segment: Bound
    first_step: int
    end_step: int
    plan_step: int


class Run:
    """Bound segments, contiguous from step 0 on. Made by `bind_run` or `single_run`."""

    def __init__(self, segments: Sequence[Bound]) -> None:
        self.segments = tuple(segments)
        # What `cursor` spells once for each set of patches in effect; it dies with the run.
        self.cursor_words: dict[tuple[tuple[int, ...], ...], tuple[str, str]] = {}

    @functools.cached_property
    def run_id(self) -> str:
        """Digest of the list of segments, without patches: these come while a run is going."""
        told = [{**each.identity(), "end_step": each.end_step} for each in self.segments]
        return digest({"format_version": FORMAT_VERSION, "segments": told})[:ID_DIGITS]

    @property
    def end_step(self) -> int:
        """End of the run's steps; an open one ends where its last plan does."""
        return self.segments[-1].last_end

    @property
    def is_open(self) -> bool:
        """Whether its last segment goes on past `end_step` when asked to."""
        return self.segments[-1].end_step is None

    def end_of(self, first_step: int, num_steps: int | None) -> int:
        """End of so many steps from a first one on; a closed run has none past its own end.

        Args:
            first_step: A step of the run, or its end.
            num_steps: None goes to the run's end.

        Raises:
            PlanError: The run is closed, and ends before the first of them.
        """
        if not self.is_open and first_step > self.end_step:
            self.locate(first_step)  # raises
        if num_steps is None:
            return self.end_step
        end = first_step + num_steps
        return end if self.is_open else min(end, self.end_step)

    def locate(self, step: int) -> Located:
        """Say which segment and which step of its plan serve a step of the run.

        Raises:
            PlanError: The step is negative, or past the end of a run that is closed.
        """
        for number, each in enumerate(self.segments):
            if each.first_step <= step and (each.end_step is None or step < each.end_step):
                return Located(number, each, each.to_plan(step))
        raise PlanError(
            f"step {step} is none of the run's: it has steps [0, {self.end_step}) in "
            f"{len(self.segments)} segments: append a segment to go on"
        )

    def stretches(self, first_step: int, end_step: int) -> Iterator[Stretch]:
        """Cut steps [first_step, end_step) of the run at the borders of its segments.

        Raises:
            PlanError: Some of them are none of the run's.
        """
        at = first_step
        while at < end_step:
            number, segment, plan_step = self.locate(at)
            end = end_step if segment.end_step is None else min(end_step, segment.end_step)
            yield Stretch(number, segment, at, end, plan_step)
            at = end

    def world_sizes(self) -> list[int]:
        """World sizes that divide every global batch of every segment, ascending."""
        sizes = [size for each in self.segments for size in each.plan.batch_sizes.values()]
        common = math.gcd(*sizes)
        return [size for size in range(1, common + 1) if common % size == 0]

    def check_world(self, *, rank: int, world_size: int) -> None:
        """Refuse a world size that some segment cannot be read with.

        Raises:
            PlanError: A bucket's batch of some segment is no multiple of the world size.
            ValueError: There is no such rank.
        """
        for number, each in enumerate(self.segments):
            try:
                check_world(each.plan.batch_sizes, rank=rank, world_size=world_size)
            except PlanError as error:
                error.add_note(
                    f"that is segment {number} ({each.version}, from step {each.first_step}); all "
                    f"segments can be read by one of {self.world_sizes()} ranks"
                )
                raise

    def replaced(self, number: int, version: str, plan: StepPlan) -> "Run":
        """Return the run with a patched plan in one segment.

        Raises:
            PlanError: It is another plan, not the same one with other patches.
        """
        old = self.segments[number]
        new = old._replace(version=version, plan=plan)
        if new.identity() != old.identity():
            raise PlanError(
                f"segment {number} is of {old.version} (plan {old.plan.base_plan_id[:12]}, seed "
                f"{old.plan.seed}); {version} has plan {plan.base_plan_id[:12]}, seed {plan.seed}: "
                "only a patch of the same version can take its place; for another version append "
                "a segment"
            )
        return Run([*self.segments[:number], new, *self.segments[number + 1 :]])

    def told(self) -> list[str]:
        """One line for each segment, for people and errors."""
        return [
            f"steps {each.first_step}..{'' if each.end_step is None else each.end_step}: "
            f"{each.version} seed {each.plan.seed} from plan step {each.plan_step} "
            f"({each.tokens.tokenizer_version}, {each.tokens.dtype})"
            for each in self.segments
        ]


def single_run(version: str, plan: StepPlan, tokens: Tokens) -> Run:
    """Return the run of one version from its first step on, open at the end."""
    return Run([Bound(version, plan, tokens, 0, None, 0)])


def read_run(path: str | Path) -> list[Segment]:
    """Read the segments that a JSON or TOML file declares; see `parse_run`.

    Raises:
        ValueError: It is neither, or declares no run.
    """
    file = Path(path)
    readers = {".json": json.loads, ".toml": tomllib.loads}
    if file.suffix not in readers:
        raise ValueError(f"run {file}: expected a .json or .toml file")
    try:
        data = readers[file.suffix](file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"run {file}: {error}") from error
    return parse_run(data)


def parse_run(data: Any) -> list[Segment]:
    """Read declared segments: ``{"segments": [{"version": "v3", "end_step": 1000}, ...]}``.

    Raises:
        ValueError: Not of that form, an unknown key, or an impossible number.
    """
    stated = cast("Mapping[str, Any]", data if isinstance(data, Mapping) else {})
    listed = stated.get("segments")
    if not isinstance(listed, list) or not listed:
        raise ValueError(
            "a run is {'segments': [{'version': 'v3', ...}, ...]} with at least one segment; got "
            f"{str(cast('object', data))[:80]}"
        )
    found: list[Segment] = []
    for number, each in enumerate(cast("list[Any]", listed)):
        if not isinstance(each, Mapping) or "version" not in each:
            raise ValueError(f"segment {number} of the run: expected a table with a version")
        stated = cast("Mapping[str, Any]", each)
        if unknown := sorted(set(stated) - set(_NAMES)):
            raise ValueError(
                f"segment {number} of the run: unknown keys {unknown}, expected of {list(_NAMES)}"
            )
        found.append(Segment(**stated))
    return found


def settle_segments(segments: Sequence[Segment]) -> list[Segment]:
    """Fill in what follows: where each segment begins, in the run and in its plan.

    Raises:
        ValueError: There is none, one but the last is open, one is empty, or steps are left out
            or served twice at a border.
    """
    if not segments:
        raise ValueError("a run without segments: expected at least one")
    settled: list[Segment] = []
    at: int | None = 0
    for number, each in enumerate(segments):
        if at is None:
            raise ValueError(
                f"segment {number - 1} ({segments[number - 1].version}) is open, so segment "
                f"{number} ({each.version}) never begins: give it an end_step"
            )
        first = at if each.first_step is None else each.first_step
        if first != at:
            raise ValueError(
                f"segment {number} ({each.version}) begins at step {first}, the one before ends at "
                f"{at}: steps of a run are contiguous from 0"
            )
        if each.end_step is not None and each.end_step <= first:
            raise ValueError(
                f"segment {number} ({each.version}) has steps [{first}, {each.end_step}): "
                "expected at least one"
            )
        plan_step = first if each.plan_step is None else each.plan_step
        settled.append(replace(each, first_step=first, plan_step=plan_step))
        at = each.end_step
    return settled


def bind_run(
    segments: Sequence[Segment], open_segment: Callable[[Segment], tuple[StepPlan, Tokens]]
) -> Run:
    """Bind declared segments to their plans.

    Args:
        segments: As declared; see `settle_segments`.
        open_segment: Gives the plan of a segment, with its seed, and what its latents are.

    Raises:
        PlanError: A plan is not the one that was declared.
        ValueError: The segments are not contiguous.
    """
    bound: list[Bound] = []
    for number, each in enumerate(settle_segments(segments)):
        plan, tokens = open_segment(each)
        if each.plan_id and not any(
            known.startswith(each.plan_id) for known in (plan.plan_id, plan.base_plan_id)
        ):
            raise PlanError(
                f"segment {number} of the run is declared with plan {each.plan_id[:12]}, published "
                f"as {each.version} is {plan.plan_id[:12]} (without patches "
                f"{plan.base_plan_id[:12]}): its samples would be others"
            )
        first, plan_step = each.first_step or 0, each.plan_step or 0
        bound.append(Bound(each.version, plan, tokens, first, each.end_step, plan_step))
    return Run(bound)


def one_tokens(version: str, kinds: Sequence[tuple[str, str]]) -> Tokens:
    """What the latents of a version are, from the (tokenizer, dtype) of its buckets.

    Raises:
        PlanError: There is none, or several: a tokenizer changes at a segment's border alone.
    """
    found = sorted(set(kinds))
    if len(found) != 1:
        listed = ", ".join(f"{tokenizer} as {dtype}" for tokenizer, dtype in found) or "none"
        raise PlanError(
            f"dataset version {version} has latents of {len(found)} kinds ({listed}): expected "
            "one; a run changes its tokenizer or dtype only where a segment begins, so cut a "
            "version for each"
        )
    return Tokens(*found[0])


def changes_at(run: Run) -> dict[int, tuple[Tokens, Tokens]]:
    """Steps at which a run's latents become of another kind, with what they were and are."""
    return {
        after.first_step: (before.tokens, after.tokens)
        for before, after in itertools.pairwise(run.segments)
        if before.tokens != after.tokens
    }
