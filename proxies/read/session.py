"""What a client says to a read proxy on one connection, and what it is told.

The law of this room: a reader is a machine with a life of its own (proxies/read/reader.py); here its messages are
sorted to it. When the client does not take what we send, none of its readers is fed until it does. Questions that
belong to a write proxy are handed on to one; batches are sent there by their client.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from actors.runtime import Lifetime
from dlog.errors import (
    InvalidRequestError,
    OverCapacityError,
    OwnedElsewhereError,
    StreamUnavailableError,
)
from dlog.model.ids import stream_name
from dlog.wire.proxy import (
    Cancel,
    Create,
    Credit,
    Delete,
    Done,
    GetOwner,
    GetOwners,
    List,
    Message,
    Ping,
    Read,
    ReaderEvent,
    ReaderEventKind,
    Release,
    Seal,
    Stat,
    Tail,
    Truncate,
    Write,
)
from proxies.connection import Connection
from proxies.questions import Questions
from proxies.read.reader import StreamReader
from proxies.read.relay import Handed, Relay


class House(Protocol):
    """What the sessions of one process share."""

    tasks: Lifetime
    readers_per_connection_max: int
    relay: Relay

    def elsewhere(self, stream: str) -> str | None:
        """Address of the read proxy that the ring prefers for a stream; None: it is this one."""
        ...

    def open_reader(self, connection: Connection, read: Read, on_end: Callable[[], None]) -> StreamReader:
        """A reader, begun. Raises OverCapacityError."""
        ...

    async def stat(self, stream: str) -> dict[str, Any]: ...

    async def names(self, after: str, limit: int) -> dict[str, Any]: ...


class ReadSession:
    """One connection's dealings."""

    def __init__(self, house: House, connection: Connection) -> None:
        self._house = house
        self._connection = connection
        self._readers: dict[int, StreamReader] = {}
        self._questions = Questions(house.tasks, connection)
        self._writable = True
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Read: self._read,
            Credit: self._credit,
            Cancel: self._cancel,
            Ping: self._ping,
            Stat: self._stat,
            List: self._list,
            GetOwners: self._get_owners,
            **dict.fromkeys((Create, Delete, Truncate, Seal, GetOwner, Release), self._hand_on),
            **dict.fromkeys((Write, Tail), self._wrong_door),
        }

    # ---- what the connection tells ----------------------------------------------------------------------------------

    def received(self, message: Message) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            raise InvalidRequestError(f"not a question for a read proxy: {type(message).__name__}")
        handler(message)

    def flush(self) -> None:
        """Nothing is gathered here."""

    def writable(self, yes: bool) -> None:
        self._writable = yes
        for reader in tuple(self._readers.values()):
            reader.hold(not yes)

    def closed(self) -> None:
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.stop()

    # ---- readers ----------------------------------------------------------------------------------------------------

    def _read(self, m: Read) -> None:
        stream_name(m.stream)
        if m.request in self._readers:
            raise InvalidRequestError(f"a reader of this number is open: request={m.request}")
        if len(self._readers) >= self._house.readers_per_connection_max:
            raise OverCapacityError("too many readers on this connection")
        location = None if m.forwarded else self._house.elsewhere(m.stream)
        if location is not None:
            self._connection.send(ReaderEvent(m.request, ReaderEventKind.MOVED, {"location": location}))
            return

        def end() -> None:
            if self._readers.get(m.request) is reader:
                del self._readers[m.request]

        reader = self._house.open_reader(self._connection, m, end)
        self._readers[m.request] = reader
        if not self._writable:
            reader.hold(True)

    def _credit(self, m: Credit) -> None:
        reader = self._readers.get(m.request)
        if reader is not None:  # else it has ended meanwhile
            reader.hear(m)

    def _cancel(self, m: Cancel) -> None:
        reader = self._readers.pop(m.request, None)
        if reader is not None:
            reader.stop()

    # ---- questions with one answer ----------------------------------------------------------------------------------

    def _ping(self, m: Ping) -> None:
        self._connection.send(Done(m.request))

    def _get_owners(self, m: GetOwners) -> None:
        self._connection.send(Done(m.request, {"owned": [], "more": False}))

    def _stat(self, m: Stat) -> None:
        self._questions.answer(m.request, self._house.stat(m.stream))

    def _list(self, m: List) -> None:
        self._questions.answer(m.request, self._house.names(m.after, m.limit))

    def _hand_on(self, m: Handed) -> None:
        self._questions.answer(m.request, self._house.relay.ask(m))

    def _wrong_door(self, m: Write | Tail) -> None:
        location = next(iter(self._house.relay.addresses(m.stream)), None)
        if location is None:
            raise StreamUnavailableError("this is a read proxy, and no write proxy is registered")
        raise OwnedElsewhereError("this is a read proxy; ask a write proxy", location=location)
