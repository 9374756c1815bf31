import polars as pl
import pytest

from wsdata import tables
from wsdata.curate.rights import check_as_of_date, judge_rights
from wsdata.errors import RecipeError
from wsdata.recipe import Rights


def declared(drop="licensed.acme.20261101.001", **changes):
    return {
        "asset_id": "a", "drop": drop, "path": f"{drop}.mp4", "source_tier": drop.split(".")[0],
        "source": drop.split(".")[1], "license_id": "CC0-1.0", "territory": "world",
        "opt_out": False, "robots_allowed": None, "record_json": '{"is_generated":false}',
        **changes,
    }  # fmt: skip


def judge(*rows, rights=None, as_of_date="2026-11-01") -> dict:
    frame = pl.DataFrame(
        [{**dict.fromkeys(tables.TABLES["provenance"].columns), **row} for row in rows],
        schema=tables.TABLES["provenance"].columns,
    )
    return judge_rights(frame, rights or Rights(), as_of_date=as_of_date).row(0, named=True)


@pytest.mark.parametrize(
    ("changes", "rights", "refusal"),
    [
        ({}, Rights(), None),
        ({"opt_out": True}, Rights(), "opt_out: declared"),
        ({"license_id": "X"}, Rights(licenses=("CC0-1.0",)), "licence: X"),
        ({"license_id": None}, Rights(licenses=("CC0-1.0",)), "licence: none"),
        ({"license_id": "X"}, Rights(refused_licenses=("X",)), "licence: X"),
        ({"territory": "us"}, Rights(), "territory: us"),
        ({"territory": None}, Rights(), "territory: none"),
        ({"territory": "US, EU"}, Rights(territories=("us", "eu")), None),
        ({"territory": "US"}, Rights(territories=("us", "eu")), "territory: US"),
        ({"territory": "world"}, Rights(territories=("us",)), None),
        ({"rights_from": "2026-11-02"}, Rights(), "window: [2026-11-02, open) at 2026-11-01"),
        ({"rights_until": "2026-11-01"}, Rights(), "window: [open, 2026-11-01) at 2026-11-01"),
        ({"rights_until": "2026-11-02"}, Rights(), None),
        ({"robots_allowed": False}, Rights(), "robots: crawling was not allowed"),
    ],
)
def test_each_rule_refuses_by_name(changes, rights, refusal):
    assert judge(declared(**changes), rights=rights)["refusal"] == refusal


def test_crawled_material_needs_a_verdict_of_robots():
    row = declared("crawl.web.20261101.001")
    assert judge(row)["refusal"] == "robots: crawled without a verdict"
    assert judge({**row, "robots_allowed": True})["refusal"] is None


def test_several_rules_are_all_told():
    refusal = judge(declared(opt_out=True, territory="us"))["refusal"]
    assert refusal == "opt_out: declared; territory: us"


def test_the_strictest_of_several_declarations_wins_in_any_order():
    rows = [
        declared(license_id="contract"),
        declared("crawl.web.20261101.001", robots_allowed=True, license_id="CC-BY-4.0"),
        declared("synthetic.lab.20261101.001", license_id="own", rights_until="2026-01-01",
                 record_json='{"is_generated":true}'),
    ]  # fmt: skip
    verdicts = [judge(*rows), judge(*reversed(rows))]
    assert verdicts[0] == verdicts[1]
    assert verdicts[0]["source_tier"] == "synthetic"
    assert verdicts[0]["license_id"] == "own"
    assert verdicts[0]["is_generated"]
    assert verdicts[0]["refusal"] == "window: [open, 2026-01-01) at 2026-11-01"
    assert judge(*rows[:2])["source_tier"] == "crawl"


def test_an_as_of_date_is_a_day():
    assert check_as_of_date("2026-11-01") == "2026-11-01"
    for text in (None, "", "soon"):
        with pytest.raises(RecipeError, match="as_of_date"):
            check_as_of_date(text)
