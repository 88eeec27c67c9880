"""Tests entry logs and index: right bytes or an error, never wrong bytes and never absence (J5); merges keep the
map."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from typing import Any

import pytest

from dlog.bookie.cache import Half, ReadCache, Stored
from dlog.bookie.entry_log import parse_section_end
from dlog.bookie.index import CHUNK_ENTRIES, LedgerRow, runs_to_merge
from dlog.bookie.journal import FIRST_MARKS, JournalMark
from dlog.bookie.manifest import IndexKind, LogFile, Manifest, RunFile, decode, encode
from dlog.bookie.messages import CheckpointDue
from dlog.bookie.options import BookieOptions
from dlog.errors import DamagedError
from dlog.io.bookie_store import LedgerDirs
from dlog.io.disk import BLOCK_BYTES, NO_SPACE
from dlog.io.ledger_dir import LedgerDir
from dlog.io.reserve import RESERVE
from dlog.wire.bookie import Code
from dlog.wire.digest import crc32c
from tests.crashpoints.station import Station, add, packet
from tests.simulation.disk import SimulatedDisk, SimulatedFile
from tests.sorted_runs import runs_of

DIR = "/d"
_kinds = [IndexKind.SORTED]  # of the index in the running test
on_both = pytest.mark.parametrize("kind", list(IndexKind), indirect=True)


@pytest.fixture(autouse=True)
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.unit.bookie.test_ledger_dir._kinds", [getattr(request, "param", IndexKind.SORTED)])


def ledger_dir(
    disk: SimulatedDisk, entry_log_bytes: int, entry_logs_open_max: int = 256, *, reserve_bytes: int = 0
) -> LedgerDir:
    return LedgerDir(disk, DIR, entry_log_bytes, entry_logs_open_max, reserve_bytes, _kinds[0])


def half(*ids: tuple[int, int], body: bytes = b"") -> Half:
    entries: Half = {}
    for ledger, entry in ids:
        data = packet(ledger, entry, body)
        entries.setdefault(ledger, {})[entry] = Stored(data, crc32c(data))
    return entries


def directory(disk: SimulatedDisk, entry_log_bytes: int = 1 << 30) -> LedgerDir:
    made = ledger_dir(disk, entry_log_bytes)
    made.load()
    return made


def row(ledger: int, last: int = -1, fenced: bool = False) -> LedgerRow:
    return LedgerRow(ledger, b"k" * 20, fenced, last - 1, last)


@on_both
@pytest.mark.parametrize("alone_bytes", [32 << 10, 1], ids=["together", "one by one"])
def test_lookup_reads_ahead_over_neighbours_and_stops_at_a_gap(
    alone_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlog.io.ledger_dir._ALONE_BYTES", alone_bytes)
    made = directory(SimulatedDisk())
    made.flush(half(*[(1, e) for e in range(10)], (1, 20), (2, 5)), [row(1, 20), row(2, 5)], FIRST_MARKS)
    assert made.lookup(1, 3, 100, 1 << 20) == [packet(1, e) for e in range(3, 10)]
    assert made.lookup(1, 3, 2, 1 << 20) == [packet(1, 3), packet(1, 4)]
    assert made.lookup(1, 3, 100, 70) == [packet(1, 3), packet(1, 4)]
    assert made.lookup(1, 20, 100, 1 << 20) == [packet(1, 20)]
    assert made.lookup(1, 15, 100, 1 << 20) == made.lookup(3, 0, 100, 1 << 20) == []


@on_both
@pytest.mark.parametrize("body", [0, 100, 1 << 20, (1 << 20) - 32 - 8 - 24, (5 << 20) + 1])
def test_a_log_is_whole_blocks_whatever_the_sizes_of_entries(body: int) -> None:
    disk = SimulatedDisk()
    made = directory(disk)
    for step in range(3):
        made.flush(half((1, step), (2, step), body=bytes(body)), [row(1, step), row(2, step)], FIRST_MARKS)
    (log,) = made.manifest.logs
    assert log.length % BLOCK_BYTES == 0 == disk.open(f"{DIR}/entries-{log.log:08x}").size() - log.length
    for again in (made, directory(disk)):
        for ledger, entry in itertools.product((1, 2), range(3)):
            assert again.lookup(ledger, entry, 1, 1 << 30) == [packet(ledger, entry, bytes(body))]


@on_both
def test_entry_logs_are_read_as_asked_whoever_opened_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal's syncs would wait behind the read-ahead of a catch-up read; runs are looked up at random."""
    asked: list[int] = []
    monkeypatch.setattr(SimulatedFile, "disable_read_ahead", lambda file: asked.append(file.inode))
    disk = SimulatedDisk()
    made = directory(disk)
    made.flush(half((1, 0)), [row(1, 0)], FIRST_MARKS)
    made.flush(half((1, 1)), [row(1, 1)], FIRST_MARKS)
    (log,) = made.manifest.logs
    inode = disk.open(f"{DIR}/entries-{log.log:08x}").inode
    assert asked == [inode], "when it was made"
    again = directory(disk)
    assert again.lookup(1, 0, 1, 1 << 20) + again.lookup(1, 1, 1, 1 << 20) == [packet(1, 0), packet(1, 1)]
    assert asked == [inode, inode], "and when it was opened"


