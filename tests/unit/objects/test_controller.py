"""Tests the controller: transcripts of its pipeline, of deletions and snapshots, and of its end."""

from __future__ import annotations

from typing import Any, TypeVar

import pytest

from dlog.errors import DLogError, FencedError, InvalidRequestError, OverCapacityError
from dlog.events import MetadataSnapshotFailed, ObjectNodeOpened, ObjectsNotDeleted, UploadsExpired
from dlog.machine import Answer, Emit
from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    KeyDeleted,
    MetadataRecord,
    NodeEpoch,
    ObjectId,
    ObjectsDestroyed,
    ObjectsMarked,
    ObjectStreamId,
    SnapshotWritten,
    StreamDeleted,
)
from dlog.objects import controller
from dlog.objects.controller import (
    AppendEntry,
    AppendFailed,
    Controller,
    DeleteObjects,
    DeleteSnapshots,
    DeletionFailed,
    Deposed,
    EntryConfirmed,
    ObjectsDeleted,
    Requested,
    SnapshotFailed,
    SnapshotStored,
    Ticked,
    TruncateMetadata,
    WriteSnapshot,
)
from dlog.objects.errors import ControllerLostError, NodeEpochExpiredError, ObjectStreamNotFoundError
from dlog.objects.image import Image, ObjectState
from dlog.objects.image_snapshot import contents_of, image_of
from dlog.objects.operations import (
    CommitUpload,
    CreateStreams,
    Done,
    GetKey,
    KeyValue,
    NodeIsOpen,
    ObjectsArePrepared,
    OpenNode,
    OpenStream,
    PrepareObjects,
    PutKey,
    StreamIsOpen,
    StreamsCreated,
)
from dlog.objects.options import ControllerOptions
from dlog.wire.object_records import decode_entry
from tests.unit.objects.records import N1, stream_object, upload

OPTIONS = ControllerOptions(retention_ms=100, expiry_min_ms=10, snapshot_records=3, pending_max=5, appends_in_flight=9)
E1 = NodeEpoch(1)
T = TypeVar("T")


class Story:
    """A controller and what it did. is_confirming: each entry is confirmed at once."""

    def __init__(self, image: Image | None = None, options: ControllerOptions = OPTIONS, *, later: str = "") -> None:
        self.machine = Controller(image or Image(), "f", "c1", 1000, options, later=later)
        self.effects: list[Any] = self.machine.begin()
        self.appended: list[AppendEntry] = []
        self.ticket = 0
        self.is_confirming = True
        self._confirmed = 0

    def tell(self, fact: Any) -> None:
        effects = self.machine.handle(fact)
        self.effects += effects
        for effect in effects:
            if isinstance(effect, AppendEntry):
                assert decode_entry(effect.data) == (effect.version - len(effect.records), effect.records)
                self.appended.append(effect)
        if self.is_confirming:
            self.confirm()

    def confirm(self) -> None:
        while self._confirmed < len(self.appended):
            self._confirmed += 1
            self.tell(EntryConfirmed(self._confirmed))

    def ask(self, operation: Any) -> Any:
        """The answer; None if there is none yet."""
        self.ticket += 1
        self.tell(Requested(self.ticket, operation))
        return self.answer(self.ticket)

    def answer(self, ticket: int) -> Any:
        found = [effect.result for effect in self.of(Answer) if effect.ticket == ticket]
        assert len(found) <= 1
        return found[0] if found else None

    def last_records(self) -> tuple[MetadataRecord, ...]:
        return self.appended[-1].records

    def of(self, kind: type[T]) -> list[T]:
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def told(self, kind: type[T]) -> list[T]:
        return [effect.event for effect in self.of(Emit) if isinstance(effect.event, kind)]


def open_node(epoch: int = 1, nonce: bytes = b"x", *, is_failover: bool = False) -> OpenNode:
    return OpenNode(N1, NodeEpoch(epoch), is_failover, nonce)


def prepare(count: int = 1, expiry_ms: int = 50) -> PrepareObjects:
    return PrepareObjects(N1, E1, count, expiry_ms)


def committed(object: int, start: int, end: int) -> CommitUpload:
    record = upload(None, stream_object(object, 1, start, end), flush=(0, end))
    return CommitUpload(N1, E1, None, record.stream_objects, record.flush_point)


