"""The notes of one stream's history, as columns: requests, answers, deliveries, truncations, owners.

A position is kept as one integer: integers compare as positions do, and the positions of a batch are consecutive.

Invariants:
- Nothing is checked here except misuse by the caller (AssertionError).
"""

from __future__ import annotations

import enum
import struct
import zlib
from array import array
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from dlog.model.dlsn import DLSN, of
from tests.history.records import RECORD_BYTES_MIN

_ENTRY_BITS, _SLOT_BITS = 28, 20
_SEGMENTS, _ENTRIES, _SLOTS = 1 << 15, 1 << _ENTRY_BITS, 1 << _SLOT_BITS
NOWHERE = -1  # no position, or none that was answered
NEVER = -1  # the time of an event that has not happened
_HEAD = struct.Struct(">IIQ")


class Outcome(enum.IntEnum):
    """The outcome of an append. One without an answer is unknown."""

    UNKNOWN = 0
    OK = 1
    FAILED = 2  # certainly not written


class Start(enum.IntEnum):
    """The kind of a reader's start."""

    START = 0
    TAIL = 1
    DLSN = 2
    TXID = 3


class End(enum.IntEnum):
    """Why a reader delivers no more."""

    OPEN = 0  # it does not end, or gave up: nothing follows from it
    TAIL = 1  # it was shown the tail of the time of its opening
    TRUNCATED = 2  # it was told that its position was truncated
    DAMAGED = 3  # it was told that an entry cannot be read


class Position(NamedTuple):
    """The start that a reader asked for: a position as an integer, or a txid."""

    kind: Start
    value: int = 0


def start_at(kind: str, value: DLSN | int | None = None) -> Position:
    """A reader's start: "start", "tail", "dlsn" with a DLSN, "txid" with a number."""
    at = Start[kind.upper()]
    if at is Start.DLSN:
        assert isinstance(value, DLSN)
        return Position(at, position_of(value))
    return Position(at, int(value) if at is Start.TXID and not isinstance(value, DLSN | None) else 0)


def position_of(dlsn: DLSN) -> int:
    """A position as an integer. Slots and entries beyond what a segment can hold count as its end (a seek may ask for
    them)."""
    segment, entry, slot = dlsn
    if segment <= 0:
        return NOWHERE
    assert segment < _SEGMENTS, "so many segments no history has"
    if entry >= _ENTRIES:
        return ((segment + 1 << _ENTRY_BITS) << _SLOT_BITS) - 1
    return ((segment << _ENTRY_BITS) + max(entry, 0) << _SLOT_BITS) + min(max(slot, 0), _SLOTS - 1)


def dlsn_of(position: int) -> DLSN:
    """The DLSN of a position."""
    return of(position >> _ENTRY_BITS + _SLOT_BITS, position >> _SLOT_BITS & _ENTRIES - 1, position & _SLOTS - 1)


def segment_of(position: int) -> int:
    return position >> _ENTRY_BITS + _SLOT_BITS


def entry_of(position: int) -> int:
    return position >> _SLOT_BITS & _ENTRIES - 1


class Run(NamedTuple):
    """Records of one producer with consecutive sequences, in consecutive slots of one entry."""

    position: int
    records: int
    producer: int
    first: int
    txid: int

    @property
    def end(self) -> int:
        return self.position + self.records


class Reader:
    """What one reader was sent, as columns of runs in the order of delivery."""

    def __init__(self, name: str, start: Position, at: int) -> None:
        self.name = name
        self.start = start
        self.opened = at
        self.ended = NEVER
        self.end = End.OPEN
        self.position = array("q")
        self.count = array("q")
        self.producer = array("q")
        self.first = array("q")
        self.txid = array("q")
        self.at = array("q")
        self.strange: list[tuple[int, int, bytes]] = []  # position, time, first bytes of a payload that is no record

    def runs(self) -> Iterator[Run]:
        return map(Run, self.position, self.count, self.producer, self.first, self.txid)


class Appends:
    """Operations as columns; an operation is its index."""

    def __init__(self) -> None:
        self.producer = array("q")
        self.first = array("q")
        self.count = array("q")
        self.invoked = array("q")
        self.answered = array("q")
        self.outcome = array("b")
        self.position = array("q")
        self.asked_txid = array("q")
        self.txid = array("q")
        self.epoch = array("q")
        self.repeated = array("b")
        self.of_producer: dict[int, array[int]] = {}  # operations of each producer, by sequence

    def __len__(self) -> int:
        return len(self.first)


class Truncation(NamedTuple):
    """position before which the truncation removes everything. kept: the first one kept, as answered; NOWHERE if
    unanswered."""

    position: int
    invoked: int
    answered: int
    kept: int


