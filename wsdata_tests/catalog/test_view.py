import threading
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wsdata.catalog.ledger import Ledger
from wsdata.catalog.presence import ONE_BY_ONE, Presence, finished, made_by
from wsdata.catalog.view import LedgerView, all_live, present_of_drop
from wsdata.digest import digest, sha256_bytes
from wsdata.errors import NotReady
from wsdata.orders import build_order
from wsdata.recipe import Recipe
from wsdata.records import Fact, ObjectRef, Order, Report, SharedRefs
from wsdata.steps import STEPS
from wsdata_tests.lifecycle import fabricated

TABLES = ("clips", "gates")
PARTITIONS = ("a", "b", "c")
VERSIONS = ("1", "2")
KINDS = ("release", "pin")


def commit(ledger, tables, partition, version, content, facts=()):
    order = Order(
        stage="s", step="t", partition=partition, code_version=version,
        params={"content": content}, inputs={}, tables=tuple(tables),
    )  # fmt: skip
    objects = {
        table: ObjectRef(
            table=table, partition=partition, version=version, version_digest=f"d{content}",
            sha256=f"{table}-{partition}-{content}", num_rows=content,
        )
        for table in tables
    }  # fmt: skip
    report = Report(order_digest=order.digest, version_digest="d", objects=objects, facts=[*facts])
    ledger.commit(order, report)


def answers(ledger, as_of=None):
    """Everything that a view may be asked, of small names."""
    told = [ledger.seq]
    for table, version in product((*TABLES, "unknown"), (None, *VERSIONS)):
        told.append(ledger.live(table, version=version, as_of=as_of))
        told.append(list(all_live(ledger, table, version=version, as_of=as_of)))
        told.append(ledger.newest(table, version=version, as_of=as_of))
        told.append(ledger.live(table, ("c", "a"), version=version, as_of=as_of))
        for partition in PARTITIONS:
            told.append(ledger.live(table, partition, version=version, as_of=as_of))
            told.append(ledger.versions(table, partition, as_of=as_of))
            told.append(ledger.order_digest_of(table, partition, version or "1"))
    for kind in KINDS:
        told.append(list(ledger.present(kind, as_of=as_of).items()))
        told.extend(
            list(present_of_drop(ledger, kind, drop, as_of=as_of).items()) for drop in PARTITIONS
        )
    return told


BODIES = st.fixed_dictionaries(
    {"drop": st.sampled_from((*PARTITIONS, None))}, optional={"withdrawn": st.sampled_from((True,))}
)
FACTS = st.builds(Fact, kind=st.sampled_from(KINDS), subject=st.sampled_from("xyz"), body=BODIES)
ACTIONS = st.one_of(
    st.tuples(
        st.just("commit"), st.sets(st.sampled_from(TABLES), min_size=1).map(sorted),
        st.sampled_from(PARTITIONS), st.sampled_from(VERSIONS), st.integers(0, 3),
        st.lists(FACTS, max_size=2),
    ),
    st.tuples(st.just("state"), st.lists(FACTS, max_size=3)),
    st.tuples(st.just("ask")),
)  # fmt: skip


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    folder, numbers = tmp_path_factory.mktemp("histories"), iter(range(10**6))
    return lambda: Ledger(str(folder / f"{next(numbers)}.db"))


def act(ledger, action):
    if action[0] == "commit":
        commit(ledger, *action[1:])
    elif action[0] == "state":
        ledger.state(action[1], step="s")


@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(actions=st.lists(ACTIONS, max_size=12), as_of=st.integers(0, 12))
def test_a_view_says_what_the_ledger_says(histories, actions, as_of):
    ledger = histories()
    view, eager = LedgerView(ledger), LedgerView(ledger)
    for action in actions:
        act(ledger, action)
        if action[0] == "ask":
            view.renew()
            assert answers(view) == answers(ledger)
        eager.renew()
    assert view.renew() == eager.renew() == ledger.seq
    assert answers(view) == answers(eager) == answers(LedgerView(ledger)) == answers(ledger)
    assert answers(view, as_of) == answers(ledger, as_of)


def test_a_view_on_either_database(ledger_url):
    ledger = Ledger(ledger_url)
    view = LedgerView(ledger)
    assert answers(view) == answers(ledger)
    for content, version in ((1, "1"), (2, "2"), (3, "1"), (4, "1")):
        commit(ledger, TABLES, "a", version, content)
        commit(ledger, TABLES[:1], "b", version, content)
        view.renew()
        assert answers(view) == answers(ledger)