def test_a_stream_is_created_opened_and_written() -> None:
    story = Story()
    assert isinstance(story.ask(open_node()), NodeIsOpen)
    assert story.told(ObjectNodeOpened) == [ObjectNodeOpened("n1", 1, False)]
    assert story.ask(CreateStreams("life", 2)) == StreamsCreated((ObjectStreamId(1), ObjectStreamId(2)), True)
    assert story.ask(OpenStream(N1, E1, ObjectStreamId(1), Epoch(4))) == StreamIsOpen(0, 0)
    assert story.ask(prepare(2)) == ObjectsArePrepared(ObjectId(1), 2)
    assert story.ask(committed(1, 0, 9)) == Done(7)
    assert story.ask(committed(1, 0, 9)) == Done(7)
    assert [len(entry.records) for entry in story.appended[-2:]] == [1, 0]
    assert len(story.appended) == 6


def test_an_answer_waits_until_all_that_it_rests_on_is_confirmed() -> None:
    story = Story()
    story.is_confirming = False
    assert story.ask(PutKey("k", b"v1")) is None
    assert story.ask(PutKey("k", b"v2")) is None
    assert story.ask(GetKey("k")) is None
    assert [len(entry.records) for entry in story.appended] == [1, 0, 0], "what is not recorded waits for an entry, too"
    story.confirm()
    assert [story.answer(n) for n in (1, 2, 3)] == [KeyValue(b"v1", True), KeyValue(b"v1"), KeyValue(b"v1")]
    story.ask(GetKey("other"))
    assert Answer(4, None) not in story.effects, "a controller that was deposed does not know of later keys"
    story.confirm()
    assert Answer(4, None) in story.effects


def test_a_refusal_goes_out_at_once_and_records_nothing() -> None:
    story = Story()
    story.is_confirming = False
    story.ask(open_node())
    before = contents_of(story.machine.image)
    assert isinstance(story.ask(OpenNode(N1, NodeEpoch(1), False, b"other")), NodeEpochExpiredError)
    assert isinstance(story.ask(PutKey("", b"")), InvalidRequestError)
    assert isinstance(story.ask(PutKey("k", b"17")), InvalidRequestError), "it would name a stream"
    assert len(story.appended) == 1
    assert contents_of(story.machine.image) == before


def test_only_the_caller_that_opened_a_node_is_answered_again() -> None:
    story = Story()
    story.ask(open_node(3, b"x", is_failover=True))
    assert isinstance(story.ask(open_node(3, b"x", is_failover=True)), NodeIsOpen)
    assert isinstance(story.ask(open_node(3, b"y", is_failover=True)), NodeEpochExpiredError)
    assert isinstance(story.ask(open_node(3, b"x")), NodeEpochExpiredError)
    story.ask(open_node(4, b"z"))
    assert isinstance(story.ask(open_node(3, b"x", is_failover=True)), NodeEpochExpiredError)
    assert [len(entry.records) for entry in story.appended] == [1, 0, 1]


def test_what_comes_while_entries_are_on_their_way_goes_together_in_the_next_one() -> None:
    story = Story(options=ControllerOptions(appends_in_flight=2))
    story.is_confirming = False
    story.ask(open_node())
    asked = [story.ask(CreateStreams(f"life{n}", 1)) for n in range(1, 6)]
    assert asked == [None] * 5
    assert [len(entry.records) for entry in story.appended] == [1, 2]
    assert story.ask(GetKey("life5")) is None
    assert isinstance(story.ask(open_node(1, b"other")), NodeEpochExpiredError), "a refusal records nothing"
    story.tell(EntryConfirmed(1))
    assert [len(entry.records) for entry in story.appended] == [1, 2, 8]
    assert story.answer(7) is None, "it rests on what gathered before it"
    story.tell(EntryConfirmed(2))
    assert story.answer(2) == StreamsCreated((ObjectStreamId(1),), True)
    assert story.answer(3) is None
    story.tell(EntryConfirmed(3))
    for n in range(2, 6):
        assert story.answer(n + 1) == StreamsCreated((ObjectStreamId(n),), True)
    assert story.answer(7) == KeyValue(b"5")
    assert story.machine.confirmed == story.machine.image.version == 11


