"""Scenarios of the bookie machine: reads with the LAC, long polls, explicit LAC, force, lists of entries."""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from dlog.bookie.bookie import Bookie
from dlog.bookie.index import LedgerRow
from dlog.bookie.messages import InputEnded, PersistRefused, PollWaits, SpaceAsked
from dlog.bookie.options import BookieOptions
from dlog.machine import CancelTimer, PeerLost, Received, Send
from dlog.model.ids import EntryId, LedgerId
from dlog.wire.bookie import Code, EntryAdded
from dlog.wire.bookie_availability import encode_runs
from dlog.wire.bookie_v3_messages import (
    EntriesListed,
    ForceLedger,
    GetSpace,
    LacRead,
    LacWritten,
    LedgerForced,
    ListEntries,
    ReadLac,
    ReadWithLac,
    ReadWithLacDone,
)
from tests.crashpoints.station import KEY, Station, add, fence, fresh, packet, write_lac

OPTIONS = BookieOptions(
    journal_file_bytes=64 * 1024, disk_free_min_bytes=0, disk_free_reserve_bytes=0, long_polls_max=3
)
ONE = LedgerId(1)


@pytest.fixture
def station() -> Station:
    return fresh(OPTIONS)


def stored(station: Station, ledger: int, *entries: int) -> None:
    station.ask(*[add(ledger, entry, b"body %d" % entry) for entry in entries])
    station.commit()
    assert {answer.code for answer in station.take_answers()} == {Code.OK}


def poll(previous: int, ms: int = 1000, *, ledger: int = 1, piggyback: bool = True) -> ReadWithLac:
    return ReadWithLac(LedgerId(ledger), EntryId(-1), EntryId(previous), ms, piggyback)


def told(entry: int, lac: int, *, waited: bool = False, body: bytes | None = None) -> ReadWithLacDone:
    return ReadWithLacDone(ONE, EntryId(entry), Code.OK, body, EntryId(lac), waited)


def lac_packet(ledger: int, lac: int, digest: bytes = b"") -> bytes:
    return struct.pack(">qq", ledger, lac) + digest


class TestReadsWithTheLac:
    @pytest.mark.parametrize("flushed", [False, True])
    def test_an_entry_comes_with_the_lac_of_the_last_one(self, station: Station, flushed: bool) -> None:
        stored(station, 1, 0, 1, 2)
        if flushed:
            station.checkpoint()
        asked = ReadWithLac(ONE, EntryId(0))
        assert station.answer(asked) == told(0, 1, body=packet(1, 0, b"body 0"))
        assert station.answer(ReadWithLac(ONE, EntryId(-1))) == told(-1, 1, body=packet(1, 2, b"body 2"))

    def test_what_is_not_durable_moves_no_lac(self, station: Station) -> None:
        stored(station, 1, 0)
        station.ask(add(1, 1), add(1, 2))
        assert station.answer(ReadWithLac(ONE, EntryId(0))).lac == -1

    def test_refusals_are_those_of_a_plain_read(self, station: Station) -> None:
        stored(station, 1, 0)
        for ledger, entry, code in ((1, 5, Code.NO_ENTRY), (2, 0, Code.NO_LEDGER), (1, -2, Code.BAD_REQUEST)):
            assert station.answer(ReadWithLac(LedgerId(ledger), EntryId(entry))).code is code

    @pytest.mark.parametrize(
        "asked",
        [ReadWithLac(ONE, EntryId(3), EntryId(0), 5, True), ReadWithLac(ONE, EntryId(-1), None, 5, True)],
    )
    def test_a_piggyback_needs_minus_one_and_a_previous_lac(self, station: Station, asked: ReadWithLac) -> None:
        stored(station, 1, 0)
        assert station.answer(asked).code is Code.BAD_REQUEST


