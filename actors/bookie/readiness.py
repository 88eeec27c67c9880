"""Readiness of a bookie, for orchestrators: whether clients can find it in ZooKeeper."""

from __future__ import annotations

import asyncio

from dlog.io.metadata import Membership, SessionState
from dlog.model.ids import BookieId


class BookieReadiness:
    """Whether a bookie is registered, as /ready reports it.

    metadata, bookie: set once ZooKeeper is connected, and once the bookie serves. A read-only bookie is ready: it is
    registered as such, and readers and recoveries need it. A short loss of ZooKeeper does not make it unready, because
    its registration lasts as long as its session.
    """

    def __init__(self, stopping: asyncio.Event) -> None:
        self.metadata: Membership | None = None
        self.bookie: BookieId | None = None
        self._stopping = stopping

    def answer(self) -> tuple[int, dict[str, object]]:
        """Status and JSON body of /ready."""
        if self._stopping.is_set():
            return 503, {"ready": False, "because": "stopping"}
        if self.metadata is None or self.bookie is None:
            return 503, {"ready": False, "because": "starting"}
        if self.metadata.state is SessionState.LOST:
            away_s = self.metadata.unresponsive_s()
            return 503, {"ready": False, "because": f"not registered: metadata out of reach for {away_s:.0f} s"}
        members = self.metadata.known_members()
        if self.bookie not in members.writable and self.bookie not in members.readonly:
            return 503, {"ready": False, "because": "not registered"}
        return 200, {"ready": True, "read_only": self.bookie not in members.writable}
