"""The main job over a home with patches: what they lost is published again, or told."""

import io

import dagster as dg

from resources.deployments import bundle
from sensors.main_job import MainJob
from sensors.progress import Progress
from sensors.runs import InProcessRuns
from wsdata.lifecycle.patch import patch_version
from wsdata.lifecycle.patch_mend import objects_of_patches
from wsdata.lifecycle.pins import unpin_version
from wsdata.lifecycle.snapshot import STEP as SNAPSHOT
from wsdata_tests.graph.graph_support import ROOT, Site
from wsdata_tests.lifecycle import fabricated


def mend(home):
    """Mend what versions and patches lost; no step is there to be run."""
    site = Site(home=home.path, resources=bundle(ROOT, home.path))
    said = io.StringIO()
    with dg.DagsterInstance.ephemeral() as instance:
        progress = Progress(said)
        runs = InProcessRuns(dg.Definitions(), instance, progress)
        job = MainJob(
            steps={}, instance=instance, bench=site.bench, progress=progress, runs=runs
        )  # fmt: skip
        job.mend_versions()
    return job.summary, said.getvalue()


def test_a_run_publishes_lost_patches_again_and_pins_forgotten_ones(tmp_path):
    home = fabricated.fabricate(tmp_path / "home")
    film = fabricated.clip_id("film", 0)
    patch_version(home.ledger, home.store, "v1", [film], from_step=40)
    home.run_step(SNAPSHOT, "v1")
    whole, said = mend(home)
    assert (whole.failed, whole.mended, said) == ([], [], "")
    good = {each.key: home.store.get(each.key) for each in objects_of_patches(home.ledger)}
    for key in good:
        home.store.delete(key)
    unpin_version(home.ledger, "v1.1", "nothing trains on it")
    done, said = mend(home)
    assert (done.failed, done.mended) == ([], ["v1.1"])
    assert {key: home.store.get(key) for key in good} == good
    assert "patch v1.1 is published again: training/datasets/v1.1.json" in said
    assert list(home.ledger.present("pin")) == ["v1"], "an unpinned patch stays so"
    for key in (*good, "training/datasets/v1.json"):
        home.store.delete(key)
    lost, said = mend(home)
    assert (lost.failed, lost.mended) == (["patch v1.1"], [])
    assert "patch v1.1 stays lost: v1 was cut at" in said