class TestLongPolls:
    def test_a_lac_that_has_passed_is_answered_at_once_with_the_next_entry(self, station: Station) -> None:
        stored(station, 1, 0, 1, 2)
        assert station.answer(poll(0)) == told(1, 1, body=packet(1, 1, b"body 1"))
        assert not station.timers

    def test_it_waits_for_the_lac_to_pass(self, station: Station) -> None:
        stored(station, 1, 0, 1, 2)
        station.ask(poll(1))
        assert station.take_answers() == [] and list(station.timers.values()) == [1.0]
        stored_answers(station, add(1, 3))
        assert told(2, 2, waited=True, body=packet(1, 2, b"body 2")) in station.take_answers()
        assert not station.timers and station.machine._tail.polls == 0

    def test_an_update_that_does_not_pass_leaves_it_waiting(self, station: Station) -> None:
        """Java's bookie forgets the poll at that update, and answers only at its time-out."""
        stored(station, 1, 0)
        station.ask(poll(5))
        stored_answers(station, add(1, 3), add(1, 4))
        assert not any(isinstance(answer, ReadWithLacDone) for answer in station.take_answers())
        stored_answers(station, add(1, 7))
        assert told(-1, 6, waited=True) in station.take_answers()  # another bookie's entry: only the LAC

    def test_an_explicit_lac_ends_it(self, station: Station) -> None:
        stored(station, 1, 0)
        station.ask(poll(-1), write_lac(1, 0))
        assert station.take_answers() == []
        station.commit()
        body = packet(1, 0, b"body 0")
        assert station.take_answers() == [told(0, 0, waited=True, body=body), LacWritten(ONE, Code.OK)]

    def test_the_time_ends_it_with_the_lac_alone(self, station: Station) -> None:
        stored(station, 1, 0, 1)
        station.ask(poll(0))
        station.fire()
        assert station.take_answers() == [told(-1, 0, waited=True)]

    def test_without_piggyback_it_ends_with_the_last_entry(self, station: Station) -> None:
        stored(station, 1, 0, 1)
        station.ask(poll(0, piggyback=False))
        station.fire()
        assert station.take_answers() == [told(-1, 0, waited=True, body=packet(1, 1, b"body 1"))]

    def test_the_time_is_bounded_and_without_one_nothing_waits(self, station: Station) -> None:
        stored(station, 1, 0)
        station.ask(poll(0, ms=1 << 40))
        assert list(station.timers.values()) == [60.0]
        for ms in (0, -5):
            assert station.answer(poll(0, ms=ms)) == told(-1, -1)

    def test_a_durable_fence_ends_it(self, station: Station) -> None:
        stored(station, 1, 0, 1)
        station.ask(poll(0), fence(1, -1))
        assert station.take_answers() == []
        station.commit()
        first, _ = station.take_answers()
        assert first == told(-1, 0, waited=True) and not station.timers

    def test_a_poll_after_the_fence_waits_for_its_time(self, station: Station) -> None:
        stored(station, 1, 0)
        station.ask(fence(1, -1))
        station.commit()
        station.take_answers()
        station.ask(poll(0))
        assert station.take_answers() == [] and station.timers

    def test_it_waits_for_an_entry_that_is_on_its_way(self, station: Station) -> None:
        """The LAC can be known before this bookie has stored the entry."""
        stored(station, 1, 0)
        station.ask(write_lac(1, 1))
        station.commit()
        station.take_answers()
        station.ask(add(1, 1, b"late"), poll(0))
        assert station.take_answers() == []
        station.commit()
        assert told(1, 1, body=packet(1, 1, b"late")) in station.take_answers()

    def test_the_polls_of_a_client_that_sends_nothing_more_are_answered(self, station: Station) -> None:
        stored(station, 1, 0)
        station.ask(poll(0), poll(0))
        station.handle(InputEnded("another"))
        assert station.take_answers() == []
        station.handle(InputEnded("client"))
        assert station.take_answers() == [told(-1, -1, waited=True)] * 2
        assert not station.timers and station.machine._tail.polls == 0 and not station.machine._tail.polled
        stored(station, 1, 1, 2)

    def test_the_polls_of_a_client_that_left_are_dropped_and_read_nothing(self, station: Station) -> None:
        stored(station, 1, 0)
        station.checkpoint()
        station.ask(poll(0, piggyback=False), poll(0))
        station.handle(PeerLost("another"))
        assert len(station.timers) == 2
        assert {type(effect) for effect in station.machine.handle(PeerLost("client"))} == {CancelTimer}
        assert station.machine._tail.polls == 0 and not station.machine._tail.polled
        stored(station, 1, 1, 2)

    def test_it_is_said_which_requests_wait(self, station: Station) -> None:
        """Only those stop to count as reads of their connection; an old previous LAC makes a poll a plain read."""
        stored(station, 1, 0, 1, 2)
        station.checkpoint()
        for asked, waits in ((poll(1), True), (poll(0), False), (poll(0, piggyback=False), False), (poll(1, 0), False)):
            effects = station.machine.handle(Received("client", asked))
            assert (PollWaits("client") in effects) is waits

    def test_a_lac_that_moves_looks_only_at_the_polls_that_it_passes(self) -> None:
        """Counted in looks at polls: thousands that are far ahead cost an add nothing."""
        station = fresh(replace(OPTIONS, long_polls_max=1000))
        stored(station, 1, 0)
        station.ask(*(poll(previous) for previous in (*range(500, 900), 3, 1, 5, 2)))
        polls = station.machine._tail.polled[1]
        looks: Counter[int] = Counter()

        class Counting(dict[int, Any]):
            def get(self, key: int, default: Any = None) -> Any:
                looks[key] += 1
                return super().get(key, default)

            def values(self) -> Any:
                looks[-1] += 1
                return super().values()

        polls.waiting = Counting(polls.waiting)
        for entry in (1, 2, 3, 4, 5):
            stored_answers(station, add(1, entry))
        assert looks.total() == 3 and len(polls.waiting) == 401
        waited = [answer.lac for answer in station.take_answers() if isinstance(answer, ReadWithLacDone)]
        assert waited == [2, 3, 4]

    def test_polls_that_ended_before_the_lac_moved_are_forgotten(self, station: Station) -> None:
        stored(station, 1, 0)
        station.handle(Received("stays", poll(7)))
        for _ in range(200):
            station.ask(poll(9), poll(8))
            station.handle(PeerLost("client"))
        assert len(station.machine._tail.polled[1].heap) < 30 and len(station.timers) == 1
        stored(station, 1, 9)
        assert station.machine._tail.polls == 0

    def test_their_number_is_bounded(self, station: Station) -> None:
        stored(station, 1, 0)
        station.ask(poll(0), poll(0), poll(0))
        assert station.answer(poll(0)).code is Code.TOO_MANY_REQUESTS
        station.fire()
        assert len(station.take_answers()) == 3

    def test_an_unknown_ledger_is_told_at_once(self, station: Station) -> None:
        assert station.answer(poll(0, ledger=9)).code is Code.NO_LEDGER

    def test_a_ledger_that_is_deleted_meanwhile_is_told_at_the_end(self, station: Station) -> None:
        stored(station, 1, 0)
        station.ask(poll(0))
        station.bury(1)
        station.fire()
        (answer,) = station.take_answers()
        assert answer.code is Code.NO_ENTRY

    def test_a_timer_that_fires_late_changes_nothing(self, station: Station) -> None:
        stored(station, 1, 0)
        station.ask(poll(-1))
        timers = dict(station.timers)
        stored_answers(station, add(1, 1))
        station.take_answers()
        station.timers = timers
        station.fire()
        assert station.take_answers() == []


