"""The capacity model's answer: as data, as tables for a person, and as values of the chart.

Every number says whether it is assumed, measured or stated. What is computed belongs to
`capacity` and its neighbours; printing belongs to the command.
"""

from typing import Any

from wsdata.observability import capacity, capacity_fleet, capacity_storage
from wsdata.observability.capacity import Figure, Found, Value, evaluate
from wsdata.observability.capacity_fleet import POOL_SIZES, PoolSize, size_pools
from wsdata.observability.capacity_inputs import Inputs
from wsdata.observability.capacity_measure import KillRate
from wsdata.observability.capacity_notes import contradictions, warnings

SECTIONS: dict[str, tuple[Figure, ...]] = {
    "corpus": capacity.CORPUS,
    "tokens": capacity.TOKENS,
    "training": capacity.TRAINING,
    "latents": capacity.LATENTS,
    "compute": capacity_fleet.COMPUTE,
    "storage": capacity_storage.STORAGE,
    "egress": capacity_storage.EGRESS,
    "requests": capacity_fleet.REQUESTS,
}

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K"))
_EXACT_BELOW = 1e5


def answer(inputs: Inputs, kill_rates: list[KillRate]) -> dict[str, Any]:
    """Compute everything.

    Returns:
        ``{"inputs": {name: {"value", "origin", "note"}}, "figures": {section: {name: {"value",
        "unit", "section", "basis", "rests_on"}}}, "pools": {name: {"work_hours", "num_gpus",
        "num_pods", "basis", "rests_on"}}, "kill_rates": [...], "warnings": [...],
        "contradictions": [...]}``. A value with a low and a high end is a list of both.
    """
    sizes = size_pools(inputs.values)
    hours = evaluate([Figure(size, "hours") for size in POOL_SIZES.values()], inputs)  # pyright: ignore[reportArgumentType]
    return {
        "inputs": {
            name: {"value": getattr(inputs.values, name), "origin": origin.kind,
                   "note": origin.note}
            for name, origin in inputs.origins.items()
        },
        "figures": {
            section: {name: found._asdict() for name, found in evaluate(figures, inputs).items()}
            for section, figures in SECTIONS.items()
        },
        "pools": {
            name: {**size._asdict(), **_basis(hours[POOL_SIZES[name].__name__])}
            for name, size in sizes.items()
        },
        "kill_rates": [{**r._asdict(), "kill_share": r.kill_share} for r in kill_rates],
        "warnings": warnings(inputs.values),
        "contradictions": [each._asdict() for each in contradictions()],
    }  # fmt: skip


def _basis(found: Found) -> dict[str, Any]:
    return {"basis": found.basis, "rests_on": found.rests_on}


def helm_values(sizes: dict[str, PoolSize]) -> dict[str, Any]:
    """Values of the chart that give every pool its size."""
    return {"pools": {name: {"concurrencyLimit": size.num_pods} for name, size in sizes.items()}}


def helm_lines(inputs: Inputs) -> list[str]:
    """The same as YAML, ready for ``helm upgrade -f``."""
    lines = [
        f"# wsdata capacity: {short(inputs.values.raw_hours)} raw hours in "
        f"{short(inputs.values.weeks)} weeks",
        "pools:",
    ]
    for name, values in helm_values(size_pools(inputs.values))["pools"].items():
        lines += [f"  {name}:", *(f"    {key}: {value}" for key, value in values.items())]
    return lines


def short(value: Value) -> str:
    """Write a number for a person: five digits at most, then K, M, G, T or P."""
    if isinstance(value, tuple):
        low, high = (short(each) for each in value)
        return low if low == high else f"{low} to {high}"
    if abs(value) < _EXACT_BELOW:
        return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.4g}"
    scale, letter = next(each for each in _PREFIXES if abs(value) >= each[0])
    return f"{value / scale:.4g}{letter}"


def figure_rows(found: dict[str, dict[str, Any]]) -> list[list[object]]:
    """Rows ``what, value, unit, section, basis`` of one section of figures."""
    return [
        [name, short(each["value"]), each["unit"], each["section"], each["basis"]]
        for name, each in found.items()
    ]
