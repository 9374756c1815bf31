"""Deliveries: a new folder with its marker becomes a partition and a run, or is refused.

Known drops are the partitions. The cursor holds what was refused and the time of its marker,
so that a repaired drop is looked at again; a cursor over names would miss drops that arrive out
of order.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import dagster as dg

from assets import partitions
from assets.ingest import DELIVERIES
from resources.deployments import DeploymentResource
from sensors.jobs import process_drop
from wsdata.ingest.delivery import check_drop, media_files, ready_drops

MAX_DROPS_PER_TICK = 100  # a tick answers within the code server's 60 s
NONE_REFUSED = "none_refused"


def observation(landing: Path, name: str, faults: list[str]) -> dg.AssetObservation:
    """What was seen of one folder, with every fault listed."""
    files = media_files(landing / name)
    listed = "\n".join(f"- {fault}" for fault in faults)
    return dg.AssetObservation(
        DELIVERIES,
        partition=name,
        description="refused" if faults else "accepted",
        metadata={
            "accepted": not faults,
            "num_faults": len(faults),
            "faults": dg.MetadataValue.md(listed or "none"),
            "num_files": len(files),
            "size_bytes": sum((landing / name / path).stat().st_size for path in files),
            "folder": dg.MetadataValue.path(str(landing / name)),
        },
    )


def refusal_check(refused: Mapping[str, object]) -> dg.AssetCheckEvaluation:
    """The headline over all deliveries. Partitioned evaluations outside runs break Dagster."""
    return dg.AssetCheckEvaluation(
        asset_key=DELIVERIES,
        check_name=NONE_REFUSED,
        passed=not refused,
        description=f"{len(refused)} refused" if refused else "none refused",
        metadata={"refused": dg.MetadataValue.json(sorted(refused))},
    )


@dg.sensor(
    job=process_drop,
    minimum_interval_seconds=10,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks for delivery folders with a _READY marker in the landing zone.",
)
def ready_drops_sensor(
    context: dg.SensorEvaluationContext, deployment: DeploymentResource
) -> dg.SensorResult | dg.SkipReason:
    """Take new drops in, refuse broken ones as a whole, look at repaired ones again."""
    landing = Path(deployment.open().landing)
    refused: dict[str, int] = json.loads(context.cursor or "{}")
    known = set(context.instance.get_dynamic_partitions(_name(partitions.drops)))
    ready = {name: at for name, at in ready_drops(landing).items() if name not in known}
    still_refused = {name: at for name, at in refused.items() if ready.get(name) == at}
    new = [name for name in ready if name not in still_refused][:MAX_DROPS_PER_TICK]
    if not new and still_refused == refused:
        return dg.SkipReason(
            f"nothing new; refused and waiting for repair: {', '.join(sorted(refused)) or 'none'}"
        )
    faults = {name: check_drop(landing / name) for name in new}
    accepted = [name for name in new if not faults[name]]
    still_refused |= {name: ready[name] for name in new if faults[name]}
    requests = [partitions.deliveries.build_add_request(new)] if new else []
    if accepted:
        requests.append(partitions.drops.build_add_request(accepted))
    return dg.SensorResult(
        dynamic_partitions_requests=requests,
        run_requests=[
            dg.RunRequest(run_key=f"drop:{name}", partition_key=name, tags={"wsdata/drop": name})
            for name in accepted
        ],
        asset_events=[
            *(observation(landing, name, faults[name]) for name in new),
            refusal_check(still_refused),
        ],
        cursor=json.dumps(still_refused, sort_keys=True),
    )


def _name(definition: dg.DynamicPartitionsDefinition) -> str:
    return definition.name or ""
