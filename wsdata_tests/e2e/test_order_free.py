"""Two drops, processed one after the other in either order: the same manifest."""

import subprocess
import sys

from wsdata.catalog.objects import read_table
from wsdata.curate.manifest import manifest_digest
from wsdata.ingest.delivery import Declaration, make_drop
from wsdata.ingest.landing import FolderLanding
from wsdata_tests.e2e.homes import MICRO_RECIPE, ROOT, Home

FIRST = ("stream_of_water.webm", "coffee.png")
SECOND = ("derived_stream_vp9_opus.webm", "coffee.png", "chelsea.png", "testsrc_av1.mkv")

# `launch.py run` up to the manifest: shards and plan are made of that alone.
CUT = """
import sys

import launch
from sensors import jobs, main_job

main_job.MainJob.make_version = lambda job, version: job.do(jobs.CUT_MANIFEST, version)
main_job.MainJob.report = lambda job: None
sys.exit(launch.main(["run"]))
"""


def _deliver(home: Home, names, source: str) -> None:
    declared = Declaration(source_tier="licensed", source=source, license_id="CC0-1.0")
    files = [ROOT / "samples" / "media" / name for name in names]
    make_drop(files, FolderLanding(home.path / "landing"), declared, date="20261101")


def _run_in_order(path, drops) -> Home:
    home = Home(path)
    path.mkdir()
    (path / "operating.toml").write_text(MICRO_RECIPE.read_text())
    programs = (["launch.py", "run", "--no-cut"], ["-c", CUT])
    for (names, source), program in zip(drops, programs, strict=True):
        _deliver(home, names, source)
        subprocess.run(  # noqa: S603
            [sys.executable, *program], check=True, cwd=ROOT, env=home.environment()
        )
    return home


def test_arrival_order_does_not_matter(tmp_path):
    one, two = (FIRST, "alpha"), (SECOND, "beta")
    forward = _run_in_order(tmp_path / "forward", [one, two])
    backward = _run_in_order(tmp_path / "backward", [two, one])
    for table in ("manifests", "exclusions"):
        left = read_table(forward.ledger, forward.store, table, "v1")
        right = read_table(backward.ledger, backward.store, table, "v1")
        assert left.equals(right), table
    left, right = (
        manifest_digest(read_table(home.ledger, home.store, "manifests", "v1"))
        for home in (forward, backward)
    )
    assert left == right
    refs = [home.ledger.live("manifests", "v1")[0].sha256 for home in (forward, backward)]
    assert refs[0] == refs[1]
