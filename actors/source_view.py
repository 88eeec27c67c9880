"""A reader's door to the source of its stream (dlog/log/read_messages.py).

The law of this room: entries may be held back, nothing else is; after `close` nothing is posted any more.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dlog.log.read_messages import SOURCE, GetEntries, SourceQuestion, SourceReply
from dlog.machine import Fact, Received


class Source(Protocol):
    """What stands behind a door (actors/stream_tailer.py)."""

    def answer(self, view: View, question: SourceQuestion) -> None:
        """Answer a question through `view.say`, now or when the answer is known."""
        ...

    def detach(self, view: View) -> None:
        """The reader is gone."""
        ...


class View:
    """One reader's door to the source. `post` puts a fact into its machine's mailbox; `on_lost`: the source ended."""

    def __init__(self, source: Source, post: Callable[[Fact], None], on_lost: Callable[[], None]) -> None:
        self.post = post
        self.on_lost = on_lost
        self._source = source
        self._held: list[SourceQuestion] | None = None
        self.is_closed = False
        self.is_sure = False  # metadata has been read since it came
        self.has_seen = False  # its first look at the stream is always a fresh one

    def ask(self, question: SourceQuestion) -> None:
        """Take a question of the reader's machine."""
        if not (isinstance(question, GetEntries) and self.keep(question)):
            self._source.answer(self, question)

    def hold(self, yes: bool) -> None:
        """Hold entries back: whoever reads does not take what it has been sent."""
        if yes:
            self._held = self._held or []
            return
        held, self._held = self._held or [], None
        for question in held:
            self._source.answer(self, question)

    def keep(self, question: GetEntries) -> bool:
        """Whether entries are held back; if so the question is asked again later."""
        if self._held is None:
            return False
        self._held.append(question)
        return True

    def say(self, reply: SourceReply) -> None:
        self.hear(Received(SOURCE, reply))

    def hear(self, fact: Fact) -> None:
        """What is said to many, as one fact for all of them."""
        if not self.is_closed:
            self.post(fact)

    def close(self) -> None:
        """Nothing is posted any more; idempotent."""
        self.is_closed = True
        self._source.detach(self)
