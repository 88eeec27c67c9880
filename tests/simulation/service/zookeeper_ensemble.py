"""A ZooKeeper ensemble without its network: one log of transactions, the sessions, and members that serve a view of it.

It does no I/O: it receives requests and time, and sends frames through the links it is given.

Invariants:
- The log is linear and durable: what was answered stays in it, whichever members go down.
- A member answers reads from what it has applied, in the order in which each connection asked.
- A member sends the events of a change before any reply that reveals the change.
- A session stays alive while some member reports a request of it within its timeout, by the ensemble's clock and in
  ticks, as the real leader counts.
"""

from __future__ import annotations

import hashlib
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from tests.simulation.service import zookeeper_wire as wire
from tests.simulation.service.zookeeper_tree import (
    AclSet,
    Change,
    DataSet,
    Identity,
    NodeCreated,
    NodeDeleted,
    RefusedError,
    Tree,
    Txn,
    Undo,
    check_acl,
    identity_of,
    parent_of,
    shown_acl,
)
from tests.simulation.service.zookeeper_watches import ONE_SHOT, PERSISTENT, RECURSIVE, Watches

_FIRST_SESSION = 0x0100_0000_0000_0000
_TICKS_MIN, _TICKS_MAX = 2, 20  # a session's timeout, as the real server's defaults have it
_SESSION_EXPIRED = -112
_NO_ZXID = -1
_OPCODES = {wire.DeleteNode: 2, wire.SetData: 5, wire.CheckVersion: 13}


class Now(NamedTuple):
    """s: the server's monotonic clock, which decides. wall_ms: stored in a Stat."""

    s: float
    wall_ms: int


class Link(Protocol):
    """One connection, as offered by the owner of the socket."""

    def send(self, frame: bytes) -> None: ...

    def end(self) -> None:
        """Close, after what was sent has left."""
        ...

    def reset(self) -> None:
        """Close at once."""
        ...


class _Answer(NamedTuple):
    """A reply that waits until its member has applied zxid."""

    zxid: int
    frame: bytes
    lost: bool
    last: bool


@dataclass(eq=False, slots=True)
class Client:
    """One connection and what its member knows of it."""

    link: Link
    session_id: int = 0
    identities: tuple[Identity, ...] = (("ip", "127.0.0.1"),)
    requests: deque[bytes] = field(default_factory=deque)  # not processed yet
    answer: _Answer | None = None  # the reply that the requests wait for
    is_closing: bool = False
    is_gone: bool = False


@dataclass(slots=True)
class Session:
    session_id: int
    timeout_s: float
    deadline_s: float = math.inf
    member: Member | None = None
    client: Client | None = None

    @property
    def password(self) -> bytes:
        return hashlib.sha256(str(self.session_id).encode()).digest()[:16]


class Written(NamedTuple):
    zxid: int
    code: int
    body: bytes


