"""The asset graph: it loads, its keys are frozen, and every asset says what a person needs."""

from pathlib import Path

import dagster as dg
import pytest

import assets
import resources
import sensors
from assets import partitions
from assets.building import dependencies, makers, partition_mapping, stated_key, step_assets
from wsdata.steps import STAGES, STEPS
from wsdata.tables import STATED
from wsdata_tests.graph.graph_support import ROOT

KEYS = Path(__file__).parent / "asset_keys.txt"
# Assets whose promises block what follows in their partition (DESIGN 6).
BLOCKING = {
    "ingest/fingerprints": {"all_probed"},
    "preprocess/decode_status": {"no_asset_lost"},
    "preprocess/gates": {"all_decided"},
    "label/captions": {"all_covered"},
    "label/clip_embeddings": {"all_covered", "unit_length"},
    "curate/eval_matches": {"all_compared"},
    "curate/cluster_assignments": {"all_assigned"},
    "curate/manifest": {"all_accounted"},
    "shard/latent_shards": {"all_placed"},
    "shard/caption_packs": {"row_aligned"},
    "shard/dataset_index": {"all_listed"},
    "shard/step_plan": {"plan_proved"},
    "loader/loader_proof": {"all_passed"},
    "lifecycle/snapshots": {"pinned"},
    "observability/contamination": {"all_compared"},
}
OTHERS = {
    ("ingest/deliveries", "none_refused"),
    ("ingest/deliveries", "contract_kept"),
    ("ingest/deliveries", "none_waiting"),
    ("ingest/deliveries", "none_exposed"),
    ("ingest/raw_assets", "not_empty"),
    ("preprocess/decode_status", "few_quarantined"),
    ("label/label_qc", "captions_sound"),
    ("observability/kill_rates", "few_stopped"),
}


@pytest.fixture(scope="module")
def defs(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("WSDATA_HOME", str(tmp_path_factory.mktemp("home")))
    import definitions

    yield definitions.defs
    patch.undo()


@pytest.fixture(scope="module")
def graph(defs):
    return defs.resolve_asset_graph()


def test_definitions_load(defs):
    dg.Definitions.validate_loadable(defs)


def test_asset_keys_are_frozen(graph):
    found = sorted(key.to_user_string() for key in graph.get_all_asset_keys())
    assert found == KEYS.read_text().split(), "say so in the changelog, then edit asset_keys.txt"


def test_every_asset_says_what_it_is(graph):
    for key in graph.get_all_asset_keys():
        node, name = graph.get(key), key.to_user_string()
        assert key.path[0] in STAGES, name
        assert node.group_name == key.path[0], name
        assert len(node.description or "") > 20, name
        assert node.owners == ["team:data"], name
        assert [tag for tag in node.tags if tag.startswith("dagster/kind/")], name
        assert node.code_version, name
        assert node.freshness_policy is not None, name


def test_every_step_has_a_pool_and_no_retry_policy(defs, graph):
    for step in STEPS.values():
        for name in step.assets:
            made = graph.assets_def_for_key(dg.AssetKey([step.stage, name]))
            assert made.op.pool == (step.pool or "cpu")
            assert made.op.retry_policy is None
            assert not made.can_subset


def test_every_step_of_the_registry_is_in_the_graph(graph):
    named = {dg.AssetKey([s.stage, name]) for s in STEPS.values() for name in s.assets}
    outside = {dg.AssetKey(["ingest", "deliveries"]), *map(stated_key, STATED)}
    assert graph.get_all_asset_keys() - named == outside
    for step in STEPS.values():
        for name in step.assets:
            node = graph.get(dg.AssetKey([step.stage, name]))
            assert node.partitions_def == partitions.BY_KIND[step.partition]


def test_promises_are_checked_where_they_are_made(graph):
    found = {(k.asset_key.to_user_string(), k.name) for k in graph.asset_check_keys}
    for asset, names in BLOCKING.items():
        for name in names:
            assert (asset, name) in found
            node = graph.get(dg.AssetCheckKey(dg.AssetKey(asset.split("/")), name))
            assert node.blocking, (asset, name)
            assert node.partitions_def == graph.get(dg.AssetKey(asset.split("/"))).partitions_def
    assert found >= OTHERS


def test_no_asset_is_without_a_check(graph):
    checked = {key.asset_key for key in graph.asset_check_keys}
    assert set(graph.get_all_asset_keys()) == checked


def test_the_decode_pass_is_one_step(graph):
    keys = graph.assets_def_for_key(dg.AssetKey(["preprocess", "clips"])).keys
    assert {key.path[1] for key in keys} >= {
        "clips", "transcodes_256p", "transcodes_512p", "transcodes_720p", "transcodes_1080p",
        "transcodes_48fps", "audio_tracks", "frame_packs", "decode_status",
    }  # fmt: skip


def test_edges_follow_what_is_read_and_never_run_back(graph):
    made_by = makers(STEPS)
    order = {step.name: at for at, step in enumerate(STEPS.values())}
    for step in STEPS.values():
        read = {made_by[wanted.table][1] for wanted in step.inputs if wanted.table in made_by}
        stated = {stated_key(wanted.table) for wanted in step.inputs if wanted.table in STATED}
        edges = dependencies(step, STEPS)
        assert {edge.asset_key for edge in edges} >= stated
        for edge in edges:
            assert edge.asset_key in read | stated
            if edge.asset_key in stated:
                continue
            maker = next(m for m, key in made_by.values() if key == edge.asset_key)
            assert order[maker.name] < order[step.name]


def test_another_kind_of_partition_is_not_made_stale():
    assert partition_mapping("drop", "drop") is None
    assert isinstance(
        partition_mapping("drop", "dataset_version"), dg.SpecificPartitionsPartitionMapping
    )
    assert isinstance(partition_mapping("drop", "none"), dg.AllPartitionMapping)
    assert partition_mapping("none", "drop") is None


def test_what_is_shown_and_what_is_made_must_agree():
    step = STEPS["ingest/land"]
    with pytest.raises(ValueError, match="raw_assets"):
        step_assets(step, {}, steps=STEPS)


def test_orchestration_comes_from_this_checkout():
    for package in (assets, resources, sensors):
        assert Path(package.__file__).resolve().parents[1] == ROOT


def test_jobs_cover_every_step_once():
    from sensors.jobs import JOB_SPECS

    named = [f"{s.stage}/{s.name}" for spec in JOB_SPECS for s in spec.steps(STEPS)]
    assert sorted(named) == sorted(STEPS)
