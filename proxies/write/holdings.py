"""The streams of this process: taken when somebody wants them, given up when they are lost, handed over when we drain.

The law of this room:
- at most one owner a stream lives here, and a request reaches it in the order it came, those that came while the stream
  was being taken first;
- a stream is taken only on advice (proxies/write/placing.py), and the claim names the epoch that was advised;
- whoever waits for a stream that is not taken in the end, or cannot be for now, hears why, once;
- a stream that nobody writes or follows for a while is handed back: its segment is completed, so it costs neither
  memory here nor a recovery elsewhere, and the next write takes it again. See docs/decisions/0013.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, Protocol

from actors.runtime import Lifetime
from actors.stream_deletion import StreamDeletion
from actors.stream_owner import StreamOwner
from actors.supervisor import Supervisor
from dlog.errors import (
    ClosedError,
    DLogError,
    NotEnoughBookiesError,
    OverCapacityError,
    OwnedElsewhereError,
    RequestTimeoutError,
    StreamUnavailableError,
)
from dlog.io.driver import Sink
from dlog.log.messages import DeleteStream, StreamTaken
from dlog.model.ids import Epoch, StreamName, stream_name
from proxies.write.placing import Ours, Theirs
from proxies.write.takes import Takes

QUIET_S = 1.0  # a stream that was used since then is not handed back, however many there are
RETIRES_AT_ONCE = 8
RELEASE_S = 10.0  # below what who asks for it waits for an answer
_NOBODY: frozenset[str] = frozenset()  # one for all streams: an empty one has 216 B


class Placement(Protocol):
    """Who should own a stream (proxies/write/placing.py)."""

    async def judge(self, stream: StreamName, doubted: Collection[str] = ()) -> Ours | Theirs: ...

    def preferred(self, stream: str) -> str | None: ...


class Holding:
    """One stream that is being taken, owned, or being handed over."""

    __slots__ = (
        "doubted",
        "epoch",
        "obstacle",
        "owner",
        "serving",
        "state",
        "stream",
        "used_s",
        "waiting",
    )

    def __init__(self, stream: StreamName) -> None:
        self.stream = stream
        self.epoch = Epoch(0)
        self.owner: StreamOwner | None = None
        self.serving = False
        self.used_s = 0.0  # loop's time of the last request
        self.obstacle = ""  # why it cannot be taken for now
        self.state = "claiming"  # then serving, draining; or deleting
        self.doubted = _NOBODY  # addresses that failed somebody who wants this stream
        self.waiting: list[tuple[Any, Sink]] = []  # requests for the owner, None for "tell me when it serves"


class Holdings:
    """All holdings of one process.

    build: makes an owner, not yet alive, that calls back when its life ends. build_deletion: makes a deletion, not yet
    alive. waiting_max: how many requests may wait
    for one stream to be taken. on_gone: called when a stream is not owned here any more. is_followed: whether somebody
    listens to a stream's LAC. may_retire: whether metadata can be reached, without which nothing is handed back.
    is_unfit: whether another proxy, if there is one, should take streams rather than this one.
    idle_s: a stream that was not used for so long is handed back. streams_max: beyond so many those are handed back
    that were not used for QUIET_S, least recently used first. release_s: how long a stream may take to be handed over.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        tasks: Lifetime,
        placement: Placement,
        build: Callable[[StreamName, Callable[[StreamOwner], None]], StreamOwner],
        *,
        build_deletion: Callable[[StreamName], StreamDeletion],
        takes: Takes,
        waiting_max: int,
        idle_s: float,
        streams_max: int,
        on_gone: Callable[[StreamName], None],
        is_followed: Callable[[str], bool],
        may_retire: Callable[[], bool],
        is_unfit: Callable[[], bool] = lambda: False,
        release_s: float = RELEASE_S,
    ) -> None:
        self.draining = False
        self.retired = 0  # so far
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
        self._is_followed = is_followed
        self._may_retire = may_retire
        self._is_unfit = is_unfit
        self._release_s = release_s
        self._now_s = asyncio.get_running_loop().time
        self._crowded = asyncio.Event()
        self._holdings: dict[str, Holding] = {}
        self._asked: dict[Holding, None] = {}  # all of which something may wait; others only until `has_waiting` looks
        self._on_end = self._over  # one for all streams, as every other that is told of each

    def __len__(self) -> int:
        return len(self._holdings)

    @property
    def all(self) -> tuple[Holding, ...]:
        return tuple(self._holdings.values())

    def find(self, stream: str) -> Holding | None:
        """The holding of a stream that this process takes, owns or hands over."""
        return self._holdings.get(stream)

    def submit(self, stream: str, request: Any, sink: Sink, doubted: str | None = None) -> None:
        """Ask the stream's owner, taking the stream if nobody else should own it; `sink` hears the answer once.

        request None: only take it; the answer is the Holding. doubted: an address that failed the asker. Raises
        OverCapacityError, StreamUnavailableError, InvalidStreamNameError, NotEnoughBookiesError, OwnedElsewhereError
        (we drain): then nothing was taken and the sink hears nothing.
        """
        holding = self._holdings.get(stream)
        if holding is None:
            holding = self._want(stream)
        if holding.serving:
            self._hand(holding, request, sink)
            return
        if holding.obstacle:
            raise NotEnoughBookiesError(holding.obstacle)
        if doubted is not None:
            holding.doubted |= {doubted}
        if len(holding.waiting) >= self._waiting_max:
            raise OverCapacityError(f"too many requests wait for this stream: stream={stream}")
        holding.waiting.append((request, sink))

    async def ask(self, stream: str, request: Any, doubted: str | None = None) -> Any:
        """`submit` with a wait. Cancelling forgets the waiter only."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def settle(result: Any) -> None:
            if future.done():
                return
            if isinstance(result, DLogError):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.submit(stream, request, settle, doubted)
        return await future

    async def release(self, stream: str, life: str | None = None) -> bool:
        """Hand a stream over: finish what was taken, complete its segment, give the claim back. False: not ours.

        life: hand over only this stream of that name; raises StreamUnavailableError if another one is owned here, which
        may itself be the one that is gone.

        What comes meanwhile waits and is then sent to the next owner. Raises what the owner answers, and after
        `release_s` RequestTimeoutError (metadata cannot be reached: the claim may or may not be given back); the stream
        is not owned here afterwards in any case.
        """
        holding = self._holdings.get(stream)
        if holding is None or holding.owner is None or not holding.serving:
            return False
        if life is not None and holding.owner.life != life:
            raise StreamUnavailableError(f"not owned here in this life, ask again: stream={stream}")
        holding.serving = False
        holding.state = "draining"
        self._asked[holding] = None
        try:
            async with asyncio.timeout(self._release_s):
                await holding.owner.release()
        except TimeoutError:
            raise RequestTimeoutError(
                f"not handed over within {self._release_s:g} s, metadata may be out of reach; what was acknowledged is "
                f"safe, the claim may or may not be given back, and who writes next takes it: stream={stream}"
            ) from None
        finally:
            self._drop(holding, None)
        return True

    async def hand_back(self, stream: StreamName, life: str) -> None:
        """`release` for who asks for it. A stream that is being taken, or whose owner is gone, is taken first. Of one
        that nobody owns there is nothing to do.

        Raises OwnedElsewhereError (it is, or would be, another's), StreamUnavailableError (its owner changes just now:
        ask again), and what `release` and `ask` raise.
        """
        if await self.release(stream, life):
            return
        if self.find(stream) is None:
            advice = await self._placement.judge(stream, ())
            if isinstance(advice, Theirs):
                raise OwnedElsewhereError(f"owned elsewhere: stream={stream}", location=advice.address)
            if not advice.held_by:
                return
        await self.ask(stream, None)
        if not await self.release(stream, life):
            raise StreamUnavailableError(f"its owner changes just now, ask again: stream={stream}")

    def drain(self) -> list[StreamName]:
        """Take nothing more; returns what is owned, or being taken. What waits for its turn is sent on."""
        self.draining = True
        for stream in self.takes.forget_waiting():
            self._drop(self._holdings[stream], None)
        return [holding.stream for holding in self._holdings.values()]

    async def run(self) -> None:
        """Hand back what is not used; live until cancelled."""
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
        """Have a stream claimed, fenced and marked as deleted; it is not owned here from now on.

        What comes meanwhile waits and then hears that it is deleted. Raises what the deletion answers, and
        StreamUnavailableError (a deletion is under way here: ask again); after `release_s` RequestTimeoutError.
        """
        former = self._holdings.get(stream)
        if former is not None:
            if former.state == "deleting":
                raise StreamUnavailableError(f"the stream is being deleted, ask again: stream={stream}")
            self.takes.forget(stream)
            if former.owner is not None:
                former.owner.stop()
            self._drop(former, StreamUnavailableError(f"the stream is being deleted: stream={stream}"))
        holding = self._hold(Holding(stream))
        holding.state = "deleting"
        deletion = self._build_deletion(stream)
        self._supervisor.start(deletion)
        try:
            async with asyncio.timeout(self._release_s):
                await deletion.delete(request)
        except TimeoutError:
            raise RequestTimeoutError(
                f"not deleted within {self._release_s:g} s, metadata may be out of reach; it may be deleted yet, "
                f"delete it again: stream={stream}"
            ) from None
        finally:
            deletion.stop()
            self._drop(holding, StreamUnavailableError(f"the stream is being deleted: stream={stream}"))

    def lost(self, stream: str, owner: StreamOwner) -> None:
        """The owner told that it lost the stream, or its life is over."""
        holding = self._holdings.get(stream)
        if holding is not None and holding.owner is owner:
            owner.stop()
            self._drop(holding, None)

    def has_waiting(self) -> bool:
        """Whether a request waits for an owner here, or a take-over is under way."""
        for holding in tuple(self._asked):
            if not holding.serving or (holding.owner is not None and holding.owner.waiting):
                return True
            del self._asked[holding]
        return False

    def has_takes(self) -> bool:
        """Whether a take-over is under way."""
        return any(h.state == "claiming" for h in self._holdings.values())

    def give_up_takes(self) -> None:
        """Send those who wait for a take-over to another proxy, which may claim the stream from us."""
        for holding in [h for h in self._holdings.values() if h.state == "claiming"]:
            self.takes.forget(holding.stream)
            if holding.owner is not None:
                holding.owner.stop()
            self._drop(holding, None)

    def give_up_stuck(self) -> None:
        """Give up the streams of which a request waits, and send those who wait to another proxy, which may claim them.
        What an owner has begun ends with an unknown outcome."""
        self.give_up_takes()
        for holding in [h for h in self._holdings.values() if h.state == "serving"]:
            if holding.owner is not None and holding.owner.waiting:
                self.lost(holding.stream, holding.owner)

    def stalled(self, stream: str, owner: StreamOwner, reason: str) -> None:
        """The owner cannot begin to serve for now: whoever waits hears so, and who comes meanwhile."""
        holding = self._holdings.get(stream)
        if holding is None or holding.owner is not owner or holding.serving:
            return
        holding.obstacle = f"not written, no segment to write to: {reason}"
        waiting, holding.waiting = holding.waiting, []
        for _, sink in waiting:
            sink(NotEnoughBookiesError(holding.obstacle))
        self.takes.let_go(stream)

    def elsewhere(self, stream: str) -> OwnedElsewhereError:
        """Where the stream will be served, as far as the ring can tell."""
        location = self._placement.preferred(stream)
        return OwnedElsewhereError(f"not served here: stream={stream}", location=location)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _want(self, stream: str) -> Holding:
        if self.draining or (self._is_unfit() and self._placement.preferred(stream) is not None):
            raise self.elsewhere(stream)
        holding = Holding(stream_name(stream))
        self.takes.add(stream, lambda: self._take(holding))
        return self._hold(holding)

    def _hold(self, holding: Holding) -> Holding:
        self._holdings[holding.stream] = holding
        self._asked[holding] = None
        return holding

    async def _take(self, holding: Holding) -> None:
        try:
            advice = await self._advice(holding)
            if isinstance(advice, Theirs):
                raise OwnedElsewhereError(f"not owned here: stream={holding.stream}", location=advice.address)
            if self._holdings.get(holding.stream) is not holding:
                return
            taken = await self._begin(holding, advice)
        except DLogError as error:
            if holding.owner is not None:
                holding.owner.stop()
            self._drop(holding, error)
            return
        except Exception as error:
            self._drop(holding, DLogError(f"the stream cannot be taken: stream={holding.stream} {error!r}"))
            raise
        if self._holdings.get(holding.stream) is not holding:
            return  # it was deleted meanwhile
        holding.epoch = taken.epoch
        holding.serving = True
        holding.obstacle = ""
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

    async def _advice(self, holding: Holding) -> Ours | Theirs:
        while True:
            doubted = holding.doubted
            advice = await self._placement.judge(holding.stream, doubted)
            if isinstance(advice, Ours) or holding.doubted == doubted:
                return advice

    async def _begin(self, holding: Holding, advice: Ours) -> StreamTaken:
        owner = self._build(holding.stream, self._on_end)
        holding.owner = owner
        self._supervisor.start(owner)
        return await owner.take(advice.if_epoch)

    def _over(self, owner: StreamOwner) -> None:
        self.lost(owner.stream, owner)

    def _hand(self, holding: Holding, request: Any, sink: Sink) -> None:
        assert holding.owner is not None, "a stream that is served has an owner"
        if request is None:
            sink(holding)
            return
        holding.used_s = self._now_s()
        self._asked[holding] = None
        try:
            holding.owner.submit(request, sink)
        except ClosedError:
            raise StreamUnavailableError(f"its owner has just ended, ask again: stream={holding.stream}") from None

    def _unused(self) -> list[StreamName]:
        """What may be handed back now."""
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
                released = await self.release(stream)
            except DLogError:
                return  # it was lost meanwhile, which is as good
            self.retired += released

    def _drop(self, holding: Holding, error: DLogError | None) -> None:
        """Not ours (any more). error: why, for those who wait; None: they are told where to go."""
        if self._holdings.get(holding.stream) is not holding:
            return
        del self._holdings[holding.stream]
        self._asked.pop(holding, None)
        holding.serving = False
        waiting, holding.waiting = holding.waiting, []
        for _, sink in waiting:
            sink(error if error is not None else self._next(holding))
        self._on_gone(holding.stream)

    def _next(self, holding: Holding) -> DLogError:
        location = self._placement.preferred(holding.stream)
        if location is None:
            return StreamUnavailableError(f"nobody serves the stream now, ask again: stream={holding.stream}")
        return OwnedElsewhereError(f"handed over: stream={holding.stream}", location=location)