class Ensemble:
    """The state that outlives every server: the znodes, the last zxid, the sessions. tick_s: sessions last 2 to 20 of
    them."""

    def __init__(self, *, tick_s: float = 0.5) -> None:
        self.tick_s = tick_s
        self.tree = Tree()
        self.zxid = 0
        self.sessions: dict[int, Session] = {}
        self.members: list[Member] = []
        self._sessions_had = 0

    # ---- sessions ----------------------------------------------------------------------------------------------------

    def open_session(self, timeout_s: float, now: Now) -> Session:
        self._sessions_had += 1
        session = Session(_FIRST_SESSION + self._sessions_had, self.agree(timeout_s))
        self.sessions[session.session_id] = session
        self.touch(session.session_id, now)
        self._commit((), now)
        return session

    def agree(self, timeout_s: float) -> float:
        return min(max(timeout_s, _TICKS_MIN * self.tick_s), _TICKS_MAX * self.tick_s)

    def touch(self, session_id: int, now: Now) -> None:
        session = self.sessions.get(session_id)
        if session is not None:
            session.deadline_s = (math.floor((now.s + session.timeout_s) / self.tick_s) + 1) * self.tick_s

    def touch_all(self, now: Now) -> None:
        """Give every session a whole timeout, as a new leader does."""
        for session_id in self.sessions:
            self.touch(session_id, now)

    @property
    def next_deadline_s(self) -> float:
        return min((session.deadline_s for session in self.sessions.values()), default=math.inf)

    def expire_due(self, now: Now) -> None:
        """End the sessions whose deadline has passed, by deadline and id."""
        due = [session for session in self.sessions.values() if session.deadline_s <= now.s]
        for session in sorted(due, key=lambda session: (session.deadline_s, session.session_id)):
            self.end_session(session.session_id, now)

    def end_session(self, session_id: int, now: Now) -> int:
        """End a session and delete its ephemerals in one transaction. Returns the zxid."""
        if self.sessions.pop(session_id, None) is None:
            return self.zxid
        changes: list[Change] = []
        for path in list(self.tree.ephemerals.get(session_id, ())):
            changes.append(NodeDeleted(path, self.tree.nodes[path].acl))
            self.tree.apply(changes[-1], self.zxid + 1, now.wall_ms)
        return self._commit(tuple(changes), now, ended=session_id)

    # ---- the log -----------------------------------------------------------------------------------------------------

    def write(
        self, request: wire.Op | wire.SetAcl | wire.Multi, session_id: int, identities: tuple[Identity, ...], now: Now
    ) -> Written:
        """Carry a change out or refuse it; both take a zxid in the log."""
        if session_id not in self.sessions:
            return Written(self.zxid, _SESSION_EXPIRED, b"")
        if isinstance(request, wire.Multi):
            if not all(wire.is_creation(op.flags) for op in request.ops if isinstance(op, wire.CreateNode)):
                return Written(self._commit((), now), wire.MARSHALLING_ERROR, b"")
            changes, body = self._multi(request, session_id, identities, now)
            return Written(self._commit(changes, now), wire.OK, body)
        try:
            change = self.tree.plan(request, session_id, identities)
        except RefusedError as refused:
            return Written(self._commit((), now), refused.code, b"")
        if change is None:
            return Written(self._commit((), now), wire.OK, b"")
        self.tree.apply(change, self.zxid + 1, now.wall_ms)
        body = self._result(request, change)
        return Written(self._commit((change,), now), wire.OK, body)

    def _multi(
        self, request: wire.Multi, session_id: int, identities: tuple[Identity, ...], now: Now
    ) -> tuple[tuple[Change, ...], bytes]:
        undos: list[Undo] = []
        changes: list[Change] = []
        results: list[tuple[int, bytes]] = []
        for index, op in enumerate(request.ops):
            try:
                change = self.tree.plan(op, session_id, identities)
            except RefusedError as refused:
                for undo in reversed(undos):
                    undo()
                after = len(request.ops) - index - 1
                codes = [wire.OK] * index + [refused.code] + [wire.RUNTIME_INCONSISTENCY] * after
                return (), wire.multi([(-1, wire.number(code)) for code in codes])
            if change is not None:
                undos.append(self.tree.apply(change, self.zxid + 1, now.wall_ms))
                changes.append(change)
            results.append((_opcode_of(op), self._result(op, change)))
        return tuple(changes), wire.multi(results)

    def _result(self, request: wire.Op | wire.SetAcl, change: Change | None) -> bytes:
        match change:
            case NodeCreated(path):
                wants_stat = isinstance(request, wire.CreateNode) and request.wants_stat
                return wire.text(path) + (wire.stat(self.tree.nodes[path].stat()) if wants_stat else b"")
            case DataSet(path) | AclSet(path):
                return wire.stat(self.tree.nodes[path].stat())
            case _:
                return b""

    def _commit(self, changes: tuple[Change, ...], now: Now, *, ended: int = 0) -> int:
        self.zxid += 1
        txn = Txn(self.zxid, now.wall_ms, changes, ended)
        for member in self.members:
            member.committed(txn, now)
        return txn.zxid


def _opcode_of(op: wire.Op) -> int:
    return (15 if op.wants_stat else 1) if isinstance(op, wire.CreateNode) else _OPCODES[type(op)]


