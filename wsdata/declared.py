"""From plain data (TOML, JSON) to a frozen dataclass: types checked, every fault named by its key.

What values mean is told by the dataclass's own ``__post_init__``.
"""

import dataclasses
import typing
from collections.abc import Callable, Mapping
from typing import Any

from wsdata.errors import WsdataError

Refuse = Callable[[str], Exception]


def build(kind: Any, value: Any, where: str, *, refuse: Refuse = WsdataError) -> Any:
    """Build a value of a declared type.

    Args:
        kind: A dataclass, ``tuple[X, ...]``, ``dict[str, X]``, ``str``, ``int``, ``float`` or
            ``bool``. An int is a float too; a bool is no number.
        value: Plain data.
        where: What is being built, for the message.
        refuse: Makes the exception of a message.

    Raises:
        Exception: What `refuse` makes: an unknown or missing key, or another type.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return _build_section(kind, value, where, refuse)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise refuse(f"{where}: expected a list, got {value!r}")
        items: list[Any] = list(typing.cast("list[Any]", value))
        return tuple(
            build(args[0], item, f"{where}[{i}]", refuse=refuse) for i, item in enumerate(items)
        )
    if origin is dict:
        pairs = _table(value, where, refuse)
        return {
            str(key): build(args[1], item, f"{where}.{key}", refuse=refuse)
            for key, item in pairs.items()
        }
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise refuse(f"{where}: expected {kind.__name__}, got {value!r}")
    return value


def _table(value: Any, where: str, refuse: Refuse) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise refuse(f"{where}: expected a table, got {value!r}")
    return typing.cast("Mapping[str, Any]", value)


def _build_section(kind: Any, value: Any, where: str, refuse: Refuse) -> Any:
    pairs = _table(value, where, refuse)
    hints = typing.get_type_hints(kind)
    if unknown := set(pairs) - set(hints):
        raise refuse(f"{where}: unknown keys {sorted(unknown)}; known are {sorted(hints)}")
    required = {
        f.name
        for f in dataclasses.fields(kind)
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    }
    if missing := required - set(pairs):
        raise refuse(f"{where}: missing keys {sorted(missing)}")
    return kind(
        **{
            key: build(hints[key], item, f"{where}.{key}", refuse=refuse)
            for key, item in pairs.items()
        }
    )
