"""Each trap of Spark's Python data sources has a test, or a reason why it does not apply here.

The numbers are those of the notes on Spark; each trap is described where it is tested.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UNIT, WHOLE = "tests/unit/spark", "tests/integration/spark"

TESTED: dict[int, str] = {
    1: f"{WHOLE}/test_source.py::test_what_spark_reads_is_what_a_reader_reads",  # a plan is a list
    2: f"{WHOLE}/test_source.py::test_an_empty_stream_has_no_rows",
    3: f"{WHOLE}/test_source.py::test_the_schema_asked_for_is_the_projection",  # batches are of exactly that schema
    4: f"{UNIT}/test_columns.py::test_columns_say_what_was_written",  # Arrow batches, never tuples
    5: f"{WHOLE}/test_source.py::test_filters_need_the_consent_of_the_session",
    6: f"{WHOLE}/test_source.py::test_filters_give_the_same_rows_pushed_or_not",
    7: f"{UNIT}/test_columns.py::test_any_columns_in_any_order",
    8: f"{WHOLE}/test_source.py::test_what_is_acknowledged_is_in_the_next_plan_and_a_plan_stays_what_it_is",
    9: f"{WHOLE}/test_source.py::test_sql_with_options_reads_too",
    10: f"{UNIT}/test_options.py::test_names_of_options_have_no_case",
    13: f"{WHOLE}/test_source.py::test_a_reader_that_stops_early_leaves_nothing_running",
    14: f"{WHOLE}/test_memory.py::test_a_worker_reads_more_than_it_may_take",
    15: f"{UNIT}/test_workers.py::test_what_is_imported_is_no_garbage_to_be_looked_for_after_each_task",
    16: f"{UNIT}/test_planning.py::test_a_great_segment_is_split_and_small_ones_share",
    18: f"{UNIT}/test_workers.py::test_pandas_is_not_needed",
    19: f"{WHOLE}/test_streaming.py::test_the_latest_place_is_pinned_under_the_name_of_the_reader",
    20: f"{UNIT}/test_offsets.py::test_offsets_have_one_spelling",
    21: f"{UNIT}/test_planning.py::test_a_stream_stays_behind_the_last_entry_until_there_is_another",
    22: f"{UNIT}/test_polling.py::test_an_idle_query_looks_as_often_as_it_was_told",
    23: f"{UNIT}/test_reading.py::test_what_may_be_there_later_is_asked_for_again",
    24: f"{UNIT}/test_report.py::test_how_far_a_reader_is_behind",  # what was committed is a lower bound
    26: f"{WHOLE}/test_streaming.py::test_available_now_keeps_the_bounds_of_a_trigger_and_ends_where_it_began_to_look",
    27: f"{WHOLE}/test_streaming.py::test_few_records_wait_for_more_but_not_for_ever",
    31: f"{WHOLE}/test_streaming.py::test_truncation_below_the_checkpoint_is_told",
    32: f"{WHOLE}/test_sink.py::test_a_query_writes_each_batch_once",
    33: f"{WHOLE}/test_kills.py::test_workers_are_killed_wherever_they_are",
    34: f"{WHOLE}/test_sink.py::test_a_batch_whose_driver_died_behind_the_publish_is_dropped_when_it_comes_again",
    35: f"{WHOLE}/test_kills_of_drivers.py::test_drivers_are_killed_wherever_they_are",
    36: f"{WHOLE}/test_sink.py::test_what_a_query_may_still_have_taken_in_is_not_swept_however_old",
    37: f"{WHOLE}/test_sink.py::test_no_rows_are_no_batch",
    38: f"{WHOLE}/test_sink.py::test_what_cannot_be_written_is_refused_and_says_what_to_do",
    39: f"{WHOLE}/test_sink.py::test_a_new_checkpoint_is_refused_until_a_person_says_that_it_counts_anew",
}

NOT_OURS: dict[int, str] = {
    11: "Spark's own guess of sizes; docs/spark.md names the hint",
    12: "Spark asks a Python source for no places",
    17: "the format is made known by a call: docs/decisions/0020",
    25: "a source holds nothing that would have to expire",
    28: "a stream has no tags: streams are chosen by name",
    29: "the simple stream reader is not used",
    30: "Spark refuses real-time mode for every Python source, in its own words",
}


def test_every_trap_is_dealt_with() -> None:
    assert sorted([*TESTED, *NOT_OURS]) == list(range(1, 40))


@pytest.mark.parametrize("number", TESTED)
def test_its_test_is_there(number: int) -> None:
    file, _, name = TESTED[number].partition("::")
    assert f"def {name}(" in (ROOT / file).read_text()
