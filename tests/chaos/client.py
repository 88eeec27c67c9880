"""A client process: writers that append without pause and readers of every kind, with every operation on a tape.

Started by the harness: `python -m tests.chaos.client JSON`; SIGTERM ends the appends in order.

Invariants:
- An append is written to the tape before it is given to the client, and its answer after the program has it; so the
  times on the tape include the true ones between them.
- A failed append is noted with the outcome that its error states: unknown, or certainly not written.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dlog
from dlog.client.position import TAIL, Position, at_dlsn, at_txid
from dlog.errors import DamagedError, DLogError, TruncatedError
from dlog.model.dlsn import DLSN, DLSN_INVALID
from tests.history.notes import NEVER, End, start_at
from tests.history.records import RecordMaker
from tests.history.tape import Tape

RECORD_BYTES = 64
FLUSH_S = 0.1
_WINDOW = 12  # batches of a writer on their way
_KNOWN_MAX = 2000  # positions that seekers choose from
_PACE_S = 0.02


@dataclass(slots=True)
class Known:
    """Positions and txids of one stream that this process has learned."""

    places: list[tuple[DLSN, int]] = field(default_factory=list)

    def add(self, dlsn: DLSN, txid: int, rng: random.Random) -> None:
        if len(self.places) < _KNOWN_MAX:
            self.places.append((dlsn, txid))
        else:
            self.places[rng.randrange(_KNOWN_MAX)] = (dlsn, txid)


class Work:
    """The work of one process. streams: names by number."""

    def __init__(self, client: dlog.Client, tape: Tape, streams: list[str], seed: int) -> None:
        self.errors: Counter[str] = Counter()
        self.stopping = asyncio.Event()
        self._client = client
        self._tape = tape
        self._streams = streams
        self._rng = random.Random(seed)
        self._known = [Known() for _ in streams]
        self._following: set[asyncio.Timeout] = set()  # of reads that end only on request

    def stop(self) -> None:
        """Stop appending; readers end at their present positions."""
        self.stopping.set()
        now_s = asyncio.get_running_loop().time()
        for patience in self._following:
            patience.reschedule(now_s)

    # ---- writing ----------------------------------------------------------------------------------------------------

    async def write_batches(self, stream: int, producer: int, rate: int, batch: int, numbered: bool) -> None:
        """Append batches of `batch` records, `rate` records a second on average; missed ones are made up for. numbered:
        each batch has a txid given by this process."""
        make = RecordMaker(producer, RECORD_BYTES).make
        room = asyncio.Semaphore(_WINDOW)
        begun_s = time.monotonic()
        sequence = 0
        async with asyncio.TaskGroup() as tasks:
            while not self.stopping.is_set():
                if sequence >= rate * (time.monotonic() - begun_s):
                    await asyncio.sleep(_PACE_S)
                    continue
                await room.acquire()
                payloads = [make(i) for i in range(sequence, sequence + batch)]
                txid = 1000 + sequence // batch if numbered else None
                op = self._tape.invoke(stream, producer, sequence, batch, time.monotonic_ns(), txid)
                append = self._client.append_batch(self._streams[stream], payloads, txid=txid)
                task = tasks.create_task(self._batch(stream, op, append), name=f"batch {sequence}")
                task.add_done_callback(lambda _: room.release())
                sequence += batch
                await asyncio.sleep(0)

    async def _batch(self, stream: int, op: int, append: Awaitable[dlog.BatchResult]) -> None:
        try:
            result = await append
        except DLogError as error:
            self._failed(op, error)
            return
        self._tape.ok(op, time.monotonic_ns(), result.first, result.txid, duplicate=result.duplicate)
        if result.first != DLSN_INVALID:
            self._known[stream].add(result.first, result.txid, self._rng)

    async def write_singles(self, stream: int, producer: int, count: int) -> None:
        """Run `count` tasks that each await every record, all in the order of one producer."""
        make = RecordMaker(producer, RECORD_BYTES).make
        sequence = 0

        async def one() -> None:
            nonlocal sequence
            while not self.stopping.is_set():
                mine, sequence = sequence, sequence + 1
                op = self._tape.invoke(stream, producer, mine, 1, time.monotonic_ns())
                try:
                    place = await self._client.append(self._streams[stream], make(mine))
                except DLogError as error:
                    self._failed(op, error)
                    continue
                self._tape.ok(op, time.monotonic_ns(), place, -1)
                await asyncio.sleep(_PACE_S)

        async with asyncio.TaskGroup() as tasks:
            for n in range(count):
                tasks.create_task(one(), name=f"single {n}")

    def _failed(self, op: int, error: DLogError) -> None:
        self.errors[f"{'unknown' if error.outcome_unknown else 'failed'}: {type(error).__name__}"] += 1
        if error.outcome_unknown:
            self._tape.unknown(op, time.monotonic_ns())
        else:
            self._tape.failed(op, time.monotonic_ns())

    async def truncate(self, stream: int, every_s: float) -> None:
        """Truncate the older half of the known positions, again and again."""
        while not await self._is_over(every_s):
            places = sorted(self._known[stream].places)
            if not places:
                continue
            place = places[len(places) // 2][0]
            invoked = time.monotonic_ns()
            try:
                kept = await self._client.truncate(self._streams[stream], place)
            except DLogError as error:
                self.errors[f"truncate: {type(error).__name__}"] += 1
                self._tape.truncate(stream, place, invoked, NEVER, None)
                continue
            self._tape.truncate(stream, place, invoked, time.monotonic_ns(), kept)

    # ---- reading ----------------------------------------------------------------------------------------------------

    async def tail(self, stream: int) -> None:
        """Follow from the start. When no server can serve the read, start another one at its position."""
        start: tuple[str, DLSN | None] = ("start", None)
        while not self.stopping.is_set():
            last, end = await self._read(stream, *start, follow=True, limit=None)
            if end is End.TRUNCATED:
                start = ("start", None)
            elif last is not None:
                start = ("dlsn", last.next_slot())
            await self._is_over(0.2)

    async def seek(self, stream: int, every_s: float) -> None:
        """Make short reads from known positions and txids, from beside them, from the start and from the tail."""
        while not await self._is_over(every_s * (0.5 + self._rng.random())):
            rng, known = self._rng, self._known[stream].places
            kind = rng.choice(["dlsn", "dlsn", "txid", "txid", "start", "tail"]) if known else "start"
            limit = rng.choice([1, 10, 1000, 5000])
            value: DLSN | int | None = None
            if known and kind in ("dlsn", "txid"):
                dlsn, txid = rng.choice(known)
                value = (
                    dlsn.next_slot(rng.choice([0, 0, 1, 7, 100_000])) if kind == "dlsn" else txid + rng.randint(0, 1)
                )
            await self._read(stream, kind, value, follow=kind == "tail", limit=limit, deadline_s=5.0)

    async def catch_up(self, stream: int, every_s: float) -> None:
        """Read from some position to the present tail."""
        while not await self._is_over(every_s):
            known = sorted(self._known[stream].places)
            if known:
                await self._read(stream, "dlsn", known[int(len(known) * 0.9)][0], follow=False, limit=None)

    async def probe(self, stream: int, producer: int) -> None:
        """Append one record, and repeat until it is acknowledged."""
        make = RecordMaker(producer, RECORD_BYTES).make
        sequence = 0
        while True:
            op = self._tape.invoke(stream, producer, sequence, 1, time.monotonic_ns())
            try:
                place = await self._client.append(self._streams[stream], make(sequence))
            except DLogError as error:
                self._failed(op, error)
                sequence += 1
                await asyncio.sleep(_PACE_S)
                continue
            self._tape.ok(op, time.monotonic_ns(), place, -1)
            return

    async def read_all(self, stream: int) -> None:
        """Read from the start to the tail, for the checker."""
        await self._read(stream, "start", None, follow=False, limit=None)

    async def _read(
        self,
        stream: int,
        kind: str,
        value: DLSN | int | None,
        *,
        follow: bool,
        limit: int | None,
        deadline_s: float | None = None,
    ) -> tuple[DLSN | None, End]:
        """Make one read. Returns the last position it received, and how it ended."""
        tape, patience = self._tape, asyncio.timeout(deadline_s)
        last: DLSN | None = None
        count = 0
        reader = tape.open(stream, start_at(kind, value), time.monotonic_ns())
        end = End.OPEN
        try:
            async with patience:
                if follow:
                    self._following.add(patience)
                read = self._client.read_batches(
                    self._streams[stream], _position(kind, value), follow=follow, limit=limit
                )
                async with aclosing(read) as batches:
                    async for batch in batches:
                        tape.delivered(reader, time.monotonic_ns(), batch.dlsn, batch.txid, batch.payloads)
                        last, count = batch.last, count + len(batch)
                        self._known[stream].add(batch.dlsn, batch.txid, self._rng)
                end = End.TAIL if not follow and count != limit else End.OPEN
        except TimeoutError:
            pass
        except TruncatedError:
            end = End.TRUNCATED
        except DamagedError:
            end = End.DAMAGED
        except DLogError as error:
            self.errors[f"read: {type(error).__name__}"] += 1
        finally:
            self._following.discard(patience)
        tape.end(reader, time.monotonic_ns(), end)
        return last, end

    async def _is_over(self, after_s: float) -> bool:
        try:
            async with asyncio.timeout(after_s):
                await self.stopping.wait()
        except TimeoutError:
            return False
        return True

    async def flush(self) -> None:
        """Flush the tape to the kernel, for as long as this process runs."""
        while True:
            await asyncio.sleep(FLUSH_S)
            self._tape.flush()


def _position(kind: str, value: DLSN | int | None) -> Position | None:
    if isinstance(value, DLSN):
        return at_dlsn(value)
    if kind == "txid":
        assert value is not None
        return at_txid(value)
    return TAIL if kind == "tail" else None


async def main(told: dict[str, Any]) -> int:
    tape = Tape(Path(told["tape"]))
    async with dlog.connect(told["target"], append_deadline_s=told["append_deadline_s"]) as client:
        work = Work(client, tape, told["streams"], told["seed"])
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, work.stop)
        async with asyncio.TaskGroup() as always:
            flushing = always.create_task(work.flush(), name="flush")
            async with asyncio.TaskGroup() as tasks:
                for job in told["jobs"]:
                    act = getattr(work, job.pop("do"))
                    tasks.create_task(act(**job), name=f"{act.__name__} {job}")
            flushing.cancel()
    tape.close()
    print(json.dumps(work.errors), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main(json.loads(sys.argv[1]))))
