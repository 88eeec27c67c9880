"""The simulation `nodes`: nodes of streams in objects, failover workers and clients, on models of what they stand on.

The machines are those of dlog/objects/node.py and failover.py, the bytes of the log those of dlog/wire/node_wal.py.
Every process may die at each event. A node may be begun anew while its former process goes on, and be taken over while
it lives; requests to the controller are carried out late or twice, and answers are lost.

Styles of plan:
- "swarm": streams move between nodes, with all faults;
- "killed": few faults but many deaths;
- "suspected": nodes are taken over, or begun anew, although they live.

The invariants O1, O2, O4, O5, O6, N1 and N2 are in invariants.py.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from dlog.errors import ConnectionLostError, DamagedError, DLogError
from dlog.machine import Answer, Asked, Effect, Received, Send, SetTimer, Tell, TimerFired
from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    MetadataRecord,
    NodeEpoch,
    NodeId,
    ObjectId,
    ObjectStreamId,
    Slice,
    StreamsClosed,
    UploadCommitted,
)
from dlog.objects.failover import FailoverWorker
from dlog.objects.node import ObjectNode, Phase
from dlog.objects.node_messages import (
    AppendEntries,
    AwaitUploaded,
    CloseStreamsHere,
    NodeEndedError,
    OpenStreamHere,
    RecoverNode,
    StartNode,
    TrimStreamHere,
    UploadAll,
)
from dlog.objects.node_options import NodeOptions
from dlog.objects.object_table import ObjectState
from dlog.objects.outbox import Reply, Service
from dlog.objects.search import find_objects
from dlog.wire.node_wal import OFFSET_END, StreamEntry, decode_wal_entry, stream_entry
from dlog.wire.stream_object import Span
from tests.simulation.kernel import Violation, judged
from tests.simulation.mutants import planting
from tests.simulation.object_nodes_controller import ControllerHost
from tests.simulation.object_nodes_storage import ObjectStorage, StoredWal, WalStore
from tests.simulation.plan import Plan
from tests.simulation.worlds import Outcome, Room

STYLES = ("swarm", "killed", "suspected")
MUST_REACH = (
    "ack",
    "moved",
    "died",
    "over",
    "recovered_unconfirmed",
    "fenced_writer",
    "failover",
    "failover_died",
    "node_came_back",
    "committed",
    "commit_repeated",
    "commit_refused",
    "marked",
    "epoch_expired",
    "wal_deleted",
    "wal_failed",
    "wal_rolled",
    "put_late",
    "put_twice",
    "put_foreign",
    "put_after_deletion",
    "over_capacity",
    "clock_jumped",
    "stream_object",
    "set_object",
    "trimmed",
    "claimed",
    "metadata_failed",
    "cache_read",
)
PROGRESS = {"acks": ("ack",), "uploads": ("committed",), "failovers": ("failover",)}
NODES = ("a", "b", "c")
QUIET_S = 12.0  # faults end
END_S = 200.0


def draw_plan(seed: int, style: str = "swarm") -> Plan:
    """Draw the plan of a seed."""
    rng = random.Random(f"nodes/{style}/{seed}/plan")
    options = {
        "upload_bytes": rng.choice((200, 1000, 4000)),
        "upload_interval_s": rng.choice((0.3, 2.0, 5.0)),
        "stream_object_bytes": rng.choice((150, 600)),
        "writes_in_flight": rng.randint(1, 3),
        "cache_bytes_max": rng.choice((1000, 8000)),
        "wal_entries_in_flight": rng.randint(1, 4),
        "wal_entry_bytes_max": rng.choice((400, 1000)),
        "wal_segment_bytes": rng.choice((300, 1500)),
        "wal_read_entries": rng.choice((1, 5)),
        "expiry_ms": rng.choice((300, 3000)),
        "retry_s": 0.05,
        "retry_max_s": 0.5,
    }
    config: dict[str, Any] = {
        "style": style,
        "options": options,
        "nodes": rng.randint(1, 3),
        "streams": rng.randint(1, 4),
        "faults": rng.choice((0.0, 0.02, 0.15)) if style != "killed" else rng.choice((0.0, 0.02)),
        "deaths": rng.choice((0.0, 0.0005, 0.003)) if style != "killed" else rng.choice((0.003, 0.01)),
        "suspicions": rng.choice((0.0, 0.05)) if style != "suspected" else rng.choice((0.2, 0.5)),  # per second
        "late_s": rng.choice((0.5, 5.0)),
        "clock_jumps": rng.random() < 0.4,
        "moves": rng.choice((0.02, 0.1)),  # of each append
        "trims": rng.choice((0.0, 0.02)),
    }
    return Plan(seed=seed, config=config)


class NodesWorld:
    """The cluster, what it stands on, and what was acknowledged. acked: by stream and offset."""

    def __init__(self, plan: Plan) -> None:
        self.config = plan.config
        self.options = NodeOptions(**plan.config["options"])
        self.rng = random.Random(f"nodes/{plan.config['style']}/{plan.seed}/run")
        self.reached: Counter[str] = Counter()
        self.now_s = 0.0
        self.events = self.trace_hash = 0
        self.clock_ms = 1_000_000  # how far the storage's clock is ahead
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        streams = [ObjectStreamId(number + 1) for number in range(plan.config["streams"])]
        self.wal = WalStore(self.rng, self.later, self.reached, self.fails)
        self.storage = ObjectStorage(self.rng, self.later, self.reached, self.fails)
        self.storage.now_ms = self.now_ms
        self.storage.late_s = plan.config["late_s"]
        self.wal.on_delete = self._check_wal_deletion
        self.ends: dict[tuple[ObjectStreamId, int], int] = {}  # of ranges, once they are recorded
        self.controller = ControllerHost(
            self.rng,
            self.later,
            self.reached,
            streams=len(streams),
            now_ms=self.now_ms,
            delete=self.storage.delete,
        )
        self.controller.on_record = self._recorded
        self._decoded: dict[ObjectId, dict[tuple[ObjectStreamId, int], bytes]] = {}
        self.acked: dict[ObjectStreamId, dict[int, bytes]] = {stream: {} for stream in streams}
        self.submitted: dict[ObjectStreamId, set[bytes]] = {stream: set() for stream in streams}
        self.seen: dict[ObjectStreamId, dict[int, bytes]] = {stream: {} for stream in streams}  # by readers
        self.nodes = {NodeId(name): NodeHost(self, NodeId(name)) for name in NODES[: plan.config["nodes"]]}
        self.clients = [Client(self, stream) for stream in streams]

    @property
    def is_quiet(self) -> bool:
        return self.now_s >= QUIET_S

    def now_ms(self) -> int:
        return int(self.now_s * 1000) + self.clock_ms

    def fails(self) -> bool:
        return not self.is_quiet and self.rng.random() < self.config["faults"]

    # ---- running ----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the history. Raises Violation."""
        for host in self.nodes.values():
            host.begin()
        for client in self.clients:
            self.later(self.rng.uniform(0, 0.5), client.act)
        self.later(0.5, self._tick)
        self._drain(QUIET_S)
        for host in self.nodes.values():
            host.heal()
        self._drain(QUIET_S + 30)
        self._read_all()
        for host in self.nodes.values():
            host.finish()
        self._drain(END_S)
        self._check_at_rest()

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        self.events += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self.events, do))

    def _drain(self, until_s: float) -> None:
        while self._queue and self._queue[0][0] <= until_s:
            self.now_s, number, do = heapq.heappop(self._queue)
            self.trace_hash = hash((self.trace_hash, number, round(self.now_s * 1e6)))
            do()
        self.now_s = until_s

    def _tick(self) -> None:
        rng = self.rng
        self.controller.tick()
        if not self.is_quiet:
            if self.config["clock_jumps"] and rng.random() < 0.02:
                self.clock_ms += rng.choice((-5000, 5000, 60_000))
                self.reached["clock_jumped"] += 1
            for host in self.nodes.values():
                if rng.random() < self.config["suspicions"] / 2:
                    host.suspect()
            if self.fails():
                self.controller.claim()
            if rng.random() < 0.3:
                self._read_all()
        if self.now_s < END_S - 5:
            self.later(0.5, self._tick)

    def ask_controller(self, operation: Any, done: Callable[[Any], None]) -> None:
        """Carry out an operation, perhaps twice, late or never, and answer, perhaps."""
        delay_s = self.rng.uniform(0.001, 0.02)
        fault = self.rng.choice(("lost", "late", "answer", "twice", "restart")) if self.fails() else ""
        lost = ConnectionLostError("the controller does not answer")
        match fault:
            case "lost":
                self.later(delay_s, lambda: done(lost))
            case "restart":
                self.later(delay_s, lambda: self._carry_out(operation, done))
                self.later(delay_s + self.rng.uniform(0, 0.01), self.controller.fail_append)
            case "late":
                self.later(delay_s, lambda: done(lost))
                late_s = self.rng.uniform(0, self.config["late_s"])
                self.later(delay_s + late_s, lambda: self._carry_out(operation, lambda _: None))
            case "answer":
                self.later(delay_s, lambda: self._carry_out(operation, lambda _: done(lost)))
            case "twice":
                late_s = self.rng.uniform(0, self.config["late_s"])
                self.later(delay_s, lambda: self._carry_out(operation, done))
                self.later(delay_s + late_s, lambda: self._carry_out(operation, lambda _: None))
            case _:
                self.later(delay_s, lambda: self._carry_out(operation, done))

    def _carry_out(self, operation: Any, done: Callable[[Any], None]) -> None:
        self.controller.ask(operation, lambda result: self.later(self.rng.uniform(0.001, 0.02), lambda: done(result)))

    # ---- checks -----------------------------------------------------------------------------------------------------

    def acknowledged(self, stream: ObjectStreamId, epoch: int, offset: int, payload: bytes) -> None:
        self.reached["ack"] += 1
        end = self.ends.get((stream, epoch))
        if end is not None and offset >= end:
            raise Violation("O5", f"{stream}/{offset} is acknowledged, its range ended at {end}")
        there = self.acked[stream].setdefault(offset, payload)
        if there != payload:
            raise Violation("O4", f"two entries are acknowledged at {stream}/{offset}: {there!r}, {payload!r}")

    def _recorded(self, record: MetadataRecord) -> None:
        match record:
            case StreamsClosed(ends):
                for stream, end in ends:
                    self.ends[stream, self.controller.stream(stream).epoch] = end
            case UploadCommitted():
                self._check_commit(record)

    def _check_commit(self, commit: UploadCommitted) -> None:
        self.reached["committed"] += 1
        self.reached["set_object"] += commit.set_object is not None
        self.reached["stream_object"] += len(commit.stream_objects)
        for object, one in self._objects_of(commit):
            if self.storage.objects.get(object) is None:
                raise Violation("O1", f"object {object} is committed, and not there")
            found = self._entries_of(object)
            if any(found.get((one.stream, n)) not in self.submitted[one.stream] for n in range(one.start, one.end)):
                raise Violation("O1", f"object {object} does not have {one}")

    def _entries_of(self, object: ObjectId) -> dict[tuple[ObjectStreamId, int], bytes]:
        """The entries of a committed object."""
        known = self._decoded.get(object)
        if known is None or object not in self.storage.objects:
            try:
                known = self._decoded[object] = self.storage.entries(object) or {}
            except DamagedError as error:
                raise Violation("O1", f"object {object} is committed, and damaged: {error}") from error
        return known

    def _objects_of(self, commit: UploadCommitted) -> list[tuple[ObjectId, Slice]]:
        found = [(one.object, Slice(one.stream, one.start, one.end)) for one in commit.stream_objects]
        if commit.set_object is not None:
            found += [(commit.set_object.object, one) for one in commit.set_object.slices]
        return found

    def _check_wal_deletion(self, stored: StoredWal) -> None:
        """Everything in a segment that is deleted is in committed objects, or does not count."""
        for payload in stored.entries:
            for frame in decode_wal_entry(payload).frames:
                start = self.controller.stream(frame.stream).start
                found = self.controller.range(frame.stream, frame.epoch)
                if found is None:
                    continue
                end = frame.end if found.end is None else min(frame.end, found.end)
                if max(found.committed, start) < end:
                    at = f"{frame.stream}/{found.committed}..{end}"
                    raise Violation("O6", f"WAL segment {stored.number} is deleted, with {at} not committed")
        node = next((one for one in self.controller.image.nodes.values() if self._has(one.wal, stored.name)), None)
        if node is not None and stored.number >= node.flush_point.segment:
            raise Violation("O6", f"WAL segment {stored.number} is deleted, the flush point is {node.flush_point}")

    def _has(self, wal: list[Any], name: str) -> bool:
        return any(segment.name == name for segment in wal)

    def _read(self, stream: ObjectStreamId) -> dict[int, bytes]:
        """All entries of a stream, as a reader finds them: of the objects that a search finds, and where these end, of
        the log of the node that wrote on."""
        known = self.controller.stream(stream)
        found: dict[int, bytes] = {}
        at, before = known.start, 0
        for start, end, object in self.controller.slices(stream):
            if start < before:
                raise Violation("O4", f"{stream}/{start} is committed twice, the second time in object {object}")
            before = end
        while True:
            refs = find_objects(self.controller.image, stream, at, OFFSET_END - 1, 4).objects
            for ref in refs:
                entries = self._entries_of(ref.object)
                for number in range(at, ref.end):
                    if (stream, number) not in entries:
                        raise Violation("O1", f"object {ref} does not have {stream}/{number}")
                    found[number] = entries[stream, number]
                at = ref.end
            if not refs:
                read = self._read_log(stream, at)
                found |= read
                at += len(read)
                if not read:
                    break
        last = known.ranges[-1].end if known.ranges else 0
        if last is not None and at < last:
            raise Violation("O4", f"{stream}/{at}..{last} is neither in objects nor in the log")
        return found

    def _read_log(self, stream: ObjectStreamId, at: int) -> dict[int, bytes]:
        """Entries from `at` on, of the log of the node that has the range there."""
        found: dict[int, bytes] = {}
        ranges = self.controller.stream(stream).ranges
        one = next((one for one in ranges if one.start <= at and (one.end is None or at < one.end)), None)
        for frame in () if one is None else self._frames(one.node, stream, one.epoch):
            assert one is not None
            end = frame.end if one.end is None else min(frame.end, one.end)
            if at < frame.first:
                raise Violation("O4", f"the log has a gap at {stream}/{at}..{frame.first}, {one.committed}")
            for number in range(at, end):
                found[number] = bytes(frame.entries[number - frame.first].payload)
            at = max(at, end)
        return found

    def _frames(self, name: NodeId, stream: ObjectStreamId, epoch: int) -> list[Any]:
        node = self.controller.node(name)
        frames = []
        for segment in node.wal:
            if segment.number < node.flush_point.segment:
                continue
            stored = self.wal.segments.get(segment.name)
            if stored is None:
                raise Violation("O6", f"WAL segment {segment} is gone, the flush point is {node.flush_point}")
            first = node.flush_point.entry if segment.number == node.flush_point.segment else 0
            for payload in stored.entries[first : stored.confirmed]:
                frames += [f for f in decode_wal_entry(payload).frames if (f.stream, f.epoch) == (stream, epoch)]
        return frames

    def _read_all(self) -> None:
        """What every reader gets now: all that is acknowledged, and what was read before."""
        for stream, acked in self.acked.items():
            start = self.controller.stream(stream).start
            found = self._read(stream)
            if sorted(found) != list(range(start, start + len(found))):
                raise Violation("O4", f"{stream} is read with a gap: {sorted(found)}")
            for offset, payload in acked.items():
                if offset >= start and found.get(offset) != payload:
                    raise Violation("O4", f"{stream}/{offset} is acknowledged, and read as {found.get(offset)!r}")
            for offset, payload in self.seen[stream].items():
                if offset >= start and found.get(offset) != payload:
                    raise Violation("N1", f"{stream}/{offset} was read as {payload!r}, now as {found.get(offset)!r}")
            for offset, payload in found.items():
                if payload not in self.submitted[stream]:
                    raise Violation("O4", f"{stream}/{offset} was never submitted: {payload!r}")
                self.seen[stream][offset] = payload

    def _check_at_rest(self) -> None:
        self._read_all()
        for host in self.nodes.values():
            if not host.is_finished:
                raise Violation("N2", f"without faults node {host.name} does not finish: {host}")
            node = self.controller.node(host.name)
            left = [segment for segment in node.wal if segment.number < node.flush_point.segment]
            if left or len(node.wal) > 1:
                raise Violation("N2", f"at rest node {host.name} has WAL segments left: {node.wal} {node.flush_point}")
        for stream, known in self.controller.image.streams.items():
            for one in known.ranges:
                if one.end is None or max(one.committed, known.start) < one.end:
                    raise Violation("N2", f"at rest range {stream}/{one} is not uploaded")
        for object in self.storage.objects:
            state = self.controller.image.objects.state(object)
            if state is not ObjectState.COMMITTED and object not in self.storage.late:
                raise Violation("O2", f"object {object} is in the storage, its state is {state.name}")


