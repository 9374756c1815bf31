"""Pictures of every kind look as a person would see them, on all the ways through."""

import io
import json

import cv2
import numpy as np
import PIL.Image
import pytest
from PIL import ImageCms

from wsdata.errors import DecodeFailed
from wsdata.media.decode import read_transcode
from wsdata.media.keyframes import keyframes_job
from wsdata.media.probe import probe_source
from wsdata.media.sandbox import reachable_level, run_job
from wsdata.media.stills import read_still
from wsdata.preprocess.onepass import decode_job

LEVEL = min(reachable_level(), "seccomp", key=("limits", "seccomp", "bubblewrap").index)
WIDTH, HEIGHT = 320, 256
_CELLS = np.random.default_rng(7).integers(20, 235, (5, 6, 3), dtype=np.uint8)
SCENE = cv2.resize(_CELLS, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
GREY = cv2.cvtColor(SCENE, cv2.COLOR_RGB2GRAY)
RAMP = np.tile(np.linspace(0, 255, WIDTH).astype(np.uint8), (HEIGHT, 1))
ON_WHITE = (SCENE * (RAMP[..., None] / 255) + 255 * (1 - RAMP[..., None] / 255)).round()
ORIENTATION = 0x0112


def coded(form, image=None, **options):
    buffer = io.BytesIO()
    (image or PIL.Image.fromarray(SCENE)).save(buffer, form, **options)
    return buffer.getvalue()


def turned(orientation):
    exif = PIL.Image.Exif()
    exif[ORIENTATION] = orientation
    return exif


def clear():
    image = PIL.Image.fromarray(SCENE)
    image.putalpha(PIL.Image.fromarray(RAMP))
    return image


def animation(form, **options):
    frames = [PIL.Image.fromarray(np.roll(SCENE, 40 * n, 1)) for n in range(4)]
    return coded(form, frames[0], save_all=True, append_images=frames[1:], duration=80, **options)


def see_through_palette():
    image = PIL.Image.fromarray(np.where(RAMP > 127, 1, 0).astype(np.uint8), "P")
    image.putpalette([0, 200, 0, 10, 20, 30])
    return coded("PNG", image, transparency=0)


def of_another_gamut():
    """Its numbers are of a profile whose red and green are swapped: seen, they swap back."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
    raw = bytearray(profile.tobytes())
    names = {bytes(raw[at : at + 4]): at for at in range(132, 132 + 12 * 20, 12)}
    red, green = names[b"rXYZ"], names[b"gXYZ"]
    raw[red : red + 4], raw[green : green + 4] = raw[green : green + 4], raw[red : red + 4]
    text = bytes(raw).replace("sRGB".encode("utf-16-be"), "swap".encode("utf-16-be"))
    swapped = PIL.Image.fromarray(np.ascontiguousarray(SCENE[..., [1, 0, 2]]))
    return coded("PNG", swapped, icc_profile=text.replace(b"sRGB ", b"swap "))


TALL = np.rot90(SCENE, -1)
WIDE16 = SCENE[..., ::-1].astype(np.uint16) * 257
# name -> the file, what is seen, tolerance, codec and number of frames that the probe tells
KINDS = {
    "jpeg": (coded("JPEG", quality=95), SCENE, 4, "mjpeg", 1),
    "progressive": (coded("JPEG", quality=95, progressive=True), SCENE, 4, "mjpeg", 1),
    "png": (coded("PNG"), SCENE, 0, "png", 1),
    "webp": (coded("WEBP", quality=95), SCENE, 4, "webp", 1),
    "avif": (coded("AVIF", quality=95), SCENE, 4, "av1", 1),
    "grey jpeg": (coded("JPEG", PIL.Image.fromarray(GREY), quality=95), GREY, 3, "mjpeg", 1),
    "grey png": (coded("PNG", PIL.Image.fromarray(GREY)), GREY, 0, "png", 1),
    "16-bit grey": (cv2.imencode(".png", GREY.astype(np.uint16) * 257)[1].tobytes(),
                    GREY, 0, "png", 1),
    "16-bit rgb": (cv2.imencode(".png", WIDE16)[1].tobytes(), SCENE, 0, "png", 1),
    "cmyk": (coded("JPEG", PIL.Image.fromarray(SCENE).convert("CMYK"), quality=95),
             SCENE, 4, "mjpeg", 1),
    "palette": (coded("PNG", PIL.Image.fromarray(SCENE).quantize(256)), SCENE, 12, "png", 1),
    "see-through palette": (see_through_palette(),
                            np.where(RAMP[..., None] > 127, [10, 20, 30], 255), 0, "png", 1),
    "alpha png": (coded("PNG", clear()), ON_WHITE, 1, "png", 1),
    "alpha webp": (coded("WEBP", clear(), lossless=True, exact=True), ON_WHITE, 1, "webp", 1),
    "alpha avif": (coded("AVIF", clear(), quality=95), ON_WHITE, 4, "av1", 1),
    "turned jpeg": (coded("JPEG", quality=95, exif=turned(6)), TALL, 4, "mjpeg", 1),
    "turned png": (coded("PNG", exif=turned(6)), TALL, 0, "png", 1),
    "turned avif": (coded("AVIF", quality=95, exif=turned(6)), TALL, 4, "av1", 1),
    "mirrored": (coded("PNG", exif=turned(2)), SCENE[:, ::-1], 0, "png", 1),
    "another gamut": (of_another_gamut(), SCENE, 6, "png", 1),
    "gif": (coded("GIF", PIL.Image.fromarray(SCENE).quantize(256)), SCENE, 12, "gif", 1),
    "animated gif": (animation("GIF"), SCENE, 12, "gif", 4),
    "animated webp": (animation("WEBP", lossless=True), SCENE, 1, "webp", 4),
    "animated png": (animation("PNG"), SCENE, 0, "apng", 4),
    "animated avif": (animation("AVIF", quality=95), SCENE, 4, "av1", 4),
    "bmp": (coded("BMP"), SCENE, 0, "bmp", 1),
    "tiff": (coded("TIFF"), SCENE, 0, "tiff", 1),
}  # fmt: skip
ARGS = {"path": "plain", "window_min_s": 2.0, "window_target_s": 8.0, "window_max_s": 20.0}


def seen_as(expected):
    return np.repeat(expected[..., None], 3, 2) if expected.ndim == 2 else expected


def resized(picture, like):
    size = like.shape[1], like.shape[0]
    return cv2.resize(picture.astype(np.uint8), size, interpolation=cv2.INTER_AREA).astype(int)


@pytest.mark.parametrize("name", KINDS)
def test_a_picture_is_one_clip_that_shows_what_a_person_sees(name, tmp_path):
    data, expected, tolerance, codec, num_frames = KINDS[name]
    expected = seen_as(expected).astype(int)
    row = probe_source(io.BytesIO(data)).row
    assert (row["status"], row["media_kind"], row["codec"]) == ("ok", "image", codec)
    assert row["num_frames"] == num_frames
    assert (row["height_px"], row["width_px"]) == expected.shape[:2]
    assert (row["duration_s"], row["bit_rate"]) == (0.0, len(data) * 8)
    told = decode_job(ARGS, io.BytesIO(data), tmp_path)
    (clip,) = json.loads(json.dumps(told))["clips"]
    rung = clip["transcodes"]["256p"]
    left, top = rung["crop_x"], rung["crop_y"]
    part = expected[top : top + rung["crop_height_px"], left : left + rung["crop_width_px"]]
    pixels = read_transcode(tmp_path / rung["file"])[0].astype(int)
    assert np.abs(pixels - resized(part, pixels)).mean() <= tolerance + 2
    made = keyframes_job(
        {"max_keyframes": 4, "is_dense": False, "num_color": 1, "has_sound": False},
        io.BytesIO(data), tmp_path,
    )  # fmt: skip
    ((color, _, height, width),) = made["colors"]
    picture = np.fromfile(tmp_path / color, np.uint8).reshape(height, width, 3)
    assert np.abs(picture.astype(int) - resized(expected, picture)).mean() <= tolerance + 2


@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "avif"])
def test_a_picture_cut_short_is_told(name):
    data = KINDS[name][0]
    row = probe_source(io.BytesIO(data[: len(data) * 6 // 10])).row
    assert row["status"] == "failed"
    assert row["reason"]


def test_an_animation_cut_short_keeps_its_first_frame():
    data = KINDS["animated gif"][0]
    row = probe_source(io.BytesIO(data[: len(data) * 6 // 10])).row
    assert (row["status"], row["num_frames"]) == ("ok", 3)
    assert "the animation ends after 3" in row["reason"]
    with pytest.raises(DecodeFailed, match="cannot be decoded"):
        read_still(io.BytesIO(data[: len(data) // 8]))


def test_pictures_are_read_in_the_sandbox(tmp_path):
    for name in ("jpeg", "alpha avif", "animated webp", "another gamut"):
        source = tmp_path / "picture"
        source.write_bytes(KINDS[name][0])
        report = run_job("wsdata.media.probe:probe_job", {}, source=source, out_dir=tmp_path,
                         wall_s=60, minimum_level=LEVEL)  # fmt: skip
        assert report.status == "ok", report
        assert report.result == probe_source(io.BytesIO(KINDS[name][0])).row


def test_other_files_are_left_to_the_media_reader():
    assert read_still(io.BytesIO(b"GIF89a")) is None
    assert read_still(io.BytesIO(b"")) is None
    assert read_still(io.BytesIO(KINDS["avif"][0])) is None
