"""Tests which of a sink's stages are swept, and which registrations are understood."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.model.ids import StreamName
from dlog.model.sink import (
    RegisteredStage,
    SinkBatch,
    SinkRecord,
    StageSweepRule,
    Standing,
    StreamLook,
    SweepDecision,
    registered_stage,
    standing,
)

DONE = SinkBatch("sink", 1, "q", 5)
STAGE = RegisteredStage("7", StreamName("s"), DONE, 1000)
OTHER = replace(STAGE, batch=SinkBatch("sink", 0, "other", 9))
RULE = StageSweepRule(DONE, 2000)
NOW_DONE = StreamLook(SinkRecord(DONE))
LISTED = StreamLook(SinkRecord(DONE), frozenset({("ledger", "7")}))
NOBODY = StreamLook()
GONE = StreamLook(is_open=False)


def test_a_stage_goes_once_it_was_refused_and_a_later_look_does_not_list_it() -> None:
    for stage in (STAGE, OTHER):
        assert RULE.judge(stage, ()) is RULE.judge(stage, (NOW_DONE,)) is SweepDecision.LOOK
        assert RULE.judge(stage, (NOW_DONE, NOW_DONE)) is SweepDecision.GOES
        assert RULE.judge(stage, (NOW_DONE, LISTED)) is SweepDecision.LISTED


def test_a_list_that_was_read_before_it_was_refused_counts_for_nothing() -> None:
    """The stage was imported between the two reads, and then its query was shut out."""
    assert RULE.judge(OTHER, (NOBODY,)) is SweepDecision.STAYS
    assert RULE.judge(OTHER, (NOBODY, LISTED)) is SweepDecision.STAYS


def test_age_says_only_what_is_worth_a_look() -> None:
    assert RULE.judge(replace(OTHER, unix_ms=0), (NOBODY,)) is SweepDecision.STAYS, "however old"
    young = replace(OTHER, unix_ms=2000)
    assert RULE.judge(young, ()) is RULE.judge(young, (NOW_DONE, NOW_DONE)) is SweepDecision.STAYS
    assert RULE.judge(replace(STAGE, unix_ms=9000), ()) is SweepDecision.LOOK, "ours is worth one at once"


def test_of_our_own_only_what_was_decided_goes_and_where_its_stream_knows_it() -> None:
    next_one = replace(STAGE, batch=replace(DONE, batch=6))
    assert RULE.judge(next_one, ()) is SweepDecision.STAYS
    appended = StreamLook(SinkRecord(DONE, (1, 0)))
    assert RULE.judge(STAGE, (appended, appended)) is SweepDecision.GOES
    assert RULE.judge(STAGE, (NOBODY,)) is SweepDecision.STAYS, "a twin of ours may have it taken in there"


def test_what_another_program_was_to_append_it_may_have_taken_in() -> None:
    begun = StreamLook(SinkRecord(OTHER.batch, (1, 0)))
    assert RULE.judge(OTHER, (begun,)) is SweepDecision.STAYS


def test_a_stream_that_is_gone_refuses_and_one_that_was_made_anew_may_not() -> None:
    assert RULE.judge(OTHER, (GONE, GONE)) is SweepDecision.GOES
    assert RULE.judge(OTHER, (GONE, NOBODY)) is SweepDecision.STAYS


def test_of_writes_without_a_number_only_age_is_known() -> None:
    rule = replace(RULE, is_numbered=False)
    assert rule.judge(OTHER, (NOBODY, NOBODY)) is SweepDecision.GOES
    assert rule.judge(OTHER, (NOBODY, StreamLook(locations=frozenset({("ledger", "7")})))) is SweepDecision.LISTED


batches = st.builds(SinkBatch, st.just("sink"), st.integers(0, 2), st.sampled_from("qr"), st.integers(0, 2))
records = st.none() | st.builds(SinkRecord, batches, st.none() | st.just((1, 0)))
looks = st.builds(
    StreamLook,
    records,
    st.sampled_from((frozenset[tuple[str, str]](), frozenset({("ledger", "7")}), frozenset({("file", "7")}))),
)


@settings(max_examples=300, deadline=None)
@given(batches, batches, st.integers(0, 9), st.lists(looks, max_size=3))
def test_nothing_goes_that_is_listed_or_may_be_taken_in(
    done: SinkBatch, batch: SinkBatch, unix_ms: int, seen: list[StreamLook]
) -> None:
    verdict = StageSweepRule(done, 5).judge(RegisteredStage("7", StreamName("s"), batch, unix_ms), seen)
    if verdict is SweepDecision.GOES:
        assert len(seen) > 1 and ("ledger", "7") not in seen[-1].locations
        assert all(standing(look.record, batch) is not Standing.NEW for look in seen)
    assert verdict is not SweepDecision.LOOK or len(seen) < 2, "it comes to an end"


TOLD = {"stream": "s", "query": "q", "batch": 5, "epoch": 1, "unix_ms": 1000}


def test_a_registration_is_read_as_it_was_written() -> None:
    assert registered_stage("sink", "7", json.loads(json.dumps(TOLD))) == STAGE
    assert registered_stage("sink", "7", {**TOLD, "later": "version"}) == STAGE


@pytest.mark.parametrize("told", [None, 1, "text", [], [TOLD], {}, True, 1.5])
def test_what_is_no_registration_is_nobodys(told: Any) -> None:
    assert registered_stage("sink", "7", told) is None


NOT_NUMBERS: tuple[Any, ...] = (None, "5", "", 5.0, float("nan"), True, -1, 2**63, [5], {})
NOT_NAMES: tuple[Any, ...] = (None, 5, "", ["s"], "a/b", "../s", "\n", "s" * 201, "é", {}, False)
GARBAGE = [
    *itertools.product(("batch", "epoch", "unix_ms"), NOT_NUMBERS),
    *itertools.product(("stream", "query"), NOT_NAMES),
]


@pytest.mark.parametrize(("key", "value"), GARBAGE)
def test_a_registration_with_one_wrong_value_is_nobodys(key: str, value: Any) -> None:
    assert registered_stage("sink", "7", {**TOLD, key: value}) is None
    assert registered_stage("sink", "7", {k: v for k, v in TOLD.items() if k != key}) is None


@pytest.mark.parametrize("place", ["", "x", "-7", "07", "7 ", "²", "١", "9" * 19, "1" * 5000, "7\n"])
def test_a_place_is_a_ledger_id(place: str) -> None:
    assert registered_stage("sink", place, TOLD) is None


IN_FILES = "0123456789abcdef" * 2


def test_a_registration_tells_the_store_of_its_stage() -> None:
    told = {**TOLD, "store": "file"}
    assert registered_stage("sink", IN_FILES, told) == replace(STAGE, name=IN_FILES, store="file")
    assert registered_stage("sink", "7", {**TOLD, "store": "ledger"}) == STAGE
    for place in ("", "a" * 513, "é" * 257, "a\n", "\x00"):
        assert registered_stage("sink", place, told) is None
    for store in NOT_NAMES:
        assert registered_stage("sink", IN_FILES, {**TOLD, "store": store}) is None


def test_only_a_segment_in_the_same_store_is_the_stage() -> None:
    rule, stage = StageSweepRule(DONE, 5), replace(STAGE, store="file")
    of_ledger, of_file = (StreamLook(SinkRecord(DONE), frozenset({(store, "7")})) for store in ("ledger", "file"))
    assert rule.judge(stage, (of_file, of_file)) is SweepDecision.LISTED
    assert rule.judge(stage, (of_ledger, of_ledger)) is SweepDecision.GOES


def test_a_stage_of_a_stream_that_was_deleted_goes_though_the_next_of_its_name_remembers_nothing() -> None:
    """A stream imports only stages that name its own incarnation, so nothing imports this one any more."""
    rule, stage = StageSweepRule(DONE, 5000), replace(OTHER, incarnation="a1")
    same, another = StreamLook(incarnation="a1"), StreamLook(incarnation="b2")
    assert rule.judge(stage, (same,)) is SweepDecision.STAYS
    assert rule.judge(stage, (another,)) is SweepDecision.LOOK
    assert rule.judge(stage, (another, another)) is SweepDecision.GOES
    assert rule.judge(replace(stage, incarnation=""), (another,)) is SweepDecision.STAYS, "registered before lives were"


def test_a_registration_tells_the_life_that_its_stage_was_written_for() -> None:
    told = {"stream": "s", "query": "q", "batch": 0, "epoch": 0, "unix_ms": 5}
    without, with_incarnation = (
        registered_stage("sink", "7", told),
        registered_stage("sink", "7", {**told, "life": "a1"}),
    )
    assert without is not None
    assert with_incarnation is not None
    assert (without.incarnation, with_incarnation.incarnation) == ("", "a1")
    assert registered_stage("sink", "7", {**told, "life": 1}) is None
