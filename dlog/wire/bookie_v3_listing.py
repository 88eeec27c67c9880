"""The one v3 (protobuf) request that this project sends: a list of entries, for bookies that serve no summaries.

Source: BookKeeper, BookkeeperProtocol.proto, GetListOfEntriesOfLedgerRequest and its response.
"""

from __future__ import annotations

import struct

from dlog.errors import ProtocolError
from dlog.model.ids import LedgerId
from dlog.wire.bookie import Code
from dlog.wire.bookie_v3 import LIST_ENTRIES, VERSION_THREE
from dlog.wire.bookie_v3_messages import EntriesListed, ListEntries
from dlog.wire.bookie_v3_responses import STATUS
from dlog.wire.framing import Buffer
from dlog.wire.protobuf import BYTES, VARINT, Malformed, bytes_field, fields, int_field, signed

_CONTENT = 108
_CODES = {status: code for code, status in STATUS.items()}


def encode_list_request(request: ListEntries, txn: int) -> bytes:
    """The whole frame of the request."""
    header = int_field(1, VERSION_THREE) + int_field(2, LIST_ENTRIES) + int_field(3, txn)
    message = bytes_field(1, header) + bytes_field(_CONTENT, int_field(1, request.ledger))
    return struct.pack(">I", len(message)) + message


def decode_list_response(frame: Buffer) -> EntriesListed:
    """The response of a frame without its length word. Raises ProtocolError."""
    try:
        message = _values(frame)
        content = message.get(_CONTENT)
        inner = _values(content) if isinstance(content, memoryview) else {}
    except Malformed as error:
        raise ProtocolError(f"list of entries cannot be decoded: {error}") from None
    status, ledger, listed = message.get(2), inner.get(2, 0), inner.get(3, b"")
    code = _CODES.get(status) if isinstance(status, int) else None
    if code is None or not isinstance(ledger, int) or isinstance(listed, int):
        raise ProtocolError(f"not the response to a list of entries: status={status}")
    return EntriesListed(LedgerId(signed(ledger)), code, bytes(listed) if code is Code.OK else b"")


def _values(data: Buffer) -> dict[int, int | memoryview]:
    """The last value of each field."""
    return {number: value for number, wire_type, value in fields(data, 256) if wire_type in (VARINT, BYTES)}
