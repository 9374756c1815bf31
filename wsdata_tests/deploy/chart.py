"""The chart as tests see it: rendered by helm, each set of values once, as plain objects."""

import json
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm"
HELM = ROOT / ".venv" / "bin" / "helm"
RELEASE, NAMESPACE = "wsdata", "video"
STORE_CIDR, VAULT_CIDR = "10.1.0.0/16", "10.9.0.0/16"

SITE: dict[str, Any] = {
    "wsdata": {"store": "s3://site-store", "vault": "s3://site-vault", "landing": "s3://site-in"},
    "postgresql": {"postgresqlHost": "postgres.db.svc"},
    "networkPolicy": {"objectStore": {"cidrs": [STORE_CIDR]}},
}
# By name: values files or values, the later over the earlier.
RENDERS: dict[str, tuple[Any, ...]] = {
    "plain": (SITE,),
    "production": (CHART / "values-production.yaml",),
    "all_on": (
        SITE,
        {
            "images": {"registry": "registry.site:5000/video", "tag": "7"},
            "imagePullSecrets": [{"name": "pull"}],
            "wsdata": {
                "operatingRecipe": 'name = "site"\nseed = 1\n',
                "evalList": {"assetIds": ["ab" * 32]},
                "safetyLists": {"existingSecret": "safety-lists", "maxDistance": 24},
                "catalog": {"params": {"sslmode": "require", "application_name": "a b"}},
                "env": [{"name": "AWS_REGION", "value": "eu-central-1"}],
            },
            "vault": {"objectStore": {"cidrs": [VAULT_CIDR], "ports": [8443]}},
            "trainer": {"readsTranscodes": True},
            "pools": {"cpu": {"extraEnv": {"A": "b"}, "nodeSelector": {"zone": "a"}}},
            "dagsterWebserver": {
                "replicaCount": 2,
                "enableReadOnly": True,
                "pathPrefix": "/dagster",
                "logLevel": "info",
                "dbStatementTimeout": 20000,
                "podDisruptionBudget": {"enabled": True},
                "livenessProbe": {"periodSeconds": 30},
                "envSecrets": [{"name": "more", "optional": True}],
            },
            "dagster-user-deployments": {
                "deployments": [
                    {
                        "name": "wsdata",
                        "env": [{"name": "EXTRA", "value": "1"}],
                        "envSecrets": [{"name": "extra-secret"}],
                    },
                    {"name": "other", "port": 3031,
                     "includeConfigInLaunchedRuns": {"enabled": False}},
                ]
            },
            "runLauncher": {
                "config": {
                    "k8sRunLauncher": {
                        "image": {"repository": "wsdata-orchestrator", "tag": "7"},
                        "envConfigMaps": [{"name": "settings"}],
                        "envSecrets": [{"name": "more"}],
                        "envVars": ["ONE=1"],
                        "volumes": [{"name": "spare", "emptyDir": {}}],
                        "volumeMounts": [{"name": "spare", "mountPath": "/spare"}],
                        "runK8sConfig": {
                            "containerConfig": {"env": [{"name": "TWO", "value": "2"}]},
                            "podSpecConfig": {"priorityClassName": "wsdata-orchestrator"},
                        },
                    }
                }
            },
            "computeLogManager": {
                "type": "S3ComputeLogManager",
                "config": {"s3ComputeLogManager": {"bucket": "logs", "useSsl": False}},
            },
            "additionalInstanceConfig": {"code_servers": {"local_startup_timeout": 120}},
            "generatePostgresqlPasswordSecret": True,
            "postgresql": {"postgresqlPassword": "only-for-a-test"},
            "ingress": {
                "enabled": True,
                "dagsterWebserver": {
                    "host": "ui.site",
                    "tls": {"enabled": True, "secretName": "ui-tls"},
                    "precedingPaths": [
                        {"path": "/login", "pathType": "Prefix", "serviceName": "login",
                         "servicePort": 80},
                    ],
                },
                "readOnlyDagsterWebserver": {"host": "view.site"},
            },
            "networkPolicy": {"captioner": {"cidrs": ["10.7.0.1/32"], "ports": [8001]}},
            "priorityClasses": {"create": True},
            "conductor": {"enabled": True, "args": ["--json"]},
            "toolbox": {"enabled": True},
            "metrics": {
                "serviceMonitor": {"enabled": True},
                "podMonitor": {"enabled": True},
                "prometheusRule": {"enabled": True},
            },
            "vllm": {
                "enabled": True,
                "model": {"volume": {"persistentVolumeClaim": {"claimName": "models"}}},
                "maxModelLen": 32768,
                "envSecrets": [{"name": "vllm-key"}],
                "cache": {"persistent": True, "storageClassName": "shared"},
                "autoscaling": {"enabled": True},
                "podDisruptionBudget": {"enabled": True},
            },
            "extraManifests": [
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}}
            ],
        },
    ),
    "all_off": (
        SITE,
        {
            "rbacEnabled": False,
            "global": {"serviceAccountName": "given"},
            "serviceAccount": {"create": False},
            "pools": {"cpu": {"serviceAccountName": "given"}},
            "decode": {"serviceAccount": {"create": False}},
            "trainer": {"serviceAccount": {"create": False}},
            "wsdata": {"s3": {"secretName": ""}, "evalList": {"existingConfigMap": "long-list"},
                       "safetyLists": {"existingClaim": "long-lists"}},
            "dagsterDaemon": {"enabled": False},
            "dagster-user-deployments": {"enabled": False},
            "networkPolicy": {"enabled": False},
            "concurrency": {"enabled": False},
            "retention": {"enabled": False},
            "prepare": {"enabled": False},
            "metrics": {"exporter": {"enabled": False}, "annotations": False,
                        "dashboard": {"enabled": False}},
        },
    ),
}  # fmt: skip