@on_both
def test_a_log_that_ends_within_a_block_is_not_continued() -> None:
    """An earlier version wrote such a log."""
    made = directory(SimulatedDisk())
    made.flush(half((1, 0)), [row(1, 0)], FIRST_MARKS)
    (log,) = made.manifest.logs
    made.manifest = replace(made.manifest, logs=(log._replace(length=log.length - 1),))
    made.flush(half((1, 1)), [row(1, 1)], FIRST_MARKS)
    assert len(made.manifest.logs) == 2
    assert made.lookup(1, 0, 1, 1 << 20) == [packet(1, 0)] and made.lookup(1, 1, 1, 1 << 20) == [packet(1, 1)]


@on_both
def test_many_flushes_merge_and_keep_every_entry() -> None:
    disk = SimulatedDisk()
    made = directory(disk, entry_log_bytes=20_000)
    rng = random.Random(3)
    expected: set[tuple[int, int]] = set()
    for step in range(60):
        ids = {(rng.choice((1, 2, 2**40)), rng.randrange(2000)) for _ in range(rng.randint(1, 300))}
        ids |= {(7, step * 50 + i) for i in range(50)}
        made.flush(half(*ids), [row(7, step * 50 + 49, fenced=step >= 30)], FIRST_MARKS)
        expected |= ids
        while made.merge_runs():
            pass
    assert len(made.manifest.runs) < 12 and len(made.manifest.logs) > 5
    for again in (made, directory(disk)):
        for ledger, entry in expected:
            assert again.lookup(ledger, entry, 1, 1 << 20) == [packet(ledger, entry)]
        for ledger, entry in ((1, 5000), (3, 0), (7, 60 * 50)):
            assert again.lookup(ledger, entry, 1, 1 << 20) == []
    rows = {r.ledger: r for r in ledger_dir(disk, 1).load()}
    assert rows[7] == row(7, 60 * 50 - 1, fenced=True)


@on_both
def test_chunks_hold_more_entries_than_one_block() -> None:
    made = directory(SimulatedDisk())
    ids = [(1, e) for e in range(CHUNK_ENTRIES * 3 + 5)]
    made.flush(half(*ids), [], FIRST_MARKS)
    assert all(made.lookup(1, e, 1, 100) == [packet(1, e)] for _, e in ids)


@on_both
def test_the_table_of_contents_names_the_ledgers_of_a_log() -> None:
    disk = SimulatedDisk()
    made = directory(disk)
    made.flush(half((1, 0), (1, 1), (9, 0)), [], FIRST_MARKS)
    made.flush(half((4, 0)), [], FIRST_MARKS)
    (log,) = made.manifest.logs
    file = disk.open(f"{DIR}/entries-{log.log:08x}")
    previous, contents = parse_section_end(file.pread(log.length - log.section, log.section))
    assert [c[0] for c in contents] == [4]
    first, contents = parse_section_end(file.pread(1000, previous))
    assert first == 0 and [(c[0], c[1]) for c in contents] == [(1, 2), (9, 1)]


def test_files_no_manifest_names_are_removed() -> None:
    disk = SimulatedDisk()
    directory(disk).flush(half((1, 0)), [], FIRST_MARKS)
    disk.create(f"{DIR}/entries-000000ff")
    disk.create(f"{DIR}/index-000000fe")
    disk.create(f"{DIR}/VERSION")
    directory(disk)
    assert disk.names(DIR) == ["MANIFEST", "VERSION", "entries-00000001", "index-00000002"]


def test_any_flipped_bit_gives_the_right_bytes_or_an_error() -> None:
    """J5, for each byte of entry log and index: at worst a start is refused or an entry is unknown."""
    options = BookieOptions(journal_file_bytes=16 * 1024, read_cache_bytes=0, gc_reserve_bytes=0)
    disk = SimulatedDisk()
    first = Station(disk, options)
    first.ask(*[add(ledger, entry, b"%d/%d" % (ledger, entry)) for ledger in (2, 4) for entry in range(6)])
    first.commit()
    first.handle(CheckpointDue())
    first.flush()
    rng = random.Random(5)
    refused = unknown = 0
    paths = [path for path in disk.image.names if path.startswith("/ledgers0/")]
    assert len(paths) == 3
    for path in paths:
        size = disk.open(path).size()
        for byte in range(size):
            bit = byte * 8 + rng.randrange(8)
            image = disk.image.copy()
            image.flip_bit(path, bit)
            try:
                station = Station(SimulatedDisk(image), options)
            except DamagedError:
                refused += 1
                continue
            for ledger in (2, 4):
                for entry in range(6):
                    found = station.stored(ledger, entry)
                    assert found in (packet(ledger, entry, b"%d/%d" % (ledger, entry)), Code.IO_ERROR), (path, byte)
                    unknown += found is Code.IO_ERROR
    assert refused > 100 and unknown > 100


