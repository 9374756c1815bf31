"""Which test shows which hostile input of stages 5 and 6; one that is renamed or gone is missed."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
CACHE, FETCH, DAYS = "loader/test_node_cache.py", "loader/test_fetch.py", "loader/test_bad_days.py"
DATASET, RANKS, CURSOR = (
    "loader/test_plan_dataset.py",
    "loader/test_ranks.py",
    "loader/test_cursor.py",
)
PINS, FSCK, ABSENCE = (
    "lifecycle/test_pins.py",
    "lifecycle/test_fsck.py",
    "lifecycle/test_version_absence.py",
)
PLAN, INDEX = "shard/test_plan.py", "shard/test_training_index.py"

TABLE = {
    "L1 killed, then started again; eight loaders; two users": [
        (CACHE, "test_l1_processes_killed_at_any_moment_leave_a_cache_that_goes_on"),
        (CACHE, "test_process_killed_while_fetching_leaves_nothing_that_needs_a_hand"),
        (CACHE, "test_two_users_have_files_of_their_own"),
        (DAYS, "test_l1_l6_eight_loaders_of_one_host_read_each_range_once"),
        (DAYS, "test_l1_eight_processes_some_killed_and_started_again_need_no_hand"),
    ],
    "L2 hang at start, barriers, names by seed": [
        (CACHE, "test_stopped_neighbour_blocks_nobody"),
        (DATASET, "test_torch_dataloader_gives_the_same_order_and_cursors_that_resume"),
        (DATASET, "test_only_training_objects_are_read_and_nothing_from_the_environment"),
    ],
    "L3 state loaded, iteration from 0": [
        (DATASET, "test_saved_at_every_step_each_resume_yields_the_tail"),
        (DATASET, "test_stopping_and_going_on_with_the_same_object_loses_and_repeats_nothing"),
    ],
    "L4 a bound that deletes the user's files": [
        (CACHE, "test_l4_only_files_that_the_cache_made_are_deleted"),
        (DATASET, "test_store_is_byte_identical_after_reading_with_a_tiny_cache"),
    ],
    "L5 flipped byte, truncated or deleted shard": [
        (FETCH, "test_l5_wrong_bytes_are_read_once_more_and_then_named"),
        (DATASET, "test_flipped_byte_in_the_store_names_clip_shard_and_offset"),
        (DATASET, "test_shard_cut_short_names_clip_shard_and_offset"),
        (DATASET, "test_rotten_cached_copy_is_healed_from_the_store"),
        (DAYS, "test_l5_a_pinned_shard_is_not_deleted_and_a_deleted_one_says_whose_it_was"),
        (PINS, "test_a_patch_is_pinned_when_it_is_made_and_holds_its_base"),
    ],
    "L5 deleted pointer or plan": [
        (ABSENCE, "test_a_store_alone_says_what_it_shows"),
        (ABSENCE, "test_the_catalog_says_whether_a_version_was_published_and_how_it_comes_back"),
        (FSCK, "test_lost_patches_are_published_again_from_the_catalog_whatever_of_them_is_left"),
    ],
    "L6 empty files taken for good, races": [
        (CACHE, "test_l6_eight_processes_that_want_one_range_do_one_read"),
        (CACHE, "test_l6_many_threads_and_caches_that_want_one_range_do_one_read"),
        (CACHE, "test_wrong_bytes_from_the_store_are_handed_over_but_never_kept"),
        (CACHE, "test_full_disk_means_direct_reads_until_there_is_room"),
    ],
    "L7 state of world size 4 at 2": [
        (DATASET, "test_ranks_of_any_world_size_rebuild_the_global_batches"),
        (PLAN, "test_every_world_size_up_to_64_gives_the_same_sequence_from_any_step"),
        (CURSOR, "test_cursor_is_taken_exactly_where_what_was_delivered_is_the_same"),
    ],
    "L8 uneven batches over ranks": [
        (RANKS, "test_slices_of_all_ranks_are_the_batch_in_order_and_equal"),
        (RANKS, "test_world_size_that_does_not_divide_a_batch_is_refused_naming_sizes_that_do"),
    ],
    "L9 resume at the border of an epoch": [
        (DATASET, "test_saved_at_every_step_each_resume_yields_the_tail"),
        (PLAN, "test_each_sample_comes_exactly_once_in_each_epoch_of_its_pool"),
    ],
    "L10 indexing 10^9 samples": [
        (INDEX, "test_packed_index_answers_as_rows_in_memory_for_any_order_of_rows"),
        (INDEX, "test_memory_of_blocks_is_bounded_and_threads_agree"),
        (PLAN, "test_a_plan_is_small_whatever_the_number_of_samples"),
    ],
    "L11 a bucket of too few samples": [
        (PLAN, "test_what_cannot_be_planned_is_refused_with_the_fix"),
        (PLAN, "test_bucket_that_losses_left_short_is_left_out_and_named"),
    ],
    "slow, failing or cut store": [
        (FETCH, "test_what_may_pass_is_tried_again_and_goes_on_where_it_stopped"),
        (FETCH, "test_a_store_that_stays_ill_is_told_after_the_deadline_with_clip_and_shard"),
        (FETCH, "test_a_slow_answer_is_overtaken_and_the_slow_one_hung_up"),
        (FETCH, "test_second_requests_stay_within_their_share_however_slow_the_store"),
        (DAYS, "test_a_slow_store_changes_no_batch_and_is_alarmed"),
        (DAYS, "test_a_bucket_that_fails_three_requests_in_ten_serves_what_a_folder_serves"),
    ],
    "a cache that rots, fills its disk, or cannot be made": [
        (CACHE, "test_bits_that_flip_while_many_read_reach_nobody"),
        (CACHE, "test_a_file_that_can_grow_no_further_means_direct_reads"),
        (CACHE, "test_folder_that_cannot_be_made_means_direct_reads"),
        (CACHE, "test_a_header_that_a_crash_of_the_host_broke_begins_the_cache_anew"),
    ],
}


@pytest.mark.parametrize("kind", TABLE)
def test_every_hostile_input_of_the_loader_is_shown_by_a_test(kind):
    for path, name in TABLE[kind]:
        assert f"def {name}(" in (HERE / path).read_text(), f"{kind}: {path}::{name} is gone"
