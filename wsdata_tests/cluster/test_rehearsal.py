"""A delivery through the chart as rendered, on loopback: the same bytes as on a laptop."""

import pytest

from wsdata_tests.cluster.rehearsal import rehearse
from wsdata_tests.cluster.s3_servers import has_radosgw

pytestmark = pytest.mark.slow


def test_a_cluster_makes_the_same_bytes_on_an_s3_that_fails(tmp_path):
    report = rehearse(tmp_path, "micro", "faulty", None)
    assert report["row_objects_differing"] == []
    assert report["training_objects_differing"] == []
    assert report["same"]
    assert report["samples_read_by_trainer"] == 8


def test_kills_of_pods_daemon_and_database_lose_nothing(tmp_path):
    report = rehearse(tmp_path, "micro", "radosgw" if has_radosgw() else "moto", 1)
    assert report["same"], report
    struck = {blow.split()[0] for blow in report["blows"]}
    assert struck >= {"worker", "run", "daemon", "database"}, report["blows"]
