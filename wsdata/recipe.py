"""Recipes: the declaration that, evaluated against the catalog, gives a dataset version.

Loading, checking and digesting only. What each section does is told by the module that reads
it: gates and tiers by `preprocess.funnel`, samples and streams by `curate`, the tokenizer by
`shard.latents`, phases by `shard.plan`. The recipe that drives arriving drops is the operating
recipe; it is a recipe like any other.
"""

import dataclasses
import tomllib
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wsdata.declared import build
from wsdata.digest import digest
from wsdata.errors import RecipeError
from wsdata.ids import SOURCE_TIERS
from wsdata.tables import SAMPLED_RUNGS

FRAME_COUNTS_RULE = "4k + 1"
FLIPS = ("none", "half", "both")
HAND_DOWN_MOVES = ("fewer_frames", "smaller_rung", "crop")
MAX_TRIM_S = 0.5  # further ahead the detector cannot tell a flash from a cut
TIERS = ("T0", "T1", "T2", "T3")


@dataclass(frozen=True, kw_only=True, slots=True)
class Gates:
    """What drops a clip: technical failure and safety alone.

    The network's authors (open_nsfw, 2016) call 0.8 and more unsafe, and below 0.2 safe; grey and
    foggy pictures reach 0.47. Safety lists know no threshold here: they are the deployment's.
    """

    min_duration_s: float = 2.0  # the shortest training window
    max_error_share: float = 0.05  # decoding errors per decoded frame of the raw asset
    safety_max: float = 0.8  # of the median frame


@dataclass(frozen=True, kw_only=True, slots=True)
class Tiers:
    """How scores become a tier. The quality value lies in [0, 1]; see `preprocess.funnel`.

    Set on real clips of the samples: sharp footage of good contrast lies at 0.85 and above, soft or
    flat footage at 0.7 to 0.8, a frozen picture has no motion at all and one on a tripod with
    leaves or water 0.0002 to 0.0005.
    """

    t0_min: float = 0.82
    t1_min: float = 0.6
    t2_min: float = 0.4
    motion_low: float = 0.0004  # mean flow, share of the frame's width per 1/24 s; below: static
    motion_high: float = 0.05  # above: too fast to see
    jitter_max: float = 0.01  # change of the mean flow, same unit; above: shaky
    overlay_max_share: float = 0.02  # of the frame under text


@dataclass(frozen=True, kw_only=True, slots=True)
class Shots:
    """How sources are cut into shots: by our detector, or a network that comes with an extra."""

    engine: str = "looks"  # looks | transnetv2
    trim_s: float = 0.0  # what is shown within this of a cut is in no clip

    def __post_init__(self) -> None:
        if self.engine not in ("looks", "transnetv2"):
            raise RecipeError(f"shots.engine: {self.engine!r}, expected 'looks' or 'transnetv2'")
        if not 0 <= self.trim_s <= MAX_TRIM_S:
            raise RecipeError(f"shots.trim_s: {self.trim_s}, expected 0 to {MAX_TRIM_S} s")


