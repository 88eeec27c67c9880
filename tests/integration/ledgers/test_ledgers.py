"""The ledger client over real sockets on bookies in memory: complete scenarios, and what a handle promises its
caller."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from dlog.errors import (
    ClosedError,
    InvalidRequestError,
    LedgerFencedError,
    LedgerNotFoundError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    OverCapacityError,
    UnavailableError,
)
from dlog.events import Event, LedgerHandleFailed, LedgerIdInUse, PlacementNotKept
from dlog.io.bookie_client import BookieClient, BookieClientOptions
from dlog.io.clock import SYSTEM_CLOCK, Clock
from dlog.io.ledgers import _LATE_COPIES_S, Ledgers, LedgersOptions, resolver
from dlog.io.metadata import BookieInfo
from dlog.ledger.placement_policy import RACK, PlacementOptions
from dlog.ledger.recovery import RecoveryOptions
from dlog.ledger.repair import OPEN_LEDGER
from dlog.machine import Versioned
from dlog.model.ids import NO_ENTRY, BookieId, EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.ledger import DigestType, Fragment, LedgerKey, LedgerState
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation
from dlog.model.quorum import Quorum
from dlog.model.verification import Verified
from dlog.stores.contract import StoreTooSmallError
from dlog.stores.ledger import LEDGER_SETTINGS, LedgerStore
from dlog.wire.bookie import ReadEntry
from dlog.wire.bookie_v3_messages import ReadWithLac
from tests.integration.ledgers.model_bookie import ModelBookie
from tests.memory_metadata import MemoryMetadata

E332 = Quorum(ensemble=3, write=3, ack=2)
SEGMENT = (StreamName("s"), SegmentNumber(1), Epoch(1), LEDGER_SETTINGS.complete({}))


class Cluster:
    """Bookies in memory, metadata in memory, and their clients."""

    def __init__(self, bookies: dict[BookieId, ModelBookie], metadata: MemoryMetadata, stack: AsyncExitStack) -> None:
        self.bookies = bookies
        self.metadata = metadata
        self.told: list[Event] = []
        self._stack = stack

    async def client(
        self, options: LedgersOptions | None = None, clock: Clock = SYSTEM_CLOCK, protocol: str = "v2"
    ) -> Ledgers:
        transport = BookieClient(
            resolver(self.metadata),
            rng=random.Random(1),
            options=BookieClientOptions(
                request_timeout_s=30.0, backoff_min_s=0.0, backoff_max_s=0.0, protocol=protocol
            ),
        )
        await self._stack.enter_async_context(transport)
        rng, told = random.Random(2), self.told.append
        return await self._stack.enter_async_context(
            Ledgers(self.metadata, transport, rng=rng, options=options, on_event=told, clock=clock)
        )

    async def add(self, name: str) -> ModelBookie:
        """Start another bookie."""
        bookie = await self._stack.enter_async_context(ModelBookie())
        await self.register(name, bookie)
        return bookie

    async def register(self, name: str, bookie: ModelBookie, rack: str = DEFAULT_LOCATION.rack) -> None:
        self.bookies[BookieId(name)] = bookie
        info = BookieInfo(BookieId(name), *bookie.address, NetworkLocation(rack=rack))
        await self.metadata.register_bookie(info)


@asynccontextmanager
async def cluster(count: int = 3, racks: int = 0) -> AsyncIterator[Cluster]:
    async with asyncio.timeout(90), AsyncExitStack() as stack:
        made = Cluster({}, MemoryMetadata(), stack)
        for number in range(count):
            rack = f"rack-{number % racks}" if racks else DEFAULT_LOCATION.rack
            await made.register(f"bookie-{number}", await stack.enter_async_context(ModelBookie()), rack)
        yield made


async def read_all(ledgers: Ledgers, ledger: Any) -> list[bytes]:
    reader = await ledgers.open(ledger)
    try:
        assert reader.end is not None
        found: list[bytes] = []
        while len(found) <= reader.end:
            found += await reader.read(EntryId(len(found)), reader.end, 1 << 20)
        return found
    finally:
        await reader.close()


@pytest.mark.parametrize("digest", list(DigestType))
async def test_what_is_appended_in_order_is_read_in_order(digest: DigestType) -> None:
    async with cluster() as made:
        ledgers = await made.client()
        writer = await ledgers.create(E332, digest=digest, password=b"secret", custom=(("who", b"me"),))
        futures = [writer.append((b"entry ", b"%d" % number)) for number in range(100)]
        assert [await future for future in futures] == list(range(100))
        assert writer.lac == 99
        assert await writer.close() == 99
        assert await writer.close() == 99
        metadata = await ledgers.metadata_of(writer.ledger_id)
        assert metadata.state is LedgerState.CLOSED and metadata.length == sum(len(b"entry %d" % n) for n in range(100))
        assert metadata.custom == (("who", b"me"),)
        assert await read_all(ledgers, writer.ledger_id) == [b"entry %d" % number for number in range(100)]
        assert [found async for found in ledgers.list()] == [writer.ledger_id]


@pytest.mark.parametrize("protocol", ["v2", "v3"])
async def test_a_reader_on_v3_waits_for_the_lac_at_a_bookie(protocol: str) -> None:
    async with cluster() as made:
        ledgers, others = await made.client(), await made.client(protocol=protocol)
        writer = await ledgers.create(E332)
        reader = await others.open(writer.ledger_id)
        for payload in (b"zero", b"one"):
            await writer.append((payload,))

        def polls(bookie: ModelBookie) -> list[ReadWithLac]:
            return [request for request in bookie.requests if isinstance(request, ReadWithLac)]

        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(reader.wait_lac(NO_ENTRY, 60.0), name="waits for the LAC")
            if protocol == "v3":
                while not any(map(polls, made.bookies.values())):  # noqa: ASYNC110 - polls of any bookie, no event tells
                    await asyncio.sleep(0.001)
                for bookie in made.bookies.values():
                    bookie.release()
        assert waiting.result() == 0
        sent = [poll for bookie in made.bookies.values() for poll in polls(bookie)]
        expected = ReadWithLac(writer.ledger_id, NO_ENTRY, NO_ENTRY, 1000)
        assert set(sent) == ({expected} if protocol == "v3" else set())


async def test_an_empty_ledger_closes_and_opens() -> None:
    async with cluster() as made:
        ledgers = await made.client()
        writer = await ledgers.create(E332)
        assert await writer.close() == NO_ENTRY
        reader = await ledgers.open(writer.ledger_id)
        assert (reader.end, reader.lac) == (NO_ENTRY, NO_ENTRY)
        assert await reader.wait_lac(NO_ENTRY, 30.0) == NO_ENTRY
        with pytest.raises(ClosedError):
            writer.append((b"late",))


async def test_recovery_fences_the_writer_and_keeps_what_was_acknowledged() -> None:
    async with cluster() as made:
        old, new = await made.client(), await made.client()
        writer = await old.create(E332)
        for number in range(10):
            await writer.append((b"%d" % number,))
        recovered = await new.recover(writer.ledger_id)
        assert recovered.last_entry == 9
        with pytest.raises(LedgerFencedError) as fenced:
            await writer.append((b"zombie",))
        assert fenced.value.outcome_unknown
        with pytest.raises(LedgerFencedError):
            writer_future = writer.append((b"zombie again",))
            await writer_future
        assert (await old.recover(writer.ledger_id)).last_entry == 9
        assert len(await read_all(new, writer.ledger_id)) == 10


async def test_a_reader_follows_the_writer_to_the_end() -> None:
    async with cluster() as made:
        ledgers, others = await made.client(), await made.client()
        writer = await ledgers.create(E332)
        reader = await others.open(writer.ledger_id)
        assert (reader.lac, reader.end) == (NO_ENTRY, None)
        await writer.append((b"zero",))
        assert await reader.wait_lac(NO_ENTRY, 0.0) == NO_ENTRY  # its LAC travels with the next entry
        await writer.append((b"one",))
        assert await reader.wait_lac(NO_ENTRY, 30.0) == 0
        assert await reader.read(EntryId(0), EntryId(5), 1 << 20) == [b"zero"]
        reader.learn_lac(EntryId(1))
        assert reader.lac == 1
        assert await reader.read(EntryId(0), EntryId(5), 1) == [b"zero"]
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(reader.wait_lac(EntryId(1), 30.0), name="waits for the end")
            await asyncio.sleep(0)
            await writer.close()
        assert (waiting.result(), reader.end) == (1, 1)
        await reader.close()


async def test_waiters_of_one_reader_share_its_question() -> None:
    async with cluster() as made:
        ledgers = await made.client()
        writer = await ledgers.create(E332)
        reader = await ledgers.open(writer.ledger_id)
        async with asyncio.TaskGroup() as group:
            waits = [group.create_task(reader.wait_lac(NO_ENTRY, 30.0), name=f"wait {n}") for n in range(50)]
            await asyncio.sleep(0)
            assert await reader.wait_lac(NO_ENTRY, 0.0) == NO_ENTRY
            await writer.append((b"zero",))
            await writer.append((b"one",))
        assert {wait.result() for wait in waits} == {0}


async def test_a_dead_bookie_is_replaced_and_nothing_is_lost() -> None:
    async with cluster(4) as made:
        ledgers = await made.client()
        writer = await ledgers.create(E332)
        for number in range(5):
            await writer.append((b"%d" % number,))
        victim = writer.metadata.fragments[0].ensemble[1]
        await made.metadata.unregister_bookie(victim)
        await made.bookies[victim].stop()
        for number in range(5, 50):
            await writer.append((b"%d" % number,))
        await writer.close()
        assert len(writer.metadata.fragments) == 2
        assert await read_all(ledgers, writer.ledger_id) == [b"%d" % number for number in range(50)]
        await made.bookies[victim].start()


@pytest.mark.parametrize("options", [PlacementOptions(), PlacementOptions(placement="rack", placement_strict=True)])
async def test_every_ensemble_spans_two_racks_also_after_a_bookie_died(options: PlacementOptions) -> None:
    async with cluster(4, racks=2) as made:
        ledgers = await made.client(LedgersOptions(placement=options))
        for _ in range(5):
            writer = await ledgers.create(E332)
            await writer.append((b"before",))
            victim = writer.metadata.fragments[0].ensemble[1]
            await made.metadata.unregister_bookie(victim)
            await made.bookies[victim].stop()
            for _ in range(10):
                await writer.append((b"after",))
            await writer.close()
            assert len(writer.metadata.fragments) == 2
            policy, shortages = ledgers.placement_of(await ledgers.metadata_of(writer.ledger_id))
            assert policy == options.policy([NetworkLocation(), NetworkLocation(rack="r")]) and shortages == [
                None,
                None,
            ]
            for fragment in writer.metadata.fragments:
                assert len({int(bookie[-1]) % 2 for bookie in fragment.ensemble}) == 2
            await made.bookies[victim].start()
            await made.register(victim, made.bookies[victim], f"rack-{int(victim[-1]) % 2}")
        assert not [event for event in made.told if isinstance(event, PlacementNotKept)]


async def test_a_strict_policy_refuses_a_cluster_of_one_rack_and_else_an_event_names_the_ledger() -> None:
    async with cluster(3, racks=1) as made:
        strict = await made.client(LedgersOptions(placement=PlacementOptions(placement="rack", placement_strict=True)))
        for refused in (lambda: strict.create(E332), lambda: LedgerStore(strict).create(*SEGMENT)):
            with pytest.raises((NotEnoughBookiesError, StoreTooSmallError), match="racks=1 needed=2"):
                await refused()
        with pytest.raises(InvalidRequestError, match="start bookies with another --rack"):
            LedgerStore(strict).check_capacity(LEDGER_SETTINGS.complete({}))
        assert not made.told
        lax = await made.client(LedgersOptions(placement=PlacementOptions(placement="rack")))
        LedgerStore(lax).check_capacity(LEDGER_SETTINGS.complete({}))
        LedgerStore(lax).check_capacity(())
        writer = await lax.create(E332)
        (told,) = (event for event in made.told if isinstance(event, PlacementNotKept))
        assert (told.ledger, told.entry) == (writer.ledger_id, 0) and "policy=rack" in told.shortage
        silent = await made.client()
        await silent.create(E332)
        assert len([event for event in made.told if isinstance(event, PlacementNotKept)]) == 1, "the default is random"


async def test_a_location_is_known_while_the_bookie_is_away_to_those_that_saw_it() -> None:
    async with cluster(3, racks=2) as made:
        ledgers = await made.client()
        writer = await ledgers.create(E332)
        await made.metadata.unregister_bookie(BookieId("bookie-1"))
        assert ledgers.placement_of(writer.metadata)[1] == [None]
        (shortage,) = (await made.client()).placement_of(writer.metadata)[1]
        assert shortage is not None and shortage.unlocated == ("bookie-1",) and not shortage.is_certain


async def test_a_ledger_that_is_created_while_a_rack_is_away_asks_for_two_racks() -> None:
    async with cluster(6, racks=2) as made:
        ledgers = await made.client()
        for number in (1, 3, 5):
            await made.metadata.unregister_bookie(BookieId(f"bookie-{number}"))
        writer = await ledgers.create(E332)
        assert ledgers.placement_of(writer.metadata)[0] == RACK
        (told,) = (event for event in made.told if isinstance(event, PlacementNotKept))
        assert told.ledger == writer.ledger_id and "policy=rack" in told.shortage


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_reader_that_is_told_its_rack_reads_from_it(number: int) -> None:
    async with cluster(3, racks=3) as made:
        writer = await (await made.client()).create(E332)
        await writer.append((b"zero",))
        await writer.close()
        for model in made.bookies.values():
            model.requests.clear()
        near = await made.client(LedgersOptions(placement=PlacementOptions(rack=f"rack-{number}")))
        reader = await near.open(writer.ledger_id)
        assert await reader.read(EntryId(0), EntryId(0), 100) == [b"zero"]
        await reader.close()
        assert [int(bookie[-1]) % 3 for bookie, model in made.bookies.items() if model.requests] == [number]


async def test_verify_finds_the_damaged_and_the_thin() -> None:
    async with cluster() as made:
        ledgers = await made.client()
        writer = await ledgers.create(E332)
        for number in range(40):
            await writer.append((b"%d" % number,))
        await writer.close()
        for bookie in made.bookies.values():
            while bookie.requests and (writer.ledger_id, 39) not in bookie.entries:
                bookie.heard.clear()
                await bookie.heard.wait()
        sound = await ledgers.verify(writer.ledger_id)
        assert sound == Verified(40)
        one, two, three = made.bookies.values()
        one.entries[writer.ledger_id, 7] = one.entries[writer.ledger_id, 7][:-1] + b"?"
        del two.entries[writer.ledger_id, 8]
        del two.entries[writer.ledger_id, 9], three.entries[writer.ledger_id, 9]
        found = await ledgers.verify(writer.ledger_id)
        assert sorted({(bad.first, bad.last, bad.kind) for bad in found.ranges}) == [
            (7, 7, "damaged"),
            (8, 8, "thin"),
            (9, 9, "damaged"),
        ]
        assert (found.below_write_quorum, found.below_ack_quorum, found.without_copy) == (3, 1, 0)


@pytest.mark.parametrize("is_deleted", [True, False])
async def test_a_ledger_that_is_deleted_or_repaired_while_it_is_verified_is_not_wrong(
    is_deleted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with cluster(4) as made:
        ledgers = await made.client()
        writer = await ledgers.create(E332)
        await writer.append((b"zero",))
        await writer.close()
        key = LedgerKey(writer.ledger_id)
        seen = await made.metadata.read(key)
        assert isinstance(seen, Versioned)
        lost = seen.value.fragments[0].ensemble[0]
        (other,) = made.bookies.keys() - set(seen.value.fragments[0].ensemble)
        made.bookies[other].entries.update(made.bookies[lost].entries)
        made.bookies[lost].entries.clear()
        verify, calls = ledgers._verify, 0

        async def verified(*asked: Any) -> Verified:
            nonlocal calls
            calls += 1
            found = await verify(*asked)
            if calls == 1 and is_deleted:
                await ledgers.delete(writer.ledger_id)
            elif calls == 1:
                ensemble = (other, *seen.value.fragments[0].ensemble[1:])
                moved = replace(seen.value, fragments=(Fragment(EntryId(0), ensemble),))
                await made.metadata.compare_and_set(key, moved, seen.version)
            return found

        monkeypatch.setattr(ledgers, "_verify", verified)
        if is_deleted:
            with pytest.raises(LedgerNotFoundError):
                await ledgers.verify(writer.ledger_id)
        else:
            assert await ledgers.verify(writer.ledger_id) == Verified(1)


async def test_copies_that_a_writer_still_sends_are_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with cluster() as made:
        ledgers, other = await made.client(), await made.client()
        slow = list(made.bookies.values())[1]
        writer = await ledgers.create(E332)
        for number in range(20):
            await writer.append((b"%d" % number,))
        while (writer.ledger_id, 19) not in slow.entries:
            slow.heard.clear()
            await slow.heard.wait()
        late: dict[tuple[int, int], bytes] = {
            key: slow.entries.pop(key) for key in [(writer.ledger_id, 17), (writer.ledger_id, 18)]
        }
        pauses: list[float] = []
        sleep = asyncio.sleep

        async def arrive(seconds: float) -> None:
            if seconds == _LATE_COPIES_S:
                pauses.append(seconds)
                slow.entries |= late
            await sleep(0)

        with monkeypatch.context() as patched:
            patched.setattr("dlog.io.ledgers.asyncio.sleep", arrive)
            verified = await other.verify(writer.ledger_id)
        assert (verified.ranges, verified.entries >= 19, len(pauses)) == ((), True, 1)
        await writer.close()
        del slow.entries[writer.ledger_id, 18]
        assert (await other.verify(writer.ledger_id)).below_write_quorum == 1


async def test_missing_copies_are_written_again() -> None:
    async with cluster() as made:
        ledgers = await made.client()
        writer = await ledgers.create(E332)
        for number in range(20):
            await writer.append((b"%d" % number,))
        await writer.close()
        for bookie in made.bookies.values():
            while (writer.ledger_id, 19) not in bookie.entries:
                bookie.heard.clear()
                await bookie.heard.wait()
        _, two, three = made.bookies.values()
        for bookie, entry in ((two, 8), (two, 9), (three, 9)):
            del bookie.entries[writer.ledger_id, entry]
        found = await ledgers.verify(writer.ledger_id)
        repaired = await ledgers.repair(writer.ledger_id, frozenset(), bad=found.ranges)
        assert (repaired.copied_entries, repaired.replaced, repaired.unreadable) == (3, (), ())
        assert (await ledgers.verify(writer.ledger_id)).ranges == ()


async def test_an_open_ledger_is_recovered_before_its_last_ensemble_is_repaired() -> None:
    async with cluster(4) as made:
        ledgers = await made.client()
        writer = await ledgers.create(E332)
        for number in range(20):
            await writer.append((b"%d" % number,))
        await writer.abandon()
        victim = writer.metadata.fragments[0].ensemble[1]
        await made.metadata.unregister_bookie(victim)
        await made.bookies[victim].stop()
        waiting = await ledgers.repair(writer.ledger_id, frozenset({victim}))
        assert (waiting.waits, waiting.replaced) == (OPEN_LEDGER, ())
        await ledgers.recover(writer.ledger_id)
        repaired = await ledgers.repair(writer.ledger_id, frozenset({victim}))
        assert (repaired.waits, repaired.unreadable) == ("", ())
        metadata = await ledgers.metadata_of(writer.ledger_id)
        assert all(victim not in fragment.ensemble for fragment in metadata.fragments)
        assert (await ledgers.verify(writer.ledger_id)).ranges == ()
        assert await read_all(ledgers, writer.ledger_id) == [b"%d" % number for number in range(20)]
        await made.bookies[victim].start()


async def test_whether_other_bookies_can_replace_lost_ones_is_asked_of_fresh_registrations() -> None:
    async with cluster(4) as made:
        ledgers = await made.client()
        writer = await ledgers.create(E332)
        one, two, _ = writer.metadata.fragments[0].ensemble
        assert await ledgers.can_replace(writer.metadata, frozenset({one}))
        assert not await ledgers.can_replace(writer.metadata, frozenset({one, two})), "one bookie for two"
        (spare,) = made.bookies.keys() - {*writer.metadata.fragments[0].ensemble}
        await made.metadata.unregister_bookie(spare)
        assert not await ledgers.can_replace(writer.metadata, frozenset({one}))
        assert await ledgers.can_replace(writer.metadata, frozenset({spare})), "it is not in the ensemble"


async def test_a_lost_reply_of_the_creation_is_resolved_by_the_token() -> None:
    async with cluster() as made:
        ledgers = await made.client()
        made.metadata.drop_replies = 1
        writer = await ledgers.create(E332)
        await writer.append((b"x",))
        assert await writer.close() == 0


async def test_too_few_bookies_are_said_so() -> None:
    async with cluster(2) as made:
        ledgers = await made.client()
        with pytest.raises(NotEnoughBookiesError):
            await ledgers.create(E332)


async def test_a_ledger_that_is_not_there() -> None:
    async with cluster() as made:
        ledgers = await made.client(LedgersOptions(recovery=RecoveryOptions(retry_s=0.0)))
        writer = await ledgers.create(E332)
        await writer.append((b"x",))
        reader = await ledgers.open(writer.ledger_id)
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(_outcome(reader.wait_lac(NO_ENTRY, 30.0)), name="waits")
            await asyncio.sleep(0)
            await ledgers.delete(writer.ledger_id)
        assert isinstance(waiting.result(), LedgerNotFoundError)
        await ledgers.delete(writer.ledger_id)
        for call in (ledgers.open, ledgers.recover, ledgers.last_confirmed, ledgers.verify):
            with pytest.raises(LedgerNotFoundError):
                await call(writer.ledger_id)
        with pytest.raises(LedgerNotFoundError):
            await ledgers.repair(writer.ledger_id, frozenset())


async def _outcome(awaitable: Any) -> Any:
    try:
        return await awaitable
    except UnavailableError as error:
        return error
    except LedgerNotFoundError as error:
        return error


async def test_metadata_out_of_reach_is_not_a_missing_ledger() -> None:
    class Unreachable(MemoryMetadata):
        async def read(self, key: Any) -> Any:
            from dlog.machine import OutcomeUnknown

            return OutcomeUnknown("suspended")

    async with AsyncExitStack() as stack:
        made = Cluster({}, Unreachable(), stack)
        ledgers = await made.client()
        with pytest.raises(MetadataUnavailableError):
            await ledgers.open(1)  # type: ignore[arg-type]


async def test_an_id_that_a_bookie_of_the_ensemble_knows_is_not_used() -> None:
    """ZooKeeper was restored from a backup: it gives out ids whose entries bookies hold."""
    async with cluster() as made:
        known = list(made.bookies.values())[1]
        known.entries.update({(ledger, 0): bytes(40) for ledger in range(20)})
        ledgers = await made.client()
        writer = await ledgers.create(E332)
        assert writer.ledger_id >= 20
        in_use = [event.ledger for event in made.told if isinstance(event, LedgerIdInUse)]
        assert in_use == [0, 2, 6, 14], "1, 2, 4, 8 ids are drawn at a time"
        assert [found async for found in ledgers.list()] == [writer.ledger_id], "nothing is left in metadata"
        assert (await ledgers.create(E332)).ledger_id == writer.ledger_id + 1


async def test_an_id_that_a_bookie_outside_of_the_ensemble_knows_is_not_used() -> None:
    async with cluster(6) as made:
        known = made.bookies[BookieId("bookie-5")]
        known.entries.update({(ledger, 0): bytes(40) for ledger in range(20)})
        ledgers = await made.client()
        created = [(await ledgers.create(Quorum(ensemble=1, write=1, ack=1))).ledger_id for _ in range(10)]
        assert min(created) >= 20, "whichever bookies they are on"


async def test_a_silent_bookie_that_a_ledger_does_not_need_is_passed_over() -> None:
    async with cluster(4) as made:
        silent = made.bookies[BookieId("bookie-3")]
        silent.hold = True
        ledgers = await made.client(LedgersOptions(vet_s=0.01, quarantine_failures=1))
        first = await ledgers.create(E332)
        second = await ledgers.create(E332)
        assert (first.ledger_id, second.ledger_id) == (0, 1)
        asked = [request.ledger for request in silent.requests if isinstance(request, ReadEntry)]
        assert asked == [0], "it is in quarantine"


async def test_a_bookie_that_does_not_say_whether_it_knows_a_ledger_is_left_out() -> None:
    async with cluster(4) as made:
        silent = made.bookies[BookieId("bookie-2")]
        silent.hold = True
        ledgers = await made.client(LedgersOptions(vet_s=0.01))
        for _ in range(4):
            writer = await ledgers.create(E332)
            assert BookieId("bookie-2") not in writer.metadata.fragments[0].ensemble


async def test_where_every_bookie_is_needed_a_slow_one_is_waited_for() -> None:
    async with cluster() as made, asyncio.TaskGroup() as group:
        slow = made.bookies[BookieId("bookie-2")]
        slow.hold = True
        ledgers = await made.client(LedgersOptions(vet_s=0.01, vet_all_s=60.0))
        creating = group.create_task(ledgers.create(E332), name="create")
        await slow.heard.wait()
        slow.hold = False
        slow.release()
        assert len((await creating).metadata.fragments[0].ensemble) == 3


async def test_a_ledger_is_not_made_while_a_bookie_that_it_needs_is_silent() -> None:
    async with cluster() as made:
        made.bookies[BookieId("bookie-2")].hold = True
        ledgers = await made.client(LedgersOptions(vet_s=0.01, vet_all_s=0.01))
        with pytest.raises(NotEnoughBookiesError):
            await ledgers.create(E332)
        assert [found async for found in ledgers.list()] == []


async def test_appends_are_bounded_and_abandoned_ones_are_in_doubt() -> None:
    async with cluster() as made:
        ledgers = await made.client(LedgersOptions(pending_entries_max=3))
        writer = await ledgers.create(E332)
        for bookie in made.bookies.values():
            bookie.hold = True
        futures = [writer.append((b"x",)) for _ in range(3)]
        with pytest.raises(OverCapacityError):
            writer.append((b"x",))
        futures[0].cancel()
        await writer.abandon()
        for future in futures[1:]:
            with pytest.raises(ClosedError) as caught:
                await future
            assert caught.value.outcome_unknown


async def test_entries_with_given_ids_leave_room_for_the_missing_one_and_for_a_close() -> None:
    async with cluster() as made:
        ledgers = await made.client(LedgersOptions(pending_entries_max=6))
        writer = await ledgers.create(E332)
        early = [writer.append((b"x",), EntryId(entry)) for entry in (1, 2)]
        refused = []
        for entry in range(3, 9):
            refused.append(writer.append((b"x",), EntryId(entry)))
            await asyncio.wait(refused, timeout=2.0)  # without end if they were kept
        assert await writer.append((b"x",), EntryId(0)) == 0
        assert [await future for future in early] == [1, 2]
        for future in refused:
            with pytest.raises(OverCapacityError, match=r"missing=0$"):
                await future
        assert await writer.close() == 2


async def test_certain_lac_is_what_the_next_entry_carries() -> None:
    async with cluster() as made:
        ledgers, others = await made.client(), await made.client()
        writer = await ledgers.create(E332)
        assert await others.last_confirmed(writer.ledger_id) == NO_ENTRY
        for _ in range(5):
            await writer.append((b"x",))
        assert await others.last_confirmed(writer.ledger_id) >= 3
        await writer.append((b"still writable: nobody was fenced",))
        await writer.close()
        assert await others.last_confirmed(writer.ledger_id) == 5


async def test_a_machine_that_breaks_takes_its_handle_down_and_nothing_else() -> None:
    async with cluster() as made:
        ledgers = await made.client()
        broken, sound = await ledgers.create(E332), await ledgers.create(E332)

        heard: list[Any] = []
        pending = broken.append((b"x",))
        broken._driver.submit("not a request of a writer", heard.append)
        with pytest.raises(UnavailableError) as caught:
            await pending
        assert caught.value.outcome_unknown
        assert [type(error) for error in heard] == [UnavailableError]
        [failed] = [event for event in made.told if isinstance(event, LedgerHandleFailed)]
        assert "event trace of ledger" in failed.error and "not a request" in failed.error
        assert await sound.append((b"y",)) == 0


async def test_a_watch_that_fires_after_the_end_disturbs_nobody() -> None:
    async with cluster() as made:
        ledgers = await made.client()
        writer = await ledgers.create(E332)
        async with AsyncExitStack() as stack:
            made._stack, outer = stack, made._stack
            others = await made.client()
            made._stack = outer
            reader = await others.open(writer.ledger_id)
        await writer.close()  # the reader was not closed, only its client was
        assert reader.end is None
        with pytest.raises(ClosedError):
            await reader.wait_lac(NO_ENTRY, 30.0)


async def test_leaving_the_scope_ends_every_life() -> None:
    before = asyncio.all_tasks()
    async with cluster() as made:
        ledgers = await made.client()
        writer = await ledgers.create(E332)
        reader = await ledgers.open(writer.ledger_id)
        await writer.append((b"x",))
        await reader.wait_lac(NO_ENTRY, 0.0)
    assert asyncio.all_tasks() == before
    with pytest.raises(ClosedError):
        writer.append((b"y",))
    with pytest.raises(ClosedError):
        await ledgers.create(E332)
    found = await made.metadata.read(LedgerKey(writer.ledger_id))
    assert found.value.state is LedgerState.OPEN  # type: ignore[union-attr]
