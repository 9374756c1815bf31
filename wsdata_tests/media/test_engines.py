"""Engines on a GPU, doubled at the border: what they cannot do, the processor does."""

import pytest

from wsdata.coders import ENCODERS
from wsdata.errors import DecodeFailed, EncoderFailed
from wsdata.media import encode
from wsdata.media.engines import (
    PROCESSOR,
    Engines,
    engine_params,
    path_with_engine,
    with_fallback,
)
from wsdata.preprocess.onepass import decode_job
from wsdata.preprocess.windows import window_params
from wsdata_tests import synthetic

GPU = Engines(decoder="nvdec", encoder="h264_nvenc")


def test_every_encoder_that_a_deployment_may_name_can_be_opened_by_name():
    assert tuple(encode.ENCODERS) == ENCODERS


def test_unknown_engines_are_refused():
    with pytest.raises(ValueError, match="nvenc2"):
        Engines(encoder="nvenc2")


def test_the_processors_engines_leave_the_digest_as_it_is():
    assert engine_params("cpu", "x264") == {}
    assert engine_params("nvdec", "x264") == {"decoder": "nvdec", "encoder": "x264"}


def test_what_a_gpu_does_is_kept_and_told(tmp_path):
    told = with_fallback(GPU, lambda engines: {"status": "ok", "by": engines.names}, tmp_path)
    assert told == {
        "status": "ok", "by": "nvdec+h264_nvenc", "engine": "nvdec+h264_nvenc", "fell_back": None,
    }  # fmt: skip
    assert path_with_engine("plain", told) == "plain nvdec+h264_nvenc"


@pytest.mark.parametrize("fault", ["raises", "salvages"])
def test_what_a_gpu_cannot_do_is_done_again_and_nothing_of_it_is_left(tmp_path, fault):
    (tmp_path / "before").touch()

    def work(engines):
        (tmp_path / f"made-{engines.decoder}").touch()
        if engines.uses_gpu and fault == "raises":
            raise EncoderFailed("no such profile")
        if engines.uses_gpu:
            return {"status": "salvaged", "reason": "torn at 3 s"}
        return {"status": "ok"}

    told = with_fallback(GPU, work, tmp_path)
    assert (told["status"], told["engine"]) == ("ok", "")
    assert ("no such profile" if fault == "raises" else "torn at 3 s") in told["fell_back"]
    assert path_with_engine("plain", told).startswith("plain, after nvdec+h264_nvenc: ")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["before", "made-cpu"]


def test_a_file_that_nothing_can_do_fails_as_it_does_on_the_processor(tmp_path):
    def work(engines):
        raise DecodeFailed(f"refused by {engines.decoder}")

    with pytest.raises(DecodeFailed, match="refused by cpu"):
        with_fallback(GPU, work, tmp_path)


def test_a_machine_without_a_gpu_makes_the_same_bytes_and_says_why(tmp_path):
    path = synthetic.make_video(tmp_path / "a.mp4", (("bars", 2.5),), size=(320, 180))
    made = {}
    for name, engines in (("cpu", PROCESSOR), ("gpu", GPU)):
        out_dir = tmp_path / name
        out_dir.mkdir()
        args = {**window_params(), "path": "plain"}
        args |= {"decoder": engines.decoder, "encoder": engines.encoder}
        with path.open("rb") as source:
            told = decode_job(args, source, out_dir)
        (clip,) = told["clips"]
        assert clip["transcodes"]["256p"]["encoder"] == "x264"
        made[name] = told, {file.name: file.read_bytes() for file in out_dir.iterdir()}
    assert made["cpu"][1] == made["gpu"][1]
    assert made["cpu"][0]["fell_back"] is None
    assert made["gpu"][0]["fell_back"].startswith("nvdec+h264_nvenc: ")
