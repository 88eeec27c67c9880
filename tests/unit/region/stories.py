"""Plays a machine of a region against its two topics, question by question, for transcripts."""

from __future__ import annotations

from typing import Any

from dlog.errors import DLogError
from dlog.events import Event
from dlog.machine import Answer, Asked, Effect, Emit, Fact, Machine, Received, Send, SetTimer, TimerFired
from dlog.region.messages import AppendRecords, DeleteBefore, Question, ReadRecords, Topic, TopicFailed
from dlog.wire.region import RecordKind
from tests.unit.region.topic_lists import TopicList


class TopicStory:
    """A machine of a region and its two topics. asked: its questions that are not answered, in order. lines: what it
    asked for."""

    def __init__(self, machine: Machine, data: TopicList | None = None, meta: TopicList | None = None) -> None:
        self.machine = machine
        self.topics = {Topic.DATA: data or TopicList(), Topic.META: meta or TopicList()}
        self.asked: list[tuple[Topic, Question]] = []
        self.results: dict[int, Any] = {}
        self.events: list[Event] = []
        self.timers: list[Any] = []
        self.lines: list[str] = []
        self._ticket = 0

    @property
    def data(self) -> TopicList:
        return self.topics[Topic.DATA]

    def fact(self, fact: Fact) -> None:
        effects: list[Effect] = self.machine.handle(fact)
        for effect in effects:
            match effect:
                case Send(Topic() as topic, question):
                    self.asked.append((topic, question))
                    self.lines.append(_line(topic, question))
                case Answer(ticket, result):
                    assert ticket not in self.results, "answered once"
                    self.results[ticket] = result
                case Emit(event):
                    self.events.append(event)
                case SetTimer(key):
                    self.timers.append(key)
                case _:
                    raise AssertionError(f"not an effect of such a machine: {effect}")

    def ask(self, request: Any) -> int:
        self._ticket += 1
        self.fact(Asked(self._ticket, request))
        return self._ticket

    def answer(self, *, is_made: bool = True, is_answered: bool = True, error: DLogError | None = None) -> Question:
        """Take the oldest question. is_made: the topic does it. is_answered: the owner learns of it; with an error: it
        learns of that instead."""
        topic, question = self.asked.pop(0)
        reply = self.topics[topic].answer(question) if is_made else None
        if error is not None:
            self.fact(Received(topic, TopicFailed(question.number, error)))
        elif reply is not None and is_answered:
            self.fact(Received(topic, reply))
        return question

    def answer_all(self) -> None:
        while self.asked:
            self.answer()

    def do(self, request: Any) -> Any:
        """Ask, with topics that answer everything."""
        ticket = self.ask(request)
        self.answer_all()
        return self.results[ticket]

    def retry(self) -> None:
        assert self.timers.pop(0) == "retry"
        self.fact(TimerFired("retry", 0.0))

    def told(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]


def _line(topic: Topic, question: Question) -> str:
    match question:
        case AppendRecords(_, records):
            kinds = [RecordKind(key[0]).name.lower() for key, _ in records]
            return f"{topic}: append {' '.join(kinds)}"
        case ReadRecords(_, offset):
            return f"{topic}: read {offset}"
        case DeleteBefore(_, offset):
            return f"{topic}: delete below {offset}"
    return f"{topic}: offsets"