def test_an_entry_that_cannot_be_read_is_taken_again() -> None:
    """A writer or a recovery that has the bytes offers them again; a refusal would leave this copy lost for good."""
    options = BookieOptions(journal_file_bytes=16 * 1024, read_cache_bytes=0, gc_reserve_bytes=0)
    disk = SimulatedDisk()
    first = Station(disk, options)
    first.ask(*[add(2, entry, b"2/%d" % entry) for entry in range(6)])
    first.commit()
    first.checkpoint()
    rng = random.Random(6)
    mended = 0
    for path in [path for path in disk.image.names if path.startswith("/ledgers0/")]:
        for byte in range(0, disk.open(path).size(), 3):
            image = disk.image.copy()
            image.flip_bit(path, byte * 8 + rng.randrange(8))
            try:
                station = Station(SimulatedDisk(image), options)
            except DamagedError:
                continue
            lost = [entry for entry in range(6) if station.stored(2, entry) is Code.IO_ERROR]
            for entry in lost:
                station.take_answers()
                station.ask(add(2, entry, b"2/%d" % entry))
                station.commit()
                assert [answer.code for answer in station.take_answers()] == [Code.OK]
                assert station.stored(2, entry) == packet(2, entry, b"2/%d" % entry)
            station.checkpoint()
            for again in (station, Station(station.disk, options)):
                assert [again.stored(2, e) for e in lost] == [packet(2, e, b"2/%d" % e) for e in lost], (path, byte)
            mended += len(lost)
    assert mended > 50


def test_a_missing_entry_log_is_told_and_its_entries_are_errors() -> None:
    options = BookieOptions(journal_file_bytes=16 * 1024, gc_reserve_bytes=0)
    disk = SimulatedDisk()
    first = Station(disk, options)
    first.ask(add(2, 0))
    first.commit()
    first.checkpoint()
    disk.unlink("/ledgers0/entries-00000001")
    station = Station(disk, options)
    assert "entries-00000001" in str(station.events)
    assert station.stored(2, 0) is Code.IO_ERROR


def cut_off(disk: SimulatedDisk, path: str, size: int) -> None:
    """Cut a file off; 0: remove it."""
    if size:
        del disk.image.contents[disk.image.names[path]][size:]
    else:
        disk.unlink(path)


@pytest.mark.parametrize("index", list(IndexKind))
@pytest.mark.parametrize("left", [0, 1000])
def test_a_bookie_that_lost_its_last_log_keeps_what_it_acknowledges_then(index: IndexKind, left: int) -> None:
    """left: bytes of the log that are left; 0: it is missing."""
    options = BookieOptions(journal_file_bytes=16 * 1024, gc_reserve_bytes=0, index=index)
    disk = SimulatedDisk()
    first = Station(disk, options)
    first.ask(*[add(2, entry, bytes(100)) for entry in range(10)])
    first.commit()
    first.checkpoint()
    cut_off(disk, "/ledgers0/entries-00000001", left)
    station = Station(disk, options)
    station.take_answers()
    for step in range(10, 14):
        station.ask(add(2, step), add(4, step))
        station.commit()
        assert [answer.code for answer in station.take_answers()] == [Code.OK, Code.OK]
        if step == 12:
            station = Station(disk, options)  # which replays what is in the journal only
        else:
            station.checkpoint()
    for again in (station, Station(disk, options)):
        for ledger in (2, 4):
            assert [again.stored(ledger, entry) for entry in range(10, 14)] == [
                packet(ledger, e) for e in range(10, 14)
            ]
        assert again.stored(2, 9) is Code.IO_ERROR, "lost, and not denied"
    assert str(again.events).count("entry log is missing or cut off") == 1
    assert "entries-00000001" in str(again.events)


@on_both
def test_a_log_that_is_removed_while_it_is_open_gets_no_more_entries() -> None:
    disk = SimulatedDisk()
    made = directory(disk)
    made.flush(half((1, 0)), [row(1, 0)], FIRST_MARKS)
    (log,) = made.manifest.logs
    disk.unlink(f"{DIR}/entries-{log.log:08x}")
    made.flush(half((1, 1)), [row(1, 1)], FIRST_MARKS)
    assert made.manifest.logs[0] == log and len(made.manifest.logs) == 2
    again = directory(disk)
    assert again.lookup(1, 1, 1, 1 << 20) == [packet(1, 1)]
    with pytest.raises(DamagedError, match="an entry log is missing"):
        again.lookup(1, 0, 1, 1 << 20)


@on_both
def test_a_directory_with_entries_and_no_manifest_is_refused_and_nothing_is_removed() -> None:
    disk = SimulatedDisk()
    directory(disk).flush(half((1, 0)), [], FIRST_MARKS)
    disk.unlink(f"{DIR}/MANIFEST")
    before = disk.names(DIR)
    with pytest.raises(DamagedError, match="MANIFEST is missing"):
        directory(disk)
    assert disk.names(DIR) == before


