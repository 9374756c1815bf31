"""The proof on a version encoded from real H.264 clips: ranks as processes, kills, latents."""

import json

import pytest

from wsdata.digest import sha256_bytes
from wsdata.errors import StepFailed
from wsdata.ids import make_clip_id, make_sample_id
from wsdata.loader import proof, proof_ranks
from wsdata.recipe import recipe_from
from wsdata.shard import captions, index, latent_shards, plan_step
from wsdata.store import FolderStore
from wsdata_tests.orders_support import order_of, put_rows, rows_made, run_step
from wsdata_tests.shard.shard_support import moving_gradient, mp4_of

VERSION, GROUP = "v1", "v1.0000"
RECIPE = recipe_from(
    {
        "name": "proof",
        "samples": {"frame_counts": [1, 5], "global_batch": 4},
        "streams": {"video": {}},
        "phases": [
            {
                "name": "only",
                "steps": 40,
                "rungs": ["256p"],
                "tiers": ["T0"],
                "weights": {"video": 1.0},
            }
        ],
    }
)
# bucket size, frames, start frame, crop, variant
CUTS = [
    ("96x64", 5, 0, (0, 0), "plain"),
    ("96x64", 5, 5, (0, 0), "flip"),
    ("64x64", 1, 3, (16, 0), "plain"),
    ("64x64", 1, 4, (32, 0), "plain"),
]


def manifest_rows(store):
    rows = []
    for number in range(3):
        asset_id = sha256_bytes(f"asset {number}".encode())
        clip_id = make_clip_id(asset_id, track=0, start_ms=0, end_ms=500)
        content = mp4_of(moving_gradient(12, 64, 96, seed=number))
        key = f"derived/transcodes_256p/x/{clip_id}.mp4"
        store.put(key, content)
        rows += [
            {
                "sample_id": make_sample_id(
                    clip_id, rung="256p", start_frame=start, num_frames=frames, variant=variant
                ),
                "clip_id": clip_id,
                "asset_id": asset_id,
                "source": f"source-{number}",
                "stream": "video",
                "tier": "T0",
                "bucket": f"256p/{size}/{frames}",
                "rung": "256p",
                "width_px": int(size.split("x")[0]),
                "height_px": int(size.split("x")[1]),
                "num_frames": frames,
                "start_frame": start,
                "variant": variant,
                "crop_x": crop[0],
                "crop_y": crop[1],
                "transcode_key": key,
                "transcode_sha256": sha256_bytes(content),
                "num_tokens": 24,
                "weight": 1.0,
            }
            for size, frames, start, crop, variant in CUTS
        ]
    return rows


def run_chain(store):
    """Encode, pack, index and plan the samples; return the proof's order."""
    rows = manifest_rows(store)
    manifest = [put_rows(store, "manifests", rows, VERSION)]
    groups = [{"sample_id": row["sample_id"], "shard_group": GROUP} for row in rows]
    made = {
        "manifests": manifest,
        "shard_assignments": [put_rows(store, "shard_assignments", groups, VERSION)],
    }
    texts = [
        {"clip_id": row["clip_id"], "variant": "short", "captioner_version": "t", "text": "a b",
         "status": "ok"} for row in rows[:: len(CUTS)]
    ]  # fmt: skip
    context = {"captions": [put_rows(store, "captions", texts)]}
    steps = (
        (latent_shards.STEP, GROUP),
        (captions.STEP, GROUP),
        (index.STEP, VERSION),
        (plan_step.STEP, VERSION),
    )
    for step, partition in steps:
        inputs = {i.table: made[i.table] for i in step.inputs if i.table in made}
        params = step.params_of(RECIPE)
        order = order_of(step, partition, inputs, params=params, context=context)
        report = run_step(step, order, store)
        made |= {table: [ref] for table, ref in report.objects.items()}
    inputs = {wanted.table: made[wanted.table] for wanted in proof.STEP.inputs}
    return order_of(proof.STEP, VERSION, inputs, params=proof.STEP.params_of(RECIPE))


@pytest.fixture(scope="module")
def proven(tmp_path_factory):
    store = FolderStore(tmp_path_factory.mktemp("proof"))
    order = run_chain(store)
    return store, order, run_step(proof.STEP, order, store)


def test_every_check_passes_and_says_what_it_saw(proven):
    store, _, report = proven
    rows = {row["check"]: row for row in rows_made(store, report, "loader_proofs").to_dicts()}
    assert {name: row["passed"] for name, row in rows.items()} == dict.fromkeys(
        (
            "latents_equal_an_independent_encoding",
            "order_is_mixed",
            "order_is_the_plans",
            "psnr_is_as_recorded",
            "resumes_exactly_at_another_micro_batch",
            "resumes_exactly_at_another_world_size",
            "resumes_exactly_at_same_world_size",
            "same_latents_at_every_world_size",
            "sequence_parallel_ranges_join",
            "stored_latents_equal_float32",
            "torch_dataset_gives_the_same",
        ),
        True,
    )
    detail = {name: json.loads(row["detail_json"]) for name, row in rows.items()}
    assert detail["order_is_the_plans"]["world_sizes"] == [1, 2, 4]
    resumed = detail["resumes_exactly_at_another_world_size"]
    assert (resumed["killed_world_size"], resumed["resumed_world_size"]) == (4, 1)
    assert (resumed["first_step"], resumed["num_steps"]) == (18, 32)
    micro = detail["resumes_exactly_at_another_micro_batch"]
    assert (micro["resumed_world_size"], micro["resumed_micro_batch"]) == (1, 3)
    assert micro["cursors_are_alike"]
    encoded = detail["latents_equal_an_independent_encoding"]["samples"]
    assert {sample["max_difference"] for sample in encoded} == {0.0}
    assert {sample["sample_id"].split(".")[-1] for sample in encoded} == {"plain", "flip"}


def test_latents_of_another_clip_are_found_out(proven, tmp_path):
    """The manifest says another crop than was encoded: equality fails, and so does the PSNR."""
    store, order, _ = proven
    rows = manifest_rows(store)
    for row in rows:
        row["crop_x"] = 8 if row["bucket"] == "256p/64x64/1" else row["crop_x"]
    wrong = order_of(
        proof.STEP,
        VERSION,
        {**order.inputs, "manifests": [put_rows(store, "manifests", rows, VERSION)]},
        params=order.params,
    )
    run = proof.StepRun(wrong, store)
    opened = proof.open_version(store, VERSION)
    checks = {name: passed for name, passed, _ in proof._check_latents(run, opened, tmp_path)}
    assert checks == {
        "latents_equal_an_independent_encoding": False,
        "psnr_is_as_recorded": False,
    }


def test_a_rank_that_fails_is_quoted(proven, tmp_path):
    store, _, _ = proven
    ranks = proof_ranks.Ranks(store.address, "v9", tmp_path)
    ask = proof_ranks.Ask(world_size=1, end_step=5)
    told = r"rank 0 of 1 ended with exit code 1:(.|\n)*v9 is not pub"
    with pytest.raises(StepFailed, match=told):
        ranks.read([ask])
    with pytest.raises(StepFailed, match=told):
        ranks.kill_at(ask, 3)
