"""The disk port: the file operations of a bookie, on real disks or, in tests, on a simulated one.

Invariants:
- All calls block; any thread may make them but that of the event loop.
- `pwritev` writes everything or raises.
- Nothing is durable before `datasync` (contents) or `sync_dir` (names) has returned.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from dlog.errors import CookieError
from dlog.io.database import Database, DatabaseLimits
from dlog.io.file_errors import named_errors
from dlog.io.rocks import RocksDatabase, remove_rocks
from dlog.wire.framing import Buffer

BLOCK_BYTES = 4096  # unit of direct writes, and a page of memory
_VECTOR_MAX = 1024  # buffers in one call, the usual IOV_MAX
_JOIN_BYTES = 4096  # smaller buffers are joined: cheaper than one more element of the vector
_READ_BYTES = 256 * 1024  # of one read call: a sync of the journal waits behind it

#: errno values that mean "no space", after which a bookie goes on serving reads; other failed writes end it
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class File(Protocol):
    """An open file, read and written at explicit offsets; safe to read from several threads."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None: ...

    def reserve(self, length: int, offset: int) -> None:
        """Allocate disk space for later writes; neither size nor contents of the file change.

        Writes then take a third less CPU. Raises OSError with NO_SPACE if there is not enough; does nothing on a file
        system that does not support it.
        """
        ...

    def pread(self, length: int, offset: int) -> bytes:
        """Read `length` bytes, fewer only at the end of the file."""
        ...

    def disable_read_ahead(self) -> None:
        """Disable read-ahead for this file.

        A scan then reads in smaller pieces, so a sync of another file on the disk waits for one piece instead of for
        megabytes. Does nothing where it is not supported.
        """
        ...

    def datasync(self) -> None:
        """Make written contents durable. Never raises a NO_SPACE number: after a failed sync contents are unknown."""
        ...

    def write_blocks(self, blocks: memoryview, offset: int) -> None:
        """Write data that is not read soon: past the page cache (O_DIRECT) if the file system can.

        offset and length are multiples of BLOCK_BYTES; `blocks` starts at a page boundary. This costs less, and no
        `datasync` has to move it all at once, but it is no more durable than `pwritev`. One thread at a time.
        """
        ...

    def size(self) -> int: ...

    def close(self) -> None:
        """Idempotent. A file that is garbage collected is closed, too."""
        ...


class DiskSpace(NamedTuple):
    """Space of a file system. device: the same number for directories on the same one."""

    device: int
    total_bytes: int
    free_bytes: int


class Disk(Protocol):
    """Operations on paths (plain strings). Every call may raise OSError."""

    def create(self, path: str) -> File:
        """Create an empty file; FileExistsError if it exists."""
        ...

    def open(self, path: str) -> File: ...

    def rename(self, old: str, new: str) -> None:
        """Rename a file, replacing `new`."""
        ...

    def rename_new(self, old: str, new: str) -> None:
        """Rename a file; FileExistsError if `new` exists. Of several processes that try at once, one succeeds."""
        ...

    def unlink(self, path: str) -> None: ...

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of that name now. An error other than its absence is raised."""
        ...

    def names(self, directory: str) -> list[str]:
        """Sorted names in the directory; FileNotFoundError if it does not exist."""
        ...

    def sync_dir(self, directory: str) -> None:
        """Make the creation, renaming and deletion of files in this directory durable (fsync of the directory).

        Like `datasync`, it never raises an OSError whose number is in NO_SPACE.
        """
        ...

    def free_bytes(self, directory: str) -> int: ...

    def space(self, directory: str) -> DiskSpace:
        """The space of the directory's file system."""
        ...

    def real_path(self, path: str) -> str:
        """The absolute path with symbolic links resolved."""
        ...

    def make_dir(self, path: str) -> None:
        """Create the directory and its parents, each durable in its parent, unless it exists."""
        ...

    def open_database(
        self, path: str, limits: DatabaseLimits, *, create: bool = False, read_only: bool = False
    ) -> Database:
        """Open the database of that name. Its parts are named `path`, or `path` and a dot and more. create: it, if
        there is none. read_only: change nothing in it. Raises as Database, and ConfigError if there is no library for
        it."""
        ...

    def remove_database(self, path: str) -> None:
        """Delete a closed database, or one of its parts."""
        ...

    def lock(self, directory: str) -> DirectoryLock:
        """Lock the directory. Raises CookieError at once if another process has locked it."""
        ...


class DirectoryLock(Protocol):
    """A lock on a directory, released by `close` or the end of the process."""

    def close(self) -> None:
        """Idempotent."""
        ...


def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """The C library's fallocate; Python's posix_fallocate would extend the file. None: not available."""
    try:
        found = ctypes.CDLL(None, use_errno=True).fallocate
    except (AttributeError, OSError):
        return None
    found.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    found.restype = ctypes.c_int
    return cast(Callable[[int, int, int, int], int], found)


_FALLOCATE = _fallocate()
_KEEP_SIZE = 1  # FALLOC_FL_KEEP_SIZE
_UNTRIED, _CANNOT = -1, -2


