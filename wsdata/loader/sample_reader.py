"""Reading one sample straight into its place in a batch, checked by its digests.

One scatter read fills what comes before the latents, the latents' own place, and what comes
after them. Where only some latent frames are wanted, only these and their digests are read.
"""

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

from wsdata.errors import IntegrityError
from wsdata.loader.fetch import Fetcher
from wsdata.shard.format import COLUMNS, decode_actions, decode_audio, verify_frames
from wsdata.shard.placement import Placement
from wsdata.shard.quantize import dequantize

_SCALE_BYTES = COLUMNS["scale"][1] or 0


class Rest(NamedTuple):
    """What a sample holds besides its latents."""

    scale_c: NDArray[np.float32]
    columns: dict[str, NDArray[Any]]


class SampleReader:
    """Reads single samples. Safe to use from threads; each has scratch memory of its own."""

    def __init__(self, fetcher: Fetcher) -> None:
        self._fetcher = fetcher
        self._local = threading.local()

    def read(
        self,
        placement: Placement,
        frames: range,
        codes: memoryview,
        columns: Sequence[str] = (),
    ) -> Rest:
        """Read latent frames of a sample into `codes`, and the rest that is asked for.

        Args:
            placement: The sample.
            frames: Which of its latent frames.
            codes: Writable bytes, as many as the frames have.
            columns: ``audio``, ``actions``: read of the whole sample.

        Raises:
            IntegrityError: The bytes are wrong in the store itself; clip, shard and offset named.
            ObjectMissing: The shard is not in the store.
        """
        num_frames, *frame_shape = placement.latent_shape
        frame_bytes = int(np.prod(frame_shape))
        latents = placement.columns["latents"]
        if latents.length != num_frames * frame_bytes or len(codes) != len(frames) * frame_bytes:
            raise IntegrityError(
                f"{placement.words}: {latents.length} bytes of latents, {len(codes)} wanted for "
                f"{len(frames)} frames of shape {placement.latent_shape}: the index is damaged"
            )
        has_columns = any(placement.columns[name].length for name in columns)
        if len(frames) < num_frames and not has_columns and "frame_xxh3" in placement.columns:
            scale_c = self._read_frames(placement, frames, codes)
            if scale_c is not None:
                return Rest(scale_c, {name: _EMPTY[name] for name in columns})
        return self._read_whole(placement, frames, codes, columns)

    def latents(self, placement: Placement) -> NDArray[np.float32]:
        """All latents of a sample as float32, shape (t, c, h, w). Raises as `read`."""
        codes_tchw = np.empty(placement.latent_shape, np.uint8)
        frames = range(placement.latent_shape[0])
        rest = self.read(placement, frames, codes_tchw.reshape(-1).data)
        return dequantize(codes_tchw, rest.scale_c, placement.dtype)

    def scratch(self, name: str, num_bytes: int) -> memoryview:
        """Memory of the calling thread, used again at its next call with this name."""
        kept: NDArray[np.uint8] | None = getattr(self._local, name, None)
        if kept is None or kept.size < num_bytes:
            kept = np.empty(num_bytes + num_bytes // 4, np.uint8)
            setattr(self._local, name, kept)
        return kept.data[:num_bytes]

    def _read_whole(
        self, placement: Placement, frames: range, codes: memoryview, columns: Sequence[str]
    ) -> Rest:
        latents = placement.columns["latents"]
        frame_bytes = latents.length // placement.latent_shape[0]
        start = latents.offset + frames.start * frame_bytes
        stop = start + len(codes)
        scratch = self.scratch("rest", placement.length - len(codes))
        parts = [part for part in (scratch[:start], codes, scratch[start:]) if len(part)]

        def is_valid() -> bool:
            found = xxhash.xxh3_64()
            for part in parts:
                found.update(part)
            return found.hexdigest() == placement.xxh3

        def column(name: str) -> memoryview:
            offset, length = placement.columns[name]
            offset -= len(codes) if offset >= stop else 0
            return scratch[offset : offset + length]

        self._fetcher.read_into(
            placement.shard_key,
            placement.offset,
            parts,
            is_valid=is_valid,
            name=lambda: placement.words,
        )
        if column("sample_id") != placement.sample_id.encode():
            raise IntegrityError(
                f"{placement.words}: holds sample {bytes(column('sample_id'))!r}: the index and "
                "the shard are of different writers"
            )
        found = {
            name: _decode(name, column(name), placement) if name in placement.columns else None
            for name in columns
        }
        return Rest(
            np.frombuffer(column("scale"), "<f4").copy(),
            {name: _EMPTY[name] if array is None else array for name, array in found.items()},
        )

    def _read_frames(
        self, placement: Placement, frames: range, codes: memoryview
    ) -> NDArray[np.float32] | None:
        """Read some frames by themselves; None where they, or the scales, prove wrong."""
        if not frames:
            return np.ones(placement.latent_shape[1], np.float32)
        digests, scale = placement.columns["frame_xxh3"], placement.columns["scale"]
        latents = placement.columns["latents"]
        start = latents.offset + frames.start * (len(codes) // len(frames))
        small = self.scratch("rest", digests.length + _SCALE_BYTES)
        told, scales = small[: digests.length], small[digests.length :]
        codes_tchw = np.frombuffer(codes, np.uint8).reshape(
            len(frames), *placement.latent_shape[1:]
        )

        def is_valid() -> bool:
            scale_c = np.frombuffer(scales, "<f4")
            return verify_frames(np.frombuffer(told, "<u8"), frames.start, codes_tchw, scale_c)

        self._fetch(placement, scale.offset, [scales], is_valid=lambda: True)
        try:
            if digests.offset + digests.length == start:
                self._fetch(placement, digests.offset, [told, codes], is_valid=is_valid)
            else:
                self._fetch(placement, digests.offset, [told], is_valid=lambda: True)
                self._fetch(placement, start, [codes], is_valid=is_valid)
        except IntegrityError:
            return None  # the whole sample has a digest of its own: it tells what is wrong
        return np.frombuffer(scales, "<f4").copy()

    def _fetch(self, placement: Placement, offset: int, parts: list[memoryview], *, is_valid):  # noqa: ANN001, ANN202
        self._fetcher.read_into(
            placement.shard_key,
            placement.offset + offset,
            parts,
            is_valid=is_valid,
            name=lambda: placement.words,
        )


_EMPTY: dict[str, NDArray[Any]] = {
    "audio": np.empty(0, np.int16),
    "actions": np.empty((0, 0), np.float32),
}


def _decode(name: str, data: memoryview, placement: Placement) -> NDArray[Any] | None:
    """Read a column, in memory of its own."""
    if name == "audio":
        array = decode_audio(data)
    else:
        array = decode_actions(data, placement.latent_shape[0])
    return None if array is None else array.copy()
