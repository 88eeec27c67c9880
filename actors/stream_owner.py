"""Actor of a stream's owner: the owner state machine with its stores, metadata and mailbox.

Invariants:
- an owner runs once: stopped, fenced or failed, it serves no more, and the next use of the stream decides again which
  proxy owns it and builds another owner;
- `on_lac` is called as soon as the LAC has moved.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from actors.store_executor import StoreExecutor
from dlog.errors import DLogError
from dlog.events import Event, LacMoved
from dlog.io.clock import SYSTEM_CLOCK, Clock
from dlog.io.driver import Driver, Sink
from dlog.io.metadata import VersionedStore
from dlog.io.shared_timers import ProcessTimers
from dlog.log.messages import HINTS, AcquireStream, HandOverStream, StreamAcquired, StreamChanged
from dlog.log.options import OwnerOptions
from dlog.log.owner import StreamOwnerMachine as OwnerMachine
from dlog.machine import Received
from dlog.model.ids import Epoch, StreamName
from dlog.model.segment import StoreSettings, StreamKey
from dlog.ownership.claim import Claimant
from dlog.stores.contract import Capabilities, SegmentStore


class StreamOwnerActor:
    """One stream, owned by this process from `take` until the claim is lost or handed over.

    on_lac: called with every LacMoved event. on_event: called with this owner and every event but LacMoved. on_end:
    called once when `run` ends. shared: timers shared by the process, for distant times.
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
        "_on_event",
        "_on_lac",
        "_unwatch",
        "name",
        "stream",
    )

    def __init__(
        self,
        stream: StreamName,
        claimant: Claimant,
        *,
        metadata: VersionedStore,
        stores: Mapping[str, SegmentStore],
        options: OwnerOptions,
        requests_max: int,
        on_lac: Callable[[LacMoved], None],
        on_event: Callable[[StreamOwnerActor, Event], None],
        on_end: Callable[[StreamOwnerActor], None],
        shared: ProcessTimers | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.stream = stream
        self.name = f"stream_owner {stream} {claimant.nonce}"
        self._on_lac = on_lac
        self._on_event = on_event
        self._on_end = on_end
        self._clock = clock
        self._lived = False
        self._metadata = metadata
        self._unwatch: Callable[[], None] = _nothing
        self._desk = StoreExecutor(stream, stores, self._post, clock)
        self._machine = OwnerMachine(
            StreamKey(stream),
            claimant,
            options,
            stores=_shared(tuple((name, store.capabilities) for name, store in stores.items())),
        )
        self._driver = Driver(
            self._machine,
            name=self.name,
            send=self._desk.send,
            metadata=metadata,
            on_event=self._handle_event,
            requests_max=requests_max,
            shared=shared,
            clock=clock,
        )

    @property
    def ended(self) -> bool:
        """Whether requests are no longer accepted."""
        return self._driver.ended

    @property
    def incarnation(self) -> str | None:
        """The incarnation of the owned stream, once known."""
        return self._machine.incarnation

    @property
    def damage(self) -> DLogError | None:
        """See StreamOwnerMachine.damage."""
        return self._machine.damage

    @property
    def stores_in_use(self) -> frozenset[tuple[str, StoreSettings]]:
        """The stores that the stream needs, each with its settings; empty until known."""
        return self._machine.stores_in_use

    @property
    def waiting(self) -> int:
        """Number of requests without a reply."""
        return self._driver.waiting

    async def take(self, if_epoch: Epoch | None) -> StreamAcquired:
        """Claim, recover and serve; see AcquireStream. Cancelling stops the wait only."""
        taken = await self._driver.ask(AcquireStream(if_epoch, self._clock.unix_ms()))
        assert isinstance(taken, StreamAcquired)
        if not self.ended:
            self._unwatch = self._metadata.watch(StreamKey(self.stream), self._look)
        return taken

    def submit(self, request: Any, sink: Sink) -> None:
        """See Driver.submit."""
        self._driver.submit(request, sink)

    def ask(self, request: Any) -> asyncio.Future[Any]:
        """See Driver.ask."""
        return self._driver.ask(request)

    async def hand_over(self) -> None:
        """Finish accepted writes, complete the segment, release the claim, end. Raises the state machine's errors."""
        try:
            await self._driver.ask(HandOverStream())
        finally:
            self.stop()

    def stop(self) -> None:
        self._driver.stop()

    async def run(self) -> None:
        """Run until the end. A second call returns at once: a failed owner is replaced, not restarted."""
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
        """Break reference cycles, see Driver."""
        self._unwatch = _nothing
        self._on_end = self._on_lac = _ignore
        self._on_event = _ignore_event
        self._desk.let_go()
        self._machine.let_go()

    def _look(self) -> None:
        """The stream's metadata changed, perhaps by this owner: a hint that lets an idle owner notice its successor."""
        self._driver.post(Received(HINTS, StreamChanged()))

    def _post(self, fact: Any) -> None:
        self._driver.post(fact)

    def _handle_event(self, event: Event) -> None:
        if isinstance(event, LacMoved):
            self._on_lac(event)
        else:
            self._on_event(self, event)


@lru_cache(maxsize=64)
def _shared(capabilities: tuple[tuple[str, Capabilities], ...]) -> Mapping[str, Capabilities]:
    """One mapping for all streams: each takes 232 B."""
    return dict(capabilities)


def _nothing() -> None:
    """Do nothing."""


def _ignore(_: Any) -> None:
    """Drop the event."""


def _ignore_event(_: StreamOwnerActor, __: Event) -> None:
    """Drop the event."""
