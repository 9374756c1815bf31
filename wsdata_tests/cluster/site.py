"""A whole cluster on loopback: S3, Postgres, a Kubernetes double, and the chart's own rendering.

Nothing of a deployment is written here but the chart's values: addresses of the servers, one
worker of each pool at once, and how often things are looked at. What the pods then run is what
`helm template` says.
"""

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests
import yaml

from wsdata.deployment import Deployment, load_deployment
from wsdata_tests.cluster.kube.double import Kube, running_kube
from wsdata_tests.cluster.postgres_server import Postgres, running_postgres
from wsdata_tests.cluster.s3_servers import S3Server, running_site_s3
from wsdata_tests.ports import free_port

ROOT = Path(__file__).parents[2]
HELM = ROOT / ".venv" / "bin" / "helm"
RELEASE, NAMESPACE = "wsdata", "default"
IDENTITIES = ("pipeline", "decode", "vault", "trainer")
IN_FLIGHT = ("QUEUED", "NOT_STARTED", "STARTING", "STARTED", "CANCELING")
RUNS = """
query Runs($filter: RunsFilter) {
  runsOrError(filter: $filter) { ... on Runs { results { runId status jobName } } }
}
"""
POOLS = ("cpu", "nvdec", "vlm", "encode", "vault")


@dataclass
class Site:
    """One running cluster. Folders are its own; the checkout is only read."""

    folder: Path
    s3: S3Server
    postgres: Postgres
    kube: Kube
    web_port: int
    rendered: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])

    def address(self, bucket: str) -> str:
        """Store address of one of the site's buckets."""
        return f"s3://{bucket}/?endpoint={self.s3.endpoint}"

    def operator(self, identity: str = "pipeline") -> dict[str, str]:
        """Environment of a person who works on this cluster, under one identity."""
        return {
            **os.environ,
            **self.s3.environment(identity),
            "WSDATA_HOME": str(self.folder / "operator"),
            "WSDATA_CATALOG_PASSWORD": self.postgres.password,
            "PYTHONPATH": str(ROOT),
        }

    @property
    def deployment(self) -> Deployment:
        """The deployment as the operator's home has it."""
        return load_deployment(self.folder / "operator")

    def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        """Ask the webserver."""
        answer = requests.post(
            f"http://127.0.0.1:{self.web_port}/graphql",
            json={"query": query, "variables": variables},
            timeout=60,
        )
        answer.raise_for_status()
        return answer.json()["data"]

    def runs(self, *statuses: str) -> list[dict[str, Any]]:
        """Dagster's runs of some statuses, the newest first."""
        return self.graphql(RUNS, filter={"statuses": list(statuses)})["runsOrError"]["results"]

    def start_conductor(self, name: str) -> str:
        """Make a Job of the chart's CronJob, as an operator would; return its name."""
        (cron,) = [each for each in self.rendered if each["kind"] == "CronJob"]
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": NAMESPACE},
            "spec": cron["spec"]["jobTemplate"]["spec"],
        }
        self.kube.apply([job])
        return name

    def wait_for_job(self, name: str, *, timeout_s: float) -> str:
        """Wait for a Job's end: ``Complete`` or ``Failed``."""

        def ended() -> str:
            conditions = self.kube.get("jobs", name).get("status", {}).get("conditions") or []
            true = {each["type"] for each in conditions if each["status"] == "True"}
            return next(iter(true & {"Complete", "Failed"}), "")

        return wait_for(ended, f"job {name}", timeout_s)


def wait_for(ask: Callable[[], Any], what: str, timeout_s: float, pause_s: float = 0.5) -> Any:
    """Ask until the answer is true, and return it.

    Raises:
        TimeoutError: It never was.
    """
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if answer := ask():
            return answer
        time.sleep(pause_s)
    raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")


