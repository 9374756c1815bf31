"""From clips to samples: consecutive runs of frames at every rung that a phase asks for.

What happens to samples of a bucket that cannot fill a global batch belongs to `handdown`. Frames
are those of the stored rung; sizes are in its pixels and multiples of 16, centre-cropped where
the rung is not.
"""

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from wsdata.curate.centroids import hash_rank
from wsdata.ids import make_sample_id
from wsdata.recipe import Recipe

PATCH_PX = 16  # 8x8 spatial compression, then 2x2 patches
FRAMES_PER_LATENT = 4  # after the first frame


class Bucket(NamedTuple):
    """One tensor shape: rung, size in pixels, frames."""

    rung: str
    width_px: int
    height_px: int
    num_frames: int

    @property
    def name(self) -> str:
        """As tables spell it: ``<rung>/<width>x<height>/<frames>``."""
        return f"{self.rung}/{self.width_px}x{self.height_px}/{self.num_frames}"


class Sample(NamedTuple):
    """A run of frames of one rung of a clip, and the bucket that it is cropped for.

    `tail_frames` follow the sample and belong to no other; `phases` would draw it. `variant` is
    ``plain`` or ``flip``, as in its id.
    """

    clip_id: str
    stream: str
    phases: tuple[str, ...]
    bucket: Bucket
    start_frame: int
    tail_frames: int
    full_width_px: int
    full_height_px: int
    variant: str = "plain"

    @property
    def sample_id(self) -> str:
        """Its name in tables."""
        return make_sample_id(
            self.clip_id,
            rung=self.bucket.rung,
            start_frame=self.start_frame,
            num_frames=self.bucket.num_frames,
            variant=self.variant,
        )


