"""AuthMessage, in both protocols of a bookie: plugin name 1, payload 2. Our bookies have no auth provider.

Source: BookKeeper, BookkeeperProtocol.proto.
"""

from __future__ import annotations

from dlog.wire.protobuf import BYTES, Buffer, Malformed, bytes_field, fields

_FIELDS_MAX = 256

#: AuthMessage{"AuthDisabledPlugin", ""}: the response of a bookie without an auth provider
AUTH_DISABLED = bytes_field(1, b"AuthDisabledPlugin") + bytes_field(2, b"")


def is_auth_message(data: Buffer) -> bool:
    """Whether `data` parses as an AuthMessage with both its fields."""
    try:
        found = {number for number, wire_type, _ in fields(data, _FIELDS_MAX) if wire_type == BYTES}
    except Malformed:
        return False
    return {1, 2} <= found
