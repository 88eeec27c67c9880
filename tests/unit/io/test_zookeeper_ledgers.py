"""Tests which znodes the creation of ledger ids leaves in ZooKeeper."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import cast

import pytest

from dlog.io import zookeeper_ledgers
from dlog.io.zookeeper import ConnectionLossError, Created, Delete, Stat, ZooKeeper
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.io.zookeeper_ledgers import ZooKeeperLedgers
from dlog.io.zookeeper_protocol import MultiFailedError, NoNodeError, Op

ROUNDS = 1000
STAT = Stat(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


class Session:
    """A ZooKeeper session that answers one turn of the loop after it carried a request out; `requests` counts
    requests."""

    def __init__(self) -> None:
        self.nodes: dict[str, None] = {}
        self.made = 0
        self.requests: list[str] = []
        self.deleted_at_once: list[int] = []
        self.lost = ""  # the answer to this request is lost

    async def _answer(self, what: str) -> None:
        self.requests.append(what)
        await asyncio.sleep(0)
        if self.lost == what:
            raise ConnectionLossError("lost")

    async def exists(self, path: str) -> Stat | None:
        return None

    async def ensure_path(self, path: str) -> None:
        pass

    async def create(self, path: str, *, ephemeral: bool, sequential: bool, parents: bool) -> Created:
        assert ephemeral and sequential
        created = self._create(path)
        await self._answer("create")
        return created

    def _create(self, prefix: str) -> Created:
        path = f"{prefix}{self.made:010d}"
        self.made += 1
        self.nodes[path] = None
        return Created(path, STAT)

    async def multi(self, ops: Sequence[Op]) -> list[Created | None]:
        """Carry out all operations, or none."""
        missing = [isinstance(op, Delete) and op.path not in self.nodes for op in ops]
        results: list[Created | None] = []
        if not any(missing):
            for op in ops:
                if isinstance(op, Delete):
                    del self.nodes[op.path]
                    results.append(None)
                else:
                    results.append(self._create(op.path))
        deleted = results.count(None)
        if deleted:
            self.deleted_at_once.append(deleted)
        await self._answer("multi")
        if any(missing):
            raise MultiFailedError([NoNodeError("gone") if is_missing else None for is_missing in missing])
        return results

    async def ephemerals(self, prefix: str) -> list[str]:
        found = [path for path in self.nodes if path.startswith(prefix)]
        await self._answer("ephemerals")
        return found


def tree_of(session: Session) -> ZooKeeperLedgers:
    return ZooKeeperLedgers(cast(ZooKeeper, session), LedgerPaths(), random.Random(1))


async def cancelled(tree: ZooKeeperLedgers, ahead: int = 1, *, turns: int = 1, calls: int = 1) -> None:
    """Ask for this many ids at once, and cancel the call after this many turns of the loop."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(tree.new_id(ahead), name="new id") for _ in range(calls)]
        for _ in range(turns):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()


@pytest.mark.parametrize("ahead", [1, 3])
@pytest.mark.parametrize("turns", [1, 2])
async def test_a_thousand_cancelled_creations_leave_no_znode(turns: int, ahead: int) -> None:
    """turns: turns of the loop until the call is cancelled, while it waits for the creation of its znodes or their
    deletion."""
    session = Session()
    tree = tree_of(session)
    for _ in range(ROUNDS):
        await cancelled(tree, ahead, turns=turns)
        assert len(session.nodes) <= ahead, "a call deletes what the one before left"
    assert await tree.new_id() == session.made - 1
    assert not session.nodes
    session.requests.clear()
    await tree.new_id()
    assert session.requests == ["create", "multi"], "nothing is looked for where nothing was left"


async def test_znodes_whose_answers_were_lost_are_deleted_by_the_next_call() -> None:
    session = Session()
    tree = tree_of(session)
    for _ in range(ROUNDS):
        session.lost = "create"
        with pytest.raises(ConnectionLossError):
            await tree.new_id()
        assert len(session.nodes) == 1
        session.lost = "ephemerals"
        with pytest.raises(ConnectionLossError):
            await tree.new_id()
        assert len(session.nodes) == 1, "nothing is made while leftovers cannot be found"
    session.lost = ""
    assert await tree.new_id() == ROUNDS
    assert not session.nodes


async def test_calls_at_the_same_time_delete_each_its_own_and_the_leftovers_once() -> None:
    session = Session()
    tree = tree_of(session)
    await cancelled(tree)
    async with asyncio.TaskGroup() as group:
        calls = [group.create_task(tree.new_id(), name="new id") for _ in range(20)]
    assert sorted(call.result() for call in calls) == list(range(1, 21))
    assert not session.nodes
    assert session.requests.count("ephemerals") == 1


async def test_many_leftovers_are_deleted_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_ledgers, "_LEFTOVERS_AT_ONCE", 10)
    session = Session()
    tree = tree_of(session)
    await cancelled(tree, calls=25)
    assert len(session.nodes) == 25
    await tree.new_id()
    assert not session.nodes
    assert session.deleted_at_once == [10, 10, 5, 1]
