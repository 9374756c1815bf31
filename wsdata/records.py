"""Frozen records that cross stage borders."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from wsdata.digest import canonical_json, sha256_pieces, short_digest, spell_object

FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class ObjectRef:
    """A live Parquet object of rows: which, under which version, and its digest."""

    table: str
    partition: str
    version: str
    version_digest: str
    sha256: str
    num_rows: int

    @property
    def key(self) -> str:
        """Where the object lies in the store."""
        return table_key(self.sha256)


def table_key(sha256: str) -> str:
    """Object key of a Parquet object of rows."""
    return f"tables/{sha256[:2]}/{sha256}.parquet"


class SharedRefs(list[ObjectRef]):
    """Objects that many orders read: what their digests say of all of them is spelled once.

    Not to be changed, since it is in other orders too.
    """

    @cached_property
    def spelled(self) -> bytes:
        """What digests of orders say of these objects, as canonical JSON."""
        return _spell(self)

    @cached_property
    def version_digests(self) -> frozenset[str]:
        """Versions of all of them."""
        return frozenset(ref.version_digest for ref in self)


def _spell(refs: Iterable[ObjectRef]) -> bytes:
    pairs = (f"[{canonical_json(ref.partition)},{canonical_json(ref.sha256)}]" for ref in refs)
    return f"[{','.join(pairs)}]".encode()


def _spell_value(value: Any) -> tuple[bytes]:
    return (canonical_json(value).encode(),)


def _version_digests(refs: list[ObjectRef]) -> list[str]:
    if isinstance(refs, SharedRefs):
        return sorted(refs.version_digests)
    return sorted({ref.version_digest for ref in refs})


@dataclass(frozen=True, kw_only=True, slots=True)
class Fact:
    """One append-only statement of the ledger about a subject.

    Kinds: quarantine, release, tombstone, takedown, pin, dataset_version, cut_recipe, run_served,
    run_telemetry, report_refused, eval_listing, approval, safety_list, safety_report, safety_note.
    """

    kind: str
    subject: str
    body: dict[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """A work order: everything one step needs, as JSON, without a credential.

    `params` and `facts` can change the output and count in the digest; `settings` (addresses,
    thread counts, lists that a step looks things up in) and `context` (rows read for
    comparison, whose order of arrival cannot matter) do not.
    """

    stage: str
    step: str
    partition: str
    code_version: str
    params: dict[str, Any]
    inputs: dict[str, list[ObjectRef]]
    context: dict[str, list[ObjectRef]] = field(default_factory=dict[str, list[ObjectRef]])
    facts: dict[str, dict[str, dict[str, Any]]] = field(
        default_factory=dict[str, dict[str, dict[str, Any]]]
    )
    settings: dict[str, Any] = field(default_factory=dict[str, Any])
    tables: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Digest over all that can change the output: what `done` is decided by."""
        said = {
            "format": _spell_value(FORMAT_VERSION),
            "step": _spell_value(f"{self.stage}/{self.step}"),
            "partition": _spell_value(self.partition),
            "code_version": _spell_value(self.code_version),
            "params": _spell_value(self.params),
            "inputs": spell_object(
                {
                    table: (refs.spelled if isinstance(refs, SharedRefs) else _spell(refs),)
                    for table, refs in self.inputs.items()
                }
            ),
            "facts": _spell_value(self.facts),
        }
        return sha256_pieces(spell_object(said))

    @property
    def version_digest(self) -> str:
        """Chained version of what the step makes: code, params, versions of what it reads.

        Free of partitions and content, so that one subject has one derived key wherever it
        arrives.
        """
        return short_digest(
            {
                "step": f"{self.stage}/{self.step}",
                "code_version": self.code_version,
                "params": self.params,
                "reads": {table: _version_digests(refs) for table, refs in self.inputs.items()},
            }
        )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        return {"format_version": FORMAT_VERSION, **asdict(self), "tables": list(self.tables)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Order":
        """Read what `to_json` wrote.

        Raises:
            ValueError: Another format version.
        """
        body = dict(data)
        if body.pop("format_version", None) != FORMAT_VERSION:
            raise ValueError(
                f"work order format {data.get('format_version')!r}, not {FORMAT_VERSION}"
            )
        for name in ("inputs", "context"):
            body[name] = {
                table: [ObjectRef(**ref) for ref in refs] for table, refs in body[name].items()
            }
        body["tables"] = tuple(body["tables"])
        return cls(**body)


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """What a step made, for the ledger and for people.

    `metrics` are numbers; `display` is Dagster metadata by asset name as
    ``{label: {"type": "md" | "int" | "float" | "text" | "json" | "table", "raw_value": ...}}``.
    """

    order_digest: str
    version_digest: str
    objects: dict[str, ObjectRef]
    facts: list[Fact] = field(default_factory=list[Fact])
    metrics: dict[str, float] = field(default_factory=dict[str, float])
    display: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able form."""
        return {"format_version": FORMAT_VERSION, **asdict(self)}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Report":
        """Read what `to_json` wrote.

        Raises:
            ValueError: Another format version.
        """
        body = dict(data)
        if body.pop("format_version", None) != FORMAT_VERSION:
            raise ValueError(f"report format {data.get('format_version')!r}, not {FORMAT_VERSION}")
        body["objects"] = {table: ObjectRef(**ref) for table, ref in body["objects"].items()}
        body["facts"] = [Fact(**fact) for fact in body["facts"]]
        return cls(**body)
