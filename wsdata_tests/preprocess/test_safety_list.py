"""Safety lists: parsing, what may change of a list, matching, and what the ledger is told."""

import random

import polars as pl
import pytest

from wsdata import tables
from wsdata.digest import sha256_bytes
from wsdata.errors import StepFailed, WsdataError
from wsdata.media.phash import hamming
from wsdata.preprocess import safety_lists
from wsdata.preprocess.filters import safety_list
from wsdata_tests.preprocess.score_support import DROP, asset_id, clip, step_run


def flipped(pdq: bytes, num_bits: int, seed: int = 0) -> bytes:
    """A hash so many bits away."""
    value = int.from_bytes(pdq)
    for bit in random.Random(seed).sample(range(256), num_bits):  # noqa: S311
        value ^= 1 << bit
    return value.to_bytes(32)


def made(seed: int) -> bytes:
    return random.Random(seed).randbytes(32)  # noqa: S311


def printed(index: int, time_s: float, pdq: bytes, **changed) -> dict:
    row = {
        "asset_id": asset_id(index), "frame_index": int(time_s * 10), "time_s": time_s,
        "hash": pdq, "mirror_hash": made(7000 + index), "quality": 100, "method": "pass",
    }  # fmt: skip
    return row | changed


BAD = made(1)


def screened(root, prints, *, text=None, vault=(), facts=None, clips=None, max_distance=31):
    """Run the step over prints, with one list ``police`` of some text."""
    folder = root / "lists"
    folder.mkdir(exist_ok=True)
    if text is not None:
        (folder / "police.txt").write_text(text)
    run = step_run(
        root / "store", safety_list.STEP,
        {
            "clips": [clip(0), clip(1)] if clips is None else clips,
            "pass_fingerprints": prints, "vault_prints": list(vault),
        },
        params={"lists": safety_lists.list_digests(str(folder)), "max_distance": max_distance},
        settings={"safety_lists": str(folder), "facts": facts or {}},
    )  # fmt: skip
    return safety_list.run(run)


def rows_of(result) -> dict:
    table = tables.conform("safety_list_scores", result.tables["safety_list_scores"])
    return {
        (row["asset_id"], row["score_name"]): (row["status"], row["score"])
        for row in table.to_dicts()
    }


def test_lines_become_entries_and_withdrawals():
    text = (
        f"# of the year\n{'0a' * 32}\n{'0B' * 32},id-7,hotline, 2026\n{'0c' * 32}\tid-8\n"
        f"-{'0c' * 32} wrong\n{'0a' * 32} twice\n\n"
    )
    told = safety_lists.parse_list("police", text.encode())
    assert [(e.pdq.hex(), e.entry_id, e.source) for e in told.entries] == [
        ("0a" * 32, "0a0a0a0a0a0a", ""), ("0b" * 32, "id-7", "hotline, 2026"),
    ]  # fmt: skip
    assert told.withdrawn == {"id-8"}
    assert told.sha256 == sha256_bytes(text.encode())


def test_a_list_is_a_file_of_a_folder_or_alone(tmp_path, monkeypatch):
    (tmp_path / "police.txt").write_text(BAD.hex())
    (tmp_path / "README.md").write_text("no list")
    (tmp_path / ".hidden.txt").write_text("no list")
    alone = safety_lists.list_digests(str(tmp_path / "police.txt"))
    assert alone == safety_lists.list_digests(str(tmp_path)) == {"police": sha256_bytes(
        BAD.hex().encode())}  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert safety_lists.list_digests("") == safety_lists.list_digests("nowhere") == {}
    (tmp_path / "police.csv").write_text(BAD.hex())
    with pytest.raises(WsdataError, match="are one list by name: rename one"):
        safety_lists.list_digests(str(tmp_path))
    (tmp_path / "police.csv").rename(tmp_path / "of 2026.csv")
    with pytest.raises(WsdataError, match="signs other than letters"):
        safety_lists.list_digests(str(tmp_path))


@pytest.mark.parametrize("line", ["0a0b", "z" * 64, "-short", "0a" * 33])
def test_a_line_that_is_no_entry_is_named(line):
    with pytest.raises(WsdataError, match=r"list police, line 2: '.*' is not a PDQ hash"):
        safety_lists.parse_list("police", f"{'0a' * 32}\n{line}\n".encode())


def test_without_a_list_nothing_is_known_and_nothing_said(tmp_path):
    result = screened(tmp_path, [printed(0, 1.0, BAD)])
    assert set(rows_of(result).values()) == {("unscored", None)}
    assert result.facts == []


