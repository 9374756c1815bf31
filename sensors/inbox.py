"""Reports of trainers: where some lie in the inbox, a run takes them in and follows the runs.

A tick looks whether there is one, and no more; taking in is the run's. What a report is belongs to
`wsdata.loader.inbox`.
"""

import time

import dagster as dg

from resources.blob_store import BlobStoreResource
from sensors.jobs import follow_runs
from wsdata.loader.inbox import first_waiting

INTERVAL_S = 60
RETRY_S = 600.0  # a run that failed is requested again for the same reports after so long


@dg.sensor(
    job=follow_runs,
    minimum_interval_seconds=INTERVAL_S,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Looks for what training runs told of served steps and of their loaders.",
)
def inbox_sensor(
    context: dg.SensorEvaluationContext, blob_store: BlobStoreResource
) -> dg.RunRequest | dg.SkipReason:
    """Request one run for whatever lies in the inbox, and not a second one meanwhile."""
    key = first_waiting(blob_store.open())
    if key is None:
        return dg.SkipReason("no report lies in the inbox")
    # What was taken in is gone, so that the same first key means the same reports.
    return dg.RunRequest(run_key=f"inbox:{key}:{time.time() // RETRY_S:.0f}")
