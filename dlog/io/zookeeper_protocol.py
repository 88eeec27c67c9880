"""One TCP connection to one ZooKeeper server: requests out, replies and watch events in.

Invariants:
- No request is sent twice.
- When the connection ends, for any reason, every pending request fails at once with ConnectionLossError.
- Frames are bounded in both directions. A larger reply fails its own request only, and is not kept in memory.

Sessions, retries and watches are in dlog/io/zookeeper.py. Of aiozk only the codec is used: its session and client
classes retry writes that may have been carried out, and hang on a frozen server; see the decision record on the
ZooKeeper client.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

from aiozk import exc, protocol
from aiozk.protocol.part import Part
from aiozk.protocol.primitives import Int, Long, UString, Vector
from aiozk.protocol.request import Request
from aiozk.protocol.transaction import MultiHeader

from dlog.errors import InvalidRequestError, MetadataUnavailableError, Remedy

REQUEST_BYTES_MAX = 1024 * 1024 - 1  # the servers' jute.maxbuffer, above which they drop the connection
REPLY_BYTES_MAX = 32 * 1024 * 1024
ANY_VERSION = -1

_SIZE = struct.Struct("!i")
_HEADER = struct.Struct("!iqi")
_STAT = struct.Struct("!qqqqiiiqiiq")
_ERROR = struct.Struct("!i")
_REQUEST = struct.Struct("!ii")
_MULTI = struct.Struct("!i?i")

_GET_DATA = 4  # opcode

XID_WATCH = -1
XID_PING = -2
XID_AUTH = -4
XID_SET_WATCHES = -8


class ConnectionLossError(MetadataUnavailableError):
    """The connection ended, or the deadline passed, after the request was written: its outcome is unknown."""

    outcome_unknown = True


class NotConnectedError(MetadataUnavailableError):
    """There was no connection within the deadline: the request was not sent."""


class RequestTooLargeError(InvalidRequestError):
    """The request exceeds what a ZooKeeper server accepts (1 MiB); it was not sent."""


class ReplyTooLargeError(MetadataUnavailableError):
    """The server's reply exceeds what a client of ours accepts (32 MiB): it was dropped. The server carried out the
    request."""

    remedy = Remedy.FIX
    next_step = "delete znodes below this path that are no longer needed"


class ZnodeError(MetadataUnavailableError):
    """The server refused a request, for the reason that its code gives. Nothing was changed."""

    zookeeper_code: ClassVar[int] = 0

    def __init__(self, path: str = "", zookeeper_code: int | None = None) -> None:
        code = zookeeper_code or self.zookeeper_code
        known = exc.response_error_xref.get(code)
        super().__init__(f"ZooKeeper refused: {known.__name__ if known else 'error'} path={path} code={code}")
        self.path = path


class NoNodeError(ZnodeError):
    """The znode does not exist."""

    zookeeper_code = -101


class BadVersionError(ZnodeError):
    """The znode has another version than the request names: it was changed in between."""

    zookeeper_code = -103


class NodeExistsError(ZnodeError):
    """A znode of that path exists already."""

    zookeeper_code = -110


class NotEmptyError(ZnodeError):
    """The znode has children and cannot be deleted."""

    zookeeper_code = -111


class AuthFailedError(ZnodeError):
    """ZooKeeper rejected the credentials of this session."""

    zookeeper_code = -115


class NoRightsError(ZnodeError):
    """The znode's access control list forbids the request."""

    remedy = Remedy.FIX
    next_step = "give the service's ZooKeeper user all rights to this path and to everything below it"
    zookeeper_code = -102


_KNOWN = (NoNodeError, BadVersionError, NodeExistsError, NotEmptyError, AuthFailedError, NoRightsError)
_ERRORS = {cls.zookeeper_code: cls for cls in _KNOWN}
_UNDECIDED = {-4: "connection loss", -7: "operation timeout", -112: "session expired", -118: "session moved"}


class MultiFailedError(MetadataUnavailableError):
    """A multi was refused as a whole. `errors` has one item for each operation, in order; None if it was only rolled
    back or never tried. `index` and `error` are those of the operation that failed."""

    def __init__(self, errors: Sequence[ZnodeError | None]) -> None:
        self.errors = tuple(errors)
        self.index, self.error = next((i, e) for i, e in enumerate(errors) if e is not None)
        super().__init__(f"{self.error} operation={self.index} of={len(self.errors)}")


