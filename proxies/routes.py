"""Where the streams of one connection are handed to, and which proxies failed at it.

The law of this room: a route is a memory and no truth; the proxy at its end says whether it holds. A stream whose proxy
failed has no route, and who looks for its owner next is told whom to doubt. Pure: facts in, nothing out.
"""

from __future__ import annotations

ROUTES_MAX = 10_000  # of one connection; the oldest is found anew


class Routes:
    """Of one connection. An address is the one by which a proxy is registered."""

    def __init__(self, routes_max: int = ROUTES_MAX) -> None:
        self._routes_max = routes_max
        self._routes: dict[str, str] = {}
        self._doubts: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._routes)

    def of(self, stream: str) -> str | None:
        """Where the stream's questions go; None: look for its owner."""
        return self._routes.get(stream)

    def found(self, stream: str, address: str) -> None:
        """Its owner was found there."""
        self._routes[stream] = address
        self._doubts.pop(stream, None)
        if len(self._routes) > self._routes_max:
            del self._routes[next(iter(self._routes))]

    def moved(self, stream: str, address: str) -> None:
        """The proxy there says that it does not own the stream."""
        if self._routes.get(stream) == address:
            del self._routes[stream]

    def leaving(self, address: str) -> None:
        """The proxy there goes away in good order."""
        for stream in self._through(address):
            del self._routes[stream]

    def lost(self, address: str) -> None:
        """The proxy there does not answer."""
        for stream in self._through(address):
            del self._routes[stream]
            self._doubts[stream] = address
            if len(self._doubts) > self._routes_max:
                del self._doubts[next(iter(self._doubts))]

    def doubted(self, stream: str) -> str | None:
        """Who failed at this stream since its last route; told once."""
        return self._doubts.pop(stream, None)

    def _through(self, address: str) -> list[str]:
        return [stream for stream, at in self._routes.items() if at == address]