def test_a_view_stays_as_it_was_until_it_is_renewed(ledger_url):
    ledger = Ledger(ledger_url)
    commit(ledger, TABLES, "a", "1", 1)
    view = LedgerView(ledger)
    before = answers(view)
    commit(ledger, TABLES, "a", "1", 2, [Fact(kind="pin", subject="x", body={})])
    assert answers(view) == before
    assert view.seq == 1
    assert view.renew() == view.seq == 2
    assert answers(view) == answers(ledger)
    assert [ref.num_rows for ref in view.live("clips", as_of=1)] == [1]


def test_what_came_and_went_between_two_looks_is_gone(ledger_url):
    ledger = Ledger(ledger_url)
    view = LedgerView(ledger)
    assert view.seq == 0
    for content in (1, 2, 3):
        commit(ledger, TABLES, "a", "1", content)
    view.renew()
    assert [ref.num_rows for ref in view.versions("clips", "a")] == [3]
    assert answers(view) == answers(ledger)


def test_what_a_view_writes_it_sees(ledger_url):
    view = LedgerView(Ledger(ledger_url))
    commit(view, TABLES, "a", "1", 1)
    assert [ref.partition for ref in view.live("clips")] == ["a"]
    seq = view.state([Fact(kind="pin", subject="v1", body={"n": 1})], step="s")
    assert view.present("pin") == {"v1": {"n": 1}}
    assert view.seq == seq == 2


def test_a_view_whose_list_was_changed_gives_another(ledger_url):
    view = LedgerView(Ledger(ledger_url))
    commit(view, TABLES, "a", "1", 1)
    view.live("clips").clear()
    view.present("pin")["x"] = {}
    assert len(view.live("clips")) == 1
    assert view.present("pin") == {}