def test_an_older_checkpoint_that_finishes_after_a_newer_one_moves_no_mark_back() -> None:
    """BookKeeper #4105 and #4740: the last mark went back to a position whose journal had been deleted already."""
    disk = SimulatedDisk()
    dirs = LedgerDirs(disk, [DIR], 1 << 30)
    dirs.load(lambda _: None)
    dirs.flush(half((1, 1)), [row(1, 1)], (JournalMark(5, 4096, 50, 500),))
    dirs.flush(half((1, 0)), [row(1, 1)], (JournalMark(3, 4096, 30, 300),))
    assert dirs.marks(1) == (JournalMark(5, 4096, 50, 500),)
    again = LedgerDirs(disk, [DIR], 1 << 30)
    again.load(lambda _: None)
    assert again.marks(1) == (JournalMark(5, 4096, 50, 500),)
    assert again.lookup(1, 0, 1, 100) and again.lookup(1, 1, 1, 100)


def test_manifest_round_trip_and_damage() -> None:
    manifest = Manifest(next_file=9, runs=(RunFile(3, 100, 77),), logs=(LogFile(1, 5, 6),), limbo=True)
    data = encode(manifest)
    assert decode(data) == manifest
    for at in range(len(data)):
        with pytest.raises(DamagedError):
            decode(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])


def test_merging_takes_a_run_that_is_not_much_larger_than_the_newer_ones() -> None:
    assert runs_to_merge([]) == runs_to_merge([1, 1, 1]) == 0
    assert runs_to_merge([1, 1, 1, 1]) == 4
    assert runs_to_merge([100, 1, 1, 1, 1]) == 4
    assert runs_to_merge([1000, 100, 1, 1, 1]) == 0


def test_the_read_cache_stays_within_its_bytes() -> None:
    cache = ReadCache(1000)
    for entry in range(50):
        cache.put(1, entry, bytes(50))
        assert cache.bytes <= 1000
    assert cache.get(1, 49) == bytes(50) and cache.get(1, 0) is None
    cache.put(1, 49, bytes(60))
    assert cache.get(1, 49) == bytes(60)
    cache.put(2, 0, bytes(5000))
    assert cache.bytes <= 1000


def names(disk: SimulatedDisk, prefix: str) -> list[str]:
    return [name for name in disk.names(DIR) if name.startswith(prefix)]


@on_both
def test_a_log_without_a_living_ledger_is_deleted_and_the_others_stay() -> None:
    disk = SimulatedDisk()
    made = directory(disk, entry_log_bytes=1)
    for ledger in (1, 2, 3):
        made.flush(half((ledger, 0), body=bytes(5000)), [row(ledger, 0)], FIRST_MARKS)
    made.flush(half((1, 1), (2, 1)), [row(1, 1), row(2, 1)], FIRST_MARKS)
    before = disk.used
    made.bury([1, 3])
    usage = made.collect()
    assert len(names(disk, "entries-")) == 2 and usage.reclaimed_bytes >= 10_000
    assert before - disk.used > 9_000 and 5_000 < usage.live_bytes < 6_000
    for again in (made, directory(disk)):
        assert again.lookup(2, 0, 1, 1 << 20) == [packet(2, 0, bytes(5000))]
        assert again.lookup(2, 1, 1, 1 << 20) == [packet(2, 1)]
        assert again.lookup(1, 0, 1, 1 << 20) == again.lookup(3, 0, 1, 1 << 20) == []
        assert list(again.gone) == [1, 3]


def test_rows_and_chunks_of_ledgers_that_are_gone_leave_the_index() -> None:
    disk = SimulatedDisk()
    made = directory(disk)
    made.flush(half(*[(ledger, 0) for ledger in range(100)]), [row(n, 0) for n in range(100)], FIRST_MARKS)
    made.bury(range(99))
    made.shrink_index()
    (run,) = runs_of(made)
    assert len(run.table) == 1
    assert [r.ledger for r in ledger_dir(disk, 1).load()] == [99]


def test_what_is_flushed_of_a_ledger_that_is_gone_reaches_neither_log_nor_index() -> None:
    disk = SimulatedDisk()
    made = directory(disk)
    made.bury([1])
    made.flush(half((1, 0)), [row(1, 0)], FIRST_MARKS)
    assert not names(disk, "entries-") and not names(disk, "index-")


@on_both
def test_a_log_whose_table_of_contents_is_damaged_is_kept_and_told() -> None:
    disk = SimulatedDisk()
    made = directory(disk)
    made.flush(half((1, 0)), [row(1, 0)], FIRST_MARKS)
    (log,) = made.manifest.logs
    disk.flip_bit(f"{DIR}/entries-{log.log:08x}", (log.section + 30) * 8)
    made.bury([1])
    usage = made.collect()
    assert names(disk, "entries-") and usage.reclaimed_bytes == 0 and "does not verify" in usage.failures[0]


