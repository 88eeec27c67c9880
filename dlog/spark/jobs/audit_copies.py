"""Reads one bookie's copies of a ledger.

Invariants:
- the reply of a bookie that it lacks a copy, or cannot read it, counts once it was repeated; a bookie that does not
  reply gives no information on its copies;
- memory holds one extent; nothing is fenced or written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dlog.errors import ConnectionLostError, UnavailableError
from dlog.io.bookie_client import BookieRequester
from dlog.io.clock import SYSTEM_CLOCK
from dlog.machine import Fact, PeerLost, Received
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.options import MiB
from dlog.spark.cluster_connection import PAUSE_FIRST_S, PAUSE_MAX_S
from dlog.spark.jobs.audit_findings import Kind
from dlog.spark.planning import Range
from dlog.wire.bookie import BatchRead, BatchReadDone, Code, EntryRead, ReadEntry
from dlog.wire.digest import Buffer, Digest, DigestMismatch, Entry

EXTENT_BYTES = 4 * MiB  # of one request, where one copy is read
EXTENT_SHARED_BYTES = 2 * MiB  # of one request, where several copies are read
ASKED_AGAIN = 4  # `patience_s` is spent at most this many times on one bookie in a task

AWAY_S = 60.0  # for this time after a bookie was unreachable, later tasks of the process retry it only once

_ABSENT = (Code.NO_ENTRY, Code.NO_LEDGER)
_SAYS = (Code.OK, *_ABSENT, Code.IO_ERROR)  # replies about a copy; other codes are temporary, or concern the request
_NO_BATCHES = (Code.BAD_REQUEST, Code.BAD_VERSION, Code.UNAUTHORIZED)

_unreachable_since_s: dict[BookieId, float] = {}  # unreachable bookies, and when that was noticed


class Fault(NamedTuple):
    """Why there is no good copy."""

    kind: Kind
    found: str


Copy = Entry | Fault | None  # None: not requested, since the bookie should not have it or is unreachable


class Lost(NamedTuple):
    """A bookie could not be reached, from this entry of a range on."""

    of: Range
    first: int
    bookie: str
    reason: str


@dataclass(slots=True)
class TaskReading:
    """How one task reads, and what it noticed. rate_bytes_s: 0: no limit. patience_s: how long an entry is requested
    again from a bookie that replies that it does not have it."""

    all_replicas: bool = True
    retries: int = 3
    rate_bytes_s: int = 0
    patience_s: float = 3.0
    lost: list[Lost] = field(default_factory=list)
    away: dict[BookieId, str] = field(default_factory=dict)  # unreachable bookies, and why
    waited_s: dict[BookieId, float] = field(default_factory=dict)  # for missing copies
    begun_s: float = field(default_factory=SYSTEM_CLOCK.monotonic_s)
    bytes: int = 0

    async def hold_rate(self, more: int) -> None:
        """Wait until the bytes read are within the rate."""
        self.bytes += more
        if self.rate_bytes_s:
            due_s = self.begun_s + self.bytes / self.rate_bytes_s
            await asyncio.sleep(max(0.0, due_s - SYSTEM_CLOCK.monotonic_s()))


class BookieUnreachableError(UnavailableError):
    """A bookie cannot be reached."""


class Replica:
    """Reads one bookie's copies of a ledger, in order. An unreachable bookie is not tried again in the same task."""

    def __init__(self, reads: BookieReads, bookie: BookieId, digest: Digest, reading: TaskReading) -> None:
        self.bookie = bookie
        self.copies: deque[Copy] = deque()
        self.is_reported = False
        self._reads = reads
        self._digest = digest
        self._reading = reading
        self._bytes = EXTENT_SHARED_BYTES if reading.all_replicas else EXTENT_BYTES
        self._batches: bool | None = None  # whether it supports batch reads; None: unknown

    @property
    def is_away(self) -> bool:
        return self.bookie in self._reading.away

    @property
    def reason(self) -> str:
        return self._reading.away.get(self.bookie, "")

    async def fill(self, entry: int, last: int) -> None:
        """Fetch at least the copy of `entry`, if none is buffered and the bookie can be reached."""
        if self.copies or self.is_away:
            return
        try:
            self.copies += await self._read(entry, last)
        except BookieUnreachableError as error:
            self._reading.away[self.bookie] = error.message

    def take(self, count: int) -> list[Copy]:
        return [self.copies.popleft() for _ in range(count)]

    async def single(self, entry: int) -> Copy:
        """One copy; None if the bookie is unreachable."""
        if self.is_away:
            return None
        try:
            return (await self._read(entry, entry))[0]
        except BookieUnreachableError as error:
            self._reading.away[self.bookie] = error.message
            return None

    async def _read(self, entry: int, last: int) -> list[Copy]:
        """Copies from `entry` on, at least one. Raises BookieUnreachableError."""
        code, packets = await self._ask(entry, last)
        waited_s, left_s = self._reading.waited_s, self._reading.patience_s
        left_s = min(left_s, ASKED_AGAIN * left_s - waited_s.get(self.bookie, 0.0))
        pause_s = PAUSE_FIRST_S
        while code is not Code.OK and left_s > 0:
            await asyncio.sleep(pause_s)
            waited_s[self.bookie] = waited_s.get(self.bookie, 0.0) + pause_s
            left_s -= pause_s
            pause_s *= 2
            code, packets = await self._ask(entry, last)
        if code is not Code.OK:
            kind = Kind.MISSING if code in _ABSENT else Kind.UNREADABLE
            return [Fault(kind, code.name.lower())]
        return [self._verified(number, packet) for number, packet in enumerate(packets, entry)]

    def _verified(self, entry: int, packet: Buffer) -> Copy:
        try:
            return self._digest.verify(packet, entry)
        except DigestMismatch as error:
            return Fault(Kind.DIGEST, error.message)

    async def _ask(self, entry: int, last: int) -> tuple[Code, Sequence[Buffer]]:
        """The bookie's reply for the copy of `entry`, and following ones. Raises BookieUnreachableError."""
        pause_s, reason = PAUSE_FIRST_S, ""
        is_doubtful = SYSTEM_CLOCK.monotonic_s() < _unreachable_since_s.get(self.bookie, -AWAY_S) + AWAY_S
        for number in range(min(self._reading.retries, 1 if is_doubtful else self._reading.retries) + 1):
            if number:
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            ledger = self._digest.ledger_id
            is_batch = last > entry and self._batches is not False
            try:
                if is_batch:
                    done = await self._reads.batch(self.bookie, ledger, entry, last + 1 - entry, self._bytes)
                    code, packets = done.code, done.packets[: last + 1 - entry]
                    if code is Code.OK and not packets:
                        code = Code.BAD_REQUEST
                else:
                    read = await self._reads.single(self.bookie, ledger, entry)
                    code, packets = read.code, (read.packet,)
            except ConnectionLostError as error:
                reason = error.message
                if is_batch and self._batches is None:
                    self._batches = False  # a bookie without batch reads closes the connection
                continue
            if code in _SAYS:
                _unreachable_since_s.pop(self.bookie, None)
                self._batches = self._batches or (True if is_batch else self._batches)
                return code, packets
            reason = f"it replies {code.name.lower()}"
            if is_batch and code in _NO_BATCHES:
                self._batches = False
        _unreachable_since_s[self.bookie] = SYSTEM_CLOCK.monotonic_s()
        raise BookieUnreachableError(reason)


