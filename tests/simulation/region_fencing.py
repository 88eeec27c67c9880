"""Explores every order of events of a small region: does what a writer acknowledges count for all, and for ever?

Two owners, of which the second deposes the first; each may lose an answer and begin again under another nonce. Two
recoveries end table 1, or drop it. Each request to append may land never, once, or a second time, at any later moment,
and its answer may be lost. The rule and the writer are those of dlog/region/counting.py; a planted defect replaces a
part.

    python -m tests.simulation.region_fencing [--items N] [--owners ab] [--recoveries rd]

prints the number of states, and a violation if there is one.

Invariants, checked in each state over what the topic holds:
- N1: each acknowledged entry counts.
- N2: no sequence number of a table counts twice, and none is missing below another.
- N3: a table has the end that each recovery found, and nothing that was acknowledged lies behind it.
"""

from __future__ import annotations

import argparse
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeVar

from dlog.region.counting import (
    Batch,
    CountingRule,
    Entry,
    Item,
    Placed,
    RegionFence,
    RegionWriter,
    TableDropped,
    TableEnd,
    record_count,
)

T = TypeVar("T")

TABLES = (1, 2)
EPOCHS = {"a": (1, 2), "b": (11, 12)}  # of the fences of an owner, in the order it uses them
BATCHES_MAX = 2  # of one owner


class Request(NamedTuple):
    """An append that was sent. copies: how often it may still land."""

    sender: str
    number: int  # of the sender's requests; an answer names it
    item: Item
    copies: int


@dataclass(frozen=True)
class Owner:
    """A process that owns the region, or wants to. phase: fencing, serving, writing, over."""

    phase: str = "fencing"
    fences: int = 0  # used so far
    made: int = 0  # batches
    asked: int = 0  # requests sent; the last one's answer is waited for
    writer: RegionWriter | None = None
    batch: Batch | None = None
    sequences: tuple[int, ...] = (0,) * len(TABLES)  # the last of each table that this owner knows


@dataclass(frozen=True)
class Recovery:
    """A process that ends table 1. end: the entries that it found; None: not done."""

    end: tuple[Entry, ...] | None = None


@dataclass(frozen=True)
class State:
    topic: tuple[Item, ...] = ()
    requests: tuple[Request, ...] = ()
    answers: frozenset[tuple[str, int, int]] = frozenset()  # sender, number of its request, offset
    owners: tuple[tuple[str, Owner], ...] = ()
    recoveries: tuple[tuple[str, Recovery], ...] = ()
    acked: frozenset[Entry] = frozenset()


@dataclass(frozen=True)
class Parts:
    """What a planted defect replaces."""

    rule: CountingRule = field(default_factory=CountingRule)
    writer: type[RegionWriter] = RegionWriter
    copies: int = 2
    reads_others: bool = True  # what lies between the expected offset and that of the answer
    changes_nonce: bool = True  # after an unknown outcome
    waits_for_end: bool = True  # a recovery reads up to its own end of the table


SHIPPED = Parts()


def counted(topic: Sequence[Item], rule: CountingRule) -> tuple[CountingRule, list[Entry]]:
    """Apply the rule to a topic."""
    found: list[Entry] = []
    for item in topic:
        rule, entries = rule.after(item)
        found += entries
    return rule, found


def _index(topic: Sequence[Item], offset: int) -> int:
    """How many items lie below an offset."""
    index = 0
    while offset > 0:
        offset -= record_count(topic[index])
        index += 1
    return index


def _with(pairs: tuple[tuple[str, T], ...], name: str, changed: T) -> tuple[tuple[str, T], ...]:
    return tuple((one, changed if one == name else kept) for one, kept in pairs)