def test_threads_ask_a_view_while_others_commit(tmp_path):
    ledger = Ledger(str(tmp_path / "catalog.db"))
    view, num_commits, faults = LedgerView(ledger), 40, []

    def write():
        for content in range(num_commits):
            commit(ledger, TABLES, "abc"[content % 3], "1", content)

    def ask():
        try:
            while view.renew() < num_commits:
                # Both tables change in one commit: none is seen without the other.
                (newest,) = {view.newest(table).num_rows for table in TABLES if view.seq} or {0}
                assert newest < num_commits
        except (AssertionError, ValueError, RuntimeError, AttributeError) as error:
            faults.append(error)

    threads = [threading.Thread(target=target) for target in (write, ask)]
    threads += [threading.Thread(target=lambda: [view.live(t) for t in TABLES * 50])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert answers(view) == answers(ledger)


# orders ------------------------------------------------------------------------------------------


def order_of(step, partition, ledger, deployment, **options):
    try:
        return build_order(
            step, partition, ledger=ledger, deployment=deployment, recipe=Recipe(name="test"),
            **options,
        )  # fmt: skip
    except NotReady as error:
        return str(error)


PARTITIONS_OF = {
    "drop": (fabricated.A, fabricated.B),
    "dataset_version": ("v1", "v2"),
    "shard_group": ("v1.0000",),
    "centroids_version": ("c1",),
    "cluster_range": ("range-0",),
    "none": ("all",),
}


def test_orders_of_all_steps_are_the_same(home):
    """Built from the view, from the ledger, and without what the digest leaves out."""
    ledger, num_built = home.ledger, 0
    released = {"drop": fabricated.B, "subject": "x"}
    ledger.state([Fact(kind="release", subject="x", body=released)], step="test")
    view = LedgerView(ledger)
    for step in STEPS.values():
        for partition, as_of in product(PARTITIONS_OF[step.partition], (None, ledger.seq, 3)):
            ask = {"deployment": home.deployment, "as_of": as_of}
            wanted = order_of(step, partition, ledger, **ask)
            assert order_of(step, partition, view, **ask) == wanted
            asked = order_of(step, partition, view, **ask, is_for_work=False)
            if isinstance(wanted, str):
                assert asked == wanted
                continue
            num_built += 1
            assert digest_by_the_book(wanted) == wanted.digest == asked.digest
            assert asked.version_digest == wanted.version_digest
            assert Order.from_json(wanted.to_json()) == wanted
    assert num_built > len(STEPS) / 2


def digest_by_the_book(order):
    inputs = {
        table: [[ref.partition, ref.sha256] for ref in refs] for table, refs in order.inputs.items()
    }
    return digest(
        {
            "format": 1, "step": f"{order.stage}/{order.step}", "partition": order.partition,
            "code_version": order.code_version, "params": order.params, "inputs": inputs,
            "facts": order.facts,
        }
    )  # fmt: skip


@given(names=st.lists(st.text(max_size=5), max_size=4), tables=st.lists(st.text(max_size=3)))
def test_a_shared_list_is_spelled_like_any_other(names, tables):
    refs = [
        ObjectRef(table="t", partition=name, version="1", version_digest=name, sha256=name * 2,
                  num_rows=1)
        for name in names
    ]  # fmt: skip
    order = Order(
        stage="s", step="t", partition="p", code_version="1", params={"b": 1.5, "a": "\u00e9"},
        inputs=dict.fromkeys(tables, refs),
    )  # fmt: skip
    shared = replace(order, inputs=dict.fromkeys(tables, SharedRefs(refs)))
    assert shared == order
    assert shared.digest == order.digest == digest_by_the_book(order)
    assert shared.version_digest == order.version_digest
    assert shared.to_json() == order.to_json()


# the store ---------------------------------------------------------------------------------------


class Bucket:
    """A store of names that is no folder, and counts what it is asked."""

    address = "s3://somewhere"

    def __init__(self, keys):
        self.keys, self.asked, self.listed = set(keys), [], []

    def size(self, key):
        self.asked.append(key)
        return 1 if key in self.keys else None

    def list(self, prefix):
        self.listed.append(prefix)
        yield from ((key, 1) for key in sorted(self.keys) if key.startswith(prefix))


def refs_of(count, table="costs"):
    return [
        ObjectRef(table=table, partition="p", version="1", version_digest="d",
                  sha256=sha256_bytes(f"{n}".encode()), num_rows=1)
        for n in range(count)
    ]  # fmt: skip


def test_few_objects_are_asked_for_singly_and_once():
    refs = refs_of(20)
    bucket = Bucket(ref.key for ref in refs[1:])
    presence = Presence(bucket, asks_blobs=False)
    assert [ref for ref in refs if presence.is_lost(ref)] == refs[:1]
    assert [ref for ref in refs if presence.is_lost(ref)] == refs[:1]
    assert bucket.asked == [*(ref.key for ref in refs), refs[0].key]
    assert bucket.listed == []


def test_many_objects_are_looked_for_in_listings():
    refs = refs_of(3000)
    gone = [*refs[:3], *refs[-3:]]
    bucket = Bucket(ref.key for ref in refs if ref not in gone)
    bucket.keys.add(refs[-1].key + ".part")  # another object, though its name begins alike
    presence = Presence(bucket, asks_blobs=False)
    assert [ref for ref in refs if presence.is_lost(ref)] == gone
    assert len(bucket.asked) == ONE_BY_ONE + 3
    assert len(set(bucket.listed)) == len(bucket.listed) <= 256
    bucket.keys.add(gone[-1].key)  # put after the listing, by a run
    assert not presence.is_lost(gone[-1])
    assert presence.is_lost(gone[0])


def test_a_lost_blob_is_found_where_blobs_are_asked_for(home):
    (ref,) = home.ledger.live("placements", "v1.0000")
    presence = Presence(home.store)
    assert not presence.is_lost(ref)
    key = home.rows("placements")["shard_key"][0]
    home.store.delete(key)
    assert Presence(home.store).is_lost(ref)
    assert not Presence(home.store, asks_blobs=False).is_lost(ref)
    home.store.delete(ref.key)
    assert Presence(home.store, asks_blobs=False).is_lost(ref)


def test_an_order_is_done_by_what_was_seen(home):
    ledger, store = home.ledger, home.store
    home.run_step(STEPS["lifecycle/takedowns"], "all")
    view, presence = LedgerView(ledger), Presence(store)
    order = order_of(STEPS["lifecycle/takedowns"], "all", view, home.deployment, is_for_work=False)
    done = finished(order, ledger, store)
    assert done is not None
    assert made_by(order, view, presence) == made_by(order, ledger, presence) == done.objects
    store.delete(done.objects["takedowns"].key)
    assert finished(order, ledger, store) is None
    assert made_by(order, view, Presence(store)) is None
    assert made_by(order, view, presence) == done.objects, "one pass asks once"
