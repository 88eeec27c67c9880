"""What a region's owner sends: questions to its topics, answers to callers, events.

Invariants:
- A question is answered once: by the reply with its number, by a failure, or by the loss of its topic. Whatever comes
  later is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from dlog.errors import DLogError, UnavailableError
from dlog.events import Event
from dlog.machine import Answer, Effect, Emit, Send
from dlog.region.messages import Question, Reply, Topic, TopicFailed


@dataclass(slots=True)
class _Asked:
    """A question that is not answered."""

    topic: Topic
    then: Callable[[Any], None]
    failed: Callable[[DLogError], None]


class Outbox:
    """Collects the effects of one machine, and knows which questions are not answered."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._number = 0
        self._asked: dict[int, _Asked] = {}

    def take(self) -> list[Effect]:
        """The effects since the last call."""
        effects, self._effects = self._effects, []
        return effects

    def add(self, effect: Effect) -> None:
        self._effects.append(effect)

    def number(self) -> int:
        """A number for the next question."""
        self._number += 1
        return self._number

    def ask(
        self, topic: Topic, question: Question, then: Callable[[Any], None], failed: Callable[[DLogError], None]
    ) -> None:
        """Ask a topic; `then` gets the reply, or `failed` the error."""
        self._asked[question.number] = _Asked(topic, then, failed)
        self._effects.append(Send(topic, question))

    def receive(self, reply: Reply) -> None:
        """A reply came."""
        asked = self._asked.pop(reply.number, None)
        if asked is None:
            return
        if isinstance(reply, TopicFailed):
            asked.failed(reply.error)
        else:
            asked.then(reply)

    def lost(self, topic: Any, reason: str) -> None:
        """The connection to a topic is lost: its questions have failed."""
        for number in [number for number, asked in self._asked.items() if asked.topic == topic]:
            self._asked.pop(number).failed(UnavailableError(f"the topic's connection is lost: {reason}"))

    def answer(self, tickets: Iterable[int], result: Any) -> None:
        """Answer callers' requests, all alike."""
        self._effects += [Answer(ticket, result) for ticket in tickets]

    def emit(self, event: Event) -> None:
        self._effects.append(Emit(event))
