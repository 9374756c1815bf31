"""The step that encodes a shard group: placements that read back, losses, resumption, repair."""

import io
import json

import numpy as np
import polars as pl
import pytest

from wsdata.catalog import presence
from wsdata.digest import sha256_bytes
from wsdata.errors import IntegrityError, ObjectMissing, StepFailed
from wsdata.ids import make_clip_id, make_sample_id
from wsdata.media.audio import read_audio
from wsdata.media.decode import read_transcode
from wsdata.media.encode_sound import encode_opus
from wsdata.recipe import Recipe, Shards
from wsdata.shard import latent_shards
from wsdata.shard.analytic import AnalyticTokenizer
from wsdata.shard.fidelity import fidelity_faults, is_compared
from wsdata.shard.format import shard_spans
from wsdata.shard.latent_shards import STEP
from wsdata.shard.latent_stats import check_job, check_losses
from wsdata.shard.latents import psnr_db
from wsdata.shard.quantize import dequantize, quantize
from wsdata.shard.reader import read_latents, read_sample
from wsdata.shard.scatter import scatter_order
from wsdata.store import FolderStore
from wsdata_tests.shard.shard_support import (
    execute,
    moving_gradient,
    mp4_of,
    order_of,
    put_rows,
)

GROUP = "v1.0000"
HEIGHT, WIDTH = 64, 96


def _clip(index):
    return make_clip_id(f"{index:064x}"[::-1], track=0, start_ms=0, end_ms=2000)


def _sample(store, index, frames_thwc, *, start=0, num_frames=5, crop=(0, 0), size=None, **changed):
    """Store a transcode and return the manifest row of a sample in it."""
    content = mp4_of(frames_thwc)
    key = f"derived/transcodes_256p/x/{index}.mp4"
    store.put(key, content)
    width, height = size or (frames_thwc.shape[2], frames_thwc.shape[1])
    clip_id = _clip(index)
    variant = changed.get("variant", "plain")
    return {
        "sample_id": make_sample_id(
            clip_id, rung="256p", start_frame=start, num_frames=num_frames, variant=variant
        ),
        "clip_id": clip_id,
        "asset_id": f"{index:064x}"[::-1],
        "bucket": f"256p/{width}x{height}/{num_frames}",
        "rung": "256p",
        "width_px": width,
        "height_px": height,
        "num_frames": num_frames,
        "start_frame": start,
        "variant": variant,
        "crop_x": crop[0],
        "crop_y": crop[1],
        "transcode_key": key,
        "transcode_sha256": sha256_bytes(content),
        **changed,
    }


def _order(store, samples, *, dtype="fp8", max_bytes=1 << 20, other_group=()):
    recipe = Recipe(name="test", shards=Shards(max_bytes=max_bytes))
    params = latent_shards._params(recipe)
    params["tokenizer"]["dtype"] = dtype
    assigned = [{"sample_id": row["sample_id"], "shard_group": GROUP} for row in samples]
    assigned += [{"sample_id": row["sample_id"], "shard_group": "v1.0001"} for row in other_group]
    return order_of(
        STEP,
        GROUP,
        params=params,
        inputs={
            "manifests": [put_rows(store, "manifests", "v1", [*samples, *other_group])],
            "shard_assignments": [put_rows(store, "shard_assignments", "v1", assigned)],
        },
    )


@pytest.fixture
def store(tmp_path):
    return FolderStore(tmp_path)


@pytest.fixture
def samples(store):
    """Five samples in two buckets, two of them from one clip."""
    frames = moving_gradient(13, HEIGHT, WIDTH)
    rows = [
        _sample(store, index, moving_gradient(9, HEIGHT, WIDTH, seed=index)) for index in (1, 2, 3)
    ]
    rows.append(_sample(store, 4, frames, num_frames=9))
    rows.append(_sample(store, 4, frames, start=8, num_frames=5))
    return rows


