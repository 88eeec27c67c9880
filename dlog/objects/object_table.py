"""The table of object ids: state, size, time and owner of each, in arrays, for millions of objects.

Ids lie in blocks of 1,024. A block has one row for each of its objects that is not destroyed, sorted by id; a block
without rows is dropped. So memory follows the objects that exist, not the ids that were ever used: some 31 bytes a row.

Invariants:
- an id below `next_id` without a row is destroyed; an id from `next_id` on is unknown;
- states change as TRANSITIONS has them, anything else is DamagedError: the controller records no such change.
"""

from __future__ import annotations

import enum
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from dlog.errors import DamagedError
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId, ObjectStreamId

BLOCK = 1024  # ids


class ObjectState(enum.IntEnum):
    """State of an object id. Only the next greater one follows, but a prepared object may be marked, too."""

    UNKNOWN = 0
    PREPARED = 1
    COMMITTED = 2
    MARKED = 3
    DESTROYED = 4


TRANSITIONS: dict[ObjectState, frozenset[ObjectState]] = {
    ObjectState.UNKNOWN: frozenset({ObjectState.PREPARED}),
    ObjectState.PREPARED: frozenset({ObjectState.COMMITTED, ObjectState.MARKED}),
    ObjectState.COMMITTED: frozenset({ObjectState.MARKED}),
    ObjectState.MARKED: frozenset({ObjectState.DESTROYED}),
    ObjectState.DESTROYED: frozenset(),
}

_PREPARED, _COMMITTED, _MARKED = int(ObjectState.PREPARED), int(ObjectState.COMMITTED), int(ObjectState.MARKED)


class ObjectRows:
    """Rows of objects, sorted by id: columns of one length. See ObjectTable for what they mean."""

    __slots__ = ("bytes", "ids", "owners", "states", "streams", "times")

    def __init__(self) -> None:
        self.ids = array("Q")
        self.states = array("B")
        self.bytes = array("Q")
        self.times = array("Q")
        self.owners = array("I")
        self.streams = array("Q")


class _Block:
    """Rows of one block. slots: ids within the block. prepared, marked: numbers of rows in these states."""

    __slots__ = ("bytes", "marked", "owners", "prepared", "slots", "states", "streams", "times")

    def __init__(self) -> None:
        self.slots = array("H")
        self.states = array("B")
        self.bytes = array("Q")
        self.times = array("Q")
        self.owners = array("I")
        self.streams = array("Q")
        self.prepared = 0
        self.marked = 0

    def find(self, slot: int) -> int:
        """Index of the row; -1: there is none."""
        slots = self.slots
        if slot < len(slots) and slots[slot] == slot:
            return slot
        at = bisect_left(slots, slot)
        return at if at < len(slots) and slots[at] == slot else -1


