"""Tests what each operation is refused for, that a repeat records nothing, and that records fit the image."""

from __future__ import annotations

from typing import Any

import pytest

from dlog.errors import DLogError, InvalidRequestError, OverCapacityError
from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    KeyPut,
    MetadataRecord,
    NodeEpoch,
    NodeId,
    ObjectId,
    ObjectStreamId,
    StreamObject,
    StreamSetObject,
    WalPosition,
    WalSegment,
    WalSegmentBegun,
)
from dlog.objects.decisions import DONE, decide
from dlog.objects.errors import (
    CompactionMismatchError,
    NodeEpochExpiredError,
    NodeInFailoverError,
    ObjectNotFoundError,
    ObjectStreamNotFoundError,
    OffsetMismatchError,
    StreamFencedError,
    StreamNotClosedError,
)
from dlog.objects.image import Image
from dlog.objects.image_snapshot import contents_of
from dlog.objects.operations import (
    BeginWalSegment,
    CloseStreams,
    CommitCompaction,
    CommitUpload,
    CreateStreams,
    DeleteKey,
    DeleteStreams,
    DropRange,
    NodeIsOpen,
    OpenNode,
    OpenStream,
    PrepareObjects,
    PutKey,
    RangeState,
    StreamIsOpen,
    StreamsCreated,
    TrimStream,
    WalDeleted,
)
from dlog.objects.options import ControllerOptions
from tests.unit.objects.records import (
    N1,
    N2,
    closed,
    compaction,
    created,
    dropped,
    node_opened,
    opened,
    prepared,
    set_object,
    stream_object,
    trimmed,
    upload,
)

E1, E2 = NodeEpoch(1), NodeEpoch(2)
SMALL = ControllerOptions(keys_max=2, streams_max=5, ranges_max=2, nodes_max=3, wal_segments_max=2, prepared_max=30)
WAL = (
    WalSegment(1, E1, "file", "w1"),
    WalSegment(2, E1, "file", "w2"),
)
# stream 1: [0, 10) of n1, uploaded up to 5, then open on n2; 2: open on n1, uploaded up to 8; 3 and 4: never open
HISTORY: tuple[MetadataRecord, ...] = (
    KeyPut("life", b"1,2"),
    *(node_opened(), node_opened(N2), node_opened(NodeId("n3"), 7, is_failover=True)),
    *(created(stream) for stream in (1, 2, 3, 4)),
    *(WalSegmentBegun(N1, segment) for segment in WAL),
    *(opened(1, 1), opened(2, 1), prepared(1, 9), prepared(10, 9, N2)),
    upload(set_object(1, (1, 0, 5), (2, 0, 3)), flush=(1, 5)),
    upload(set_object(2, (2, 3, 6)), stream_object(3, 2, 6, 8), flush=(2, 0)),
    *(closed((1, 10)), opened(1, 3, N2)),
)


def image_after(*more: MetadataRecord) -> Image:
    image = Image()
    image.apply_all((*HISTORY, *more))
    return image


def stream(number: int) -> ObjectStreamId:
    return ObjectStreamId(number)


def commit(in_set: StreamSetObject | None = None, *objects: StreamObject, **more: Any) -> CommitUpload:
    node, epoch, flush = more.get("node", N1), more.get("epoch", E1), more.get("flush", (2, 9))
    return CommitUpload(node, epoch, in_set, objects, WalPosition(*flush))


def compact(
    sources: tuple[int, ...],
    sets: tuple[StreamSetObject, ...] = (),
    objects: tuple[StreamObject, ...] = (),
    node: NodeId = N1,
) -> CommitCompaction:
    return CommitCompaction(node, E1, tuple(map(ObjectId, sources)), sets, objects)


def close(*ends: tuple[int, int, int], node: NodeId = N1) -> CloseStreams:
    return CloseStreams(node, E1, tuple((stream(number), Epoch(epoch), end) for number, epoch, end in ends))


MERGED = set_object(4, (1, 0, 5), (2, 0, 6), order=1)

