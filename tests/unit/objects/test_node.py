"""Tests a node by its transcripts: appends, group commit, rolling, closing, uploads, and its end."""

from __future__ import annotations

from typing import Any

import pytest

from dlog.errors import (
    ConnectionLostError,
    InvalidRequestError,
    NotReadyError,
    OverCapacityError,
    RecordTooLargeError,
    StaleRequestError,
    UnavailableError,
)
from dlog.events import NodeEnded, UploadStalled
from dlog.model.ids import Epoch
from dlog.model.object_streams import NodeEpoch, ObjectId, Slice, StreamObject, StreamSetObject, WalPosition
from dlog.objects.errors import NodeEpochExpiredError, ObjectNotFoundError, StreamNotClosedError
from dlog.objects.node import ObjectNode, Phase
from dlog.objects.node_messages import (
    AppendEntries,
    AppendWalEntry,
    CloseStreamsHere,
    CreateWalSegment,
    DeleteWalSegment,
    NodeEndedError,
    ObjectKeyTakenError,
    ObjectWritten,
    OpenStreamHere,
    SealWalSegment,
    StartNode,
    TrimStreamHere,
    UploadAll,
    WalLocation,
    WriteObject,
)
from dlog.objects.node_options import NodeOptions
from dlog.objects.operations import (
    BeginWalSegment,
    CloseStreams,
    CommitUpload,
    Done,
    ObjectsArePrepared,
    OpenNode,
    OpenStream,
    PrepareObjects,
    StreamIsOpen,
    TrimStream,
    WalDeleted,
)
from dlog.stores.contract import SegmentFencedError, StoreUnavailableError
from dlog.wire.node_wal import decode_wal_entry
from tests.unit.objects.nodes import E1, NEW, NODE, S1, S2, Driven, create_wal, entries, started

EXPIRED = NodeEpochExpiredError("expired", current=3)


def serving(**options: Any) -> Driven:
    """A node that has stream 1 open from offset 5 on, and stream 2 from 0."""
    driven = started(**options)
    for stream, next in ((S1, 5), (S2, 0)):
        ticket = driven.ask(OpenStreamHere(stream, E1))
        driven.reply(OpenStream, StreamIsOpen(0, next))
        assert driven.answers[ticket] == next
    return driven


def append(driven: Driven, offset: int, *payloads: bytes, stream: int = 1) -> int:
    return driven.ask(AppendEntries(S1 if stream == 1 else S2, E1, offset, entries(*payloads)))


def frames(request: AppendWalEntry) -> list[tuple[int, int, list[bytes]]]:
    found = decode_wal_entry(b"".join(bytes(part) for part in request.parts))
    return [(f.stream, f.first, [bytes(entry.payload) for entry in f.entries]) for f in found.frames]


class TestStarting:
    def test_nothing_is_served_before_a_wal_segment_is_registered(self) -> None:
        driven = Driven(ObjectNode(NODE, NodeEpoch(2), b"nonce", NodeOptions()))
        start = driven.ask(StartNode())
        assert driven.asked(OpenNode) == [OpenNode(NODE, NodeEpoch(2), False, b"nonce")]
        early = driven.ask(OpenStreamHere(S1, E1))
        assert isinstance(driven.answers[early], NotReadyError)
        driven.reply(OpenNode, NEW)
        driven.reply(CreateWalSegment, StoreUnavailableError("too few members"))
        driven.fire()
        driven.reply(CreateWalSegment, WalLocation("file", "w1"))
        assert start not in driven.answers
        driven.reply(BeginWalSegment, ConnectionLostError("lost"))
        driven.fire()
        assert driven.reply(BeginWalSegment, Done(1)).segment.name == "w1"
        assert driven.answers[start] == 2

    def test_a_repeated_opening_has_the_same_nonce_and_a_refusal_ends_the_node(self) -> None:
        driven = Driven(ObjectNode(NODE, NodeEpoch(2), b"nonce", NodeOptions()))
        start = driven.ask(StartNode())
        first = driven.reply(OpenNode, ConnectionLostError("lost"))
        driven.fire()
        assert driven.asked(OpenNode) == [first]
        driven.reply(OpenNode, EXPIRED)
        assert isinstance(driven.answers[start], NodeEndedError)


