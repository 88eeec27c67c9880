"""Readiness of a proxy, and its HTTP server (dlog/io/http_server.py) for load balancers and orchestrators.

    GET /ready     200 while it serves; 503 while it starts, drains, or has lacked for long ZooKeeper, or what it writes
                   to: bookies, or what its default store needs to acknowledge appends
    GET /haproxy   as /ready, but 404 while it drains: HAProxy (`http-check disable-on-404`) then sends no new
                   connections and keeps the open ones

Invariants:
- only long trouble makes a proxy unready, because all proxies share it: without ZooKeeper owners go on, and bookies
  come back.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dlog.io.clock import SYSTEM_CLOCK, Clock
from dlog.io.metadata import Membership, SessionState

if TYPE_CHECKING:
    from dlog.io.http_server import HttpServer

DRAINING = "draining"


class Readiness:
    """Whether a proxy is ready. The times are passed in.

    patience_s: how long ZooKeeper may be out of reach, or every bookie gone, before it is unready. It is ready from
    `serving` to `draining`, and once each trouble that was given to `expect_over` was over once.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._obstacle: str | None = "starting"
        self._since_s: dict[str, float] = {}  # trouble -> when it began
        self._expected: set[str] = set()  # troubles that were never over yet
        self._tolerated: set[str] = set()  # troubles that do not make it unready

    def serving(self) -> None:
        self._obstacle = None

    def draining(self) -> None:
        self._obstacle = DRAINING

    def expect_over(self, trouble: str) -> None:
        """It is not ready before this trouble was noted as over."""
        self._expected.add(trouble)

    def note(self, trouble: str, there: bool, now_s: float, *, is_needed: bool = True) -> None:
        """Record that this trouble exists (`there`), or that it is over. is_needed: the trouble makes the proxy unready
        if it lasts; else it is only reported."""
        if there:
            self._since_s.setdefault(trouble, now_s)
        else:
            self._since_s.pop(trouble, None)
            self._expected.discard(trouble)
        if not is_needed:
            self._tolerated.add(trouble)

    def obstacle(self, now_s: float) -> str | None:
        """Why the proxy is not ready; None: it is."""
        if self._obstacle is not None:
            return self._obstacle
        if self._expected:
            return f"starting: {min(self._expected)}"
        for trouble, since_s in self._since_s.items():
            if trouble not in self._tolerated and now_s - since_s >= self._patience_s:
                return f"{trouble} for {now_s - since_s:.0f} s"
        return None

    def troubles(self, now_s: float) -> dict[str, float]:
        """Present troubles and their duration in s, also those that do not make it unready yet."""
        return {trouble: round(now_s - since_s, 1) for trouble, since_s in self._since_s.items()}


class Health:
    """Readiness of one proxy, and its HTTP server.

    needs_bookies: it is unready while no writable bookie is registered.
    """

    def __init__(
        self, metadata: Membership, *, patience_s: float, needs_bookies: bool = False, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.readiness = Readiness(patience_s)
        self._metadata = metadata
        self._needs_bookies = needs_bookies
        self._clock = clock
        self._server: HttpServer | None = None
        self._unsubscribe = (metadata.on_state(lambda _: self._look()), metadata.on_members(self._look))

    def note(self, trouble: str, is_needed: bool, there: bool) -> None:
        """Record that this trouble exists now, or that it is over; see Readiness.note."""
        self.readiness.note(trouble, there, self._clock.monotonic_s(), is_needed=is_needed)

    async def listen(self, host: str, port: int) -> None:
        """Start serving; port 0: do not listen. Raises ConfigError if the port is taken."""
        if port:
            from dlog.io.http_server import HttpServer  # loads h11

            self._server = HttpServer({"/ready": self.answer, "/haproxy": partial(self.answer, draining_status=404)})
            await self._server.listen(host, port)

    def close(self) -> None:
        """Stop serving; idempotent."""
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        if self._server is not None:
            self._server.close()

    def answer(self, *, draining_status: int = 503) -> tuple[int, dict[str, object]]:
        """Status and JSON body of /ready."""
        self._look()
        now_s = self._clock.monotonic_s()
        obstacle = self.readiness.obstacle(now_s)
        body: dict[str, object] = {"ready": obstacle is None, "troubles": self.readiness.troubles(now_s)}
        if obstacle is None:
            return 200, body
        return draining_status if obstacle == DRAINING else 503, {**body, "because": obstacle}

    def _look(self) -> None:
        """Record the present state of ZooKeeper and the bookies."""
        now_s = self._clock.monotonic_s()
        connected = self._metadata.state is SessionState.CONNECTED
        self.readiness.note("metadata out of reach", not connected, now_s)
        if self._needs_bookies and connected:  # otherwise the known bookies are out of date
            self.readiness.note("no writable bookie", not self._metadata.known_members().writable, now_s)
