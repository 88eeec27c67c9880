"""Decodes BookKeeper's v3 (protobuf) requests, and encodes the refusal of those that are not served.

Invariants:
- A frame that does not parse as a v3 Request is None, and never an exception. A v2 frame never parses as one.
- A Request with a known header whose content is missing, malformed or out of bounds is refused in v3 form.
- A decoded request keeps at most HEADER_MAX bytes of its header, so that many waiting requests take little memory.

Source: BookKeeper, BookkeeperProtocol.proto; header rules as measured on 4.17.3.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from dlog.model.ids import EntryId, LedgerId
from dlog.wire.bookie import AddEntry, Auth, ReadEntry, Unsupported
from dlog.wire.bookie_auth import is_auth_message
from dlog.wire.bookie_v3_messages import (
    ForceLedger,
    GetSpace,
    ListEntries,
    ReadLac,
    ReadWithLac,
    StartTls,
    V3Message,
    WriteLac,
)
from dlog.wire.protobuf import BYTES, VARINT, Malformed, bytes_field, fields, int_field, signed

EOK = 0
EBADREQ = 404
EUA = 502
EBADVERSION = 503

READ_ENTRY, ADD_ENTRY = 1, 2
AUTH, WRITE_LAC, READ_LAC, GET_BOOKIE_INFO = 5, 6, 7, 8
START_TLS, FORCE_LEDGER, LIST_ENTRIES = 9, 10, 11
VERSION_THREE = 3

HEADER_MAX = 256  # a request with a longer header is refused; Java's has at most 25 bytes
_FIELDS_MAX = 256  # a header, a request, and its context's pairs
_VERSIONS = range(1, 4)
_OPERATIONS = range(1, 13)
#: operations whose responses have a new header; those of all others echo the request's, as Java's bookie does
_NEW_HEADER = frozenset(
    (READ_ENTRY, ADD_ENTRY, WRITE_LAC, READ_LAC, GET_BOOKIE_INFO, START_TLS, FORCE_LEDGER, LIST_ENTRIES)
)
_KEY_SIZE = 20
_IDS = struct.Struct(">qq")
_LAC_PACKET_MAX = 64  # two ids and the longest digest take 36 bytes
_FENCE_LEDGER, _ENTRY_PIGGYBACK, _RECOVERY_ADD = 1, 2, 1
_TOTAL, _FREE = 1, 2


@dataclass(frozen=True, slots=True)
class Header:
    """BKPacketHeader. `raw`: as received, if the response echoes it; otherwise empty."""

    version: int
    operation: int
    txn: int
    priority: int
    raw: bytes


@dataclass(frozen=True, slots=True)
class V3Call:
    """What the response repeats of its request. ledger, entry: as the request names them; the message of an add has the
    ids of its packet. It keeps none of the received bytes in memory.
    """

    header: Header
    ledger: LedgerId = LedgerId(0)
    entry: EntryId = EntryId(0)


@dataclass(frozen=True, slots=True)
class V3Request:
    """A v3 request that is served. StartTls: by the connection, and only if the bookie has a certificate."""

    call: V3Call
    message: V3Message | StartTls


class _Refusal(Exception):
    """The request is answered with this status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def decode_v3(frame: memoryview) -> V3Request | Unsupported | None:
    """The request, or its refusal; None if the frame does not parse as a v3 Request."""
    raw: memoryview | None = None
    bodies: dict[int, memoryview] = {}
    try:
        for number, wire_type, value in fields(frame, _FIELDS_MAX):
            if wire_type == BYTES:
                assert isinstance(value, memoryview)
                if number == 1:
                    raw = value
                else:
                    bodies[number] = value
        header = _header(raw) if raw is not None else None
    except Malformed:
        return None
    if raw is None or header is None:
        return None
    if len(raw) > HEADER_MAX:
        return Unsupported(refusal(header, EBADREQ))
    if header.version != VERSION_THREE:
        return Unsupported(refusal(header, EBADVERSION))
    known = _SERVED.get(header.operation)
    if known is None:
        return Unsupported(refusal(header, EBADREQ))
    number, decode = known
    try:
        if number not in bodies:
            raise _Refusal(EBADREQ)
        return decode(header, bodies[number])
    except Malformed:
        return Unsupported(refusal(header, EBADREQ))
    except _Refusal as refused:
        return Unsupported(refusal(header, refused.status))


def response_header(header: Header) -> bytes:
    """The encoded header of the response to a request."""
    if not header.raw:
        return int_field(1, VERSION_THREE) + int_field(2, header.operation) + int_field(3, header.txn)
    return header.raw


def refusal(header: Header, status: int) -> bytes:
    """A whole response frame with its length word, without an inner message."""
    message = bytes_field(1, response_header(header)) + int_field(2, status)
    return struct.pack(">I", len(message)) + message


# ---- the content of requests -----------------------------------------------------------------------------------------


def _header(raw: memoryview) -> Header | None:
    values = {number: value for number, wire_type, value in fields(raw, _FIELDS_MAX) if wire_type == VARINT}
    version, operation, txn, priority = values.get(1), values.get(2), values.get(3), values.get(4, 0)
    if version not in _VERSIONS or operation not in _OPERATIONS or not isinstance(txn, int):
        return None
    is_echoed = operation not in _NEW_HEADER and len(raw) <= HEADER_MAX
    return Header(cast(int, version), cast(int, operation), txn, cast(int, priority), bytes(raw) if is_echoed else b"")


