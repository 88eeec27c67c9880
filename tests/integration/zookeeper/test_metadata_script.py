"""Compares the models of metadata with real ZooKeeper: for one random script each step must have the same outcome.

The script is drawn from a seed alone: creates, compare-and-sets with the right version and with old ones, also of
earlier incarnations of a stream (the id of a ledger is used only once), claims, changes of the segment list, deletions,
lists and reads, by two clients in turn. Versions are opaque, so they are compared by their effect: which of all
versions ever given still lets a write through.

Compared are ZooKeeperMetadata on a real server, MemoryMetadata, and the versioned map of the simulated worlds
(tests/simulation/storage.py).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dlog.io.metadata import Metadata
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.machine import Key, Missing, Outcome, SeenOutcome, Versioned
from dlog.model.ids import BookieId, EntryId, Epoch, LedgerId, ProxyId, SegmentNumber, StreamName, Txid
from dlog.model.ledger import Fragment, LedgerKey, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.model.segment import Owner, Segment, StreamKey, StreamMetadata
from tests.deleting import delete_stream
from tests.memory_metadata import MemoryMetadata
from tests.simulation.storage import MetadataModel
from tests.stream_settings import SETTINGS

NAMESPACE = "/messaging/dlog"
STREAMS = [StreamKey(StreamName(name)) for name in ("a", "b")]
LEDGERS = [LedgerKey(LedgerId(number)) for number in (1, 70_000)]
STEPS = 150


class MapOfWorlds:
    """The simulation's versioned map as a Metadata. Worlds never delete a key, so it cannot here."""

    def __init__(self) -> None:
        self.model = MetadataModel()

    async def read(self, key: Key) -> Outcome:
        return self.model.read(key)

    async def compare_and_set(self, key: Key, value: object, version: object) -> SeenOutcome:
        return self.model.compare_and_set(key, value, version)


Step = tuple[str, int, Key, Any, int]  # operation, client number, key, change of the value, version number


def script(seed: int, *, deletes: bool) -> list[Step]:
    """Steps as values: they do not depend on the answers of a store."""
    rng = random.Random(f"metadata/{seed}")
    kinds = ["create", "change", "change", "change", "stale", "blind", "read"] + (["delete", "list"] if deletes else [])
    steps: list[Step] = []
    for number in range(STEPS):
        key: Key = rng.choice([*STREAMS, *LEDGERS])
        steps.append((rng.choice(kinds), rng.randrange(2), key, (rng.random(), number), rng.randrange(6)))
    return steps


def fresh(key: Key) -> Any:
    if isinstance(key, StreamKey):
        return StreamMetadata(name=key.stream, settings=SETTINGS)
    ensemble = (BookieId("b1:1"), BookieId("b2:1"))
    return LedgerMetadata(
        quorum=Quorum(ensemble=2, write=2, ack=1), fragments=(Fragment(EntryId(0), ensemble),), password=b"secret"
    )


def changed(value: Any, draw: tuple[float, int]) -> Any:
    """A value that may follow this one: a claim, a new segment, an end, a truncation; a change of ensemble."""
    chance, number = draw
    if isinstance(value, LedgerMetadata):
        if value.is_closed or chance < 0.2:
            return value
        if chance < 0.4:
            return value.in_recovery()
        if chance < 0.6:
            return value.closed_at(EntryId(value.fragments[-1].first_entry + 5), 10 * number)
        first = EntryId(value.fragments[-1].first_entry + 3)
        return value.with_ensemble(first, (BookieId(f"b{number}:1"), BookieId("b2:1")))
    assert isinstance(value, StreamMetadata)
    segments = value.segments
    if chance < 0.25:
        epoch = Epoch(value.owner.epoch + 1)
        return replace(value, owner=Owner(epoch=epoch, proxy=ProxyId("w"), address="h:1", claim=f"c{number}"))
    if chance < 0.35:
        return replace(value, allocated=str(number))
    if chance < 0.45:
        return replace(value, settings=replace(value.settings, retention_s=float(number)))
    if segments and not segments[-1].completed:
        last = segments[-1]
        ended = replace(
            last,
            completed=True,
            last_entry=EntryId(number),
            last_slot=1,
            last_txid=Txid(last.first_txid + 5),
            record_count=number + 1,
            completed_unix_ms=1_700_000_000_000 + number,
            start_sequence_id=0,
        )
        return replace(value.with_segment(ended), max_txid=ended.last_txid)
    if segments and chance < 0.6:
        return value.with_truncated_before(segments[0].number + number)
    if value.truncated and chance < 0.7:
        return value.with_marks(value.truncated[0].number + number)
    if value.truncated and chance < 0.8:
        return value.without_truncated(value.truncated[0].number)
    new = SegmentNumber(value.max_segment + 1)
    segment = Segment(number=new, name=str(1000 + number), first_txid=Txid(value.max_txid + 1))
    return replace(value.with_segment(segment), max_segment=new)


