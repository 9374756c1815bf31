"""Frames of samples out of stored transcodes: each transcode read and decoded once.

Cutting a sample's own pixels out of its frames belongs to `latents`, its sound to `columns`.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from wsdata.errors import DecodeFailed
from wsdata.media.decode import iterate_transcode
from wsdata.shard.columns import Columns, TrackSource, read_named
from wsdata.shard.latents import Pixels
from wsdata.store import BlobStore


class ClipSource:
    """What samples are made of, for samples in the order of their transcodes and frames."""

    def __init__(self, store: BlobStore) -> None:
        self._store = store
        self._tracks = TrackSource(store)
        self._key: str | None = None
        self._content = b""
        self._decoding: Iterator[Pixels] = iter(())
        self._position = 0
        self._last: tuple[int, int] | None = None
        self._window_thwc: Pixels = np.empty((0, 0, 0, 3), np.uint8)

    def columns(self, sample: Mapping[str, Any]) -> Columns:
        """Sound and actions of a row of a manifest; raises as `TrackSource.columns`."""
        return self._tracks.columns(sample)

    def frames(self, sample: Mapping[str, Any]) -> Pixels:
        """Frames [start_frame, start_frame + num_frames), fewer where the transcode ends.

        Args:
            sample: Row of a manifest.

        Raises:
            ObjectMissing: The transcode is not in the store.
            IntegrityError: Its bytes are not those that the manifest names.
            DecodeFailed: It does not decode.
        """
        if sample["transcode_key"] != self._key:
            self._content = read_named(self._store, sample, "transcode")
            self._key = sample["transcode_key"]
            self._restart()
        wanted = (sample["start_frame"], sample["num_frames"])
        if wanted == self._last:
            return self._window_thwc
        if wanted[0] < self._position:
            self._restart()
        try:
            window = self._take(*wanted)
        except DecodeFailed as error:
            error.add_note(f"transcode {self._key} of clip {sample['clip_id']}")
            raise
        self._window_thwc = np.stack(window) if window else np.empty((0, 0, 0, 3), np.uint8)
        self._last = wanted
        return self._window_thwc

    def _restart(self) -> None:
        self._decoding = iterate_transcode(self._content)
        self._position = 0
        self._last = None

    def _take(self, start: int, num_frames: int) -> list[Pixels]:
        window: list[Pixels] = []
        for frame_hwc in self._decoding:
            self._position += 1
            if self._position > start:
                window.append(frame_hwc)
            if self._position == start + num_frames:
                break
        return window
