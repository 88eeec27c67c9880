"""Thirty-four defects that other systems had, by source, each with the test that would show it here.

Invariants:
- A row names a test that exists (test_bugs_of_others.py checks), or says why the defect cannot occur here, or that
  there is no test yet.
"""

from __future__ import annotations

from typing import NamedTuple


class Defect(NamedTuple):
    """tests: file and function of each test that shows the defect. why: why there is none, or what limits those."""

    source: str
    tests: tuple[str, ...] = ()
    why: str = ""


SCENARIOS = "tests/simulation/test_ledger_scenarios.py"
TAKEOVER = "tests/unit/log/test_takeover.py"
BOOKIE = "tests/unit/bookie/test_bookie.py"
READING = "tests/unit/log/test_reading.py"
START = "tests/unit/log/test_start_position.py"
WENT_BACK = "tests/simulation/service/test_went_back.py"
JOURNAL = "tests/unit/bookie/test_journal.py"
LEDGER_DIR = "tests/unit/bookie/test_ledger_dir.py"
NO_REPAIR = "not yet: bookies do not re-replicate"
NO_COLLECTION = "not yet: bookies collect no garbage by a listing of ledgers"
NO_CURSORS = "the service keeps no cursors: a reader alone knows where it stands (S12 in invariants.py)"
NO_OBJECTS = "not yet: there is no segment store on objects"

