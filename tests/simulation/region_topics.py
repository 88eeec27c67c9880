"""A model of a topic: appends are durable before they are visible and answered.

Invariants:
- Records become visible in the order of their offsets, once they are durable. A power cut loses what is not durable,
  and its offsets are given out again.
- A request that the network delivers twice is performed twice, or refused twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable
from typing import Any

from dlog.errors import RecordTooLargeError
from dlog.machine import Effect, Fact, PeerLost, Persist, Persisted, Received, Send
from dlog.region.messages import (
    AppendRecords,
    AskOffsets,
    BeforeDeleted,
    DeleteBefore,
    OffsetsFound,
    ReadRecords,
    RecordsAppended,
    RecordsRead,
    TopicFailed,
)
from dlog.region.topics import OffsetOutOfRangeError, OwnerRefusedError, RecordBytes, Stored
from dlog.wire.region import RecordKind

QUESTIONS = (AppendRecords, AskOffsets, DeleteBefore, ReadRecords)
ANSWERS = (BeforeDeleted, OffsetsFound, RecordsAppended, RecordsRead, TopicFailed)


class TopicTransport:
    """Pairs questions and answers by their numbers."""

    def question(self, message: Any) -> Hashable | None:
        return message.number if isinstance(message, QUESTIONS) else None

    def answer(self, message: Any) -> Hashable | None:
        return message.number if isinstance(message, ANSWERS) else None


class TopicModel:
    """The machine of one topic; a new one after a crash, from what was durable."""

    def __init__(
        self,
        rng: random.Random,
        durable: list[tuple[int, Any]],
        *,
        on_append: Callable[[int, tuple[RecordBytes, ...]], None] = lambda offset, records: None,
        on_delete: Callable[[int], None] = lambda offset: None,
        refusals: float = 0.0,
        is_former_owner: Callable[[AppendRecords], bool] = lambda append: False,
    ) -> None:
        """refusals: the part of the batches that are refused, as too large ones are. is_former_owner: whether an append
        is of an owner under whose transactional id another one has begun: it is refused."""
        self.log: list[RecordBytes] = []  # visible
        self.first = 0
        self._rng = rng
        self._on_append = on_append
        self._on_delete = on_delete
        self._refusals = refusals
        self._is_former_owner = is_former_owner
        self._given = 0  # offsets given out
        self._token = 0
        self._done = 0
        self._waiting: dict[int, Callable[[], list[Effect]]] = {}
        for token, data in durable:
            self._token = self._done = token
            self._redo(data)
        self._given = len(self.log)

    @property
    def next(self) -> int:
        return len(self.log)

    def handle(self, fact: Fact) -> list[Effect]:
        match fact:
            case Received(peer, message):
                return self._hear(peer, message)
            case Persisted(upto):
                effects: list[Effect] = []
                for token in range(self._done + 1, upto + 1):
                    effects += self._waiting.pop(token)()
                self._done = upto
                return effects
            case PeerLost():
                return []
        raise AssertionError(f"not a fact of a topic: {fact}")

    def read(self, offset: int, count: int) -> list[Stored]:
        """Visible records. Raises OffsetOutOfRangeError."""
        if not self.first <= offset <= self.next:
            raise OffsetOutOfRangeError(f"not there: offset={offset}", self.first, self.next)
        return [Stored(at, *self.log[at]) for at in range(offset, min(offset + count, self.next))]

    def cut(self, offset: int) -> None:
        """Delete the front, as another program would; that is durable at once."""
        self.first = max(self.first, offset)
        self._on_delete(self.first)

    def _hear(self, peer: Any, message: Any) -> list[Effect]:
        number = message.number
        match message:
            case AppendRecords(_, records) if self._is_refused(peer, message):
                return [Send(peer, TopicFailed(number, RecordTooLargeError("a batch is too large for the topic")))]
            case AppendRecords() if self._is_former_owner(message):
                return [Send(peer, TopicFailed(number, OwnerRefusedError("another owner has appended")))]
            case AppendRecords(_, records):
                offset = self._given
                self._given += len(records)
                return self._persist(("append", records), lambda: [Send(peer, RecordsAppended(number, offset))])
            case ReadRecords(_, offset):
                try:
                    found = self.read(offset, self._rng.choice((1, 2, 5, 20, 100)))
                except OffsetOutOfRangeError as error:
                    return [Send(peer, TopicFailed(number, error))]
                return [Send(peer, RecordsRead(number, tuple(found)))]
            case AskOffsets():
                return [Send(peer, OffsetsFound(number, self.first, self.next))]
            case DeleteBefore(_, offset):
                if offset > self.next:
                    refusal = OffsetOutOfRangeError(f"beyond the end: offset={offset}", self.first, self.next)
                    return [Send(peer, TopicFailed(number, refusal))]
                return self._persist(("delete", offset), lambda: [Send(peer, BeforeDeleted(number))])
        raise AssertionError(f"not a question to a topic: {message}")

    def _is_refused(self, peer: Any, append: AppendRecords) -> bool:
        kind = append.records[0][0][0]
        if not self._refusals or kind not in (RecordKind.ENTRY, RecordKind.TABLE_BEGIN):
            return False
        return random.Random(f"{peer}/{append.number}").random() < self._refusals

    def _persist(self, data: Any, then: Callable[[], list[Effect]]) -> list[Effect]:
        self._token += 1

        def done() -> list[Effect]:
            self._redo(data)
            return then()

        self._waiting[self._token] = done
        return [Persist(self._token, data)]

    def _redo(self, data: Any) -> None:
        kind, argument = data
        if kind == "append":
            self._on_append(len(self.log), argument)
            self.log += argument
        elif argument > self.first:
            self.first = argument
            self._on_delete(argument)
