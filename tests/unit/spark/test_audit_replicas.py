"""Audits copies of entries on bookies whose answers the test sets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from dlog.errors import ConnectionLostError, LedgerNotFoundError
from dlog.machine import Fact, PeerLost, Received
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import DigestType, Fragment, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.spark.cluster_connection import Cluster
from dlog.spark.jobs.audit_copies import Copy, Fault, TaskReading
from dlog.spark.jobs.audit_findings import Kind
from dlog.spark.jobs.audit_replicas import Extent, entry_length, extents
from dlog.spark.jobs.audit_work import AuditParameters, examine
from dlog.spark.planning import Range
from dlog.wire.bookie import BatchRead, BatchReadDone, Code, EntryRead, ReadEntry
from dlog.wire.digest import Digest, Entry
from tests.unit.spark.audit_parts import lay, packed

LEDGER = LedgerId(7)
A, B, C, D = (BookieId(name) for name in "abcd")
LAID = lay(packed([[[b"x" * n]] for n in range(10)]))
DIGEST = Digest(LEDGER, DigestType.CRC32C)
PACKETS = [
    b"".join(map(bytes, DIGEST.pack(entry, entry - 1, length, (payload,))))
    for entry, (payload, length) in enumerate(zip(LAID.payloads, LAID.lengths, strict=True))
]
WHOLE = Range(stream="s", segment=1, name=str(LEDGER), store="ledger", first=0, last=9)


@dataclass
class Bookies:
    """held: each bookie's answer for its entries, a packet or a code; other entries are missing. down: bookies that do
    not answer. old: bookies that do not know batch reads. on_ask: called before each answer."""

    held: dict[BookieId, dict[int, bytes | Code]] = field(default_factory=dict)
    down: set[BookieId] = field(default_factory=set)
    old: set[BookieId] = field(default_factory=set)
    ensembles: list[tuple[int, tuple[BookieId, ...]]] = field(default_factory=lambda: [(0, (A, B, C))])
    write: int = 3
    asked: Counter[tuple[str, BookieId]] = field(default_factory=Counter)
    on_ask: Callable[[Bookies, BookieId], None] = lambda *_: None

    def __post_init__(self) -> None:
        for bookie in (A, B, C, D):
            self.held.setdefault(bookie, dict(enumerate(PACKETS)))

    @property
    def cluster(self) -> Cluster:
        return Cluster(cast(Any, self), cast(Any, self), {})

    async def metadata_of(self, ledger: LedgerId) -> LedgerMetadata:
        self.asked["metadata", BookieId("")] += 1
        if not self.ensembles:
            raise LedgerNotFoundError("gone")
        return LedgerMetadata(
            quorum=Quorum(ensemble=3, write=self.write, ack=self.write),
            fragments=tuple(Fragment(EntryId(first), ensemble) for first, ensemble in self.ensembles),
        )

    def asker(self) -> _Asker:
        return _Asker(self)


class _Asker:
    def __init__(self, bookies: Bookies) -> None:
        self.bookies = bookies
        self.post: Callable[[Fact], None] = lambda _: None

    def send(self, bookie: BookieId, message: BatchRead | ReadEntry) -> None:
        world = self.bookies
        world.on_ask(world, bookie)
        kind = "batch" if isinstance(message, BatchRead) else "single"
        world.asked[kind, bookie] += 1
        if bookie in world.down and world.asked[kind, bookie] % 2:
            raise ConnectionLostError("was lost a moment ago")
        loop = asyncio.get_running_loop()
        if bookie in world.down or (kind == "batch" and bookie in world.old):
            loop.call_soon(lambda: self.post(PeerLost(bookie, "closed")))
        else:
            loop.call_soon(lambda: self.post(Received(bookie, self.answer(bookie, message))))

    def answer(self, bookie: BookieId, message: BatchRead | ReadEntry) -> BatchReadDone | EntryRead:
        held = self.bookies.held[bookie]
        if isinstance(message, ReadEntry):
            found = held.get(message.entry, Code.NO_ENTRY)
            if isinstance(found, Code):
                return EntryRead(message.ledger, message.entry, found)
            return EntryRead(message.ledger, message.entry, Code.OK, found)
        packets: list[bytes] = []
        code = Code.OK
        for entry in range(message.start, message.start + message.max_count):
            found = held.get(entry, Code.NO_ENTRY)
            if isinstance(found, Code) or len(packets) == 4:
                code = found if isinstance(found, Code) and not packets else code
                break
            packets.append(found)
        return BatchReadDone(message.ledger, message.start, message.request, code, tuple(packets))

    def close(self) -> None: ...


async def read(bookies: Bookies, of: Range = WHOLE, **given: Any) -> tuple[list[Extent], TaskReading]:
    reading = TaskReading(**{"retries": 1, "patience_s": 0.15, **given})
    return [extent async for extent in extents(bookies.cluster, of, reading)], reading


def copies(found: list[Extent]) -> dict[BookieId, dict[int, str]]:
    """The result for each copy: good, or the kind of its fault."""
    told: dict[BookieId, dict[int, str]] = {}
    for extent in found:
        for bookie, row in zip(extent.bookies, extent.copies, strict=True):
            for entry, copy in enumerate(row, extent.first):
                if copy is not None:
                    told.setdefault(bookie, {})[entry] = _word(copy)
    return told


def _word(copy: Copy) -> str:
    return copy.kind if isinstance(copy, Fault) else "well"


ALL = dict.fromkeys(range(10), "well")


async def test_every_copy_is_read_in_few_questions() -> None:
    bookies = Bookies()
    found, reading = await read(bookies)
    assert copies(found) == {A: ALL, B: ALL, C: ALL}
    assert [(extent.first, extent.entries) for extent in found] == [(0, 4), (4, 4), (8, 2)]
    assert bookies.asked["batch", A] == 3 and not bookies.asked["single", A]
    assert reading.lost == []
    (copy,) = {copy for extent in found for copy in extent.copies[0][:1] if extent.first == 0}
    assert isinstance(copy, Entry) and copy.payload == LAID.payloads[0] and copy.length == LAID.lengths[0]


async def test_one_copy_is_read_where_one_will_do_and_not_always_of_the_same_bookie() -> None:
    assert copies((await read(Bookies(), all_replicas=False))[0]) == {A: ALL}
    part = Range(stream="s", segment=1, name=str(LEDGER), store="ledger", first=4, last=9)
    assert copies((await read(Bookies(), part, all_replicas=False))[0]) == {B: dict.fromkeys(range(4, 10), "well")}


async def test_what_is_wrong_with_a_copy_is_said_of_that_copy() -> None:
    bookies = Bookies()
    bookies.held[A][2] = PACKETS[2][:-1] + b"?"
    bookies.held[A][3] = PACKETS[4]
    bookies.held[B][5] = Code.IO_ERROR
    del bookies.held[C][7], bookies.held[C][8]
    told = copies((await read(bookies))[0])
    assert told == {
        A: ALL | {2: Kind.DIGEST, 3: Kind.DIGEST},
        B: ALL | {5: Kind.UNREADABLE},
        C: ALL | {7: Kind.MISSING, 8: Kind.MISSING},
    }


async def test_where_the_one_copy_is_none_the_next_is_asked_for() -> None:
    bookies = Bookies()
    del bookies.held[A][6]
    bookies.held[B][6] = Code.IO_ERROR
    told = copies((await read(bookies, all_replicas=False))[0])
    assert told == {A: ALL | {6: Kind.MISSING}, B: {6: Kind.UNREADABLE}, C: {6: "well"}}


async def test_an_entry_on_its_way_is_waited_for() -> None:
    bookies = Bookies()
    del bookies.held[A][9]

    def arrive(world: Bookies, _: BookieId) -> None:
        if world.asked["single", A] > 1:
            world.held[A][9] = PACKETS[9]

    bookies.on_ask = arrive
    assert copies((await read(bookies, patience_s=3.0))[0])[A] == ALL


async def test_patience_is_not_spent_on_each_of_very_many() -> None:
    bookies = Bookies()
    bookies.held[A] = {}
    found, reading = await read(bookies)
    assert copies(found)[A] == dict.fromkeys(range(10), Kind.MISSING)
    assert reading.waited_s[A] < 5 * 0.3


async def test_who_is_away_is_told_of_and_the_others_are_read() -> None:
    bookies = Bookies(down={B})
    found, reading = await read(bookies)
    assert copies(found) == {A: ALL, C: ALL}
    assert [(lost.bookie, lost.first) for lost in reading.lost] == [(B, 0)]
    found, reading = await read(bookies, all_replicas=False)
    assert copies(found) == {A: ALL} and reading.lost == []
    part = Range(stream="s", segment=1, name=str(LEDGER), store="ledger", first=1, last=9)
    found, reading = await read(bookies, part, all_replicas=False)
    assert copies(found) == {C: dict.fromkeys(range(1, 10), "well")} and reading.lost == []


@pytest.mark.parametrize("all_replicas", [True, False])
async def test_if_nobody_can_be_asked_nothing_is_said_of_the_entries(all_replicas: bool) -> None:
    bookies = Bookies(down={A, B, C})
    found, reading = await read(bookies, all_replicas=all_replicas)
    assert found == []
    assert sorted(lost.bookie for lost in reading.lost) == [A, B, C]


async def test_a_fault_is_no_proof_that_the_entry_is_lost_while_others_are_away() -> None:
    bookies = Bookies(down={B, C})
    del bookies.held[A][6]
    found, reading = await read(bookies, all_replicas=False)
    assert copies(found) == {A: ALL | {6: Kind.MISSING}}
    assert sorted(lost.bookie for lost in reading.lost) == [B, C]


async def test_a_bookie_that_knows_no_batches_is_asked_entry_by_entry() -> None:
    bookies = Bookies(old={A})
    found, reading = await read(bookies)
    assert copies(found) == {A: ALL, B: ALL, C: ALL} and reading.lost == []
    assert (bookies.asked["batch", A], bookies.asked["single", A]) == (1, 10)


async def test_fragments_have_bookies_of_their_own() -> None:
    bookies = Bookies(ensembles=[(0, (A, B, C)), (6, (A, D, C))])
    told = copies((await read(bookies))[0])
    assert told[B] == dict.fromkeys(range(6), "well") and told[D] == dict.fromkeys(range(6, 10), "well")
    assert told[A] == told[C] == ALL


@pytest.mark.parametrize("all_replicas", [True, False])
async def test_striped_entries_are_sought_where_they_should_be(all_replicas: bool) -> None:
    bookies = Bookies(write=2)
    for number, bookie in enumerate((A, B, C)):
        bookies.held[bookie] = {e: p for e, p in enumerate(PACKETS) if (number - e) % 3 < 2}
    told = copies((await read(bookies, all_replicas=all_replicas))[0])
    if all_replicas:
        assert {b: set(told[b]) for b in told} == {b: set(bookies.held[b]) for b in told}
    assert sum(map(len, told.values())) == (20 if all_replicas else 10)
    assert {word for row in told.values() for word in row.values()} == {"well"}
    del bookies.held[A][3]
    told = copies((await read(bookies, all_replicas=all_replicas))[0])
    assert told[A][3] == Kind.MISSING and told[B][3] == "well"


async def test_a_copy_that_was_moved_meanwhile_is_read_where_it_is_now() -> None:
    bookies = Bookies()
    del bookies.held[B][5]

    def move(world: Bookies, _: BookieId) -> None:
        if world.asked["single", B] or world.asked["batch", B] > 2:
            world.ensembles = [(0, (A, D, C))]

    bookies.on_ask = move
    found, _ = await read(bookies)
    told = copies(found)
    assert Kind.MISSING not in told[B].values()
    assert told[D].keys() >= {5, 6, 7, 8, 9}
    assert [entry for extent in found for entry in range(extent.first, extent.first + extent.entries)] == [*range(10)]


async def test_a_ledger_that_is_gone_is_said_to_be() -> None:
    with pytest.raises(LedgerNotFoundError):
        await read(Bookies(ensembles=[]))


async def test_the_length_of_an_open_ledger_is_what_a_copy_of_its_last_entry_says() -> None:
    bookies = Bookies(down={A})
    del bookies.held[B][9]
    metadata = await bookies.metadata_of(LEDGER)
    reading = TaskReading(retries=0, patience_s=0.1)
    assert await entry_length(bookies.cluster, LEDGER, metadata, 9, reading) == LAID.lengths[9]
    assert await entry_length(bookies.cluster, LEDGER, metadata, -1, reading) == 0
    bookies.down = {A, B, C}
    assert await entry_length(bookies.cluster, LEDGER, metadata, 9, reading) is None


# ---- the result of a task -------------------------------------------------------------------------------------------

ERRAND = AuditParameters(
    zookeeper="h:1", namespace="/d", all_replicas=True, verify="full", rate_bytes_s=0, retries=0, patience_s=0.1
)


class Reached:
    """A cluster whose extents are read on a loop of their own."""

    def __init__(self, bookies: Bookies) -> None:
        self.bookies = bookies

    def pump(self, make: Callable[[Cluster], Any]) -> list[Any]:
        async def gather() -> list[Any]:
            return [item async for item in make(self.bookies.cluster)]

        return asyncio.run(gather())


def examined(bookies: Bookies, monkeypatch: pytest.MonkeyPatch, *ranges: Range) -> list[Any]:
    from dlog.spark.jobs import audit_work

    monkeypatch.setattr(audit_work, "reach", lambda *_: Reached(bookies))
    return examine(ranges or [WHOLE], ERRAND)


def test_the_copy_that_most_have_is_the_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    bookies = Bookies()
    other = b"".join(map(bytes, DIGEST.pack(4, 3, LAID.lengths[4], (b"else",))))
    bookies.held[A][4] = other
    (piece,) = examined(bookies, monkeypatch)
    assert [(f.kind, f.entry, f.bookie) for f in piece.findings] == [(Kind.REPLICA_DIFFERS, 4, "a")]
    assert "as on b, c" in piece.findings[0].expected and "4 bytes" in piece.findings[0].found
    assert (piece.entries, piece.records, piece.replicas) == (10, 10, 3)
    assert piece.read_bytes == 3 * sum(map(len, LAID.payloads)) - len(LAID.payloads[4]) + 4


def test_an_entry_that_nobody_has_is_one_finding_and_a_hole(monkeypatch: pytest.MonkeyPatch) -> None:
    bookies = Bookies()
    for bookie in (A, B, C):
        del bookies.held[bookie][4]
    (piece,) = examined(bookies, monkeypatch)
    assert [(f.kind, f.entry, f.bookie) for f in piece.findings] == [(Kind.LOST, 4, None)]
    assert piece.entries == 9 and piece.last_position == 10


def test_a_task_goes_on_with_its_next_range(monkeypatch: pytest.MonkeyPatch) -> None:
    bookies = Bookies()
    later = Range(stream="t", segment=1, name="8", store="ledger", first=0, last=3)
    real = bookies.metadata_of

    async def metadata_of(ledger: LedgerId) -> LedgerMetadata:
        if ledger != LEDGER:
            raise LedgerNotFoundError("gone")
        return await real(ledger)

    monkeypatch.setattr(bookies, "metadata_of", metadata_of)
    gone, well = examined(bookies, monkeypatch, later, WHOLE)
    assert gone.is_gone and gone.entries == 0 and gone.unread == []
    assert well.entries == 10 and well.findings == []


def test_a_bookie_that_is_away_is_a_failure_of_each_range(monkeypatch: pytest.MonkeyPatch) -> None:
    (piece,) = examined(Bookies(down={B}), monkeypatch)
    assert piece.findings == [] and piece.entries == 10
    (unread,) = piece.unread
    assert unread[:3] == (0, 9, "b") and "run the audit again when it is back" in unread.error