@pytest.mark.parametrize("dtype", ["fp8", "int8"])
def test_placements_read_back_as_an_independent_encoding_of_the_stored_clip(store, samples, dtype):
    _, rows = execute(STEP, _order(store, samples, dtype=dtype), store)
    by_id = {row["sample_id"]: row for row in rows["placements"].to_dicts()}
    assert sorted(by_id) == sorted(row["sample_id"] for row in samples)
    assert rows["latent_losses"].is_empty()
    tokenizer = AnalyticTokenizer()
    for sample in samples:
        placement = by_id[sample["sample_id"]]
        start = sample["start_frame"]
        frames = read_transcode(store.get(sample["transcode_key"]))
        pixels = frames[start : start + sample["num_frames"]]
        expected = dequantize(*quantize(tokenizer.encode(pixels), dtype), dtype)
        found = read_latents(store, placement)
        np.testing.assert_array_equal(found, expected)
        assert placement["psnr_db"] == psnr_db(pixels, tokenizer.decode(found))
        assert placement["psnr_db"] > 25
        latents = tokenizer.encode(pixels)
        uncast = placement["uncast_psnr_db"]
        assert (uncast is not None) == is_compared(sample["sample_id"])
        assert uncast in (None, psnr_db(pixels, tokenizer.decode(latents)))
        error = np.abs(found.astype(np.float64) - latents)
        rms = np.sqrt(np.mean(error**2) / np.mean(latents.astype(np.float64) ** 2))
        assert placement["cast_rms_share"] == pytest.approx(rms, rel=1e-6)
        assert placement["cast_max_share"] == pytest.approx(
            error.max() / np.abs(latents).max(), rel=1e-6
        )
        assert placement["is_prefix_exact"]
        assert placement["columns_digest"] == "2:-:-"
        assert (placement["channels_json"], placement["remarks_json"]) == (None, None)
        assert placement["tokenizer_version"] == tokenizer.version
        assert placement["latent_dtype"] == dtype
        assert placement["job"].startswith(f"{GROUP}@")


def test_shards_are_bucket_pure_named_by_digest_and_in_scatter_order(store, samples):
    _, rows = execute(STEP, _order(store, samples), store)
    placements = rows["placements"].to_dicts()
    for key in {row["shard_key"] for row in placements}:
        data = store.get(key)
        own = sorted((row for row in placements if row["shard_key"] == key), key=lambda r: r["row"])
        assert len({row["bucket"] for row in own}) == 1
        assert key == f"training/shards/{own[0]['shard'][:2]}/{sha256_bytes(data)}.mds"
        assert [(row["offset"], row["length"]) for row in own] == shard_spans(data)
        ids = [row["sample_id"] for row in own]
        assert ids == scatter_order(ids)


def _with_tracks(store, row, digest="2:a:b"):
    """Give a sample two seconds of a rising ramp of sound, and two channels of actions."""
    ramp = np.linspace(-0.5, 0.5, 32_000).astype(np.float32)
    tracks = {"audio": encode_opus(ramp), "actions": _actions(48)}
    for name, data in tracks.items():
        store.put(f"derived/{name}/{row['clip_id']}", data)
        row |= {f"{name}_key": f"derived/{name}/{row['clip_id']}"}
        row |= {f"{name}_sha256": sha256_bytes(data)}
    channels = [{"name": name, "unit": None, "kind": "continuous"} for name in ("x", "y")]
    return row | {"channels_json": json.dumps(channels), "fps": 24.0, "columns_digest": digest}


def _actions(num_frames):
    at = np.arange(num_frames)
    rows = {"kind": ["frame"] * num_frames, "frame_index": at, "time_s": at / 24}
    buffer = io.BytesIO()
    pl.DataFrame(rows | {"x": at * 0.5, "y": at * -1.0}).write_parquet(buffer)
    return buffer.getvalue()


