"""What the file store does on a full disk: who may use its last bytes, and what it says."""

from __future__ import annotations

import errno

import pytest

from dlog.io.reserve import RESERVE, SpaceReserve
from dlog.model.ids import StreamName
from dlog.stores.file.format import ENTRY_HEAD, Header, encode_entry_head
from dlog.stores.file.segment_files import Appender, SegmentFiles
from dlog.stores.file.space import Space
from tests.simulation.disk import SimulatedDisk

ROOT, NONCE, RESERVE_BYTES = "segments", b"n0n0n0n0", 1000


class Process:
    """One process that uses the directory."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.told: list[bool] = []
        reserve = SpaceReserve(disk, ROOT, RESERVE_BYTES)
        self.space = Space(reserve, RESERVE_BYTES, lambda: disk.free_bytes(ROOT), self.told.append)

    def segment(self, number: int) -> SegmentFiles:
        return SegmentFiles(self.disk, ROOT, f"{number:032x}", "draft", self.space)

    def create(self, number: int) -> Appender:
        files = self.segment(number)
        return Appender(files, files.create(Header(NONCE, number, 1, StreamName("s"))), NONCE)


def append(appender: Appender, size: int) -> None:
    entry, payload = appender._next[0], b"x" * size
    head = encode_entry_head(NONCE, entry, [payload])
    appender.append([head, payload], [ENTRY_HEAD.size + size])


@pytest.fixture
def process() -> Process:
    return Process(SimulatedDisk())


def test_on_a_full_disk_segments_are_ended_and_nothing_else_is_written_until_there_is_space(process: Process) -> None:
    disk, other = process.disk, Process(process.disk)
    one, two = process.create(1), other.create(2)
    append(one, 100)
    append(two, 100)
    assert disk.exists(f"{ROOT}/{RESERVE}")
    disk.bytes_max = disk.used
    with pytest.raises(OSError, match="no space"):
        append(one, 100)
    assert process.segment(1).decide_end().last_entry == 0
    assert not disk.exists(f"{ROOT}/{RESERVE}")
    free = disk.free_bytes(ROOT)
    assert free > 500, "what the reserve had is left for other segments"
    with pytest.raises(OSError, match="more than ending segments") as refused:
        append(two, 1)
    assert refused.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="more than ending segments"):
        other.create(3)
    assert disk.free_bytes(ROOT) == free, "nothing of it was written"
    assert other.segment(2).decide_end().last_entry == 0
    disk.bytes_max = disk.used + 2 * RESERVE_BYTES - 1
    with pytest.raises(OSError, match="more than ending segments"):
        other.create(3)
    disk.bytes_max = disk.used + 2 * RESERVE_BYTES + 9000
    append(other.create(3), 1)
    assert disk.exists(f"{ROOT}/{RESERVE}")
    assert (process.told, other.told) == ([True], [True, False])


def test_a_change_is_told_once(process: Process) -> None:
    appender = process.create(1)
    process.disk.bytes_max = process.disk.used
    for _ in range(3):
        with pytest.raises(OSError, match="no space"):
            process.create(2)
    assert process.told == [True]
    process.disk.bytes_max = 1 << 40
    for _ in range(3):
        append(appender, 10)
    assert process.told == [True, False]


def test_a_segment_that_could_not_be_created_leaves_nothing(process: Process) -> None:
    process.create(1)
    names = dict.fromkeys(process.disk.image.names)
    process.disk.bytes_max = process.disk.used + 100
    with pytest.raises(OSError, match="no space"):
        process.create(2)
    assert dict.fromkeys(process.disk.image.names) == names
