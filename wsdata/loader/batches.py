"""What a batch is, and which part of its samples somebody asks for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wsdata.loader.order import Piece

LATENTS = ("float32", "stored")
COLUMNS = ("actions", "audio")


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """Which part of its samples a rank wants, and in which form.

    Attributes:
        latents: ``float32``, or ``stored``: eight bits a value, with their scales beside them.
        columns: Of COLUMNS; those of the whole sample, whatever part of its latents is read.
        max_frames: Latent frames that are read from a sample's start at most; None reads all.
        sp_rank: In [0, sp_size).
        sp_size: Ranks that share their slots, and split the latent frames of each sample.
    """

    latents: str = "float32"
    columns: tuple[str, ...] = ()
    max_frames: int | None = None
    sp_rank: int = 0
    sp_size: int = 1

    def __post_init__(self) -> None:
        if self.latents not in LATENTS:
            raise ValueError(f"latents {self.latents!r}: expected one of {LATENTS}")
        if unknown := sorted(set(self.columns) - set(COLUMNS)):
            raise ValueError(f"columns {unknown}: expected of {COLUMNS}")
        if self.max_frames is not None and self.max_frames < 1:
            raise ValueError(f"max_frames {self.max_frames}: expected at least 1 latent frame")
        if not 0 <= self.sp_rank < self.sp_size:
            raise ValueError(
                f"sp_rank {self.sp_rank} of {self.sp_size}: expected 0 <= sp_rank < sp_size"
            )

    def frames(self, num_frames: int) -> range:
        """Latent frames that are read of samples that have so many.

        A group splits them evenly; where that is not possible, the first ranks have one more, and
        where there are fewer frames than ranks, the last ranks have none.
        """
        kept = num_frames if self.max_frames is None else min(num_frames, self.max_frames)
        share, odd = divmod(kept, self.sp_size)
        start = self.sp_rank * share + min(self.sp_rank, odd)
        return range(start, start + share + (self.sp_rank < odd))


class Batch(NamedTuple):
    """Samples of one piece of one step, in global order.

    Attributes:
        latents_btchw: float32, or uint8 where they are as stored.
        scale_bc: What the numbers of stored latents are multiplied with, float32; 1 where a rank
            of a sequence-parallel group reads no frame of the batch.
        latent_dtype: fp8 or int8: what stored latents are.
        frames: Which latent frames of each sample these are.
        num_frames: How many latent frames the samples have.
        captions: One for each sample; empty where it has none.
        variants: Which variant each caption is; empty where there is none.
        epochs: How often each sample's pool had been through before.
        columns: Column -> an array for each sample, empty where it has none: ``audio`` int16 (n,)
            at 16 kHz, ``actions`` float32 (frames of pixels, dims).
        pixels_bthwc: Where transcodes are decoded instead of latents read, uint8 RGB; `frames` and
            `num_frames` count frames of pixels then.
    """

    piece: Piece
    bucket: str
    clip_ids: list[str]
    sample_ids: list[str]
    latents_btchw: NDArray[Any]
    scale_bc: NDArray[np.float32]
    latent_dtype: str
    frames: range
    num_frames: int
    captions: list[str]
    variants: list[str]
    streams: list[str]
    epochs: list[int]
    columns: dict[str, list[NDArray[Any]]]
    pixels_bthwc: NDArray[np.uint8] | None = None

    @property
    def step(self) -> int:
        """Step of the run."""
        return self.piece.step

    @property
    def next_step(self) -> int:
        """Where to resume once this batch is done with: a step is done with its last piece."""
        return self.piece.step + self.piece.is_last


def batch_body(batch: Batch, cursor: Mapping[str, Any]) -> dict[str, Any]:
    """A batch as a plain dict, as trainers get it; arrays are as in the batch."""
    body: dict[str, Any] = {
        "step": batch.step,
        "micro": [batch.piece.number, batch.piece.num_pieces],
        "bucket": batch.bucket,
        "clip_ids": batch.clip_ids,
        "sample_ids": batch.sample_ids,
        "latents": batch.latents_btchw,
        "frames": [batch.frames.start, batch.frames.stop, batch.num_frames],
        "captions": batch.captions,
        "variants": batch.variants,
        "streams": batch.streams,
        "epochs": batch.epochs,
        "cursor": dict(cursor),
        **batch.columns,
    }
    if batch.pixels_bthwc is not None:
        del body["latents"]
        return body | {"pixels": batch.pixels_bthwc}
    if batch.latents_btchw.dtype == np.uint8:
        body |= {"scales": batch.scale_bc, "latent_dtype": batch.latent_dtype}
    return body
