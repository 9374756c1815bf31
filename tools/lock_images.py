"""Write the lock files of the images: what each image's extras need, in the versions of the lock.

    python tools/lock_images.py [--check]

``requirements.lock`` pins one environment for everything, test servers and linters included; an
image gets the closure of its extras alone. The closure is read from the installed packages, so
run this in the environment that the lock describes, after every change of the lock.

``locks/gpu.lock`` is not made here: vLLM brings hundreds of packages that no laptop installs, and
an older numpy. Its first lines say how it is made; it keeps to requirements.lock elsewhere.
"""

import argparse
import logging
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
IMAGES: dict[str, tuple[str, ...]] = {
    "orchestrator": ("ingest", "media", "label", "curate", "loader", "dagster"),
    "trainer": ("loader",),
}

log = logging.getLogger("lock_images")


def lock_of(extras: Iterable[str]) -> list[str]:
    """Return the lines of the lock that some extras of this project need.

    Raises:
        LookupError: The lock lacks a package that they need.
    """
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pinned = {canonicalize_name(re.split("==", line)[0]): line for line in lines if line.strip()}
    needed = _closure(stated_requirements(extras))
    if missing := sorted(needed - set(pinned)):
        raise LookupError(f"requirements.lock pins none of {missing}: add what is installed")
    return [line for name, line in pinned.items() if name in needed]


def stated_requirements(extras: Iterable[str]) -> list[Requirement]:
    """Return what ``pyproject.toml`` asks for, at the base and for some extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    stated = [*project["dependencies"]]
    for extra in extras:
        stated += project["optional-dependencies"][extra]
    return [Requirement(each) for each in stated]


def _closure(requirements: Iterable[Requirement]) -> set[str]:
    """Return the canonical names of some requirements and of all that those need."""
    seen: set[tuple[str, str]] = set()
    waiting = [pair for each in requirements for pair in _wanted(each)]
    while waiting:
        pair = waiting.pop()
        if pair in seen:
            continue
        seen.add(pair)
        name, extra = pair
        for text in distribution(name).requires or []:
            needed = Requirement(text)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                waiting += _wanted(needed)
    return {name for name, _ in seen}


def _wanted(requirement: Requirement) -> Iterator[tuple[str, str]]:
    name = canonicalize_name(requirement.name)
    yield name, ""
    yield from ((name, extra) for extra in requirement.extras)


def main() -> int:
    """Write the files, or compare them; return the exit code."""
    parser = argparse.ArgumentParser(description="Lock files of the images.")
    parser.add_argument("--check", action="store_true", help="write nothing; 1 where one is stale")
    args = parser.parse_args()
    stale = []
    for image, extras in IMAGES.items():
        path = ROOT / "locks" / f"{image}.lock"
        text = "\n".join([f"# Made by tools/lock_images.py: {', '.join(extras)}", *lock_of(extras)])
        if not path.exists() or path.read_text(encoding="utf-8") != text + "\n":
            stale.append(path.name)
            if not args.check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(text + "\n", encoding="utf-8")
    for name in stale:
        log.info("%s %s", name, "is stale: run tools/lock_images.py" if args.check else "written")
    return 1 if stale and args.check else 0


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    sys.exit(main())