def test_sound_and_actions_of_their_own_span_lie_beside_latents_where_asked_for(store, samples):
    plain, whole, early, late = (samples[index] for index in (0, 1, 3, 4))
    early, late = (_with_tracks(store, row) for row in (early, late))
    whole = _with_tracks(store, whole)
    short = encode_opus(np.full(1600, 0.25, np.float32))  # a tenth of a second
    store.put("derived/audio/short", short)
    whole |= {"audio_key": "derived/audio/short", "audio_sha256": sha256_bytes(short)}
    report, rows = execute(STEP, _order(store, [plain, whole, early, late]), store)
    found = {row["sample_id"]: row for row in rows["placements"].to_dicts()}
    decoded = np.rint(read_audio(store.get(early["audio_key"]))[0] * 32768)
    for row, span, first in ((early, 6000, 0), (late, 3333, 5333)):
        sample = read_sample(store, found[row["sample_id"]])
        np.testing.assert_array_equal(sample.audio_n, decoded[first : first + span])
        at = np.arange(row["start_frame"], row["start_frame"] + row["num_frames"])
        np.testing.assert_array_equal(sample.actions_fd, np.stack([at * 0.5, -at], 1))
        assert found[row["sample_id"]]["channels_json"] == row["channels_json"]
        assert found[row["sample_id"]]["columns_digest"] == "2:a:b"
    assert read_sample(store, found[plain["sample_id"]])[6:] == (None, None)
    told = found[whole["sample_id"]]
    assert read_sample(store, told).audio_n is None
    assert json.loads(told["remarks_json"]) == {
        "audio": "the clip's sound ends 108 ms before the sample does"
    }
    assert (report.metrics["num_with_audio"], report.metrics["num_with_actions"]) == (2, 3)
    assert report.metrics["num_audio_remarks"] == 1
    assert "ends N ms before" in report.display["latent_shards"]["columns"]["raw_value"]


def test_a_sample_that_asks_for_sound_later_is_encoded_anew(store, samples):
    order = _order(store, samples[:1])
    _, rows = execute(STEP, order, store)
    _, other = execute(STEP, _order(store, [_with_tracks(store, dict(samples[0]))]), store)
    assert rows["placements"]["shard"][0] != other["placements"]["shard"][0]
    assert read_sample(store, other["placements"].row(0, named=True)).audio_n is not None


def test_a_job_of_stale_weights_fails_or_is_named_beside_the_others(store, monkeypatch):
    clip = _sample(store, 1, moving_gradient(16, 32, 48), num_frames=1)
    pictures = [clip | {"sample_id": f"s{i:02}", "start_frame": i} for i in range(16)]
    _, good = execute(STEP, _order(store, pictures), store)
    whole = AnalyticTokenizer.encode

    def rerun(change):
        for key, _ in list(store.list("progress/")) + list(store.list("derived/latents/")):
            store.delete(key)
        monkeypatch.setattr(AnalyticTokenizer, "encode", lambda self, f: change(whole(self, f)))
        return execute(STEP, _order(store, pictures), store)[1]

    with pytest.raises(StepFailed, match="do not look like those of"):
        rerun(lambda latents: latents + np.float32(9))
    stale = rerun(lambda latents: latents * np.float32(0.8))["placements"]
    stale = stale.with_columns(pl.lit("v1.0001@x").alias("job"))
    rows = pl.concat([good["placements"], stale])
    assert any(
        fault.startswith("shard group v1.0001: median PSNR") for fault in fidelity_faults(rows)
    )


def test_other_groups_of_the_version_are_left_alone(store, samples):
    _, rows = execute(STEP, _order(store, samples[:2], other_group=samples[2:]), store)
    assert set(rows["placements"]["sample_id"]) == {row["sample_id"] for row in samples[:2]}


def test_a_small_limit_makes_several_shards_of_one_bucket(store, samples):
    _, rows = execute(STEP, _order(store, samples, max_bytes=9000), store)
    small = rows["placements"].filter(rows["placements"]["bucket"] == f"256p/{WIDTH}x{HEIGHT}/5")
    assert small["shard"].n_unique() == 2
    assert all(store.size(key) <= 9000 for key in small["shard_key"])


def test_crop_and_flip_are_cut_before_encoding(store):
    frames = moving_gradient(5, HEIGHT, WIDTH)
    cropped = _sample(store, 1, frames, crop=(16, 8), size=(64, 48))
    flipped = {
        **cropped,
        "variant": "flip",
        "sample_id": cropped["sample_id"].replace("plain", "flip"),
    }
    _, rows = execute(STEP, _order(store, [cropped, flipped]), store)
    pixels = read_transcode(store.get(cropped["transcode_key"]))[:, 8:56, 16:80]
    for row in rows["placements"].to_dicts():
        wanted = pixels[:, :, ::-1] if ".flip" in row["sample_id"] else pixels
        expected = AnalyticTokenizer().encode(np.ascontiguousarray(wanted))
        np.testing.assert_array_equal(
            read_latents(store, row), dequantize(*quantize(expected, "fp8"), "fp8")
        )


