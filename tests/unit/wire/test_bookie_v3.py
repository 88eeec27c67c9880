"""Tests BookKeeper v3 (protobuf) bytes: each operation, its refusals, and mutations of valid frames by seed."""

from __future__ import annotations

import contextlib
import struct
from collections import Counter
from random import Random
from typing import Any

import pytest

from dlog.errors import ProtocolError
from dlog.model.ids import EntryId, LedgerId
from dlog.wire.bookie import AddEntry, Auth, AuthDone, Code, EntryAdded, EntryRead, ReadEntry, Unsupported
from dlog.wire.bookie_auth import AUTH_DISABLED, is_auth_message
from dlog.wire.bookie_availability import encode_runs
from dlog.wire.bookie_port import RequestDecoder
from dlog.wire.bookie_v3 import HEADER_MAX, V3Request, decode_v3
from dlog.wire.bookie_v3_messages import (
    EntriesListed,
    ForceLedger,
    GetSpace,
    LacRead,
    LacWritten,
    LedgerForced,
    ListEntries,
    ReadLac,
    ReadWithLac,
    ReadWithLacDone,
    SpaceReply,
    StartTls,
    V3Response,
    WriteLac,
)
from dlog.wire.bookie_v3_responses import STATUS, encode_v3_response
from dlog.wire.protobuf import BYTES, bytes_field, fields, int_field, signed

KEY = b"k" * 20
SEVEN, NINE = LedgerId(7), EntryId(9)
PACKET = struct.pack(">qqqq", 7, 9, 8, 3) + b"abc"
LAC_PACKET = struct.pack(">qq", 7, 9) + b"dgst"
EOK, EBADREQ, EUA, EBADVERSION = 0, 404, 502, 503


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def request(op: int, number: int = 0, body: bytes = b"", *, version: int = 3, priority: int | None = None) -> bytes:
    """A Request of txnId 300, with its length word."""
    header = int_field(1, version) + int_field(2, op) + int_field(3, 300)
    if priority is not None:
        header += int_field(4, priority)
    return frame(bytes_field(1, header) + (bytes_field(number, body) if number else b""))


def ids(ledger: int, entry: int) -> bytes:
    return int_field(1, ledger) + int_field(2, entry)


READ = request(1, 100, ids(7, 9))
ADD = request(2, 101, ids(7, 9) + bytes_field(3, KEY) + bytes_field(4, PACKET) + int_field(5, 0))
WRITE = request(6, 103, ids(7, 9) + bytes_field(3, KEY) + bytes_field(4, LAC_PACKET))
#: each operation that is served: bytes, and the message for the state machine
SERVED: dict[str, tuple[bytes, Any]] = {
    "read": (READ, ReadWithLac(SEVEN, NINE)),
    "read the last": (request(1, 100, ids(7, -1)), ReadWithLac(SEVEN, EntryId(-1))),
    "fence": (
        request(1, 100, ids(7, 9) + bytes_field(3, KEY) + int_field(100, 1)),
        ReadEntry(SEVEN, NINE, True, KEY),
    ),
    "fence without key": (request(1, 100, ids(7, 9) + int_field(100, 1)), ReadEntry(SEVEN, NINE, True, b"")),
    "fence with half a key": (
        request(1, 100, ids(7, 9) + bytes_field(3, KEY[:9]) + int_field(100, 1), priority=100),
        ReadEntry(SEVEN, NINE, True, b"", True),
    ),
    "long poll": (
        request(1, 100, ids(7, -1) + int_field(4, -1) + int_field(5, 500) + int_field(100, 2)),
        ReadWithLac(SEVEN, EntryId(-1), EntryId(-1), 500, True),
    ),
    "unknown flag": (request(1, 100, ids(7, 9) + int_field(100, 77)), ReadWithLac(SEVEN, NINE)),
    "add": (ADD, AddEntry(SEVEN, NINE, KEY, (PACKET,))),
    "recovery add of high priority": (
        request(2, 101, ids(7, 9) + bytes_field(3, KEY) + bytes_field(4, PACKET) + int_field(100, 1), priority=100),
        AddEntry(SEVEN, NINE, KEY, (PACKET,), True, True),
    ),
    "deferred add": (
        request(2, 101, ids(7, 9) + bytes_field(3, KEY) + bytes_field(4, PACKET) + int_field(5, 1)),
        AddEntry(SEVEN, NINE, KEY, (PACKET,)),
    ),
    "add under other ids than its packet's": (
        request(2, 101, ids(1, 2) + bytes_field(3, KEY) + bytes_field(4, PACKET)),
        AddEntry(SEVEN, NINE, KEY, (PACKET,)),
    ),
    "auth": (request(5, 102, AUTH_DISABLED), Auth(AUTH_DISABLED)),
    "write lac": (WRITE, WriteLac(SEVEN, NINE, KEY, LAC_PACKET)),
    "read lac": (request(7, 104, int_field(1, 7)), ReadLac(SEVEN)),
    "space": (request(8, 105, int_field(1, 3)), GetSpace(True, True)),
    "free space": (request(8, 105, int_field(1, 2)), GetSpace(False, True)),
    "start tls": (request(9, 106, b""), StartTls()),
    "force": (request(10, 107, int_field(1, 7)), ForceLedger(SEVEN)),
    "list": (request(11, 108, int_field(1, 7)), ListEntries(SEVEN)),
}

