"""The drop sensor: takes good folders in, refuses broken ones whole, looks at repaired ones."""

import json
import os
from collections import Counter

import dagster as dg
import pytest

from assets import partitions
from assets.ingest import none_refused, none_waiting
from resources import deployments
from sensors.drops import (
    MAX_DROPS_PER_TICK,
    MAX_NAMES_PER_TICK,
    MAX_REFUSED_PER_TICK,
    TICK_S,
    Cursor,
    Look,
    ready_drops_sensor,
)
from wsdata.ingest.landing import FolderLanding
from wsdata_tests.graph.graph_support import DROP, ROOT, make_drop_folder

BROKEN = "crawl.web.20261101.001"


@pytest.fixture
def site(tmp_path):
    home = tmp_path / "home"
    make_drop_folder(home / "landing", DROP)
    resources = deployments.bundle(ROOT, home)
    with dg.DagsterInstance.ephemeral() as instance:
        yield home / "landing", resources, instance


def tick(resources, instance, cursor=None):
    context = dg.build_sensor_context(
        instance=instance,
        cursor=cursor,
        resources={"deployment": resources["deployment"]},
        definitions=None,
    )
    found = ready_drops_sensor(context)
    if isinstance(found, dg.SensorResult):
        for request in found.dynamic_partitions_requests:  # as the daemon does
            instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
    return found


def added(found, definition):
    return [
        key
        for request in found.dynamic_partitions_requests
        if request.partitions_def_name == definition.name
        for key in request.partition_keys
    ]


def check_of(found):
    (check,) = [e for e in found.asset_events if isinstance(e, dg.AssetCheckEvaluation)]
    return check


def test_a_ready_folder_becomes_a_partition_and_a_run(site):
    _, resources, instance = site
    found = tick(resources, instance)
    assert [r.partition_key for r in found.run_requests] == [DROP]
    assert added(found, partitions.drops) == added(found, partitions.deliveries) == [DROP]
    assert check_of(found).passed
    assert isinstance(tick(resources, instance, found.cursor), dg.SkipReason)


def test_a_folder_without_marker_waits(site):
    landing, resources, instance = site
    (landing / DROP / "_READY").unlink()
    assert isinstance(tick(resources, instance), dg.SkipReason)


def test_a_broken_drop_is_refused_with_every_fault(site):
    landing, resources, instance = site
    folder = make_drop_folder(landing, BROKEN)
    (folder / "drop.toml").write_text('source_tier = "licensed"\nsource = "web"\n')
    (folder / "notes.docx").write_bytes(b"x")
    found = tick(resources, instance)
    assert [r.partition_key for r in found.run_requests] == [DROP]
    assert added(found, partitions.drops) == [DROP]
    (seen,) = [
        e
        for e in found.asset_events
        if isinstance(e, dg.AssetObservation) and e.partition == BROKEN
    ]
    told = seen.metadata["faults"].value
    assert seen.metadata["accepted"].value is False
    assert "no license_id" in told
    assert "notes.docx" in told
    assert seen.metadata["num_faults"].value == told.count("\n") + 1
    check = check_of(found)
    assert not check.passed
    assert check.metadata["refused"].value == [BROKEN]
    assert check.partition is None  # a partitioned one outside a run stops every later tick


def test_a_refused_drop_is_looked_at_again_when_its_marker_changes(site):
    landing, resources, instance = site
    folder = make_drop_folder(landing, BROKEN.replace("crawl", "licensed"))
    good = (folder / "drop.toml").read_text()
    (folder / "drop.toml").write_text("")
    first = tick(resources, instance)
    assert folder.name in json.loads(first.cursor)["refused"]
    waiting = tick(resources, instance, first.cursor)
    assert isinstance(waiting, dg.SkipReason)
    assert folder.name in waiting.skip_message
    (folder / "drop.toml").write_text(good)
    assert isinstance(tick(resources, instance, first.cursor), dg.SkipReason)
    os.utime(folder / "_READY", ns=(1, 1))
    repaired = tick(resources, instance, first.cursor)
    assert [r.partition_key for r in repaired.run_requests] == [folder.name]
    assert check_of(repaired).passed
    assert json.loads(repaired.cursor)["refused"] == {}


def test_a_refused_drop_that_goes_away_is_forgotten(site):
    landing, resources, instance = site
    folder = make_drop_folder(landing, BROKEN)
    first = tick(resources, instance)
    (folder / "_READY").unlink()
    second = tick(resources, instance, first.cursor)
    assert check_of(second).passed
    assert json.loads(second.cursor)["refused"] == {}


def test_a_tick_is_bounded(site):
    landing, resources, instance = site
    for at in range(2, MAX_DROPS_PER_TICK + 5):
        make_drop_folder(landing, f"licensed.films.20261101.{at:03d}", num_files=0)
    first = tick(resources, instance)
    assert len(first.run_requests) == MAX_DROPS_PER_TICK
    second = tick(resources, instance, first.cursor)
    assert len(second.run_requests) == 4
    keys = [r.partition_key for found in (first, second) for r in found.run_requests]
    assert keys == sorted(set(keys))


# a landing zone of thousands of drops ------------------------------------------------------------


class CountedLanding(FolderLanding):
    """A folder that counts what is asked of it."""

    def __init__(self, root):
        super().__init__(root)
        self.counts = Counter()

    def folders(self, **asked):
        names = super().folders(**asked)
        self.counts.update(lists=1, names=len(names))
        return names

    def marker(self, drop):
        self.counts["markers"] += 1
        return super().marker(drop)

    def files(self, drop):
        self.counts["drops"] += 1
        return super().files(drop)


