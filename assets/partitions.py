"""How assets are partitioned. Dagster does not check dynamic keys: `wsdata.ids` does."""

import dagster as dg

from wsdata.curate.semdedup import CLUSTER_RANGES

drops = dg.DynamicPartitionsDefinition(name="drops")
deliveries = dg.DynamicPartitionsDefinition(name="deliveries")  # every folder seen, refused or not
dataset_versions = dg.DynamicPartitionsDefinition(name="dataset_versions")
shard_groups = dg.DynamicPartitionsDefinition(name="shard_groups")
centroids_versions = dg.DynamicPartitionsDefinition(name="centroids_versions")
cluster_ranges = dg.StaticPartitionsDefinition(list(CLUSTER_RANGES))

BY_KIND: dict[str, dg.PartitionsDefinition | None] = {
    "drop": drops,
    "dataset_version": dataset_versions,
    "shard_group": shard_groups,
    "centroids_version": centroids_versions,
    "cluster_range": cluster_ranges,
    "none": None,
}
