"""Appends through two proxies with every kind of failure, by seed: nothing acknowledged is lost, doubled or reordered.

Each rule has a mutant of the producer that breaks it, and the same seeds must find it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

import dlog
from dlog.client import client as client_module
from dlog.client.batch import Batch
from dlog.client.connection import Connection
from dlog.client.fate import Fate, Outcome
from dlog.client.pipeline import Pipeline
from dlog.client.producer import Producer
from dlog.client.producer_identity import NAME_BYTES
from dlog.client.routing import Router
from dlog.errors import DLogError
from dlog.model.dlsn import DLSN_INVALID
from dlog.wire import proxy
from tests.unit.client.proxy_double import Double, Log, Peer

SEEDS = range(30)
BATCHES = 40
FAULTS_MAX = 12


class Trouble:
    """A script that fails writes in a drawn way, at most a given number of times."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._left = FAULTS_MAX
        self.others: dict[str, str] = {}

    def __call__(self, peer: Peer, message: proxy.Message) -> bool:
        if not isinstance(message, proxy.Write) or not self._left or self._rng.random() > 0.3:
            return False
        self._left -= 1
        double = peer.double
        match self._rng.randrange(5):
            case 0:  # written, and the answer is lost
                double.log.write(message)
                peer.cut()
            case 1:  # lost before it was written
                peer.cut()
            case 2:
                peer.send(proxy.Failed(message.request, 517, "too much"))
            case 3:
                peer.send(proxy.Failed(message.request, 302, "elsewhere", self.others[double.address]))
            case 4:  # it drains: answers this one and takes no more
                peer.send(proxy.GoAway(0, "drain"))
                peer.send(double.log.write(message))
        return True


async def run(seed: int) -> str | None:
    """The first fault in one history, None if there is none."""
    rng = random.Random(seed)
    log, trouble = Log(), Trouble(rng)
    sent: list[bytes] = []
    async with Double(log, script=trouble) as first, Double(log, script=trouble) as second:
        trouble.others = {first.address: second.address, second.address: first.address}
        told: list[dlog.BatchResult] = []
        async with dlog.connect(
            f"dlog://{first.address},{second.address}",
            append_deadline_s=5.0,
            backoff_first_s=0.001,
            backoff_max_s=0.002,
            retry_burst=10_000,
            inflight_batches_max=rng.randint(1, 5),
        ) as client:
            pipeline = client.pipeline("s", told.append)
            for n in range(BATCHES):
                batch = [b"%d.%d" % (n, i) for i in range(rng.randint(1, 4))]
                sent += batch
                if rng.random() < 0.5:
                    await pipeline.put(batch)
                else:
                    for record in batch:
                        assert pipeline.append_nowait(record), "the buffer is larger than all of it"
                if rng.random() < 0.3:
                    await asyncio.sleep(0)
            try:
                await pipeline.drain()
            except DLogError as error:
                return f"an append failed: {error!r}"
    if Counter(sent) - Counter(log.payloads):
        return "a record is lost"
    if Counter(log.payloads) - Counter(sent):
        return "a record is there twice"
    if log.payloads != sent:
        return "records changed places"
    at = 0
    for row in told:
        if row.index != at:
            return "a row is not told, or told twice"
        at += row.count
        if row.first != DLSN_INVALID and log.at(row.first, row.count) != sent[row.index : at]:
            return "a row says where other records lie"
    if at != len(sent):
        return "records are not told of"
    return None


@pytest.mark.parametrize("seed", SEEDS)
async def test_every_record_is_written_once_and_in_order(seed: int) -> None:
    assert await run(seed) is None


class Refusing(Trouble):
    """As Trouble; in addition some batches are refused for good, or never answered."""

    def __call__(self, peer: Peer, message: proxy.Message) -> bool:
        if isinstance(message, proxy.Write) and self._left and self._rng.random() < 0.1:
            self._left -= 1
            if self._rng.random() < 0.8:
                peer.send(proxy.Failed(message.request, self._rng.choice((413, 513, 510)), "refused for good"))
            return True
        return super().__call__(peer, message)


