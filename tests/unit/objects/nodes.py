"""Drives a machine of a node by hand: a test answers its questions one by one."""

from __future__ import annotations

from typing import Any, TypeVar

from dlog.machine import Answer, Asked, Effect, Emit, Fact, Received, Send, SetTimer, TimerFired
from dlog.model.ids import Epoch
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectStreamId, WalPosition, WalSegment
from dlog.objects.failover import FailoverWorker
from dlog.objects.node import ObjectNode
from dlog.objects.node_messages import CreateWalSegment, StartNode, WalLocation
from dlog.objects.node_options import NodeOptions
from dlog.objects.operations import BeginWalSegment, Done, NodeIsOpen, OpenNode
from dlog.objects.outbox import Question, Reply
from dlog.wire.node_wal import StreamEntry, WalEntry, WalFrame, encode_wal_entry, stream_entry
from dlog.wire.stream_object import Span

NODE, S1, S2, E1 = NodeId("a"), ObjectStreamId(1), ObjectStreamId(2), Epoch(1)
NEW = NodeIsOpen((), (), WalPosition(0, 0))
T = TypeVar("T")


class Driven:
    """A machine. questions: not answered, in order; answers: by ticket; timers: keys that are set; told: events."""

    def __init__(self, machine: ObjectNode | FailoverWorker) -> None:
        self.machine = machine
        self.questions: list[Question] = []
        self.answers: dict[int, Any] = {}
        self.timers: list[Any] = []
        self.told: list[Any] = []
        self._tickets = 0

    def ask(self, request: Any) -> int:
        self._tickets += 1
        self.tell(Asked(self._tickets, request))
        return self._tickets

    def tell(self, fact: Fact) -> None:
        for effect in self.machine.handle(fact):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        match effect:
            case Send(_, Question() as question):
                self.questions.append(question)
            case Answer(ticket, result):
                assert ticket not in self.answers, "a request is answered once"
                self.answers[ticket] = result
            case SetTimer(key):
                self.timers.append(key)
            case Emit(event):
                self.told.append(event)
            case _:
                raise AssertionError(effect)

    def asked(self, kind: type[T]) -> list[T]:
        """The requests of a kind that are not answered."""
        return [question.request for question in self.questions if isinstance(question.request, kind)]

    def reply(self, kind: type[T], result: Any = None) -> T:
        """Answer the oldest question of a kind, and return its request."""
        question = next(question for question in self.questions if isinstance(question.request, kind))
        self.questions.remove(question)
        self.tell(Received("service", Reply(question.number, result)))
        request: T = question.request
        return request

    def fire(self) -> None:
        """Fire all timers that are set."""
        timers, self.timers = self.timers, []
        for key in timers:
            self.tell(TimerFired(key, 0.0))


def started(state: NodeIsOpen = NEW, **options: Any) -> Driven:
    """A node with epoch 2 that serves."""
    driven = Driven(ObjectNode(NODE, NodeEpoch(2), b"nonce", NodeOptions(**options)))
    ticket = driven.ask(StartNode())
    driven.reply(OpenNode, state)
    create_wal(driven)
    assert driven.answers[ticket] == 2
    return driven


def create_wal(driven: Driven) -> WalSegment:
    """Let the node create a WAL segment and register it."""
    made = driven.reply(CreateWalSegment, WalLocation("file", f"w{driven.asked(CreateWalSegment)[0].number}"))
    assert made.node_epoch == 2
    return driven.reply(BeginWalSegment, Done(1)).segment


def entries(*payloads: bytes) -> tuple[StreamEntry, ...]:
    return tuple(stream_entry(payload, Span(1, 2, 3, 4)) for payload in payloads)


def wal_entry(*frames: tuple[ObjectStreamId, Epoch, int, tuple[bytes, ...]], node_epoch: int = 1) -> bytes:
    """The bytes of a WAL entry."""
    made = tuple(WalFrame(stream, epoch, first, entries(*payloads)) for stream, epoch, first, payloads in frames)
    return b"".join(bytes(part) for part in encode_wal_entry(WalEntry(NodeEpoch(node_epoch), made)))


def wal_segment(number: int, node_epoch: int = 1) -> WalSegment:
    return WalSegment(number, NodeEpoch(node_epoch), "file", f"w{number}")