@dataclass(frozen=True)
class PodTemplate:
    """A pod that the chart starts, by its owner."""

    owner: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]

    @property
    def container(self) -> Mapping[str, Any]:
        (only,) = self.spec["containers"]
        return only

    def environment(self) -> dict[str, Any]:
        return {each["name"]: each for each in self.container.get("env", [])}

    def secrets(self) -> set[str]:
        """Names of the Secrets that it can read, by whatever way."""
        return {value["secretKeyRef"]["name"] for value in _values(self.spec, "secretKeyRef")} | {
            each["secretRef"]["name"] for each in self.container.get("envFrom", [])
            if "secretRef" in each
        } | {volume["secret"]["secretName"] for volume in _values(self.spec, "secret")}  # fmt: skip


def _values(node: Any, key: str) -> Iterator[Any]:
    """Every mapping below a node that has a key."""
    if isinstance(node, dict):
        if key in node:
            yield node
        node = list(node.values())
    if isinstance(node, list):
        for each in node:
            yield from _values(each, key)


def helm(*arguments: str, values: tuple[Any, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Run helm on the chart, with values files and at most some values over them."""
    files = [each for each in values if isinstance(each, Path)]
    merged: dict[str, Any] = {}
    for each in values:
        if isinstance(each, dict):
            merged = over(merged, each)
    command = [str(HELM), *arguments]
    for file in files:
        command += ["-f", str(file)]
    return subprocess.run(  # noqa: S603
        [*command, "-f", "-"],
        input=json.dumps(merged),
        capture_output=True,
        text=True,
        check=False,
    )


def over(base: dict[str, Any], stated: Mapping[str, Any]) -> dict[str, Any]:
    """Lay values over others, as helm does with several files."""
    made = dict(base)
    for key, value in stated.items():
        below = made.get(key)
        made[key] = (
            over(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
        )
    return made


def template(*values: Any) -> subprocess.CompletedProcess[str]:
    """Render with some values, whatever comes of it."""
    return helm("template", RELEASE, str(CHART), "--namespace", NAMESPACE, values=values)


@cache
def render(name: str) -> tuple[dict[str, Any], ...]:
    """Render one of RENDERS, once."""
    done = template(*RENDERS[name])
    assert done.returncode == 0, done.stderr
    return parse(done.stdout)


def parse(text: str) -> tuple[dict[str, Any], ...]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return tuple(each for each in yaml.load_all(text, Loader=loader) if each)


def of_kind(objects: tuple[dict[str, Any], ...], kind: str) -> dict[str, dict[str, Any]]:
    """Objects of one kind, by name."""
    return {each["metadata"]["name"]: each for each in objects if each["kind"] == kind}


def files_of(name: str, config_map: str) -> dict[str, str]:
    """The files in one ConfigMap of a render."""
    return of_kind(render(name), "ConfigMap")[f"{RELEASE}-{config_map}"]["data"]


def pods(objects: tuple[dict[str, Any], ...]) -> dict[str, PodTemplate]:
    """All pods that some objects start, by their owner's name."""
    made = {}
    for each in objects:
        spec = each.get("spec", {})
        if each["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if each["kind"] in ("Deployment", "Job", "CronJob"):
            pod = spec["template"]
            name = each["metadata"]["name"]
            made[name] = PodTemplate(name, pod["metadata"]["labels"], pod["spec"])
    return made


def selects(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Whether a label selector takes some labels."""
    for key, value in selector.get("matchLabels", {}).items():
        if labels.get(key) != value:
            return False
    for each in selector.get("matchExpressions", []):
        is_among = labels.get(each["key"]) in each["values"]
        if is_among != {"In": True, "NotIn": False}[each["operator"]]:
            return False
    return True


def allowed(
    objects: tuple[dict[str, Any], ...], labels: Mapping[str, str], way: str
) -> set[tuple[str, str, int]] | None:
    """What network policies let a pod speak to.

    Args:
        objects: A render.
        labels: The pod's.
        way: ``egress`` or ``ingress``.

    Returns:
        (peer as JSON, protocol, port), "*" for any peer; None where no policy takes the pod, and
        so all is allowed.
    """
    policies = [
        each["spec"]
        for each in of_kind(objects, "NetworkPolicy").values()
        if way.title() in each["spec"]["policyTypes"]
        and selects(each["spec"]["podSelector"], labels)
    ]
    if not policies:
        return None
    peers_key = "to" if way == "egress" else "from"
    return {
        (peer, port.get("protocol", "TCP"), port.get("port", 0))
        for policy in policies
        for rule in policy.get(way) or []
        for peer in [json.dumps(each, sort_keys=True) for each in rule.get(peers_key, [])] or ["*"]
        for port in rule.get("ports") or [{}]
    }
