"""Numbered payloads, and functions that read whole ledgers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from dlog.io.ledger_handles import LedgerReader
from dlog.io.ledgers import Ledgers
from dlog.model.ids import EntryId, LedgerId
from dlog.model.quorum import Quorum
from tests.interop.java_peer import JavaLedgers

#: the largest length word that a bookie accepts is 5 MiB - 4; of it the add's header takes 24, the packet's 32, CRC32C
#: 4
ENTRY_BYTES_MAX = 5 * 1024 * 1024 - 4 - 24 - 32 - 4


def numbered(maker: str, first: int, count: int) -> list[bytes]:
    """`count` payloads of unequal sizes, no two the same."""
    return [b"%s-%d " % (maker.encode(), i) + bytes([i % 251]) * (i * 37 % 500) for i in range(first, first + count)]


def long_numbered(maker: str, first: int, count: int) -> list[bytes]:
    """The same of 2 KiB each; a few dozen of them fill the smallest segment."""
    return [payload.ljust(2048, b".") for payload in numbered(maker, first, count)]


def sized(size: int) -> bytes:
    """A payload of this size whose bytes depend on their offset."""
    return b"".join(b"%015d\n" % at for at in range(0, size + 16, 16))[:size]


async def read_all(ledgers: Ledgers, ledger: int) -> list[bytes]:
    """Every entry of a closed ledger, as dlog's client reads it."""
    reader = await ledgers.open(LedgerId(ledger))
    try:
        assert reader.end is not None, "closed"
        return await read_upto(reader, reader.end)
    finally:
        await reader.close()


async def read_upto(reader: LedgerReader, last: int, first: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while first + len(found) <= last:
        found += await reader.read(EntryId(first + len(found)), EntryId(last), 1 << 20)
    return found


async def follow(reader: LedgerReader, count: int, patience_s: float = 60.0) -> list[bytes]:
    """The first `count` entries of a ledger that is being written, read as its LAC moves."""
    found: list[bytes] = []
    while len(found) < count:
        known = EntryId(len(found) - 1)
        lac = await reader.wait_lac(known, patience_s)
        assert lac > known, f"the LAC stood still at {lac}"
        found += await read_upto(reader, min(lac, count - 1), len(found))
    return found


async def wait_whole(ledgers: Ledgers, ledger: int, patience_s: float = 60.0) -> None:
    """Wait until every replica has every entry: the third one of a write set may come after the acknowledgement."""
    async with asyncio.timeout(patience_s):
        while True:
            verified = await ledgers.verify(LedgerId(ledger))
            assert not [bad for bad in verified.ranges if bad.kind == "damaged"]
            if not verified.ranges:
                return
            await asyncio.sleep(0.1)


def refused(answers: Sequence[object]) -> set[int]:
    """Codes of the adds that were not acknowledged to the Java client."""
    return {answer["code"] for answer in answers if isinstance(answer, dict)}


async def recover_together(ours: Ledgers, theirs: JavaLedgers) -> None:
    """Ledgers with entries in flight, recovered by both clients at once: they agree, and keep every confirmed entry."""
    written = numbered("ours", 0, 400)
    for _ in range(4):
        writer = await ours.create(Quorum())
        adds = [writer.append((payload,)) for payload in written]
        await adds[50]
        async with asyncio.TaskGroup() as tasks:
            mine = tasks.create_task(ours.recover(writer.ledger_id), name="our recovery")
            javas = tasks.create_task(theirs.open(writer.ledger_id, recover=True), name="java's recovery")
        await writer.abandon()
        end = mine.result().last_entry
        assert end == javas.result().lac >= 50
        confirmed = sum(add.done() and not add.cancelled() and add.exception() is None for add in adds)
        assert confirmed <= end + 1
        assert await read_all(ours, writer.ledger_id) == written[: end + 1]
