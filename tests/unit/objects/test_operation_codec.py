"""Tests the bytes of operations and answers: what is encoded is decoded, and every change of a byte is noticed."""

from __future__ import annotations

import contextlib
import struct
from typing import Any, get_args

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.errors import DamagedError, DLogError, OverCapacityError, UnsupportedVersionError
from dlog.model.ids import Epoch
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectStreamId, WalPosition
from dlog.objects import operations as ops
from dlog.objects.errors import BY_CODE, ControllerLostError, NodeEpochExpiredError, OffsetMismatchError
from dlog.objects.operation_codec import (
    OPERATION_BYTES_MAX,
    OPERATIONS,
    RESULTS,
    OperationTooLargeError,
    decode_answer,
    decode_operation,
    encode_answer,
    encode_operation,
)
from dlog.objects.operations import Operation, RangeState, Result
from dlog.wire.digest import crc32c
from tests.unit.wire.test_object_records import (
    ID,
    IDS,
    POSITIONS,
    SEGMENTS,
    SETS,
    TEXT,
    U64,
    set_objects,
    stream_objects,
)

COUNT = st.integers(1, 1000)
NODE = (TEXT, ID)
OPERATION: st.SearchStrategy[Operation] = st.one_of(
    st.builds(ops.PutKey, TEXT, st.binary(max_size=40)),
    st.builds(ops.GetKey, TEXT),
    st.builds(ops.DeleteKey, TEXT),
    st.builds(ops.CreateStreams, TEXT, COUNT),
    st.builds(ops.DeleteStreams, IDS, st.none() | TEXT),
    st.builds(ops.OpenStream, *NODE, ID, U64),
    st.builds(ops.CloseStreams, *NODE, st.lists(st.tuples(ID, U64, U64), max_size=4).map(tuple)),
    st.builds(ops.TrimStream, *NODE, ID, U64, U64),
    st.builds(ops.DropRange, ID, U64),
    st.builds(ops.OpenNode, *NODE, st.booleans(), st.binary(max_size=16)),
    st.builds(ops.BeginWalSegment, *NODE, SEGMENTS),
    st.builds(ops.WalDeleted, *NODE, U64),
    st.builds(ops.PrepareObjects, *NODE, COUNT, U64),
    st.builds(ops.CommitUpload, *NODE, st.none() | set_objects(), stream_objects(), POSITIONS),
    st.builds(ops.CommitCompaction, *NODE, IDS, SETS, stream_objects()),
)
RANGES = st.lists(st.builds(RangeState, ID, U64, U64, st.none() | U64, U64, U64), max_size=4).map(tuple)
RESULT: st.SearchStrategy[Result] = st.one_of(
    st.none(),
    st.builds(ops.Done, U64),
    st.builds(ops.KeyValue, st.binary(max_size=40), st.booleans()),
    st.builds(ops.StreamsCreated, IDS, st.booleans()),
    st.builds(ops.StreamIsOpen, U64, U64),
    st.builds(ops.NodeIsOpen, RANGES, st.lists(SEGMENTS, max_size=3).map(tuple), POSITIONS),
    st.builds(ops.ObjectsArePrepared, ID, COUNT),
)
REFUSED = [
    *(cls("why") for cls in BY_CODE.values()),
    NodeEpochExpiredError("why", current=7),
    OffsetMismatchError("why", expected=0),
    OffsetMismatchError("why", expected=2**63),
    ControllerLostError("why", outcome_unknown=False),
    OverCapacityError("why"),
]


def sealed(value: Any, version: int = 1) -> bytes:
    packed: bytes = msgpack.packb(value)
    return struct.pack(">BI", version, crc32c(packed)) + packed


def told(error: DLogError) -> tuple[Any, ...]:
    extra = getattr(error, "expected", None), getattr(error, "current", None)
    return type(error), error.code, error.message, error.outcome_unknown, extra


def test_every_operation_and_result_has_a_kind() -> None:
    assert {cls for cls, _ in OPERATIONS.values()} == set(get_args(Operation))
    assert {cls for cls, _ in RESULTS.values()} == set(get_args(Result))