def count_tokens(num_frames: int, width_px: int, height_px: int) -> int:
    """Latent tokens of a sample after 2x2 patches, for the 8x8x4 tokenizer geometry."""
    latent_frames = (num_frames - 1) // FRAMES_PER_LATENT + 1
    return latent_frames * (width_px // PATCH_PX) * (height_px // PATCH_PX)


def split_frames(num_frames: int, counts: Sequence[int]) -> list[tuple[int, int]]:
    """Cut a run of frames into consecutive samples, the longest first.

    Args:
        num_frames: Frames of the run.
        counts: Sample lengths that may be used.

    Returns:
        (start, length) of each sample, back to back from frame 0. What follows the last one
        is shorter than the shortest length.
    """
    cuts: list[tuple[int, int]] = []
    start = 0
    for count in sorted(set(counts), reverse=True):
        while start + count <= num_frames:
            cuts.append((start, count))
            start += count
    return cuts


def lengths_for(media_kind: str, counts: Sequence[int]) -> tuple[int, ...]:
    """Sample lengths of a kind of material: stills are one frame, and only they are."""
    return tuple(count for count in counts if (count == 1) == (media_kind == "image"))


def cut_samples(tracks: pl.DataFrame, recipe: Recipe) -> tuple[list[Sample], list[Sample]]:
    """Cut every rung of every clip into samples.

    Args:
        tracks: One row per clip and rung that some phase draws: ``clip_id, asset_id,
            media_kind, stream, phases`` (list of names), ``rung, num_frames, width_px,
            height_px``.
        recipe: Frame counts, and the cap of samples per raw asset.

    Returns:
        The samples, and those beyond the cap; each sorted by id.
    """
    found: list[Sample] = []
    asset_of: dict[str, str] = {}
    for row in tracks.sort("clip_id", "rung").iter_rows(named=True):
        width, height = (row[f"{side}_px"] // PATCH_PX * PATCH_PX for side in ("width", "height"))
        cuts = split_frames(
            row["num_frames"], lengths_for(row["media_kind"], recipe.samples.frame_counts)
        )
        used = sum(count for _, count in cuts) if min(width, height) else 0
        asset_of[row["clip_id"]] = row["asset_id"]
        for place, (start, count) in enumerate(cuts if used else ()):
            found.append(
                Sample(
                    clip_id=row["clip_id"],
                    stream=row["stream"],
                    phases=tuple(row["phases"]),
                    bucket=Bucket(row["rung"], width, height, count),
                    start_frame=start,
                    tail_frames=row["num_frames"] - used if place == len(cuts) - 1 else 0,
                    full_width_px=row["width_px"],
                    full_height_px=row["height_px"],
                )
            )
    found.sort(key=lambda sample: sample.sample_id)
    if recipe.samples.max_samples_per_asset:
        return _cap_per_asset(found, asset_of, recipe.samples.max_samples_per_asset, recipe.seed)
    return found, []


def _cap_per_asset(
    samples: list[Sample], asset_of: dict[str, str], cap: int, seed: int
) -> tuple[list[Sample], list[Sample]]:
    """At most `cap` samples of each raw asset, chosen by hash, and all others."""
    taken: dict[str, int] = {}
    kept: set[Sample] = set()
    for sample in sorted(samples, key=lambda s: (hash_rank(s.sample_id, seed), s.sample_id)):
        asset = asset_of[sample.clip_id]
        taken[asset] = taken.get(asset, 0) + 1
        if taken[asset] <= cap:
            kept.add(sample)
    return (
        [sample for sample in samples if sample in kept],
        [sample for sample in samples if sample not in kept],
    )


def sample_rows(samples: Sequence[Sample]) -> pl.DataFrame:
    """Samples as rows: names, bucket, crop within the transcode, variant, tokens."""
    return pl.DataFrame(
        [
            {
                "sample_id": sample.sample_id,
                "clip_id": sample.clip_id,
                "stream": sample.stream,
                "bucket": sample.bucket.name,
                "rung": sample.bucket.rung,
                "width_px": sample.bucket.width_px,
                "height_px": sample.bucket.height_px,
                "num_frames": sample.bucket.num_frames,
                "start_frame": sample.start_frame,
                "crop_x": (sample.full_width_px - sample.bucket.width_px) // 2,
                "crop_y": (sample.full_height_px - sample.bucket.height_px) // 2,
                "variant": sample.variant,
                "num_tokens": count_tokens(
                    sample.bucket.num_frames, sample.bucket.width_px, sample.bucket.height_px
                ),
            }
            for sample in samples
        ],
        schema={
            "sample_id": pl.String, "clip_id": pl.String, "stream": pl.String,
            "bucket": pl.String, "rung": pl.String, "width_px": pl.Int64, "height_px": pl.Int64,
            "num_frames": pl.Int64, "start_frame": pl.Int64, "crop_x": pl.Int64,
            "crop_y": pl.Int64, "variant": pl.String, "num_tokens": pl.Int64,
        },
    )  # fmt: skip


def cut_shorter(samples: Sequence[Sample], lengths: Sequence[int]) -> list[Sample]:
    """Cut samples again into given lengths, neighbours together and with what follows them.

    Returns:
        The new samples; fewer frames may be left over than in single cuts. Empty where no
        length fits.
    """
    new: list[Sample] = []
    runs: list[list[Sample]] = []
    for sample in sorted(samples, key=lambda s: (s.clip_id, s.start_frame)):
        last = runs[-1][-1] if runs else None
        if (
            last is not None
            and last.clip_id == sample.clip_id
            and last.start_frame + last.bucket.num_frames == sample.start_frame
        ):
            runs[-1].append(sample)
        else:
            runs.append([sample])
    for run in runs:
        room = sum(sample.bucket.num_frames for sample in run) + run[-1].tail_frames
        cuts = split_frames(room, lengths)
        used = sum(count for _, count in cuts)
        new += [
            run[0]._replace(
                bucket=run[0].bucket._replace(num_frames=count),
                start_frame=run[0].start_frame + start,
                tail_frames=room - used if place == len(cuts) - 1 else 0,
            )
            for place, (start, count) in enumerate(cuts)
        ]
    return new
