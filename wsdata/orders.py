"""Work orders: what a step reads, makes, and when it is done.

A stage module declares its `Step` beside its algorithm. `build_order` turns it into a small
JSON-able order against the ledger; `execute` runs an order anywhere that sees the store, and
returns a report; the ledger's holder commits that. When an order is done is told by
`catalog.presence`.
"""

from __future__ import annotations

import importlib
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from wsdata import tables
from wsdata.catalog.objects import read_object, read_objects
from wsdata.digest import sha256_bytes
from wsdata.errors import NotReady
from wsdata.ids import parse_shard_group
from wsdata.records import Fact, ObjectRef, Order, Report, table_key
from wsdata.units import UNIT, Part, Units

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    import polars as pl

    from wsdata.catalog.ledger import Ledger
    from wsdata.deployment import Deployment
    from wsdata.recipe import Recipe
    from wsdata.store import BlobStore

log = logging.getLogger(__name__)

SCOPES = ("same", "all", "latest", "version_of_group", "groups_of_version")
PARTITION_KINDS = (
    "drop", "dataset_version", "shard_group", "centroids_version", "cluster_range", "none",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """A table that a step reads.

    Scopes: ``same`` partition; ``all`` partitions; ``latest``, the one partition committed
    last; ``version_of_group``, the dataset version of a shard group; ``groups_of_version``, all
    shard groups of a dataset version. One table may be both an input and a context. Rows read as
    `is_context` are looked things up in and never make a finished step unfinished.
    """

    table: str
    scope: str = "same"
    is_context: bool = False
    is_optional: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class FactInput:
    """Facts that a step reads: the present of one kind, of this drop alone if `of_drop`."""

    kind: str
    in_digest: bool = True
    of_drop: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One step of the graph.

    Attributes:
        stage: One of the eight stages.
        name: Unique within the stage.
        function: ``module:function`` taking a `StepRun` and returning a `StepResult`; imported
            only where the order is executed.
        code_version: Changes whenever the output can; a model's version where there is one.
        partition: One of PARTITION_KINDS.
        assets: Dagster asset name -> tables it makes. The first table is the asset's main one.
        pool: Compute pool, or None for a step cheap enough for the orchestrator's process.
        params_of: What of the recipe can change the output.
        constants_of: What of the deployment can change the output, beside the recipe's.
        settings_of: What of the deployment the worker needs; never in the digest.
        version_of: What of the recipe names another version of the rows, beside the code's: a
            second engine's rows are appended, and both stay live.
        units_of: The input whose rows are its units, where several workers may share an order: it
            works only what `StepRun.is_mine`.
    """

    stage: str
    name: str
    function: str
    code_version: str
    partition: str
    assets: Mapping[str, tuple[str, ...]]
    inputs: tuple[Input, ...] = ()
    facts: tuple[FactInput, ...] = ()
    pool: str | None = None
    params_of: Callable[[Recipe], dict[str, Any]] | None = None
    constants_of: Callable[[Deployment], dict[str, Any]] | None = None
    settings_of: Callable[[Deployment, Recipe], dict[str, Any]] | None = None
    version_of: Callable[[Recipe], str] | None = None
    units_of: str = ""
    description: str = ""

    @property
    def tables(self) -> tuple[str, ...]:
        """All tables of the step, in the order of its assets."""
        return tuple(table for made in self.assets.values() for table in made)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What a step's function returns: rows by table, facts, numbers, and things to look at."""

    tables: dict[str, pl.DataFrame]
    facts: list[Fact] = field(default_factory=list[Fact])
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    display: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])


class Progress(Protocol):
    """Told how far a step is."""

    def __call__(self, done: int, total: int, note: str) -> None:
        """Take (units done, units in all, what was just done)."""
        ...


def _log_progress(done: int, total: int, note: str) -> None:
    log.info("%d/%d %s", done, total, note)


