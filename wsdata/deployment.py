"""Where things are: the constants of one deployment, read once by whoever composes.

`WSDATA_HOME` (default ``.wsdata`` in the working folder) holds ``deployment.toml``; what it
does not say has an embedded default under the home. Recipes are not deployment.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from wsdata.errors import WsdataError
from wsdata.store import BlobStore, open_store

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger

SANDBOX_LEVELS = ("limits", "seccomp", "bubblewrap")  # weakest first


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """Addresses and constants of one deployment.

    `carve_share` is the share of each source tier that goes to the eval vault, in [0, 1];
    `carve_salt` keys its hash. Neither may change once material has been landed.
    """

    home: str
    store: str
    vault: str
    landing: str
    catalog: str
    eval_list: str
    operating_recipe: str
    carve_salt: str = "wsdata"
    carve_share: float = 0.001
    sandbox_minimum: str = "seccomp"
    num_threads: int = 2

    def __post_init__(self) -> None:
        if not 0 <= self.carve_share <= 1:
            raise WsdataError(f"carve_share {self.carve_share}: expected a share in [0, 1]")
        if self.sandbox_minimum not in SANDBOX_LEVELS:
            raise WsdataError(
                f"sandbox_minimum {self.sandbox_minimum!r}: expected one of {SANDBOX_LEVELS}"
            )

    def open_store(self) -> BlobStore:
        """Open the object store."""
        return open_store(self.store)

    def open_ledger(self) -> Ledger:
        """Open the ledger, making it where there is none."""
        from wsdata.catalog.ledger import Ledger  # SQL is for who holds the ledger alone

        return Ledger(self.catalog)

    def read_eval_list(self) -> list[str]:
        """Asset ids of the deployment's append-only eval list; none where there is no file."""
        path = Path(self.eval_list)
        if not path.is_file():
            return []
        lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
        return sorted({line for line in lines if line})


def default_home() -> Path:
    """``WSDATA_HOME``, or ``.wsdata`` in the working folder."""
    return Path(os.environ.get("WSDATA_HOME", ".wsdata")).absolute()


def load_deployment(home: Path | None = None) -> Deployment:
    """Read a deployment.

    Raises:
        WsdataError: ``deployment.toml`` has an unknown key or a bad value.
    """
    home = (home or default_home()).absolute()
    values: dict = {
        "home": str(home),
        "store": f"file://{home}/store",
        "vault": f"file://{home}/vault",
        "landing": str(home / "landing"),
        "catalog": str(home / "catalog.db"),
        "eval_list": str(home / "eval_list.txt"),
        "operating_recipe": str(home / "operating.toml"),
    }
    path = home / "deployment.toml"
    if path.is_file():
        stated = tomllib.loads(path.read_text())
        known = {field.name for field in fields(Deployment)} - {"home"}
        if unknown := set(stated) - known:
            raise WsdataError(f"{path}: unknown keys {sorted(unknown)}; known are {sorted(known)}")
        values |= stated
    return Deployment(**values)
