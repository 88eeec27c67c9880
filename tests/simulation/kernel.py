"""The tier-1 simulator: machines on a heap, no asyncio; one seed, one history, one trace hash.

How to use it
-------------
    sim = Simulation(plan, transport=MyTransport())          # plan: tests/simulation/plan.py
    sim.node("b1", start=lambda node: ...)                   # `start` places the machines; called again after a crash
    sim.place("b1", "b1", bookie, listens=True)              # node, address, machine
    host = sim.place("w", "w/adder-1", adder, on_answer=f, on_event=g)
    sim.ask("w/adder-1", Add(...), f)                        # f(result or DLogError), once, or never if the host dies
    sim.metadata.create(LedgerKey(1), value)
    sim.every_event = checker                                # called after each event: raise Violation("L5", "...")
    sim.on_fact, sim.on_effect = see, see                    # probes: facts and effects of machines, with their host
    sim.run(until_s=10.0)                                    # or run(until=lambda: done, until_s=limit)
    sim.heal(); sim.run(...)                                 # faults off: now liveness may be demanded

- A machine has an *address* and runs on a *node*; `Send(peer, ...)` goes to the address `peer`. Nodes crash, pause and
  are cut off, with every machine on them. A new incarnation is made by the node's `start`.
- A host with `listens=True` is a server: it is never connected by its own Send; it sees one peer name per connection
  ("address#7") and what it sends to a connection that is gone is lost. A client sees the server's address as peer.
- `transport.question(m)` / `transport.answer(m)` pair requests with responses as dlog/io's transport does: a response
  without a waiting request is dropped, and when a request stays unanswered for `request_timeout_s` the connection is
  closed and the client gets PeerLost. Requests of a closed connection may still arrive; responses never do.
- `Persist(token, data)` goes to the host's journal (`sim.disk(address)`); `Persisted` comes back when synced. A process
  crash keeps what was written, a power cut loses an unsynced suffix. `start` reads `sim.disk(address).durable`.
- Metadata is a versioned map with conflicts, lost replies (the write took place), late writes (it takes place after its
  caller got OutcomeUnknown), late answers and callers that are cut off.
- A node may be slow in what it handles or syncs; its wall clock is `now_s + node.skew_s`, its timers never jump.
- `sim.rng` is the environment's stream; give machines their own `random.Random(sim.rng.random())`.
- `sim.reach("name")` counts a mark (and triggers faults bound to it); a batch with a zero count proves nothing.
- Safety is checked after every event, liveness only after `heal()`.

The same plan gives the same trace hash with any PYTHONHASHSEED: time is integer nanoseconds and nothing iterates over a
set.
"""

from __future__ import annotations

import dataclasses
import heapq
import random
import zlib
from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Any

from dlog.machine import (
    Answer,
    Asked,
    CancelTimer,
    CompareAndSet,
    Conflict,
    Effect,
    Emit,
    Fact,
    Machine,
    MetadataSeen,
    OutcomeUnknown,
    Persist,
    Persisted,
    ReadMetadata,
    SeenOutcome,
    Send,
    SetTimer,
    TimerFired,
)
from tests.simulation.network import Host, Network, Node, NoPairs, Transport
from tests.simulation.plan import Fault, FaultKind, Plan
from tests.simulation.storage import Disk, MetadataModel

METADATA = "metadata"  # the node name under which the metadata store can be cut off
S = 1_000_000_000


