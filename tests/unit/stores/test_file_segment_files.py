"""Tests a segment's files on a simulated disk: large entries, index points, and the effect of each kind of damage.

What happens between processes is tested by the simulation `files` (tests/simulation/file_world.py).
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dlog.model.ids import StreamName
from dlog.stores.contract import SegmentCorruptError, SegmentFencedError, SegmentNotFoundError
from dlog.stores.file.format import (
    ENTRIES_OFFSET,
    ENTRY_BYTES_MAX,
    ENTRY_HEAD,
    POINT_SPACING_BYTES,
    WATERMARK_BYTES,
    WATERMARK_OFFSET,
    Header,
    encode_entry_head,
)
from dlog.stores.file.segment_files import Appender, EntryOffsets, SegmentFiles, locations, read_entries
from tests.simulation.disk import SimulatedDisk
from tests.simulation.file_world import space_of

ROOT, PLACE, NONCE = "segments", "0123456789abcdef" * 2, b"n0n0n0n0"
ENTRIES, END = f"{ROOT}/01/{PLACE}.entries", f"{ROOT}/01/{PLACE}.end"
HEADER = Header(NONCE, 1, 1, StreamName("s"))
PIECE = 1 << 20  # of one read while entries are checked


def payload(entry: int, size: int) -> bytes:
    return (b"entry %d " % entry).ljust(size, b"%d" % (entry % 10))[:size]


class Segment:
    """One segment, its writer, and what was appended."""

    def __init__(self, disk: SimulatedDisk | None = None) -> None:
        self.disk = disk or SimulatedDisk()
        self.files = SegmentFiles(self.disk, ROOT, PLACE, "writer", space_of(self.disk, 0))
        self.appender = Appender(self.files, self.files.create(HEADER), NONCE)
        self.payloads: list[bytes] = []

    def append(self, *sizes: int) -> Segment:
        """Append entries of these sizes with one sync."""
        group = [payload(len(self.payloads) + i, size) for i, size in enumerate(sizes)]
        parts, lengths = [], []
        for entry, data in enumerate(group, len(self.payloads)):
            parts += [encode_entry_head(NONCE, entry, [data]), data]
            lengths.append(ENTRY_HEAD.size + len(data))
        self.appender.append(parts, lengths)
        self.payloads += group
        return self

    def other(self) -> SegmentFiles:
        """The same files as another process opens them."""
        return SegmentFiles(self.disk, ROOT, PLACE, "other", space_of(self.disk, 0))

    def offset(self, entry: int) -> int:
        return ENTRIES_OFFSET + sum(ENTRY_HEAD.size + len(data) for data in self.payloads[:entry])

    def read(self, first: int, last: int, max_bytes: int, offsets: EntryOffsets | None = None) -> list[bytes]:
        file, header = self.other().open()
        offset = (offsets or EntryOffsets()).find(file, first)
        assert offset is not None
        return [bytes(view) for view in read_entries(file, header.nonce, offset, first, last, max_bytes)[0]]


SIZES = [
    [0],
    [0, 1, 0],
    [ENTRY_BYTES_MAX],
    [PIECE - ENTRY_HEAD.size, 5, PIECE - ENTRY_HEAD.size + 1, 0],
    [PIECE - 2 * ENTRY_HEAD.size, 0, 7],
    [ENTRY_BYTES_MAX, ENTRY_BYTES_MAX, 3, ENTRY_BYTES_MAX],
]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_entries_of_any_size_are_found_read_verified_and_ended(sizes: list[int]) -> None:
    segment = Segment().append(*sizes)
    last = len(sizes) - 1
    for entry, data in enumerate(segment.payloads):
        assert segment.read(entry, last, 1)[0] == data, "at least one entry, however large"
        assert segment.read(entry, entry, 1 << 30) == [data]
    assert segment.read(0, last, 1 << 30) == segment.payloads
    assert segment.other().find_tail() == last
    assert segment.other().verify().entries == len(sizes) and not segment.other().verify().damaged
    end = segment.other().decide_end()
    assert (end.last_entry, end.offset) == (last, segment.offset(len(sizes)))
    assert segment.files.decide_end() == end, "decided once"
    with pytest.raises(SegmentFencedError):
        segment.append(3)
    with pytest.raises(SegmentFencedError):
        segment.appender.seal()


def test_as_much_is_read_as_fits() -> None:
    segment = Segment().append(100, 200, 300, 400)
    assert segment.read(0, 3, 299) == segment.payloads[:1]
    assert segment.read(0, 3, 300) == segment.payloads[:2]
    assert segment.read(1, 2, 5000) == segment.payloads[1:3]


def test_any_entry_of_a_segment_of_several_mib_is_found_in_any_order() -> None:
    sizes = [1000 + 77 * (entry % 13) for entry in range(3000)]
    segment = Segment()
    for at in range(0, len(sizes), 100):
        segment.append(*sizes[at : at + 100])
    segment.appender.seal()
    end = segment.other().decide_end()
    assert segment.offset(3000) > 4 * POINT_SPACING_BYTES
    gaps = [b[1] - a[1] for a, b in zip(end.points, end.points[1:], strict=False)]
    assert len(gaps) >= 3 and all(POINT_SPACING_BYTES <= gap < POINT_SPACING_BYTES + 4096 for gap in gaps)
    file, _ = segment.other().open()
    order = [*range(0, 3000, 97), 2999, 0, 1500, 1499, 1501, *range(2999, 0, -113)]
    for with_points in (True, False):
        offsets = EntryOffsets()
        if with_points:
            offsets.add(end.points)
        for entry in order:
            offset = offsets.find(file, entry)
            assert offset == segment.offset(entry)
            found, behind = read_entries(file, NONCE, offset, entry, entry, 1 << 20)
            assert found == [segment.payloads[entry]]
            offsets.read_upto(entry + 1, behind)


def test_index_points_let_a_damaged_head_before_them_hide_nothing() -> None:
    segment = Segment().append(*([1000] * 3000))
    segment.appender.seal()
    end = segment.other().decide_end()
    segment.disk.flip_bit(ENTRIES, 8 * segment.offset(10))  # the length of entry 10: far too long
    file, _ = segment.other().open()
    offsets = EntryOffsets()
    assert offsets.find(file, 11) is None
    offsets.add(end.points)
    for entry, at in end.points[1:]:
        assert offsets.find(file, entry + 3) == at + 3 * (1000 + ENTRY_HEAD.size)


# ---- damage ----------------------------------------------------------------------------------------------------------


def damaged(segment: Segment) -> list[int]:
    return [entry for entry, _ in segment.other().verify().damaged]


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("part", ["length", "checksum", "payload"])
def test_a_flipped_bit_in_an_entry_is_told_of_it_alone_unless_it_hides_the_others(part: str, sealed: bool) -> None:
    """A wrong length that is within bounds makes the entries behind it unreadable, too."""
    at = {"length": 3, "checksum": 5, "payload": ENTRY_HEAD.size + 20}[part]
    for entry in range(5):
        segment = Segment().append(50, 60, 70, 80, 90)
        if sealed:
            segment.appender.seal()
        segment.disk.flip_bit(ENTRIES, 8 * (segment.offset(entry) + at) + 1)
        verified = segment.other().verify()
        assert verified.entries == 5
        found = damaged(segment)
        assert found == list(range(entry, 5)) if part == "length" else found == [entry]
        if part != "length":
            assert segment.read(0, 4, 1 << 20) == segment.payloads[:entry]


def test_a_length_beyond_all_bounds_damages_what_is_behind_it() -> None:
    segment = Segment().append(50, 60, 70)
    segment.disk.flip_bit(ENTRIES, 8 * segment.offset(1) + 7)
    assert damaged(segment) == [1, 2]
    assert segment.other().verify().damaged[1][1] == "it is behind a damaged entry"


def test_a_file_that_was_cut_short_is_told_at_every_length() -> None:
    whole = Segment().append(5, 0, 7)
    whole.appender.seal()
    content = whole.disk.image.contents[whole.disk.image.names[ENTRIES]]
    data = bytes(content)
    for size in range(ENTRIES_OFFSET, len(data)):
        content[:] = data[:size]
        kept = sum(whole.offset(entry + 1) <= size for entry in range(3))
        assert damaged(whole) == list(range(kept, 3)), size


@pytest.mark.parametrize("at", [0, 8, 16, 24, 33, 35], ids=["magic", "nonce", "number", "epoch", "length", "name"])
def test_a_damaged_header_is_told_by_every_call(at: int) -> None:
    segment = Segment().append(50)
    segment.disk.flip_bit(ENTRIES, 8 * at)
    other = segment.other()
    for call in (other.open, other.verify, other.find_tail, other.decide_end):
        with pytest.raises(SegmentCorruptError, match=PLACE):
            call()
    assert segment.files.is_writable(), "what cannot be ended is not fenced"


@pytest.mark.parametrize("at", [0, 8, 16, 24, 32])
def test_a_damaged_end_is_told_and_not_decided_again(at: int) -> None:
    segment = Segment().append(50, 60)
    segment.appender.seal()
    segment.disk.flip_bit(END, 8 * at)
    other = segment.other()
    for call in (other.verify, other.find_tail, other.decide_end, lambda: other.read_end(NONCE)):
        with pytest.raises(SegmentCorruptError, match=PLACE):
            call()


def test_a_torn_watermark_confirms_nothing_and_recovery_keeps_all_the_same() -> None:
    for bit in range(8 * WATERMARK_BYTES):
        segment = Segment().append(50, 60).append(70)
        segment.disk.flip_bit(ENTRIES, 8 * WATERMARK_OFFSET + bit)
        file, _ = segment.other().open()
        assert segment.other().read_progress(file, NONCE) == (None, 0)
        assert segment.other().find_tail() == 2
        assert segment.other().decide_end().last_entry == 2
        assert segment.read(0, 2, 1000) == segment.payloads


def test_entries_beyond_the_watermark_that_are_not_whole_are_dropped() -> None:
    """The power failed during an append: whole entries may be kept, and the end is before the first that is not
    whole."""
    segment = Segment().append(50, 60)
    parts: list[bytes] = []
    for entry, size in ((2, 70), (3, 80), (4, 90)):
        data = payload(entry, size)
        parts += [encode_entry_head(NONCE, entry, [data]), data]
    file = segment.disk.open(ENTRIES)
    file.pwritev(parts, segment.offset(2))
    segment.disk.flip_bit(ENTRIES, 8 * (segment.offset(2) + 2 * ENTRY_HEAD.size + 70 + 3))
    reader, _ = segment.other().open()
    assert segment.other().read_progress(reader, NONCE) == (None, 2), "nobody reads what may be dropped"
    assert segment.other().decide_end().last_entry == 2
    assert segment.other().read_progress(reader, NONCE)[0] == segment.other().read_end(NONCE)


def test_a_full_disk_lets_nothing_be_ended_and_is_not_filled_by_the_attempts() -> None:
    segment = Segment().append(50, 60)
    segment.disk.bytes_max = segment.disk.used + 10
    before = segment.disk.names(f"{ROOT}/01")
    for attempt in range(3):
        with pytest.raises(OSError, match="no space"):
            SegmentFiles(segment.disk, ROOT, PLACE, f"{attempt}", space_of(segment.disk, 0)).decide_end()
        assert segment.disk.names(f"{ROOT}/01") == [name for name in before if not name.endswith(".writable")]
    segment.disk.bytes_max += 1000
    assert segment.other().decide_end().last_entry == 1


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["", "17", PLACE[:-1], PLACE + "0", PLACE.upper(), "../" + PLACE[3:], PLACE + "\n"])
def test_a_location_that_no_segment_can_have_names_no_file(place: str) -> None:
    with pytest.raises(SegmentNotFoundError):
        SegmentFiles(SimulatedDisk(), ROOT, place, "x", space_of(SimulatedDisk(), 0))


def test_segments_are_listed_by_their_entries_and_leave_nothing_when_they_are_deleted() -> None:
    segment = Segment().append(50)
    segment.disk.create(f"{ROOT}/01/README").close()
    segment.disk.create(f"{ROOT}/01/no-location.entries").close()
    assert locations(segment.disk, ROOT, "01") == [PLACE]
    segment.other().delete()
    segment.other().delete()
    assert segment.disk.names(f"{ROOT}/01") == ["README", "no-location.entries"]
    calls: Sequence[str] = ("open", "verify", "find_tail", "decide_end")
    for name in calls:
        with pytest.raises(SegmentNotFoundError, match=PLACE):
            getattr(segment.other(), name)()
    with pytest.raises(SegmentFencedError):
        segment.append(1)
