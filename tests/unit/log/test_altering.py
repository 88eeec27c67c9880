"""The stream's owner alters settings while it writes; a repeated or late request changes nothing twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlog.errors import ClaimLostError, InvalidRequestError, StaleRequestError, StreamUnavailableError
from dlog.log.changes import AlterSettings
from dlog.log.messages import AlterStream, AppendEntry, BatchWritten, CreateSegment, SealStream
from dlog.log.options import OwnerOptions
from dlog.machine import CompareAndSet, MetadataSeen, OutcomeUnknown, ReadMetadata, Versioned
from dlog.model.segment import StreamSettings, Truncation
from dlog.model.window import WINDOW_MAX, WINDOW_MIN
from tests.unit.log.stage import INCARNATION, STORES, Actor, Stage, batch, stores
from tests.unit.log.test_retention import RETENTION_S, Clocks, kept


def altered(stage: Stage, **changes: Any) -> StreamSettings:
    """The stream's settings with these changes, as a proxy asks for them."""
    now = stage.value.settings
    return replace(now, version=now.version + 1, **changes)


def alter(owner: Actor, stage: Stage, **changes: Any) -> Any:
    """Alter settings; returns the ticket's answer. `None` means "done" as well as "no answer yet"."""
    owner.ask(AlterStream(altered(stage, **changes), INCARNATION))
    return owner.answers.get(owner._tickets, "no answer")


def test_settings_are_altered_under_the_same_claim_and_only_those_that_are_named() -> None:
    stage = Stage(segment_bytes=1000)
    owner = stage.taken("p1")
    owner.ask(batch(0))
    before = stage.value
    assert alter(owner, stage, retention_s=60.0) is None
    assert stage.value.settings == replace(before.settings, retention_s=60.0, version=1)
    assert stage.value == replace(before, settings=stage.value.settings), "nothing else is changed"
    assert isinstance(owner.ask(batch(1)), BatchWritten)


def test_the_open_segment_keeps_its_size_and_the_next_one_has_the_new_one() -> None:
    stage = Stage(segment_bytes=1000)
    owner = stage.taken("p1")
    owner.ask(batch(0, size=300))
    alter(owner, stage, segment_bytes=200)
    owner.ask(batch(1, size=300))
    assert len(stage.value.segments) == 1
    for sequence in range(2, 5):
        owner.ask(batch(sequence, size=300))
    segments = len(stage.value.segments)
    assert segments >= 2
    owner.ask(batch(5, size=300))
    owner.ask(batch(6, size=300))
    assert len(stage.value.segments) == segments + 2, "each record fills a segment now"


def test_producers_are_told_how_many_batches_keep_the_store_of_the_open_segment_busy() -> None:
    stage = Stage(segment_bytes=200)
    known = stores() | {"file": replace(STORES["file"], bytes_in_flight=1 << 30)}
    owner = stage.taken("p1", stores=known)
    assert owner.ask(batch(0)).window == WINDOW_MIN
    alter(owner, stage, store="file")
    owner.ask(batch(1, size=300))
    assert owner.ask(batch(2, size=300)).window == WINDOW_MAX
    alter(owner, stage, store="ledger")
    owner.ask(batch(3, size=300))
    assert owner.ask(batch(4, size=300)).window == WINDOW_MIN


def test_producers_are_told_less_while_half_of_the_room_is_taken() -> None:
    stage = Stage(store="file")
    known = stores() | {"file": replace(STORES["file"], bytes_in_flight=1 << 30)}
    owner = stage.taken("p1", OwnerOptions(pending_bytes_max=1000, cut_bytes=10), stores=known)
    stage.hold(AppendEntry)
    for sequence, size in enumerate((300, 300, 1)):
        owner.ask(batch(sequence, size=size))
    stage.release()
    assert [owner.answers[ticket].window for ticket in (2, 3, 4)] == [WINDOW_MIN, WINDOW_MAX, WINDOW_MAX]


def test_the_open_segment_keeps_its_age_and_the_next_one_has_the_new_one() -> None:
    stage = Stage(segment_bytes=300, segment_age_s=100.0)
    owner = stage.taken("p1")
    set_at_first = owner.timers["age",]
    alter(owner, stage, segment_age_s=10.0)
    assert owner.timers["age",] == set_at_first
    owner.ask(batch(0, size=400))
    owner.ask(batch(1))
    assert owner.timers["age",] == pytest.approx(set_at_first / 10)


