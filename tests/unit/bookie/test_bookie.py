"""Scenarios of the bookie machine, on storage without threads: which answer comes when."""

from __future__ import annotations

import struct
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from dlog.bookie.bookie import Bookie
from dlog.bookie.events import BookieReadOnly, BookieWritable, CheckpointFailed, EntryConflict, EntryDamaged
from dlog.bookie.index import LedgerRow
from dlog.bookie.messages import (
    CheckpointDue,
    CollectAsked,
    CollectDue,
    CopiesToFree,
    CopiesToSeal,
    CopiesToUnseal,
    Fetch,
    Fetched,
    Flushed,
    IndexRewritten,
    IndexWithout,
    LedgersMarkedDeleted,
    LedgersNew,
    LedgersToDelete,
    MarkLedgersDeleted,
    PersistRefused,
    SeenInMetadata,
    SpaceSeen,
)
from dlog.bookie.options import BookieOptions
from dlog.machine import Persist, Persisted, Received, Send
from dlog.model.ids import EntryId, LedgerId
from dlog.model.ledger import DigestType
from dlog.wire.bookie import (
    AddEntry,
    Auth,
    AuthDone,
    BatchRead,
    BatchReadDone,
    Code,
    Collect,
    EntryAdded,
    EntryRead,
    ReadEntry,
)
from dlog.wire.digest import Digest
from dlog.wire.framing import Buffer
from tests.crashpoints.station import KEY, Station, add, batch, fence, fresh, packet, read
from tests.simulation.disk import SimulatedDisk, all_lost

OPTIONS = BookieOptions(journal_file_bytes=64 * 1024, disk_free_min_bytes=1000, disk_free_reserve_bytes=500)

NO_LIMIT = BookieOptions(journal_file_bytes=16 * 1024, disk_free_min_bytes=0, disk_free_reserve_bytes=0)


@pytest.fixture
def station() -> Station:
    return fresh(OPTIONS)


def codes(station: Station) -> list[Code]:
    return [answer.code for answer in station.take_answers()]


def congested(station: Station) -> bool:
    return station.machine.is_congested


def stored(station: Station, ledger: int, *entries: int) -> None:
    station.ask(*[add(ledger, entry, b"body %d" % entry) for entry in entries])
    station.commit()
    assert codes(station) == [Code.OK] * len(entries)


class TestAdds:
    def test_an_add_is_answered_when_it_is_durable_and_not_before(self, station: Station) -> None:
        station.ask(add(1, 0, b"x"), add(1, 1, b"y"))
        assert station.take_answers() == []
        station.commit()
        assert station.take_answers() == [
            EntryAdded(LedgerId(1), EntryId(0), Code.OK),
            EntryAdded(LedgerId(1), EntryId(1), Code.OK),
        ]

    def test_only_the_first_add_of_a_ledger_journals_its_key(self, station: Station) -> None:
        station.ask(add(1, 0), add(1, 1), add(2, 0))
        assert [len(records) for _, records in station.waiting] == [2, 1, 2]

    def test_a_wrong_key_is_told_before_the_fence(self, station: Station) -> None:
        stored(station, 1, 0)
        station.ask(fence(1, -1))
        station.commit()
        station.take_answers()
        assert station.code(add(1, 1, key=b"z" * 20)) is Code.UNAUTHORIZED
        assert station.code(add(1, 1)) is Code.FENCED

    def test_a_recovery_add_passes_the_fence(self, station: Station) -> None:
        station.ask(fence(1, 0))
        station.commit()
        assert codes(station) == [Code.NO_ENTRY]
        station.ask(add(1, 0, b"again", recovery=True))
        station.commit()
        assert codes(station) == [Code.OK]

    @pytest.mark.parametrize("entry", [-1, -2, -0x1000, -0x2000, -(2**63) + 1])
    def test_negative_ids_are_bad_requests(self, station: Station, entry: int) -> None:
        assert station.code(add(1, entry)) is Code.BAD_REQUEST
        assert station.code(add(entry, 1)) is Code.BAD_REQUEST

    @pytest.mark.parametrize("entry", [2**31, 2**40, 2**62, 2**63 - 1])
    def test_huge_ids_are_served_for_good(self, station: Station, entry: int) -> None:
        stored(station, 5, entry)
        station.checkpoint()
        assert station.stored(5, entry) == packet(5, entry, b"body %d" % entry)
        again = Station(station.disk, OPTIONS)
        assert again.stored(5, entry) == packet(5, entry, b"body %d" % entry)
        assert again.stored(5, -1) == packet(5, entry, b"body %d" % entry)

    def test_a_duplicate_in_flight_waits_for_the_first(self, station: Station) -> None:
        station.ask(add(1, 0, b"first"), add(1, 0, b"first"))
        assert len(station.waiting) == 1 and station.take_answers() == []
        station.commit()
        assert codes(station) == [Code.OK, Code.OK]

    @pytest.mark.parametrize("flushed", [False, True])
    def test_an_entry_may_be_added_again_at_any_time(self, station: Station, flushed: bool) -> None:
        stored(station, 1, 0)
        if flushed:
            station.checkpoint()
        stored(station, 1, 0)

    def test_ids_out_of_order_and_with_gaps(self, station: Station) -> None:
        stored(station, 1, 7)
        station.checkpoint()
        stored(station, 1, 3)
        assert station.stored(1, 3) == packet(1, 3, b"body 3")
        assert station.stored(1, 5) is Code.NO_ENTRY
        assert station.stored(1, -1) == packet(1, 7, b"body 7")

    def test_a_packet_without_a_lac_is_a_bad_request(self, station: Station) -> None:
        request = AddEntry(LedgerId(1), EntryId(0), KEY, (packet(1, 0)[:23],))
        assert station.code(request) is Code.BAD_REQUEST

    def test_bytes_waiting_for_the_journal_are_bounded(self) -> None:
        station = fresh(BookieOptions(journal_file_bytes=64 * 1024, journal_waiting_bytes_max=1000))
        station.ask(*[add(1, entry, bytes(300)) for entry in range(4)])
        assert codes(station) == [Code.TOO_MANY_REQUESTS] * 2
        station.commit()
        assert codes(station) == [Code.OK] * 2
        assert station.machine.waiting_bytes == 0

    def test_one_add_larger_than_the_bound_is_taken_when_nothing_waits(self) -> None:
        station = fresh(BookieOptions(journal_file_bytes=64 * 1024, journal_waiting_bytes_max=10))
        stored(station, 1, 0)


