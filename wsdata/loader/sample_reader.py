"""Reading one sample straight into its place in a batch, checked by its digests.

One scatter read fills what comes before the latents, the latents' own place, and what comes
after them. Where only some latent frames are wanted, only these and their digests are read.
"""

import math
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from wsdata.errors import IntegrityError
from wsdata.loader.fetch import Fetcher
from wsdata.loader.straight import Asked, is_compiled, read_samples
from wsdata.shard.format import Span, decode_actions, decode_audio, verify_frames
from wsdata.shard.placement import Placement
from wsdata.shard.quantize import dequantize

_MAX_LAYOUTS = 64


class _Layout(NamedTuple):
    """Where parts lie in samples that are laid out alike, once wanted latents are cut out.

    Attributes:
        start: First byte of the wanted latent frames.
        size: Bytes of them.
        sample_id: Of what is left, where the id lies; so is `scale`.
        is_part: Whether not all frames are wanted.
        columns: As in the placement, which keeps them alive.
    """

    start: int
    size: int
    sample_id: slice
    scale: slice
    is_part: bool
    columns: Mapping[str, Span]


class SampleReader:
    """Reads single samples. Safe to use from threads; each has scratch memory of its own."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._local = threading.local()
        self._layouts: dict[tuple[int, int, int], _Layout] = {}

    def read(
        self,
        placement: Placement,
        frames: range,
        codes: memoryview,
        scale: memoryview,
        columns: Sequence[str] = (),
    ) -> dict[str, NDArray[Any]]:
        """Read latent frames of a sample and its scales into their place.

        Args:
            placement: The sample.
            frames: Which of its latent frames.
            codes: Writable bytes, as many as the frames have.
            scale: Writable bytes, 4 for each channel; left alone where no frame is wanted.
            columns: ``audio``, ``actions``: read of the whole sample, and returned in memory of
                their own, empty where it has none.

        Raises:
            IntegrityError: The bytes are wrong in the store itself; clip, shard and offset named.
            ObjectMissing: The shard is not in the store.
        """
        layout = self._layout(placement, frames)
        if len(codes) != layout.size:
            raise ValueError(f"{len(codes)} bytes for {layout.size} of {len(frames)} frames")
        is_enough = layout.is_part and not any(layout.columns[name].length for name in columns)
        if is_enough and self._read_frames(placement, layout, frames, codes, scale):
            return {name: _EMPTY[name] for name in columns}
        return self._read_whole(placement, layout, codes, scale, columns)

    def read_straight(
        self, placements: Sequence[Placement], frames: range, codes: memoryview, scales: memoryview
    ) -> int:
        """Read whole samples out of files, a plain folder's or the cache's, while all is in order.

        The short way, for what is nearly always so. `read` is for the rest: it fetches, tries
        again, and tells what is wrong.

        Args:
            placements: The samples; all have latents of one shape.
            frames: As for `read`.
            codes: Writable bytes of all of them, one after the other.
            scales: Likewise.

        Returns:
            How many were read; where it is not all, `read` is to read the next one.
        """
        if len(frames) < placements[0].latent_shape[0] or not is_compiled():
            return 0
        size = len(codes) // len(placements)
        layouts = [self._layout(placement, frames) for placement in placements]
        if any(layout.size != size for layout in layouts):
            return 0
        width = len(scales) // len(placements)
        ranges = [(each.shard_key, each.offset, each.length) for each in placements]
        with self._fetcher.held(ranges) as places:
            asked = list(map(_asked, places, placements, layouts))
            if not asked:
                return 0
            count = len(asked)
            seconds = read_samples(asked, codes[: count * size], scales[: count * width])
        self._fetcher.note_read(seconds, sum([each.length for each in asked[: len(seconds)]]))
        return len(seconds)

    def latents(self, placement: Placement) -> NDArray[np.float32]:
        """All latents of a sample as float32, shape (t, c, h, w). Raises as `read`."""
        codes_tchw = np.empty(placement.latent_shape, np.uint8)
        scale_c = np.empty(placement.latent_shape[1], np.float32)
        frames = range(placement.latent_shape[0])
        self.read(placement, frames, codes_tchw.reshape(-1).data, scale_c.view(np.uint8).data)
        return dequantize(codes_tchw, scale_c, placement.dtype)

    def _layout(self, placement: Placement, frames: range) -> _Layout:
        key = (id(placement.columns), frames.start, frames.stop)
        kept = self._layouts.get(key)
        if kept is not None and kept.columns is placement.columns:
            return kept
        columns, (num_frames, *frame_shape) = placement.columns, placement.latent_shape
        frame_bytes = math.prod(frame_shape)
        if columns["latents"].length != num_frames * frame_bytes:
            raise IntegrityError(
                f"{placement.words}: {columns['latents'].length} bytes of latents do not make the "
                f"shape {placement.latent_shape}: the index is damaged"
            )
        start = columns["latents"].offset + frames.start * frame_bytes
        size = len(frames) * frame_bytes

        def left(name: str) -> slice:
            offset, length = columns[name]
            offset -= size if offset >= start + size else 0
            return slice(offset, offset + length)

        layout = _Layout(
            start, size, left("sample_id"), left("scale"), len(frames) < num_frames, columns
        )
        if len(self._layouts) >= _MAX_LAYOUTS:
            self._layouts.clear()
        self._layouts[key] = layout
        return layout

    def scratch(self, name: str, num_bytes: int) -> memoryview:
        """Memory of the calling thread, used again at its next call with this name."""
        kept: NDArray[np.uint8] | None = getattr(self._local, name, None)
        if kept is None or kept.size < num_bytes:
            kept = np.empty(num_bytes + num_bytes // 4, np.uint8)
            setattr(self._local, name, kept)
        return kept.data[:num_bytes]

    def _read_whole(
        self,
        placement: Placement,
        layout: _Layout,
        codes: memoryview,
        scale: memoryview,
        columns: Sequence[str],
    ) -> dict[str, NDArray[Any]]:
        rest = self.scratch("rest", placement.length - layout.size)
        before, after, recorded = rest[: layout.start], rest[layout.start :], placement.xxh3

        def is_valid() -> bool:
            found = xxhash.xxh3_64(before)
            found.update(codes)
            found.update(after)
            return found.hexdigest() == recorded

        self._fetcher.read_into(
            placement.shard_key,
            placement.offset,
            [before, codes, after] if layout.size else [rest],
            is_valid=is_valid,
            name=lambda: placement.words,
        )
        if rest[layout.sample_id] != placement.sample_id.encode():
            raise IntegrityError(
                f"{placement.words}: holds sample {bytes(rest[layout.sample_id])!r}: the index "
                "and the shard are of different writers"
            )
        if layout.size:
            scale[:] = rest[layout.scale]
        return {name: _decode(name, placement, layout, rest) for name in columns}

    def _read_frames(
        self,
        placement: Placement,
        layout: _Layout,
        frames: range,
        codes: memoryview,
        scale: memoryview,
    ) -> bool:
        """Read some frames by themselves; False where they, or the scales, prove wrong.

        Then the whole sample is read, whose digest tells what is wrong.
        """
        if not frames:
            return True
        digests = layout.columns["frame_xxh3"]
        told = self.scratch("rest", digests.length)
        codes_tchw = np.frombuffer(codes, np.uint8).reshape(
            len(frames), *placement.latent_shape[1:]
        )

        def is_valid() -> bool:
            scale_c = np.frombuffer(scale, "<f4")
            return verify_frames(np.frombuffer(told, "<u8"), frames.start, codes_tchw, scale_c)

        start = placement.offset
        parts = [(start + digests.offset, [told]), (start + layout.start, [codes])]
        if digests.offset + digests.length == layout.start:
            parts = [(start + digests.offset, [told, codes])]
        parts.append((start + layout.columns["scale"].offset, [scale]))
        try:
            self._fetcher.read_parts(
                placement.shard_key, parts, is_valid=is_valid, name=lambda: placement.words
            )
        except IntegrityError:
            return False
        return True


_EMPTY: dict[str, NDArray[Any]] = {
    "audio": np.empty(0, np.int16),
    "actions": np.empty((0, 0), np.float32),
}


def _asked(place: tuple[int, int], placement: Placement, layout: _Layout) -> Asked:
    descriptor, offset = place
    return Asked(
        descriptor,
        offset,
        placement.length,
        layout.start,
        layout.sample_id.start,
        layout.scale.start,
        int(placement.xxh3, 16),
        placement.sample_id,
    )


def _decode(name: str, placement: Placement, layout: _Layout, rest: memoryview) -> NDArray[Any]:
    """Read a column, in memory of its own."""
    offset, length = layout.columns[name]
    data = rest[offset : offset + length]  # both lie before the latents
    if name == "audio":
        array = decode_audio(data)
    else:
        array = decode_actions(data, placement.latent_shape[0])
    return _EMPTY[name] if array is None else array.copy()