async def play(clients: list[Any], steps: list[Step]) -> list[Any]:
    """Perform a script; returns the outcome of each step. A write makes its value from that of the version it names."""
    given: dict[Key, list[Versioned]] = {}  # every version that was ever given for a key
    said: list[Any] = []

    def told(key: Key, outcome: Outcome) -> Any:
        if not isinstance(outcome, Versioned):
            return type(outcome).__name__
        given.setdefault(key, []).append(outcome)
        return ("value", outcome.value)

    for kind, who, key, draw, back in steps:
        client: Metadata = clients[who]
        known = given.get(key, [])
        match kind:
            case "create":
                said.append(told(key, await client.compare_and_set(key, fresh(key), None)))
            case "change":
                seen = await client.read(key)
                if isinstance(seen, Versioned):
                    outcome = await client.compare_and_set(key, changed(seen.value, draw), seen.version)
                    said.append(told(key, outcome))
                else:
                    said.append(type(seen).__name__)
            case "stale" | "blind":
                if not known:
                    said.append("nothing known")
                    continue
                old = known[-1 - min(back if kind == "stale" else 0, len(known) - 1)]
                said.append(told(key, await client.compare_and_set(key, changed(old.value, draw), old.version)))
            case "read":
                outcome = await client.read(key)
                said.append(outcome.value if isinstance(outcome, Versioned) else type(outcome).__name__)
            case "delete":
                if isinstance(key, LedgerKey):
                    await client.delete(key)
                    given.pop(key, None)  # never happens: a new ledger has a new id
                else:
                    assert isinstance(key, StreamKey)
                    await delete_stream(client, key.stream)
                said.append("deleted")
            case "list":
                said.append(sorted(await client.streams()))
                said.append([ledger async for ledger in client.ledgers()])
    return said


def differences(steps: list[Step], one: list[Any], two: list[Any]) -> str:
    """The first step whose outcomes differ; "" if none does."""
    for index, (a, b) in enumerate(zip(one, two, strict=True)):
        if a != b:
            return f"answer {index}: {a} and {b}"
    return ""


async def on_zookeeper(hosts: str, steps: list[Step]) -> list[Any]:
    async with (
        await ZooKeeperMetadata.connect(hosts, NAMESPACE) as one,
        await ZooKeeperMetadata.connect(hosts, NAMESPACE) as two,
    ):
        said = await play([one, two], steps)
        for stream in STREAMS:
            await delete_stream(one, stream.stream)
        for ledger in LEDGERS:
            await one.delete(ledger)
        return said


@pytest.mark.zookeeper
async def test_the_models_say_what_zookeeper_says(zookeeper_hosts: str) -> None:
    await cluster_init(zookeeper_hosts, NAMESPACE)
    for seed in range(6):
        steps = script(seed, deletes=True)
        real = await on_zookeeper(zookeeper_hosts, steps)
        memory = MemoryMetadata()
        assert differences(steps, real, await play([memory, memory], steps)) == "", f"seed {seed}"
        steps = script(seed, deletes=False)
        real = await on_zookeeper(zookeeper_hosts, steps)
        world = MapOfWorlds()
        assert differences(steps, real, await play([world, world], steps)) == "", f"seed {seed}, the map of the worlds"


async def test_a_script_meets_every_outcome() -> None:
    """Shows that the comparison covers conflicts, absences and successes, on streams and ledgers."""
    met: set[Any] = set()
    for seed in range(6):
        memory = MemoryMetadata()
        steps = script(seed, deletes=True)
        for answer in await play([memory, memory], steps):
            met.add(
                type(answer[1]).__name__ if isinstance(answer, tuple) else answer if isinstance(answer, str) else ""
            )
    assert {"Conflict", "Missing", "StreamMetadata", "LedgerMetadata", "deleted"} <= met


async def test_a_watch_is_called_for_each_change_on_a_model_as_on_zookeeper() -> None:
    memory = MemoryMetadata()
    calls: list[str] = []
    stop: Callable[[], None] = memory.watch(STREAMS[0], lambda: calls.append("called"))
    created = await memory.compare_and_set(STREAMS[0], fresh(STREAMS[0]), None)
    assert isinstance(created, Versioned)
    await memory.compare_and_set(STREAMS[0], fresh(STREAMS[0]), created.version)
    await memory.compare_and_set(STREAMS[0], fresh(STREAMS[0]), created.version)  # a conflict changes nothing
    await delete_stream(memory, STREAMS[0].stream)
    stop()
    assert await memory.compare_and_set(STREAMS[0], fresh(STREAMS[0]), 1) == Missing()
    await asyncio.sleep(0)
    assert calls == ["called"] * 4  # a deletion is two changes