def test_the_settings_of_the_store_are_those_of_the_next_segment_that_is_created() -> None:
    stage = Stage(segment_bytes=1000)
    owner = stage.taken("p1")
    alter(owner, stage, store_settings=(("ensemble", 5),))
    owner.ask(batch(0, size=600))
    assert [m.settings for m in owner.sent if isinstance(m, CreateSegment)] == [(), (("ensemble", 5),)]


@pytest.mark.parametrize("is_late", [False, True])
def test_a_segment_that_was_created_ahead_with_other_settings_of_its_store_is_deleted(is_late: bool) -> None:
    """What a store promises of its records (how many copies acknowledge, in how many regions) holds from the next
    segment on, also if that one is being created."""
    stage = Stage(segment_bytes=1000)
    owner = stage.taken("p1")
    if is_late:
        stage.hold(CreateSegment)
    owner.ask(batch(0, size=500))
    alter(owner, stage, store_settings=(("ensemble", 5),))
    stage.release()
    for sequence in range(1, 4):
        owner.ask(batch(sequence, size=300))
    created = [m for m in owner.sent if isinstance(m, CreateSegment)]
    assert [(m.number, m.settings) for m in created][:3] == [(1, ()), (2, ()), (2, (("ensemble", 5),))]
    assert "2b" in stage.deleted
    assert [segment.location.name for segment in stage.value.segments if segment.number == 2] == ["2c"]


def test_a_segment_that_was_created_ahead_in_another_store_is_deleted() -> None:
    """The next segment lies in the store that the settings name, however soon it is needed."""
    stage = Stage(segment_bytes=1000)
    owner = stage.taken("p1")
    owner.ask(batch(0, size=500))
    assert stage.value.allocated == "2b"
    alter(owner, stage, store="memory")
    for sequence in range(1, 4):
        owner.ask(batch(sequence, size=300))
    assert "2b" in stage.deleted
    assert [(s.number, s.location.store) for s in stage.value.segments[:2]] == [(1, "ledger"), (2, "memory")]
    assert stage.value.allocated != "2b"


def test_a_shorter_retention_acts_at_once_and_a_longer_one_keeps_what_is_there() -> None:
    clocks = Clocks()
    owner = clocks.owner()
    for _ in range(3):
        clocks.write(owner)
    clocks.pass_s(RETENTION_S / 2)
    clocks.stage.unix_ms = clocks.true_ms
    alter(owner, clocks.stage, retention_s=RETENTION_S * 10)
    clocks.fall_due(owner)
    assert kept(clocks)[0] == 1
    clocks.pass_s(RETENTION_S * 2)
    clocks.fall_due(owner)
    assert kept(clocks)[0] == 1
    clocks.stage.unix_ms = clocks.true_ms
    alter(owner, clocks.stage, retention_s=1.0)
    owner.fire("retention")
    assert kept(clocks)[0] > 1
    assert all(s.truncation is Truncation.ACTIVE for s in clocks.stage.value.segments)


def test_a_repetition_changes_nothing_and_is_answered_alike() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    request = AlterStream(altered(stage, retention_s=60.0), INCARNATION)
    assert owner.ask(request) is None
    value = stage.value
    assert owner.ask(request) is None
    assert len(owner.answers) == 3 and stage.value is value


def test_a_late_repetition_does_not_undo_what_was_altered_since() -> None:
    """The late request is refused also if the settings have their former values again."""
    stage = Stage(retention_s=5.0)
    owner = stage.taken("p1")
    late = AlterStream(altered(stage, retention_s=60.0), INCARNATION)
    assert owner.ask(late) is None
    alter(owner, stage, retention_s=5.0)
    for name in ("", "p2"):
        machine = stage.taken(name) if name else owner
        value = stage.value
        answer = machine.ask(late)
        assert isinstance(answer, StaleRequestError) and answer.outcome_unknown
        assert stage.value is value and value.settings.retention_s == 5.0


