"""The list of rooms; a new one adds a line here."""

from __future__ import annotations

from collections.abc import Callable

from tests.simulation import ledger_world, stream_world
from tests.simulation.worlds import Room

ROOMS: dict[str, Callable[[], Room]] = {
    "ledger": ledger_world.room,
    "stream": stream_world.room,
}
