"""The names of things: how they are spelt, and what can be read back out of them."""

import re
from typing import NamedTuple, NewType

ClipId = NewType("ClipId", str)
SampleId = NewType("SampleId", str)
DropKey = NewType("DropKey", str)

SOURCE_TIERS = ("licensed", "crawl", "synthetic")

_DROP_KEY = re.compile(
    r"(licensed|crawl|synthetic)\.([a-z0-9][a-z0-9_-]{0,62})\.(\d{8})\.(\d{3,6})"
)
_CLIP_ID = re.compile(r"([0-9a-f]{24})-(\d+)-(\d{9})-(\d{9})")
_SAMPLE_ID = re.compile(
    r"([0-9a-f]{24}-\d+-\d{9}-\d{9})\.([a-z0-9]+)\.(\d{6})\.(\d{4})\.([a-z0-9]+)"
)
_VERSION = re.compile(r"v(\d+)(?:\.(\d{1,3}))?")
_SHARD_GROUP = re.compile(r"(v\d+)\.(\d{4,})")

ASSET_PREFIX_LENGTH = 24


class DropParts(NamedTuple):
    """What a drop key says."""

    source_tier: str
    source: str
    date: str
    sequence: int


class ClipParts(NamedTuple):
    """What a clip id says. Times in milliseconds, half-open."""

    asset_prefix: str
    track: int
    start_ms: int
    end_ms: int


class SampleParts(NamedTuple):
    """What a sample id says."""

    clip_id: ClipId
    rung: str
    start_frame: int
    num_frames: int
    variant: str


def parse_drop_key(key: str) -> DropParts:
    """Read ``<tier>.<source>.<YYYYMMDD>.<seq>``.

    Raises:
        ValueError: The key is not of that form.
    """
    match = _DROP_KEY.fullmatch(key)
    if match is None:
        raise ValueError(
            f"drop key {key!r}: expected <tier>.<source>.<YYYYMMDD>.<seq>, such as "
            f"'licensed.acme.20261101.001', with a tier of {', '.join(SOURCE_TIERS)} and a "
            "source of a-z, 0-9, '_' and '-'"
        )
    return DropParts(match[1], match[2], match[3], int(match[4]))


def raw_key(asset_id: str) -> str:
    """Return the object key of a raw asset."""
    return f"raw/sha256/{asset_id[:2]}/{asset_id[2:4]}/{asset_id}"


def make_clip_id(asset_id: str, *, track: int, start_ms: int, end_ms: int) -> ClipId:
    """Name a clip by its asset, stream and rounded span [start_ms, end_ms)."""
    if not 0 <= start_ms < end_ms < 10**9:
        raise ValueError(f"clip of {asset_id[:12]}: span [{start_ms}, {end_ms}) ms is impossible")
    return ClipId(f"{asset_id[:ASSET_PREFIX_LENGTH]}-{track}-{start_ms:09d}-{end_ms:09d}")


def parse_clip_id(clip_id: str) -> ClipParts:
    """Read a clip id.

    Raises:
        ValueError: The id is not of the form that `make_clip_id` writes.
    """
    match = _CLIP_ID.fullmatch(clip_id)
    if match is None:
        raise ValueError(f"clip id {clip_id!r}: expected <24 hex>-<track>-<9 digits>-<9 digits>")
    return ClipParts(match[1], int(match[2]), int(match[3]), int(match[4]))


def make_sample_id(
    clip_id: str, *, rung: str, start_frame: int, num_frames: int, variant: str = "plain"
) -> SampleId:
    """Name a sample: a run of frames of one rung of a clip. Variant is ``plain`` or ``flip``."""
    return SampleId(f"{clip_id}.{rung}.{start_frame:06d}.{num_frames:04d}.{variant}")


def parse_sample_id(sample_id: str) -> SampleParts:
    """Read a sample id.

    Raises:
        ValueError: The id is not of the form that `make_sample_id` writes.
    """
    match = _SAMPLE_ID.fullmatch(sample_id)
    if match is None:
        raise ValueError(
            f"sample id {sample_id!r}: expected <clip>.<rung>.<start>.<frames>.<variant>"
        )
    return SampleParts(ClipId(match[1]), match[2], int(match[3]), int(match[4]), match[5])


def parse_version(version: str) -> tuple[int, int]:
    """Read ``v3`` as (3, 0) and the patch ``v3.1`` as (3, 1).

    Raises:
        ValueError: Anything else.
    """
    match = _VERSION.fullmatch(version)
    if match is None:
        raise ValueError(f"dataset version {version!r}: expected v3, or v3.1 for a patch")
    return int(match[1]), int(match[2] or 0)


def make_shard_group(version: str, index: int) -> str:
    """Name a shard group of a dataset version."""
    return f"{version}.{index:04d}"


def parse_shard_group(group: str) -> tuple[str, int]:
    """Read ``v3.0007`` as ("v3", 7).

    Raises:
        ValueError: Anything else.
    """
    match = _SHARD_GROUP.fullmatch(group)
    if match is None:
        raise ValueError(f"shard group {group!r}: expected v3.0007")
    return match[1], int(match[2])