PLACES = ("in flight", "in memory", "on disk")


class TestAddsOfHeldEntries:
    """A bookie keeps an entry for ever: an add with another payload under the same ids is refused."""

    @pytest.mark.parametrize("recovery", [False, True])
    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize("size", [1, 30, 3000])
    def test_another_payload_is_refused(self, place: str, recovery: bool, size: int) -> None:
        for kind in DigestType:
            station = hold(place, kind, b"a" * size)
            station.ask(offer(kind, b"a" * (size - 1) + b"b", recovery=recovery))
            station.commit()
            assert codes(station)[0] is Code.UNAUTHORIZED, kind
            assert station.events[-1] == EntryConflict(1, 0)
            assert station.stored(1, 0) == offer(kind, b"a" * size).parts[0]

    @pytest.mark.parametrize("place", PLACES)
    def test_what_was_added_under_a_wrong_length_or_in_another_size_is_refused(self, place: str) -> None:
        for body, length in ((b"payload", 8), (b"payloa", 7), (b"payload+", 7)):
            station = hold(place, DigestType.CRC32C, b"payload", length=7)
            station.ask(offer(DigestType.CRC32C, body, length=length, recovery=True))
            station.commit()
            assert codes(station)[0] is Code.UNAUTHORIZED, (body, length)

    @pytest.mark.parametrize("place", PLACES)
    @pytest.mark.parametrize("kind", list(DigestType))
    def test_a_copy_with_the_lac_of_a_recovery_is_the_same_entry(self, place: str, kind: DigestType) -> None:
        """Recovery and re-replication pack entries again, with the LAC that they know."""
        station = hold(place, kind, b"payload of some length, longer than a digest")
        held = station.stored(1, 0) if place != "in flight" else None
        copy = offer(kind, b"payload of some length, longer than a digest", lac=5, recovery=True)
        assert held is None or held != copy.parts[0]
        station.ask(copy)
        station.commit()
        assert set(codes(station)) == {Code.OK}
        assert EntryConflict(1, 0) not in station.events

    def test_a_copy_that_does_not_verify_is_another_entry(self) -> None:
        station = hold("in memory", DigestType.CRC32C, b"payload")
        copy = bytearray(offer(DigestType.CRC32C, b"payload", lac=5).parts[0])
        copy[33] ^= 1
        station.ask(AddEntry(LedgerId(1), EntryId(0), KEY, (bytes(copy),), recovery=True))
        station.commit()
        assert codes(station) == [Code.UNAUTHORIZED]


def offer(
    kind: DigestType, body: bytes, *, lac: int = -1, length: int | None = None, recovery: bool = False
) -> AddEntry:
    """An add of entry 0 of ledger 1, packed as a client packs it."""
    packed = Digest(1, kind, b"secret").pack(0, lac, len(body) if length is None else length, (body,))
    return AddEntry(LedgerId(1), EntryId(0), KEY, (b"".join(packed),), recovery=recovery)


def hold(place: str, kind: DigestType, body: bytes, length: int | None = None) -> Station:
    """A bookie that stores entry 0 of ledger 1."""
    station = fresh(replace(OPTIONS, read_cache_bytes=0))
    station.ask(offer(kind, body, length=length))
    if place != "in flight":
        station.commit()
    if place == "on disk":
        station.checkpoint()
    station.take_answers()
    return station


