"""Tests the proxy protocol's bytes: every message survives every chunking, and hostile bytes only end the
connection."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import struct
import tracemalloc
from collections.abc import Collection
from typing import Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import InvalidRequestError, ProtocolError
from dlog.wire import proxy
from dlog.wire.proxy import Message, Op, ReaderEventKind, Start
from dlog.wire.proxy_codec import (
    ARRAY_MAX,
    HEADER_BYTES_MAX,
    HELLO_LENGTH_MAX,
    SCHEMA,
    TEXT_MAX,
    FrameDecoder,
    encode,
)
from tests.unit.wire.chunks import chunked, cuts

BIG = 1 << 20
U63 = st.integers(0, 2**63 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(max_size=40)
DLSN = st.tuples(I64, I64, I64)
PLAIN = st.recursive(
    st.none() | st.booleans() | I64 | TEXT | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)
LOCATION = st.text(min_size=1, max_size=128).filter(str.isprintable)
BY_KIND: dict[str, st.SearchStrategy[Any]] = {
    "u63": U63,
    "u63 or nil": st.none() | U63,
    "i64": I64,
    "u32": st.integers(0, 2**32 - 1),
    "u16": st.integers(0, 2**16 - 1),
    "count": st.integers(1, 2**31 - 1),
    "bool": st.booleans(),
    "str": TEXT,
    "str or nil": st.none() | TEXT,
    "location": LOCATION,
    "incarnation": st.text("0123456789abcdefXYZ", min_size=1, max_size=64),
    "map": st.dictionaries(TEXT, PLAIN, max_size=3),
    "map of u63": st.dictionaries(TEXT, U63, max_size=3),
    "dlsn": DLSN,
    "dlsn or nil": st.none() | DLSN,
    "bin 16": st.binary(min_size=16, max_size=16),
    "event": st.sampled_from(ReaderEventKind),
}


@st.composite
def messages(draw: st.DrawFn, ops: Collection[Op] = tuple(Op)) -> Message:
    op = draw(st.sampled_from(sorted(ops)))
    cls, fields = SCHEMA[op]
    values = {name: draw(BY_KIND[kind.name]) for name, kind in fields if kind.name in BY_KIND}
    if op is Op.WRITE:
        values["sequence"] = draw(st.integers(0, 2**62))
        values["body"] = draw(st.binary(max_size=100))
    elif op in (Op.SINK_WRITE, Op.OBJECTS_ASK):
        values["body"] = draw(st.binary(max_size=100))
    elif op is Op.IMPORT_SEGMENTS:
        values["parts"] = tuple(draw(st.lists(st.tuples(LOCATION, U63), max_size=5)))
    elif op is Op.READ:
        values["start"] = draw(st.sampled_from(Start))
        values["value"] = draw({Start.DLSN: DLSN, Start.TXID: U63, Start.TIME: U63}.get(values["start"], st.none()))
    elif op is Op.ENTRIES:
        payloads = draw(st.lists(st.binary(max_size=30), max_size=5))
        values |= {"lengths": tuple(map(len, payloads)), "body": b"".join(payloads)}
    elif op is Op.WRITTEN:
        values["last"] = draw(st.integers(values["first"], 2**63 - 1))
    elif op is Op.DONE:
        values["result"] = draw(BY_KIND["map"])
    message: Message = cls(**values)
    return message


@settings(max_examples=150)
@given(st.lists(messages(), max_size=4), cuts)
def test_messages_survive_every_chunking(sent: list[Message], where: list[int]) -> None:
    stream = b"".join(b"".join(encode(m)) for m in sent)
    decoder = FrameDecoder(BIG)
    heard = [m for chunk in chunked(stream, where) for m in decoder.feed(chunk)]
    assert heard == sent
    assert [type(m) for m in heard] == [type(m) for m in sent]


@settings(max_examples=150)
@given(st.binary(max_size=120), cuts, st.sampled_from(["raw", "frame", "header"]))
def test_hostile_bytes_end_in_messages_or_a_protocol_error(garbage: bytes, where: list[int], dress: str) -> None:
    if dress == "header":
        garbage = struct.pack(">H", len(garbage)) + garbage
    stream = garbage if dress == "raw" else struct.pack(">I", len(garbage)) + garbage
    decoder = FrameDecoder(BIG)
    with contextlib.suppress(ProtocolError):
        for chunk in chunked(stream, where):
            list(decoder.feed(chunk))


@settings(max_examples=150)
@given(messages(), st.data())
def test_a_changed_byte_ends_in_messages_or_a_protocol_error(message: Message, data: st.DataObject) -> None:
    frame = bytearray(b"".join(encode(message)))
    frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ProtocolError):
        list(FrameDecoder(BIG).feed(frame))


@settings(max_examples=150)
@given(st.sampled_from(Op), st.lists(PLAIN, max_size=9), st.binary(max_size=20))
def test_fields_of_any_kind_end_in_a_message_or_a_protocol_error(op: Op, fields: list[Any], body: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        decoded(op, *fields, body=body)


@pytest.mark.parametrize(
    "parts", [[["1"]], [["1", -1]], [[1, 1]], ["1"], {}, [["1", 0]] * 1001, [["", 1]], [["é" * 257, 1]], [["a\n", 1]]]
)
def test_parts_are_named_with_their_last_entries(parts: Any) -> None:
    with pytest.raises(ProtocolError, match=r"ImportSegments|msgpack"):
        decoded(Op.IMPORT_SEGMENTS, 1, "s", "a1", "", 0, "", 0, None, body=msgpack.packb(parts))


@pytest.mark.parametrize("name", ["", "a\x00b", "\n", "a" * 513, "é" * 257])
def test_a_location_is_up_to_512_bytes_of_printable_text(name: str) -> None:
    for at, to in ((name, "8"), ("7", name)):
        with pytest.raises(ProtocolError, match="not a location: printable text of 1 to 512 bytes"):
            decoded(Op.MOVE_SEGMENT, 1, "s", "a1", 3, "ledger", at, "cold", to)
    decoded(Op.MOVE_SEGMENT, 1, "s", "a1", 3, "ledger", "7", "cold", "é" * 256)


def test_the_store_of_stages_is_left_out_where_they_are_ledgers() -> None:
    parts = (("7", 3),)
    header = [int(Op.IMPORT_SEGMENTS), 1, "s", "a1", "sink", 2, "q", 5, None]
    for store, fields in ((None, header), ("file", [*header, "file"])):
        message = proxy.ImportSegments(1, "s", "a1", "sink", 2, "q", 5, None, store, parts)
        assert b"".join(encode(message)) == frame_of(msgpack.packb(fields), msgpack.packb(parts))
        assert decoded(*fields, body=msgpack.packb(parts)) == message
    for wrong in (header[:-1], [*header, 1], [*header, "file", None]):
        with pytest.raises(ProtocolError, match="field"):
            decoded(*wrong, body=msgpack.packb(parts))


def test_a_region_is_left_out_if_none_is_named_so_that_older_peers_understand() -> None:
    owner = [int(Op.OWNER), 1, "s", None]
    read = [int(Op.READ), 1, "s", 0, None, 9, False, False, None]
    for region, tail in ((None, []), ("eu-1", ["eu-1"])):
        for message, header in (
            (proxy.GetOwner(1, "s", None, region), owner),
            (proxy.Read(1, "s", Start.START, None, 9, False, False, None, region), read),
        ):
            assert b"".join(encode(message)) == frame_of(msgpack.packb([*header, *tail]))
            assert decoded(*header, *tail) == message


def frame_of(header: bytes, body: bytes = b"") -> bytes:
    return struct.pack(">IH", 2 + len(header) + len(body), len(header)) + header + body


def decoded(*header: Any, body: bytes = b"") -> Message:
    (message,) = FrameDecoder(BIG).feed(frame_of(msgpack.packb(header), body))
    return message


# ---- each field is checked ------------------------------------------------------------------------------------------

GOOD_WRITE = [2, 5, "s", b"p" * 16, 0, 1, None, 0, False, None, None, None]
BAD_WRITES = [
    (1, -1),
    (1, 2**63),
    (1, True),
    (1, 1.0),
    (2, b"s"),
    (2, None),
    (3, b"p" * 15),
    (3, "p" * 16),
    (4, -1),
    (4, 2**63 - 1),
    (5, 0),
    (5, 2**31),
    (6, -1),
    (6, "1"),
    (7, -1),
    (7, 2**32),
    (8, 0),
    (8, None),
    (10, -1),
    (10, "0"),
    (11, 0),
    (11, b"a1"),
]


def test_the_good_write_is_good() -> None:
    write = proxy.Write(5, "s", b"p" * 16, 0, 1, None, 0, False, None, None, None, b"set")
    assert decoded(*GOOD_WRITE, body=b"set") == write


@pytest.mark.parametrize("index,value", BAD_WRITES)
def test_a_field_of_a_wrong_type_or_range_is_refused(index: int, value: Any) -> None:
    header = list(GOOD_WRITE)
    header[index] = value
    with pytest.raises(ProtocolError, match="Write"):
        decoded(*header)


@pytest.mark.parametrize("fields", [GOOD_WRITE[:-1], [*GOOD_WRITE, 1], [2]])
def test_fields_are_neither_missing_nor_too_many(fields: list[Any]) -> None:
    with pytest.raises(ProtocolError, match="fields"):
        decoded(*fields)


@pytest.mark.parametrize(
    "start,value",
    [(0, 1), (1, [1, 0, 0]), (2, None), (2, 7), (2, [1, 0]), (3, None), (3, [1, 0, 0]), (4, -1), (5, None)],
)
def test_the_start_of_a_read_fits_its_kind(start: int, value: Any) -> None:
    with pytest.raises(ProtocolError):
        decoded(3, 1, "s", start, value, 100, True, False)


@pytest.mark.parametrize("header", [[], [0, 1], [63, 1], ["2"], [None], [2.0], [True, 1]])
def test_an_unknown_op_is_refused(header: list[Any]) -> None:
    with pytest.raises(ProtocolError):
        decoded(*header)


@pytest.mark.parametrize("header", [b"", b"\x80", b"\xc0", b"\x92\x10\x01\x01", b"\x92\x10", b"\xc1"])
def test_a_header_that_is_no_array_is_refused(header: bytes) -> None:
    with pytest.raises(ProtocolError):
        list(FrameDecoder().feed(frame_of(header)))


def test_a_header_longer_than_its_frame_is_refused() -> None:
    for frame in (struct.pack(">IB", 1, 0), struct.pack(">IH", 2, 1), struct.pack(">IHB", 3, 2, 0x90)):
        with pytest.raises(ProtocolError):
            list(FrameDecoder().feed(frame))


def test_only_six_messages_have_a_body() -> None:
    with_body = set()
    for op, (cls, fields) in SCHEMA.items():
        if {f.name for f in dataclasses.fields(cls)} != {name for name, _ in fields}:
            with_body.add(op)
    assert with_body == {Op.WRITE, Op.SINK_WRITE, Op.IMPORT_SEGMENTS, Op.OBJECTS_ASK, Op.ENTRIES, Op.DONE}
    with pytest.raises(ProtocolError, match="no body"):
        decoded(16, 1, body=b"x")


def test_lengths_of_entries_add_up_to_the_body() -> None:
    lengths = struct.pack(">II", 1, 2)
    assert decoded(68, 1, 1, 0, lengths, 0, body=b"abc") == proxy.Entries(1, 1, 0, (1, 2), 0, b"abc")
    for body in (b"ab", b"abcd", b""):
        with pytest.raises(ProtocolError, match="add up"):
            decoded(68, 1, 1, 0, lengths, 0, body=body)
    with pytest.raises(ProtocolError):
        decoded(68, 1, 1, 0, lengths[:-1], 0, body=b"abc")


def test_a_range_of_acks_is_not_backwards() -> None:
    with pytest.raises(ProtocolError, match="backwards"):
        decoded(65, 5, 4, [1, 0, 0], 9, False)


@pytest.mark.parametrize("detail", [{b"k": 1}, {"a": {b"k": 1}}, {"a": [{b"k": 1}]}])
def test_keys_of_maps_are_text_at_any_depth(detail: dict[Any, Any]) -> None:
    with pytest.raises(ProtocolError, match="keys"):
        decoded(66, 1, 500, "", None, False, detail)


def test_extension_types_are_refused() -> None:
    for ext in (msgpack.ExtType(5, b""), msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 0)):
        with pytest.raises(ProtocolError):
            decoded(66, 1, 500, "", None, False, {"a": ext})


# ---- bounds ---------------------------------------------------------------------------------------------------------


def test_before_a_hello_a_long_frame_is_refused_by_its_length_word() -> None:
    with pytest.raises(ProtocolError, match="length"):
        list(FrameDecoder().feed(struct.pack(">I", HELLO_LENGTH_MAX + 1)))


def test_the_bound_may_be_raised_between_two_messages_of_one_chunk() -> None:
    hello = proxy.Hello(1, 1, 1, "client", "test")
    write = proxy.Write(2, "s", b"p" * 16, 0, 1, None, 0, False, None, None, None, bytes(HELLO_LENGTH_MAX))
    decoder = FrameDecoder()
    heard = []
    for message in decoder.feed(b"".join([*encode(hello), *encode(write)])):
        heard.append(message)
        decoder.length_max = BIG
    assert heard == [hello, write]


def hostile_headers() -> list[bytes]:
    return [
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        struct.pack(">BH", 0xDC, ARRAY_MAX) * 20_000,
        b"\xdc\xff\xff" * 20_000,
        b"\x91" * 60_000,
        b"\x81\xa1a" * 20_000,
    ]


@pytest.mark.parametrize("header", hostile_headers())
def test_what_a_header_declares_does_not_allocate(header: bytes) -> None:
    frame = frame_of(header)
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            list(FrameDecoder(BIG).feed(frame))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * BIG


def test_a_declared_frame_length_does_not_allocate() -> None:
    tracemalloc.start()
    try:
        decoder = FrameDecoder(1 << 30)
        list(decoder.feed(struct.pack(">I", 1 << 30) + b"x"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10_000


def test_a_message_too_large_for_its_header_is_refused_at_the_sender() -> None:
    with pytest.raises(InvalidRequestError, match="too large"):
        encode(proxy.GetOwner(1, "s" * (HEADER_BYTES_MAX + 1)))


class Integer:
    """An integer of another type, as numpy has them."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __index__(self) -> int:
        return self.value