class Ticks:
    """The sensor's looks, one after the other; each is held to its bounds."""

    def __init__(self, root):
        self.zone, self.cursor = CountedLanding(root), Cursor()
        self.known, self.num_ticks = set(), 0

    def tick(self):
        self.zone.counts.clear()
        seen = Look(self.zone, self.cursor, self.known.intersection)
        counts = self.zone.counts
        assert counts["lists"] <= 2
        assert counts["names"] <= MAX_NAMES_PER_TICK
        assert counts["markers"] <= MAX_DROPS_PER_TICK
        assert counts["drops"] <= MAX_DROPS_PER_TICK
        self.num_ticks += 1
        self.cursor = Cursor.read(seen.cursor.write())
        accepted = {name for name, found in seen.new.items() if not found.faults}
        assert not accepted & self.known, "no drop is taken twice"
        self.known |= accepted
        return seen

    def until(self, is_done, most):
        for _ in range(most):
            if is_done():
                return
            self.tick()
        assert is_done()


def bare_drop(landing, key, *, is_good=True):
    folder = landing / key
    folder.mkdir(parents=True)
    tier, source, *_ = key.split(".")
    if is_good:
        stated = f'source_tier = "{tier}"\nsource = "{source}"\nlicense_id = "x"\n'
        (folder / "drop.toml").write_text(stated)
    (folder / "_READY").touch()
    return folder


def test_ticks_reach_every_drop_of_a_large_zone_and_stay_bounded(tmp_path):
    names = [f"licensed.films.20261101.{at:04d}" for at in range(2500)]
    bad = set(names[::100])
    for name in names:
        bare_drop(tmp_path, name, is_good=name not in bad)
    ticks = Ticks(tmp_path)
    at_least = MAX_DROPS_PER_TICK - MAX_REFUSED_PER_TICK  # new ones that a tick has time for
    ticks.until(lambda: ticks.known == set(names) - bad, most=len(names) // at_least + 2)
    assert set(ticks.cursor.refused) == bad
    # late ones, on either side of wherever the next tick goes on
    round_s = len(names) // MAX_NAMES_PER_TICK + 2
    late = {"crawl.web.20261102.001", "licensed.films.20261101.12345", "synthetic.x.20261102.001"}
    for name in late:
        bare_drop(tmp_path, name)
    ticks.until(lambda: late <= ticks.known, most=round_s)
    # repaired ones, and those that were taken away
    repaired, gone, *_ = sorted(bad)
    (tmp_path / repaired / "drop.toml").write_text((tmp_path / names[1] / "drop.toml").read_text())
    os.utime(tmp_path / repaired / "_READY", ns=(1, 1))
    (tmp_path / gone / "_READY").unlink()
    ticks.until(
        lambda: repaired in ticks.known and gone not in ticks.cursor.refused,
        most=len(bad) // MAX_REFUSED_PER_TICK + 1,
    )
    assert set(ticks.cursor.refused) == bad - {repaired, gone}
    for _ in range(round_s):
        assert not ticks.tick().new, "nothing is left to see"


def test_a_zone_full_of_refused_and_unfinished_folders_hides_no_good_one(tmp_path):
    for at in range(400):
        bare_drop(tmp_path, f"crawl.bad.20261101.{at:03d}", is_good=False)
        (tmp_path / f"licensed.open.20261101.{at:03d}").mkdir()
    ticks = Ticks(tmp_path)
    for _ in range(20):
        ticks.tick()
    assert len(ticks.cursor.refused) == 400
    bare_drop(tmp_path, "licensed.open.20261101.0333")
    ticks.until(lambda: bool(ticks.known), most=10)


def test_a_tick_that_takes_long_stops_and_goes_on_there(tmp_path):
    names = [f"licensed.films.20261101.{at:03d}" for at in range(50)]
    for name in names:
        bare_drop(tmp_path, name)
    zone, cursor, found = FolderLanding(tmp_path), Cursor(), []
    for _ in range(2):
        seconds = iter(range(1000))
        seen = Look(zone, cursor, set(found).intersection, clock=lambda s=seconds: next(s))
        assert 0 < len(seen.new) <= TICK_S
        cursor, found = seen.cursor, [*found, *seen.new]
    assert found == names[: len(found)]


def test_cursors_of_earlier_formats_begin_anew_or_are_understood(site):
    landing, resources, instance = site
    folder = make_drop_folder(landing, BROKEN)
    at = (folder / "_READY").stat().st_mtime_ns
    first = Cursor.read(json.dumps({BROKEN: at}))
    assert first == Cursor(refused={BROKEN: str(at)})
    found = tick(resources, instance, json.dumps({BROKEN: at}))
    assert [r.partition_key for r in found.run_requests] == [DROP], "the refused one is not new"
    assert json.loads(found.cursor)["format_version"] == 1
    for strange in ('{"format_version": 99, "x": 1}', "[1]", ""):
        assert Cursor.read(strange) == Cursor()


def test_the_checks_of_deliveries_name_what_is_wrong(site):
    landing, resources, _ = site
    make_drop_folder(landing, BROKEN)
    refused = none_refused(deployment=resources["deployment"], catalog=resources["catalog"])
    assert not refused.passed
    assert BROKEN in refused.description
    waiting = none_waiting(deployment=resources["deployment"], catalog=resources["catalog"])
    assert not waiting.passed
    assert DROP in waiting.description
