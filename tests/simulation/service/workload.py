"""The load of a simulated cluster: producers, readers of every kind, truncations, clients that give up early.

Invariants:
- A client is used through its public interface, as an application would.
- Every answer goes into the stream's history (tests/history) with its virtual time. Nothing is checked here.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import dlog
from dlog.client.client import Client
from dlog.client.fate import Outcome
from dlog.client.options import ClientOptions
from dlog.client.position import START, Position, at_dlsn, at_txid
from dlog.errors import (
    DamagedError,
    DLogError,
    StreamExistsError,
    TruncatedError,
)
from dlog.model.dlsn import DLSN, DLSN_INVALID
from tests.history import End, History, start_at
from tests.history.records import RecordMaker
from tests.simulation.service.loop import Process, SimulatedLoop

REFUSED = 0.01  # share of the records appended one by one that the owner refuses


@dataclass(slots=True)
class StreamNotes:
    """One stream: its history, and what the workload remembers to choose from."""

    name: str
    history: History
    acked: list[tuple[DLSN, int]] = field(default_factory=list)  # (position, txid), as answered
    tail: DLSN | None = None  # the highest acknowledged position
    heard_ns: int = 0  # when the last append was acknowledged
    silence_ns: int = 0  # the longest time between two

    def heard(self, now_ns: int) -> None:
        """Note that an append is acknowledged."""
        self.silence_ns = max(self.silence_ns, now_ns - (self.heard_ns or now_ns))
        self.heard_ns = now_ns


@dataclass(slots=True)
class Follower:
    """A reader that follows the tail; `place` is the last position it received."""

    process: Process
    notes: StreamNotes
    place: DLSN | None = None
    heard_ns: int = 0  # when it received the last record
    silence_ns: int = 0  # the longest time between two

    def heard(self, place: DLSN, now_ns: int) -> None:
        """Note that it received records up to `place`."""
        self.place = place
        self.silence_ns = max(self.silence_ns, now_ns - (self.heard_ns or now_ns))
        self.heard_ns = now_ns

    @property
    def is_at_tail(self) -> bool:
        tail = self.notes.tail
        return self.process.is_dead or tail is None or (self.place is not None and self.place >= tail)


@dataclass(slots=True)
class Work:
    """What all clients of a trial share.

    until: when nothing new is begun. pace_s: mean pause of a producer between two batches.
    """

    loop: SimulatedLoop
    streams: list[StreamNotes]
    addresses: str
    options: ClientOptions
    impatient: ClientOptions  # of the clients that work while faults strike
    reached: Counter[str]
    pace_s: float
    look_s: float  # mean pause between two reads of a reader that comes and goes
    batch_max: int
    record_bytes: int
    cancels: float  # share of appends whose caller does not wait to the end
    is_over: Callable[[], bool]
    producers: int = 0
    waiting: int = 0  # appends without an answer
    followers: list[Follower] = field(default_factory=list)

    def producer(self) -> int:
        self.producers += 1
        return self.producers


def connect(work: Work, *, patient: bool = True) -> Client:
    return dlog.connect(work.addresses, options=work.options if patient else work.impatient)


async def writing(work: Work, client: Client, notes: StreamNotes, process: Process, number: int) -> None:
    """Append from one ordered source of records, batch after batch until the end of the trial."""
    loop, history = work.loop, notes.history
    rng = process.rng(f"producer {number}")
    maker = RecordMaker(number, max(16, int(work.record_bytes * rng.choice((0.2, 1.0, 1.0, 4.0)))))
    one_by_one: OneByOne | None = None
    if process.rng(f"ways of producer {number}").random() < 0.3:
        one_by_one = OneByOne(work, client, notes, number, maker, process.rng(f"refusals of producer {number}"))
    sequence = 0
    while True:
        await asyncio.sleep(rng.expovariate(1.0) * work.pace_s)
        if work.is_over():
            break
        count = rng.randint(1, work.batch_max)
        if one_by_one is not None:
            patience_s = rng.expovariate(1.0) * 0.05 if rng.random() < work.cancels else None
            await one_by_one.hand_over(count, patience_s)
            continue
        payloads = [maker.make(sequence + i) for i in range(count)]
        op = history.invoke(number, sequence, count, loop.now)
        sequence += count
        patience_s = rng.expovariate(1.0) * 0.05 if rng.random() < work.cancels else None
        work.waiting += 1
        try:
            async with asyncio.timeout(patience_s):
                result = await client.append_batch(notes.name, payloads)
        except TimeoutError:
            work.reached["append.cancelled"] += 1
        except DLogError as error:
            work.reached["append.unknown" if error.outcome_unknown else "append.failed"] += 1
            (history.unknown if error.outcome_unknown else history.failed)(op, loop.now)
        else:
            notes.heard(loop.now)
            work.reached["ack"] += 1
            work.reached["ack.again"] += result.duplicate
            history.ok(op, loop.now, result.first, result.txid, duplicate=result.duplicate)
            if result.first != DLSN_INVALID:
                notes.acked.append((result.first, result.txid))
                notes.tail = max(notes.tail or result.last, result.last)
        finally:
            work.waiting -= 1
    if one_by_one is not None:
        await one_by_one.end()


class OneByOne:
    """A producer that appends records one by one and gets answers for rows of them; each record is an operation."""

    def __init__(
        self, work: Work, client: Client, notes: StreamNotes, number: int, maker: RecordMaker, rng: random.Random
    ) -> None:
        self._work = work
        self._rng = rng
        self._client = client
        self._notes = notes
        self._number = number
        self._maker = maker
        self._sequence = 0
        self._ops: deque[int] = deque()  # records in the pipeline without an answer, in order
        self._is_waiting = False  # whether they count in `waiting`, also when the caller has given up
        self._pipeline = client.pipeline(notes.name, self._written)

    async def hand_over(self, count: int, patience_s: float | None) -> None:
        work, history = self._work, self._notes.history
        self._wait(True)
        try:
            async with asyncio.timeout(patience_s):
                for _ in range(count):
                    record = self._maker.make(self._sequence)
                    txid = 0 if self._rng.random() < REFUSED else None  # below all that the owner gives: refused
                    while not self._pipeline.append_nowait(record, txid=txid):
                        await self._pipeline.room()
                    self._ops.append(history.invoke(self._number, self._sequence, 1, work.loop.now))
                    self._sequence += 1
                await self._pipeline.drain()
        except TimeoutError:
            work.reached["append.cancelled"] += 1
        except DLogError as error:
            work.reached["append.unknown" if error.outcome_unknown else "append.failed"] += 1
            self._tell(error)
            self._pipeline = self._client.pipeline(self._notes.name, self._written)
        self._wait(bool(self._ops))  # records that the pipeline took before its caller gave up are written all the same

    def _tell(self, error: DLogError) -> None:
        """Note the outcome, from the pipeline's error, of each record without an answer."""
        history, now = self._notes.history, self._work.loop.now
        for fate in error.fates:
            for n in range(fate.count):
                op = self._ops.popleft()
                if fate.result is not None:
                    known = fate.result.first != DLSN_INVALID
                    place = fate.result.first.next_slot(n) if known else fate.result.first
                    history.ok(op, now, place, fate.result.txid, duplicate=fate.result.duplicate)
                elif fate.outcome is Outcome.UNKNOWN:
                    history.unknown(op, now)
                else:
                    history.failed(op, now)
                    self._work.reached["append.not_written"] += 1
        assert not self._ops, "the error of a pipeline tells the fate of every record that it took"

    async def end(self) -> None:
        """Wait until every record that the pipeline took has an answer."""
        if self._ops:
            await self.hand_over(0, None)
        self._wait(False)

    def _wait(self, is_waiting: bool) -> None:
        self._work.waiting += is_waiting - self._is_waiting
        self._is_waiting = is_waiting

    def _written(self, row: dlog.BatchResult) -> None:
        work, notes = self._work, self._notes
        notes.heard(work.loop.now)
        work.reached["ack"] += row.count
        work.reached["ack.row"] += 1
        known = row.first != DLSN_INVALID
        for n in range(row.count):
            place = row.first.next_slot(n) if known else row.first
            notes.history.ok(self._ops.popleft(), work.loop.now, place, row.txid, duplicate=row.duplicate)
        if known:
            notes.acked.append((row.first, row.txid))
            notes.tail = max(notes.tail or row.last, row.last)


