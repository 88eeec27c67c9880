"""Scenarios of a claim: taken, contested, its reply lost, answered late."""

from __future__ import annotations

from dataclasses import replace

from dlog.errors import MetadataWentBackError, OwnedElsewhereError, StreamNotFoundError
from dlog.machine import (
    CompareAndSet,
    Conflict,
    Effect,
    MetadataSeen,
    Missing,
    OutcomeUnknown,
    ReadMetadata,
    Refused,
    SetTimer,
    TimerFired,
    Versioned,
)
from dlog.model.ids import Epoch, ProxyId, StreamName
from dlog.model.segment import Owner, StreamKey, StreamMetadata
from dlog.ownership.claim import Claim, Claimant, ClaimOptions, ClaimState

KEY = StreamKey(StreamName("s"))
EMPTY = StreamMetadata(name=KEY.stream)
THEIRS = replace(EMPTY, owner=Owner(epoch=Epoch(1), proxy=ProxyId("p2"), address="p2:1", claim="theirs"))


def claim() -> Claim:
    return Claim(KEY, Claimant(proxy=ProxyId("p1"), address="p1:1", nonce="mine"), ClaimOptions())


def read(effects: list[Effect]) -> ReadMetadata:
    return next(e for e in effects if isinstance(e, ReadMetadata))


def write(effects: list[Effect]) -> CompareAndSet:
    return next(e for e in effects if isinstance(e, CompareAndSet))


def timer(effects: list[Effect]) -> SetTimer:
    return next(e for e in effects if isinstance(e, SetTimer))


def claiming(if_epoch: int | None = None) -> tuple[Claim, CompareAndSet]:
    """A claim in progress."""
    one = claim()
    asked = read(one.begin(None if if_epoch is None else Epoch(if_epoch)))
    return one, write(one.handle(MetadataSeen(asked.token, Versioned(EMPTY, 1))))


def test_a_claim_adds_one_to_the_epoch_and_carries_the_nonce() -> None:
    one, claim = claiming()
    assert claim.version == 1
    assert claim.value.owner == Owner(epoch=Epoch(1), proxy=ProxyId("p1"), address="p1:1", claim="mine")
    one.handle(MetadataSeen(claim.token, Versioned(claim.value, 2)))
    assert one.state is ClaimState.HELD
    assert one.epoch == 1
    assert one.take_seen() == Versioned(claim.value, 2)
    assert one.seen is None


def test_a_claim_that_lost_the_race_gives_way_and_says_to_whom() -> None:
    one, claim = claiming()
    again = read(one.handle(MetadataSeen(claim.token, Conflict())))
    one.handle(MetadataSeen(again.token, Versioned(THEIRS, 2)))
    assert one.state is ClaimState.LOST
    assert isinstance(one.error, OwnedElsewhereError)
    assert one.error.location == "p2:1"


def test_a_conflict_for_another_reason_is_tried_again_with_the_new_version() -> None:
    one, claim = claiming()
    again = read(one.handle(MetadataSeen(claim.token, Conflict())))
    second = write(one.handle(MetadataSeen(again.token, Versioned(replace(EMPTY, allocated="7"), 5))))
    assert second.version == 5
    assert second.value.allocated == "7"


def test_a_lost_reply_is_resolved_by_reading_and_the_nonce() -> None:
    one, claim = claiming()
    waits = timer(one.handle(MetadataSeen(claim.token, OutcomeUnknown("connection lost"))))
    again = read(one.handle(TimerFired(waits.key, 1.0)))
    one.handle(MetadataSeen(again.token, Versioned(claim.value, 2)))
    assert one.state is ClaimState.HELD


def test_another_claim_with_the_epoch_we_wanted_is_not_ours() -> None:
    one, claim = claiming()
    waits = timer(one.handle(MetadataSeen(claim.token, OutcomeUnknown("connection lost"))))
    again = read(one.handle(TimerFired(waits.key, 1.0)))
    one.handle(MetadataSeen(again.token, Versioned(THEIRS, 2)))
    assert one.state is ClaimState.LOST


def test_an_answer_to_an_older_question_is_dropped() -> None:
    one, claim = claiming()
    overdue = ("claim", 2)
    again = read(one.handle(TimerFired(overdue, 1.0)))
    assert one.handle(MetadataSeen(claim.token, Versioned(claim.value, 2))) == []
    assert one.epoch == 0
    one.handle(MetadataSeen(again.token, Versioned(claim.value, 2)))
    assert one.state is ClaimState.HELD


def test_a_claim_on_an_epoch_that_has_passed_is_not_made() -> None:
    one = claim()
    asked = read(one.begin(Epoch(0)))
    assert not [e for e in one.handle(MetadataSeen(asked.token, Versioned(THEIRS, 1))) if isinstance(e, CompareAndSet)]
    assert one.state is ClaimState.LOST


def test_a_stream_that_is_not_there_cannot_be_claimed() -> None:
    one = claim()
    one.handle(MetadataSeen(read(one.begin(None)).token, Missing()))
    assert isinstance(one.error, StreamNotFoundError)


def test_a_newer_claim_ends_ours() -> None:
    one, claim = claiming()
    one.handle(MetadataSeen(claim.token, Versioned(claim.value, 2)))
    assert one.observe(claim.value)
    assert not one.observe(replace(THEIRS, owner=replace(THEIRS.owner, epoch=Epoch(2))))
    assert one.state is ClaimState.LOST


def test_metadata_that_went_back_is_not_asked_for_again() -> None:
    one = claim()
    asked = read(one.begin(None))
    gone_back = MetadataWentBackError("metadata went back")
    effects = one.handle(MetadataSeen(asked.token, Refused(gone_back)))
    assert one.state is ClaimState.LOST
    assert one.error is gone_back
    assert not [effect for effect in effects if isinstance(effect, SetTimer | ReadMetadata | CompareAndSet)]
