"""Images: which folders of this machine a container sees, and as whom its program runs."""

import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
APP_AT = "/opt/wsdata/app"
PROJECT_IMAGES = ("wsdata-orchestrator", "wsdata-gpu", "wsdata-trainer", "wsdata")


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """What stands for one image.

    Attributes:
        binds: Path in the container -> folder of this machine, shown read-only.
        path: Folders before the system's in PATH; relative ones lie in the first bind.
        env: Environment that the image itself brings.
        user: Uid and gid of a container that names none.
        working_dir: Where a container starts that says nothing else.
    """

    binds: dict[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    user: int = 10001
    working_dir: str = "/"

    def search_path(self) -> str:
        base = Path(next(iter(self.binds), "/"))
        shown = [str(base / entry) for entry in self.path]
        return ":".join([*shown, "/usr/local/bin", "/usr/bin", "/bin"])


def project_images() -> dict[str, Any]:
    """Return the project's images: this checkout and the environment that runs it."""
    image = {
        "binds": {APP_AT: str(ROOT)},
        "path": [str(Path(sys.prefix) / "bin")],
        "env": {"PYTHONPATH": APP_AT},
        "working_dir": APP_AT,
    }
    return dict.fromkeys(PROJECT_IMAGES, image)


def merged_images(additions: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the project's images with additions; what one of these leaves out stays."""
    known = project_images()
    return known | {name: known.get(name, {}) | image for name, image in additions.items()}


def image_from(value: dict[str, Any]) -> Image:
    """Read an image of an image map.

    Raises:
        TypeError: It has a field that images have not.
    """
    return Image(**{**value, "path": tuple(value.get("path", ()))})


def find_image(images: dict[str, Image], reference: str) -> Image | None:
    """Look an image up by its repository, with or without the registry before it."""
    name = reference.partition("@")[0]
    head, _, tail = name.rpartition("/")
    repository = (f"{head}/" if head else "") + tail.partition(":")[0]
    return images.get(repository) or images.get(repository.rpartition("/")[2])


def interpreter_binds() -> list[Path]:
    """Return the folders that Python itself needs, at their own paths."""
    wanted = sorted({Path(sys.base_prefix), Path(sys.prefix)}, key=lambda path: len(path.parts))
    shown: list[Path] = []
    for path in wanted:
        if path != Path("/usr") and not any(path.is_relative_to(parent) for parent in shown):
            shown.append(path)
    return shown


def program(name: str) -> str:
    """Return the path of a system program.

    Raises:
        FileNotFoundError: It is not installed.
    """
    found = shutil.which(name, path="/usr/bin:/bin:/usr/sbin:/sbin")
    if found is None:
        raise FileNotFoundError(f"program {name} is not there: install util-linux")
    return found