class StepRun:
    """What a step's function is given: its inputs, the store, and a memory of its units."""

    def __init__(
        self,
        order: Order,
        store: BlobStore,
        progress: Progress = _log_progress,
        ledger: Ledger | None = None,
        *,
        part: Part | None = None,
        asks_blobs: bool = True,
    ) -> None:
        self.order = order
        self.store = store
        self._ledger = ledger
        self.progress = progress
        self.params = order.params
        self.settings = order.settings
        self.units = Units(order, store, asks_blobs=asks_blobs)
        self._part = part

    def is_mine(self, row_id: str) -> bool:
        """Whether this worker is to work the unit of a row of the step's `units_of`.

        Always so where one worker does the whole step. What a worker of a part returns is thrown
        away: its units are what it was for. `row_id`: the asset or clip that the row is about.
        """
        return self._part is None or self._part.holds(row_id)

    def mine(self, rows: pl.DataFrame, column: str) -> pl.DataFrame:
        """Rows whose units this worker is to work, by the column that `is_mine` asks for."""
        import polars as pl

        return rows.filter(pl.col(column).map_elements(self.is_mine, return_dtype=pl.Boolean))

    @property
    def ledger(self) -> Ledger:
        """The ledger, for steps without a pool alone: workers in pools hold none.

        Raises:
            NotReady: This is a worker in a pool.
        """
        if self._ledger is None:
            raise NotReady(f"{self.order.stage}/{self.order.step} runs in a pool, without a ledger")
        return self._ledger

    def read(self, table: str) -> pl.DataFrame:
        """Rows of an input, all its objects together; an absent optional input has no rows."""
        return read_objects(self.store, table, self.order.inputs.get(table, []))

    def read_by_partition(self, table: str) -> dict[str, pl.DataFrame]:
        """Rows of an input by partition."""
        return {
            ref.partition: read_object(self.store, ref) for ref in self.order.inputs.get(table, [])
        }

    def read_context(self, table: str) -> pl.DataFrame:
        """Rows of a context input, all partitions together."""
        return read_objects(self.store, table, self.order.context.get(table, []))

    def blob_key(self, table: str, subject: str, suffix: str) -> str:
        """Key of a derived object of this step: table, chained version, subject."""
        return f"derived/{table}/{self.order.version_digest}/{subject[:2]}/{subject}{suffix}"

    def put_blob(self, key: str, data: bytes | Path) -> dict[str, Any]:
        """Store a derived object, and return its ``key``, ``sha256`` and ``size_bytes`` columns.

        The first result under a key wins: where the key is taken, what lies there is described.
        """
        content = data.read_bytes() if isinstance(data, Path) else data
        if not self.store.put(key, content):
            content = self.store.get(key)
        return {"key": key, "sha256": sha256_bytes(content), "size_bytes": len(content)}

    def unit(
        self,
        subject: str,
        compute: Callable[[], dict[str, Any]],
        *,
        blobs: tuple[str, ...] = (),
        kind: str = UNIT,
        amounts: Callable[[dict[str, Any]], dict[str, float]] | None = None,
    ) -> dict[str, Any]:
        """Return a unit's result, computing it only where no earlier run of this step did.

        A step's work is many units (raw assets, clips, samples). Each result is JSON kept under
        (step, chained version, subject): a killed step resumes, and one subject in two drops
        is worked once. As-of reads never see these objects.

        Args:
            subject: What the unit is about, and all that its result depends on besides the
                step's version (a release number, say).
            compute: Makes the result; called at most once.
            blobs: Dotted paths into the result, where ``*`` is every item, that name keys which
                must still be in the store; else the unit is computed again.
            kind: What sort of unit it is, where a step has several: each is timed by itself.
            amounts: What a result that was made now amounts to, such as ``media_s``, for whoever
                asks how fast the step is; in no row.
        """
        return self.units.unit(subject, compute, blobs=blobs, kind=kind, amounts=amounts)

    def at_work(self) -> AbstractContextManager[None]:
        """Count the time inside as the units', where what makes them is done before `unit`."""
        return self.units.at_work()