class BookieReads:
    """Sends read requests to bookies and passes each response to its caller."""

    def __init__(self, asker: BookieRequester) -> None:
        self._asker = asker
        self._asker.post = self._receive
        self._waiting: dict[tuple[str, int, int], asyncio.Future[BatchReadDone | EntryRead]] = {}
        self._batches = 0

    def close(self) -> None:
        self._asker.close()

    async def batch(self, bookie: BookieId, ledger: LedgerId, first: int, count: int, size: int) -> BatchReadDone:
        """Raises ConnectionLostError."""
        self._batches += 1
        number = self._batches
        request = BatchRead(ledger, EntryId(first), number, count, size)
        answer = await self._ask((bookie, -1, number), lambda: self._asker.send(bookie, request))
        assert isinstance(answer, BatchReadDone)
        return answer

    async def single(self, bookie: BookieId, ledger: LedgerId, entry: int) -> EntryRead:
        """Raises ConnectionLostError."""
        request = ReadEntry(ledger, EntryId(entry))
        answer = await self._ask((bookie, ledger, entry), lambda: self._asker.send(bookie, request))
        assert isinstance(answer, EntryRead)
        return answer

    async def _ask(self, key: tuple[str, int, int], send: Callable[[], None]) -> BatchReadDone | EntryRead:
        assert key not in self._waiting, "a copy is requested once at a time"
        future = self._waiting[key] = asyncio.get_running_loop().create_future()
        try:
            send()
            answer: BatchReadDone | EntryRead = await future
            return answer
        finally:
            self._waiting.pop(key, None)

    def _receive(self, fact: Fact) -> None:
        match fact:
            case Received(bookie, BatchReadDone() as answer):
                self._deliver((str(bookie), -1, answer.request), answer)
            case Received(bookie, EntryRead() as answer):
                self._deliver((str(bookie), answer.ledger, answer.entry), answer)
            case PeerLost(bookie, reason):
                for key, future in list(self._waiting.items()):
                    if key[0] == bookie and not future.done():
                        future.set_exception(ConnectionLostError(reason or "the connection was lost"))

    def _deliver(self, key: tuple[str, int, int], answer: BatchReadDone | EntryRead) -> None:
        future = self._waiting.get(key)
        if future is not None and not future.done():
            future.set_result(answer)
