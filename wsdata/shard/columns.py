"""Sound and actions of a sample, cut to its own span of time out of its clip's stored tracks.

Which samples carry which track is the manifest's word (`curate.columns`). Tracks in the store
are our own bytes, as transcodes are, and are read here. Nothing is made up: a span that a track
does not cover leaves the column empty, and a remark says why.
"""

import io
import json
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from numpy.typing import NDArray

from wsdata.digest import sha256_bytes
from wsdata.errors import DecodeFailed, IntegrityError, ObjectMissing
from wsdata.media.audio import FULL_SCALE, read_audio
from wsdata.shard.format import AUDIO_RATE_HZ
from wsdata.store import BlobStore

TRACK_FPS = 24  # of the rows of kind `frame` in a stored track of actions


class Columns(NamedTuple):
    """What a sample carries beside its latents.

    Attributes:
        audio_n: int16, mono at AUDIO_RATE_HZ; None where it carries none.
        actions_fd: float32, one row for each frame and one column for each channel; NaN where a
            channel was not told. None where it carries none.
        channels_json: The channels, where there are actions.
        remarks: By column, why it is empty or not whole.
    """

    audio_n: NDArray[np.int16] | None
    actions_fd: NDArray[np.float32] | None
    channels_json: str | None
    remarks: dict[str, str]


def cut_audio(
    samples_n: NDArray[np.float32], *, start_frame: int, num_frames: int, fps: float
) -> tuple[NDArray[np.int16] | None, str | None]:
    """Cut the sound of frames [start_frame, start_frame + num_frames) of a clip.

    All samples of so many frames get equally many samples of sound. A clip's last frame may be
    shown beyond its end, by less than the frame lasts: there is silence, and the remark says so.

    Args:
        samples_n: The clip's sound from its start on, in [-1, 1], at AUDIO_RATE_HZ.
        start_frame: First frame.
        num_frames: How many.
        fps: Frames per second.

    Returns:
        int16 (n,) or None where the sound ends before; and a remark or None.
    """
    per_frame = Fraction(AUDIO_RATE_HZ) / Fraction(fps)
    first, wanted = round(start_frame * per_frame), round(num_frames * per_frame)
    cut_n = samples_n[first : first + wanted]
    missing = wanted - len(cut_n)
    missing_ms = 1000 * missing / AUDIO_RATE_HZ
    if missing > per_frame:
        return None, f"the clip's sound ends {missing_ms:.0f} ms before the sample does"
    scaled_n = np.clip(np.rint(cut_n * FULL_SCALE), -FULL_SCALE, FULL_SCALE - 1).astype(np.int16)
    if not missing:
        return scaled_n, None
    remark = f"its last {missing_ms:.1f} ms lie beyond the clip's end, and are silence"
    return np.pad(scaled_n, (0, missing)), remark


def cut_actions(
    track: pl.DataFrame,
    channels: list[dict[str, Any]],
    *,
    start_frame: int,
    num_frames: int,
    fps: float,
) -> tuple[NDArray[np.float32] | None, str | None]:
    """Cut the actions at frames [start_frame, start_frame + num_frames) of a clip.

    At TRACK_FPS these are the track's own rows of kind ``frame``. At other rates a frame between
    two of them is read off all rows: on the line between the rows around it, or, for a discrete
    channel, from the row before it; where either of the two has no value, neither has it.

    Args:
        track: A stored track: ``kind``, ``frame_index``, ``time_s``, and the channels.
        channels: ``name`` and ``kind`` of each.
        start_frame: First frame.
        num_frames: How many.
        fps: Frames per second.

    Returns:
        float32 (frames, channels) or None where a frame has no value at all; a remark or None.
    """
    at_t = [Fraction(start_frame + index) / Fraction(fps) for index in range(num_frames)]
    times_t = np.array([float(at) for at in at_t])
    rows = track.filter(pl.col("kind") == "frame").sort("frame_index")
    before_t = np.array([math.floor(at * TRACK_FPS) for at in at_t])
    if before_t[-1] >= rows.height:
        return None, f"the clip's track ends at frame {rows.height} of {TRACK_FPS} a second"
    after_t = np.minimum([math.ceil(at * TRACK_FPS) for at in at_t], rows.height - 1)
    values_fd = np.empty((num_frames, len(channels)), np.float32)
    ordered = track.sort("time_s", "kind", descending=[False, True], maintain_order=True)
    ordered = ordered.unique("time_s", keep="last", maintain_order=True)
    for index, channel in enumerate(channels):
        at_frames_n = rows[channel["name"]].cast(pl.Float64).fill_null(np.nan).to_numpy()
        known = ordered.select("time_s", pl.col(channel["name"]).cast(pl.Float64)).drop_nulls()
        values_fd[:, index] = _values_at(times_t, known, is_discrete=channel["kind"] == "discrete")
        is_told_t = np.isfinite(at_frames_n[before_t]) & np.isfinite(at_frames_n[after_t])
        values_fd[~is_told_t, index] = np.nan
    if bad := int(np.count_nonzero(~np.isfinite(values_fd).any(axis=1))):
        return None, f"{bad} of {num_frames} frames have no value"
    return values_fd, None