DEFECTS = {
    1: Defect(
        "BookKeeper #2614",
        (f"{SCENARIOS}::test_bookkeeper_2614_a_late_add_cannot_reach_a_bookie_that_recovery_only_read_from",),
    ),
    2: Defect(
        "BookKeeper #2615",
        (f"{SCENARIOS}::test_bookkeeper_2615_an_empty_last_fragment_does_not_draw_the_search_back_before_it",),
    ),
    3: Defect(
        "BookKeeper #1591",
        (f"{SCENARIOS}::test_bookkeeper_1591_no_confirmation_on_an_ensemble_that_metadata_does_not_know",),
    ),
    4: Defect(
        "BookKeeper #4651",
        (f"{SCENARIOS}::test_bookkeeper_4651_what_was_sent_to_a_replaced_bookie_is_held_by_those_that_metadata_names",),
    ),
    5: Defect("BookKeeper #4701", (f"{BOOKIE}::test_a_fence_refuses_at_once_and_is_answered_when_durable",)),
    6: Defect(
        "BookKeeper #1886",
        (f"{SCENARIOS}::test_bookkeeper_1886_a_change_that_fails_late_is_tried_again_from_metadata_as_it_then_is",),
    ),
    7: Defect(
        "BookKeeper #1067",
        (f"{SCENARIOS}::test_bookkeeper_1067_one_hung_bookie_does_not_block_a_recovery",),
        "The ledger's style `frozen` demands it of every recovery beside a silent member.",
    ),
    8: Defect(
        "BookKeeper #4105, #4740",
        (f"{LEDGER_DIR}::test_an_older_checkpoint_that_finishes_after_a_newer_one_moves_no_mark_back",),
    ),
    9: Defect("BookKeeper #865", why=NO_COLLECTION),
    10: Defect("BookKeeper #4668, #4163", (f"{BOOKIE}::test_a_recovery_add_passes_the_fence",), NO_REPAIR),
    11: Defect(
        "BP-46, scenarios 1 and 2",
        (
            f"{SCENARIOS}::test_bp46_a_writer_that_slept_and_bookies_that_restarted_since_the_fence",
            "tests/unit/bookie/test_cookie.py::test_all_directories_emptied_is_refused_with_the_command_that_takes_the_bookie_out",
        ),
    ),
    12: Defect(
        "DistributedLog #2898", (f"{TAKEOVER}::test_a_segment_that_was_closed_well_is_in_the_list_after_reopening",)
    ),
    13: Defect("DistributedLog #2099", (f"{TAKEOVER}::test_an_empty_segment_does_not_move_the_highest_txid",)),
    14: Defect(
        "DistributedLog #3813",
        ("tests/unit/log/test_changes.py::test_an_empty_segment_leaves_no_trace_but_its_place_to_delete",),
    ),
    15: Defect("woodpecker #155", (f"{TAKEOVER}::test_a_pre_empted_owner_that_rolls_changes_nothing",)),
    16: Defect(
        "herddb #100, pravega #1907",
        (f"{SCENARIOS}::test_a_writer_that_sleeps_through_its_recovery_confirms_nothing",),
        "The planted defect 'closes at what was sent, not at what is confirmed' is the first of them.",
    ),
    17: Defect(
        "BookKeeper's documentation: fence the last two",
        (f"{TAKEOVER}::test_both_segments_are_fenced_when_an_owner_dies_between_listing_and_closing",),
    ),
    18: Defect("Pulsar #18237", why=NO_CURSORS),
    19: Defect("Pulsar #26304, #18620", why=NO_CURSORS),
    20: Defect("Kafka KIP-101", why="no replica truncates itself: an end is decided once, by recovery (L2, L12)"),
    21: Defect("Kafka KIP-279", why="as KIP-101; two fast failovers are T3 and T4 in the stream's room"),
    22: Defect(
        "Kafka KIP-966",
        ("tests/unit/bookie/test_cookie.py::test_an_emptied_directory_is_refused",),
        "Nothing is acknowledged below Qa (L10), and a bookie that lost its disk does not serve.",
    ),
    23: Defect(
        "Kafka CVE-2026-35554", ("tests/integration/stores/contract.py::test_a_cancelled_append_keeps_its_place",)
    ),
    24: Defect("Redpanda #6018", (f"{SCENARIOS}::test_redpanda_6018_what_one_bookie_alone_has_is_not_confirmed",)),
    25: Defect(
        "Redpanda #29849, #27036",
        (
            f"{START}::test_redpanda_29849_a_place_is_that_of_its_record_behind_control_records_and_truncations",
            f"{READING}::test_redpanda_27036_a_reader_does_not_go_back_when_the_log_is_truncated",
        ),
        "S8, S9 and S11 of the stream's room; control records take a slot and shift none.",
    ),
    26: Defect(
        "NATS 2.12.1",
        (
            f"{JOURNAL}::test_any_flipped_bit_before_the_last_group_is_damage",
            f"{LEDGER_DIR}::test_any_flipped_bit_gives_the_right_bytes_or_an_error",
        ),
    ),
    27: Defect(
        "Bufstream 0.1.0",
        ("tests/integration/proxies/test_writing.py::test_a_repeated_batch_is_answered_with_its_first_place",),
        "S2 of the stream's room: where a batch is said to lie is where it is read.",
    ),
    28: Defect("AutoMQ #3336, #3339", why=NO_OBJECTS),
    29: Defect("AutoMQ #573", why=NO_OBJECTS),
    30: Defect("AutoMQ #3063, #2450", why=NO_OBJECTS),
    31: Defect(
        "etcd 3.4.3",
        (
            f"{TAKEOVER}::test_a_frozen_owner_that_wakes_up_gets_nothing_acknowledged",
            "tests/integration/proxies/test_zombies.py::test_what_a_frozen_owner_finds_before_its_door_is_refused",
        ),
    ),
    32: Defect(
        "ZOOKEEPER-2832, 4646",
        (
            f"{WENT_BACK}::test_zookeeper_2832_metadata_that_went_back_is_refused_by_who_has_seen_more",
            f"{WENT_BACK}::test_zookeeper_2832_who_believes_metadata_that_went_back_gives_an_epoch_twice",
        ),
        "By each process, as far as it has seen: one that is started after the loss cannot know.",
    ),
    33: Defect(
        "bpo-42130",
        ("tests/unit/actors/test_runtime.py::test_who_does_not_end_when_asked_is_cancelled_after_the_drain_time",),
    ),
    34: Defect(
        "fsyncgate",
        (
            "tests/integration/bookie/test_deaths.py"
            "::test_a_sync_that_fails_ends_the_process_and_nothing_is_acknowledged_after_it",
            "tests/crashpoints/test_crash_points.py::test_a_failed_sync_is_the_last_thing_a_bookie_does",
        ),
    ),
}
