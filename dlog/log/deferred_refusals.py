"""Delays refusals that depend on the claim until the claim is confirmed.

A refusal may state what is *not* in the log: which sequence is expected, that a repeated batch was not written, that a
truncation point is beyond the end, that a stage is gone and was not imported. If the owner was deposed without knowing
it, this may be false, and the client would write a batch twice.

Invariants:
- Such a refusal is sent only after a read of the stream's metadata, begun after the request came, showed our claim:
  until then no other owner has written. The request is then judged again.
- If the read fails, the request is answered 515 (not taken). If the claim is lost, 504.
- An owner whose segment was fenced sends none: it reads metadata again before it serves, and those reads count.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from dlog.errors import DLogError, OverCapacityError, StreamUnavailableError
from dlog.log.messages import ImportStages, TruncateBefore, WriteBatch
from dlog.log.owner_context import OwnerContext
from dlog.machine import Answer, Ticket

Refusable = WriteBatch | TruncateBefore | ImportStages


class Judge(Protocol):
    """Judges a request; the stream's owner."""

    def judge_confirmed(self, ticket: Ticket, request: Refusable) -> None:
        """Answer or admit a request that came before the read that confirmed the claim."""


class DeferredRefusals:
    """Requests that are to be refused once the claim is confirmed, in the order in which they came."""

    __slots__ = ("_bytes", "_context", "_judge", "_waiting")

    def __init__(self, context: OwnerContext, judge: Judge) -> None:
        self._context = context
        self._judge: Judge | None = judge
        self._waiting: deque[tuple[int, Ticket, Refusable]] = deque()  # with the number of the read that it waits for
        self._bytes = 0

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def defer(self, ticket: Ticket, request: Refusable) -> None:
        """Judge the request again once the claim is confirmed."""
        t, size = self._context, _size(request)
        if self._waiting and self._bytes + size > t.options.pending_bytes_max:
            t.out.append(Answer(ticket, OverCapacityError("too many bytes wait for this stream's metadata")))
            return
        self._bytes += size
        self._waiting.append((t.register.request_read(), ticket, request))

    def progress(self) -> bool:
        """Judge requests again after their read; refuse them if it failed. Returns whether there were any."""
        if not self._waiting:
            return False
        t, before = self._context, len(self._waiting)
        confirmed, failed = t.register.confirmed_read, t.register.failed_read
        while self._waiting and self._waiting[0][0] <= max(confirmed, failed):
            read, ticket, request = self._waiting.popleft()
            self._bytes -= _size(request)
            if read <= confirmed and self._judge is not None:
                self._judge.judge_confirmed(ticket, request)
            else:
                text = f"metadata cannot be read, this owner may have been deposed, send again: stream={t.stream}"
                t.out.append(Answer(ticket, StreamUnavailableError(text)))
        return len(self._waiting) < before

    def fail(self, error: DLogError, not_taken: DLogError) -> None:
        """Refuse all. not_taken: the error for batches; error: for all other requests."""
        for _, ticket, request in self._waiting:
            self._context.out.append(Answer(ticket, not_taken if isinstance(request, WriteBatch) else error))
        self._waiting.clear()
        self._bytes = 0

    def let_go(self) -> None:
        """Drop the reference to the owner."""
        self._judge = None


def _size(request: Refusable) -> int:
    return len(request.body) if isinstance(request, WriteBatch) else 0
