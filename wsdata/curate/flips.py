"""Mirror images: which samples of a cut are mirrored, and which of them must never be.

Latents cannot be mirrored, so a mirrored sample is one of its own, encoded from mirrored pixels.
A stream asks for them (``flips``). What is no longer true of a mirror image is not mirrored, and
what is not known counts as not true: text that was seen in the picture, or that nobody looked
for; actions, which steer to one side; captions that name a side. Whether a sample of a stream of
``half`` is mirrored follows from its id alone, so that no seed and no other sample changes it.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import polars as pl

from wsdata import tables
from wsdata.curate.samples import Sample
from wsdata.recipe import Stream

MIRRORED = "mirrored"
ACTIONS, TEXT = "actions", "text on screen"
UNREAD, SIDED = "text never looked for", "caption names a side"

# English words whose sense turns round in a mirror. "right" in any sense counts: a few samples
# that could have been mirrored cost nothing, a wrong one teaches the wrong word.
# Compounds count too (topleft, leftwing, left_side); words that have it by chance do not. Rows and
# windows end in w as wrights do, so those are told by the letter before.
_SIDES = re.compile(
    r"(?<![a-z])(?!(?:[a-z]*(?:b|f|copy|(?<!o)w)|a|up|out|down|forth|birth)right|cleft)"
    r"[a-z]*(?:left|right)(?!over|eous|ful|ly(?![a-z])|ness)"
    r"|clockwise|(?<![a-z])c?cw(?![a-z])",
    re.IGNORECASE,
)


class Mirrored(NamedTuple):
    """Samples with their mirror images.

    `counts` holds, by (stream, outcome), the samples that a stream wants mirrored: `MIRRORED`, or
    why they are not.
    """

    samples: list[Sample]
    counts: Counter[tuple[str, str]]


def names_a_side(text: str) -> bool:
    """Whether a caption names left or right, or a sense of rotation."""
    return _SIDES.search(text) is not None


def unfit_clips(
    clips: pl.DataFrame,
    streams: Mapping[str, Stream],
    overlays: Iterable[pl.DataFrame],
    captions: Iterable[pl.DataFrame],
) -> dict[str, str]:
    """Clips of which no mirror image may be made, and why: the first reason that applies.

    Args:
        clips: With ``clip_id``, ``stream`` and ``has_actions``.
        streams: The recipe's streams; clips of those that want no mirror images are not looked at.
        overlays: Rows of ``overlay_scores`` of any drops: one that saw text is enough.
        captions: Rows of ``captions`` of any drops; captions of whatever version count.
    """
    asking = sorted(name for name, stream in streams.items() if stream.flips != "none")
    carrying = [name for name in asking if streams[name].actions]
    clips = clips.filter(pl.col("stream").is_in(asking)).select("clip_id", "stream", "has_actions")
    if clips.is_empty():
        return {}
    seen = _text_seen(clips, overlays)
    acted = clips.filter(pl.col("has_actions") & pl.col("stream").is_in(carrying))
    found = {
        SIDED: _sided(clips, captions),
        UNREAD: clips.join(seen, on="clip_id", how="anti")["clip_id"],
        TEXT: seen.filter(pl.col("text_seen") > 0)["clip_id"],
        ACTIONS: acted["clip_id"],
    }
    return {clip: why for why, hit in found.items() for clip in hit}


def _text_seen(clips: pl.DataFrame, overlays: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """Of each clip where text was looked for: the largest share of a picture that it takes.

    Not ``text_share``, which gates: that leaves out what is large, single or hard to read.
    """
    return (
        pl.concat([tables.empty("overlay_scores"), *overlays])
        .filter(
            (pl.col("score_name") == "text_seen")
            & (pl.col("status") == "ok")
            & pl.col("score").is_not_nan()
        )
        .join(clips, on="clip_id", how="semi")
        .group_by("clip_id")
        .agg(pl.col("score").max().alias("text_seen"))
        .drop_nulls()
    )


def _sided(clips: pl.DataFrame, captions: Iterable[pl.DataFrame]) -> list[str]:
    told = (
        pl.concat([tables.empty("captions"), *captions])
        .filter((pl.col("status") == "ok") & pl.col("text").is_not_null())
        .join(clips, on="clip_id", how="semi")
    )
    return [clip for clip, text in told["clip_id", "text"].iter_rows() if names_a_side(text)]


def mirror_samples(
    samples: Sequence[Sample], streams: Mapping[str, Stream], unfit: Mapping[str, str]
) -> Mirrored:
    """Mirror samples as their streams ask.

    Args:
        samples: Plain ones; each stays, or is replaced by its mirror image (``half``), or gets
            one beside it (``both``).
        streams: The recipe's streams.
        unfit: As `unfit_clips` tells.

    Returns:
        The samples, sorted by id, and what became of those that were to be mirrored.
    """
    made: list[Sample] = []
    counts: Counter[tuple[str, str]] = Counter()
    for sample in samples:
        flips = streams[sample.stream].flips
        is_wanted = flips == "both" or (flips == "half" and _falls_to_mirror(sample))
        outcome = unfit.get(sample.clip_id, MIRRORED) if is_wanted else None
        if outcome is not None:
            counts[sample.stream, outcome] += 1
        if outcome != MIRRORED or flips == "both":
            made.append(sample)
        if outcome == MIRRORED:
            made.append(sample._replace(variant="flip"))
    return Mirrored(sorted(made, key=lambda sample: sample.sample_id), counts)


def _falls_to_mirror(sample: Sample) -> bool:
    """Whether a plain sample is of the half that is mirrored."""
    name = sample.sample_id.encode()
    return bool(hashlib.blake2b(name, digest_size=1, person=b"wsdata-mirror").digest()[0] & 1)
