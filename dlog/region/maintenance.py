"""Snapshots of a region, and the deletion of what no table needs: a part of its owner.

Invariants:
- One snapshot is under way at a time. It is made when a caller asks for one, when a table is dropped, after
  `snapshot_bytes` of log, and before a deletion.
- The front of the data topic is deleted in this order: a snapshot is durable; then a check-point is in the data topic,
  appended by the owner in force; then the records go that no table needed when that snapshot was made.
- Dropping a table is answered once a check-point with its mark counts as appended by the owner in force. A snapshot
  alone would not do: the next owner may have read the meta topic before (docs/decisions/0038).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dlog.errors import DLogError
from dlog.events import RegionCleaned, RegionSnapshotFailed, TablePinsRegion
from dlog.region.counting import Checkpoint
from dlog.region.messages import AppendRecords, DeleteBefore, RecordsAppended, Topic
from dlog.region.options import RegionOptions
from dlog.region.outbox import Outbox
from dlog.region.state import RegionState
from dlog.wire.region import RecordKind, RegionRecord, encode_record, encode_snapshot


def tables_that_pin(region: int, state: RegionState, records_max: int) -> Iterator[TablePinsRegion]:
    """The tables that keep more records than that of the topic from being deleted."""
    for table, meta in state.meta.tables.items():
        first = meta.first_needed
        if first is not None and state.offset - first > records_max:
            yield TablePinsRegion(region, table, state.offset - first)


@dataclass(slots=True)
class _Cleaning:
    """A cleaning under way. safe: the offset below which everything may go, once a snapshot with it is durable."""

    tickets: list[int]
    safe: int = 0
    has_snapshot: bool = False
    has_checkpoint: bool = False


@dataclass(slots=True)
class _Saving:
    """A snapshot under way. offset: that it is true at."""

    offset: int
    tickets: list[int] = field(default_factory=list)
    cleaning: _Cleaning | None = None


class Maintenance:
    """See the module's docstring. first: the first offset that the data topic has."""

    def __init__(self, region: int, options: RegionOptions, outbox: Outbox) -> None:
        self.first = 0
        self._region = region
        self._options = options
        self._out = outbox
        self._snapshots: list[int] = []  # offsets in the meta topic
        self._log_bytes = 0  # since the last snapshot
        self._saved_at = -1  # offset of the last durable snapshot
        self._has_new_marks = False
        self._saving: _Saving | None = None
        self._saves: list[int] = []  # tickets that wait for the next snapshot
        self._drops: list[int] = []  # tickets that wait for the next check-point
        self._cleaning: _Cleaning | None = None

    def opened(self, first: int, snapshots: list[int], scanned_bytes: int) -> None:
        """The region's topics are read. snapshots: offsets in the meta topic. scanned_bytes: of log behind the one that
        was used."""
        self.first, self._snapshots, self._log_bytes = first, snapshots, scanned_bytes

    def logged(self, size: int) -> None:
        """Bytes are appended to the data topic."""
        self._log_bytes += size

    def marked(self) -> None:
        """A mark was changed."""
        self._has_new_marks = True

    def save(self, ticket: int) -> None:
        """A caller wants a snapshot."""
        self._saves.append(ticket)

    def drop(self, ticket: int) -> None:
        """A caller marked a whole table."""
        self._has_new_marks = True
        self._log_bytes += self._options.snapshot_bytes  # so that a snapshot is made now
        self._drops.append(ticket)

    def clean(self, ticket: int, state: RegionState) -> None:
        """A caller wants to delete what no table needs."""
        if self._cleaning is not None:
            self._cleaning.tickets.append(ticket)
            return
        for pinning in tables_that_pin(self._region, state, self._options.pinned_records):
            self._out.emit(pinning)
        if state.meta.safe_offset <= self.first:
            self._out.answer([ticket], None)
            return
        self._cleaning = _Cleaning([ticket])

    def settle(self, state: RegionState, nonce: bytes) -> None:
        """Begin a snapshot if one is wanted. Only for the owner in force. nonce: of its fence."""
        needs = self._cleaning is not None and not self._cleaning.has_snapshot
        if self._saving is None and (needs or self._saves or self._log_bytes >= self._options.snapshot_bytes):
            self._save(state, nonce)

    def end(self, error: DLogError) -> None:
        """The owner is deposed."""
        tickets = self._saves + self._drops
        self._saves, self._drops = [], []
        self._out.answer(tickets, error)
        self._end_cleaning(error)

    # ---- check-points ------------------------------------------------------------------------------------------------

    @property
    def wants_checkpoint(self) -> bool:
        """Whether the next append shall be a check-point."""
        cleaning = self._cleaning
        return bool(self._drops) or (cleaning is not None and cleaning.has_snapshot and not cleaning.has_checkpoint)

    def checkpoint(self, state: RegionState) -> tuple[Checkpoint, tuple[int, ...]]:
        """The check-point to append, and the tickets that wait for it."""
        drops, self._drops = tuple(self._drops), []
        return Checkpoint(encode_snapshot(state.snapshot())), drops

    def checkpoint_undone(self, drops: tuple[int, ...]) -> None:
        """The check-point may not be there; it will be appended again."""
        self._drops += drops

    def checkpoint_appended(self, drops: tuple[int, ...]) -> None:
        """The check-point is in the topic, appended by the owner in force."""
        self._out.answer(drops, None)
        cleaning = self._cleaning
        if cleaning is not None and cleaning.has_snapshot:
            cleaning.has_checkpoint = True
            self._delete(cleaning)

    def checkpoint_refused(self, drops: tuple[int, ...], error: DLogError) -> None:
        """The check-point cannot be appended, for it is too large."""
        self._out.answer(drops, error)
        self._end_cleaning(error)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _save(self, state: RegionState, nonce: bytes) -> None:
        """Append a snapshot to the meta topic, unless the last one says the same."""
        tickets, self._saves = self._saves, []
        cleaning = self._cleaning if self._cleaning is not None and not self._cleaning.has_snapshot else None
        if cleaning is not None:
            cleaning.safe = state.meta.safe_offset
        if state.offset == self._saved_at and not self._has_new_marks:
            self._out.answer(tickets, self._saved_at)
            if cleaning is not None:
                cleaning.has_snapshot = True
            return
        saving = self._saving = _Saving(state.offset, tickets, cleaning)
        self._has_new_marks = False
        self._log_bytes = 0
        record = RegionRecord(
            kind=RecordKind.CHECKPOINT,
            region=self._region,
            payload=encode_snapshot(state.snapshot()),
            epoch=state.rule.epoch,
            nonce=nonce,
        )

        def saved(reply: RecordsAppended) -> None:
            self._saving = None
            self._saved_at = saving.offset
            self._out.answer(saving.tickets, saving.offset)
            if saving.cleaning is not None:
                saving.cleaning.has_snapshot = True
            self._drop_snapshots(reply.offset)

        def failed(error: DLogError) -> None:
            self._saving = None
            self._has_new_marks = True
            self._out.emit(RegionSnapshotFailed(self._region, error.message))
            self._out.answer(saving.tickets, error)
            if saving.cleaning is not None:
                self._end_cleaning(error)

        self._out.ask(Topic.META, AppendRecords(self._out.number(), (encode_record(record),)), saved, failed)

    def _drop_snapshots(self, newest: int) -> None:
        """Delete all snapshots but the last few. If that fails, the next time will do."""
        self._snapshots.append(newest)
        kept = self._options.snapshots_kept
        if len(self._snapshots) > kept:
            del self._snapshots[:-kept]
            question = DeleteBefore(self._out.number(), self._snapshots[0])
            self._out.ask(Topic.META, question, lambda _: None, lambda _: None)

    def _delete(self, cleaning: _Cleaning) -> None:
        def deleted(_: Any) -> None:
            self.first = cleaning.safe
            self._out.emit(RegionCleaned(self._region, cleaning.safe))
            self._end_cleaning(cleaning.safe)

        self._out.ask(Topic.DATA, DeleteBefore(self._out.number(), cleaning.safe), deleted, self._end_cleaning)

    def _end_cleaning(self, result: Any) -> None:
        cleaning, self._cleaning = self._cleaning, None
        if cleaning is not None:
            self._out.answer(cleaning.tickets, result)