class TestAppending:
    def test_what_waits_is_put_into_one_entry_and_confirmed_in_order(self) -> None:
        driven = serving(wal_entries_in_flight=1)
        tickets = [append(driven, 5, b"a"), append(driven, 6, b"b", b"c"), append(driven, 0, b"z", stream=2)]
        tickets.append(append(driven, 8, b"d"))
        assert frames(driven.reply(AppendWalEntry)) == [(1, 5, [b"a"])]
        assert frames(driven.reply(AppendWalEntry)) == [(1, 6, [b"b", b"c", b"d"]), (2, 0, [b"z"])]
        assert [driven.answers[ticket] for ticket in tickets] == [6, 8, 1, 9]

    def test_a_later_confirmation_waits_for_the_ones_before(self) -> None:
        driven = serving()
        first, second = append(driven, 5, b"a"), append(driven, 6, b"b")
        driven.questions.reverse()
        driven.reply(AppendWalEntry)
        assert first not in driven.answers and second not in driven.answers
        assert driven.machine.read(S1, 5, 9, 100) == []  # type: ignore[union-attr]  # a node
        driven.reply(AppendWalEntry)
        assert (driven.answers[first], driven.answers[second]) == (6, 7)
        assert driven.machine.read(S1, 5, 9, 100) == list(entries(b"a", b"b"))  # type: ignore[union-attr]  # a node

    @pytest.mark.parametrize(
        ("request_", "error"),
        [
            (AppendEntries(S1, E1, 6, entries(b"a")), StaleRequestError),
            (AppendEntries(S1, Epoch(2), 5, entries(b"a")), StaleRequestError),
            (AppendEntries(S1, E1, 5, ()), InvalidRequestError),
            (AppendEntries(S1, E1, 5, entries(b"a" * 1000)), RecordTooLargeError),
        ],
    )
    def test_an_append_that_cannot_be_made_is_refused(self, request_: AppendEntries, error: type[Exception]) -> None:
        driven = serving(wal_entry_bytes_max=1000, cache_bytes_max=2000)
        ticket = driven.ask(request_)
        assert isinstance(driven.answers[ticket], error) and not driven.asked(AppendWalEntry)

    def test_appends_are_refused_while_too_much_is_not_uploaded_and_what_gathered_is_uploaded(self) -> None:
        driven = serving(wal_entry_bytes_max=1000, cache_bytes_max=1000)
        append(driven, 5, b"a" * 700)
        driven.reply(AppendWalEntry)
        refused = append(driven, 6, b"b" * 700)
        error = driven.answers[refused]
        assert isinstance(error, OverCapacityError) and not error.outcome_unknown
        upload(driven)
        again = append(driven, 6, b"b" * 700)
        driven.reply(AppendWalEntry)
        assert driven.answers[again] == 7

    def test_a_failed_append_ends_the_node_and_says_which_appends_are_unknown(self) -> None:
        driven = serving(wal_entries_in_flight=1)
        sent, waiting = append(driven, 5, b"a"), append(driven, 6, b"b")
        driven.reply(AppendWalEntry, SegmentFencedError("fenced"))
        assert isinstance(driven.machine, ObjectNode) and driven.machine.phase is Phase.OVER
        assert isinstance(driven.answers[sent], NodeEndedError) and driven.answers[sent].outcome_unknown
        assert isinstance(driven.answers[waiting], NodeEndedError) and not driven.answers[waiting].outcome_unknown
        assert isinstance(driven.answers[append(driven, 7, b"c")], NodeEndedError)
        assert [event for event in driven.told if isinstance(event, NodeEnded)]

    def test_the_next_segment_is_registered_and_the_last_one_confirmed_before_it_is_appended_to(self) -> None:
        driven = serving(wal_segment_bytes=10)
        append(driven, 5, b"a")
        create_wal(driven)
        append(driven, 6, b"b")
        assert [request.segment.number for request in driven.asked(AppendWalEntry)] == [1]
        driven.reply(AppendWalEntry)
        assert driven.reply(SealWalSegment).segment.number == 1
        later = driven.reply(AppendWalEntry)
        assert (later.segment.number, later.entry, frames(later)) == (2, 0, [(1, 6, [b"b"])])


