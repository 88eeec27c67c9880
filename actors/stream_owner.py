"""A stream's owner, alive: the owner machine, its stores, the metadata, one mailbox.

The law of this room: an owner lives once. Whatever ends it (stopped, fenced, broken) ends its claim to serve; whoever
wants the stream next judges anew and builds another. What it knows of the LAC is said to whoever listens (`on_lac`) the
moment it is true.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from actors.segment_desk import SegmentDesk
from dlog.events import Event, LacMoved
from dlog.io.clock import SYSTEM_CLOCK, Clock
from dlog.io.driver import Driver, Sink
from dlog.io.metadata import Metadata
from dlog.io.shared_timers import ProcessTimers
from dlog.lease.lease import Claimant
from dlog.log.messages import HINTS, ReleaseStream, StreamChanged, StreamTaken, TakeStream
from dlog.log.options import OwnerOptions
from dlog.log.owner import StreamOwner as OwnerMachine
from dlog.machine import Received
from dlog.model.ids import Epoch, StreamName
from dlog.model.segment import StreamKey
from dlog.stores.contract import SegmentStore


class StreamOwner:
    """One stream, owned by this process from `take` on until it is lost or released.

    on_lac: hears every LacMoved. tell: hears every other event, and who tells. on_end: called once when the life is
    over. far: this process's timers that are far off.
    """

    __slots__ = (
        "__weakref__",
        "_clock",
        "_desk",
        "_driver",
        "_lived",
        "_machine",
        "_metadata",
        "_on_end",
        "_on_lac",
        "_tell",
        "_unwatch",
        "name",
        "stream",
    )

    def __init__(
        self,
        stream: StreamName,
        claimant: Claimant,
        *,
        metadata: Metadata,
        stores: Mapping[str, SegmentStore],
        options: OwnerOptions,
        requests_max: int,
        on_lac: Callable[[LacMoved], None],
        tell: Callable[[StreamOwner, Event], None],
        on_end: Callable[[StreamOwner], None],
        shared: ProcessTimers | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.stream = stream
        self.name = f"stream_owner {stream} {claimant.nonce}"
        self._on_lac = on_lac
        self._tell = tell
        self._on_end = on_end
        self._clock = clock
        self._lived = False
        self._metadata = metadata
        self._unwatch: Callable[[], None] = _nothing
        self._desk = SegmentDesk(stream, stores, self._post, clock)
        self._machine = OwnerMachine(
            StreamKey(stream),
            claimant,
            options,
            final_stores=_shared(tuple(n for n, s in stores.items() if s.capabilities.visible_is_final)),
        )
        self._driver = Driver(
            self._machine,
            name=self.name,
            send=self._desk.send,
            metadata=metadata,
            on_event=self._hear,
            requests_max=requests_max,
            shared=shared,
            clock=clock,
        )

    @property
    def ended(self) -> bool:
        """Nothing can be asked any more."""
        return self._driver.ended

    @property
    def life(self) -> str | None:
        """Which stream of this name is owned, once that is known."""
        return self._machine.life

    @property
    def waiting(self) -> int:
        """Requests without an answer."""
        return self._driver.waiting

    async def take(self, if_epoch: Epoch | None) -> StreamTaken:
        """Claim, recover and serve; see TakeStream. Cancelling forgets the waiter only."""
        taken = await self._driver.ask(TakeStream(if_epoch, self._clock.unix_ms()))
        assert isinstance(taken, StreamTaken)
        if not self.ended:
            self._unwatch = self._metadata.watch(StreamKey(self.stream), self._look)
        return taken

    def submit(self, request: Any, sink: Sink) -> None:
        """See Driver.submit."""
        self._driver.submit(request, sink)

    def ask(self, request: Any) -> asyncio.Future[Any]:
        """See Driver.ask."""
        return self._driver.ask(request)

    async def release(self) -> None:
        """Finish what was taken, complete the segment, hand the claim back, end. Raises what the machine answers."""
        try:
            await self._driver.ask(ReleaseStream())
        finally:
            self.stop()

    def stop(self) -> None:
        self._driver.stop()

    async def run(self) -> None:
        """Live. A second call returns at once: an owner that broke is not started again, its stream is judged anew."""
        if self._lived:
            return
        self._lived = True
        try:
            self._desk.open(self._driver.start)
            await self._driver.run()
        finally:
            self._unwatch()
            await self._desk.close()
            self._on_end(self)
            self._let_go()

    def _let_go(self) -> None:
        """Leave no circle behind, see Driver."""
        self._unwatch = _nothing
        self._on_end = self._on_lac = _ignore
        self._tell = _ignore_told
        self._desk.let_go()
        self._machine.let_go()

    def _look(self) -> None:
        """Somebody changed the stream, ourselves it may be: a hint, so that an idle owner hears of its successor."""
        self._driver.post(Received(HINTS, StreamChanged()))

    def _post(self, fact: Any) -> None:
        self._driver.post(fact)

    def _hear(self, event: Event) -> None:
        if isinstance(event, LacMoved):
            self._on_lac(event)
        else:
            self._tell(self, event)


@lru_cache(maxsize=64)
def _shared(names: tuple[str, ...]) -> frozenset[str]:
    """One for all streams: a set has 216 B."""
    return frozenset(names)


def _nothing() -> None:
    """Nobody watches, nobody waits."""


def _ignore(_: Any) -> None:
    """Nobody listens."""


def _ignore_told(_: StreamOwner, __: Event) -> None:
    """Nobody listens."""
