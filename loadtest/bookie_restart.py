"""Script of W37: a bookie alone with many ledgers: its memory, and its start after kill -9.

    fill over the bookie protocol, the ledgers in turns -> memory -> kill -9, start again -> the first entry is read
    -> memory -> entries are read back

The ledgers are on the bookie only, not in ZooKeeper: they take no time to create, and the bookie does the same for
them. It would collect them after ten minutes (Java: fifteen), which the check at the end would find.

Invariants:
- the start is over when an entry is read: the last one that was acknowledged before the kill;
- figures are reported only if the last entry of every ledger, and one chosen at random, are read back as written.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

from dlog.hostport import split_host_port
from dlog.io.bookie_client import BookieClient, BookieClientOptions
from dlog.machine import Fact, PeerLost, Received
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import DigestType
from dlog.options import MiB
from dlog.wire.bookie import AddEntry, Code, EntryAdded, EntryRead, ReadEntry
from dlog.wire.digest import Digest, DigestMismatch
from loadtest.bench import Bench, Outcome
from loadtest.judge import Verdict
from loadtest.processes import usage
from loadtest.systems.base import CannotRunError
from loadtest.systems.lost_copies import REQUEST_S, LedgerCluster
from loadtest.waiting import until

PENDING_BYTES_MAX = 4 * MiB
ADDS_MAX = 2000  # unanswered
READS_MAX = 128  # unanswered; a bookie takes 256 of a connection
REST_S = 3.0  # after the last answer, before memory is looked at
FIRST_READ_S = 60.0


async def restart_bookie(bench: Bench) -> Outcome:
    """Fill a bookie, kill it, start it again."""
    shape, system = bench.shape, bench.system
    bookie = system.bookie()
    entries = max(1, shape.backlog_mb * 1_000_000 // shape.ledgers // shape.record_bytes)
    content = Content(shape.ledgers, entries, shape.record_bytes)
    async with LedgerCluster.connect(system.zookeeper()) as cluster:
        begin_s = time.monotonic()
        async with connected(bookie.address) as direct:
            await direct.add(content)
        filled_s = time.monotonic() - begin_s
        await asyncio.sleep(REST_S)
        full = _memory(bookie.pid)
        bookie.kill()
        await cluster.forget_registration(BookieId(bookie.address))
        begin_s = time.monotonic()
        async with bench.watching():
            await system.revive(bookie.name)
            await until(lambda: _serves(bookie.address, content), FIRST_READ_S, "no entry was read after the start")
            started_s = time.monotonic() - begin_s
        await asyncio.sleep(REST_S)
        restarted = _memory(bookie.pid)
        async with connected(bookie.address) as direct:
            await direct.read(content, content.sample())
    figures: dict[str, Any] = {
        "restart_s": round(started_s, 3),
        "full_rss_bytes": full,
        "restarted_rss_bytes": restarted,
        "written_mb": round(content.size / 1e6, 3),
        "entries": shape.ledgers * entries,
        "filled_s": round(filled_s, 3),
        "read_back_entries": len(content.sample()),
    }
    return Outcome(Verdict(), figures=figures, usage=bench.watch.used())


def _memory(pid: int | None) -> int:
    used = usage(pid) if pid is not None else None
    if used is None:
        raise CannotRunError("the bookie has ended")
    return used.rss_bytes


async def _serves(address: str, content: Content) -> bool:
    """Whether the entry that was written last is read."""
    try:
        async with connected(address) as direct:
            await direct.read(content, [content.last])
    except CannotRunError:
        return False
    return True


class Content:
    """The entries of `ledgers` ledgers, `entries` in each, written in turns."""

    def __init__(self, ledgers: int, entries: int, entry_bytes: int) -> None:
        self._ledgers = ledgers
        self._entries = entries
        self.payload = random.Random(1).randbytes(entry_bytes)
        self.size = ledgers * entries * entry_bytes

    @property
    def last(self) -> tuple[LedgerId, EntryId]:
        return LedgerId(self._ledgers - 1), EntryId(self._entries - 1)

    def requests(self) -> Iterator[AddEntry]:
        """One entry of each ledger, then the next one of each."""
        for entry in range(self._entries):
            for ledger in range(self._ledgers):
                digest, length = digest_of(ledger), (entry + 1) * len(self.payload)
                packet = digest.pack(entry, entry - 1, length, (self.payload,))
                yield AddEntry(LedgerId(ledger), EntryId(entry), digest.master_key, packet)

    def sample(self) -> list[tuple[LedgerId, EntryId]]:
        """The last entry of each ledger, and one of its entries chosen at random; the same at each call."""
        rng, last = random.Random(2), self._entries - 1
        return [
            (LedgerId(ledger), EntryId(entry))
            for ledger in range(self._ledgers)
            for entry in sorted({rng.randint(0, last), last})
        ]


def digest_of(ledger: int) -> Digest:
    return Digest(ledger, DigestType.CRC32C)


class DirectBookie:
    """Requests to one bookie, with many in flight; created by `connected`."""

    def __init__(self, client: BookieClient, bookie: BookieId) -> None:
        self._bookie = bookie
        self._asker = client.asker()
        self._asker.post = self._note
        self._check: Callable[[Any], str] = lambda _: "an answer without a request"
        self._pending = 0
        self._failed = ""
        self._news = asyncio.Event()

    def close(self) -> None:
        self._asker.close()

    async def add(self, content: Content) -> None:
        """Add all entries. Raises CannotRunError if one is not acknowledged."""
        most = max(1, min(ADDS_MAX, PENDING_BYTES_MAX // len(content.payload)))
        await self._send(content.requests(), most, _check_added)

    async def read(self, content: Content, wanted: list[tuple[LedgerId, EntryId]]) -> None:
        """Read these entries. Raises CannotRunError if one is not as written."""

        def check(answer: Any) -> str:
            return _check_read(answer, content.payload)

        await self._send((ReadEntry(ledger, entry) for ledger, entry in wanted), READS_MAX, check)

    async def _send(self, requests: Iterator[Any], most: int, check: Callable[[Any], str]) -> None:
        self._check = check
        for request in requests:
            while self._pending >= most:
                await self._wait()
            self._pending += 1
            self._asker.send(self._bookie, request)
        while self._pending:
            await self._wait()

    async def _wait(self) -> None:
        self._news.clear()
        if not self._failed:
            await self._news.wait()
        if self._failed:
            raise CannotRunError(f"bookie {self._bookie}: {self._failed}")

    def _note(self, fact: Fact) -> None:
        match fact:
            case Received(_, answer):
                self._pending -= 1
                self._failed = self._failed or self._check(answer)
            case PeerLost(_, reason):
                self._failed = self._failed or reason
        self._news.set()


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[DirectBookie]:
    """A connection to the bookie at host:port."""
    place = split_host_port(address)
    limits = BookieClientOptions(request_timeout_s=REQUEST_S)
    async with BookieClient(lambda _: place, rng=random.Random(3), options=limits) as client:
        direct = DirectBookie(client, BookieId(address))
        try:
            yield direct
        finally:
            direct.close()


def _check_added(answer: Any) -> str:
    """What is wrong; empty: nothing."""
    return "" if isinstance(answer, EntryAdded) and answer.code is Code.OK else f"an entry was not added: {answer}"


def _check_read(answer: Any, payload: bytes) -> str:
    if not isinstance(answer, EntryRead) or answer.code is not Code.OK:
        return f"an entry was not read: {answer}"[:300]
    try:
        found = digest_of(answer.ledger).verify(answer.packet, answer.entry).payload
    except DigestMismatch as error:
        return error.message
    return "" if bytes(found) == payload else f"an entry is not as written: ledger={answer.ledger} entry={answer.entry}"
