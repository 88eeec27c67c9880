"""The simulation `compaction`: nodes that upload and compact, a controller that deletes, readers whose metadata lags.

Some nodes leave for good: another process takes each of them over, uploads what it left, and ends; its objects are
compacted by the other nodes.

The machines are those of dlog/objects: controller, image, search, compaction plans and runs; the bytes are those of
dlog/wire/stream_object.py. The object storage carries out a request late, twice or never, loses answers, and gives
bytes that are flipped or cut short; what it deletes, the controller asked it to. Controllers and nodes die between two
events. Streams move between nodes, are trimmed (far beyond their end, too), deleted, and lose ranges.

Styles of plan:
- "swarm": everything, with all faults;
- "lagging": readers and compactions with old metadata, short retention;
- "damaged": reads of the storage are often wrong.

The invariants O1, O2, O7, O8 and O9 are in invariants.py.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlog.errors import ConnectionLostError, DLogError, Remedy
from dlog.machine import Answer, Emit
from dlog.model.ids import Epoch
from dlog.model.object_streams import MetadataRecord, NodeId, ObjectId, ObjectStreamId
from dlog.objects.controller import (
    AppendEntry,
    AppendFailed,
    Controller,
    ControllerEffect,
    ControllerFact,
    DeleteObjects,
    DeleteSnapshots,
    DeletionFailed,
    Deposed,
    EntryConfirmed,
    ObjectsDeleted,
    Requested,
    SnapshotStored,
    Ticked,
    TruncateMetadata,
    WriteSnapshot,
)
from dlog.objects.image import Image
from dlog.objects.keys import object_key
from dlog.objects.operations import (
    CloseStreams,
    CreateStreams,
    DeleteStreams,
    DropRange,
    OpenStream,
    Operation,
    StreamIsOpen,
    TrimStream,
)
from dlog.objects.options import ControllerOptions
from tests.simulation.compaction_checks import CompactionChecks
from tests.simulation.compaction_processes import NodeProcess, ReaderProcess
from tests.simulation.kernel import judged
from tests.simulation.mutants import planting
from tests.simulation.plan import Plan
from tests.simulation.worlds import Outcome, Room

STYLES = ("swarm", "lagging", "damaged")
MUST_REACH = (
    "read",
    "uploaded",
    "force-split",
    "merge",
    "minor",
    "major",
    "clean-up",
    "abandoned",
    "partial",
    "truncated",
    "gone",
    "damaged",
    "expired",
    "deleted",
    "zombie",
    "controller_died",
    "node_died",
    "node_left",
    "compacted_for_another",
    "moved",
    "jumped",
    "dropped",
    "lost_answer",
    "late",
)
PROGRESS = {"entries read": ("read",), "uploads": ("uploaded",), "compactions": ("compacted",)}
FOLDER = "objects/1"
END_S = 40.0  # no faults and no new entries from here on
QUIET_S = 60.0
JUMP = 2**33


def draw_plan(seed: int, style: str = "swarm") -> Plan:
    """Draw the plan of a seed."""
    rng = random.Random(f"compaction/{style}/{seed}/plan")
    is_lagging = style == "lagging"
    config: dict[str, Any] = {
        "style": style,
        "nodes": rng.randint(1, 3),
        "streams": rng.randint(1, 4),
        "readers": rng.randint(1, 3),
        "append_s": rng.choice((0.1, 0.5, 2.0)),
        "upload_s": rng.choice((0.5, 2.0)),
        "big": rng.choice((1, 5, 20)),  # entries in a row that become a stream object
        "compact_s": rng.choice((0.3, 2.0)),
        "force_split_ms": rng.choice((1000, 10_000)),
        "split_bytes": rng.choice((300, 2000, 10**6)),
        "memory_bytes": rng.choice((2000, 10**6)),
        "piece_bytes": rng.choice((1, 500, 10**6)),
        "part_bytes": rng.choice((1, 500, 10**6)),
        "held_bytes_max": rng.choice((1, 2000, 10**6)),
        "block_bytes": rng.choice((1, 300, 10**6)),
        "expiry_ms": rng.choice((1000, 5000, 20_000)),
        "retention_ms": rng.choice((1, 500)) if is_lagging else rng.choice((1, 500, 5000)),
        "lag_s": rng.choice((3.0, 10.0)) if is_lagging else rng.choice((0.05, 1.0, 5.0)),
        "confirm_s": rng.choice((0.01, 1.0)),
        "faults": rng.choice((0.0, 0.02, 0.2)),
        "late_s": rng.choice((0.5, 20.0)),
        "wrong_reads": rng.choice((0.2, 0.5)) if style == "damaged" else rng.choice((0.0, 0.02)),
        "deaths_s": rng.choice((0.0, 5.0, 20.0)),  # mean time between two deaths, 0: none
        "changes_s": rng.choice((0.5, 3.0)),  # between moves, trims, ...
        "clock_jumps_ms": rng.choice((0, 0, 3000)),
        "leaves_s": rng.choice((0.0, 10.0)),  # mean time until a node leaves for good, 0: none does
    }
    return Plan(seed=seed, config=config)


class StreamState:
    """What the owners of a stream know. node: None while it is moved. end: of the acknowledged entries."""

    def __init__(self) -> None:
        self.node: NodeId | None = None
        self.epoch = -1
        self.end = 0
        self.is_busy = False


class CompactionWorld:
    """The log of metadata, the storage and the processes."""

    def __init__(self, plan: Plan) -> None:
        self.config = plan.config
        self.rng = random.Random(f"compaction/{plan.config['style']}/{plan.seed}/run")
        self.reached: Counter[str] = Counter()
        self.now_s = 0.0
        self.events = self.trace_hash = 0
        self.log: list[MetadataRecord] = []  # confirmed
        self.confirmed = Image()
        self.checks = CompactionChecks(self)
        self.storage = StorageModel(self)
        self.controller = ControllerProcess(self)
        self.streams: dict[ObjectStreamId, StreamState] = {}
        self.nodes = {
            NodeId(f"n{number}"): NodeProcess(self, NodeId(f"n{number}")) for number in range(self.config["nodes"])
        }
        self.readers = [ReaderProcess(self) for _ in range(self.config["readers"])]
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._keys = 0

    @property
    def now_ms(self) -> int:
        """The storage's time: it jumps while there are faults."""
        jump = self.config["clock_jumps_ms"] if not self.is_quiet else 0
        return 10**6 + int(self.now_s * 1000) + (self.rng.randint(-jump, jump) if jump else 0)

    @property
    def is_quiet(self) -> bool:
        return self.now_s >= END_S

    def run(self) -> None:
        """Run the history. Raises Violation."""
        self.controller.start()
        for node in self.nodes.values():
            node.start()
        for _ in range(self.config["streams"]):
            self._create()
        for reader in self.readers:
            self.later(self.rng.uniform(0, 2), reader.read)
        self._every(0.5, self._tend)
        self._every(self.config["changes_s"], self._change)
        self._every(self.config["append_s"], self._append)
        if self.config["deaths_s"]:
            self.later(self.config["deaths_s"], self._die)
        if self.config["leaves_s"]:
            self.later(self.config["leaves_s"], self._leave)
        until_s = END_S + QUIET_S + 2 * (self.config["expiry_ms"] + self.config["retention_ms"]) / 1000
        while self._queue and self._queue[0][0] < until_s:
            self.now_s, number, do = heapq.heappop(self._queue)
            self.trace_hash = hash((self.trace_hash, number, round(self.now_s * 1e6)))
            do()
        self.checks.finish()

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        self.events += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self.events, do))

    def _every(self, mean_s: float, do: Callable[[], None]) -> None:
        def again() -> None:
            do()
            self.later(mean_s * self.rng.uniform(0.5, 1.5) * (4 if self.is_quiet else 1), again)

        self.later(mean_s * self.rng.random(), again)

    def fails(self) -> bool:
        return not self.is_quiet and self.rng.random() < self.config["faults"]

    def confirm(self, records: Sequence[MetadataRecord]) -> None:
        """Records are confirmed: they are in the metadata stream for good."""
        for record in records:
            self.checks.before(record)
            self.log.append(record)
            self.confirmed.apply(record)
            self.checks.after(record)

    # ---- what happens to streams ------------------------------------------------------------------------------------

    def ask(
        self, operation: Operation, done: Callable[[Any], None], is_alive: Callable[[], bool] = lambda: True
    ) -> None:
        """Ask the controller until it answers other than "retry"."""
        is_answered = False

        def send() -> None:
            if is_alive() and not is_answered:
                self.controller.request(operation, answer)
                self.later(3.0, send)

        def answer(result: Any) -> None:
            nonlocal is_answered
            if is_alive() and not is_answered and not (isinstance(result, DLogError) and result.remedy is Remedy.RETRY):
                is_answered = True
                done(result)

        self.later(self.rng.uniform(0.001, 0.05), send)

    def _create(self) -> None:
        self._keys += 1

        def done(result: Any) -> None:
            for stream in result.streams:
                self.streams.setdefault(stream, StreamState())

        self.ask(CreateStreams(f"key {self._keys}", 1), done)

    def _append(self) -> None:
        if self.is_quiet or not self.streams:
            return
        stream = self.rng.choice(sorted(self.streams))
        its = self.streams[stream]
        if its.node is not None:
            count = self.rng.choice((1, 2, 10))
            self.nodes[its.node].appended(stream, its.end, its.end + count)
            its.end += count

    def _tend(self) -> None:
        """Open the streams that nobody has open."""
        for stream, its in sorted(self.streams.items()):
            image = self.confirmed.streams.get(stream)
            if its.node is not None or its.is_busy or image is None:
                continue
            its.end = max(its.end, image.start)
            if image.is_open:
                last = image.ranges[-1]
                if last.node_epoch == self.nodes[last.node].epoch and self.nodes[last.node].serves:
                    its.node, its.epoch = last.node, last.epoch
                continue
            self._open(stream, its, image.epoch + 1)

    def _open(self, stream: ObjectStreamId, its: StreamState, epoch: int) -> None:
        node = self.nodes[self.rng.choice(sorted(self.nodes))]
        if not node.serves:
            return
        its.is_busy = True

        def done(result: Any) -> None:
            its.is_busy = False
            if isinstance(result, StreamIsOpen) and node.serves and node.epoch == node_epoch:
                its.node, its.epoch = node.name, epoch
                its.end = max(its.end, result.next)

        node_epoch = node.epoch
        self.ask(OpenStream(node.name, node_epoch, stream, Epoch(epoch)), done)

    def _change(self) -> None:
        if self.is_quiet or not self.streams:
            return
        stream = self.rng.choice(sorted(self.streams))
        its = self.streams[stream]
        what = self.rng.choice(("move", "move", "trim", "trim", "jump", "drop", "delete"))
        if what == "drop":
            image = self.confirmed.streams.get(stream)
            ended = [one for one in image.ranges if one.end is not None] if image is not None else []
            if ended:
                self.reached["dropped"] += 1
                self.ask(DropRange(stream, self.rng.choice(ended).epoch), lambda result: None)
        if its.node is None or its.is_busy or what == "drop":
            return
        node = self.nodes[its.node]
        if what == "trim":
            low = self.confirmed.streams[stream].start
            if low < its.end:
                start = self.rng.choice((low + 1, self.rng.randint(max(low, its.end - 100), its.end), its.end))
                self.ask(TrimStream(node.name, node.epoch, stream, Epoch(its.epoch), start), lambda result: None)
            return
        its.node, its.is_busy = None, True

        def free(result: Any) -> None:
            its.is_busy = False

        def closed(result: Any) -> None:
            if what == "delete" and not isinstance(result, DLogError) and self.rng.random() < 0.3:
                del self.streams[stream]
                self.checks.deleted.add(stream)
                self.ask(DeleteStreams((stream,)), free)
                self._create()
                return
            self.reached["moved"] += 1
            free(result)

        if what == "jump":
            self.reached["jumped"] += 1
            self.ask(TrimStream(node.name, node.epoch, stream, Epoch(its.epoch), its.end + JUMP), free)
        else:
            self.ask(CloseStreams(node.name, node.epoch, ((stream, Epoch(its.epoch), its.end),)), closed)

    def _die(self) -> None:
        if self.is_quiet:
            return
        self.later(self.config["deaths_s"] * self.rng.uniform(0.2, 2), self._die)
        if self.rng.random() < 0.5:
            self.controller.die()
        else:
            self.nodes[self.rng.choice(sorted(self.nodes))].die()

    def _leave(self) -> None:
        """A node leaves for good; the last one stays."""
        if self.is_quiet:
            return
        there = sorted(name for name, node in self.nodes.items() if node.serves)
        if len(there) > 1:
            self.nodes[self.rng.choice(there)].leave()
        self.later(self.config["leaves_s"] * self.rng.uniform(0.5, 2), self._leave)


