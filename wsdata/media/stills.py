"""Pictures as a person would see them: one frame, upright, opaque, 8-bit sRGB.

JPEG, PNG, WebP and GIF are read here, and of AVIF what is transparent or moves: the media reader
takes no alpha, CMYK, palette or mirrored orientation into account, opens no animated WebP, and
fills up a JPEG that is cut short. What results is handed on as a PPM. Decisions: of an animation
the first full frame is taken; transparency lies on white, as on a page, since dark text and
drawings are what is cut out most; colour profiles are converted to sRGB. Runs in the sandbox.
"""

import io
import struct
import warnings
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np

from wsdata.errors import DecodeFailed

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS = 256_000_000
_HEAD_BYTES = 32
_EXIF_ORIENTATION = 0x0112
_ROTATIONS = {3: 180, 4: 180, 5: 90, 6: 90, 7: 270, 8: 270}  # clockwise, mirrored or not
_NAMES = {  # as the media reader calls them: container, codec
    "JPEG": ("image2", "mjpeg"), "MPO": ("image2", "mjpeg"), "PNG": ("png_pipe", "png"),
    "WEBP": ("webp_pipe", "webp"), "GIF": ("gif", "gif"),
    "AVIF": ("mov,mp4,m4a,3gp,3g2,mj2", "av1"),
}  # fmt: skip
_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "AVIF")
_PIXEL_FORMATS = {
    "RGB": "rgb24", "RGBA": "rgba", "L": "gray", "LA": "ya8", "P": "pal8", "1": "monob",
    "CMYK": "cmyk", "I;16": "gray16", "I;16B": "gray16", "YCbCr": "yuv444p",
}  # fmt: skip
_ALPHA = ("A", "a")
_DAMAGE = (OSError, ValueError, EOFError, SyntaxError, IndexError, KeyError, struct.error)


@dataclass(frozen=True, kw_only=True, slots=True)
class Still:
    """One picture, ready to be shown.

    Attributes:
        data: A PPM of it.
        container: The file's own container, as the media reader calls it.
        codec: Its codec.
        pixel_format: How its pixels are kept; Pillow's name of it where there is no other.
        coded_size: Width and height in pixels before it was turned.
        rotation_deg: By how much it was turned, clockwise.
        num_frames: Frames of an animation, those that are there; 1 for a plain picture.
        damage: What is wrong with the file behind the first frame; None where nothing is.
    """

    data: bytes
    container: str
    codec: str
    pixel_format: str
    coded_size: tuple[int, int]
    rotation_deg: int
    num_frames: int
    damage: str | None = None


def read_still(source: BinaryIO) -> Still | None:
    """Read a picture, or return None where a file is none of those that are read here.

    Args:
        source: The file, at its begin; it is left there.

    Raises:
        DecodeFailed: It is such a picture, and damaged, cut short or too large.
    """
    head = source.read(_HEAD_BYTES)
    source.seek(0)
    is_avif = head[4:12] in (b"ftypavif", b"ftypavis")
    if not is_avif and not _is_ours(head):
        return None
    import PIL.Image
    from PIL import AvifImagePlugin, UnidentifiedImageError

    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    PIL.Image.MAX_IMAGE_PIXELS = MAX_PIXELS // 2  # twice that is its error
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            image = PIL.Image.open(cast("IO[bytes]", _Borrowed(source)), formats=_FORMATS)
            if is_avif and not _needs_more_than_pixels(image):
                return None
            return _shown(image)
    except UnidentifiedImageError:
        return None  # some other file that begins alike: the media reader says what it is
    except _DAMAGE as error:
        raise DecodeFailed(f"the picture cannot be decoded: {error}") from error
    except PIL.Image.DecompressionBombError as error:
        raise DecodeFailed(f"over {MAX_PIXELS:,} pixels: too large a picture") from error
    finally:
        source.seek(0)


class _Borrowed(io.RawIOBase):
    """A view of a file that, closed, leaves the file open."""

    def __init__(self, source: BinaryIO) -> None:
        self._source = source

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._source.seek(offset, whence)

    def tell(self) -> int:
        return self._source.tell()

    def read(self, size: int = -1) -> bytes:
        return self._source.read(size)


