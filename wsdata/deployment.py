"""Where things are: the constants of one deployment, read once by whoever composes.

`WSDATA_HOME` (default ``.wsdata`` in the working folder) holds ``deployment.toml``; what it
does not say has an embedded default under the home. On a cluster the home is a mounted
ConfigMap, and no secret is in it: the ledger's password is named by its environment variable.
Recipes are not deployment.
"""

from __future__ import annotations

import json
import os
import re
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wsdata.coders import DECODERS, ENCODERS
from wsdata.declared import build
from wsdata.errors import WsdataError
from wsdata.store import BlobStore, open_store

if TYPE_CHECKING:
    from wsdata.catalog.ledger import Ledger

SANDBOX_LEVELS = ("limits", "seccomp", "bubblewrap")  # weakest first
BUNDLES = ("local", "kubernetes")
POOLS_FILE = "pools.json"
MAX_SAFETY_DISTANCE = 64  # of 256 bits


@dataclass(frozen=True, kw_only=True, slots=True)
class Kubernetes:
    """The cluster that pools and runs work on: the table ``[kubernetes]``.

    Attributes:
        namespace: Where pool Jobs are made.
        image_registry: Prefix of the pools' images; empty for none.
        image_tag: Tag of the pools' images.
        image_pull_policy: As Kubernetes spells it.
        image_pull_secrets: Secrets that the images are pulled with.
        kubeconfig: A kubeconfig file; empty for the pod's own service account.
        webserver_url: The Dagster webserver, which runs are submitted through.
        runs_at_once: Runs that one pass of the main job keeps in flight.
        steps_at_once: Steps of one run at once; one works them in the run's own process.
        poll_s: Seconds between two looks at a Job.
        start_grace_s: Seconds that a pod may fail to start (an image may be long in coming).
    """

    namespace: str = "default"
    image_registry: str = ""
    image_tag: str = "latest"
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[str, ...] = ()
    kubeconfig: str = ""
    webserver_url: str = ""
    runs_at_once: int = 64
    steps_at_once: int = 1
    poll_s: float = 5.0
    start_grace_s: float = 600.0

    def __post_init__(self) -> None:
        if min(self.runs_at_once, self.steps_at_once) < 1 or self.poll_s <= 0:
            raise WsdataError(
                f"[kubernetes] runs_at_once {self.runs_at_once}, steps_at_once "
                f"{self.steps_at_once}, poll_s {self.poll_s}: expected positive numbers"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Deployment:
    """Addresses and constants of one deployment.

    `bundle` is one of BUNDLES. `catalog` is a path, or a SQLAlchemy URL without a password;
    `catalog_password_env` names the environment variable that holds one. `carve_share` is the
    share of each source tier that goes to the eval vault, in [0, 1]; `carve_salt` keys its hash.
    Neither may change once material has been landed. `safety_lists` is a file or folder of PDQ
    hash lists (see `preprocess.safety_lists`), none where it is not there; a print within
    `safety_max_distance` bits of 256 of an entry is a hit. Where `asks_blobs`, a step is done
    only if the store has every blob that its rows name: at 10^5 files a drop that is left to
    ``wsdata fsck``, and to runs that are told to ask. `decoder` (cpu, nvdec) and `encoder`
    (x264, h264_nvenc) are what the decode pool uses; what its GPU cannot do is done without.
    Where `trainers_read_transcodes`, trainers are to read transcodes beside what is ready for
    training, and decode them themselves: policies and their check say so then.
    """

    home: str
    store: str
    vault: str
    landing: str
    catalog: str
    eval_list: str
    operating_recipe: str
    safety_lists: str = ""
    safety_max_distance: int = 31
    carve_salt: str = "wsdata"
    carve_share: float = 0.001
    sandbox_minimum: str = "seccomp"
    sandbox_stall_s: float = 120.0
    num_threads: int = 2
    decoder: str = "cpu"
    encoder: str = "x264"
    bundle: str = "local"
    asks_blobs: bool = True
    trainers_read_transcodes: bool = False
    catalog_password_env: str = ""
    kubernetes: Kubernetes = field(default_factory=Kubernetes)

    def __post_init__(self) -> None:
        if not 0 <= self.carve_share <= 1:
            raise WsdataError(f"carve_share {self.carve_share}: expected a share in [0, 1]")
        if not 0 <= self.safety_max_distance <= MAX_SAFETY_DISTANCE:
            raise WsdataError(
                f"safety_max_distance {self.safety_max_distance}: expected bits in "
                f"[0, {MAX_SAFETY_DISTANCE}]; unrelated pictures lie above 70"
            )
        if self.sandbox_minimum not in SANDBOX_LEVELS:
            raise WsdataError(
                f"sandbox_minimum {self.sandbox_minimum!r}: expected one of {SANDBOX_LEVELS}"
            )
        if self.decoder not in DECODERS or self.encoder not in ENCODERS:
            raise WsdataError(
                f"decoder {self.decoder!r} and encoder {self.encoder!r}: expected one of "
                f"{DECODERS} and one of {ENCODERS}"
            )
        if self.sandbox_stall_s <= 0:
            raise WsdataError(f"sandbox_stall_s {self.sandbox_stall_s}: expected seconds above 0")
        if self.bundle not in BUNDLES:
            raise WsdataError(f"bundle {self.bundle!r}: expected one of {BUNDLES}")

    def open_store(self) -> BlobStore:
        """Open the object store."""
        return open_store(self.store)

    def open_ledger(self) -> Ledger:
        """Open the ledger, making it where there is none."""
        return open_ledger(self.catalog, self.catalog_password_env)

    def pool_values(self) -> dict[str, dict[str, Any]]:
        """What this deployment says about pools, by pool: ``pools.json`` of the home, if any.

        Raises:
            WsdataError: It is no JSON object of objects.
        """
        path = Path(self.home) / POOLS_FILE
        if not path.is_file():
            return {}
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise WsdataError(f"{path}: not JSON: {error}") from error
        if not isinstance(values, dict) or not all(isinstance(v, dict) for v in values.values()):
            raise WsdataError(f"{path}: expected an object of pools, each an object of values")
        return values

    def read_eval_list(self) -> list[str]:
        """Asset ids of the deployment's append-only eval list; none where there is no file."""
        return sorted(self.read_eval_sets())

    def read_eval_sets(self) -> dict[str, list[str]]:
        """The eval list: asset id -> names of the eval sets that list it, sorted.

        Raises:
            WsdataError: A line names no asset.
        """
        path = Path(self.eval_list)
        return parse_eval_list(path.read_text(encoding="utf-8")) if path.is_file() else {}


def parse_eval_list(text: str) -> dict[str, list[str]]:
    """Read an eval list: an asset id a line, names of eval sets after it, a comment after ``#``.

    Raises:
        WsdataError: A line does not begin with a sha256, so what it is to seal cannot be told.
    """
    sets: dict[str, set[str]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split("#")[0].split()
        if not words:
            continue
        if re.fullmatch(r"[0-9a-f]{64}", words[0]) is None:
            raise WsdataError(
                f"eval list, line {number}: {words[0]!r:.80} is no asset id: expected a sha256 of "
                "64 lower-case hex digits, then names of eval sets, if any"
            )
        sets.setdefault(words[0], set()).update(words[1:])
    return {asset_id: sorted(names) for asset_id, names in sorted(sets.items())}


def open_ledger(url: str, password_env: str = "") -> Ledger:
    """Open a ledger, making it where there is none.

    Args:
        url: A path, or a SQLAlchemy URL without a password.
        password_env: Environment variable that holds the password; empty where none is needed.

    Raises:
        WsdataError: The variable is not set.
    """
    from wsdata.catalog.ledger import Ledger  # SQL is for who holds the ledger alone

    if not password_env:
        return Ledger(url)
    from sqlalchemy.engine import make_url

    password = os.environ.get(password_env)
    if not password:
        raise WsdataError(
            f"catalog {url}: its password is to be in {password_env}, which is not set: this "
            "process is not one that holds the ledger, or its Secret is missing"
        )
    return Ledger(make_url(url).set(password=password).render_as_string(hide_password=False))


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
        "safety_lists": str(home / "safety_lists"),
    }
    path = home / "deployment.toml"
    if path.is_file():
        try:
            stated = tomllib.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise WsdataError(f"{path}: not TOML: {error}") from error
        if "home" in stated:
            raise WsdataError(f"{path}: home is where the file lies, and not stated in it")
        values |= stated
    try:
        return build(Deployment, values, "deployment")
    except WsdataError as error:
        error.add_note(f"in {path}")
        raise
