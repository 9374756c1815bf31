"""Who may do what in the buckets: the policies as text, the check, and a server that enforces."""

import json
from dataclasses import replace
from functools import partial

import pytest

from wsdata import s3_client
from wsdata.access import GRANTS, IDENTITIES, bucket_policy, policy
from wsdata.access_check import check_access, try_place
from wsdata.cli.main import run_command
from wsdata.deployment import load_deployment
from wsdata.errors import StoreDenied
from wsdata.ingest.landing import open_landing
from wsdata.s3_client import S3Bucket, parse_s3_address
from wsdata.s3_store import S3Store
from wsdata.store import open_store
from wsdata_tests.cluster.s3_servers import (
    PLACES,
    apply_policies,
    has_radosgw,
    running_moto,
    running_site_s3,
)

THREE = {"store": "s3://ws/prod", "vault": "s3://eval", "landing": "s3://ws/in"}


def become(server, identity, monkeypatch):
    for name, value in server.environment(identity).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WSDATA_IDENTITY", identity)


def allowed(statements, action):
    return {
        resource
        for each in statements
        if each["Effect"] == "Allow" and action in each["Action"]
        for resource in each["Resource"]
    }


def test_each_identity_is_given_its_prefixes_and_no_more():
    reads = {
        identity: allowed(policy(identity, **THREE)["Statement"], "s3:GetObject")
        for identity in IDENTITIES
    }
    assert reads == {
        "pipeline": {"arn:aws:s3:::ws/prod/*", "arn:aws:s3:::ws/in/*"},
        "decode": {
            f"arn:aws:s3:::ws/prod/{prefix}/*"
            for prefix in ("raw", "derived", "training", "tables", "orders", "progress")
        },
        "vault": {
            "arn:aws:s3:::eval/*",
            *(f"arn:aws:s3:::ws/prod/{prefix}/*" for prefix in ("orders", "tables", "progress")),
        },
        "trainer": {"arn:aws:s3:::ws/prod/training/*"},
    }
    deletes = {
        identity: allowed(policy(identity, **THREE)["Statement"], "s3:DeleteObject")
        for identity in IDENTITIES
    }
    assert {identity for identity, found in deletes.items() if found} == {"pipeline"}


def test_trainers_read_transcodes_alone_of_what_is_derived_and_only_where_it_is_stated():
    plain = policy("trainer", **THREE)["Statement"]
    more = policy("trainer", **THREE, reads_transcodes=True)["Statement"]
    added = allowed(more, "s3:GetObject") - allowed(plain, "s3:GetObject")
    assert added == {
        f"arn:aws:s3:::ws/prod/derived/transcodes_{name}/*"
        for name in ("256p", "512p", "720p", "1080p", "48fps")
    }
    for action in ("s3:PutObject", "s3:DeleteObject"):
        assert allowed(more, action) == allowed(plain, action)
    assert len({each["Sid"] for each in more}) == len(more)
    for identity in set(IDENTITIES) - {"trainer"}:
        assert policy(identity, **THREE, reads_transcodes=True) == policy(identity, **THREE)


def test_the_vault_is_sealed_even_where_another_policy_grants_more():
    for identity in IDENTITIES:
        denied = [s for s in policy(identity, **THREE)["Statement"] if s["Effect"] == "Deny"]
        assert bool(denied) == (identity != "vault")
        assert all(s["Resource"] == ["arn:aws:s3:::eval/*"] for s in denied)


def test_a_bucket_of_two_places_gets_the_statements_of_both():
    arns = {identity: f"arn:aws:iam:::user/{identity}" for identity in IDENTITIES}
    made = bucket_policy("ws", arns, **THREE)["Statement"]
    assert len({each["Sid"] for each in made}) == len(made)
    assert all(each["Sid"].isalnum() for each in made), "as Amazon wants them"
    assert not [each for each in made if "eval" in str(each["Resource"])]
    principals = {each["Principal"]["AWS"][0] for each in made}
    assert principals == set(arns.values())
    with pytest.raises(ValueError, match="expected that of one of"):
        bucket_policy("other", arns, **THREE)


def test_what_is_wrong_is_told():
    with pytest.raises(ValueError, match="expected one of pipeline"):
        policy("root", **THREE)
    with pytest.raises(ValueError, match="no place of"):
        policy("pipeline", store="/a", vault="/b", landing="/c")
    assert set(GRANTS) == set(IDENTITIES)


