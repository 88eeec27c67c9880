"""Reads the metadata of one stream and follows its changes, for all readers of the stream in this process.

Invariants:
- one read serves all that wait for it, and a request for a read is served by one that begins afterwards;
- a watch is only a hint: if readers get nothing new, metadata is read again anyway (`doubt`);
- only an error that another read will hardly mend is remembered (`defect`), until a read succeeds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from actors.retrying import RefreshSignal, RetryBackoff
from dlog.errors import DamagedError, DLogError, MetadataUnavailableError, Remedy
from dlog.io.metadata import SessionState, VersionedStore
from dlog.machine import Missing, Outcome, Versioned
from dlog.model.ids import Epoch, StreamName
from dlog.model.segment import Owner, Segment, StreamKey, StreamMetadata


class MetadataFollower:
    """A stream's metadata as last read, kept current while `run` runs.

    on_change: called with the value before. on_defect: called when metadata turns out to be unusable.
    """

    def __init__(
        self,
        stream: StreamName,
        store: VersionedStore,
        pauses: RetryBackoff,
        on_change: Callable[[StreamMetadata | None], None],
        on_defect: Callable[[DLogError], None],
    ) -> None:
        self.stream = stream
        self.value: StreamMetadata | None = None  # None: not read yet, or there is no such stream
        self.is_known = False
        self.defect: DLogError | None = None  # the metadata is unusable: every request gets this error
        self.reads_begun = 0
        self.newest_read = 0  # the last read that succeeded, counted as they began
        self._key = StreamKey(stream)
        self._store = store
        self._pauses = pauses
        self._on_change = on_change
        self._on_defect = on_defect
        self._has_news = False  # since the last `doubt`
        self._stale = RefreshSignal()  # set when metadata must be read again
        self._waiting: list[Callable[[DLogError | None], None]] = []  # called after the next read that begins

    @property
    def is_connected(self) -> bool:
        return self._store.state is SessionState.CONNECTED

    @property
    def tail(self) -> Segment | None:
        """The newest segment in progress."""
        in_progress = self.value.in_progress if self.value is not None else ()
        return in_progress[-1] if in_progress else None

    @property
    def owner(self) -> Owner | None:
        """The owner that the metadata names; None if the claim was released."""
        owner = self.value.owner if self.value is not None else None
        return owner if owner is not None and owner.epoch and not owner.released else None

    @property
    def epoch(self) -> Epoch | None:
        return self.owner.epoch if self.owner is not None else None

    @property
    def incarnation(self) -> str:
        return self.value.incarnation if self.value is not None else ""

    def listed(self, number: int) -> Segment | None:
        """The segment of this number in the current list; None if it is truncated or unknown."""
        return self.value.segment(number) if self.value is not None else None

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the metadata, and forget it at the end."""
        self._stale.set()
        unsubscribes = self._store.watch(self._key, self._stale.hint), self._store.on_state(self._session_changed)
        try:
            yield
        finally:
            for unsubscribe in unsubscribes:
                unsubscribe()
            self.value, self.is_known = None, False
            self._waiting.clear()

    async def run(self) -> None:
        """Read metadata whenever that is due, until cancelled."""
        self._pauses.reset()
        while True:
            await self._stale.taken()
            self.reads_begun += 1
            waiting, self._waiting = self._waiting, []
            error = self._use(await self._read())
            for then in waiting:
                then(error)
            if error is None:
                self._pauses.reset()
            else:
                await self._stale.rest(self._pauses.next_s())

    def read_again(self) -> None:
        """Another read is due."""
        self._stale.set()

    def refresh(self, then: Callable[[DLogError | None], None]) -> None:
        """Call `then` with the outcome of the next read that begins."""
        self._waiting.append(then)
        self._stale.set()

    def refreshed(self) -> asyncio.Future[DLogError | None]:
        """Resolves with the outcome of the next read that begins."""
        future: asyncio.Future[DLogError | None] = asyncio.get_running_loop().create_future()
        self.refresh(lambda error: future.set_result(error) if not future.done() else None)
        return future

    def note_news(self) -> None:
        """Readers got something new."""
        self._has_news = True

    def doubt(self, *, has_readers: bool) -> None:
        """Read again if there are readers and nothing new came since the last call."""
        if has_readers and not self._has_news:
            self._stale.set()
        self._has_news = False

    def _session_changed(self, state: SessionState) -> None:
        if state is SessionState.CONNECTED:
            self._stale.wake()

    async def _read(self) -> Outcome | DLogError:
        """The outcome, or the error if reading again will hardly help. Such an error concerns this stream only."""
        try:
            return await self._store.read(self._key)
        except DLogError as error:
            return error
        except Exception as error:  # noqa: BLE001 - a decoder of znodes may raise anything
            return DamagedError(f"metadata of the stream cannot be read: stream={self.stream} {error!r}")

    def _use(self, outcome: Outcome | DLogError) -> DLogError | None:
        """Use what was read; return the error of a read that failed."""
        if isinstance(outcome, Versioned | Missing):
            self.defect, self.newest_read = None, self.reads_begun
            self._update(outcome.value if isinstance(outcome, Versioned) else None)
            return None
        self.defect = outcome if isinstance(outcome, DLogError) and outcome.remedy is not Remedy.RETRY else None
        if self.defect is not None:
            self._on_defect(self.defect)
        return self.defect or MetadataUnavailableError(f"metadata cannot be read now: stream={self.stream}")

    def _update(self, value: StreamMetadata | None) -> None:
        before = self.value
        if (
            self.is_known
            and value == before
            and (value is None or before is None or value.incarnation == before.incarnation)
        ):
            return
        self.value, self.is_known, self._has_news = value, True, True
        self._on_change(before)
