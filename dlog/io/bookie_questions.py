"""Asks a bookie one question by BookKeeper's v3 protocol, on a connection for this alone: which entries of a ledger it
has, and how much space its disks have.

Bookies of dlog and of Java serve both.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from dlog.errors import ConnectionLostError, ProtocolError
from dlog.wire.bookie import RESPONSE_LENGTH_MAX, Code
from dlog.wire.bookie_v3_asking import (
    decode_list_response,
    decode_space_response,
    decode_tls_response,
    encode_list_request,
    encode_space_request,
    encode_tls_request,
)
from dlog.wire.bookie_v3_messages import EntriesListed, GetSpace, ListEntries, SpaceReply
from dlog.wire.framing import Buffer


async def read_list(
    host: str, port: int, request: ListEntries, timeout_s: float, tls: ssl.SSLContext | None = None
) -> EntriesListed:
    """The bookie's response, whatever its code. Raises OSError (TimeoutError too), ConnectionLostError, ProtocolError.
    A cancelled call leaves nothing open."""
    return decode_list_response(await _ask(host, port, encode_list_request(request, 1), timeout_s, tls))


async def read_space(host: str, port: int, timeout_s: float, tls: ssl.SSLContext | None = None) -> SpaceReply:
    """The space of the bookie's ledger directories; whatever the code of the response. Raises as `read_list`, and can
    be cancelled like it."""
    return decode_space_response(await _ask(host, port, encode_space_request(GetSpace(), 1), timeout_s, tls))


@asynccontextmanager
async def bookie_connection(
    host: str, port: int, tls: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a bookie, with a context under TLS. Raises OSError, ConnectionLostError, ProtocolError."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except (ValueError, OverflowError) as error:  # as in local_transport.connect
        raise OSError(f"not a host name: {error}: host={host!r} port={port}") from error
    try:
        if tls is not None:
            writer.write(encode_tls_request(1))
            check_tls_response(await _read_frame(reader))
            await writer.start_tls(tls, server_hostname=host)
        yield reader, writer
    except asyncio.IncompleteReadError as error:
        raise ConnectionLostError("connection closed by the bookie") from error
    finally:
        if tls is None:
            writer.close()
        else:
            writer.transport.abort()  # the answer is here, or will not come; do not wait for TLS to say goodbye


async def _ask(host: str, port: int, frame: bytes, timeout_s: float, tls: ssl.SSLContext | None) -> bytes:
    """Send a frame and return the next one of the bookie, without its length word."""
    async with asyncio.timeout(timeout_s), bookie_connection(host, port, tls) as (reader, writer):
        writer.write(frame)
        return await _read_frame(reader)


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    (length,) = struct.unpack(">I", await reader.readexactly(4))
    if not 0 < length <= RESPONSE_LENGTH_MAX:
        raise ProtocolError(f"frame length out of bounds: length={length} max={RESPONSE_LENGTH_MAX}")
    return await reader.readexactly(length)


def check_tls_response(frame: Buffer) -> None:
    """Raise ConnectionLostError unless the bookie agrees to begin the TLS handshake, ProtocolError if it answers
    something else."""
    if (code := decode_tls_response(frame)) is not Code.OK:
        raise ConnectionLostError(
            f"the bookie refuses TLS, has it a certificate? See tls_certificate in its section [bookie]: {code.name}"
        )