@on_both
@pytest.mark.parametrize("left", [0, 1000])
@pytest.mark.parametrize("end", ["deleted", "written again", "moved away"])
def test_a_lost_log_stays_while_the_index_leads_there_and_stops_no_collection(end: str, left: int) -> None:
    """left: bytes of the log that are left; 0: it is missing."""
    disk = SimulatedDisk()
    made = directory(disk, 5000)
    made.flush(half((1, 0), (2, 1), (3, 0), body=bytes(3000)), [row(1, 0), row(2, 1), row(3, 0)], FIRST_MARKS)
    made.flush(half((4, 0), body=bytes(5000)), [row(4, 0)], FIRST_MARKS)
    made.flush(half((3, 0), (5, 0), body=bytes(3000)), [row(3, 0), row(5, 0)], FIRST_MARKS)
    made.close()
    lost, other, last = (log.log for log in made.manifest.logs)
    cut_off(disk, f"{DIR}/entries-{lost:08x}", left)
    made = directory(disk, 5000)
    made.bury([1, 4])
    usage = made.collect()
    assert not usage.failures and usage.reclaimed_bytes >= 5000, "the other log was deleted"
    assert [log.log for log in made.manifest.logs] == [lost, last]
    assert f"entries-{other:08x}" not in disk.names(DIR)
    with pytest.raises(DamagedError):
        made.lookup(2, 1, 1, 1 << 20)
    if end == "deleted":
        made.bury([2])
    elif end == "written again":
        made.flush(half((2, 1), body=bytes(3000)), [row(2, 1)], FIRST_MARKS)
    else:
        made.drop_entries([row(2, fenced=True)])
    usage = made.collect()
    assert not usage.failures and usage.reclaimed_bytes == 0
    assert lost not in {log.log for log in made.manifest.logs} and f"entries-{lost:08x}" not in disk.names(DIR)
    for again in (made, directory(disk)):
        assert not again.missing_logs()
        assert again.lookup(3, 0, 1, 1 << 20) == [packet(3, 0, bytes(3000))]
        assert again.lookup(2, 1, 1, 1 << 20) == ([packet(2, 1, bytes(3000))] if end == "written again" else [])


def test_a_lost_log_stays_while_the_index_cannot_say_what_leads_there() -> None:
    disk = SimulatedDisk()
    made = directory(disk, 5000)
    made.flush(half((1, 0), body=bytes(5000)), [row(1, 0)], FIRST_MARKS)
    made.flush(half((2, 0), body=bytes(5000)), [row(2, 0)], FIRST_MARKS)
    (lost, other) = made.manifest.logs
    disk.unlink(f"{DIR}/entries-{lost.log:08x}")
    for name in names(disk, "index-"):
        disk.flip_bit(f"{DIR}/{name}", 8 * 60)
    usage = made.collect()
    assert len(usage.failures) == 1 and made.manifest.logs == (lost, other)


@on_both
def test_a_damaged_list_of_what_is_gone_is_refused() -> None:
    disk = SimulatedDisk()
    made = directory(disk)
    made.flush(half((1, 0)), [row(1, 0)], FIRST_MARKS)
    made.bury([1])
    disk.flip_bit(f"{DIR}/GONE", 70)
    with pytest.raises(DamagedError, match="GONE"):
        directory(disk)


@on_both
def test_entries_that_were_moved_away_leave_the_index_and_their_logs_are_deleted() -> None:
    disk = SimulatedDisk()
    made = ledger_dir(disk, 5000)
    made.load()
    for ledger in (1, 2, 3):  # an entry fills a log
        made.flush(half((ledger, 0), body=bytes(5000)), [row(ledger, 0)], FIRST_MARKS)
    made.flush(half((1, 1), (2, 1)), [row(1, 1), row(2, 1)], FIRST_MARKS)
    left = row(1, fenced=True)
    made.drop_entries([left])
    for again in (made, directory(disk)):
        assert again.lookup(1, 0, 1, 1 << 20) == again.lookup(1, 1, 1, 1 << 20) == []
        assert again.lookup(2, 1, 1, 1 << 20) == [packet(2, 1)]
        assert list(again.moved) == [1]
        assert [list(runs) for runs in again.entry_runs(1)] in ([], [[]])
    assert next(r for r in ledger_dir(disk, 5000).load() if r.ledger == 1) == left
    usage = made.collect()
    assert len(names(disk, "entries-")) == 3 and usage.reclaimed_bytes >= 5000
    again = directory(disk)
    assert again.lookup(2, 0, 1, 1 << 20) == [packet(2, 0, bytes(5000))]