class Process:
    """A machine, its timers and its callers, until it dies. name: of the process, not of its node."""

    def __init__(self, world: NodesWorld, node: NodeId, name: str, machine: ObjectNode | FailoverWorker) -> None:
        self.machine = machine
        self.node = node
        self.is_dead = False
        self.name = name
        self._world = world
        self._tickets = 0
        self._sinks: dict[int, Callable[[Any], None]] = {}

    def ask(self, request: Any, sink: Callable[[Any], None]) -> None:
        self._tickets += 1
        self._sinks[self._tickets] = sink
        self.tell(Asked(self._tickets, request, self._world.now_s))

    def die(self) -> None:
        self.is_dead = True

    def tell(self, fact: Any) -> None:
        world = self._world
        if self.is_dead:
            return
        if not world.is_quiet and world.rng.random() < world.config["deaths"]:
            self.is_dead = True
            world.reached["died"] += 1
            world.reached["failover_died"] += isinstance(self.machine, FailoverWorker)
            return
        for effect in self.machine.handle(fact):
            self._perform(effect)

    def _perform(self, effect: Effect) -> None:
        world = self._world
        match effect:
            case Send(service, question):

                def done(result: Any) -> None:
                    self.tell(Received(service, Reply(question.number, result)))

                if service is Service.CONTROLLER:
                    world.ask_controller(question.request, done)
                elif service is Service.WAL:
                    world.wal.ask(self.name, question.request, done)
                else:
                    world.storage.ask(self.node, question.request, done)
            case SetTimer(key, after_s):
                world.later(after_s, lambda: self.tell(TimerFired(key, world.now_s)))
            case Answer(ticket, result):
                self._sinks.pop(ticket)(result)
            case Tell():
                pass
            case _:
                raise AssertionError(effect)