def test_an_embedded_deployment_passes_its_check(tmp_path, capsys):
    assert run_command(["deployment", "check", "--home", str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [place["place"] for place in told["places"]] == [*PLACES, "catalog"]
    assert all(place["is_reachable"] for place in told["places"])


@pytest.fixture(scope="module")
def moto():
    with running_moto() as server:
        yield server


def write_home(folder, server, prefix=""):
    folder.mkdir(exist_ok=True)
    lines = [f'{place} = "{server.address(prefix + place)}"' for place in PLACES]
    (folder / "deployment.toml").write_text("\n".join(lines) + "\n")
    return load_deployment(folder)


def test_a_server_that_lets_all_read_the_vault_fails_the_check(moto, tmp_path, monkeypatch, capsys):
    become(moto, "pipeline", monkeypatch)
    deployment = write_home(tmp_path, moto, "open-")
    for place in PLACES:
        moto.make_bucket(f"open-{place}")
    assert run_command(["deployment", "check", "--home", str(tmp_path)]) == 0
    assert "vault: nothing lies there" in capsys.readouterr().out
    open_store(deployment.vault).put("raw/x", b"eval")
    assert run_command(["deployment", "check", "--home", str(tmp_path)]) == 1
    assert "vault: the vault is not sealed: pipeline can read" in capsys.readouterr().out
    assert list(open_store(deployment.store).list("")) == [], "nothing is left behind"
    assert run_command(["deployment", "check", "--home", str(tmp_path), "--identity", "x"]) == 2


def test_a_bucket_that_is_missing_or_a_server_that_is_gone_is_told(moto, monkeypatch):
    become(moto, "pipeline", monkeypatch)
    monkeypatch.setattr(s3_client, "BASE_PAUSE_S", 0.001)
    missing = try_place("store", moto.address("nothere"), "pipeline")
    assert not missing.is_reachable
    assert "make it" in missing.faults[0]
    gone = try_place("landing", "s3://b?endpoint=http://127.0.0.1:9", "pipeline")
    assert "Check the endpoint" in gone.faults[0]


def test_policies_are_printed(moto, tmp_path, capsys):
    write_home(tmp_path, moto)
    home = ["--home", str(tmp_path)]
    assert run_command(["deployment", "policy", "trainer", *home]) == 0
    told = capsys.readouterr().out
    assert json.loads(told)["Version"] == "2012-10-17"
    assert "derived/" not in told
    with (tmp_path / "deployment.toml").open("a") as file:
        file.write("trainers_read_transcodes = true\n")
    assert run_command(["deployment", "policy", "trainer", *home]) == 0
    assert "derived/transcodes_256p/*" in capsys.readouterr().out
    told = ["--principal", "trainer=arn:aws:iam:::user/t"]
    assert run_command(["deployment", "bucket-policies", *told, *home]) == 0
    assert "derived/transcodes_256p/*" in capsys.readouterr().out
    principal = ["--principal", "decode=arn:aws:iam:::user/d"]
    assert run_command(["deployment", "bucket-policies", *principal, *home]) == 0
    assert set(json.loads(capsys.readouterr().out)) == set(PLACES)
    assert run_command(["deployment", "bucket-policies", "--principal", "decode", *home]) == 2


# a server that enforces ------------------------------------------------------------------------

TRANSCODE = "derived/transcodes_256p/1"
OBJECTS = {
    "store": ("raw/1", "derived/1", "training/1", "tables/1", "orders/1", "progress/1", "reports/1",
              "inbox/served/1", "inbox/telemetry/1", TRANSCODE, "derived/frame_packs/1"),
    "vault": ("raw/1", "sidecars/1"),
    "landing": ("licensed.a.20261101.001/_READY",),
}  # fmt: skip
MAY_READ = {
    "pipeline": {"store": OBJECTS["store"], "landing": OBJECTS["landing"]},
    "decode": {"store": (*OBJECTS["store"][:6], *OBJECTS["store"][-2:])},
    "vault": {"vault": OBJECTS["vault"], "store": ("tables/1", "orders/1", "progress/1")},
    "trainer": {"store": ("training/1",)},
}
MAY_WRITE = {
    "pipeline": {"store": OBJECTS["store"], "landing": OBJECTS["landing"],
                 "vault": OBJECTS["vault"]},
    "decode": {"store": ("derived/1", "training/1", "tables/1", "progress/1", "reports/1",
                         *OBJECTS["store"][-2:])},
    "vault": {"store": ("tables/1", "progress/1", "reports/1")},
    "trainer": {"store": ("inbox/served/1", "inbox/telemetry/1")},
}  # fmt: skip
MAY_DELETE = {"pipeline": {"store": OBJECTS["store"], "landing": OBJECTS["landing"]}}


@pytest.fixture(scope="module")
def site():
    if not has_radosgw():
        pytest.skip("no Ceph gateway: run tools/cluster_setup.sh")
    with running_site_s3("radosgw") as server:
        client = server.client()
        for place, keys in OBJECTS.items():
            for key in keys:
                client.put_object(Bucket=place, Key=key, Body=b"bytes")
        yield server


def may(ask) -> bool:
    try:
        ask()
    except StoreDenied:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("identity", IDENTITIES)
def test_each_identity_can_what_it_may_and_is_refused_the_rest(site, identity, monkeypatch):
    become(site, identity, monkeypatch)
    wrong = []
    for place, keys in OBJECTS.items():
        store = open_store(site.address(place))
        for key in keys:
            own = f"{key}-{identity}"
            tried = {
                "read": (MAY_READ, may(partial(store.get, key))),
                "write": (MAY_WRITE, may(partial(store.put, own, b"x"))),
                "delete": (MAY_DELETE, may(partial(store.delete, own))),
            }
            for what, (granted, found) in tried.items():
                expected = key in granted.get(identity, {}).get(place, ())
                if found != expected:
                    wrong.append((what, place, key, f"expected {expected}"))
    assert wrong == []


@pytest.mark.slow
def test_a_trial_of_each_identity_passes_where_the_policies_are_in_force(
    site, tmp_path, monkeypatch
):
    deployment = write_home(tmp_path, site)
    for identity in IDENTITIES:
        become(site, identity, monkeypatch)
        trials = check_access(deployment, identity)
        assert [fault for trial in trials for fault in trial.faults] == []
        (vault,) = [trial for trial in trials if trial.place == "vault"]
        assert (vault.may_read, vault.may_write) == (identity == "vault", identity == "pipeline")


@pytest.mark.slow
def test_trainers_read_transcodes_where_the_deployment_says_so(site, tmp_path, monkeypatch):
    become(site, "trainer", monkeypatch)
    plain = write_home(tmp_path, site)
    stated = replace(plain, trainers_read_transcodes=True)
    store = open_store(site.address("store"))

    def faults(deployment):
        return [each for trial in check_access(deployment, "trainer") for each in trial.faults]

    assert faults(plain) == []
    assert any("trainer cannot read the store" in each for each in faults(stated))
    apply_policies(site, reads_transcodes=True)
    try:
        assert store.get(TRANSCODE) == b"bytes"
        assert faults(stated) == []
        assert any("can read transcodes" in each for each in faults(plain))
        for key in ("derived/1", "derived/frame_packs/1", "raw/1"):
            with pytest.raises(StoreDenied):
                store.get(key)
        with pytest.raises(StoreDenied):
            store.put(f"{TRANSCODE}-2", b"x")
    finally:
        apply_policies(site)
    with pytest.raises(StoreDenied):
        store.get(TRANSCODE)


@pytest.mark.slow
def test_credentials_of_another_identity_fail_the_trial(site, tmp_path, monkeypatch):
    deployment = write_home(tmp_path, site)
    become(site, "pipeline", monkeypatch)
    faults = [fault for trial in check_access(deployment, "decode") for fault in trial.faults]
    assert any("decode can write to the vault, and must not" in fault for fault in faults)
    become(site, "trainer", monkeypatch)
    faults = [fault for trial in check_access(deployment, "pipeline") for fault in trial.faults]
    assert any("pipeline cannot write to the store" in fault for fault in faults)


@pytest.mark.slow
def test_the_pipeline_seals_large_members_it_cannot_read_back(site, tmp_path, monkeypatch):
    become(site, "pipeline", monkeypatch)
    vault = S3Store(S3Bucket(parse_s3_address(site.address("vault"))), part_bytes=5 << 20)
    path = tmp_path / "member"
    path.write_bytes(bytes(12 << 20))
    assert vault.put_file("raw/large", path)
    assert not vault.put_file("raw/large", path)
    assert vault.size("raw/large") == 12 << 20
    with pytest.raises(StoreDenied, match="identity pipeline may not read raw/large"):
        vault.get("raw/large")


@pytest.mark.slow
def test_what_is_missing_is_missing_and_not_forbidden(site, monkeypatch):
    become(site, "decode", monkeypatch)
    assert open_store(site.address("store")).size("progress/none") is None
    become(site, "trainer", monkeypatch)
    assert open_store(site.address("store")).size("training/none") is None
    become(site, "decode", monkeypatch)
    with pytest.raises(StoreDenied):
        open_landing(site.address("landing")).folders()
