"""Tests what an operator is told of contact with ZooKeeper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from dlog.events import Event, MetadataLost, MetadataRegained
from dlog.io.metadata import SessionState, Unsubscribe
from dlog.io.metadata_contact import connection_events
from dlog.io.metrics import METADATA_CONNECTED
from tests.memory_metadata import MemoryMetadata

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST


class Changing(MemoryMetadata):
    """Metadata whose session state the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.callbacks: list[Callable[[SessionState], None]] = []

    def on_state(self, callback: Callable[[SessionState], None]) -> Unsubscribe:
        self.callbacks.append(callback)
        return lambda: self.callbacks.remove(callback)

    def enter(self, *states: SessionState) -> None:
        for state in states:
            for callback in tuple(self.callbacks):
                callback(state)


async def test_each_loss_is_told_once_and_so_is_its_end() -> None:
    metadata, told = Changing(), list[Event]()
    with connection_events(metadata, told.append):
        assert (told, METADATA_CONNECTED.value) == ([], 1)
        metadata.enter(SUSPENDED)
        assert (told, METADATA_CONNECTED.value) == ([MetadataLost()], 0)
        metadata.enter(CONNECTED, SUSPENDED, LOST, CONNECTED, CONNECTED)
        assert METADATA_CONNECTED.value == 1
    metadata.enter(SUSPENDED)
    assert [type(event) for event in told] == [MetadataLost, MetadataRegained] * 2
    assert [event.session_ended for event in told if isinstance(event, MetadataRegained)] == [False, True]
    assert all(event.away_s >= 0 for event in told if isinstance(event, MetadataRegained))
    assert not metadata.callbacks


async def test_contact_that_is_lost_already_is_told_at_once() -> None:
    metadata, told = Changing(), list[Event]()
    metadata.state = SUSPENDED
    with connection_events(metadata, told.append):
        await asyncio.sleep(0)
    assert told == [MetadataLost()]
