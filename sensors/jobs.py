"""Jobs: which steps run together, for one partition of one kind.

The main job runs them in the order in which they stand here; so does a person in the UI.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import dagster as dg

from assets.building import step_keys
from wsdata.orders import Step
from wsdata.steps import STEPS

AFTER_CENTROIDS = ("curate/cluster_assignments",)
CUT = ("curate/manifest",)
ABOUT_RUNS = ("loader/runs_served", "observability/realised_order")
ABOUT_THE_STORE = ("lifecycle/retention", "observability/costs", "observability/engine_mirror")


@dataclass(frozen=True, kw_only=True, slots=True)
class JobSpec:
    """One job: all steps of a partition kind, or some of them.

    `only` names the steps; without it all of the kind but those in `without`.
    """

    name: str
    partition: str
    description: str
    only: tuple[str, ...] = ()
    without: tuple[str, ...] = ()

    def steps(self, steps: Mapping[str, Step]) -> list[Step]:
        """Steps of the job, in flow order."""
        return [
            step
            for name, step in steps.items()
            if step.partition == self.partition
            and (name in self.only if self.only else name not in self.without)
        ]


PROCESS_DROP = JobSpec(
    name="process_drop",
    partition="drop",
    without=AFTER_CENTROIDS,
    description="Everything that one delivery goes through: land, decode, score, gate, label.",
)
FIT_CENTROIDS = JobSpec(
    name="fit_centroids",
    partition="centroids_version",
    description="Fit the centroids that clips are clustered by.",
)
ASSIGN_CLUSTERS = JobSpec(
    name="assign_clusters",
    partition="drop",
    only=AFTER_CENTROIDS,
    description="Put the clips of one drop into clusters.",
)
FIND_SEMANTIC_DUPLICATES = JobSpec(
    name="find_semantic_duplicates",
    partition="cluster_range",
    description="Of clips of one meaning, keep few: one range of clusters.",
)
CUT_MANIFEST = JobSpec(
    name="cut_manifest",
    partition="dataset_version",
    only=CUT,
    description="Evaluate a recipe against the catalog: the sample list of a dataset version.",
)
ENCODE_SHARDS = JobSpec(
    name="encode_shards",
    partition="shard_group",
    description="Encode one shard group: latents and caption packs.",
)
PUBLISH_VERSION = JobSpec(
    name="publish_version",
    partition="dataset_version",
    without=CUT,
    description="Index, plan, proof, snapshot and release gates of a dataset version.",
)
KEEP_HOUSE = JobSpec(
    name="keep_house",
    partition="none",
    without=(*ABOUT_THE_STORE, *ABOUT_RUNS),
    description="Reports over everything: takedowns, drift.",
)
FOLLOW_RUNS = JobSpec(
    name="follow_runs",
    partition="none",
    only=ABOUT_RUNS,
    description="What training runs were served, and whether their loaders keep up.",
)
REPORT_STORE = JobSpec(
    name="report_store",
    partition="none",
    only=ABOUT_THE_STORE,
    description="What the store holds: retention, costs, the mirror for other engines.",
)
JOB_SPECS = (
    PROCESS_DROP,
    FIT_CENTROIDS,
    ASSIGN_CLUSTERS,
    FIND_SEMANTIC_DUPLICATES,
    CUT_MANIFEST,
    ENCODE_SHARDS,
    PUBLISH_VERSION,
    KEEP_HOUSE,
    FOLLOW_RUNS,
    REPORT_STORE,
)


def build_job(spec: JobSpec, steps: Mapping[str, Step]):  # noqa: ANN201
    """Build the Dagster job of a spec."""
    keys = [key for step in spec.steps(steps) for key in step_keys(step)]
    return dg.define_asset_job(
        spec.name,
        dg.AssetSelection.assets(*keys),
        description=spec.description,
    )


jobs = {spec.name: build_job(spec, STEPS) for spec in JOB_SPECS}
process_drop = jobs[PROCESS_DROP.name]
follow_runs = jobs[FOLLOW_RUNS.name]