WRONG = (True, -1, 1.0, 1.5, "x", "\ud800", "x" * (TEXT_MAX + 1), b"x", None, 2**63, 2**64, (1, 2), (1.0, 0, 0), {1: 2})
WRONG_PARTS = ([("7", 1.5)], [("7", -1)], [(7, 1)], [("", 1)], [("7", True)], [("7",)], [("7", 1)] * 1001)
REQUESTS = {op for op in Op if op < Op.WELCOME} - {Op.WRITE}  # `encode` checks these


@settings(max_examples=300)
@given(messages(REQUESTS), st.data())
def test_a_request_that_would_be_refused_is_not_sent(message: Message, data: st.DataObject) -> None:
    """A peer closes the connection at a frame that it cannot decode, and other callers use the same one."""
    name = data.draw(st.sampled_from([f.name for f in dataclasses.fields(message) if f.name != "body"]))
    wrong = data.draw(st.sampled_from(WRONG_PARTS if name == "parts" else WRONG))
    try:
        frame = b"".join(encode(dataclasses.replace(message, **{name: wrong})))  # type: ignore[arg-type]  # of any type
    except InvalidRequestError as error:
        assert type(error) is InvalidRequestError, "the peer broke no protocol"
    else:
        assert len(list(FrameDecoder(BIG).feed(frame))) == 1