@on_both
def test_entries_that_come_back_after_they_were_moved_away_are_live() -> None:
    disk = SimulatedDisk()
    made = ledger_dir(disk, 5000)
    made.load()
    made.flush(half((1, 0), body=bytes(5000)), [row(1, 0)], FIRST_MARKS)
    made.drop_entries([row(1, fenced=True)])
    made.flush(half((1, 0), body=bytes(5000)), [row(1, 0, fenced=True)], FIRST_MARKS)
    assert len(names(disk, "entries-")) == 2
    assert made.collect().reclaimed_bytes >= 5000
    assert len(names(disk, "entries-")) == 1
    for again in (made, directory(disk)):
        assert again.lookup(1, 0, 1, 1 << 20) == [packet(1, 0, bytes(5000))]
        assert again.collect().reclaimed_bytes == 0


@on_both
def test_a_log_with_what_was_moved_away_is_compacted_without_it() -> None:
    disk = SimulatedDisk()
    made = ledger_dir(disk, 5000)
    made.load()
    made.flush(half((1, 0), body=bytes(5000)) | half((2, 0)), [row(1, 0), row(2, 0)], FIRST_MARKS)
    made.drop_entries([row(1, fenced=True)])
    assert made.compact(0.5, 1 << 20) and made.compact(0.5, 1 << 20) == 0
    assert made.collect().live_bytes < 1000
    assert made.lookup(2, 0, 1, 1 << 20) == [packet(2, 0)] and made.lookup(1, 0, 1, 1 << 20) == []


@on_both
def test_a_damaged_list_of_what_was_moved_away_is_refused() -> None:
    disk = SimulatedDisk()
    made = directory(disk)
    made.flush(half((1, 0)), [row(1, 0)], FIRST_MARKS)
    made.drop_entries([row(1, fenced=True)])
    disk.flip_bit(f"{DIR}/MOVED", 70)
    with pytest.raises(DamagedError, match="MOVED"):
        directory(disk)


@on_both
def test_a_reader_under_way_goes_on_in_a_log_that_is_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    made = directory(SimulatedDisk())
    made.flush(half((1, 0)), [row(1, 0)], FIRST_MARKS)
    read = LedgerDir._read

    def slowly(which: LedgerDir, ledger: int, places: list[Any]) -> list[bytes]:
        made.bury([1])
        made.collect()
        return read(which, ledger, places)

    monkeypatch.setattr(LedgerDir, "_read", slowly)
    assert made.lookup(1, 0, 1, 1 << 20) == [], "gone, and not damaged"


@on_both
def test_seen_is_stored_with_a_ledgers_state() -> None:
    disk = SimulatedDisk()
    made = directory(disk)
    rows = [replace_seen(row(1, fenced=True), 127), replace_seen(row(2), 1), row(3)]
    made.flush({}, rows, FIRST_MARKS)
    assert ledger_dir(disk, 1).load() == rows


def replace_seen(state: LedgerRow, seen: int) -> LedgerRow:
    return state._replace(seen=seen)


@on_both
def test_explicit_lacs_are_kept_beside_the_other_states() -> None:
    disk = SimulatedDisk()
    made = directory(disk)
    rows = [row(1)._replace(explicit_lac=b"p" * 36), row(2), row(3, fenced=True)._replace(explicit_lac=b"q" * 16)]
    made.flush({}, rows, FIRST_MARKS)
    assert ledger_dir(disk, 1).load() == rows


@pytest.mark.parametrize("version", [2, 3])
def test_a_manifest_of_a_version_before_is_read(version: int) -> None:
    old = encode(Manifest(next_file=7)).replace(b'"version": 4', b'"version": %d' % version)
    text = old[:-9]
    assert decode(text + b"%08x\n" % crc32c(text)).next_file == 7


def mostly_dead(disk: SimulatedDisk, *, entry_log_bytes: int = 60_000) -> LedgerDir:
    """A full log of ledgers 1 (gone), 2 and 3, then others."""
    made = directory(disk, entry_log_bytes)
    entries = half(*[(1, e) for e in range(60)], *[(2, e) for e in range(10)], (3, 7), body=bytes(1000))
    made.flush(entries, [row(1, 59), row(2, 9), row(3, 7)], FIRST_MARKS)
    made.flush(half((2, 10), body=bytes(1000)), [row(2, 10)], FIRST_MARKS)
    made.bury([1])
    made.collect()
    return made


def all_there(made: LedgerDir) -> bool:
    return all(made.lookup(2, e, 1, 1 << 20) == [packet(2, e, bytes(1000))] for e in range(11)) and (
        made.lookup(3, 7, 1, 1 << 20) == [packet(3, 7, bytes(1000))]
    )


@on_both
def test_a_mostly_dead_log_is_emptied_in_parts_and_then_deleted() -> None:
    disk = SimulatedDisk()
    made = mostly_dead(disk)
    (first, *_) = made.manifest.logs
    assert made.compact(0.1, 3000) is None, "it is not below that share"
    copied = []
    while (part := made.compact(0.5, 3000)) is not None:
        copied.append(part)
        assert all_there(made) and all_there(directory(disk))
    assert sum(copied) == 11 * 1032 and max(copied) < 3000 + 1032 and copied[-1] == 0
    assert first not in made.manifest.logs and f"entries-{first.log:08x}" not in disk.names(DIR)
    assert made.compact(0.99, 3000) is None, "what was copied is not copied again"


