"""Checks a run of one stream within one process: decodes payloads and passes all events to judge.py.

Every record sent, every acknowledgement and every record read must be reported.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlog.model.dlsn import DLSN
from loadtest.judge import Judge, Verdict
from loadtest.payload import read

__all__ = ["Checker", "Verdict"]


class Checker:
    """Records the events of one stream. Sequences of a producer are dense from 0, sent in order."""

    def __init__(self) -> None:
        self._judge = Judge()
        self._sent: dict[int, int] = {}

    def sent(self, producer: int, first: int, count: int) -> None:
        """Records first..first+count-1 of this producer were handed to the client."""
        assert self._sent.get(producer, 0) == first, "a producer sends densely"
        self._sent[producer] = first + count
        self._judge.sent(producer, first + count)

    def acknowledged(self, producer: int, first: int, count: int, dlsn: DLSN) -> None:
        """These records were acknowledged at `dlsn` and the slots after it."""
        self._judge.acknowledged(producer, first, count, (*dlsn,))

    def given(self, name: str, dlsn: DLSN, payloads: Sequence[bytes]) -> None:
        """A reader received these records, at `dlsn` and the slots after it."""
        for slot, payload in enumerate(payloads):
            position = (*dlsn.next_slot(slot),)
            claim = read(payload)
            if claim is None:
                self._judge.broken(name, position, repr(payload[:32]))
            else:
                self._judge.given(name, claim.producer, claim.sequence, 1, position)

    def left(self, name: str) -> None:
        """This reader stopped: it need not have received records after the last one that it got."""
        self._judge.left(name)

    def finish(self) -> Verdict:
        """The verdict. Call when no append is pending and each reader has reached the tail."""
        return self._judge.finish()