class NodeHost:
    """One node: its processes one after another, at times two at once, and the workers that take over from it."""

    def __init__(self, world: NodesWorld, name: NodeId) -> None:
        self.name = name
        self.process: Process | None = None
        self.is_finished = self._is_finishing = False
        self._world = world
        self._processes = 0
        self._workers: list[Process] = []

    def __str__(self) -> str:
        return f"{self.process and getattr(self.process.machine, 'phase', '')} {[w.is_dead for w in self._workers]}"

    @property
    def node(self) -> ObjectNode | None:
        """The machine of the newest process, if it serves."""
        process = self.process
        if process is None or process.is_dead or not isinstance(process.machine, ObjectNode):
            return None
        return process.machine if process.machine.phase is Phase.SERVING else None

    def begin(self) -> None:
        """Begin a process of the node."""
        world = self._world
        process = self.process = self._process(
            ObjectNode(self.name, self._next_epoch(), world.rng.randbytes(8), world.options)
        )
        process.ask(StartNode(), lambda result: self._started(process, result))
        world.later(1.0, lambda: self._watch(process))

    def _process(self, machine: ObjectNode | FailoverWorker) -> Process:
        self._processes += 1
        return Process(self._world, self.name, f"{self.name}{self._processes}", machine)

    def _next_epoch(self) -> NodeEpoch:
        return NodeEpoch(self._world.controller.node_epoch(self.name) + 1)

    def _started(self, process: Process, result: Any) -> None:
        self._world.reached["node_came_back"] += not isinstance(result, DLogError) and self._processes > 1

    def _watch(self, process: Process) -> None:
        """Begin the next process once this one is dead or over, by and by."""
        world = self._world
        if self.process is not process or self._is_finishing:
            return
        machine = process.machine
        is_over = isinstance(machine, ObjectNode) and machine.phase is Phase.OVER
        world.reached["over"] += is_over
        if process.is_dead or is_over:
            if world.is_quiet or world.rng.random() < 0.5:
                self.begin()
                return
            if not any(not worker.is_dead for worker in self._workers):
                self._fail_over()
        world.later(world.rng.uniform(0.2, 2.0), lambda: self._watch(process))

    def suspect(self) -> None:
        """Take the node for dead: another process of it begins, or its work is taken over."""
        if self._world.rng.random() < 0.5:
            self._fail_over()
        else:
            self.begin()

    def _fail_over(self) -> None:
        worker = self._process(
            FailoverWorker(self.name, self._next_epoch(), self._world.rng.randbytes(8), self._world.options)
        )
        self._workers = [*[one for one in self._workers if not one.is_dead], worker]

        def ended(result: Any) -> None:
            if isinstance(result, DLogError):
                worker.die()
            else:
                self._world.reached["failover"] += 1

        def uploaded(result: Any) -> None:
            worker.die()

        worker.ask(RecoverNode(), ended)
        worker.ask(AwaitUploaded(), uploaded)

    def heal(self) -> None:
        """Faults are over: the workers end, and one process serves, perhaps the one that does."""
        for worker in self._workers:
            worker.die()
        if self.node is None or self._world.rng.random() < 0.5:
            if self.process is not None:
                self.process.die()
            self.begin()

    def finish(self, attempts: int = 2) -> None:
        """Close all streams, fail over to a worker, and let it upload the rest. attempts: the node may have been taken
        over long ago, and learn it only now."""
        world, process = self._world, self.process
        self._is_finishing = True
        node = self.node
        if node is None or process is None:
            raise Violation("N2", f"without faults node {self.name} does not serve: {self}")
        streams = tuple(stream for stream in world.acked if node.confirmed_end(stream) is not None)

        def closed(result: Any) -> None:
            if isinstance(result, NodeEndedError) and attempts:
                self.begin()
                world.later(30.0, lambda: self.finish(attempts - 1))
            elif isinstance(result, DLogError):
                raise Violation("N2", f"without faults streams are not closed: {result!r}")
            else:
                process.ask(UploadAll(), uploaded)

        def uploaded(result: Any) -> None:
            if isinstance(result, DLogError):
                raise Violation("N2", f"without faults nothing is uploaded: {result!r}")
            process.die()
            worker = self._process(FailoverWorker(self.name, self._next_epoch(), world.rng.randbytes(8), world.options))
            worker.ask(RecoverNode(), lambda _: None)
            worker.ask(AwaitUploaded(), done)

        def done(result: Any) -> None:
            self.is_finished = not isinstance(result, DLogError)

        process.ask(CloseStreamsHere(streams), closed)


