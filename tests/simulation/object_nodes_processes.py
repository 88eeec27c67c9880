"""The processes of the simulation `nodes`: machines with their timers and callers, and the nodes that they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlog.errors import DLogError
from dlog.machine import Answer, Asked, Effect, Emit, Received, Send, SetTimer, TimerFired
from dlog.model.object_streams import NodeEpoch, NodeId
from dlog.objects.failover import FailoverWorker
from dlog.objects.node import ObjectNode, Phase
from dlog.objects.node_messages import (
    AwaitUploaded,
    CloseStreamsHere,
    NodeEndedError,
    RecoverNode,
    StartNode,
    UploadAll,
)
from dlog.objects.outbox import Reply, Service
from tests.simulation.kernel import Violation

if TYPE_CHECKING:
    from tests.simulation.object_nodes_world import NodesWorld


class Life:
    """A process of the operating system: what runs in it dies together, and is frozen together."""

    def __init__(self) -> None:
        self.is_dead = self.is_frozen = False
        self._held: list[Callable[[], None]] = []

    def run(self, do: Callable[[], None]) -> None:
        """Do something in this process: now, once it wakes up, or never."""
        if self.is_frozen and not self.is_dead:
            self._held.append(do)
        elif not self.is_dead:
            do()

    def wake(self) -> None:
        self.is_frozen = False
        held, self._held = self._held, []
        for do in held:
            self.run(do)


class Process:
    """A machine, its timers and its callers, until it ends or its life does. name: of the process, not of its node."""

    def __init__(
        self, world: NodesWorld, node: NodeId, name: str, machine: ObjectNode | FailoverWorker, life: Life
    ) -> None:
        self.machine = machine
        self.node = node
        self.name = name
        self.life = life
        self._has_ended = False
        self._world = world
        self._tickets = 0
        self._sinks: dict[int, Callable[[Any], None]] = {}

    def ask(self, request: Any, sink: Callable[[Any], None]) -> None:
        self._tickets += 1
        self._sinks[self._tickets] = sink
        self.tell(Asked(self._tickets, request, self._world.now_s))

    @property
    def is_dead(self) -> bool:
        return self._has_ended or self.life.is_dead

    def die(self) -> None:
        """End the machine, not its life."""
        self._has_ended = True

    def tell(self, fact: Any) -> None:
        if not self._has_ended:
            self.life.run(lambda: self._tell(fact))

    def _tell(self, fact: Any) -> None:
        world = self._world
        if self.is_dead:
            return
        if not world.is_quiet and world.rng.random() < world.config["deaths"]:
            self.life.is_dead = True
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
            case Emit():
                pass
            case _:
                raise AssertionError(effect)


class NodeHost:
    """One node: its processes one after another, at times two at once, and the workers that take over from it."""

    def __init__(self, world: NodesWorld, name: NodeId) -> None:
        self.name = name
        self.process: Process | None = None
        self.is_finished = self._is_finishing = False
        self.goes_on = False  # at the end, and keeps a segment of its log
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
        process = self.process = self.start(
            ObjectNode(self.name, self._next_epoch(), world.rng.randbytes(8), world.options)
        )
        process.ask(StartNode(), lambda result: self._started(process, result))
        world.later(1.0, lambda: self._watch(process))

    def start(self, machine: ObjectNode | FailoverWorker, node: NodeId | None = None) -> Process:
        """A process with a machine for a node, this one if no other is given."""
        self._processes += 1
        return Process(self._world, node or self.name, f"{self.name}{self._processes}", machine, self._life())

    def _life(self) -> Life:
        """Of the next process."""
        return Life()

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
        worker = self.start(
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
            self._leave(process)

        process.ask(CloseStreamsHere(streams), closed)

    def _leave(self, process: Process) -> None:
        """A worker finishes what the node has left."""
        world = self._world

        def done(result: Any) -> None:
            self.is_finished = not isinstance(result, DLogError)

        process.die()
        worker = self.start(FailoverWorker(self.name, self._next_epoch(), world.rng.randbytes(8), world.options))
        worker.ask(RecoverNode(), lambda _: None)
        worker.ask(AwaitUploaded(), done)
