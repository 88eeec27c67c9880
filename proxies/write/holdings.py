"""The streams of this process: taken when somebody wants them, given up when they are lost, handed over when we drain.

The law of this room:
- at most one owner a stream lives here, and a request reaches it in the order it came, those that came while the stream
  was being taken first;
- a stream is taken only on advice (proxies/write/placing.py), and the claim names the epoch that was advised;
- whoever waits for a stream that is not taken in the end hears why, once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from typing import Any, Protocol

from actors.runtime import Lifetime
from actors.stream_owner import StreamOwner
from actors.supervisor import Supervisor
from dlog.errors import ClosedError, DLogError, OverCapacityError, OwnedElsewhereError, StreamUnavailableError
from dlog.io.driver import Sink
from dlog.log.messages import StreamTaken
from dlog.model.ids import Epoch, StreamName, stream_name
from proxies.write.placing import Ours, Theirs


class Placement(Protocol):
    """Who should own a stream (proxies/write/placing.py)."""

    async def judge(self, stream: StreamName, doubted: Collection[str] = ()) -> Ours | Theirs: ...

    def preferred(self, stream: str) -> str | None: ...


class Holding:
    """One stream that is being taken, owned, or being handed over."""

    def __init__(self, stream: StreamName) -> None:
        self.stream = stream
        self.epoch = Epoch(0)
        self.owner: StreamOwner | None = None
        self.serving = False
        self.state = "claiming"  # then serving, draining
        self.doubted: set[str] = set()  # addresses that failed somebody who wants this stream
        self.waiting: deque[tuple[Any, Sink]] = deque()  # requests for the owner, None for "tell me when it serves"


class Holdings:
    """All holdings of one process.

    build: makes an owner, not yet alive, that calls back when its life ends. waiting_max: how many requests may wait
    for one stream to be taken; takes_max: how many streams may be being taken. on_gone: called when a stream is not
    owned here any more.
    """

    def __init__(
        self,
        supervisor: Supervisor,
        tasks: Lifetime,
        placement: Placement,
        build: Callable[[StreamName, Callable[[], None]], StreamOwner],
        *,
        waiting_max: int,
        takes_max: int,
        on_gone: Callable[[StreamName], None],
    ) -> None:
        self.draining = False
        self._supervisor = supervisor
        self._tasks = tasks
        self._placement = placement
        self._build = build
        self._waiting_max = waiting_max
        self._takes_max = takes_max
        self._takes = 0
        self._on_gone = on_gone
        self._holdings: dict[str, Holding] = {}

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
        OverCapacityError, StreamUnavailableError, InvalidStreamNameError, OwnedElsewhereError (we drain): then nothing
        was taken and the sink hears nothing.
        """
        holding = self._holdings.get(stream)
        if holding is None:
            holding = self._want(stream)
        if holding.serving:
            self._hand(holding, request, sink)
            return
        if doubted is not None:
            holding.doubted.add(doubted)
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

    async def release(self, stream: str) -> bool:
        """Hand a stream over: finish what was taken, complete its segment, give the claim back. False: not ours.

        What comes meanwhile waits and is then sent to the next owner. Raises what the owner answers; the stream is
        not owned here afterwards in any case.
        """
        holding = self._holdings.get(stream)
        if holding is None or holding.owner is None or not holding.serving:
            return False
        holding.serving = False
        holding.state = "draining"
        try:
            await holding.owner.release()
        finally:
            self._drop(holding, None)
        return True

    async def abandon(self, stream: str) -> None:
        """Stop owning a stream that is to be deleted; its segment is left as it is."""
        holding = self._holdings.get(stream)
        if holding is None:
            return
        if holding.owner is not None:
            holding.owner.stop()
        self._drop(holding, StreamUnavailableError(f"the stream is being deleted: stream={stream}"))

    def lost(self, stream: str, owner: StreamOwner) -> None:
        """The owner told that it lost the stream, or its life is over."""
        holding = self._holdings.get(stream)
        if holding is not None and holding.owner is owner:
            owner.stop()
            self._drop(holding, None)

    def elsewhere(self, stream: str) -> OwnedElsewhereError:
        """Where the stream will be served, as far as the ring can tell."""
        location = self._placement.preferred(stream)
        return OwnedElsewhereError(f"not served here: stream={stream}", location=location)

    # ---- inside -----------------------------------------------------------------------------------------------------

    def _want(self, stream: str) -> Holding:
        if self.draining:
            raise self.elsewhere(stream)
        if self._takes >= self._takes_max:
            raise OverCapacityError(f"too many streams are being taken: streams={self._takes}")
        holding = Holding(stream_name(stream))
        self._holdings[stream] = holding
        self._takes += 1
        self._tasks.start(self._take(holding), name=f"take {stream}")
        return holding

    async def _take(self, holding: Holding) -> None:
        try:
            advice = await self._advice(holding)
            if isinstance(advice, Theirs):
                raise OwnedElsewhereError(f"not owned here: stream={holding.stream}", location=advice.address)
            taken = await self._begin(holding, advice)
        except DLogError as error:
            if holding.owner is not None:
                holding.owner.stop()
            self._drop(holding, error)
            return
        finally:
            self._takes -= 1
        if self._holdings.get(holding.stream) is not holding:
            return
        holding.epoch = taken.epoch
        holding.serving = True
        holding.state = "serving"
        while holding.waiting:
            request, sink = holding.waiting.popleft()
            try:
                self._hand(holding, request, sink)
            except DLogError as error:
                sink(error)

    async def _advice(self, holding: Holding) -> Ours | Theirs:
        while True:
            doubted = frozenset(holding.doubted)
            advice = await self._placement.judge(holding.stream, doubted)
            if isinstance(advice, Ours) or holding.doubted == doubted:
                return advice

    async def _begin(self, holding: Holding, advice: Ours) -> StreamTaken:
        owner = self._build(holding.stream, lambda: self.lost(holding.stream, owner))
        holding.owner = owner
        self._supervisor.start(owner)
        return await owner.take(advice.if_epoch)

    def _hand(self, holding: Holding, request: Any, sink: Sink) -> None:
        assert holding.owner is not None, "a stream that is served has an owner"
        if request is None:
            sink(holding)
            return
        try:
            holding.owner.submit(request, sink)
        except ClosedError:
            raise StreamUnavailableError(f"its owner has just ended, ask again: stream={holding.stream}") from None

    def _drop(self, holding: Holding, error: DLogError | None) -> None:
        """Not ours (any more). error: why, for those who wait; None: they are told where to go."""
        if self._holdings.get(holding.stream) is not holding:
            return
        del self._holdings[holding.stream]
        holding.serving = False
        waiting, holding.waiting = holding.waiting, deque()
        for _, sink in waiting:
            sink(error if error is not None else self._next(holding))
        self._on_gone(holding.stream)

    def _next(self, holding: Holding) -> DLogError:
        location = self._placement.preferred(holding.stream)
        if location is None:
            return StreamUnavailableError(f"nobody serves the stream now, ask again: stream={holding.stream}")
        return OwnedElsewhereError(f"handed over: stream={holding.stream}", location=location)
