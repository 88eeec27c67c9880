"""The journals of a bookie at work: each has a writer with its own syncs, and marks up to where it is durable.

Invariants:
- A writer writes pending records, up to a limit, with one write and one datasync, and only then reports them durable.
  After a failed datasync it reports nothing.
- Records of a token go to the journal that the token names (dlog/bookie/journal_queues.py).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from dlog.bookie.journal import RECORD_OVERHEAD, JournalMark, JournalMarks, Record
from dlog.bookie.messages import PersistRefused
from dlog.io.disk import NO_SPACE
from dlog.io.journal_files import JournalFiles
from dlog.io.threads import Line, OnFailed, Threads

_IDLE_S = 0.2  # idle time until an empty group marks the last one as durable

Records = tuple[Record, ...]
Submitted = tuple[int, Records, int]  # token, records, epoch


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


@dataclass(frozen=True, slots=True)
class GroupDurable:
    """A group of a journal is durable: its tokens up to `upto` (-1: none), the journal up to `mark`."""

    journal: int
    upto: int
    mark: JournalMark


class JournalWriters:
    """All journals of a bookie. `post` takes GroupDurable and PersistRefused, from any thread.

    durable: end of each journal, after the last tokens that the event loop knows to be durable; used by the loop only.
    """

    def __init__(self, journals: Sequence[JournalFiles], group_bytes_max: int, *, post: Callable[[Any], None]) -> None:
        self._journals = tuple(journals)
        self._epochs = [0] * len(journals)
        self._submitted: list[list[Submitted]] = [[] for _ in journals]  # handed over by the next `submit`
        self.has_submitted = False
        self.durable: JournalMarks = tuple(journal.mark for journal in journals)
        self._writers = [
            JournalWriter(
                journal,
                group_bytes_max,
                on_durable=partial(self._on_durable, post, number),
                on_refused=partial(self._on_refused, post, number),
            )
            for number, journal in enumerate(journals)
        ]
        self._lines: list[Line[Submitted]] = []

    @staticmethod
    def _on_durable(post: Callable[[Any], None], journal: int, upto: int, mark: JournalMark) -> None:
        post(GroupDurable(journal, upto, mark))

    @staticmethod
    def _on_refused(post: Callable[[Any], None], journal: int, reason: str) -> None:
        post(PersistRefused(reason, journal))

    def start(self, threads: Threads, on_failed: OnFailed) -> None:
        for number, writer in enumerate(self._writers):
            self._lines.append(threads.line(f"journal {number}" if number else "journal", writer.work, on_failed))

    # ---- called on the event loop ------------------------------------------------------------------------------------

    def persist(self, token: int, records: Records) -> None:
        """Queue records for the next `submit`."""
        journal = token % len(self._journals)
        self._submitted[journal].append((token, records, self._epochs[journal]))
        self.has_submitted = True

    def submit(self) -> None:
        """Give the queued records to the writers."""
        self.has_submitted = False
        for number, submitted in enumerate(self._submitted):
            if submitted:
                self._submitted[number] = []
                self._lines[number].put(submitted)

    def refused(self, journal: int) -> None:
        """What was queued for this journal, or is before its writer, is not written."""
        self._submitted[journal] = []
        self._epochs[journal] += 1

    def moved(self, fact: GroupDurable) -> bool:
        """Move the durable end of a journal. Returns whether it began a new file."""
        before = self.durable[fact.journal]
        self.durable = (*self.durable[: fact.journal], fact.mark, *self.durable[fact.journal + 1 :])
        return fact.mark.file != before.file

    def stop(self) -> None:
        """Let the writers finish what they were given. Idempotent; does not wait."""
        for line in self._lines:
            line.stop()

    async def ended(self) -> None:
        """After `stop`: wait until all records are durable. Cancelling stops only the wait."""
        for line in self._lines:
            await line.ended()

    # ---- called in the workers ---------------------------------------------------------------------------------------

    def prepare(self, journal: int, ahead: int) -> None:
        """See JournalFiles.prepare."""
        self._journals[journal].prepare(ahead)

    def release(self, marks: JournalMarks) -> None:
        """Recycle the files of every journal that a checkpoint is past. See JournalFiles.release."""
        for journal, mark in zip(self._journals, marks, strict=True):
            journal.release(mark)

    def close(self) -> None:
        for journal in self._journals:
            journal.close()
