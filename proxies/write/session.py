"""What a client, a tool or a read proxy says to a write proxy on one connection, and what it is told.

The law of this room: a batch costs one count in, one sink, one count out, and no task; its bytes are never
opened. Questions about whole streams are tasks of the process, few at a time for each connection.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from actors.runtime import Lifetime
from dlog.errors import (
    ClosedError,
    DamagedError,
    DLogError,
    InvalidRequestError,
    OwnedElsewhereError,
    RecordTooLargeError,
    StreamUnavailableError,
    UnavailableError,
)
from dlog.io.clock import unix_ms
from dlog.log.messages import BatchWritten, SealStream, TruncateBefore, WriteBatch
from dlog.model.dlsn import DLSN, of
from dlog.model.ids import Txid, stream_name
from dlog.wire.digest import crc32c
from dlog.wire.entry import RECORD_BYTES_MAX, SET_OVERHEAD, record_set_bytes, record_set_count
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
from proxies import catalog
from proxies.connection import Connection
from proxies.questions import Questions
from proxies.write import tails as lac
from proxies.write.acks import AckRuns
from proxies.write.admin import Admin
from proxies.write.admission import Admission
from proxies.write.holdings import Holding, Holdings
from proxies.write.placing import Ours, Placing

VIEWED_BYTES_MIN = 16 * 1024  # a view keeps all that was received with it; a smaller body is copied
TAILS_MAX = 10_000  # on one connection


class House(Protocol):
    """What the sessions of one process share."""

    address: str
    tasks: Lifetime
    admission: Admission
    admin: Admin
    holdings: Holdings
    placing: Placing
    tails: lac.Tails
    connection_bytes_max: int
    batch_bytes_max: int

    def read_proxy(self, stream: str) -> str | None:
        """Address of the read proxy that the ring prefers for a stream."""
        ...

    def proxies(self) -> list[str]:
        """Addresses of all write proxies that live."""
        ...

    async def release(self, stream: str) -> dict[str, Any]:
        """Hand a stream over."""
        ...


class WriteSession:
    """One connection's dealings."""

    def __init__(self, house: House, connection: Connection) -> None:
        self._house = house
        self._connection = connection
        self._acks = AckRuns()
        self._bytes = 0  # of this connection's batches in flight
        self._questions = Questions(house.tasks, connection)
        self._writable = True
        self._tails: dict[int, lac.Tail] = {}
        self._moved: set[lac.Tail] = set()
        self._is_closed = False
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            Write: self._write,
            Ping: self._ping,
            Tail: self._tail,
            Cancel: self._cancel,
            GetOwner: self._get_owner,
            GetOwners: self._get_owners,
            Create: self._create,
            Delete: self._delete,
            Stat: self._stat,
            List: self._list,
            Truncate: self._truncate,
            Seal: self._seal,
            Release: self._release,
            Read: self._read,
            Credit: self._ignore,
        }

    # ---- what the connection tells ----------------------------------------------------------------------------------

    def received(self, message: Message) -> None:
        handler = self._handlers.get(type(message))
        if handler is None:
            raise InvalidRequestError(f"not a question for a write proxy: {type(message).__name__}")
        handler(message)

    def flush(self) -> None:
        for written in self._acks.take():
            self._connection.send(written)
        if self._moved and self._writable:
            moved, self._moved = self._moved, set()
            for tail in moved:
                for told in tail.take():
                    self._connection.send(told)

    def writable(self, yes: bool) -> None:
        self._writable = yes
        if yes and self._moved:
            self._connection.plan_flush()

    def closed(self) -> None:
        self._is_closed = True
        for tail in self._tails.values():
            self._house.tails.remove(tail)
        self._tails.clear()
        self._moved.clear()

    # ---- batches ----------------------------------------------------------------------------------------------------

    def _write(self, m: Write) -> None:
        house = self._house
        size = len(m.body)
        if size > house.batch_bytes_max:
            raise RecordTooLargeError(f"a batch has at most {house.batch_bytes_max} bytes: bytes={size}")
        _check(m)
        cost = house.admission.take(m.stream, size)
        txid = None if m.txid is None else Txid(m.txid)
        since = None if m.since is None else m.since[:2]
        body = m.body if size >= VIEWED_BYTES_MIN else bytes(m.body)
        batch = WriteBatch(body, m.count, txid, m.producer, m.sequence, m.crc, m.retry, unix_ms(), since)
        try:
            house.holdings.submit(m.stream, batch, partial(self._written, m.request, m.stream, cost))
        except DLogError:
            house.admission.give_back(m.stream, cost)
            raise
        self._bytes += cost
        if self._bytes > house.connection_bytes_max:
            self._connection.hold(True)

    def _written(self, request: int, stream: str, cost: int, result: BatchWritten | DLogError) -> None:
        self._house.admission.give_back(stream, cost)
        was_held = self._bytes > self._house.connection_bytes_max
        self._bytes -= cost
        if was_held and self._bytes <= self._house.connection_bytes_max:
            self._connection.hold(False)
        if self._is_closed:
            return
        if isinstance(result, BatchWritten):
            self._acks.add(request, result)
            self._connection.plan_flush()
        elif isinstance(result, ClosedError):  # its owner ended here; the stream goes on elsewhere
            self._connection.fail(request, UnavailableError(result.message, outcome_unknown=result.outcome_unknown))
        else:
            self._connection.fail(request, result)

    # ---- tails ------------------------------------------------------------------------------------------------------

    def _tail(self, m: Tail) -> None:
        if m.request in self._tails or len(self._tails) >= TAILS_MAX:
            raise InvalidRequestError(f"this number tails already, or too many do: request={m.request}")
        holding = self._house.holdings.find(m.stream)
        if holding is None or not holding.serving:
            self._questions.answer(
                m.request, self._owner_of(m.stream, None)
            )  # ends in 302, 515 or 510; a tail takes no stream
            return
        tail = self._tails[m.request] = lac.Tail(self, m.request, m.stream)
        self._house.tails.add(tail)

    def _cancel(self, m: Cancel) -> None:
        tail = self._tails.pop(m.request, None)
        if tail is not None:
            self._moved.discard(tail)
            self._house.tails.remove(tail)

    def lac_moved(self, tail: lac.Tail) -> None:
        self._moved.add(tail)
        self._connection.plan_flush()

    def tail_ended(self, tail: lac.Tail, error: DLogError) -> None:
        del self._tails[tail.request]
        self._moved.discard(tail)
        for told in tail.take():
            self._connection.send(told)
        self._connection.fail(tail.request, error)

    # ---- questions with one answer ----------------------------------------------------------------------------------

    def _ping(self, m: Ping) -> None:
        """Answered behind everything that was to be said before: who asks knows then that it has heard all."""
        self.flush()
        self._connection.send(Done(m.request))

    def _get_owners(self, m: GetOwners) -> None:
        owned = [[h.stream, h.epoch, h.state] for h in self._house.holdings.all]
        self._connection.send(
            Done(m.request, {"owned": owned[: catalog.NAMES_MAX], "more": len(owned) > catalog.NAMES_MAX})
        )

    def _get_owner(self, m: GetOwner) -> None:
        self._questions.answer(m.request, self._find_owner(stream_name(m.stream), m.suspect))

    async def _find_owner(self, stream: str, suspect: str | None) -> dict[str, Any]:
        house = self._house
        holding = house.holdings.find(stream)
        if holding is None and suspect is None:
            advice = await house.placing.judge(stream_name(stream))
            if isinstance(advice, Ours):  # nobody's: the first write takes it
                return self._location(house.address, advice.if_epoch)
            return self._location(advice.address, advice.epoch)
        holding = await house.holdings.ask(stream, None, suspect)
        assert isinstance(holding, Holding)
        return self._location(house.address, holding.epoch)

    async def _owner_of(self, stream: str, suspect: str | None) -> dict[str, Any]:
        """For who would follow an owner: always an error that says where it is, if anywhere."""
        advice = await self._house.placing.judge(stream_name(stream))
        if isinstance(advice, Ours) or not advice.is_owner:
            raise StreamUnavailableError(f"nobody owns the stream now: stream={stream}")
        raise OwnedElsewhereError(f"owned elsewhere: stream={stream}", location=advice.address)

    def _location(self, address: str, epoch: int) -> dict[str, Any]:
        return {"location": address, "epoch": epoch, "proxies": self._house.proxies()}

    def _create(self, m: Create) -> None:
        self._questions.answer(m.request, self._house.admin.create(m.stream, m.settings))

    def _delete(self, m: Delete) -> None:
        self._questions.answer(m.request, self._house.admin.delete(m.stream))

    def _stat(self, m: Stat) -> None:
        self._questions.answer(m.request, self._house.admin.stat(m.stream))

    def _list(self, m: List) -> None:
        self._questions.answer(m.request, self._house.admin.names(m.after, m.limit))

    def _truncate(self, m: Truncate) -> None:
        self._questions.answer(m.request, self._truncate_before(m.stream, of(*m.dlsn)))

    def _seal(self, m: Seal) -> None:
        self._questions.answer(m.request, self._seal_stream(m.stream))

    def _release(self, m: Release) -> None:
        self._questions.answer(m.request, self._house.release(m.stream))

    def _read(self, m: Read) -> None:
        """Somebody came to the wrong door: we know the right one."""
        location = self._house.read_proxy(m.stream)
        if location is None:
            raise StreamUnavailableError("this is a write proxy, and no read proxy is registered")
        self._connection.send(ReaderEvent(m.request, ReaderEventKind.MOVED, {"location": location}))

    def _ignore(self, m: Credit) -> None:
        """For a reader that was sent elsewhere in the meantime."""

    # ---- inside -----------------------------------------------------------------------------------------------------

    async def _truncate_before(self, stream: str, dlsn: DLSN) -> dict[str, Any]:
        first = await self._house.holdings.ask(stream_name(stream), TruncateBefore(dlsn))
        return {"first": list(first)}

    async def _seal_stream(self, stream: str) -> dict[str, Any]:
        await self._house.holdings.ask(stream_name(stream), SealStream())
        return {}


def _check(m: Write) -> None:
    """What is stored under a wrong sum or count would be damaged for every reader: it does not get in."""
    try:
        count, size = record_set_count(m.body), record_set_bytes(m.body)
    except DamagedError as error:
        raise InvalidRequestError(f"the batch is not a record set: {error.message}") from None
    if size + SET_OVERHEAD > RECORD_BYTES_MAX:
        raise RecordTooLargeError(f"a batch has at most {RECORD_BYTES_MAX} bytes, opened too: bytes={size}")
    if count != m.count:
        raise InvalidRequestError(f"the batch holds another number of records: said={m.count} found={count}")
    if crc32c(m.body) != m.crc:
        raise InvalidRequestError("the batch does not match its sum: it changed on its way, or the sum is wrong")