def values(site: Site, *, code_port: int, recipe: str, eval_list: list[str]) -> dict[str, Any]:
    """The chart's values for loopback."""
    host, port = site.s3.endpoint.removeprefix("http://").split(":")
    on_loopback = {"cidrs": [f"{host}/32"], "ports": [int(port)]}
    small = {"requests": {"cpu": "10m", "memory": "64Mi"}, "limits": {"memory": "8Gi"}}
    return {
        "wsdata": {
            "store": site.address("store"),
            "vault": site.address("vault"),
            "landing": site.address("landing"),
            "catalog": {"host": site.postgres.host, "port": site.postgres.port,
                        "database": site.postgres.database, "username": site.postgres.user},
            "operatingRecipe": recipe,
            "evalList": {"assetIds": eval_list},
            "runsAtOnce": 2,
            "pollSeconds": 0.2,
        },
        "postgresql": {
            "postgresqlHost": site.postgres.host,
            "postgresqlUsername": site.postgres.user,
            "postgresqlDatabase": "dagster",
            "service": {"port": site.postgres.port},
        },
        "pools": {
            name: {"concurrencyLimit": 1, "cpuCount": 1, "memoryGib": 4, "scratchGib": 8}
            for name in POOLS
        },
        "dagsterWebserver": {"service": {"port": site.web_port}, "resources": small},
        "dagsterDaemon": {
            "resources": small,
            "runCoordinator": {"config": {"queuedRunCoordinator": {"dequeueIntervalSeconds": 1}}},
            "runMonitoring": {"pollIntervalSeconds": 5, "startTimeoutSeconds": 120,
                              "freeSlotsAfterRunEndSeconds": 5},
        },
        "dagster-user-deployments": {
            "deployments": [{"name": "wsdata", "port": code_port, "resources": small}]
        },
        "runLauncher": {"config": {"k8sRunLauncher": {"resources": small}}},
        "concurrency": {"runs": {"maxConcurrentRuns": 2}},
        "networkPolicy": {"objectStore": on_loopback},
        "conductor": {"enabled": True, "args": ["--json"]},
        "metrics": {"exporter": {"port": free_port()}},
    }  # fmt: skip


def render(folder: Path, stated: dict[str, Any]) -> list[dict[str, Any]]:
    """Render the chart.

    Raises:
        RuntimeError: Helm refuses the values; its words.
    """
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(stated))
    done = subprocess.run(  # noqa: S603
        [str(HELM), "template", RELEASE, str(ROOT / "helm"), "-f", str(path),
         "--namespace", NAMESPACE],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"helm template: {done.stderr}")
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def secrets(site: Site) -> list[dict[str, Any]]:
    """The Secrets that an operator makes before the chart is installed."""
    held = {
        "wsdata-postgresql-secret": {"postgresql-password": site.postgres.password},
        "wsdata-catalog-secret": {"password": site.postgres.password},
        **{f"wsdata-{who}-s3": site.s3.environment(who) for who in IDENTITIES},
    }
    return [
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": NAMESPACE},
         "stringData": data}
        for name, data in held.items()
    ]  # fmt: skip


def _write_operator_home(site: Site, recipe: str, eval_list: list[str]) -> None:
    home = site.folder / "operator"
    home.mkdir(parents=True)
    lines = {
        "store": site.address("store"),
        "vault": site.address("vault"),
        "landing": site.address("landing"),
        "catalog": site.postgres.url_without_password,
        "catalog_password_env": "WSDATA_CATALOG_PASSWORD",
    }
    (home / "deployment.toml").write_text(
        "".join(f"{key} = {json.dumps(value)}\n" for key, value in lines.items())
    )
    (home / "eval_list.txt").write_text("".join(f"{each}\n" for each in eval_list))
    if recipe:
        (home / "operating.toml").write_text(recipe)


@contextmanager
def running_site(
    folder: Path, *, recipe: str = "", eval_list: list[str] | None = None, s3: str = "moto"
) -> Iterator[Site]:
    """Bring a cluster up, the chart installed and prepared; take it down at the end.

    Args:
        folder: Where all of it lies.
        recipe: The operating recipe as TOML; the shipped one without it.
        eval_list: Asset ids for the vault.
        s3: ``moto``, or ``radosgw`` for a server that enforces who may what.
    """
    eval_list = eval_list or []
    with ExitStack() as stack:
        server = stack.enter_context(running_site_s3(s3, folder / "s3"))
        postgres = stack.enter_context(running_postgres(folder / "postgres"))
        postgres.make_database("dagster")
        kube = stack.enter_context(running_kube(folder / "kube"))
        site = Site(folder=folder, s3=server, postgres=postgres, kube=kube, web_port=free_port())
        _write_operator_home(site, recipe, eval_list)
        stated = values(site, code_port=free_port(), recipe=recipe, eval_list=eval_list)
        site.rendered = render(folder, stated)
        sandbox = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass",
                   "metadata": {"name": "gvisor"}, "handler": "runsc"}  # fmt: skip
        kube.apply([*secrets(site), sandbox, *site.rendered])
        wait_for(lambda: _is_up(site), "the webserver", 180)
        yield site


def _is_up(site: Site) -> bool:
    try:
        found = site.graphql(
            "{ workspaceOrError { ... on Workspace { locationEntries { locationOrLoadError "
            "{ __typename } } } } }"
        )
    except requests.RequestException:
        return False
    entries = found["workspaceOrError"].get("locationEntries", [])
    return [each["locationOrLoadError"]["__typename"] for each in entries] == ["RepositoryLocation"]
