"""The vault on a real S3 server: sealed by the store's policy, and by nothing else.

What is asserted is one function, `unsealed`; the last tests take the policy away and show that it
then finds fault.
"""

import hashlib
import io
import json
import tarfile

import pytest

from wsdata.access import SEALED_FROM
from wsdata.access_check import check_access
from wsdata.deployment import load_deployment
from wsdata.errors import StoreDenied
from wsdata.ids import raw_key
from wsdata.ingest import land, vault_prints
from wsdata.ingest.landing import MARKER, open_landing
from wsdata.media.sandbox import reachable_level
from wsdata.store import open_store
from wsdata.vault import actions_key, sidecar_key
from wsdata_tests.cluster.s3_servers import (
    PLACES,
    apply_policies,
    has_radosgw,
    running_moto,
    running_site_s3,
)
from wsdata_tests.ingest import media_support as made
from wsdata_tests.orders_support import order_of, rows_made, run_step

pytestmark = pytest.mark.slow

DROP = "licensed.acme.20261101.001"
LEVEL = min(reachable_level(), "seccomp", key=("limits", "seccomp", "bubblewrap").index)
FILM = made.video(made.scene(5, 24))
IN_TAR = made.png(made.scene(6, 1)[0])
TRACK = b"time_s,x\n0,1\n"


def sha(data):
    return hashlib.sha256(data).hexdigest()


MEMBERS = (sha(FILM), sha(IN_TAR))
SEALED_KEYS = (
    *map(raw_key, MEMBERS), *map(sidecar_key, MEMBERS), actions_key(sha(FILM), sha(TRACK), ".csv"),
)  # fmt: skip


@pytest.fixture
def become(monkeypatch):
    def become(server, identity):
        for name, value in server.environment(identity).items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("WSDATA_IDENTITY", identity)

    return become


def home_of(server, folder):
    folder.mkdir(exist_ok=True)
    lines = [f'{place} = "{server.address(place)}"' for place in PLACES]
    lines.append(f'sandbox_minimum = "{LEVEL}"')
    (folder / "deployment.toml").write_text("\n".join(lines) + "\n")
    (folder / "eval_list.txt").write_text("".join(f"{member} films\n" for member in MEMBERS))
    return load_deployment(folder)


def tar_with(name, data):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def deliver(server):
    record = {"path": "film.mp4", "title": "sealed", "actions": "film.csv"}
    files = {
        "drop.toml": b'source_tier="licensed"\nsource="acme"\nlicense_id="x"\n',
        "film.mp4": FILM,
        "film.csv": TRACK,
        "shard.tar": tar_with("1.png", IN_TAR),
        "open.png": made.png(made.scene(8, 1)[0]),
        "records.jsonl": json.dumps(record).encode() + b"\n",
        MARKER: b"",
    }
    for name, data in files.items():
        server.client().put_object(Bucket="landing", Key=f"{DROP}/{name}", Body=data)


def landed(deployment):
    """Land the drop with the credentials at hand."""
    settings = {
        "landing": deployment.landing,
        "vault": deployment.vault,
        "carve_salt": "s",
        "carve_share": 0.0,
        "eval_list": deployment.read_eval_list(),
        "sandbox_minimum": LEVEL,
    }
    store = deployment.open_store()
    return store, run_step(land.STEP, order_of(land.STEP, DROP, {}, settings=settings), store)


def unsealed(server, deployment, become):
    """All by which the vault is not what it should be, tried with each identity's credentials."""
    found = []
    for identity in SEALED_FROM:
        become(server, identity)
        vault = open_store(deployment.vault)
        for key in SEALED_KEYS:
            try:
                vault.get(key)
            except StoreDenied:
                continue
            found.append(f"{identity} reads {key}")
        for trial in check_access(deployment, identity):
            found += [f"{identity}: {f}" for f in trial.faults if trial.place == "vault"]
    return found


@pytest.fixture(scope="module")
def site():
    if not has_radosgw():
        pytest.skip("no Ceph gateway: run tools/cluster_setup.sh")
    with running_site_s3("radosgw") as server:
        deliver(server)
        yield server


def test_the_pipeline_seals_what_it_can_never_read_again(site, become, tmp_path):
    deployment = home_of(site, tmp_path / "home")
    become(site, "pipeline")
    store, report = landed(deployment)
    rows = rows_made(store, report, "raw_assets")
    assert set(rows.filter(rows["in_vault"])["asset_id"]) == set(MEMBERS)
    assert unsealed(site, deployment, become) == []
    become(site, "pipeline")
    zone = open_landing(deployment.landing)
    assert [file.path for file in zone.files(DROP)] == [
        MARKER, "drop.toml", "open.png", "records.jsonl",
    ]  # fmt: skip
    assert zone.read(DROP, "records.jsonl") == b""
    assert [key for key, _ in store.list("raw/") if sha(store.get(key)) in MEMBERS] == []
    become(site, "vault")
    assert sha(open_store(deployment.vault).get(raw_key(MEMBERS[0]))) == MEMBERS[0]
    order = order_of(
        vault_prints.STEP,
        DROP,
        {"raw_assets": [report.objects["raw_assets"]]},
        settings={"vault": deployment.vault, "sandbox_minimum": LEVEL},
    )
    prints = rows_made(store, run_step(vault_prints.STEP, order, deployment.open_store()),
                       "vault_prints")  # fmt: skip
    assert set(prints["asset_id"]) == set(MEMBERS)
    assert set(prints["level"]) == {"frame", "clip", "asset"}


def test_without_the_policy_the_vault_is_no_vault(site, become, tmp_path):
    deployment = home_of(site, tmp_path / "home")
    site.client().delete_bucket_policy(Bucket="vault")
    try:
        found = unsealed(site, deployment, become)
        assert any("pipeline cannot write to the vault" in fault for fault in found)
    finally:
        apply_policies(site)
    assert unsealed(site, deployment, become) == []


def test_a_policy_that_grants_all_is_found_out(site, become, tmp_path):
    deployment = home_of(site, tmp_path / "home")
    every = {
        "Effect": "Allow",
        "Principal": {"AWS": [f"arn:aws:iam:::user/{identity}" for identity in SEALED_FROM]},
        "Action": ["s3:*"],
        "Resource": ["arn:aws:s3:::vault", "arn:aws:s3:::vault/*"],
    }
    site.set_policy("vault", {"Version": "2012-10-17", "Statement": [every]})
    try:
        found = unsealed(site, deployment, become)
        for identity in SEALED_FROM:
            assert f"{identity} reads {SEALED_KEYS[0]}" in found
            assert any(f"{identity}: the vault is not sealed" in fault for fault in found)
    finally:
        apply_policies(site)
    assert unsealed(site, deployment, become) == []


def test_a_server_that_enforces_no_policy_is_found_out(become, tmp_path):
    with running_moto() as server:
        for place in PLACES:
            server.make_bucket(place)
        deliver(server)
        deployment = home_of(server, tmp_path / "home")
        become(server, "pipeline")
        landed(deployment)
        found = unsealed(server, deployment, become)
        assert {
            f"{identity} reads {key}" for identity in SEALED_FROM for key in SEALED_KEYS
        } <= set(found)