class RealFile:
    """A File on a file descriptor."""

    __slots__ = ("_direct", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._direct = _UNTRIED  # descriptor of the same file with O_DIRECT, for `write_blocks`

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        vector = list(_joined(buffers))
        for at in range(0, len(vector), _VECTOR_MAX):
            offset = self._write_all(vector[at : at + _VECTOR_MAX], offset)

    def _write_all(self, vector: list[Buffer], offset: int) -> int:
        expected = sum(map(len, vector))
        written = os.pwritev(self._fd, vector, offset)
        if written < expected:  # a signal, or the disk is full: then the next call raises
            rest = memoryview(b"".join(vector))[written:]
            while rest:
                step = os.pwrite(self._fd, rest, offset + expected - len(rest))
                rest = rest[step:]
        return offset + expected

    def reserve(self, length: int, offset: int) -> None:
        if _FALLOCATE is not None and _FALLOCATE(self._fd, _KEEP_SIZE, offset, length) < 0:
            number = ctypes.get_errno()
            if number in NO_SPACE:
                raise OSError(number, os.strerror(number))

    def pread(self, length: int, offset: int) -> bytes:
        data = os.pread(self._fd, min(length, _READ_BYTES), offset)
        if len(data) == length:
            return data
        pieces = [data]
        left, offset = length - len(data), offset + len(data)
        while data and left:
            data = os.pread(self._fd, min(left, _READ_BYTES), offset)
            pieces.append(data)
            left, offset = left - len(data), offset + len(data)
        return b"".join(pieces)

    def disable_read_ahead(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def datasync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:  # dirty pages may be lost, whatever errno says: never report NO_SPACE
            raise OSError(errno.EIO, f"fdatasync failed: {error.strerror}") from error

    def write_blocks(self, blocks: memoryview, offset: int) -> None:
        if self._direct == _UNTRIED:
            self._direct = _open_direct(self._fd)
        done = 0
        while done < len(blocks):
            fd = self._fd if self._direct < 0 else self._direct
            try:
                done += os.pwrite(fd, blocks[done:], offset + done)
            except OSError as error:
                if error.errno != errno.EINVAL or fd == self._fd:
                    raise
                self._close_direct()  # the file system needs larger blocks or has no O_DIRECT

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)
        self._close_direct()

    def _close_direct(self) -> None:
        fd, self._direct = self._direct, _CANNOT
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()


def _open_direct(fd: int) -> int:
    """Open a descriptor's file again with O_DIRECT; `_CANNOT` if that fails."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
    except (AttributeError, OSError):  # not Linux, or a file system without O_DIRECT
        return _CANNOT


def _joined(buffers: Sequence[Buffer]) -> Iterator[Buffer]:
    small: list[Buffer] = []
    for buffer in buffers:
        if len(buffer) < _JOIN_BYTES:
            small.append(buffer)
            continue
        if small:
            yield b"".join(small)
            small = []
        yield buffer
    if small:
        yield b"".join(small)


class RealDisk:
    """A Disk on the machine's file systems. New files are readable by their owner only; a symbolic link in place of a
    file is refused (ELOOP), as writes would go elsewhere."""

    def create(self, path: str) -> File:
        return RealFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def open(self, path: str) -> File:
        return RealFile(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC))

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def rename_new(self, old: str, new: str) -> None:
        os.link(old, new)
        os.unlink(old)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def exists(self, path: str) -> bool:
        try:
            os.lstat(path)
        except FileNotFoundError:
            return False
        return True

    def names(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def sync_dir(self, directory: str) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:  # as in datasync: a name may be lost
            raise OSError(errno.EIO, f"fsync of a directory failed: {error.strerror}", directory) from error
        finally:
            os.close(fd)

    def free_bytes(self, directory: str) -> int:
        stat = os.statvfs(directory)
        return stat.f_bavail * stat.f_frsize

    def space(self, directory: str) -> DiskSpace:
        stat = os.statvfs(directory)
        total_bytes, free_bytes = stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize
        return DiskSpace(os.stat(directory).st_dev, total_bytes, free_bytes)

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def make_dir(self, path: str) -> None:
        target = Path(path).absolute()
        missing = [p for p in (target, *target.parents) if not p.exists()]
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                directory.mkdir()
            self.sync_dir(str(directory.parent))

    def open_database(
        self, path: str, limits: DatabaseLimits, *, create: bool = False, read_only: bool = False
    ) -> Database:
        return RocksDatabase(path, limits, create=create, read_only=read_only)

    def remove_database(self, path: str) -> None:
        remove_rocks(path)

    def lock(self, directory: str) -> DirectoryLock:
        return _FileLock(directory)


class _FileLock:
    """flock on the file LOCK in the directory."""

    def __init__(self, directory: str) -> None:
        self._fd = os.open(f"{directory}/LOCK", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._fd)
            raise CookieError(f"another bookie runs on this directory; stop it first: dir={directory}") from error

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)


# ---- small whole files -----------------------------------------------------------------------------------------------


def replace_file(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Replace the file `name` durably and atomically: write and sync a new file, rename it, sync the directory."""
    path, draft = f"{directory}/{name}", f"{directory}/{name}.new"
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(draft)
    file = disk.create(draft)
    try:
        with named_errors(draft):
            file.pwritev([data], 0)
            file.datasync()
    finally:
        file.close()
    disk.rename(draft, path)
    disk.sync_dir(directory)


def read_file(disk: Disk, directory: str, name: str) -> bytes | None:
    """Read a whole file; None: there is no such file."""
    try:
        file = disk.open(f"{directory}/{name}")
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()
