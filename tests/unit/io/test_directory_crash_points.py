"""Kills a process that changes a directory of objects at each system call, lets another one go on, and cuts the power:
what either of them was told is on the disk.

The disk loses all that was not synced: the contents of files, and names in directories.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlog.io import directory_objects
from dlog.io.directory_objects import DirectoryObjects
from dlog.stores.object_storage.locations import Location, parse_root
from dlog.stores.object_storage.port import Creation

CALLS_MAX = 30  # of the first process; it makes fewer


class Killed(BaseException):
    """The process is dead."""


class Disk:
    """Watches the system calls of the process, and knows what of them is durable. left: calls until it is killed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 1 << 30
        self.is_dead = False
        self._durable: set[str] = set()  # names
        self._pending: dict[str, dict[str, bool]] = {}  # by directory: names that were made or removed since its sync
        self._synced: set[int] = set()  # inodes
        for name, note in (
            ("mkdir", lambda path, *_: self._name(path, there=True)),
            ("link", lambda _, new: self._name(new, there=True)),
            ("replace", lambda _, new: self._name(new, there=True)),
            ("unlink", lambda path: self._name(path, there=False)),
            ("fsync", self._sync_directory),
            ("fdatasync", lambda fd: self._synced.add(os.fstat(fd).st_ino)),
        ):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name), note))

    def begin(self, left: int) -> None:
        """Another process begins."""
        self.left, self.is_dead = left, False
        directory_objects._sync_name_once.cache_clear()

    def keeps(self, location: Location, within: Path) -> bool:
        """Whether an object is there after the power is cut."""
        path = Path(location.path)
        names = [path, *path.parents]
        names = names[: names.index(within)]
        return all(str(name) in self._durable for name in names) and os.stat(path).st_ino in self._synced

    def is_named(self, location: Location) -> bool:
        return location.path in self._durable

    def _watched(self, call: Callable[..., Any], note: Callable[..., None]) -> Callable[..., Any]:
        def watched(*arguments: Any, **more: Any) -> Any:
            self.left -= 1
            if self.is_dead or self.left < 0:
                self.is_dead = True
                raise Killed
            result = call(*arguments, **more)
            note(*arguments)
            return result

        return watched

    def _name(self, path: Any, *, there: bool) -> None:
        self._pending.setdefault(os.path.dirname(path), {})[str(path)] = there

    def _sync_directory(self, fd: int) -> None:
        for path, there in self._pending.pop(os.readlink(f"/proc/self/fd/{fd}"), {}).items():
            (self._durable.add if there else self._durable.discard)(path)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    yield Disk(monkeypatch)
    directory_objects._sync_name_once.cache_clear()


async def create(place: Location) -> Creation | None:
    """Create an object; None: the process was killed."""
    try:
        return await DirectoryObjects().create_if_absent(place, (b"ours",), head_bytes=4)
    except Killed:
        return None


@pytest.mark.parametrize("calls", range(CALLS_MAX))
async def test_an_object_that_was_created_survives_whoever_made_its_folder(
    disk: Disk, tmp_path: Path, calls: int
) -> None:
    root = parse_root(tmp_path.as_uri())
    first, second = root.below("a", "b", "1"), root.below("a", "b", "2")
    disk.begin(calls)
    made = [first] if await create(first) is Creation.MADE else []
    disk.begin(1 << 30)
    assert await create(second) is Creation.MADE
    for place in (*made, second):
        assert disk.keeps(place, tmp_path), f"{place} is lost, the first process made {calls} calls"
    assert calls < CALLS_MAX - 1 or made, "more calls than are tried"


@pytest.mark.parametrize("calls", range(CALLS_MAX))
async def test_an_object_that_was_written_in_parts_survives_whoever_made_its_folder(
    disk: Disk, tmp_path: Path, calls: int
) -> None:
    root = parse_root(tmp_path.as_uri())
    first, second = root.below("a", "b", "1"), root.below("a", "b", "2")
    disk.begin(calls)
    await create(first)
    disk.begin(1 << 30)
    writer = await DirectoryObjects().create(second)
    await writer.write([b"ours"])
    await writer.finish()
    assert disk.keeps(second, tmp_path), f"lost, the first process made {calls} calls"


@pytest.mark.parametrize("calls", range(4))
async def test_an_object_that_was_deleted_does_not_come_back_whoever_removed_its_name(
    disk: Disk, tmp_path: Path, calls: int
) -> None:
    root = parse_root(tmp_path.as_uri())
    place = root.below("a", "1")
    assert await create(place) is Creation.MADE
    disk.begin(calls)
    try:
        await DirectoryObjects().delete(place)
        assert not disk.is_named(place)
    except Killed:
        disk.begin(1 << 30)
        await DirectoryObjects().delete(place)
    assert not disk.is_named(place), "it was told that the object is deleted"
