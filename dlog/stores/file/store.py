"""The segment store in files: the contract of dlog/stores/contract.py on segment_files.py, with threads for its I/O.

Several processes of one machine share the directory. Visible entries are final: the watermark that readers go by covers
confirmed entries only.

Invariants:
- one thread at a time works for a writer; entries that arrive meanwhile are appended together afterwards;
- a writer that failed is not used again: it fails every append, and only a recovery decides its segment's end;
- no segment is created, and none reported as deleted, in a directory without its marker: else segments would be below a
  mount point that lost its disk, and would not be there once it is mounted again.
"""

from __future__ import annotations

import asyncio
import errno
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Protocol, TypeVar, TypeVarTuple

from dlog.events import Event, StoreFull, StoreHasSpace
from dlog.model.ids import NO_ENTRY, EntryId, Epoch, SegmentNumber, StreamName
from dlog.model.segment import StoreSettings
from dlog.stores.contract import (
    STAGE,
    AppendSink,
    Buffer,
    Capabilities,
    ReaderClosedError,
    RecoveredSegment,
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentRef,
    SegmentSealedError,
    SegmentStat,
    StoreError,
    StoreOutOfReachError,
    StoreUnavailableError,
    Verification,
    append_refusal,
    copy_error,
    settle,
)
from dlog.stores.file.format import ENTRY_BYTES_MAX, NONCE_BYTES, End, Header, encode_entry_head
from dlog.stores.file.options import FILE_SETTINGS, NAME, FileStoreOptions
from dlog.stores.file.segment_files import Appender, Disk, EntryOffsets, File, SegmentFiles, locations, read_entries
from dlog.stores.file.space import NO_SPACE, Reserve, Space

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

MARKER = "dlog-segments"  # file in the directory: without it the directory may be a mount point without its disk
IDENTITY = "dlog-segments-id"  # file beside it with the identity of the directory, see dlog/io/stores.py


class Pool(Protocol):
    """See dlog/io/threads.py."""

    def submit(self, work: Callable[[*Ts], None], *args: *Ts) -> None: ...
    def stop(self) -> None: ...
    async def ended(self) -> None: ...


class Threads(Protocol):
    """See dlog/io/threads.py."""

    def pool(self, name: str, count: int, on_failed: Callable[[BaseException], None]) -> Pool: ...
    async def run(self, work: Callable[[*Ts], T], *args: *Ts) -> T: ...
    def to_loop(self, callback: Callable[[*Ts], object], *args: *Ts) -> None: ...


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment's file of entries. stream, number: for which it was created, STAGE for a stage. bytes: its size."""

    path: str
    stream: StreamName
    number: SegmentNumber
    bytes: int