def test_of_two_that_were_made_from_the_same_settings_one_is_refused() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    first, second = (AlterStream(altered(stage, retention_s=s), INCARNATION) for s in (1.0, 2.0))
    stage.hold(CompareAndSet)
    owner.ask(first)
    owner.ask(second)
    stage.release()
    answers = [answer for answer in owner.answers.values() if answer is None or isinstance(answer, StaleRequestError)]
    assert answers[0] is None
    assert isinstance(answers[1], StaleRequestError) and not answers[1].outcome_unknown
    assert stage.value.settings.retention_s == 1.0


class LosesOneReply(Stage):
    """The next write takes place, and its reply is lost."""

    loses = False

    def metadata(self, question: ReadMetadata | CompareAndSet) -> MetadataSeen:
        seen = super().metadata(question)
        if self.loses and isinstance(question, CompareAndSet) and isinstance(seen.outcome, Versioned):
            self.loses = False
            return MetadataSeen(question.token, OutcomeUnknown("the reply was lost"))
        return seen


def test_what_was_written_and_not_answered_is_done_once() -> None:
    stage = LosesOneReply()
    owner = stage.taken("p1")
    stage.loses = True
    assert alter(owner, stage, retention_s=60.0) == "no answer"
    (timer,) = [key for key in owner.timers if key[0] == "register"]
    owner.fire(*timer)
    assert owner.answers[owner._tickets] is None
    assert stage.value.settings.version == 1


def test_a_deposed_owner_alters_nothing_and_does_not_say_that_it_did_not() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(CompareAndSet, ReadMetadata)
    owner.ask(AlterStream(altered(stage, retention_s=60.0), INCARNATION))
    held, stage.held = stage.held, type(stage.held)()
    stage.holding = ()
    stage.taken("p2")
    value = stage.value
    stage.held = held
    stage.release()
    answer = owner.answers[owner._tickets]
    assert isinstance(answer, ClaimLostError) and answer.outcome_unknown
    assert stage.value is value


def test_an_owner_that_does_not_know_of_its_loss_refuses_nothing_before_it_has_read_metadata() -> None:
    """The owner's settings are old, so it cannot decide whether the request is outdated."""
    stage = Stage()
    owner = stage.taken("p1")
    other = stage.taken("p2")
    alter(other, stage, retention_s=60.0)
    answer = owner.ask(AlterStream(altered(stage, retention_s=70.0), INCARNATION))
    assert isinstance(answer, ClaimLostError)


def test_a_change_that_metadata_refuses_is_answered_with_its_error() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.refusal = lambda before, after: (
        InvalidRequestError("no") if after.settings.retention_s != before.settings.retention_s else None
    )
    answer = alter(owner, stage, retention_s=60.0)
    assert isinstance(answer, InvalidRequestError)
    assert isinstance(owner.ask(batch(0)), BatchWritten)


def test_a_stream_that_is_being_claimed_is_asked_again_and_a_sealed_one_is_altered() -> None:
    stage = Stage()
    owner = stage.owner("p1")
    stage.hold(CompareAndSet)
    owner.take()
    assert isinstance(alter(owner, stage, retention_s=60.0), StreamUnavailableError)
    stage.release()
    owner.ask(batch(0))
    owner.ask(SealStream())
    assert alter(owner, stage, retention_s=60.0) is None
    assert stage.value.is_sealed and stage.value.settings.retention_s == 60.0


def test_settings_are_altered_while_entries_are_on_their_way() -> None:
    stage = Stage()
    owner = stage.taken("p1")
    stage.hold(AppendEntry)
    owner.ask(batch(0))
    owner.ask(AlterStream(altered(stage, retention_s=60.0), INCARNATION))
    assert stage.value.settings.retention_s == 60.0, "it does not wait for the store"
    stage.release()
    assert any(isinstance(answer, BatchWritten) for answer in owner.answers.values())


def test_the_change_takes_the_place_of_the_settings_that_it_was_made_from_only() -> None:
    value = Stage().value
    change = AlterSettings(replace(value.settings, retention_s=1.0, version=1))
    done = change.apply(value)
    assert done.settings.retention_s == 1.0
    assert change.apply(done) is done
    later = replace(done, settings=replace(value.settings, version=2))
    assert change.apply(later) is later
