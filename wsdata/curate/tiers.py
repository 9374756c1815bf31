"""Tiers and streams meet phases: at which rungs a clip is sampled, and for which phases.

Where a clip's tier comes from is told by `preprocess.funnel`; what a phase draws at which step
by `shard.plan`.
"""

from collections.abc import Iterable

from wsdata.errors import RecipeError
from wsdata.recipe import Phase, Recipe


def check_phases(recipe: Recipe) -> None:
    """Check that a recipe can be cut at all.

    Raises:
        RecipeError: It declares no stream or no phase.
    """
    if not recipe.streams or not recipe.phases:
        lacks = "streams" if not recipe.streams else "phases"
        raise RecipeError(
            f"recipe {recipe.name!r} declares no {lacks}: a dataset version needs at least one "
            "[streams.NAME] and one [[phases]]"
        )


def admitting_phases(phases: Iterable[Phase], *, tier: str, stream: str) -> tuple[Phase, ...]:
    """Phases that draw from a stream at a tier: they admit the tier and give the stream weight."""
    return tuple(
        phase for phase in phases if tier in phase.tiers and phase.weights.get(stream, 0.0) > 0
    )


def phases_of_sample(
    phases: Iterable[Phase], *, tier: str, stream: str, rung: str
) -> tuple[str, ...]:
    """Names of the phases that would draw a sample of this tier, stream and rung."""
    return tuple(
        phase.name
        for phase in admitting_phases(phases, tier=tier, stream=stream)
        if rung in phase.rungs
    )
