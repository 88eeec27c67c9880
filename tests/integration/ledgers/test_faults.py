"""Ledgers while real bookies fail: SIGKILL, SIGSTOP, all at once. Every acknowledged entry is there."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from dlog.errors import DLogError
from dlog.io.bookie_client import BookieClientOptions
from dlog.io.ledger_handles import LedgerWriter
from dlog.io.ledgers import Ledgers, LedgersOptions
from dlog.ledger.adding import AddingOptions
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import LedgerState
from dlog.model.quorum import Quorum
from tests.integration.cluster import BookieCluster, ServerProcess
from tests.integration.stores.checker import History, check

E332 = Quorum(ensemble=3, write=3, ack=2)
IMPATIENT = BookieClientOptions(request_timeout_s=3.0, backoff_max_s=0.2)


class Load:
    """Appends all the time, a window at a time, and notes acknowledged entries."""

    def __init__(self, writer: LedgerWriter, window: int = 32, size: int = 500) -> None:
        self.writer = writer
        self.history = History()
        self.error: DLogError | None = None
        self._size = size
        self._window = window
        self._open = 0
        self._going = True
        self._moved = asyncio.Event()

    def go(self) -> None:
        """Fill the window; every acknowledgement frees space for the next."""
        while self._going and self._open < self._window:
            entry = len(self.history.submitted)
            body = (b"entry %d " % entry).ljust(self._size, b".")
            self.history.submitted.append(body)
            self._open += 1
            self.writer.submit((body,), self._answered)

    def stop(self) -> None:
        self._going = False

    def _answered(self, result: EntryId | DLogError) -> None:
        self._open -= 1
        if isinstance(result, DLogError):
            self.error, self._going = result, False
        else:
            self.history.acked.append(result)
        self._moved.set()
        asyncio.get_running_loop().call_soon(self.go)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(180):
            while not condition():
                self._moved.clear()
                await self._moved.wait()

    async def more(self, count: int) -> None:
        """Wait until this many more are acknowledged."""
        goal = len(self.history.acked) + count
        await self.until(lambda: len(self.history.acked) >= goal or self.error is not None)
        assert self.error is None, self.error

    async def finish(self) -> None:
        """Stop, and wait for the answers that are due."""
        self.stop()
        await self.until(lambda: self._open == 0)


@asynccontextmanager
async def loaded(ledgers: Ledgers) -> AsyncIterator[Load]:
    load = Load(await ledgers.create(E332))
    load.go()
    try:
        yield load
    finally:
        load.stop()


async def judge(ledgers: Ledgers, ledger: LedgerId, history: History) -> None:
    """Read everything and let the checker check it."""
    reader = await ledgers.open(ledger)
    assert reader.end is not None
    found: list[bytes] = []
    while len(found) <= reader.end:
        found += await reader.read(EntryId(len(found)), reader.end, 1 << 20)
    await reader.close()
    history.final = found
    history.ends.append(("last", reader.end))
    assert check(history) == []


def victim_of(cluster: BookieCluster, load: Load, place: int) -> ServerProcess:
    return cluster.named(load.writer.metadata.fragments[-1].ensemble[place])


async def test_one_of_three_dies_and_comes_back(own_bookies: BookieCluster) -> None:
    """There is no replacement: the ledger goes on with two, and takes the third in again."""
    adding = AddingOptions(replace_retry_s=0.05)
    async with own_bookies.ledgers(LedgersOptions(adding=adding), IMPATIENT) as ledgers, loaded(ledgers) as load:
        await load.more(200)
        victim = victim_of(own_bookies, load, 1)
        victim.kill()
        await load.more(500)
        await asyncio.to_thread(victim.start)
        await load.more(200)
        other = victim_of(own_bookies, load, 2)
        other.kill()  # now the one that came back is needed for every acknowledgement
        await load.more(200)
        await load.finish()
        load.history.sealed.append(await load.writer.close())
        await judge(ledgers, load.writer.ledger_id, load.history)


async def test_one_of_four_dies_and_is_replaced(own_bookies: BookieCluster) -> None:
    own_bookies.add()
    async with own_bookies.ledgers(transport=IMPATIENT) as ledgers, loaded(ledgers) as load:
        await load.more(200)
        victim_of(own_bookies, load, 0).kill()
        await load.until(lambda: len(load.writer.metadata.fragments) > 1 or load.error is not None)
        await load.more(300)
        await load.finish()
        load.history.sealed.append(await load.writer.close())
        verified = await ledgers.verify(load.writer.ledger_id)
        assert not [bad for bad in verified.ranges if bad.kind == "damaged"]
        await judge(ledgers, load.writer.ledger_id, load.history)


async def test_a_frozen_bookie_holds_nobody_up(own_bookies: BookieCluster) -> None:
    async with own_bookies.ledgers(transport=IMPATIENT) as ledgers, loaded(ledgers) as load:
        await load.more(100)
        victim = victim_of(own_bookies, load, 0)
        victim.freeze()
        try:
            await load.more(2_000)
            await load.finish()
            load.history.sealed.append(await load.writer.close())
            await judge(ledgers, load.writer.ledger_id, load.history)
        finally:
            victim.thaw()


async def test_all_die_at_once_and_what_was_acknowledged_is_there(own_bookies: BookieCluster) -> None:
    async with own_bookies.ledgers(transport=IMPATIENT) as ledgers, loaded(ledgers) as load:
        await load.more(1_000)
        for bookie in own_bookies.bookies:
            bookie.kill()
        load.stop()
        await load.writer.abandon()
        for bookie in own_bookies.bookies:
            bookie.spawn()
        for bookie in own_bookies.bookies:
            await asyncio.to_thread(bookie.wait_ready)
        async with own_bookies.ledgers() as successor, asyncio.TaskGroup() as group:
            ledger = load.writer.ledger_id
            ends = [group.create_task(owner.recover(ledger), name="recovery") for owner in (successor, ledgers)]
        load.history.recovered += [end.result().last_entry for end in ends]
        await judge(ledgers, load.writer.ledger_id, load.history)


async def test_a_recovery_survives_the_death_of_a_bookie_under_it(own_bookies: BookieCluster) -> None:
    async with own_bookies.ledgers(transport=IMPATIENT) as ledgers, loaded(ledgers) as load:
        await load.more(500)
        victim = victim_of(own_bookies, load, 2)
        async with own_bookies.ledgers(transport=IMPATIENT) as successor, asyncio.TaskGroup() as group:
            recovering = group.create_task(successor.recover(load.writer.ledger_id), name="recovery")
            await load.until(lambda: load.error is not None or recovering.done())
            victim.kill()
        load.history.recovered.append(recovering.result().last_entry)
        await load.finish()
        assert load.error is not None and load.error.outcome_unknown
        assert (await ledgers.metadata_of(load.writer.ledger_id)).state is LedgerState.CLOSED
        await judge(ledgers, load.writer.ledger_id, load.history)


async def test_the_copies_of_a_bookie_that_is_lost_for_good_are_made_again(own_bookies: BookieCluster) -> None:
    own_bookies.add()
    async with own_bookies.ledgers(transport=IMPATIENT) as ledgers, loaded(ledgers) as load:
        await load.more(300)
        await load.finish()
        load.history.sealed.append(await load.writer.close())
        victim, ledger = victim_of(own_bookies, load, 1), load.writer.ledger_id
        victim.kill()
        await asyncio.to_thread(shutil.rmtree, victim.directory)
        repaired = await ledgers.repair(ledger, frozenset({BookieId(victim.id)}))
        assert repaired.copied_entries == len(load.history.acked)
        assert [(made.first_entry, made.old) for made in repaired.replaced] == [(0, victim.id)]
        assert (repaired.unreadable, repaired.waits) == ((), "")
        verified = await ledgers.verify(ledger)
        assert verified.ranges == ()
        await judge(ledgers, ledger, load.history)
