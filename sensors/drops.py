"""Deliveries: a new folder with its marker becomes a partition and a run, or is refused.

Known drops are the partitions. A tick looks at a bounded number of folders, whatever lies in the
landing zone, and goes on where the last one stopped, round and round: so drops that arrive late
or out of order are found too. The cursor holds that place, and what was refused with the stamp
of its marker: those are looked at again when it changes.
"""

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import dagster as dg

from assets import partitions
from assets.ingest import DELIVERIES
from resources.deployments import DeploymentResource
from sensors.jobs import process_drop
from wsdata.ingest.delivery import Inspection, inspect_drop
from wsdata.ingest.landing import LandingZone, open_landing

MAX_NAMES_PER_TICK = 1000  # names listed and asked whether they are known: one request of each
MAX_DROPS_PER_TICK = 100  # folders whose marker is looked at, and that are inspected if it is new
MAX_REFUSED_PER_TICK = MAX_DROPS_PER_TICK // 2  # of them, those looked at again
TICK_S = 20.0  # no drop is begun after this: a tick must answer within the code server's 60 s
NONE_REFUSED = "none_refused"
CURSOR_FORMAT = 1
MAX_SHOWN = 100


@dataclass(frozen=True, kw_only=True, slots=True)
class Cursor:
    """How far the sensor is: the last folder looked at, the last refused one, and all refused."""

    after: str = ""
    refused_after: str = ""
    refused: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, text: str | None) -> "Cursor":
        """Read a cursor; one of another format begins anew, which finds the same drops."""
        stated = json.loads(text or "{}")
        if not isinstance(stated, dict):
            return cls()
        if "format_version" not in stated:  # the first format: refused name -> nanoseconds
            return cls(refused={name: str(stamp) for name, stamp in stated.items()})
        if stated.pop("format_version") != CURSOR_FORMAT:
            return cls()
        return cls(**stated)

    def write(self) -> str:
        """The cursor as JSON."""
        stated = {"after": self.after, "refused_after": self.refused_after}
        return json.dumps(
            {"format_version": CURSOR_FORMAT, **stated, "refused": dict(self.refused)},
            sort_keys=True,
        )


class Look:
    """What one tick sees of the landing zone: a bounded part.

    Args:
        zone: The landing zone.
        cursor: Where the last look stopped.
        known_among: Tells which of some names are known drops.
        clock: Seconds that pass.

    Attributes:
        new: Drops that were inspected, in order.
        cursor: Where the next look goes on.
    """

    def __init__(
        self,
        zone: LandingZone,
        cursor: Cursor,
        known_among: Callable[[Sequence[str]], Collection[str]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._zone, self._clock, self._until_s = zone, clock, clock() + TICK_S
        self._num_looks = 0
        self._refused, self._seen = dict(cursor.refused), dict[str, Inspection]()
        refused_after = self._look_again(cursor)
        after = self._look_on(cursor, known_among)
        self.new = dict(sorted(self._seen.items()))
        self.cursor = Cursor(after=after, refused_after=refused_after, refused=self._refused)

    def _may_look(self, most: int) -> bool:
        return self._num_looks < most and self._clock() <= self._until_s

    def _stamp(self, name: str) -> str | None:
        self._num_looks += 1
        return self._zone.marker(name)

    def _inspect(self, name: str, stamp: str) -> None:
        found = self._seen[name] = inspect_drop(self._zone, name)
        self._refused.pop(name, None)
        if found.faults:
            self._refused[name] = stamp

    def _look_again(self, cursor: Cursor) -> str:
        """Look whether refused drops are repaired or gone; return the last one looked at."""
        after = cursor.refused_after
        for name in _in_turn(cursor.refused, after):
            if not self._may_look(MAX_REFUSED_PER_TICK):
                break
            after, stamp = name, self._stamp(name)
            if stamp is None:
                del self._refused[name]
            elif stamp != cursor.refused[name]:
                self._inspect(name, stamp)
        return after

    def _look_on(
        self, cursor: Cursor, known_among: Callable[[Sequence[str]], Collection[str]]
    ) -> str:
        """Look at the next folders; return the last one passed, or nothing to begin anew."""
        names, is_all = _names(self._zone, cursor.after)
        known = set(known_among(names)) | set(cursor.refused)
        after = cursor.after
        for name in names:
            if name not in known:
                if not self._may_look(MAX_DROPS_PER_TICK):
                    return after
                if (stamp := self._stamp(name)) is not None:
                    self._inspect(name, stamp)
            after = name
        return "" if is_all else after


def _in_turn(names: Collection[str], after: str) -> Iterator[str]:
    ordered = sorted(names)
    yield from (name for name in ordered if name > after)
    yield from (name for name in ordered if name <= after)


def _names(zone: LandingZone, after: str) -> tuple[list[str], bool]:
    """Names from a place on, round to it again; and whether they are all that there are."""
    names = zone.folders(after=after, limit=MAX_NAMES_PER_TICK)
    left = MAX_NAMES_PER_TICK - len(names)
    if not after or not left:
        return names, bool(left)
    again = zone.folders(limit=left)
    passed = [name for name in again if f"{name}/" <= f"{after}/"]
    return names + passed, len(passed) < left


def observation(zone: LandingZone, name: str, found: Inspection) -> dg.AssetObservation:
    """What was seen of one folder, with every fault listed."""
    listed = "\n".join(f"- {fault}" for fault in found.faults)
    return dg.AssetObservation(
        DELIVERIES,
        partition=name,
        description="refused" if found.faults else "accepted",
        metadata={
            "accepted": not found.faults,
            "num_faults": len(found.faults),
            "faults": dg.MetadataValue.md(listed or "none"),
            "num_files": len(found.media) + len(found.payloads),
            "size_bytes": found.size_bytes,
            "folder": dg.MetadataValue.path(zone.place(name)),
        },
    )


def refusal_check(refused: Collection[str]) -> dg.AssetCheckEvaluation:
    """The headline over all deliveries. Partitioned evaluations outside runs break Dagster."""
    return dg.AssetCheckEvaluation(
        asset_key=DELIVERIES,
        check_name=NONE_REFUSED,
        passed=not refused,
        description=f"{len(refused)} refused" if refused else "none refused",
        metadata={"refused": dg.MetadataValue.json(sorted(refused)[:MAX_SHOWN])},
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
    zone = open_landing(deployment.open().landing)
    before = Cursor.read(context.cursor)
    drops = partitions.drops.name or ""
    seen = Look(
        zone, before, lambda names: context.instance.get_existing_dynamic_partitions(drops, names)
    )
    refused = seen.cursor.refused
    if not seen.new and refused == before.refused:
        context.update_cursor(seen.cursor.write())
        waiting = ", ".join(sorted(refused)[:MAX_SHOWN])
        return dg.SkipReason(f"nothing new; refused and waiting for repair: {waiting or 'none'}")
    accepted = [name for name, found in seen.new.items() if not found.faults]
    requests = [partitions.deliveries.build_add_request(list(seen.new))] if seen.new else []
    if accepted:
        requests.append(partitions.drops.build_add_request(accepted))
    return dg.SensorResult(
        dynamic_partitions_requests=requests,
        run_requests=[
            dg.RunRequest(run_key=f"drop:{name}", partition_key=name, tags={"wsdata/drop": name})
            for name in accepted
        ],
        asset_events=[
            *(observation(zone, name, found) for name, found in seen.new.items()),
            refusal_check(refused),
        ],
        cursor=seen.cursor.write(),
    )
