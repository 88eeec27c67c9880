"""Apache BookKeeper's Java client, on its v2 wire, against our bookies and our ledgers, and the reverse."""

from __future__ import annotations

import asyncio

import pytest

from dlog.errors import FencedError
from dlog.io.ledgers import Ledgers
from dlog.model.ids import EntryId, LedgerId
from dlog.model.ledger import LedgerState
from dlog.model.quorum import Quorum
from tests.integration.cluster import BookieCluster
from tests.interop.java_peer import need_java, payloads, run

pytestmark = pytest.mark.java


@pytest.fixture(autouse=True)
def _java() -> None:
    need_java()


def uri(cluster: BookieCluster) -> str:
    return f"zk+hierarchical://{cluster.hosts}/ledgers"


async def read_all(ledgers: Ledgers, ledger: LedgerId) -> list[bytes]:
    reader = await ledgers.open(ledger)
    try:
        assert reader.end is not None
        found: list[bytes] = []
        while len(found) <= reader.end:
            found += await reader.read(EntryId(len(found)), reader.end, 1 << 20)
        return found
    finally:
        await reader.close()


async def test_java_reads_a_ledger_that_we_closed(bookies: BookieCluster) -> None:
    written = [b"entry-%d" % i * (i + 1) for i in range(150)]
    async with bookies.ledgers() as ledgers:
        writer = await ledgers.create(Quorum())
        for payload in written:
            await writer.append((payload,))
        await writer.close()
        lines = await run("LedgerTool", uri(bookies), "read", str(writer.ledger_id), "false")
    assert lines[0] == {"lac": 149, "closed": True, "length": sum(map(len, written))}
    assert payloads(lines) == written


async def test_java_reads_a_ledger_that_we_still_write(bookies: BookieCluster) -> None:
    async with bookies.ledgers() as ledgers:
        writer = await ledgers.create(Quorum())
        for i in range(20):
            await writer.append((b"%d" % i,))
        lines = await run("LedgerTool", uri(bookies), "read", str(writer.ledger_id), "false")
        assert lines[0]["lac"] == 18 and not lines[0]["closed"]  # the last add carries the LAC before it
        assert payloads(lines) == [b"%d" % i for i in range(19)]
        assert await writer.append((b"still ours",)) == 20


async def test_java_fences_our_writer_and_recovers_all_that_was_acknowledged(bookies: BookieCluster) -> None:
    async with bookies.ledgers() as ledgers:
        writer = await ledgers.create(Quorum())
        for i in range(40):
            await writer.append((b"%d" % i,))
        lines = await run("LedgerTool", uri(bookies), "read", str(writer.ledger_id), "true")
        assert lines[0]["lac"] == 39 and lines[0]["closed"]
        assert payloads(lines) == [b"%d" % i for i in range(40)]
        with pytest.raises(FencedError):
            await writer.append((b"too late",))
        metadata = await ledgers.metadata_of(writer.ledger_id)
        assert metadata.state is LedgerState.CLOSED and metadata.last_entry == 39


@pytest.mark.parametrize("closed", [True, False])
async def test_we_read_and_recover_what_java_wrote_on_our_bookies(bookies: BookieCluster, closed: bool) -> None:
    (line,) = await run("LedgerTool", uri(bookies), "write", "60", str(closed).lower())
    ledger = LedgerId(line["ledger"])
    async with asyncio.timeout(30), bookies.ledgers() as ledgers:
        assert (await ledgers.metadata_of(ledger)).is_closed == closed
        await ledgers.recover(ledger)
        assert await read_all(ledgers, ledger) == [b"java-%d" % i for i in range(60)]
