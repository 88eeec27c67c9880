"""Tests the recovery of what a node left, by its transcripts: the fences, the scan, the ends, the upload, deletion."""

from __future__ import annotations

from typing import Any

import pytest

from dlog.errors import ConnectionLostError, DamagedError
from dlog.model.object_streams import NodeEpoch, ObjectId, Slice, WalPosition
from dlog.objects.errors import NodeEpochExpiredError
from dlog.objects.failover import FailoverWorker
from dlog.objects.node_messages import (
    AwaitUploaded,
    CreateWalSegment,
    DeleteWalSegment,
    NodeEndedError,
    ObjectWritten,
    ReadWalEntries,
    RecoverNode,
    RecoverWalSegment,
    WriteObject,
)
from dlog.objects.node_options import NodeOptions
from dlog.objects.operations import (
    CloseStreams,
    CommitUpload,
    Done,
    NodeIsOpen,
    ObjectsArePrepared,
    OpenNode,
    PrepareObjects,
    RangeState,
    WalDeleted,
)
from dlog.stores.contract import SegmentNotFoundError
from tests.unit.objects.nodes import E1, NEW, NODE, S1, S2, Driven, wal_entry, wal_segment

OPEN_1 = RangeState(S1, E1, 0, None, 3, 0)
OPEN_2 = RangeState(S2, E1, 10, None, 10, 0)
ENDED_1 = RangeState(S1, E1, 0, 5, 3, 0)


def worker(state: NodeIsOpen | Any) -> tuple[Driven, int]:
    driven = Driven(FailoverWorker(NODE, NodeEpoch(2), b"nonce", NodeOptions()))
    ticket = driven.ask(RecoverNode())
    assert driven.reply(OpenNode, state) == OpenNode(NODE, NodeEpoch(2), True, b"nonce")
    return driven, ticket


def scanned(state: NodeIsOpen, *payloads: bytes) -> tuple[Driven, int]:
    """A worker that has scanned the one segment of the log, which has these entries."""
    driven, ticket = worker(state)
    driven.reply(RecoverWalSegment, state.flush_point.entry + len(payloads))
    driven.reply(ReadWalEntries, payloads)
    return driven, ticket


