"""Runs the same seeded script through dlog's client and through kazoo, on the real server and on the simulated one: all
four runs must agree. Replies are lost, connections cut, changes missed, sessions ended; after each of these the
caller's outcome and the server's contents must be the same.

One difference is intended. When its connection is cut, kazoo drops its watches and tells each owner; dlog sets them
again with the last zxid it saw, and notifies only those whose znode has changed. So kazoo notifies every owner that
dlog notifies.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.zookeeper import Check, Create, Delete, Set
from dlog.io.zookeeper_protocol import Op
from tests.integration.zookeeper import raw
from tests.integration.zookeeper.drivers import UNKNOWN, Driver, KazooDriver, OurDriver, Outcome, Shown, end_session
from tests.integration.zookeeper.raw import RawSession, SessionIds
from tests.integration.zookeeper.toxic import Toxic
from tests.simulation.service.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.zookeeper

NAMES = ("a", "b", "c")
STEPS = 150


class Script:
    """Two sessions, each behind a relay of its own."""

    def __init__(self, hosts: str, kind: Callable[[str, Shown], Driver], seed: int) -> None:
        self._hosts, self._kind = hosts, kind
        self._rng = random.Random(seed)
        self._numbered: list[str] = []
        self._relays: list[Toxic] = []
        self._drivers: list[Driver] = []
        self.steps: list[tuple[Any, ...]] = []
        self.watched: list[list[str]] = []  # notified watches, step by step

    async def run(self, chroot: str, count: int) -> None:
        maker = RawSession(SessionIds())
        await maker.attach(self._hosts)
        zxid = (await maker.ask("create", raw.create(chroot, b"", 0)))[1]
        await maker.ask("close")
        maker.abort()
        shown = Shown(zxid)
        async with AsyncExitStack() as stack:
            for _ in range(2):
                self._relays.append(await stack.enter_async_context(Toxic(self._hosts + chroot)))
                self._drivers.append(self._kind(self._relays[-1].hosts, shown))
                await self._drivers[-1].open()
                stack.push_async_callback(self._drivers[-1].close)
            for _ in range(count):
                await self._step()

    async def _step(self) -> None:
        number = self._rng.randrange(2)
        name = self._rng.choices(list(_WEIGHTS), list(_WEIGHTS.values()))[0]
        outcome = await getattr(self, f"_{name}")(number)
        told: list[str] = []
        for index, driver in enumerate(self._drivers):
            await driver.settled()
            told += [f"{index} {what}" for what in sorted(driver.told)]
            driver.told.clear()
        self.steps.append((name, number, outcome))
        self.watched.append(told)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _path(self) -> str:
        if self._numbered and self._rng.random() < 0.15:
            return self._rng.choice(self._numbered)
        return "".join("/" + self._rng.choice(NAMES) for _ in range(self._rng.choice((1, 1, 2, 3))))

    def _version(self) -> int:
        return self._rng.choice((-1, -1, 0, 1, 2))

    async def _create(self, number: int) -> Outcome:
        ephemeral, sequential = self._rng.random() < 0.3, self._rng.random() < 0.3
        path = self._path() + ("/n-" if sequential else "")
        outcome: Outcome = await self._drivers[number].create(path, b"data", ephemeral, sequential)
        if outcome[0] == "ok" and sequential:
            self._numbered = [*self._numbered[-5:], outcome[1]]
        return path, outcome

    async def _delete(self, number: int) -> Outcome:
        path = self._path()
        return path, await self._drivers[number].delete(path, self._version())

    async def _set(self, number: int) -> Outcome:
        path = self._path()
        return path, await self._drivers[number].set(path, b"new", self._version())

    async def _read(self, number: int) -> Outcome:
        path, driver = self._path(), self._drivers[number]
        return path, await self._rng.choice((driver.get, driver.exists, driver.children))(path)

    async def _multi(self, number: int) -> Outcome:
        ops: list[Op] = []
        for _ in range(self._rng.randint(1, 4)):
            path = self._path()
            match self._rng.randrange(4):
                case 0:
                    ops.append(Create(path, b"m", self._rng.random() < 0.3, self._rng.random() < 0.3))
                case 1:
                    ops.append(Delete(path, self._version()))
                case 2:
                    ops.append(Set(path, b"m", self._version()))
                case _:
                    ops.append(Check(path, self._version()))
        return tuple(ops), await self._drivers[number].multi(ops)

    async def _watch(self, number: int) -> Outcome:
        path, driver = "/" + "/".join(self._rng.choices(NAMES, k=self._rng.randint(1, 2))), self._drivers[number]
        if self._rng.random() < 0.5:
            await driver.watch_data(path)
            return "data", path
        there = (await driver.exists(path))[1]
        if there:
            await driver.watch_children(path)
        return "children", path, there

    async def _lose(self, number: int) -> Outcome:
        """Let a write arrive, lose its reply, and reset the connection."""
        relay, driver, path = self._relays[number], self._drivers[number], self._path()
        write: Callable[[], Coroutine[Any, Any, Outcome]] = self._rng.choice(
            (
                lambda: driver.create(path, b"lost", False, False),
                lambda: driver.create(path + "/n-", b"lost", False, True),
                lambda: driver.create(path, b"lost", True, False),
                lambda: driver.set(path, b"lost", self._version()),
                lambda: driver.delete(path, self._version()),
                lambda: driver.multi([Create(path, b"lost"), Check(path, 0)]),
            )
        )
        relay.silenced.clear()
        relay.silence_replies = True
        async with asyncio.TaskGroup() as tasks:
            writing = tasks.create_task(write(), name="write")
            await relay.silenced.wait()
            relay.cut()
        relay.silence_replies = False
        await driver.settled()
        assert writing.result() == UNKNOWN
        parent = path.rpartition("/")[0] or "/"
        return path, await driver.get(path), await driver.children(path), await driver.children(parent)

    async def _cut(self, number: int) -> Outcome:
        self._relays[number].cut(reset=self._rng.random() < 0.5)
        await self._drivers[number].settled()
        return ()

    async def _away(self, number: int) -> Outcome:
        """Lose contact while the other session makes changes."""
        relay, port = self._relays[number], self._relays[number].port
        relay.refuse()
        relay.cut()
        changes = [await self._rng.choice((self._create, self._set, self._delete))(1 - number) for _ in range(3)]
        await relay.listen(port)
        await self._drivers[number].settled()
        return tuple(changes)

    async def _expire(self, number: int) -> Outcome:
        driver = self._drivers[number]
        async with asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(driver.lost(), name="lost")
            await asyncio.sleep(0)
            await end_session(self._hosts, *driver.identity())
        assert waiting.done()
        await driver.settled()
        driver.forget_watches()
        return await driver.children("/")

    async def _reopen(self, number: int) -> Outcome:
        driver = self._drivers[number]
        await driver.close()
        await driver.open()
        return await driver.children("/")


_WEIGHTS = {
    "create": 30,
    "delete": 12,
    "set": 12,
    "read": 14,
    "multi": 10,
    "watch": 24,
    "lose": 3,
    "cut": 1,
    "away": 2,
    "expire": 1,
    "reopen": 1,
}


@asynccontextmanager
async def model_server() -> AsyncIterator[str]:
    server = ZooKeeperServer()
    await server.start()
    try:
        yield server.hosts
    finally:
        await server.close()


async def story_of(hosts: str, chroot: str, kind: Callable[[str, Shown], Driver], seed: int) -> Script:
    script = Script(hosts, kind, seed)
    await script.run(chroot, STEPS)
    return script


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> Any:
    return next(((i, a, b) for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b), None)


@pytest.mark.parametrize("seed", [1, 2])
async def test_ours_and_kazoo_agree_with_each_other_and_on_both_servers(
    seed: int, own_zookeeper: EmbeddedZooKeeper
) -> None:
    await own_zookeeper.start()
    ours = await story_of(own_zookeeper.hosts, "/ours", OurDriver, seed)
    kazoo = await story_of(own_zookeeper.hosts, "/kazoo", KazooDriver, seed)
    async with model_server() as hosts:
        ours_modelled = await story_of(hosts, "/ours", OurDriver, seed)
        kazoo_modelled = await story_of(hosts, "/kazoo", KazooDriver, seed)
    assert first_difference(ours_modelled.steps, ours.steps) is None, "ours: the model, the real server"
    assert first_difference(ours_modelled.watched, ours.watched) is None
    assert first_difference(kazoo_modelled.steps, kazoo.steps) is None, "kazoo: the model, the real server"
    assert first_difference(kazoo_modelled.watched, kazoo.watched) is None
    assert first_difference(ours.steps, kazoo.steps) is None, "ours, kazoo"
    assert any(ours.watched)
    cut: set[str] = set()
    for told_ours, told_kazoo in zip(ours.watched, kazoo.watched, strict=True):
        cut |= {told.replace("cut ", "") for told in told_kazoo if " cut " in told}
        assert set(told_ours) - set(told_kazoo) <= cut, "kazoo was told of it when it happened, or lost it to a cut"
        assert {told for told in told_kazoo if " cut " not in told} <= set(told_ours), "what kazoo hears, ours hears"