class FileStore:
    """A SegmentStore: call `open` before anything else, and `close` at the end.

    rng: gives locations and nonces, which must never repeat.
    """

    name = NAME
    settings = FILE_SETTINGS

    def __init__(
        self,
        disk: Disk,
        threads: Threads,
        rng: Random,
        options: FileStoreOptions,
        reserve: Reserve,
        *,
        entry_bytes_max: int = ENTRY_BYTES_MAX,
        on_event: Callable[[Event], None] = lambda _: None,
    ) -> None:
        assert entry_bytes_max <= ENTRY_BYTES_MAX, "a longer entry would be taken for damage"
        self.capabilities = Capabilities(visible_is_final=True, entry_bytes_max=entry_bytes_max)
        self.options = options
        self.disk = disk
        self.threads = threads
        self.pool = threads.pool("dlog-file-segments", options.threads, _report)
        self.identity = ""  # of the directory; "": it has none
        self._free_bytes = partial(disk.free_bytes, options.directory)
        self._space = Space(reserve, options.reserve_bytes, self._free_bytes, self._space_changed)
        self._on_event = on_event
        self._rng = rng
        self._writers: dict[FileSegmentWriter, None] = {}
        self._readers: dict[str, set[FileSegmentReader]] = {}
        self._open = True

    async def open(self, *, creates: bool = True) -> None:
        """Check the directory and read its identity. creates: create the directory if there is none, and give it an
        identity. Raises OSError if it cannot be used."""
        new = f"{self._rng.getrandbits(128):032x}" if creates else ""
        self.identity = await self.threads.run(_prepare, self.disk, self.options.directory, new)

    def check_capacity(self, settings: StoreSettings) -> None:
        """Does nothing: a segment needs no members."""

    async def create(
        self, stream: StreamName, number: SegmentNumber, epoch: Epoch, settings: StoreSettings
    ) -> FileSegmentWriter:
        self.settings.complete(dict(settings))
        files = self._files(f"{self._rng.getrandbits(128):032x}")
        header = Header(self._rng.randbytes(NONCE_BYTES), number, epoch, stream)
        file = await self._run(files.location, _create, self.disk, self.options.directory, files, header)
        writer = FileSegmentWriter(self, files, file, header.nonce)
        self._writers[writer] = None
        return writer

    async def recover(self, ref: SegmentRef) -> RecoveredSegment:
        return RecoveredSegment((await self._run(ref.name, self._files(ref.name).decide_end)).last_entry)

    async def open_reader(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> FileSegmentReader:
        files = self._files(ref.name)
        file, header, end = await self.run_reading(ref.name, _open, files, sealed_at)
        if end is None and sealed_at is not None:  # completed in the list: no writer may append
            try:
                end = await self._run(ref.name, files.decide_end)
            except BaseException:
                file.close()
                raise
        reader = FileSegmentReader(self, files, file, header.nonce, end)
        self._readers.setdefault(ref.name, set()).add(reader)
        return reader

    async def stat(self, ref: SegmentRef, *, sealed_at: EntryId | None = None) -> SegmentStat:
        files = self._files(ref.name)
        end = await self.run_reading(ref.name, _read_end, files, sealed_at)
        if end is None and sealed_at is not None:  # completed in the list: no writer may append
            end = await self._run(ref.name, files.decide_end)
        return SegmentStat() if end is None else SegmentStat(end.last_entry, end.payload_bytes)

    async def stage_of(self, name: str) -> StreamName | None:
        found = await self.describe(name)
        return found.stream if found.number == STAGE else None

    async def describe(self, name: str) -> SegmentFile:
        """The file of a segment, for tools. Raises SegmentNotFoundError, SegmentCorruptError, StoreUnavailableError."""
        return await self.run_reading(name, _describe, self._files(name))

    async def find_tail(self, ref: SegmentRef) -> EntryId:
        return await self._run(ref.name, self._files(ref.name).find_tail)

    async def delete(self, ref: SegmentRef) -> None:
        """See SegmentStore.delete. The space is free once no reader has the segment open."""
        with suppress(SegmentNotFoundError):
            await self._run(ref.name, _delete, self.disk, self.options.directory, self._files(ref.name))

    async def list(self) -> AsyncIterator[str]:
        root = self.options.directory
        for directory in await self._run("", self.disk.names, root):
            if len(directory) == 2:
                for found in await self._run("", locations, self.disk, root, directory):
                    yield found

    async def verify(self, ref: SegmentRef) -> Verification:
        return await self.run_reading(ref.name, self._files(ref.name).verify)

    async def close(self) -> None:
        """Abandon every open writer and close every reader; the files remain."""
        self._open = False
        for writer in tuple(self._writers):
            await writer.abandon()
        for readers in tuple(self._readers.values()):
            for reader in tuple(readers):
                await reader.close()
        self.pool.stop()
        await self.pool.ended()

    # ---- for writers and readers ------------------------------------------------------------------------------------

    def confirmed(self, location: str, lac: EntryId) -> None:
        """Pass the LAC on to this process's readers of a segment."""
        for reader in self._readers.get(location, ()):
            reader.learn_lac(lac)

    def writer_ended(self, writer: FileSegmentWriter) -> None:
        self._writers.pop(writer, None)
        for reader in self._readers.get(writer.name, ()):
            reader.wake()

    def reader_closed(self, location: str, reader: FileSegmentReader) -> None:
        readers = self._readers.get(location, set())
        readers.discard(reader)
        if not readers:
            self._readers.pop(location, None)

    async def run_reading(self, location: str, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Run blocking work that only reads files of the segment at `location`, in a thread. Returns its result."""
        return await self._run(location, work, *args, reading=True)

    async def _run(self, location: str, work: Callable[[*Ts], T], *args: *Ts, reading: bool = False) -> T:
        if not self._open:
            raise StoreUnavailableError("the store is closed, open another one: store=file")
        try:
            with _os_errors(location, reading=reading):
                return await self.threads.run(work, *args)
        except SegmentNotFoundError:
            marker = f"{self.options.directory}/{MARKER}"
            with _os_errors(location, reading=False):
                has_marker = await self.threads.run(self.disk.exists, marker)
            if has_marker:
                raise
            raise StoreOutOfReachError(f"the directory of segments is missing, mount its disk: file={marker}") from None

    def _files(self, location: str) -> SegmentFiles:
        draft_id = f"{self._rng.getrandbits(64):016x}"
        return SegmentFiles(self.disk, self.options.directory, location, draft_id, self._space)

    # ---- in threads -------------------------------------------------------------------------------------------------

    def _space_changed(self, is_full: bool) -> None:
        event: Event = StoreHasSpace(self.name, self.options.directory)
        if is_full:
            event = StoreFull(self.name, self.options.directory, self._free_bytes())
        self.threads.to_loop(self._on_event, event)


class FileSegmentWriter:
    """A SegmentWriter. An entry that is too large is refused; the writer goes on."""

    def __init__(self, store: FileStore, files: SegmentFiles, file: File, nonce: bytes) -> None:
        self.name = files.location
        self._store = store
        self._file = file
        self._nonce = nonce
        self._appender = Appender(files, file, nonce)
        self._next = 0  # the entry that is appended next
        self._lac = NO_ENTRY
        self._waiting: deque[tuple[bytes, Sequence[Buffer], int, AppendSink]] = deque()  # head, payload, bytes, sink
        self._in_flight: list[AppendSink] = []
        self._busy = False  # a thread works for this writer
        self._error: StoreError | None = None
        self._seal: asyncio.Future[EntryId] | None = None

    @property
    def last_confirmed(self) -> EntryId:
        return self._lac

    def append(self, entry_id: EntryId, payload: Sequence[Buffer]) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.submit(entry_id, payload, partial(settle, future))
        return future

    def submit(self, entry_id: EntryId, payload: Sequence[Buffer], sink: AppendSink) -> None:
        size = sum(map(len, payload))
        limit = self._store.capabilities.entry_bytes_max
        refusal = append_refusal(self.name, size, limit, self._error, is_sealed=self._seal is not None)
        if refusal is not None:
            sink(refusal)
        else:
            assert entry_id == self._next, f"entry ids are dense: expected={self._next} got={entry_id}"
            head = encode_entry_head(self._nonce, self._next, payload)
            self._next += 1
            self._waiting.append((head, payload, len(head) + size, sink))
            self._work()

    async def seal(self) -> EntryId:
        """See SegmentWriter.seal. Cancelling stops the wait only."""
        if self._seal is None:
            if self._error is not None:
                raise copy_error(self._error)
            self._seal = asyncio.get_running_loop().create_future()
            self._work()
        await asyncio.wait((self._seal,))
        return self._seal.result()

    async def abandon(self) -> None:
        self._fail(StoreUnavailableError(f"the writer was abandoned: location={self.name}", outcome_unknown=True))

    # ---- one thread at a time ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Append what waits, or seal once nothing waits, unless a thread works already."""
        if self._busy or self._error is not None:
            return
        if self._waiting:
            parts: list[Buffer] = []
            sizes: list[int] = []
            room = self._store.options.append_bytes_max
            while self._waiting and (not sizes or self._waiting[0][2] <= room):
                head, payload, size, sink = self._waiting.popleft()
                parts += (head, *payload)
                sizes.append(size)
                room -= size
                self._in_flight.append(sink)
            self._busy = True
            self._store.pool.submit(self._append, parts, sizes)
        elif self._seal is not None and not self._seal.done():
            self._busy = True
            self._store.pool.submit(self._end)

    def _append(self, parts: list[Buffer], sizes: list[int]) -> None:
        """In a thread."""
        self._store.threads.to_loop(self._appended, self._attempt(self._appender.append, parts, sizes))

    def _appended(self, result: StoreError | None) -> None:
        self._busy = False
        if self._error is not None:  # abandoned meanwhile: the appends have failed already
            self._file.close()
        elif result is not None:
            self._fail(result)
        else:
            sinks, self._in_flight = self._in_flight, []
            self._lac = EntryId(self._lac + len(sinks))
            for sink in sinks:
                sink(None)
            self._store.confirmed(self.name, self._lac)
            self._work()

    def _end(self) -> None:
        """In a thread."""
        self._store.threads.to_loop(self._ended, self._attempt(self._appender.seal))

    def _ended(self, result: EntryId | StoreError) -> None:
        self._busy = False
        if self._error is not None:
            self._file.close()
        elif isinstance(result, StoreError):
            self._fail(result)
        else:
            assert self._seal is not None
            self._seal.set_result(result)
            self._fail(SegmentSealedError(f"the segment is sealed: location={self.name}"))

    def _attempt(self, work: Callable[[*Ts], T], *args: *Ts) -> T | StoreError:
        """In a thread: the result of `work`, or the error with which it failed."""
        try:
            with _os_errors(self.name, reading=False):
                return work(*args)
        except StoreError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a bug here must not leave appends without an answer
            return StoreUnavailableError(f"{error!r}: store=file location={self.name}", outcome_unknown=True)

    def _fail(self, error: StoreError) -> None:
        """End the writer. Every append that has no answer fails, and may be in the segment."""
        if self._error is not None:
            return
        self._error = error
        sinks = [*self._in_flight, *(sink for *_, sink in self._waiting)]
        self._in_flight.clear()
        self._waiting.clear()
        for sink in sinks:
            sink(copy_error(error))
        if self._seal is not None and not self._seal.done():
            self._seal.set_exception(copy_error(error))
            self._seal.exception()
        if not self._busy:
            self._file.close()
        self._store.writer_ended(self)


class FileSegmentReader:
    """A SegmentReader. It sees what this process's writer confirms at once, and another process's by looking at the
    file from time to time."""

    def __init__(self, store: FileStore, files: SegmentFiles, file: File, nonce: bytes, end: End | None) -> None:
        self._store = store
        self._files = files
        self._file = file
        self._nonce = nonce
        self._offsets = EntryOffsets()
        self._end: End | None = None
        self._lac = NO_ENTRY
        self._moved = asyncio.Event()  # replaced each time it is set
        self._turn = threading.Lock()  # held by the thread that uses the file
        self._closed = False
        if end is not None:
            self._ended(end)

    @property
    def last_confirmed(self) -> EntryId:
        return self._lac

    @property
    def end(self) -> EntryId | None:
        return None if self._end is None else self._end.last_entry

    async def read(self, first: EntryId, last: EntryId, max_bytes: int) -> list[bytes]:
        return [bytes(view) for view in await self.read_views(first, last, max_bytes)]

    async def read_views(self, first: EntryId, last: EntryId, max_bytes: int) -> Sequence[Buffer]:
        last = min(last, self._lac)
        assert 0 <= first <= last, f"read above the LAC: first={first} lac={self._lac}"
        found = await self._store.run_reading(self._files.location, self._read, first, last, max_bytes)
        if not found:
            raise SegmentCorruptError(
                f"the entry's checksum does not match: store=file location={self._files.location} entry={first}"
            )
        return found

    async def locate(self, first: EntryId, last: EntryId, least: int, *, by_time: bool) -> tuple[EntryId, EntryId]:
        """Narrow nothing: there is no index of txids and times."""
        return first, last

    async def wait_lac(self, known: EntryId, timeout_s: float) -> EntryId:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + timeout_s
        wait_s = self._store.options.poll_min_s
        while True:
            moved = self._moved
            await self._look()
            left_s = deadline_s - loop.time()
            if self._lac > known or self._end is not None or left_s <= 0:
                return self._lac
            with suppress(TimeoutError):
                async with asyncio.timeout(min(wait_s, left_s)):
                    await moved.wait()
            wait_s = min(wait_s * 2, self._store.options.poll_max_s)

    async def offset_of(self, entry: EntryId) -> int | None:
        """Where an entry up to the LAC begins in the file, in bytes: its head, then its payload. None: damage before it
        hides it. Raises as `read`."""
        assert 0 <= entry <= self._lac, f"offset above the LAC: entry={entry} lac={self._lac}"
        return await self._store.run_reading(self._files.location, self._find, entry)

    def learn_lac(self, lac: EntryId) -> None:
        if self._end is None and lac > self._lac:
            self._lac = lac
            self.wake()

    def wake(self) -> None:
        """Look at the file now, if a call waits."""
        moved, self._moved = self._moved, asyncio.Event()
        moved.set()

    async def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._store.reader_closed(self._files.location, self)
            self.wake()
            await self._store.threads.run(self._close)

    async def _look(self) -> None:
        if self._end is None:
            end, entries = await self._store.run_reading(self._files.location, self._read_progress)
            if end is not None:
                self._ended(end)
            self.learn_lac(EntryId(entries - 1))

    def _ended(self, end: End) -> None:
        if self._end is None:
            self._end = end
            self._lac = end.last_entry
            self.wake()

    # ---- in threads -------------------------------------------------------------------------------------------------

    def _read_progress(self) -> tuple[End | None, int]:
        with self._turn:
            self._check_open()
            end, entries = self._files.read_progress(self._file, self._nonce)
            if end is not None:
                self._offsets.add(end.points)
            return end, entries

    def _read(self, first: int, last: int, max_bytes: int) -> list[memoryview]:
        with self._turn:
            self._check_open()
            offset = self._offsets.find(self._file, first)
            if offset is None:
                return []
            found, offset = read_entries(self._file, self._nonce, offset, first, last, max_bytes)
            self._offsets.read_upto(first + len(found), offset)
            return found

    def _find(self, entry: int) -> int | None:
        with self._turn:
            self._check_open()
            return self._offsets.find(self._file, entry)

    def _close(self) -> None:
        with self._turn:
            self._file.close()

    def _check_open(self) -> None:
        if self._closed:
            raise ReaderClosedError(f"the reader is closed, open another one: location={self._files.location}")


@contextmanager
def _os_errors(location: str, *, reading: bool) -> Iterator[None]:
    """Turn an OSError into a store error: a medium that cannot be read is damage, a failed write's effect unknown. The
    owner of a stream tells a StoreOutOfReachError to the clients that wait, so it names the reason."""
    try:
        yield
    except OSError as error:
        what = f"{(error.strerror or str(error)).lower()}: store=file location={location}"
        if reading and error.errno == errno.EIO:
            raise SegmentCorruptError(f"the disk cannot read the segment, see dmesg: {what}") from error
        remedy = "free space on the disk of the segments"
        if error.errno not in NO_SPACE:
            remedy = "the directory of segments cannot be used, check its disk, its mount and dmesg"
        raise StoreOutOfReachError(f"{remedy}: {what}", outcome_unknown=True) from error


def _prepare(disk: Disk, directory: str, new_identity: str) -> str:
    """Return the identity of the directory, "" if it has none. new_identity: create the directory, its marker and this
    identity, whichever is missing; "": create nothing."""
    path = f"{directory}/{IDENTITY}"
    if new_identity:
        disk.make_dir(directory)
        if not disk.exists(f"{directory}/{MARKER}"):
            with suppress(FileExistsError):
                disk.create(f"{directory}/{MARKER}").close()
        if not disk.exists(path):
            _write_identity(disk, path, new_identity)
        disk.sync_dir(directory)
    else:
        _check(disk, directory)
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return ""
    try:
        return file.pread(file.size(), 0).decode(errors="replace")
    finally:
        file.close()


def _write_identity(disk: Disk, path: str, identity: str) -> None:
    """Create the file of the identity whole, unless another process has."""
    draft = f"{path}.{identity}.draft"
    file = disk.create(draft)
    try:
        file.pwritev([identity.encode()], 0)
        file.datasync()
    finally:
        file.close()
    try:
        disk.rename_new(draft, path)
    except FileExistsError:
        disk.unlink(draft)


def _describe(files: SegmentFiles) -> SegmentFile:
    file, header = files.open()
    try:
        return SegmentFile(files.path, header.stream, SegmentNumber(header.number), file.size())
    finally:
        file.close()


def _check(disk: Disk, directory: str) -> None:
    """Raises FileNotFoundError if it is no directory of segments, or not mounted."""
    marker = f"{directory}/{MARKER}"
    if not disk.exists(marker):
        raise FileNotFoundError(errno.ENOENT, "no directory of segments, or its disk is not mounted", marker)


def _create(disk: Disk, directory: str, files: SegmentFiles, header: Header) -> File:
    """Create a segment, unless the disk of the directory is not mounted; it may be unmounted in between."""
    _check(disk, directory)
    file = files.create(header)
    try:
        _check(disk, directory)
    except OSError:
        file.close()
        raise
    return file


def _delete(disk: Disk, directory: str, files: SegmentFiles) -> None:
    """Delete a segment, unless the disk of the directory is not mounted; it may be unmounted in between."""
    _check(disk, directory)
    files.delete()
    _check(disk, directory)


def _open(files: SegmentFiles, sealed_at: EntryId | None) -> tuple[File, Header, End | None]:
    file, header = files.open()
    try:
        return file, header, files.read_end(header.nonce, expected=sealed_at)
    except BaseException:
        file.close()
        raise


def _read_end(files: SegmentFiles, sealed_at: EntryId | None) -> End | None:
    file, _, end = _open(files, sealed_at)
    file.close()
    return end


def _report(error: BaseException) -> None:
    """Never called: the work of a writer returns its errors."""
    raise error
