"""Dumps of a ledger: there and back over both databases, and what is wrong with a bad one."""

import gzip
import json

import pytest

from wsdata.catalog import transfer
from wsdata.catalog.ledger import Ledger
from wsdata.catalog.transfer import export_catalog, import_catalog, verify_catalog
from wsdata.cli.main import run_command
from wsdata.errors import CatalogError, IntegrityError
from wsdata.records import Fact
from wsdata_tests.catalog.ledger_writers import order_and_report


@pytest.fixture
def full(tmp_path) -> Ledger:
    """Objects that ended, facts of a step and stated ones, and text of all sorts."""
    ledger = Ledger(str(tmp_path / "full.db"))
    for number in range(7):
        ledger.commit(*order_and_report("w", number, partition=f"p{number % 3}"), run_id="r")
        body = {"text": "na\u00efve \u2028 \\ \" 'quoted'", "n": number, "share": 0.1}
        ledger.state([Fact(kind="note", subject="s", body=body)], step="s/note")
    return ledger


def _everything(ledger: Ledger):
    return (
        ledger.commits(), ledger.all_objects(), ledger.ever(),
        [ledger.all_objects(as_of=seq) for seq in range(ledger.seq + 1)],
        [ledger.facts(kind) for kind in ("note", "pin")],
    )  # fmt: skip


@pytest.mark.parametrize("name", ["dump.jsonl", "dump.jsonl.gz"])
def test_a_ledger_moves_to_postgres_and_back_unchanged(full, postgres, tmp_path, name, monkeypatch):
    monkeypatch.setattr(transfer, "_COMMITS_PER_PAGE", 3)
    monkeypatch.setattr(transfer, "_ROWS_PER_INSERT", 4)
    extent = export_catalog(full, tmp_path / name)
    assert (extent.num_commits, extent.num_objects, extent.num_facts) == (14, 7, 14)
    first = tmp_path / name
    for number, url in enumerate((postgres.make_database(), str(tmp_path / "back.db"))):
        ledger = Ledger(url)
        assert import_catalog(ledger, first) == extent == verify_catalog(ledger)
        assert _everything(ledger) == _everything(full)
        again = tmp_path / f"again{number}.jsonl"
        assert export_catalog(ledger, again) == extent
        opened = gzip.open if name.endswith("gz") else open
        assert again.read_text() == opened(first, "rt").read()
    assert ledger.commit(*order_and_report("w", 9, partition="p0")) == {"clips": True}
    assert ledger.verify_chain() is None


def test_a_dump_holds_what_was_there_when_it_began(full, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "_COMMITS_PER_PAGE", 2)
    before = _everything(full)

    def write(_done, _total):
        full.commit(*order_and_report("late", full.seq, partition="p0"))

    export_catalog(full, tmp_path / "dump.jsonl", write)
    assert full.seq > 14
    ledger = Ledger(str(tmp_path / "other.db"))
    import_catalog(ledger, tmp_path / "dump.jsonl")
    assert _everything(ledger) == before


def test_an_empty_ledger_has_an_empty_dump(tmp_path):
    export_catalog(Ledger(str(tmp_path / "a.db")), tmp_path / "dump.jsonl")
    assert import_catalog(Ledger(str(tmp_path / "b.db")), tmp_path / "dump.jsonl").num_commits == 0


def _line(number, change):
    def spoil(lines):
        value = json.loads(lines[number])
        change(value)
        lines[number] = json.dumps(value)

    return spoil


