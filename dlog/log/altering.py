"""Alteration of a stream's settings by its owner, while the stream is written.

Invariants:
- settings replace only those that they were made from: each alteration has the next version, so a request that is
  repeated or late changes nothing once the settings were altered again;
- a refusal is answered from metadata that was read after the request and has this owner's claim.
"""

from __future__ import annotations

from dlog.errors import DLogError, StaleRequestError, StreamUnavailableError
from dlog.log.changes import AlterSettings
from dlog.log.messages import AlterStream
from dlog.log.owner_context import OwnerContext
from dlog.machine import Answer, Ticket


class SettingsAlteration:
    __slots__ = ("_context", "_waiting")

    def __init__(self, context: OwnerContext) -> None:
        self._context = context
        self._waiting: tuple[tuple[Ticket, AlterSettings], ...] = ()

    def ask(self, ticket: Ticket, request: AlterStream) -> None:
        """Alter the settings; answered once metadata is changed, or shows settings of another version."""
        t = self._context
        if not t.is_held:
            t.out.append(Answer(ticket, StreamUnavailableError("the stream is being taken over: try again")))
            return
        change = AlterSettings(request.settings)
        self._waiting += ((ticket, change),)
        t.register.want(change)

    def done(self, change: AlterSettings) -> None:
        """The change was applied to metadata read after the request, or changes nothing there."""
        now, wanted = self._context.value.settings, change.settings
        if now == wanted:
            self._answer(change, None)
            return
        text = f"the settings were altered meanwhile: version={now.version} wanted={wanted.version}"
        # a higher version may have replaced these settings, if the reply to their own write was lost
        self._answer(change, StaleRequestError(text, outcome_unknown=now.version > wanted.version))

    def refused(self, change: AlterSettings, error: DLogError) -> None:
        """Metadata refused the change."""
        self._answer(change, error)

    def fail(self, unknown: DLogError) -> None:
        """The claim has ended: each change may be in metadata."""
        self._context.out.extend(Answer(ticket, unknown) for ticket, _ in self._waiting)
        self._waiting = ()

    def _answer(self, change: AlterSettings, result: DLogError | None) -> None:
        answered = [ticket for ticket, asked in self._waiting if asked is change]
        self._waiting = tuple(waiting for waiting in self._waiting if waiting[1] is not change)
        self._context.out.extend(Answer(ticket, result) for ticket in answered)
