"""Option B: the pixels that latents are made of, decoded on the fly by a decoder from outside.

The same samples in the same order, for training without a tokenizer or with one of its own. A
transcode is read whole and checked against its digest; then a decoder, such as
`wsdata.media.transcode_frames.transcode_decoder`, gives the sample's frames, which are cut and
mirrored as the tokenizer saw them. The loader itself knows no codec.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wsdata.digest import sha256_bytes
from wsdata.errors import IntegrityError, ObjectMissing, StoreDenied
from wsdata.loader.fetch import Fetcher
from wsdata.loader.slabs import Memory
from wsdata.shard.latents import TEMPORAL_FACTOR, sample_pixels
from wsdata.shard.training_index import Source

Pixels = NDArray[np.uint8]

# Decodes frames [start, stop) of a transcode's bytes: RGB of shape (height, width, 3), fewer where
# it ends before. Called from several threads at once.
Decoder = Callable[[bytes, range], Iterable[Pixels]]


class PixelReader:
    """Reads the pixels of single samples. Safe to use from threads.

    Args:
        fetcher: Of the store that holds the transcodes.
        decoder: Decodes them.
    """

    def __init__(self, fetcher: Fetcher, decoder: Decoder) -> None:
        self._fetcher, self._decoder = fetcher, decoder

    def begin(
        self, sources: Sequence[Source], latent_frames: range, memory: Memory
    ) -> "PixelBatch":
        """Give the pixels of a batch memory.

        Args:
            sources: Of each sample; all of one size and number of frames.
            latent_frames: Which latent frames of each are wanted, as their pixels.
            memory: Where batches lie.
        """
        first, frames = sources[0], pixel_frames(latent_frames)
        shape = (len(sources), len(frames), first.height_px, first.width_px, 3)
        pixels_bthwc = memory.take(int(np.prod(shape))).reshape(shape)
        return PixelBatch(self, list(sources), frames, pixels_bthwc)

    def read(self, source: Source, frames: range, out_thwc: Pixels) -> None:
        """Decode frames of a sample into their place.

        Args:
            source: What the sample is made of.
            frames: Which of its frames, counted from its first.
            out_thwc: Writable, shape (len(frames), height_px, width_px, 3).

        Raises:
            IntegrityError: The transcode's bytes are not those that latents were made of, it is
                shorter, or its frames are too small for the sample.
            ObjectMissing: The store has no such transcode.
            DecodeFailed: As the decoder raises.
        """
        if not frames:
            return
        first = source.start_frame + frames.start
        content = self._content(source)
        number = 0
        for frame_hwc in self._decoder(content, range(first, first + len(frames))):
            out_thwc[number] = self._cut(source, frame_hwc)
            number += 1
        if number != len(frames):
            raise IntegrityError(
                f"{_words(source)}: frame {first + len(frames) - 1} is wanted, the transcode ends "
                f"at {first + number}: the index and the transcode are of different writers"
            )

    def _content(self, source: Source) -> bytes:
        try:
            size = self._fetcher.store.size(source.transcode_key)
        except StoreDenied as error:
            raise StoreDenied(
                f"{_words(source)}: {error}. Trainers read transcodes only where deployment.toml "
                "states trainers_read_transcodes, and their policy was put in force since "
                "(`wsdata deployment policy trainer`); or name another store (transcodes=...)"
            ) from error
        if size is None:
            raise ObjectMissing(
                f"{_words(source)}: it is not in {self._fetcher.store.address}: name the store "
                "that holds derived/ (transcodes=...), or train on latents"
            )
        content = bytearray(size)

        def is_valid() -> bool:
            return sha256_bytes(memoryview(content)) == source.transcode_sha256

        self._fetcher.read_into(
            source.transcode_key,
            0,
            [memoryview(content)],
            is_valid=is_valid,
            name=lambda: _words(source),
        )
        return bytes(content)

    def _cut(self, source: Source, frame_hwc: Pixels) -> Pixels:
        try:
            return sample_pixels(frame_hwc[None], source._asdict())[0]
        except ValueError as error:
            raise IntegrityError(f"{_words(source)}: {error}") from error


class PixelBatch(NamedTuple):
    """The pixels of a batch, being filled; `frames` are counted from each sample's first."""

    reader: PixelReader
    sources: list[Source]
    frames: range
    pixels_bthwc: Pixels

    def fill(self, index: int) -> None:
        """Decode one sample into its place. Raises as `PixelReader.read`."""
        self.reader.read(self.sources[index], self.frames, self.pixels_bthwc[index])


def pixel_frames(latent_frames: range) -> range:
    """Frames of pixels that a range of a sample's latent frames stands for.

    The first latent frame stands for one frame, each later one for the next four.
    """
    if not latent_frames:
        return range(0)
    start, last = latent_frames.start, latent_frames.stop - 1
    first = TEMPORAL_FACTOR * (start - 1) + 1 if start else 0
    return range(first, TEMPORAL_FACTOR * last + 1)


def _words(source: Source) -> str:
    return f"clip {source.clip_id} (sample {source.sample_id}) in transcode {source.transcode_key}"
