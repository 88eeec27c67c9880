"""Judges a run: what was promised to producers against what each reader was given.

The law of this room: nothing is assumed of the service. Every record that was sent, every answer, and every record
that a reader was given is noted; the verdict counts what does not fit. An append without an answer may be in the log
once or not at all.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

from dlog.model.dlsn import DLSN
from loadtest.records import Said, read


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
    diverged: int = 0  # two readers were given different records at one place
    examples: list[str] = field(default_factory=list)

    @property
    def is_green(self) -> bool:
        return not (self.lost or self.duplicated or self.reordered or self.misplaced or self.invented or self.diverged)

    def as_json(self) -> dict[str, object]:
        return asdict(self)


class Checker:
    """Notes what happens to one stream. Sequences of a producer are dense from 0, sent in order."""

    def __init__(self) -> None:
        self._sent: dict[int, int] = {}  # producer -> sequences below this were sent
        self._told: dict[Said, DLSN] = {}
        self._readers: dict[str, dict[Said, DLSN]] = {}
        self._last: dict[str, DLSN] = {}
        self._last_of: dict[tuple[str, int], int] = {}
        self._at: dict[DLSN, Said] = {}
        self._verdict = Verdict()

    def sent(self, producer: int, first: int, count: int) -> None:
        """Records first..first+count-1 of this producer were handed to the client."""
        assert self._sent.get(producer, 0) == first, "a producer sends densely"
        self._sent[producer] = first + count
        self._verdict.sent += count

    def acknowledged(self, producer: int, first: int, count: int, dlsn: DLSN) -> None:
        """The service said that they lie at `dlsn` and the slots after it."""
        for i in range(count):
            self._told[Said(producer, first + i)] = dlsn.next_slot(i)
        self._verdict.acknowledged += count

    def given(self, reader: str, dlsn: DLSN, payload: bytes) -> None:
        """A reader was given this record here."""
        verdict = self._verdict
        verdict.read += 1
        seen = self._readers.setdefault(reader, {})
        said = read(payload)
        if said is None or said.sequence >= self._sent.get(said.producer, 0):
            verdict.invented += 1
            self._example(f"invented at {dlsn}: {said or payload[:32]!r}")
            return
        if reader in self._last and dlsn <= self._last[reader]:
            verdict.reordered += 1
            self._example(f"{reader}: {dlsn} after {self._last[reader]}")
        self._last[reader] = dlsn
        if said in seen:
            verdict.duplicated += 1
            self._example(f"{reader}: {said} at {seen[said]} and {dlsn}")
            return
        if said.sequence < self._last_of.get((reader, said.producer), -1):
            verdict.reordered += 1
            self._example(f"{reader}: {said} after sequence {self._last_of[reader, said.producer]}")
        self._last_of[reader, said.producer] = said.sequence
        seen[said] = dlsn
        if self._at.setdefault(dlsn, said) != said:
            verdict.diverged += 1
            self._example(f"{reader}: {said} at {dlsn}, another reader got {self._at[dlsn]}")

    def finish(self) -> Verdict:
        """The verdict, once everything sent is answered or given up and each reader has come to the tail.

        A reader answers for what lies between the first and the last place it was given; whoever read from the start to
        the tail answers for all.
        """
        verdict = self._verdict
        verdict.unanswered = verdict.sent - verdict.acknowledged
        for reader, seen in self._readers.items():
            first = min(seen.values(), default=None)
            for said, told in self._told.items():
                place = seen.get(said)
                if place is None:
                    if first is None or told >= first:
                        verdict.lost += 1
                        self._example(f"{reader}: never got {said}, acknowledged at {told}")
                elif place != told:
                    verdict.misplaced += 1
                    self._example(f"{reader}: got {said} at {place}, acknowledged at {told}")
        if not self._readers:
            verdict.lost = len(self._told)
        return verdict

    def _example(self, text: str) -> None:
        if len(self._verdict.examples) < 10:
            self._verdict.examples.append(text)
