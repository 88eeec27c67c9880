"""One reader of one stream on one connection: its machine, the stream's source on one side, the client on the other.

The law of this room: the machine decides what is read and when it ends; here its questions go to the source and its
entries to the connection, and a client that does not take them holds the questions back. A reader ends once, and with
it its hold on the source. One that is stopped says and asks nothing more, however much credit it has left: what waits
for it is dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from actors.registry import Registry
from actors.source_view import View
from actors.stream_tailer import StreamTailer
from dlog.errors import DLogError
from dlog.io.driver import Driver
from dlog.log.read_messages import READER, SOURCE
from dlog.log.reading import ReadingOptions
from dlog.log.reading import StreamReader as ReadingMachine
from dlog.machine import Fact, Peer, PeerLost, Received
from dlog.wire.proxy import Message, Read, ReaderEvent, ReaderEventKind
from proxies.connection import Connection


class StreamReader:
    """Open from `run`'s start to its end. on_end: called once, when the client will hear nothing more from it."""

    def __init__(
        self,
        connection: Connection,
        read: Read,
        tailers: Registry[StreamTailer],
        on_end: Callable[[], None],
        *,
        chunk_bytes: int,
    ) -> None:
        self.request = read.request
        self.stream = read.stream
        self._connection = connection
        self._tailers = tailers
        self._on_end = on_end
        self._machine = ReadingMachine(ReadingOptions(chunk_bytes=chunk_bytes))
        self._driver = Driver(self._machine, name=f"reader {read.stream}", send=self._send)
        self._view: View | None = None
        self._is_held = False
        self._is_stopped = False
        self.hear(read)

    def hear(self, message: Message) -> None:
        """The client says Read, Credit or Cancel."""
        self._driver.post(Received(READER, message))

    def hold(self, yes: bool) -> None:
        """The client does not take (or takes again) what it is sent."""
        self._is_held = yes
        if self._view is not None:
            self._view.hold(yes)

    def move(self, location: str) -> None:
        """End now; the client is told to read on at another proxy."""
        if not self._is_stopped:
            self._connection.send(ReaderEvent(self.request, ReaderEventKind.MOVED, {"location": location}))
            self.stop()

    def stop(self) -> None:
        """End now; the client is told and sent nothing more, and what is held back for it is dropped."""
        self._is_stopped = True
        if self._view is not None:
            self._view.close()
        self._driver.stop()  # it hears what came before: nobody hears what it makes of that

    async def run(self) -> None:
        """Live until the machine ends, `stop`, or the source cannot be had (the client is told)."""
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
            assert self._view is not None, "the machine speaks while it lives"
            self._view.ask(message)
            return
        assert peer == READER, f"a reader speaks to its source and its client: peer={peer}"
        self._connection.send(message)
        if self._machine.has_ended:
            self._driver.stop()

    def _source_lost(self) -> None:
        lost: Fact = PeerLost(SOURCE, "the source ended")
        self._driver.post(lost)


def _nothing() -> None:
    pass
