"""What the machines of a node send: questions to services, with repetitions, answers to callers, timers and events.

Invariants:
- A question is answered once: by the reply with its number, by a failure, or by the loss of its service. Whatever comes
  later is ignored.
- A question that is repeated is the same request each time, under a new number. It is repeated however often it fails;
  the pause grows up to a limit.
- After `close` nothing is sent and nothing is received.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dlog.errors import DLogError, Remedy, UnavailableError
from dlog.events import Event
from dlog.machine import Answer, Effect, Emit, Send, SetTimer
from dlog.values import value

Then = Callable[[Any], None]
Failed = Callable[[DLogError], None]


class Service(enum.StrEnum):
    """The services that a node uses, as peers of its machine."""

    CONTROLLER = "controller"
    WAL = "wal"
    STORAGE = "storage"


@value
class Question:
    """A request to a service. number: of this question, in this machine."""

    number: int
    request: Any


@value
class Reply:
    """The answer to the question of that number. result: a DLogError if it failed."""

    number: int
    result: Any


@dataclass(slots=True)
class _Asked:
    """A question that is not answered."""

    service: Service
    then: Then
    failed: Failed


class Outbox:
    """Collects the effects of one machine, and knows which questions are not answered and what waits for a timer.

    trouble: why the last question that was answered is repeated; None: it is not.
    """

    def __init__(self, retry_s: float, retry_max_s: float) -> None:
        self.is_closed = False
        self.trouble: DLogError | None = None
        self._retry_s = retry_s
        self._retry_max_s = retry_max_s
        self._effects: list[Effect] = []
        self._number = 0
        self._asked: dict[int, _Asked] = {}
        self._timers: dict[int, Callable[[], None]] = {}

    def take(self) -> list[Effect]:
        """The effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def close(self) -> None:
        self.is_closed = True
        self._asked.clear()
        self._timers.clear()

    def ask(self, service: Service, request: Any, then: Then, failed: Failed) -> None:
        """Ask a service; `then` gets the reply, or `failed` the error."""
        if self.is_closed:
            return
        self._number += 1
        self._asked[self._number] = _Asked(service, then, failed)
        self._effects.append(Send(service, Question(self._number, request)))

    def repeat(
        self, service: Service, request: Any, then: Then, refused: Failed | None = None, *, attempt: int = 0
    ) -> None:
        """Ask until there is an answer. refused: gets the first error that a retry cannot help; without it all errors
        are taken for such that an operator will mend."""

        def failed(error: DLogError) -> None:
            if refused is not None and error.remedy is not Remedy.RETRY:
                refused(error)
                return
            again = attempt + 1
            self.trouble = error
            self.later(self.pause_s(attempt), lambda: self.repeat(service, request, then, refused, attempt=again))

        self.ask(service, request, then, failed)

    def pause_s(self, attempt: int) -> float:
        """How long to wait after this many failures, and one more."""
        return min(self._retry_s * 2.0 ** min(attempt, 30), self._retry_max_s)

    def later(self, after_s: float, do: Callable[[], None]) -> None:
        """Call `do` after a time."""
        if self.is_closed:
            return
        self._number += 1
        self._timers[self._number] = do
        self._effects.append(SetTimer(("later", self._number), after_s))

    def receive(self, reply: Reply) -> None:
        """A reply came."""
        asked = self._asked.pop(reply.number, None)
        if asked is None:
            return
        self.trouble = None
        if isinstance(reply.result, DLogError):
            asked.failed(reply.result)
        else:
            asked.then(reply.result)

    def lost(self, service: Any, reason: str) -> None:
        """The connection to a service is lost: its questions have failed, with unknown outcome."""
        for number in [number for number, asked in self._asked.items() if asked.service == service]:
            if asked := self._asked.pop(number, None):
                error = UnavailableError(f"the connection is lost: to={service} why={reason}", outcome_unknown=True)
                asked.failed(error)

    def fired(self, key: Any) -> None:
        """A timer fired."""
        if (do := self._timers.pop(key[1], None)) is not None:
            do()

    def answer(self, tickets: Iterable[int], result: Any) -> None:
        """Answer callers' requests, all alike."""
        self._effects += [Answer(ticket, result) for ticket in tickets]

    def emit(self, event: Event) -> None:
        self._effects.append(Emit(event))
