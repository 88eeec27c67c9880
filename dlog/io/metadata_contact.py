"""Reports whether a process is connected to ZooKeeper (two events and a gauge) and which znodes it may not read.

Invariants:
- The events alternate, MetadataLost first.
- The gauge is 0 between MetadataLost and MetadataRegained, otherwise 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dlog.events import Event, MetadataLost, MetadataRegained, ZnodeNotReadable
from dlog.io.metadata import MetadataSession, SessionState
from dlog.io.metrics import METADATA_CONNECTED


@contextmanager
def connection_events(metadata: MetadataSession, on_event: Callable[[Event], None]) -> Iterator[None]:
    """Report each loss and return of the metadata connection in this context, and unreadable znodes."""
    contact = _Contact(on_event)
    unsubscribes = (
        metadata.on_state(contact.state_changed),
        metadata.on_unreadable(lambda path: on_event(ZnodeNotReadable(path))),
    )
    METADATA_CONNECTED.set(1)
    contact.state_changed(metadata.state)
    try:
        yield
    finally:
        for unsubscribe in unsubscribes:
            unsubscribe()


class _Contact:
    """Tracks when the connection was lost."""

    def __init__(self, on_event: Callable[[Event], None]) -> None:
        self._on_event = on_event
        self._now_s = asyncio.get_running_loop().time
        self._lost_s: float | None = None
        self._session_ended = False

    def state_changed(self, state: SessionState) -> None:
        if state is SessionState.LOST:
            self._session_ended = True
        if state is not SessionState.CONNECTED:
            if self._lost_s is None:
                self._lost_s = self._now_s()
                METADATA_CONNECTED.set(0)
                self._on_event(MetadataLost())
        elif self._lost_s is not None:
            away_s = round(self._now_s() - self._lost_s, 3)
            session_ended, self._lost_s, self._session_ended = self._session_ended, None, False
            METADATA_CONNECTED.set(1)
            self._on_event(MetadataRegained(away_s, session_ended))