def error_of(code: int, path: str = "") -> Exception:
    """The exception for a server's error code."""
    if code in _UNDECIDED:
        return ConnectionLossError(f"ZooKeeper answered: {_UNDECIDED[code]}, the outcome is unknown: path={path}")
    cls = _ERRORS.get(code)
    return cls(path, code) if cls else ZnodeError(path, code)


class Stat(NamedTuple):
    """A znode's Stat. Times are milliseconds of the leader's wall clock; zxids order all changes."""

    czxid: int
    mzxid: int
    ctime_ms: int
    mtime_ms: int
    version: int
    cversion: int
    aversion: int
    ephemeral_owner: int
    data_length: int
    children: int
    pzxid: int


#: one znode of many that were read at once: its data and Stat, None if it is missing
ReadResult = tuple[bytes, Stat] | NoRightsError | None


# ---- operations of a multi ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Create:
    """Result: Created."""

    path: str
    data: bytes = b""
    ephemeral: bool = False
    sequential: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """Result: Stat. version ANY_VERSION is not checked."""

    path: str
    data: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Delete:
    """Result: None."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """Result: None. Refuses the multi if the version differs."""

    path: str
    version: int


Op = Create | Set | Delete | Check


class Created(NamedTuple):
    """path: as assigned, with the number of a sequential znode."""

    path: str
    stat: Stat


# ---- the codec: aiozk's, with missing parts added -------------------------------------------------------------------


class _Stat(Part):  # type: ignore[misc]
    @classmethod
    def parse(cls, buff: bytes, offset: int) -> tuple[Stat, int]:
        return Stat._make(_STAT.unpack_from(buff, offset)), offset + _STAT.size


class _StatReply(Part):  # type: ignore[misc]
    parts = (("stat", _Stat),)


class _ChildrenReply(Part):  # type: ignore[misc]
    parts = (("children", Vector.of(UString)), ("stat", _Stat))


class _CreatedReply(Part):  # type: ignore[misc]
    parts = (("path", UString), ("stat", _Stat))


class _EphemeralsReply(Part):  # type: ignore[misc]
    parts = (("paths", Vector.of(UString)),)


class AddWatchRequest(Request):  # type: ignore[misc]
    """ZooKeeper 3.6 and later. mode 0: persistent; 1: persistent and recursive."""

    opcode = 106
    parts = (("path", UString), ("mode", Int))


class SetWatches2Request(Request):  # type: ignore[misc]  # aiozk has no types
    """SetWatches that can also set persistent watches, as AddWatch does. ZooKeeper 3.6 and later."""

    opcode = 105
    parts = (
        ("relative_zxid", Long),
        ("data_watches", Vector.of(UString)),
        ("exist_watches", Vector.of(UString)),
        ("child_watches", Vector.of(UString)),
        ("persistent_watches", Vector.of(UString)),
        ("persistent_recursive_watches", Vector.of(UString)),
    )


class MultiReadRequest(Request):  # type: ignore[misc]  # aiozk has no types
    """Reads the data of many znodes, without watches. ZooKeeper 3.6 and later."""

    opcode = 22

    def __init__(self, paths: Sequence[str]) -> None:
        super().__init__()
        self.paths = paths

    def serialize(self, xid: int) -> bytes:
        frame = [_REQUEST.pack(xid, self.opcode)]
        for path in self.paths:
            name = path.encode()
            frame += (_MULTI.pack(_GET_DATA, False, -1), _SIZE.pack(len(name)), name, b"\0")
        frame.append(_MULTI.pack(-1, True, -1))
        return b"".join(frame)


class GetEphemeralsRequest(Request):  # type: ignore[misc]
    """Lists this session's ephemeral znodes. ZooKeeper 3.6 and later."""

    opcode = 103
    parts = (("prefix", UString),)


Decode = Callable[[bytes], Any]


def decode_nothing(_: bytes) -> None:
    return None


def decode_stat(body: bytes) -> Stat:
    stat: Stat = _StatReply.parse(body, 0)[0].stat
    return stat


def decode_data(body: bytes) -> tuple[bytes, Stat]:
    return _data_at(body, 0)[0]