@given(OPERATION)
def test_an_operation_is_what_was_encoded(operation: Operation) -> None:
    assert decode_operation(encode_operation(operation)) == operation


@given(RESULT)
def test_a_result_is_what_was_encoded(result: Result) -> None:
    assert decode_answer(encode_answer(result)) == result


@pytest.mark.parametrize("error", REFUSED, ids=repr)
def test_a_refusal_keeps_its_class_and_what_it_tells(error: DLogError) -> None:
    got = decode_answer(encode_answer(error))
    assert isinstance(got, DLogError)
    assert told(got) == told(error)


def test_the_text_of_a_refusal_is_cut() -> None:
    got = decode_answer(encode_answer(OffsetMismatchError("x" * 100_000 + "\ud800", expected=3)))
    assert isinstance(got, OffsetMismatchError)
    assert (len(got.message), got.expected) == (1000, 3)


@given(OPERATION, RESULT, st.data())
def test_every_changed_byte_is_noticed(operation: Operation, result: Result, data: st.DataObject) -> None:
    for whole, decode in ((encode_operation(operation), decode_operation), (encode_answer(result), decode_answer)):
        at = data.draw(st.integers(0, len(whole) - 1))
        broken = bytearray(whole)
        broken[at] ^= data.draw(st.integers(1, 255))
        with pytest.raises((DamagedError, UnsupportedVersionError)):
            decode(bytes(broken))
        with pytest.raises((DamagedError, UnsupportedVersionError)):
            decode(whole[:at])


@given(st.binary(max_size=60), st.lists(st.none() | st.booleans() | U64 | TEXT | st.lists(U64, max_size=8), max_size=7))
def test_anything_else_is_refused_with_a_typed_error(data: bytes, fields: list[Any]) -> None:
    for decode in (decode_operation, decode_answer):
        for given_bytes in (data, sealed(fields), struct.pack(">BI", 1, crc32c(data)) + data):
            with contextlib.suppress(DamagedError, UnsupportedVersionError):
                decode(given_bytes)


@pytest.mark.parametrize("value", [None, [], ["1"], {}, [2], [2, 5], [2, ""], [2, "a", "b"], [7, [0, 1], None, []]])
def test_what_is_no_operation_is_damaged(value: Any) -> None:
    with pytest.raises(DamagedError):
        decode_operation(sealed(value))


def test_newer_versions_and_kinds_are_told_from_damage() -> None:
    for decode in (decode_operation, decode_answer):
        with pytest.raises(UnsupportedVersionError, match="upgrade"):
            decode(sealed([2, "a"], version=2))
        with pytest.raises(UnsupportedVersionError, match="upgrade"):
            decode(sealed([200, "a"]))


def test_bounds() -> None:
    node = NodeId("n"), NodeEpoch(1)
    ends = tuple((ObjectStreamId(2**63 + n), Epoch(2**63), 2**63) for n in range(10_000))
    assert len(encode_operation(ops.CloseStreams(*node, ends))) < OPERATION_BYTES_MAX
    for operation in (
        ops.CloseStreams(*node, (*ends, (ObjectStreamId(1), Epoch(1), 1))),
        ops.PutKey("", b""),
        ops.PutKey("k" * 5000, b""),
        ops.PutKey("\ud800", b""),
        ops.PutKey("k", bytes(70_000)),
        ops.OpenStream(*node, ObjectStreamId(0), Epoch(1)),
        ops.OpenStream(*node, ObjectStreamId(1), Epoch(-1)),
        ops.OpenStream(*node, ObjectStreamId(1), Epoch(2**64)),
    ):
        with pytest.raises(OperationTooLargeError):
            encode_operation(operation)
    with pytest.raises(OperationTooLargeError):
        decode_operation(bytes(OPERATION_BYTES_MAX + 1))


def test_the_state_of_a_node_may_have_many_ranges() -> None:
    ranges = tuple(RangeState(ObjectStreamId(n), Epoch(1), 0, None, 0, 0) for n in range(1, 50_001))
    state = ops.NodeIsOpen(ranges, (), WalPosition(1, 0))
    assert decode_answer(encode_answer(state)) == state
