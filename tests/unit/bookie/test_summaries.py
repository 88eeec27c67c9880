"""Summaries of ranges: exact whatever lies where, bounded, and refused where the bookie could deny what it has."""

from __future__ import annotations

import random

import pytest

from dlog.bookie.journal import FIRST_MARKS
from dlog.bookie.options import BookieOptions
from dlog.bookie.summaries import SUMMARIES_MAX
from dlog.machine import Received
from dlog.model.ids import EntryId, LedgerId
from dlog.model.ledger import DigestType
from dlog.wire.bookie import SUMMARY_IDS_MAX, AddEntry, Code, EntriesSummarized, SummarizeEntries
from dlog.wire.digest import Digest
from dlog.wire.entry_summary import HEAD_BYTES_MAX, EntryOutline, summarize
from tests.crashpoints.station import Station, fresh
from tests.simulation.disk import SimulatedDisk
from tests.unit.bookie.test_ledger_dir import directory, half, row

ONE = LedgerId(1)
DIGEST = Digest(ONE, DigestType.CRC32C, b"pw")


def request(first: int, last: int, modulus: int = 1, remainder: int = 0, ledger: int = 1) -> SummarizeEntries:
    return SummarizeEntries(LedgerId(ledger), EntryId(first), EntryId(last), 7, modulus, remainder)


def packet(entry: int) -> bytes:
    return b"".join(DIGEST.pack(entry, entry - 1, 5 * (entry + 1), (b"%05d" % entry,)))


def expected(entries: list[int], first: int) -> EntriesSummarized:
    outlines = [EntryOutline(entry, packet(entry)[:HEAD_BYTES_MAX], len(packet(entry))) for entry in sorted(entries)]
    return EntriesSummarized(ONE, EntryId(first), 7, Code.OK, *summarize(outlines, DigestType.CRC32C))


def station_with(*entries: int) -> Station:
    station = fresh(BookieOptions(journal_file_bytes=64 * 1024))
    add(station, *entries)
    return station


def add(station: Station, *entries: int) -> None:
    station.ask(*(AddEntry(ONE, EntryId(entry), DIGEST.master_key, (packet(entry),)) for entry in entries))
    station.commit()


def answer(station: Station, asked: SummarizeEntries) -> EntriesSummarized:
    station.ask(asked)
    found: EntriesSummarized = station.answers[-1][1]
    return found


@pytest.mark.parametrize("seed", range(12))
def test_a_summary_counts_each_entry_once_wherever_it_lies(seed: int) -> None:
    rng = random.Random(seed)
    station, there = station_with(), set[int]()
    for _ in range(rng.randrange(1, 5)):
        new = sorted(set(rng.sample(range(400), rng.randrange(1, 150))) - there)
        add(station, *new)
        there.update(new)
        if rng.random() < 0.6:
            station.checkpoint()
    for _ in range(20):
        modulus = rng.choice((1, 2, 3, 5))
        remainder, first = rng.randrange(modulus), rng.randrange(420)
        last = first + rng.randrange(420)
        wanted = [entry for entry in there if first <= entry <= last and entry % modulus == remainder]
        assert answer(station, request(first, last, modulus, remainder)) == expected(wanted, first)


def test_entries_that_wait_for_the_journal_do_not_count() -> None:
    station = station_with(0, 1)
    station.ask(AddEntry(ONE, EntryId(2), DIGEST.master_key, (packet(2),)))
    assert answer(station, request(0, 5)) == expected([0, 1], 0)


def test_bad_and_wide_requests_are_refused() -> None:
    station = station_with(0)
    for bad in (
        request(0, SUMMARY_IDS_MAX),
        request(0, 3 * SUMMARY_IDS_MAX, 3),
        request(0, 2**63 - 1),
        request(-1, 5),
        request(5, 4),
        request(0, 5, 0),
        request(0, 5, 2, 2),
        request(0, 5, 2, -1),
        request(0, 5, -1),
        request(0, 5, ledger=-1),
        SummarizeEntries(ONE, EntryId(0), EntryId(5), 7, digest=0),
    ):
        assert answer(station, bad).code is Code.BAD_REQUEST
    assert answer(station, request(0, SUMMARY_IDS_MAX - 1)).code is Code.OK
    assert answer(station, request(0, 3 * SUMMARY_IDS_MAX - 1, 3)).code is Code.OK
    assert answer(station, request(0, 5, ledger=2)).code is Code.NO_LEDGER


def test_a_bookie_that_may_have_lost_data_says_nothing() -> None:
    station = station_with(0)
    station.machine._limbo = True
    assert answer(station, request(0, 5)).code is Code.IO_ERROR


def test_requests_under_way_are_bounded() -> None:
    machine = station_with(0).machine
    for _ in range(SUMMARIES_MAX):
        machine.handle(Received("c", request(0, 5)))
    (refused,) = machine.handle(Received("c", request(0, 5)))
    assert refused.message.code is Code.TOO_MANY_REQUESTS


def test_the_newest_index_run_and_the_merged_one_give_the_same_outlines() -> None:
    made = directory(SimulatedDisk())
    for _ in range(4):
        made.flush(half(*((1, entry) for entry in range(0, 300, 3))), [row(1, 299)], FIRST_MARKS)
    before = [made.outlines(1)(entry) for entry in range(300)]
    made.merge_runs()
    outline = made.outlines(1)
    assert [outline(entry) for entry in range(300)] == before
    assert [found.entry for found in before if found is not None] == list(range(0, 300, 3))