class Client:
    """Appends to one stream, which moves between the nodes; several appends are on their way."""

    def __init__(self, world: NodesWorld, stream: ObjectStreamId) -> None:
        self._world = world
        self._stream = stream
        self._process: Process | None = None
        self._epoch = 0
        self._next = 0
        self._number = 0
        self._waits = False

    def act(self) -> None:
        """Do one thing: open the stream somewhere, append, read the cache, trim, or close it."""
        world, rng = self._world, self._world.rng
        if world.is_quiet:
            return
        world.later(rng.choice((0.005, 0.05, 0.3)), self.act)
        if self._waits:
            return
        if self._process is None or self._process.is_dead:
            self._open()
        elif rng.random() < world.config["moves"]:
            self._close()
        elif rng.random() < world.config["trims"]:
            self._trim()
        else:
            self._append()

    def _open(self) -> None:
        world = self._world
        hosts = [host for host in world.nodes.values() if host.node is not None]
        if not hosts:
            return
        process = world.rng.choice(hosts).process
        assert process is not None
        epoch = Epoch(world.controller.stream(self._stream).epoch + 1)
        self._waits = True
        world.later(2.0, self._give_up(process))

        def opened(result: Any) -> None:
            self._waits = False
            if not isinstance(result, DLogError):
                self._process, self._epoch, self._next = process, epoch, result
                world.reached["moved"] += 1

        process.ask(OpenStreamHere(self._stream, epoch), opened)

    def _give_up(self, process: Process) -> Callable[[], None]:
        def look() -> None:
            if process.is_dead:
                self._waits = False

        return look

    def _append(self) -> None:
        world, process, epoch = self._world, self._process, self._epoch
        assert process is not None
        entries = list[StreamEntry]()
        for _ in range(world.rng.choice((1, 1, 3))):
            self._number += 1
            payload = b"%d:%d" % (self._stream, self._number) + b"." * world.rng.choice((0, 10, 60))
            span = Span(self._number, self._number, 5, 5) if world.rng.random() < 0.5 else None
            world.submitted[self._stream].add(payload)
            entries.append(stream_entry(payload, span))
        first = self._next
        self._next += len(entries)

        def appended(result: Any) -> None:
            if isinstance(result, DLogError):
                world.reached["over_capacity"] += result.code == 517
                if self._process is process and self._epoch == epoch:
                    self._process = None if result.code == 507 else process
                    self._next = min(self._next, first)
                return
            if result != first + len(entries):
                raise Violation("O4", f"appended at {first}, told {result}")
            for offset, entry in enumerate(entries, first):
                world.acknowledged(self._stream, epoch, offset, bytes(entry.payload))
            self._read_cache(process, first, entries)

        process.ask(AppendEntries(self._stream, Epoch(epoch), first, tuple(entries)), appended)

    def _read_cache(self, process: Process, first: int, entries: list[StreamEntry]) -> None:
        """What the cache has is what was appended."""
        assert isinstance(process.machine, ObjectNode)
        found = process.machine.read(self._stream, first, first + len(entries), 1000)
        self._world.reached["cache_read"] += len(found)
        if found != entries[: len(found)]:
            raise Violation("N1", f"the cache has other entries at {self._stream}/{first}")

    def _trim(self) -> None:
        acked = self._world.acked[self._stream]
        if acked and self._process is not None:
            start = self._world.rng.randint(0, max(acked) + 1)
            request = TrimStreamHere(self._stream, Epoch(self._epoch), start)
            self._process.ask(request, lambda result: self._world.reached.update(trimmed=result is None))

    def _close(self) -> None:
        process = self._process
        assert process is not None
        self._waits = True
        self._world.later(2.0, self._give_up(process))

        def closed(result: Any) -> None:
            self._waits = False
            self._process = None

        process.ask(CloseStreamsHere((self._stream,)), closed)


def run_plan(plan: Plan, parts: Mapping[str, Any] | None = None, *, trace: bool = False) -> Outcome:
    """Run one plan to its end or to the first violation. parts["planted"]: pairs of a class and its mutant."""
    with planting((parts or {}).get("planted", ())):
        world = NodesWorld(plan)
        violation, text = judged(world.run, trace=trace)
    return Outcome(
        plan=plan,
        violation=violation,
        text=text,
        reached=world.reached,
        trace_hash=world.trace_hash & 0xFFFFFFFF,
        events=world.events,
        virtual_s=world.now_s,
        lines=[text] if trace and text else None,
    )


def room() -> Room:
    """The simulation `nodes` of `python -m tests.simulation`."""
    from tests.simulation.mutants.object_nodes import MUTANTS

    return Room(
        name="nodes",
        styles=STYLES,
        draw=draw_plan,
        run=run_plan,
        must_reach=MUST_REACH,
        mutants=MUTANTS,
        progress=PROGRESS,
    )
