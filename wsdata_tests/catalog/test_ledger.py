import threading

import polars as pl
import pytest

from wsdata import tables
from wsdata.catalog.ledger import Ledger
from wsdata.catalog.objects import read_object, read_table
from wsdata.catalog.restate import restate
from wsdata.errors import CatalogError, IntegrityError, ObjectMissing
from wsdata.records import Fact, ObjectRef, Order, Report

DROPS = [f"licensed.acme.20261101.{n:03d}" for n in range(1, 4)]


@pytest.fixture
def ledger(ledger_url):
    return Ledger(ledger_url)


def _order(partition=DROPS[0], *, content="a", version="1", made=("clips",)):
    order = Order(
        stage="s", step="t", partition=partition, code_version=version,
        params={"content": content}, inputs={}, tables=tuple(made),
    )  # fmt: skip
    objects = {
        table: ObjectRef(
            table=table, partition=partition, version=version, version_digest="d",
            sha256=f"{table}-{content}", num_rows=1,
        )
        for table in made
    }  # fmt: skip
    return order, objects


def _report(order, objects, facts=()):
    return Report(order_digest=order.digest, version_digest="d", objects=objects, facts=list(facts))


def _commit(ledger, *args, facts=(), **options):
    order, objects = _order(*args, **options)
    return ledger.commit(order, _report(order, objects, facts))


def _live(ledger, **options):
    return [ref.sha256 for ref in ledger.live("clips", **options)]


def test_reads_as_of_a_commit_give_what_was_live_then(ledger):
    states = [_live(ledger)]
    for partition, content in ((DROPS[0], "a"), (DROPS[1], "b"), (DROPS[0], "c"), (DROPS[2], "d")):
        _commit(ledger, partition, content=content)
        states.append(_live(ledger))
    assert states[-1] == ["clips-c", "clips-b", "clips-d"]
    assert [_live(ledger, as_of=seq) for seq in range(5)] == states
    assert ledger.ever() == {f"clips-{c}" for c in "abcd"}
    assert ledger.verify_chain() is None


def test_tables_of_a_step_become_live_together(ledger):
    assert _commit(ledger, made=("clips", "gates")) == {"clips": True, "gates": True}
    assert ledger.seq == 1
    assert {ref.table for ref in ledger.all_objects(as_of=1)} == {"clips", "gates"}
    assert ledger.all_objects(as_of=0) == []


def test_the_same_order_twice_is_no_change_and_the_same_content_says_so(ledger):
    _commit(ledger, facts=[Fact(kind="quarantine", subject="x", body={})])
    assert _commit(ledger) == {"clips": False}
    assert ledger.seq == 1
    order, _ = _order(content="b")
    assert ledger.commit(order, _report(order, _order()[1])) == {"clips": False}
    assert ledger.order_digest_of("clips", DROPS[0], "1") == order.digest


def test_the_version_committed_last_is_the_one_read(ledger):
    _commit(ledger, version="2", content="new")
    _commit(ledger, version="1", content="back")
    assert _live(ledger) == ["clips-back"]
    assert _live(ledger, version="2") == ["clips-new"]
    assert [ref.version for ref in ledger.versions("clips", DROPS[0])] == ["2", "1"]
    newest = ledger.newest("clips")
    assert newest is not None
    assert newest.version == "1"
    assert ledger.newest("gates") is None


def test_a_report_of_another_order_or_without_a_table_commits_nothing(ledger):
    order, objects = _order(made=("clips", "gates"))
    with pytest.raises(CatalogError, match="answers order"):
        ledger.commit(order, _report(_order(content="b")[0], objects))
    with pytest.raises(CatalogError, match="reported"):
        ledger.commit(order, _report(order, {"clips": objects["clips"]}))
    assert ledger.seq == 0


def test_the_present_is_the_newest_fact_that_is_not_withdrawn(ledger):
    for number, body in enumerate(({"n": 1}, {"n": 2}, {"withdrawn": True}, {"n": 4}), 1):
        assert ledger.state([Fact(kind="pin", subject="v1", body=body)], step="s") == number
    presents = [ledger.present("pin", as_of=seq) for seq in range(5)]
    assert presents == [{}, {"v1": {"n": 1}}, {"v1": {"n": 2}}, {}, {"v1": {"n": 4}}]
    assert [seq for seq, _ in ledger.facts("pin")] == [1, 2, 3, 4]


def test_writers_of_one_order_make_one_commit(ledger_url):
    ledgers = [Ledger(ledger_url) for _ in range(4)]
    threads = [threading.Thread(target=_commit, args=(each,)) for each in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledgers[0].seq == 1
    assert len(ledgers[0].all_objects()) == 1


def test_who_adds_to_what_was_stated_undoes_no_other(ledger_url):
    ledgers = [Ledger(ledger_url) for _ in range(4)]
    subjects = [f"run-{number}" for number in range(3)]

    def add(ledger):
        def more(bodies):
            return [
                Fact(kind="sum", subject=each, body={"n": bodies.get(each, {}).get("n", 0) + 1})
                for each in subjects
            ]

        for _ in range(3):
            restate(ledger, "sum", subjects, more, step="s")

    threads = [threading.Thread(target=add, args=(each,)) for each in ledgers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ledgers[0].present("sum") == {each: {"n": 12} for each in subjects}
    assert restate(ledgers[0], "sum", ["run-0", "never"], lambda _: [], step="s") is None
    assert ledgers[0].seq == 12
    assert ledgers[0].verify_chain() is None


def test_rows_are_read_whole_or_not_at_all(home):
    ref = home.ledger.live("clips")[0]
    assert read_object(home.store, ref).height == ref.num_rows
    parts = [home.rows("clips", each.partition) for each in home.ledger.live("clips")]
    assert home.rows("clips").equals(pl.concat(parts))
    nothing = read_table(home.ledger, home.store, "clips", "nowhere")
    assert nothing.equals(tables.empty("clips"))
    home.store.delete(ref.key)
    with pytest.raises(ObjectMissing, match="wsdata fsck"):
        read_object(home.store, ref)
    home.store.put(ref.key, b"other")
    with pytest.raises(IntegrityError, match=f"clips of {ref.partition}"):
        read_object(home.store, ref)