def test_a_hit_kills_the_whole_raw_asset_and_is_reported(tmp_path):
    clips = [clip(0), clip(0, clip_id=clip(0)["clip_id"][:-1] + "1", start_s=5.0, end_s=10.0)]
    prints = [printed(0, 1.0, flipped(BAD, 12)), printed(0, 6.0, made(2)), printed(1, 1.0, made(3))]
    result = screened(
        tmp_path, prints, text=f"{BAD.hex()} case-9 hotline\n", clips=[*clips, clip(1)]
    )
    scores = tables.conform("safety_list_scores", result.tables["safety_list_scores"])
    told = scores.filter(pl.col("asset_id") == asset_id(0)).select("score_name", "score").rows()
    assert told == [("asset_hits", 1.0), ("hits", 1.0), ("asset_hits", 1.0), ("hits", 0.0)]
    assert rows_of(result)[asset_id(1), "asset_hits"] == ("ok", 0.0)
    known, report = result.facts
    assert (known.kind, known.subject, known.body["num_entries"]) == ("safety_list", "police", 1)
    assert report.subject.startswith(f"{asset_id(0)}/")
    told = [report.body[name] for name in ("asset_id", "drop", "list", "entry")]
    assert told == [asset_id(0), DROP, "police", "case-9"]
    assert {name: report.body[name] for name in ("distance", "time_s", "source", "is_held")} == {
        "distance": 12, "time_s": 1.0, "source": "hotline", "is_held": True,
    }  # fmt: skip
    assert report.body["clips"] == sorted(each["clip_id"] for each in clips)
    shown = str(result.display["safety_list_scores"])
    assert "| police | 1 |" in shown
    assert BAD.hex() not in shown


@pytest.mark.parametrize(("num_bits", "is_hit"), [(31, True), (32, False)])
def test_the_distance_is_the_deployments(tmp_path, num_bits, is_hit):
    result = screened(tmp_path, [printed(0, 1.0, flipped(BAD, num_bits))], text=BAD.hex())
    assert rows_of(result)[asset_id(0), "asset_hits"] == ("ok", float(is_hit))


def test_mirrored_pictures_hit_and_pictures_of_nothing_have_no_vote(tmp_path):
    prints = [
        printed(0, 1.0, made(5), mirror_hash=BAD),
        printed(1, 1.0, BAD, quality=49),
    ]
    result = screened(tmp_path, prints, text=BAD.hex())
    assert rows_of(result)[asset_id(0), "asset_hits"] == ("ok", 1.0)
    assert rows_of(result)[asset_id(1), "asset_hits"] == ("unscored", None)


def test_hits_agree_with_a_slow_comparison_of_all_pairs():
    rng = random.Random(4)  # noqa: S311
    listed = [made(seed) for seed in range(40)]
    text = "\n".join(f"{pdq.hex()} e{index}" for index, pdq in enumerate(listed))
    prints = [
        printed(index % 5, float(index), flipped(rng.choice(listed), rng.choice([5, 31, 32, 90]),
                                                 index))
        for index in range(200)
    ]  # fmt: skip
    frame = pl.DataFrame(prints).select(
        "asset_id", "time_s", "hash", "mirror_hash", "quality", "method"
    )
    told = safety_lists.parse_list("a", text.encode())
    found = safety_list.list_hits(frame.sample(fraction=1, shuffle=True), [told], max_distance=31)
    slow = {
        (row["asset_id"], row["time_s"], f"e{index}", hamming(row["hash"], pdq))
        for row in prints
        for index, pdq in enumerate(listed)
        if hamming(row["hash"], pdq) <= 31
    }
    assert set(found.select("asset_id", "time_s", "entry", "distance").rows()) == slow
    assert len(slow) > 50


def test_vault_members_are_screened_by_what_left_the_vault(tmp_path):
    sealed = printed(3, 2.0, BAD, level="frame")
    sealed.pop("method")
    result = screened(tmp_path, [], text=BAD.hex(), vault=[sealed])
    report = result.facts[-1]
    assert (report.body["in_vault"], report.body["clips"]) == (True, [])
    assert "| 1 | 1 |" in result.display["safety_list_scores"]["lists"]["raw_value"]


def facts_of(result, before=None) -> dict:
    """The present of facts after some more were stated."""
    present = {kind: dict(bodies) for kind, bodies in (before or {}).items()}
    for fact in result.facts:
        bodies = present.setdefault(fact.kind, {})
        bodies[fact.subject] = fact.body
        if fact.body.get("withdrawn"):
            del bodies[fact.subject]
    return present


def test_a_list_grows_and_takes_back_and_the_same_is_never_said_twice(tmp_path):
    prints = [printed(0, 1.0, BAD)]
    first = screened(tmp_path, prints, text=f"{BAD.hex()} one\n")
    known = facts_of(first)
    assert screened(tmp_path, prints, facts=known).facts == []
    grown = screened(tmp_path, prints, text=f"{BAD.hex()} one\n-{BAD.hex()}\n", facts=known)
    assert rows_of(grown)[asset_id(0), "asset_hits"] == ("unscored", None)  # nothing is listed
    assert [(f.kind, f.body.get("withdrawn", False)) for f in grown.facts] == [
        ("safety_list", False), ("safety_report", True),
    ]  # fmt: skip
    assert facts_of(grown, known)["safety_report"] == {}


def test_what_was_listed_once_may_not_vanish(tmp_path):
    known = facts_of(screened(tmp_path, [], text=f"{BAD.hex()} one\n"))
    with pytest.raises(StepFailed, match="first 69 bytes are no longer those of digest"):
        screened(tmp_path, [], text=f"{made(9).hex()} one\n", facts=known)
    (tmp_path / "lists" / "police.txt").unlink()
    with pytest.raises(StepFailed, match="police were in force before and are not in"):
        screened(tmp_path, [], facts=known)
