"""The v3 (protobuf) requests that this project sends: START_TLS, a list of entries, for bookies that serve no
summaries, and the space of a bookie's disks.

Source: BookKeeper, BookkeeperProtocol.proto, GetListOfEntriesOfLedgerRequest, GetBookieInfoRequest and their responses.
"""

from __future__ import annotations

import struct

from dlog.errors import ProtocolError
from dlog.model.ids import LedgerId
from dlog.wire.bookie import Code
from dlog.wire.bookie_v3 import GET_BOOKIE_INFO, LIST_ENTRIES, START_TLS, VERSION_THREE
from dlog.wire.bookie_v3_messages import EntriesListed, GetSpace, ListEntries, SpaceTold
from dlog.wire.bookie_v3_responses import STATUS
from dlog.wire.framing import Buffer
from dlog.wire.protobuf import BYTES, VARINT, Malformed, bytes_field, fields, int_field, signed

_SPACE, _TLS, _CONTENT = 105, 106, 108
_TOTAL, _FREE = 1, 2
_CODES = {status: code for code, status in STATUS.items()}


def encode_tls_request(txn: int) -> bytes:
    """The whole frame of START_TLS."""
    return _framed(START_TLS, txn, _TLS, b"")


def decode_tls_response(frame: Buffer) -> Code:
    """Whether the TLS handshake may begin: OK, or BAD_REQUEST from a bookie without a certificate. Raises
    ProtocolError."""
    return _read(frame, _TLS, "START_TLS")[0]


def encode_list_request(request: ListEntries, txn: int) -> bytes:
    """The whole frame of the request."""
    return _framed(LIST_ENTRIES, txn, _CONTENT, int_field(1, request.ledger))


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
    return _framed(GET_BOOKIE_INFO, txn, _SPACE, int_field(1, flags))


def decode_space_response(frame: Buffer) -> SpaceTold:
    """The response of a frame without its length word. Raises ProtocolError."""
    code, inner = _read(frame, _SPACE, "the space of disks")
    total, free = inner.get(2), inner.get(3)
    if isinstance(total, memoryview) or isinstance(free, memoryview):
        raise ProtocolError(f"not the response to a question for the space of disks: code={code.name}")
    return SpaceTold(code, None if total is None else signed(total), None if free is None else signed(free))


def _framed(operation: int, txn: int, number: int, content: bytes) -> bytes:
    header = int_field(1, VERSION_THREE) + int_field(2, operation) + int_field(3, txn)
    message = bytes_field(1, header) + bytes_field(number, content)
    return struct.pack(">I", len(message)) + message


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
