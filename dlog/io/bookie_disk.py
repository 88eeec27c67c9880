"""The bookie's disk workers: a writer for each journal (dlog/io/journal_writers.py), a flusher, a preparer of spare
journal files, a few readers, and one that lists and summarizes entries.

Invariants:
- Workers (dlog/io/threads.py) only post facts to the event loop; they never touch the machine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dlog.bookie.events import CollectionFailed, EntryDamaged, LedgersCollected
from dlog.bookie.garbage_collection import MarkRecord
from dlog.bookie.journal import JournalMarks
from dlog.bookie.listing import list_of
from dlog.bookie.messages import (
    CollectionResult,
    Fetch,
    Fetched,
    Flush,
    Flushed,
    IndexRewritten,
    IndexWithout,
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
from dlog.io.journal_writers import GroupDurable, JournalWriters, Records
from dlog.io.threads import Threads, WorkerPool
from dlog.machine import Persisted

_READERS = 4
_AHEAD = 2  # journal files kept ready

Post = Callable[[Any], None]


class BookieDisk:
    """Performs Persist, Fetch, ListStored, SummarizeStored, Flush, Bury and IndexWithout; `post` takes facts from any
    thread."""

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
        on_event: Callable[[Event], None],
    ) -> None:
        """post, on_failed and on_event are called in worker threads."""
        self._disk = disk
        self._dirs: LedgerDirs = opened.dirs
        self._options = options
        self._directories = directories
        self._post = post
        self._on_failed = on_failed
        self._on_event = on_event
        self._stopped = False
        self._journals = JournalWriters(opened.journals, options.journal_group_bytes_max, post=post)
        self._flush_number = 0
        self._flush_marks = self._journals.durable
        self._checkpointed = opened.dirs.marks(len(opened.journals))
        self._buried = 0  # ledgers buried since the last `free`; flusher only
        self._bury_failure = ""  # flusher only
        self._threads = threads
        self._readers: WorkerPool
        self._lister: WorkerPool
        self._flusher: WorkerPool
        self._preparer: WorkerPool

    def start(self) -> None:
        threads, on_failed = self._threads, self._on_failed
        self._journals.start(threads, on_failed)
        self._readers = threads.pool("read", _READERS, on_failed)
        self._lister = threads.pool("list", 1, on_failed)  # a list may take seconds: reads do not wait for it
        self._flusher = threads.pool("flush", 1, on_failed)
        self._preparer = threads.pool("prepare", 1, on_failed)
        for journal in range(len(self._journals.durable)):
            self._prepare(journal)

    # ---- called on the event loop ------------------------------------------------------------------------------------

    def persist(self, token: int, records: Records) -> None:
        """Queue records for the next `submit`."""
        self._journals.persist(token, records)

    @property
    def has_submitted(self) -> bool:
        """Whether records are queued for the next `submit`."""
        return self._journals.has_submitted

    def submit(self) -> None:
        """Give the queued records to the writers of the journals."""
        self._journals.submit()

    def to_fact(self, fact: Any) -> Any:
        """Translate a result that a disk thread posted to the loop into a fact for the state machine `Bookie`.

        None: there is nothing for it to handle.
        """
        if isinstance(fact, GroupDurable):
            if self._journals.moved(fact):
                self._prepare(fact.journal)
            return Persisted(fact.upto) if fact.upto >= 0 else None
        if isinstance(fact, PersistRefused):
            self._journals.refused(fact.journal)
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
        """Start a flush. Its marks are those of the last tokens the machine knew as durable at the first request.

        Everything before the marks is in this flush or an earlier one; a repeated flush holds nothing newer.
        """
        if flush.number != self._flush_number:
            self._flush_number, self._flush_marks = flush.number, self._journals.durable
        self._flusher.submit(self._flush, flush, self._flush_marks)

    def bury(self, bury: MarkLedgersDeleted) -> None:
        """Record ledgers as deleted, after earlier flushes."""
        self._flusher.submit(self._bury, bury)

    def drop_entries(self, wanted: IndexWithout) -> None:
        """Remove the entries of ledgers from the index, after earlier flushes."""
        self._flusher.submit(self._drop_entries, wanted)

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
        """Whether journal_files_max files of a journal need a checkpoint."""
        behind = [end.file - mark.file for end, mark in zip(self._journals.durable, self._checkpointed, strict=True)]
        return max(behind) >= self._options.journal_files_max

    @property
    def has_unflushed(self) -> bool:
        """Whether a journal has groups after the last checkpoint."""
        ends = zip(self._journals.durable, self._checkpointed, strict=True)
        return any(end.group != mark.group for end, mark in ends)

    async def stop_journals(self) -> None:
        """Return when all submitted records are durable."""
        self.submit()
        self._journals.stop()
        await self._journals.ended()

    async def abandon(self) -> None:
        """After a failure: start no work, wait for running work; then no file is in use."""
        self._stopped = True
        workers = (self._journals, self._readers, self._lister, self._preparer, self._flusher)
        for worker in workers:
            worker.stop()
        for worker in workers:
            await worker.ended()

    async def close(self) -> None:
        """Close all files. Call it after `stop_journals` and the last `Flushed`."""
        await self.abandon()
        self._journals.close()
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
            self._on_event(EntryDamaged(wanted.ledger, -1, error.message))
        except OSError as error:
            self._on_event(EntryDamaged(wanted.ledger, -1, f"the disk cannot be read: {error.strerror}"))
        self._post(StoredListed(wanted.token, listed))

    def _summarize(self, wanted: SummarizeStored) -> None:
        if self._stopped:
            return
        asked, summary = wanted.wanted, None
        try:
            summary = summary_of(wanted, self._dirs.outlines(asked.ledger))
        except DamagedError as error:
            self._on_event(EntryDamaged(asked.ledger, asked.first, error.message))
        except OSError as error:
            self._on_event(EntryDamaged(asked.ledger, asked.first, f"the disk cannot be read: {error.strerror}"))
        self._post(StoredSummarized(wanted.token, summary))

    def _space(self, on_done: Callable[[tuple[int, int] | None], object]) -> None:
        space: tuple[int, int] | None = None
        with contextlib.suppress(OSError):
            space = self._dirs.space()
        self._threads.to_loop(on_done, space)

    def _flush(self, flush: Flush, marks: JournalMarks) -> None:
        try:
            self._dirs.flush(flush.entries, flush.rows, marks)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._post(Flushed(f"no space for a checkpoint: {error.strerror}"))
            return
        self._checkpointed = self._dirs.marks(len(marks))
        self._post(Flushed())
        self._journals.release(self._checkpointed)
        self._merge()

    def _bury(self, bury: MarkLedgersDeleted) -> None:
        failed = self._dirs.bury(bury.ledgers)
        for reason in sorted(set(failed.values())):
            self._bury_failure = f"no space to record which ledgers are deleted: {reason}"
            self._on_event(CollectionFailed(self._bury_failure))
        self._buried += len(bury.ledgers) - len(failed)
        self._post(LedgersMarkedDeleted(bury.ledgers, frozenset(failed)))

    def _drop_entries(self, wanted: IndexWithout) -> None:
        failed = self._dirs.drop_entries(wanted.rows)
        for reason in sorted(set(failed.values())):
            self._on_event(CollectionFailed(f"copies that were moved to other bookies are kept: {reason}"))
        self._post(IndexRewritten(tuple(row.ledger for row in wanted.rows), frozenset(failed)))

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
            self._on_event(CollectionFailed(reason))
        if buried or usage.reclaimed_bytes:
            self._on_event(LedgersCollected(buried, usage.reclaimed_bytes, usage.live_bytes, usage.dead_bytes))
        self._look_at_space()
        return CollectionResult(buried, usage.reclaimed_bytes, "; ".join(filter(None, (failure, *usage.failures))))

    def _compact(self, below: float, bytes_max: int, on_done: Callable[[int | None], object]) -> None:
        copied: int | None = 0
        try:
            copied = self._dirs.compact(below, bytes_max)
            metrics.GC_COPIED_BYTES.inc(copied or 0)
            self._merge()
        except DamagedError as error:
            self._on_event(CollectionFailed(error.message))
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            self._on_event(CollectionFailed(f"no space to compact an entry log: {error.strerror}"))
            copied = None
        self._threads.to_loop(on_done, copied)

    def _merge(self) -> None:
        try:
            self._dirs.merge_runs(self._on_event)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def _prepare(self, journal: int) -> None:
        self._preparer.submit(self._prepare_files, journal)

    def _prepare_files(self, journal: int) -> None:
        try:
            self._journals.prepare(journal, _AHEAD)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise

    def _look_at_space(self) -> None:
        self._post(SpaceSeen(self.free_bytes()))
