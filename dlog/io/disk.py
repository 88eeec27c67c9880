"""The disk port: the few calls a bookie makes on files, so that a simulated disk can stand behind them.

The law of this file: all calls block and may be made from any thread but the loop's. `pwritev` writes everything or
raises; nothing is durable before `datasync` (contents) or `sync_dir` (names) has returned.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, cast

from dlog.errors import CookieError
from dlog.io.file_errors import named_errors
from dlog.wire.framing import Buffer

BLOCK_BYTES = 4096  # what a disk takes as a whole, and a page of memory
_VECTOR_MAX = 1024  # buffers in one call, by POSIX's usual limit
_JOIN_BYTES = 4096  # smaller buffers are joined: cheaper than one more element of the vector
_READ_BYTES = 256 * 1024  # in one call: what is read at once is what a journal's sync waits behind

#: failures that mean "not enough room", after which a bookie goes on reading; any other failed write ends it
NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class File(Protocol):
    """An open file, read and written at explicit offsets; safe to read from several threads."""

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None: ...

    def reserve(self, length: int, offset: int) -> None:
        """Have the disk set room aside for what will be written there; nothing that can be read changes.

        To write costs a third less of the CPU then. Raises OSError, NO_SPACE if there is no such room; where a file
        system cannot do it, nothing happens.
        """
        ...

    def pread(self, length: int, offset: int) -> bytes:
        """Short at the end of the file only."""
        ...

    def read_as_asked(self) -> None:
        """From now on have the system read what `pread` asks for and nothing ahead of it.

        Whoever reads one such file after the other moves as many bytes, in smaller pieces: a sync of another file on
        the same disk waits for a piece instead of for megabytes. Where a system cannot do it, nothing happens.
        """
        ...

    def datasync(self) -> None:
        """Never raises a NO_SPACE number: after a failed sync nothing may be taken for granted."""
        ...

    def write_blocks(self, blocks: memoryview, offset: int) -> None:
        """Write what will hardly be read soon: where the file system can, past the page cache, straight from `blocks`.

        offset and length are multiples of BLOCK_BYTES, and `blocks` begins where a page of memory does. To write costs
        less that way, and is on the disk when this returns, so that no `datasync` has to move all of it at once; it is
        no more durable than `pwritev`. One thread at a time.
        """
        ...

    def size(self) -> int: ...

    def close(self) -> None:
        """Idempotent; a file that is dropped is closed too."""
        ...


class Disk(Protocol):
    """Paths are plain strings. Every call raises OSError."""

    def create(self, path: str) -> File:
        """A new, empty file; FileExistsError if there is one."""
        ...

    def open(self, path: str) -> File: ...

    def rename(self, old: str, new: str) -> None:
        """Replaces `new`."""
        ...

    def unlink(self, path: str) -> None: ...

    def names(self, directory: str) -> list[str]:
        """Sorted names in the directory; FileNotFoundError if there is none."""
        ...

    def sync_dir(self, directory: str) -> None:
        """Never raises a NO_SPACE number, like `datasync`."""
        ...

    def free_bytes(self, directory: str) -> int: ...

    def real_path(self, path: str) -> str:
        """Absolute, and the same for all ways to write it."""
        ...

    def make_dir(self, path: str) -> None:
        """Make the directory and its parents, each durable in the one above; nothing if it is there."""
        ...

    def lock(self, directory: str) -> DirectoryLock:
        """Raises CookieError at once if another process holds it."""
        ...


class DirectoryLock(Protocol):
    """A directory of our own, until closed or the process ends, however it ends."""

    def close(self) -> None:
        """Idempotent."""
        ...


def _fallocate() -> Callable[[int, int, int, int], int] | None:
    """The C library's, which Python shows only in a form that makes the file longer. None: there is none."""
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
    """A file descriptor."""

    __slots__ = ("_direct", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._direct = _UNTRIED  # the same file, opened to write past the page cache

    def pwritev(self, buffers: Sequence[Buffer], offset: int) -> None:
        vector = list(_joined(buffers))
        for at in range(0, len(vector), _VECTOR_MAX):
            offset = self._write_all(vector[at : at + _VECTOR_MAX], offset)

    def _write_all(self, vector: list[Buffer], offset: int) -> int:
        expected = sum(map(len, vector))
        written = os.pwritev(self._fd, vector, offset)
        if written < expected:  # a signal, or the disk is full: the next call tells
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

    def read_as_asked(self) -> None:
        with contextlib.suppress(AttributeError, OSError):
            os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_RANDOM)

    def datasync(self) -> None:
        try:
            os.fdatasync(self._fd)
        except OSError as error:  # pages may be gone, whatever the number says: never "no space, go on"
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
                self._close_direct()  # this file system takes other blocks, or none

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
    """The file behind a descriptor once more, or `_CANNOT`."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
    except (AttributeError, OSError):  # not Linux, or a file system that has no such thing
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
    """The machine's file systems. What we make only we may read; what is a link where a file of ours should be is
    refused (ELOOP), for it would have us write elsewhere."""

    def create(self, path: str) -> File:
        return RealFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))

    def open(self, path: str) -> File:
        return RealFile(os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC))

    def rename(self, old: str, new: str) -> None:
        os.replace(old, new)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def names(self, directory: str) -> list[str]:
        return sorted(os.listdir(directory))

    def sync_dir(self, directory: str) -> None:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:  # as in datasync: a name may be gone
            raise OSError(errno.EIO, f"fsync of a directory failed: {error.strerror}", directory) from error
        finally:
            os.close(fd)

    def free_bytes(self, directory: str) -> int:
        stat = os.statvfs(directory)
        return stat.f_bavail * stat.f_frsize

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def make_dir(self, path: str) -> None:
        target = Path(path).absolute()
        missing = [p for p in (target, *target.parents) if not p.exists()]
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                directory.mkdir()
            self.sync_dir(str(directory.parent))

    def lock(self, directory: str) -> DirectoryLock:
        return _FileLock(directory)


class _FileLock:
    """flock on a file in the directory."""

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


def write_whole(disk: Disk, directory: str, name: str, data: bytes) -> None:
    """Put `data` under `name`, durable and all or nothing: a new file, synced, renamed, directory synced."""
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


def read_whole(disk: Disk, directory: str, name: str) -> bytes | None:
    """The file's bytes, or None if there is no such file."""
    try:
        file = disk.open(f"{directory}/{name}")
    except FileNotFoundError:
        return None
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()