def decode_many(paths: Sequence[str]) -> Decode:
    """A decoder for the reply to a MultiReadRequest for these paths: data and Stat of each, None for a missing one,
    NoRightsError for one that this session may not read.

    It raises any other error of a path, as ZnodeError or ConnectionLossError.
    """

    def decode(body: bytes) -> list[ReadResult]:
        found: list[ReadResult] = []
        kind, done, _ = _MULTI.unpack_from(body)
        offset = _MULTI.size
        while not done:
            if kind == _GET_DATA:
                item, offset = _data_at(body, offset)
                found.append(item)
            else:
                (code,) = _ERROR.unpack_from(body, offset)
                offset += _ERROR.size
                path = paths[len(found)] if len(found) < len(paths) else ""
                if code == NoNodeError.zookeeper_code:
                    found.append(None)
                elif code == NoRightsError.zookeeper_code:
                    found.append(NoRightsError(path))
                else:
                    raise error_of(code, path)
            kind, done, _ = _MULTI.unpack_from(body, offset)
            offset += _MULTI.size
        if len(found) != len(paths):
            raise struct.error(f"number of results differs from number of paths: {len(found)} of {len(paths)}")
        return found

    return decode


def _data_at(body: bytes, offset: int) -> tuple[tuple[bytes, Stat], int]:
    (size,) = _SIZE.unpack_from(body, offset)
    begin = offset + _SIZE.size
    end = begin + max(0, size)  # -1: null
    stat = Stat._make(_STAT.unpack_from(body, end))
    return (body[begin:end], stat), end + _STAT.size


def decode_children(body: bytes) -> tuple[list[str], Stat]:
    reply = _ChildrenReply.parse(body, 0)[0]
    return reply.children, reply.stat


def decode_created(body: bytes) -> Created:
    reply = _CreatedReply.parse(body, 0)[0]
    return Created(reply.path, reply.stat)


def decode_ephemerals(body: bytes) -> list[str]:
    paths: list[str] = _EphemeralsReply.parse(body, 0)[0].paths
    return paths


def create_request(path: str, data: bytes, *, ephemeral: bool, sequential: bool) -> Any:
    request = protocol.Create2Request(path=path, data=data, acl=[protocol.UNRESTRICTED_ACCESS])
    request.set_flags(ephemeral, sequential, False)
    return request


def multi_request(ops: Sequence[Op]) -> Any:
    request = protocol.TransactionRequest()
    for op in ops:
        match op:
            case Create():
                request.add(create_request(op.path, op.data, ephemeral=op.ephemeral, sequential=op.sequential))
            case Set():
                request.add(protocol.SetDataRequest(path=op.path, data=op.data, version=op.version))
            case Delete():
                request.add(protocol.DeleteRequest(path=op.path, version=op.version))
            case Check():
                request.add(protocol.CheckVersionRequest(path=op.path, version=op.version))
    return request


_OP_REPLIES: dict[int, type[Any]] = {1: _CreatedReply, 15: _CreatedReply, 5: _StatReply}


def decode_multi(ops: Sequence[Op]) -> Decode:
    """A decoder for the reply to these operations; it raises MultiFailedError if they were refused."""

    def decode(body: bytes) -> list[Any]:
        results: list[Any] = []
        codes: list[int] = []
        header, offset = MultiHeader.parse(body, 0)
        while not header.done:
            if header.type == -1:
                codes.append(_ERROR.unpack_from(body, offset)[0])
                offset += _ERROR.size
            elif header.type in _OP_REPLIES:
                reply, offset = _OP_REPLIES[header.type].parse(body, offset)
                results.append(reply.stat if header.type == 5 else Created(reply.path, reply.stat))
            else:
                results.append(None)
            header, offset = MultiHeader.parse(body, offset)
        if codes:
            decisive = next((i for i, code in enumerate(codes) if code not in (0, -2)), len(codes) - 1)
            raised = error_of(codes[decisive], ops[decisive].path)
            if not isinstance(raised, ZnodeError):
                raise raised
            raise MultiFailedError([raised if i == decisive else None for i in range(len(ops))])
        return results

    return decode


# ---- the connection -------------------------------------------------------------------------------------------------

Done = Callable[[Any, Exception | None], None]


