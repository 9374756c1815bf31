"""Label and field selectors, and quantities, as Kubernetes spells them."""

import re
from collections.abc import Callable
from typing import Any

Labels = dict[str, str]

_TERM = re.compile(r",(?![^()]*\))")
_SET = re.compile(r"^\s*(\S+)\s+(in|notin)\s*\(([^)]*)\)\s*$")
_EQUAL = re.compile(r"^\s*([^\s=!]+)\s*(==|=|!=)\s*(\S*)\s*$")
_QUANTITY = re.compile(r"^([0-9.]+(?:[eE][+-]?[0-9]+)?)(m|[kMGTP]|[KMGTP]i)?$")
_POWERS = "kMGTP"


def _label_test(term: str) -> Callable[[Labels], bool]:
    if match := _SET.match(term):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if match := _EQUAL.match(term):
        key, operator, value = match.groups()
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    term = term.strip()
    if term.startswith("!"):
        return lambda labels: term[1:] not in labels
    return lambda labels: term in labels


def label_matcher(selector: str) -> Callable[[Labels], bool]:
    """Return a test of labels; an empty selector takes all."""
    tests = [_label_test(term) for term in _TERM.split(selector or "") if term.strip()]
    return lambda labels: all(test(labels) for test in tests)


def field_matcher(selector: str) -> Callable[[dict[str, Any]], bool]:
    """Return a test of an object's fields, such as ``metadata.name=a,status.phase!=Running``."""
    tests = []
    for term in filter(None, (selector or "").split(",")):
        match = _EQUAL.match(term)
        if match is None:
            raise ValueError(f"field selector {term!r}: expected path=value or path!=value")
        tests.append(match.groups())

    def matches(stored: dict[str, Any]) -> bool:
        return all(
            (str(_at(stored, path.split("."))) == value) == (operator != "!=")
            for path, operator, value in tests
        )

    return matches


def _at(value: Any, path: list[str]) -> Any:
    for part in path:
        value = (value or {}).get(part)
    return "" if value is None else value


def matches_selector(selector: dict[str, Any] | None, labels: Labels) -> bool:
    """Test labels against a ``matchLabels`` and ``matchExpressions`` object; none takes nothing."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        matches_expression(expression, labels)
        for expression in selector.get("matchExpressions") or []
    )


def matches_expression(expression: dict[str, Any], labels: Labels) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case "Gt":
            return key in labels and int(labels[key]) > int(values[0])
        case "Lt":
            return key in labels and int(labels[key]) < int(values[0])
        case other:
            raise ValueError(f"selector operator {other!r} is not known")


def quantity(value: Any) -> float:
    """Read a resource quantity: ``500m``, ``2``, ``16Gi``.

    Raises:
        ValueError: The text is no quantity.
    """
    match = _QUANTITY.match(str(value))
    if match is None:
        raise ValueError(f"quantity {value!r}: expected a number with an optional suffix")
    number, suffix = float(match[1]), match[2] or ""
    if suffix == "m":
        return number / 1000
    if not suffix:
        return number
    power = _POWERS.index(suffix[0] if suffix != "Ki" else "k") + 1
    return number * (1024 if suffix.endswith("i") else 1000) ** power
