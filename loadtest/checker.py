"""Judges a run of one stream inside one process: payloads in, verdict out. The judging is judge.py's.

The law of this file: every record that was sent, every answer, and every record that a reader was given is noted.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlog.model.dlsn import DLSN
from loadtest.judge import Judge, Verdict
from loadtest.records import read

__all__ = ["Checker", "Verdict"]


class Checker:
    """Notes what happens to one stream. Sequences of a producer are dense from 0, sent in order."""

    def __init__(self) -> None:
        self._judge = Judge()
        self._sent: dict[int, int] = {}

    def sent(self, producer: int, first: int, count: int) -> None:
        """Records first..first+count-1 of this producer were handed to the client."""
        assert self._sent.get(producer, 0) == first, "a producer sends densely"
        self._sent[producer] = first + count
        self._judge.sent(producer, first + count)

    def acknowledged(self, producer: int, first: int, count: int, dlsn: DLSN) -> None:
        """The service said that they lie at `dlsn` and the slots after it."""
        self._judge.acknowledged(producer, first, count, (*dlsn,))

    def given(self, name: str, dlsn: DLSN, payloads: Sequence[bytes]) -> None:
        """A reader was given these records, at `dlsn` and the slots after it."""
        for slot, payload in enumerate(payloads):
            place = (*dlsn.next_slot(slot),)
            said = read(payload)
            if said is None:
                self._judge.broken(name, place, repr(payload[:32]))
            else:
                self._judge.given(name, said.producer, said.sequence, 1, place)

    def left(self, name: str) -> None:
        """This reader left: it does not answer for what lies behind the last place that it was given."""
        self._judge.left(name)

    def finish(self) -> Verdict:
        """The verdict, once everything sent is answered or given up and each reader has come to the tail."""
        return self._judge.finish()