@dataclass(slots=True)
class _Call:
    done: Done
    decode: Decode
    path: str
    sent_s: float


class Connection(asyncio.Protocol):
    """A session's connection to one server. Made by `loop.create_connection`, then `shake_hands`, then `ask`.

    on_event(type, path) is called for each watch event, before a reply that shows the change.
    """

    def __init__(self, on_event: Callable[[int, str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_event = on_event
        self._transport: asyncio.Transport | None = None
        self._in = bytearray()
        self._skipping = 0  # bytes still to come of a reply that is too large
        self._out: list[bytes] = []
        self._handshake: asyncio.Future[Any] | None = None
        self._pending: dict[int, _Call] = {}
        self._special: dict[int, deque[_Call]] = {XID_PING: deque(), XID_AUTH: deque(), XID_SET_WATCHES: deque()}
        self._xid = 0
        self.closed: asyncio.Future[str] = self._loop.create_future()
        self.last_zxid = 0
        self.last_received_s = self._loop.time()
        self.last_answered_s = 0.0  # send time of the newest request that has a reply

    @property
    def is_closed(self) -> bool:
        return self.closed.done()

    @property
    def pending(self) -> int:
        return len(self._pending)

    @property
    def unresponsive_s(self) -> float:
        """How long the oldest pending request has waited; 0: none is pending."""
        oldest = [next(iter(self._pending.values()), None), *(queue[0] for queue in self._special.values() if queue)]
        return max((self._loop.time() - call.sent_s for call in oldest if call is not None), default=0.0)

    async def shake_hands(
        self, *, session_id: int, password: bytes, timeout_ms: int, last_zxid: int
    ) -> tuple[int, bytes, float]:
        """Attach a session (0: a new one). Returns its id (0: it has expired), password and timeout in seconds.

        Raises ConnectionLossError. It has no timeout.
        """
        if self.closed.done():  # uvloop may report the end before create_connection returns
            raise ConnectionLossError(f"connection lost before the handshake: reason={self.closed.result()}")
        self.last_zxid = last_zxid
        sent_s = self._loop.time()
        self._handshake = self._loop.create_future()
        request = protocol.ConnectRequest(
            protocol_version=0,
            last_seen_zxid=last_zxid,
            timeout=timeout_ms,
            session_id=session_id,
            password=password,
            read_only=False,
        )
        self._write(request.serialize())
        reply = await self._handshake
        self.last_answered_s = sent_s
        return reply.session_id, reply.password or b"", reply.timeout / 1000

    def ask(self, request: Any, decode: Decode, path: str = "", *, xid: int = 0) -> asyncio.Future[Any]:
        """Send a request; the future gets the decoded reply, a ZnodeError or ConnectionLossError.

        Cancelling the future only stops the wait. Raises RequestTooLargeError (not sent).
        """
        future: asyncio.Future[Any] = self._loop.create_future()

        def done(value: Any, error: Exception | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(value)

        self.submit(request, decode, done, path, xid=xid)
        return future

    def submit(self, request: Any, decode: Decode, done: Done, path: str = "", *, xid: int = 0) -> None:
        """Send a request; `done(value, error)` is called exactly once, synchronously with the reply or failure."""
        call = _Call(done, decode, path, self._loop.time())
        if self.is_closed:
            done(None, ConnectionLossError(f"connection closed: path={path}"))
            return
        if xid == 0:
            self._xid = self._xid % 0x7FFFFFFF + 1
        frame = request.serialize(xid or self._xid)
        if len(frame) > REQUEST_BYTES_MAX:
            raise RequestTooLargeError(f"request exceeds ZooKeeper's limit of 1 MiB: bytes={len(frame)} path={path}")
        if xid:
            self._special[xid].append(call)
        else:
            self._pending[self._xid] = call
        self._write(frame)

    def ping(self) -> None:
        """Send a ping; its reply moves `last_received_s` and `last_answered_s`."""

        def done(_: Any, __: Exception | None) -> None:
            return None

        self.submit(protocol.PingRequest(), decode_nothing, done, xid=XID_PING)

    def drop(self, reason: str) -> None:
        """Close at once and fail every pending request. Idempotent."""
        if self.closed.done():
            return
        self.closed.set_result(reason)
        if self._transport is not None:
            self._transport.abort()
        error = ConnectionLossError(f"connection lost, the outcome is unknown: reason={reason}")
        if self._handshake is not None and not self._handshake.done():
            self._handshake.set_exception(error)
        calls = list(self._pending.values()) + [call for queue in self._special.values() for call in queue]
        self._pending.clear()
        for queue in self._special.values():
            queue.clear()
        for call in calls:
            call.done(None, error)

    # ---- asyncio.Protocol ------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's do not inherit from it
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self.last_received_s = self._loop.time()
        if self._skipping >= len(data):
            self._skipping -= len(data)
            return
        self._in += memoryview(data)[self._skipping :]
        self._skipping = 0
        offset = 0
        while len(self._in) - offset >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._in, offset)
            begin = offset + _SIZE.size
            end = begin + size
            is_too_large = size > REPLY_BYTES_MAX
            if size < 0 or (is_too_large and not self._is_shaken):
                self.drop(f"bad frame size={size}")
                return
            if len(self._in) < (begin + _HEADER.size if is_too_large else end):
                break
            offset = min(end, len(self._in))
            if is_too_large:
                self._skipping = end - offset
                self._refuse(begin, size)
            else:
                frame = bytes(memoryview(self._in)[begin:end])
                try:
                    self._take(frame)
                except (struct.error, UnicodeDecodeError) as error:
                    self.drop(f"bad frame: {error}")
            if self.is_closed:
                return
        del self._in[:offset]

    def eof_received(self) -> bool:
        self.drop("server closed the connection")
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.drop(f"connection lost: {error}" if error else "server closed the connection")

    # ---- underneath ------------------------------------------------------------------------------------------------

    def _write(self, frame: bytes) -> None:
        """Buffer a frame: those of one event loop iteration leave in one write."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += (_SIZE.pack(len(frame)), frame)

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self.is_closed:
            self._transport.write(b"".join(out))

    @property
    def _is_shaken(self) -> bool:
        return self._handshake is None or self._handshake.done()

    def _refuse(self, at: int, size: int) -> None:
        """Fail the request of a reply of `size` bytes, whose header is at `at`."""
        xid, zxid, code = _HEADER.unpack_from(self._in, at)
        call = self._answered(xid, zxid)
        if call is not None:
            limits = f"bytes={size} limit_bytes={REPLY_BYTES_MAX}"
            too_large = ReplyTooLargeError(f"ZooKeeper's reply is too large: path={call.path} {limits}")
            call.done(None, error_of(code, call.path) if code else too_large)

    def _answered(self, xid: int, zxid: int) -> _Call | None:
        """Take the request that a reply answers out of the pending ones; None: there is none, the connection is
        dropped."""
        if zxid > self.last_zxid:
            self.last_zxid = zxid
        queue = self._special.get(xid)
        call = (queue.popleft() if queue else None) if queue is not None else self._pending.pop(xid, None)
        if call is None:
            self.drop(f"reply without a request: xid={xid}")
        else:
            self.last_answered_s = max(self.last_answered_s, call.sent_s)
        return call

    def _take(self, frame: bytes) -> None:
        if self._handshake is not None and not self._handshake.done():
            self._handshake.set_result(protocol.ConnectResponse.deserialize(frame))
            return
        xid, zxid, code = _HEADER.unpack_from(frame)
        body = frame[_HEADER.size :]
        if xid == XID_WATCH:
            event = protocol.WatchEvent.deserialize(body)
            if event.type > 0:
                self._on_event(event.type, event.path)
            elif event.state in (protocol.WatchEvent.SESSION_EXPIRED, protocol.WatchEvent.DISCONNECTED):
                self.drop(f"server reported state={event.state}")
            return
        call = self._answered(xid, zxid)
        if call is None:
            return
        if code:
            call.done(None, error_of(code, call.path))
            return
        try:
            value = call.decode(body)
        except (MultiFailedError, ZnodeError, ConnectionLossError) as refused:
            call.done(None, refused)
        except (struct.error, UnicodeDecodeError, ValueError, TypeError) as damaged:
            call.done(None, ConnectionLossError(f"reply cannot be decoded: {damaged}"))
            raise struct.error(f"reply cannot be decoded: {damaged}") from damaged
        else:
            call.done(value, None)