#: what is refused as it arrives, with the status
REFUSED: dict[str, tuple[bytes, int]] = {
    "range read": (request(3), EBADREQ),
    "range add": (request(4), EBADREQ),
    "start tls without content": (request(9), EBADREQ),
    "batch read": (request(12), EBADREQ),
    "version 2": (request(1, 100, ids(7, 9), version=2), EBADVERSION),
    "read without content": (request(1), EBADREQ),
    "read without entry": (request(1, 100, int_field(1, 7)), EBADREQ),
    "read with a string for its ledger": (request(1, 100, bytes_field(1, b"7") + int_field(2, 9)), EBADREQ),
    "read that is cut off": (request(1, 100, ids(7, 9)[:-1] + b"\xff"), EBADREQ),
    "add with the content of a read": (request(2, 100, ids(7, 9)), EBADREQ),
    "add without key": (request(2, 101, ids(7, 9) + bytes_field(4, PACKET)), EBADREQ),
    "add with half a key": (request(2, 101, ids(7, 9) + bytes_field(3, KEY[:9]) + bytes_field(4, PACKET)), EUA),
    "add without packet": (request(2, 101, ids(7, 9) + bytes_field(3, KEY)), EBADREQ),
    "add of 15 bytes": (request(2, 101, ids(7, 9) + bytes_field(3, KEY) + bytes_field(4, PACKET[:15])), EBADREQ),
    "lac of 15 bytes": (request(6, 103, ids(7, 9) + bytes_field(3, KEY) + bytes_field(4, PACKET[:15])), EBADREQ),
    "lac of 65 bytes": (request(6, 103, ids(7, 9) + bytes_field(3, KEY) + bytes_field(4, bytes(65))), EBADREQ),
    "auth without payload": (request(5, 102, bytes_field(1, b"name")), EBADREQ),
    "force of nothing": (request(10, 107, b""), EBADREQ),
}


def one(data: bytes) -> Any:
    (decoded,) = RequestDecoder().feed(data)
    return decoded


@pytest.mark.parametrize("case", SERVED)
def test_a_request_is_served(case: str) -> None:
    data, message = SERVED[case]
    decoded = one(data)
    assert isinstance(decoded, V3Request)
    assert decoded.message == message and decoded.call.header.txn == 300


@pytest.mark.parametrize("case", REFUSED)
def test_a_request_is_refused_with_its_txn(case: str) -> None:
    data, status = REFUSED[case]
    decoded = one(data)
    assert isinstance(decoded, Unsupported)
    assert parsed(decoded.answer).txn == 300 and parsed(decoded.answer).status == status


def with_header_of(op: int, number: int, body: bytes, length: int) -> bytes:
    """A Request of txnId 300 whose header has an unknown field of bytes, and this length."""
    header = int_field(1, 3) + int_field(2, op) + int_field(3, 300)
    header += bytes_field(15, bytes(length - len(header) - (2 if length < 130 else 3)))
    assert len(header) == length
    return frame(bytes_field(1, header) + bytes_field(number, body))


@pytest.mark.parametrize(("op", "number"), [(1, 100), (2, 101), (5, 102)])
def test_a_long_header_is_refused_and_not_echoed(op: int, number: int) -> None:
    body = {1: ids(7, 9), 2: ids(7, 9) + bytes_field(3, KEY) + bytes_field(4, PACKET), 5: AUTH_DISABLED}[op]
    assert isinstance(one(with_header_of(op, number, body, HEADER_MAX)), V3Request)
    refused = one(with_header_of(op, number, body, HEADER_MAX + 1))
    assert isinstance(refused, Unsupported) and len(refused.answer) < 32
    assert (parsed(refused.answer).txn, parsed(refused.answer).status) == (300, EBADREQ)


@pytest.mark.parametrize("case", SERVED)
def test_a_request_keeps_its_header_only_for_an_answer_that_repeats_it(case: str) -> None:
    data, _ = SERVED[case]
    assert bool(one(data).call.header.raw) is (case == "auth")