@on_both
def test_an_interrupted_compaction_copies_nothing_twice() -> None:
    disk = SimulatedDisk()
    mostly_dead(disk).compact(0.5, 5000)
    again = directory(disk, 60_000)
    copied = 0
    while (part := again.compact(0.5, 5000)) is not None:
        copied += part
    assert 5000 <= 11 * 1032 - copied <= 6100 and all_there(again)


def test_a_log_with_an_entry_that_does_not_verify_is_not_compacted() -> None:
    disk = SimulatedDisk()
    made = mostly_dead(disk)
    (first, *_) = made.manifest.logs
    section = half(*[(1, e) for e in range(60)], body=bytes(1000))
    at = 32 + sum(8 + len(stored.packet) for stored in section[1].values()) + 500
    disk.flip_bit(f"{DIR}/entries-{first.log:08x}", at * 8)
    with pytest.raises(DamagedError):
        made.compact(0.5, 1 << 20)
    assert made.compact(0.5, 1 << 20) is None and first in made.manifest.logs


def test_no_room_for_a_copy_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """There was enough space when it was checked."""
    disk = SimulatedDisk()
    made = mostly_dead(disk)
    before = made.manifest
    disk.bytes_max = disk.used
    monkeypatch.setattr(SimulatedDisk, "free_bytes", lambda disk, _: 1 << 30)
    with pytest.raises(OSError, match="no space"):
        made.compact(0.5, 1 << 20)
    assert made.manifest == before and all_there(made)
    disk.bytes_max = 1 << 40
    while made.compact(0.5, 1 << 20) is not None:
        pass
    assert all_there(made)


@pytest.mark.parametrize("room", [0, 11 * 1032 - 1])
def test_a_log_is_not_compacted_where_what_lives_in_it_has_no_room(room: int) -> None:
    """Copying a part of it would use up the space that is left and free nothing."""
    disk = SimulatedDisk()
    made = mostly_dead(disk)
    disk.bytes_max = disk.used + room
    written = len(disk.operations)
    with pytest.raises(OSError, match="less space is free") as raised:
        made.compact(0.5, 1000)
    assert raised.value.errno in NO_SPACE and len(disk.operations) == written


def test_a_directory_without_room_keeps_no_other_from_being_compacted_and_collected() -> None:
    """One of two disks is full, and its index cannot be rewritten."""
    full, roomy = SimulatedDisk(), SimulatedDisk()
    dirs = LedgerDirs(full, ["/0", "/1"], 16_384)
    dirs._dirs[1] = LedgerDir(roomy, "/1", 16_384)
    dirs.load(lambda _: None)
    for step in range(3):
        ids = [(ledger, 10 * step + e) for ledger in (2, 3, 4, 5) for e in range(7)]
        dirs.flush(half(*ids, body=bytes(1000)), [row(2), row(3), row(4), row(5)], FIRST_MARKS)
    dirs.bury([2, 3])
    full.bytes_max = full.used
    used = roomy.used
    usage = dirs.collect()
    assert [reason for reason in usage.failures if "index" in reason] == list(usage.failures) != []
    assert not roomy_has(dirs, 3) and roomy.used < used, "its index was rewritten"
    logs = dirs._dirs[1].manifest.logs
    with pytest.raises(OSError, match="less space is free"):
        while dirs.compact(0.9, 1 << 20) is not None:
            pass
    assert dirs._dirs[1].manifest.logs != logs, "the other directory's logs were compacted first"


def roomy_has(dirs: LedgerDirs, ledger: int) -> bool:
    return any(ledger in run.table.columns[0] for run in runs_of(dirs._dirs[1]))


@on_both
@pytest.mark.parametrize("copy_on_write", [False, True])
def test_a_disk_without_a_free_byte_buries_and_frees_again_and_again(copy_on_write: bool) -> None:
    disk = SimulatedDisk()
    disk.copy_on_write = copy_on_write
    made = ledger_dir(disk, 1, reserve_bytes=1000)
    made.load()
    made.hold_reserve()
    for ledger in range(5):
        made.flush(half((ledger, 0), body=bytes(8000)), [row(ledger)], FIRST_MARKS)
    for ledger in range(4):
        disk.bytes_max = before = disk.used
        made.bury([ledger])
        assert made.collect().reclaimed_bytes > 8000 and disk.used < before - 5000
        assert RESERVE in disk.names(DIR), "it is held again"
        again = ledger_dir(disk, 1, reserve_bytes=1000)
        again.load()
        assert list(again.gone) == list(range(ledger + 1)) and again.lookup(4, 0, 1, 1) == [packet(4, 0, bytes(8000))]


