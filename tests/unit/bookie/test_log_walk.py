"""Tests the walk through an entry log: damage costs the item that it hits, and bytes inside a packet are no entries."""

from __future__ import annotations

import random

import pytest

from dlog.bookie.journal import FIRST_MARKS
from dlog.bookie.log_walk import LogDamage, LogRecord, walk_log
from tests.crashpoints.station import packet
from tests.simulation.disk import SimulatedDisk
from tests.unit.bookie.test_ledger_dir import DIR, directory, half, row


def log_of(*flushes: dict[tuple[int, int], bytes]) -> bytes:
    """The valid bytes of an entry log with these entries in so many flushes."""
    disk = SimulatedDisk()
    made = directory(disk)
    for entries in flushes:
        for (ledger, entry), body in entries.items():
            half_of = half((ledger, entry), body=body)
            made.flush(half_of, [row(ledger, entry)], FIRST_MARKS)
    (log,) = made.manifest.logs
    return disk.open(f"{DIR}/entries-{log.log:08x}").pread(log.length, 0)


def walked(data: bytes) -> tuple[list[LogRecord], list[LogDamage]]:
    items = list(walk_log(lambda length, offset: data[offset : offset + length], len(data)))
    assert [item.offset for item in items] == sorted(item.offset for item in items)
    return [i for i in items if isinstance(i, LogRecord)], [i for i in items if isinstance(i, LogDamage)]


def many() -> bytes:
    disk = SimulatedDisk()
    made = directory(disk)
    for step in range(3):
        ids = [(ledger, step * 4 + entry) for ledger in (1, 7) for entry in range(4)]
        made.flush(half(*ids, body=bytes(range(1, 40))), [row(ledger, step * 4 + 3) for ledger in (1, 7)], FIRST_MARKS)
    (log,) = made.manifest.logs
    return disk.open(f"{DIR}/entries-{log.log:08x}").pread(log.length, 0)


def test_every_entry_is_found_where_it_is() -> None:
    data = many()
    records, damage = walked(data)
    assert not damage
    assert [(r.ledger, r.entry, r.lac) for r in records] == [
        (ledger, step * 4 + entry, step * 4 + entry - 1) for step in range(3) for ledger in (1, 7) for entry in range(4)
    ]
    for record in records:
        assert data[record.offset + 8 :][: record.length] == packet(record.ledger, record.entry, bytes(range(1, 40)))


def test_a_flipped_bit_costs_the_item_that_holds_it_and_no_other() -> None:
    data = many()
    whole, _ = walked(data)
    rng = random.Random(1)
    hit = 0
    for byte in range(32, len(data.rstrip(b"\0")), 3):
        hurt = bytearray(data)
        hurt[byte] ^= 1 << rng.randrange(8)
        records, damage = walked(bytes(hurt))
        lost = [r for r in whole if r.offset <= byte < r.offset + 8 + r.length]
        assert records == [r for r in whole if r not in lost], byte
        if lost:
            hit += 1
            assert len(damage) == 1 and damage[0].offset <= byte < damage[0].end
    assert hit > 500


def test_entries_inside_a_packet_are_not_taken_for_entries_of_the_log() -> None:
    """A bookie's files may be stored in a stream, and the packet that holds them may be damaged."""
    inner = many()
    data = log_of({(1, 0): b"before", (1, 1): inner, (1, 2): b"after"})
    hurt = bytearray(data)
    hurt[data.index(inner) + len(inner) // 2] ^= 1
    records, (damage,) = walked(bytes(hurt))
    assert [(r.ledger, r.entry) for r in records] == [(1, 0), (1, 2)]
    assert damage.offset < data.index(inner) < damage.end


def test_a_length_that_leads_to_a_later_entry_costs_no_entry_between() -> None:
    """Entries of 256 bytes: a flipped bit of the length leads to the beginning of another one."""
    disk = SimulatedDisk()
    made = directory(disk)
    made.flush(half(*[(1, entry) for entry in range(8)], body=bytes(range(1, 217))), [row(1, 7)], FIRST_MARKS)
    (log,) = made.manifest.logs
    data = disk.open(f"{DIR}/entries-{log.log:08x}").pread(log.length, 0)
    whole, _ = walked(data)
    hurt = bytearray(data)
    hurt[whole[1].offset + 2] ^= 1
    records, damage = walked(bytes(hurt))
    assert records == [whole[0], *whole[2:]]
    assert damage == [LogDamage(whole[1].offset, whole[2].offset)]


@pytest.mark.parametrize("filling", [b"\0", b"\xff", b"x"])
def test_a_large_hole_ends_where_entries_begin_again(filling: bytes) -> None:
    data = log_of({(1, 0): bytes(5000), (1, 1): bytes(5000), (1, 2): b"after"})
    whole, _ = walked(data)
    hurt = bytearray(data)
    begin, end = whole[0].offset, whole[2].offset
    hurt[begin:end] = filling * (end - begin)
    records, damage = walked(bytes(hurt))
    assert records == whole[2:]
    assert damage[0].offset == begin


def test_a_log_that_is_cut_off_ends_with_damage() -> None:
    data = many()
    whole, _ = walked(data)
    cut = whole[5].offset + 20
    records, damage = walked(data[:cut])
    assert records == whole[:5] and damage == [LogDamage(whole[5].offset, cut)]
