"""Judges a run: what was promised to producers against what each reader was given.

The law of this room: nothing is assumed of the service. Every record that was sent, every answer, and every record
that a reader was given is noted; the verdict counts what does not fit. An append without an answer may be in the log
once or not at all. Notes are runs of records that lie back to back, so a run of a million records costs little memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field

from dlog.model.dlsn import DLSN
from loadtest.records import read


@dataclass(slots=True)
class Verdict:
    """Counts; all but the first four must be zero."""

    sent: int = 0
    acknowledged: int = 0
    unanswered: int = 0
    read: int = 0
    lost: int = 0  # acknowledged, and a reader that came past its place was not given it
    duplicated: int = 0  # given twice to one reader
    reordered: int = 0  # given out of DLSN order, or a producer's records out of its order
    misplaced: int = 0  # given at another place than the producer was told
    invented: int = 0  # damaged, or never sent
    diverged: int = 0  # two readers were given a record at different places, or one of them was not given it
    examples: list[str] = field(default_factory=list)

    @property
    def is_green(self) -> bool:
        return not (self.lost or self.duplicated or self.reordered or self.misplaced or self.invented or self.diverged)

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class _Run:
    """Sequences first..first+count-1 of one producer, in consecutive slots from `dlsn` on."""

    __slots__ = ("count", "dlsn", "first")

    def __init__(self, first: int, count: int, dlsn: DLSN) -> None:
        self.first = first
        self.count = count
        self.dlsn = dlsn

    def place(self, sequence: int) -> DLSN:
        return self.dlsn.next_slot(sequence - self.first)


class _Reader:
    """What one reader was given. Runs of a producer are in its order, without overlap."""

    def __init__(self) -> None:
        self.begin: DLSN | None = None
        self.last: DLSN | None = None
        self.runs: dict[int, list[_Run]] = {}

    def note(self, producer: int, sequence: int, dlsn: DLSN) -> str | None:
        """Note a record; what is wrong with it, if anything."""
        in_order = self.last is None or dlsn > self.last
        self.begin = self.begin or dlsn
        self.last = dlsn
        if not in_order:
            return "reordered"
        runs = self.runs.setdefault(producer, [])
        run = runs[-1] if runs else None
        if run is not None and sequence < run.first + run.count:
            seen = any(r.first <= sequence < r.first + r.count for r in runs)
            return "duplicated" if seen else "reordered"
        if run is not None and sequence == run.first + run.count and dlsn == run.place(sequence):
            run.count += 1
        else:
            runs.append(_Run(sequence, 1, dlsn))
        return None


class Checker:
    """Notes what happens to one stream. Sequences of a producer are dense from 0, sent in order."""

    def __init__(self) -> None:
        self._sent: dict[int, int] = {}  # producer -> sequences below this were sent
        self._told: dict[int, list[_Run]] = {}
        self._readers: dict[str, _Reader] = {}
        self._verdict = Verdict()

    def sent(self, producer: int, first: int, count: int) -> None:
        """Records first..first+count-1 of this producer were handed to the client."""
        assert self._sent.get(producer, 0) == first, "a producer sends densely"
        self._sent[producer] = first + count
        self._verdict.sent += count

    def acknowledged(self, producer: int, first: int, count: int, dlsn: DLSN) -> None:
        """The service said that they lie at `dlsn` and the slots after it."""
        self._told.setdefault(producer, []).append(_Run(first, count, dlsn))
        self._verdict.acknowledged += count

    def given(self, name: str, dlsn: DLSN, payloads: Sequence[bytes]) -> None:
        """A reader was given these records, at `dlsn` and the slots after it."""
        verdict, sent = self._verdict, self._sent
        reader = self._readers.setdefault(name, _Reader())
        verdict.read += len(payloads)
        for slot, payload in enumerate(payloads):
            place = dlsn.next_slot(slot)
            said = read(payload)
            if said is None or said.sequence >= sent.get(said.producer, 0):
                verdict.invented += 1
                self._example(f"{name}: invented at {place}: {said or payload[:32]!r}")
                continue
            wrong = reader.note(*said, place)
            if wrong is not None:
                setattr(verdict, wrong, getattr(verdict, wrong) + 1)
                self._example(f"{name}: {wrong}: {said} at {place}")

    def finish(self) -> Verdict:
        """The verdict, once everything sent is answered or given up and each reader has come to the tail.

        A reader answers for what lies from the first place on that it was given; whoever read from the start to the
        tail answers for all.
        """
        verdict = self._verdict
        verdict.unanswered = verdict.sent - verdict.acknowledged
        for runs in self._told.values():
            runs.sort(key=lambda run: run.first)
        if not self._readers:
            verdict.lost = verdict.acknowledged
        for name, reader in self._readers.items():
            for producer, told in self._told.items():
                for sequence, place, seen in _walk(told, reader.runs.get(producer, [])):
                    if seen is None and (reader.begin is None or place >= reader.begin):
                        verdict.lost += 1
                        self._example(f"{name}: never got {producer}:{sequence}, acknowledged at {place}")
                    elif seen is not None and seen != place:
                        verdict.misplaced += 1
                        self._example(f"{name}: got {producer}:{sequence} at {seen}, acknowledged at {place}")
        self._compare_readers()
        return verdict

    def _compare_readers(self) -> None:
        begun = sorted((r.begin, i, r) for i, r in enumerate(self._readers.values()) if r.begin is not None)
        for begin, _, other in begun[1:]:
            for producer, runs in begun[0][2].runs.items():
                for sequence, place, seen in _walk(runs, other.runs.get(producer, [])):
                    if seen is not None or place >= begin:
                        self._verdict.diverged += 1
                        self._example(f"diverged: {producer}:{sequence} at {place} and at {seen}")

    def _example(self, text: str) -> None:
        if len(self._verdict.examples) < 10:
            self._verdict.examples.append(text)


def _walk(ones: list[_Run], others: list[_Run]) -> Iterator[tuple[int, DLSN, DLSN | None]]:
    """Sequences of `ones` whose place in `others` is another or none: (sequence, place, place there)."""
    at = 0
    for one in ones:
        sequence, end = one.first, one.first + one.count
        while sequence < end:
            while at < len(others) and others[at].first + others[at].count <= sequence:
                at += 1
            there = others[at] if at < len(others) and others[at].first <= sequence else None
            if there is not None:
                stop = min(end, there.first + there.count)
                if there.place(sequence) != one.place(sequence):
                    yield from ((s, one.place(s), there.place(s)) for s in range(sequence, stop))
            else:
                stop = min(end, others[at].first) if at < len(others) else end
                yield from ((s, one.place(s), None) for s in range(sequence, stop))
            sequence = stop