async def following(work: Work, client: Client, notes: StreamNotes, process: Process, start: Position) -> None:
    """Follow the tail, from the start or from the present tail; open the reader again when it fails."""
    follower = Follower(process, notes)
    work.followers.append(follower)
    while True:
        await _read(work, client, notes, f"{process!r} follows {notes.name}", start, follower)
        await asyncio.sleep(0.5)


async def looking(work: Work, client: Client, notes: StreamNotes, name: str, rng: random.Random) -> None:
    """Read again and again: from the start, from a position or from a txid."""
    while not work.is_over():
        await asyncio.sleep(rng.expovariate(1.0) * work.look_s)
        if work.is_over():
            return
        start = START
        if notes.acked and rng.random() < 0.7:
            place, txid = rng.choice(notes.acked[-50:])
            start = at_dlsn(place) if rng.random() < 0.5 else at_txid(txid)
        await _read(work, client, notes, name, start)


async def read_all(work: Work, client: Client, notes: StreamNotes, name: str) -> End:
    """Read everything to the present tail."""
    return await _read(work, client, notes, name, START)


async def _read(
    work: Work, client: Client, notes: StreamNotes, name: str, start: Position, follower: Follower | None = None
) -> End:
    loop, history = work.loop, notes.history
    kind = start.kind.name.lower()
    value: Any = DLSN(*start.value) if kind == "dlsn" else start.value
    reader = history.open(name, start_at(kind, value), loop.now)
    end = End.OPEN
    try:
        async with contextlib.aclosing(client.read_batches(notes.name, start, follow=follower is not None)) as batches:
            async for batch in batches:
                history.delivered(reader, loop.now, batch.dlsn, batch.txid, batch.payloads)
                work.reached["delivered"] += len(batch)
                if follower is not None:
                    follower.heard(batch.last, loop.now)
        end = End.OPEN if follower is not None else End.TAIL
        work.reached[f"read.{kind}"] += 1
    except TruncatedError:
        end = End.TRUNCATED
        work.reached["read.truncated"] += 1
    except DamagedError:
        end = End.DAMAGED
        work.reached["read.damaged"] += 1
    except DLogError:
        work.reached["read.failed"] += 1
    history.end(reader, loop.now, end)
    return end


