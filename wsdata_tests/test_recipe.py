from pathlib import Path

import pytest

from wsdata.errors import RecipeError
from wsdata.recipe import load_recipe, recipe_from

RECIPES = Path(__file__).parent.parent / "recipes"
VIDEO = {"streams": {"video": {}}}
PHASE = {"name": "p", "steps": 1, "rungs": ["256p"], "tiers": ["T0"], "weights": {"video": 1}}


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_a_shipped_recipe_is_one_and_survives_json(path):
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    again = recipe_from(recipe.to_json())
    assert again == recipe
    assert again.digest == recipe.digest
    for phase in recipe.phases:
        assert sum(phase.weights.values()) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "missing keys .'name'"),
        ({"name": "x", "gate": {}}, "unknown keys .'gate'"),
        ({"name": "x", "gates": {"safety": 1}}, "recipe.gates: unknown keys .'safety'"),
        ({"name": "x", "seed": "1"}, "recipe.seed: expected int, got '1'"),
        ({"name": "x", "seed": True}, "recipe.seed: expected int"),
        ({"name": "x", "samples": {"frame_counts": [32]}}, "32 is not 4k"),
        ({"name": "x", "samples": {"frame_counts": 33}}, "expected a list"),
        ({"name": "x", "samples": {"hand_down": ["upscale"]}}, "unknown moves"),
        ({"name": "x", "samples": {"global_batch": 0}}, "global_batch: 0"),
        ({"name": "x", "shuffle": {"block": 4, "window": 6}}, "a multiple of the block"),
        ({"name": "x", "tokenizer": {"dtype": "fp4"}}, "expected 'fp8' or 'int8'"),
        ({"name": "x", "sound": {"language": "guess"}}, "expected 'none' or 'whisper-base'"),
        ({"name": "x", "shots": {"engine": "x"}}, "'x', expected 'looks' or 'transnetv2'"),
        ({"name": "x", "streams": {"a": {"modality": "sound"}}}, "expected 'video' or 'image'"),
        ({"name": "x", "streams": {"a": {"source_tiers": ["web"]}}}, "unknown .'web'"),
        (
            {"name": "x", "streams": {"a": {"modality": "image", "needs_actions": True}}},
            "a stream of images asks for actions: it has no time",
        ),
        ({"name": "x", "phases": [PHASE]}, "unknown streams .'video'"),
        ({"name": "x", **VIDEO, "phases": [PHASE, PHASE]}, "declared twice"),
        ({"name": "x", **VIDEO, "phases": [{**PHASE, "rungs": ["8k"]}]}, "unknown rungs .'8k'"),
        (
            {"name": "x", **VIDEO, "phases": [{**PHASE, "rungs": ["512p48", "1080p48"]}]},
            "unknown rungs .'1080p48'.; made are .*512p48.*48 frames a second",
        ),
        ({"name": "x", **VIDEO, "phases": [{**PHASE, "tiers": ["T9"]}]}, "unknown tiers .'T9'"),
        ({"name": "x", **VIDEO, "phases": [{**PHASE, "steps": 0}]}, "steps 0"),
        ({"name": "x", **VIDEO, "phases": [{**PHASE, "weights": {}}]}, "no positive sum"),
    ],
)
def test_a_faulty_recipe_names_the_fault(data, message):
    with pytest.raises(RecipeError, match=message):
        recipe_from(data)


def test_a_file_that_is_missing_or_no_toml_says_so(tmp_path):
    with pytest.raises(RecipeError, match="no recipe at"):
        load_recipe(tmp_path / "none.toml")
    path = tmp_path / "bad.toml"
    path.write_text("name = ")
    with pytest.raises(RecipeError, match="is not TOML"):
        load_recipe(path)
    path.write_text('name = "x"\nnonsense = 1\n')
    with pytest.raises(RecipeError, match="nonsense") as caught:
        load_recipe(path)
    assert str(path) in "".join(caught.value.__notes__)
