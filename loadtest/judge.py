"""Checks one log: compares what was acknowledged to producers with what each reader received, and counts every breach.

An append without an answer, or refused with unknown outcome, may be in the log once or not at all. Events are runs of
consecutive records, so a million records cost little memory.

Invariants:
- the judge assumes nothing about the system.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, fields

from loadtest.history import AckedRun, Broken, End, Note, ReadRun, RefusedRun, Sent, after
from loadtest.systems.base import Position

EXAMPLES = 10
BREACHES = ("lost", "duplicated", "reordered", "misplaced", "early", "invented", "diverged")


@dataclass(slots=True)
class Verdict:
    """Counts of records; those of BREACHES must be zero."""

    sent: int = 0
    acknowledged: int = 0
    unanswered: int = 0
    read: int = 0
    lost: int = 0  # acknowledged, but a reader that read past its position did not receive it
    duplicated: int = 0  # received twice by one reader
    reordered: int = 0  # received out of the log's order, or a producer's records out of its order
    misplaced: int = 0  # received at another position than was acknowledged to the producer
    early: int = 0  # received before its append began, or received at the tail and then not in the log
    invented: int = 0  # damaged, never sent, or refused with known outcome
    diverged: int = 0  # two readers received a record at different positions, or only one of them received it
    examples: list[str] = field(default_factory=list)

    @property
    def is_green(self) -> bool:
        return not any(getattr(self, name) for name in BREACHES)

    def add(self, other: Verdict) -> None:
        """Add the verdict of another log."""
        for f in fields(self):
            if f.name != "examples":
                setattr(self, f.name, getattr(self, f.name) + getattr(other, f.name))
        self.examples = (self.examples + other.examples)[:EXAMPLES]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class _Run:
    """Sequences first..first+count-1 of one producer, at consecutive positions from `position` on."""

    __slots__ = ("count", "first", "ns", "position")

    def __init__(self, first: int, count: int, position: Position | None, ns: int) -> None:
        self.first = first
        self.count = count
        self.position = position
        self.ns = ns

    def position_of(self, sequence: int) -> Position | None:
        return None if self.position is None else after(self.position, sequence - self.first)


class _Reader:
    """Runs that one reader received; those of a producer are in its order, without overlap."""

    def __init__(self) -> None:
        self.begin: Position | None = None
        self.last: Position | None = None
        self.came_to_the_end = False
        self.has_left = False
        self.runs: dict[int, list[_Run]] = {}

    def note(self, producer: int, first: int, count: int, position: Position, ns: int) -> tuple[str, int] | None:
        """Add a run; returns its breach and the number of records concerned, or None."""
        in_order = self.last is None or position > self.last
        self.begin = position if self.begin is None else self.begin
        self.last = after(position, count - 1)
        if not in_order:
            return "reordered", count
        runs = self.runs.setdefault(producer, [])
        last = runs[-1] if runs else None
        if last is not None and first < last.first + last.count:
            behind = min(first + count, last.first + last.count) - first
            again = sum(self._has(runs, first + i) for i in range(behind))
            if count > behind:
                runs.append(_Run(first + behind, count - behind, after(position, behind), ns))
            return ("duplicated", again) if again else ("reordered", behind)
        if last is not None and first == last.first + last.count and position == last.position_of(first):
            last.count += count
        else:
            runs.append(_Run(first, count, position, ns))
        return None

    def is_beyond(self, position: Position | None) -> bool:
        """Whether the reader stopped before this position."""
        return self.has_left and (self.last is None or (position is not None and position > self.last))

    def seen_of(self, runs: list[_Run]) -> list[_Run]:
        """The runs that the reader must have received; a stopped reader: only those it may have reached."""
        begin, last = self.begin, self.last
        if not self.has_left:
            return runs
        if begin is None or last is None:
            return []
        return [
            run
            for run in runs
            if run.position is not None and run.position <= last and after(run.position, run.count - 1) >= begin
        ]

    @staticmethod
    def _has(runs: list[_Run], sequence: int) -> bool:
        at = bisect_right(runs, sequence, key=lambda run: run.first) - 1
        return at >= 0 and sequence < runs[at].first + runs[at].count


class Judge:
    """Records the events of one log. A producer's sequences are dense from 0, handed over in order."""

    def __init__(self, log: str = "") -> None:
        self._log = f"{log} " if log else ""
        self._sent: dict[int, int] = {}  # producer -> sequences below this were sent
        self._acknowledged: dict[int, list[_Run]] = {}
        self._refused: dict[int, list[_Run]] = {}
        self._readers: dict[str, _Reader] = {}
        self._reads: dict[str, list[tuple[int, int, int, Position, int]]] = {}
        self._verdict = Verdict()

    def sent(self, producer: int, count: int) -> None:
        """Sequences below `count` of this producer may have been handed over."""
        before = self._sent.get(producer, 0)
        self._sent[producer] = max(before, count)
        self._verdict.sent += self._sent[producer] - before

    def acknowledged(self, producer: int, first: int, count: int, position: Position | None, sent_ns: int = 0) -> None:
        """The system acknowledged a run, from `position` on, or without naming a position (None)."""
        self._acknowledged.setdefault(producer, []).append(_Run(first, count, position, sent_ns))
        self._verdict.acknowledged += count

    def refused(self, producer: int, first: int, count: int, *, unknown: bool) -> None:
        """The system refused a run: it is not in the log; or, if unknown, it may be."""
        if not unknown:
            self._refused.setdefault(producer, []).append(_Run(first, count, None, 0))

    def began(self, reader: str) -> None:
        """Register a reader, so that one that receives nothing is also checked."""
        self._readers.setdefault(reader, _Reader())

    def given(self, reader: str, producer: int, first: int, count: int, position: Position, at_ns: int = 0) -> None:
        """A reader received a run. Call in the order of delivery."""
        self.began(reader)
        reads = self._reads.setdefault(reader, [])
        self._verdict.read += count
        if reads:
            whose, begin, many, begin_at, ns = reads[-1]
            if whose == producer and begin + many == first and position == after(begin_at, many):
                reads[-1] = (whose, begin, many + count, begin_at, ns)
                return
        reads.append((producer, first, count, position, at_ns))

    def broken(self, reader: str, position: Position, text: str) -> None:
        """A reader received a record whose CRC does not match."""
        self.began(reader)
        self._verdict.read += 1
        self._count("invented", 1, f"{reader}: damaged record at {position}: {text}")

    def ended(self, reader: str) -> None:
        """This reader reached the end of the log, after all appends."""
        self.began(reader)
        self._readers[reader].came_to_the_end = True

    def left(self, reader: str) -> None:
        """This reader stopped by itself: it need not have received records after the last one that it got."""
        self.began(reader)
        self._readers[reader].has_left = True

    def finish(self) -> Verdict:
        """The verdict. Call when no append is pending and each reader has reached the tail.

        A reader must have received all records from its first position on.
        """
        verdict = self._verdict
        verdict.unanswered = verdict.sent - verdict.acknowledged
        for runs in (*self._acknowledged.values(), *self._refused.values()):
            runs.sort(key=lambda run: run.first)
        for name, reads in self._reads.items():
            for read in reads:
                self._note(name, *read)
        if not self._readers and verdict.acknowledged:
            self._count("lost", verdict.acknowledged, "no reader received anything")
        for name, reader in self._readers.items():
            self._compare_with_acknowledged(name, reader)
        self._compare_readers()
        return verdict

    def _note(self, name: str, producer: int, first: int, count: int, position: Position, at_ns: int) -> None:
        beyond = first + count - max(first, self._sent.get(producer, 0))
        if beyond > 0:
            self._count("invented", beyond, f"{name}: never sent: {producer}:{first}+{count} at {position}")
        wrong = self._readers[name].note(producer, first, count, position, at_ns)
        if wrong is not None:
            what, many = wrong
            self._count(what, many, f"{name}: {what}: {producer}:{first}+{count} at {position}")

    def _compare_with_acknowledged(self, name: str, reader: _Reader) -> None:
        for producer, runs in self._acknowledged.items():
            mine = reader.runs.get(producer, [])
            for one, other, sequence, count in _walk(reader.seen_of(runs), mine):
                position = one.position_of(sequence)
                if other is None:
                    if reader.is_beyond(position):
                        continue
                    if reader.begin is None or position is None or position >= reader.begin:
                        self._count(
                            "lost",
                            count,
                            f"{name}: never got {producer}:{sequence}+{count}, acknowledged at {position}",
                        )
                    continue
                seen = other.position_of(sequence)
                if position is not None and seen != position:
                    self._count(
                        "misplaced", count, f"{name}: got {producer}:{sequence} at {seen}, acknowledged at {position}"
                    )
                if other.first == sequence and other.ns and one.ns > other.ns:
                    self._count("early", count, f"{name}: got {producer}:{sequence} {one.ns - other.ns} ns too early")
        for producer, refused in self._refused.items():
            for _, other, sequence, count in _walk(refused, reader.runs.get(producer, [])):
                if other is not None:
                    self._count("invented", count, f"{name}: got {producer}:{sequence}+{count}, which was refused")

    def _compare_readers(self) -> None:
        begun = sorted((r.begin, i, r) for i, r in enumerate(self._readers.values()) if r.begin is not None)
        stayed = [r for _, _, r in begun if not r.has_left]
        whole = next((r for r in stayed if r.came_to_the_end), stayed[0] if stayed else None)
        for begin, _, other in begun:
            if other is whole or whole is None or whole.begin is None:
                continue
            for one, another in ((whole, other), (other, whole)):
                for producer, runs in one.runs.items():
                    seen = other.seen_of(runs)
                    for mine, theirs, sequence, count in _walk(seen, another.runs.get(producer, [])):
                        if theirs is None and other.is_beyond(mine.position_of(sequence)):
                            continue
                        self._differ(mine, theirs, sequence, count, max(begin, whole.begin), producer, another is whole)

    def _differ(
        self, mine: _Run, theirs: _Run | None, sequence: int, count: int, begin: Position, producer: int, is_back: bool
    ) -> None:
        position = mine.position_of(sequence)
        assert position is not None, "a record that was read has a position"
        if theirs is not None:
            if theirs.position_of(sequence) != position and is_back:
                where = theirs.position_of(sequence)
                self._count("diverged", count, f"diverged: {producer}:{sequence}+{count} at {position} and at {where}")
        elif position >= begin:
            what = "early" if is_back and self._is_unacknowledged(producer, sequence) else "diverged"
            self._count(
                what, count, f"{what}: {producer}:{sequence}+{count} at {position} for one reader, not for another"
            )

    def _is_unacknowledged(self, producer: int, sequence: int) -> bool:
        return not any(r.first <= sequence < r.first + r.count for r in self._acknowledged.get(producer, ()))

    def _count(self, what: str, many: int, example: str) -> None:
        setattr(self._verdict, what, getattr(self._verdict, what) + many)
        if len(self._verdict.examples) < EXAMPLES:
            self._verdict.examples.append(self._log + example)


