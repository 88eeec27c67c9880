"""Repeated operations on ledgers leave nothing to the cycle collector (tests/garbage.py)."""

from __future__ import annotations

from functools import partial

import pytest

from dlog.errors import LedgerFencedError, LedgerNotFoundError
from dlog.io.ledgers import Ledgers
from dlog.model.ids import EntryId, LedgerId
from tests.garbage import garbage_of
from tests.integration.ledgers.test_ledgers import E332, Cluster, cluster, read_all

ROUNDS = 300


async def rounds(made: Cluster, ours: Ledgers, others: Ledgers, count: int) -> None:
    """Write a ledger, fence its writer or break its connections, follow it to its end, read it, delete it."""
    for number in range(count):
        writer = await ours.create(E332)
        for entry in range(3):
            await writer.append((b"%d" % entry,))
        if number % 3 == 0:
            await others.recover(writer.ledger_id)
            with pytest.raises(LedgerFencedError):
                await writer.append((b"late",))
            await writer.abandon()
        else:
            if number % 3 == 1:
                for bookie in made.bookies.values():
                    bookie.reset()  # breaks its connections
            reader = await others.open(writer.ledger_id)
            await writer.close()
            await reader.wait_lac(EntryId(1), 30.0)
            await reader.close()
        assert len(await read_all(others, writer.ledger_id)) == 3
        await ours.delete(writer.ledger_id)
        with pytest.raises(LedgerNotFoundError):
            await others.open(writer.ledger_id)
        with pytest.raises(LedgerNotFoundError):
            await others.recover(LedgerId(writer.ledger_id))


async def test_ledgers_that_are_written_fenced_read_and_deleted_leave_no_garbage() -> None:
    async with cluster() as made:
        ours, others = await made.client(), await made.client()
        assert await garbage_of(partial(rounds, made, ours, others), ROUNDS) == {}
