"""Canonical JSON and its digest: the one way that anything here is named by content."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

_LONG_BYTES = 4096
_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _canonical(value: Any, path: str) -> Any:
    if value is None or isinstance(value, (bool, str, int)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(
                f"{path}: {value!r} has no canonical form; use null or a finite number"
            )
        return value + 0.0  # negative zero becomes zero
    if isinstance(value, Mapping):
        items: dict[str, Any] = {}
        for key, inner in value.items():  # pyright: ignore[reportUnknownVariableType]
            if not isinstance(key, str):
                raise TypeError(f"{path}: key {key!r} is not a string")
            items[key] = _canonical(inner, f"{path}.{key}")
        return items
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray)):
        return [_canonical(inner, f"{path}[{i}]") for i, inner in enumerate(value)]  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    raise TypeError(f"{path}: {type(value).__name__} has no canonical form")


def canonical_json(value: Any) -> str:
    """Write a value as JSON in its one canonical spelling.

    Args:
        value: None, bool, str, int, finite float, or mappings (string keys) and sequences of
            these. Negative zero is written as zero; tuples and lists are alike.

    Returns:
        JSON with sorted keys, no spaces, non-ASCII kept.

    Raises:
        TypeError: A value of another type (bytes, dates, sets, numpy scalars).
        ValueError: A NaN or an infinity.
    """
    return _ENCODER.encode(_canonical(value, "$"))


def digest(value: Any) -> str:
    """Return the sha256 of the canonical JSON of a value, 64 hex digits."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def spell_object(items: Mapping[str, Iterable[bytes]]) -> Iterator[bytes]:
    """Yield the canonical JSON of a mapping in pieces, from that of its values in pieces."""
    before = b"{"
    for key in sorted(items):
        yield before + canonical_json(key).encode() + b":"
        yield from items[key]
        before = b","
    yield b"}" if items else b"{}"


def sha256_pieces(pieces: Iterable[bytes]) -> str:
    """Return the sha256 of bytes given in pieces, none of which is copied if it is long."""
    found, short = hashlib.sha256(), list[bytes]()
    for piece in pieces:
        short.append(piece)
        if len(piece) > _LONG_BYTES:
            found.update(b"".join(short[:-1]))
            found.update(piece)
            short.clear()
    found.update(b"".join(short))
    return found.hexdigest()


def short_digest(value: Any) -> str:
    """Return the first 16 hex digits of `digest`: enough for versions, not for content."""
    return digest(value)[:16]


def sha256_bytes(data: bytes | memoryview) -> str:
    """Return the sha256 of some bytes, 64 hex digits."""
    return hashlib.sha256(data).hexdigest()