class Explorer:
    """Visits all states reachable with at most `items_max` items in the topic."""

    def __init__(
        self, items_max: int, parts: Parts = SHIPPED, *, owners: Sequence[str] = "ab", recoveries: Sequence[str] = "rs"
    ) -> None:
        self._items_max = items_max
        self._parts = parts
        self._owners = owners
        self._recoveries = recoveries
        self.visited = 0

    def run(self) -> str:
        """The first violation found, with its topic, or ""."""
        start = State(
            owners=tuple((name, Owner()) for name in self._owners),
            recoveries=tuple((name, Recovery()) for name in self._recoveries),
        )
        for name, owner in start.owners:
            start = self._begin_again(start, name, owner)
        for name, _ in start.recoveries:
            start = self._send(start, name, 1, TableDropped(1) if name == "d" else TableEnd(1))
        seen = {start}
        waiting = deque([start])
        while waiting:
            state = waiting.popleft()
            self.visited += 1
            for following in self._steps(state):
                if following in seen:
                    continue
                seen.add(following)
                if violation := self._violation(following):
                    return f"{violation}: topic {[str(item) for item in following.topic]}"
                waiting.append(following)
        return ""

    def _violation(self, state: State) -> str:
        _, found = counted(state.topic, self._parts.rule)
        if lost := state.acked.difference(found):
            return f"N1: acknowledged and does not count: {sorted(lost, key=str)}"
        for table in TABLES:
            sequences = [entry.sequence for entry in found if entry.table == table]
            if sequences != list(range(1, len(sequences) + 1)):
                return f"N2: the sequence numbers of table {table} are {sequences}"
        end = tuple(entry for entry in found if entry.table == 1)
        for name, recovery in state.recoveries:
            if recovery.end is not None and recovery.end != end:
                return f"N3: recovery {name} found {len(recovery.end)} entries, {len(end)} count"
        return ""

    # ---- steps ------------------------------------------------------------------------------------------------------

    def _steps(self, state: State) -> Iterator[State]:
        """A request lands, an answer arrives, or an owner gives up waiting for one. What a process sends next it sends
        at once: as a request may land at any later moment, sending it later adds nothing."""
        if len(state.topic) < self._items_max:
            for request in state.requests:
                yield self._land(state, request)
        for answer in state.answers:
            yield self._answer(replace(state, answers=state.answers - {answer}), *answer)
        for name, owner in state.owners:
            if owner.phase in ("fencing", "writing") and owner.fences < len(EPOCHS[name]):
                yield self._begin_again(state, name, owner)

    def _begin_again(self, state: State, name: str, owner: Owner) -> State:
        fence = RegionFence(self._nonce(name, owner.fences), EPOCHS[name][owner.fences])
        changed = replace(
            owner, phase="fencing", fences=owner.fences + 1, asked=owner.asked + 1, writer=None, batch=None
        )
        return self._send(replace(state, owners=_with(state.owners, name, changed)), name, changed.asked, fence)

    def _nonce(self, name: str, fences: int) -> bytes:
        return f"{name}{fences if self._parts.changes_nonce else 0}".encode()

    def _write(self, state: State, name: str, owner: Owner) -> State:
        """Send the next batch: of both tables, then of table 1."""
        if owner.made == BATCHES_MAX:
            return replace(state, owners=_with(state.owners, name, replace(owner, phase="over")))
        assert owner.writer is not None
        body = f"{name}{owner.made}".encode()
        entries = tuple(
            Entry(table, owner.sequences[TABLES.index(table)] + 1, body) for table in (TABLES[: 2 - owner.made])
        )
        batch = owner.writer.batch(entries)
        changed = replace(owner, phase="writing", made=owner.made + 1, asked=owner.asked + 1, batch=batch)
        return self._send(replace(state, owners=_with(state.owners, name, changed)), name, changed.asked, batch)

    def _send(self, state: State, sender: str, number: int, item: Item) -> State:
        request = Request(sender, number, item, self._parts.copies)
        requests = tuple(sorted((*state.requests, request), key=lambda r: (r.sender, r.number)))
        answers = frozenset(answer for answer in state.answers if answer[0] != sender)  # it waits for this one only
        return replace(state, requests=requests, answers=answers)

    def _land(self, state: State, request: Request) -> State:
        offset = sum(map(record_count, state.topic))
        left = [one for one in state.requests if one != request]
        if request.copies > 1:
            left.append(request._replace(copies=request.copies - 1))
        if len(state.topic) + 1 == self._items_max:
            left = []  # nothing more can land
        answers = state.answers
        if self._waits(state, request):
            answers |= {(request.sender, request.number, offset)}
        topic = (*state.topic, request.item)
        requests = tuple(sorted(left, key=lambda r: (r.sender, r.number)))
        return replace(state, topic=topic, requests=requests, answers=answers)

    def _waits(self, state: State, request: Request) -> bool:
        """Whether the sender still waits for an answer to this request."""
        owner = dict(state.owners).get(request.sender)
        if owner is not None:
            return owner.asked == request.number and owner.phase in ("fencing", "writing")
        return dict(state.recoveries)[request.sender].end is None

    def _answer(self, state: State, sender: str, number: int, offset: int) -> State:
        owners = dict(state.owners)
        if sender not in owners:
            return self._table_ended(state, sender, offset)
        owner = owners[sender]
        assert number == owner.asked, "answers of requests that were given up are dropped"
        state = replace(state, answers=frozenset(a for a in state.answers if a[0] != sender))  # that of a second copy
        if owner.phase == "fencing":
            changed = self._fenced(state, sender, owner, offset)
        else:
            changed, acked = self._appended(state, owner, offset)
            state = replace(state, acked=state.acked | acked)
        if changed.phase == "serving":
            return self._write(state, sender, changed)
        return replace(state, owners=_with(state.owners, sender, changed))

    def _fenced(self, state: State, name: str, owner: Owner, offset: int) -> Owner:
        """Its fence lies at this offset: it reads the topic up to there."""
        nonce = self._nonce(name, owner.fences - 1)
        rule, found = counted(state.topic[: _index(state.topic, offset + 1)], self._parts.rule)
        writer = self._parts.writer(nonce, rule, offset + 1)
        if writer.is_deposed:
            return replace(owner, phase="over")
        sequences = tuple(max((e.sequence for e in found if e.table == table), default=0) for table in TABLES)
        return replace(owner, phase="serving", writer=writer, sequences=sequences)

    def _appended(self, state: State, owner: Owner, offset: int) -> tuple[Owner, frozenset[Entry]]:
        writer, batch = owner.writer, owner.batch
        assert writer is not None and batch is not None
        others: list[Placed] = []
        if offset > writer.expected and self._parts.reads_others:
            at = writer.expected
            for item in state.topic[_index(state.topic, writer.expected) : _index(state.topic, offset)]:
                others.append((at, item))
                at += record_count(item)
        try:
            writer, placed, _ = writer.appended(batch, offset, others)
        except ValueError:
            return replace(owner, phase="over"), frozenset()
        counting = [entry for _, entry in placed]
        if writer.is_deposed or len(counting) < len(batch.entries):  # the owner of an ended table gives up, for brevity
            return replace(owner, phase="over"), frozenset(counting)
        sequences = list(owner.sequences)
        for entry in counting:
            sequences[TABLES.index(entry.table)] = entry.sequence
        changed = replace(owner, phase="serving", writer=writer, batch=None, sequences=tuple(sequences))
        return changed, frozenset(counting)

    def _table_ended(self, state: State, name: str, offset: int) -> State:
        recovery = dict(state.recoveries)[name]
        upto = _index(state.topic, offset) if self._parts.waits_for_end else max(0, _index(state.topic, offset) - 1)
        _, found = counted(state.topic[:upto], self._parts.rule)
        end = tuple(entry for entry in found if entry.table == 1)
        answers = frozenset(answer for answer in state.answers if answer[0] != name)
        recoveries = _with(state.recoveries, name, replace(recovery, end=end))
        return replace(state, answers=answers, recoveries=recoveries)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.region_fencing", description=__doc__)
    parser.add_argument("--items", type=int, default=4, help="at most so many items in the topic")
    parser.add_argument("--owners", default="ab", help="a, b or ab")
    parser.add_argument("--recoveries", default="rs", help="r, rs or nothing; d drops the table")
    arguments = parser.parse_args(argv)
    explorer = Explorer(arguments.items, owners=arguments.owners, recoveries=arguments.recoveries)
    violation = explorer.run()
    print(f"{explorer.visited} states; {violation or 'no violation'}")
    return 1 if violation else 0


if __name__ == "__main__":
    raise SystemExit(main())
