"""The catalog at scale: lineage of a clip whose drop is unknown, the ledger's queries, writers.

Beside ours: the same question through Delta tables over the same objects, reading every drop's
raw assets as a catalog without a locator does, and the locator as rows in SQL.
"""

import argparse
import json
import shutil
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from benchmarks.catalog_made import FILTERS, VERSIONS, fill
from wsdata import tables
from wsdata.catalog.coverage import extend_locator, segments
from wsdata.catalog.ledger import Ledger
from wsdata.catalog.locator import drops_of_asset
from wsdata.catalog.objects import read_object
from wsdata.catalog.transfer import export_catalog, import_catalog, verify_catalog
from wsdata.digest import sha256_bytes
from wsdata.observability import mirror
from wsdata.observability.lineage import lineage_clip
from wsdata.orders import StepRun
from wsdata.records import Fact, ObjectRef, Order, Report
from wsdata.store import FolderStore
from wsdata_tests.catalog.ledger_writers import Writers, assert_all_landed
from wsdata_tests.cluster.postgres_server import running_postgres


class Taken(NamedTuple):
    """Median wall and processor time of some repeats, in milliseconds."""

    wall_ms: float
    cpu_ms: float


def timed(action: Callable[[], Any], repeats: int = 1) -> Taken:
    """Time an action."""
    walls, cpus = [], []
    for _ in range(repeats):
        begun, begun_cpu = time.perf_counter(), time.process_time()
        action()
        walls.append((time.perf_counter() - begun) * 1e3)
        cpus.append((time.process_time() - begun_cpu) * 1e3)
    return Taken(statistics.median(walls), statistics.median(cpus))


# lineage -----------------------------------------------------------------------------------------


def lineage(ledger: Ledger, store: FolderStore, clips: list[str]) -> dict[str, Any]:
    """Time one lineage call with the drop unknown, cold and warm, and what it is made of."""
    cover = timed(lambda: extend_locator(ledger, store, is_forced=True))
    num_bytes = {
        prefix: sum(size for _, size in store.list(prefix)) for prefix in ("tables/", "locator/")
    }
    opened = Ledger(ledger.url)
    told = lineage_clip(opened, store, clips[0])
    assert len(told["scores"]) == len(FILTERS)
    assert len(told["manifests"]) == len(VERSIONS)
    assert len(told["placements"]) == len(told["captions"]) == 1
    _drop_page_cache(store)
    cold = [timed(lambda clip=clip: lineage_clip(opened, store, clip)) for clip in clips[1:6]]
    warm = [timed(lambda clip=clip: lineage_clip(opened, store, clip), 7) for clip in clips]
    found = [timed(lambda clip=clip: drops_of_asset(opened, store, clip[:24]), 7) for clip in clips]
    held = segments(ledger).values()
    return {
        "cover_s": cover.wall_ms / 1e3,
        "tables_bytes": num_bytes["tables/"],
        "ledger_bytes": Path(ledger.database.engine.url.database or "").stat().st_size,
        "locator_bytes_per_asset": num_bytes["locator/"] / sum(each.num_rows for each in held),
        "locator_segments": len(held),
        "cold_ms_median": statistics.median(each.wall_ms for each in cold),
        "warm_ms_median": statistics.median(each.wall_ms for each in warm),
        "warm_ms_max": max(each.wall_ms for each in warm),
        "warm_cpu_ms_median": statistics.median(each.cpu_ms for each in warm),
        "locate_ms_median": statistics.median(each.wall_ms for each in found),
        "locate_cpu_ms_median": statistics.median(each.cpu_ms for each in found),
    }


def _drop_page_cache(store: FolderStore) -> None:
    """Have the kernel forget the store's pages, as after a restart."""
    import os

    for path in store.root.rglob("*.parquet"):
        handle = os.open(path, os.O_RDONLY)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def peers(ledger: Ledger, store: FolderStore, clip: str, home: Path) -> dict[str, Any]:
    """The same question without a locator, and through Delta tables over the same objects."""
    names = ("clips", "provenance", "captions", *(f"{name}_scores" for name in FILTERS))
    names = (*names, "manifests", "placements")
    refs = {name: ledger.live(name) for name in names}
    order = Order(
        stage="bench", step="mirror", partition="-", code_version="1", params={}, inputs=refs
    )
    mirror.run(StepRun(order, store))

    def delta() -> None:
        frames = [pl.scan_delta(str(store.root / "mirror" / name)) for name in names]
        wanted = [
            frame.filter(
                pl.col("asset_id").str.starts_with(clip[:24])
                if name == "provenance"
                else pl.col("clip_id") == clip
            )
            for name, frame in zip(names, frames, strict=True)
        ]
        assert all(rows.height for rows in pl.collect_all(wanted))

    def read_all() -> None:
        hits = [
            ref.partition
            for ref in ledger.live("raw_assets")
            if read_object(store, ref)["asset_id"].str.starts_with(clip[:24]).any()
        ]
        assert len(hits) == 1

    through_delta, every = timed(delta, 3), timed(read_all, 2)
    return {
        "delta_ms": through_delta.wall_ms,
        "delta_cpu_ms": through_delta.cpu_ms,
        "read_every_drop_ms": every.wall_ms,
        "read_every_drop_cpu_ms": every.cpu_ms,
        **_sql_locator(ledger, store, home, clip),
    }