def test_a_question_that_records_nothing_has_an_entry_appended_after_it_came() -> None:
    story = Story(options=ControllerOptions(appends_in_flight=1))
    story.is_confirming = False
    story.ask(PutKey("k", b"v1"))
    for _ in range(10):
        story.ask(GetKey("other"))
    story.tell(EntryConfirmed(1))
    assert story.answer(2) is None
    assert [len(entry.records) for entry in story.appended] == [1, 0]
    story.tell(EntryConfirmed(2))
    assert len(story.of(Answer)) == 11


def test_an_entry_gathers_a_bounded_number_of_bytes() -> None:
    story = Story(options=ControllerOptions(appends_in_flight=1, gathered_bytes_max=250))
    story.is_confirming = False
    for n in range(9):
        story.ask(PutKey(f"k{n}", bytes(100)))
    story.ask(PutKey("large", bytes(1000)))
    story.is_confirming = True
    story.confirm()
    assert [len(entry.records) for entry in story.appended] == [1, 2, 2, 2, 2, 1]
    assert story.answer(10) == KeyValue(bytes(1000), True)


def test_what_gathers_when_a_controller_is_deposed_is_not_done() -> None:
    story = Story(options=ControllerOptions(appends_in_flight=1))
    story.is_confirming = False
    for n in range(4):
        story.ask(PutKey(f"k{n}", b""))
    story.tell(AppendFailed(FencedError("another owner")))
    assert all(isinstance(story.answer(n), ControllerLostError) for n in range(1, 5))
    assert len(story.appended) == 1


def test_too_many_operations_are_refused() -> None:
    story = Story()
    story.is_confirming = False
    answers = [story.ask(PutKey(f"k{n}", b"")) for n in range(6)]
    assert answers[:5] == [None] * 5
    assert isinstance(answers[5], OverCapacityError)
    story.confirm()
    assert story.ask(PutKey("k9", b"")) is None


def test_a_deposed_controller_answers_nothing_as_done() -> None:
    story = Story()
    story.is_confirming = False
    story.ask(PutKey("k", b"v1"))
    story.ask(GetKey("k"))
    story.tell(AppendFailed(FencedError("another owner")))
    for ticket in (1, 2):
        lost = story.answer(ticket)
        assert isinstance(lost, ControllerLostError) and lost.outcome_unknown
    assert [type(effect.error) for effect in story.of(Deposed)] == [FencedError]
    late = story.ask(GetKey("k"))
    assert isinstance(late, ControllerLostError) and not late.outcome_unknown
    story.tell(Ticked(99999))
    story.tell(AppendFailed(DLogError("again")))
    assert (len(story.appended), len(story.of(Deposed))) == (2, 1)


def test_an_expired_object_is_marked_then_deleted_then_destroyed() -> None:
    story = Story()
    story.ask(open_node())
    story.ask(prepare(2))
    story.tell(Ticked(1049))
    assert len(story.appended) == 2
    story.is_confirming = False
    story.tell(Ticked(1050))
    assert story.last_records() == (ObjectsMarked((ObjectId(1), ObjectId(2)), 1050),)
    assert isinstance(story.ask(committed(1, 0, 9)), DLogError)
    story.tell(Ticked(1150))
    assert story.of(DeleteObjects) == []
    story.confirm()
    assert story.told(UploadsExpired) == [UploadsExpired(2)]
    keys = ("f/01/0000000000000001-1-n1", "f/02/0000000000000002-1-n1")
    assert story.of(DeleteObjects) == [DeleteObjects(keys)]
    story.tell(Ticked(9999))
    story.tell(DeletionFailed("503"))
    assert story.told(ObjectsNotDeleted) == [ObjectsNotDeleted(2, "503")]
    story.tell(Ticked(10000))
    assert story.of(DeleteObjects) == [DeleteObjects(keys)] * 2
    story.tell(ObjectsDeleted())
    assert story.last_records() == (ObjectsDestroyed((ObjectId(1), ObjectId(2))),)
    assert story.machine.image.objects.state(ObjectId(1)) is ObjectState.DESTROYED