def test_an_add_keeps_the_bytes_that_arrived() -> None:
    (view,) = one(ADD).message.parts
    assert isinstance(view, memoryview)


@pytest.mark.parametrize("op", [3, 4, 12])
def test_what_no_bookie_serves_is_answered_with_the_request_header(op: int) -> None:
    header = int_field(1, 3) + int_field(2, op) + int_field(3, 300) + int_field(4, 100)
    assert one(request(op, priority=100)) == Unsupported(frame(bytes_field(1, header) + int_field(2, EBADREQ)))


def test_a_frame_of_countless_fields_is_no_v3_request_and_costs_no_time() -> None:
    assert decode_v3(memoryview(READ[4:])) is not None
    assert decode_v3(memoryview(READ[4:] + int_field(9, 1) * 1000)) is None
    assert not is_auth_message(AUTH_DISABLED + int_field(9, 1) * 1000)
    assert isinstance(one(request(1, 100, ids(7, 9) + int_field(9, 1) * 1000)), Unsupported)


def test_a_connection_may_go_from_v3_to_v2_but_never_back() -> None:
    decoder = RequestDecoder()
    assert isinstance(decoder.feed(READ)[0], V3Request)
    assert decoder.feed(frame(struct.pack(">BBHqq", 2, 2, 0, 7, 0))) == [ReadEntry(SEVEN, EntryId(0))]
    with pytest.raises(ProtocolError):
        decoder.feed(READ)


# ---- responses -------------------------------------------------------------------------------------------------------


class parsed:
    """A Response, as a client parses it."""

    def __init__(self, data: bytes) -> None:
        (length,) = struct.unpack_from(">I", data)
        assert length == len(data) - 4
        top: dict[int, Any] = {number: value for number, _, value in fields(data[4:])}
        header = {number: value for number, _, value in fields(top[1])}
        self.header = bytes(top[1])
        self.txn = header[3]
        self.status = top[2]
        self.numbers = set(top) - {1, 2}
        self.inner: dict[int, Any] = {}
        for number in self.numbers:
            values: list[tuple[int, int, Any]] = list(fields(top[number]))
            for inner, wire_type, value in values:
                self.inner[inner] = bytes(value) if wire_type == BYTES else signed(value)


def answer(case: str, response: V3Response) -> parsed:
    return parsed(b"".join(encode_v3_response(one(SERVED[case][0]).call, response, 1234)))


ANSWERS: list[tuple[str, V3Response, int, dict[int, Any]]] = [
    ("add", EntryAdded(SEVEN, NINE, Code.OK), 101, {1: 0, 2: 7, 3: 9}),
    ("add under other ids than its packet's", EntryAdded(SEVEN, NINE, Code.FENCED), 101, {1: 504, 2: 1, 3: 2}),
    ("read", ReadWithLacDone(SEVEN, NINE, Code.OK, PACKET, EntryId(5)), 100, {1: 0, 2: 7, 3: 9, 4: PACKET, 5: 5}),
    ("read", ReadWithLacDone(SEVEN, NINE, Code.NO_ENTRY), 100, {1: 403, 2: 7, 3: 9}),
    (
        "long poll",
        ReadWithLacDone(SEVEN, EntryId(-1), Code.OK, None, EntryId(-1), True),
        100,
        {1: 0, 2: 7, 3: -1, 5: -1, 6: 1234},
    ),
    ("fence", EntryRead(SEVEN, NINE, Code.OK, PACKET, True), 100, {1: 0, 2: 7, 3: 9, 4: PACKET}),
    ("fence", EntryRead(SEVEN, NINE, Code.UNAUTHORIZED, PACKET, True), 100, {1: 502, 2: 7, 3: 9}),
    ("auth", AuthDone(AUTH_DISABLED), 102, {1: b"AuthDisabledPlugin", 2: b""}),
    ("write lac", LacWritten(SEVEN, Code.READ_ONLY), 103, {1: 505, 2: 7}),
    ("read lac", LacRead(SEVEN, Code.OK, LAC_PACKET, PACKET), 104, {1: 0, 2: 7, 3: LAC_PACKET, 4: PACKET}),
    ("read lac", LacRead(SEVEN, Code.OK, LAC_PACKET), 104, {1: 0, 2: 7, 3: LAC_PACKET}),
    ("read lac", LacRead(SEVEN, Code.NO_ENTRY), 104, {1: 403, 2: 7}),
    ("space", SpaceReply(Code.OK, 100, 40), 105, {1: 0, 2: 100, 3: 40}),
    ("free space", SpaceReply(Code.OK, None, 40), 105, {1: 0, 3: 40}),
    ("space", SpaceReply(Code.IO_ERROR), 105, {1: 501}),
    ("force", LedgerForced(SEVEN, Code.IO_ERROR), 107, {1: 501, 2: 7}),
    ("list", EntriesListed(SEVEN, Code.OK, encode_runs([(0, 1)])), 108, {1: 0, 2: 7, 3: encode_runs([(0, 1)])}),
    ("list", EntriesListed(SEVEN, Code.NO_LEDGER), 108, {1: 402, 2: 7}),
]