def build_order(
    step: Step,
    partition: str,
    *,
    ledger: Ledger,
    deployment: Deployment,
    recipe: Recipe,
    extra_params: Mapping[str, Any] | None = None,
    as_of: int | None = None,
    is_for_work: bool = True,
) -> Order:
    """Build the order of a step for one partition, from what is live now.

    Args:
        step: The step.
        partition: A partition of the step's kind.
        ledger: What is live, and what was stated.
        deployment: Where the step's settings come from.
        recipe: Where its parameters come from.
        extra_params: Parameters that no recipe holds.
        as_of: A commit to read the ledger as of, for a step that must not see what came later.
        is_for_work: Whether the order may be executed. Without it, it has neither context nor
            settings, which its digest leaves out: enough to ask whether it is done.

    Raises:
        NotReady: An input that is not optional has no live object.
    """
    from wsdata.catalog.view import present_of_drop  # SQL is for who holds the ledger alone

    inputs: dict[str, list[ObjectRef]] = {}
    context: dict[str, list[ObjectRef]] = {}
    for wanted in step.inputs:
        if wanted.is_context and not is_for_work:
            continue
        refs = _input_refs(ledger, wanted, partition, recipe.versions.get(wanted.table), as_of)
        if not refs and not (wanted.is_optional or wanted.is_context):
            raise NotReady(
                f"{step.stage}/{step.name} of {partition!r} reads {wanted.table} "
                f"({wanted.scope}), which has nothing live: run its step first"
            )
        (context if wanted.is_context else inputs)[wanted.table] = refs
    facts: dict[str, dict[str, dict[str, Any]]] = {}
    settings: dict[str, Any] = {}
    if step.settings_of and is_for_work:
        settings = step.settings_of(deployment, recipe)
    for wanted in step.facts:
        if wanted.in_digest or is_for_work:
            drop = partition if wanted.of_drop else None
            found = present_of_drop(ledger, wanted.kind, drop, as_of=as_of)
            (facts if wanted.in_digest else settings.setdefault("facts", {}))[wanted.kind] = found
    return Order(
        stage=step.stage,
        step=step.name,
        partition=partition,
        code_version=".".join(
            [step.code_version, *([step.version_of(recipe)] if step.version_of else [])]
        ),
        params={
            **(step.params_of(recipe) if step.params_of else {}),
            **(step.constants_of(deployment) if step.constants_of else {}),
            **(extra_params or {}),
        },
        inputs=inputs,
        context=context,
        facts=facts,
        settings=settings,
        tables=step.tables,
    )


def _input_refs(
    ledger: Ledger, wanted: Input, partition: str, version: str | None, as_of: int | None
) -> list[ObjectRef]:
    if wanted.scope == "same":
        return ledger.live(wanted.table, partition, version=version, as_of=as_of)
    if wanted.scope == "latest":
        newest = ledger.newest(wanted.table, version=version, as_of=as_of)
        return [newest] if newest else []
    if wanted.scope == "version_of_group":
        base = parse_shard_group(partition)[0]
        return ledger.live(wanted.table, base, version=version, as_of=as_of)
    from wsdata.catalog.view import all_live

    refs = all_live(ledger, wanted.table, version=version, as_of=as_of)
    if wanted.scope == "groups_of_version":
        return [ref for ref in refs if parse_shard_group(ref.partition)[0] == partition]
    if wanted.scope == "all":
        return refs
    raise ValueError(f"input {wanted.table}: unknown scope {wanted.scope!r}; known are {SCOPES}")


def execute(
    order: Order,
    function: str,
    store: BlobStore,
    progress: Progress = _log_progress,
    ledger: Ledger | None = None,
    *,
    part: Part | None = None,
    asks_blobs: bool = True,
) -> Report:
    """Run an order: import its function, call it, store its rows, and return the report.

    Args:
        order: The order.
        function: Its step's.
        store: Where inputs lie, and results go.
        progress: Told how far it is.
        ledger: For steps without a pool.
        part: Work these units alone and keep them for whoever works the whole; no rows are made,
            and the report names none.
        asks_blobs: Whether a kept unit counts only if the store has all that it names; who
            follows workers of its parts need not ask again.

    Raises:
        ValueError: The function returned other tables than the order names, or rows that break
            a table's schema.
    """
    module, _, name = function.partition(":")
    run = StepRun(order, store, progress, ledger, part=part, asks_blobs=asks_blobs)
    result: StepResult = getattr(importlib.import_module(module), name)(run)
    if part is not None:
        run.units.put_speeds()
        return Report(
            order_digest=order.digest,
            version_digest=order.version_digest,
            objects={},
            metrics=run.units.metrics(),
        )
    if set(result.tables) != set(order.tables):
        raise ValueError(
            f"{order.stage}/{order.step}: made tables {sorted(result.tables)}, ordered were "
            f"{sorted(order.tables)}"
        )
    objects: dict[str, ObjectRef] = {}
    for table in order.tables:
        rows = tables.conform(table, result.tables[table])
        data = tables.to_parquet(rows)
        sha256 = sha256_bytes(data)
        store.put(table_key(sha256), data)
        objects[table] = ObjectRef(
            table=table,
            partition=order.partition,
            version=order.code_version,
            version_digest=order.version_digest,
            sha256=sha256,
            num_rows=rows.height,
        )
    run.units.put_speeds()
    return Report(
        order_digest=order.digest,
        version_digest=order.version_digest,
        objects=objects,
        facts=result.facts,
        metrics=result.metrics | run.units.metrics(),
        display=result.display,
    )