def _walk(ones: list[_Run], others: list[_Run]) -> Iterator[tuple[_Run, _Run | None, int, int]]:
    """Cut `ones` where `others` begin and end: (run, the other's run or None, first sequence, how many)."""
    at = 0
    for one in ones:
        sequence, end = one.first, one.first + one.count
        while at and others[at - 1].first + others[at - 1].count > sequence:
            at -= 1  # acknowledged runs may overlap: a producer was acknowledged twice
        while sequence < end:
            while at < len(others) and others[at].first + others[at].count <= sequence:
                at += 1
            there = others[at] if at < len(others) and others[at].first <= sequence else None
            if there is not None:
                stop = min(end, there.first + there.count)
            else:
                stop = min(end, others[at].first) if at < len(others) else end
            yield one, there, sequence, stop - sequence
            sequence = stop


def judge(
    logs: list[str], producers: Iterable[Iterable[Note]], readers: Iterable[tuple[str, Iterable[Note]]]
) -> Verdict:
    """The verdict of all logs together, from histories. Every reader reads every log."""
    judges = [Judge(log if len(logs) > 1 else "") for log in logs]
    for history in producers:
        for note in history:
            match note:
                case Sent(log, producer, count):
                    judges[log].sent(producer, count)
                case AckedRun(log, producer, first, count, position, sent_ns):
                    judges[log].acknowledged(producer, first, count, position, sent_ns)
                case RefusedRun(log, producer, first, count, unknown):
                    judges[log].refused(producer, first, count, unknown=unknown)
                case _:
                    raise ValueError(f"not an event of a producer: {note}")
    for name, history in readers:
        for one in judges:
            one.began(name)
        for note in history:
            match note:
                case ReadRun(log, producer, first, count, position, at_ns):
                    judges[log].given(name, producer, first, count, position, at_ns)
                case Broken(log, position, text):
                    judges[log].broken(name, position, text)
                case End(log):
                    judges[log].ended(name)
                case _:
                    raise ValueError(f"not an event of a reader: {note}")
    verdict = Verdict()
    for one in judges:
        verdict.add(one.finish())
    return verdict