def test_a_still_is_a_sample_of_one_frame(store):
    from PIL import Image

    pixels = moving_gradient(1, HEIGHT, WIDTH, seed=5)
    buffer = io.BytesIO()
    Image.fromarray(pixels[0]).save(buffer, format="PNG")
    row = _sample(store, 1, moving_gradient(5, HEIGHT, WIDTH), num_frames=1)
    store.put("derived/stills/1.png", buffer.getvalue())
    row |= {
        "transcode_key": "derived/stills/1.png",
        "transcode_sha256": sha256_bytes(buffer.getvalue()),
    }
    _, rows = execute(STEP, _order(store, [row]), store)
    (placement,) = rows["placements"].to_dicts()
    assert placement["latent_shape_json"] == f"[1,16,{HEIGHT // 8},{WIDTH // 8}]"
    expected = dequantize(*quantize(AnalyticTokenizer().encode(pixels), "fp8"), "fp8")
    np.testing.assert_array_equal(read_latents(store, placement), expected)


def test_a_rerun_after_a_lost_shard_puts_back_the_same_bytes_and_encodes_nothing(
    store, samples, monkeypatch
):
    order = _order(store, samples)
    report, rows = execute(STEP, order, store)
    key = rows["placements"]["shard_key"][0]
    data = store.get(key)
    store.delete(key)
    monkeypatch.setattr(latent_shards, "_encode_one", None)
    again, _ = execute(STEP, order, store)
    assert store.get(key) == data
    assert again.objects == report.objects


def test_a_killed_job_resumes_where_it_was_and_ends_the_same(tmp_path, samples, monkeypatch):
    store = FolderStore(tmp_path)
    order = _order(store, samples)
    whole = latent_shards._encode_one
    calls = []

    def counted(*args):
        calls.append(args[4]["sample_id"])
        if len(calls) == 3:
            raise KeyboardInterrupt
        return whole(*args)

    monkeypatch.setattr(latent_shards, "_encode_one", counted)
    with pytest.raises(KeyboardInterrupt):
        execute(STEP, order, store)
    report, _ = execute(STEP, order, store)
    assert len(calls) == len(samples) + 1
    monkeypatch.setattr(latent_shards, "_encode_one", whole)
    for key, _ in list(store.list("progress/")) + list(store.list("training/")):
        store.delete(key)
    undisturbed, _ = execute(STEP, order, store)
    assert undisturbed.objects == report.objects


def test_latents_that_are_not_finite_or_flat_are_lost_with_the_reason(store, samples, monkeypatch):
    black = _sample(store, 9, np.zeros((5, HEIGHT, WIDTH, 3), np.uint8))
    poisoned = samples[0]
    encode = AnalyticTokenizer.encode
    pixels = read_transcode(store.get(poisoned["transcode_key"]))[:5]

    def encode_badly(self, frames_thwc):
        latents = encode(self, frames_thwc)
        if np.array_equal(frames_thwc, pixels):
            latents[0, 3, 1, 1] = np.inf
        return latents

    monkeypatch.setattr(AnalyticTokenizer, "encode", encode_badly)
    report, rows = execute(STEP, _order(store, [*samples, black]), store)
    losses = {
        row["sample_id"]: (row["reason"], row["detail"]) for row in rows["latent_losses"].to_dicts()
    }
    assert losses[poisoned["sample_id"]] == ("not_finite", "1 values in channels [3]")
    assert losses[black["sample_id"]][0] == "flat"
    assert set(rows["placements"]["sample_id"]) == {row["sample_id"] for row in samples[1:]}
    assert report.metrics["num_lost"] == 2
    assert "not_finite" in report.display["latent_shards"]["losses"]["raw_value"]
    monkeypatch.setattr(AnalyticTokenizer, "encode", encode)
    _, again = execute(STEP, _order(store, [*samples, black]), store)
    assert again["latent_losses"]["reason"].to_list() == ["flat"]