def _values_at(
    times_t: NDArray[np.float64], known: pl.DataFrame, *, is_discrete: bool
) -> NDArray[np.float64]:
    if known.is_empty():
        return np.full(len(times_t), np.nan)
    times_n, values_n = known["time_s"].to_numpy(), known[known.columns[1]].to_numpy()
    if is_discrete:
        return values_n[np.maximum(np.searchsorted(times_n, times_t, side="right") - 1, 0)]
    return np.interp(times_t, times_n, values_n)


class TrackSource:
    """Tracks of clips, each read once for samples of one clip that follow each other."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._audio: tuple[str, NDArray[np.float32]] | None = None
        self._actions: tuple[str, pl.DataFrame] | None = None

    def columns(self, sample: Mapping[str, Any]) -> Columns:
        """Cut what the manifest names for a sample.

        Args:
            sample: Row of a manifest.

        Raises:
            ObjectMissing: A track is not in the store; clip and key are named.
            IntegrityError: Its bytes are not those that the manifest names.
            DecodeFailed: It does not decode.
        """
        span = {name: sample[name] for name in ("start_frame", "num_frames", "fps")}
        remarks: dict[str, str | None] = {}
        audio_n = actions_fd = channels_json = None
        if sample["audio_sha256"]:
            audio_n, remarks["audio"] = cut_audio(self._samples(sample), **span)
        if sample["actions_sha256"] and sample["variant"] == "flip":
            remarks["actions"] = "what was done is not what its mirror image shows"
        elif sample["actions_sha256"]:
            channels = json.loads(sample["channels_json"])
            track = self._track(sample)
            actions_fd, remarks["actions"] = cut_actions(track, channels, **span)
            channels_json = sample["channels_json"] if actions_fd is not None else None
        told = {name: remark for name, remark in remarks.items() if remark}
        return Columns(audio_n, actions_fd, channels_json, told)

    def _samples(self, sample: Mapping[str, Any]) -> NDArray[np.float32]:
        if self._audio is None or self._audio[0] != sample["audio_key"]:
            content = read_named(self._store, sample, "audio")
            try:
                self._audio = (sample["audio_key"], read_audio(content)[0])
            except DecodeFailed as error:
                error.add_note(f"sound {sample['audio_key']} of clip {sample['clip_id']}")
                raise
        return self._audio[1]

    def _track(self, sample: Mapping[str, Any]) -> pl.DataFrame:
        if self._actions is None or self._actions[0] != sample["actions_key"]:
            content = read_named(self._store, sample, "actions")
            self._actions = (sample["actions_key"], pl.read_parquet(io.BytesIO(content)))
        return self._actions[1]


def read_named(store: BlobStore, sample: Mapping[str, Any], what: str) -> bytes:
    """Read an object that a manifest's row names, checked against the digest that it names.

    Args:
        store: Where it lies.
        sample: Row of a manifest, with ``<what>_key`` and ``<what>_sha256``.
        what: ``transcode``, ``audio`` or ``actions``.

    Raises:
        ObjectMissing: It is not in the store; clip and key are named.
        IntegrityError: Its bytes are not those that the manifest names.
    """
    key, expected = sample[f"{what}_key"], sample[f"{what}_sha256"]
    try:
        content = store.get(key)
    except ObjectMissing as error:
        raise ObjectMissing(
            f"{what} {key} of clip {sample['clip_id']} (sample {sample['sample_id']}) is not in "
            f"{store.address}: run the preprocess stage of its drop again, then this group"
        ) from error
    if (found := sha256_bytes(content)) != expected:
        raise IntegrityError(
            f"{what} {key} of clip {sample['clip_id']} has digest {found[:12]}, the manifest says "
            f"{expected[:12]}: delete the object and run its drop again"
        )
    return content
