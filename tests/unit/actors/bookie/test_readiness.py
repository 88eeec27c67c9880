"""What /ready of a bookie answers, by its registration."""

from __future__ import annotations

import asyncio

from actors.bookie.readiness import BookieReadiness
from dlog.io.metadata import BookieInfo, SessionState
from dlog.model.ids import BookieId
from tests.memory_metadata import MemoryMetadata

INFO = BookieInfo(BookieId("127.0.0.1:3181"), "127.0.0.1", 3181)


class Session(MemoryMetadata):
    """Metadata whose session state the test sets."""

    def unresponsive_s(self) -> float:
        return 12.0


async def test_a_bookie_is_ready_while_it_is_registered() -> None:
    stopping, metadata = asyncio.Event(), Session()
    readiness = BookieReadiness(stopping)
    assert readiness.answer() == (503, {"ready": False, "because": "starting"})
    readiness.metadata = metadata
    await metadata.register_bookie(INFO)
    assert readiness.answer() == (503, {"ready": False, "because": "starting"}), "it does not serve yet"
    readiness.bookie = INFO.bookie
    assert readiness.answer() == (200, {"ready": True, "read_only": False})
    await metadata.register_bookie(INFO, readonly=True)
    assert readiness.answer() == (200, {"ready": True, "read_only": True})
    metadata.state = SessionState.SUSPENDED
    assert readiness.answer()[0] == 200, "registered while the session lasts"
    metadata.state = SessionState.LOST
    assert readiness.answer() == (
        503,
        {"ready": False, "because": "not registered: metadata out of reach for 12 s"},
    )
    metadata.state = SessionState.CONNECTED
    await metadata.unregister_bookie(INFO.bookie)
    assert readiness.answer() == (503, {"ready": False, "because": "not registered"})
    await metadata.register_bookie(INFO)
    assert readiness.answer()[0] == 200
    stopping.set()
    assert readiness.answer() == (503, {"ready": False, "because": "stopping"})