class TestStreams:
    def test_an_unclear_opening_is_repeated_and_a_refusal_is_told(self) -> None:
        driven = started()
        ticket = driven.ask(OpenStreamHere(S1, E1))
        request = driven.reply(OpenStream, ConnectionLostError("lost"))
        driven.fire()
        assert driven.reply(OpenStream, StreamNotClosedError("open elsewhere")) == request
        assert isinstance(driven.answers[ticket], StreamNotClosedError)

    def test_a_stream_is_closed_at_what_was_put_into_the_log_once_that_is_confirmed(self) -> None:
        driven = serving(wal_entries_in_flight=1)
        sent, unsent = append(driven, 5, b"a"), append(driven, 6, b"b")
        close = driven.ask(CloseStreamsHere((S1, S2)))
        assert isinstance(driven.answers[unsent], StaleRequestError) and not driven.asked(CloseStreams)
        assert isinstance(driven.answers[append(driven, 6, b"c")], StaleRequestError)
        driven.reply(AppendWalEntry)
        assert driven.answers[sent] == 6
        first = driven.reply(CloseStreams, ConnectionLostError("lost"))
        assert first.ends == ((S1, E1, 6), (S2, E1, 0))
        driven.fire()
        assert driven.reply(CloseStreams, Done(1)) == first
        assert driven.answers[close] == ((S1, 6), (S2, 0))
        assert isinstance(driven.answers[driven.ask(CloseStreamsHere((S1,)))], StaleRequestError)

    def test_a_stream_is_trimmed_up_to_what_is_confirmed(self) -> None:
        driven = serving()
        append(driven, 5, b"a")
        assert isinstance(driven.answers[driven.ask(TrimStreamHere(S1, E1, 6))], StaleRequestError)
        driven.reply(AppendWalEntry)
        ticket = driven.ask(TrimStreamHere(S1, E1, 6))
        assert driven.reply(TrimStream, Done(1)).start == 6
        assert driven.answers[ticket] is None


def upload(driven: Driven, first: int = 10) -> CommitUpload:
    """Let one upload take place, with ids from `first` on."""
    count = driven.asked(PrepareObjects)[0].count
    driven.reply(PrepareObjects, ObjectsArePrepared(ObjectId(first), count))
    for number in range(count):
        driven.reply(WriteObject, ObjectWritten(100 + number, 77))
    return driven.reply(CommitUpload, Done(1))