class TestRecovery:
    def test_the_ends_are_what_the_log_has_and_the_rest_is_uploaded_behind_them(self) -> None:
        wal = (wal_segment(3), wal_segment(4))
        driven, ticket = worker(NodeIsOpen((OPEN_1, OPEN_2), wal, WalPosition(3, 7)))
        uploaded = driven.ask(AwaitUploaded())
        assert driven.reply(RecoverWalSegment, 9).segment == wal[0]
        assert not driven.asked(ReadWalEntries)  # all are fenced before one is read
        driven.reply(RecoverWalSegment, 1)
        assert driven.asked(ReadWalEntries) == [ReadWalEntries(wal[0], 7, 9)]
        driven.reply(ReadWalEntries, (wal_entry((S1, E1, 1, (b"1", b"2", b"3"))),))  # fewer than were asked for
        driven.reply(ReadWalEntries, (wal_entry((S2, E1, 10, (b"x",))),))
        driven.reply(ReadWalEntries, (wal_entry((S1, E1, 4, (b"4",))),))
        assert not driven.asked(PrepareObjects)
        assert driven.reply(CloseStreams, Done(1)).ends == ((S1, E1, 5), (S2, E1, 11))
        assert driven.answers[ticket] == ((S1, 5), (S2, 11))
        driven.reply(PrepareObjects, ObjectsArePrepared(ObjectId(8), 1))
        written = driven.reply(WriteObject, ObjectWritten(9, 1))
        assert [data.slice for data in written.slices] == [Slice(S1, 3, 5), Slice(S2, 10, 11)]
        assert driven.reply(CommitUpload, Done(2)).flush_point == WalPosition(5, 0)
        for number in (3, 4):
            assert driven.reply(DeleteWalSegment).segment.number == number
            assert uploaded not in driven.answers
            driven.reply(WalDeleted, Done(3))
        assert driven.answers[uploaded] is None

    def test_a_node_that_left_nothing_is_done_at_once(self) -> None:
        driven, ticket = worker(NEW)
        assert driven.answers == {ticket: ()}
        assert driven.answers[driven.ask(AwaitUploaded())] is None
        assert not driven.asked(CreateWalSegment)

    def test_a_log_that_is_uploaded_only_has_its_flush_point_moved(self) -> None:
        driven, _ = worker(NodeIsOpen((), (wal_segment(3),), WalPosition(3, 2)))
        driven.reply(RecoverWalSegment, 2)
        commit = driven.reply(CommitUpload, Done(2))
        assert (commit.set_object, commit.stream_objects, commit.flush_point) == (None, (), WalPosition(4, 0))
        assert driven.reply(DeleteWalSegment).segment.number == 3

    def test_segments_below_the_flush_point_are_deleted_and_not_read(self) -> None:
        driven, _ = worker(NodeIsOpen((), (wal_segment(3), wal_segment(4)), WalPosition(4, 0)))
        assert driven.reply(RecoverWalSegment, 0).segment.number == 4
        assert driven.reply(DeleteWalSegment).segment.number == 3

    def test_an_ended_range_keeps_nothing_above_its_end_and_other_ranges_are_passed_over(self) -> None:
        state = NodeIsOpen((ENDED_1,), (wal_segment(3),), WalPosition(3, 0))
        entry = wal_entry((S1, E1, 3, (b"3", b"4", b"5")), (S2, E1, 0, (b"of a stream that is deleted",)))
        driven, ticket = scanned(state, entry)
        assert driven.answers[ticket] == () and not driven.asked(CloseStreams)
        driven.reply(PrepareObjects, ObjectsArePrepared(ObjectId(8), 1))
        assert [data.slice for data in driven.reply(WriteObject, ObjectWritten(9, 1)).slices] == [Slice(S1, 3, 5)]

    def test_a_question_without_an_answer_is_asked_again(self) -> None:
        driven, ticket = scanned(
            NodeIsOpen((OPEN_1,), (wal_segment(3),), WalPosition(3, 0)), wal_entry((S1, E1, 3, (b"",)))
        )
        first = driven.reply(CloseStreams, ConnectionLostError("lost"))
        driven.fire()
        assert driven.reply(CloseStreams, Done(1)) == first
        assert driven.answers[ticket] == ((S1, 4),)


class TestDamage:
    @pytest.mark.parametrize(
        ("found", "payload", "text"),
        [
            (OPEN_1, wal_entry((S1, E1, 4, (b"4",))), "missing in the write-ahead log"),
            (ENDED_1, wal_entry((S1, E1, 3, (b"3",))), "missing at the end"),
            (OPEN_1, wal_entry((S1, E1, 3, (b"3",)), node_epoch=9), "another node epoch"),
            (OPEN_1, b"garbage" * 20, "no entry"),
        ],
    )
    def test_damage_ends_the_recovery_and_nothing_is_closed_or_committed(
        self, found: RangeState, payload: bytes, text: str
    ) -> None:
        driven, ticket = scanned(NodeIsOpen((found,), (wal_segment(3),), WalPosition(3, 0)), payload)
        error = driven.answers[ticket]
        assert isinstance(error, NodeEndedError) and text in error.message
        assert isinstance(error.__cause__, DamagedError)
        assert not driven.asked(CloseStreams) and not driven.asked(CommitUpload)

    def test_a_segment_that_is_gone_ends_the_recovery(self) -> None:
        driven, ticket = worker(NodeIsOpen((OPEN_1,), (wal_segment(3),), WalPosition(3, 0)))
        driven.reply(RecoverWalSegment, SegmentNotFoundError("no such segment"))
        assert isinstance(driven.answers[ticket], NodeEndedError)

    def test_a_worker_whose_epoch_has_expired_ends_and_answers_everybody(self) -> None:
        driven, ticket = scanned(
            NodeIsOpen((OPEN_1,), (wal_segment(3),), WalPosition(3, 0)), wal_entry((S1, E1, 3, (b"",)))
        )
        waiting = driven.ask(AwaitUploaded())
        driven.reply(CloseStreams, NodeEpochExpiredError("expired", current=3))
        assert isinstance(driven.answers[ticket], NodeEndedError)
        assert isinstance(driven.answers[waiting], NodeEndedError)
        assert isinstance(driven.answers[driven.ask(RecoverNode())], NodeEndedError)