def stored_answers(station: Station, *requests: Any) -> None:
    station.ask(*requests)
    station.commit()


class TestExplicitLac:
    def test_it_is_answered_when_it_is_durable_and_read_only_then(self, station: Station) -> None:
        stored(station, 1, 0)
        station.ask(write_lac(1, 7, b"dgst"))
        assert station.take_answers() == []
        assert station.answer(ReadLac(ONE)).lac_packet == b""
        station.commit()
        assert station.take_answers() == [LacWritten(ONE, Code.OK)]
        last = packet(1, 0, b"body 0")
        assert station.answer(ReadLac(ONE)) == LacRead(ONE, Code.OK, lac_packet(1, 7, b"dgst"), last)
        assert station.answer(ReadWithLac(ONE, EntryId(0))).lac == 7

    @pytest.mark.parametrize("checkpointed", [False, True])
    def test_a_restart_keeps_it(self, station: Station, checkpointed: bool) -> None:
        station.ask(write_lac(1, 7, b"dgst"))
        station.commit()
        if checkpointed:
            station.checkpoint()
        again = Station(station.disk, OPTIONS)
        assert again.answer(ReadLac(ONE)) == LacRead(ONE, Code.OK, lac_packet(1, 7, b"dgst"))
        assert again.code(add(1, 0, key=b"z" * 20)) is Code.UNAUTHORIZED, "it made the ledger, with its key"

    def test_the_newest_counts_and_the_known_lac_never_falls(self, station: Station) -> None:
        stored(station, 1, 0)
        stored_answers(station, write_lac(1, 7), write_lac(1, 3))
        station.take_answers()
        assert station.answer(ReadLac(ONE)).lac_packet == lac_packet(1, 3)
        assert station.answer(ReadWithLac(ONE, EntryId(0))).lac == 7

    def test_a_fenced_ledger_takes_it(self, station: Station) -> None:
        stored_answers(station, add(1, 0), fence(1, -1), write_lac(1, 0))
        assert LacWritten(ONE, Code.OK) in station.take_answers()

    def test_refusals(self, station: Station) -> None:
        stored(station, 1, 0)
        stored(station, 2, 0)
        station.bury(2)
        assert station.answer(write_lac(1, 0, key=b"z" * 20)) == LacWritten(ONE, Code.UNAUTHORIZED)
        assert station.answer(write_lac(2, 0)).code is Code.NO_LEDGER
        assert station.answer(write_lac(-1, 0)).code is Code.BAD_REQUEST
        assert station.answer(write_lac(1, -2)).code is Code.BAD_REQUEST

    def test_a_full_disk_refuses_it(self, station: Station) -> None:
        station.ask(write_lac(1, 0))
        station.handle(PersistRefused("no space"))
        assert station.take_answers() == [LacWritten(ONE, Code.READ_ONLY)]
        assert station.answer(write_lac(1, 0)).code is Code.READ_ONLY

    def test_it_holds_its_ledger(self, station: Station) -> None:
        """A ledger is collected only while none of its records is being persisted."""
        station.ask(write_lac(1, 0))
        station.bury(1)
        assert 1 in station.machine.known()
        station.commit()
        station.bury(1)
        assert 1 not in station.machine.known()

    def test_waiting_ones_are_bounded(self) -> None:
        options = BookieOptions(journal_file_bytes=64 * 1024, journal_waiting_bytes_max=400)
        station = fresh(options)
        station.ask(*[write_lac(1, lac) for lac in range(4)])
        assert [answer.code for answer in station.take_answers()] == [Code.TOO_MANY_REQUESTS] * 2

    def test_nothing_to_read_is_no_entry(self, station: Station) -> None:
        assert station.answer(ReadLac(ONE)) == LacRead(ONE, Code.NO_ENTRY)
        assert station.answer(ReadLac(LedgerId(-1))).code is Code.BAD_REQUEST
        stored_answers(station, fence(1, -1))
        assert station.answer(ReadLac(ONE)) == LacRead(ONE, Code.NO_ENTRY)
        stored(station, 2, 0)
        station.checkpoint()
        assert station.answer(ReadLac(LedgerId(2))).last_packet == packet(2, 0, b"body 0")


