"""Rank slices rebuild the global order, or a world size is refused with those that work."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wsdata.errors import PlanError
from wsdata.loader.ranks import check_world, rank_slots, world_sizes


@given(st.integers(1, 64), st.integers(1, 64))
def test_slices_of_all_ranks_are_the_batch_in_order_and_equal(share, world_size):
    slots = [
        rank_slots(share * world_size, rank=r, world_size=world_size) for r in range(world_size)
    ]
    assert [slot for part in slots for slot in part] == list(range(share * world_size))
    assert {len(part) for part in slots} == {share}


def test_world_size_that_does_not_divide_a_batch_is_refused_naming_sizes_that_do():
    batches = {"256p/64x32/1": 24, "256p/64x32/5": 36}
    with pytest.raises(PlanError, match=r"8 ranks.*5: 36.*one of \[1, 2, 3, 4, 6, 12\] ranks"):
        check_world(batches, rank=0, world_size=8)
    for size in world_sizes(batches):
        check_world(batches, rank=size - 1, world_size=size)


@pytest.mark.parametrize(("rank", "world_size"), [(2, 2), (-1, 2), (0, 0)])
def test_a_rank_that_is_not_there_is_a_bad_argument(rank, world_size):
    with pytest.raises(ValueError, match="expected 0 <= rank < world_size"):
        check_world({"b": 4}, rank=rank, world_size=world_size)
