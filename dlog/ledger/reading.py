"""Reads entries at or below the LAC from any replica, or the next one if the first is slow or damaged.

When every bookie has every entry (Qw = E) one bookie is asked for a run of entries at once.

Of the bookies that failed or were late least lately the nearest one is asked first, and the wait for a slow one follows
the replies (replica_health.py).

Invariants:
- every entry returned has been verified;
- an entry at or below the LAC was confirmed, so a replica that denies it lags or is damaged: the read fails only after
  all replicas were asked, with EntryMissingError (report it) if Qw - Qa + 1 of them deny the entry, else with
  EntryUnreadableError (retry);
- before it fails, metadata is read, starting after the last of these replies: the ensemble may have changed, and only
  denials by bookies that metadata names count. If metadata cannot be read, the error is EntryUnreadableError.

Source: BookKeeper protocol, "Reading from ledgers".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from dlog.errors import DLogError, EntryMissingError, EntryUnreadableError, LedgerNotFoundError
from dlog.ledger.last_entries import ABSENT
from dlog.ledger.replica_health import Distance, ReplicaHealth
from dlog.machine import (
    Answer,
    Asked,
    CancelTimer,
    Effect,
    Fact,
    MetadataSeen,
    Missing,
    PeerLost,
    ReadMetadata,
    Received,
    SeenOutcome,
    Send,
    SetTimer,
    Ticket,
    TimerFired,
    Versioned,
)
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import LedgerKey, LedgerMetadata
from dlog.options import KiB, MiB, option
from dlog.wire.bookie import BatchRead, BatchReadDone, Code, EntryRead, ReadEntry
from dlog.wire.digest import Digest, DigestMismatch, Entry


@dataclass(frozen=True, slots=True)
class ReadLedger:
    """Request: read entries first..last, both at or below the LAC. Reply: ReadDone, with at least the first of them."""

    first: EntryId
    last: EntryId
    bytes_max: int = 1 * MiB  # of payload; the first entry is returned whatever its size


@dataclass(frozen=True, slots=True)
class ReadDone:
    """Reply to Read: consecutive verified entries from `first` on, perhaps fewer than asked."""

    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class UseMetadata:
    """Request: use this metadata, read elsewhere, from now on. Reply: None."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadingOptions:
    """When a second replica is asked, and how much is requested at once."""

    speculate_s: float = option(0.5, sim=(0.001, 1.0))  # at first; it follows the replies
    speculate_min_s: float = 0.02
    parallel_entries_max: int = option(16, sim=(1, 4))  # single-entry reads in flight per request
    batch: bool = True  # use batch reads where every bookie has every entry
    batch_bytes_min: int = 4 * KiB  # a smaller remainder is read entry by entry


class _EntryRead:
    """The read of one entry: bookies asked now, bookies that failed, and those of them that denied it."""

    __slots__ = ("asked", "denied", "failed", "value")

    def __init__(self) -> None:
        self.value: Entry | None = None
        self.asked: list[BookieId] = []
        self.failed: set[BookieId] = set()
        self.denied: set[BookieId] = set()


class _Range:
    """One Read request: entries from `first` on; `done` holds the contiguous ones received."""

    def __init__(self, ticket: Ticket, request: ReadLedger) -> None:
        self.ticket = ticket
        self.request = request
        self.next = request.first  # first entry not in `done`
        self.asked_to = EntryId(request.first - 1)  # highest entry requested
        self.next_before = request.first  # `next` when the timer for slow replies was set
        self.is_late = False  # a wait was too short since
        self.timed_batch_of: BookieId | None = None  # that the timer is for; None: for single entries
        self.done: list[Entry] = []
        self.bytes = 0
        self.reads: dict[int, _EntryRead] = {}
        self.batches: dict[int, BookieId] = {}  # request id -> bookie
        self.lost: set[BookieId] = set()  # connections lost during a batch read, since the last batch that succeeded
        self.refreshing: frozenset[BookieId] | None = None  # had failed when metadata was asked for

    @property
    def is_finished(self) -> bool:
        return self.next > self.request.last or (bool(self.done) and self.bytes >= self.request.bytes_max)

    @property
    def is_nearly_full(self) -> bool:
        """Whether nothing is in flight and another entry of average size would exceed `bytes_max`. The next Read
        fetches it together with later ones, instead of this one waiting for it alone.
        """
        count = len(self.done)
        return (
            count > 0
            and not self.reads
            and not self.batches
            and self.bytes + self.bytes // count > self.request.bytes_max
        )


