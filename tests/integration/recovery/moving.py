"""Ledgers that are moved from one bookie to another, and the space that they leave, for tests of moved copies."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from dlog.errors import NotEnoughBookiesError
from dlog.io.bookie_client import BookieClientOptions
from dlog.io.ledgers import Ledgers
from dlog.model.ids import BookieId, LedgerId
from dlog.model.quorum import Quorum
from tests.integration.cluster import BookieCluster
from tests.integration.recovery.polling import LIMIT_S

PATIENT = BookieClientOptions(request_timeout_s=60.0)
E333 = Quorum(ensemble=3, write=3, ack=3)
PAYLOAD = b"x" * 65536
ENTRIES = 16
LEDGERS = 8
#: small logs, and looks that follow one another at once
FLAGS = ("--gc-moved-s", "0.5", "--gc-s", "1", "--gc-look-s", "0.5", "--checkpoint-s", "0.5")
LOG_BYTES = 2 << 20
SMALL_LOGS = ("--entry-log-bytes", str(LOG_BYTES), "--gc-major-s", "1", "--gc-bytes-s", str(64 << 20))


async def write(ledgers: Ledgers) -> LedgerId:
    writer = await ledgers.create(E333)
    for _ in range(ENTRIES):
        await writer.append((PAYLOAD,))
    await writer.close()
    return writer.ledger_id


def log_bytes(cluster: BookieCluster, bookie: BookieId) -> int:
    """Bytes of the bookie's entry logs."""
    directory = cluster.named(bookie).directory
    return sum(path.stat().st_size for path in directory.glob("ledgers/**/entries-*"))


async def move(ledgers: Ledgers, ledger: LedgerId, source: BookieId, target: BookieId) -> None:
    """Repair the ledger without the source. A bookie that is about to free its copies refuses new ones for a moment."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with suppress(NotEnoughBookiesError):
                await ledgers.repair(ledger, frozenset({source}), preferred=target)
                return


async def until_bytes(cluster: BookieCluster, bookie: BookieId, most: int, *, logs: int) -> None:
    """Wait until the bookie has at most so many bytes, beside the heads and tables of contents of so many logs."""
    async with asyncio.timeout(LIMIT_S):
        while log_bytes(cluster, bookie) > most + (logs << 16):  # noqa: ASYNC110 - another process changes it, no event tells
            await asyncio.sleep(0.1)
