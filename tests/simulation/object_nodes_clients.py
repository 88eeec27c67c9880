"""The clients of the simulation `nodes`: each appends to one stream, and opens it on another node now and then."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlog.errors import DLogError
from dlog.model.ids import Epoch
from dlog.model.object_streams import ObjectStreamId
from dlog.objects.node import ObjectNode
from dlog.objects.node_messages import AppendEntries, CloseStreamsHere, OpenStreamHere, TrimStreamHere
from dlog.wire.node_wal import StreamEntry, stream_entry
from dlog.wire.stream_object import Span
from tests.simulation.kernel import Violation
from tests.simulation.object_nodes_processes import Process

if TYPE_CHECKING:
    from tests.simulation.object_nodes_world import NodesWorld


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
            elif self._waits and not self._world.is_quiet:
                self._world.later(2.0, look)

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
