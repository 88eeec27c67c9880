"""Tests that an entry can hold the snapshot of the largest producer table that options allow."""

from __future__ import annotations

import pytest

from dlog.log.dedup_trailer import BatchPosition, ProducerSnapshot, ProducerTableSnapshot, decode_trailer
from dlog.log.options import PRODUCERS_MAX, OwnerOptions
from dlog.log.packing import OpenSegment, Packer
from dlog.log.producer_table import ProducerTable
from dlog.model.segment import Location
from dlog.wire.entry import ENTRY_BYTES_MAX, decode_entry

LARGEST = 2**63 - 1


@pytest.mark.parametrize(("count", "kept"), [(1_000, 5), (4_000, 1), (PRODUCERS_MAX, 0)])
def test_the_snapshot_of_a_full_table_fits_into_an_entry(count: int, kept: int) -> None:
    """The table has the largest possible numbers; positions are left out first, producers never."""
    place = BatchPosition(*[LARGEST] * 6)
    producers = tuple(
        ProducerSnapshot(n.to_bytes(12, "big") + bytes(4), LARGEST, LARGEST, (place,) * 5) for n in range(count)
    )
    options = OwnerOptions(producers_max=count)
    table = ProducerTable(options.producers_max, options.window_min)
    table.restore(ProducerTableSnapshot((0, -1), producers), (1, 0))
    pending = Packer(table, options).cut([], OpenSegment(1, Location("memory", "1"), 0, True, 3))
    data = b"".join(pending.parts)
    assert len(data) <= ENTRY_BYTES_MAX
    note = decode_trailer(decode_entry(data)[-1].payload)
    assert note.snapshot is not None
    assert [p.producer for p in note.snapshot.producers] == [p.producer for p in producers]
    assert {len(p.positions) for p in note.snapshot.producers} == {kept}


@pytest.mark.parametrize("producers_max", [0, PRODUCERS_MAX + 1])
def test_a_table_that_fits_into_no_entry_is_refused(producers_max: int) -> None:
    with pytest.raises(ValueError, match="producers_max"):
        OwnerOptions(producers_max=producers_max)
