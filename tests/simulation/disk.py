"""A simulated disk that records every operation and what a power cut may leave of it, and that fails as disks do.

Invariants:
- What was synced survives.
- Of a write that was not synced, each 512-byte sector may be kept or lost on its own.
- Of the names changed in a directory and not synced, any first part may be kept.
- A file is only as long as its last kept sector requires.
"""

from __future__ import annotations

import errno
import posixpath
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from dlog.errors import CookieError
from dlog.io.database import Database, DatabaseLimits
from dlog.io.disk import BLOCK_BYTES, DirectoryLock, DiskSpace
from dlog.wire.framing import Buffer

SECTOR = 512


@dataclass(slots=True)
class Write:
    """One write. `lands_at`: its offset on the medium (None: never written there); the page cache shows it at
    `offset`."""

    inode: int
    offset: int
    data: bytes
    lands_at: int | None


@dataclass(slots=True)
class Sync:
    inode: int


@dataclass(slots=True)
class Name:
    """One change of a name. `path` names `inode` from now on (None: nothing); `gone` is the name it had before a
    rename."""

    path: str
    inode: int | None
    gone: str | None = None


@dataclass(slots=True)
class SyncDir:
    directory: str


@dataclass(slots=True)
class FailedSync:
    """A failed sync. Its dirty pages are dropped: the page cache still shows them, no later sync will write them."""

    inode: int


Operation = Write | Sync | FailedSync | Name | SyncDir
Keep = Callable[[], bool]


class Died(BaseException):
    """The calling process is dead. Programs may not handle it, so it is not an Exception."""


