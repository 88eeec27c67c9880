"""The simulation `controller`: controllers of streams in objects that depose each other over a metadata stream.

The machines are those of dlog/objects: Controller, Follower and the image; the bytes those of dlog/wire. The metadata
stream is a model: it fences, lands a part of what is in flight when it is claimed, and loses answers. Nodes ask for
operations drawn from images that lag, repeat them to any controller, also long after they were answered, and two
processes act for one node. Controllers and followers begin anew at any time. In the end the stream loses its last
entries, as if ZooKeeper was restored, and a controller begins on what is left.

Styles of plan:
- "swarm": all faults, take-overs now and then;
- "rivals": take-overs all the time;
- "old": objects expire and are deleted soon, snapshots are frequent, followers lag far behind.

The invariants O3, O4, O5 and O10 to O14 are in invariants.py.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from dlog.errors import DamagedError, DLogError, FencedError, RequestTimeoutError
from dlog.events import ObjectMetadataWentBack, UploadsExpired
from dlog.machine import Answer, Emit
from dlog.model.object_streams import MetadataRecord, NodeId
from dlog.objects.controller import (
    AppendEntry,
    AppendFailed,
    Controller,
    ControllerFact,
    DeleteObjects,
    DeleteSnapshots,
    DeletionFailed,
    Deposed,
    EntryConfirmed,
    ObjectsDeleted,
    Requested,
    SnapshotFailed,
    SnapshotStored,
    Ticked,
    TruncateMetadata,
    WriteSnapshot,
)
from dlog.objects.errors import ControllerLostError, NodeEpochExpiredError
from dlog.objects.follower import EntryRead, Follower, LoadSnapshot, ReadFrom, SnapshotRead, StreamCutOff
from dlog.objects.image import Image
from dlog.objects.keys import object_key, parse_snapshot_key
from dlog.objects.operations import (
    CommitCompaction,
    CommitUpload,
    ObjectsArePrepared,
    OpenNode,
    Operation,
    PrepareObjects,
)
from dlog.objects.options import ControllerOptions
from dlog.wire.digest import crc32c
from dlog.wire.object_snapshot import encode_snapshot
from tests.simulation.kernel import Violation, judged
from tests.simulation.mutants import planting
from tests.simulation.object_controller_checks import FOLDER, MetadataChecks, digest
from tests.simulation.object_controller_drawing import Drawing
from tests.simulation.object_controller_restored import check_restored, first_later
from tests.simulation.plan import Plan
from tests.simulation.worlds import Outcome, Room

STYLES = ("swarm", "rivals", "old")
MUST_REACH = (
    "done",
    "refused",
    "repeated",
    "deposed",
    "lost_answer",
    "landed_late",
    "upload",
    "compaction",
    "expired",
    "deleted",
    "snapshot",
    "from_snapshot",
    "truncated",
    "cut_off",
    "node_fenced",
    "died",
    "clock_jump",
    "looked_late",
    "went_back",
    "unnoticed",
    "gathered",
)
PROGRESS = {"operations done": ("done",), "take-overs": ("deposed",), "uploads": ("upload",)}


def draw_plan(seed: int, style: str = "swarm") -> Plan:
    """Draw the plan of a seed."""
    rng = random.Random(f"controller/{style}/{seed}/plan")
    config: dict[str, Any] = {
        "style": style,
        "controllers": rng.choice((2, 3)),
        "clients": rng.choice((2, 3, 4)),
        "operations": rng.choice((20, 50, 100)),
        "faults": rng.choice((0.0, 0.02, 0.1)),
        "takeover_s": 1.5 if style == "rivals" else rng.choice((5.0, 20.0)),
        "lag_s": 8.0 if style == "old" else rng.choice((0.1, 1.0)),
        "expiry_min_ms": rng.choice((100, 1000)),
        "retention_ms": rng.choice((1, 500, 2000)) if style == "old" else rng.choice((500, 20_000)),
        "delete_max": rng.choice((1, 3, 100)),
        "snapshot_records": rng.choice((5, 20)) if style == "old" else rng.choice((10, 50, 1000)),
        "pending_max": rng.choice((2, 20)),
        "jumps": rng.random() < 0.3,
        "appends_in_flight": rng.choice((1, 2, 100)),
        "gathered_bytes_max": rng.choice((1, 200, 100_000)),
    }
    return Plan(seed=seed, config=config)


class ControllerWorld:
    """The metadata stream, the storage, and all processes."""

    def __init__(self, plan: Plan) -> None:
        self.config = plan.config
        self.rng = random.Random(f"controller/{plan.config['style']}/{plan.seed}/run")
        self.reached: Counter[str] = Counter()
        self.checks = MetadataChecks()
        self.now_s = 0.0
        self.events = self.trace_hash = 0
        self.entries: list[tuple[int, bytes]] = []  # number of records with those in it, bytes
        self.first = 0  # index of the first entry that is not truncated
        self.epoch = 0  # of the claim on the stream
        self.snapshots: dict[str, bytes] = {}
        self.objects: set[str] = set()  # keys of objects in the storage
        self.clock_ms = 10**6  # of the storage, beside `now_s`
        self.is_calm = False
        self.controllers = [ControllerProcess(self, f"c{n}") for n in range(plan.config["controllers"])]
        self.clients = [ClientProcess(self, n) for n in range(plan.config["clients"])]
        self._in_flight: list[Landing] = []
        self._queue: list[tuple[float, int, Callable[[], None]]] = []

    def run(self) -> None:
        """Run the history. Raises Violation."""
        for process in self.controllers:
            self.later(self.rng.uniform(0, 1), process.claim)
        for client in self.clients:
            self.later(self.rng.uniform(0, 2), client.step)
        self._drain()
        self.is_calm = True
        last = self.controllers[0]
        last.claim()
        self._drain()
        for client in self.clients:
            client.reader.poll_all()
        fresh = ReaderProcess(self, "fresh")
        fresh.poll_all()
        if fresh.version != self.checks.image.version:
            raise Violation("O10", f"a new follower gets to {fresh.version}, the log to {self.checks.image.version}")
        self._go_back()

    def _go_back(self) -> None:
        """The stream loses its last entries, and a controller begins on what is left."""
        del self.entries[self.rng.randint(self.first, len(self.entries)) :]
        reader = ReaderProcess(self, "restored")
        reader.poll_all()
        if reader.image is not None or not self.first:  # else what is left cannot be read: there is no snapshot
            is_noticed = check_restored(reader.take_image(), [*self.objects, *self.snapshots])
            self.reached["went_back" if is_noticed else "unnoticed"] += 1

    def later(self, delay_s: float, do: Callable[[], None]) -> None:
        self.events += 1
        heapq.heappush(self._queue, (self.now_s + delay_s, self.events, do))

    def _drain(self) -> None:
        while self._queue:
            self.now_s, number, do = heapq.heappop(self._queue)
            self.trace_hash = hash((self.trace_hash, number, round(self.now_s * 1e6)))
            do()

    @property
    def is_busy(self) -> bool:
        return any(client.left for client in self.clients)

    def fails(self, factor: float = 1.0) -> bool:
        return not self.is_calm and self.rng.random() < self.config["faults"] * factor

    def storage_ms(self) -> int:
        if self.config["jumps"] and self.rng.random() < 0.02:
            self.clock_ms = max(0, self.clock_ms + self.rng.choice((-5000, 5000, 100_000, -100_000)))
            self.reached["clock_jump"] += 1
        return self.clock_ms + int(self.now_s * 1000)

    # ---- the metadata stream ----------------------------------------------------------------------------------------

    def claim(self) -> int:
        """Fence all owners before. A part of what they have in flight is in the stream."""
        landing = [one for one in self._in_flight if one.epoch == self.epoch]
        for one in landing[: self.rng.randint(0, len(landing))]:
            self.reached["landed_late"] += 1
            self._land(one)
        self._in_flight = []
        self.epoch += 1
        return self.epoch

    def append(self, owner: ControllerProcess, effect: AppendEntry) -> None:
        one = Landing(owner, effect.number, owner.epoch, effect.version, effect.records, effect.data)
        self._in_flight.append(one)
        self.later(self.rng.uniform(0.001, 0.2), lambda: self._arrive(one))

    def _arrive(self, one: Landing) -> None:
        """An entry arrives, and all of its owner's before it."""
        if one.epoch != self.epoch:
            one.owner.append_failed(one.epoch, FencedError("the metadata stream has another owner"))
            return
        for before in [each for each in self._in_flight if each.epoch == self.epoch and each.number <= one.number]:
            self._in_flight.remove(before)
            fault = self.rng.choice(("lost_answer", "lost_request")) if self.fails() else ""
            if fault:
                self.reached[fault] += 1
            if fault == "lost_request":
                self.epoch += 1  # nothing behind it lands
                self._in_flight = []
            else:
                self._land(before)
            if fault:
                before.owner.append_failed(before.epoch, RequestTimeoutError("no reply"))
                return
            before.owner.entry_confirmed(before)

    def _land(self, one: Landing) -> None:
        self.entries.append((one.version, one.data))
        self.checks.landed(one.records)
        if one.version != self.checks.image.version:
            raise Violation("O10", f"an entry ends at {one.version}, the log at {self.checks.image.version}")

    def truncate(self, version: int) -> None:
        while self.first < len(self.entries) and self.entries[self.first][0] <= version:
            self.first += 1
            self.reached["truncated"] += 1

    def index_of(self, version: int) -> int:
        """Index of the first entry with a record behind this version."""
        at = len(self.entries)
        while at > 0 and self.entries[at - 1][0] > version:
            at -= 1
        return at