class ControllerProcess:
    """The controller and the metadata stream that it appends to. A new one begins where one died or was deposed."""

    def __init__(self, world: CompactionWorld) -> None:
        self._world = world
        self._life = self._ticket = 0
        self._machine: Controller | None = None
        self._on_way: deque[AppendEntry] = deque()
        self._waiting: dict[int, Callable[[Any], None]] = {}
        self._options = ControllerOptions(
            expiry_min_ms=1,
            retention_ms=world.config["retention_ms"],
            snapshot_records=200,
            delete_max=5,
            appends_in_flight=1,
        )

    def start(self) -> None:
        world = self._world
        self._life += 1
        image = Image()
        image.apply_all(world.log)
        self._machine = Controller(image, FOLDER, f"c{self._life}", world.now_ms, self._options)
        self._perform(self._machine.begin())
        self._tick(self._life)

    def die(self) -> None:
        """Die: of the entries on their way some of the first are in the metadata stream."""
        if self._machine is None:
            return
        self._world.reached["controller_died"] += 1
        self._end()
        self._world.later(self._world.rng.uniform(0.1, 2), self.start)

    def _end(self) -> None:
        self._life += 1
        self._machine = None
        self._waiting.clear()
        for _ in range(self._world.rng.randint(0, len(self._on_way))):
            self._world.confirm(self._on_way.popleft().records)
        self._on_way.clear()

    def request(self, operation: Operation, answer: Callable[[Any], None]) -> None:
        if self._machine is None or self._world.fails():
            return
        self._ticket += 1
        self._waiting[self._ticket] = answer
        self._tell(Requested(self._ticket, operation))

    def _tick(self, life: int) -> None:
        if life == self._life and self._machine is not None:
            self._tell(Ticked(self._world.now_ms))
            self._world.later(self._world.rng.uniform(0.2, 1), lambda: self._tick(life))

    def _tell(self, fact: ControllerFact, life: int | None = None) -> None:
        if self._machine is not None and life in (None, self._life):
            self._perform(self._machine.handle(fact))

    def _perform(self, effects: Sequence[ControllerEffect]) -> None:
        world, life = self._world, self._life
        is_over = False
        for effect in effects:
            match effect:
                case AppendEntry():
                    self._on_way.append(effect)
                    world.later(world.rng.uniform(0.001, world.config["confirm_s"]), lambda: self._confirm(life))
                case DeleteObjects(keys):
                    world.storage.delete(keys, lambda is_sure: self._deleted(is_sure, life))
                case WriteSnapshot():
                    world.later(0.1, lambda: self._tell(SnapshotStored(1, 0), life))
                case Answer(ticket, result):
                    self._answer(ticket, result)
                case Deposed():
                    is_over = True
                case TruncateMetadata() | DeleteSnapshots() | Emit():
                    pass
        if is_over:
            self._end()
            world.later(world.rng.uniform(0.1, 2), self.start)

    def _answer(self, ticket: int, result: Any) -> None:
        answer = self._waiting.pop(ticket)
        if self._world.fails():
            self._world.reached["lost_answer"] += 1
        else:
            self._world.later(self._world.rng.uniform(0.001, 0.05), lambda: answer(result))

    def _deleted(self, is_sure: bool, life: int) -> None:
        self._tell(ObjectsDeleted() if is_sure else DeletionFailed("no answer"), life)

    def _confirm(self, life: int) -> None:
        if life != self._life or not self._on_way:
            return
        if self._world.fails() and self._world.rng.random() < 0.1:
            self._tell(AppendFailed(ConnectionLostError("the append failed")))
            return
        entry = self._on_way.popleft()
        self._world.confirm(entry.records)
        self._tell(EntryConfirmed(entry.number))


