"""The chart keeps identities apart: who holds which secret, whose token, who reaches what."""

import json

import pytest

from resources.compute_pool import POOLS, pools_from
from resources.worker_pods import worker_job
from resources.workers import WorkerJob
from wsdata.deployment import Kubernetes
from wsdata.records import Order
from wsdata_tests.deploy.chart import (
    RENDERS,
    STORE_CIDR,
    VAULT_CIDR,
    PodTemplate,
    allowed,
    files_of,
    of_kind,
    pods,
    render,
)
from wsdata_tests.deploy.launched import assert_confined, run_job

EVERY_RENDER = pytest.mark.parametrize("name", RENDERS)
CATALOG, DATABASE = "wsdata-catalog-secret", "wsdata-postgresql-secret"
# Who opens the ledger. The webserver, which people reach, and the daemon do not.
OPENERS = {"code-wsdata", "code-other", "prepare", "metrics", "conductor", "toolbox"}
SPEAKERS = {"webserver", "daemon"}  # to the Kubernetes API; run pods are the third


def component(pod: PodTemplate) -> str:
    return pod.labels["app.kubernetes.io/component"]


def worker(name: str, pool: str) -> PodTemplate:
    """A worker of one pool, as the code would start it under a render's values."""
    spec = pools_from(json.loads(files_of(name, "deployment")["pools.json"]))[pool]
    order = Order(
        stage="ingest", step="land", partition="p", code_version="1", params={}, inputs={}
    )
    job = worker_job(
        spec,
        WorkerJob(stage="ingest", step="land", order=order, store="s3://site-store"),
        Kubernetes(),
        command=["python", "-m", "wsdata"],
        report_key="reports/x/y.json",
        environment={},
    )
    (pod,) = pods((job,)).values()
    return pod


@EVERY_RENDER
def test_every_pod_is_confined(name):
    for pod in pods(render(name)).values():
        assert_confined(pod)
    for pool in POOLS:
        assert_confined(worker(name, pool))


@EVERY_RENDER
def test_only_who_opens_the_ledger_holds_its_password(name):
    found = pods(render(name)).values()
    holders = {component(pod) for pod in found if CATALOG in pod.secrets()}
    present = {component(pod) for pod in found}
    assert holders == OPENERS & present
    assert all(
        pod.labels["wsdata/identity"] == "pipeline" for pod in found if CATALOG in pod.secrets()
    )


@EVERY_RENDER
def test_workers_hold_no_database_and_no_token(name):
    for pool in POOLS:
        pod = worker(name, pool)
        assert not pod.secrets() & {CATALOG, DATABASE}, pool
        assert not {"WSDATA_CATALOG_PASSWORD", "DAGSTER_PG_PASSWORD"} & set(pod.environment())
        assert pod.spec["automountServiceAccountToken"] is False


@EVERY_RENDER
def test_the_vault_is_for_pool_vault_alone(name):
    pools = json.loads(files_of(name, "deployment")["pools.json"])
    holders = {pool for pool, each in pools.items() if each["serviceAccountName"] == "wsdata-vault"}
    assert holders == {"vault"}
    assert [pool for pool, each in pools.items() if each["identity"] == "vault"] == ["vault"]
    for pod in pods(render(name)).values():
        assert pod.spec.get("serviceAccountName") != "wsdata-vault"
        assert "wsdata-vault-s3" not in pod.secrets()
    for pool in set(POOLS) - {"vault"}:
        pod = worker(name, pool)
        assert pod.spec["serviceAccountName"] != "wsdata-vault"
        assert "wsdata-vault-s3" not in pod.secrets()


@EVERY_RENDER
def test_only_who_speaks_to_the_api_has_a_token(name):
    found = pods(render(name)).values()
    holders = {component(pod) for pod in found if pod.spec["automountServiceAccountToken"]}
    assert holders == SPEAKERS & {component(pod) for pod in found}
    for account in of_kind(render(name), "ServiceAccount").values():
        assert account["automountServiceAccountToken"] is False


