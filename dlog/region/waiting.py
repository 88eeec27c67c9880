"""What callers want appended to a region's data topic, in their order, until it is appended.

Invariants:
- The order of requests is kept, also for what is put back because its append is not in the topic.
- An entry that must have a sequence gets that one, or is refused: entries behind a refused one never take its place.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from dlog.errors import DLogError, InvalidRequestError, OverCapacityError, RecordTooLargeError
from dlog.region.counting import Entry, Item, PlainEntry, RegionWriter, TableEnd
from dlog.region.items import RECORD_OVERHEAD_BYTES
from dlog.region.options import RegionOptions
from dlog.region.outbox import Outbox
from dlog.region.state import RegionState


class TableEndedError(InvalidRequestError):
    """A table of the write has ended; the entries of its other tables are in the region."""

    code = 564


class EntryOutOfOrderError(InvalidRequestError):
    """An entry that was submitted before this one was refused, so this one would get its sequence. Not written."""

    code = 566


@dataclass(frozen=True, slots=True)
class Write:
    """A caller's write that is not answered. size: of its records, in bytes. sequence: of its one entry, 0 if it begins
    its table; None: the next ones."""

    ticket: int
    entries: tuple[tuple[int, bytes], ...]
    size: int
    sequence: int | None = None

    @property
    def begins(self) -> bool:
        return self.sequence == 0


@dataclass(frozen=True, slots=True)
class End:
    """A caller's request to end a table, behind the writes before. size: of its record, in bytes."""

    ticket: int
    table: int
    size: int = RECORD_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Append:
    """An append: a batch, a check-point, or the ends of tables.

    writes: those in a batch, in order, each with the sequences of its entries. ends: as many as items. drops: tickets
    that wait for this check-point.
    """

    items: tuple[Item, ...]
    writes: tuple[tuple[Write, tuple[int, ...]], ...] = ()
    ends: tuple[End, ...] = ()
    drops: tuple[int, ...] = ()

    @property
    def has_beginning(self) -> bool:
        """Whether one of the writes begins its table."""
        return any(write.begins for write, _ in self.writes)

    @property
    def tickets(self) -> list[int]:
        return [*(write.ticket for write, _ in self.writes), *(end.ticket for end in self.ends), *self.drops]


class WaitingAppends:
    """See the module's docstring. outbox: gets the refusals."""

    def __init__(self, options: RegionOptions, outbox: Outbox) -> None:
        self._options = options
        self._out = outbox
        self._queue: deque[Write | End] = deque()
        self._bytes = 0

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._queue)

    def add_write(self, ticket: int, entries: tuple[tuple[int, bytes], ...], sequence: int | None) -> None:
        """Add a write, or refuse it: too large, or too many wait."""
        size = sum(RECORD_OVERHEAD_BYTES + len(payload) for _, payload in entries)
        options = self._options
        if not entries or size > options.batch_bytes_max:
            self._out.answer(
                [ticket],
                RecordTooLargeError(
                    f"a write has at least one record and fits into one batch: records={len(entries)} bytes={size} "
                    f"bytes_max={options.batch_bytes_max}"
                ),
            )
        elif self._bytes + size > options.queue_bytes_max and self._queue:
            self._out.answer(
                [ticket],
                OverCapacityError(f"too many writes wait, try again later: bytes_max={options.queue_bytes_max}"),
            )
        else:
            self._add(Write(ticket, entries, size, sequence))

    def add_end(self, ticket: int, table: int) -> None:
        """Add the end of a table. It is never refused."""
        self._add(End(ticket, table))

    def put_back(self, requests: Sequence[Write | End]) -> None:
        """Let requests whose append is not in the topic wait again, in front of all others."""
        self._queue.extendleft(reversed(requests))
        self._bytes += sum(one.size for one in requests)

    def take_all(self) -> list[int]:
        """Let nothing wait any more; returns the tickets."""
        tickets = [one.ticket for one in self._queue]
        self._queue.clear()
        self._bytes = 0
        return tickets

    def next_append(self, state: RegionState, writer: RegionWriter, *, is_plain: bool) -> Append | None:
        """Take what is appended next: the ends of tables in front of all writes, else as many writes as fit into one
        batch. None: nothing is left, or all that waited was refused."""
        return self._next_ends(writer.nonce) or self._next_batch(state, writer, is_plain=is_plain)

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _add(self, request: Write | End) -> None:
        self._queue.append(request)
        self._bytes += request.size

    def _pop(self) -> None:
        self._bytes -= self._queue.popleft().size

    def _next_ends(self, nonce: bytes) -> Append | None:
        ends: list[End] = []
        size = 0
        while self._queue and isinstance(first := self._queue[0], End):
            size += first.size
            if ends and size > self._options.batch_bytes_max:
                break
            self._pop()
            ends.append(first)
        return Append(tuple(TableEnd(end.table, nonce) for end in ends), ends=tuple(ends)) if ends else None

    def _next_batch(self, state: RegionState, writer: RegionWriter, *, is_plain: bool) -> Append | None:
        following: dict[int, int] = {}  # by table, the sequence of its next entry
        next_seq_num = state.meta.next_seq_num
        entries: list[Entry] = []
        writes: list[tuple[Write, tuple[int, ...]]] = []
        size = 0
        while self._queue and (not writes or size + self._queue[0].size <= self._options.batch_bytes_max):
            write = self._queue[0]
            if isinstance(write, End):
                break
            self._pop()
            table = write.entries[0][0]
            expected = following.get(table) or next_seq_num(table)
            if write.sequence and write.sequence != expected:
                self._out.answer([write.ticket], _out_of_order(state, table, write.sequence, expected))
                continue
            size += write.size
            sequences: list[int] = []
            for table, payload in write.entries:
                sequence = 0 if write.begins else following.get(table) or next_seq_num(table)
                if sequence:
                    following[table] = sequence + 1
                sequences.append(sequence)
                entries.append(Entry(table, sequence, payload))
            writes.append((write, tuple(sequences)))
        if not writes:
            return None
        if is_plain:
            return Append(tuple(map(PlainEntry, entries)), tuple(writes))
        return Append((writer.batch(tuple(entries)),), tuple(writes))


def _out_of_order(state: RegionState, table: int, sequence: int, expected: int) -> DLogError:
    if table in state.rule.ended:
        return TableEndedError(f"the table has ended: table={table}")
    return EntryOutOfOrderError(
        f"an entry in front of it was refused, so it was not written: table={table} sequence={sequence} "
        f"expected={expected}"
    )
