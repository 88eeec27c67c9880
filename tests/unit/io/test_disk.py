"""The real disk's own calls; what they promise in failure is tests/integration/bookie's."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from dlog.io import disk
from dlog.io.disk import RealDisk


def test_room_that_is_reserved_changes_nothing_that_can_be_read(tmp_path: Path) -> None:
    file = RealDisk().create(str(tmp_path / "file"))
    file.pwritev([b"there"], 0)
    file.reserve(1 << 20, 5)
    assert file.size() == 5 and file.pread(100, 0) == b"there"
    file.pwritev([b" and more"], 5)
    assert file.pread(100, 0) == b"there and more"


def test_what_the_system_forgets_is_still_there(tmp_path: Path) -> None:
    file = RealDisk().create(str(tmp_path / "file"))
    file.pwritev([bytes(100_000), b"end"], 0)
    file.datasync()
    file.release_cache(100_003, 0)
    assert file.pread(3, 100_000) == b"end"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EOPNOTSUPP, errno.EINTR])
def test_only_want_of_room_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Anything else the write itself tells, if it is more than a file system that cannot reserve."""
    file = RealDisk().create(str(tmp_path / "file"))
    monkeypatch.setattr(disk, "_FALLOCATE", lambda *_: -1)
    monkeypatch.setattr("ctypes.get_errno", lambda: number)
    if number in disk.NO_SPACE:
        with pytest.raises(OSError, match=r"space|quota") as raised:
            file.reserve(1, 0)
        assert raised.value.errno == number
    else:
        file.reserve(1, 0)
