"""What can go wrong, and the test that holds what happens then: recovery, or one clear error.

The list is that of the faults this project promises to survive. Each of these tests was seen to
fail with its cure taken away.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from composer.errors import RecipeError
from composer.recipe.recipe import load_text

TESTS = Path(__file__).parents[1]
INVALID_TEXT = "test_a_bad_text_is_refused_where_it_is_bad"
INVALID_BLOCK = INVALID_RECIPE = INVALID_SECTION = "test_faults_have_their_codes_places_and_words"

FAULTS = {
    # the text of a recipe
    "a key twice, reported with both lines": "test_a_duplicate_names_the_line_of_the_first",
    "a key twice, deep inside": INVALID_TEXT,
    "aliases that multiply": "test_bombs_do_not_go_off",
    "merge keys": INVALID_TEXT,
    "an alias of itself": INVALID_TEXT,
    "a hundred thousand brackets": "test_depth_is_bounded",
    "more than a megabyte": "test_bytes_that_are_no_recipe_are_refused",
    "a tag that runs code": INVALID_TEXT,
    "an unknown tag": INVALID_TEXT,
    "tags for binary data, sets and ordered maps": INVALID_TEXT,
    "two documents": INVALID_TEXT,
    "nothing, or comments alone": INVALID_TEXT,
    "a list or a word at the top": INVALID_TEXT,
    "slips of the keyboard, characters that only look right": "test_a_slip_is_reported_where_it_is",
    "indented with tabs": "test_a_tab_is_reported_as_a_tab",
    "a byte order mark, carriage returns": (
        "test_columns_ignore_byte_order_mark_and_carriage_returns"
    ),
    "UTF-16, Latin-1, NUL, binary": "test_a_file_in_another_encoding_is_named_as_such",
    "`no` and `on` are words": "test_scalars_follow_the_core_schema",
    "`1e-4` is a number": "test_scalars_follow_the_core_schema",
    "`010`, `1_000`, `1:20`": "test_scalars_follow_the_core_schema",
    "not a number, infinity": INVALID_BLOCK,
    "a number of 5,000 digits": INVALID_TEXT,
    "a width of a million millions": "test_every_integer_has_bounds",
    "a size of zero, or less": INVALID_SECTION,
    "`true` for a number": INVALID_BLOCK,
    "`3.0` for a count": INVALID_SECTION,
    "`null` for what is needed": INVALID_BLOCK,
    "a date is a word": "test_scalars_follow_the_core_schema",
    "a key that is no word": INVALID_TEXT,
    # what a recipe says
    "an unknown block": INVALID_BLOCK,
    "an unknown setting": INVALID_BLOCK,
    "something missing": INVALID_RECIPE,
    "widths of neighbours that differ": "test_a_fault_of_widths_names_both_lines",
    "heads that do not divide the width": "test_attention_refuses_heads_that_do_not_divide",
    "a vocabulary that cannot be": INVALID_RECIPE,
    "a memory where there is no encoder": "test_a_decoder_that_reads_an_encoder_needs_one",
    "a setting for what is not there": "test_a_bad_override_is_reported_in_its_own_text",
    "a setting of another kind, an index too large": (
        "test_a_bad_override_is_reported_in_its_own_text"
    ),
    "variables without a value, or in a circle": "test_invalid_variables_are_refused",
    "recipes that extend each other": "test_a_cycle_is_reported_where_it_closes",
    "extending what lies elsewhere": "test_an_invalid_base_is_refused",
    "a folder, a pipe or a device for a recipe": "test_a_file_that_is_no_recipe_is_refused",
    "a file that may not be read": "test_a_recipe_without_read_permission_is_refused",
    "a recipe of a later language": INVALID_RECIPE,
    "a recipe that names code": "test_a_recipe_brings_no_code",
    "a plug-in that cannot be imported": "test_a_plug_in_that_cannot_be_used_is_named",
    "a plug-in that fails later": "test_a_plug_in_that_fails_is_reported_at_its_line",
    "a hundred thousand blocks": "test_too_large_a_model_is_refused",
    "more weights than memory": "test_parameters_beyond_the_memory_are_refused",
    "a name with slashes": INVALID_SECTION,
    # data
    "no data": "test_a_split_without_pairs_is_refused",
    "sides of unequal length": "test_faults_of_text_files_are_reported_at_their_key",
    "blank lines": "test_pairs_that_are_left_out_are_counted",
    "lines that are too long": "test_max_length_counts_eos",
    "text that is not UTF-8": "test_faults_of_text_files_are_reported_at_their_key",
    "text of which nothing is known": "test_a_side_of_unknown_tokens_alone_is_refused",
    "fewer pairs than devices": "test_fewer_rows_than_devices_gives_rows_without_weight",
    "another tokenizer than the checkpoint's": "test_another_or_truncated_tokenizer_is_refused",
    "data that have changed since": "test_data_changed_since_the_checkpoint_are_refused",
    "data that change while they are read": "test_a_file_modified_while_it_is_read_is_one_fault",
    # a training
    "killed anywhere": "test_a_training_killed_anywhere_resumes_bit_for_bit",
    "SIGTERM": "test_a_signal_leaves_a_checkpoint",
    "SIGINT, twice": "test_a_second_signal_ends_at_once",
    "killed while a checkpoint is written": "test_a_training_killed_anywhere_resumes_bit_for_bit",
    "a checkpoint cut, emptied, or with a bit turned": "test_a_damaged_checkpoint_is_skipped",
    "a full disk": "test_training_resumes_after_a_full_disk",
    "a disk that is read-only": "test_a_folder_on_a_read_only_disk_is_an_error",
    "a checkpoint that runs code": "test_a_file_that_is_no_checkpoint_is_refused_and_not_executed",
    "a checkpoint of another recipe": "test_a_checkpoint_of_another_run_is_refused",
    "a loss that is no number": "test_a_loss_that_is_no_number_ends_the_run",
    "a gradient that is no number": "test_a_gradient_that_is_infinite_spoils_no_checkpoint",
    "a process that dies": "test_all_processes_end_if_one_is_lost",
    "a data worker that dies": "test_a_killed_data_worker_is_an_error_and_training_resumes",
    "a process that dies under torchrun": "test_torchrun_restarts_all_processes_after_a_kill",
    "another number of processes": (
        "test_two_sharded_processes_then_one_then_two_replicas_train_as_one_process"
    ),
    "Weights & Biases that cannot be reached": "test_a_lost_wandb_service_does_not_stop_training",
    "Weights & Biases that fails": "test_a_failure_of_wandb_is_reported_once_and_ignored",
    "two trainings in one folder": "test_two_trainings_in_one_folder_are_refused",
    "packages that are not there": "test_training_works_without_the_package",
}


@cache
def names_of_tests() -> set[str]:
    """Return the names of the test functions of all files."""
    texts = (path.read_text(encoding="utf-8") for path in TESTS.glob("**/test_*.py"))
    return {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_a_test(fault: str) -> None:
    assert FAULTS[fault] in names_of_tests()


def test_a_value_of_a_variable_is_mended_where_the_variables_are() -> None:
    text = (
        '{recipe: 1, vars: {w: "48"}, data: {generate: reverse}, model: {width: $w, decoder:'
        " [rnn]}}"
    )
    with pytest.raises(RecipeError) as refused:
        load_text(text)
    assert [fault.hint for fault in refused.value.faults] == ["write `48` without quotes in `vars`"]


@pytest.mark.parametrize(("value", "has_edit"), [("-1", False), ("0", True)])
def test_a_number_that_means_no_limit_elsewhere_is_a_person_s_to_change(
    value: str, has_edit: bool
) -> None:
    model = "{width: 8, decoder: [rnn]}"
    text = (
        f"{{recipe: 1, data: {{generate: reverse}}, model: {model}, training: {{max_epochs:"
        f" {value}}}}}"
    )
    with pytest.raises(RecipeError) as refused:
        load_text(text)
    assert [fault.edit is not None for fault in refused.value.faults] == [has_edit]