async def truncating(work: Work, client: Client, notes: StreamNotes, rng: random.Random) -> None:
    """Truncate the stream now and then."""
    while not work.is_over():
        await asyncio.sleep(rng.expovariate(1.0) * 2.0)
        if len(notes.acked) < 4 or work.is_over():
            continue
        place, _ = notes.acked[rng.randrange(len(notes.acked) // 2)]
        invoked = work.loop.now
        try:
            kept = await client.truncate(notes.name, place)
        except DLogError:
            notes.history.truncate(place, invoked)
            continue
        notes.history.truncate(place, invoked, work.loop.now, kept)
        work.reached["truncate"] += 1


async def create(client: Client, name: str, settings: dict[str, Any]) -> None:
    """Create the stream, or accept that it exists. Tried again while a proxy does not know enough bookies, which lasts
    until its next look if no watch fires."""
    for _ in range(125):
        try:
            await client.create(name, **settings)
        except StreamExistsError:
            return
        except DLogError:
            await asyncio.sleep(0.2)
        else:
            return
    await client.create(name, **settings)


async def append_last(work: Work, client: Client, notes: StreamNotes, tries: int) -> bool:
    """Append one record after all faults are over. Returns whether it was acknowledged."""
    for _ in range(tries):
        number = work.producer()
        op = notes.history.invoke(number, 0, 1, work.loop.now)
        try:
            result = await client.append_batch(notes.name, [RecordMaker(number, 16).make(0)])
        except DLogError as error:
            work.loop.note(f"the last append to {notes.name} failed: {error!r}")
            (notes.history.unknown if error.outcome_unknown else notes.history.failed)(op, work.loop.now)
            continue
        notes.history.ok(op, work.loop.now, result.first, result.txid, duplicate=result.duplicate)
        notes.tail = max(notes.tail or result.last, result.last)
        return True
    return False
