"""Objects as files below a directory that every process has under the same path, such as a network mount.

The law of this file: a file appears under its name when it is whole and synced, by a rename, and its directory is
synced behind that. A directory that is not there is never taken for an object that is not there: the mount may be gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import errno
import os
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from dlog.stores.cold.objects import Buffer, Found
from dlog.stores.cold.places import Location
from dlog.stores.contract import MisconfiguredError, SegmentNotFoundError, StoreError, StoreUnavailableError

_PART = ".part"  # the end of the name of a file that is being written; it begins with a dot
_VECTOR_MAX = 512  # more buffers than these are joined
_LIST_AT_ONCE = 1000
_AHEAD_BYTES = 8 << 20
_SYNC_FILE_RANGE_WRITE = 2
_LIBC = ctypes.CDLL(None)
_REFUSED = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG})


class DirectoryObjects:
    """See dlog/stores/cold/objects.py. Calls of the system are made in threads."""

    async def read(self, place: Location, offset: int, size: int) -> bytes:
        return (await asyncio.to_thread(_read, Path(place.path), offset, size))[0]

    async def read_end(self, place: Location, size: int) -> tuple[bytes, int]:
        return await asyncio.to_thread(_read, Path(place.path), -size, size)

    async def create(self, place: Location) -> FileWriter:
        return await asyncio.to_thread(FileWriter, Path(place.path))

    async def delete(self, place: Location) -> None:
        await asyncio.to_thread(_delete, Path(place.path))

    async def list(self, folder: Location) -> AsyncIterator[Found]:
        async for found in _each(folder):
            if not _is_part(found):
                yield found

    async def unfinished(self, folder: Location) -> AsyncIterator[Found]:
        async for found in _each(folder):
            if _is_part(found):
                yield found

    async def discard(self, left: Found) -> None:
        await asyncio.to_thread(_delete, Path(left.place.removeprefix("file://")))


class FileWriter:
    """Writes a file beside its place and moves it there. Made in a thread. Raises MisconfiguredError,
    StoreUnavailableError."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{os.urandom(4).hex()}{_PART}")
        self._fd = -1
        self._begun = self._bytes = 0  # of which the disk has begun to write; that were written
        with _errors(path):
            _make_directory(path.parent)
            self._fd = os.open(self._part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    async def write(self, parts: Sequence[Buffer]) -> None:
        await asyncio.to_thread(self._write, parts)

    async def finish(self) -> None:
        await asyncio.to_thread(self._finish)

    async def abort(self) -> None:
        await asyncio.to_thread(self._abort)

    def _write(self, parts: Sequence[Buffer]) -> None:
        with _errors(self._path):
            vector = [memoryview(b"".join(parts))] if len(parts) > _VECTOR_MAX else [memoryview(p) for p in parts]
            while vector:
                written = os.writev(self._fd, vector)
                self._bytes += written
                while vector and written >= len(vector[0]):
                    written -= len(vector.pop(0))
                if vector:
                    vector[0] = vector[0][written:]
            if self._bytes - self._begun >= _AHEAD_BYTES:
                _begin_to_sync(self._fd, self._begun, self._bytes - self._begun)
                self._begun = self._bytes

    def _finish(self) -> None:
        with _errors(self._path):
            os.fsync(self._fd)
            self._close()
            os.replace(self._part, self._path)
            _sync_directory(self._path.parent)

    def _abort(self) -> None:
        self._close()
        with contextlib.suppress(OSError):
            os.unlink(self._part)

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


def _begin_to_sync(fd: int, offset: int, length: int) -> None:
    """Have the disk begin to write this, so that not all of it is left to the sync at the end. Where the system cannot
    do so, nothing happens."""
    call = getattr(_LIBC, "sync_file_range", None)
    if call is not None:
        call(fd, ctypes.c_int64(offset), ctypes.c_int64(length), _SYNC_FILE_RANGE_WRITE)


def _read(path: Path, offset: int, size: int) -> tuple[bytes, int]:
    """Bytes from `offset` on, from the end if it is negative; and the size of the file."""
    with _errors(path):
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            whole = os.fstat(fd).st_size
            at = max(0, whole + offset) if offset < 0 else offset
            data = os.pread(fd, size, at)
            while len(data) < size and (more := os.pread(fd, size - len(data), at + len(data))):
                data += more
            return data, whole
        finally:
            os.close(fd)


def _delete(path: Path) -> None:
    with contextlib.suppress(SegmentNotFoundError), _errors(path):
        os.unlink(path)
        _sync_directory(path.parent)


async def _each(folder: Location) -> AsyncIterator[Found]:
    found = _walk(folder)
    while some := await asyncio.to_thread(_take, found):
        for one in some:
            yield one


def _take(found: Iterator[Found]) -> list[Found]:
    some = []
    for one in found:
        some.append(one)
        if len(some) == _LIST_AT_ONCE:
            break
    return some


def _walk(folder: Location) -> Iterator[Found]:
    """Every file below the folder, those being written too; a file that goes meanwhile is left out."""
    for directory, _, names in os.walk(folder.path):
        for name in sorted(names):
            path = Path(directory, name)
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                yield Found(f"file://{path}", stat.st_size, stat.st_mtime_ns // 1_000_000)


def _is_part(found: Found) -> bool:
    name = found.place.rpartition("/")[2]
    return name.startswith(".") and name.endswith(_PART)


def _make_directory(path: Path) -> None:
    """With those above it, each of them synced into the one above."""
    if path.is_dir():
        return
    _make_directory(path.parent)
    with contextlib.suppress(FileExistsError):
        path.mkdir()
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def _errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _store_error(path, error) from error


def _store_error(path: Path, error: OSError) -> StoreError:
    if isinstance(error, FileNotFoundError):
        if path.parent.is_dir():
            return SegmentNotFoundError(f"no such object: place=file://{path}")
        return StoreUnavailableError(f"the directory is not there, is it mounted on this machine? path={path.parent}")
    text = f"{(error.strerror or str(error)).lower()}: place=file://{path}"
    return MisconfiguredError(text) if error.errno in _REFUSED else StoreUnavailableError(text)