def _is_ours(head: bytes) -> bool:
    return (
        head.startswith((b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n", b"GIF87a", b"GIF89a"))
        or (head[:4] == b"RIFF" and head[8:12] == b"WEBP")
    )  # fmt: skip


def _needs_more_than_pixels(image: "Image") -> bool:
    """Whether an AVIF is transparent or moves; others may be of high range, and are not ours."""
    return image.mode.endswith(_ALPHA) or getattr(image, "n_frames", 1) > 1


def _shown(image: "Image") -> Still:
    from PIL import ImageOps

    container, codec = _NAMES[image.format or "JPEG"]
    pixel_format, coded_size = _PIXEL_FORMATS.get(image.mode, image.mode), image.size
    orientation = image.getexif().get(_EXIF_ORIENTATION, 1)
    if has_other := bool(getattr(image, "default_image", False)):
        image.seek(1)  # an APNG's picture for who cannot show the animation comes before it
    image.load()
    first = image.copy()
    num_frames, damage = _count_frames(image) if container != "image2" else (1, None)
    num_frames -= has_other
    if image.format == "PNG" and num_frames > 1:
        container = codec = "apng"
    upright = ImageOps.exif_transpose(_opaque(_in_srgb(_in_eight_bits(first))))
    header = b"P6\n%d %d\n255\n" % upright.size
    return Still(
        data=header + upright.tobytes(),
        container=container,
        codec=codec,
        pixel_format=pixel_format,
        coded_size=coded_size,
        rotation_deg=_ROTATIONS.get(orientation, 0),
        num_frames=num_frames,
        damage=damage,
    )


def _count_frames(image: "Image") -> tuple[int, str | None]:
    """Number of frames, and what ends them early; the picture is loaded, and is not used again."""
    try:
        found, why = int(getattr(image, "n_frames", 1)), ""
    except _DAMAGE as error:
        found, why = image.tell() + 1, type(error).__name__
    if not why and image.format == "GIF" and not _has_end_mark(image):
        why = "no end mark"
    return found, f"the animation ends after {found} frame(s): {why}" if why else None


def _has_end_mark(image: "Image") -> bool:
    file: Any = image.fp  # pyright: ignore[reportAttributeAccessIssue]
    file.seek(-min(_HEAD_BYTES, file.seek(0, 2)), 2)
    return file.read(_HEAD_BYTES).rstrip(b"\0").endswith(b";")


def _in_eight_bits(image: "Image") -> "Image":
    """Sixteen-bit grey as eight: Pillow's own conversion cuts off instead of scaling."""
    import PIL.Image

    if not image.mode.startswith("I"):
        return image
    wide = np.asarray(image).astype(np.int64)
    grey = PIL.Image.fromarray(np.clip((wide + 128) // 257, 0, 255).astype(np.uint8))
    grey.info = dict(image.info)
    return grey


def _in_srgb(image: "Image") -> "Image":
    """Colours of a profile of its own as sRGB; one that cannot be read is left aside."""
    from PIL import ImageCms

    profile = image.info.get("icc_profile")
    if not profile or image.mode not in ("RGB", "RGBA", "CMYK", "L"):
        return image
    try:
        stated = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if "srgb" in ImageCms.getProfileDescription(stated).lower():
            return image
        alpha = image.getchannel("A") if image.mode == "RGBA" else None
        plain = image.convert("RGB") if alpha else image
        shown: Any = ImageCms.profileToProfile(
            plain, stated, ImageCms.createProfile("sRGB"), outputMode="RGB"
        )
    except (ImageCms.PyCMSError, OSError, ValueError):
        return image
    if alpha:
        shown.putalpha(alpha)
    shown.info = {key: value for key, value in image.info.items() if key != "icc_profile"}
    return shown


def _opaque(image: "Image") -> "Image":
    """RGB, what is transparent laid on white; EXIF is kept for the orientation."""
    import PIL.Image

    is_transparent = image.mode.endswith(_ALPHA) or "transparency" in image.info
    if not is_transparent:
        opaque = image if image.mode == "RGB" else image.convert("RGB")
    else:
        clear = image.convert("RGBA")
        opaque = PIL.Image.new("RGBA", clear.size, (255, 255, 255, 255))
        opaque.alpha_composite(clear)
        opaque = opaque.convert("RGB")
    if "exif" in image.info:
        opaque.info["exif"] = image.info["exif"]
    return opaque
