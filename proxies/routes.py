"""Remembers where the streams of one connection are forwarded, and which proxies failed. No I/O.

Invariants:
- a route is only a hint: the proxy it leads to decides whether it is right;
- a stream whose proxy failed has no route, and the next lookup of its owner names the proxy that failed.
"""

from __future__ import annotations

ROUTES_MAX = 10_000  # of one connection; the oldest is dropped and looked up again


class Routes:
    """Routes of one connection. Addresses are the registered ones."""

    def __init__(self, routes_max: int = ROUTES_MAX) -> None:
        self._routes_max = routes_max
        self._routes: dict[str, str] = {}
        self._doubts: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._routes)

    def of(self, stream: str) -> str | None:
        """Address for the stream's requests; None: look up its owner."""
        return self._routes.get(stream)

    def found(self, stream: str, address: str) -> None:
        """The stream's owner was found at `address`."""
        self._routes[stream] = address
        self._doubts.pop(stream, None)
        if len(self._routes) > self._routes_max:
            del self._routes[next(iter(self._routes))]

    def moved(self, stream: str, address: str) -> None:
        """The proxy at `address` replied that it does not own the stream."""
        if self._routes.get(stream) == address:
            del self._routes[stream]

    def leaving(self, address: str) -> None:
        """The proxy at `address` shuts down."""
        for stream in self._through(address):
            del self._routes[stream]

    def lost(self, address: str) -> None:
        """The proxy at `address` does not respond."""
        for stream in self._through(address):
            del self._routes[stream]
            self._doubts[stream] = address
            if len(self._doubts) > self._routes_max:
                del self._doubts[next(iter(self._doubts))]

    def doubted(self, stream: str) -> str | None:
        """The proxy that failed since the stream's last route; returned once."""
        return self._doubts.pop(stream, None)

    def _through(self, address: str) -> list[str]:
        return [stream for stream, at in self._routes.items() if at == address]
