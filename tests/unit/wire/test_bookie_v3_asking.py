"""Tests the v3 bytes of our client against the bookie's side: requests, responses, and what is no response."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import pytest

from dlog.errors import ProtocolError
from dlog.model.ids import EntryId, LedgerId
from dlog.wire.bookie import AddEntry, BatchRead, Code, EntryAdded, EntryRead, ReadEntry
from dlog.wire.bookie_port import RequestDecoder
from dlog.wire.bookie_v3 import V3Request, refusal
from dlog.wire.bookie_v3_asking import V3Reply, V3ReplyDecoder, encode_v3_request, response_to
from dlog.wire.bookie_v3_messages import (
    ForceLedger,
    LacRead,
    LacWritten,
    LedgerForced,
    ReadLac,
    ReadWithLac,
    ReadWithLacDone,
    V3Response,
    WriteLac,
)
from dlog.wire.bookie_v3_responses import encode_v3_response
from dlog.wire.protobuf import bytes_field, fields, int_field

KEY = b"k" * 20
SEVEN, NINE, LAST = LedgerId(7), EntryId(9), EntryId(-1)
PACKET = struct.pack(">qqqq", 7, 9, 8, 3) + b"abc"
TXN = 1 << 40

#: what the client sends, and what the bookie takes it for
SENT: dict[str, tuple[Any, Any]] = {
    "add": (AddEntry(SEVEN, NINE, KEY, (PACKET[:32], PACKET[32:])), AddEntry(SEVEN, NINE, KEY, (PACKET,))),
    "recovery add": (
        AddEntry(SEVEN, NINE, KEY, (PACKET,), True, True),
        AddEntry(SEVEN, NINE, KEY, (PACKET,), True, True),
    ),
    "read": (ReadEntry(SEVEN, NINE), ReadWithLac(SEVEN, NINE)),
    "read the last": (ReadEntry(SEVEN, LAST), ReadWithLac(SEVEN, LAST)),
    "fence": (ReadEntry(SEVEN, LAST, True, KEY), ReadEntry(SEVEN, LAST, True, KEY)),
    "fence of high priority": (ReadEntry(SEVEN, NINE, True, KEY, True), ReadEntry(SEVEN, NINE, True, KEY, True)),
    "long poll": (ReadWithLac(SEVEN, LAST, LAST, 500, True), ReadWithLac(SEVEN, LAST, LAST, 500, True)),
    "force": (ForceLedger(SEVEN), ForceLedger(SEVEN)),
    "explicit lac": (WriteLac(SEVEN, NINE, KEY, PACKET[:20]), WriteLac(SEVEN, NINE, KEY, PACKET[:20])),
    "read of the lac": (ReadLac(SEVEN), ReadLac(SEVEN)),
}


def arrived(message: Any) -> V3Request:
    (decoded,) = RequestDecoder().feed(b"".join(encode_v3_request(message, TXN)))
    assert isinstance(decoded, V3Request)
    return decoded


@pytest.mark.parametrize("case", SENT)
def test_the_bookie_decodes_what_the_client_sends(case: str) -> None:
    sent, taken = SENT[case]
    decoded = arrived(sent)
    assert decoded.message == taken and decoded.call.header.txn == TXN


def test_an_add_with_deferred_sync_has_the_write_flag_and_no_other_has() -> None:
    for deferred in (True, False):
        data = b"".join(encode_v3_request(AddEntry(SEVEN, NINE, KEY, (PACKET,), deferred=deferred), TXN))
        [content] = [value for number, _, value in fields(data[4:]) if number == 101]
        assert isinstance(content, memoryview)
        assert [value for number, _, value in fields(content) if number == 5] == ([1] if deferred else [])


def test_the_parts_of_an_add_are_not_copied() -> None:
    parts = (PACKET[:32], PACKET[32:])
    assert [
        part is sent
        for part, sent in zip(parts, encode_v3_request(AddEntry(SEVEN, NINE, KEY, parts), 1)[1:], strict=True)
    ]


def test_v3_has_no_batch_read() -> None:
    with pytest.raises(AssertionError, match="BatchRead"):
        encode_v3_request(BatchRead(SEVEN, NINE, 1, 10, 1000), 1)


ANSWERED: list[tuple[str, V3Response, Any]] = [
    ("add", EntryAdded(SEVEN, NINE, Code.OK), EntryAdded(SEVEN, NINE, Code.OK)),
    ("recovery add", EntryAdded(SEVEN, NINE, Code.FENCED), EntryAdded(SEVEN, NINE, Code.FENCED)),
    ("read", ReadWithLacDone(SEVEN, NINE, Code.OK, PACKET, EntryId(5)), EntryRead(SEVEN, NINE, Code.OK, PACKET)),
    ("read the last", ReadWithLacDone(SEVEN, NINE, Code.OK, PACKET), EntryRead(SEVEN, LAST, Code.OK, PACKET)),
    ("read", ReadWithLacDone(SEVEN, NINE, Code.NO_ENTRY), EntryRead(SEVEN, NINE, Code.NO_ENTRY)),
    ("fence", EntryRead(SEVEN, LAST, Code.NO_LEDGER, b"", True), EntryRead(SEVEN, LAST, Code.NO_LEDGER, b"", True)),
    ("fence", EntryRead(SEVEN, LAST, Code.OK, PACKET, True), EntryRead(SEVEN, LAST, Code.OK, PACKET, True)),
    (
        "long poll",
        ReadWithLacDone(SEVEN, NINE, Code.OK, PACKET, NINE, True),
        ReadWithLacDone(SEVEN, NINE, Code.OK, PACKET, NINE, True),
    ),
    ("long poll", ReadWithLacDone(SEVEN, LAST, Code.OK, None, LAST), ReadWithLacDone(SEVEN, LAST, Code.OK, None, LAST)),
    ("force", LedgerForced(SEVEN, Code.IO_ERROR), LedgerForced(SEVEN, Code.IO_ERROR)),
    ("explicit lac", LacWritten(SEVEN, Code.OK), LacWritten(SEVEN, Code.OK)),
    ("read of the lac", LacRead(SEVEN, Code.OK, PACKET[:20], PACKET), LacRead(SEVEN, Code.OK, PACKET[:20], PACKET)),
    ("read of the lac", LacRead(SEVEN, Code.OK, b"", PACKET), LacRead(SEVEN, Code.OK, b"", PACKET)),
    ("read of the lac", LacRead(SEVEN, Code.NO_ENTRY), LacRead(SEVEN, Code.NO_ENTRY)),
]


def decoded(data: bytes) -> V3Reply:
    (reply,) = V3ReplyDecoder().feed(data)
    return reply


@pytest.mark.parametrize(("case", "response", "found"), ANSWERED)
def test_the_client_decodes_what_the_bookie_answers(case: str, response: V3Response, found: Any) -> None:
    sent, _ = SENT[case]
    reply = decoded(b"".join(encode_v3_response(arrived(sent).call, response, 1234)))
    assert reply.txn == TXN and response_to(sent, reply) == found


@pytest.mark.parametrize("case", SENT)
def test_a_refusal_without_content_is_the_response_to_its_request(case: str) -> None:
    sent, _ = SENT[case]
    response = response_to(sent, decoded(refusal(arrived(sent).call.header, 506)))
    assert getattr(response, "code", None) is Code.TOO_MANY_REQUESTS and response.ledger == SEVEN


def frame(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def response(operation: int, status: int, number: int = 0, content: bytes = b"") -> bytes:
    header = int_field(1, 3) + int_field(2, operation) + int_field(3, TXN)
    inside = bytes_field(number, content) if number else b""
    return frame(bytes_field(1, header) + int_field(2, status) + inside)


def test_the_inner_status_counts_unless_the_outer_one_refuses() -> None:
    assert decoded(response(2, 0, 101, int_field(1, 504))).code is Code.FENCED
    assert decoded(response(2, 502, 101, int_field(1, 0))).code is Code.UNAUTHORIZED


@pytest.mark.parametrize(
    "data",
    [
        frame(struct.pack(">BBHiqq", 2, 1, 0, 0, 7, 9)),  # v2
        frame(int_field(2, 0)),
        response(2, 999),
        response(1, 0, 100, int_field(1, 0) + bytes_field(3, b"x")),
        response(1, 0, 100, int_field(1, 0) + int_field(4, 7)),
        response(1, 0, 100, b"\xff"),
    ],
)
def test_what_is_no_response_is_a_protocol_error(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        V3ReplyDecoder().feed(data)


def test_a_response_to_another_operation_or_a_read_without_its_entry_is_a_protocol_error() -> None:
    for message in (ReadEntry(SEVEN, NINE), ForceLedger(SEVEN)):
        with pytest.raises(ProtocolError, match="another operation"):
            response_to(message, decoded(response(2, 0, 101, int_field(1, 0))))
    with pytest.raises(ProtocolError, match="no entry"):
        response_to(ReadEntry(SEVEN, NINE), decoded(response(1, 0, 100, int_field(1, 0) + int_field(3, 9))))


@pytest.mark.parametrize("seed", range(20))
def test_a_mutated_response_ends_in_replies_or_a_protocol_error(seed: int) -> None:
    rng = Random(seed)
    whole = [b"".join(encode_v3_response(arrived(SENT[case][0]).call, told, 1)) for case, told, _ in ANSWERED]
    for _ in range(100):
        body = bytearray(rng.choice(whole)[4:])
        for _ in range(rng.randint(1, 4)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        try:
            V3ReplyDecoder().feed(frame(bytes(body)))
        except ProtocolError:
            continue
