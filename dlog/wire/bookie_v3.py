"""Recognises BookKeeper v3 (protobuf) requests and refuses them in v3 form.

We serve only v2. A v3 client that gets a v3 response fails at once; one that is disconnected keeps reconnecting. An add
is refused as unauthorised: only at that status does Java's writer close its ledger instead of replacing the bookie
(PendingAddOp); otherwise it would go from bookie to bookie without end and write the ledger's metadata each time.

Source: BookKeeper, BookkeeperProtocol.proto; header rules as measured on 4.17.3.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from dlog.wire.protobuf import BYTES, VARINT, Buffer, Malformed, bytes_field, fields, int_field

EOK = 0
EBADREQ = 404
EUA = 502
EBADVERSION = 503

_FIELDS_MAX = 256  # a header, a request, and its context's pairs
_VERSION_THREE = 3
_ADD_ENTRY = 2
_VERSIONS = range(1, 4)
_OPERATIONS = range(1, 13)
_AUTH = 5
_START_TLS = 9
#: operations that every v3 bookie serves: their responses have a new header, all others echo the request's
_SERVED_ELSEWHERE = frozenset((1, 2, 6, 7, 8, _START_TLS, 10, 11))

#: AuthMessage{"AuthDisabledPlugin", ""}: the response of a bookie without an auth provider
AUTH_DISABLED = bytes_field(1, b"AuthDisabledPlugin") + bytes_field(2, b"")


@dataclass(frozen=True, slots=True)
class Header:
    """BKPacketHeader. `raw`: as received."""

    version: int
    operation: int
    txn: int
    raw: bytes


def request_header(frame: Buffer) -> Header | None:
    """The header, if the frame is a v3 Request; None if it does not parse as one (a v2 frame never does)."""
    try:
        raw: bytes | None = None
        for number, wire_type, value in fields(frame, _FIELDS_MAX):
            if number == 1 and wire_type == BYTES:
                assert isinstance(value, memoryview)
                raw = bytes(value)
        return _header(raw) if raw is not None else None
    except Malformed:
        return None


def refusal(header: Header) -> bytes:
    """A whole response frame with its length word. Status: EBADREQ, for an add EUA; EBADVERSION unless version 3.

    AUTH gets the response of a bookie without authentication, so that the client sees the refusal of its first real
    request.
    """
    status = EUA if header.operation == _ADD_ENTRY else EBADREQ
    if header.version != _VERSION_THREE:
        status = EBADVERSION
    body = b""
    if header.operation == _AUTH:
        status, body = EOK, bytes_field(102, AUTH_DISABLED)
    if header.operation in _SERVED_ELSEWHERE:
        echoed = int_field(1, _VERSION_THREE) + int_field(2, header.operation) + int_field(3, header.txn)
    else:
        echoed = header.raw
    message = bytes_field(1, echoed) + int_field(2, status) + body
    return struct.pack(">I", len(message)) + message


def is_auth_message(data: Buffer) -> bool:
    """Whether `data` parses as an AuthMessage with both its fields."""
    try:
        found = {number for number, wire_type, _ in fields(data, _FIELDS_MAX) if wire_type == BYTES}
    except Malformed:
        return False
    return {1, 2} <= found


def _header(raw: bytes) -> Header | None:
    values = {number: value for number, wire_type, value in fields(raw, _FIELDS_MAX) if wire_type == VARINT}
    version, operation, txn = values.get(1), values.get(2), values.get(3)
    if version not in _VERSIONS or operation not in _OPERATIONS or not isinstance(txn, int):
        return None
    assert isinstance(version, int) and isinstance(operation, int)
    return Header(version, operation, txn, raw)