REFUSED = [
    (OpenStream(N1, E2, stream(3), Epoch(1)), NodeEpochExpiredError),
    (OpenStream(NodeId("n9"), E1, stream(3), Epoch(1)), NodeEpochExpiredError),
    (OpenStream(NodeId("n3"), NodeEpoch(7), stream(3), Epoch(1)), NodeInFailoverError),
    (OpenStream(N1, E1, stream(5), Epoch(1)), ObjectStreamNotFoundError),
    (OpenStream(N1, E1, stream(1), Epoch(3)), StreamFencedError),
    (OpenStream(N1, E1, stream(1), Epoch(2)), StreamFencedError),
    (OpenStream(N1, E1, stream(1), Epoch(4)), StreamNotClosedError),
    (close((1, 1, 11)), OffsetMismatchError),
    (close((1, 3, 12)), StreamFencedError),
    (close((2, 1, 7)), OffsetMismatchError),
    (close((2, 9, 8)), StreamFencedError),
    (close((2, 1, 8), (2, 1, 8)), StreamFencedError),
    (close((2, 1, 8), (9, 1, 8)), ObjectStreamNotFoundError),
    (CloseStreams(N1, E2, ()), NodeEpochExpiredError),
    (TrimStream(N1, E1, stream(1), Epoch(1), 3), StreamFencedError),
    (TrimStream(N1, E1, stream(1), Epoch(3), 3), StreamFencedError),
    (TrimStream(N1, E1, stream(3), Epoch(-1), 3), StreamFencedError),
    (DropRange(stream(1), Epoch(3)), StreamNotClosedError),
    (DropRange(stream(1), Epoch(4)), InvalidRequestError),
    (DropRange(stream(9), Epoch(0)), ObjectStreamNotFoundError),
    (DeleteStreams((stream(3), stream(2))), StreamNotClosedError),
    (DeleteStreams((stream(9),)), ObjectStreamNotFoundError),
    (CreateStreams("new", 0), InvalidRequestError),
    (CreateStreams("new", 17), InvalidRequestError),
    (CreateStreams("new", 2), OverCapacityError),
    (OpenNode(N1, E1, False, b""), NodeEpochExpiredError),
    (OpenNode(NodeId("n4"), E1, False, b""), OverCapacityError),
    (BeginWalSegment(N1, E1, WalSegment(2, E1, "file", "other")), OffsetMismatchError),
    (BeginWalSegment(N1, E1, WalSegment(3, E2, "file", "w3")), OffsetMismatchError),
    (BeginWalSegment(N1, E1, WalSegment(3, E1, "file", "w3")), OverCapacityError),
    (BeginWalSegment(NodeId("n3"), NodeEpoch(7), WalSegment(3, E1, "file", "w3")), NodeInFailoverError),
    (WalDeleted(N1, E1, 3), InvalidRequestError),
    (PrepareObjects(N1, E1, 0, 600_000), InvalidRequestError),
    (PrepareObjects(N1, E1, 1001, 600_000), InvalidRequestError),
    (PrepareObjects(N1, E1, 1, 1), InvalidRequestError),
    (PrepareObjects(N1, E1, 20, 600_000), OverCapacityError),
    (PrepareObjects(N1, E2, 1, 600_000), NodeEpochExpiredError),
    (commit(set_object(4, (2, 8, 9)), epoch=E2), NodeEpochExpiredError),
    (commit(set_object(10, (2, 8, 9))), ObjectNotFoundError),
    (commit(set_object(1, (2, 8, 9))), ObjectNotFoundError),
    (commit(set_object(99, (2, 8, 9))), ObjectNotFoundError),
    (commit(set_object(4, (2, 8, 9), order=3)), InvalidRequestError),
    (commit(set_object(4)), InvalidRequestError),
    (commit(set_object(4, (2, 8, 9)), stream_object(4, 1, 5, 6)), InvalidRequestError),
    (commit(set_object(4, (2, 8, 9), (2, 8, 9))), InvalidRequestError),
    (commit(set_object(4, (2, 9, 9))), InvalidRequestError),
    (commit(set_object(4, (2, 7, 9))), OffsetMismatchError),
    (commit(set_object(4, (2, 9, 10))), OffsetMismatchError),
    (commit(set_object(4, (1, 5, 11))), OffsetMismatchError),
    (commit(set_object(4, (1, 10, 11))), StreamFencedError),
    (commit(set_object(4, (9, 0, 1))), ObjectStreamNotFoundError),
    (commit(set_object(4, (2, 8, 9)), flush=(1, 9)), OffsetMismatchError),
    (commit(set_object(4, (2, 8, 9)), flush=(4, 0)), InvalidRequestError),
    (commit(set_object(11, (1, 5, 6)), node=N2, flush=(0, 0)), StreamFencedError),
    (compact(()), InvalidRequestError),
    (compact((1, 1)), InvalidRequestError),
    (compact((4,)), ObjectNotFoundError),
    (compact((1,), (), (stream_object(1, 1, 0, 5),)), ObjectNotFoundError),
    (compact((1, 2), (), (), N2), ObjectNotFoundError),
    (compact((3,), (), (stream_object(11, 2, 6, 8),), N2), StreamFencedError),
    (compact((1, 2)), CompactionMismatchError),
    (compact((1, 2), (set_object(4, (1, 0, 5), (2, 0, 5), order=1),)), CompactionMismatchError),
    (compact((1, 2), (set_object(4, (1, 0, 6), (2, 0, 6), order=1),)), CompactionMismatchError),
    (compact((1, 2, 3), (set_object(4, (1, 0, 5), (2, 0, 8), order=1),)), CompactionMismatchError),
    (compact((1, 2), (set_object(4, (1, 0, 5), (2, 0, 6), order=2),)), InvalidRequestError),
    (compact((3,), (set_object(4, (2, 6, 8), order=3),)), InvalidRequestError),
    (compact((1, 2), (MERGED,), (stream_object(5, 2, 3, 4),)), InvalidRequestError),
]