class TestForce:
    def test_it_is_answered_after_what_was_sent_before_it(self, station: Station) -> None:
        station.ask(add(1, 0), ForceLedger(ONE))
        assert station.take_answers() == []
        station.commit()
        assert station.take_answers() == [EntryAdded(ONE, EntryId(0), Code.OK), LedgerForced(ONE, Code.OK)]

    def test_with_nothing_in_flight_it_is_answered_at_once(self, station: Station) -> None:
        stored(station, 1, 0)
        assert station.answer(ForceLedger(ONE)) == LedgerForced(ONE, Code.OK)
        assert station.answer(ForceLedger(LedgerId(5))).code is Code.OK, "with striping it may have no entry here"
        assert station.answer(ForceLedger(LedgerId(-5))).code is Code.BAD_REQUEST

    def test_what_was_refused_is_not_forced(self, station: Station) -> None:
        station.ask(add(1, 0), ForceLedger(ONE))
        station.handle(PersistRefused("no space"))
        added, forced = station.take_answers()
        assert (added.code, forced.code) == (Code.READ_ONLY, Code.IO_ERROR)

    def test_a_bookie_that_may_lack_data_forces_nothing(self) -> None:
        machine = Bookie(OPTIONS, [LedgerRow(1, KEY, False, -1, 3)], limbo=True)
        (effect,) = machine.handle(Received("c", ForceLedger(ONE)))
        assert isinstance(effect, Send) and effect.message.code is Code.IO_ERROR
        for request in (ListEntries(ONE), ReadLac(LedgerId(2)), ReadWithLac(LedgerId(2), EntryId(0))):
            (effect,) = machine.handle(Received("c", request))
            assert effect.message.code is Code.IO_ERROR


