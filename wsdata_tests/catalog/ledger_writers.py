"""Processes that write to one ledger at once: ``ledger_writers.py URL WRITERS COUNT``."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from wsdata.catalog.ledger import Ledger
from wsdata.records import Fact, ObjectRef, Order, Report

SHARED = "everybody"  # a partition that all writers commit to


def order_and_report(name: str, number: int, *, partition: str | None = None):
    """A commit of one table and one fact, different for every writer and number."""
    order = Order(
        stage="s", step="t", partition=partition or f"{name}.{number:05d}", code_version="1",
        params={"name": name, "number": number}, inputs={}, tables=("clips",),
    )  # fmt: skip
    ref = ObjectRef(
        table="clips", partition=order.partition, version="1", version_digest="d",
        sha256=order.digest, num_rows=number,
    )  # fmt: skip
    fact = Fact(kind="pin", subject=f"{name}.{number}", body={"number": number})
    return order, Report(
        order_digest=order.digest, version_digest="d", objects={"clips": ref}, facts=[fact]
    )


def write(url: str, name: str, count: int) -> None:
    """Commit to own partitions, to the shared one, and state facts; say so after each round."""
    ledger = Ledger(url)
    for number in range(count):
        assert ledger.commit(*order_and_report(name, number)) == {"clips": True}
        ledger.commit(*order_and_report(name, number, partition=SHARED))
        ledger.state([Fact(kind="note", subject=name, body={"number": number})], step="s/note")
        os.write(1, f"{name} {number}\n".encode())


def write_together(url: str, num_writers: int, count: int) -> int:
    """Fork writers that all begin with opening the ledger; 0 if none of them failed."""
    children: list[int] = []
    for number in range(num_writers):
        child = os.fork()
        if child == 0:
            write(url, f"w{number}", count)
            os._exit(0)
        children.append(child)
    return sum(os.waitpid(child, 0)[1] != 0 for child in children)


class Writers:
    """Writers at work in processes of their own, which end with the block."""

    def __init__(self, url: str, num_writers: int, count: int) -> None:
        root = str(Path(__file__).parents[2])
        self._process = subprocess.Popen(  # noqa: S603
            [sys.executable, __file__, url, str(num_writers), str(count)],
            cwd=root, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": root}, start_new_session=True,
        )  # fmt: skip
        self._num_writers = num_writers

    def wait_until_all_have_written(self) -> None:
        """Return once every writer has made its first round."""
        begun: set[str] = set()
        while len(begun) < self._num_writers:
            line = self._process.stdout.readline()
            assert line, self._process.stderr.read()
            begun.add(line.split()[0])

    @property
    def is_at_work(self) -> bool:
        """Whether one of them still writes."""
        return self._process.poll() is None

    def finish(self, timeout_s: float = 200) -> None:
        """Wait for them, and raise what they said when one failed."""
        _, said = self._process.communicate(timeout=timeout_s)
        assert self._process.returncode == 0, said

    def __enter__(self) -> "Writers":
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_at_work:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()


def assert_all_landed(ledger: Ledger, num_writers: int, count: int) -> None:
    """Every commit is there once, the chain holds, and one object is live under each key."""
    names = [f"w{n}" for n in range(num_writers)]
    commits = ledger.commits()
    assert [row["seq"] for row in commits] == list(range(1, 3 * num_writers * count + 1))
    assert ledger.verify_chain() is None
    live = [ref.partition for ref in ledger.all_objects()]
    assert sorted(live) == sorted([SHARED, *(f"{w}.{n:05d}" for w in names for n in range(count))])
    stated = [(fact.subject, fact.body["number"]) for _, fact in ledger.facts("note")]
    assert sorted(stated) == sorted((w, n) for w in names for n in range(count))
    assert {ref.sha256 for ref in ledger.live("clips")} <= ledger.ever()
    pins = [fact.subject for _, fact in ledger.facts("pin")]
    assert sorted(pins) == sorted(f"{w}.{n}" for w in names for n in range(count) for _ in (1, 2))


if __name__ == "__main__":
    sys.exit(write_together(sys.argv[1], int(sys.argv[2]), int(sys.argv[3])))
