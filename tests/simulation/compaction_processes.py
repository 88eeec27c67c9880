"""The nodes of the simulation `compaction`, which upload and compact, and its readers, whose metadata lags."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlog.errors import ConnectionLostError, DamagedError, DLogError, TruncatedError
from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    NO_OBJECT,
    NodeEpoch,
    NodeId,
    ObjectId,
    ObjectRef,
    ObjectStreamId,
    Slice,
    StreamObject,
    StreamSetObject,
    WalPosition,
)
from dlog.objects.compaction import (
    CompactionOptions,
    CompactionPlan,
    plan_set_objects,
    plan_stream_objects,
    set_objects_to_read,
    streams_of,
    taken_over_nodes,
)
from dlog.objects.compaction_run import (
    BytesRead,
    CommitRefused,
    CompactionAbandoned,
    CompactionDone,
    CompactionEffect,
    CompactionFact,
    CompactionRun,
    CopyOptions,
    PartWritten,
    ReadBytes,
    StorageFailed,
    WritePart,
)
from dlog.objects.errors import NodeEpochExpiredError, ObjectNotFoundError, StreamFencedError
from dlog.objects.image import Image
from dlog.objects.keys import object_key
from dlog.objects.operations import (
    CloseStreams,
    CommitCompaction,
    CommitUpload,
    NodeIsOpen,
    ObjectsArePrepared,
    OpenNode,
    PrepareObjects,
)
from dlog.objects.search import find_objects
from dlog.wire.stream_object import ObjectEncoder, ObjectIndex, decode_footer, decode_index, index_in
from tests.simulation.compaction_checks import FOLDER, decode_object, entry_of
from tests.simulation.kernel import Violation

if TYPE_CHECKING:
    from tests.simulation.compaction_world import CompactionWorld

FLUSH_POINT = WalPosition(0, 0)
Run = list[Any]  # stream, epoch, start, end


class Follower:
    """An image that gets the confirmed records late."""

    def __init__(self, world: CompactionWorld) -> None:
        self.image = Image()
        self._world = world

    def follow(self) -> None:
        """Apply some of the records that are confirmed; in quiet times all."""
        behind = len(self._world.log) - self.image.version
        count = behind if self._world.is_quiet else self._world.rng.randint(0, behind)
        self.image.apply_all(self._world.log[self.image.version : self.image.version + count])


class NodeProcess:
    """A node: its write-ahead log never fails, so what is appended is acknowledged; it uploads and compacts."""

    def __init__(self, world: CompactionWorld, name: NodeId) -> None:
        self.name = name
        self.epoch = NodeEpoch(0)
        self.is_open = False
        self.has_left = False  # for good: another process uploads the rest
        self._world = world
        self.life = 0
        self._runs: list[Run] = []  # appended and not uploaded
        self._is_uploading = False
        self._follower = Follower(world)

    @property
    def serves(self) -> bool:
        return self.is_open and not self.has_left

    def start(self) -> None:
        """Open the node, or take it over if it has left: close what it had open, and go on uploading what its
        write-ahead log has."""
        self.life += 1
        self.is_open = self._is_uploading = False
        self.epoch = NodeEpoch(self.epoch + 1)
        life = self.life
        nonce = self._world.rng.randbytes(8)
        self._ask(OpenNode(self.name, self.epoch, self.has_left, nonce), lambda result: self._opened(result, life))

    def leave(self) -> None:
        """Leave for good."""
        self.has_left = True
        self._world.reached["node_left"] += 1
        self.die()

    def die(self) -> None:
        """Die and start again after some time, or be taken over then."""
        world = self._world
        if not self.is_open:
            return
        world.reached["node_died"] += 1
        self.life += 1
        self.is_open = False
        for its in world.streams.values():
            if its.node == self.name:
                its.node = None
        world.later(world.rng.uniform(0.1, 3), self.start)

    def _ask(self, operation: Any, done: Callable[[Any], None]) -> None:
        life = self.life
        self._world.ask(operation, done, lambda: life == self.life)

    def _opened(self, result: Any, life: int) -> None:
        if isinstance(result, NodeEpochExpiredError):  # a controller that is gone recorded this very request
            self.epoch = NodeEpoch(result.current)
            self.start()
            return
        assert isinstance(result, NodeIsOpen), result
        self._runs, ends = [], []
        for its in result.ranges:
            end = its.end
            if end is None:
                state = self._world.streams.get(its.stream)
                end = max(its.stream_start, its.start, its.committed, 0 if state is None else state.end)
                ends.append((its.stream, its.epoch, end))
            start = max(its.committed, its.stream_start)
            if start < end:
                self._runs.append([its.stream, its.epoch, start, end])

        def closed(result: Any) -> None:  # fenced: it was closed by this, and opened by another before the answer
            if isinstance(result, DLogError) and not isinstance(result, StreamFencedError):
                raise Violation("O9", f"a node cannot close its streams: {result}")
            self.is_open = True
            self._later(self._world.config["upload_s"], self._upload)
            if not self.has_left:
                self._later(self._world.config["compact_s"], self._compact)

        self._ask(CloseStreams(self.name, self.epoch, tuple(ends)), closed)

    def _later(self, mean_s: float, do: Callable[[], None]) -> None:
        life = self.life

        def due() -> None:
            if life == self.life:
                do()

        self._world.later(mean_s * self._world.rng.uniform(0.5, 1.5), due)

    # ---- uploads ----------------------------------------------------------------------------------------------------

    def appended(self, stream: ObjectStreamId, start: int, end: int) -> None:
        """Entries of an open stream are acknowledged."""
        epoch = Epoch(self._world.streams[stream].epoch)
        for run in self._runs:
            if run[0] == stream and run[1] == epoch and run[3] == start:
                run[3] = end
                return
        self._runs.append([stream, epoch, start, end])

    def _upload(self) -> None:
        self._later(self._world.config["upload_s"], self._upload)
        if self._is_uploading or not self._runs:
            return
        self._is_uploading = True
        big = self._world.config["big"]
        parts = sorted(
            (Slice(run[0], run[2], run[3]) for run in self._runs), key=lambda part: (part.stream, part.start)
        )
        own = [part for part in parts if part.end - part.start >= big]
        shared = [part for part in parts if part.end - part.start < big]
        bodies = [[part] for part in own] + ([shared] if shared else [])
        expiry_ms = self._world.config["expiry_ms"]

        def prepared(result: Any) -> None:
            if isinstance(result, ObjectsArePrepared):
                self._write(result.first, bodies, bool(shared))
            else:
                self._upload_failed(result)

        self._ask(PrepareObjects(self.name, self.epoch, len(bodies), expiry_ms), prepared)

    def _write(self, first: ObjectId, bodies: list[list[Slice]], has_set: bool) -> None:
        stream_objects: list[StreamObject] = []
        set_object: StreamSetObject | None = None
        waiting = len(bodies)
        is_certain = True

        def written(is_sure: bool) -> None:
            nonlocal waiting, is_certain
            waiting -= 1
            is_certain &= is_sure
            if not waiting and life == self.life:
                if is_certain:
                    commit = CommitUpload(self.name, self.epoch, set_object, tuple(stream_objects), FLUSH_POINT)
                    self._ask(commit, lambda result: self._committed(result, bodies))
                else:
                    self._is_uploading = False

        life = self.life
        for at, parts in enumerate(bodies):
            object = ObjectId(first + at)
            encoder = ObjectEncoder(object, self.name, self.epoch, block_bytes=self._world.config["block_bytes"])
            data = b"".join(
                bytes(piece)
                for part in parts
                for offset in range(part.start, part.end)
                for piece in encoder.add(part.stream, offset, entry_of(part.stream, offset))
            )
            data += b"".join(map(bytes, encoder.finish()))
            if has_set and at == len(bodies) - 1:
                set_object = StreamSetObject(object, object, self._world.now_ms, len(data), tuple(parts))
            else:
                (part,) = parts
                stream_objects.append(StreamObject(object, part.stream, part.start, part.end, len(data)))
            self._world.storage.put(object_key(FOLDER, object, self.name, self.epoch), data, written)

    def _committed(self, result: Any, bodies: list[list[Slice]]) -> None:
        self._is_uploading = False
        if isinstance(result, DLogError):
            self._upload_failed(result)
            return
        self._world.reached["uploaded"] += 1
        done = {(part.stream, part.start): part.end for parts in bodies for part in parts}
        for run in self._runs:
            run[2] = done.get((run[0], run[2]), run[2])
        self._runs = [run for run in self._runs if run[2] < run[3]]

    def _upload_failed(self, result: Any) -> None:
        self._is_uploading = False
        if isinstance(result, ObjectNotFoundError):
            self._world.reached["expired"] += 1
        elif not isinstance(result, NodeEpochExpiredError):
            raise Violation("O9", f"an upload is refused for good: {result!r}")

    # ---- compaction -------------------------------------------------------------------------------------------------

    def _compact(self) -> None:
        world, config = self._world, self._world.config
        self._follower.follow()
        image = self._follower.image
        options = CompactionOptions(
            force_split_after_ms=config["force_split_ms"],
            split_bytes=config["split_bytes"],
            memory_bytes=config["memory_bytes"],
            minor_bytes=3000,
            major_bytes=10**6,
        )
        nodes = [(self.name, self.epoch), *taken_over_nodes(image)]
        world.rng.shuffle(nodes)
        is_major = world.rng.random() < 0.2
        for node, epoch in nodes:
            plans = plan_set_objects(image, node, world.now_ms, self._indexes(node, options), options)
            for stream in streams_of(image, node):
                plans += plan_stream_objects(image, node, stream, options, is_major=is_major)
            if plans and image.nodes[node].node_epoch == epoch:
                self._run(world.rng.choice(plans), epoch)
                return
        self._later(config["compact_s"], self._compact)

    def _indexes(self, node: NodeId, options: CompactionOptions) -> dict[ObjectId, ObjectIndex]:
        """The indexes of those stream-set objects of a node that are there still."""
        found = {}
        for object in set_objects_to_read(self._follower.image, node, options):
            data = self._world.storage.object(object, self._follower.image)
            if data is not None:
                footer = decode_footer(data, len(data))
                index = index_in(footer, data)
                assert index is not None
                found[object] = decode_index(footer, index)
        return found

    def _run(self, plan: CompactionPlan, epoch: NodeEpoch) -> None:
        """Run a plan for this node or another one, under its epoch."""
        config, image = self._world.config, self._follower.image
        sizes = {name: config[name] for name in ("held_bytes_max", "piece_bytes", "part_bytes", "block_bytes")}
        copying = CopyOptions(**sizes, prepare_max=2, expiry_ms=config["expiry_ms"])
        run = CompactionRun(plan, epoch, image, options=copying)
        RunDriver(self._world, self, run, epoch, self._ask).perform(run.begin())

    def ended(self, run: CompactionRun, effect: CompactionDone | CompactionAbandoned) -> None:
        """A run has ended; the next one is planned with newer metadata."""
        self._world.checks.tried_s[run.plan.node] = self._world.now_s
        self._world.reached["abandoned" if isinstance(effect, CompactionAbandoned) else run.plan.kind.value] += 1
        self._world.reached["compacted_for_another"] += (
            isinstance(effect, CompactionDone) and run.plan.node != self.name
        )
        self._later(self._world.config["compact_s"], self._compact)

    def follow(self) -> Image:
        self._follower.follow()
        return self._follower.image


class RunDriver:
    """Performs the effects of one compaction run by a node. epoch: of the plan's node."""

    def __init__(
        self,
        world: CompactionWorld,
        node: NodeProcess,
        run: CompactionRun,
        epoch: NodeEpoch,
        ask: Callable[[Any, Any], None],
    ) -> None:
        self._world = world
        self._node = node
        self._run = run
        self._ask = ask
        self._epoch = epoch
        self._life = node.life
        self._image = node.follow()
        self._parts: dict[ObjectId, bytes] = {}
        self._got_wrong = False

    def _tell(self, fact: CompactionFact) -> None:
        if self._node.life == self._life and self._node.serves:
            if self._world.rng.random() < 0.3:
                self._node.follow()
            self.perform(self._run.handle(fact))

    def perform(self, effects: list[CompactionEffect]) -> None:
        world = self._world
        for effect in effects:
            match effect:
                case ReadBytes(object, position, size):
                    self._read(object, position, size)
                case WritePart():
                    world.checks.tried_s[self._run.plan.node] = world.now_s  # one that reads block by block takes long
                    self._write(effect)
                case PrepareObjects():
                    self._ask(effect, self._prepared)
                case CommitCompaction():
                    if self._got_wrong:
                        world.checks.wrong |= {one.object for one in effect.set_objects}
                        world.checks.wrong |= {one.object for one in effect.stream_objects}
                    self._ask(effect, self._committed)
                case CompactionDone() | CompactionAbandoned():
                    self._node.ended(self._run, effect)

    def _read(self, object: ObjectId, position: int, size: int) -> None:
        try:
            owner = self._image.objects.owner(object)
        except DamagedError:
            self._world.later(0.0, lambda: self._tell(StorageFailed(object, ConnectionLostError("it is destroyed"))))
            return

        def done(data: bytes | None, is_wrong: bool) -> None:
            self._got_wrong |= is_wrong
            if data is None:
                self._world.checks.missing(object)
                self._tell(StorageFailed(object, ConnectionLostError("there is no such object")))
            else:
                self._tell(BytesRead(object, position, data))

        self._world.storage.get(object_key(FOLDER, object, *owner), position, size, done)

    def _write(self, part: WritePart) -> None:
        world = self._world
        data = b"".join(map(bytes, part.data))
        self._parts[part.object] = self._parts.get(part.object, b"") + data

        def done(is_sure: bool) -> None:
            lost = StorageFailed(part.object, ConnectionLostError("no answer"))
            self._tell(PartWritten(part.object, part.number) if is_sure else lost)

        if part.is_last:
            key = object_key(FOLDER, part.object, self._run.plan.node, self._epoch)
            world.storage.put(key, self._parts[part.object], done)
        else:
            is_sure = not world.fails()
            world.later(world.rng.uniform(0.01, 0.1), lambda: done(is_sure))

    def _prepared(self, result: Any) -> None:
        self._tell(StorageFailed(NO_OBJECT, result) if isinstance(result, DLogError) else result)

    def _committed(self, result: Any) -> None:
        self._tell(CommitRefused(result.message) if isinstance(result, DLogError) else result)


