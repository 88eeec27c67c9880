"""The network of tier 2: hosts, ports and TCP connections between the processes of one virtual loop.

The law of this room: a connection keeps TCP's promise and no more. What is written in one direction arrives in order,
cut anywhere, later than it was sent, or not at all, and then the connection is lost. Bytes are copied when they are
written. Nothing arrives before `connection_made` or after `close`. Whatever one host hears of another (data,
acknowledgement, refusal, end) travels over the directed link between them and is held while that link is cut.

Each directed link draws from a stream of its own, so what one pair of hosts does moves no other pair's luck.
"""

from __future__ import annotations

import asyncio
import random
import zlib
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from tests.simulation.service.loop import MS, Process, S, SimulatedLoop

SYN_AGAIN_NS = 1 * S  # a host that is down is knocked at again
EPHEMERAL = 40_000


class Link:
    """One direction between two hosts: how long things take, whether they pass at all.

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
        """Have `callback` called over there, when it arrives; returns when that is. process: None for the host itself,
        which answers even while its processes stand still."""
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
        """Let nothing pass until then; what is on its way is held."""
        self.cut_until = max(self.cut_until, until_ns)
        self._loop.at(until_ns, self._loop.world, self.mend)

    def mend(self) -> None:
        if self.cut_until > self._loop.now:
            return  # a longer cut came meanwhile
        self.cut_until = 0
        waiting, self.waiting = self.waiting, []
        for process, callback, args in waiting:
            self.carry(process, callback, *args)


class Network:
    """All hosts of a trial. A host's name is its address."""

    def __init__(self, loop: SimulatedLoop, *, latency_ns: int = MS // 5) -> None:
        self.loop = loop
        self.latency_ns = latency_ns
        self.is_down: set[str] = set()  # hosts without power
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
        """One way: nothing passes from a to b."""
        self.link(a, b).cut(until_ns)

    def reset(self, a: str, b: str) -> int:
        """Reset every connection between two hosts; how many."""
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
        """Mend every link for good."""
        self.healed = True
        for link in self.links.values():
            link.cut_until = link.slow_until = 0
            link.hold.clear()
            link.lose.clear()
            link.mend()

    def process_died(self, process: Process) -> None:
        """Its host closes its sockets: peers hear of it, after what was sent or instead of it."""
        for key in [key for key, server in self.listeners.items() if server.process is process]:
            self.listeners.pop(key).close()
        for transport in tuple(self.transports.pop(process, ())):
            self.loop.keep(transport)
            transport.host_closes()

    def power_cut(self, process: Process) -> None:
        """The host is gone without a word. Peers hear nothing until it is back, or their own keepalive gives up."""
        self.is_down.add(process.node)
        for key in [key for key, server in self.listeners.items() if server.process is process]:
            self.listeners.pop(key).close()
        for transport in tuple(self.transports.pop(process, ())):
            self.loop.keep(transport)
            transport.host_vanishes()

    def power_back(self, node: str) -> None:
        """The host answers again, and knows none of its old connections."""
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
                waiter.result().abort()  # it came true as we gave up
            raise
        protocol = protocol_factory()
        transport.open(protocol)
        return transport, protocol

    def _knock(
        self, process: Process, local: int, host: str, port: int, waiter: asyncio.Future[SimulatedTransport]
    ) -> None:
        """At the other host, whatever its processes do."""
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
        """Take a port of a host; 0 for any. Raises OSError when it is taken."""
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
    """What a bound socket is to whoever bound it."""

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


_EOF = b""
_RESET = None


class SimulatedTransport(asyncio.Transport):
    """One end of a connection. The other is `peer`; what flies to this end is in `_flying`."""

    __slots__ = (
        "_arrives",
        "_broken",
        "_buffered",
        "_closing",
        "_eof_heard",
        "_eof_sent",
        "_flying",
        "_high",
        "_inbox",
        "_local",
        "_loop",
        "_lost",
        "_low",
        "_network",
        "_number",
        "_opened",
        "_out",
        "_out_bytes",
        "_paused",
        "_protocol",
        "_pump_due",
        "_reading",
        "_remote",
        "_unacked",
        "_window",
        "peer",
        "process",
        "vanished",
    )

    peer: SimulatedTransport

    def __init__(
        self, network: Network, process: Process, local: tuple[str, int], remote: tuple[str, int], number: int
    ) -> None:
        super().__init__()
        self.process = process
        self.vanished = False  # its host lost power
        self._network = network
        self._loop = network.loop
        self._local = local
        self._remote = remote
        self._number = number
        self._protocol: Any = None
        self._buffered = False
        self._opened = False
        self._closing = False
        self._lost = False  # connection_lost is said, or will be at the end of this turn
        self._broken = False  # whatever still flies here is dropped
        self._reading = True
        self._inbox: deque[bytes | None] = deque()  # arrived, not taken yet
        self._flying: deque[bytes | None] = deque()  # sent by the peer, in order
        self._arrives = 0  # when the last thing we sent arrives
        self._out: deque[bytes] = deque()  # beyond the window: what asyncio would keep in its own buffer
        self._out_bytes = 0
        self._unacked = 0
        self._window = network.link(local[0], remote[0]).rng.choice((16 * 1024, 128 * 1024, 512 * 1024))
        self._high, self._low = 64 * 1024, 16 * 1024
        self._paused = False
        self._pump_due = False
        self._eof_sent = False
        self._eof_heard = False

    def __repr__(self) -> str:
        return f"<{self._local[0]}:{self._local[1]} to {self._remote[0]}:{self._remote[1]}>"

    def pair(self, peer: SimulatedTransport) -> None:
        self.peer = peer
        peer.peer = self

    # ---- the life ----------------------------------------------------------------------------------------------------

    def open(self, protocol: Any) -> None:
        """Introduce the protocol; from now on it hears what has arrived."""
        self.set_protocol(protocol)
        self._opened = True
        protocol.connection_made(self)
        if self._lost:
            self._loop.call_soon(self._tell_lost, ConnectionResetError(104, "Connection reset by peer"))
        elif self._inbox:
            self._loop.call_soon(self._take_inbox)

    def _lose(self, error: Exception | None) -> None:
        """The end of this end. In the turn of its process."""
        if self._lost:
            return
        self._lost = self._closing = True
        self._out.clear()
        self._out_bytes = 0
        self._inbox.clear()
        self._network.forget(self)
        if self._opened:
            self._loop.call_soon(self._tell_lost, error)

    def _tell_lost(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        protocol.connection_lost(error)

    # ---- asyncio's side ----------------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self._remote, "sockname": self._local}.get(name, default)

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._buffered = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return cast(asyncio.BaseProtocol, self._protocol)

    def is_closing(self) -> bool:
        return self._closing

    @property
    def is_held(self) -> bool:
        """Whether its process has it, and has not let go of it; one that nobody waits for any more is the host's."""
        return self._opened and not self._closing

    def is_reading(self) -> bool:
        return self._reading and not self._closing

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading and not self._closing:
            self._reading = True
            if self._inbox:
                self._loop.call_soon(self._take_inbox)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = high if high is not None else (64 * 1024 if low is None else 4 * low)
        self._low = low if low is not None else self._high // 4
        self._look_at_buffer()

    def get_write_buffer_size(self) -> int:
        return self._out_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def can_write_eof(self) -> bool:
        return True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return  # as asyncio's own: what is written to a transport that closes goes nowhere
        if self._eof_sent:
            raise RuntimeError("Cannot call write() after write_eof()")
        self._send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def write_eof(self) -> None:
        if self._eof_sent or self._closing:
            return
        self._eof_sent = True
        if not self._out:
            self._transmit(_EOF)

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self._out:
            self._finish()

    def abort(self) -> None:
        if self._lost:
            return
        self._closing = True
        was_eof = self._eof_sent and not self._out
        self._out.clear()
        self._out_bytes = 0
        if not was_eof:
            self._transmit(_EOF if self._link().rng.random() < 0.5 else _RESET)
        self._lose(None)

    def _finish(self) -> None:
        """Everything written has left: say goodbye."""
        if not self._eof_sent:
            self._transmit(_EOF)
        self._eof_sent = True
        self._lose(None)

    # ---- sending -----------------------------------------------------------------------------------------------------

    def _link(self) -> Link:
        return self._network.link(self._local[0], self._remote[0])

    def _send(self, data: bytes) -> None:
        room = self._window - self._unacked
        if not self._out and len(data) <= room:
            self._cut_up(data)
            return
        if not self._out and room > 0:
            self._cut_up(data[:room])
            data = data[room:]
        self._out.append(data)
        self._out_bytes += len(data)
        self._look_at_buffer()

    def _cut_up(self, data: bytes) -> None:
        """Send as one chunk, or now and then as two."""
        self._unacked += len(data)
        self._network.bytes += len(data)
        if len(data) > 1:
            rng = self._link().rng
            if rng.random() < 0.1:
                at = rng.randint(1, len(data) - 1)
                self._transmit(data[:at])
                data = data[at:]
        self._transmit(data)

    def _transmit(self, chunk: bytes | None) -> None:
        link, peer = self._link(), self.peer
        extra_ns = 0
        if chunk:
            link.sent += 1
            if link.hold or link.lose:
                extra_ns = link.hold.pop(link.sent, 0)
                if link.sent in link.lose:
                    link.lose.discard(link.sent)
                    self._network.reset(self._local[0], self._remote[0])
                    return
        peer._flying.append(chunk)
        self._arrives = link.carry(peer.process, peer._arrive, extra_ns=extra_ns, not_before=self._arrives)
        if peer.vanished:
            if peer._local[0] not in self._network.is_down:
                self.peer_is_unknown()
        elif peer.process.is_dead and chunk:
            peer._link().carry(self.process, self.break_off)

    def _acked(self, size: int) -> None:
        """The peer's process took so much."""
        self._unacked -= size
        if self._out and not self._pump_due and not self._lost:
            self._pump_due = True
            self.peer._link().carry(self.process, self._pump)

    def _pump(self) -> None:
        self._pump_due = False
        while self._out and not self._lost:
            room = self._window - self._unacked
            if room <= 0:
                return
            data = self._out.popleft()
            self._out_bytes -= len(data)
            if len(data) > room:
                self._out.appendleft(data[room:])
                self._out_bytes += len(data) - room
                data = data[:room]
            self._cut_up(data)
        if self._lost:
            return
        self._look_at_buffer()
        if not self._out:
            if self._closing:
                self._finish()
            elif self._eof_sent:
                self._transmit(_EOF)

    def _look_at_buffer(self) -> None:
        if not self._paused and self._out_bytes > self._high:
            self._paused = True
            self._protocol.pause_writing()
        elif self._paused and self._out_bytes <= self._low:
            self._paused = False
            self._protocol.resume_writing()

    # ---- hearing -----------------------------------------------------------------------------------------------------

    def _arrive(self) -> None:
        """The next thing that flies here is here. In the turn of our process."""
        if self._broken or not self._flying:
            return
        chunk = self._flying.popleft()
        if self._lost:
            if chunk:
                self._link().carry(self.peer.process, self.peer.break_off)  # nobody is here: TCP resets
            return
        self._inbox.append(chunk)
        self._take_inbox()

    def _take_inbox(self) -> None:
        inbox = self._inbox
        while inbox and self._opened and not self._lost and (self._reading or inbox[0] is _RESET):
            chunk = inbox.popleft()
            if chunk is _RESET:
                self._lose(ConnectionResetError(104, "Connection reset by peer"))
            elif self._closing:
                self.peer._acked(len(chunk))
            elif chunk == _EOF:
                self._hear_eof()
            else:
                while inbox and inbox[0] and len(chunk) < 64 * 1024:
                    chunk += cast(bytes, inbox.popleft())
                self.peer._acked(len(chunk))
                self._loop.mix(zlib.crc32(chunk) ^ self._number << 32)
                if self._loop.on_line is not None:
                    self._loop.note(f"hears {len(chunk)} bytes on connection {self._number} from {self._remote[0]}")
                self._hear(chunk)

    def _hear(self, data: bytes) -> None:
        if not self._buffered:
            self._protocol.data_received(data)
            return
        while data and not self._closing:
            buffer = self._protocol.get_buffer(len(data))
            size = min(len(buffer), len(data))
            buffer[:size] = data[:size]
            data = data[size:]
            self._protocol.buffer_updated(size)

    def _hear_eof(self) -> None:
        self._eof_heard = True
        if not self._protocol.eof_received():
            self.close()

    # ---- faults ------------------------------------------------------------------------------------------------------

    def break_off(self) -> None:
        """The connection is reset at this end, whatever was on its way here."""
        if self._lost or self._broken:
            return
        self._broken = True
        self._flying.clear()
        self._inbox.clear()
        self._loop.hand(self.process, self._lose, ConnectionResetError(104, "Connection reset by peer"))

    def host_closes(self) -> None:
        """Our process was killed; its host says so."""
        if not self._lost and not self.peer._lost:
            self._transmit(_EOF if self._link().rng.random() < 0.5 else _RESET)
        self._lost = self._closing = True
        self._out.clear()

    def host_vanishes(self) -> None:
        """Our host lost power: what it had not sent is gone, and nothing is answered."""
        self.vanished = True
        self._lost = self._closing = self._broken = True
        self._out.clear()
        peer = self.peer
        if not peer._lost and not peer.process.is_dead:
            keepalive_ns = int(self._link().rng.uniform(10, 30) * S)
            self._loop.at(self._loop.now + keepalive_ns, peer.process, peer._give_up)

    def _give_up(self) -> None:
        """Keepalive found nobody."""
        if not self._lost:
            self._broken = True
            self._flying.clear()
            self._lose(TimeoutError(110, "Connection timed out"))

    def peer_is_unknown(self) -> None:
        """The host over there is back without its memory: what we sent, or send, is answered by a reset."""
        if not self._lost and (self._unacked or self._out):
            delay_ns = int(self._link().rng.uniform(0.05, 0.5) * S)
            self._loop.at(self._loop.now + delay_ns, self.process, self.break_off)


def _settle_connected(waiter: asyncio.Future[SimulatedTransport], transport: SimulatedTransport) -> None:
    if waiter.done():
        transport.abort()
    else:
        waiter.set_result(transport)


def _settle_error(waiter: asyncio.Future[SimulatedTransport], error: OSError) -> None:
    if not waiter.done():
        waiter.set_exception(error)