class Member:
    """One server of the ensemble. A lagging member has a tree of its own, and applies the log on request."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble
        self.tree = ensemble.tree
        self.applied = ensemble.zxid
        self.behind: deque[Txn] = deque()
        self.is_lagging = False
        self.on_behind: Callable[[int], None] = lambda zxid: None  # for a transaction that a lagging member learns of
        self.writes_to_lose = 0  # cut before they are carried out
        self.replies_to_lose = 0  # carried out, and cut before the reply
        self.handshakes_to_lose = 0  # the session is made, and its client gets no reply
        self._clients: dict[Client, None] = {}
        self._watches: Watches[Client] = Watches()
        ensemble.members.append(self)

    # ---- its position in the log -------------------------------------------------------------------------------------

    def lag(self) -> None:
        if not self.is_lagging:
            self.tree, self.is_lagging = self.ensemble.tree.copy(), True

    def catch_up(self, now: Now) -> None:
        while self.behind:  # requests released here may have writes behind them
            self.advance(self.ensemble.zxid, now)
        self.tree, self.is_lagging = self.ensemble.tree, False

    def advance(self, zxid: int, now: Now) -> None:
        """Apply transactions up to zxid, and answer requests that waited for them."""
        while self.behind and self.behind[0].zxid <= zxid:
            txn = self.behind.popleft()
            for change in txn.changes:
                self.tree.apply(change, txn.zxid, txn.time_ms)
            self._applied(txn, now)

    def committed(self, txn: Txn, now: Now) -> None:
        if self.is_lagging:
            self.behind.append(txn)
            self.on_behind(txn.zxid)
        else:
            self._applied(txn, now)

    def _applied(self, txn: Txn, now: Now) -> None:
        self.applied = txn.zxid
        for change in txn.changes:
            for client, kind, path in self._watches.events(change):
                if self._may_hear(client, change, kind):
                    client.link.send(wire.event(txn.zxid, kind, path))
        if txn.ended:
            for client in list(self._clients):
                if client.session_id == txn.ended and not client.is_closing:
                    self.drop(client)
                    client.link.end()
        if self.is_lagging:  # no request waits for a member that does not lag
            self._answer_waiting(now)

    def _answer_waiting(self, now: Now) -> None:
        for client in list(self._clients):
            if client.answer is not None and client.answer.zxid <= self.applied:
                self._tell(client, client.answer)
                self._pump(client, now)

    def _may_hear(self, client: Client, change: Change, kind: int) -> bool:
        acl = change.acl
        if kind == wire.CHILDREN_CHANGED:
            parent = self.tree.nodes.get(parent_of(change.path))
            acl = parent.acl if parent is not None else wire.OPEN_ACL
        try:
            check_acl(acl, wire.READ, client.identities)
        except RefusedError:
            return False
        return True

    # ---- connections -------------------------------------------------------------------------------------------------

    @property
    def watches(self) -> int:
        """The number of watches set here."""
        return self._watches.size

    @property
    def clients(self) -> list[Client]:
        """The connected clients, the oldest first."""
        return list(self._clients)

    def joined(self, link: Link) -> Client:
        client = Client(link)
        self._clients[client] = None
        return client

    def drop(self, client: Client) -> None:
        """Drop a connection: nothing more is read from it or sent to it."""
        client.is_gone = True
        client.requests.clear()
        client.answer = None
        if client in self._clients:
            del self._clients[client]
            self._watches.forget(client)
        session = self.ensemble.sessions.get(client.session_id)
        if session is not None and session.client is client:
            session.member = session.client = None

    def received(self, client: Client, frame: bytes, now: Now) -> None:
        """Handle a frame of a connection; the first one must ask for a session."""
        if client.is_gone:
            return
        if client.session_id == 0:
            self._connect(client, frame, now)
        else:
            client.requests.append(frame)
            self._pump(client, now)

    def _connect(self, client: Client, frame: bytes, now: Now) -> None:
        try:
            asked = wire.read_connect(frame)
        except wire.MarshallingError:
            self._refuse(client)
            return
        if asked.last_zxid > self.applied:  # it has seen a newer zxid than this member
            self._refuse(client)
            return
        ensemble, zxid = self.ensemble, 0
        if asked.session_id == 0:
            session: Session | None = ensemble.open_session(asked.timeout_ms / 1000, now)
            zxid = ensemble.zxid
        else:
            session = ensemble.sessions.get(asked.session_id)
            if session is not None and session.member is self:
                self._displace(session)  # whatever the password; the real server does so too
        if session is None or (asked.session_id and asked.password != session.password):
            client.link.send(wire.connected(0, 0, bytes(16), tell_read_only=asked.knows_read_only))
            self._refuse(client)
            return
        self._displace(session)
        session.timeout_s = ensemble.agree(asked.timeout_ms / 1000)
        session.member, session.client = self, client
        client.session_id = session.session_id
        ensemble.touch(session.session_id, now)
        timeout_ms = int(session.timeout_s * 1000)
        reply = wire.connected(timeout_ms, session.session_id, session.password, tell_read_only=asked.knows_read_only)
        lost = self.handshakes_to_lose > 0
        self.handshakes_to_lose -= lost
        self._answer(client, _Answer(zxid, reply, lost, False))

    def _displace(self, session: Session) -> None:
        """Close the session's older connection: a session has one, the newest."""
        member, client = session.member, session.client
        if member is not None and client is not None:
            member.drop(client)
            client.link.end()

    def _refuse(self, client: Client) -> None:
        self.drop(client)
        client.link.end()

    # ---- requests ----------------------------------------------------------------------------------------------------

    def _pump(self, client: Client, now: Now) -> None:
        while client.requests and client.answer is None:
            self._serve(client, client.requests.popleft(), now)

    def _serve(self, client: Client, frame: bytes, now: Now) -> None:
        self.ensemble.touch(client.session_id, now)
        try:
            xid, _ = wire.read_header(frame)
        except wire.MarshallingError:
            self._refuse(client)
            return
        try:
            request = wire.read_request(frame)
        except wire.MarshallingError:
            client.link.send(wire.reply(xid, self.applied, wire.MARSHALLING_ERROR))
            return
        match request:
            case wire.Ping():
                client.link.send(wire.reply(xid, self.applied, wire.OK))
            case wire.Auth(scheme, credential):
                self._authenticate(client, xid, scheme, credential)
            case wire.Sync(path):
                zxid = self.ensemble.zxid
                self._answer(client, _Answer(zxid, wire.reply(xid, zxid, wire.OK, wire.text(path)), False, False))
            case wire.Unknown():
                client.link.send(wire.reply(xid, self.applied, wire.UNIMPLEMENTED))
                self._refuse(client)
            case wire.CloseSession():
                client.is_closing = True
                zxid = self.ensemble.end_session(client.session_id, now)
                self._answer(client, _Answer(zxid, wire.reply(xid, zxid, wire.OK), False, True))
            case wire.CheckVersion():  # only within a multi
                client.link.send(wire.reply(xid, self.applied, wire.UNIMPLEMENTED))
                self._refuse(client)
            case wire.CreateNode() | wire.DeleteNode() | wire.SetData() | wire.SetAcl() | wire.Multi():
                self._write(client, xid, request, now)
            case _:
                self._read(client, xid, request)

    def _write(self, client: Client, xid: int, request: wire.Op | wire.SetAcl | wire.Multi, now: Now) -> None:
        if self.writes_to_lose:
            self.writes_to_lose -= 1
            self.drop(client)
            client.link.reset()
            return
        lost = self.replies_to_lose > 0
        self.replies_to_lose -= lost
        zxid, code, body = self.ensemble.write(request, client.session_id, client.identities, now)
        self._answer(client, _Answer(zxid, wire.reply(xid, zxid, code, body), lost, False))

    def _read(self, client: Client, xid: int, request: wire.Read | wire.Watching) -> None:
        try:
            body = self._look(client, request)
        except RefusedError as refused:
            client.link.send(wire.reply(xid, self.applied, refused.code))
        else:
            client.link.send(wire.reply(xid, self.applied, wire.OK, body))

    def _look(self, client: Client, request: wire.Read | wire.Watching) -> bytes:
        tree = self.tree
        match request:
            case wire.Exists(path, watch):
                if "\0" in path:
                    raise RefusedError(wire.BAD_ARGUMENTS)
                found = tree.nodes.get(path)
                if found is not None:
                    check_acl(found.acl, wire.READ, client.identities)
                if watch:
                    self._watches.add_data(path, client)
                return wire.stat(tree.node(path).stat())
            case wire.GetData(path, watch):
                node = tree.node(path)
                check_acl(node.acl, wire.READ, client.identities)
                if watch:
                    self._watches.add_data(path, client)
                return wire.buffer(node.data) + wire.stat(node.stat())
            case wire.GetChildren(path, watch, wants_stat):
                node = tree.node(path)
                check_acl(node.acl, wire.READ, client.identities)
                if watch:
                    self._watches.add_children(path, client)
                return wire.texts(tree.names(path)) + (wire.stat(node.stat()) if wants_stat else b"")
            case wire.MultiRead(ops):
                return wire.multi([self._look_one(client, op) for op in ops])
            case wire.GetAcl(path):
                node = tree.node(path)
                check_acl(node.acl, wire.READ | wire.ADMIN, client.identities)
                return wire.acl(shown_acl(node.acl, client.identities)) + wire.stat(node.stat())
            case wire.GetEphemerals(prefix):
                return wire.texts([p for p in tree.ephemerals.get(client.session_id, ()) if p.startswith(prefix)])
            case wire.CountBelow(path):
                check_acl(tree.node(path).acl, wire.READ, client.identities)
                if path == "/":
                    return wire.number(len(tree.nodes) - 2)  # the root is stored under two names
                return wire.number(sum(other.startswith(path + "/") for other in tree.nodes))
            case wire.SetWatches():
                self._set_watches(client, request)
                return b""
            case wire.AddWatch(path, mode):
                self._add_persistent(client, path, PERSISTENT if mode == wire.AddWatch.PERSISTENT else RECURSIVE)
                return wire.number(wire.OK)
            case wire.RemoveWatches(path, kind):
                if not self._watches.remove(path, client, kind):
                    raise RefusedError(wire.NO_WATCHER)
                return b""

    def _look_one(self, client: Client, op: wire.GetData | wire.GetChildren) -> tuple[int, bytes]:
        """Answer one of a multi of reads: a refused one does not refuse the others."""
        try:
            return 4 if isinstance(op, wire.GetData) else 8, self._look(client, op)
        except RefusedError as refused:
            return -1, wire.number(refused.code)

    def _set_watches(self, client: Client, request: wire.SetWatches) -> None:
        """Set watches again that a client had on another connection, and send at once the events of changes since."""
        nodes, since = self.tree.nodes, request.since_zxid
        tell = client.link.send
        for path in request.data:
            if path not in nodes:
                tell(wire.event(_NO_ZXID, wire.DELETED, path))
            elif nodes[path].mzxid > since:
                tell(wire.event(_NO_ZXID, wire.DATA_CHANGED, path))
            else:
                self._watches.add_data(path, client, ONE_SHOT)
        for path in request.exist:
            if path in nodes:
                tell(wire.event(_NO_ZXID, wire.CREATED, path))
            else:
                self._watches.add_data(path, client, ONE_SHOT)
        for path in request.child:
            if path not in nodes:
                tell(wire.event(_NO_ZXID, wire.DELETED, path))
            elif nodes[path].pzxid > since:
                tell(wire.event(_NO_ZXID, wire.CHILDREN_CHANGED, path))
            else:
                self._watches.add_children(path, client, ONE_SHOT)
        for path in request.persistent:
            self._add_persistent(client, path, PERSISTENT)
        for path in request.recursive:
            self._add_persistent(client, path, RECURSIVE)

    def _add_persistent(self, client: Client, path: str, mode: int) -> None:
        self._watches.add_data(path, client, mode)
        if mode == PERSISTENT:
            self._watches.add_children(path, client, mode)

    def _authenticate(self, client: Client, xid: int, scheme: str, credential: bytes) -> None:
        identity = identity_of(scheme, credential)
        if identity is None:
            client.link.send(wire.reply(xid, 0, wire.AUTH_FAILED))
            self._refuse(client)
            return
        if identity not in client.identities:
            client.identities += (identity,)
        client.link.send(wire.reply(xid, 0, wire.OK))

    # ---- answers -----------------------------------------------------------------------------------------------------

    def _answer(self, client: Client, answer: _Answer) -> None:
        if client.is_gone:
            return
        if answer.zxid > self.applied:
            client.answer = answer
        else:
            self._tell(client, answer)

    def _tell(self, client: Client, answer: _Answer) -> None:
        client.answer = None
        if answer.lost:
            self.drop(client)
            client.link.reset()
            return
        client.link.send(answer.frame)
        if answer.last:
            self._refuse(client)