class ReaderProcess:
    """Reads any stream from any entry on, with metadata that lags."""

    def __init__(self, world: CompactionWorld) -> None:
        self._world = world
        self._follower = Follower(world)
        self._cursors: dict[ObjectStreamId, int] = {}

    def _again(self) -> None:
        self._world.later(self._world.rng.uniform(0.05, 0.5) * (5 if self._world.is_quiet else 1), self.read)

    def read(self) -> None:
        world = self._world
        if world.rng.random() < 0.5 / world.config["lag_s"] or world.is_quiet:
            self._follower.follow()
        image = self._follower.image
        if not image.streams:
            self._again()
            return
        stream = world.rng.choice(sorted(image.streams))
        its = image.streams[stream]
        start = self._cursors.get(stream, its.start)
        if world.rng.random() < 0.3:
            ends = [its.start, *(one.start for one in its.ranges), *(one.committed for one in its.ranges)]
            start = max(0, world.rng.choice(ends) + world.rng.randint(-5, 5))
        end, limit = start + world.rng.choice((1, 10, 1000, 2 * 10**10)), world.rng.randint(1, 4)
        try:
            result = find_objects(image, stream, start, end, limit)
        except TruncatedError:
            world.reached["truncated"] += 1
            self._cursors[stream] = max(its.start, start if start > its.start else 0)
            self._again()
            return
        world.checks.searched(image, stream, start, end, limit)
        world.reached["partial"] += result.covered_to < end and len(result.objects) < limit
        self._read_objects(stream, start, result.covered_to, list(result.objects))

    def _read_objects(self, stream: ObjectStreamId, at: int, end: int, refs: list[ObjectRef]) -> None:
        self._cursors[stream] = at
        if not refs:
            self._again()
            return
        ref, image = refs[0], self._follower.image
        size = image.objects.bytes_of(ref.object)

        def done(data: bytes | None, is_wrong: bool) -> None:
            if data is None:
                self._world.checks.missing(ref.object)
                self._follower.follow()
                self._again()
                return
            try:
                found = decode_object(data)
            except DLogError:
                if not is_wrong:
                    raise Violation("O7", f"object {ref.object} is damaged in the storage") from None
                self._world.reached["damaged"] += 1
                self._again()
                return
            last = min(ref.end, end)
            self._world.checks.read(stream, at, last, found, is_wrong=is_wrong)
            self._read_objects(stream, last, end, refs[1:])

        self._world.storage.get(object_key(FOLDER, ref.object, *image.objects.owner(ref.object)), 0, size, done)