class Landing:
    """An entry on its way into the stream."""

    def __init__(
        self,
        owner: ControllerProcess,
        number: int,
        epoch: int,
        version: int,
        records: tuple[MetadataRecord, ...],
        data: bytes,
    ) -> None:
        self.owner, self.number, self.epoch, self.version = owner, number, epoch, version
        self.records, self.data = records, data


class ReaderProcess:
    """Follows the metadata stream; may lag."""

    def __init__(self, world: ControllerWorld, name: str) -> None:
        self._world = world
        self._name = name
        self._machine = Follower()
        self._at = 0  # index of the next entry
        self._is_new = True

    @property
    def image(self) -> Image | None:
        return self._machine.image

    @property
    def version(self) -> int:
        return 0 if self._machine.image is None else self._machine.image.version

    def poll_all(self) -> None:
        self.poll(10**9)

    def poll(self, count: int) -> None:
        """Read so many entries."""
        before = self.version
        self._read(count)
        if self.image is not None and self.version != before:
            self._world.checks.compare(self.image, self._name)

    def _read(self, count: int) -> None:
        world = self._world
        for _ in range(count):
            if self._is_new:
                self._at, self._is_new = world.first, False
            if self._at < world.first:
                world.reached["cut_off"] += 1
                self._tell(StreamCutOff())
                continue
            if self._at >= len(world.entries):
                return
            data = world.entries[self._at][1]
            self._at = behind = self._at + 1
            self._tell(EntryRead(data))
            if world.rng.random() < 0.05 and self._at == behind:
                self._tell(EntryRead(data))  # it was read twice

    def take_image(self) -> Image:
        """The image, which this follower does not change any more."""
        if self.image is None and self._world.entries:
            raise Violation("O10", f"{self._name} finds no snapshot in a truncated stream")
        image, self._machine = self.image or Image(), Follower()
        return image

    def _tell(self, fact: EntryRead | SnapshotRead | StreamCutOff) -> None:
        world = self._world
        try:
            effects = self._machine.handle(fact)
        except DamagedError as error:
            raise Violation("O10", f"{self._name}: {error}") from error
        for effect in effects:
            match effect:
                case LoadSnapshot(key):
                    world.reached["from_snapshot"] += key in world.snapshots
                    self._tell(SnapshotRead(world.snapshots.get(key)))
                case ReadFrom(version):
                    self._at = world.index_of(version) if version else world.first