@pytest.mark.parametrize(("operation", "error"), REFUSED, ids=[repr(one)[:90] for one, _ in REFUSED])
def test_a_refusal_changes_nothing(operation: Any, error: type[DLogError]) -> None:
    image = image_after(prepared(19))
    before = contents_of(image)
    with pytest.raises(error) as caught:
        decide(image, operation, 5000, SMALL)
    assert type(caught.value) is error
    assert contents_of(image) == before


ACCEPTED = [
    PutKey("k", b"v"),
    DeleteKey("life"),
    CreateStreams("new", 1),
    DeleteStreams((stream(3), stream(4)), "life"),
    OpenStream(N1, E1, stream(3), Epoch(1)),
    close((2, 1, 8)),
    close((2, 1, 80)),
    TrimStream(N2, E1, stream(1), Epoch(3), 7),
    DropRange(stream(1), Epoch(1)),
    OpenNode(N1, E2, True, b""),
    BeginWalSegment(N2, E1, WalSegment(1, E1, "file", "x")),
    WalDeleted(N1, E1, 2),
    PrepareObjects(N1, E1, 5, 600_000),
    commit(set_object(4, (1, 5, 10), (2, 8, 20)), stream_object(5, 2, 20, 99)),
    commit(None, stream_object(4, 1, 5, 8)),
    commit(None),
    commit(None, flush=(3, 0)),
    compact((1, 2), (MERGED,)),
    compact((1, 2), (), (stream_object(4, 1, 0, 5), stream_object(5, 2, 0, 6))),
    compact((1, 2, 3), (set_object(4, (1, 0, 5), order=1),), (stream_object(5, 2, 0, 8),)),
    compact((1,), (set_object(4, (1, 0, 5), order=1),), (stream_object(5, 2, 0, 3),)),
]
NOT_REPEATABLE = (PrepareObjects, OpenNode)  # a repeat prepares more; a repeat of OpenNode is the controller's to know


