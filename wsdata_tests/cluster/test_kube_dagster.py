"""Dagster's own Kubernetes clients on the double."""

import json

import pytest

from wsdata_tests.cluster.kube.samples import ON_GPU, condition

DAGSTER_JOB = """
import os
import time
import dagster as dg

@dg.op
def hello(context):
    context.log.info("pod " + os.environ["HOSTNAME"])
    return 1

@dg.op
def sleep():
    time.sleep(60)

@dg.job(executor_def=dg.in_process_executor)
def short():
    hello()

@dg.job(executor_def=dg.in_process_executor)
def long():
    sleep()
"""

PIPES = """
from dagster_pipes import open_dagster_pipes
with open_dagster_pipes() as pipes:
    pipes.log.info("in the pod")
    pipes.report_asset_materialization(metadata={"frames": 42})
"""


def _dagster_home(kube):
    """A Dagster home that this process and run pods see under one path, through a claim."""
    home = kube.folder / "claims" / "default" / "dagster-home"
    home.mkdir(parents=True)
    launcher = {
        "dagster_home": str(home), "instance_config_map": "dagster-instance",
        "job_image": "wsdata-orchestrator:1",
        "job_namespace": "default", "service_account_name": "default",
        "load_incluster_config": False, "kubeconfig_file": str(kube.kubeconfig),
        "volumes": [{"name": "home", "persistentVolumeClaim": {"claimName": "dagster-home"}}],
        "volume_mounts": [{"name": "home", "mountPath": str(home)}],
    }  # fmt: skip
    text = json.dumps({
        "run_launcher": {
            "module": "dagster_k8s", "class": "K8sRunLauncher", "config": launcher,
        },
        "telemetry": {"enabled": False},
    })  # fmt: skip
    (home / "dagster.yaml").write_text(text)
    (home / "location.py").write_text(DAGSTER_JOB)
    kube.apply([
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "dagster-home"},
         "spec": {"accessModes": ["ReadWriteOnce"]}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "dagster-instance"},
         "data": {"dagster.yaml": text}},
    ])  # fmt: skip
    return home


@pytest.mark.slow
def test_dagsters_run_launcher_runs_and_terminates(kube, monkeypatch):
    import dagster as dg
    from dagster._core.definitions.reconstruct import ReconstructableJob
    from dagster._core.launcher import WorkerStatus

    home = _dagster_home(kube)
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    with dg.DagsterInstance.get() as instance:

        def launch(name):
            recon = ReconstructableJob.for_file(str(home / "location.py"), name)
            run = instance.create_run_for_job(
                recon.get_definition(), job_code_origin=recon.get_python_origin()
            )
            return instance.launch_run(run.run_id, None).run_id

        def status_of(run_id):
            return instance.get_run_by_id(run_id).status

        short = launch("short")
        kube.wait_for(lambda: instance.get_run_by_id(short).is_finished, "the short run")
        log = kube.log_of_job(f"dagster-run-{short}")
        assert status_of(short) == dg.DagsterRunStatus.SUCCESS, log
        kube.wait_for(lambda: condition(kube, f"dagster-run-{short}"), "the short run's Job")
        health = instance.run_launcher.check_run_worker_health(instance.get_run_by_id(short))
        assert health.status == WorkerStatus.SUCCESS

        long = launch("long")
        kube.wait_for(lambda: status_of(long) == dg.DagsterRunStatus.STARTED, "the long run")
        assert instance.run_launcher.terminate(long)
        kube.wait_for(lambda: status_of(long) == dg.DagsterRunStatus.CANCELED, "its end")
        kube.wait_for(lambda: not kube.pods(f"job-name=dagster-run-{long}"), "its pod's end")


@pytest.mark.slow
def test_dagsters_pipes_client_runs_a_pod(kube):
    import dagster as dg
    from dagster_k8s import PipesK8sClient

    @dg.asset
    def captions(context: dg.AssetExecutionContext) -> dg.MaterializeResult:
        pipes = PipesK8sClient(
            load_incluster_config=False, kubeconfig_file=str(kube.kubeconfig), poll_interval=0.2
        )
        spec = {"containers": [{"name": "main", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
        return pipes.run(
            context=context, image="wsdata-gpu:1", command=["python", "-c", PIPES],
            namespace="default", base_pod_spec={**spec, **ON_GPU},
        ).get_materialize_result()  # fmt: skip

    result = dg.materialize([captions])
    (made,) = result.get_asset_materialization_events()
    assert made.materialization.metadata["frames"].value == 42