SPOILT = {
    "a step renamed": (_line(3, lambda v: v["commit"].update(step="x/y")), "commit 3 .* follow"),
    "a commit left out": (lambda lines: lines.pop(3), "commit 4 .* follow"),
    "an object changed": (_line(1, lambda v: v["objects"][0].update(sha256="0")), "its objects"),
    "an object gone": (_line(1, lambda v: v["objects"].clear()), "its objects"),
    "another order": (_line(1, lambda v: v["objects"][0].update(order_digest="0")), "its order"),
    "a fact changed": (_line(2, lambda v: v["facts"][0]["body"].update(n=5)), "its facts"),
    "rows recounted": (_line(1, lambda v: v["objects"][0].update(num_rows=9)), "was changed since"),
    "the end gone": (lambda lines: lines.pop(), "cut short"),
    "the end cut": (lambda lines: lines.append(lines.pop()[:20]), "damaged"),
    "another entry": (_line(5, lambda v: v.pop("facts")), "is no entry"),
}


@pytest.mark.parametrize("what", SPOILT)
def test_a_spoilt_dump_is_told_and_leaves_the_ledger_empty(full, tmp_path, what):
    path = tmp_path / "dump.jsonl"
    export_catalog(full, path)
    spoil, told = SPOILT[what]
    lines = path.read_text().rstrip("\n").split("\n")  # U+2028 is no end of a line
    spoil(lines)
    path.write_text("\n".join(lines))
    ledger = Ledger(str(tmp_path / "other.db"))
    with pytest.raises(IntegrityError, match=told):
        import_catalog(ledger, path)
    assert (ledger.seq, ledger.all_objects(), ledger.facts("note")) == (0, [], [])


def test_a_cut_archive_is_told(full, tmp_path):
    path = tmp_path / "dump.jsonl.gz"
    export_catalog(full, path)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(IntegrityError, match=r"cut short|damaged"):
        import_catalog(Ledger(str(tmp_path / "b.db")), path)


def test_wrong_calls_are_refused(full, tmp_path):
    path = tmp_path / "dump.jsonl"
    with pytest.raises(ValueError, match=r"ends with \.jsonl"):
        export_catalog(full, tmp_path / "dump.zip")
    export_catalog(full, path)
    with pytest.raises(ValueError, match="exists"):
        export_catalog(full, path)
    with pytest.raises(CatalogError, match="is not empty"):
        import_catalog(full, path)
    empty = Ledger(str(tmp_path / "b.db"))
    (tmp_path / "no.jsonl").write_text('{"kind": "shopping"}\n')
    with pytest.raises(ValueError, match="is no dump"):
        import_catalog(empty, tmp_path / "no.jsonl")
    newer = path.read_text().replace('"format_version":1', '"format_version":2', 1)
    (tmp_path / "new.jsonl").write_text(newer)
    with pytest.raises(ValueError, match="has format 2"):
        import_catalog(empty, tmp_path / "new.jsonl")


def test_a_changed_ledger_does_not_verify_and_is_not_dumped(full, tmp_path):
    with full.database.engine.begin() as connection:
        connection.exec_driver_sql("BEGIN")
        connection.exec_driver_sql("UPDATE objects SET sha256 = 'x' WHERE begin_seq = 5")
    assert full.verify_chain() is None, "the chain alone does not see it"
    with pytest.raises(IntegrityError, match="commit 5: its objects"):
        verify_catalog(full)
    with pytest.raises(IntegrityError, match="commit 5"):
        export_catalog(full, tmp_path / "dump.jsonl")
    assert [path.name for path in tmp_path.iterdir() if "dump" in path.name] == []


def test_commands_dump_verify_and_restore(home, tmp_path, capsys):
    at = ["--home", str(home.path), "--json"]
    dump = str(tmp_path / "dump.jsonl.gz")
    assert run_command(["catalog", "export", dump, *at]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["num_commits"] == home.ledger.seq
    assert run_command(["catalog", "import", dump, *at]) == 1
    assert run_command(["catalog", "verify", *at]) == 0
    capsys.readouterr()
    for path in home.path.glob("catalog.db*"):
        path.unlink()
    assert run_command(["catalog", "import", dump, *at]) == 0
    assert json.loads(capsys.readouterr().out)["chain"] == told["chain"]
    assert run_command(["fsck", *at]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