@pytest.mark.parametrize(("case", "response", "number", "inner"), ANSWERS)
def test_a_response_has_status_ids_and_content(
    case: str, response: V3Response, number: int, inner: dict[int, Any]
) -> None:
    told = answer(case, response)
    assert (told.txn, told.numbers, told.inner) == (300, {number}, inner)
    assert told.status == inner[1] if number != 102 else told.status == 0


def test_a_response_has_a_header_of_its_own_and_auth_the_request_s() -> None:
    lone = int_field(1, 3) + int_field(2, 1) + int_field(3, 300)
    asked = one(request(1, 100, ids(7, 9) + bytes_field(3, KEY) + int_field(100, 1), priority=100))
    assert parsed(b"".join(encode_v3_response(asked.call, EntryRead(SEVEN, NINE, Code.OK, PACKET)))).header == lone
    asked = one(request(5, 102, AUTH_DISABLED, priority=100))
    echoed = int_field(1, 3) + int_field(2, 5) + int_field(3, 300) + int_field(4, 100)
    assert parsed(b"".join(encode_v3_response(asked.call, AuthDone(AUTH_DISABLED)))).header == echoed


def test_a_packet_is_not_copied() -> None:
    asked = one(READ)
    assert encode_v3_response(asked.call, ReadWithLacDone(SEVEN, NINE, Code.OK, PACKET))[-1] is PACKET


def test_every_code_has_a_status() -> None:
    assert STATUS.keys() == set(Code) and len(set(STATUS.values())) == len(STATUS)


# ---- lists of entries ------------------------------------------------------------------------------------------------


def test_the_golden_list() -> None:
    header = "0000000000000001" + "00" * 56
    assert encode_runs([(0, 1)]).hex() == header + "0000000000000000" * 2 + "0000000200000000"


@pytest.mark.parametrize("seed", range(30))
def test_a_list_has_exactly_its_entries(seed: int) -> None:
    rng = Random(seed)
    period, size = rng.randint(2, 5), rng.randint(1, 2)
    striped = {e for e in range(rng.randint(0, 40)) if e % period < size}
    present = striped | {rng.randrange(100) for _ in range(rng.choice((0, 0, 5)))}
    runs = [(e, e) for e in sorted(present)]
    joined: list[tuple[int, int]] = []
    for first, last in runs:
        if joined and joined[-1][1] + 1 == first:
            joined[-1] = (joined[-1][0], last)
        else:
            joined.append((first, last))
    data = encode_runs(joined)
    version, count = struct.unpack_from(">ii", data)
    groups = [struct.unpack_from(">qqii", data, 64 + 24 * i) for i in range(count)]
    assert version == 0 and len(data) == 64 + 24 * count
    assert {e for e in range(200) if any(holds(group, e) for group in groups)} == present
    if present == striped:
        assert count <= 2, "striping takes one group, and one for its end"


def holds(group: tuple[Any, ...], entry: int) -> bool:
    """As Java decides whether an entry is there."""
    first, last, size, period = group
    if not first <= entry <= last + size:
        return False
    return bool((entry - first < size) if period == 0 else ((entry - first) % period < size))


# ---- mutations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(40))
def test_a_mutated_frame_ends_in_requests_or_a_protocol_error(seed: int) -> None:
    rng = Random(seed)
    seen: Counter[str] = Counter()
    originals = [data for data, _ in SERVED.values()] + [data for data, _ in REFUSED.values()]
    for _ in range(150):
        body = bytearray(rng.choice(originals)[4:])
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(body))
            how = rng.randrange(4)
            if how == 0:
                body[at] = rng.randrange(256)
            elif how == 1:
                body[at] ^= 1 << rng.randrange(8)
            elif how == 2 and len(body) > 2:
                del body[at : at + rng.randint(1, 5)]
            else:
                body[at:at] = rng.randbytes(rng.randint(1, 12))
            if not body:
                body = bytearray(b"\0")
        with contextlib.suppress(ProtocolError):
            decoded = one(frame(bytes(body)))
            seen[type(decoded).__name__] += 1
            if isinstance(decoded, Unsupported) and decoded.answer[4] == 0x0A:
                parsed(decoded.answer)
    assert seen["V3Request"] and seen["Unsupported"]
