"""The journal's files: zero-filled ahead, recycled, one writer. Format: dlog/bookie/journal.py.

Invariants:
- `write` returns only when the group is durable.
- A file gets its id (header, rename, directory sync) before any group is written to it, and loses it (rename) only
  when every ledger directory's mark is past it.

Names: `journal-<id>` in use or prepared; `spare-<id>` zero-filled or recycled, contents mean nothing.
"""

from __future__ import annotations

import contextlib
import mmap
import re
import secrets
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from dlog.bookie.journal import (
    BLOCK,
    HEADER_BYTES,
    Damage,
    ForeignJournalError,
    Group,
    GroupAllocator,
    JournalDamaged,
    JournalFile,
    JournalMark,
    Record,
    file_header,
    replay,
    seed_of,
)
from dlog.io.disk import Disk, File

_FILL_BYTES = 1 << 20
_SPARES_MAX = 4
_NAME = re.compile("(journal|spare)-([0-9a-f]{16})")  # other files in the directory are ignored


class JournalFiles:
    """The files of one journal directory.

    owner: a number of the bookie and the journal, stored in every header. random_bits: draws the headers' nonces.
    `write`, `prepare` and `release` are each called by one thread; before `start` only `check_owner` and `replay` are.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        owner: int,
        file_bytes: int,
        random_bits: Callable[[int], int] = secrets.randbits,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._owner = owner
        self._file_bytes = max(file_bytes + -file_bytes % BLOCK, 2 * BLOCK)
        self._random_bits = random_bits
        self._lock = threading.Lock()  # held to make files: by the preparer, or by the writer if none is ready
        self._ready: deque[tuple[int, int, File]] = deque()  # id, seed, file
        self._ids: set[int] = set()
        self._spares: list[str] = []
        self._next_id = 1
        for name in disk.names(directory):
            if named := _NAME.fullmatch(name):
                if named[1] == "journal":
                    self._ids.add(int(named[2], 16))
                else:
                    self._spares.append(name)
        self._must_overwrite = False  # a failed write may have left a whole group after the mark: write over it
        self._plan: GroupAllocator | None = None
        self._file: File | None = None

    @property
    def mark(self) -> JournalMark:
        """Position after the last durable group."""
        assert self._plan is not None
        return self._plan.mark

    # ---- reading -----------------------------------------------------------------------------------------------------

    def check_owner(self) -> None:
        """Raises ForeignJournalError if a file has another owner. Damage is left to `replay`."""
        for file_id in sorted(self._ids):
            file = self._disk.open(self._path(file_id))
            try:
                seed_of(file.pread(HEADER_BYTES, 0), file_id, self._owner, file.size())
            except JournalDamaged:
                pass
            except ForeignJournalError as error:
                raise ForeignJournalError(f"{error.message} dir={self._directory}") from error
            finally:
                file.close()

    def replay(self, mark: JournalMark, on_damage: Callable[[Damage], None]) -> Iterator[Group]:
        """Groups after `mark`; see dlog/bookie/journal.py. A damaged header is damage of the whole file. Raises
        ForeignJournalError."""
        files: list[JournalFile] = []
        opened: list[File] = []
        for file_id in sorted(i for i in self._ids if i >= mark.file):
            file = self._disk.open(self._path(file_id))
            opened.append(file)
            try:
                seed = seed_of(file.pread(HEADER_BYTES, 0), file_id, self._owner, file.size())
            except JournalDamaged:
                on_damage(Damage(file_id, 0, mark.group))
                continue
            files.append(JournalFile(file_id, seed, file.size(), file.pread))
        try:
            yield from replay(files, mark, on_damage)
        finally:
            for file in opened:
                file.close()

    # ---- writing -----------------------------------------------------------------------------------------------------

    def start(self, after: JournalMark) -> JournalMark:
        """Open a new file after all existing ones; return the mark at its beginning, where `write` continues.

        after: position after the last replayed group. The caller makes a checkpoint with the returned mark before the
        first `write`, so that no group ever follows a torn tail.
        """
        self._next_id = max([after.file, *self._ids]) + 1
        with self._lock:
            file_id, seed, self._file = self._make()
        mark = JournalMark(file_id, HEADER_BYTES, after.group, after.sequence)
        self._plan = GroupAllocator(mark, self._file_bytes, seed)
        return mark

    def write(self, records: Sequence[Record]) -> JournalMark:
        """Write one group: one write, one datasync. Returns the mark after it.

        Raises OSError. With NO_SPACE the group does not count and later calls may succeed; after any other error the
        disk's contents are unknown, and this object must not be used again.
        """
        plan = self._plan
        assert plan is not None and self._file is not None
        if not self._must_overwrite and plan.must_roll(sum([len(r.payload) for r in records]), len(records)):
            file_id, seed, file = self._take_next()
            self._file.close()
            self._file = file
            plan.rolled(file_id, seed)
        before = plan.mark
        buffers, offset = plan.group(records)
        try:
            self._file.pwritev(buffers, offset)
        except OSError:
            plan.mark = before  # the next group gets the same number and offset
            self._must_overwrite = True
            raise
        self._file.datasync()
        self._must_overwrite = False
        return plan.mark

    def _take_next(self) -> tuple[int, int, File]:
        with self._lock:
            if self._ready:
                return self._ready.popleft()
            return self._make()

    # ---- preparing and recycling files -------------------------------------------------------------------------------

    def prepare(self, ahead: int = 1) -> None:
        """Make files until `ahead` are ready. Raises OSError; after NO_SPACE nothing has changed."""
        while len(self._ready) < ahead:
            with self._lock:
                if len(self._ready) < ahead:
                    self._ready.append(self._make())

    def release(self, mark: JournalMark) -> None:
        """Recycle the files before the mark's: all checkpointed."""
        with self._lock:  # `_make` adds ids
            checkpointed = sorted(file_id for file_id in self._ids if file_id < mark.file)
        for file_id in checkpointed:
            path = self._path(file_id)
            with self._lock:
                name = f"spare-{file_id:016x}"
                if len(self._spares) < _SPARES_MAX and name not in self._spares:
                    self._disk.rename(path, f"{self._directory}/{name}")
                    self._spares.append(name)
                else:
                    self._disk.unlink(path)
                self._ids.discard(file_id)

    def drop_checkpointed(self) -> None:
        """Delete all files but the one that `start` opened: the journal is empty, durably. Call it before the first
        `write` and `prepare`, when a checkpoint is past the others. Raises OSError."""
        current = self.mark.file
        for file_id in sorted(self._ids - {current}):
            self._disk.unlink(self._path(file_id))
        self._ids = {current}
        self.drop_spares()
        self._disk.sync_dir(self._directory)

    def drop_spares(self) -> None:
        """Delete spare files, for a start on a full disk."""
        with self._lock:
            for name in self._spares:
                self._disk.unlink(f"{self._directory}/{name}")
            self._spares.clear()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        while self._ready:
            self._ready.popleft()[2].close()

    def _make(self) -> tuple[int, int, File]:
        """Make the file with the next id; header and name are durable on return."""
        path = self._spare()
        file = self._disk.open(path)
        try:
            file_id = self._next_id
            header = file_header(file_id, self._owner, self._random_bits(64), self._file_bytes)
            file.pwritev([header], 0)
            file.datasync()
            self._disk.rename(path, self._path(file_id))
            self._disk.sync_dir(self._directory)
        except BaseException:
            file.close()
            raise
        if path.rpartition("/")[2] in self._spares:
            self._spares.remove(path.rpartition("/")[2])
        self._next_id = file_id + 1
        self._ids.add(file_id)
        return file_id, seed_of(header, file_id, self._owner, self._file_bytes), file

    def _spare(self) -> str:
        """Path of a spare file of full size, made if there is none."""
        for name in self._spares[::-1]:  # the one used last: the page cache still has it
            path = f"{self._directory}/{name}"
            file = self._disk.open(path)
            try:
                whole = file.size() >= self._file_bytes
            finally:
                file.close()
            if whole:
                return path
            self._disk.unlink(path)
            self._spares.remove(name)
        name = f"spare-{self._next_id:016x}"
        path = f"{self._directory}/{name}"
        file = self._disk.create(path)
        try:
            file.reserve(self._file_bytes, 0)
            zeros = memoryview(mmap.mmap(-1, _FILL_BYTES))  # only read, so it takes no memory
            for at in range(0, self._file_bytes, _FILL_BYTES):
                file.write_blocks(zeros[: self._file_bytes - at], at)
            file.datasync()
        except OSError:
            with contextlib.suppress(OSError):
                self._disk.unlink(path)
            raise
        finally:
            file.close()
        self._spares.append(name)
        return path

    def _path(self, file_id: int) -> str:
        return f"{self._directory}/journal-{file_id:016x}"