@dataclass(frozen=True, kw_only=True, slots=True)
class Sound:
    """What listens for the spoken language: none, or a model that comes with an extra."""

    language: str = "none"  # none | whisper-base

    def __post_init__(self) -> None:
        if self.language not in ("none", "whisper-base"):
            raise RecipeError(
                f"sound.language: {self.language!r}, expected 'none' or 'whisper-base'"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Captions:
    """Which captions are made, and which captioner."""

    engine: str = "describer"
    variants: tuple[str, ...] = ("dense", "short")
    dense_tiers: tuple[str, ...] = TIERS
    endpoint: str = ""
    model: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Embeddings:
    """What turns a clip's frames into a vector. `weights` is a local folder, where needed."""

    engine: str = "imagenet"  # imagenet | siglip
    weights: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Decontamination:
    """When a clip counts as a copy of eval material."""

    max_hash_distance: int = 31
    min_matched_frames: int = 2
    min_cosine: float = 0.95


@dataclass(frozen=True, kw_only=True, slots=True)
class SemanticDedup:
    """Clusters of like meaning, and how many representatives a tight group keeps."""

    clusters: int = 0  # 0: follows from the number of clips
    sample_size: int = 200_000
    min_cosine: float = 0.93
    keep_per_group: int = 1
    centroids_version: str = ""  # empty: a cut fits its own


@dataclass(frozen=True, kw_only=True, slots=True)
class Rights:
    """What a licence must allow for a clip to be admitted at the as-of date."""

    licenses: tuple[str, ...] = ()  # empty: all that are not refused
    refused_licenses: tuple[str, ...] = ()
    territories: tuple[str, ...] = ("world",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Samples:
    """From clip to samples, and what happens to a bucket that cannot fill a global batch."""

    frame_counts: tuple[int, ...] = (1, 33, 65, 121)
    global_batch: int = 4
    batch_of_bucket: dict[str, int] = field(default_factory=dict[str, int])
    hand_down: tuple[str, ...] = HAND_DOWN_MOVES
    min_bucket_samples: int = 0  # 0: the bucket's global batch
    max_samples_per_asset: int = 0  # 0: no cap

    def __post_init__(self) -> None:
        for count in self.frame_counts:
            if count < 1 or count % 4 != 1:
                raise RecipeError(f"samples.frame_counts: {count} is not {FRAME_COUNTS_RULE}")
        if unknown := set(self.hand_down) - set(HAND_DOWN_MOVES):
            raise RecipeError(
                f"samples.hand_down: unknown moves {sorted(unknown)}; known are {HAND_DOWN_MOVES}"
            )
        if self.global_batch < 1:
            raise RecipeError(f"samples.global_batch: {self.global_batch} is not positive")


@dataclass(frozen=True, kw_only=True, slots=True)
class Tokenizer:
    """What turns pixels into latents. `weights` is a local folder, for engines that have one."""

    engine: str = "analytic"
    dtype: str = "fp8"
    weights: str = ""

    def __post_init__(self) -> None:
        if self.dtype not in ("fp8", "int8"):
            raise RecipeError(f"tokenizer.dtype: {self.dtype!r}, expected 'fp8' or 'int8'")


@dataclass(frozen=True, kw_only=True, slots=True)
class Shards:
    """Physical layout of latents."""

    max_bytes: int = 268_435_456
    samples_per_group: int = 20_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Shuffle:
    """Whether samples near each other in an epoch come from few blocks of the training index.

    `block` samples stay together, and a window of them is shuffled among itself: less is read of
    the index, and mixing reaches no further than the window. 0 and 0: a pool is mixed as a whole.
    """

    block: int = 0
    window: int = 0

    def __post_init__(self) -> None:
        if (self.block, self.window) == (0, 0):
            return
        if self.block < 1 or self.window < self.block or self.window % self.block:
            raise RecipeError(
                f"shuffle: block {self.block}, window {self.window}: expected a window that is a "
                "multiple of the block, or neither"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """One weighted part of the mixture: source tiers x domains x modality."""

    modality: str = "video"  # video | image
    source_tiers: tuple[str, ...] = ("licensed", "crawl", "synthetic")
    domains: tuple[str, ...] = ()  # empty: all
    generated: bool = False  # model-generated material only; other streams admit none of it
    audio: bool = False  # samples carry sound where it was kept
    needs_audio: bool = False  # admits only clips whose sound was kept
    actions: bool = False  # samples carry actions where a track was kept
    needs_actions: bool = False  # admits only clips whose track was kept
    flips: str = "none"  # none | half (of the samples, mirrored) | both (copies beside them)
    max_epochs: float = 0.0  # 0: no cap
    multiplier: float = 1.0

    def __post_init__(self) -> None:
        if self.modality not in ("video", "image"):
            raise RecipeError(f"stream modality {self.modality!r}: expected 'video' or 'image'")
        if self.flips not in FLIPS:
            raise RecipeError(f"stream flips {self.flips!r}: expected one of {', '.join(FLIPS)}")
        timed = {"audio": self.audio or self.needs_audio}
        timed["actions"] = self.actions or self.needs_actions
        if self.modality == "image" and (asked := [name for name, is_so in timed.items() if is_so]):
            raise RecipeError(f"a stream of images asks for {' and '.join(asked)}: it has no time")
        if unknown := set(self.source_tiers) - set(SOURCE_TIERS):
            raise RecipeError(
                f"stream source_tiers: unknown {sorted(unknown)}; known are {SOURCE_TIERS}"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """A range of steps with its own rungs, tiers and weights (shares of latent tokens)."""

    name: str
    steps: int
    rungs: tuple[str, ...]
    tiers: tuple[str, ...]
    weights: dict[str, float]

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise RecipeError(f"phase {self.name!r}: steps {self.steps} is not positive")
        if not self.weights or min(self.weights.values()) < 0 or sum(self.weights.values()) <= 0:
            raise RecipeError(f"phase {self.name!r}: weights {self.weights} have no positive sum")
        if unknown := set(self.tiers) - set(TIERS):
            raise RecipeError(f"phase {self.name!r}: unknown tiers {sorted(unknown)}")
        if unknown := set(self.rungs) - set(SAMPLED_RUNGS):
            raise RecipeError(
                f"phase {self.name!r}: unknown rungs {sorted(unknown)}; made are "
                f"{', '.join(SAMPLED_RUNGS)} (those ending in 48 at 48 frames a second)"
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One declaration. See the module docstring for who reads which section."""

    name: str
    seed: int = 0
    gates: Gates = field(default_factory=Gates)
    tiers: Tiers = field(default_factory=Tiers)
    embeddings: Embeddings = field(default_factory=Embeddings)
    shots: Shots = field(default_factory=Shots)
    sound: Sound = field(default_factory=Sound)
    captions: Captions = field(default_factory=Captions)
    decontamination: Decontamination = field(default_factory=Decontamination)
    semantic_dedup: SemanticDedup = field(default_factory=SemanticDedup)
    rights: Rights = field(default_factory=Rights)
    samples: Samples = field(default_factory=Samples)
    tokenizer: Tokenizer = field(default_factory=Tokenizer)
    shards: Shards = field(default_factory=Shards)
    shuffle: Shuffle = field(default_factory=Shuffle)
    streams: dict[str, Stream] = field(default_factory=dict[str, Stream])
    phases: tuple[Phase, ...] = ()
    versions: dict[str, str] = field(default_factory=dict[str, str])  # table -> pinned version

    def __post_init__(self) -> None:
        names = [phase.name for phase in self.phases]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise RecipeError(f"phases {twice} are declared twice")
        for phase in self.phases:
            if unknown := set(phase.weights) - set(self.streams):
                raise RecipeError(
                    f"phase {phase.name!r} weighs unknown streams {sorted(unknown)}; "
                    f"declared are {sorted(self.streams)}"
                )

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-able form that `recipe_from` reads."""
        return dataclasses.asdict(self)

    @property
    def digest(self) -> str:
        """Digest over the whole declaration."""
        return digest(self.to_json())


def recipe_from(data: Mapping[str, Any]) -> Recipe:
    """Build a recipe from plain data.

    Raises:
        RecipeError: An unknown or missing key, a wrong type, an impossible value; it is named.
    """
    return typing.cast("Recipe", build(Recipe, data, "recipe", refuse=RecipeError))


def load_recipe(path: Path) -> Recipe:
    """Read a recipe file (TOML).

    Raises:
        RecipeError: There is no such file, it is not TOML, or it is not a recipe.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(f"no recipe at {path}") from None
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{path} is not TOML: {error}") from error
    try:
        return recipe_from(data)
    except RecipeError as error:
        error.add_note(f"in {path}")
        raise