class ControllerProcess:
    """Claims the metadata stream now and then, and is its controller until another one does."""

    def __init__(self, world: ControllerWorld, name: str) -> None:
        self.epoch = 0
        self._world = world
        self._name = name
        self._machine: Controller | None = None
        self._asked: dict[int, tuple[Operation, int, Callable[[Any], None]]] = {}  # with the version of the log
        self._ticket = 0

    def claim(self) -> None:
        """Become the controller. It may have been one without noticing its end."""
        world = self._world
        if self._machine is not None and not world.is_calm and world.rng.random() < 0.5:
            self._again()  # it believes that it is the controller
            return
        self._die()
        self.epoch = world.claim()
        reader = ReaderProcess(world, self._name)
        reader.poll_all()
        image = reader.take_image()
        if image.version != world.checks.image.version:
            raise Violation(
                "O10", f"{self._name} replays to {image.version}, the log ends at {world.checks.image.version}"
            )
        config = world.config
        options = ControllerOptions(
            **{name: config[name] for name in ("expiry_min_ms", "retention_ms", "delete_max", "snapshot_records")},
            pending_max=config["pending_max"],
            unopened_ms=2000,
            appends_in_flight=config["appends_in_flight"],
            gathered_bytes_max=config["gathered_bytes_max"],
        )
        epoch = self.epoch
        if world.is_calm or world.rng.random() < 0.5:
            self._begin(image, options, epoch)
        else:
            world.later(world.rng.uniform(0.01, 5.0), lambda: self._begin(image, options, epoch))
        self._again()

    def _begin(self, image: Image, options: ControllerOptions, epoch: int) -> None:
        """Look in the storage for what the image lacks, and be the controller. Another one may be it by now."""
        world = self._world
        if epoch != self.epoch or self._machine is not None:
            return
        later = first_later(image, [*world.objects, *world.snapshots])
        world.reached["looked_late"] += bool(later)
        self._machine = Controller(image, FOLDER, f"{self._name}-{epoch}", world.storage_ms(), options, later=later)
        self._perform(self._machine.begin(), epoch)
        self._tick_later(epoch)

    def _again(self) -> None:
        world = self._world
        if world.is_busy:
            world.later(world.rng.expovariate(1 / world.config["takeover_s"]), self.claim)

    def _die(self) -> None:
        self._world.reached["died"] += self._machine is not None
        self._machine = None
        self._asked.clear()

    def request(self, operation: Operation, answer: Callable[[Any], None]) -> bool:
        """Ask this process; False: it is no controller."""
        machine = self._machine
        if machine is None:
            return False
        world = self._world
        world.checks.requested(operation)
        self._ticket += 1
        ticket = self._ticket
        self._asked[ticket] = (operation, world.checks.image.version, answer)
        before, is_compared = machine.image.version, world.rng.random() < 0.1
        image = digest(machine.image) if is_compared else b""
        effects = self._handled(machine, Requested(ticket, operation))
        if any(isinstance(one, Answer) and isinstance(one.result, DLogError) for one in effects):
            is_other = any(isinstance(one, AppendEntry) for one in effects) or machine.image.version != before
            if is_other or (is_compared and image != digest(machine.image)):
                raise Violation("O11", f"a refused operation changed the image: {operation}")
            world.reached["refused"] += 1
        else:
            world.reached["gathered"] += not any(isinstance(one, AppendEntry) for one in effects)
        self._perform(effects, self.epoch)
        return True

    def entry_confirmed(self, one: Landing) -> None:
        if one.epoch != self.epoch or self._machine is None:
            return
        self._tell(EntryConfirmed(one.number), one.epoch)
        if self._machine.image.version == self._machine.confirmed and self._world.rng.random() < 0.2:
            self._world.checks.compare(self._machine.image, self._name)

    def append_failed(self, epoch: int, error: DLogError) -> None:
        self._tell(AppendFailed(error), epoch)

    def _tick_later(self, epoch: int) -> None:
        world = self._world
        if world.is_busy:
            world.later(world.rng.uniform(0.1, 1.0), lambda: self._tick(epoch))

    def _tick(self, epoch: int) -> None:
        if epoch == self.epoch and self._machine is not None:
            self._tell(Ticked(self._world.storage_ms()), epoch)
            self._tick_later(epoch)

    def _tell(self, fact: ControllerFact, epoch: int) -> None:
        """epoch: of the controller that the fact is for."""
        if self._machine is not None and epoch == self.epoch:
            self._perform(self._handled(self._machine, fact), epoch)

    def _handled(self, machine: Controller, fact: ControllerFact) -> list[Any]:
        try:
            return list(machine.handle(fact))
        except AssertionError as error:
            if isinstance(error.__cause__, DamagedError):
                raise Violation("O10", f"{self._name} records what does not fit: {fact}: {error}") from error
            raise

    def _perform(self, effects: list[Any], epoch: int) -> None:
        world = self._world
        for effect in effects:
            match effect:
                case AppendEntry():
                    world.append(self, effect)
                case Answer(ticket, result):
                    self._answer(ticket, result)
                case DeleteObjects(keys):
                    world.checks.deleted(keys)
                    world.objects -= set(keys)
                    world.reached["deleted"] += len(keys)
                    fact = DeletionFailed("503") if world.fails(3) else ObjectsDeleted()
                    world.later(world.rng.uniform(0.01, 2), lambda fact=fact: self._tell(fact, epoch))  # type: ignore[misc]  # a default
                case WriteSnapshot(key, contents):
                    data = encode_snapshot(contents)
                    world.later(world.rng.uniform(0.01, 2), lambda key=key, data=data: self._store(key, data, epoch))  # type: ignore[misc]  # a default
                case TruncateMetadata(version):
                    if not world.fails(3):
                        world.truncate(version)
                case DeleteSnapshots(applied):
                    for key in [key for key in world.snapshots if (parse_snapshot_key(FOLDER, key) or 0) < applied]:
                        del world.snapshots[key]
                case Deposed():
                    world.reached["deposed"] += 1
                    if world.rng.random() < 0.7:
                        self._machine = None
                case Emit(ObjectMetadataWentBack() as event):
                    raise Violation("O13", f"the stream did not go back: {event}")
                case Emit(event):
                    world.reached["expired"] += isinstance(event, UploadsExpired)
                case _:
                    raise AssertionError(effect)

    def _store(self, key: str, data: bytes, epoch: int) -> None:
        world = self._world
        if key in world.snapshots:
            raise Violation("O10", f"a snapshot is written twice: key={key}")
        if world.fails(3):
            self._tell(SnapshotFailed("503"), epoch)
            return
        world.snapshots[key] = data
        world.reached["snapshot"] += 1
        self._tell(SnapshotStored(len(data), crc32c(data)), epoch)

    def _answer(self, ticket: int, result: Any) -> None:
        operation, since, answer = self._asked.pop(ticket)
        if not isinstance(result, DLogError):
            self._world.checks.answered(operation, since, result)
        elif result.outcome_unknown and not isinstance(result, ControllerLostError):
            raise Violation("O11", f"a refusal leaves the outcome open: {operation} {result!r}")
        self._world.later(self._world.rng.uniform(0.001, 0.1), lambda: answer(result))