@pytest.mark.parametrize("operation", ACCEPTED, ids=lambda one: repr(one)[:90])
def test_records_fit_and_a_repeat_records_nothing(operation: Any) -> None:
    image = image_after()
    records, _ = decide(image, operation, 5000, ControllerOptions())
    assert records
    image.apply_all(records)
    if not isinstance(operation, NOT_REPEATABLE):
        assert decide(image, operation, 6000, ControllerOptions())[0] == ()


def test_streams_of_a_key_are_created_once() -> None:
    image = image_after()
    assert decide(image, CreateStreams("life", 2), 0, SMALL) == ((), StreamsCreated((stream(1), stream(2)), False))
    records, result = decide(image, CreateStreams("new", 3), 0, ControllerOptions())
    assert records == (KeyPut("new", b"5,6,7"), created(5), created(6), created(7))
    assert result == StreamsCreated((stream(5), stream(6), stream(7)), True)
    image.apply(KeyPut("text", b"no list"))
    with pytest.raises(InvalidRequestError):
        decide(image, CreateStreams("text", 1), 0, SMALL)


def test_an_open_stream_begins_where_the_last_range_ended() -> None:
    image = image_after(closed((2, 50)))
    operation = OpenStream(N2, E1, stream(2), Epoch(2))
    records, result = decide(image, operation, 0, SMALL)
    assert result == StreamIsOpen(0, 50)
    image.apply_all(records)
    assert decide(image, operation, 0, SMALL) == ((), StreamIsOpen(0, 50))
    image.apply(closed((2, 60)))
    with pytest.raises(OverCapacityError):
        decide(image, OpenStream(N2, E1, stream(2), Epoch(3)), 0, SMALL)
    image.apply(trimmed(2, 50))
    assert decide(image, OpenStream(N2, E1, stream(2), Epoch(3)), 0, SMALL)[1] == StreamIsOpen(50, 60)


def test_a_node_learns_what_is_open_and_what_is_not_uploaded() -> None:
    _, result = decide(image_after(), OpenNode(N1, E2, False, b""), 0, SMALL)
    ranges = (RangeState(stream(1), Epoch(1), 0, 10, 5, 0), RangeState(stream(2), Epoch(1), 0, None, 8, 0))
    assert result == NodeIsOpen(ranges, WAL, WalPosition(2, 0))
    _, result = decide(image_after(dropped(1, 1), closed((2, 8))), OpenNode(N1, E2, False, b""), 0, SMALL)
    assert result == NodeIsOpen((), WAL, WalPosition(2, 0))


def test_a_repeat_after_a_compaction_is_done_too() -> None:
    image = image_after(compaction((1, 2), (MERGED,)))
    first = upload(set_object(1, (1, 0, 5), (2, 0, 3)), flush=(1, 5))
    operation = commit(first.set_object, flush=(1, 5))
    assert decide(image, operation, 0, SMALL) == ((), DONE)
    not_yet = commit(set_object(1, (1, 0, 5), (2, 0, 9)), flush=(1, 5))
    with pytest.raises(ObjectNotFoundError):
        decide(image, not_yet, 0, SMALL)


def test_a_gap_is_allowed_only_below_the_start() -> None:
    image = image_after(trimmed(2, 15))
    for start in (8, 12, 15):
        assert decide(image, commit(None, stream_object(4, 2, start, 20)), 0, SMALL)[0]
    with pytest.raises(OffsetMismatchError):
        decide(image, commit(None, stream_object(4, 2, 16, 20)), 0, SMALL)


def test_a_compaction_may_leave_out_what_is_dead_and_nothing_else() -> None:
    image = image_after(closed((2, 8)), trimmed(2, 4))
    kept = (set_object(4, (1, 0, 5), (2, 4, 6), order=1),)
    assert decide(image, compact((1, 2), kept), 0, SMALL)[0]
    assert decide(image, compact((1, 2), (MERGED,)), 0, SMALL)[0]
    with pytest.raises(CompactionMismatchError):
        decide(image, compact((1, 2), (set_object(4, (1, 0, 5), (2, 5, 6), order=1),)), 0, SMALL)
    image = image_after(dropped(1, 1))
    assert decide(image, compact((1, 2), (set_object(4, (2, 0, 6), order=1),)), 0, SMALL)[0]
