"""Tests BookKeeper v2 bytes: every message survives every chunking, and invalid bytes only end the connection."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import ProtocolError
from dlog.model.ids import EntryId, LedgerId
from dlog.wire.bookie import (
    REQUEST_LENGTH_MAX,
    AddEntry,
    Auth,
    AuthDone,
    BatchRead,
    BatchReadDone,
    Code,
    Collect,
    CollectionReport,
    CollectionState,
    EntriesSummarized,
    EntryAdded,
    EntryRead,
    ReadEntry,
    Request,
    Response,
    ResponseDecoder,
    SummarizeEntries,
    Unsupported,
    encode_request,
    encode_response,
)
from dlog.wire.bookie_auth import AUTH_DISABLED
from dlog.wire.bookie_port import PortRequest, RequestDecoder
from dlog.wire.framing import Buffer
from tests.unit.wire.chunks import chunked, cuts

I64 = st.integers(-(2**63), 2**63 - 1)
KEY = st.binary(min_size=20, max_size=20)
FLAG = st.booleans()


@st.composite
def adds(draw: st.DrawFn) -> AddEntry:
    ledger, entry = draw(I64), draw(I64)
    rest = draw(st.binary(min_size=16, max_size=80))
    packet = struct.pack(">qq", ledger, entry) + rest
    return AddEntry(ledger, entry, draw(KEY), (packet,), draw(FLAG), draw(FLAG))  # type: ignore[arg-type]


@st.composite
def reads(draw: st.DrawFn) -> ReadEntry:
    fence = draw(FLAG)
    return ReadEntry(draw(I64), draw(I64), fence, draw(KEY) if fence else b"", draw(FLAG))  # type: ignore[arg-type]


@st.composite
def batches(draw: st.DrawFn) -> BatchRead:
    fence = draw(FLAG)
    count = draw(st.integers(-(2**31), 2**31 - 1))
    return BatchRead(draw(I64), draw(I64), draw(I64), count, draw(I64), fence, draw(KEY) if fence else b"")  # type: ignore[arg-type]


I32 = st.integers(-(2**31), 2**31 - 1)
summaries = st.builds(SummarizeEntries, I64, I64, I64, I64, I32, I32, st.integers(0, 255))
requests = st.one_of(adds(), reads(), batches(), st.just(Auth(AUTH_DISABLED)), st.builds(Collect, I64), summaries)

codes = st.sampled_from([code for code in Code if code is not Code.UNKNOWN_LEDGER_STATE])
failures = st.sampled_from([c for c in Code if c not in (Code.OK, Code.UNKNOWN_LEDGER_STATE)])
packets = st.lists(st.binary(min_size=24, max_size=60), max_size=4).map(tuple)
responses: st.SearchStrategy[Response] = st.one_of(
    st.builds(EntryAdded, I64, I64, codes),
    st.builds(EntryRead, I64, I64, st.just(Code.OK), st.binary(max_size=100)),
    st.builds(EntryRead, I64, I64, failures),
    st.builds(BatchReadDone, I64, I64, I64, st.just(Code.OK), packets),
    st.builds(BatchReadDone, I64, I64, I64, failures),
    st.builds(AuthDone, st.binary(max_size=40)),
    st.builds(CollectionReport, I64, st.sampled_from(CollectionState), I64, I64, I64, I64, st.text(max_size=50)),
    st.builds(CollectionReport, I64, st.sampled_from(CollectionState), code=failures),
    st.builds(EntriesSummarized, I64, I64, I64, codes, I64, st.integers(0, 2**32 - 1)),
)


@settings(max_examples=80)
@given(st.lists(requests, max_size=6), cuts)
def test_requests_survive_every_chunking(sent: list[Request], where: list[int]) -> None:
    stream = b"".join(b"".join(encode_request(r)) for r in sent)
    decoder = RequestDecoder()
    assert [m for chunk in chunked(stream, where) for m in decoder.feed(chunk)] == sent


@settings(max_examples=80)
@given(st.lists(responses, max_size=6), cuts)
def test_answers_survive_every_chunking(sent: list[Response], where: list[int]) -> None:
    stream = b"".join(b"".join(encode_response(r)) for r in sent)
    decoder = ResponseDecoder()
    assert [m for chunk in chunked(stream, where) for m in decoder.feed(chunk)] == sent


@settings(max_examples=150)
@given(st.binary(max_size=200), cuts, FLAG)
def test_hostile_bytes_end_in_messages_or_a_protocol_error(garbage: bytes, where: list[int], framed: bool) -> None:
    stream = struct.pack(">I", max(len(garbage), 1)) + garbage if framed else garbage
    for decoder in (RequestDecoder(), ResponseDecoder()):
        with contextlib.suppress(ProtocolError):
            for chunk in chunked(stream, where):
                decoder.feed(chunk)


@settings(max_examples=100)
@given(st.one_of(requests.map(encode_request), responses.map(encode_response)), st.data())
def test_a_changed_byte_ends_in_messages_or_a_protocol_error(parts: list[Buffer], data: st.DataObject) -> None:
    frame = bytearray(b"".join(parts))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    for decoder in (RequestDecoder(), ResponseDecoder()):
        with contextlib.suppress(ProtocolError):
            decoder.feed(frame)


@given(count=st.integers(1, 3), at=st.integers(0, 83), flip=st.integers(0, 255))
def test_answers_to_adds_say_the_same_at_once_as_byte_by_byte(count: int, at: int, flip: int) -> None:
    added = [EntryAdded(LedgerId(7), EntryId(9 + i), Code.OK) for i in range(count)]
    whole = b"".join(b"".join(encode_response(response)) for response in added)
    at %= len(whole)
    told = whole[:at] + bytes([whole[at] ^ flip]) + whole[at + 1 :]
    (at_once, error), (singly, expected) = _answers([told]), _answers([told[i : i + 1] for i in range(len(told))])
    assert error == expected and (error is not None or at_once == singly)
    assert _answers([whole]) == (added, None)


def test_a_packet_that_looks_like_answers_to_adds_is_a_packet() -> None:
    (added,) = encode_response(EntryAdded(LedgerId(7), EntryId(9), Code.OK))
    read = EntryRead(LedgerId(7), EntryId(9), Code.OK, bytes(added))
    assert _answers([b"".join(encode_response(read))]) == ([read], None)


def _answers(chunks: list[bytes]) -> tuple[list[Response], str | None]:
    """The decoded messages, and the error that ended them."""
    decoder, heard = ResponseDecoder(), list[Response]()
    try:
        for chunk in chunks:
            heard += decoder.feed(chunk)
    except ProtocolError as error:
        return heard, error.message
    return heard, None


def test_a_reason_is_cut_where_it_is_long() -> None:
    report = CollectionReport(1, CollectionState.FAILED, reason="x" * 5000)
    (heard,) = ResponseDecoder().feed(b"".join(encode_response(report)))
    assert isinstance(heard, CollectionReport) and heard.reason == "x" * 1000


@pytest.mark.parametrize("length", [0, REQUEST_LENGTH_MAX + 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF])
def test_a_length_out_of_bounds_closes_before_anything_is_kept(length: int) -> None:
    with pytest.raises(ProtocolError, match="length"):
        RequestDecoder().feed(struct.pack(">I", length))


def test_the_largest_length_word_is_accepted() -> None:
    packet = bytes(REQUEST_LENGTH_MAX - 24)
    frame = b"".join(encode_request(AddEntry(0, 0, bytes(20), (packet,))))  # type: ignore[arg-type]
    assert struct.unpack_from(">I", frame)[0] == REQUEST_LENGTH_MAX
    (add,) = RequestDecoder().feed(frame)
    assert isinstance(add, AddEntry) and add.parts == (packet,)


def test_an_add_leaves_payload_parts_uncopied_and_goes_by_the_ids_in_the_packet() -> None:
    parts = (struct.pack(">qqqq", 7, 8, 7, 5), memoryview(b"hello"))
    frame = encode_request(AddEntry(7, 8, bytes(20), parts))  # type: ignore[arg-type]
    assert frame[1] is parts[0] and frame[2] is parts[1]
    (add,) = RequestDecoder().feed(b"".join(frame))
    assert isinstance(add, AddEntry) and (add.ledger, add.entry) == (7, 8)


def test_messages_stay_valid_when_the_receive_buffer_is_reused() -> None:
    buffer = bytearray(b"".join(encode_request(AddEntry(7, 8, bytes(20), (struct.pack(">qqq", 7, 8, 7),)))))  # type: ignore[arg-type]
    (add,) = RequestDecoder().feed(memoryview(buffer))
    buffer[:] = bytes(len(buffer))
    assert isinstance(add, AddEntry) and bytes(add.parts[0]) == struct.pack(">qqq", 7, 8, 7)


# ---- versions and odd frames (as measured on the real bookie) -------------------------------------------------------


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def one(body: bytes) -> PortRequest:
    (request,) = RequestDecoder().feed(frame(body))
    return request


READ_7_0 = struct.pack(">qq", 7, 0)


def test_version_0_is_the_opcode_alone() -> None:
    assert one(struct.pack(">I", 2) + READ_7_0) == ReadEntry(7, 0)  # type: ignore[arg-type]
    for word in (0x00020000, 0x00020002, 0x00000102):
        with pytest.raises(ProtocolError):
            one(struct.pack(">I", word) + READ_7_0)


def test_version_1_is_served_and_its_fence_has_no_key() -> None:
    assert one(struct.pack(">I", 0x01020001) + READ_7_0 + bytes(20)) == ReadEntry(7, 0, fence=True)  # type: ignore[arg-type]


@pytest.mark.parametrize("version", [3, 10, 127, 128, 255])
def test_a_version_above_2_is_answered_103(version: int) -> None:
    read = one(struct.pack(">BBH", version, 2, 0) + READ_7_0)
    assert read == Unsupported(bytes.fromhex("00000018 02020000 00000067") + READ_7_0)
    add = one(struct.pack(">BBH", version, 1, 0) + bytes(20) + READ_7_0 + bytes(8))
    assert add == Unsupported(bytes.fromhex("00000018 02010000 00000067") + READ_7_0)
    batch = one(struct.pack(">BBH", version, 7, 0) + READ_7_0 + struct.pack(">qiq", 9, 1, 1))
    assert batch == Unsupported(bytes.fromhex("00000020 02070000 00000067") + READ_7_0 + struct.pack(">q", 9))


def test_auth_is_never_version_checked_but_must_hold_a_message() -> None:
    assert one(struct.pack(">BBH", 9, 3, 0) + AUTH_DISABLED) == Auth(AUTH_DISABLED)
    with pytest.raises(ProtocolError):
        one(struct.pack(">BBH", 2, 3, 0) + b"\x0a\xff")


@pytest.mark.parametrize("op", [0, 4, 5, 6, 8, 9, 255])
def test_an_unknown_operation_closes(op: int) -> None:
    with pytest.raises(ProtocolError):
        one(struct.pack(">BBH", 2, op, 0) + bytes(60))


def test_unknown_flags_and_trailing_bytes_of_a_read_are_ignored() -> None:
    assert one(struct.pack(">BBH", 2, 2, 0xFFF8) + READ_7_0 + b"tail") == ReadEntry(7, 0)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", range(40))
def test_short_adds_close_or_are_bad_requests(size: int) -> None:
    body = (struct.pack(">BBH", 2, 1, 0) + bytes(20) + READ_7_0 + bytes(8))[: 24 + size]
    if size < 16:
        with pytest.raises(ProtocolError):
            one(body)
    elif size < 24:
        assert one(body) == Unsupported(bytes.fromhex("00000018 02010000 00000064") + READ_7_0)
    else:
        assert isinstance(one(body), AddEntry)


@pytest.mark.parametrize("op,whole,fenced", [(2, 20, 40), (7, 40, 60)])
def test_short_reads_close(op: int, whole: int, fenced: int) -> None:
    for flags, need in ((0, whole), (1, fenced)):
        for size in range(4, need):
            with pytest.raises(ProtocolError):
                one(struct.pack(">BBH", 2, op, flags) + bytes(size - 4))
        assert isinstance(one(struct.pack(">BBH", 2, op, flags) + bytes(need - 4)), ReadEntry | BatchRead)


# ---- answers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [EntryAdded, EntryRead])
def test_an_unknown_ledger_state_is_said_as_an_io_error(build: type[EntryAdded] | type[EntryRead]) -> None:
    answer = b"".join(encode_response(build(1, 2, Code.UNKNOWN_LEDGER_STATE)))  # type: ignore[arg-type]
    assert struct.unpack_from(">i", answer, 8)[0] == 101


def test_a_failed_read_carries_no_packet() -> None:
    sent = EntryRead(1, 2, Code.NO_ENTRY, b"left over")  # type: ignore[arg-type]
    assert len(b"".join(encode_response(sent))) == 28


@pytest.mark.parametrize(
    "body", ["02010000", "03010000" + "00" * 20, "02010000000003e7" + "00" * 16, "02040000" + "00" * 20]
)
def test_what_is_no_answer_is_refused(body: str) -> None:
    with pytest.raises(ProtocolError):
        ResponseDecoder().feed(frame(bytes.fromhex(body)))


@pytest.mark.parametrize("body", ["0000", "00000005 00", "ffffffff 00"])
def test_a_batch_that_ends_inside_a_packet_is_refused(body: str) -> None:
    head = struct.pack(">BBHiqqq", 2, 7, 0, 0, 7, 0, 9)
    with pytest.raises(ProtocolError, match="batch"):
        ResponseDecoder().feed(frame(head + bytes.fromhex(body)))
