"""The journal's files: zero-filled ahead, recycled, one writer. The bytes are dlog/bookie/journal.py's.

The law of this file: `write` returns only when the group is durable. A file is given an id (header, rename, directory
sync) before anything is written to it, and loses it (rename) only when every ledger directory's mark is past it.
Names: `journal-<id>` in use or prepared; `spare-<id>` zero-filled or recycled, contents of no meaning.
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
    Group,
    JournalDamaged,
    JournalFile,
    JournalPlan,
    Mark,
    Record,
    file_header,
    replay,
    seed_of,
)
from dlog.io.disk import Disk, File

_FILL_BYTES = 1 << 20
_SPARES_MAX = 4
_NAME = re.compile("(journal|spare)-([0-9a-f]{16})")  # what else lies in the directory is not ours


class JournalFiles:
    """The files of one journal directory.

    owner: a number of the bookie, kept in every header. `write`, `prepare` and `release` are called by a thread each;
    before `start` only `replay` may be called. random_bits: draws the nonces of files' headers.
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
        self._lock = threading.Lock()  # around making files: by the preparer, or by a writer it could not keep up with
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
        self._is_refused_here = False  # what lies behind the mark may be a whole group: only writing over it will do
        self._plan: JournalPlan | None = None
        self._file: File | None = None

    @property
    def mark(self) -> Mark:
        """Behind the last durable group."""
        assert self._plan is not None
        return self._plan.mark

    # ---- reading -----------------------------------------------------------------------------------------------------

    def replay(self, mark: Mark, on_damage: Callable[[Damage], None]) -> Iterator[Group]:
        """Groups behind `mark`; see dlog/bookie/journal.py. A file whose header is damaged is damage as a whole."""
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

    def start(self, after: Mark) -> Mark:
        """Open a new file behind everything there is; return the mark at its begin, where `write` goes on.

        `after`: behind the last group that was replayed. The caller makes a checkpoint with the returned mark before
        the first `write`, so that nothing ever follows a torn tail.
        """
        self._next_id = max([after.file, *self._ids]) + 1
        with self._lock:
            file_id, seed, self._file = self._make()
        mark = Mark(file_id, HEADER_BYTES, after.group, after.sequence)
        self._plan = JournalPlan(mark, self._file_bytes, seed)
        return mark

    def write(self, records: Sequence[Record]) -> Mark:
        """One group: one write, one datasync. Returns the mark behind it.

        Raises OSError. With NO_SPACE nothing was written and the next call may do better; after any other error what
        is on disk is unknown, and this object must not be used again.
        """
        plan = self._plan
        assert plan is not None and self._file is not None
        if not self._is_refused_here and plan.must_roll(sum([len(r.payload) for r in records]), len(records)):
            file_id, seed, file = self._take_next()
            self._file.close()
            self._file = file
            plan.rolled(file_id, seed)
        before = plan.mark
        buffers, offset = plan.group(records)
        try:
            self._file.pwritev(buffers, offset)
        except OSError:
            plan.mark = before  # a group with this number is written here again, or never
            self._is_refused_here = True
            raise
        self._file.datasync()
        self._is_refused_here = False
        return plan.mark

    def _take_next(self) -> tuple[int, int, File]:
        with self._lock:
            if self._ready:
                return self._ready.popleft()
            return self._make()

    # ---- files made ahead, and used again ----------------------------------------------------------------------------

    def prepare(self, ahead: int = 1) -> None:
        """Have `ahead` files ready. Raises OSError; NO_SPACE leaves everything as it was."""
        while len(self._ready) < ahead:
            with self._lock:
                if len(self._ready) < ahead:
                    self._ready.append(self._make())

    def release(self, mark: Mark) -> None:
        """Every file before the mark's has been checkpointed: use it again."""
        with self._lock:  # whoever makes files adds to them
            checkpointed = sorted(file_id for file_id in self._ids if file_id < mark.file)
        for file_id in checkpointed:
            path = self._path(file_id)
            with self._lock:
                if len(self._spares) < _SPARES_MAX:
                    name = f"spare-{file_id:016x}"
                    self._disk.rename(path, f"{self._directory}/{name}")
                    self._spares.append(name)
                else:
                    self._disk.unlink(path)
                self._ids.discard(file_id)

    def drop_spares(self) -> None:
        """Give their space back; for a start on a full disk."""
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
        """A file with the next id, its header durable under its name; from a spare or zero-filled."""
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
        """Path of a file of full size."""
        for name in self._spares[::-1]:  # the one used last: the system still has it in memory
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
            zeros = memoryview(mmap.mmap(-1, _FILL_BYTES))  # read only: takes no memory
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
