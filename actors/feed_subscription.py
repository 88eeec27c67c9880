"""One reader's connection to the source of its stream (dlog/log/source_messages.py).

Invariants:
- only requests for entries are held back;
- nothing is posted after `close`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dlog.log.source_messages import SOURCE, GetEntries, SourceQuestion, SourceReply
from dlog.machine import Fact, Received


class Source(Protocol):
    """What a FeedSubscription needs of the source of its stream, which is a StreamFeed."""

    def answer(self, view: FeedSubscription, question: SourceQuestion) -> None:
        """Reply through `view.send`, at once or when the reply is known."""
        ...

    def detach(self, view: FeedSubscription) -> None:
        """The reader is gone."""
        ...


class FeedSubscription:
    """One reader's connection to the source. post: puts a fact into the reader's mailbox; on_lost: the source ended.

    reads_before: metadata reads that had begun when this reader came; what they bring may be older than that.
    """

    def __init__(
        self, source: Source, post: Callable[[Fact], None], on_lost: Callable[[], None], reads_before: int
    ) -> None:
        self.post = post
        self.on_lost = on_lost
        self.reads_before = reads_before
        self._source = source
        self._held: list[SourceQuestion] | None = None
        self.is_closed = False
        self.has_metadata = False  # the first metadata sent to it is always read anew

    def ask(self, question: SourceQuestion) -> None:
        """Take a request of the reader's state machine."""
        if not (isinstance(question, GetEntries) and self.keep(question)):
            self._source.answer(self, question)

    def hold(self, yes: bool) -> None:
        """Hold back requests for entries (the client is slow), or release them."""
        if yes:
            self._held = self._held or []
            return
        held, self._held = self._held or [], None
        for question in held:
            self._source.answer(self, question)

    def keep(self, question: GetEntries) -> bool:
        """Whether entries are held back; if so the request is kept and made again later."""
        if self._held is None:
            return False
        self._held.append(question)
        return True

    def send(self, reply: SourceReply) -> None:
        self.deliver(Received(SOURCE, reply))

    def deliver(self, fact: Fact) -> None:
        """Post a fact to the reader. The object may be shared with other readers."""
        if not self.is_closed:
            self.post(fact)

    def close(self) -> None:
        """Detach and post nothing more; idempotent."""
        self.is_closed = True
        self._source.detach(self)
