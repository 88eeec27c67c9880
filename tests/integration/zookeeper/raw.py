"""A ZooKeeper client without logic of its own: one request, its reply and the events before it, byte by byte.

It is for comparing servers: nothing is retried, no watch is set unless requested, and replies are shown unchanged,
except for what two servers cannot have in common (times, session ids, the order of a set).
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence
from typing import Any

from tests.simulation.service import zookeeper_wire as wire

_INT = struct.Struct("!i")
_PAIR = struct.Struct("!ii")
_LONG = struct.Struct("!q")
_REPLY = struct.Struct("!iqi")
_MULTI = struct.Struct("!i?i")
_STAT = struct.Struct("!qqqqiiiqiiq")

_SPECIAL = {"ping": -2, "auth": -4, "set_watches": -8}  # xids that the protocol fixes
OPCODES = {
    "create": 1,
    "delete": 2,
    "exists": 3,
    "get": 4,
    "set": 5,
    "get_acl": 6,
    "set_acl": 7,
    "children": 8,
    "sync": 9,
    "ping": 11,
    "children2": 12,
    "check": 13,
    "multi": 14,
    "create2": 15,
    "remove_watches": 18,
    "multi_read": 22,
    "auth": 100,
    "set_watches": 101,
    "ephemerals": 103,
    "count": 104,
    "set_watches2": 105,
    "add_watch": 106,
    "close": -11,
}


class SessionIds:
    """Session ids by the order in which they were seen, so that two servers' may be compared."""

    def __init__(self) -> None:
        self._ordinals = {0: 0}

    def ordinal(self, session_id: int) -> int:
        return self._ordinals.setdefault(session_id, len(self._ordinals))


class RawSession:
    """One connection at a time, of a session that outlives it."""

    def __init__(self, ids: SessionIds) -> None:
        self._ids = ids
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter | None = None
        self._xid = 0
        self.session_id = 0
        self.password = bytes(16)
        self.zxid = 0
        self.events: list[tuple[int, str]] = []

    async def attach(self, hosts: str, *, timeout_ms: int = 10_000, fresh: bool = True, last_zxid: int = 0) -> Any:
        """Connect; ask for a new session (fresh) or for the former one. Returns the server's reply."""
        self.abort()
        host, _, port = hosts.rpartition(":")
        self._reader, self._writer = await asyncio.open_connection(host, int(port))
        if fresh:
            self.session_id, self.password = 0, bytes(16)
        head = _INT.pack(0) + _LONG.pack(last_zxid) + _INT.pack(timeout_ms) + _LONG.pack(self.session_id)
        self._send(head + wire.buffer(self.password) + b"\0")
        try:
            answer = await self._frame()
        except EOFError:
            return "closed"
        _, timeout_ms, given = struct.unpack_from("!iiq", answer)
        if given:
            self.session_id, self.password = given, answer[20:36]
        return timeout_ms, self._ids.ordinal(given), len(answer)

    async def ask(self, op: str, body: bytes = b"", *, show: str = "") -> Any:
        """(error, zxid relative to the last reply, result) of a request; "closed" if the connection ends instead.

        show: the form of the result (see `_shown`); by default that of the operation.
        """
        xid = _SPECIAL.get(op, 0)
        if not xid:
            self._xid += 1
            xid = self._xid
        self._send(_PAIR.pack(xid, OPCODES[op]) + body)
        while True:
            try:
                frame = await self._frame()
            except EOFError:
                return "closed"
            said_xid, zxid, error = _REPLY.unpack_from(frame)
            rest = frame[_REPLY.size :]
            if said_xid == wire.XID_NOTIFICATION:
                kind, state = _PAIR.unpack_from(rest)
                assert state == 3, state
                self.events.append((kind, rest[12:].decode()))
                continue
            assert said_xid == xid, (said_xid, xid)
            return error, zxid, self._shown(show or op, rest) if not error else rest

    async def closed(self) -> bool:
        """Wait until the server has closed the connection, collecting events until then."""
        while True:
            try:
                frame = await self._frame()
            except EOFError:
                return True
            rest = frame[_REPLY.size :]
            self.events.append((_INT.unpack_from(rest)[0], rest[12:].decode()))

    def heard(self) -> list[tuple[int, str]]:
        """The events since the last call."""
        events, self.events = self.events, []
        return events

    def abort(self) -> None:
        """Drop the connection without closing the session."""
        if self._writer is not None:
            self._writer.transport.abort()
            self._writer = None

    # ---- internals ---------------------------------------------------------------------------------------------------

    def _send(self, frame: bytes) -> None:
        assert self._writer is not None
        self._writer.write(_INT.pack(len(frame)) + frame)

    async def _frame(self) -> bytes:
        try:
            (size,) = _INT.unpack(await self._reader.readexactly(4))
            return await self._reader.readexactly(size)
        except (asyncio.IncompleteReadError, OSError) as error:
            raise EOFError from error

    def _stat(self, body: bytes) -> Any:
        fields = list(_STAT.unpack(body))
        assert fields[2] <= fields[3], "made before it was changed"
        fields[2] = fields[3] = 0
        fields[7] = self._ids.ordinal(fields[7])
        return tuple(fields)

    def _shown(self, op: str, body: bytes) -> Any:
        """Everything in the body, in a form that two servers have in common."""
        match op:
            case "exists" | "set" | "set_acl":
                return self._stat(body)
            case "get_acl":
                return sorted_acl(body[: -_STAT.size]), self._stat(body[-_STAT.size :])
            case "get" | "create2":
                return body[: -_STAT.size], self._stat(body[-_STAT.size :])
            case "children2":
                return sorted_texts(body[: -_STAT.size]), self._stat(body[-_STAT.size :])
            case "children" | "ephemerals":
                return sorted_texts(body)
            case "multi" | "multi_read":
                return self._multi(body)
            case _:
                return body

    def _multi(self, body: bytes) -> Any:
        results: list[Any] = []
        at = 0
        while True:
            kind, done, error = _MULTI.unpack_from(body, at)
            at += _MULTI.size
            if done:
                assert at == len(body)
                return results
            size = {-1: 4, 5: _STAT.size}.get(kind, 0)
            if kind == 4:
                size = 4 + max(0, _INT.unpack_from(body, at)[0]) + _STAT.size
            elif kind == 8:
                size = 4
                for _ in range(_INT.unpack_from(body, at)[0]):
                    size += 4 + _INT.unpack_from(body, at + size)[0]
            elif kind in (1, 15):
                size = 4 + _INT.unpack_from(body, at)[0] + (_STAT.size if kind == 15 else 0)
            result = body[at : at + size]
            at += size
            if kind in (4, 5, 15):
                results.append((kind, error, result[: -_STAT.size], self._stat(result[-_STAT.size :])))
            elif kind == 8:
                results.append((kind, error, sorted_texts(result)))
            else:
                results.append((kind, error, result))