class EntryReader:
    """Reads one ledger, many ranges at once.

    metadata: as last read or set by `UseMetadata`. digest: of the ledger. distance: how far a bookie is; None: all are
    equally far. health: what other readers know of the bookies, too; None: of this reader alone.
    """

    def __init__(
        self,
        ledger: LedgerId,
        metadata: LedgerMetadata,
        digest: Digest,
        options: ReadingOptions = ReadingOptions(),
        distance: Distance | None = None,
        health: ReplicaHealth | None = None,
    ) -> None:
        self.ledger = ledger
        self.metadata = metadata
        self._digest = digest
        self._options = options
        self._distance = distance or (lambda _: 0)
        self._ranges: dict[Ticket, _Range] = {}
        self._batch_ids = 0
        self._health = health or ReplicaHealth(options.speculate_s, options.speculate_min_s)
        self._batched: dict[BookieId, bool] = {}  # whether the bookie supports batch reads, once known
        self._effects: list[Effect] = []

    # ---- entry point -------------------------------------------------------------------------------------------------

    def handle(self, fact: Fact) -> list[Effect]:
        effects = self._effects
        match fact:
            case Received(peer, EntryRead() as answer) if answer.ledger == self.ledger and not answer.fence:
                self._note_read(cast(BookieId, peer), answer)
            case Received(peer, BatchReadDone() as answer) if answer.ledger == self.ledger:
                self._note_batch(cast(BookieId, peer), answer)
            case PeerLost(peer):
                self._note_lost(cast(BookieId, peer))
            case TimerFired(("speculate", int(ticket))):
                self._note_slow(ticket)
            case MetadataSeen(("refresh", int(ticket)), outcome):
                self._note_metadata(ticket, outcome)
            case Asked(ticket, ReadLedger() as request):
                assert 0 <= request.first <= request.last, "a range has entries"
                self._ranges[ticket] = waiting = _Range(ticket, request)
                self._advance(waiting)
                self._set_timer(waiting)
            case Asked(ticket, UseMetadata(metadata)):
                self.metadata = metadata
                self._effects.append(Answer(ticket, None))
        self._settle()
        self._effects = []
        return effects

    # ---- facts -------------------------------------------------------------------------------------------------------

    def _note_read(self, bookie: BookieId, answer: EntryRead) -> None:
        entry: Entry | None = None
        if answer.code is Code.OK:
            try:
                entry = self._digest.verify(answer.packet, answer.entry)
                self._health.note_good(bookie)
            except DigestMismatch:
                pass
        for waiting in self._ranges.values():
            read = waiting.reads.get(answer.entry)
            if read is None or bookie not in read.asked:
                continue
            if entry is not None:
                read.value = entry
                continue
            read.asked.remove(bookie)
            read.failed.add(bookie)
            if answer.code in ABSENT:
                read.denied.add(bookie)
        if entry is None:
            self._health.note_fault(bookie)

    def _note_batch(self, bookie: BookieId, answer: BatchReadDone) -> None:
        for waiting in self._ranges.values():
            if waiting.batches.get(answer.request) != bookie:
                continue
            waiting.batches.clear()
            entries = self._verified(answer)
            if entries:
                self._batched[bookie] = True
                waiting.lost.clear()
                self._health.note_good(bookie)
                for entry in entries:
                    if entry.entry_id == waiting.next:
                        self._collect(waiting, entry)
            else:
                # read the first entry singly, from the other bookies first
                self._health.note_fault(bookie)
                self._ask_singly(waiting, waiting.next)
            waiting.asked_to = max(waiting.asked_to, EntryId(waiting.next - 1))

    def _verified(self, answer: BatchReadDone) -> list[Entry]:
        """Return the entries of a batch up to the first that does not verify."""
        entries: list[Entry] = []
        if answer.code is Code.OK:
            for entry_id, packet in enumerate(answer.packets, answer.start):
                try:
                    entries.append(self._digest.verify(packet, entry_id))
                except DigestMismatch:
                    break
        return entries

    def _note_lost(self, bookie: BookieId) -> None:
        self._health.note_fault(bookie)
        for waiting in self._ranges.values():
            for read in waiting.reads.values():
                if bookie in read.asked:
                    read.asked.remove(bookie)
                    read.failed.add(bookie)
            if bookie in waiting.batches.values():
                # a bookie that does not support batch reads closes the connection
                self._batched.setdefault(bookie, False)
                waiting.batches = {k: b for k, b in waiting.batches.items() if b != bookie}
                waiting.lost.add(bookie)

    def _note_slow(self, ticket: Ticket) -> None:
        """Ask the next replica too, if nothing came since the timer was set."""
        waiting = self._ranges.get(ticket)
        if waiting is None:
            return
        is_late, waiting.next_before = waiting.next == waiting.next_before, waiting.next
        if is_late:
            waiting.is_late = True
            head = waiting.reads.get(waiting.next)
            asked = [*waiting.batches.values(), *(head.asked if head is not None else ())]
            self._health.note_late(asked, batch=waiting.timed_batch_of is not None)
            if waiting.batches:
                self._ask_batch(waiting)
            for entry_id, read in waiting.reads.items():
                if read.value is None:
                    self._ask_next(read, EntryId(entry_id))
        self._set_timer(waiting)

    def _set_timer(self, waiting: _Range) -> None:
        waiting.timed_batch_of = next(iter(waiting.batches.values()), None)
        wait_s = self._health.wait_s(batch=waiting.timed_batch_of is not None)
        self._effects.append(SetTimer(("speculate", waiting.ticket), wait_s))

    def _note_metadata(self, ticket: Ticket, outcome: SeenOutcome) -> None:
        waiting = self._ranges.get(ticket)
        if waiting is None or waiting.refreshing is None:
            return
        asked_before, waiting.refreshing = waiting.refreshing, None
        match outcome:
            case Missing():
                self._answer(waiting, LedgerNotFoundError(f"the ledger was deleted: ledger={self.ledger}"))
            case Versioned(value):
                self.metadata = value
                for entry, read in waiting.reads.items():
                    read.failed &= set(value.bookies_of(entry))
                    read.denied &= read.failed
                self._judge(waiting, asked_before)
            case _ if self._is_stuck(waiting):
                self._answer(waiting, self._unreadable(waiting))

    # ---- consequences ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        for waiting in list(self._ranges.values()):
            self._advance(waiting)

    def _advance(self, waiting: _Range) -> None:
        """Collect received entries, request further ones, reply when done."""
        while not waiting.is_finished and (read := waiting.reads.get(waiting.next)) and read.value is not None:
            del waiting.reads[waiting.next]
            self._collect(waiting, read.value)
        if waiting.is_finished or waiting.is_nearly_full:
            self._answer(waiting, ReadDone(tuple(waiting.done)))
            return
        self._ask_more(waiting)
        for entry_id, read in waiting.reads.items():
            if read.value is None and not read.asked:
                self._ask_next(read, EntryId(entry_id))
        head = waiting.reads.get(waiting.next)
        if head is not None and head.value is None and not head.asked and waiting.refreshing is None:
            self._give_up(waiting, head)

    def _collect(self, waiting: _Range, entry: Entry) -> None:
        if not waiting.is_finished:
            waiting.done.append(entry)
            waiting.bytes += len(entry.payload)
            waiting.next = EntryId(waiting.next + 1)

    def _give_up(self, waiting: _Range, head: _EntryRead) -> None:
        """Every replica of the first missing entry failed: return what came, else read metadata."""
        if waiting.done:
            self._answer(waiting, ReadDone(tuple(waiting.done)))  # a later request that starts here gets the error
        else:
            waiting.refreshing = frozenset(head.failed)
            self._effects.append(ReadMetadata(("refresh", waiting.ticket), LedgerKey(self.ledger)))

    def _judge(self, waiting: _Range, asked_before: frozenset[BookieId]) -> None:
        """Fail the range, unless metadata, read after `asked_before` had failed, names another bookie to ask."""
        if not self._is_stuck(waiting) or not asked_before.issuperset(self.metadata.bookies_of(waiting.next)):
            return
        head = waiting.reads[waiting.next]
        if len(head.denied) >= self.metadata.quorum.negatives_needed:
            where = self._where(waiting)
            self._answer(
                waiting,
                EntryMissingError(
                    f"a confirmed entry is missing, run `dlog ledger verify`: {where} denied={len(head.denied)}"
                ),
            )
        else:
            self._answer(waiting, self._unreadable(waiting))

    def _is_stuck(self, waiting: _Range) -> bool:
        """Whether the range is empty and its first entry has still not arrived."""
        head = waiting.reads.get(waiting.next)
        return head is not None and head.value is None and not waiting.done

    def _unreadable(self, waiting: _Range) -> DLogError:
        denied = len(waiting.reads[waiting.next].denied)
        return EntryUnreadableError(
            f"no replica could be read, retry, or check the bookies (dlog bookie ls): {self._where(waiting)} "
            f"denied={denied}"
        )

    def _where(self, waiting: _Range) -> str:
        return f"ledger={self.ledger} entry={waiting.next} bookies={self.metadata.bookies_of(waiting.next)}"

    def _ask_more(self, waiting: _Range) -> None:
        if waiting.batches:
            return
        if self._wants_batch(waiting):
            self._ask_batch(waiting)
        if not waiting.batches:
            room = min(waiting.request.last, waiting.next + self._options.parallel_entries_max - 1)
            for entry in range(max(waiting.next, waiting.asked_to + 1), room + 1):
                self._ask_singly(waiting, EntryId(entry))

    def _ask_singly(self, waiting: _Range, entry: EntryId) -> None:
        waiting.reads[entry] = _EntryRead()
        waiting.asked_to = max(waiting.asked_to, entry)

    def _ask_next(self, read: _EntryRead, entry: EntryId) -> None:
        """Ask the healthiest replica that has not been asked, the nearest of them."""
        for bookie in self._health.in_order(self.metadata.bookies_of(entry), self._distance):
            if bookie not in read.asked and bookie not in read.failed:
                read.asked.append(bookie)
                self._effects.append(Send(bookie, ReadEntry(self.ledger, entry)))
                return

    def _wants_batch(self, waiting: _Range) -> bool:
        quorum = self.metadata.quorum
        return (
            self._options.batch
            and quorum.write == quorum.ensemble
            and not waiting.reads
            and self._batch_end(waiting) > waiting.next
            and waiting.request.bytes_max - waiting.bytes >= self._options.batch_bytes_min
        )

    def _batch_end(self, waiting: _Range) -> int:
        """Last requested entry in the same fragment as the next one."""
        later = [f.first_entry - 1 for f in self.metadata.fragments if f.first_entry > waiting.next]
        return min([waiting.request.last, *later])

    def _ask_batch(self, waiting: _Range) -> None:
        """Ask the healthiest bookie for as much of the rest as fits; always the same one, for its caches."""
        asked = waiting.batches.values()
        ensemble = self.metadata.fragment_of(waiting.next).ensemble
        for bookie in self._health.in_order(ensemble, self._distance, batch=True):
            if bookie not in asked and bookie not in waiting.lost and self._batched.get(bookie, True):
                self._batch_ids += 1
                waiting.batches[self._batch_ids] = bookie
                count = self._batch_end(waiting) - waiting.next + 1
                room = waiting.request.bytes_max - waiting.bytes
                self._effects.append(Send(bookie, BatchRead(self.ledger, waiting.next, self._batch_ids, count, room)))
                return

    def _answer(self, waiting: _Range, result: ReadDone | DLogError) -> None:
        del self._ranges[waiting.ticket]
        if not waiting.is_late:
            self._health.note_in_time(waiting.timed_batch_of)
        self._effects.append(CancelTimer(("speculate", waiting.ticket)))
        self._effects.append(Answer(waiting.ticket, result))