async def run_to_failure(seed: int) -> str | None:
    """The first wrong report about records of two pipelines that fail one after the other; None if there is none."""
    rng = random.Random(seed)
    log, trouble = Log(), Refusing(rng)
    fates: dict[bytes, Outcome] = {}
    async with Double(log, script=trouble) as first, Double(log, script=trouble) as second:
        trouble.others = {first.address: second.address, second.address: first.address}
        async with dlog.connect(
            f"dlog://{first.address},{second.address}",
            append_deadline_s=0.5,
            backoff_first_s=0.001,
            backoff_max_s=0.002,
            retry_burst=10_000,
            inflight_batches_max=rng.randint(1, 5),
            batch_bytes_max=rng.choice((20, 1000)),
        ) as client:

            async def source(name: int) -> None:
                taken: list[bytes] = []
                told: list[dlog.BatchResult] = []
                pipeline = client.pipeline("s", told.append)

                def note_fates(failed: tuple[Fate, ...]) -> None:
                    runs = [(row.index, row.count, Outcome.WRITTEN) for row in told]
                    runs += [(fate.index, fate.count, fate.outcome) for fate in failed]
                    for index, count, outcome in runs:
                        fates.update(dict.fromkeys(taken[index : index + count], outcome))
                    assert sum(count for _, count, _ in runs) == len(taken), "each record is told once"
                    taken.clear()
                    told.clear()

                for n in range(BATCHES):
                    record = b"%d.%d" % (name, n)
                    try:
                        if rng.random() < 0.5:
                            await pipeline.put([record])
                        else:
                            while not pipeline.append_nowait(record):
                                await pipeline.room()
                        taken.append(record)
                        if rng.random() < 0.2:
                            await pipeline.drain()
                    except DLogError as error:
                        note_fates(error.fates)
                        pipeline = client.pipeline("s", told.append)
                try:
                    await pipeline.drain()
                except DLogError as error:
                    note_fates(error.fates)
                else:
                    note_fates(())

            async with asyncio.TaskGroup() as sources:
                for name in range(2):
                    sources.create_task(source(name))
    found = Counter(log.payloads)
    for record, outcome in fates.items():
        least, most = {Outcome.WRITTEN: (1, 1), Outcome.NOT_WRITTEN: (0, 0), Outcome.UNKNOWN: (0, 1)}[outcome]
        if not least <= found[record] <= most:
            return f"told {outcome.value}, and {found[record]} times in the log"
    return None


@pytest.mark.parametrize("seed", SEEDS)
async def test_the_fate_of_every_record_is_told_truthfully(seed: int) -> None:
    assert await run_to_failure(seed) is None


def _forgets_what_may_be_written(self: Producer, batch: Batch, error: DLogError) -> None:
    """Defect: reports the outcome of the last answer alone."""
    batch.done = True
    self.queue.room.held -= batch.size
    batch.failed(error)


def _leaves_records_in(self: Batch) -> int:
    """Defect: reports withdrawn records as not written, and sends them all the same."""
    for listener in self.listeners:
        if listener.is_withdrawn:
            listener.withdrawn()
    return 0


@pytest.mark.parametrize(
    ("cls", "name", "wrong"),
    [(Producer, "_fail", _forgets_what_may_be_written), (Batch, "withdraw", _leaves_records_in)],
)
async def test_mutants_that_tell_falsely_are_caught(
    cls: Any, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cls, name, wrong)
    for seed in SEEDS:
        if await run_to_failure(seed) is not None:
            return
    pytest.fail("no seed tells this mutant from the client")


class NewIdAtEachConnection(Producer):
    """Defect: sends batches that may be written again as new ones."""

    def _attach(self, connection: Connection) -> None:
        identity = self._identity
        identity.producer_id = os.urandom(NAME_BYTES) + identity.producer_id[NAME_BYTES:]
        identity.sequence = 0
        for batch in self.queue.ready:
            batch.may_be_written = False
            batch.sequence = batch.generation = -1
        super()._attach(connection)


class ForgetsWhatWasSent(Producer):
    """Defect: takes batches in flight at a lost connection for written."""

    def _detach(self) -> None:
        for batch in tuple(self.queue.in_flight):
            self.on_written(batch, dlog.DLSN(1, 0, 0), 1, False, 5)  # type: ignore[arg-type]
        super()._detach()


class PutsBackAtTheEnd(Producer):
    """Defect: sends refused batches after later ones, under a new producer."""

    def __init__(self, stream: str, router: Router, options: dlog.ClientOptions) -> None:
        super().__init__(stream, router, options)
        self.queue.put_back = lambda batch: self.queue.ready.append(batch)  # type: ignore[method-assign]

    def _renew(self) -> None:
        for batch in self.queue.ready:
            batch.may_be_written = False
        super()._renew()

    def on_refused(self, connection: Connection, batch: Batch, error: DLogError) -> None:
        self._identity.is_renewal_due = True
        super().on_refused(connection, batch, error)


class NumbersABatchBeforeTheLot(Pipeline):
    """Defect: puts the given batch before records that were appended one by one earlier."""

    async def put(self, payloads: Sequence[bytes], *, txid: int | None = None) -> None:
        before, self._taken = self._taken, self._taken + len(payloads)
        await super().put(payloads, txid=txid)
        self._rows[-1].index = before
        self._taken -= len(payloads)


@pytest.mark.parametrize(
    "mutant", [NewIdAtEachConnection, ForgetsWhatWasSent, PutsBackAtTheEnd, NumbersABatchBeforeTheLot]
)
async def test_mutants_are_caught(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, mutant.__base__.__name__, mutant)
    for seed in SEEDS:
        if await run(seed) is not None:
            return
    pytest.fail("no seed tells this mutant from the producer")
