"""The ledgers of a cluster that loses a bookie (W35), of dlog or of Java, as a client of its ZooKeeper and its bookies.

Writes the ledgers beforehand, counts the bytes that a bookie holds of them, sees the end of the repair, and checks all
copies.

Invariants:
- what has to be copied is counted from ledger metadata, wherever the bookie keeps it (journal, write cache, entry log);
- the repair is over once no ledger's metadata names the lost bookie and no mark is left in ZooKeeper.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

from dlog.cli.verification import Totals, verify_all
from dlog.errors import DLogError
from dlog.io.bookie_client import BookieClient, BookieClientOptions
from dlog.io.ledgers import Ledgers, LedgersOptions, resolver
from dlog.io.zookeeper import ANY_VERSION
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_protocol import NoNodeError
from dlog.machine import Missing, Versioned
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import LedgerKey, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.model.verification import Verified
from dlog.options import MiB
from loadtest.systems.base import CannotRunError
from loadtest.waiting import until

NAMESPACE = "/dlog"  # of streams, which Java's clusters have none of
WRITERS = 8  # ledgers that are filled at the same time
PENDING_BYTES_MAX = 2 * MiB  # of each of them
VERIFIED_AT_ONCE = 8
LOOK_S = 0.05  # between two looks for marks
REQUEST_S = 60.0  # for an answer of a bookie: one that is filled as fast as it can may be late
_PATIENT = LedgersOptions(vet_s=REQUEST_S / 2, vet_all_s=REQUEST_S)
SETTLE_S = 60.0


@dataclass(frozen=True, slots=True)
class Repaired:
    """When a repair was seen, in seconds of the monotonic clock. began: the first mark, or the loss if none was
    seen."""

    began_s: float
    ended_s: float


class LedgerCluster:
    """The ledgers of a cluster, as a client of its ZooKeeper and its bookies; created by `connect`."""

    def __init__(self, metadata: ZooKeeperMetadata, ledgers: Ledgers) -> None:
        self._metadata = metadata
        self._ledgers = ledgers
        self._marks = metadata.underreplication(f"loadtest:{os.getpid()}")

    @classmethod
    @asynccontextmanager
    async def connect(cls, zookeeper: str) -> AsyncIterator[LedgerCluster]:
        """Raises MetadataUnavailableError."""
        rng, limits = random.Random(os.urandom(8)), BookieClientOptions(request_timeout_s=REQUEST_S)
        async with (
            await ZooKeeperMetadata.connect(zookeeper, NAMESPACE) as metadata,
            BookieClient(resolver(metadata), rng=rng, options=limits) as bookies,
            Ledgers(metadata, bookies, rng=rng, options=_PATIENT) as ledgers,
        ):
            yield cls(metadata, ledgers)

    async def fill(self, count: int, entries: int, entry_bytes: int) -> list[LedgerId]:
        """Write closed ledgers of `entries` entries each, three copies of each entry. Raises DLogError."""
        payload = random.Random(1).randbytes(entry_bytes)
        made: list[LedgerId] = []
        numbers = iter(range(count))

        async def write() -> None:
            for _ in numbers:
                writer = await self._ledgers.create(Quorum(ensemble=3, write=3, ack=2))
                pending: deque[asyncio.Future[EntryId]] = deque()
                for _ in range(entries):
                    while len(pending) * entry_bytes >= PENDING_BYTES_MAX:
                        await pending.popleft()
                    pending.append(writer.append((payload,)))
                for future in pending:
                    await future
                await writer.close()
                made.append(writer.ledger_id)

        async with asyncio.TaskGroup() as tasks:
            for number in range(min(WRITERS, count)):
                tasks.create_task(write(), name=f"fill ledgers {number}")
        return made

    async def values(self) -> AsyncGenerator[tuple[LedgerId, LedgerMetadata], None]:
        """Every ledger with its metadata. Raises CannotRunError if that of one cannot be read."""
        async for ledger in self._metadata.ledgers():
            outcome = await self._metadata.read(LedgerKey(ledger))
            if isinstance(outcome, Versioned):
                yield ledger, outcome.value
            elif not isinstance(outcome, Missing):
                raise CannotRunError(f"the metadata of a ledger cannot be read: ledger={ledger} reason={outcome}")

    async def bytes_on(self, bookie: BookieId) -> int:
        """Bytes of payload that the bookie holds of closed ledgers, by their metadata."""
        held = 0
        async for _, value in self.values():
            for begin, end, ensemble in _ranges(value):
                if bookie in ensemble:
                    share = value.quorum.write / len(ensemble)
                    held += round(value.length * (end - begin) / (value.last_entry + 1) * share)
        return held

    async def pause_repair(self) -> None:
        """Switch repair off in the whole cluster, as an operator does; while it is off no bookie counts as lost."""
        await self._marks.prepare()
        await self._marks.disable()

    async def resume_repair(self) -> None:
        """Switch it on again; return when nothing is left to repair."""
        await self._marks.enable()
        await until(self._is_unmarked, SETTLE_S, "ledgers are marked although no bookie is lost")

    async def forget_registration(self, bookie: BookieId) -> None:
        """Remove the registration of a killed bookie, as ZooKeeper does when its session ends."""
        with suppress(NoNodeError):
            await self._metadata.zookeeper.delete(f"{LedgerPaths().available}/{bookie}", ANY_VERSION)

    async def wait_repaired(self, bookie: BookieId, lost_s: float, within_s: float) -> Repaired:
        """Wait until no ledger names the bookie and nothing is marked. Raises CannotRunError with what is left."""
        began_s: float | None = None

        async def is_whole() -> bool:
            nonlocal began_s
            if await self._is_unmarked():
                return not await self._naming(bookie)
            began_s = began_s or time.monotonic()
            return False

        try:
            await until(is_whole, within_s, f"the copies of the lost bookie {bookie} were not all made again", LOOK_S)
        except CannotRunError as late:
            named, marked = await self._naming(bookie), (await self._marks.summary()).ledgers
            what = f"{marked} ledgers are marked, {len(named)} still name it: {named[:5]}"
            raise CannotRunError(f"{late}: {what}") from None
        return Repaired(lost_s if began_s is None else began_s, time.monotonic())

    async def verify(self) -> Totals:
        """Read every copy of every entry. Raises CannotRunError unless each ledger has all its copies."""
        wrong: list[str] = []

        def note(ledger: LedgerId, found: Verified | DLogError) -> None:
            wrong.append(f"{ledger}: {found}")

        totals = await verify_all(self._ledgers, VERIFIED_AT_ONCE, note, lambda _: None)
        if not totals.is_good:
            raise CannotRunError(f"{len(wrong)} ledgers lack copies, first: {wrong[0][:500]}")
        return totals

    async def _is_unmarked(self) -> bool:
        return not (await self._marks.summary()).ledgers

    async def _naming(self, bookie: BookieId) -> list[str]:
        """The ledgers whose metadata names the bookie, each with its state and number of fragments."""
        found: list[str] = []
        async with aclosing(self.values()) as values:
            async for ledger, value in values:
                if any(bookie in fragment.ensemble for fragment in value.fragments):
                    state = "closed" if value.is_closed else "open"
                    found.append(f"{ledger} {state} with {len(value.fragments)} fragments")
        return found


def _ranges(value: LedgerMetadata) -> list[tuple[int, int, tuple[BookieId, ...]]]:
    """First entry, entry behind the last one, and ensemble of each fragment of a closed ledger that is not empty."""
    if not value.is_closed or value.last_entry < 0:
        return []
    ends = [*(int(fragment.first_entry) for fragment in value.fragments[1:]), value.last_entry + 1]
    return [
        (int(fragment.first_entry), end, fragment.ensemble) for fragment, end in zip(value.fragments, ends, strict=True)
    ]