class StorageModel:
    """The object storage. gone: keys that were deleted; an object that lands there later is a zombie."""

    def __init__(self, world: CompactionWorld) -> None:
        self.objects: dict[str, bytes] = {}
        self.gone: set[str] = set()
        self.zombies: set[str] = set()
        self._world = world

    def put(self, key: str, data: bytes, done: Callable[[bool], None]) -> None:
        """Create an object; `done` gets whether that is certain."""
        world = self._world
        fault = world.rng.choice(("lost_request", "lost_answer", "late")) if world.fails() else ""
        delay_s = world.rng.uniform(0.01, 0.2)
        if fault:
            world.reached[fault] += 1
        if fault == "late":
            world.later(delay_s + world.rng.uniform(0, world.config["late_s"]), lambda: self._land(key, data))
        if fault in ("late", "lost_request"):
            world.later(delay_s, lambda: done(False))
            return

        def land() -> None:
            self._land(key, data)
            world.later(world.rng.uniform(0.01, 0.1), lambda: done(not fault))

        world.later(delay_s, land)

    def _land(self, key: str, data: bytes) -> None:
        assert self.objects.get(key, data) == data, "bytes of an object never change"
        self.objects[key] = data
        if key in self.gone:
            self.zombies.add(key)
            self._world.reached["zombie"] += 1

    def get(self, key: str, position: int, size: int, done: Callable[[bytes | None, bool], None]) -> None:
        """Read a part of an object; `done` gets the bytes, None if there are none, and whether they are wrong."""
        world = self._world

        def read() -> None:
            found = self.objects.get(key)
            if found is None:
                done(None, False)
                return
            data = found[position : position + size]
            is_wrong = not world.is_quiet and world.rng.random() < world.config["wrong_reads"] and bool(data)
            if is_wrong:
                at = world.rng.randrange(len(data))
                flipped = data[:at] + bytes((data[at] ^ 1 << world.rng.randrange(8),)) + data[at + 1 :]
                data = world.rng.choice((flipped, data[:at]))
            done(data, is_wrong)

        world.later(world.rng.uniform(0.01, 0.2), read)

    def delete(self, keys: Sequence[str], done: Callable[[bool], None]) -> None:
        world = self._world
        is_sure = not world.fails()
        some = keys if is_sure else [key for key in keys if world.rng.random() < 0.5]

        def delete() -> None:
            for key in some:
                world.checks.object_deleted(key)
                self.objects.pop(key, None)
                self.zombies.discard(key)
                self.gone.add(key)
                world.reached["deleted"] += 1
            done(is_sure)

        world.later(world.rng.uniform(0.01, 0.2), delete)

    def object(self, object: ObjectId, image: Image) -> bytes | None:
        """The bytes of an object that this image knows."""
        return self.objects.get(object_key(FOLDER, object, *image.objects.owner(object)))


def run_plan(plan: Plan, parts: Mapping[str, Any] | None = None, *, trace: bool = False) -> Outcome:
    """Run one plan to its end or to the first violation. parts["planted"]: pairs of a class and its mutant."""
    with planting((parts or {}).get("planted", ())):
        world = CompactionWorld(plan)
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
    """The simulation `compaction` of `python -m tests.simulation`."""
    from tests.simulation.mutants.compaction import MUTANTS

    return Room(
        name="compaction",
        styles=STYLES,
        draw=draw_plan,
        run=run_plan,
        must_reach=MUST_REACH,
        mutants=MUTANTS,
        progress=PROGRESS,
    )
