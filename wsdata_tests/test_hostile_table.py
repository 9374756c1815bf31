"""Which test shows which hostile input of stages 1 and 2; one that is renamed or gone is missed.

`wsdata_tests/e2e/test_hostile_drop.py` sends those of H1, H2, H4, H14 and H16 through the graph
in one drop; the tests named here hold each to its right value.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
SANDBOX, WARM = "media/test_sandbox.py", "media/test_warm_sandbox.py"
ONEPASS, READER = "preprocess/test_onepass.py", "media/test_decode_reader.py"
SPANS, DROP = "preprocess/test_shot_spans.py", "preprocess/test_decode_drop.py"
HOSTILE, NEARDUP = "e2e/test_hostile_drop.py", "ingest/test_neardup.py"
MUTATIONS = "preprocess/test_mutations.py"

TABLE = {
    "H1 cut off behind its header": [
        (HOSTILE, "test_a_broken_file_is_salvaged_or_held_with_a_reason"),
        (ONEPASS, "test_h1_the_clean_prefix_of_a_damaged_file_is_kept"),
    ],
    "H2 empty, headless, text, JPEG": [
        (HOSTILE, "test_nothing_in_it_is_not_the_same_as_unreadable"),
        (DROP, "test_neighbours_of_bad_files_pass_and_every_file_has_its_word"),
    ],
    "H3 more promised than there is": [
        (READER, "test_h1_h3_a_truncated_file_gives_its_prefix_and_says_where_it_broke"),
        (WARM, "test_no_progress_ends_a_job_early_and_slow_progress_does_not"),
    ],
    "H4 health, not exit codes": [
        (READER,
         "test_h4_noise_in_the_middle_ends_the_plain_way_and_is_skipped_by_the_careful_one"),
        (READER, "test_a_hole_in_the_time_stamps_is_a_gap"),
        (HOSTILE, "test_noise_inside_a_file_is_told_from_its_frames"),
    ],
    "H5 a worker that hangs, forks, floods": [
        (SANDBOX, "test_a_hang_is_killed_as_a_group"),
        (SANDBOX, "test_a_grandchild_that_holds_the_pipe_does_not_block"),
        (SANDBOX, "test_a_flood_of_errors_does_not_block"),
        (WARM, "test_a_hang_takes_its_box_along_and_a_new_one_follows"),
        (WARM, "test_leftover_processes_are_gone_before_the_next_file"),
    ],
    "H6 a filter that always raises": [
        ("preprocess/test_filter_rows.py",
         "test_a_filter_that_raises_on_every_clip_fails_the_step"),
    ],
    "H7 a source whose every file fails": [
        ("observability/test_checks.py", "test_a_source_of_broken_files_is_named"),
    ],
    "H8 empty, one file, 5,000 tiny files": [
        (DROP, "test_an_empty_drop_ends_with_empty_tables"),
        (DROP, "test_h8_five_thousand_tiny_files_are_decoded"),
        ("ingest/test_land.py", "test_h8_five_thousand_tiny_files"),
    ],
    "H9 variable frame rate": [
        (ONEPASS, "test_h9_cuts_of_a_variable_frame_rate_stand_where_they_are_seen"),
        (SPANS, "test_a_variable_rate_moves_no_cut"),
    ],
    "H10, H11 cuts at any rate and moment": [
        (SPANS, "test_a_cut_is_at_its_frame_at_any_rate"),
    ],
    "H12 strobe": [
        (ONEPASS, "test_h12_cuts_close_together_give_no_short_clip"),
        (SPANS, "test_cuts_within_a_second_leave_no_clip_below_the_minimum"),
    ],
    "H13 spans": [(MUTATIONS, "test_spans_of_damaged_files_are_spans")],
    "H14 rotation": [(ONEPASS, "test_h14_a_rotated_video_is_upright_everywhere")],
    "H15 HLG and PQ": [
        ("media/test_color.py", "test_h15_pictures_of_high_range_are_mapped_as_the_formula_says"),
    ],
    "H16 streams": [
        (ONEPASS, "test_h16_streams"),
        (READER, "test_h16_the_larger_default_stream_is_the_main_one"),
    ],
    "H17 odd, anamorphic, interlaced, full range": [
        ("preprocess/test_ladder.py", "test_crops_lie_inside_and_rungs_never_enlarge"),
        (ONEPASS, "test_anamorphic_pixels_are_shown_wide"),
        ("media/test_deinterlace.py", "test_combing_goes_and_time_stamps_stay"),
        ("media/test_color.py", "test_full_range_is_read_as_such"),
    ],
    "H18 shifted sound": [(ONEPASS, "test_h18_late_sound_is_unsynced")],
    "H19 the same body": [
        (NEARDUP, "test_a_copy_is_a_whole_match"),
        (NEARDUP, "test_a_logo_over_every_frame_is_a_whole_match_where_times_agree"),
    ],
    "H20 the same intro": [(NEARDUP, "test_the_same_black_intro_is_no_match")],
    "H21 new bytes, new path": [
        ("ingest/test_land.py", "test_h21_new_bytes_at_a_path_and_old_bytes_at_another"),
    ],
    "H22 a threshold, a model": [
        ("preprocess/test_no_decode.py",
         "test_a_changed_threshold_gates_again_and_decodes_nothing"),
        ("preprocess/test_no_decode.py",
         "test_a_changed_model_scores_exactly_its_filter_and_decodes_nothing"),
    ],
    "H23 killed, reordered": [
        ("e2e/test_kills.py", "test_killed_inside_each_heavy_step_it_converges"),
        ("e2e/test_order_free.py", "test_arrival_order_does_not_matter"),
    ],
    "damage by the hundred": [
        (MUTATIONS, "test_every_damaged_file_ends_with_a_record"),
        (MUTATIONS, "test_whole_files_among_them_come_out_as_if_alone"),
    ],
    "a decoder taken over": [
        ("cluster/test_hostile_launch.py", "test_nothing_gets_out_of_a_launched_worker_s_sandbox"),
        ("cluster/test_hostile_launch.py", "test_a_level_that_is_not_reached_fails_the_step"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLE)
def test_every_hostile_input_is_shown_by_a_test(kind):
    for path, name in TABLE[kind]:
        assert f"def {name}(" in (HERE / path).read_text(), f"{kind}: {path}::{name} is gone"