def test_a_transcode_shorter_than_the_sample_is_a_loss(store):
    row = _sample(store, 1, moving_gradient(5, HEIGHT, WIDTH), start=4, num_frames=5)
    _, rows = execute(STEP, _order(store, [row]), store)
    assert rows["placements"].is_empty()
    (loss,) = rows["latent_losses"].to_dicts()
    assert loss["reason"] == "short_transcode"
    assert loss["detail"] == "frame 9 is wanted, the transcode ends at 5"


def test_a_missing_transcode_is_an_error_that_names_clip_and_key(store, samples):
    store.delete(samples[0]["transcode_key"])
    with pytest.raises(ObjectMissing) as caught:
        execute(STEP, _order(store, samples), store)
    assert samples[0]["clip_id"] in str(caught.value)
    assert samples[0]["transcode_key"] in str(caught.value)


def test_a_changed_transcode_is_an_error(store, samples):
    changed = {**samples[0], "transcode_sha256": "0" * 64}
    with pytest.raises(IntegrityError, match=changed["clip_id"]):
        execute(STEP, _order(store, [changed]), store)


def test_a_crop_outside_the_frames_fails_the_step_and_names_the_sample(store, samples):
    row = {**samples[0], "crop_x": 8}
    with pytest.raises(StepFailed, match=r"does not lie inside frames of 96x64"):
        execute(STEP, _order(store, [row]), store)


def test_a_worker_with_other_weights_than_ordered_is_refused(store, samples):
    order = _order(store, samples)
    order.params["tokenizer"]["version"] = "analytic-lofi-0"
    with pytest.raises(StepFailed, match="other weights"):
        execute(STEP, order, store)


def test_an_empty_group_gives_no_rows(store):
    _, rows = execute(STEP, _order(store, []), store)
    assert rows["placements"].is_empty()


def test_a_job_unlike_its_tokenizer_is_refused_with_numbers():
    count = 1000
    good = {"count": count, "sum": [0.0] * 16, "square_sum": [float(count)] * 16}
    bad = {**good, "square_sum": [*[float(count)] * 15, 1e7 * count]}
    units = [{"psnr_db": 30.0, "channels": good}] * 20
    check_job(GROUP, AnalyticTokenizer(), units)
    with pytest.raises(StepFailed, match=r"channel 15: .*deviation x"):
        check_job(GROUP, AnalyticTokenizer(), [{"psnr_db": 30.0, "channels": bad}] * 20)
    with pytest.raises(StepFailed, match="worse than plain grey"):
        check_job(GROUP, AnalyticTokenizer(), [{"psnr_db": 2.0, "channels": good}])


def test_a_job_that_loses_too_much_to_faults_fails_and_flat_clips_do_not_count():
    lost = [{"sample_id": f"s{i}", "reason": "not_finite", "detail": "d"} for i in range(5)]
    check_losses(GROUP, 25, lost)
    check_losses(GROUP, 5, lost)
    check_losses(GROUP, 20, [{**loss, "reason": "flat"} for loss in lost])
    with pytest.raises(StepFailed, match=r"5 of 20 samples are lost \(not_finite: 5\), such as s0"):
        check_losses(GROUP, 20, lost)


def test_the_step_is_done_until_a_shard_is_gone(tmp_path, store, samples):
    from wsdata.catalog.ledger import Ledger

    ledger = Ledger(str(tmp_path / "catalog.db"))
    order = _order(store, samples)
    report, rows = execute(STEP, order, store)
    ledger.commit(order, report)
    assert presence.finished(order, ledger, store) is not None
    store.delete(rows["placements"]["shard_key"][0])
    assert presence.finished(order, ledger, store) is None


def test_one_flipped_byte_in_a_shard_is_found_on_reading(store, samples):
    _, rows = execute(STEP, _order(store, samples), store)
    placement = rows["placements"].to_dicts()[0]
    path = store.path_of(placement["shard_key"])
    data = bytearray(path.read_bytes())
    data[placement["offset"] + placement["length"] // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError) as caught:
        read_sample(store, placement)
    for named in (placement["clip_id"], placement["shard"], f"offset {placement['offset']}"):
        assert named in str(caught.value)
