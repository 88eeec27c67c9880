"""Objects as files below a directory that all processes have under the same path, such as a network mount.

Invariants:
- A file is written and synced under another name, then renamed to its own, then its directory is synced.
- An object that must not replace another gets its name by `link`, which is refused where there is one.
- A directory is synced before its objects are listed, and before an object in it is reported to exist.
- A missing directory is never reported as a missing object: the file system may not be mounted.
- Before an object is reported to exist, the name of its directory is durable, also if another process made it and died.
  So are the directories above: each was made only once the one above it was durable.
- Where a marker is named, nothing is created without it, and asking for the time creates no directory: else a directory
  below a mount that was lost would get objects, which are not there once it is mounted again.
- An object is reported as deleted only once its directory is synced, even if another process removed its name.
- An OSError of a directory that cannot be examined, as of a stale or dead mount, is a store error like any other: it is
  neither passed on as an OSError nor taken for a directory that does not exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import itertools
import mmap
import os
import stat
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

from dlog.io.disk import RealFile
from dlog.io.file_errors import remedy_for
from dlog.stores.contract import (
    MisconfiguredError,
    SegmentNotFoundError,
    StoreError,
    StoreUnavailableError,
    copy_error,
)
from dlog.stores.object_storage.locations import Location, decode_path, encode_path
from dlog.stores.object_storage.port import Buffer, Creation, Found

_PART = ".part"  # suffix of a file being written; its name also begins with a dot
_LIST_AT_ONCE = 1000
_PIECE_BYTES = 2 << 20  # size of a write
_GONE = frozenset({errno.ENOENT, errno.ESTALE})  # of a directory that was deleted, perhaps by another machine
_REFUSED = frozenset(
    {
        *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG),
        *(errno.EOPNOTSUPP, errno.EMLINK),  # no hard links
    }
)


class DirectoryObjects:
    """Implements Objects of dlog/stores/object_storage/port.py. System calls run in threads."""

    async def read(self, location: Location, offset: int, size: int) -> bytes:
        return (await asyncio.to_thread(_read, Path(location.file_path), offset, size))[0]

    async def read_end(self, location: Location, size: int) -> tuple[bytes, int]:
        return await asyncio.to_thread(_read, Path(location.file_path), -size, size)

    async def create(self, location: Location, *, marker: Location | None = None) -> FileWriter:
        return await asyncio.to_thread(FileWriter, Path(location.file_path), _path_of(marker))

    def can_create_if_absent(self, location: Location) -> bool:
        return True

    async def create_if_absent(
        self, location: Location, data: Sequence[Buffer], *, head_bytes: int, marker: Location | None = None
    ) -> Creation:
        return await asyncio.to_thread(_create_new, Path(location.file_path), data, head_bytes, _path_of(marker))

    async def delete(self, location: Location) -> None:
        await asyncio.to_thread(_delete, (Path(location.file_path),))

    async def delete_many(self, locations: Sequence[Location]) -> None:
        await asyncio.to_thread(_delete, [Path(location.file_path) for location in locations])

    async def list(
        self, folder: Location, *, behind: Location | None = None, limit: int | None = None
    ) -> AsyncIterator[Found]:
        yielded = 0
        async for found in _each(folder, behind, limit):
            if not _is_part(found) and (limit is None or yielded < limit):
                yield found
                yielded += 1

    async def unfinished(self, folder: Location) -> AsyncIterator[Found]:
        async for found in _each(folder):
            if _is_part(found):
                yield found

    async def discard(self, left: Found) -> None:
        await asyncio.to_thread(_delete, (Path(decode_path(left.location.removeprefix("file://"))),))

    async def now_unix_ms(self, folder: Location) -> int:
        return await asyncio.to_thread(_now_unix_ms, Path(folder.file_path))


class FileWriter:
    """Writes a temporary file in the object's directory and renames it; past the page cache if possible, as it is not
    read soon. Construct it in a thread. Raises MisconfiguredError, StoreUnavailableError. A cancelled call goes on in
    its thread; `abort` waits for it."""

    def __init__(self, path: Path, marker: Path | None = None) -> None:
        self._path = path
        self._part = path.with_name(f".{path.name}.{os.urandom(4).hex()}{_PART}")
        with _errors(path):
            self._piece = memoryview(mmap.mmap(-1, _PIECE_BYTES))  # bytes not written yet
        self._gathered = self._written = 0
        self._turn = threading.Lock()
        self._marker = marker
        self._check_mounted()
        with _errors(path):
            _make_directory(path.parent)
            self._file = RealFile(os.open(self._part, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))

    async def write(self, parts: Sequence[Buffer]) -> None:
        await asyncio.to_thread(self._write, parts)

    async def finish(self) -> None:
        await asyncio.to_thread(self._finish)

    async def abort(self) -> None:
        await asyncio.to_thread(self._abort)

    def _write(self, parts: Sequence[Buffer]) -> None:
        with self._turn, _errors(self._path):
            for part in parts:
                view, at = memoryview(part), 0
                while at < len(view):
                    taken = min(len(view) - at, _PIECE_BYTES - self._gathered)
                    self._piece[self._gathered : self._gathered + taken] = view[at : at + taken]
                    at += taken
                    self._gathered += taken
                    if self._gathered == _PIECE_BYTES:
                        self._file.write_blocks(self._piece, self._written)
                        self._written += self._gathered
                        self._gathered = 0

    def _finish(self) -> None:
        with self._turn, _errors(self._path):
            self._sync()
            os.replace(self._part, self._path)
            _sync_directory(self._path.parent)
        self._check_mounted()

    def _finish_new(self) -> Creation:
        """As `_finish`, but replace nothing."""
        with self._turn, _errors(self._path):
            self._sync()
            try:
                os.link(self._part, self._path)
                made = Creation.MADE
            except FileExistsError:
                made = Creation.EXISTS
            finally:
                os.unlink(self._part)
                _sync_directory(self._path.parent)
        self._check_mounted()
        return made

    def _check_mounted(self) -> None:
        """Raise StoreUnavailableError if the marker is missing. Called before anything is created, and again before
        that is reported, since the disk may be unmounted in between. Raises MisconfiguredError as well."""
        if self._marker is None:
            return
        with _errors(self._marker):
            if not stat.S_ISREG(_mode_of(self._marker)):
                text = f"the marker is missing, is its directory mounted on this machine? path={self._marker}"
                raise StoreUnavailableError(text)

    def _sync(self) -> None:
        self._file.pwritev([bytes(self._piece[: self._gathered])], self._written)
        self._file.datasync()
        self._file.close()

    def _abort(self) -> None:
        with self._turn, contextlib.suppress(OSError):
            self._file.close()
            os.unlink(self._part)


def _read(path: Path, offset: int, size: int) -> tuple[bytes, int]:
    """Bytes from `offset` on (negative: from the end), and the size of the file."""
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


def _create_new(path: Path, data: Sequence[Buffer], head_bytes: int, marker: Path | None) -> Creation:
    writer = FileWriter(path, marker)
    try:
        writer._write(data)
        if writer._finish_new() is Creation.MADE:
            return Creation.MADE
        head = b"".join(data)[:head_bytes]  # a file server may repeat our `link`
        return Creation.MADE if _read(path, 0, len(head))[0] == head else Creation.EXISTS
    except StoreError as error:
        writer._abort()
        raise copy_error(error, outcome_unknown=True) from error


def _delete(paths: Sequence[Path]) -> None:
    parents = set()
    for path in paths:
        with contextlib.suppress(SegmentNotFoundError), _errors(path):
            os.unlink(path)
        parents.add(path.parent)
    for parent in sorted(parents):
        with _errors(parent):
            _sync_directory(parent)


def _now_unix_ms(folder: Path) -> int:
    with _errors(folder):
        while not _is_directory(folder) and folder != folder.parent:
            folder = folder.parent  # the first object makes the directory
    path = folder / f".{os.urandom(8).hex()}{_PART}"
    with _errors(path):
        path.touch(exist_ok=False)
        try:
            return path.stat().st_mtime_ns // 1_000_000
        finally:
            path.unlink()


async def _each(folder: Location, behind: Location | None = None, limit: int | None = None) -> AsyncIterator[Found]:
    after = ""
    if behind is not None:
        above = f"{folder.path}/"
        if not behind.path.startswith(above):
            if behind.path > above:
                return
        else:
            after = behind.path.removeprefix(above)
    found = _walk(folder.file_path, os.fsencode(decode_path(after)))
    while some := await asyncio.to_thread(_take, found, _LIST_AT_ONCE if limit is None else min(limit, _LIST_AT_ONCE)):
        for one in some:
            yield one


def _take(found: Iterator[Found], many: int) -> list[Found]:
    return list(itertools.islice(found, many))


def _walk(directory: str, behind: bytes) -> Iterator[Found]:
    """Every file below the directory, also those being written, in the order of paths; files deleted meanwhile are
    skipped. behind: a path below the directory, only files with a greater one are wanted."""
    with _errors(Path(directory)):
        try:
            with os.scandir(directory) as entries:
                keys = {os.fsencode(f"{e.name}/" if e.is_dir() else e.name): e for e in entries}
                _sync_listed(directory)
        except OSError as error:
            if error.errno not in _GONE or _is_directory(Path(directory)):
                raise
            return
    for key in sorted(keys):
        path = f"{directory.rstrip('/')}/{keys[key].name}"
        if key.endswith(b"/"):
            with _errors(Path(path)):
                is_symlink = keys[key].is_symlink()
            if is_symlink:
                continue
            if behind.startswith(key):
                yield from _walk(path, behind[len(key) :])
            elif key > behind:
                yield from _walk(path, b"")
        elif key > behind:
            with _errors(Path(path)), contextlib.suppress(FileNotFoundError):
                status = os.stat(path)
                yield Found(f"file://{encode_path(path)}", status.st_size, status.st_mtime_ns // 1_000_000)


def _sync_listed(directory: str) -> None:
    """Make durable what is listed; a file system that is mounted read-only has nothing to sync."""
    try:
        _sync_directory(Path(directory))
    except OSError as error:
        if error.errno not in (errno.EROFS, errno.EINVAL):
            raise


def _is_part(found: Found) -> bool:
    name = found.location.rpartition("/")[2]
    return name.startswith(".") and name.endswith(_PART)


def _path_of(location: Location | None) -> Path | None:
    return None if location is None else Path(location.file_path)


def _make_directory(path: Path) -> None:
    """Create the directory and its parents, and make their names durable."""
    if _is_directory(path):
        _sync_name(path)
        return
    _make_directory(path.parent)
    try:
        path.mkdir()
    except FileExistsError:
        _sync_name(path)
    else:
        _sync_directory(path.parent)


def _is_directory(path: Path) -> bool:
    """Whether there is a directory of that name. Raises OSError if that cannot be examined."""
    return stat.S_ISDIR(_mode_of(path))


def _mode_of(path: Path) -> int:
    """The mode of a file or directory; 0: there is none of that name. Raises OSError if that cannot be examined."""
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _sync_name(path: Path) -> None:
    """Make the name of a directory durable; a process that made it may have died before it did that. Once is enough."""
    status = path.stat()
    with contextlib.suppress(PermissionError):  # it was not made here: that takes the right to read the one above
        _sync_name_once(path, status.st_dev, status.st_ino)


@functools.lru_cache(maxsize=4096)
def _sync_name_once(path: Path, device: int, inode: int) -> None:
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
        try:
            if _is_directory(path.parent):
                return SegmentNotFoundError(f"no such object: location=file://{path}")
            return StoreUnavailableError(f"the directory is missing, is it mounted on this machine? path={path.parent}")
        except OSError as unknown:
            error = unknown
    text = f"{(error.strerror or str(error)).lower()}, {remedy_for(error)}: location=file://{path}"
    return MisconfiguredError(text) if error.errno in _REFUSED else StoreUnavailableError(text)
