"""Tests the real disk's calls; their behaviour at failures is tested in tests/integration/bookie."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
from pathlib import Path

import pytest

from dlog.io import disk
from dlog.io.disk import BLOCK_BYTES, RealDisk


def test_room_that_is_reserved_changes_nothing_that_can_be_read(tmp_path: Path) -> None:
    file = RealDisk().create(str(tmp_path / "file"))
    file.pwritev([b"there"], 0)
    file.reserve(1 << 20, 5)
    assert file.size() == 5 and file.pread(100, 0) == b"there"
    file.pwritev([b" and more"], 5)
    assert file.pread(100, 0) == b"there and more"


@pytest.mark.parametrize("refusal", ["", "open", "write"])
def test_blocks_are_written_past_the_page_cache_or_through_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: str
) -> None:
    """Not every file system allows direct writes: some refuse when the file is opened, some later."""
    path = tmp_path / "file"
    file = RealDisk().create(str(path))
    file.pwritev([b"head" * 2048], 0)
    page = memoryview(mmap.mmap(-1, 3 * BLOCK_BYTES))
    page[:] = bytes(range(256)) * 48
    used: list[bool] = []
    write, opened = os.pwrite, os.open

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        used.append(bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT))
        if used[-1] and refusal == "write":
            raise OSError(errno.EINVAL, "no such blocks")
        return write(fd, data[:BLOCK_BYTES], offset)  # as if it were cut short

    def open_(name: str, flags: int) -> int:
        if refusal == "open":
            raise OSError(errno.EINVAL, "no O_DIRECT here")
        return opened(name, flags)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(os, "open", open_)
    file.write_blocks(page, BLOCK_BYTES)
    file.write_blocks(page[:BLOCK_BYTES], 5 * BLOCK_BYTES)
    file.datasync()
    assert file.pread(1 << 20, 0) == b"head" * 1024 + bytes(page) + bytes(BLOCK_BYTES) + bytes(page[:BLOCK_BYTES])
    if refusal:
        assert used == [True] * (refusal == "write") + [False] * 4, "it is not asked again"
    file.close()


def test_what_ails_the_disk_is_told_by_a_write_past_the_page_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealDisk().create(str(tmp_path / "file"))

    def pwrite(*_: object) -> int:
        raise OSError(errno.ENOSPC, "no room")

    monkeypatch.setattr(os, "pwrite", pwrite)
    with pytest.raises(OSError, match="no room"):
        file.write_blocks(memoryview(mmap.mmap(-1, BLOCK_BYTES)), 0)


def test_much_is_read_in_pieces_that_a_sync_need_not_wait_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RealDisk().create(str(tmp_path / "file"))
    whole = bytes(range(251)) * 5000
    file.pwritev([whole], 0)
    asked: list[int] = []
    read = os.pread

    def pread(fd: int, length: int, offset: int) -> bytes:
        asked.append(length)
        return read(fd, length - (length > 4096), offset)  # as if it were cut short

    monkeypatch.setattr(os, "pread", pread)
    assert file.pread(len(whole), 0) == whole and max(asked) == disk._READ_BYTES < len(whole)
    assert file.pread(len(whole), 1000) == whole[1000:], "short at the end of the file"
    assert file.pread(100, len(whole)) == b"" and file.pread(0, 0) == b""
    asked.clear()
    assert file.pread(4096, 7) == whole[7:4103] and asked == [4096]


@pytest.mark.parametrize("refusal", [None, OSError(errno.ENOSYS, "no advice here"), AttributeError("not here")])
def test_a_system_is_asked_to_read_nothing_ahead_and_may_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Exception | None
) -> None:
    file = RealDisk().create(str(tmp_path / "file"))
    file.pwritev([b"there"], 0)
    advised: list[tuple[int, int, int]] = []

    def advise(_: int, *told: int) -> None:
        if refusal is not None:
            raise refusal
        advised.append((told[0], told[1], told[2]))

    monkeypatch.setattr(os, "posix_fadvise", advise)
    file.disable_read_ahead()
    assert file.pread(5, 0) == b"there"
    assert advised == ([] if refusal else [(0, 0, os.POSIX_FADV_RANDOM)])


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EOPNOTSUPP, errno.EINTR])
def test_only_want_of_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Other errors are reported by the write itself, if they are more than a file system that cannot reserve."""
    file = RealDisk().create(str(tmp_path / "file"))
    monkeypatch.setattr(disk, "_FALLOCATE", lambda *_: -1)
    monkeypatch.setattr("ctypes.get_errno", lambda: number)
    if number in disk.NO_SPACE:
        with pytest.raises(OSError, match=r"space|quota") as raised:
            file.reserve(1, 0)
        assert raised.value.errno == number
    else:
        file.reserve(1, 0)
