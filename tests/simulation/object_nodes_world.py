"""The simulation `nodes`: nodes of streams in objects, failover workers and clients, on models of what they stand on.

The machines are those of dlog/objects/node.py and failover.py, the bytes of the log those of dlog/wire/node_wal.py.
Every process may die at each event. A node may be begun anew while its former process goes on, and be taken over while
it lives; requests to the controller are carried out late or twice, and answers are lost.

Styles of plan:
- "swarm": streams move between nodes, with all faults;
- "killed": few faults but many deaths;
- "suspected": nodes are taken over, or begun anew, although they live;
- "gone": nobody opens the streams of nodes that die and stay away, other processes find these nodes
  (object_nodes_survivors.py).

The invariants O1, O2, O4, O5, O6, N1, N2 and N3 are in invariants.py.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from dlog.errors import ConnectionLostError, DamagedError
from dlog.model.object_streams import (
    MetadataRecord,
    NodeId,
    ObjectId,
    ObjectStreamId,
    Slice,
    StreamsClosed,
    UploadCommitted,
    WalSegmentBegun,
)
from dlog.objects.node_options import NodeOptions
from dlog.objects.object_table import ObjectState
from dlog.objects.search import find_objects
from dlog.wire.node_wal import OFFSET_END, decode_wal_entry
from tests.simulation.kernel import Violation, judged
from tests.simulation.mutants import planting
from tests.simulation.object_nodes_clients import Client
from tests.simulation.object_nodes_controller import ControllerHost
from tests.simulation.object_nodes_processes import NodeHost
from tests.simulation.object_nodes_storage import ObjectStorage, StoredWal, WalStore
from tests.simulation.object_nodes_survivors import SurvivorHost, Survivors
from tests.simulation.plan import Plan
from tests.simulation.worlds import Outcome, Room

STYLES = ("swarm", "killed", "suspected", "gone")
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
    "gone",
    "frozen",
    "stale_registration",
    "fenced_and_begun",
    "idle",
    "idle_without_streams",
    "idle_lives",
    "idle_after_failover",
    "idle_raced",
    "rest_uploaded",
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
    if style == "gone":
        config |= {
            "nodes": rng.randint(2, 3),
            "suspicions": 0.0,
            "deaths": rng.choice((0.0, 0.0005)),
            "kills": rng.choice((0.02, 0.1)),  # of each process, in half a second; as freezes and registers
            "freezes": rng.choice((0.0, 0.1)),
            "registers": rng.choice((0.3, 0.7)),
            "returns": rng.choice((0.0, 0.5)),
            "look_s": rng.choice((0.3, 1.0)),
            "lookers": rng.choice(("one", "all")),
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
        self.progress_s: dict[NodeId, float] = {}  # when a node made progress last
        self._progress: dict[NodeId, tuple[Any, ...]] = {}
        self._logs: dict[str, NodeId] = {}  # segments of logs that were ever registered, by name
        kind = SurvivorHost if plan.config["style"] == "gone" else NodeHost
        names = [NodeId(name) for name in NODES[: plan.config["nodes"]]]
        self.nodes: dict[NodeId, NodeHost] = {name: kind(self, name) for name in names}
        self.survivors = Survivors(self, [host for host in self.nodes.values() if isinstance(host, SurvivorHost)])
        self.clients = [Client(self, stream) for stream in streams]

    @property
    def is_quiet(self) -> bool:
        return self.now_s >= QUIET_S

    @property
    def looks_on(self) -> bool:
        """Whether what is done from time to time goes on."""
        return self.now_s < END_S - 5

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
        self.survivors.settle()
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
        self.survivors.tick()
        if self.looks_on:
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
            case WalSegmentBegun(owner, segment):
                self._logs[segment.name] = owner
        for name, node in self.controller.image.nodes.items():
            progress = (node.node_epoch, node.flush_point, *(segment.number for segment in node.wal))
            if self._progress.get(name) != progress:
                self._progress[name], self.progress_s[name] = progress, self.now_s

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
            if left or len(node.wal) > host.goes_on:
                raise Violation("N2", f"at rest node {host.name} has WAL segments left: {node.wal} {node.flush_point}")
        for name, node_id in self._logs.items():
            if name in self.wal.segments and not self._has(self.controller.node(node_id).wal, name):
                raise Violation("N2", f"at rest WAL segment {name} of node {node_id} is in the store, and not recorded")
        for stream, known in self.controller.image.streams.items():
            for one in known.ranges:
                if one.end is None or max(one.committed, known.start) < one.end:
                    raise Violation("N2", f"at rest range {stream}/{one} is not uploaded")
        for object in self.storage.objects:
            state = self.controller.image.objects.state(object)
            if state is not ObjectState.COMMITTED and object not in self.storage.late:
                raise Violation("O2", f"object {object} is in the storage, its state is {state.name}")


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