def _sql_locator(ledger: Ledger, store: FolderStore, home: Path, clip: str) -> dict[str, Any]:
    path = home / "locator.db"
    path.unlink(missing_ok=True)
    base = sqlite3.connect(path, isolation_level=None)
    base.execute("CREATE TABLE locator (prefix INTEGER, drop_number INTEGER)")
    base.execute("BEGIN")
    begun = time.perf_counter()
    num_rows = 0
    for number, ref in enumerate(ledger.live("raw_assets")):
        ids = read_object(store, ref)["asset_id"]
        num_rows += len(ids)
        rows = [(int(each[:15], 16), number) for each in ids]
        base.executemany("INSERT INTO locator VALUES (?, ?)", rows)
    base.execute("CREATE INDEX locator_by_prefix ON locator (prefix)")
    base.execute("COMMIT")
    fill_s = time.perf_counter() - begun
    query = "SELECT drop_number FROM locator WHERE prefix = ?"
    found = timed(lambda: base.execute(query, (int(clip[:15], 16),)).fetchall(), 20)
    base.close()
    return {
        "sql_locator_fill_s": fill_s,
        "sql_locator_bytes_per_asset": path.stat().st_size / num_rows,
        "sql_locator_ms": found.wall_ms,
    }


# the ledger --------------------------------------------------------------------------------------


def ledger_queries(ledger: Ledger, names: list[str], num_drops: int) -> dict[str, float]:
    """Time what steps and commands ask of a ledger of many drops, in milliseconds."""
    middle, seq, name = f"licensed.acme.20261101.{num_drops // 2:05d}", num_drops // 2, names[3]
    asked: dict[str, Callable[[], Any]] = {
        "open_again": lambda: type(ledger.database)(ledger.database.engine.url).check(9.0),
        "live_of_one_drop": lambda: ledger.live(name, middle),
        "live_of_all_drops": lambda: ledger.live(name),
        "live_of_all_drops_as_of": lambda: ledger.live(name, as_of=seq),
        "newest": lambda: ledger.newest(name),
        "objects_of_one_drop": lambda: ledger.objects_of([middle]),
        "present_quarantine": lambda: ledger.present("quarantine"),
        "present_release": lambda: ledger.present("release"),
        "order_digest_of": lambda: ledger.order_digest_of(name, middle, "1"),
        "all_objects": ledger.all_objects,
        "verify": lambda: verify_catalog(ledger),
    }
    assert len(ledger.live(name)) == num_drops
    taken = {
        what: timed(action, 1 if what in ("all_objects", "verify") else 5)
        for what, action in asked.items()
    }
    return {f"{what}_ms": each.wall_ms for what, each in taken.items()} | {
        f"{what}_cpu_ms": each.cpu_ms for what, each in taken.items()
    }


def ledgers(home: Path, postgres_url: str, num_drops: int, num_tables: int) -> dict[str, Any]:
    """Fill a SQLite ledger commit by commit, move it to Postgres by a dump, and ask both."""
    names = sorted(tables.TABLES)[:num_tables]
    paths = home / "ledger.db", home / "dump.jsonl.gz"
    sqlite = Ledger(str(paths[0]))
    num_new = num_drops - sqlite.seq
    filled = timed(
        lambda: [
            _commit_drop(sqlite, f"licensed.acme.20261101.{number:05d}", names, number)
            for number in range(sqlite.seq, num_drops)
        ]
    )
    paths[1].unlink(missing_ok=True)
    dumped = timed(lambda: export_catalog(sqlite, paths[1]))
    postgres = Ledger(postgres_url)
    restored = timed(lambda: import_catalog(postgres, paths[1]))
    return {
        "drops": num_drops,
        "objects": num_drops * num_tables,
        "facts": 4 * num_drops,
        "sqlite_bytes": paths[0].stat().st_size,
        "commits_per_s_of_one_sqlite_writer": num_new / filled.wall_ms * 1e3,
        "export_s": dumped.wall_ms / 1e3,
        "import_into_postgres_s": restored.wall_ms / 1e3,
        "import_into_postgres_cpu_s": restored.cpu_ms / 1e3,
        "sqlite": ledger_queries(sqlite, names, num_drops),
        "postgres": ledger_queries(postgres, names, num_drops),
    }


