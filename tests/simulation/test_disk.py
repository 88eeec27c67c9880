"""Tests the simulated disk itself: what a power cut leaves, and each fault."""

from __future__ import annotations

import pytest

from dlog.errors import CookieError
from tests.simulation.disk import SECTOR, Died, SimulatedDisk, all_kept, all_lost

both = pytest.mark.parametrize("settling", [False, True])


def written(disk: SimulatedDisk, data: bytes, path: str = "/d/a") -> None:
    file = disk.create(path)
    file.pwritev([data], 0)
    file.datasync()
    file.close()
    disk.sync_dir("/d")


def content(disk: SimulatedDisk, path: str = "/d/a") -> bytes:
    return disk.open(path).pread(1 << 20, 0)


@both
def test_what_was_synced_survives_and_the_rest_is_the_cuts_choice(settling: bool) -> None:
    for keep, expected in ((all_kept, b"new"), (all_lost, b"old")):
        disk = SimulatedDisk(settling=settling)
        written(disk, b"old")
        disk.open("/d/a").pwritev([b"new"], 0)
        disk.create("/d/unsynced")
        disk.power_cut(keep)
        assert content(disk) == expected
        assert ("/d/unsynced" in disk.image.names) is (keep is all_kept)


@both
def test_sectors_are_kept_one_by_one(settling: bool) -> None:
    disk = SimulatedDisk(settling=settling)
    written(disk, bytes(3 * SECTOR))
    disk.open("/d/a").pwritev([b"x" * 3 * SECTOR], 0)
    answers = iter([True, False, True])
    disk.power_cut(lambda: next(answers))
    assert content(disk) == b"x" * SECTOR + bytes(SECTOR) + b"x" * SECTOR


def test_a_killed_process_leaves_the_cache_and_its_handles_are_dead() -> None:
    disk = SimulatedDisk(settling=True)
    mount = disk.mount()
    lock = mount.lock("/d")
    with pytest.raises(CookieError):
        disk.mount().lock("/d")
    file = mount.create("/d/a")
    file.pwritev([b"cached"], 0)
    disk.kill()
    for call in (lambda: file.pread(1, 0), file.datasync, lambda: mount.names("/d"), lambda: mount.create("/d/b")):
        with pytest.raises(Died):
            call()
    lock.close()
    assert content(disk) == b"cached"
    disk.mount().lock("/d")
    disk.power_cut(all_lost)
    assert disk.names("/d") == []


def test_a_mount_dies_in_the_middle_of_its_operations() -> None:
    disk = SimulatedDisk()
    mount = disk.mount()
    mount.left = 2
    file = mount.create("/d/a")
    file.pwritev([b"x"], 0)
    with pytest.raises(Died):
        file.datasync()


@both
def test_a_failed_sync_drops_the_pages_and_the_next_one_does_not_bring_them_back(settling: bool) -> None:
    disk = SimulatedDisk(settling=settling)
    written(disk, b"old")
    file = disk.open("/d/a")
    file.pwritev([b"new"], 0)
    disk.syncs_to_fail = 1
    with pytest.raises(OSError, match="sync failed"):
        file.datasync()
    file.datasync()
    assert content(disk) == b"new", "the cache still shows it"
    disk.power_cut(all_lost)
    assert content(disk) == b"old"


def test_a_full_disk_takes_a_part() -> None:
    disk = SimulatedDisk(bytes_max=10)
    file = disk.create("/d/a")
    with pytest.raises(OSError, match="no space"):
        file.pwritev([b"x" * 25], 0)
    assert content(disk) == b"x" * 10 and disk.free_bytes("/d") == 0
    file.pwritev([b"y"], 0)  # over what is there
    disk.copy_on_write = True
    with pytest.raises(OSError, match="no space"):
        file.pwritev([b"z"], 0)
    disk.unlink("/d/a")
    assert disk.free_bytes("/d") == 10


def test_unreadable_sectors_heal_when_written() -> None:
    disk = SimulatedDisk()
    written(disk, bytes(3 * SECTOR))
    disk.make_unreadable("/d/a", SECTOR)
    file = disk.open("/d/a")
    assert file.pread(SECTOR - 1, 0) == bytes(SECTOR - 1)
    with pytest.raises(OSError, match="unreadable"):
        file.pread(1, SECTOR)
    file.pwritev([b"x"], SECTOR)
    assert file.pread(1, SECTOR) == b"x"


@both
@pytest.mark.parametrize(("by", "expected"), [(SECTOR, bytes(SECTOR) + b"x" * SECTOR), (None, bytes(2 * SECTOR))])
def test_a_write_that_goes_astray_shows_when_the_medium_is_read(
    settling: bool, by: int | None, expected: bytes
) -> None:
    disk = SimulatedDisk(settling=settling)
    written(disk, bytes(2 * SECTOR))
    disk.misdirect("/d/a", by)
    file = disk.open("/d/a")
    file.pwritev([b"x" * SECTOR], 0)
    file.datasync()
    assert content(disk) == b"x" * SECTOR + bytes(SECTOR)
    disk.drop_caches()
    assert content(disk) == expected


@both
def test_a_flipped_bit_is_there_before_and_after_a_cut(settling: bool) -> None:
    disk = SimulatedDisk(settling=settling)
    written(disk, b"\0")
    if settling:
        disk.flip_bit("/d/a", 3)
        assert content(disk) == b"\x08"
        disk.power_cut(all_lost)
        assert content(disk) == b"\x08"
    else:
        image = disk.image.copy()
        image.flip_bit("/d/a", 3)
        assert content(SimulatedDisk(image)) == b"\x08"


def test_a_settling_disk_stays_small() -> None:
    disk = SimulatedDisk(settling=True)
    for number in range(200):
        written(disk, bytes(100), f"/d/{number}")
        if number >= 3:
            disk.unlink(f"/d/{number - 3}")
        file = disk.open(f"/d/{number}")
        file.pwritev([b"again"], 0)
        file.datasync()
        file.close()
    disk.sync_dir("/d")
    assert not disk.operations and disk.used == 300
    assert len(disk.image.contents) == len(disk.start.contents) == 3
