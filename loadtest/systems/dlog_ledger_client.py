"""dlog's ledger client as a system: `dlog-ledger-client`, ledgers on three bookies of a `dlog up`, without its proxies.

A log is the ledgers that name it in their metadata, in order of their ids: each producer writes one of its own, as
BookKeeper's client does in `bookkeeper`. An entry holds one record.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

from dlog.errors import DLogError
from dlog.io.bookie_client import BookieClient
from dlog.io.ledger_handles import LedgerWriter
from dlog.io.ledgers import Ledgers, resolver
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.model.ids import NO_ENTRY, EntryId, LedgerId
from dlog.model.quorum import Quorum
from loadtest.systems.base import Acked, Client, Flavour, NotApplicable, OnAnswer, Position, Refused, Writer
from loadtest.systems.dlog import Dlog
from loadtest.systems.lost_copies import NAMESPACE

QUORUM = Quorum(ensemble=3, write=3, ack=2)
LOG = "loadtest.log"  # in a ledger's custom metadata
READ_BYTES = 1 << 20
_LACKS = {
    "batch": "an entry holds one record",
    "many-logs": "it is measured with one ledger",
    "tail": "its readers are those of streams",
    "faults": "a ledger ends with its writer",
    "storage": "a ledger ends with its writer",
    "handover": "a ledger is owned by its writer, the application",
}


class DlogLedgerClient(Dlog):
    """A cluster whose proxies are idle."""

    owner_role = ""

    def lacks(self, feature: str) -> str | None:
        return _LACKS.get(feature)

    async def create(self, log: str) -> None:
        """Does nothing: a log begins with its first ledger."""

    def address(self) -> dict[str, Any]:
        return {"zookeeper": self.running().zookeeper}

    def client(self, flavour: Flavour) -> str:
        return f"{__name__}:LedgerClient"


class LedgerClient(Client):
    """`Ledgers`, as an application would use it."""

    def __init__(self, ledgers: Ledgers, stack: AsyncExitStack) -> None:
        self._ledgers = ledgers
        self._stack = stack

    @classmethod
    async def connect(cls, address: Mapping[str, Any], options: Mapping[str, str]) -> LedgerClient:
        rng = random.Random(os.urandom(8))
        async with AsyncExitStack() as stack:
            connecting = ZooKeeperMetadata.connect(str(address["zookeeper"]), NAMESPACE)
            metadata = await stack.enter_async_context(await connecting)
            bookies = await stack.enter_async_context(BookieClient(resolver(metadata), rng=rng))
            ledgers = await stack.enter_async_context(Ledgers(metadata, bookies, rng=rng))
            return cls(ledgers, stack.pop_all())

    async def close(self) -> None:
        await self._stack.aclose()

    async def writer(self, log: str, on_answer: OnAnswer) -> LedgerLogWriter:
        return LedgerLogWriter(await self._ledgers.create(QUORUM, custom=((LOG, log.encode()),)), on_answer)

    async def read(
        self, log: str, *, tail: bool, follow: bool
    ) -> AsyncGenerator[tuple[Position, Sequence[bytes]], None]:
        if tail or follow:
            raise NotApplicable("ledgers are read from the start to the end only")
        for ledger in [ledger async for ledger in self._ledgers.list()]:
            if (LOG, log.encode()) not in (await self._ledgers.metadata_of(ledger)).custom:
                continue
            async for position, payloads in self._read(ledger):
                yield position, payloads

    async def _read(self, ledger: LedgerId) -> AsyncGenerator[tuple[Position, Sequence[bytes]], None]:
        reader = await self._ledgers.open(ledger)
        if reader.end is None:
            reader.learn_lac(await self._ledgers.last_confirmed(ledger))
        at, last = EntryId(0), reader.lac
        while NO_ENTRY < at <= last:
            payloads = await reader.read(at, last, READ_BYTES)
            yield (ledger, at), payloads
            at = EntryId(at + len(payloads))
        await reader.close()


class LedgerLogWriter(Writer):
    """One ledger. If it fails, so does all that is handed over later."""

    def __init__(self, writer: LedgerWriter, on_answer: OnAnswer) -> None:
        self._writer = writer
        self._on_answer = on_answer
        self._index = 0  # of the next record given to this writer
        self._waiting = 0  # records without an answer
        self._run: tuple[int, EntryId] | None = None  # first record and its entry, acknowledged but not reported
        self._count = 0  # records of this run
        self._all_answered = asyncio.Event()

    async def hand_over(self, records: Sequence[bytes]) -> None:
        for record in records:
            index, self._index = self._index, self._index + 1
            self._waiting += 1
            try:
                self._writer.submit((record,), partial(self._answered, index))
            except DLogError as error:
                self._answered(index, error)

    async def hand_over_batch(self, records: Sequence[bytes]) -> None:
        raise NotApplicable(_LACKS["batch"])

    async def append(self, record: bytes) -> Position | None:
        self._index += 1
        return self._writer.ledger_id, await self._writer.append((record,))

    async def flush(self) -> None:
        while self._waiting:
            self._all_answered.clear()
            await self._all_answered.wait()

    async def close(self) -> None:
        await self._writer.close()

    def _answered(self, index: int, result: EntryId | DLogError) -> None:
        """Note an answer; those of one turn of the event loop are reported together."""
        if isinstance(result, DLogError):
            self._report_run()
            self._waiting -= 1
            self._on_answer(Refused(index, 1, str(result), result.outcome_unknown))
            self._all_answered.set()
            return
        if self._run is not None and index != self._run[0] + self._count:
            self._report_run()
        if self._run is None:
            self._run = index, result
            asyncio.get_running_loop().call_soon(self._report_run)
        self._count += 1

    def _report_run(self) -> None:
        if self._run is None:
            return
        (index, entry), count = self._run, self._count
        self._run, self._count = None, 0
        self._waiting -= count
        self._on_answer(Acked(index, count, (self._writer.ledger_id, entry)))
        self._all_answered.set()