class Violation(AssertionError):
    """An invariant did not hold; `invariant` is its id in specs (L1, S3, ...)."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


def judged(run: Callable[[], None], *, trace: bool = False) -> tuple[str, str]:
    """Run a world. Returns the invariant that it broke first ("assert": an assertion of the code, "": none) and the
    text.

    trace: raise the failure of an assertion instead, with its traceback.
    """
    try:
        run()
    except Violation as found:
        return found.invariant, str(found)
    except AssertionError as error:
        if trace:
            raise
        return "assert", f"{error!r}"
    return "", ""


class Simulation:
    """One history; see the module's docstring."""

    def __init__(
        self,
        plan: Plan,
        *,
        transport: Transport | None = None,
        trace: bool = False,
        request_timeout_s: float = 5.0,
        latency_s: float = 0.0005,
        sync_s: float = 0.001,
        fifo: bool = True,
    ) -> None:
        self.plan = plan
        self.rng = random.Random(f"{plan.seed}/environment")
        self.metadata = MetadataModel()
        self.reached: Counter[str] = Counter()
        self.lines: list[str] | None = [] if trace else None
        self.trace_hash = 0
        self.events = 0
        self.every_event: Callable[[], None] | None = None
        self.on_fact: Callable[[Host, Fact], None] | None = None  # sees every fact before the machine does
        self.on_effect: Callable[[Host, Effect], None] | None = None  # sees every effect before it is performed
        self.on_environment: Callable[[Fault], None] | None = None  # performs FaultKind.ENVIRONMENT
        self.now = 0
        self.healed = False
        self.nodes: dict[str, Node] = {}
        self.hosts: dict[str, Host] = {}
        self.homes: dict[str, Node] = {}  # address -> node, also of dead hosts
        self.network = Network(
            self, transport or NoPairs(), request_timeout_s=request_timeout_s, latency_s=latency_s, fifo=fifo
        )
        self._sync_s = sync_s
        self._heap: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []
        self._seq = 0
        self._ticket = 0
        self._disks: dict[str, Disk] = {}
        self._marked: dict[str, list[Fault]] = {}
        self._names: dict[type, tuple[str, tuple[str, ...]]] = {}
        for fault in plan.faults:
            if fault.mark:
                self._marked.setdefault(fault.mark, []).append(fault)
            else:
                self.at(int(fault.at_s * S), self._strike, fault)

    # ---- set-up and requests -----------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        return self.now / S

    def node(self, name: str, start: Callable[[Node], None] | None = None) -> Node:
        """Add a node; `start` (if given) is called now and after each crash to place its machines."""
        node = self.nodes[name] = Node(name, start)
        if start is not None:
            start(node)
        return node

    def place(
        self,
        node: str,
        address: str,
        machine: Machine,
        *,
        listens: bool = False,
        on_answer: Callable[[int, Any], None] | None = None,
        on_event: Callable[[Any], None] | None = None,
    ) -> Host:
        """Run a machine at an address of a node; it replaces a machine that was there."""
        self.remove(address)
        self.homes[address] = self.nodes[node]
        host = self.hosts[address] = Host(self.nodes[node], address, machine, listens)
        host.on_answer, host.on_event = on_answer, on_event
        return host

    def remove(self, address: str) -> None:
        """End a machine; its connections are reset."""
        host = self.hosts.pop(address, None)
        if host is not None:
            host.alive = False
            self.network.close_of(host)

    def ask(self, address: str, request: Any, sink: Callable[[Any], None] | None = None) -> int:
        """Send a request to the machine at `address`; returns the ticket. `sink` gets the result or the error, once."""
        self._ticket += 1
        host = self.hosts[address]
        if sink is not None:
            host.sinks[self._ticket] = sink
        self.at(self.now, self.hand, host, Asked(self._ticket, request, self.now_s))
        return self._ticket

    def call_in(self, delay_s: float, fn: Callable[..., None], *args: Any, node: str | None = None) -> None:
        """Run `fn` later; with `node`, only if that node has not crashed until then (and once it is not paused)."""
        if node is None:
            self.at(self.now + int(delay_s * S), fn, *args)
        else:
            owner = self.nodes[node]
            self.at(self.now + int(delay_s * S), self._on_node, owner, owner.incarnation, fn, args)

    def is_up(self, node: str) -> bool:
        return self.nodes[node].up

    def machine(self, address: str) -> Any:
        """The machine at an address, or None; for checkers."""
        host = self.hosts.get(address)
        return host.machine if host else None

    def disk(self, address: str) -> Disk:
        return self._disks.setdefault(address, Disk())

    def reach(self, mark: str) -> None:
        """Count a mark; faults bound to it strike."""
        self.reached[mark] += 1
        if mark in self._marked and not self.healed:
            for fault in self._marked[mark]:
                if fault.count == self.reached[mark] or (fault.kind in _INDEXED and self.reached[mark] == 1):
                    self.at(self.now + int(fault.at_s * S), self._strike, fault)

    # ---- running -----------------------------------------------------------------------------------------------------

    def run(self, *, until_s: float, until: Callable[[], bool] | None = None) -> bool:
        """Run until the virtual time `until_s`, or until `until` holds after an event. Returns whether `until` held."""
        heap, limit = self._heap, int(until_s * S)
        if until is not None and until():
            return True
        while heap and heap[0][0] <= limit:
            when, _, fn, args = heapq.heappop(heap)
            self.now = when
            self.events += 1
            fn(*args)
            if self.every_event is not None:
                self.every_event()
            if until is not None and until():
                return True
        self.now = max(self.now, limit)
        return False

    def heal(self) -> None:
        """End all faults and start no more: cuts mended, paused nodes resumed, crashed ones restarted."""
        self.healed = True
        self.network.heal()
        for node in self.nodes.values():
            node.paused_until = node.slow_until = node.slow_disk_until = node.busy_until = 0
            node.skew_s = 0.0
            self.at(self.now, self._catch_up, node)
            self.at(self.now, self._resume, node)
            if not node.up:
                self.at(self.now, self._restart, node)

    def story(self, address: str) -> str:
        """The last facts and effects of a machine, one line each."""
        host = self.hosts.get(address)
        return "" if host is None else "\n".join(f"{fact} -> {effects}" for fact, effects in host.story)

    def at(self, when: int, fn: Callable[..., None], *args: Any) -> None:
        self._seq += 1
        heapq.heappush(self._heap, (when, self._seq, fn, args))

    def _on_node(self, node: Node, incarnation: int, fn: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not node.up or node.incarnation != incarnation:
            return
        if node.stands_still(self.now):
            node.backlog.append(lambda: self._on_node(node, incarnation, fn, args))
        else:
            fn(*args)

    def hand(self, host: Host, fact: Fact) -> None:
        """Give a fact to a machine and perform what it returns."""
        if not host.alive:
            return
        if host.node.stands_still(self.now):
            host.node.backlog.append(lambda: self.hand(host, fact))
            return
        node = host.node
        if node.slow_until > self.now or node.busy_until > self.now:
            node.busy_until = max(node.busy_until, self.now) + (node.cost if node.slow_until > self.now else 0)
            node.mailbox.append((host, fact))
            self.at(node.busy_until, self._handle_next, node)
            return
        self._handle(host, fact)

    def _handle_next(self, node: Node) -> None:
        """Handle the first fact of a slow node's mailbox. Empty: the node has caught up before."""
        if node.mailbox:
            self._handle(*node.mailbox.popleft())

    def _catch_up(self, node: Node) -> None:
        while node.mailbox:
            self._handle_next(node)

    def _handle(self, host: Host, fact: Fact) -> None:
        if not host.alive:
            return
        self._note(host.address, fact)
        if self.on_fact is not None:
            self.on_fact(host, fact)
        effects = host.machine.handle(fact)
        host.story.append((fact, effects))
        for effect in effects:
            if self.on_effect is not None:
                self.on_effect(host, effect)
            self._perform(host, effect)

    def _perform(self, host: Host, effect: Effect) -> None:
        match effect:
            case Send():
                self.network.send(host, effect.peer, effect.message)
            case Persist():
                disk = self.disk(host.address)
                disk.pending.append((effect.token, effect.data))
                if not disk.syncing:
                    self._start_sync(host, disk)
            case SetTimer():
                self._seq += 1
                host.timers[effect.key] = self._seq
                when = self.now + max(0, int(effect.after_s * S))
                heapq.heappush(self._heap, (when, self._seq, self._fire, (host, effect.key, self._seq)))
            case CancelTimer():
                host.timers.pop(effect.key, None)
            case ReadMetadata() | CompareAndSet():
                self._ask_metadata(host, effect)
            case Answer():
                self._note(host.address, effect)
                sink = host.sinks.pop(effect.ticket, None)
                if sink is not None:
                    sink(effect.result)
                if host.on_answer is not None:
                    host.on_answer(effect.ticket, effect.result)
            case Emit():
                self._note(host.address, effect)
                if host.on_event is not None:
                    host.on_event(effect.event)

    def _fire(self, host: Host, key: Hashable, number: int) -> None:
        if host.timers.get(key) == number and host.alive:
            if host.node.stands_still(self.now):
                host.node.backlog.append(lambda: self._fire(host, key, number))
                return
            del host.timers[key]
            self.hand(host, TimerFired(key, self.now_s))

    def _start_sync(self, host: Host, disk: Disk) -> None:
        """Start one group commit: it covers what waits now, not what comes while it runs."""
        disk.syncing = len(disk.pending)
        stalls = self.rng.random() < 0.005 and not self.healed
        delay_s = self.rng.expovariate(1.0) * self._sync_s * (100 if stalls else 1)
        if host.node.slow_disk_until > self.now:
            delay_s += host.node.slow_disk_s
        self.at(self.now + int(delay_s * S), self._synced, host)

    def _synced(self, host: Host) -> None:
        if host.alive:
            disk = self.disk(host.address)
            upto = disk.sync()
            if disk.pending:
                self._start_sync(host, disk)
            self.hand(host, Persisted(upto))

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def _ask_metadata(self, host: Host, effect: ReadMetadata | CompareAndSet) -> None:
        delay = int(self.rng.expovariate(1.0) * 0.002 * S)
        if self.network.cuts.get((host.node.name, METADATA), 0) > self.now:
            applied = self.rng.random() < 0.2
            self.at(self.now + delay, self._serve_metadata, host, effect, False, applied)
            return
        late = self.network.struck(FaultKind.META_LATE)
        if late and isinstance(effect, CompareAndSet):
            self.reached["fault.meta_late"] += 1
            self.at(self.now + delay, self._reply_metadata, host, effect.token, OutcomeUnknown("connection lost"))
            late_s = self.rng.random() * self.rng.choice((0.005, 0.2))
            self.at(self.now + delay + int(late_s * S), self._apply_late, effect)
            return
        replies = not self.network.struck(FaultKind.META_REPLY_LOST)
        self.at(self.now + delay, self._serve_metadata, host, effect, replies, True)

    def _apply_late(self, effect: CompareAndSet) -> None:
        self.metadata.compare_and_set(effect.key, effect.value, effect.version)

    def _serve_metadata(self, host: Host, effect: ReadMetadata | CompareAndSet, replies: bool, applied: bool) -> None:
        outcome: SeenOutcome = OutcomeUnknown("not sent")
        if isinstance(effect, ReadMetadata):
            outcome = self.metadata.read(effect.key)
        elif applied:
            outcome = self.metadata.compare_and_set(effect.key, effect.value, effect.version)
            if isinstance(outcome, Conflict):
                self.reached["metadata.conflict"] += 1
        if not replies:
            self.reached["fault.meta_reply_lost"] += 1
            outcome = OutcomeUnknown("connection lost")
        delay = int(self.rng.expovariate(1.0) * 0.002 * S)
        until, late_s = self.network.rates.get(FaultKind.META_DELAY, (0, 0.0))
        if until > self.now:
            delay += int(self.rng.random() * late_s * S)
        self.at(self.now + delay, self._reply_metadata, host, effect.token, outcome)

    def _reply_metadata(self, host: Host, token: Hashable, outcome: SeenOutcome) -> None:
        self.hand(host, MetadataSeen(token, outcome))

    # ---- faults ------------------------------------------------------------------------------------------------------

    def _strike(self, fault: Fault) -> None:
        if self.healed:
            return
        self._line("fault", str(fault))
        self.reached[f"fault.{fault.kind.value}"] += 1
        until = self.now + int(fault.for_s * S)
        match fault.kind:
            case FaultKind.CRASH | FaultKind.POWER:
                self.crash(fault.a, power=fault.kind is FaultKind.POWER, for_s=fault.for_s)
            case FaultKind.PAUSE:
                self.pause(fault.a, fault.for_s)
            case FaultKind.CUT:
                self.cut(fault.a, fault.b, fault.for_s, both=fault.both)
            case FaultKind.RESET:
                self.network.reset(fault.a, fault.b)
            case FaultKind.SLOW:
                self.network.slow[fault.a, fault.b] = (until, fault.rate)
            case FaultKind.DROP_KTH | FaultKind.HOLD_KTH:
                self.network.kth.append((fault, Counter()))
            case FaultKind.META_CUT:
                self.cut(fault.a, METADATA, fault.for_s)
            case FaultKind.META_TOUCH:
                self.metadata.touch()
            case FaultKind.ISOLATE:
                for other in [*self.nodes, METADATA]:
                    if other != fault.a:
                        self.cut(fault.a, other, fault.for_s, both=True)
            case FaultKind.FLAP:
                self._flap(fault, fault.count)
            case FaultKind.SLOW_NODE:
                node = self.nodes[fault.a]
                node.slow_until, node.cost = until, int(fault.rate * S)
            case FaultKind.SLOW_DISK:
                node = self.nodes[fault.a]
                node.slow_disk_until, node.slow_disk_s = until, fault.rate
            case FaultKind.CLOCK:
                self.nodes[fault.a].skew_s = fault.rate
                self.at(until, self._set_clock_right, self.nodes[fault.a])
            case (
                FaultKind.LOSS
                | FaultKind.DUPLICATE
                | FaultKind.META_REPLY_LOST
                | FaultKind.META_LATE
                | FaultKind.META_DELAY
            ):
                self.network.rates[fault.kind] = (until, fault.rate)
            case FaultKind.ENVIRONMENT:
                if self.on_environment is not None:
                    self.on_environment(fault)

    def _flap(self, fault: Fault, left: int) -> None:
        """Cut a link for a time, mend it for as long, and repeat."""
        if left and not self.healed:
            self.cut(fault.a, fault.b, fault.for_s, both=fault.both)
            self.at(self.now + int(2 * fault.for_s * S), self._flap, fault, left - 1)

    def _set_clock_right(self, node: Node) -> None:
        node.skew_s = 0.0

    def crash(self, name: str, *, power: bool = False, for_s: float = 0.1) -> None:
        """Kill a node now and start it again after `for_s`."""
        node = self.nodes[name]
        if not node.up:
            return
        node.up, node.silent = False, power
        node.paused_until = 0
        node.backlog.clear()
        for address, host in list(self.hosts.items()):
            if host.node is node:
                host.alive = False
                del self.hosts[address]
                if address in self._disks:
                    self._disks[address].crash(self.rng, power=power)
        self.network.crashed(power=power)
        self.at(self.now + int(for_s * S), self._restart, node)

    def _restart(self, node: Node) -> None:
        if not node.up:
            node.up, node.silent = True, False
            node.incarnation += 1
            self._line("restart", node.name)
            if node.start is not None:
                node.start(node)

    def pause(self, name: str, for_s: float) -> None:
        """Pause a node: what reaches it waits."""
        node = self.nodes[name]
        node.paused_until = max(node.paused_until, self.now + int(for_s * S))
        self.at(node.paused_until, self._resume, node)

    def _resume(self, node: Node) -> None:
        if node.paused_until > self.now:
            return
        backlog, node.backlog = node.backlog, deque()
        for thing in backlog:
            thing()

    def cut(self, a: str, b: str, for_s: float, *, both: bool = False) -> None:
        """Cut the link from a to b (and back, if `both`) for a time; messages arrive when it is mended."""
        self.network.cut(a, b, self.now + int(for_s * S), both=both)

    # ---- trace -------------------------------------------------------------------------------------------------------

    def _note(self, address: str, thing: Any) -> None:
        inner = getattr(thing, "message", None) or getattr(thing, "event", None)
        text = self.brief(thing) if inner is None else f"{self.brief(thing)} {self.brief(inner)}"
        self._line(address, text)

    def _line(self, where: str, text: str) -> None:
        line = f"{self.now} {where} {text}"
        self.trace_hash = zlib.crc32(line.encode(), self.trace_hash)
        if self.lines is not None:
            self.lines.append(line)

    def brief(self, thing: Any) -> str:
        """The name of a value's type and its plain fields: numbers, names and enums."""
        known = self._names.get(type(thing))
        if known is None:
            fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
            known = self._names[type(thing)] = (type(thing).__name__, tuple(f.name for f in fields))
        name, names = known
        plain = [f"{v}" for n in names if isinstance(v := getattr(thing, n), int | str)]
        return f"{name} {' '.join(plain)}"


_INDEXED = (FaultKind.DROP_KTH, FaultKind.HOLD_KTH)
