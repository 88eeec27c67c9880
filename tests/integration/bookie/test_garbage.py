"""Repeated operations on a bookie leave nothing to the cycle collector (tests/garbage.py)."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path

import pytest

from dlog.errors import LedgerFencedError, LedgerNotFoundError
from dlog.io.bookie_client import BookieClient
from dlog.io.ledgers import Ledgers, resolver
from dlog.model.ids import EntryId
from dlog.model.quorum import Quorum
from tests.garbage import garbage_of
from tests.integration.bookie.test_server import RunningBookie, running_bookie, work

ROUNDS = 300
ONE = Quorum(ensemble=1, write=1, ack=1)


async def rounds(one: RunningBookie, ledgers: Ledgers, count: int) -> None:
    """Each round has a new connection, an open ledger that is followed, one that is fenced, and one that is missing."""
    for _ in range(count):
        written, fenced = await ledgers.create(ONE), await ledgers.create(ONE)
        follower = await ledgers.open(written.ledger_id)
        for entry in range(3):
            await written.append((b"%d" % entry,))
        await written.close()
        assert await follower.wait_lac(EntryId(1), 30.0) == 2
        assert await follower.read(EntryId(0), EntryId(2), 1000) == [b"0", b"1", b"2"]
        await follower.close()
        await ledgers.recover(fenced.ledger_id)
        with pytest.raises(LedgerFencedError):
            await fenced.append((b"late",))
        await fenced.abandon()
        for writer in (written, fenced):
            await ledgers.delete(writer.ledger_id)
            with pytest.raises(LedgerNotFoundError):
                await ledgers.open(writer.ledger_id)
        await work(one.port)


async def test_connections_adds_reads_and_fences_leave_no_garbage(tmp_path: Path) -> None:
    async with (
        running_bookie(tmp_path) as one,
        BookieClient(resolver(one.metadata), rng=random.Random(1)) as client,
        Ledgers(one.metadata, client, rng=random.Random(2)) as ledgers,
    ):
        assert await garbage_of(partial(rounds, one, ledgers), ROUNDS) == {}