class TestUploading:
    def test_a_long_run_is_an_object_of_its_own_and_the_rest_is_one(self) -> None:
        driven = serving(stream_object_bytes=100, upload_bytes=1000)
        append(driven, 5, b"a" * 50, b"b" * 50)
        append(driven, 0, b"z", stream=2)
        driven.reply(AppendWalEntry)
        driven.reply(AppendWalEntry)
        ticket = driven.ask(UploadAll())
        commit = upload(driven)
        rest = StreamSetObject(ObjectId(11), ObjectId(11), 77, 101, (Slice(S2, 0, 1),))
        assert (commit.stream_objects, commit.set_object) == ((StreamObject(ObjectId(10), S1, 5, 7, 100),), rest)
        assert commit.flush_point == WalPosition(1, 2)
        assert driven.answers[ticket] is None

    def test_what_gathered_long_enough_is_uploaded(self) -> None:
        driven = serving()
        append(driven, 5, b"a")
        driven.reply(AppendWalEntry)
        assert not driven.asked(PrepareObjects)
        driven.fire()
        assert upload(driven).flush_point == WalPosition(1, 1)

    def test_objects_are_written_at_once_and_committed_in_order(self) -> None:
        driven = serving(upload_bytes=10)
        for offset in (5, 6):
            append(driven, offset, b"a")
            driven.reply(AppendWalEntry)
        driven.reply(PrepareObjects, ObjectsArePrepared(ObjectId(10), 1))
        driven.reply(PrepareObjects, ObjectsArePrepared(ObjectId(11), 1))
        driven.questions.reverse()
        assert driven.reply(WriteObject, ObjectWritten(9, 1)).object == 11
        assert not driven.asked(CommitUpload)
        driven.reply(WriteObject, ObjectWritten(9, 1))
        assert driven.reply(CommitUpload, Done(1)).flush_point == WalPosition(1, 1)
        assert driven.reply(CommitUpload, Done(2)).flush_point == WalPosition(1, 2)

    def test_an_unclear_write_is_repeated_and_a_taken_key_gets_a_new_id(self) -> None:
        driven = serving(upload_bytes=10)
        append(driven, 5, b"a")
        driven.reply(AppendWalEntry)
        driven.reply(PrepareObjects, ObjectsArePrepared(ObjectId(10), 1))
        first = driven.reply(WriteObject, ConnectionLostError("lost"))
        assert [event for event in driven.told if isinstance(event, UploadStalled)]
        driven.fire()
        assert driven.reply(WriteObject, ObjectKeyTakenError("taken")) == first
        commit = upload(driven, 20)
        assert commit.set_object is not None and commit.set_object.object == 20

    def test_a_commit_is_repeated_until_it_is_answered_and_refused_objects_are_written_again(self) -> None:
        driven = serving(upload_bytes=10)
        append(driven, 5, b"a")
        driven.reply(AppendWalEntry)
        driven.reply(PrepareObjects, ObjectsArePrepared(ObjectId(10), 1))
        driven.reply(WriteObject, ObjectWritten(9, 1))
        first = driven.reply(CommitUpload, UnavailableError("lost", outcome_unknown=True))
        driven.fire()
        assert driven.reply(CommitUpload, ObjectNotFoundError("expired")) == first
        commit = upload(driven, 20)
        assert commit.set_object is not None and first.set_object is not None
        assert commit.set_object.slices == first.set_object.slices

    def test_a_node_whose_epoch_has_expired_is_over(self) -> None:
        driven = serving(upload_bytes=10)
        append(driven, 5, b"a")
        driven.reply(AppendWalEntry)
        unanswered = append(driven, 6, b"b")
        driven.reply(PrepareObjects, EXPIRED)
        assert isinstance(driven.answers[unanswered], NodeEndedError) and driven.answers[unanswered].outcome_unknown
        driven.reply(AppendWalEntry)  # changes nothing any more

    def test_a_segment_is_deleted_once_a_flush_point_above_it_is_committed(self) -> None:
        driven = serving(wal_segment_bytes=10)
        append(driven, 5, b"a")
        create_wal(driven)
        driven.reply(AppendWalEntry)
        driven.ask(UploadAll())
        assert not driven.asked(DeleteWalSegment)
        assert upload(driven).flush_point == WalPosition(2, 0)
        driven.reply(DeleteWalSegment, StoreUnavailableError("busy"))
        assert not driven.asked(WalDeleted)
        driven.fire()
        assert driven.reply(DeleteWalSegment).segment.number == 1
        assert driven.reply(WalDeleted, Done(3)).number == 2


def test_a_cache_that_is_smaller_than_an_append_is_refused() -> None:
    with pytest.raises(ValueError, match="cache_bytes_max"):
        NodeOptions(cache_bytes_max=10, wal_entry_bytes_max=11)


def test_an_upload_that_could_have_too_many_objects_is_refused() -> None:
    with pytest.raises(ValueError, match="stream_object_bytes"):
        NodeOptions(upload_bytes=501, stream_object_bytes=1)


def test_more_streams_than_the_controller_takes_are_not_closed_at_once() -> None:
    driven = serving()
    ticket = driven.ask(CloseStreamsHere((S1,) * 1001))
    assert isinstance(driven.answers[ticket], InvalidRequestError)
