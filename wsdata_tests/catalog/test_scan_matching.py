"""Some columns of the rows that are asked for, of small objects and of large ones."""

import polars as pl
import pytest

from wsdata.catalog.objects import WHOLE_ROWS, read_object, scan_matching
from wsdata.errors import IntegrityError, ObjectMissing
from wsdata.store import FolderStore
from wsdata_tests.orders_support import put_rows

ASKED = pl.DataFrame(
    {"sample_id": [*(f"s{number:06d}" for number in range(0, 9000, 7)), "s000007"]}
)


def _put(store, num):
    rows = pl.DataFrame({"sample_id": [f"s{number:06d}" for number in range(num)]}).with_columns(
        clip_id=pl.lit("c"), reason=pl.col("sample_id") + "?", detail=pl.lit("d")
    )
    return put_rows(store, "latent_losses", rows, "v1.0000")


@pytest.mark.parametrize("num", [0, 10, WHOLE_ROWS, 2 * WHOLE_ROWS])
@pytest.mark.parametrize("columns", [["sample_id", "reason"], ["reason"]])
def test_rows_are_those_of_the_whole_object(tmp_path, num, columns):
    store = FolderStore(tmp_path)
    ref = _put(store, num)
    found = scan_matching(store, ref, ASKED, "sample_id", columns)
    expected = read_object(store, ref).join(ASKED.unique(), on="sample_id", how="semi")
    assert found.sort("reason").equals(expected.select(columns).sort("reason"))


@pytest.mark.parametrize("num", [10, 2 * WHOLE_ROWS])
def test_a_damaged_or_lost_object_is_told(tmp_path, num):
    store = FolderStore(tmp_path)
    ref = _put(store, num)
    path = store.path_of(ref.key)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(IntegrityError, match="delete the object and run again"):
        scan_matching(store, ref, ASKED, "sample_id", ["reason"])
    path.unlink()
    with pytest.raises(ObjectMissing):
        scan_matching(store, ref, ASKED, "sample_id", ["reason"])
