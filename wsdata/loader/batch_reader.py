"""From a piece of the order to a filled batch: plan it, give it memory, read its slots.

No threads of its own: `prefetch` says who reads which slots when.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from wsdata.errors import IntegrityError, ObjectMissing, PlanError, WsdataError
from wsdata.loader.batches import Batch, View
from wsdata.loader.caption_reader import CaptionReader
from wsdata.loader.order import Piece, Share, choose_variant
from wsdata.loader.pixels import PixelBatch, PixelReader
from wsdata.loader.plan_ahead import Planner
from wsdata.loader.run import Run, Tokens, one_tokens
from wsdata.loader.sample_reader import SampleReader
from wsdata.loader.slabs import Memory
from wsdata.loader.version import OpenVersion
from wsdata.shard.format import num_pixel_frames
from wsdata.shard.placement import Placement
from wsdata.shard.plan import StepPlan
from wsdata.shard.quantize import dequantize

_NUM_STEPS_NAMED = 5


class Skipped(NamedTuple):
    """A slot that serves another sample since a patch was swapped in."""

    step: int
    slot: int
    before: str  # sample ids
    after: str


class Work:
    """A batch being filled.

    Attributes:
        batch: Complete once every slot has been read.
        skipped: Slots of it that a patch changed.
        decoding: Where transcodes are decoded instead of latents read.
    """

    def __init__(
        self,
        batch: Batch,
        placements: list[Placement],
        skipped: list[Skipped],
        decoding: PixelBatch | None = None,
    ) -> None:
        self.batch = batch
        self.decoding = decoding
        self.placements = placements
        self.skipped = skipped
        latents = batch.latents_btchw
        # Bytes as stored go straight to their place; float32 is made of them afterwards.
        self.bytes_of_batch = latents.reshape(-1).data if latents.dtype == np.uint8 else None
        self.bytes_of_scales = batch.scale_bc.reshape(-1).view(np.uint8).data
        self.sample_bytes = math.prod(latents.shape[1:])  # as stored
        self.scale_bytes = batch.scale_bc[:1].nbytes

    @property
    def sizes(self) -> list[int]:
        """Bytes of each sample."""
        if self.decoding is not None:
            return [self.decoding.pixels_bthwc[0].nbytes] * len(self.placements)
        return [placement.length for placement in self.placements]


class BatchReader:
    """Reads batches of a run. Safe to use from threads.

    Args:
        run: The run.
        versions: The opened version of each of its segments.
        share: Who reads, so that nothing else is planned ahead; None is a world of one.
        samples: Reads latents.
        captions: Reads captions.
        view: Which part of samples is wanted.
        memory: Where batches lie.
        unpatched: Plans of segments before patches were swapped in, for the accounting.
        pixels: Decodes transcodes instead of reading latents, where that is wanted.
    """

    def __init__(
        self,
        run: Run,
        versions: Sequence[OpenVersion],
        *,
        share: Share | None = None,
        samples: SampleReader,
        captions: CaptionReader,
        view: View,
        memory: Memory,
        unpatched: Mapping[int, StepPlan] | None = None,
        pixels: PixelReader | None = None,
    ) -> None:
        self.run = run
        self.versions = list(versions)
        self.unpatched = dict(unpatched or {})
        self.view = view
        self._samples, self._captions, self._memory = samples, captions, memory
        self._pixels, self._share = pixels, share or Share()
        self._planner = Planner(run, self.versions, self._share)

    def replaced(
        self, run: Run, versions: Sequence[OpenVersion], unpatched: Mapping[int, StepPlan]
    ) -> "BatchReader":
        """Return a reader of a patched run; memory and captions are shared."""
        return BatchReader(
            run,
            versions,
            share=self._share,
            samples=self._samples,
            captions=self._captions,
            view=self.view,
            memory=self._memory,
            unpatched=unpatched,
            pixels=self._pixels,
        )

    def begin(self, piece: Piece) -> Work:
        """Plan a piece, and give its batch memory.

        Raises:
            PlanError: A prefix is wanted of latents whose prefixes are not exact.
            IntegrityError: The index lists samples of several shapes or dtypes in one bucket.
        """
        version = self.versions[piece.segment]
        rows, placements, epochs = self._planner.plan(piece)
        first = placements[0]
        kinds = {(each.latent_shape, each.dtype, each.is_prefix_exact) for each in placements}
        if len(kinds) > 1:
            raise IntegrityError(
                f"step {piece.step}: bucket {first.bucket} of dataset version {version.version} "
                f"has latents of several kinds ({sorted(kinds)}): its index is damaged"
            )
        frames = self.view.frames(first.latent_shape[0])
        num_frames, decoding = first.latent_shape[0], None
        if self._pixels is not None:
            sources = version.sources(rows)
            decoding = self._pixels.begin(sources, frames, self._memory)
            frames, num_frames = decoding.frames, num_pixel_frames(num_frames)
        else:
            self._check_prefix(version, first)
        shape = (len(placements), 0 if decoding else len(frames), *first.latent_shape[1:])
        batch = Batch(
            piece=piece,
            bucket=first.bucket,
            clip_ids=[placement.clip_id for placement in placements],
            sample_ids=[placement.sample_id for placement in placements],
            latents_btchw=np.empty(shape, np.float32) if decoding else self._allocate(shape),
            scale_bc=np.ones((shape[0], shape[2]), np.float32),
            latent_dtype=first.dtype,
            frames=frames,
            num_frames=num_frames,
            captions=[""] * shape[0],
            variants=[""] * shape[0],
            streams=[placement.stream for placement in placements],
            epochs=epochs,
            columns={name: [_NOTHING] * shape[0] for name in self.view.columns},
            pixels_bthwc=decoding.pixels_bthwc if decoding else None,
        )
        return Work(batch, placements, self._skipped(piece, batch.sample_ids), decoding)

    def fill(self, work: Work, start: int, stop: int) -> None:
        """Read samples [start, stop) of a batch.

        Raises:
            IntegrityError: Bytes are wrong in the store itself; clip, shard and offset are named,
                and steps that the sample is served in.
            ObjectMissing: A shard or a caption pack is not in the store.
        """
        end = start  # of what was read the short way
        captions = self._captions.read_straight(work.placements[start:stop])
        for index in range(start, stop):
            try:
                if index >= end:
                    end = index + self._fill_straight(work, index, stop)
                if index >= end:
                    self._fill_one(work, index)
                if index - start < len(captions):
                    told = captions[index - start]
                else:
                    told = self._captions.read(work.placements[index])
                self._choose_caption(work, index, told)
            except WsdataError as error:
                self._explain(error, work, index)
                raise

    def _fill_straight(self, work: Work, start: int, stop: int) -> int:
        """Read latents the short way, where that may do; return how many samples were."""
        if work.decoding is not None or work.bytes_of_batch is None or self.view.columns:
            return 0
        num_bytes, width = work.sample_bytes, work.scale_bytes
        return self._samples.read_straight(
            work.placements[start:stop],
            work.batch.frames,
            work.bytes_of_batch[start * num_bytes : stop * num_bytes],
            work.bytes_of_scales[start * width : stop * width],
        )

    def _fill_one(self, work: Work, index: int) -> None:
        batch, placement = work.batch, work.placements[index]
        if work.decoding is not None:
            work.decoding.fill(index)
            columns = self._columns_alone(placement)
        else:
            columns = self._fill_latents(work, index)
        for name, array in columns.items():
            batch.columns[name][index] = array

    def _choose_caption(self, work: Work, index: int, captions: Mapping[str, str]) -> None:
        batch = work.batch
        if captions:
            piece = batch.piece
            variant = choose_variant(
                list(captions),
                seed=self.run.segments[piece.segment].plan.seed,
                step=piece.plan_step,
                slot=piece.first_slot + index,
            )
            batch.captions[index], batch.variants[index] = captions[variant], variant

    def _fill_latents(self, work: Work, index: int) -> dict[str, NDArray[Any]]:
        batch, placement = work.batch, work.placements[index]
        num_bytes = work.sample_bytes
        if work.bytes_of_batch is not None:
            codes = work.bytes_of_batch[index * num_bytes : (index + 1) * num_bytes]
        else:
            codes = self._samples.scratch("codes", num_bytes)
        scale = work.bytes_of_scales[index * work.scale_bytes : (index + 1) * work.scale_bytes]
        columns = self._samples.read(placement, batch.frames, codes, scale, self.view.columns)
        if work.bytes_of_batch is None:
            codes_tchw = np.frombuffer(codes, np.uint8).reshape(batch.latents_btchw.shape[1:])
            dequantize(
                codes_tchw, batch.scale_bc[index], placement.dtype, batch.latents_btchw[index]
            )
        return columns

    def _columns_alone(self, placement: Placement) -> dict[str, NDArray[Any]]:
        """Read a sample's other columns; its latents go along, as one digest covers all."""
        if not self.view.columns:
            return {}
        codes = self._samples.scratch("codes", placement.columns["latents"].length)
        scale = self._samples.scratch("scale", placement.columns["scale"].length)
        frames = range(placement.latent_shape[0])
        return self._samples.read(placement, frames, codes, scale, self.view.columns)

    def _allocate(self, shape: tuple[int, ...]) -> NDArray[Any]:
        dtype = np.dtype(np.uint8 if self.view.latents == "stored" else np.float32)
        num_bytes = math.prod(shape) * dtype.itemsize
        return self._memory.take(num_bytes).view(dtype).reshape(shape)

    def _check_prefix(self, version: OpenVersion, placement: Placement) -> None:
        wanted, num_frames = self.view.max_frames, placement.latent_shape[0]
        if wanted is None or wanted >= num_frames or placement.is_prefix_exact:
            return
        raise PlanError(
            f"max_frames {wanted}: bucket {placement.bucket} of dataset version {version.version} "
            f"has {num_frames} latent frames of tokenizer {placement.tokenizer_version}, whose "
            "first frames are not what a shorter clip would give: read whole samples, or put "
            "buckets of fewer frames into the recipe"
        )

    def _skipped(self, piece: Piece, sample_ids: list[str]) -> list[Skipped]:
        plan = self.unpatched.get(piece.segment)
        if plan is None:
            return []
        draws = plan.draws(piece.plan_step, first_slot=piece.first_slot, end_slot=piece.end_slot)
        before = self.versions[piece.segment].placements(plan.rows_of(draws).tolist())
        return [
            Skipped(piece.step, piece.first_slot + index, old.sample_id, new)
            for index, (old, new) in enumerate(zip(before, sample_ids, strict=True))
            if old.sample_id != new
        ]

    def _explain(self, error: WsdataError, work: Work, index: int) -> None:
        """Say which step wanted a sample, and which ones will; of a lost shard, all its steps."""
        piece = work.batch.piece
        wanted = f"wanted by step {piece.step}, slot {piece.first_slot + index}"
        try:
            what, steps = self._needed_by(error, work, index)
        except WsdataError as other:  # the index is damaged, too
            error.add_note(f"{wanted}; which other steps need it cannot be told: {other}")
            return
        named = steps[:_NUM_STEPS_NAMED]
        listed = ", ".join(str(step - piece.plan_step + piece.step) for step in named)
        more = " and later ones" if len(steps) > _NUM_STEPS_NAMED else ""
        error.add_note(f"{wanted}; {what} is for steps {listed}{more}")

    def _needed_by(self, error: WsdataError, work: Work, index: int) -> tuple[str, list[int]]:
        """What is amiss, and the next steps of the plan that need it."""
        piece, limit = work.batch.piece, _NUM_STEPS_NAMED + 1
        if isinstance(error, ObjectMissing):
            shard = work.placements[index].shard
            version = self.versions[piece.segment]
            return "its shard", version.steps_of_shard(shard, piece.plan_step, limit)
        plan, slot = self.run.segments[piece.segment].plan, piece.first_slot + index
        rows = plan.rows_of(plan.draws(piece.plan_step, first_slot=slot, end_slot=slot + 1))
        return "its sample", plan.steps_of_rows(rows, piece.plan_step, limit)


def tokens_of(opened: OpenVersion) -> Tokens:
    """What the latents of a dataset version are, as the root of its index tells.

    Raises:
        PlanError: They are of several kinds.
    """
    kinds = [(kind.tokenizer_version, kind.dtype) for kind in opened.index.root.kinds]
    return one_tokens(opened.version, kinds)


_NOTHING = np.empty(0, np.uint8)
