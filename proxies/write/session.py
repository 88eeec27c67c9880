"""Session of one connection to a write proxy: requests of clients, tools and read proxies, and the replies.

Invariants:
- a batch is counted in once and out once, needs one callback and no task, and its records are never decoded;
- a batch goes to the stream's owner here or, if another proxy owns the stream and the connection asked for
  forwarding, to that proxy behind all batches forwarded before;
- requests about whole streams are tasks of the process, a limited number per connection.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from dlog.errors import (
    DamagedError,
    DLogError,
    InvalidRequestError,
    OwnedElsewhereError,
    RecordTooLargeError,
    StreamUnavailableError,
)
from dlog.io.clock import unix_ms
from dlog.log import messages as asked
from dlog.log.messages import (
    AppendSinkBatch,
    BatchWritten,
    MoveListedSegment,
    SealStream,
    TruncateBefore,
    WriteBatch,
)
from dlog.model.dlsn import of
from dlog.model.ids import EntryId, SegmentNumber, Txid, stream_name
from dlog.model.location import NetworkLocation
from dlog.model.segment import LEDGER
from dlog.model.sink import SinkBatch, sink_name
from dlog.wire.digest import crc32c
from dlog.wire.entry import RECORD_BYTES_MAX, SET_OVERHEAD, record_set_head
from dlog.wire.proxy import (
    Alter,
    Cancel,
    Create,
    Credit,
    Delete,
    Done,
    GetIncarnation,
    GetOwner,
    GetOwners,
    HandOver,
    Hello,
    ImportSegments,
    MoveSegment,
    ObjectsAsk,
    Ping,
    Read,
    ReaderEvent,
    ReaderEventKind,
    Seal,
    SinkWrite,
    Tail,
    Truncate,
    Write,
)
from proxies import catalog, dispatch
from proxies.connection import Connection
from proxies.dispatch import Dispatch, client_location, kept
from proxies.forwarding import Forwarding
from proxies.write import lac_subscriptions as lac
from proxies.write.admin import Admin
from proxies.write.object_controllers import ObjectControllers
from proxies.write.owned_streams import OwnedStream, OwnedStreams
from proxies.write.ownership_advisor import ClaimHere, OwnershipAdvisor

TAILS_MAX = 10_000  # on one connection
ANSWER_PART_BYTES = 512 * 1024  # a part of an answer about metadata: a binary in a result has at most 1 MiB


class WriteServerContext(dispatch.ServerContext, Protocol):
    """State of the process that write sessions use."""

    admin: Admin
    owned_streams: OwnedStreams
    placing: OwnershipAdvisor
    tails: lac.LacSubscriptions
    object_controllers: ObjectControllers

    def read_proxy(self, stream: str, client: NetworkLocation | None) -> str | None:
        """Address of the read proxy that the ring prefers for a stream, near the client."""
        ...

    def proxies(self) -> dict[str, str]:
        """Addresses of all registered proxies that are not suspected, and the region of each."""
        ...

    def other_writers(self) -> list[str]:
        """Addresses of the other write proxies that are not suspected."""
        ...

    def ping_reply(self) -> dict[str, Any]:
        """The fields of the reply to another write proxy's ping."""
        ...

    async def hand_over(self, stream: str, incarnation: str) -> dict[str, Any]:
        """Hand a stream over."""
        ...


