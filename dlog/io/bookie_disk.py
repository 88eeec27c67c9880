"""The bookie's disk workers: a journal writer, a flusher, a preparer of spare journal files, a few readers, and
one that lists and summarizes entries.

Invariants:
- The journal writer writes pending records, up to a limit, with one write and one datasync, and only then reports them
  durable. After a failed datasync it reports nothing.
- Workers (dlog/io/threads.py) only post facts to the event loop; they never touch the machine.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dlog.bookie.events import CollectionFailed, EntryDamaged, LedgersCollected
from dlog.bookie.garbage_collection import MarkRecord
from dlog.bookie.journal import RECORD_OVERHEAD, JournalMark, Record
from dlog.bookie.listing import list_of
from dlog.bookie.messages import (
    CollectionResult,
    Fetch,
    Fetched,
    Flush,
    Flushed,
    LedgersMarkedDeleted,
    ListStored,
    MarkLedgersDeleted,
    PersistRefused,
    SpaceSeen,
    StoredListed,
    StoredSummarized,
    SummarizeStored,
)
from dlog.bookie.options import BookieOptions
from dlog.bookie.summaries import summary_of
from dlog.errors import DamagedError
from dlog.events import Event
from dlog.io import metrics
from dlog.io.bookie_store import LedgerDirs, OpenedStorage
from dlog.io.disk import NO_SPACE, Disk
from dlog.io.gc_mark_file import write_mark_record
from dlog.io.journal_files import JournalFiles
from dlog.io.threads import Line, Threads, WorkerPool
from dlog.machine import Persisted

_IDLE_S = 0.2  # idle time until an empty group marks the last one as durable
_READERS = 4
_AHEAD = 2  # journal files kept ready

Records = tuple[Record, ...]
Submitted = tuple[int, Records, int]  # token, records, epoch
Post = Callable[[Any], None]


class JournalWriter:
    """Group commit, as the work of a `Line`: takes (token, records, epoch) in order of tokens.

    on_durable(token, mark) and on_refused are called in the worker. After a refusal only records of a later epoch are
    written.
    """

    def __init__(
        self,
        journal: JournalFiles,
        group_bytes_max: int,
        *,
        on_durable: Callable[[int, JournalMark], None],
        on_refused: Callable[[str], None],
    ) -> None:
        self._journal = journal
        self._group_bytes_max = group_bytes_max
        self._on_durable = on_durable
        self._on_refused = on_refused
        self._taken: deque[Submitted] = deque()
        self._refused_epoch = -1
        self._marked = True  # no records were written since the last empty group

    def work(self, submitted: list[Submitted]) -> float | None:
        """Write one group of pending records, or an empty group after idling. Returns as SerialWork."""
        taken = self._taken
        taken += submitted
        records: list[Record] = []
        size = 0
        upto = epoch = -1
        while taken and (not records or size < self._group_bytes_max):
            token, more, epoch = taken.popleft()
            if epoch <= self._refused_epoch:
                continue
            upto = token
            records.extend(more)
            for record in more:
                size += RECORD_OVERHEAD + len(record.payload)
        if records:
            self._write(records, upto, epoch)
        elif not taken and not self._marked:
            self._write([], upto, -1)
        if taken:
            return 0.0
        return None if self._marked else _IDLE_S

    def _write(self, records: list[Record], upto: int, epoch: int) -> None:
        try:
            mark = self._journal.write(records)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            if records:
                self._refused_epoch = epoch
                self._on_refused(f"no space to write the journal: {error.strerror}")
            self._marked = True
            return
        self._marked = not records
        self._on_durable(upto, mark)


class BookieDisk:
    """Performs Persist, Fetch, ListStored, SummarizeStored, Flush and Bury; `post` takes facts from any thread."""

    def __init__(
        self,
        disk: Disk,
        opened: OpenedStorage,
        options: BookieOptions,
        directories: tuple[str, ...],
        threads: Threads,
        *,
        post: Post,
        on_failed: Callable[[BaseException], None],
        tell: Callable[[Event], None],
    ) -> None:
        """post, on_failed and tell are called in worker threads."""
        self._disk = disk
        self._journal = opened.journal
        self._dirs: LedgerDirs = opened.dirs
        self._options = options
        self._directories = directories
        self._post = post
        self._on_failed = on_failed
        self._tell = tell
        self._stopped = False
        self._epoch = 0
        self.submitted: list[Submitted] = []  # handed over by the next `submit`
        self._durable = opened.journal.mark  # after the last token that the machine knows to be durable; loop only
        self._flush_number = 0
        self._flush_mark = self._durable
        self._checkpointed = opened.dirs.mark
        self._buried = 0  # ledgers buried since the last `free`; flusher only
        self._bury_failure = ""  # flusher only
        self._threads = threads
        self._on_failed = on_failed
        self._writer = JournalWriter(
            opened.journal,
            options.journal_group_bytes_max,
            on_durable=lambda upto, mark: post(_Durable(upto, mark)),
            on_refused=lambda reason: post(PersistRefused(reason)),
        )
        self._line: Line[Submitted]
        self._readers: WorkerPool
        self._lister: WorkerPool
        self._flusher: WorkerPool
        self._preparer: WorkerPool

    def start(self) -> None:
        threads, on_failed = self._threads, self._on_failed
        self._line = threads.line("journal", self._writer.work, on_failed)
        self._readers = threads.pool("read", _READERS, on_failed)
        self._lister = threads.pool("list", 1, on_failed)  # a list may take seconds: reads do not wait for it
        self._flusher = threads.pool("flush", 1, on_failed)
        self._preparer = threads.pool("prepare", 1, on_failed)
        self._prepare()

    # ---- called on the event loop ------------------------------------------------------------------------------------

    def persist(self, token: int, records: Records) -> None:
        """Queue records for the next `submit`."""
        self.submitted.append((token, records, self._epoch))

    def submit(self) -> None:
        """Give the queued records to the journal writer."""
        self._line.put(self.submitted)
        self.submitted = []

    def heard(self, fact: Any) -> Any:
        """Translate a result that a disk thread posted to the loop into a fact for the state machine `Bookie`.

        None: there is nothing for it to handle.
        """
        if isinstance(fact, _Durable):
            if fact.mark.file != self._durable.file:
                self._prepare()
            self._durable = fact.mark
            return Persisted(fact.upto) if fact.upto >= 0 else None
        if isinstance(fact, PersistRefused):
            self.submitted = []
            self._epoch += 1
        return fact

    def fetch(self, fetch: Fetch) -> None:
        self._readers.submit(self._fetch, fetch)

    def list(self, wanted: ListStored) -> None:
        self._lister.submit(self._list, wanted)

    def summarize(self, wanted: SummarizeStored) -> None:
        self._lister.submit(self._summarize, wanted)

    def space(self, on_done: Callable[[tuple[int, int] | None], object]) -> None:
        """Look up total and free bytes of the ledger directories. on_done is called on the loop; None: an I/O error."""
        self._readers.submit(self._space, on_done)

    def flush(self, flush: Flush) -> None:
        """Start a flush. Its mark is that of the last token the machine knew as durable at the first request.

        Everything before the mark is in this flush or an earlier one; a repeated flush holds nothing newer.
        """
        if flush.number != self._flush_number:
            self._flush_number, self._flush_mark = flush.number, self._durable
        self._flusher.submit(self._flush, flush, self._flush_mark)

    def bury(self, bury: MarkLedgersDeleted) -> None:
        """Record ledgers as deleted, after earlier flushes."""
        self._flusher.submit(self._bury, bury)

    def free(self, on_done: Callable[[CollectionResult], object]) -> None:
        """Free the space of buried ledgers. on_done is called on the loop, after the machine got their
        `LedgersMarkedDeleted`."""
        self._flusher.submit(self._free, on_done)

    def compact(self, below: float, bytes_max: int, on_done: Callable[[int | None], object]) -> None:
        """Do one step of a compaction after earlier flushes; see LedgerDir.compact. on_done is called on the loop with
        the bytes copied; None: nothing to do now, or no space for it."""
        self._flusher.submit(self._compact, below, bytes_max, on_done)

    def write_mark_record(self, record: MarkRecord) -> str:
        """See `write_mark_record`. Blocks."""
        return write_mark_record(self._dirs.write_collection_file, record)

    def free_bytes(self) -> int:
        """Free bytes of the fullest directory. Blocks."""
        return min(self._disk.free_bytes(directory) for directory in self._directories)

    def check_free_space(self) -> None:
        self._preparer.submit(self._look_at_space)

    @property
    def is_checkpoint_due(self) -> bool:
        """Whether journal_files_max journal files need a checkpoint."""
        return self._durable.file - self._checkpointed.file >= self._options.journal_files_max

    @property
    def has_unflushed(self) -> bool:
        """Whether the journal has groups after the last checkpoint."""
        return self._durable.group != self._checkpointed.group

    async def stop_journal(self) -> None:
        """Return when all submitted records are durable."""
        if self.submitted:
            self.submit()
        self._line.stop()
        await self._line.ended()

    async def abandon(self) -> None:
        """After a failure: start no work, wait for running work; then no file is in use."""
        self._stopped = True
        workers = (self._line, self._readers, self._lister, self._preparer, self._flusher)
        for worker in workers:
            worker.stop()
        for worker in workers:
            await worker.ended()

    async def close(self) -> None:
        """Close all files. Call it after `stop_journal` and the last `Flushed`."""
        await self.abandon()
        self._journal.close()
        self._dirs.close()

    # ---- in the workers ----------------------------------------------------------------------------------------------

    def _fetch(self, fetch: Fetch) -> None:
        try:
            packets = self._dirs.lookup(fetch.ledger, fetch.entry, fetch.entries_max, fetch.bytes_max)
        except DamagedError as error:
            self._post(Fetched(fetch.token, (), error.message))
        except OSError as error:
            self._post(Fetched(fetch.token, (), f"the disk cannot be read: {error.strerror}"))
        else:
            self._post(Fetched(fetch.token, tuple(packets)))

    def _until_stopped(self, runs: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
        """A list may take long, and a stop waits for running work."""
        for run in runs:
            if self._stopped:
                raise OSError("the bookie stops")
            yield run

    def _list(self, wanted: ListStored) -> None:
        if self._stopped:
            return
        listed: bytes | None = None
        try:
            stored = self._dirs.entry_runs(wanted.ledger)
            listed = list_of([self._until_stopped(runs) for runs in stored], wanted.in_memory)
        except DamagedError as error:
            self._tell(EntryDamaged(wanted.ledger, -1, error.message))
        except OSError as error:
            self._tell(EntryDamaged(wanted.ledger, -1, f"the disk cannot be read: {error.strerror}"))
        self._post(StoredListed(wanted.token, listed))

    def _summarize(self, wanted: SummarizeStored) -> None:
        if self._stopped:
            return
        asked, summary = wanted.wanted, None
        try:
            summary = summary_of(wanted, self._dirs.outlines(asked.ledger))
        except DamagedError as error:
            self._tell(EntryDamaged(asked.ledger, asked.first, error.message))
        except OSError as error:
            self._tell(EntryDamaged(asked.ledger, asked.first, f"the disk cannot be read: {error.strerror}"))
        self._post(StoredSummarized(wanted.token, summary))

    def _space(self, on_done: Callable[[tuple[int, int] | None], object]) -> None:
        space: tuple[int, int] | None = None
        with contextlib.suppress(OSError):
            space = self._dirs.space()
        self._threads.to_loop(on_done, space)

    def _flush(self, flush: Flush, mark: JournalMark) -> None:
        try:
            self._dirs.flush(flush.entries, flush.rows, mark)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._post(Flushed(f"no space for a checkpoint: {error.strerror}"))
            return
        self._checkpointed = self._dirs.mark
        self._post(Flushed())
        self._journal.release(self._checkpointed)
        self._merge()

    def _bury(self, bury: MarkLedgersDeleted) -> None:
        failed = self._dirs.bury(bury.ledgers)
        for reason in sorted(set(failed.values())):
            self._bury_failure = f"no space to record which ledgers are deleted: {reason}"
            self._tell(CollectionFailed(self._bury_failure))
        self._buried += len(bury.ledgers) - len(failed)
        self._post(LedgersMarkedDeleted(bury.ledgers, frozenset(failed)))

    def _free(self, on_done: Callable[[CollectionResult], object]) -> None:
        buried, self._buried = self._buried, 0
        failure, self._bury_failure = self._bury_failure, ""
        freed = self._free_buried(buried, failure)
        self._threads.to_loop(on_done, freed)

    def _free_buried(self, buried: int, failure: str) -> CollectionResult:
        usage = self._dirs.collect()
        metrics.GC_LIVE_BYTES.set(usage.live_bytes)
        metrics.GC_DEAD_BYTES.set(usage.dead_bytes)
        metrics.GC_RECLAIMED_BYTES.inc(usage.reclaimed_bytes)
        for reason in usage.failures:
            self._tell(CollectionFailed(reason))
        if buried or usage.reclaimed_bytes:
            self._tell(LedgersCollected(buried, usage.reclaimed_bytes, usage.live_bytes, usage.dead_bytes))
        self._look_at_space()
        return CollectionResult(buried, usage.reclaimed_bytes, "; ".join(filter(None, (failure, *usage.failures))))

    def _compact(self, below: float, bytes_max: int, on_done: Callable[[int | None], object]) -> None:
        copied: int | None = 0
        try:
            copied = self._dirs.compact(below, bytes_max)
            metrics.GC_COPIED_BYTES.inc(copied or 0)
            self._merge()
        except DamagedError as error:
            self._tell(CollectionFailed(error.message))
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._tell(CollectionFailed(f"no space to compact an entry log: {error.strerror}"))
            copied = None
        self._threads.to_loop(on_done, copied)

    def _merge(self) -> None:
        try:
            self._dirs.merge_runs(self._tell)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def _prepare(self) -> None:
        self._preparer.submit(self._prepare_files)

    def _prepare_files(self) -> None:
        try:
            self._journal.prepare(_AHEAD)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def _look_at_space(self) -> None:
        self._post(SpaceSeen(self.free_bytes()))


class _Durable:
    """Fact: a group is durable: tokens up to `upto` (-1: none), journal up to `mark`."""

    __slots__ = ("mark", "upto")

    def __init__(self, upto: int, mark: JournalMark) -> None:
        self.upto = upto
        self.mark = mark