def test_the_pipelines_role_is_what_launchers_call():
    """Of dagster-k8s and of our own launcher; see `resources.kubernetes_launcher`."""
    (role,) = of_kind(render("plain"), "Role").values()
    granted = {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    jobs = {("jobs", verb) for verb in ("create", "get", "list", "watch", "delete")}
    others = {("jobs/status", "get"), ("pods", "list"), ("pods", "delete"), ("pods/log", "get")}
    assert jobs | others | {("events", "list")} <= granted
    assert {resource for resource, _ in granted} == {
        *("jobs", "jobs/status", "pods", "pods/log", "pods/status", "events")
    }
    assert "*" not in {verb for _, verb in granted}
    (binding,) = of_kind(render("plain"), "RoleBinding").values()
    assert [each["name"] for each in binding["subjects"]] == ["wsdata-pipeline"]
    assert not of_kind(render("plain"), "ClusterRole")


@EVERY_RENDER
def test_accounts_are_made_for_all_identities(name):
    made = set(of_kind(render(name), "ServiceAccount"))
    identities = {f"wsdata-{each}" for each in ("pipeline", "decode", "vault", "trainer")}
    assert made == ({"wsdata-vault"} if name == "all_off" else identities)
    used = {each.service_account_name for each in POOLS.values()}
    assert used <= identities


@EVERY_RENDER
def test_no_secret_is_rendered_but_by_the_toggle(name):
    secrets = of_kind(render(name), "Secret")
    assert set(secrets) == ({DATABASE} if name == "all_on" else set())
    if name == "all_on":
        text = json.dumps([each for each in render(name) if each["kind"] != "Secret"])
        assert "only-for-a-test" not in text


DNS = json.dumps(
    {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    },
    sort_keys=True,
)
NAMES = {(DNS, "UDP", 53), (DNS, "TCP", 53)}
MONITORING = json.dumps(
    {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
)


def block(cidr: str) -> str:
    return json.dumps({"ipBlock": {"cidr": cidr}})


@pytest.mark.parametrize("pool", POOLS)
def test_workers_reach_the_store_and_names_alone(pool):
    store = {(block(STORE_CIDR), "TCP", 443)}
    pod = worker("plain", pool)
    assert allowed(render("plain"), pod.labels, "egress") == NAMES | store
    assert allowed(render("plain"), pod.labels, "ingress") == {(MONITORING, "TCP", 9108)}


@pytest.mark.parametrize("pool", POOLS)
def test_only_captions_reach_the_captioner_and_decode_never_the_vault(pool):
    pod = worker("all_on", pool)
    reached = allowed(render("all_on"), pod.labels, "egress")
    vault = {(block(VAULT_CIDR), "TCP", 8443)}
    captioner = {
        (
            json.dumps(
                {
                    "podSelector": {
                        "matchLabels": {
                            "app.kubernetes.io/component": "vllm",
                            "app.kubernetes.io/instance": "wsdata",
                            "app.kubernetes.io/name": "wsdata",
                        }
                    }
                }
            ),
            *("TCP", 8000),
        ),
        (block("10.7.0.1/32"), "TCP", 8001),
    }
    wanted = NAMES | {(block(STORE_CIDR), "TCP", 443)}
    wanted |= captioner if pool == "vlm" else set()
    wanted |= vault if pool in ("cpu", "vault") else set()
    assert reached == wanted


def test_a_worker_without_an_identity_reaches_nobody():
    labels = {"app.kubernetes.io/name": "wsdata-worker"}
    for name in ("plain", "production", "all_on"):
        assert allowed(render(name), labels, "egress") == set()


def test_a_worker_that_claims_a_foreign_identity_reaches_nobody():
    for pool, identity in (("nvdec", "vault"), ("nvdec", "pipeline"), ("vault", "decode")):
        labels = {
            **worker("all_on", pool).labels,
            "wsdata/identity": identity,
        }
        assert allowed(render("all_on"), labels, "egress") == set()


@pytest.mark.parametrize("name", ["plain", "production", "all_on"])
def test_every_pod_of_the_chart_is_under_a_policy(name):
    for pod in pods(render(name)).values():
        egress = allowed(render(name), pod.labels, "egress")
        assert egress is not None, pod.owner
        assert allowed(render(name), pod.labels, "ingress") is not None, pod.owner
        if component(pod) == "vllm":
            assert egress == set()
        else:
            assert any(port == 5432 for _, _, port in egress)


def test_run_pods_reach_what_dagster_does_and_are_reached_by_it_alone(tmp_path, monkeypatch):
    (pod,) = pods((run_job("plain", tmp_path, monkeypatch),)).values()
    assert pod.spec["serviceAccountName"] == "wsdata-pipeline"
    assert pod.secrets() == {CATALOG, DATABASE, "wsdata-pipeline-s3"}
    egress = allowed(render("plain"), pod.labels, "egress")
    ingress = allowed(render("plain"), pod.labels, "ingress")
    assert egress is not None
    assert ingress is not None
    assert {port for _, _, port in egress} >= {53, 443, 5432, 6443}
    assert "*" not in {peer for peer, _, _ in ingress}


@pytest.mark.parametrize("name", ["plain", "production"])
def test_code_that_parses_foreign_bytes_runs_in_gvisor(name):
    for pool in ("nvdec", "vault"):
        assert worker(name, pool).spec["runtimeClassName"] == "gvisor"