def sorted_texts(body: bytes) -> list[str]:
    """A vector of strings, in order; it must fill the body."""
    (count,) = _INT.unpack_from(body)
    at, found = 4, []
    for _ in range(count):
        value, at = _text(body, at)
        found.append(value)
    assert at == len(body)
    return sorted(found)


def sorted_acl(body: bytes) -> list[tuple[int, str, str]]:
    """An access control list, in order: a server keeps the identities that `auth` is replaced by as a set."""
    (count,) = _INT.unpack_from(body)
    at, found = 4, []
    for _ in range(count):
        (perms,) = _INT.unpack_from(body, at)
        scheme, at = _text(body, at + 4)
        identity, at = _text(body, at)
        found.append((perms, scheme, identity))
    assert at == len(body)
    return sorted(found)


def _text(body: bytes, at: int) -> tuple[str, int]:
    (size,) = _INT.unpack_from(body, at)
    return body[at + 4 : at + 4 + size].decode(), at + 4 + size


# ---- request bodies --------------------------------------------------------------------------------------------------


def create(path: str, data: bytes | None, flags: int, acl: wire.Acl = wire.OPEN_ACL) -> bytes:
    return wire.text(path) + wire.buffer(data) + wire.acl(acl) + wire.number(flags)


def versioned(path: str, version: int) -> bytes:
    return wire.text(path) + wire.number(version)


def set_data(path: str, data: bytes | None, version: int) -> bytes:
    return wire.text(path) + wire.buffer(data) + wire.number(version)


def watched(path: str, watch: bool) -> bytes:
    return wire.text(path) + bytes([watch])


def multi(ops: Sequence[tuple[str, bytes]]) -> bytes:
    parts = [_MULTI.pack(OPCODES[op], False, -1) + body for op, body in ops]
    return b"".join(parts) + _MULTI.pack(-1, True, -1)


def set_watches(since: int, *kinds: Sequence[str]) -> bytes:
    return _LONG.pack(since) + b"".join(map(wire.texts, kinds))


def auth(scheme: str, credential: bytes) -> bytes:
    return wire.number(0) + wire.text(scheme) + wire.buffer(credential)