@dataclass(slots=True)
class Image:
    """Files by path, as a machine finds them when it starts."""

    names: dict[str, int] = field(default_factory=dict)
    contents: dict[int, bytearray] = field(default_factory=dict)

    def copy(self) -> Image:
        return Image(dict(self.names), {inode: bytearray(data) for inode, data in self.contents.items()})

    def flip_bit(self, path: str, bit: int) -> None:
        self.contents[self.names[path]][bit // 8] ^= 1 << bit % 8

    def size(self, path: str) -> int:
        return len(self.contents[self.names[path]])


class SimulatedDisk:
    """A disk. `image` is what the processes of its machine see; `operations` decide what a power cut may leave.

    `operations` is how `image` came to be from `start`. settling: what was synced moves to `start` at once and its
    operations are dropped, so that a long run stays small; without it the history can be cut at every point in the
    past.

    A disk is itself a `Disk`, for a process that never dies; `mount` makes one for a process that may.
    """

    def __init__(self, start: Image | None = None, *, bytes_max: int = 1 << 40, settling: bool = False) -> None:
        self.start = start or Image()
        self.image = self.start.copy()
        self.operations: list[Operation] = []
        self.settling = settling
        self.bytes_max = bytes_max
        self.sync_fails = False  # every sync from now on
        self.syncs_to_fail = 0  # so many of the next ones
        self.copy_on_write = False  # overwriting needs free space, too
        self.unreadable: set[tuple[int, int]] = set()  # (inode, sector); heals when it is written
        self.syncs_failed = 0
        self.sync_errors: dict[int, int] = {}  # failed syncs by inode
        self.on_operation: Callable[[], None] | None = None  # called after each; may change the disk
        self._astray: dict[int, int | None] = {}  # inode -> by how many bytes its next write misses; None: is lost
        self._inodes = max(self.image.contents, default=0)
        self._open: dict[int, int] = {}  # handles by inode
        self._mounts: list[Mount] = []
        self._locks: dict[str, Mount | None] = {}
        self._named: set[int] = set()
        self.used = 0
        self._count()

    # ---- the port ----------------------------------------------------------------------------------------------------

    def create(self, path: str, mount: Mount | None = None) -> SimulatedFile:
        if path in self.image.names:
            raise FileExistsError(errno.EEXIST, "file exists", path)
        if self.used >= self.bytes_max:
            raise OSError(errno.ENOSPC, "no space", path)
        inode = self._inodes = self._inodes + 1
        self.image.contents[inode] = bytearray()
        self._name(Name(path, inode))
        return SimulatedFile(self, inode, mount)

    def open(self, path: str, mount: Mount | None = None) -> SimulatedFile:
        if path not in self.image.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        return SimulatedFile(self, self.image.names[path], mount)

    def rename(self, old: str, new: str) -> None:
        if old not in self.image.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", old)
        self._name(Name(new, self.image.names[old], gone=old))

    def rename_new(self, old: str, new: str) -> None:
        if new in self.image.names:
            raise FileExistsError(errno.EEXIST, "file exists", new)
        self.rename(old, new)

    def exists(self, path: str) -> bool:
        return path in self.image.names

    def unlink(self, path: str) -> None:
        if path not in self.image.names:
            raise FileNotFoundError(errno.ENOENT, "no such file", path)
        self._name(Name(path, None))

    def names(self, directory: str) -> list[str]:
        return sorted(path.rpartition("/")[2] for path in self.image.names if path.rpartition("/")[0] == directory)

    def sync_dir(self, directory: str) -> None:
        self._may_fail_sync()
        self._did(SyncDir(directory))

    def free_bytes(self, directory: str) -> int:
        return max(0, self.bytes_max - self.used)

    def space(self, directory: str) -> DiskSpace:
        return DiskSpace(1, self.bytes_max, self.free_bytes(directory))

    def real_path(self, path: str) -> str:
        return posixpath.normpath(posixpath.join("/", path))

    def make_dir(self, path: str) -> None:
        """Do nothing: a directory exists when it has a file, so none is lost and none is found empty."""

    def open_database(
        self, path: str, limits: DatabaseLimits, *, create: bool = False, read_only: bool = False
    ) -> Database:
        from tests.simulation.database import SimulatedDatabase

        return SimulatedDatabase(self, path, create=create, read_only=read_only)

    def remove_database(self, path: str) -> None:
        self.unlink(path)

    def lock(self, directory: str, mount: Mount | None = None) -> DirectoryLock:
        if directory in self._locks:
            raise CookieError(f"another bookie runs on this directory; stop it first: dir={directory}")
        self._locks[directory] = mount
        return _Lock(self._locks, directory, mount)

    # ---- operations of files -----------------------------------------------------------------------------------------

    def write(self, inode: int, offset: int, data: bytes) -> None:
        content = self.image.contents[inode]
        more = len(data) if self.copy_on_write else max(0, offset + len(data) - len(content))
        room = max(0, self.bytes_max - self.used)
        short = more > room
        if short:
            data = data[: len(data) - more + room]
        if data:
            lands_at: int | None = offset
            if inode in self._astray:
                miss = self._astray.pop(inode)
                lands_at = None if miss is None else max(0, offset + miss)
            before = len(content)
            _put(content, offset, data)
            if inode in self._named:
                self.used += len(content) - before
            for sector in range(offset // SECTOR, (offset + len(data) - 1) // SECTOR + 1):
                self.unreadable.discard((inode, sector))
            self._did(Write(inode, offset, data, lands_at))
        if short:
            raise OSError(errno.ENOSPC, "no space")

    def read(self, inode: int, length: int, offset: int) -> bytes:
        if self.unreadable and any(
            (inode, sector) in self.unreadable for sector in range(offset // SECTOR, (offset + length) // SECTOR + 1)
        ):
            raise OSError(errno.EIO, "unreadable sector")
        return bytes(self.image.contents[inode][offset : offset + length])

    def sync(self, inode: int) -> None:
        try:
            self._may_fail_sync()
        except OSError:
            self._did(FailedSync(inode))
            self.sync_errors[inode] = self.sync_errors.get(inode, 0) + 1
            raise
        self._did(Sync(inode))

    def opened(self, inode: int) -> None:
        self._open[inode] = self._open.get(inode, 0) + 1

    def closed(self, inode: int) -> None:
        count = self._open.pop(inode, 1) - 1
        if count:
            self._open[inode] = count
        else:
            self._forget(inode)

    # ---- faults ------------------------------------------------------------------------------------------------------

    def flip_bit(self, path: str, bit: int) -> None:
        """Flip a bit at rest: in what is read now and, if a settling disk has settled it, in what a power cut
        leaves."""
        inode = self.image.names[path]
        for image in (self.image, self.start):
            content = image.contents.get(inode, bytearray())
            if bit // 8 < len(content):
                content[bit // 8] ^= 1 << bit % 8

    def make_unreadable(self, path: str, offset: int, length: int = 1) -> None:
        """The sectors that hold these bytes give EIO until they are written again."""
        inode = self.image.names[path]
        self.unreadable |= {(inode, n) for n in range(offset // SECTOR, (offset + length - 1) // SECTOR + 1)}

    def misdirect(self, path: str, by: int | None) -> None:
        """Misdirect the next write to the file by so many bytes, or lose it (None); visible once the cache is
        dropped."""
        self._astray[self.image.names[path]] = by

    def drop_caches(self) -> None:
        """Drop the page cache, so that dropped pages and misdirected writes show. Handles stay open."""
        named = self.image.names
        image = self.cut(len(self.operations), all_kept)
        for inode, content in self.image.contents.items():
            content[:] = image.contents.get(inode, b"")
        assert named == image.names
        self._count()

    # ---- crashes and power cuts --------------------------------------------------------------------------------------

    def mount(self) -> Mount:
        """Make a view of this disk for a process that may die."""
        made = Mount(self)
        self._mounts.append(made)
        return made

    def adopt(self, mount: Mount) -> None:
        """Let this mount die with the disk's others."""
        self._mounts.append(mount)

    def kill(self) -> None:
        """Kill the processes; what they wrote stays in the page cache, synced or not."""
        for mount in self._mounts:
            mount.dead = True
        self._mounts.clear()
        self._open.clear()
        self._locks = {directory: mount for directory, mount in self._locks.items() if mount and not mount.dead}

    def power_cut(self, keep: Keep) -> None:
        """Cut the machine's power; `keep` decides for each sector and name that was not synced."""
        self.kill()
        self.start = self.cut(len(self.operations), keep)
        self.image = self.start.copy()
        self.operations.clear()
        self._open.clear()
        self._astray.clear()
        kept = set(self.image.names.values())
        for image in (self.start, self.image):
            image.contents = {inode: data for inode, data in image.contents.items() if inode in kept}
        self._count()

    def cut(self, after: int, keep: Keep) -> Image:
        """The image after a power cut behind `after` operations; `keep` decides for all that was not synced."""
        return self.cuts(after).image(keep)

    def cuts(self, after: int) -> Cuts:
        """All that a power cut behind `after` operations may leave."""
        return Cuts(self.start, self.operations[:after])

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _count(self) -> None:
        self._named = set(self.image.names.values())
        self.used = sum(map(self.image.size, self.image.names))

    def _may_fail_sync(self) -> None:
        if self.sync_fails or self.syncs_to_fail:
            self.syncs_to_fail = max(0, self.syncs_to_fail - 1)
            self.syncs_failed += 1
            raise OSError(errno.EIO, "sync failed")

    def _name(self, operation: Name) -> None:
        for path in (operation.path, operation.gone):
            if path in self.image.names:
                self.used -= self.image.size(path)
        replaced = self.image.names.get(operation.path)
        _apply_name(self.image.names, operation)
        if replaced is not None:
            self._named.discard(replaced)
        if operation.inode is not None:
            self._named.add(operation.inode)
            self.used += len(self.image.contents[operation.inode])
        self._did(operation)
        if replaced is not None:
            self._forget(replaced)

    def _did(self, operation: Operation) -> None:
        self.operations.append(operation)
        if self.on_operation is not None:
            self.on_operation()
        if not self.settling or isinstance(operation, Write | Name):
            return
        before, self.operations = self.operations[:-1], []
        for old in before:
            if isinstance(operation, SyncDir):
                if isinstance(old, Name) and old.path.rpartition("/")[0] == operation.directory:
                    _apply_name(self.start.names, old)
                    continue
            elif isinstance(old, Write) and old.inode == operation.inode:
                if isinstance(operation, Sync):
                    _land(self.start.contents.setdefault(old.inode, bytearray()), old)
                continue
            self.operations.append(old)
        if isinstance(operation, SyncDir):
            for inode in self.start.names.values():
                self.start.contents.setdefault(inode, bytearray())
            for inode in [inode for inode in self.image.contents if inode not in self._open]:
                self._forget(inode)

    def _forget(self, inode: int) -> None:
        """Drop what no name, handle or pending name leads to any more; only on a settling disk."""
        if not self.settling or inode in self._open or inode in self._named:
            return
        if inode in self.start.names.values() or any(isinstance(o, Name) and o.inode == inode for o in self.operations):
            return
        self.image.contents.pop(inode, None)
        self.start.contents.pop(inode, None)
        self.operations = [op for op in self.operations if not (isinstance(op, Write) and op.inode == inode)]


class Cuts:
    """What a power cut behind some operations may leave: an image for each choice of what was not synced.

    What every image has in common is done once. base: the contents before the first write that was not synced.
    unsettled: the inodes whose contents may differ between images.
    """

    def __init__(self, start: Image, done: Sequence[Operation]) -> None:
        safe_writes = _synced(done)
        writes = [(number in safe_writes, op) for number, op in enumerate(done) if isinstance(op, Write)]
        first = next((at for at, (is_safe, _) in enumerate(writes) if not is_safe), len(writes))
        self.base = start.copy()
        for _, operation in writes[:first]:
            _land(self.base.contents.setdefault(operation.inode, bytearray()), operation)
        self._writes = writes[first:]
        self.unsettled = {operation.inode for _, operation in self._writes}
        self._directories: list[tuple[list[Name], list[Name]]] = []  # of each its names: synced ones, and others
        names = [(number, op, op.path.rpartition("/")[0]) for number, op in enumerate(done) if isinstance(op, Name)]
        for directory in sorted({directory for _, _, directory in names}):
            synced = (number for number, op in enumerate(done) if isinstance(op, SyncDir) and op.directory == directory)
            last_sync = max(synced, default=-1)
            mine = [(number, op) for number, op, where in names if where == directory]
            self._directories.append(([op for n, op in mine if n < last_sync], [op for n, op in mine if n > last_sync]))

    def image(self, keep: Keep) -> Image:
        """The image where `keep` decides for all that was not synced: sectors first, then names."""
        image = self.base.copy()
        for is_safe, operation in self._writes:
            content = image.contents.setdefault(operation.inode, bytearray())
            if is_safe:
                _land(content, operation)
            else:
                _tear(content, operation, keep)
        for synced, others in self._directories:
            for name in synced:
                _apply_name(image.names, name)
            for name in others:
                if not keep():
                    break
                _apply_name(image.names, name)
        for inode in image.names.values():
            image.contents.setdefault(inode, bytearray())
        return image


def all_kept() -> bool:
    """A `keep` that keeps everything: a kill without a power cut."""
    return True


def all_lost() -> bool:
    return False


def coin(rng: random.Random, share: float) -> Keep:
    return lambda: rng.random() < share


def _synced(done: Sequence[Operation]) -> set[int]:
    """Numbers of the writes that the next sync of their file covered."""
    safe: set[int] = set()
    waiting: dict[int, list[int]] = {}
    for number, operation in enumerate(done):
        if isinstance(operation, Write):
            waiting.setdefault(operation.inode, []).append(number)
        elif isinstance(operation, Sync):
            safe.update(waiting.pop(operation.inode, ()))
        elif isinstance(operation, FailedSync):
            waiting.pop(operation.inode, None)
    return safe


def _land(content: bytearray, write: Write) -> None:
    if write.lands_at is not None:
        _put(content, write.lands_at, write.data)


def _put(content: bytearray, offset: int, data: bytes) -> None:
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


def _tear(content: bytearray, write: Write, keep: Keep) -> None:
    if write.lands_at is None:
        return
    at = 0
    while at < len(write.data):
        length = min(SECTOR - (write.lands_at + at) % SECTOR, len(write.data) - at)
        if keep():
            _put(content, write.lands_at + at, write.data[at : at + length])
        at += length


def _apply_name(names: dict[str, int], operation: Name) -> None:
    if operation.gone is not None:
        names.pop(operation.gone, None)
    if operation.inode is None:
        names.pop(operation.path, None)
    else:
        names[operation.path] = operation.inode


# ---- a process's view ------------------------------------------------------------------------------------------------


class SimulatedFile:
    """An open file of a disk, opened by one process, or (mount None) by one that never dies."""

    def __init__(self, disk: SimulatedDisk, inode: int, mount: Mount | None) -> None:
        self._disk = disk
        self._mount = mount
        self._held = True
        self._errors_told = disk.sync_errors.get(inode, 0)
        self.inode = inode
        disk.opened(inode)

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        self._step()
        self._disk.write(self.inode, offset, b"".join(buffers))

    def reserve(self, length: int, offset: int) -> None:
        """Do nothing visible: a lack of space shows at the write that follows."""

    def write_blocks(self, blocks: memoryview, offset: int) -> None:
        assert offset % BLOCK_BYTES == 0 == len(blocks) % BLOCK_BYTES and len(blocks)
        self.pwritev([bytes(blocks)], offset)

    def pread(self, length: int, offset: int) -> bytes:
        if self._mount is not None:
            self._mount.look()
        return self._disk.read(self.inode, length, offset)

    def disable_read_ahead(self) -> None:
        """Do nothing visible."""

    def datasync(self) -> None:
        """Sync the file. As on Linux, a failed sync is reported once to each open handle of the file, through whichever
        handle it was requested."""
        self._step()
        try:
            if self._errors_told != self._disk.sync_errors.get(self.inode, 0):
                raise OSError(errno.EIO, "an earlier sync failed")
            self._disk.sync(self.inode)
        finally:
            self._errors_told = self._disk.sync_errors.get(self.inode, 0)

    def size(self) -> int:
        return len(self._disk.image.contents[self.inode])

    def close(self) -> None:
        if self._held:
            self._held = False
            if self._mount is None or not self._mount.dead:
                self._disk.closed(self.inode)

    def __del__(self) -> None:
        self.close()

    def _step(self) -> None:
        if self._mount is not None:
            self._mount.step()


class Mount:
    """A disk as one process sees it; every call of a dead process raises Died."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.dead = False
        self.left: int | None = None  # the process dies after so many more operations

    def look(self) -> None:
        if self.dead:
            raise Died

    def step(self) -> None:
        """Called before each operation that changes anything."""
        self.look()
        if self.left is not None:
            if self.left == 0:
                raise Died
            self.left -= 1

    def create(self, path: str) -> SimulatedFile:
        self.step()
        return self.disk.create(path, self)

    def open(self, path: str) -> SimulatedFile:
        self.look()
        return self.disk.open(path, self)

    def rename(self, old: str, new: str) -> None:
        self.step()
        self.disk.rename(old, new)

    def rename_new(self, old: str, new: str) -> None:
        self.step()
        self.disk.rename_new(old, new)

    def exists(self, path: str) -> bool:
        self.look()
        return self.disk.exists(path)

    def unlink(self, path: str) -> None:
        self.step()
        self.disk.unlink(path)

    def names(self, directory: str) -> list[str]:
        self.look()
        return self.disk.names(directory)

    def sync_dir(self, directory: str) -> None:
        self.step()
        self.disk.sync_dir(directory)

    def free_bytes(self, directory: str) -> int:
        self.look()
        return self.disk.free_bytes(directory)

    def space(self, directory: str) -> DiskSpace:
        self.look()
        return self.disk.space(directory)

    def real_path(self, path: str) -> str:
        return self.disk.real_path(path)

    def make_dir(self, path: str) -> None:
        self.look()

    def open_database(
        self, path: str, limits: DatabaseLimits, *, create: bool = False, read_only: bool = False
    ) -> Database:
        from tests.simulation.database import SimulatedDatabase

        return SimulatedDatabase(self, path, create=create, read_only=read_only)

    def remove_database(self, path: str) -> None:
        self.unlink(path)

    def lock(self, directory: str) -> DirectoryLock:
        self.look()
        return self.disk.lock(directory, self)


class _Lock:
    def __init__(self, locks: dict[str, Mount | None], directory: str, holder: Mount | None) -> None:
        self._locks = locks
        self._directory = directory
        self._holder = holder
        self._held = True

    def close(self) -> None:
        if self._held and self._locks.get(self._directory, self) is self._holder:
            del self._locks[self._directory]
        self._held = False