class TestWhatIsKeptOfAReceive:
    """A large packet stays in its receive buffer, unless that would keep far more bytes with it."""

    @staticmethod
    def kept(station: Station, received: Buffer, size: int, at: int = 0) -> Buffer:
        """What the journal is given for an add whose packet is `size` bytes of the receive buffer."""
        (ledger, entry), part = struct.unpack_from(">qq", received, at), memoryview(received)[at : at + size]
        station.ask(AddEntry(LedgerId(ledger), EntryId(entry), KEY, (part,)))
        [(_, records)] = station.waiting
        payload: Buffer = records[-1].payload
        assert payload == part
        return payload

    @pytest.mark.parametrize("around", [0, 40, 4096])
    def test_a_large_packet_is_not_copied(self, station: Station, around: int) -> None:
        received = bytes(around // 2) + packet(1, 0, bytes(range(256)) * 16) + bytes(around - around // 2)
        kept = self.kept(station, received, 32 + 4096, around // 2)
        assert isinstance(kept, memoryview) and kept.obj is received

    def test_what_would_keep_more_than_itself_in_memory_is_copied(self, station: Station) -> None:
        received = packet(1, 0, bytes(4096)) + bytes(32 + 4096 + 1)
        assert isinstance(self.kept(station, received, 32 + 4096), bytes)

    def test_a_small_packet_is_copied(self, station: Station) -> None:
        assert isinstance(self.kept(station, packet(1, 0, b"small"), 32 + 5), bytes)

    def test_what_somebody_may_write_to_is_copied(self, station: Station) -> None:
        received = bytearray(packet(1, 0, bytes(4096)))
        kept = self.kept(station, received, len(received))
        received[-1] = 1
        assert kept == packet(1, 0, bytes(4096))

    def test_it_is_served_from_memory_and_from_the_disk_as_it_came(self, station: Station) -> None:
        whole = packet(1, 0, bytes(range(256)) * 32)
        self.kept(station, whole, len(whole))
        station.commit()
        assert station.stored(1, 0) == whole
        station.ask(add(1, 0, b"other"), batch(1, 0))
        assert station.take_answers()[-1].packets == (whole,)
        station.commit()
        station.checkpoint()
        assert station.stored(1, 0) == whole
        assert Station(station.disk, OPTIONS).stored(1, 0) == whole


class TestFences:
    def test_a_fence_refuses_at_once_and_is_answered_when_durable(self, station: Station) -> None:
        stored(station, 1, 0)
        station.ask(add(1, 1, b"before"), fence(1, -1), add(1, 2, b"after"))
        assert codes(station) == [Code.FENCED]
        station.commit()
        added, fenced = station.take_answers()
        assert added.code is Code.OK
        assert fenced.packet == packet(1, 1, b"before"), "what was accepted before the fence is seen by it"

    def test_a_fence_answered_no_entry_was_durable_too(self, station: Station) -> None:
        station.ask(fence(9, 0))
        assert station.take_answers() == []
        station.commit()
        assert codes(station) == [Code.NO_ENTRY]
        again = Station(station.disk, OPTIONS)
        assert again.code(add(9, 0)) is Code.FENCED
        assert again.code(add(9, 0, key=b"z" * 20)) is Code.UNAUTHORIZED
        assert again.stored(9, 0) is Code.NO_ENTRY

    def test_a_second_fence_waits_for_the_first(self, station: Station) -> None:
        station.ask(fence(9, 0), fence(9, 1))
        assert len(station.waiting) == 1 and station.take_answers() == []
        station.commit()
        assert codes(station) == [Code.NO_ENTRY] * 2
        assert station.code(fence(9, 2)) is Code.NO_ENTRY
        assert station.waiting == []

    def test_a_fence_needs_the_key(self, station: Station) -> None:
        stored(station, 1, 0)
        assert station.code(fence(1, 0, key=b"")) is Code.UNAUTHORIZED
        assert station.code(fence(1, 0, key=b"z" * 20)) is Code.UNAUTHORIZED
        stored(station, 1, 1)

    def test_a_fence_is_remembered_over_checkpoint_and_restart(self, station: Station) -> None:
        stored(station, 1, 0)
        station.ask(fence(1, 0))
        station.commit()
        station.checkpoint()
        assert Station(station.disk, OPTIONS).code(add(1, 1)) is Code.FENCED

    def test_a_fencing_read_sees_a_recovery_add_in_flight_once_it_is_durable(self, station: Station) -> None:
        station.ask(fence(1, 0))
        station.commit()
        station.take_answers()
        station.ask(add(1, 0, b"r", recovery=True), fence(1, 0))
        assert station.take_answers() == []
        station.commit()
        assert [answer.code for answer in station.take_answers()] == [Code.OK, Code.OK]


class TestReads:
    def test_an_entry_is_not_shown_before_it_is_durable(self, station: Station) -> None:
        station.ask(add(1, 0, b"x"), read(1, 0))
        assert station.take_answers() == []
        station.commit()
        assert [type(answer) for answer in station.take_answers()] == [EntryAdded, EntryRead]

    def test_unknown_ledger_and_entry(self, station: Station) -> None:
        assert station.stored(1, 0) is Code.NO_LEDGER
        stored(station, 1, 0)
        assert station.stored(1, 1) is Code.NO_ENTRY

    def test_minus_one_is_the_last_and_stays_minus_one(self, station: Station) -> None:
        stored(station, 1, 0, 1, 2)
        answer = station.answer(read(1, -1))
        assert answer.entry == -1 and answer.packet == packet(1, 2, b"body 2")

    @pytest.mark.parametrize("entry", [-2, -0x1000])
    def test_other_negative_entries_are_bad_requests(self, station: Station, entry: int) -> None:
        assert station.code(read(1, entry)) is Code.BAD_REQUEST
        assert station.code(read(-1, 0)) is Code.BAD_REQUEST

    def test_reads_in_flight_share_one_fetch(self) -> None:
        machine = Bookie(OPTIONS, [LedgerRow(1, KEY, False, -1, 99)])
        effects = [effect for entry in range(5) for effect in machine.handle(Received("c", read(1, entry)))]
        (fetch,) = effects
        assert isinstance(fetch, Fetch) and fetch.entry == 0 and machine.reads_waiting == 5
        answers = machine.handle(Fetched(fetch.token, tuple(packet(1, entry) for entry in range(4))))
        sent = [effect.message.entry for effect in answers if isinstance(effect, Send)]
        assert sent == [0, 1, 2, 3]
        (again,) = [effect for effect in answers if isinstance(effect, Fetch)]
        assert again.entry == 4

    def test_damage_is_an_io_error_never_absence(self) -> None:
        machine = Bookie(OPTIONS, [LedgerRow(1, KEY, False, -1, 99)])
        (fetch,) = machine.handle(Received("c", read(1, 3)))
        effects = machine.handle(Fetched(fetch.token, (), "does not verify"))
        assert [e.message.code for e in effects if isinstance(e, Send)] == [Code.IO_ERROR]
        assert any(isinstance(getattr(e, "event", None), EntryDamaged) for e in effects)

    def test_absence_found_before_a_checkpoint_is_asked_again_after_it(self) -> None:
        """The fetch may have looked before the flush, and its answer may come after the cache dropped the entry."""
        station = fresh(OPTIONS)
        stored(station, 1, 5)
        station.checkpoint()
        machine = station.machine
        (fetch,) = machine.handle(Received("c", read(1, 3)))
        (persist,) = [e for e in machine.handle(Received("c", add(1, 2))) if isinstance(e, Persist | Fetch)]
        assert isinstance(persist, Fetch)  # an add below the last entry asks the index first
        station.checkpoint()
        effects = machine.handle(Fetched(fetch.token))
        assert [type(e) for e in effects] == [Fetch]

    def test_waiting_reads_are_bounded(self) -> None:
        options = BookieOptions(reads_waiting_max=2)
        machine = Bookie(options, [LedgerRow(1, KEY, False, -1, 10**9)])
        for entry in (0, 10_000):
            machine.handle(Received("c", read(1, entry)))
        (refused,) = machine.handle(Received("c", read(1, 20_000)))
        assert refused.message.code is Code.TOO_MANY_REQUESTS

    def test_a_lost_journal_is_never_denied(self) -> None:
        """A bookie in limbo, after a salvage, answers "unknown" for a missing entry, because it may have had it."""
        machine = Bookie(OPTIONS, [LedgerRow(1, KEY, False, -1, 3)], limbo=True)
        assert machine.read_only
        for request in (read(1, 9), read(2, 0)):
            (effect,) = machine.handle(Received("c", request))
            assert effect.message.code is Code.IO_ERROR
        (effect,) = machine.handle(Received("c", add(3, 0)))
        assert effect.message.code is Code.READ_ONLY


class TestBatchReads:
    def done(self, station: Station, request: BatchRead) -> BatchReadDone:
        answer = station.answer(request)
        assert isinstance(answer, BatchReadDone) and answer.request == request.request
        return answer

    @pytest.mark.parametrize("flushed", [False, True])
    def test_consecutive_entries_until_the_gap(self, station: Station, flushed: bool) -> None:
        stored(station, 1, 0, 1, 2, 4)
        if flushed:
            station.checkpoint()
        assert self.done(station, batch(1, 0)).packets == tuple(packet(1, e, b"body %d" % e) for e in range(3))
        assert self.done(station, batch(1, 3)).code is Code.NO_ENTRY
        assert len(self.done(station, batch(1, 0, count=2)).packets) == 2

    def test_half_in_memory_half_on_disk(self, station: Station) -> None:
        stored(station, 1, 0, 1)
        station.checkpoint()
        stored(station, 1, 2, 3)
        assert len(self.done(station, batch(1, 0)).packets) == 4

    def test_size_counts_head_and_lengths_and_the_first_always_comes(self, station: Station) -> None:
        stored(station, 1, 0, 1, 2)
        length = len(packet(1, 0, b"body 0")) + 4
        assert len(self.done(station, batch(1, 0, size=36 + 2 * length)).packets) == 2
        assert len(self.done(station, batch(1, 0, size=36 + 2 * length - 1)).packets) == 1
        assert len(self.done(station, batch(1, 0, size=1)).packets) == 1
        assert len(self.done(station, batch(1, 0, size=0)).packets) == 1
        assert len(self.done(station, batch(1, 0, size=-5)).packets) == 1

    def test_the_disk_is_asked_once_for_all_that_a_batch_has_room_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        station = fresh(replace(OPTIONS, read_ahead_bytes=1))
        stored(station, 1, *range(20))
        station.checkpoint()
        asked: list[Fetch] = []
        fetch = station._fetch

        def noting(effect: Fetch) -> None:
            asked.append(effect)
            fetch(effect)

        monkeypatch.setattr(station, "_fetch", noting)
        assert len(self.done(station, batch(1, 0)).packets) == 20
        assert [one.entry for one in asked] == [0]

    def test_minus_one_gives_the_last_and_then_the_beginning(self, station: Station) -> None:
        stored(station, 1, 0, 1, 2)
        assert [bytes(p)[-1:] for p in self.done(station, batch(1, -1)).packets] == [b"2", b"0", b"1", b"2"]

    def test_fencing(self, station: Station) -> None:
        stored(station, 1, 0)
        station.ask(BatchRead(LedgerId(1), EntryId(0), 9, 0, 100, True, KEY))
        assert station.take_answers() == []
        station.commit()
        (answer,) = station.take_answers()
        assert answer.code is Code.OK and len(answer.packets) == 1
        assert station.code(add(1, 1)) is Code.FENCED


class TestSpace:
    def test_read_only_by_free_bytes_and_back(self, station: Station) -> None:
        stored(station, 1, 0)
        station.handle(SpaceSeen(999))
        assert isinstance(station.events[-1], BookieReadOnly)
        assert station.code(add(1, 1)) is Code.READ_ONLY
        assert station.stored(1, 0) == packet(1, 0, b"body 0")
        station.ask(add(1, 1, recovery=True), add(1, 2, high_priority=True), fence(7, 0))
        station.commit()
        assert codes(station) == [Code.OK, Code.OK, Code.NO_ENTRY]
        station.handle(SpaceSeen(499))
        assert station.code(add(1, 3, recovery=True)) is Code.READ_ONLY
        station.handle(SpaceSeen(1050))
        assert station.machine.read_only, "it does not flap around the limit"
        station.handle(SpaceSeen(1100))
        assert isinstance(station.events[-1], BookieWritable)
        stored(station, 1, 3)

    def test_a_collection_is_due_once_the_disk_is_nearly_full_and_once_it_is_full(self) -> None:
        """Nearly full: below 5/4 of the limit (1,000 here), until it is at 11/8 again."""
        machine = Bookie(OPTIONS)

        def is_due(free_bytes: int) -> bool:
            return CollectDue() in machine.handle(SpaceSeen(free_bytes))

        assert not is_due(1250)
        assert is_due(1249)
        assert not any(is_due(free_bytes) for free_bytes in (1100, 1249, 1300, 1374, 1249)), "it was said"
        assert is_due(999)
        assert not any(is_due(free_bytes) for free_bytes in (500, 1100, 999, 1300)), "it was said"
        assert machine.is_short_of_room
        assert not is_due(1375)
        assert is_due(1249)

    def test_a_collection_is_due_when_the_journal_finds_no_room(self) -> None:
        machine = Bookie(NO_LIMIT)
        assert CollectDue() in machine.handle(PersistRefused("no space"))
        assert machine.is_short_of_room

    def test_who_asks_for_a_collection_is_answered_by_what_runs_them(self) -> None:
        assert Bookie(OPTIONS).handle(Received("c", Collect(7))) == [CollectAsked("c", 7)]

    def test_no_collection_is_due_where_data_may_have_been_lost(self) -> None:
        assert Bookie(OPTIONS, limbo=True).handle(SpaceSeen(0)) == []

    def test_a_journal_that_cannot_grow_refuses_and_keeps_serving(self) -> None:
        disk = SimulatedDisk()
        station = Station(disk, NO_LIMIT)
        stored(station, 1, 0)
        disk.bytes_max = 0
        refused = 0
        for entry in range(1, 20):
            station.ask(add(1, entry, bytes(3000)), fence(50 + entry, 0))
            station.commit()
            refused += codes(station).count(Code.READ_ONLY)
        assert refused > 10
        assert station.machine.read_only and station.stored(1, 0) == packet(1, 0, b"body 0")
        disk.bytes_max = 1 << 40
        station.handle(SpaceSeen(1 << 40))
        stored(station, 1, 100)
        stored(station, 90, 0)
        again = Station(disk, OPTIONS)
        assert again.stored(1, 100) == packet(1, 100, b"body 100")
        assert again.stored(90, 0) == packet(90, 0, b"body 0")

    def test_a_checkpoint_without_room_is_repeated(self) -> None:
        disk = SimulatedDisk()
        station = Station(disk, NO_LIMIT)
        stored(station, 1, 0, 1)
        disk.bytes_max = 0
        station.checkpoint()
        assert any(isinstance(event, CheckpointFailed) for event in station.events)
        assert station.code(add(1, 2)) is Code.READ_ONLY
        assert station.stored(1, 1) == packet(1, 1, b"body 1")
        disk.bytes_max = 1 << 40
        station.checkpoint()
        assert not station.machine.is_dirty
        stored(station, 1, 2)
        assert Station(disk, OPTIONS).stored(1, 1) == packet(1, 1, b"body 1")

    def test_a_repeated_checkpoint_does_not_answer_for_later_adds(self) -> None:
        """Adds between the failure and the repetition are in no index yet: the journal must keep them."""
        disk = SimulatedDisk()
        station = Station(disk, NO_LIMIT)
        stored(station, 1, 0)
        disk.bytes_max = 0
        station.checkpoint()
        station.ask(add(1, 1, b"body 1", recovery=True))
        station.commit()
        assert codes(station) == [Code.OK]
        disk.bytes_max = 1 << 40
        station.checkpoint()
        again = Station(SimulatedDisk(disk.cut(len(disk.operations), all_lost)), OPTIONS)
        assert [again.stored(1, entry) for entry in (0, 1)] == [packet(1, e, b"body %d" % e) for e in (0, 1)]

    def test_a_write_cache_that_is_full_asks_for_a_flush_and_then_refuses(self) -> None:
        station = fresh(BookieOptions(journal_file_bytes=64 * 1024, write_cache_entries=4))
        stored(station, 1, *range(4))
        assert len(station.flushes) == 1 and not congested(station)
        stored(station, 1, *range(4, 8))
        assert congested(station)
        stored(station, 1, *range(8, 12))
        assert station.code(add(1, 12)) is Code.TOO_MANY_REQUESTS
        station.flush()
        stored(station, 1, 12)
        assert [station.stored(1, entry) for entry in range(13)] == [packet(1, e, b"body %d" % e) for e in range(13)]


def test_auth_is_answered_as_disabled(station: Station) -> None:
    assert isinstance(station.answer(Auth(b"anything")), AuthDone)


def test_a_checkpoint_in_flight_is_not_started_twice(station: Station) -> None:
    stored(station, 1, 0)
    station.handle(CheckpointDue())
    station.handle(CheckpointDue())
    assert len(station.flushes) == 1


def test_persisted_answers_every_token_up_to_it() -> None:
    machine = Bookie(OPTIONS)
    tokens = [e.token for n in range(3) for e in machine.handle(Received("c", add(1, n))) if isinstance(e, Persist)]
    answers = machine.handle(Persisted(tokens[1]))
    assert [effect.message.entry for effect in answers] == [0, 1]
    assert isinstance(machine.handle(Received("c", ReadEntry(LedgerId(1), EntryId(0))))[0].message, EntryRead)


def test_equal_reads_of_the_disk_are_told_apart() -> None:
    """Two adds of one entry, each with its own lookup; the answer to the second must not end the first."""
    row = LedgerRow(LedgerId(1), KEY, fenced=False, lac=EntryId(-1), last=EntryId(9))
    machine = Bookie(NO_LIMIT, [row])

    def asked(fact: Received | Fetched) -> list[Fetch]:
        return [effect for effect in machine.handle(fact) if isinstance(effect, Fetch)]

    def answered(fact: Fetched) -> list[int]:
        return [e.message.entry for e in machine.handle(fact) if isinstance(e, Send)]

    (one,), (two,) = (asked(Received("p", add(1, 5))) for _ in range(2))
    assert answered(Fetched(two.token, (packet(1, 5),))) == [5]
    assert answered(Fetched(one.token, (packet(1, 5),))) == [5]


class Meter:
    """A bookie whose disk answers when the test lets it; counts the bytes it is asked for."""

    def __init__(self, station: Station) -> None:
        self.waiting: list[Fetch] = []
        self.fetches = self.packets = 0
        self.station = station
        station._fetch = self.waiting.append  # type: ignore[method-assign, assignment]

    def answer_all(self) -> None:
        while self.waiting:
            fetch = self.waiting.pop(0)
            found = self.station.opened.dirs.lookup(fetch.ledger, fetch.entry, fetch.entries_max, fetch.bytes_max)
            self.fetches += 1
            self.packets += len(found)
            self.station.handle(Fetched(fetch.token, tuple(found)))


class TestReadAmplification:
    """A thousand single reads in flight read little more than what they answer."""

    ENTRIES = 3000

    def meter(self, read_ahead_bytes: int = 1 << 20) -> Meter:
        made = fresh(replace(NO_LIMIT, read_cache_bytes=1 << 22, read_ahead_bytes=read_ahead_bytes))
        body = bytes(992)  # a packet of 1 KiB
        for begin in range(0, self.ENTRIES, 1000):
            made.ask(*[add(1, begin + n, body) for n in range(1000)])
            made.commit()
        made.checkpoint()
        made.take_answers()
        return Meter(made)

    def asked(self, meter: Meter, entries: list[int]) -> None:
        meter.station.ask(*[read(1, entry) for entry in entries])
        meter.answer_all()
        answers = meter.station.take_answers()
        assert sorted(answer.entry for answer in answers) == sorted(entries)
        assert {answer.code for answer in answers} == {Code.OK}

    @pytest.mark.parametrize("begin", [0, 1234])
    def test_in_order(self, begin: int) -> None:
        meter = self.meter()
        self.asked(meter, list(range(begin, begin + 1000)))
        assert meter.packets <= 1000 + 256 and meter.fetches <= 8

    def test_from_the_last_to_the_first(self) -> None:
        meter = self.meter()
        self.asked(meter, list(range(999, -1, -1)))
        assert meter.packets <= 1000 + 256

    def test_here_and_there(self) -> None:
        meter = self.meter()
        self.asked(meter, Random(1).sample(range(self.ENTRIES), 1000))
        assert meter.packets <= self.ENTRIES

    def test_far_apart(self) -> None:
        meter = self.meter()
        self.asked(meter, list(range(7, self.ENTRIES, 100)))
        assert meter.packets == len(range(7, self.ENTRIES, 100))

    def test_what_a_question_does_not_bring_is_asked_for_once(self) -> None:
        """A request to the disk is limited in bytes; what it leaves out is read with one further request."""
        meter = self.meter(read_ahead_bytes=64 * 1024)
        self.asked(meter, list(range(1000)))
        assert meter.packets <= 1000 + 64 and meter.fetches <= 1000 // 60 + 2


class TestReadAheadOfManyReaders:
    """Readers with one read in flight each, which together want to read ahead more than the read cache holds."""

    ENTRIES = 60  # of each ledger
    ROOM = 900  # entries of 1 KiB that the read cache holds, about

    def meter(self, ledgers: int, entries: int = ENTRIES) -> Meter:
        made = fresh(replace(NO_LIMIT, read_cache_bytes=self.ROOM * (1024 + 200)))
        for ledger in range(1, ledgers + 1):
            made.ask(*[add(ledger, entry, bytes(992)) for entry in range(entries)])
            made.commit()
        made.checkpoint()
        made.take_answers()
        return Meter(made)

    def read_all(self, meter: Meter, *rounds: list[tuple[int, int]]) -> float:
        """Ask for the (ledger, entry) of each round once the round before is answered. Returns packets read from disk
        for each answer."""
        answers = 0
        for asked in rounds:
            meter.station.ask(*[read(ledger, entry) for ledger, entry in asked])
            meter.answer_all()
            taken = meter.station.take_answers()
            assert sorted((answer.ledger, answer.entry) for answer in taken) == sorted(asked)
            assert {answer.code for answer in taken} == {Code.OK}
            answers += len(taken)
        return meter.packets / answers

    @pytest.mark.parametrize("ledgers", [20, 100, 300])
    def test_one_for_each_ledger(self, ledgers: int) -> None:
        rounds = [[(ledger, entry) for ledger in range(1, ledgers + 1)] for entry in range(self.ENTRIES)]
        assert self.read_all(self.meter(ledgers), *rounds) <= 2

    def test_one_after_the_other(self) -> None:
        rounds = [[(ledger, entry)] for entry in range(self.ENTRIES) for ledger in range(1, 101)]
        assert self.read_all(self.meter(100), *rounds) <= 2

    def test_many_in_one_ledger(self) -> None:
        rounds = [[(1, reader * 40 + entry) for reader in range(100)] for entry in range(40)]
        assert self.read_all(self.meter(1, 4000), *rounds) <= 2

    def test_fast_and_slow_ones(self) -> None:
        rng, upcoming = Random(3), dict.fromkeys(range(1, 101), 0)
        rounds = []
        for _ in range(3000):
            ledger = min(100, int(rng.paretovariate(0.3)))
            if upcoming[ledger] < self.ENTRIES:
                rounds.append([(ledger, upcoming[ledger])])
                upcoming[ledger] += 1
        assert self.read_all(self.meter(100), *rounds) <= 2.5

    def test_in_short_bursts(self) -> None:
        rounds = [[(ledger, begin + n) for n in range(6)] for begin in range(0, 60, 6) for ledger in range(1, 101)]
        assert self.read_all(self.meter(100), *rounds) <= 2

    def test_only_the_first_entries(self) -> None:
        rounds = [[(ledger, 0)] for ledger in range(1, 301)]
        assert self.read_all(self.meter(300), *rounds) <= 6

    @pytest.mark.parametrize("ledgers", [1, 3])
    def test_a_few_read_the_disk_as_seldom_as_one(self, ledgers: int) -> None:
        meter = self.meter(ledgers)
        rounds = [[(ledger, entry) for ledger in range(1, ledgers + 1)] for entry in range(self.ENTRIES)]
        assert self.read_all(meter, *rounds) == 1 and meter.fetches == ledgers

    def test_those_that_stopped_do_not_hinder_others_for_good(self) -> None:
        meter = self.meter(100)
        self.read_all(meter, *[[(ledger, 0)] for ledger in range(2, 101)])
        self.read_all(meter, *[[(ledger, entry)] for ledger in range(2, 40) for entry in range(self.ENTRIES)])
        before = meter.fetches
        self.read_all(meter, *[[(1, entry)] for entry in range(self.ENTRIES)])
        assert meter.fetches - before <= 3


class TestBuried:
    """Ledgers that metadata no longer has."""

    def buried(self, *facts: Any) -> Bookie:
        machine = Bookie(OPTIONS, [LedgerRow(1, KEY, False, -1, 3), LedgerRow(2, KEY, False, -1, 3)])
        assert machine.handle(LedgersToDelete(frozenset({1, 77}))) == [MarkLedgersDeleted((1,))]
        for fact in facts:
            machine.handle(fact)
        return machine

    def test_takes_no_add_from_the_instant_it_is_to_be_buried(self) -> None:
        for machine in (self.buried(), self.buried(LedgersMarkedDeleted((1,))), Bookie(OPTIONS, gone=[1])):
            for key in (KEY, b"other"):
                for recovery, code in ((False, Code.FENCED), (True, Code.NO_LEDGER)):
                    (sent,) = machine.handle(Received("c", add(1, 4, key=key, recovery=recovery)))
                    assert sent.message.code is code

    def test_new_ledgers_are_told_once_until_they_are_taken(self) -> None:
        machine = Bookie(OPTIONS)

        def is_told(request: Any) -> bool:
            return LedgersNew() in machine.handle(Received("c", request))

        assert is_told(add(1, 0))
        assert not any(is_told(request) for request in (add(1, 1), add(2, 0), fence(3, 0), read(9, 0)))
        assert machine.take_new() == {1, 2, 3}
        assert not is_told(add(1, 2)) and is_told(fence(4, 0))
        assert machine.take_new() == {4}

    def test_is_read_as_no_ledger_and_its_id_as_one_in_use(self) -> None:
        machine = self.buried(LedgersMarkedDeleted((1,)))
        for entry, code in ((0, Code.NO_LEDGER), (-1, Code.NO_ENTRY)):
            (sent,) = machine.handle(Received("c", read(1, entry)))
            assert sent.message.code is code

    def test_leaves_the_count_of_ledgers(self) -> None:
        machine = self.buried(LedgersMarkedDeleted((1,)))
        assert machine.ledgers == 1 and machine.known() == {2: 0}

    def test_is_there_again_where_the_disk_has_no_room_to_say_so(self) -> None:
        machine = self.buried(LedgersMarkedDeleted((1,), frozenset({1})))
        assert machine.ledgers == 2
        (sent,) = machine.handle(Received("c", read(1, 9)))
        assert sent.message.code is Code.NO_ENTRY

    def test_waits_until_nothing_of_it_is_on_its_way_to_the_journal(self) -> None:
        machine = Bookie(OPTIONS, [LedgerRow(1, KEY, False, -1, -1), LedgerRow(2, KEY, False, -1, -1)])
        machine.handle(Received("c", add(1, 0)))
        machine.handle(Received("c", fence(2, -1)))
        assert machine.handle(LedgersToDelete(frozenset({1, 2}))) == [MarkLedgersDeleted(())]
        machine.handle(Persisted(2))
        (bury,) = machine.handle(LedgersToDelete(frozenset({1, 2})))
        assert sorted(bury.ledgers) == [1, 2]

    def test_what_metadata_showed_goes_to_the_index_with_the_next_checkpoint(self) -> None:
        machine = Bookie(OPTIONS, [LedgerRow(1, KEY, False, -1, 3)])
        assert not machine.is_dirty
        machine.handle(SeenInMetadata(frozenset({1, 5}), 2))
        assert machine.known() == {1: 2}
        (flush,) = machine.handle(CheckpointDue())
        assert flush.rows == (LedgerRow(1, KEY, False, -1, 3, 2),)


class TestMovedAway:
    """Ledgers whose copies other bookies hold now."""

    LEFT = LedgerRow(1, KEY, True, -1, -1, 3)

    def sealed(self, *facts: Any) -> Bookie:
        machine = Bookie(OPTIONS, [LedgerRow(1, KEY, False, 2, 3, 3)])
        machine.handle(CopiesToSeal(1))
        assert machine.is_sealed(1)
        for fact in facts:
            machine.handle(fact)
        return machine

    def freed(self) -> Bookie:
        machine = self.sealed()
        assert machine.handle(CopiesToFree(frozenset({1, 9}))) == [IndexWithout((self.LEFT,))]
        machine.handle(IndexRewritten((1,)))
        assert not machine.is_sealed(1)
        return machine

    def code(self, machine: Bookie, request: Any) -> Code:
        (sent,) = machine.handle(Received("c", request))
        code: Code = sent.message.code
        return code

    def test_takes_nothing_while_it_is_sealed(self) -> None:
        for machine in (self.sealed(), self.sealed(CopiesToFree(frozenset({1})))):
            assert self.code(machine, add(1, 2, recovery=True)) is Code.READ_ONLY
            assert self.code(machine, add(1, 4, recovery=True)) is Code.READ_ONLY
            assert self.code(machine, add(1, 4)) is Code.FENCED
            assert self.code(machine, fence(1, 0)) is Code.TOO_MANY_REQUESTS
        assert self.code(self.sealed(), read(1, 9)) is Code.NO_ENTRY, "reads are served as before"

    def test_goes_on_as_before_if_the_seal_ends(self) -> None:
        machine = self.sealed(CopiesToUnseal(1))
        (persist,) = machine.handle(Received("c", add(1, 4)))
        assert isinstance(persist, Persist)

    def test_is_fenced_and_takes_a_repairs_entries_again_once_its_copies_are_freed(self) -> None:
        machine = self.freed()
        assert self.code(machine, add(1, 9)) is Code.FENCED
        (persist,) = machine.handle(Received("c", add(1, 2, recovery=True)))
        assert isinstance(persist, Persist), "what was held before counts no more"
        (sent,) = machine.handle(Persisted(persist.token))
        assert sent.message.code is Code.OK
        assert self.code(machine, read(1, 2)) is Code.OK
        assert self.code(machine, read(1, 9)) is Code.NO_ENTRY

    def test_denies_nothing_while_it_has_no_entries(self) -> None:
        freeing = self.sealed(CopiesToFree(frozenset({1})))  # the index is being rewritten
        for machine in (freeing, self.freed(), Bookie(OPTIONS, [self.LEFT], moved=[1])):
            for entry in (-1, 0, 9):
                assert self.code(machine, read(1, entry)) is Code.TOO_MANY_REQUESTS, "old metadata named it"
        assert self.code(Bookie(OPTIONS, [self.LEFT]), read(1, 0)) is Code.NO_ENTRY, "it was only fenced"

    def test_is_as_before_if_the_index_could_not_be_rewritten(self) -> None:
        machine = self.sealed(CopiesToFree(frozenset({1})), IndexRewritten((1,), frozenset({1})))
        assert not machine.is_sealed(1)
        assert machine.with_entries() == [1]
        (fetch,) = machine.handle(Received("c", read(1, 2)))
        assert isinstance(fetch, Fetch)
        (flush,) = machine.handle(CheckpointDue())
        assert flush.rows == (LedgerRow(1, KEY, False, 2, 3, 3),)

    def test_is_not_sealed_while_records_are_not_in_the_index(self) -> None:
        machine = Bookie(OPTIONS)
        (_, persist) = machine.handle(Received("c", add(1, 0)))
        for fact in (Persisted(persist.token), CheckpointDue()):
            machine.handle(CopiesToSeal(1))
            assert not machine.is_sealed(1)
            machine.handle(fact)
        machine.handle(CopiesToSeal(1))
        assert not machine.is_sealed(1), "the flush runs"
        machine.handle(Flushed())
        machine.handle(CopiesToSeal(1))
        assert machine.is_sealed(1)

    def test_is_not_freed_while_an_entry_is_being_read(self) -> None:
        machine = self.sealed()
        (fetch,) = machine.handle(Received("c", read(1, 2)))
        assert machine.handle(CopiesToFree(frozenset({1}))) == [IndexWithout(())]
        assert not machine.is_sealed(1), "the next look begins anew"
        (sent,) = machine.handle(Fetched(fetch.token, (packet(1, 2),)))
        assert sent.message.code is Code.OK

    def test_what_was_read_before_is_not_taken_for_a_copy(self) -> None:
        machine = Bookie(OPTIONS, [LedgerRow(1, KEY, False, 2, 3)])
        (fetch,) = machine.handle(Received("c", read(1, 2)))
        machine.handle(Fetched(fetch.token, (packet(1, 2),)))
        for fact in (CopiesToSeal(1), CopiesToFree(frozenset({1})), IndexRewritten((1,))):
            machine.handle(fact)
        (persist,) = machine.handle(Received("c", add(1, 3, recovery=True)))
        machine.handle(Persisted(persist.token))
        (fetch,) = machine.handle(Received("c", add(1, 2, recovery=True)))
        assert isinstance(fetch, Fetch), "it looks on disk, not in the read cache"

    def test_a_salvaged_bookie_frees_nothing(self) -> None:
        machine = Bookie(OPTIONS, [LedgerRow(1, KEY, False, 2, 3)], limbo=True)
        machine.handle(CopiesToSeal(1))
        assert machine.with_entries() == [] and not machine.is_sealed(1)
