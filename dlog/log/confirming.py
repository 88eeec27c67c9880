"""Refusals that wait for the claim to be confirmed.

A refusal may say what is *not* in the log: which sequence is expected, that a batch sent before was not written. An
owner that was deposed and does not know it has an old log to judge by, and the client would write the batch again.

Invariants:
- Such a refusal is said only after the stream's metadata was read, beginning after the batch came, and named our claim:
  until then nobody else has written. The batch is judged again then.
- If the read fails the batch is answered 515: not taken, and nothing is said of the log. If the claim is lost, 504.
- An owner whose segment was fenced says none of it: it reads metadata again before it serves, and those reads count.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from dlog.errors import DLogError, OverCapacityError, StreamUnavailableError
from dlog.log.messages import WriteBatch
from dlog.log.tenure import Tenure
from dlog.machine import Answer, Ticket


class Judge(Protocol):
    """Who judges a batch."""

    def write(self, ticket: Ticket, request: WriteBatch, *, is_confirmed: bool = False) -> None: ...


class Confirming:
    """Batches whose refusal waits, in the order in which they came."""

    __slots__ = ("_bytes", "_judge", "_tenure", "_waiting")

    def __init__(self, tenure: Tenure, judge: Judge) -> None:
        self._tenure = tenure
        self._judge: Judge | None = judge
        self._waiting: deque[tuple[int, Ticket, WriteBatch]] = deque()  # with the read that confirms the claim
        self._bytes = 0

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def hold(self, ticket: Ticket, request: WriteBatch) -> None:
        """Judge the batch again once the claim is confirmed."""
        t, size = self._tenure, len(request.body)
        if self._waiting and self._bytes + size > t.options.pending_bytes_max:
            t.out.append(Answer(ticket, OverCapacityError("too many bytes wait for metadata of this stream")))
            return
        self._bytes += size
        self._waiting.append((t.register.request_read(), ticket, request))

    def progress(self) -> None:
        """Judge again, or answer, those whose read is over."""
        if not self._waiting:
            return
        t = self._tenure
        confirmed, failed = t.register.confirmed_read, t.register.failed_read
        while self._waiting and self._waiting[0][0] <= max(confirmed, failed):
            read, ticket, request = self._waiting.popleft()
            self._bytes -= len(request.body)
            if read <= confirmed and self._judge is not None:
                self._judge.write(ticket, request, is_confirmed=True)
            else:
                text = f"metadata cannot be read, so that this owner may have been deposed: stream={t.stream}"
                t.out.append(Answer(ticket, StreamUnavailableError(text)))

    def fail(self, error: DLogError) -> None:
        """Nothing is judged any more."""
        self._tenure.out.extend(Answer(ticket, error) for _, ticket, _ in self._waiting)
        self._waiting.clear()
        self._bytes = 0

    def let_go(self) -> None:
        """Call back no more."""
        self._judge = None