@pytest.mark.parametrize(
    "message, says",
    [
        (proxy.Truncate(1, "s", "a1", (1, 2)), "message=Truncate dlsn=[1, 2]: not a DLSN"),  # type: ignore[arg-type]
        (proxy.Truncate(1, "s", "a1", (1.0, 0, 0)), "message=Truncate dlsn=[1.0, 0, 0]: not a DLSN"),  # type: ignore[arg-type]
        (proxy.Read(1, "s", Start.TXID, 1.5, 9, True), "message=Read value=1.5: not a u63"),
        (proxy.Read(1, "s", Start.TXID, True, 9, True), "message=Read value=True: not a u63"),
        (proxy.Read(1, "s", Start.TXID, None, 9, True), "message=Read: value does not fit the kind of start"),
        (
            proxy.ImportSegments(1, "s", "a1", "k", 0, "q", -1, None, None, ()),
            "message=ImportSegments batch=-1: not a u63",
        ),
    ],
)
def test_a_refused_request_names_the_argument(message: Message, says: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        encode(message)
    assert caught.value.message == f"the request was not sent, an argument is wrong: field out of its bounds: {says}"


def test_an_integer_of_another_type_is_sent_as_one() -> None:
    message = proxy.Truncate(1, "s", "a1", (Integer(1), Integer(0), 0))  # type: ignore[arg-type]
    assert list(FrameDecoder(BIG).feed(b"".join(encode(message)))) == [proxy.Truncate(1, "s", "a1", (1, 0, 0))]
    with pytest.raises(InvalidRequestError, match="message=Truncate: 'object' object cannot be interpreted as an int"):
        encode(proxy.Truncate(1, "s", "a1", (object(), 0, 0)))  # type: ignore[arg-type]


def test_a_long_failure_is_cut_so_that_it_can_be_told() -> None:
    (heard,) = FrameDecoder(BIG).feed(b"".join(encode(proxy.Failed(1, 500, "\U0001f4a5" * TEXT_MAX))))
    assert isinstance(heard, proxy.Failed) and heard.message.endswith("...")


def test_a_body_is_neither_copied_on_the_way_out_nor_on_the_way_in() -> None:
    body = b"x" * 1000
    write = proxy.Write(2, "s", b"p" * 16, 0, 1, None, 0, False, None, None, None, body)
    parts = encode(write)
    assert parts[1] is body
    chunk = b"".join(parts)
    (heard,) = FrameDecoder(BIG).feed(chunk)
    assert isinstance(heard, proxy.Write) and isinstance(heard.body, memoryview) and heard.body.obj is chunk


# ---- the table is the protocol --------------------------------------------------------------------------------------


def test_the_schema_has_every_op_and_every_field_in_order() -> None:
    assert set(SCHEMA) == set(Op)
    for cls, fields in SCHEMA.values():
        names = [f.name for f in dataclasses.fields(cls)]
        assert [name for name, _ in fields] == names[: len(fields)], cls
        assert names[len(fields) :] in ([], ["body"], ["result"], ["parts"]), cls


def test_every_kind_refuses_what_is_not_of_it() -> None:
    for cls, fields in SCHEMA.values():
        for name, kind in fields:
            refused = 0
            for value in (True, -1, 2**64, "x", b"x", None, [], {}, 1.5, [1, 2], {"a": 1}):
                try:
                    kind.check(value)
                except (ValueError, ProtocolError):
                    refused += 1
            assert refused >= 7, (cls, name)


def test_enumerations_travel_as_their_numbers() -> None:
    assert not any(isinstance(kind, enum.EnumMeta) for _, fields in SCHEMA.values() for _, kind in fields)
    assert decoded(69, 1, 2, {}) == proxy.ReaderEvent(1, ReaderEventKind.END_OF_STREAM)
    with pytest.raises(ProtocolError):
        decoded(69, 1, 99, {})
