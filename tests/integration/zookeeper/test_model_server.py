"""Compares the simulated ZooKeeper server with the real one: the same seeded script, the same answers and events.

Three clients drive both: a raw one (every byte of every reply, zxids and versions included), dlog's, and kazoo. What
two servers cannot have in common is left out: times, session ids, the order of children and of deletions at a session's
end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from tests.integration.zookeeper import raw
from tests.integration.zookeeper.raw import RawSession, SessionIds
from tests.simulation.service import zookeeper_wire as wire
from tests.simulation.service.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.zookeeper

SESSIONS = 3
NAMES = ("a", "b", "c")
ALICE, BOB = b"alice:one", b"bob:two"
ONLY_AUTHENTICATED: wire.Acl = (wire.Ace(31, "auth", ""),)
READ_ONLY: wire.Acl = (wire.Ace(wire.READ, "world", "anyone"), wire.Ace(31, "auth", ""))
ACLS: tuple[wire.Acl, ...] = (
    wire.OPEN_ACL,
    wire.OPEN_ACL,
    wire.OPEN_ACL,
    ONLY_AUTHENTICATED,
    READ_ONLY,
    (),
    (wire.Ace(31, "nosuch", "x"),),
    (wire.Ace(31, "digest", "nocolon"),),
    (wire.Ace(wire.ADMIN | wire.READ, "world", "anyone"), wire.Ace(3, "digest", "x:y")),
)
BAD_PATHS = ("/", "a", "", "/a/", "/a//b", "/a/../b", "/a/.", "/zookeeper", "/zookeeper/quota", "/x\x01", "/a\0b")


@asynccontextmanager
async def model_server() -> AsyncIterator[str]:
    server = ZooKeeperServer()
    await server.start()
    try:
        yield server.hosts
    finally:
        await server.close()


class RawScript:
    """A seeded script over raw sessions. It chooses by the answers it gets, so equal answers make equal scripts."""

    def __init__(self, hosts: str, seed: int) -> None:
        self._hosts = hosts
        self._rng = random.Random(seed)
        self._ids = SessionIds()
        self._sessions = [RawSession(self._ids) for _ in range(SESSIONS)]
        self._numbered: list[str] = []  # sequential znodes created
        self._zxid = 0
        self.told: list[Any] = []

    async def run(self, count: int) -> list[Any]:
        """The record of each step: the request, the answer, and the events of each session."""
        for session in self._sessions:
            self.told.append(await session.attach(self._hosts))
        steps = self._steps()
        for _ in range(count):
            name = self._rng.choices(list(steps), [weight for _, weight in steps.values()])[0]
            number = self._rng.randrange(SESSIONS)
            asked, answer = await steps[name][0](self._sessions[number])
            heard = [await self._hear(other) for other in self._sessions]
            if name in ("close", "expire"):
                heard = [sorted(events) for events in heard]
            self.told.append((number, name, asked, answer, heard, self._zxid))
        for session in self._sessions:
            self.told.append(await session.ask("close"))
            session.abort()
        return self.told

    async def _hear(self, session: RawSession) -> list[tuple[int, str]]:
        answer = await session.ask("exists", raw.watched("/", False))
        if answer != "closed":
            self._zxid = answer[1]
        else:
            await session.attach(self._hosts)
        return session.heard()

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _steps(self) -> dict[str, tuple[Callable[[RawSession], Awaitable[tuple[Any, Any]]], int]]:
        return {
            "create": (self._create, 30),
            "delete": (self._delete, 16),
            "set": (self._set, 12),
            "read": (self._read, 24),
            "multi": (self._multi, 12),
            "multi_read": (self._multi_read, 8),
            "acl": (self._acl, 6),
            "watch": (self._watch, 10),
            "set_watches": (self._set_watches, 5),
            "other": (self._other, 6),
            "close": (self._close, 2),
            "expire": (self._expire, 2),
            "reattach": (self._reattach, 3),
            "refused": (self._refused, 1),
        }

    def _path(self) -> str:
        roll = self._rng.random()
        if roll < 0.04:
            return self._rng.choice(BAD_PATHS)
        if roll < 0.2 and self._numbered:
            return self._rng.choice(self._numbered)
        return "".join("/" + self._rng.choice(NAMES) for _ in range(self._rng.choice((1, 1, 2, 2, 3))))

    def _version(self) -> int:
        return self._rng.choice((-1, -1, -1, 0, 0, 1, 2))

    def _creation(self, *, acl: wire.Acl = wire.OPEN_ACL) -> tuple[str, bytes]:
        flags = self._rng.choice((0, 0, 0, 0, 1, 2, 3, 3, 7 if self._rng.random() < 0.1 else 0))
        path = self._path() + ("/n-" if flags & 2 and self._rng.random() < 0.5 else "")
        data = self._rng.choice((b"", b"x", b"data", None))
        return self._rng.choice(("create", "create2")), raw.create(path, data, flags, acl)

    async def _create(self, session: RawSession) -> tuple[Any, Any]:
        op, body = self._creation(acl=self._rng.choice(ACLS) if self._rng.random() < 0.3 else wire.OPEN_ACL)
        answer = await session.ask(op, body)
        if answer != "closed" and answer[0] == 0:
            path = (answer[2] if op == "create" else answer[2][0])[4:].decode()
            if path[-10:].isdigit():
                self._numbered = [*self._numbered[-5:], path]
        return (op, body), answer

    async def _delete(self, session: RawSession) -> tuple[Any, Any]:
        body = raw.versioned(self._path(), self._version())
        return body, await session.ask("delete", body)

    async def _set(self, session: RawSession) -> tuple[Any, Any]:
        body = raw.set_data(self._path(), self._rng.choice((b"", b"y", b"other", None)), self._version())
        return body, await session.ask("set", body)

    async def _read(self, session: RawSession) -> tuple[Any, Any]:
        op = self._rng.choice(("exists", "get", "children", "children2"))
        body = raw.watched(self._path(), self._rng.random() < 0.6)
        return (op, body), await session.ask(op, body)

    async def _multi(self, session: RawSession) -> tuple[Any, Any]:
        ops: list[tuple[str, bytes]] = []
        for _ in range(self._rng.choice((0, 1, 2, 2, 3, 4))):
            match self._rng.randrange(4):
                case 0:
                    ops.append(self._creation())
                case 1:
                    ops.append(("delete", raw.versioned(self._path(), self._version())))
                case 2:
                    ops.append(("set", raw.set_data(self._path(), b"m", self._version())))
                case _:
                    ops.append(("check", raw.versioned(self._path(), self._version())))
        return ops, await session.ask("multi", raw.multi(ops))

    async def _multi_read(self, session: RawSession) -> tuple[Any, Any]:
        kinds = self._rng.choices(("get", "children"), k=self._rng.choice((0, 1, 2, 4)))
        ops = [(kind, raw.watched(self._path(), self._rng.random() < 0.3)) for kind in kinds]
        return ops, await session.ask("multi_read", raw.multi(ops))

    async def _acl(self, session: RawSession) -> tuple[Any, Any]:
        match self._rng.randrange(3):
            case 0:
                op, body = "get_acl", wire.text(self._path())
            case 1:
                acl = self._rng.choice(ACLS)
                op, body = "set_acl", wire.text(self._path()) + wire.acl(acl) + wire.number(self._version())
            case _:
                op, body = "auth", raw.auth("digest", self._rng.choice((ALICE, BOB)))
        return (op, body), await session.ask(op, body)

    async def _watch(self, session: RawSession) -> tuple[Any, Any]:
        path = self._rng.choice(("/", "/a", "/b", "/a/b", "/c/a"))
        if self._rng.random() < 0.7:
            body = raw.versioned(path, self._rng.randrange(2))
            return ("add", body), await session.ask("add_watch", body)
        body = raw.versioned(path, 3)
        return ("remove", body), await session.ask("remove_watches", body)

    async def _set_watches(self, session: RawSession) -> tuple[Any, Any]:
        since = self._zxid - self._rng.choice((0, 3, 30))
        kinds = [[self._path() for _ in range(self._rng.randrange(4))] for _ in range(3)]
        body = raw.set_watches(since, *kinds)
        return body, await session.ask("set_watches", body)

    async def _other(self, session: RawSession) -> tuple[Any, Any]:
        match self._rng.randrange(4):
            case 0:
                op, body = "sync", wire.text(self._path())
            case 1:
                op, body = "ephemerals", wire.text(self._rng.choice(("/", "/a", "")))
            case 2:
                op, body = "count", wire.text(self._path())
            case _:
                kinds = [[f"/{name}"] if self._rng.random() < 0.5 else [] for name in ("a", "b", "c", "a", "b")]
                op, body = "set_watches2", raw.set_watches(self._zxid, *kinds)
        return (op, body), await session.ask(op, body)

    async def _close(self, session: RawSession) -> tuple[Any, Any]:
        answer = await session.ask("close")
        assert await session.closed()
        return None, (answer, await session.attach(self._hosts))

    async def _expire(self, session: RawSession) -> tuple[Any, Any]:
        """End a session from outside: the server closes its connection and drops it."""
        other = RawSession(self._ids)
        other.session_id, other.password = session.session_id, session.password
        answers = [await other.attach(self._hosts, fresh=False)]
        assert await session.closed()
        answers += [await other.ask("close"), await session.attach(self._hosts, fresh=False)]
        other.abort()
        return None, (answers, await session.attach(self._hosts))

    async def _reattach(self, session: RawSession) -> tuple[Any, Any]:
        session.abort()
        return None, await session.attach(self._hosts, fresh=False, last_zxid=self._zxid)

    async def _refused(self, session: RawSession) -> tuple[Any, Any]:
        """A wrong password (which displaces the session's connection all the same), a client that has seen a higher
        zxid, an unknown scheme."""
        wrong, future, stranger = RawSession(self._ids), RawSession(self._ids), RawSession(self._ids)
        wrong.session_id, wrong.password = session.session_id, b"x" * 16
        answers = [
            await wrong.attach(self._hosts, fresh=False),
            await session.closed(),
            await session.attach(self._hosts, fresh=False),
            await future.attach(self._hosts, last_zxid=2**40),
            await stranger.attach(self._hosts),
            await stranger.ask("auth", raw.auth("nosuch", b"x")),
        ]
        for each in (wrong, future, stranger):
            each.abort()
        await stranger.attach(self._hosts, fresh=False)
        await stranger.ask("close")
        stranger.abort()
        return None, answers


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_raw_requests_are_answered_as_the_real_server_answers_them(seed: int, tmp_path: Path) -> None:
    """If another connection takes a session over and closes it at once, the real server closes the first one in one of
    two ways, depending on its threads: a difference counts only if it occurs with each of three servers."""
    async with model_server() as hosts:
        modelled = await RawScript(hosts, seed).run(600)
    differences = []
    for attempt in range(3):
        server = EmbeddedZooKeeper(tmp_path / f"zookeeper-{attempt}")
        try:
            await server.start()
            real = await RawScript(server.hosts, seed).run(600)
        finally:
            server.kill()
        pairs = enumerate(zip(real, modelled, strict=True))
        different = next((f"step {i}: real {theirs}, ours {ours}" for i, (theirs, ours) in pairs if ours != theirs), "")
        if not different:
            return
        differences.append(different)
    pytest.fail("\n".join(differences))


async def expiry_by_silence(hosts: str) -> list[Any]:
    """A session that becomes silent, observed by one that watches its ephemerals."""
    ids = SessionIds()
    silent, watching = RawSession(ids), RawSession(ids)
    told = [await watching.attach(hosts, timeout_ms=4000), await silent.attach(hosts, timeout_ms=10)]
    told.append(await silent.ask("create", raw.create("/d", b"", 0)))
    for _ in range(3):
        told.append(await silent.ask("create2", raw.create("/d/e-", b"x", 3)))
    for number in range(3):
        told.append(await watching.ask("get", raw.watched(f"/d/e-{number:010d}", True)))
    told.append(await watching.ask("children", raw.watched("/d", True)))
    silent.abort()
    events: list[tuple[int, str]] = []
    async with asyncio.timeout(90):
        while len(events) < 4:
            await watching.ask("ping")
            events += watching.heard()
            await asyncio.sleep(0.02)
    told += [sorted(events), await watching.ask("children2", raw.watched("/d", False))]
    told += [await silent.attach(hosts, fresh=False), await watching.ask("close")]
    silent.abort()
    watching.abort()
    return told


async def test_a_silent_session_ends_as_the_real_server_ends_it(own_zookeeper: EmbeddedZooKeeper) -> None:
    await own_zookeeper.start()
    real = await expiry_by_silence(own_zookeeper.hosts)
    async with model_server() as hosts:
        assert await expiry_by_silence(hosts) == real
    assert real[1][0] == 1000, "two ticks at least"
    assert real[-2][0] == 0, "it is not taken back"


async def survival(server: EmbeddedZooKeeper | ZooKeeperServer, restart: Callable[[], Awaitable[None]]) -> list[Any]:
    """The state after a crash: everything that was answered, and the sessions."""
    ids = SessionIds()
    session, other = RawSession(ids), RawSession(ids)
    told = [await session.attach(server.hosts), await other.attach(server.hosts)]
    for flags in (0, 1, 2, 3):
        told.append(await session.ask("create2", raw.create("/d" if flags == 0 else "/n-", b"x", flags)))
    told.append(await session.ask("delete", raw.versioned("/d", 0)))
    told.append(await session.ask("exists", raw.watched("/d", True)))
    zxid = told[-1][1]
    await restart()
    told.append(await session.attach(server.hosts, fresh=False, last_zxid=zxid))
    told.append(await session.ask("set_watches", raw.set_watches(zxid, [], ["/d"], ["/"])))
    told.append(await session.ask("create", raw.create("/n-", b"y", 3)))
    told.append(await session.ask("children2", raw.watched("/", False)))
    told.append(session.heard())
    told.append(await other.attach(server.hosts, fresh=False, last_zxid=zxid + 1000))
    for each in (session, other):
        each.abort()
    return told


async def test_what_a_crash_leaves_is_what_the_real_server_leaves(own_zookeeper: EmbeddedZooKeeper) -> None:
    async def kill_and_start() -> None:
        own_zookeeper.kill()
        await own_zookeeper.start()

    await own_zookeeper.start()
    real = await survival(own_zookeeper, kill_and_start)
    model = ZooKeeperServer()
    await model.start()

    async def down_and_up() -> None:
        model.down()
        await model.up()

    modelled = await survival(model, down_and_up)
    await model.close()
    assert modelled == real


async def watching_the_forbidden(hosts: str) -> list[Any]:
    """Watches of a client that may not read what is created there."""
    ids = SessionIds()
    owner, stranger, friend = (RawSession(ids) for _ in range(3))
    told = [await each.attach(hosts) for each in (owner, stranger, friend)]
    for each in (owner, friend):
        told.append(await each.ask("auth", raw.auth("digest", ALICE)))
    for each in (stranger, friend):
        told.append(await each.ask("exists", raw.watched("/p", True)))
        told.append(await each.ask("add_watch", raw.versioned("/", 1)))
        told.append(await each.ask("children", raw.watched("/", True)))
    for op, body in (
        ("create", raw.create("/p", b"", 0, ONLY_AUTHENTICATED)),
        ("create", raw.create("/p/open", b"", 0)),
        ("create", raw.create("/p/closed", b"", 0, ONLY_AUTHENTICATED)),
        ("set", raw.set_data("/p/open", b"x", -1)),
        ("set", raw.set_data("/p/closed", b"x", -1)),
        ("delete", raw.versioned("/p/open", -1)),
        ("delete", raw.versioned("/p/closed", -1)),
        ("delete", raw.versioned("/p", -1)),
    ):
        told.append(await owner.ask(op, body))
        for each in (stranger, friend):
            told.append(await each.ask("exists", raw.watched("/p/open", False)))
            told.append(each.heard())
    for each in (owner, stranger, friend):
        told.append(await each.ask("close"))
        each.abort()
    return told


async def test_nobody_hears_of_what_he_may_not_read(own_zookeeper: EmbeddedZooKeeper) -> None:
    await own_zookeeper.start()
    real = await watching_the_forbidden(own_zookeeper.hosts)
    async with model_server() as hosts:
        modelled = await watching_the_forbidden(hosts)
    for index, (theirs, ours) in enumerate(zip(real, modelled, strict=True)):
        assert ours == theirs, f"step {index}"
