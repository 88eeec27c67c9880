"""A disk that remembers every operation, and what a power cut may leave of them.

What was synced survives. Of what was not: each 512-byte sector of a write may be kept or lost on its own; of the names
changed in a directory any first part may be kept. Sizes grow only as far as a kept sector reaches.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SECTOR = 512


@dataclass(slots=True)
class Write:
    inode: int
    offset: int
    data: bytes


@dataclass(slots=True)
class Sync:
    inode: int


@dataclass(slots=True)
class Name:
    """`path` names `inode` from now on (None: nothing); `gone` is the name it had before, for a rename."""

    path: str
    inode: int | None
    gone: str | None = None


@dataclass(slots=True)
class SyncDir:
    directory: str


Operation = Write | Sync | Name | SyncDir


@dataclass(slots=True)
class Image:
    """Files by path; what a machine finds when it starts."""

    names: dict[str, int] = field(default_factory=dict)
    contents: dict[int, bytearray] = field(default_factory=dict)

    def copy(self) -> Image:
        return Image(dict(self.names), {inode: bytearray(data) for inode, data in self.contents.items()})

    def flip_bit(self, path: str, bit: int) -> None:
        self.contents[self.names[path]][bit // 8] ^= 1 << bit % 8


class SimulatedFile:
    def __init__(self, disk: SimulatedDisk, inode: int) -> None:
        self._disk = disk
        self.inode = inode

    def pwritev(self, buffers: Sequence[bytes], offset: int) -> None:
        self._disk.write(self.inode, offset, b"".join(buffers))

    def pread(self, length: int, offset: int) -> bytes:
        return bytes(self._disk.image.contents[self.inode][offset : offset + length])

    def datasync(self) -> None:
        if self._disk.sync_fails:
            raise OSError(errno.EIO, "sync failed")
        self._disk.operations.append(Sync(self.inode))

    def size(self) -> int:
        return len(self._disk.image.contents[self.inode])

    def close(self) -> None:
        """Nothing is held."""


class SimulatedDisk:
    """The live view is `image`; `operations` is how it came to be from the image it started with."""

    def __init__(self, start: Image | None = None, *, bytes_max: int = 1 << 40) -> None:
        self.start = start or Image()
        self.image = self.start.copy()
        self.operations: list[Operation] = []
        self.bytes_max = bytes_max
        self.sync_fails = False
        self._inodes = max(self.image.contents, default=0)

    def create(self, path: str) -> SimulatedFile:
        if path in self.image.names:
            raise FileExistsError(path)
        self._check_space(1)
        self._inodes += 1
        self.image.contents[self._inodes] = bytearray()
        self._name(Name(path, self._inodes))
        return SimulatedFile(self, self._inodes)

    def open(self, path: str) -> SimulatedFile:
        if path not in self.image.names:
            raise FileNotFoundError(path)
        return SimulatedFile(self, self.image.names[path])

    def rename(self, old: str, new: str) -> None:
        self._name(Name(new, self.image.names[old], gone=old))

    def unlink(self, path: str) -> None:
        if path not in self.image.names:
            raise FileNotFoundError(path)
        self._name(Name(path, None))

    def names(self, directory: str) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self.image.names if path.rpartition("/")[0] == directory)

    def sync_dir(self, directory: str) -> None:
        self.operations.append(SyncDir(directory))

    def free_bytes(self, directory: str) -> int:
        return self.bytes_max - self._used()

    def write(self, inode: int, offset: int, data: bytes) -> None:
        content = self.image.contents[inode]
        self._check_space(max(0, offset + len(data) - len(content)))
        self.operations.append(Write(inode, offset, data))
        _put(content, offset, data)

    def _check_space(self, more: int) -> None:
        if more and self._used() + more > self.bytes_max:
            raise OSError(errno.ENOSPC, "no space")

    def _used(self) -> int:
        named = set(self.image.names.values())
        return sum(len(data) for inode, data in self.image.contents.items() if inode in named)

    def _name(self, operation: Name) -> None:
        self.operations.append(operation)
        _apply_name(self.image.names, operation)

    # ---- power cuts --------------------------------------------------------------------------------------------------

    def cut(self, after: int, keep: Callable[[], bool]) -> Image:
        """What is left when the power goes after `after` operations; `keep` decides for all that was not synced."""
        image = self.start.copy()
        done = self.operations[:after]
        safe_writes = _synced(done)
        for number, operation in enumerate(done):
            if isinstance(operation, Write):
                content = image.contents.setdefault(operation.inode, bytearray())
                if number in safe_writes:
                    _put(content, operation.offset, operation.data)
                else:
                    _tear(content, operation, keep)
        for directory in {op.path.rpartition("/")[0] for op in done if isinstance(op, Name)}:
            self._cut_names(image, directory, done, keep)
        for inode in image.names.values():
            image.contents.setdefault(inode, bytearray())
        return image

    def _cut_names(self, image: Image, directory: str, done: list[Operation], keep: Callable[[], bool]) -> None:
        last_sync = max(
            (i for i, op in enumerate(done) if isinstance(op, SyncDir) and op.directory == directory), default=-1
        )
        for number, operation in enumerate(done):
            if isinstance(operation, Name) and operation.path.rpartition("/")[0] == directory:
                if number > last_sync and not keep():
                    return
                _apply_name(image.names, operation)


def all_kept() -> bool:
    """Everything the process had written: a kill without a power cut."""
    return True


def all_lost() -> bool:
    return False


def coin(rng: random.Random, share: float) -> Callable[[], bool]:
    return lambda: rng.random() < share


def _synced(done: list[Operation]) -> set[int]:
    """Numbers of the writes that a later sync covers."""
    last: dict[int, int] = {}
    for number, operation in enumerate(done):
        if isinstance(operation, Sync):
            last[operation.inode] = number
    return {i for i, op in enumerate(done) if isinstance(op, Write) and i < last.get(op.inode, -1)}


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _tear(content: bytearray, write: Write, keep: Callable[[], bool]) -> None:
    at = 0
    while at < len(write.data):
        length = min(SECTOR - (write.offset + at) % SECTOR, len(write.data) - at)
        if keep():
            _put(content, write.offset + at, write.data[at : at + length])
        at += length


def _apply_name(names: dict[str, int], operation: Name) -> None:
    if operation.gone is not None:
        names.pop(operation.gone, None)
    if operation.inode is None:
        names.pop(operation.path, None)
    else:
        names[operation.path] = operation.inode