@on_both
def test_entries_are_never_written_with_the_room_of_the_reserve() -> None:
    disk = SimulatedDisk()
    made = ledger_dir(disk, 1, reserve_bytes=50_000)
    made.load()
    made.hold_reserve()
    made.flush(half((1, 0)), [row(1)], FIRST_MARKS)
    disk.bytes_max = disk.used + 100
    for entries in (half((1, 1)), half()):
        with pytest.raises(OSError, match="no space"):
            made.flush(entries, [row(1)], FIRST_MARKS)
    assert disk.image.size(f"{DIR}/{RESERVE}") >= 50_000


def test_a_mark_that_is_kept_on_a_full_disk_leaves_the_reserve_to_what_is_gone() -> None:
    """Entries that wait for space do not get the space that was freed for the mark."""
    disk = SimulatedDisk()
    dirs = LedgerDirs(disk, [DIR], 1, reserve_bytes=3000)
    dirs.load(lambda _: None)
    dirs.hold_reserves()
    dirs.flush(half((1, 0), body=bytes(9000)), [row(1)], FIRST_MARKS)
    disk.bytes_max = disk.used
    for number in range(5):
        dirs.write_collection_file("COLLECTION", b"%d" % number * 200)
        with pytest.raises(OSError, match="no space"):
            dirs.flush(half((2, 0)), [row(2)], FIRST_MARKS)
    assert disk.image.size(f"{DIR}/{RESERVE}") >= 1500
    assert not dirs.bury([1]) and dirs.collect().reclaimed_bytes > 9000


@on_both
def test_the_reserve_grows_with_the_list_of_what_is_gone() -> None:
    disk = SimulatedDisk()
    made = ledger_dir(disk, 1, reserve_bytes=100)
    made.load()
    rng = random.Random(1)
    for _ in range(4):
        made.bury(rng.sample(range(10**6), 20_000))
        made.collect()
        size = disk.image.size(f"{DIR}/{RESERVE}")
        assert size >= disk.image.size(f"{DIR}/GONE") + len(encode(made.manifest)) + 50
        inode = disk.image.names[f"{DIR}/{RESERVE}"]
        made.bury([1])
        made.collect()
        assert disk.image.names[f"{DIR}/{RESERVE}"] == inode, "it is not made anew for one id"


@on_both
def test_a_reserve_that_finds_no_room_is_held_later() -> None:
    disk = SimulatedDisk(bytes_max=600)
    made = ledger_dir(disk, 1, reserve_bytes=1000)
    made.load()
    made.hold_reserve()
    assert disk.names(DIR) == []
    disk.bytes_max = 1 << 20
    made.collect()
    assert disk.names(DIR) == [RESERVE]


def test_a_reader_under_way_finds_an_entry_that_was_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    made = mostly_dead(SimulatedDisk())
    read = LedgerDir._read
    made._logs.close()  # no reader has the deleted log open

    def slowly(which: LedgerDir, ledger: int, places: Any) -> list[bytes]:
        monkeypatch.setattr(LedgerDir, "_read", read)
        while made.compact(0.5, 1 << 20) is not None:
            pass
        return read(which, ledger, places)

    monkeypatch.setattr(LedgerDir, "_read", slowly)
    assert made.lookup(2, 3, 1, 1 << 20) == [packet(2, 3, bytes(1000))]


def test_the_index_is_read_a_chunk_at_a_time_by_a_compaction(monkeypatch: pytest.MonkeyPatch) -> None:
    made = directory(SimulatedDisk(), 60_000)
    for step in range(3):
        made.flush(half(*[(2, 1000 * step + e) for e in range(700)], (1, step), body=bytes(100)), [], FIRST_MARKS)
    made.bury([1])
    chunks = sum(len(run.table) for run in runs_of(made))
    count = [0]
    read_chunk = type(runs_of(made)[0]).read_chunk

    def counted(run: Any, row: int) -> bytes:
        count[0] += 1
        return read_chunk(run, row)

    monkeypatch.setattr(type(runs_of(made)[0]), "read_chunk", counted)
    made.compact(0.9999, 1 << 30)
    assert 0 < count[0] <= 2 * chunks


def test_a_log_that_is_collected_while_it_is_compacted_is_left_alone() -> None:
    disk = SimulatedDisk()
    made = mostly_dead(disk)
    made.compact(0.5, 3000)
    made.bury([2, 3])
    made.collect()
    assert made.compact(0.5, 3000) is None and not names(disk, "entries-")


def test_a_sector_that_cannot_be_read_keeps_its_log_and_ends_nothing() -> None:
    disk = SimulatedDisk()
    made = mostly_dead(disk)
    (first, *_) = made.manifest.logs
    path = f"{DIR}/entries-{first.log:08x}"
    disk.make_unreadable(path, 32 + 60 * 1040 + 2000)
    with pytest.raises(DamagedError, match="cannot be read"):
        made.compact(0.5, 1 << 20)
    disk.make_unreadable(path, first.section)
    assert "cannot be read" in made.collect().failures[0] and first in made.manifest.logs
