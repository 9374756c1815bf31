"""``drop.toml``: what a delivery states of all its files, read and checked."""

import datetime as dt
import json
import tomllib
from dataclasses import asdict, dataclass, fields

from wsdata.ids import SOURCE_TIERS

DECLARATION = "drop.toml"
FORMAT_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Declaration:
    """What ``drop.toml`` states about every file of a drop; a record may narrow it per file.

    Dates are ISO days. `generator` names the model or renderer of synthetic material;
    `is_generated` tells model-generated video from rendered or simulated. `continuous` says that
    each file is one take, such as a drive or a robot's episode: it is cut into long windows.
    """

    source_tier: str
    source: str
    license_id: str
    territory: str = "world"
    rights_from: str = ""
    rights_until: str = ""
    opt_out: bool = False
    pii_policy: str = "standard"
    generator: str = ""
    is_generated: bool = False
    continuous: bool = False
    format_version: int = FORMAT_VERSION


def parse_declaration(text: bytes | None) -> tuple[Declaration | None, list[str]]:
    """Read a declaration, or None; and every fault of it."""
    if text is None:
        return None, [f"no {DECLARATION}: source_tier, source and license_id must be stated"]
    try:
        data = tomllib.loads(text.decode("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        return None, [f"{DECLARATION} is not TOML: {error}"]
    kinds = {field.name: field.type for field in fields(Declaration)}
    faults = [f"{DECLARATION}: unknown key {key!r}" for key in sorted(set(data) - set(kinds))]
    faults += [
        f"{DECLARATION}: no {key}"
        for key in ("source_tier", "source", "license_id")
        if not data.get(key)
    ]
    for key, value in data.items():
        wanted = kinds.get(key)
        if wanted is not None and type(value) is not wanted:
            faults.append(f"{DECLARATION}: {key} is {value!r}, expected {wanted.__name__}")  # pyright: ignore[reportAttributeAccessIssue]
    if faults:
        return None, faults
    declaration = Declaration(**data)
    return declaration, _value_faults(declaration)


def _value_faults(declaration: Declaration) -> list[str]:
    faults: list[str] = []
    if declaration.format_version != FORMAT_VERSION:
        faults.append(f"{DECLARATION}: format_version {declaration.format_version}, expected 1")
    if declaration.source_tier not in SOURCE_TIERS:
        faults.append(
            f"{DECLARATION}: source_tier {declaration.source_tier!r}, expected one of "
            f"{', '.join(SOURCE_TIERS)}"
        )
    if declaration.is_generated and not declaration.generator:
        faults.append(f"{DECLARATION}: generated material must name its generator")
    faults += [
        f"{DECLARATION}: {name} {fault}"
        for name in ("rights_from", "rights_until")
        if (fault := date_fault(getattr(declaration, name)))
    ]
    if (
        declaration.rights_from
        and declaration.rights_until
        and declaration.rights_until <= declaration.rights_from
    ):
        faults.append(f"{DECLARATION}: rights_until is not after rights_from")
    return faults


def date_fault(text: str) -> str | None:
    """What is wrong with an ISO day, if anything; no day is none."""
    if not text:
        return None
    try:
        dt.date.fromisoformat(text)
    except ValueError:
        return f"{text!r} is not an ISO day such as 2026-11-01"
    return None


def to_toml(declaration: Declaration) -> str:
    """Spell a declaration as ``drop.toml``."""
    # JSON's strings, numbers and booleans are TOML's too.
    return "".join(f"{key} = {json.dumps(value)}\n" for key, value in asdict(declaration).items())