def test_a_clock_that_goes_back_deletes_nothing() -> None:
    story = Story()
    story.ask(open_node())
    story.ask(prepare())
    story.tell(Ticked(1060))
    story.tell(Ticked(0))
    story.tell(Ticked(1100))
    assert story.of(DeleteObjects) == []
    story.tell(Ticked(1160))
    assert len(story.of(DeleteObjects)) == 1


def test_snapshots_are_recorded_and_the_stream_is_truncated_to_the_one_before() -> None:
    story = Story()
    for n in range(3):
        story.ask(PutKey(f"k{n}", b""))
    assert story.of(WriteSnapshot) == []
    story.tell(Ticked(1001))
    first = story.of(WriteSnapshot)[0]
    assert first.key == "f/snapshots/00000000000000000003-c1"
    assert first.contents.applied == 3
    story.tell(Ticked(1002))
    assert len(story.of(WriteSnapshot)) == 1
    story.ask(PutKey("k9", b""))
    story.tell(SnapshotStored(50, 60))
    assert story.appended[-1].records == (SnapshotWritten(first.key, 3, 50, 60),)
    assert story.of(TruncateMetadata) == []
    story.is_confirming = False
    story.ask(PutKey("k10", b""))
    story.tell(Ticked(1003))
    assert len(story.of(WriteSnapshot)) == 1, "it has a record that is not confirmed"
    story.is_confirming = True
    story.confirm()
    assert len(story.of(WriteSnapshot)) == 2
    story.tell(SnapshotFailed("503"))
    assert story.told(MetadataSnapshotFailed) == [MetadataSnapshotFailed(6, "503")]
    story.tell(Ticked(1004))
    story.is_confirming = False
    story.tell(SnapshotStored(50, 60))
    assert story.of(TruncateMetadata) == []
    story.confirm()
    assert story.of(TruncateMetadata) == [TruncateMetadata(3)]
    assert story.of(DeleteSnapshots) == [DeleteSnapshots(3)]
    again = Story(story.machine.image)
    assert again.of(TruncateMetadata) == [TruncateMetadata(3)]


def test_a_wrong_decision_ends_the_controller_before_anything_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story()
    monkeypatch.setattr(controller, "decide", lambda *_: ((ObjectsDestroyed((ObjectId(1),)),), Done()))
    with pytest.raises(AssertionError, match="does not fit"):
        story.ask(PutKey("k", b""))
    assert story.appended == []


def test_a_snapshot_is_due_by_bytes_too() -> None:
    story = Story(options=ControllerOptions(snapshot_bytes=100))
    story.ask(PutKey("k", b"x" * 200))
    story.tell(Ticked(1001))
    assert len(story.of(WriteSnapshot)) == 1
    story.tell(SnapshotStored(1, 1))
    story.tell(Ticked(1002))
    assert len(story.of(WriteSnapshot)) == 1


def test_a_stream_that_nobody_opens_is_deleted_with_its_key() -> None:
    story = Story(options=ControllerOptions(unopened_ms=50))
    story.ask(open_node())
    for key in ("left", "opened", "many"):
        story.ask(CreateStreams(key, 2 if key == "many" else 1))
    story.tell(Ticked(1010))
    story.ask(OpenStream(N1, E1, ObjectStreamId(2), Epoch(0)))
    story.tell(Ticked(1059))
    assert story.ask(CreateStreams("left", 1)) == StreamsCreated((ObjectStreamId(1),), False)
    story.tell(Ticked(1060))
    assert story.last_records() == (StreamDeleted(ObjectStreamId(1), 1060), KeyDeleted("left"))
    assert list(story.machine.image.streams) == [2, 3, 4]
    assert isinstance(story.ask(OpenStream(N1, E1, ObjectStreamId(1), Epoch(0))), ObjectStreamNotFoundError)
    story.tell(Ticked(5000))
    assert list(story.machine.image.keys) == ["opened", "many"]


def test_another_controller_deletes_what_was_left_before_it() -> None:
    story = Story()
    story.ask(CreateStreams("left", 1))
    again = Story(image_of(contents_of(story.machine.image)), ControllerOptions(unopened_ms=50))
    again.tell(Ticked(2000))
    again.tell(Ticked(2050))
    assert not again.machine.image.streams and not again.machine.image.keys
