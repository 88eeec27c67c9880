"""The network of tier 2: hosts, ports and TCP connections between the processes of one virtual loop.

Each directed link draws from a random stream of its own, so traffic of one pair of hosts does not change the draws of
another.

Invariants:
- What is written in one direction arrives in order, cut anywhere and later than it was sent; or it does not arrive, and
  then the connection is lost. Nothing more is promised, as with TCP.
- Bytes are copied when they are written.
- Nothing arrives before `connection_made` or after `close`.
- Everything that one host learns of another (data, acknowledgement, refusal, end) travels over the directed link
  between them and is held while that link is cut.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.simulation.service.loop import MS, Process, S, SimulatedLoop
from tests.simulation.service.transport import SimulatedTransport

SYN_AGAIN_NS = 1 * S  # a connection attempt to a host that is down is repeated after this time
EPHEMERAL = 40_000
WINDOWS_BYTES = (16 * 1024, 128 * 1024, 512 * 1024)


class Link:
    """One direction between two hosts: its latency, and whether anything passes.

    sent: chunks so far. hold, lose: numbers of chunks that are late by so many ns, or end their connection.
    """

    def __init__(self, network: Network, source: str, target: str) -> None:
        loop = network.loop
        self.source = source
        self.target = target
        self.rng = random.Random(f"{loop.seed}/link/{source}/{target}")
        self.mean_ns = int(network.latency_ns * self.rng.choice((0.3, 1.0, 1.0, 3.0)))
        self.sent = 0
        self.cut_until = 0
        self.slow_until = 0
        self.slow_ns = 0
        self.hold: dict[int, int] = {}
        self.lose: set[int] = set()
        self.waiting: list[tuple[Process | None, Callable[..., object], tuple[Any, ...]]] = []
        self._loop = loop
        self._network = network

    def latency_ns(self) -> int:
        rng = self.rng
        delay = rng.expovariate(1.0) * self.mean_ns + 1_000
        if rng.random() < 0.01:
            delay *= 40
        if self.slow_until > self._loop.now:
            delay += self.slow_ns * rng.random()
        return int(delay)

    def carry(
        self,
        process: Process | None,
        callback: Callable[..., object],
        *args: Any,
        extra_ns: int = 0,
        not_before: int = 0,
    ) -> int:
        """Run `callback` at the other end on arrival. Returns the time of arrival. process: None for the host itself,
        which answers even while its processes are paused."""
        loop = self._loop
        when = max(loop.now + self.latency_ns() + extra_ns, not_before)
        loop.at(when, loop.world, self._arrived, process, callback, args)
        return when

    def _arrived(self, process: Process | None, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        loop = self._loop
        if self.cut_until > loop.now:
            self.waiting.append((process, callback, args))
            return
        if process is None:
            callback(*args)
        else:
            loop.hand(process, callback, *args)

    def cut(self, until_ns: int) -> None:
        """Cut the link until this time; what is on its way is held."""
        self.cut_until = max(self.cut_until, until_ns)
        self._loop.at(until_ns, self._loop.world, self.mend)

    def mend(self) -> None:
        if self.cut_until > self._loop.now:
            return  # a longer cut was set meanwhile
        self.cut_until = 0
        waiting, self.waiting = self.waiting, []
        for process, callback, args in waiting:
            self.carry(process, callback, *args)


class Network:
    """All hosts of a trial. A host's name is its address; names: other names, each with the hosts that it resolves to.
    windows_bytes: each connection draws one as its receive window: bytes that arrived and its process has not read."""

    def __init__(
        self, loop: SimulatedLoop, *, latency_ns: int = MS // 5, windows_bytes: Sequence[int] = WINDOWS_BYTES
    ) -> None:
        self.loop = loop
        self.latency_ns = latency_ns
        self.windows_bytes = windows_bytes
        self.is_down: set[str] = set()  # hosts without power
        self.names: dict[str, tuple[str, ...]] = {}
        self.links: dict[tuple[str, str], Link] = {}
        self.listeners: dict[tuple[str, int], Server] = {}
        self.transports: dict[Process, dict[SimulatedTransport, None]] = {}
        self.healed = False
        self.bytes = 0
        self.connections = 0
        self._ports: dict[str, int] = {}
        loop.network = self

    def link(self, source: str, target: str) -> Link:
        link = self.links.get((source, target))
        if link is None:
            link = self.links[source, target] = Link(self, source, target)
        return link

    # ---- faults ------------------------------------------------------------------------------------------------------

    def cut(self, a: str, b: str, until_ns: int) -> None:
        """Cut one direction: nothing passes from a to b."""
        self.link(a, b).cut(until_ns)

    def reset(self, a: str, b: str) -> int:
        """Reset every connection between two hosts. Returns how many."""
        found = [
            transport
            for process, transports in self.transports.items()
            if process.node == a
            for transport in transports
            if transport.peer.process.node == b
        ]
        for transport in found:
            transport.break_off()
            transport.peer.break_off()
        return len(found)

    def heal(self) -> None:
        """End every fault of every link, for good."""
        self.healed = True
        for link in self.links.values():
            link.cut_until = link.slow_until = 0
            link.hold.clear()
            link.lose.clear()
            link.mend()

    def process_died(self, process: Process) -> None:
        """Close the sockets of a process that died: peers learn of it after the data that was sent, or instead of
        it."""
        for key in [key for key, server in self.listeners.items() if server.process is process]:
            self.listeners.pop(key).close()
        for transport in tuple(self.transports.pop(process, ())):
            self.loop.keep(transport)
            transport.host_closes()

    def power_cut(self, process: Process) -> None:
        """Take the host down without notice. Peers learn nothing until it is back, or until their own keepalive gives
        up."""
        self.is_down.add(process.node)
        for key in [key for key, server in self.listeners.items() if server.process is process]:
            self.listeners.pop(key).close()
        for transport in tuple(self.transports.pop(process, ())):
            self.loop.keep(transport)
            transport.host_vanishes()

    def power_back(self, node: str) -> None:
        """Bring the host up again; it knows none of its old connections."""
        self.is_down.discard(node)
        for transports in self.transports.values():
            for transport in tuple(transports):
                if transport.peer.process.node == node and transport.peer.vanished:
                    transport.peer_is_unknown()

    # ---- connecting --------------------------------------------------------------------------------------------------

    async def connect(self, protocol_factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        loop = self.loop
        process = loop.process
        waiter: asyncio.Future[SimulatedTransport] = loop.create_future()
        self._ports[process.node] = local = self._ports.get(process.node, EPHEMERAL) + 1
        self.link(process.node, str(host)).carry(None, self._knock, process, local, str(host), int(port), waiter)
        try:
            transport = await waiter
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                waiter.result().abort()  # the connection was made while the caller gave up
            raise
        protocol = protocol_factory()
        transport.open(protocol)
        return transport, protocol

    def _knock(
        self, process: Process, local: int, host: str, port: int, waiter: asyncio.Future[SimulatedTransport]
    ) -> None:
        """Try to connect at the other host, also while its processes are paused."""
        if process.is_dead or waiter.done():
            return
        back = self.link(host, process.node)
        if host in self.is_down:
            self.link(process.node, host).carry(
                None, self._knock, process, local, host, port, waiter, extra_ns=SYN_AGAIN_NS
            )
            return
        server = self.listeners.get((host, port))
        if server is None or not server.serving:
            back.carry(process, _settle_error, waiter, ConnectionRefusedError(111, "Connect call failed", (host, port)))
            return
        self.connections += 1
        ours = SimulatedTransport(self, process, (process.node, local), (host, port), self.connections)
        theirs = SimulatedTransport(self, server.process, (host, port), (process.node, local), self.connections)
        ours.pair(theirs)
        for transport in (ours, theirs):
            self.transports.setdefault(transport.process, {})[transport] = None
        self.loop.hand(server.process, server.accept, theirs)
        back.carry(process, _settle_connected, waiter, ours)

    def listen(
        self, protocol_factory: Callable[[], Any], host: str | None, port: int | None, sock: Any, serving: bool
    ) -> Server:
        process = self.loop.process
        if sock is None:
            sock = self.bind(process.node if host in (None, "", "0.0.0.0", "::") else str(host), int(port or 0))
        else:
            assert isinstance(sock, SimulatedListener), "only a simulated socket can be listened on"
        return Server(self, process, protocol_factory, sock, serving)

    def bind(self, host: str, port: int) -> SimulatedListener:
        """Take a port of a host; 0 for any. Raises OSError if it is taken."""
        if not port:
            self._ports[host] = port = self._ports.get(host, EPHEMERAL) + 1
        if (host, port) in self.listeners:
            raise OSError(98, "Address already in use")
        return SimulatedListener(host, port)

    def forget(self, transport: SimulatedTransport) -> None:
        known = self.transports.get(transport.process)
        if known is not None:
            known.pop(transport, None)


class SimulatedListener:
    """A bound socket, as its owner sees it."""

    def __init__(self, host: str, port: int) -> None:
        self._name = (host, port)

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def close(self) -> None:
        return


class Server(asyncio.AbstractServer):
    """A listening port; what create_server returns."""

    def __init__(
        self,
        network: Network,
        process: Process,
        protocol_factory: Callable[[], Any],
        listener: SimulatedListener,
        serving: bool,
    ) -> None:
        self.process = process
        self.serving = serving
        self.sockets: tuple[SimulatedListener, ...] = (listener,)
        self._network = network
        self._key = listener.getsockname()
        self._protocol_factory = protocol_factory
        if self._key in network.listeners:
            raise OSError(98, "Address already in use")
        network.listeners[self._key] = self

    def accept(self, transport: SimulatedTransport) -> None:
        if not self.serving:
            transport.abort()
            return
        transport.open(self._protocol_factory())

    async def start_serving(self) -> None:
        self.serving = True

    def is_serving(self) -> bool:
        return self.serving

    def close(self) -> None:
        self.serving = False
        self.sockets = ()
        if self._network.listeners.get(self._key) is self:
            del self._network.listeners[self._key]

    async def wait_closed(self) -> None:
        return

    async def serve_forever(self) -> None:
        raise RuntimeError("not in a simulation: serve_forever")

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._network.loop


def _settle_connected(waiter: asyncio.Future[SimulatedTransport], transport: SimulatedTransport) -> None:
    if waiter.done():
        transport.abort()
    else:
        waiter.set_result(transport)


def _settle_error(waiter: asyncio.Future[SimulatedTransport], error: OSError) -> None:
    if not waiter.done():
        waiter.set_exception(error)
