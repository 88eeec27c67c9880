"""ZooKeeper's wire format as a server reads and writes it: requests in, replies and watch events out.

It is separate from the client's codec, so that the checks do not share a fault of that codec. Frames are passed without
their four bytes of length. Source: `zookeeper.jute` of ZooKeeper 3.9.

Invariants:
- The module handles bytes only and has no state.
- A request that cannot be read raises MarshallingError, as the real server answers it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

OK = 0
RUNTIME_INCONSISTENCY = -2
MARSHALLING_ERROR = -5
UNIMPLEMENTED = -6
BAD_ARGUMENTS = -8
NO_NODE = -101
NO_AUTH = -102
BAD_VERSION = -103
NO_CHILDREN_FOR_EPHEMERALS = -108
NODE_EXISTS = -110
NOT_EMPTY = -111
INVALID_ACL = -114
AUTH_FAILED = -115
NO_WATCHER = -121

XID_NOTIFICATION = -1

CREATED, DELETED, DATA_CHANGED, CHILDREN_CHANGED = 1, 2, 3, 4
_STATE_CONNECTED = 3

EPHEMERAL, SEQUENTIAL = 1, 2  # bits of the flags of a create
_FLAGS_MAX = 6  # 4 to 6: containers, and with a time to live

_INT = struct.Struct("!i")
_LONG = struct.Struct("!q")
_REPLY = struct.Struct("!iqi")
_EVENT = struct.Struct("!ii")
_MULTI = struct.Struct("!i?i")
_STAT = struct.Struct("!qqqqiiiqiiq")


class MarshallingError(Exception):
    """Bytes that are not a request."""


class Ace(NamedTuple):
    """One entry of an access control list."""

    perms: int
    scheme: str
    id: str


Acl = tuple[Ace, ...]
READ, WRITE, CREATE, DELETE, ADMIN = 1, 2, 4, 8, 16
OPEN_ACL: Acl = (Ace(31, "world", "anyone"),)


class Stat(NamedTuple):
    """The Stat of a znode as clients see it."""

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


# ---- requests --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    last_zxid: int
    timeout_ms: int
    session_id: int
    password: bytes
    knows_read_only: bool


@dataclass(frozen=True, slots=True)
class CreateNode:
    path: str
    data: bytes | None
    acl: Acl
    flags: int
    wants_stat: bool = True


@dataclass(frozen=True, slots=True)
class DeleteNode:
    path: str
    version: int


@dataclass(frozen=True, slots=True)
class SetData:
    path: str
    data: bytes | None
    version: int


@dataclass(frozen=True, slots=True)
class SetAcl:
    path: str
    acl: Acl
    version: int


@dataclass(frozen=True, slots=True)
class CheckVersion:
    path: str
    version: int


Op = CreateNode | DeleteNode | SetData | CheckVersion


@dataclass(frozen=True, slots=True)
class Multi:
    ops: tuple[Op, ...]


@dataclass(frozen=True, slots=True)
class CloseSession:
    pass


@dataclass(frozen=True, slots=True)
class Exists:
    path: str
    watch: bool


@dataclass(frozen=True, slots=True)
class GetData:
    path: str
    watch: bool


@dataclass(frozen=True, slots=True)
class GetChildren:
    path: str
    watch: bool
    wants_stat: bool


@dataclass(frozen=True, slots=True)
class MultiRead:
    ops: tuple[GetData | GetChildren, ...]


@dataclass(frozen=True, slots=True)
class GetAcl:
    path: str


@dataclass(frozen=True, slots=True)
class GetEphemerals:
    prefix: str


@dataclass(frozen=True, slots=True)
class CountBelow:
    path: str


@dataclass(frozen=True, slots=True)
class Sync:
    path: str


@dataclass(frozen=True, slots=True)
class Ping:
    pass


@dataclass(frozen=True, slots=True)
class Auth:
    scheme: str
    credential: bytes


@dataclass(frozen=True, slots=True)
class SetWatches:
    since_zxid: int
    data: tuple[str, ...]
    exist: tuple[str, ...]
    child: tuple[str, ...]
    persistent: tuple[str, ...] = ()
    recursive: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AddWatch:
    PERSISTENT: ClassVar[int] = 0
    RECURSIVE: ClassVar[int] = 1

    path: str
    mode: int


@dataclass(frozen=True, slots=True)
class RemoveWatches:
    CHILDREN: ClassVar[int] = 1
    DATA: ClassVar[int] = 2
    ANY: ClassVar[int] = 3

    path: str
    kind: int


@dataclass(frozen=True, slots=True)
class Unknown:
    """An operation that this server does not support."""

    opcode: int


Write = Op | SetAcl | Multi | CloseSession
Read = Exists | GetData | GetChildren | MultiRead | GetAcl | GetEphemerals | CountBelow
Watching = SetWatches | AddWatch | RemoveWatches
Request = Write | Read | Watching | Sync | Ping | Auth | Unknown


class _Reader:
    def __init__(self, frame: bytes) -> None:
        self._frame = frame
        self._at = 0

    @property
    def left(self) -> int:
        return len(self._frame) - self._at

    def int32(self) -> int:
        self._at += 4
        number: int = _INT.unpack_from(self._frame, self._at - 4)[0]
        return number

    def int64(self) -> int:
        self._at += 8
        number: int = _LONG.unpack_from(self._frame, self._at - 8)[0]
        return number

    def flag(self) -> bool:
        self._at += 1
        if self._at > len(self._frame):
            raise MarshallingError("the frame ends too early")
        return self._frame[self._at - 1] != 0

    def buffer(self) -> bytes | None:
        size = self.int32()
        if size == -1:
            return None
        if not 0 <= size <= self.left:
            raise MarshallingError(f"unreasonable length: size={size}")
        self._at += size
        return self._frame[self._at - size : self._at]

    def text(self) -> str:
        return (self.buffer() or b"").decode()

    def texts(self) -> tuple[str, ...]:
        return tuple(self.text() for _ in range(self.count()))

    def count(self) -> int:
        number = self.int32()
        if number > self.left:
            raise MarshallingError(f"unreasonable length: count={number}")
        return max(0, number)

    def acl(self) -> Acl:
        return tuple(Ace(self.int32(), self.text(), self.text()) for _ in range(self.count()))


def read_connect(frame: bytes) -> Connect:
    """Read the first frame of a connection. Raises MarshallingError."""
    reader = _Reader(frame)
    try:
        reader.int32()
        last_zxid, timeout_ms, session_id = reader.int64(), reader.int32(), reader.int64()
        password = reader.buffer() or b""
        knows_read_only = reader.left > 0
    except struct.error as error:
        raise MarshallingError(str(error)) from error
    return Connect(last_zxid, timeout_ms, session_id, password, knows_read_only)


def read_header(frame: bytes) -> tuple[int, int]:
    """Read xid and opcode of a request. Raises MarshallingError."""
    if len(frame) < 8:
        raise MarshallingError("the frame ends before its header")
    return _INT.unpack_from(frame)[0], _INT.unpack_from(frame, 4)[0]


def read_request(frame: bytes) -> Request:
    """Read the body of a frame after the first one. Raises MarshallingError."""
    _, opcode = read_header(frame)
    try:
        return _body(opcode, _Reader(frame[8:]))
    except (struct.error, UnicodeDecodeError) as error:
        raise MarshallingError(str(error)) from error


def _body(opcode: int, reader: _Reader) -> Request:
    match opcode:
        case 1 | 2 | 5 | 13 | 15:
            return _op(opcode, reader)
        case 3:
            return Exists(reader.text(), reader.flag())
        case 4:
            return GetData(reader.text(), reader.flag())
        case 6:
            return GetAcl(reader.text())
        case 7:
            return SetAcl(reader.text(), reader.acl(), reader.int32())
        case 8 | 12:
            return GetChildren(reader.text(), reader.flag(), opcode == 12)
        case 9:
            return Sync(reader.text())
        case 11:
            return Ping()
        case 14:
            return _multi(reader)
        case 18:
            return RemoveWatches(reader.text(), reader.int32())
        case 22:
            return _multi_read(reader)
        case 100:
            reader.int32()
            return Auth(reader.text(), reader.buffer() or b"")
        case 101 | 105:
            since, kinds = reader.int64(), [reader.texts() for _ in range(3 if opcode == 101 else 5)]
            return SetWatches(since, *kinds)
        case 103:
            return GetEphemerals(reader.text())
        case 104:
            return CountBelow(reader.text())
        case 106:
            return AddWatch(reader.text(), reader.int32())
        case -11:
            return CloseSession()
        case _:
            return Unknown(opcode)


def _op(opcode: int, reader: _Reader) -> Op:
    match opcode:
        case 1 | 15:
            return CreateNode(reader.text(), reader.buffer(), reader.acl(), reader.int32(), opcode == 15)
        case 2:
            return DeleteNode(reader.text(), reader.int32())
        case 5:
            return SetData(reader.text(), reader.buffer(), reader.int32())
        case 13:
            return CheckVersion(reader.text(), reader.int32())
        case _:
            raise MarshallingError(f"no operation of a multi: type={opcode}")


def _multi(reader: _Reader) -> Multi:
    ops: list[Op] = []
    while True:
        opcode, done, _ = reader.int32(), reader.flag(), reader.int32()
        if done:
            return Multi(tuple(ops))
        ops.append(_op(opcode, reader))


def _multi_read(reader: _Reader) -> MultiRead:
    ops: list[GetData | GetChildren] = []
    while True:
        opcode, done, _ = reader.int32(), reader.flag(), reader.int32()
        if done:
            return MultiRead(tuple(ops))
        path, _ = reader.text(), reader.flag()  # a multi sets no watches, even if its flag asks for one
        if opcode not in (4, 8):
            raise MarshallingError(f"no operation of a multi of reads: type={opcode}")
        ops.append(GetData(path, False) if opcode == 4 else GetChildren(path, False, False))


def is_creation(flags: int) -> bool:
    """Whether the real server knows this kind of znode."""
    return 0 <= flags <= _FLAGS_MAX


def is_served(flags: int) -> bool:
    """Whether this server creates this kind: no containers, no znodes with a time to live."""
    return 0 <= flags <= (EPHEMERAL | SEQUENTIAL)


# ---- replies ---------------------------------------------------------------------------------------------------------


def connected(timeout_ms: int, session_id: int, password: bytes, *, tell_read_only: bool) -> bytes:
    """The answer to Connect; timeout and id are 0 for a session that has ended."""
    head = _INT.pack(0) + _INT.pack(timeout_ms) + _LONG.pack(session_id) + buffer(password)
    return head + b"\0" if tell_read_only else head


def reply(xid: int, zxid: int, error: int, body: bytes = b"") -> bytes:
    return _REPLY.pack(xid, zxid, error) + body


def event(zxid: int, kind: int, path: str) -> bytes:
    return _REPLY.pack(XID_NOTIFICATION, zxid, OK) + _EVENT.pack(kind, _STATE_CONNECTED) + text(path)


def buffer(value: bytes | None) -> bytes:
    return _INT.pack(-1) if value is None else _INT.pack(len(value)) + value


def text(value: str) -> bytes:
    return buffer(value.encode())


def texts(values: Sequence[str]) -> bytes:
    return _INT.pack(len(values)) + b"".join(map(text, values))


def number(value: int) -> bytes:
    return _INT.pack(value)


def stat(value: Stat) -> bytes:
    return _STAT.pack(*value)


def acl(value: Acl) -> bytes:
    entries = (_INT.pack(ace.perms) + text(ace.scheme) + text(ace.id) for ace in value)
    return _INT.pack(len(value)) + b"".join(entries)


def multi(results: Sequence[tuple[int, bytes]]) -> bytes:
    """results: opcode and body of each operation, opcode -1 for an error."""
    parts = [_MULTI.pack(kind, False, 0 if kind != -1 else _INT.unpack(body)[0]) + body for kind, body in results]
    return b"".join(parts) + _MULTI.pack(-1, True, -1)
