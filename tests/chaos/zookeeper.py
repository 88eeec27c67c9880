"""Ends a ZooKeeper session from outside, as an expiry does: a second connection takes the session over and closes it.

Id and password of the session are read off the wire, from the server's answer to a connection. Source: ZooKeeper's
ConnectRequest, ConnectResponse and closeSession.
"""

from __future__ import annotations

import asyncio
import struct
from typing import NamedTuple

_ANSWER = struct.Struct(">iiiqi16s")  # length | version | timeout | session | password
_ASK = struct.Struct(">iiqiqi16s?")  # length | version | last zxid | timeout | session | password | read-only
_CLOSE = struct.pack(">iii", 8, 1, -11)
_TIMEOUT_MS = 10_000


class Session(NamedTuple):
    number: int
    password: bytes


def session_in(first_reply: bytes) -> Session | None:
    """The session in a server's first bytes on a connection; None if it refused, or if they are something else."""
    if len(first_reply) < _ANSWER.size:
        return None
    length, _, _, number, size, password = _ANSWER.unpack_from(first_reply)
    if number == 0 or size != 16 or length < _ANSWER.size - 4:
        return None
    return Session(number, password)


async def expire(port: int, session: Session) -> bool:
    """End the session at the server on this port of 127.0.0.1. Returns whether the server knew it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        size = _ASK.size - 4
        writer.write(_ASK.pack(size, 0, 0, _TIMEOUT_MS, session.number, 16, session.password, False))
        answer = session_in(await reader.readexactly(_ANSWER.size))
        if answer is None:
            return False
        writer.write(_CLOSE)
        await reader.read()
        return True
    finally:
        writer.close()