class ClientProcess:
    """Acts for a node; two of them may act for one."""

    def __init__(self, world: ControllerWorld, number: int) -> None:
        self.left = world.config["operations"]
        self.reader = ReaderProcess(world, f"client {number}")
        self._world = world
        self._drawing = Drawing(world.rng, NodeId(f"n{number % 2}"))
        self._operation: Operation | None = None
        self._attempts = 0
        self._round = 0

    def step(self) -> None:
        """Ask for the next operation."""
        world, rng = self._world, self._world.rng
        self._round += 1
        if self.left <= 0:
            return
        self.left -= 1
        lags = rng.random() < 0.1 * world.config["lag_s"]
        self.reader.poll(rng.randint(0, 3) if lags else 10**9)
        self._operation = self._drawing.draw(self.reader.image or Image())
        self._attempts = 0
        if self._operation is None:
            world.later(0.05, self.step)
        else:
            self._send()

    def _send(self) -> None:
        world, rng = self._world, self._world.rng
        operation, its_round = self._operation, self._round
        assert operation is not None
        self._attempts += 1
        if self._attempts > 8:
            world.later(0.1, self.step)
            return
        controllers = list(world.controllers)
        rng.shuffle(controllers)
        is_sent = any(
            one.request(operation, lambda result: self._answered(its_round, operation, result)) for one in controllers
        )
        world.reached["repeated"] += self._attempts > 1
        if is_sent and rng.random() < 0.05:
            world.later(rng.uniform(0.1, 20.0), lambda: self._repeat(operation))
        world.later(rng.uniform(1, 3) if is_sent else 0.3, lambda: self._timeout(its_round, operation))

    def _repeat(self, operation: Operation) -> None:
        """A copy of a request arrives late."""
        self._world.reached["repeated"] += 1
        self._world.rng.choice(self._world.controllers).request(operation, lambda _result: None)

    def _timeout(self, its_round: int, operation: Operation) -> None:
        if its_round == self._round and self._operation is operation:
            self._send()

    def _answered(self, its_round: int, operation: Operation, result: Any) -> None:
        world = self._world
        if its_round != self._round or self._operation is not operation:
            return
        if isinstance(result, ControllerLostError):
            return  # asked again at the timeout
        self._operation = None
        drawing, pause_s = self._drawing, world.rng.uniform(0, 0.3)
        if isinstance(result, NodeEpochExpiredError):
            world.reached["node_fenced"] += 1
            if world.rng.random() < 0.3:
                drawing.node_epoch, drawing.ids = type(drawing.node_epoch)(0), []
            else:
                pause_s = world.rng.uniform(1, 6)  # and goes on, not knowing better
        elif not isinstance(result, DLogError):
            world.reached["done"] += 1
            world.reached["upload"] += isinstance(operation, CommitUpload)
            world.reached["compaction"] += isinstance(operation, CommitCompaction)
            if isinstance(operation, OpenNode):
                drawing.node_epoch, drawing.ids = operation.node_epoch, []
            if isinstance(operation, PrepareObjects) and isinstance(result, ObjectsArePrepared):
                ids = [type(result.first)(result.first + n) for n in range(result.count)]
                drawing.ids += ids
                keys = {object_key(FOLDER, one, operation.node, operation.node_epoch) for one in ids}
                world.objects |= {key for key in sorted(keys) if world.rng.random() < 0.8}
        world.later(pause_s, self.step)


def run_plan(plan: Plan, parts: Mapping[str, Any] | None = None, *, trace: bool = False) -> Outcome:
    """Run one plan to its end or to the first violation. parts["planted"]: pairs of a class and its mutant;
    parts["functions"]: a module, a function of it, the text to replace, the new text."""
    from tests.simulation.mutants.object_controller import planting_functions

    parts = parts or {}
    with planting(parts.get("planted", ())), planting_functions(parts.get("functions", ())):
        world = ControllerWorld(plan)
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
    """The simulation `controller` of `python -m tests.simulation`."""
    from tests.simulation.mutants.object_controller import MUTANTS

    return Room(
        name="controller",
        styles=STYLES,
        draw=draw_plan,
        run=run_plan,
        must_reach=MUST_REACH,
        mutants=MUTANTS,
        progress=PROGRESS,
    )
