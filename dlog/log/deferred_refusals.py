"""Delays refusals that depend on the claim until the claim is confirmed.

A refusal may state what is *not* in the log: which sequence is expected, or that a repeated batch was not written. If
the owner was deposed without knowing it, that may be false and make the client write the batch twice.

Invariants:
- Such a refusal is sent only after a read of the stream's metadata, begun after the batch came, showed our claim: until
  then no other owner has written. The batch is then judged again.
- If the read fails, the batch is answered 515 (not taken). If the claim is lost, 504.
- An owner whose segment was fenced sends none: it reads metadata again before it serves, and those reads count.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from dlog.errors import DLogError, OverCapacityError, StreamUnavailableError
from dlog.log.messages import WriteBatch
from dlog.log.owner_context import OwnerContext
from dlog.machine import Answer, Ticket


class Judge(Protocol):
    """Judges a batch; the stream's owner."""

    def write(self, ticket: Ticket, request: WriteBatch, *, is_confirmed: bool = False) -> None: ...


class DeferredRefusals:
    """Batches with waiting refusals, by arrival."""

    __slots__ = ("_bytes", "_context", "_judge", "_waiting")

    def __init__(self, context: OwnerContext, judge: Judge) -> None:
        self._context = context
        self._judge: Judge | None = judge
        self._waiting: deque[tuple[int, Ticket, WriteBatch]] = deque()  # with the number of the read that it waits for
        self._bytes = 0

    @property
    def is_waiting(self) -> bool:
        return bool(self._waiting)

    def hold(self, ticket: Ticket, request: WriteBatch) -> None:
        """Judge the batch again once the claim is confirmed."""
        t, size = self._context, len(request.body)
        if self._waiting and self._bytes + size > t.options.pending_bytes_max:
            t.out.append(Answer(ticket, OverCapacityError("too many bytes wait for this stream's metadata")))
            return
        self._bytes += size
        self._waiting.append((t.register.request_read(), ticket, request))

    def progress(self) -> None:
        """Judge batches again after their read; refuse them if it failed."""
        if not self._waiting:
            return
        t = self._context
        confirmed, failed = t.register.confirmed_read, t.register.failed_read
        while self._waiting and self._waiting[0][0] <= max(confirmed, failed):
            read, ticket, request = self._waiting.popleft()
            self._bytes -= len(request.body)
            if read <= confirmed and self._judge is not None:
                self._judge.write(ticket, request, is_confirmed=True)
            else:
                text = f"metadata cannot be read, this owner may have been deposed, send again: stream={t.stream}"
                t.out.append(Answer(ticket, StreamUnavailableError(text)))

    def fail(self, error: DLogError) -> None:
        """Refuse all with `error`."""
        self._context.out.extend(Answer(ticket, error) for _, ticket, _ in self._waiting)
        self._waiting.clear()
        self._bytes = 0

    def let_go(self) -> None:
        """Drop the reference to the owner."""
        self._judge = None