class History:
    """Notes on one stream. Times in ns of one clock."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.appends = Appends()
        self.readers: list[Reader] = []
        self.truncations: list[Truncation] = []
        self.lacs: list[tuple[int, int, int]] = []  # time, segment, entry
        self.owners: list[tuple[int, int]] = []  # segment, epoch
        self.blind: list[tuple[int, int]] = []  # from, to: a read proxy was cut off from ZooKeeper or bookies

    # ---- appends ----------------------------------------------------------------------------------------------------

    def invoke(self, producer: int, first: int, count: int, at: int, txid: int | None = None) -> int:
        """Note that a batch is given to the client: records first..first+count-1 of this producer. Returns the
        operation."""
        appends = self.appends
        op = len(appends)
        mine = appends.of_producer.setdefault(producer, array("q"))
        if mine:
            last = mine[-1]
            assert first >= appends.first[last] + appends.count[last], "a producer's sequences grow"
        mine.append(op)
        appends.producer.append(producer)
        appends.first.append(first)
        appends.count.append(count)
        appends.invoked.append(at)
        appends.answered.append(NEVER)
        appends.outcome.append(Outcome.UNKNOWN)
        appends.position.append(NOWHERE)
        appends.asked_txid.append(-1 if txid is None else txid)
        appends.txid.append(-1)
        appends.epoch.append(0)
        appends.repeated.append(0)
        return op

    def ok(self, op: int, at: int, dlsn: DLSN, txid: int = -1, *, epoch: int = 0, duplicate: bool = False) -> None:
        """Note an acknowledgement at this position (DLSN_INVALID: the log has forgotten it). txid -1: not answered.
        epoch: of the owner that answered, 0 if not known. duplicate: the batch was in the log already, perhaps written
        by another owner."""
        self.ok_at(op, at, position_of(dlsn), txid, epoch=epoch, duplicate=duplicate)

    def ok_at(self, op: int, at: int, position: int, txid: int, *, epoch: int = 0, duplicate: bool = False) -> None:
        """As `ok`, with the position as an integer."""
        appends = self.appends
        self._answer(op, at, Outcome.OK)
        appends.position[op] = position
        appends.txid[op] = txid
        appends.epoch[op] = epoch
        appends.repeated[op] = duplicate

    def failed(self, op: int, at: int) -> None:
        """Note that an append is certainly not written, and never will be."""
        self._answer(op, at, Outcome.FAILED)

    def unknown(self, op: int, at: int) -> None:
        """Note that an append was given up: written or not, now or later. The same as no answer."""
        self._answer(op, at, Outcome.UNKNOWN)

    def _answer(self, op: int, at: int, outcome: Outcome) -> None:
        assert self.appends.answered[op] == NEVER, "an operation is answered once"
        self.appends.answered[op] = at
        self.appends.outcome[op] = outcome

    # ---- readers ----------------------------------------------------------------------------------------------------

    def open(self, name: str, start: Position, at: int) -> int:
        """Note the begin of a read. It is one read for as long as the client continues it, on any server. Returns the
        reader."""
        self.readers.append(Reader(name, start, at))
        return len(self.readers) - 1

    def delivered(self, reader: int, at: int, dlsn: DLSN, txid: int, payloads: Sequence[bytes]) -> None:
        """Note a delivery to the application: these payloads, at `dlsn` and the slots after it."""
        begin = position_of(dlsn)
        for slot, count, producer, first in runs_of(payloads):
            if producer < 0:
                self.strange(reader, at, begin + slot, bytes(payloads[slot][:64]))
            else:
                self.run(reader, at, Run(begin + slot, count, producer, first, txid))

    def run(self, reader: int, at: int, run: Run) -> None:
        """As `delivered`, for payloads that were decoded already."""
        notes = self.readers[reader]
        notes.position.append(run.position)
        notes.count.append(run.records)
        notes.producer.append(run.producer)
        notes.first.append(run.first)
        notes.txid.append(run.txid)
        notes.at.append(at)

    def strange(self, reader: int, at: int, position: int, payload: bytes) -> None:
        """Note a payload that was delivered and is no record of a known writer."""
        self.readers[reader].strange.append((position, at, payload))

    def end(self, reader: int, at: int, end: End) -> None:
        """Note the end of a read."""
        self.readers[reader].ended = at
        self.readers[reader].end = end

    # ---- the rest ---------------------------------------------------------------------------------------------------

    def cut_off(self, begin: int, end: int) -> None:
        """Note that a read proxy may have been cut off from ZooKeeper or bookies: it may show an older state."""
        self.blind.append((begin, end))

    def truncate(self, dlsn: DLSN, invoked: int, answered: int = NEVER, kept: DLSN | None = None) -> None:
        """Note a request to truncate to `dlsn`; kept: the first position kept, as answered, if an answer came."""
        told = NOWHERE if kept is None else position_of(kept)
        self.truncations.append(Truncation(position_of(dlsn), invoked, answered, told))

    def confirmed(self, segment: int, entry: int, at: int) -> None:
        """Note that the LAC of a segment moved to `entry`. Note all changes of a segment's LAC, or none."""
        self.lacs.append((at, segment, entry))

    def owner(self, segment: int, epoch: int) -> None:
        """Note that the owner with this epoch appends to this segment."""
        self.owners.append((segment, epoch))


def runs_of(payloads: Sequence[bytes]) -> Iterator[tuple[int, int, int, int]]:
    """(index, count, producer, first sequence) of the runs in these payloads; producer -1 for one that does not
    verify."""
    unpack, crc32 = _HEAD.unpack_from, zlib.crc32
    begin, owner, first, following = 0, -2, 0, 0
    for index, payload in enumerate(payloads):
        producer, sequence = -1, 0
        if len(payload) >= RECORD_BYTES_MIN:
            crc, producer, sequence = unpack(payload)
            if crc32(payload[4:RECORD_BYTES_MIN], crc32(payload[RECORD_BYTES_MIN:])) != crc:
                producer = -1
        if producer < 0 or producer != owner or sequence != following:
            if index > begin:
                yield begin, index - begin, owner, first
            begin, owner, first = index, producer, sequence
        following = sequence + 1
    if payloads:
        yield begin, len(payloads) - begin, owner, first
