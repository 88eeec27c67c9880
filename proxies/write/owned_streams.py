"""The streams a write proxy owns: taken over on request, dropped when lost, handed over on shutdown.

A stream that is not written or followed for a while is released: its segment is completed, so that it costs neither
memory here nor a recovery elsewhere, and the next write takes it over again. See docs/decisions/0013.

Invariants:
- a stream has at most one owner here, and requests reach it in order, first those that waited for the take-over;
- a stream is taken over only on advice (proxies/write/ownership_advisor.py), and the claim names the advised epoch;
- a request that waits for a stream that cannot be taken over gets the reason, once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from typing import Any, Protocol

from actors.runtime import TaskScope
from actors.stream_deletion import StreamDeletionActor
from actors.stream_owner import StreamOwnerActor
from actors.supervisor import Supervisor
from dlog.errors import (
    ClosedError,
    DLogError,
    NotEnoughBookiesError,
    OverCapacityError,
    OwnedElsewhereError,
    RequestTimeoutError,
    StreamUnavailableError,
    UnavailableError,
)
from dlog.events import StreamStalled
from dlog.io.driver import Sink
from dlog.log.messages import DeleteStream, StreamAcquired
from dlog.model.ids import Epoch, StreamName, stream_name
from dlog.model.segment import StoreSettings
from proxies.write.ownership_advisor import ClaimHere, GoElsewhere
from proxies.write.takeover_queue import TakeoverQueue

QUIET_S = 1.0  # a stream used within this time is not released, however many there are
RETIRES_AT_ONCE = 8
RELEASE_S = 10.0  # shorter than clients wait for the reply
_NOBODY: frozenset[str] = frozenset()  # shared by all streams: an empty set takes 216 B


async def _nothing_to_wait_for(_: StreamName) -> None:
    """Return at once."""


class Advisor(Protocol):
    """Ownership advice, see Placing (proxies/write/ownership_advisor.py)."""

    async def judge(self, stream: StreamName, doubted: Collection[str] = ()) -> ClaimHere | GoElsewhere: ...

    def preferred(self, stream: str) -> str | None: ...


class OwnedStream:
    """One stream that is being taken over, owned, handed over or deleted."""

    __slots__ = (
        "doubted",
        "epoch",
        "moves",
        "obstacle",
        "owner",
        "serving",
        "state",
        "still",
        "stream",
        "used_s",
        "waiting",
    )

    @property
    def stores_in_use(self) -> frozenset[tuple[str, StoreSettings]]:
        """The stores that the stream needs, each with its settings; empty until known."""
        return frozenset() if self.owner is None else self.owner.stores_in_use

    def __init__(self, stream: StreamName) -> None:
        self.stream = stream
        self.epoch = Epoch(0)
        self.owner: StreamOwnerActor | None = None
        self.serving = False
        self.used_s = 0.0  # event loop time of the last request
        self.obstacle: UnavailableError | None = None  # why it cannot be taken over for now
        self.moves = 0  # how often the owner made progress
        self.still: tuple[int, float] | None = None  # `moves`, and since when it is the same while requests are pending
        self.state = "claiming"  # then serving, draining; or deleting
        self.doubted = _NOBODY  # addresses that failed a client of this stream
        self.waiting: list[tuple[Any, Sink]] = []  # requests for the owner; None: reply when it serves


class OwnedStreams:
    """All streams owned by one process.

    build: makes an owner, not yet started, that calls back at its end. build_deletion: makes a deletion, not yet
    started. waiting_max: requests that may wait for one stream's take-over. on_gone: called when a stream is no longer
    owned here. on_release: awaited before a stream is handed over. is_followed: whether a stream is needed here though
    it is not written, as its LAC has subscribers. may_retire: whether ZooKeeper can be reached,
    without which no stream is released for idleness. is_unfit: whether another proxy, if there is one, should take
    streams over instead of this one. idle_s: a stream unused for so long is released. streams_max: above it streams
    unused for QUIET_S are released, least recently used first. release_s: time limit of a hand-over.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        tasks: TaskScope,
        placement: Advisor,
        build: Callable[[StreamName, Callable[[StreamOwnerActor], None]], StreamOwnerActor],
        *,
        build_deletion: Callable[[StreamName], StreamDeletionActor],
        takes: TakeoverQueue,
        waiting_max: int,
        idle_s: float,
        streams_max: int,
        on_gone: Callable[[StreamName], None],
        on_release: Callable[[StreamName], Awaitable[None]] = _nothing_to_wait_for,
        is_followed: Callable[[str], bool],
        may_retire: Callable[[], bool],
        is_unfit: Callable[[], bool] = lambda: False,
        release_s: float = RELEASE_S,
    ) -> None:
        self.draining = False
        self.retired = 0  # released for idleness so far
        self.takes = takes
        self._supervisor = supervisor
        self._tasks = tasks
        self._placement = placement
        self._build = build
        self._build_deletion = build_deletion
        self._waiting_max = waiting_max
        self._idle_s = idle_s
        self._streams_max = streams_max
        self._on_gone = on_gone
        self._on_release = on_release
        self._is_followed = is_followed
        self._may_retire = may_retire
        self._is_unfit = is_unfit
        self._release_s = release_s
        self._now_s = asyncio.get_running_loop().time
        self._crowded = asyncio.Event()
        self._holdings: dict[str, OwnedStream] = {}
        #: those with pending requests, perhaps others; `has_waiting` and `stuck` remove them
        self._asked: dict[OwnedStream, None] = {}
        self._on_end = self._over  # one bound method for all streams

    def __len__(self) -> int:
        return len(self._holdings)

    @property
    def all(self) -> tuple[OwnedStream, ...]:
        return tuple(self._holdings.values())

    def find(self, stream: str) -> OwnedStream | None:
        """The holding of a stream that this process takes over, owns, hands over or deletes."""
        return self._holdings.get(stream)

    def submit(self, stream: str, request: Any, sink: Sink, doubted: str | None = None) -> None:
        """Send a request to the stream's owner, after a take-over if no other proxy should own the stream.

        sink: called once with the result. request None: only take the stream over; the result is the Holding. doubted:
        an address that failed the client. Raises, without calling `sink`, OverCapacityError, StreamUnavailableError,
        InvalidStreamNameError, NotEnoughBookiesError, UnavailableError (see `stalled`), OwnedElsewhereError (this proxy
        drains or is unfit).
        """
        holding = self._holdings.get(stream)
        if holding is None:
            holding = self._want(stream)
        if holding.serving:
            self._hand(holding, request, sink)
            return
        if holding.obstacle is not None:
            raise type(holding.obstacle)(holding.obstacle.message)
        if doubted is not None:
            holding.doubted |= {doubted}
        if len(holding.waiting) >= self._waiting_max:
            raise OverCapacityError(f"too many requests wait for the stream's take-over, try again: stream={stream}")
        holding.waiting.append((request, sink))

    async def ask(self, stream: str, request: Any, doubted: str | None = None) -> Any:
        """`submit` and wait for the result. Cancelling stops the wait only."""
        # not through a variable: an error raised here would refer to it, and it to the error, in a cycle
        return await self._submitted(stream, request, doubted)

    def _submitted(self, stream: str, request: Any, doubted: str | None) -> asyncio.Future[Any]:
        """`submit`, with the result in a future."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(result: Any) -> None:
            if future.done():
                return
            if isinstance(result, DLogError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.submit(stream, request, settle, doubted)
        return future

    async def hand_over(self, stream: str, incarnation: str | None = None) -> bool:
        """Hand a stream over: finish accepted writes, complete the segment, release the claim. False: not owned here.

        incarnation: only this incarnation; raises StreamUnavailableError if another one is owned here, which may
        itself be the deleted one.

        Requests that come meanwhile wait and are then redirected to the next owner. Raises the owner's errors, and
        after `release_s` RequestTimeoutError (ZooKeeper out of reach: the claim may or may not be released). In any
        case the stream is not owned here afterwards.
        """
        holding = self._holdings.get(stream)
        if holding is None or holding.owner is None or not holding.serving:
            return False
        if incarnation is not None and holding.owner.incarnation != incarnation:
            raise StreamUnavailableError(f"another incarnation of the stream is owned here, try again: stream={stream}")
        holding.serving = False
        holding.state = "draining"
        self._asked[holding] = None
        try:
            async with asyncio.timeout(self._release_s):
                await self._on_release(holding.stream)
                await holding.owner.hand_over()
        except TimeoutError:
            raise RequestTimeoutError(
                f"not handed over within {self._release_s:g} s, ZooKeeper may be out of reach; acknowledged records "
                f"are safe, the claim may or may not be released, and the next write takes it over: stream={stream}"
            ) from None
        finally:
            self._drop(holding, None)
        return True

    async def hand_over_on_request(self, stream: StreamName, incarnation: str) -> None:
        """`hand_over` on a client's request. A stream that is being taken over, or whose owner is gone, is taken over
        first. For a stream without an owner it does nothing.

        Raises OwnedElsewhereError (another proxy owns it, or should), StreamUnavailableError (its owner is changing:
        try again), and the errors of `hand_over` and `ask`.
        """
        if await self.hand_over(stream, incarnation):
            return
        if self.find(stream) is None:
            advice = await self._placement.judge(stream, ())
            if isinstance(advice, GoElsewhere):
                raise OwnedElsewhereError(f"another proxy owns the stream: stream={stream}", location=advice.address)
            if not advice.held_by:
                return
        await self.ask(stream, None)
        if not await self.hand_over(stream, incarnation):
            raise StreamUnavailableError(f"the stream's owner is changing, try again: stream={stream}")

    def drain(self) -> list[StreamName]:
        """Take no more streams over; returns those owned or being taken over. Waiting take-overs are redirected."""
        self.draining = True
        for stream in self.takes.forget_waiting():
            self._drop(self._holdings[stream], None)
        return [holding.stream for holding in self._holdings.values()]

    async def run(self) -> None:
        """Release unused streams, until cancelled."""
        while True:
            is_crowded = len(self._holdings) > self._streams_max
            self._crowded.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(QUIET_S if is_crowded else max(self._idle_s / 4, 0.05)):
                    await self._crowded.wait()
            if self._may_retire() and not self.draining:
                room = asyncio.Semaphore(RETIRES_AT_ONCE)
                async with asyncio.TaskGroup() as group:
                    for stream in self._unused():
                        group.create_task(self._retire(stream, room), name=f"retire {stream}")

    async def delete(self, stream: StreamName, request: DeleteStream) -> None:
        """Claim and fence a stream and mark it as deleted; it is not owned here from now on.

        Requests that come meanwhile wait and then fail. Raises the deletion's errors, StreamUnavailableError (one is
        under way here: try again), and after `release_s` RequestTimeoutError.
        """
        former = self._holdings.get(stream)
        if former is not None:
            if former.state == "deleting":
                raise StreamUnavailableError(f"the stream is being deleted, try again: stream={stream}")
            self.takes.forget(stream)
            if former.owner is not None:
                former.owner.stop()
            self._drop(former, StreamUnavailableError(f"the stream is being deleted: stream={stream}"))
        holding = self._hold(OwnedStream(stream))
        holding.state = "deleting"
        deletion = self._build_deletion(stream)
        self._supervisor.start(deletion)
        try:
            async with asyncio.timeout(self._release_s):
                await deletion.delete(request)
        except TimeoutError:
            raise RequestTimeoutError(
                f"not deleted within {self._release_s:g} s, ZooKeeper may be out of reach; the stream may be deleted "
                f"later, delete it again: stream={stream}"
            ) from None
        finally:
            deletion.stop()
            self._drop(holding, StreamUnavailableError(f"the stream is being deleted: stream={stream}"))

    def lost(self, stream: str, owner: StreamOwnerActor) -> None:
        """The owner lost its claim, or ended. Waiting requests are redirected; if damage ended it, they get that error,
        since the next owner would meet the same damage."""
        holding = self._holdings.get(stream)
        if holding is not None and holding.owner is owner:
            owner.stop()
            self._drop(holding, owner.damage)

    def has_waiting(self) -> bool:
        """Whether a request to an owner here is pending, or a take-over or hand-over is under way."""
        for holding in tuple(self._asked):
            if not holding.serving or (holding.owner is not None and holding.owner.waiting):
                return True
            del self._asked[holding]
        return False

    def moved(self, stream: str) -> None:
        """The stream's owner became ready or confirmed an entry."""
        holding = self._holdings.get(stream)
        if holding is not None:
            holding.moves += 1

    def stuck(self, for_s: float) -> list[OwnedStream]:
        """The take-overs, and the owners with pending requests, that have made no progress for `for_s` seconds.
        Progress is noticed between two calls, so it must be called regularly."""
        now_s, found = self._now_s(), []
        for holding in tuple(self._asked):
            still_s = self._still_s(holding, now_s)
            if still_s >= for_s:
                found.append(holding)
            elif still_s < 0 and holding.serving:
                del self._asked[holding]
        return found

    def give_up_stuck(self, for_s: float, is_hit: Callable[[OwnedStream], bool]) -> None:
        """Give up, of the take-overs and the streams with pending requests that made no progress for `for_s` seconds,
        those that `is_hit` names; another proxy may claim them. Requests waiting for a take-over are redirected; those
        an owner has begun end with an unknown outcome."""
        now_s = self._now_s()
        for holding in [h for h in self._asked if self._still_s(h, now_s) >= for_s and is_hit(h)]:
            if holding.state == "claiming":
                self.takes.forget(holding.stream)
                if holding.owner is not None:
                    holding.owner.stop()
                self._drop(holding, None)
            elif holding.owner is not None:
                self.lost(holding.stream, holding.owner)

    @staticmethod
    def _still_s(holding: OwnedStream, now_s: float) -> float:
        """For how long a take-over or a stream with pending requests has made no progress; -1: nothing is pending."""
        is_served = holding.state == "serving" and holding.owner is not None and holding.owner.waiting
        if not is_served and holding.state != "claiming":
            holding.still = None
            return -1.0
        if holding.still is None or holding.still[0] != holding.moves:
            holding.still = (holding.moves, now_s)
        return now_s - holding.still[1]

    def stalled(self, owner: StreamOwnerActor, event: StreamStalled) -> None:
        """The owner cannot begin to serve for now: fail the waiting requests and those that come meanwhile."""
        stream = event.stream
        holding = self._holdings.get(stream)
        if holding is None or holding.owner is not owner or holding.serving:
            return
        kind = NotEnoughBookiesError if event.needs_bookies else UnavailableError
        holding.obstacle = kind(f"not written, no segment to write to: {event.reason}")
        waiting, holding.waiting = holding.waiting, []
        for _, sink in waiting:
            sink(kind(holding.obstacle.message))
        self.takes.let_go(stream)

    def elsewhere(self, stream: str) -> OwnedElsewhereError:
        """A redirect to the proxy that the ring prefers for the stream."""
        location = self._placement.preferred(stream)
        return OwnedElsewhereError(f"this proxy does not serve the stream: stream={stream}", location=location)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _want(self, stream: str) -> OwnedStream:
        if self.draining or (self._is_unfit() and self._placement.preferred(stream) is not None):
            raise self.elsewhere(stream)
        holding = OwnedStream(stream_name(stream))
        self.takes.add(stream, lambda: self._take(holding))
        return self._hold(holding)

    def _hold(self, holding: OwnedStream) -> OwnedStream:
        self._holdings[holding.stream] = holding
        self._asked[holding] = None
        return holding

    async def _take(self, holding: OwnedStream) -> None:
        try:
            advice = await self._advice(holding)
            if isinstance(advice, GoElsewhere):
                raise OwnedElsewhereError(
                    f"another proxy owns the stream: stream={holding.stream}", location=advice.address
                )
            if self._holdings.get(holding.stream) is not holding:
                return
            taken = await self._begin(holding, advice)
        except DLogError as error:
            if holding.owner is not None:
                holding.owner.stop()
            self._drop(holding, error)
            return
        except Exception as error:
            self._drop(holding, DLogError(f"the stream cannot be taken over: stream={holding.stream} {error!r}"))
            raise
        if self._holdings.get(holding.stream) is not holding:
            return  # it was deleted meanwhile
        holding.epoch = taken.epoch
        holding.serving = True
        holding.obstacle = None
        holding.state = "serving"
        holding.used_s = self._now_s()
        if len(self._holdings) > self._streams_max:
            self._crowded.set()
        waiting, holding.waiting = holding.waiting, []
        for request, sink in waiting:
            try:
                self._hand(holding, request, sink)
            except DLogError as error:
                sink(error)

    async def _advice(self, holding: OwnedStream) -> ClaimHere | GoElsewhere:
        while True:
            doubted = holding.doubted
            advice = await self._placement.judge(holding.stream, doubted)
            if isinstance(advice, ClaimHere) or holding.doubted == doubted:
                return advice

    async def _begin(self, holding: OwnedStream, advice: ClaimHere) -> StreamAcquired:
        owner = self._build(holding.stream, self._on_end)
        holding.owner = owner
        self._supervisor.start(owner)
        return await owner.take(advice.if_epoch)

    def _over(self, owner: StreamOwnerActor) -> None:
        self.lost(owner.stream, owner)

    def _hand(self, holding: OwnedStream, request: Any, sink: Sink) -> None:
        assert holding.owner is not None, "a served stream has an owner"
        if request is None:
            sink(holding)
            return
        holding.used_s = self._now_s()
        self._asked[holding] = None
        try:
            holding.owner.submit(request, sink)
        except ClosedError:
            raise StreamUnavailableError(
                f"the stream's owner has just ended, try again: stream={holding.stream}"
            ) from None

    def _unused(self) -> list[StreamName]:
        """Streams that may be released now."""
        now_s = self._now_s()
        quiet = [
            holding
            for holding in self._holdings.values()
            if holding.serving
            and now_s - holding.used_s >= min(QUIET_S, self._idle_s)
            and holding.owner is not None
            and not holding.owner.waiting
            and not self._is_followed(holding.stream)
        ]
        quiet.sort(key=lambda holding: holding.used_s)
        excess = len(self._holdings) - self._streams_max
        return [h.stream for n, h in enumerate(quiet) if n < excess or now_s - h.used_s >= self._idle_s]

    async def _retire(self, stream: StreamName, room: asyncio.Semaphore) -> None:
        async with room:
            try:
                released = await self.hand_over(stream)
            except DLogError:
                return  # it was lost meanwhile, with the same result
            self.retired += released

    def _drop(self, holding: OwnedStream, error: DLogError | None) -> None:
        """Remove a stream. error: for its waiting requests; None: they are redirected."""
        if self._holdings.get(holding.stream) is not holding:
            return
        del self._holdings[holding.stream]
        self._asked.pop(holding, None)
        holding.serving = False
        waiting, holding.waiting = holding.waiting, []
        for _, sink in waiting:
            sink(error if error is not None else self._next(holding))
        self._on_gone(holding.stream)

    def _next(self, holding: OwnedStream) -> DLogError:
        location = self._placement.preferred(holding.stream)
        if location is None:
            return StreamUnavailableError(f"no proxy serves the stream now, try again: stream={holding.stream}")
        return OwnedElsewhereError(f"another proxy serves the stream now: stream={holding.stream}", location=location)