def _commit_drop(ledger: Ledger, drop: str, names: list[str], number: int) -> None:
    order = Order(
        stage="bench", step="all", partition=drop, code_version="1", params={}, inputs={},
        tables=tuple(names),
    )  # fmt: skip
    objects = {
        name: ObjectRef(
            table=name, partition=drop, version="1", version_digest="d", num_rows=1000,
            sha256=sha256_bytes(f"{drop}{name}".encode()),
        )
        for name in names
    }  # fmt: skip
    subjects = [sha256_bytes(f"{drop}{n}".encode()) for n in range(3)]
    facts = [
        Fact(kind="quarantine", subject=each, body={"drop": drop, "reason": "could not be read"})
        for each in subjects
    ]
    facts.append(Fact(kind="release", subject=subjects[0], body={"number": number}))
    ledger.commit(
        order,
        Report(order_digest=order.digest, version_digest="d", objects=objects, facts=facts),
    )


def writers_per_s(url: str, count: int, num_writers: int = 8) -> float:
    """Commits a second of eight processes, once all of them write."""
    with Writers(url, num_writers, count) as writers:
        writers.wait_until_all_have_written()
        begun = time.perf_counter()
        done = Ledger(url).seq
        writers.finish()
        taken_s = time.perf_counter() - begun
    ledger = Ledger(url)
    assert_all_landed(ledger, num_writers, count)
    return (ledger.seq - done) / taken_s


@contextmanager
def folder(path: str | None) -> Iterator[Path]:
    """The folder named, which stays, or a temporary one, which goes."""
    if path is not None:
        yield Path(path)
        return
    made = Path(tempfile.mkdtemp(prefix="wsdata-catalog-"))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def filled(home: Path, num_clips: int, num_drops: int) -> tuple[Ledger, FolderStore, list[str]]:
    """The catalog that an earlier run left in a folder, or a new one."""
    kept = home / f"clips-{num_clips}-{num_drops}.json"
    if not kept.exists():
        kept.write_text(json.dumps(fill(home, num_clips, num_drops)[2]))
    clips = json.loads(kept.read_text())
    return Ledger(str(home / "catalog.db")), FolderStore(home / "store"), clips


def lineage_beside_peers(home: Path, num_clips: int, num_drops: int) -> dict[str, Any]:
    """Lineage, the same through its peers, and the ratios."""
    begun = time.perf_counter()
    ledger, store, clips = filled(home, num_clips, num_drops)
    fill_s = time.perf_counter() - begun
    ours, beside = lineage(ledger, store, clips), peers(ledger, store, clips[2], home)
    every = beside["read_every_drop_cpu_ms"] / ours["locate_cpu_ms_median"]
    return {
        "clips": num_clips,
        "drops": num_drops,
        "fill_s": fill_s,
        "ours": ours,
        "peers": beside,
        "delta_over_ours": beside["delta_ms"] / ours["warm_ms_median"],
        "delta_over_ours_cpu": beside["delta_cpu_ms"] / ours["warm_cpu_ms_median"],
        "read_every_drop_over_locate_cpu": every,
    }


def main() -> None:
    """Measure, and print JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=("writers", "ledger", "lineage"), help="one part")
    parser.add_argument("--clips", type=int, default=100_000)
    parser.add_argument("--drops", type=int, default=50, help="of those clips")
    parser.add_argument("--ledger-drops", type=int, default=300)
    parser.add_argument("--ledger-tables", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=20, help="of 3 commits, of each of 8 writers")
    parser.add_argument("--folder", help="keep the catalog there, and use the one that is there")
    args = parser.parse_args()
    found: dict[str, Any] = {}
    with folder(args.folder) as home, running_postgres(is_durable=True) as postgres:
        if args.only in (None, "writers"):
            found["writers_per_s"] = {
                "sqlite": writers_per_s(str(home / "writers.db"), args.rounds),
                "postgres": writers_per_s(postgres.make_database(), args.rounds),
            }
        if args.only in (None, "ledger"):
            size = args.ledger_drops, args.ledger_tables
            found["ledger"] = ledgers(home, postgres.make_database(), *size)
        if args.only in (None, "lineage"):
            found["lineage"] = lineage_beside_peers(home, args.clips, args.drops)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
