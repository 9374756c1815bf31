"""The chart: what helm makes of it is valid, and fits the code that reads it."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from dagster._config import process_config, resolve_to_config_type
from dagster._serdes.config_class import class_from_code_pointer
from dagster_k8s.container_context import K8sContainerContext
from sqlalchemy.engine import make_url

from resources.compute_pool import POOLS, pools_from, pools_to_json
from wsdata.deployment import load_deployment
from wsdata.recipe import load_recipe
from wsdata_tests.deploy.chart import (
    CHART,
    HELM,
    NAMESPACE,
    RELEASE,
    RENDERS,
    ROOT,
    SITE,
    files_of,
    helm,
    of_kind,
    parse,
    pods,
    render,
    selects,
    template,
)
from wsdata_tests.deploy.launched import assert_confined, instance_of, run_job, write

KUBERNETES = "1.34"
# Kinds of operators, whose schemas come with the operators.
FOREIGN = {"ServiceMonitor", "PodMonitor", "PrometheusRule", "ScaledObject"}
EVERY_RENDER = pytest.mark.parametrize("name", RENDERS)


def problems_of(each) -> list[str]:
    try:
        kubernetes_validate.validate(each, KUBERNETES, strict=True)
    except kubernetes_validate.ValidationError as error:
        return [f"{each['kind']} {each['metadata']['name']}: {error.message} at {list(error.path)}"]
    return []


def test_helm_is_there():
    assert HELM.exists(), "run .venv/bin/python tools/get_helm.py"


@pytest.mark.parametrize("values", [(), (CHART / "values-production.yaml",)])
def test_the_chart_lints_strictly(values):
    done = helm("lint", "--strict", str(CHART), values=values)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 chart(s) failed" in done.stdout


@EVERY_RENDER
def test_every_object_is_valid_kubernetes(name):
    objects = render(name)
    said = [line for each in objects if each["kind"] not in FOREIGN for line in problems_of(each)]
    assert said == []
    keys = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(keys) == len(set(keys))


def test_the_schema_names_each_wrong_value():
    wrong = {
        "pool": {},
        "pools": {"nvdc": {}, "vlm": {"gpus": 1}, "encode": {"gpuCount": "1"}},
        "wsdata": {"stor": "s3://a", "vault": "gs://a", "evalList": {"assetIds": ["abc"]}},
        "dagsterWebserver": {"service": {"port": 80}},
        "dagsterDaemon": {"runRetries": {"max": 1}},
        "computeLogManager": {"type": "S3ComputeLogManager"},
        "trainer": {"readsTranscodes": "yes"},
        "networkPolicy": {"objectStore": {"cidrs": ["10.0.0.1"]}},
    }
    done = template(SITE, wrong)
    assert done.returncode != 0
    for said in (
        "at '': additional properties 'pool' not allowed",
        "at '/pools': additional properties 'nvdc' not allowed",
        "at '/pools/vlm': additional properties 'gpus' not allowed",
        "at '/pools/encode/gpuCount': got string, want integer",
        "at '/wsdata': additional properties 'stor' not allowed",
        "at '/wsdata/vault': 'gs://a' does not match pattern",
        "at '/wsdata/evalList/assetIds/0': 'abc' does not match pattern",
        "at '/dagsterWebserver/service/port': minimum: got 80, want 1,024",
        "at '/dagsterDaemon/runRetries': additional properties 'max' not allowed",
        "at '/trainer/readsTranscodes': got string, want boolean",
        "at '/computeLogManager/config': missing property 's3ComputeLogManager'",
        "at '/networkPolicy/objectStore/cidrs/0': '10.0.0.1' does not match pattern",
    ):
        assert said in done.stderr


@pytest.mark.parametrize(
    ("stated", "said"),
    [
        ({"wsdata": {"store": ""}}, "wsdata.store is not set"),
        ({"wsdata": {"vault": "s3://site-store"}}, "needs a bucket and credentials of its own"),
        ({"networkPolicy": {"objectStore": {"cidrs": []}}}, "networkPolicy.objectStore names nobo"),
        ({"pools": {"cpu": {"identity": "vault"}}}, "for pool vault, and for it alone"),
        ({"pools": {"nvdec": {"serviceAccountName": "wsdata-vault"}}}, "identity decode is"),
        ({"pools": {"vlm": {"envSecrets": ["wsdata-vault-s3"]}}}, "for pool vault alone"),
        ({"pools": {"vlm": {"envSecrets": ["wsdata-catalog-secret"]}}}, "workers hold none"),
        ({"decode": {"serviceAccount": {"name": "wsdata-vault"}}}, "kept apart"),
        ({"runLauncher": {"config": {"k8sRunLauncher": {"jobNamespace": "x"}}}}, "install it into"),
        ({"vllm": {"enabled": True}}, "vllm.model.volume is not set"),
        ({"generatePostgresqlPasswordSecret": True}, "postgresqlPassword is empty"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_values_that_no_schema_can_judge_are_refused_too(stated, said):
    done = template(SITE, stated)
    assert done.returncode != 0
    assert said in done.stderr


def test_the_pools_are_those_of_the_code():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert values["pools"] == json.loads(json.dumps(pools_to_json(POOLS)))
    shipped = pools_from(json.loads(files_of("plain", "deployment")["pools.json"]))
    assert shipped == POOLS


def test_a_pools_values_reach_the_code():
    pool = pools_from(json.loads(files_of("production", "deployment")["pools.json"]))["vlm"]
    assert (pool.gpu_count, pool.tolerations, pool.env_secrets) == (0, (), ())
    assert pool.priority_class_name == "wsdata-bulk"
    assert pool.extra_env == {"AWS_REGION": "eu-central-1"}


@EVERY_RENDER
def test_the_deployment_is_read_by_the_code(name, tmp_path):
    files = files_of(name, "deployment")
    deployment = load_deployment(write(tmp_path, files))
    assert deployment.bundle == "kubernetes"
    assert deployment.kubernetes.namespace == NAMESPACE
    assert make_url(deployment.catalog).drivername == "postgresql+psycopg2"
    assert make_url(deployment.catalog).password is None
    pipeline = pods(render(name))[f"{RELEASE}-webserver"]
    assert pipeline.environment()["WSDATA_HOME"]["value"] == "/opt/wsdata/home"
    url = re.fullmatch(r"http://([a-z-]+):(\d+)(/.*)?", deployment.kubernetes.webserver_url)
    assert url, deployment.kubernetes.webserver_url
    service = of_kind(render(name), "Service")[url[1]]
    assert [port["port"] for port in service["spec"]["ports"]] == [int(url[2])]
    stated = tomllib.loads(files["deployment.toml"])
    assert isinstance(stated["num_threads"], int)
    assert ("eval_list.txt" in files) == (name != "all_off")
    assert deployment.trainers_read_transcodes is (name == "all_on"), "off unless stated"


def test_addresses_recipe_and_eval_list_come_through(tmp_path):
    deployment = load_deployment(write(tmp_path, files_of("all_on", "deployment")))
    url = make_url(deployment.catalog)
    assert (url.host, url.port, url.database, url.username) == (
        *("postgres.db.svc", 5432), *("wsdata", "wsdata"),
    )  # fmt: skip
    assert url.query == {"sslmode": "require", "application_name": "a b"}
    assert deployment.read_eval_list() == ["ab" * 32]
    assert load_recipe(Path(deployment.operating_recipe)).name == "site"
    cluster = deployment.kubernetes
    assert (cluster.image_registry, cluster.image_tag) == ("registry.site:5000/video", "7")
    assert cluster.image_pull_secrets == ("pull",)
    assert cluster.webserver_url == "http://wsdata-webserver:3000/dagster"


@EVERY_RENDER
def test_dagster_accepts_its_settings(name, tmp_path, monkeypatch):
    ref = instance_of(name, tmp_path, monkeypatch)
    parts = [
        *(ref.run_storage_data, ref.event_storage_data, ref.schedule_storage_data),
        *(ref.storage_data, ref.run_launcher_data, ref.run_coordinator_data),
        *(ref.compute_logs_data, ref.scheduler_data),
    ]
    for part in parts:
        assert part is not None
        kind = class_from_code_pointer(part.module_name, part.class_name)
        judged = process_config(
            resolve_to_config_type(kind.config_type()),  # type: ignore[attr-defined]
            yaml.safe_load(part.config_yaml) or {},
        )
        assert judged.success, [error.message for error in judged.errors or []]
    settings = ref.settings
    if name != "all_off":
        retries = settings["run_retries"]
        assert (retries["enabled"], retries["max_retries"]) == (True, 3)
        assert retries["retry_on_asset_or_op_failure"] is False
        assert settings["concurrency"]["pools"]["granularity"] == "op"
        assert ref.run_coordinator_data.class_name == "QueuedRunCoordinator"
    assert ref.storage_data.class_name == "DagsterPostgresStorage"
    database = yaml.safe_load(ref.storage_data.config_yaml)["postgres_db"]
    assert database["scheme"] == "postgresql+psycopg2"
    assert database["password"] == {"env": "DAGSTER_PG_PASSWORD"}


@EVERY_RENDER
def test_run_pods_are_valid_and_find_what_they_mount(name, tmp_path, monkeypatch):
    job = run_job(name, tmp_path, monkeypatch)
    assert problems_of(job) == []
    (pod,) = pods((job,)).values()
    assert_confined(pod)
    made = of_kind(render(name), "ConfigMap")
    mounted = {mount["name"] for mount in pod.container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod.spec["volumes"]}
    for volume in pod.spec["volumes"]:
        sources = volume.get("projected", {}).get("sources", [volume])
        for source in sources:
            if "configMap" in source:
                assert source["configMap"]["name"] in {*made, "long-list"}
    given = pod.environment()
    assert given["WSDATA_HOME"]["value"] == "/opt/wsdata/home"
    assert given["WSDATA_CATALOG_PASSWORD"]["valueFrom"]["secretKeyRef"]
    assert given["DAGSTER_PG_PASSWORD"]["valueFrom"]["secretKeyRef"]
    assert pod.container["workingDir"] == "/opt/wsdata/app"
    assert job["spec"]["ttlSecondsAfterFinished"] == 86400


def test_code_locations_hand_their_settings_to_run_pods():
    found = pods(render("all_on"))
    context = json.loads(
        found["wsdata-code-wsdata"].environment()["DAGSTER_CONTAINER_CONTEXT"]["value"]
    )
    assert context == {
        "k8s": {"env": [{"name": "EXTRA", "value": "1"}], "env_secrets": ["extra-secret"]}
    }
    K8sContainerContext.create_from_config(context)
    other = found["wsdata-code-other"].environment()
    assert "DAGSTER_CONTAINER_CONTEXT" not in other
    assert other["DAGSTER_CURRENT_IMAGE"]["value"] == (
        "registry.site:5000/video/wsdata-orchestrator:7"
    )


@EVERY_RENDER
def test_the_workspace_names_services_that_answer(name):
    workspace = yaml.safe_load(files_of(name, "workspace")["workspace.yaml"])
    services = of_kind(render(name), "Service")
    for entry in workspace["load_from"]:
        server = entry["grpc_server"]
        assert services[server["host"]]["spec"]["ports"][0]["port"] == server["port"]
        command = pods(render(name))[server["host"]].container["command"]
        assert command[:4] == ["dagster", "code-server", "start", "-h"]
        assert command[command.index("-p") + 1] == str(server["port"])
    local = yaml.safe_load((ROOT / "workspace.yaml").read_text())["load_from"][0]["python_file"]
    names = [entry["grpc_server"]["location_name"] for entry in workspace["load_from"]]
    assert not names or local["location_name"] in names


@EVERY_RENDER
def test_services_select_pods_that_listen(name):
    found = pods(render(name)).values()
    for service in of_kind(render(name), "Service").values():
        selector = {"matchLabels": service["spec"]["selector"]}
        (pod,) = [each for each in found if selects(selector, each.labels)]
        named = {port["name"] for port in pod.container["ports"]}
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= named
    for budget in of_kind(render(name), "PodDisruptionBudget").values():
        assert any(selects(budget["spec"]["selector"], pod.labels) for pod in found)


def test_monitors_find_workers_exporter_and_captioner():
    objects = render("all_on")
    service = of_kind(objects, "ServiceMonitor")["wsdata-metrics"]["spec"]
    (found,) = [
        each for each in of_kind(objects, "Service").values()
        if selects(service["selector"], each["metadata"]["labels"])
    ]  # fmt: skip
    assert service["endpoints"][0]["port"] in {port["name"] for port in found["spec"]["ports"]}
    monitors = of_kind(objects, "PodMonitor")
    workers = monitors["wsdata-workers"]["spec"]
    assert workers["selector"] == {"matchLabels": {"app.kubernetes.io/name": "wsdata-worker"}}
    assert workers["podMetricsEndpoints"][0]["port"] == "metrics"
    captioner = pods(objects)["wsdata-vllm"]
    assert selects(monitors["wsdata-vllm"]["spec"]["selector"], captioner.labels)
    assert all(
        each["apiVersion"] == "monitoring.coreos.com/v1"
        for each in objects
        if each["kind"] in ("ServiceMonitor", "PodMonitor")
    )


def test_the_captioner_scales_on_its_own_queue():
    objects = render("all_on")
    scaled = of_kind(objects, "ScaledObject")["wsdata-vllm"]
    assert scaled["apiVersion"] == "keda.sh/v1alpha1"
    assert scaled["spec"]["scaleTargetRef"]["name"] in of_kind(objects, "Deployment")
    assert "replicas" not in of_kind(objects, "Deployment")["wsdata-vllm"]["spec"]
    queries = [trigger["metadata"]["query"] for trigger in scaled["spec"]["triggers"]]
    assert any("vllm:num_requests_waiting" in query for query in queries)
    container = pods(objects)["wsdata-vllm"].container
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    assert all(
        container[probe]["httpGet"]["path"] == "/health"
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    )


def test_a_changed_setting_starts_the_pods_anew():
    def sums(objects):
        return {
            each["metadata"]["name"]: each["spec"]["template"]["metadata"]["annotations"]
            for each in objects
            if each["kind"] == "Deployment"
        }

    before = sums(render("plain"))
    changes = {
        "checksum/deployment": {"wsdata": {"numThreads": 3}},
        "checksum/instance": {"concurrency": {"runs": {"maxConcurrentRuns": 7}}},
    }
    for annotation, change in changes.items():
        after = sums(parse(template(SITE, change).stdout))
        for name, noted in after.items():
            assert noted[annotation] != before[name][annotation], (annotation, name)


def test_the_dashboard_is_mounted_as_it_is():
    shipped = CHART / "dashboards" / "wsdata.json"
    found = of_kind(render("plain"), "ConfigMap").get("wsdata-dashboard")
    assert (found is not None) == shipped.exists()
    if found is not None:
        assert json.loads(found["data"]["wsdata.json"]) == json.loads(shipped.read_text())
        assert found["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_the_suggested_alerts_are_rendered_as_they_are():
    (rule,) = of_kind(render("all_on"), "PrometheusRule").values()
    shipped = yaml.safe_load((CHART / "rules" / "wsdata.rules.yaml").read_text())
    assert rule["spec"] == shipped


def test_sizes_that_capacity_gives_are_values():
    said = subprocess.run(
        [sys.executable, "-m", "wsdata", "capacity", "--weeks", "4", "--helm-values"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    sizes = yaml.safe_load(said.stdout)
    done = template(SITE, sizes)
    assert done.returncode == 0, done.stderr
    files = of_kind(parse(done.stdout), "ConfigMap")["wsdata-deployment"]["data"]
    pools = pools_from(json.loads(files["pools.json"]))
    for name, stated in sizes["pools"].items():
        assert pools[name].concurrency_limit == stated["concurrencyLimit"]


def test_the_deployment_is_prepared_after_install_and_upgrade():
    job = of_kind(render("plain"), "Job")["wsdata-prepare"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade"
    (pod,) = pods((job,)).values()
    assert pod.container["command"] == ["python", "launch.py", "prepare"]
    cron = pods(render("all_on"))["wsdata-conductor"]
    assert cron.container["command"] == ["python", "launch.py", "run", "--json"]


@pytest.mark.parametrize("name", ["production", "all_on"])
def test_priority_classes_that_are_named_are_made(name):
    made = set(of_kind(render(name), "PriorityClass"))
    named = {pod.spec.get("priorityClassName") for pod in pods(render(name)).values()}
    values = json.loads(files_of(name, "deployment")["pools.json"]).values()
    named |= {pool["priorityClassName"] for pool in values}
    assert named - {None, ""} <= made


def test_the_notes_are_written():
    done = helm("install", RELEASE, str(CHART), "--dry-run=client", values=RENDERS["all_on"])
    assert done.returncode == 0, done.stderr
    assert 'captions.endpoint = "http://wsdata-vllm:8000/v1"' in done.stdout
    assert "wsdata-catalog-secret  password" in done.stdout


def test_every_value_group_is_explained():
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    text = (CHART / "README.md").read_text()
    assert [key for key in values if f"`{key}" not in text] == []


def test_the_schema_knows_no_key_that_values_lack():
    """A key that nobody reads would be accepted in silence."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema["properties"]) == set(values)
    fields = set(schema["$defs"]["pool"]["properties"])
    assert all(set(pool) == fields for pool in values["pools"].values())
