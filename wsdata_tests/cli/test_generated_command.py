"""``wsdata generated``: reading, checking, printing and registering, through the commands."""

import json

import polars as pl
import pytest

from wsdata.cli.main import run_command
from wsdata.ingest.registered import TABLE
from wsdata_tests.ingest import media_support as made

ROW = {"item_id": "a", "hash": "0f" * 32}


@pytest.fixture
def ask(home, capsys):
    def _ask(*words, code=0):
        assert run_command(["generated", *words, "--json", "--home", str(home.path)]) == code
        return json.loads(capsys.readouterr().out)

    return _ask


def _file(tmp_path, *rows):
    path = tmp_path / "prints.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_the_same_prints_are_registered_once_whatever_the_format(ask, home, tmp_path):
    rows = [ROW, {**ROW, "hash": "1e" * 32, "mirror_hash": "00" * 32, "time_s": 1}]
    told = ask("register", _file(tmp_path, *rows), "--generator", "model-x")
    assert (told["num_items"], told["num_prints"], told["is_new"]) == (1, 2, True)
    parquet = tmp_path / "prints.parquet"
    pl.DataFrame(
        {
            "item_id": ["a", "a"],
            "hash": [bytes.fromhex(row["hash"]) for row in rows],
            "mirror_hash": [None, bytes(32)],
            "time_s": [None, 1.0],
        }
    ).write_parquet(parquet)
    again = ask("register", str(parquet), "--generator", "model-x")
    assert again == {**told, "is_new": False}
    other = ask("register", str(parquet), "--generator", "model-y")
    assert other["registration"] != told["registration"]
    assert [one["generator"] for one in ask("list")].count("model-x") == 1
    assert len(home.ledger.live(TABLE)) == 2


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"item_id": "a"}, "no hash"),
        ({"hash": ROW["hash"]}, "no item_id"),
        ({**ROW, "hash": "0f" * 31}, "64 hex digits"),
        ({**ROW, "mirror_hash": "zz"}, "mirror_hash"),
        ({**ROW, "time_s": -1}, "0 or more"),
        ({**ROW, "quality": "high"}, "expected int"),
        ({**ROW, "sha256": "x"}, "unknown columns"),
        ([1, 2], "expected an object"),
    ],
)
def test_rows_that_break_the_contract_are_refused_by_number(ask, home, tmp_path, row, fault):
    told = ask("register", _file(tmp_path, ROW, row), "--generator", "m", code=1)
    assert fault in told["error"]
    assert home.ledger.live(TABLE) == []


def test_a_frame_told_twice_and_an_empty_file_are_refused(ask, tmp_path):
    twice = [{**ROW, "frame_index": 3}] * 2
    told = ask("register", _file(tmp_path, *twice), "--generator", "m", code=1)
    assert "twice" in told["error"]
    assert "no rows" in ask("register", _file(tmp_path), "--generator", "m", code=1)["error"]


def test_a_file_or_a_folder_and_not_both(ask, tmp_path):
    path = _file(tmp_path, ROW)
    ask("register", "--generator", "m", code=2)
    ask("register", path, "--from-media", str(tmp_path), "--generator", "m", code=2)
    ask("register", path, "--generator", " ", code=1)


def test_a_folder_of_media_is_printed_as_drops_are(ask, home, tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "film.mp4").write_bytes(made.video(made.scene(21, 24)))
    (folder / "still.png").write_bytes(made.png(made.scene(22, 1)[0]))
    (folder / "broken.mp4").write_bytes(b"no media")
    told = ask("register", "--from-media", str(folder), "--generator", "model-x", code=1)
    assert told["num_items"] == 2
    assert told["num_prints"] >= 5  # four a second, and one of the still
    assert ["broken.mp4" in one for one in told["unread"]] == [True]
    assert len(home.ledger.live(TABLE)) == 1
