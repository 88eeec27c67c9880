"""Encodes the responses of BookKeeper's v3 (protobuf) protocol.

Invariants:
- Packets of entries are not copied.

Source: BookKeeper, BookkeeperProtocol.proto; docs/protocol.md.
"""

from __future__ import annotations

import struct

from dlog.wire.bookie import AuthDone, Code, EntryAdded, EntryRead
from dlog.wire.bookie_v3 import EBADREQ, EBADVERSION, EOK, EUA, V3Call, response_header
from dlog.wire.bookie_v3_messages import (
    EntriesListed,
    LacRead,
    LacWritten,
    LedgerForced,
    ReadWithLacDone,
    SpaceReply,
    TlsStarted,
    V3Response,
)
from dlog.wire.framing import Buffer
from dlog.wire.protobuf import BYTES, bytes_field, int_field, varint

STATUS = {
    Code.OK: EOK,
    Code.NO_LEDGER: 402,
    Code.NO_ENTRY: 403,
    Code.BAD_REQUEST: EBADREQ,
    Code.IO_ERROR: 501,
    Code.UNAUTHORIZED: EUA,
    Code.BAD_VERSION: EBADVERSION,
    Code.FENCED: 504,
    Code.READ_ONLY: 505,
    Code.TOO_MANY_REQUESTS: 506,
    Code.UNKNOWN_LEDGER_STATE: 507,
}
_LENGTH = struct.Struct(">I")


def encode_v3_response(call: V3Call, response: V3Response, now_ms: int = 0) -> list[Buffer]:
    """The frame of the response to `call`, which gives txnId and ids. now_ms: Unix time, for the answer to a long
    poll."""
    match response:
        case EntryAdded():
            return _framed(call, response.code, 101, _status_fields(response.code, call.ledger, call.entry))
        case EntryRead():
            head = _status_fields(response.code, call.ledger, call.entry)
            packet = response.packet if response.code is Code.OK else None
            return _framed(call, response.code, 100, head, 4, packet)
        case ReadWithLacDone(_, entry, code, packet, lac, waited):
            if code is not Code.OK:
                return _framed(call, code, 100, _status_fields(code, call.ledger, call.entry))
            head = _status_fields(code, call.ledger, entry) + int_field(5, lac)
            if waited:
                head += int_field(6, now_ms)
            return _framed(call, code, 100, head, 4, packet)
        case LacWritten(_, code):
            return _framed(call, code, 103, _status_fields(code, call.ledger))
        case LacRead(_, code, lac_packet, last_packet):
            head = _status_fields(code, call.ledger)
            if len(lac_packet):
                head += bytes_field(3, lac_packet)
            return _framed(call, code, 104, head, 4, last_packet if len(last_packet) else None)
        case LedgerForced(_, code, _):
            return _framed(call, code, 107, _status_fields(code, call.ledger))
        case EntriesListed(_, code, listed):
            body = listed if code is Code.OK else None
            return _framed(call, code, 108, _status_fields(code, call.ledger), 3, body)
        case SpaceReply(code, total_bytes, free_bytes):
            head = int_field(1, STATUS[code])
            if total_bytes is not None:
                head += int_field(2, total_bytes)
            if free_bytes is not None:
                head += int_field(3, free_bytes)
            return _framed(call, code, 105, head)
        case TlsStarted(code):
            return _framed(call, code, 106, b"")
        case AuthDone(message):
            return _framed(call, Code.OK, 102, message)


def _status_fields(code: Code, ledger: int, entry: int | None = None) -> bytes:
    head = int_field(1, STATUS[code]) + int_field(2, ledger)
    return head if entry is None else head + int_field(3, entry)


def _framed(
    call: V3Call, code: Code, number: int, inner: bytes, body_number: int = 0, body: Buffer | None = None
) -> list[Buffer]:
    """A frame: field `number` holds `inner`, followed by the field `body_number` with `body`, if there is one."""
    body_size = 0
    if body is not None:
        body_size = len(body)
        inner += varint(body_number << 3 | BYTES) + varint(body_size)
    head = bytes_field(1, response_header(call.header)) + int_field(2, STATUS[code])
    head += varint(number << 3 | BYTES) + varint(len(inner) + body_size) + inner
    frame: list[Buffer] = [_LENGTH.pack(len(head) + body_size) + head]
    if body is not None:
        frame.append(body)
    return frame