class _Body:
    """The fields of a request's content: of each number the last one, as protobuf has it."""

    __slots__ = ("_bytes", "_ints")

    def __init__(self, body: memoryview) -> None:
        self._ints: dict[int, int] = {}
        self._bytes: dict[int, memoryview] = {}
        for number, wire_type, value in fields(body, _FIELDS_MAX):
            if wire_type == VARINT:
                self._ints[number] = cast(int, value)
            elif wire_type == BYTES:
                self._bytes[number] = cast(memoryview, value)

    def has(self, number: int) -> bool:
        return number in self._ints

    def int64(self, number: int, default: int | None = None) -> int:
        """Raises Malformed if it is missing and has no default."""
        value = self._ints.get(number)
        if value is not None:
            return signed(value)
        if default is None:
            raise Malformed(f"required field is missing: number={number}")
        return default

    def ledger(self, number: int = 1) -> LedgerId:
        return LedgerId(self.int64(number))

    def entry(self, number: int = 2) -> EntryId:
        return EntryId(self.int64(number))

    def data(self, number: int) -> memoryview:
        """Raises Malformed if it is missing."""
        value = self._bytes.get(number)
        if value is None:
            raise Malformed(f"required field is missing: number={number}")
        return value

    def key(self, number: int) -> bytes:
        """A master key. Raises _Refusal(EUA) if it cannot be one: that status ends Java's writer at once."""
        key = self.data(number)
        if len(key) != _KEY_SIZE:
            raise _Refusal(EUA)
        return bytes(key)

    def optional_key(self, number: int) -> bytes:
        """A master key, or b"" if there is none or it cannot be one."""
        key = self._bytes.get(number)
        return bytes(key) if key is not None and len(key) == _KEY_SIZE else b""


def _read(header: Header, content: memoryview) -> V3Request:
    body = _Body(content)
    ledger, entry, flag = body.ledger(), body.entry(), body.int64(100, 0)
    message: V3Message
    if flag == _FENCE_LEDGER:
        message = ReadEntry(ledger, entry, True, body.optional_key(3), header.priority > 0)
    else:
        previous = EntryId(body.int64(4)) if body.has(4) else None
        message = ReadWithLac(ledger, entry, previous, body.int64(5, 0), flag == _ENTRY_PIGGYBACK)
    return V3Request(V3Call(header, ledger, entry), message)


def _add(header: Header, content: memoryview) -> V3Request:
    """The write flag DEFERRED_SYNC is accepted and changes nothing: an add is acknowledged when it is durable."""
    body = _Body(content)
    ledger, entry, key, packet = body.ledger(), body.entry(), body.key(3), body.data(4)
    if len(packet) < _IDS.size:
        raise _Refusal(EBADREQ)
    stored_ledger, stored_entry = _IDS.unpack_from(packet)
    recovery, high_priority = body.int64(100, 0) == _RECOVERY_ADD, header.priority > 0
    message = AddEntry(stored_ledger, stored_entry, key, (packet,), recovery, high_priority)
    return V3Request(V3Call(header, ledger, entry), message)


def _write_lac(header: Header, content: memoryview) -> V3Request:
    body = _Body(content)
    ledger, _, key, packet = body.ledger(), body.int64(2), body.key(3), body.data(4)
    if not _IDS.size <= len(packet) <= _LAC_PACKET_MAX:
        raise _Refusal(EBADREQ)
    stored_ledger, lac = _IDS.unpack_from(packet)
    return V3Request(V3Call(header, ledger), WriteLac(stored_ledger, lac, key, bytes(packet)))


def _read_lac(header: Header, content: memoryview) -> V3Request:
    ledger = _Body(content).ledger()
    return V3Request(V3Call(header, ledger), ReadLac(ledger))


def _force(header: Header, content: memoryview) -> V3Request:
    ledger = _Body(content).ledger()
    return V3Request(V3Call(header, ledger), ForceLedger(ledger))


def _list(header: Header, content: memoryview) -> V3Request:
    ledger = _Body(content).ledger()
    return V3Request(V3Call(header, ledger), ListEntries(ledger))


def _space(header: Header, content: memoryview) -> V3Request:
    asked = _Body(content).int64(1, 0)
    return V3Request(V3Call(header), GetSpace(bool(asked & _TOTAL), bool(asked & _FREE)))


def _start_tls(header: Header, content: memoryview) -> V3Request:
    return V3Request(V3Call(header), StartTls())


def _auth(header: Header, content: memoryview) -> V3Request:
    if not is_auth_message(content):
        raise _Refusal(EBADREQ)
    return V3Request(V3Call(header), Auth(bytes(content)))


#: by operation: the number of the field with its content, and what decodes that
_SERVED: dict[int, tuple[int, Callable[[Header, memoryview], V3Request]]] = {
    READ_ENTRY: (100, _read),
    ADD_ENTRY: (101, _add),
    AUTH: (102, _auth),
    WRITE_LAC: (103, _write_lac),
    READ_LAC: (104, _read_lac),
    GET_BOOKIE_INFO: (105, _space),
    START_TLS: (106, _start_tls),
    FORCE_LEDGER: (107, _force),
    LIST_ENTRIES: (108, _list),
}
