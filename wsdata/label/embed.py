"""Clip embeddings: one unit vector and a few tags per clip, from its frame pack.

The vector is the renormalised mean over the pack's colour frames. Tags always come from the
embedded image network, whichever engine makes the vector.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from wsdata import tables
from wsdata.digest import canonical_json
from wsdata.errors import RecipeError
from wsdata.label.engine import Frames
from wsdata.label.packs import kept_clips, read_colors
from wsdata.orders import Input, Step, StepResult, StepRun

MODEL_VERSION = "clip-mean-1"
NUM_TAGS = 5
_TAGS_PER_FRAME = 20  # so that a tag that is second in every frame is not lost
_DECIMALS = 6

Tags = list[tuple[str, float]]


class Embedder(Protocol):
    """Turns pictures into unit vectors. `version` names network and weights."""

    version: str

    def embed(self, frames: Frames) -> tuple[NDArray[np.float32], list[Tags] | None]:
        """Return unit vectors, one row per frame, and tags per frame where the engine has any."""
        ...


class ImagenetEmbedder:
    """The embedded network: EfficientNet-Lite0, 1280 numbers, and its classes as tags."""

    def __init__(self) -> None:
        from wsdata.media.imagenet import EMBEDDING_VERSION

        self.version = EMBEDDING_VERSION

    def embed(self, frames: Frames) -> tuple[NDArray[np.float32], list[Tags] | None]:
        """Embed and tag every frame."""
        from wsdata.media.imagenet import embed_frames

        return embed_frames(frames, num_tags=_TAGS_PER_FRAME)


class SiglipEmbedder:
    """A SigLIP- or CLIP-class image tower from a local folder, through transformers.

    Raises:
        RecipeError: There is no such folder, or transformers is not installed.
    """

    def __init__(self, weights: str) -> None:
        folder = Path(weights)
        if not (folder / "config.json").is_file():
            raise RecipeError(
                f"embeddings.weights: {weights!r} has no config.json; expected a local folder of a "
                "SigLIP-class model in the transformers layout"
            )
        try:
            import torch
            from transformers import (  # pyright: ignore[reportMissingImports]
                AutoImageProcessor,
                AutoModel,
            )
        except ImportError as error:
            raise RecipeError(
                "embeddings.engine 'siglip' needs transformers and torch (pip install "
                "transformers); or set embeddings.engine to 'imagenet'"
            ) from error
        self.version = f"siglip-{folder.name}-{_weights_digest(folder)}"
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self._processor: Any = AutoImageProcessor.from_pretrained(folder, local_files_only=True)
        model: Any = AutoModel.from_pretrained(folder, local_files_only=True)
        self._model: Any = model.eval().to(self._device)

    def embed(self, frames: Frames) -> tuple[NDArray[np.float32], list[Tags] | None]:
        """Embed every frame; this engine has no tags."""
        import torch
        from PIL import Image

        pictures = [Image.fromarray(frame) for frame in frames]
        inputs = self._processor(images=pictures, return_tensors="pt").to(self._device)
        with torch.inference_mode():
            found = self._model.get_image_features(**inputs)
            # transformers 5 wraps the vectors in an output object, 4 returns them bare
            vectors = getattr(found, "pooler_output", found)
            unit = torch.nn.functional.normalize(vectors.float(), dim=-1)
        return unit.cpu().numpy(), None


def _weights_digest(folder: Path) -> str:
    state = hashlib.sha256()
    for path in sorted([*folder.glob("*.json"), *folder.glob("*.safetensors")]):
        state.update(path.name.encode())
        with path.open("rb") as handle:
            while chunk := handle.read(1 << 22):
                state.update(chunk)
    return state.hexdigest()[:8]


def build_embedder(params: Mapping[str, Any]) -> Embedder:
    """Open the engine that a recipe's embeddings section names.

    Raises:
        RecipeError: It is unknown, or its weights are not there.
    """
    if params["engine"] == "imagenet":
        return ImagenetEmbedder()
    if params["engine"] == "siglip":
        return SiglipEmbedder(params["weights"])
    raise RecipeError(f"embeddings.engine: {params['engine']!r}, expected 'imagenet' or 'siglip'")


def mean_unit_vector(vectors_nd: NDArray[np.float32]) -> list[float]:
    """Renormalised mean of unit vectors, rounded so that it prints and stores alike."""
    mean_d = vectors_nd.astype(np.float64).mean(axis=0)
    norm = float(np.sqrt(np.square(mean_d).sum()))
    return np.round(mean_d / max(norm, 1e-12), _DECIMALS).astype(np.float32).tolist()


def mean_tags(tags_of_frames: Sequence[Tags]) -> Tags:
    """Tags of a clip: the share of each, averaged over all frames, best first."""
    sums: dict[str, float] = defaultdict(float)
    for tags in tags_of_frames:
        for name, share in tags:
            sums[name] += share
    shares = [(name, round(total / len(tags_of_frames), 4)) for name, total in sums.items()]
    return sorted(shares, key=lambda tag: (-tag[1], tag[0]))[:NUM_TAGS]


def run(run: StepRun) -> StepResult:
    """Embed and tag every clip of a drop that passed the gates."""
    embedder = build_embedder(run.params["embeddings"])
    tagger = ImagenetEmbedder()
    clips = kept_clips(run)
    records: list[dict[str, Any]] = []
    for done, clip in enumerate(clips, start=1):
        records.append(_embed_clip(run, clip, embedder, tagger))
        run.progress(done, len(clips), clip["clip_id"])
    return StepResult(
        tables={"clip_embeddings": tables.rows_of("clip_embeddings", records)},
        metrics={"clips": len(records)},
        display={
            "clip_embeddings": {
                "clips": {"type": "int", "raw_value": len(records)},
                "tags": {"type": "md", "raw_value": _tags_table(records)},
            }
        },
    )


def _embed_clip(
    run: StepRun, clip: Mapping[str, Any], embedder: Embedder, tagger: Embedder
) -> dict[str, Any]:
    def compute() -> dict[str, Any]:
        frames = read_colors(run, clip)
        vectors_nd, tags = embedder.embed(frames)
        if tags is None:
            tags = tagger.embed(frames)[1] or []
        return {"vector": mean_unit_vector(vectors_nd), "tags": mean_tags(tags)}

    length_s = clip["duration_s"] or 0.0
    found = run.unit(
        f"{clip['clip_id']}/{clip['pack_sha256']}/{embedder.version}",
        compute,
        amounts=lambda _: {"media_s": length_s},
    )
    return {
        "clip_id": clip["clip_id"],
        "asset_id": clip["asset_id"],
        "vector": found["vector"],
        "model_version": embedder.version,
        "tags_json": canonical_json(found["tags"]),
    }


def _tags_table(records: Sequence[Mapping[str, Any]]) -> str:
    counts: dict[str, int] = defaultdict(int)
    for record in records:
        counts[_best_tag(record["tags_json"])] += 1
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:15]
    lines = ["| best tag | clips |", "|---|---|", *(f"| {name} | {n} |" for name, n in ranked)]
    return "\n".join(lines)


def _best_tag(tags_json: str) -> str:
    tags = json.loads(tags_json)
    return tags[0][0] if tags else "none"


STEP = Step(
    stage="label",
    name="clip_embeddings",
    function="wsdata.label.embed:run",
    code_version=MODEL_VERSION,
    partition="drop",
    assets={"clip_embeddings": ("clip_embeddings",)},
    inputs=(Input(table="gates"), Input(table="clips"), Input(table="frame_packs")),
    pool="encode",
    units_of="clips",
    params_of=lambda recipe: {"embeddings": asdict(recipe.embeddings)},
    settings_of=lambda deployment, _: {"num_threads": deployment.num_threads},
    description=(
        "One unit vector per clip that passed the gates, the mean over its frame pack, and the "
        "classes that the image network sees in it."
    ),
)