class ObjectTable:
    """All object ids. next_id: the first that was never used. owners: who may write objects; rows refer to it.
    prepared, marked: numbers of objects in these states. marked_bytes: of the marked ones that had been committed.

    Of each row: bytes (0 until it is committed); time: expiry, commit time or mark time, as its state is; stream: of
    an object with one stream, 0 for a stream-set object and until it is committed.
    """

    def __init__(self) -> None:
        self.next_id = ObjectId(1)
        self.prepared = 0
        self.marked = 0
        self.marked_bytes = 0
        self.owners: list[tuple[NodeId, NodeEpoch]] = []
        self._owner_index: dict[tuple[NodeId, NodeEpoch], int] = {}
        self._owner_rows: list[int] = []  # number of rows of each owner; one without rows gives its place to a new one
        self._free_owners: list[int] = []
        self._blocks: dict[int, _Block] = {}

    def __len__(self) -> int:
        """Number of objects that are not destroyed."""
        return sum(len(block.slots) for block in self._blocks.values())

    def count(self, state: ObjectState) -> int:
        return sum(block.states.count(state) for block in self._blocks.values())

    # ---- one object ----

    def _row(self, object: int) -> tuple[_Block, int]:
        """Raises DamagedError if there is no such object."""
        block = self._blocks.get(object >> 10)
        at = -1 if block is None else block.find(object & 1023)
        if block is None or at < 0:
            raise DamagedError(f"a record names an object that does not exist: object={object} next={self.next_id}")
        return block, at

    def state(self, object: int) -> ObjectState:
        if not 1 <= object < self.next_id:
            return ObjectState.UNKNOWN
        block = self._blocks.get(object >> 10)
        at = -1 if block is None else block.find(object & 1023)
        return ObjectState.DESTROYED if block is None or at < 0 else ObjectState(block.states[at])

    def bytes_of(self, object: ObjectId) -> int:
        """Raises DamagedError, as the next ones do, if the object is unknown or destroyed."""
        block, at = self._row(object)
        return block.bytes[at]

    def time_ms(self, object: ObjectId) -> int:
        """Expiry while it is prepared; time of its commit; time when it was marked."""
        block, at = self._row(object)
        return block.times[at]

    def owner(self, object: ObjectId) -> tuple[NodeId, NodeEpoch]:
        """The node, and its epoch, for which the id was prepared."""
        block, at = self._row(object)
        return self.owners[block.owners[at]]

    def stream_of(self, object: ObjectId) -> ObjectStreamId | None:
        """The stream of a stream object; None: it is a stream-set object, or was never committed."""
        block, at = self._row(object)
        return ObjectStreamId(block.streams[at]) or None

    # ---- changes ----

    def prepare(self, first: ObjectId, count: int, owner: tuple[NodeId, NodeEpoch], expiry_ms: int) -> None:
        if first != self.next_id or count < 1:
            raise DamagedError(f"prepared ids do not follow the ones before: first={first} next={self.next_id}")
        index = self._owner_index.get(owner)
        if index is None:
            index = self._owner_index[owner] = self._new_owner(owner)
        self._owner_rows[index] += count
        for object in range(first, first + count):
            block = self._blocks.get(object >> 10)
            if block is None:
                block = self._blocks[object >> 10] = _Block()
            block.slots.append(object & 1023)
            block.states.append(_PREPARED)
            block.bytes.append(0)
            block.times.append(expiry_ms)
            block.owners.append(index)
            block.streams.append(0)
            block.prepared += 1
        self.next_id = ObjectId(first + count)
        self.prepared += count

    def _new_owner(self, owner: tuple[NodeId, NodeEpoch]) -> int:
        if self._free_owners:
            index = self._free_owners.pop()
            self.owners[index] = owner
            return index
        self.owners.append(owner)
        self._owner_rows.append(0)
        return len(self.owners) - 1

    def commit(self, object: ObjectId, stream: ObjectStreamId | None, bytes: int, time_ms: int) -> None:
        block, at = self._row(object)
        if block.states[at] != _PREPARED:
            raise _no_change(object, block.states[at], ObjectState.COMMITTED)
        block.states[at] = _COMMITTED
        block.prepared -= 1
        self.prepared -= 1
        block.bytes[at] = bytes
        block.times[at] = time_ms
        block.streams[at] = stream or 0

    def mark(self, object: ObjectId, time_ms: int) -> None:
        block, at = self._row(object)
        state = block.states[at]
        if state == _PREPARED:
            block.prepared -= 1
            self.prepared -= 1
        elif state != _COMMITTED:
            raise _no_change(object, state, ObjectState.MARKED)
        block.states[at] = _MARKED
        block.marked += 1
        self.marked += 1
        self.marked_bytes += block.bytes[at]
        block.times[at] = time_ms

    def destroy(self, object: ObjectId) -> None:
        block, at = self._row(object)
        if block.states[at] != _MARKED:
            raise _no_change(object, block.states[at], ObjectState.DESTROYED)
        block.marked -= 1
        self.marked -= 1
        self.marked_bytes -= block.bytes[at]
        index = block.owners[at]
        self._owner_rows[index] -= 1
        if not self._owner_rows[index]:
            del self._owner_index[self.owners[index]]
            self._free_owners.append(index)
        for column in (block.slots, block.states, block.bytes, block.times, block.owners, block.streams):
            del column[at]
        if not block.slots:
            del self._blocks[object >> 10]

    # ---- many objects ----

    def expired(self, now_ms: int, limit: int) -> list[ObjectId]:
        """Prepared objects whose expiry is not after `now_ms`, in order of ids, at most `limit`."""
        return self._due(_PREPARED, now_ms, limit)

    def marked_until(self, time_ms: int, limit: int) -> list[ObjectId]:
        """Objects that were marked at this time or before, in order of ids, at most `limit`."""
        return self._due(_MARKED, time_ms, limit)

    def _due(self, state: int, time_ms: int, limit: int) -> list[ObjectId]:
        found: list[ObjectId] = []
        for number, block in self._blocks.items():
            if not (block.prepared if state == _PREPARED else block.marked):
                continue
            for slot, its_state, time in zip(block.slots, block.states, block.times, strict=True):
                if its_state == state and time <= time_ms:
                    if len(found) == limit:
                        return found
                    found.append(ObjectId(number << 10 | slot))
        return found

    def ids(self) -> Iterator[ObjectId]:
        """Ids of all objects that are not destroyed, in order."""
        for number, block in self._blocks.items():
            for slot in block.slots:
                yield ObjectId(number << 10 | slot)

    def rows(self) -> tuple[ObjectRows, list[tuple[NodeId, NodeEpoch]]]:
        """All rows, and the owners that they refer to in order of their first rows: equal for equal contents."""
        rows = ObjectRows()
        for number, block in self._blocks.items():
            first = number << 10
            rows.ids.extend([first + slot for slot in block.slots])
            rows.states.extend(block.states)
            rows.bytes.extend(block.bytes)
            rows.times.extend(block.times)
            rows.owners.extend(block.owners)
            rows.streams.extend(block.streams)
        index = {owner: at for at, owner in enumerate(dict.fromkeys(rows.owners))}
        if any(owner != at for owner, at in index.items()):
            rows.owners = array("I", map(index.__getitem__, rows.owners))
        return rows, [self.owners[owner] for owner in index]

    def load(self, rows: ObjectRows, owners: list[tuple[NodeId, NodeEpoch]], next_id: ObjectId) -> None:
        """Fill an empty table with rows that are sorted by id. Raises DamagedError."""
        ids, size = rows.ids, len(rows.ids)
        columns = (rows.states, rows.bytes, rows.times, rows.owners, rows.streams)
        if any(len(column) != size for column in columns):
            raise DamagedError(f"the columns of the table of objects differ in length: rows={size}")
        if size and not (ids[0] >= 1 and ids[-1] < next_id and max(rows.owners) < len(owners)):
            raise DamagedError(f"the table of objects has ids or owners that do not exist: next={next_id}")
        if len(set(owners)) != len(owners):
            raise DamagedError("the table of objects names an owner twice")
        if any(state not in (_PREPARED, _COMMITTED, _MARKED) for state in set(rows.states)):
            raise DamagedError("the table of objects has a state that does not exist")
        self.next_id = next_id
        self.owners = list(owners)
        self._owner_index = {owner: at for at, owner in enumerate(self.owners)}
        counts = Counter(rows.owners)
        self._owner_rows = [counts[at] for at in range(len(owners))]
        for at in [at for at, count in enumerate(self._owner_rows) if not count]:
            del self._owner_index[self.owners[at]]
            self._free_owners.append(at)
        at = 0
        while at < size:
            number = ids[at] >> 10
            end = bisect_left(ids, (number + 1) << 10, at)
            part = ids[at:end]
            first = number << 10
            if any(left >= right for left, right in pairwise(part)) or part[0] < first:
                raise DamagedError(f"the table of objects is not sorted: block={number}")
            block = self._blocks[number] = _Block()
            block.slots = array("H", [object - first for object in part])
            block.states, block.bytes, block.times = rows.states[at:end], rows.bytes[at:end], rows.times[at:end]
            block.owners, block.streams = rows.owners[at:end], rows.streams[at:end]
            block.prepared = block.states.count(_PREPARED)
            block.marked = block.states.count(_MARKED)
            self.prepared += block.prepared
            self.marked += block.marked
            if block.marked:
                sizes = zip(block.states, block.bytes, strict=True)
                self.marked_bytes += sum(size for state, size in sizes if state == _MARKED)
            at = end


def _no_change(object: int, state: int, target: ObjectState) -> DamagedError:
    return DamagedError(f"a record changes an object's state wrongly: object={object} from={state} to={target}")
