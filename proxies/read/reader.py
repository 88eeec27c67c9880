"""Actor of one reader of one stream on one connection: connects its state machine to the source and the client.

Invariants:
- the state machine decides what is read and when the reader ends;
- while the client does not read, the reader's requests for entries are held back;
- a reader ends once, and then releases its source;
- a stopped reader sends nothing more, however much credit it has; pending entries are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.feed_subscription import FeedSubscription
from actors.registry import Registry
from actors.stream_feed import StreamFeed
from dlog.errors import DLogError
from dlog.io.driver import Driver
from dlog.log.reading import ReadingOptions
from dlog.log.reading import StreamReaderMachine as ReadingMachine
from dlog.log.source_messages import READER, SOURCE
from dlog.machine import Fact, Peer, PeerLost, Received
from dlog.wire.proxy import Message, Read, ReaderEvent, ReaderEventKind
from proxies.connection import Connection


class ReaderActor:
    """One reader, open while `run` runs. read: what the client asked. on_end: called once, after its last message to
    the client."""

    def __init__(
        self,
        connection: Connection,
        read: Read,
        tailers: Registry[StreamFeed],
        on_end: Callable[[], None],
        *,
        chunk_bytes: int,
    ) -> None:
        self.read = read
        self.request = read.request
        self.stream = read.stream
        self._connection = connection
        self._tailers = tailers
        self._on_end = on_end
        self._machine = ReadingMachine(ReadingOptions(chunk_bytes=chunk_bytes))
        self._driver = Driver(self._machine, name=f"reader {read.stream}", send=self._send)
        self._view: FeedSubscription | None = None
        self._is_held = False
        self._is_stopped = False
        self.received(read)

    def received(self, message: Message) -> None:
        """The client sent Read, Credit or Cancel."""
        self._driver.post(Received(READER, message))

    def hold(self, yes: bool) -> None:
        """The client does not read, or reads again, what it is sent."""
        self._is_held = yes
        if self._view is not None:
            self._view.hold(yes)

    def move(self, location: str) -> None:
        """End now and redirect the client to another proxy."""
        if not self._is_stopped:
            self._connection.send(ReaderEvent(self.request, ReaderEventKind.MOVED, {"location": location}))
            self.stop()

    def stop(self) -> None:
        """End now; send nothing more and drop what is held back."""
        self._is_stopped = True
        if self._view is not None:
            self._view.close()
        self._driver.stop()  # it still handles earlier facts; their effects are dropped

    async def run(self) -> None:
        """Run until the state machine ends, `stop`, or the source is not available (the client gets the error)."""
        try:
            async with self._tailers.hold(self.stream) as tailer:
                self._view = tailer.attach(self._driver.post, self._source_lost)
                self._view.hold(self._is_held)
                try:
                    await self._driver.run()
                finally:
                    self._view.close()
        except DLogError as error:
            self._connection.fail(self.request, error)
        except Exception as error:
            self._connection.fail(self.request, DLogError(f"the reader failed: stream={self.stream} {error!r}"))
            raise
        finally:
            on_end, self._on_end, self._view = self._on_end, _nothing, None  # both refer to this object
            on_end()

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _send(self, peer: Peer, message: Any) -> None:
        if self._is_stopped:
            return
        if peer == SOURCE:
            assert self._view is not None, "the state machine sends only while `run` runs"
            self._view.ask(message)
            return
        assert peer == READER, f"a reader sends to its source and its client only: peer={peer}"
        self._connection.send(message)
        if self._machine.has_ended:
            self._driver.stop()

    def _source_lost(self) -> None:
        lost: Fact = PeerLost(SOURCE, "the source ended")
        self._driver.post(lost)


def _nothing() -> None:
    pass