class TestLists:
    def test_ids_in_memory_and_on_disk(self, station: Station) -> None:
        stored(station, 1, 0, 1, 2, 9)
        station.checkpoint()
        stored(station, 1, 3, 4, 7, 9)
        station.ask(add(1, 50))  # not durable
        assert station.answer(ListEntries(ONE)) == EntriesListed(ONE, Code.OK, encode_runs([(0, 4), (7, 7), (9, 9)]))

    def test_refusals(self, station: Station) -> None:
        assert station.answer(ListEntries(ONE)) == EntriesListed(ONE, Code.NO_LEDGER)
        assert station.answer(ListEntries(LedgerId(-1))).code is Code.BAD_REQUEST

    def test_a_fenced_ledger_without_entries_has_none(self, station: Station) -> None:
        stored_answers(station, fence(1, -1))
        station.take_answers()
        assert station.answer(ListEntries(ONE)) == EntriesListed(ONE, Code.OK, encode_runs([]))

    def test_one_with_too_many_gaps_is_an_error(self, station: Station) -> None:
        stored(station, 1, *range(0, 2002, 2))
        station.checkpoint()
        assert station.answer(ListEntries(ONE)).listed == encode_runs([(n, n) for n in range(0, 2002, 2)])
        stored(station, 2, *(number * number for number in range(2, 2200)))
        station.checkpoint()
        assert station.answer(ListEntries(LedgerId(2))) == EntriesListed(LedgerId(2), Code.IO_ERROR)

    def test_their_number_is_bounded(self) -> None:
        machine = Bookie(OPTIONS, [LedgerRow(1, KEY, False, -1, 3)])
        for _ in range(16):
            machine.handle(Received("c", ListEntries(ONE)))
        (refused,) = machine.handle(Received("c", ListEntries(ONE)))
        assert refused.message.code is Code.TOO_MANY_REQUESTS


def test_the_disks_are_asked_for_their_space(station: Station) -> None:
    (effect,) = station.machine.handle(Received("c", GetSpace()))
    assert effect == SpaceAsked("c", GetSpace())
