"""Which clips are labelled, and what their frame packs hold.

Only clips that passed the gates and have a pack: nothing is spent on what a gate stopped.
"""

from collections.abc import Mapping
from typing import Any

from wsdata.label.engine import Frames
from wsdata.orders import StepRun
from wsdata.preprocess.filters.rows import read_blob
from wsdata.preprocess.framepack import FramePack, read_framepack


def kept_clips(run: StepRun) -> list[dict[str, Any]]:
    """Clips of the drop that passed the gates, best provisional tier first, then by id.

    Where several workers share the step, those of this one alone.

    Returns:
        Rows of ``clips`` with ``provisional_tier``, ``pack_key`` and ``pack_sha256``.
    """
    gates = run.read("gates").filter("passed").select("clip_id", "provisional_tier")
    packs = (
        run.read("frame_packs")
        .drop_nulls("key")
        .select("clip_id", pack_key="key", pack_sha256="sha256")
    )
    clips = (
        run.mine(run.read("clips"), "clip_id").join(gates, on="clip_id").join(packs, on="clip_id")
    )
    return clips.sort("provisional_tier", "clip_id", nulls_last=True).to_dicts()


def read_pack(run: StepRun, clip: Mapping[str, Any]) -> FramePack:
    """Read the frame pack of a row of `kept_clips`.

    Raises:
        ObjectMissing: The store has lost it.
        IntegrityError: Its bytes are not the recorded ones.
    """
    row = {"clip_id": clip["clip_id"], "key": clip["pack_key"], "sha256": clip["pack_sha256"]}
    return read_framepack(read_blob(run, row))


def read_colors(run: StepRun, clip: Mapping[str, Any]) -> Frames:
    """RGB frames of a clip's pack, in order of time; raises as `read_pack`."""
    return [frame.pixels for frame in read_pack(run, clip).colors]
