"""Session of one client connection to a read proxy.

Messages for a reader go to its actor (proxies/read/reader.py). Requests for write proxies are forwarded to one.

Invariants:
- while the client does not read what is sent, none of its readers gets entries;
- a batch is redirected to a write proxy, unless the client asked for forwarding: then it is forwarded to the stream's
  owner, in order of arrival.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, get_args

from dlog.errors import (
    DLogError,
    InvalidRequestError,
    OverCapacityError,
    OwnedElsewhereError,
    StreamUnavailableError,
    UnavailableError,
)
from dlog.model.ids import METADATA_STREAM, stream_name
from dlog.wire.proxy import (
    Cancel,
    Credit,
    Done,
    GetOwner,
    GetOwners,
    Hello,
    ObjectsAsk,
    Read,
    ReaderEvent,
    ReaderEventKind,
    Tail,
    Write,
)
from proxies import catalog, dispatch
from proxies.connection import Connection
from proxies.dispatch import Dispatch, kept
from proxies.forwarding import Forwarding
from proxies.read.reader import ReaderActor
from proxies.read.relay import Handed, Relay


class ReadServerContext(dispatch.ServerContext, Protocol):
    """State of the process that read sessions use."""

    readers_per_connection_max: int
    relay: Relay

    def elsewhere(self, read: Read) -> str | None:
        """Address of the read proxy that should serve a read; None: it is this one. Raises InvalidRequestError."""
        ...

    def open_reader(self, connection: Connection, read: Read, on_end: Callable[[], None]) -> ReaderActor:
        """Start a reader. Raises OverCapacityError."""
        ...


class ReadSession(Dispatch):
    """Session of one connection."""

    def __init__(self, server: ReadServerContext, connection: Connection, hello: Hello) -> None:
        super().__init__(server, connection, hello)
        self._server = server
        self._readers: dict[int, ReaderActor] = {}
        self._seeking: dict[str, deque[tuple[Write, int]]] = {}  # stream without a known owner -> batches, costs
        self._handlers |= {
            Read: self._read,
            Credit: self._credit,
            Cancel: self._cancel,
            GetOwners: self._get_owners,
            Write: self._write,
            Tail: self._refuse_wrong_proxy,
            ObjectsAsk: self._refuse_wrong_proxy,
            **dict.fromkeys(get_args(Handed), self._hand_on),
        }

    # ---- called by the connection ------------------------------------------------------------------------------------

    def writable(self, yes: bool) -> None:
        super().writable(yes)
        for reader in tuple(self._readers.values()):
            reader.hold(not yes)

    def closed(self) -> None:
        super().closed()
        readers, self._readers = self._readers, {}
        for reader in readers.values():
            reader.stop()

    # ---- readers ----------------------------------------------------------------------------------------------------

    def _read(self, m: Read) -> None:
        stream_name(m.stream)
        if m.request in self._readers:
            raise InvalidRequestError(f"the request number is in use by a reader: request={m.request}")
        if len(self._readers) >= self._server.readers_per_connection_max:
            raise OverCapacityError("too many readers on this connection, close some first")
        location = None if m.forwarded else self._server.elsewhere(m)
        if location is not None:
            self._connection.send(ReaderEvent(m.request, ReaderEventKind.MOVED, {"location": location}))
            return

        def end() -> None:
            if self._readers.get(m.request) is reader:
                del self._readers[m.request]

        reader = self._server.open_reader(self._connection, m, end)
        self._readers[m.request] = reader
        if not self._is_writable:
            reader.hold(True)

    def _credit(self, m: Credit) -> None:
        reader = self._readers.get(m.request)
        if reader is not None:  # otherwise it has ended meanwhile
            reader.received(m)

    def _cancel(self, m: Cancel) -> None:
        reader = self._readers.pop(m.request, None)
        if reader is not None:
            reader.stop()

    # ---- requests with one reply ------------------------------------------------------------------------------------

    def _get_owners(self, m: GetOwners) -> None:
        if self._forwarding is None:
            self._connection.send(Done(m.request, {"owned": [], "more": False}))
        else:
            self._questions.answer(m.request, self._all_owners(self._forwarding, m))

    async def _all_owners(self, forwarding: Forwarding, m: GetOwners) -> dict[str, Any]:
        """Streams of all write proxies that reply, each with the proxy's address."""
        owned: list[list[Any]] = []
        for address in self._server.relay.addresses(""):
            try:
                reply = await forwarding.ask(m, address)
            except DLogError:
                continue  # its streams will soon have other owners
            owned += [[*one[:3], address] for one in reply.get("owned", ())]
        return {"owned": owned[: catalog.NAMES_MAX], "more": len(owned) > catalog.NAMES_MAX}

    def _hand_on(self, m: Handed) -> None:
        self._answer(m, self._server.relay.ask(m))

    def _refuse_wrong_proxy(self, m: Write | Tail | ObjectsAsk) -> None:
        stream = METADATA_STREAM if isinstance(m, ObjectsAsk) else m.stream
        location = next(iter(self._server.relay.addresses(stream)), None)
        if location is None:
            raise StreamUnavailableError(
                "this is a read proxy and no write proxy is registered: start one, or try again"
            )
        raise OwnedElsewhereError("this is a read proxy: send the request to a write proxy", location=location)

    # ---- batches ----------------------------------------------------------------------------------------------------

    def _write(self, m: Write) -> None:
        forwarding = self._forwarding
        if forwarding is None:
            self._refuse_wrong_proxy(m)
            return
        stream_name(m.stream)
        cost = self._count_in(m)
        kept_body = kept(m.body)
        if kept_body is not m.body:
            m = replace(m, body=kept_body)
        address = forwarding.routes.of(m.stream)
        if address is not None:
            forwarding.write(m, address, partial(self._written, m.request, m.stream, cost))
            return
        waiting = self._seeking.get(m.stream)
        if waiting is not None:
            waiting.append((m, cost))
            return
        self._seeking[m.stream] = deque([(m, cost)])
        self._server.tasks.start_alone(self._seek(forwarding, m.stream), name=f"find the owner of {m.stream}")

    async def _seek(self, forwarding: Forwarding, stream: str) -> None:
        """Find the owner of a stream, then forward the waiting batches in order."""
        failure: DLogError | None = None
        address = ""
        try:
            reply = await self._server.relay.ask(GetOwner(0, stream, forwarding.routes.doubted(stream)))
            address = str(reply.get("location") or "")
        except OwnedElsewhereError as error:
            address, failure = error.location or "", error
        except UnavailableError as error:  # the lookup itself wrote no batch, so the outcome is known
            failure = UnavailableError(error.message)
        except DLogError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - every waiting batch gets it
            failure = DLogError(f"the owner cannot be found: stream={stream} {error!r}")
        for m, cost in self._seeking.pop(stream):
            written = partial(self._written, m.request, m.stream, cost)
            if address:
                forwarding.write(m, address, written)
            else:
                assert failure is not None
                written(
                    UnavailableError(failure.message, outcome_unknown=False) if failure.outcome_unknown else failure
                )
