import polars as pl
import pytest

from wsdata.catalog.locator import drops_of_asset, rows_of_asset
from wsdata.errors import CatalogError
from wsdata_tests.lifecycle.fabricated import A, B, asset_id, clip_id


@pytest.mark.parametrize(
    ("name", "drops"), [("film", [A, B]), ("lake", [A]), ("sealed", [A]), ("broken", [B])]
)
@pytest.mark.parametrize("digits", [8, 24, 64])
def test_an_asset_is_found_in_every_drop_that_brought_it(home, name, drops, digits):
    assert drops_of_asset(home.ledger, home.store, asset_id(name)[:digits]) == sorted(drops)


def test_an_unknown_asset_is_in_no_drop_and_a_short_prefix_is_refused(home):
    assert drops_of_asset(home.ledger, home.store, "0" * 24) == []
    with pytest.raises(CatalogError, match="at least 8 hex digits"):
        drops_of_asset(home.ledger, home.store, asset_id("film")[:7])


def test_rows_of_an_asset_are_those_of_all_versions_of_its_drops(home):
    ask = home.ledger, home.store
    clips = rows_of_asset(*ask, "clips", [A], asset_id("lake"))
    assert clips["clip_id"].to_list() == [clip_id("lake", n) for n in range(2)]
    prefix = asset_id("lake")[:24]
    assert rows_of_asset(*ask, "captions", [A], prefix).height == 4
    newer = home.rows("captions", A).with_columns(captioner_version=pl.lit("told-2"))
    home.commit(A, {"captions": newer}, version="2")
    assert rows_of_asset(*ask, "captions", [A], prefix).height == 8
    assert rows_of_asset(*ask, "captions", [], prefix).is_empty()
