"""deployment.toml: what cannot be is refused, with file and key."""

import pytest

from wsdata.access_check import try_place
from wsdata.deployment import load_deployment
from wsdata.errors import WsdataError


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('carve_share = "abc"', "carve_share: expected float, got 'abc'"),
        ("store = 3", "store: expected str, got 3"),
        ('asks_blobs = "no"', "asks_blobs: expected bool, got 'no'"),
        ('num_threads = "x"', "num_threads: expected int, got 'x'"),
        ("num_threads = true", "num_threads: expected int, got True"),
        ("[kubernetes]\nimage_pull_secrets = 3", "image_pull_secrets: expected a list, got 3"),
        ('[kubernetes]\nruns_at_once = "many"', "kubernetes.runs_at_once: expected int"),
        ('kubernetes = "yes"', "kubernetes: expected a table, got 'yes'"),
        ("[kubernetes]\nspace = 1", "kubernetes: unknown keys ['space']"),
        ("shop = 1", "deployment: unknown keys ['shop']"),
        ('home = "/x"', "home is where the file lies"),
        ("store = ", "not TOML"),
        ('bundle = "cloud"', "bundle 'cloud'"),
    ],
)
def test_a_wrong_value_is_refused_by_name(tmp_path, text, said):
    (tmp_path / "deployment.toml").write_text(text)
    with pytest.raises(WsdataError) as raised:
        load_deployment(tmp_path)
    told = "\n".join([str(raised.value), *getattr(raised.value, "__notes__", [])])
    assert said in told
    assert "deployment.toml" in told


def test_what_is_right_is_read(tmp_path):
    (tmp_path / "deployment.toml").write_text(
        "carve_share = 0\nasks_blobs = false\n[kubernetes]\npoll_s = 1\n"
        'image_pull_secrets = ["a"]\n'
    )
    found = load_deployment(tmp_path)
    assert (found.carve_share, found.asks_blobs) == (0, False)
    assert (found.kubernetes.poll_s, found.kubernetes.image_pull_secrets) == (1, ("a",))


def test_a_place_of_another_kind_is_a_fault():
    assert try_place("store", "gs://x/", "pipeline").faults
