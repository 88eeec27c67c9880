"""The simulated network: connections between machines; messages lost, held, late or duplicated on them; time-outs.

Requests of a connection that was closed may still arrive at the server; responses never reach the client. A response
without a waiting request is dropped, as the real transport does.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Protocol

from dlog.machine import Effect, Fact, Machine, PeerLost, Received
from tests.simulation.plan import Fault, FaultKind

if TYPE_CHECKING:
    from tests.simulation.kernel import Simulation

S = 1_000_000_000


class Transport(Protocol):
    """Pairs requests with responses, as the real transport does; None for a message that is neither."""

    def question(self, message: Any) -> Hashable | None: ...

    def answer(self, message: Any) -> Hashable | None: ...


class NoPairs:
    """A transport without request time-outs."""

    def question(self, message: Any) -> Hashable | None:
        return None

    def answer(self, message: Any) -> Hashable | None:
        return None


class Node:
    """A process with a name; incarnation grows with each start."""

    def __init__(self, name: str, start: Callable[[Node], None] | None) -> None:
        self.name = name
        self.start = start
        self.up = True
        self.silent = False  # died without notice to its peers (power)
        self.incarnation = 1
        self.paused_until = 0
        self.backlog: deque[Callable[[], None]] = deque()
        self.mailbox: deque[tuple[Host, Any]] = deque()  # facts that wait because the node is slow
        self.cost = 0  # of handling one thing, while slow, in ns
        self.slow_until = 0
        self.busy_until = 0
        self.slow_disk_until = 0
        self.slow_disk_s = 0.0
        self.skew_s = 0.0  # of its wall clock

    def stands_still(self, now: int) -> bool:
        """Whether what reaches the node must wait: it is paused, or earlier messages are not yet handled."""
        return self.paused_until > now or bool(self.backlog)


class Host:
    """A machine at its address. Dead once its node crashed or it was removed."""

    def __init__(self, node: Node, address: str, machine: Machine, listens: bool) -> None:
        self.node = node
        self.address = address
        self.machine = machine
        self.listens = listens
        self.alive = True
        self.timers: dict[Hashable, int] = {}
        self.sinks: dict[int, Callable[[Any], None]] = {}
        self.on_answer: Callable[[int, Any], None] | None = None
        self.on_event: Callable[[Any], None] | None = None
        self.story: deque[tuple[Fact, list[Effect]]] = deque(maxlen=40)


class Connection:
    """One connection of a client's host to a server's address."""

    def __init__(self, number: int, client: Host, server: str) -> None:
        self.name = f"{client.address}#{number}"
        self.client = client
        self.server = server
        self.open = True
        self.accepted: Host | None = None  # the server's incarnation that took it
        self.waiting: dict[Hashable, list[int]] = {}  # request -> when sent, or until when it may wait at the server
        self.watch_at = 0
        self.last_arrival = [0, 0]  # to server, to client


class Network:
    """All connections of one simulation, and their faults."""

    def __init__(
        self, sim: Simulation, transport: Transport, *, request_timeout_s: float, latency_s: float, fifo: bool
    ) -> None:
        self.transport = transport
        self.connections: dict[tuple[str, str], Connection] = {}  # by client address, server address
        self.cuts: dict[tuple[str, str], int] = {}  # directed pair of nodes -> until
        self.slow: dict[tuple[str, str], tuple[int, float]] = {}
        self.rates: dict[FaultKind, tuple[int, float]] = {}
        self.kth: list[tuple[Fault, Counter[str]]] = []
        self._sim = sim
        self._timeout = int(request_timeout_s * S)
        self._latency_s = latency_s
        self._fifo = fifo
        self._number = 0
        self._by_name: dict[str, Connection] = {}
        self._held: list[tuple[str, str, Connection, bool, Any]] = []

    def heal(self) -> None:
        """End all faults of the network: held messages are delivered, nothing is slow or lost any more."""
        self._timeout = max(self._timeout, S)
        self.cuts.clear()
        self.slow.clear()
        self.rates.clear()
        self.kth.clear()
        self.release_held()

    def struck(self, kind: FaultKind) -> bool:
        """Draw whether a fault with a rate hits now."""
        until, rate = self.rates.get(kind, (0, 0.0))
        return until > self._sim.now and self._sim.rng.random() < rate

    def close_of(self, host: Host) -> None:
        """Reset every connection of one host."""
        for connection in list(self.connections.values()):
            if connection.client is host or connection.accepted is host:
                self.close(connection, tell_client=True, reason="closed")

    def reset(self, a: str, b: str) -> None:
        """Reset the connections between two nodes."""
        for connection in list(self.connections.values()):
            if sorted(self.ends(connection, True)) == sorted((a, b)):
                self.close(connection, tell_client=True, reason="reset")

    def crashed(self, *, power: bool) -> None:
        """Close the connections of hosts that just died; a power cut sends the clients no notice."""
        for connection in list(self.connections.values()):
            if not connection.client.alive:
                self.close(connection, tell_client=False, reason="crash")
            elif connection.accepted is not None and not connection.accepted.alive and not power:
                self.close(connection, tell_client=True, reason="crash")

    def cut(self, a: str, b: str, until: int, *, both: bool) -> None:
        """Cut the link from node a to b (and back); messages are held meanwhile."""
        for pair in ((a, b), (b, a))[: 2 if both else 1]:
            self.cuts[pair] = max(self.cuts.get(pair, 0), until)
        self._sim.at(until, self.release_held)

    def send(self, host: Host, peer: Any, message: Any) -> None:
        """Send from a machine: a server answers on the connection it names, a client opens one if need be."""
        if host.listens:
            found = self._by_name.get(peer)
            if found is not None and found.open and found.accepted is host:
                self._transmit(found, False, message)
            return
        connection = self.connections.get((host.address, peer))
        if connection is None or not connection.open:
            self._number += 1
            connection = Connection(self._number, host, peer)
            self.connections[host.address, peer] = connection
            self._by_name[connection.name] = connection
        question = self.transport.question(message)
        if question is not None:
            its_own_s = getattr(message, "timeout_ms", 0) / 1000  # of a long poll; the usual timeout comes on top of it
            connection.waiting.setdefault(question, []).append(self._sim.now + int(its_own_s * S))
            if not connection.watch_at:
                connection.watch_at = self._sim.now + self._timeout
                self._sim.at(connection.watch_at, self._watch, connection)
        self._transmit(connection, True, message)

    def ends(self, connection: Connection, to_server: bool) -> tuple[str, str]:
        """Names of the nodes that a message goes from and to."""
        home = self._sim.homes.get(connection.server)
        a, b = connection.client.node.name, home.name if home else connection.server
        return (a, b) if to_server else (b, a)

    def _transmit(self, connection: Connection, to_server: bool, message: Any) -> None:
        """Decide what happens to a message: lost, held, late, duplicated or delivered."""
        ends = self.ends(connection, to_server)
        extra = 0
        for fault, counts in self.kth:
            if (fault.a, fault.b) == ends and fault.message in ("", type(message).__name__):
                counts[""] += 1
                if counts[""] == fault.count:
                    self._sim.reached[f"fault.{fault.kind.value}"] += 1
                    if fault.kind is FaultKind.DROP_KTH:
                        return
                    extra = int(fault.for_s * S)
        if self.struck(FaultKind.LOSS):
            return
        if self.cuts.get(ends, 0) > self._sim.now:
            self._held.append((*ends, connection, to_server, message))
            return
        slow_until, slow_s = self.slow.get(ends, (0, 0.0))
        delay_s = self._sim.rng.expovariate(1.0) * self._latency_s
        if self._sim.rng.random() < 0.01 and not self._sim.healed:
            delay_s *= 50
        if slow_until > self._sim.now:
            delay_s += slow_s
        when = self._deliver(connection, to_server, message, int(delay_s * S) + extra, fifo=self._fifo and not extra)
        if to_server and self.struck(FaultKind.DUPLICATE):
            self._sim.reached["fault.duplicate"] += 1
            self._sim.at(when + int(self._sim.rng.random() * S), self._arrive, connection, to_server, message)

    def _deliver(self, connection: Connection, to_server: bool, message: Any, delay: int, *, fifo: bool) -> int:
        when = self._sim.now + delay
        if fifo:
            way = 0 if to_server else 1
            when = connection.last_arrival[way] = max(when, connection.last_arrival[way])
        self._sim.at(when, self._arrive, connection, to_server, message)
        return when

    def _arrive(self, connection: Connection, to_server: bool, message: Any) -> None:
        if not to_server:
            if not connection.open or not connection.client.alive:
                return
            if connection.client.node.stands_still(self._sim.now):
                connection.client.node.backlog.append(lambda: self._arrive(connection, to_server, message))
                return
            answer = self.transport.answer(message)
            if answer is not None:
                asked = connection.waiting.get(answer)
                if not asked:
                    return  # the request has no sender any more
                asked.pop(0)
                if not asked:
                    del connection.waiting[answer]
            self._sim.hand(connection.client, Received(connection.server, message, self._sim.now_s))
            return
        host = self._sim.hosts.get(connection.server)
        if host is None or (connection.accepted is not None and connection.accepted is not host):
            node = self._sim.homes.get(connection.server)
            if connection.open and not (node is not None and node.silent):
                self.close(connection, tell_client=True, reason="refused")
            return
        connection.accepted = host
        self._sim.hand(host, Received(connection.name, message))

    def _watch(self, connection: Connection) -> None:
        """Close the connection if its oldest question waited too long."""
        connection.watch_at = 0
        if not connection.open or not connection.client.alive or not connection.waiting:
            return
        if connection.client.node.stands_still(self._sim.now):
            connection.watch_at = self._sim.now
            connection.client.node.backlog.append(lambda: self._watch(connection))
            return
        oldest = min(asked[0] for asked in connection.waiting.values())
        if self._sim.now >= oldest + self._timeout:
            self.close(connection, tell_client=True, reason="timeout")
        else:
            connection.watch_at = min(oldest, self._sim.now) + self._timeout
            self._sim.at(connection.watch_at, self._watch, connection)

    def close(self, connection: Connection, *, tell_client: bool, reason: str) -> None:
        """Close a connection: the server is told, and the client if `tell_client`; responses under way are lost."""
        if not connection.open:
            return
        connection.open = False
        connection.waiting.clear()
        key = (connection.client.address, connection.server)
        if self.connections.get(key) is connection:
            del self.connections[key]
        self._by_name.pop(connection.name, None)
        if tell_client:
            self._sim.at(self._sim.now, self._sim.hand, connection.client, PeerLost(connection.server, reason))
        if connection.accepted is not None:
            self._sim.at(self._sim.now, self._sim.hand, connection.accepted, PeerLost(connection.name, reason))

    def release_held(self) -> None:
        """Deliver what was held by cuts that are over."""
        held, self._held = self._held, []
        for a, b, connection, to_server, message in held:
            if self.cuts.get((a, b), 0) > self._sim.now:
                self._held.append((a, b, connection, to_server, message))
            elif connection.open or (to_server and self._sim.rng.random() < 0.5):
                self._deliver(connection, to_server, message, int(self._sim.rng.random() * 0.01 * S), fifo=self._fifo)
