"""Reads the list of a ledger's entries from a bookie, by BookKeeper's v3 protocol, on a connection for this alone.

Bookies of dlog and of Java serve it.
"""

from __future__ import annotations

import asyncio
import struct

from dlog.errors import ConnectionLostError, ProtocolError
from dlog.wire.bookie import RESPONSE_LENGTH_MAX
from dlog.wire.bookie_v3_listing import decode_list_response, encode_list_request
from dlog.wire.bookie_v3_messages import EntriesListed, ListEntries


async def read_list(host: str, port: int, request: ListEntries, timeout_s: float) -> EntriesListed:
    """The bookie's response, whatever its code. Raises OSError (TimeoutError too), ConnectionLostError, ProtocolError.
    A cancelled call leaves nothing open."""
    async with asyncio.timeout(timeout_s):
        try:
            reader, writer = await asyncio.open_connection(host, port)
        except ValueError as error:  # as in local_transport.connect
            raise OSError(f"not a host name: {error}: host={host!r} port={port}") from error
        try:
            writer.write(encode_list_request(request, 1))
            (length,) = struct.unpack(">I", await reader.readexactly(4))
            if not 0 < length <= RESPONSE_LENGTH_MAX:
                raise ProtocolError(f"frame length out of bounds: length={length} max={RESPONSE_LENGTH_MAX}")
            return decode_list_response(await reader.readexactly(length))
        except asyncio.IncompleteReadError as error:
            raise ConnectionLostError("connection closed by the bookie") from error
        finally:
            writer.close()