class WriteSession(Dispatch):
    """Session of one connection."""

    def __init__(self, server: WriteServerContext, connection: Connection, hello: Hello) -> None:
        super().__init__(server, connection, hello)
        self._server = server
        self._tails: dict[int, lac.LacSubscription] = {}
        self._moved: dict[lac.LacSubscription, None] = {}
        self._handlers |= {
            Write: self._write,
            Tail: self._tail,
            Cancel: self._cancel,
            GetOwner: self._get_owner,
            GetOwners: self._get_owners,
            GetIncarnation: self._incarnation,
            Create: self._create,
            Delete: self._delete,
            Truncate: self._truncate,
            Seal: self._seal,
            Alter: self._alter,
            HandOver: self._hand_over,
            ImportSegments: self._import_segments,
            SinkWrite: self._sink_write,
            MoveSegment: self._move_segment,
            ObjectsAsk: self._objects_ask,
            Read: self._read,
            Credit: self._credit,
        }

    # ---- called by the connection ------------------------------------------------------------------------------------

    def flush(self) -> None:
        super().flush()
        if self._moved and self._is_writable:
            moved, self._moved = self._moved, {}
            for tail in moved:
                for message in tail.take():
                    self._connection.send(message)

    def writable(self, yes: bool) -> None:
        super().writable(yes)
        if yes and self._moved:
            self._connection.plan_flush()

    def closed(self) -> None:
        super().closed()
        for tail in self._tails.values():
            self._server.tails.remove(tail)
        self._tails.clear()
        self._moved.clear()

    def _ping(self, m: Ping) -> None:
        self.flush()
        self._connection.send(Done(m.request, self._server.ping_reply()))

    # ---- batches ----------------------------------------------------------------------------------------------------

    def _write(self, m: Write) -> None:
        forwarding = self._forwarding
        handed_to = None if forwarding is None else forwarding.routes.of(m.stream)
        if forwarding is not None and handed_to is not None:
            cost = self._count_in(m)
            forwarding.write(_kept(m), handed_to, partial(self._written, m.request, m.stream, cost))
            return
        _check(m)
        cost = self._count_in(m)
        txid = None if m.txid is None else Txid(m.txid)
        since = None if m.since is None else m.since[:2]
        body = kept(m.body)
        number, now = (m.producer, m.sequence), unix_ms()
        batch = WriteBatch(body, m.count, txid, *number, m.crc, m.retry, now, since, m.replaces, m.incarnation)
        sink = partial(self._written, m.request, m.stream, cost)
        doubted = None
        if forwarding is not None:
            sink = partial(self._judged, forwarding, m if body is m.body else replace(m, body=body), cost)
            doubted = forwarding.routes.doubted(m.stream)
        try:
            self._server.owned_streams.submit(m.stream, batch, sink, doubted)
        except OwnedElsewhereError as error:
            sink(error)
        except DLogError:
            self._count_out(m.stream, cost)
            raise

    def _judged(self, forwarding: Forwarding, m: Write, cost: int, result: BatchWritten | DLogError) -> None:
        """Handle the result of a batch submitted here: forward it if another proxy owns the stream."""
        written = partial(self._written, m.request, m.stream, cost)
        if isinstance(result, OwnedElsewhereError) and result.location is not None and not self._is_closed:
            forwarding.write(m, result.location, written)
        else:
            written(result)

    # ---- tails ------------------------------------------------------------------------------------------------------

    def _tail(self, m: Tail) -> None:
        if m.request in self._tails or len(self._tails) >= TAILS_MAX:
            raise InvalidRequestError(
                f"the request number is in use, or the connection has too many tails: request={m.request}"
            )
        holding = self._server.owned_streams.find(m.stream)
        if holding is None or not holding.serving:
            self._questions.answer(
                m.request, self._owner_of(m.stream, None)
            )  # replies 302, 515 or 510; a tail causes no take-over
            return
        tail = self._tails[m.request] = lac.LacSubscription(self, m.request, m.stream)
        self._server.tails.add(tail)

    def _cancel(self, m: Cancel) -> None:
        if self._forwarding is not None:
            self._forwarding.cancel(m.request)
        tail = self._tails.pop(m.request, None)
        if tail is not None:
            self._moved.pop(tail, None)
            self._server.tails.remove(tail)

    @property
    def keeps_up(self) -> bool:
        return self._is_writable

    def lac_moved(self, tail: lac.LacSubscription) -> None:
        self._moved[tail] = None
        self._connection.plan_flush()

    def tail_ended(self, tail: lac.LacSubscription, error: DLogError) -> None:
        del self._tails[tail.request]
        self._moved.pop(tail, None)
        for message in tail.take():
            self._connection.send(message)
        self._connection.fail(tail.request, error)

    # ---- requests with one reply ------------------------------------------------------------------------------------

    def _get_owners(self, m: GetOwners) -> None:
        owned: list[list[Any]] = [[h.stream, h.epoch, h.state] for h in self._server.owned_streams.all]
        if self._forwarding is not None:
            self._questions.answer(m.request, self._all_owners(self._forwarding, m, owned))
        else:
            self._connection.send(Done(m.request, _owned(owned)))

    async def _all_owners(self, forwarding: Forwarding, m: GetOwners, own: list[list[Any]]) -> dict[str, Any]:
        """Streams of all write proxies that reply, each with the proxy's address."""
        owned = [[*one, self._server.address] for one in own]
        for address in self._server.other_writers():
            try:
                reply = await forwarding.ask(m, address)
            except DLogError:
                continue  # its streams will soon have other owners
            owned += [[*one[:3], address] for one in reply.get("owned", ())]
        return _owned(owned)

    def _get_owner(self, m: GetOwner) -> None:
        client = client_location(m.region)
        self._questions.answer(m.request, self._find_owner(stream_name(m.stream), m.suspect, client))

    async def _find_owner(self, stream: str, suspect: str | None, client: NetworkLocation | None) -> dict[str, Any]:
        server = self._server
        holding = server.owned_streams.find(stream)
        if holding is None and suspect is None:
            advice = await server.placing.judge(stream_name(stream), client=client)
            if isinstance(advice, ClaimHere):  # without an owner: the first write takes it over
                return self._location(server.address, advice.if_epoch, advice.incarnation, client)
            return self._location(advice.address, advice.epoch, advice.incarnation, client)
        holding = await server.owned_streams.ask(stream, None, suspect)
        assert isinstance(holding, OwnedStream)
        dlsn = server.tails.next_position(stream)
        incarnation = (holding.owner.incarnation if holding.owner is not None else None) or ""
        location = self._location(server.address, holding.epoch, incarnation, client)
        return location | ({} if dlsn is None else {"since": list(dlsn)})

    async def _owner_of(self, stream: str, suspect: str | None) -> dict[str, Any]:
        """For a Tail of a stream not owned here: raises an error that names the owner, if any."""
        advice = await self._server.placing.judge(stream_name(stream))
        if isinstance(advice, ClaimHere) or not advice.is_owner:
            raise StreamUnavailableError(f"no proxy owns the stream now, try again: stream={stream}")
        raise OwnedElsewhereError(f"another proxy owns the stream: stream={stream}", location=advice.address)

    def _location(self, address: str, epoch: int, incarnation: str, client: NetworkLocation | None) -> dict[str, Any]:
        regions = self._server.proxies()
        fields = {"location": address, "epoch": epoch, "incarnation": incarnation, "proxies": [*regions]}
        return fields if client is None else fields | {"regions": regions}

    def _incarnation(self, m: GetIncarnation) -> None:
        self._answer(m, self._server.admin.incarnation(m.stream))

    def _create(self, m: Create) -> None:
        self._answer(m, self._server.admin.create(m.stream, m.settings, m.incarnation, m.deletions))

    def _delete(self, m: Delete) -> None:
        self._answer(m, self._server.admin.delete(m.stream, m.incarnation, force=m.force))

    def _truncate(self, m: Truncate) -> None:
        self._answer(m, self._truncate_before(m))

    def _seal(self, m: Seal) -> None:
        self._answer(m, self._seal_stream(m))

    def _alter(self, m: Alter) -> None:
        self._answer(m, self._server.admin.alter(m.stream, m.settings, m.incarnation, m.version))

    def _hand_over(self, m: HandOver) -> None:
        self._answer(m, self._server.hand_over(m.stream, m.incarnation))

    def _import_segments(self, m: ImportSegments) -> None:
        self._answer(m, self._imported(m))

    def _sink_write(self, m: SinkWrite) -> None:
        _check(m)
        self._answer(m, self._written_once(m))

    def _move_segment(self, m: MoveSegment) -> None:
        self._answer(m, self._segment_moved(m))

    def _objects_ask(self, m: ObjectsAsk) -> None:
        self._questions.answer(m.request, self._decided(bytes(m.body), m.suspect))

    def _read(self, m: Read) -> None:
        """A read sent to a write proxy: redirect it to a read proxy, or forward it."""
        location = self._server.read_proxy(m.stream, client_location(m.region))
        if location is None:
            raise StreamUnavailableError(
                "this is a write proxy and no read proxy is registered: start one, or try again"
            )
        if self._forwarding is None or not m.forwarded:
            self._connection.send(ReaderEvent(m.request, ReaderEventKind.MOVED, {"location": location}))
        elif m.request in self._tails or self._forwarding.carries(m.request):
            raise InvalidRequestError(f"the request number is in use by a reader: request={m.request}")
        else:
            self._forwarding.read(replace(m, region=None), location)  # an older read proxy does not know the field

    def _credit(self, m: Credit) -> None:
        """Ignored for a reader that has been redirected meanwhile."""
        if self._forwarding is not None:
            self._forwarding.credit(m)

    # ---- inside -----------------------------------------------------------------------------------------------------

    async def _ask_owner(self, m: Truncate | Seal | ImportSegments | SinkWrite | MoveSegment, request: Any) -> Any:
        """Send a request to the owner, after checking its incarnation against metadata read now."""
        await self._server.admin.check_incarnation(m.stream, m.incarnation)
        return await self._server.owned_streams.ask(stream_name(m.stream), request)

    async def _decided(self, operation: bytes, suspect: str | None) -> dict[str, Any]:
        answer = await self._server.object_controllers.ask(operation, suspect)
        return {"answer": [answer[at : at + ANSWER_PART_BYTES] for at in range(0, len(answer), ANSWER_PART_BYTES)]}

    async def _truncate_before(self, m: Truncate) -> dict[str, Any]:
        first = await self._ask_owner(m, TruncateBefore(of(*m.dlsn), m.incarnation))
        return {"first": list(first)}

    async def _imported(self, m: ImportSegments) -> dict[str, Any]:
        parts = tuple((name, EntryId(last)) for name, last in m.parts)
        since = None if m.since is None else m.since[:2]
        batch = _batch_of(m) if m.sink else None
        request = asked.ImportStages(batch, parts, LEDGER if m.store is None else m.store, since, m.incarnation)
        taken = await self._ask_owner(m, request)
        fields = {"first": taken.first, "segments": taken.segments, "records": taken.records}
        return fields | {"duplicate": taken.duplicate}

    async def _written_once(self, m: SinkWrite) -> dict[str, Any]:
        stream, batch = stream_name(m.stream), _batch_of(m)
        server, size = self._server, len(m.body)
        if size > server.batch_bytes_max:
            raise RecordTooLargeError(f"the batch is too large: max={server.batch_bytes_max} bytes={size}")
        cost = server.admission.take(stream, size)
        try:
            txid = None if m.txid is None else Txid(m.txid)
            since = None if m.since is None else m.since[:2]
            write = WriteBatch(kept(m.body), m.count, txid, batch.producer, 0, m.crc, True, unix_ms(), since)
            written = await self._ask_owner(m, AppendSinkBatch(batch, write, m.incarnation))
        finally:
            server.admission.give_back(stream, cost)
        dlsn = list(written.dlsn) if written.dlsn.segment else None
        return {"dlsn": dlsn, "count": written.count, "txid": written.txid, "duplicate": written.duplicate}

    async def _segment_moved(self, m: MoveSegment) -> dict[str, Any]:
        number = SegmentNumber(m.segment)
        await self._ask_owner(
            m, MoveListedSegment(number, m.store, m.location, m.to_store, m.to_location, m.incarnation)
        )
        return {}

    async def _seal_stream(self, m: Seal) -> dict[str, Any]:
        await self._ask_owner(m, SealStream(m.incarnation))
        return {}


def _kept(m: Write) -> Write:
    body = kept(m.body)
    return m if body is m.body else replace(m, body=body)


def _owned(owned: list[list[Any]]) -> dict[str, Any]:
    return {"owned": owned[: catalog.NAMES_MAX], "more": len(owned) > catalog.NAMES_MAX}


def _batch_of(m: ImportSegments | SinkWrite) -> SinkBatch:
    return SinkBatch(sink_name(m.sink), m.epoch, sink_name(m.query), m.batch)


def _check(m: Write | SinkWrite) -> None:
    """Refuse a batch whose CRC or record count is wrong, since it would be damaged for every reader."""
    try:
        count, size = record_set_head(m.body)
    except DamagedError as error:
        raise InvalidRequestError(f"the batch is not a record set: {error.message}") from None
    if size + SET_OVERHEAD > RECORD_BYTES_MAX:
        raise RecordTooLargeError(f"the batch is too large when decompressed: max={RECORD_BYTES_MAX} bytes={size}")
    if count != m.count:
        raise InvalidRequestError(f"the batch's record count is wrong: stated={m.count} found={count}")
    if crc32c(m.body) != m.crc:
        raise InvalidRequestError("the batch does not match its CRC32C: it was damaged on its way, or the CRC is wrong")
