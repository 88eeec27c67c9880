"""The v3 (protobuf) requests that this project sends, and their responses: START_TLS, a list of entries, for bookies
that serve no summaries, the space of a bookie's disks; and, for a client on v3, adds, reads, long polls and forces.

Invariants:
- A payload is not copied, neither of an add nor of a response.
- A response is matched by its txnId alone; its ids are not used, since a refusal may come without them.

Source: BookKeeper, BookkeeperProtocol.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from dlog.errors import ProtocolError
from dlog.model.ids import NO_ENTRY, EntryId, LedgerId
from dlog.wire.bookie import RESPONSE_LENGTH_MAX, AddEntry, Code, EntryAdded, EntryRead, ReadEntry, Request
from dlog.wire.bookie_v3 import (
    ADD_ENTRY,
    FORCE_LEDGER,
    GET_BOOKIE_INFO,
    LIST_ENTRIES,
    READ_ENTRY,
    READ_LAC,
    START_TLS,
    VERSION_THREE,
    WRITE_LAC,
)
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
    WriteLac,
)
from dlog.wire.bookie_v3_responses import STATUS
from dlog.wire.framing import Buffer, Decoder
from dlog.wire.protobuf import BYTES, VARINT, Malformed, bytes_field, fields, int_field, signed, varint

_READ, _ADD, _WRITE_LAC, _READ_LAC, _SPACE, _TLS, _FORCE, _CONTENT = 100, 101, 103, 104, 105, 106, 107, 108
_FIELD_OF = {
    READ_ENTRY: _READ,
    ADD_ENTRY: _ADD,
    WRITE_LAC: _WRITE_LAC,
    READ_LAC: _READ_LAC,
    FORCE_LEDGER: _FORCE,
}
_TOTAL, _FREE = 1, 2
_FENCE_LEDGER, _ENTRY_PIGGYBACK, _RECOVERY_ADD, _DEFERRED_SYNC = 1, 2, 1, 1
_HIGH_PRIORITY = 100  # as Java's client has it; a bookie takes any number above 0 for it
_CODES = {status: code for code, status in STATUS.items()}


def encode_tls_request(txn: int) -> bytes:
    """The whole frame of START_TLS."""
    return _head(START_TLS, txn, _TLS, b"")


def decode_tls_response(frame: Buffer) -> Code:
    """Whether the TLS handshake may begin: OK, or BAD_REQUEST from a bookie without a certificate. Raises
    ProtocolError."""
    return _read(frame, _TLS, "START_TLS")[0]


def encode_list_request(request: ListEntries, txn: int) -> bytes:
    """The whole frame of the request."""
    return _head(LIST_ENTRIES, txn, _CONTENT, int_field(1, request.ledger))


def decode_list_response(frame: Buffer) -> EntriesListed:
    """The response of a frame without its length word. Raises ProtocolError."""
    code, inner = _read(frame, _CONTENT, "a list of entries")
    ledger, listed = inner.get(2, 0), inner.get(3, b"")
    if not isinstance(ledger, int) or isinstance(listed, int):
        raise ProtocolError(f"not the response to a list of entries: code={code.name}")
    return EntriesListed(LedgerId(signed(ledger)), code, bytes(listed) if code is Code.OK else b"")


def encode_space_request(request: GetSpace, txn: int) -> bytes:
    """The whole frame of the request."""
    flags = (_TOTAL if request.total else 0) | (_FREE if request.free else 0)
    return _head(GET_BOOKIE_INFO, txn, _SPACE, int_field(1, flags))


def decode_space_response(frame: Buffer) -> SpaceReply:
    """The response of a frame without its length word. Raises ProtocolError."""
    code, inner = _read(frame, _SPACE, "the space of disks")
    total, free = inner.get(2), inner.get(3)
    if isinstance(total, memoryview) or isinstance(free, memoryview):
        raise ProtocolError(f"not the response to a question for the space of disks: code={code.name}")
    return SpaceReply(code, None if total is None else signed(total), None if free is None else signed(free))


# ---- a connection that speaks v3 -------------------------------------------------------------------------------------

ClientRequest = Request | ReadWithLac | ForceLedger | WriteLac | ReadLac
ClientResponse = EntryAdded | EntryRead | ReadWithLacDone | LedgerForced | LacWritten | LacRead


@dataclass(frozen=True, slots=True)
class V3Reply:
    """A response as it arrived. entry, lac, packet: of a read; NO_ENTRY and None if it names none. lac_packet: an
    explicit LAC; packet is that of the last entry then."""

    operation: int
    txn: int
    code: Code
    entry: EntryId = NO_ENTRY
    packet: Buffer | None = None
    lac: EntryId = NO_ENTRY
    waited: bool = False
    lac_packet: Buffer | None = None


def encode_v3_request(message: ClientRequest, txn: int) -> list[Buffer]:
    """The frame of a request. v3 has no batch read and no summary."""
    match message:
        case AddEntry(ledger, entry, key, parts, recovery, high_priority, deferred):
            content = int_field(1, ledger) + int_field(2, entry) + bytes_field(3, key)
            if recovery:
                content += int_field(100, _RECOVERY_ADD)
            if deferred:
                content += int_field(5, _DEFERRED_SYNC)
            size = sum(map(len, parts))
            content += varint(4 << 3 | BYTES) + varint(size)
            return [_head(ADD_ENTRY, txn, _ADD, content, size, high_priority), *parts]
        case ReadEntry(ledger, entry, fence, key, high_priority):
            content = int_field(1, ledger) + int_field(2, entry)
            if fence:
                content += bytes_field(3, key) + int_field(100, _FENCE_LEDGER)
            return [_head(READ_ENTRY, txn, _READ, content, 0, high_priority)]
        case ReadWithLac(ledger, entry, previous_lac, timeout_ms, piggyback):
            content = int_field(1, ledger) + int_field(2, entry)
            if previous_lac is not None:
                content += int_field(4, previous_lac) + int_field(5, timeout_ms)
            if piggyback:
                content += int_field(100, _ENTRY_PIGGYBACK)
            return [_head(READ_ENTRY, txn, _READ, content)]
        case ForceLedger(ledger):
            return [_head(FORCE_LEDGER, txn, _FORCE, int_field(1, ledger))]
        case WriteLac(ledger, lac, key, packet):
            content = int_field(1, ledger) + int_field(2, lac) + bytes_field(3, key) + bytes_field(4, packet)
            return [_head(WRITE_LAC, txn, _WRITE_LAC, content)]
        case ReadLac(ledger):
            return [_head(READ_LAC, txn, _READ_LAC, int_field(1, ledger))]
    raise AssertionError(f"a client on v3 does not send this: {type(message).__name__}")


class V3ReplyDecoder(Decoder[list[V3Reply]]):
    """Decodes a bookie's bytes into responses to adds, reads and forces. One per connection. Validity of buffers as in
    RequestDecoder."""

    __slots__ = ()

    def __init__(self, length_max: int = RESPONSE_LENGTH_MAX) -> None:
        super().__init__(length_max)

    def _decoded(self, frames: Iterable[memoryview]) -> list[V3Reply]:
        return [_decode_reply(frame) for frame in frames]


def response_to(message: ClientRequest, reply: V3Reply) -> ClientResponse:
    """The reply as the response to the request with its txnId. Raises ProtocolError."""
    match message:
        case AddEntry(ledger, entry) if reply.operation == ADD_ENTRY:
            return EntryAdded(ledger, entry, reply.code)
        case ReadEntry(ledger, entry, fence) if reply.operation == READ_ENTRY:
            if reply.code is Code.OK and reply.packet is None:
                raise ProtocolError(f"the response to a read has no entry: ledger={ledger} entry={entry}")
            return EntryRead(ledger, entry, reply.code, reply.packet if reply.packet is not None else b"", fence)
        case ReadWithLac(ledger) if reply.operation == READ_ENTRY:
            return ReadWithLacDone(ledger, reply.entry, reply.code, reply.packet, reply.lac, reply.waited)
        case ForceLedger(ledger, number) if reply.operation == FORCE_LEDGER:
            return LedgerForced(ledger, reply.code, number)
        case WriteLac(ledger) if reply.operation == WRITE_LAC:
            return LacWritten(ledger, reply.code)
        case ReadLac(ledger) if reply.operation == READ_LAC:
            return LacRead(ledger, reply.code, reply.lac_packet or b"", reply.packet or b"")
    raise ProtocolError(f"the response is one to another operation: operation={reply.operation} txn={reply.txn}")


def _decode_reply(frame: memoryview) -> V3Reply:
    try:
        message = _values(frame)
        header, status = message.get(1), message.get(2)
        header_fields = _values(header) if isinstance(header, memoryview) else {}
        operation, txn = header_fields.get(2), header_fields.get(3)
        if not isinstance(operation, int) or not isinstance(txn, int):
            raise ProtocolError("the response of a bookie has no header of v3; does it speak v3?")
        content = message.get(_FIELD_OF.get(operation, 0))
        inner = _values(content) if isinstance(content, memoryview) else {}
    except Malformed as error:
        raise ProtocolError(f"the response of a bookie cannot be decoded: {error}") from None
    if status == 0:  # as Java's client: the inner status counts unless the outer one is a refusal
        status = inner.get(1, 0)
    code = _CODES.get(status) if isinstance(status, int) else None
    if code is None:
        raise ProtocolError(f"unknown status of a response: operation={operation} status={status}")
    if operation == READ_LAC and code is Code.OK:
        lac_packet, last_packet = inner.get(3), inner.get(4)
        if isinstance(lac_packet, int) or isinstance(last_packet, int):
            raise ProtocolError("not the response to a read of the LAC")
        return V3Reply(operation, txn, code, packet=last_packet, lac_packet=lac_packet)
    if operation != READ_ENTRY or code is not Code.OK:
        return V3Reply(operation, txn, code)
    entry, packet, lac = inner.get(3, 0), inner.get(4), inner.get(5)
    if not isinstance(entry, int) or isinstance(packet, int) or isinstance(lac, memoryview):
        raise ProtocolError("not the response to a read")
    known = NO_ENTRY if lac is None else EntryId(signed(lac))
    return V3Reply(operation, txn, code, EntryId(signed(entry)), packet, known, 6 in inner)


# ---- bytes -----------------------------------------------------------------------------------------------------------


def _head(operation: int, txn: int, number: int, content: bytes, more: int = 0, high_priority: bool = False) -> bytes:
    """A frame whose content in field `number` goes on with `more` bytes, which follow it."""
    header = int_field(1, VERSION_THREE) + int_field(2, operation) + int_field(3, txn)
    if high_priority:
        header += int_field(4, _HIGH_PRIORITY)
    message = bytes_field(1, header) + varint(number << 3 | BYTES) + varint(len(content) + more) + content
    return struct.pack(">I", len(message) + more) + message


def _read(frame: Buffer, number: int, what: str) -> tuple[Code, dict[int, int | memoryview]]:
    """The status of a response, and the values of its content in field `number`; none if it has none."""
    try:
        message = _values(frame)
        content = message.get(number)
        inner = _values(content) if isinstance(content, memoryview) else {}
    except Malformed as error:
        raise ProtocolError(f"{what} cannot be decoded: {error}") from None
    status = message.get(2)
    code = _CODES.get(status) if isinstance(status, int) else None
    if code is None:
        raise ProtocolError(f"not the response to a question for {what}: status={status}")
    return code, inner


def _values(data: Buffer) -> dict[int, int | memoryview]:
    """The last value of each field."""
    return {number: value for number, wire_type, value in fields(data, 256) if wire_type in (VARINT, BYTES)}
