"""The machines of a simulated cluster, each with at most one process, started by production's own composition code.

Invariants:
- No part of the service is assembled here: a bookie is `actors/bookie/running.py`, a proxy is `proxies/*/running.py`, a
  client is `dlog.connect`.
- A node gives a process a host, a disk and a stop event, and starts and ends it as an operating system and a supervisor
  would.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from actors.bookie import running as bookie_running
from actors.bookie.server import BookieMetadata
from dlog.bookie.options import BookieOptions
from dlog.errors import DLogError
from dlog.events import Event
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from proxies import parts
from proxies.read import running as read_running
from proxies.read.options import ReadOptions
from proxies.write import running as write_running
from proxies.write.options import WriteOptions
from tests.simulation.disk import SimulatedDisk, coin
from tests.simulation.service.loop import Process, SimulatedLoop
from tests.simulation.service.network import Network
from tests.simulation.service.threads import Latency, SimulatedThreads
from tests.simulation.service.zookeeper import ZooKeeperServer
from tests.simulation.service.zookeeper_ensemble import Ensemble

NAMESPACE = "/dlog"
ZOOKEEPER = "zookeeper:2181"
DISK_BYTES = 1 << 34

Hear = Callable[["Node", Event], None]


class Node:
    """One machine: at most one process at a time.

    on_exit: called when a process ends by itself, with its error (None: on purpose). The node stays down until `boot`.
    """

    def __init__(self, network: Network, name: str, hear: Hear, on_exit: Callable[[Node, BaseException | None], None]):
        self.network = network
        self.loop: SimulatedLoop = network.loop
        self.name = name
        self.process: Process | None = None
        self.is_ready = False
        self.stopping: asyncio.Event | None = None
        self.lives = 0
        self.deaths = 0
        self._hear = hear
        self._on_exit = on_exit
        self._skew_ns = 0

    def boot(self) -> Process:
        """Start a process. The node must be down."""
        assert self.process is None, f"{self.name} is up"
        if self.name in self.network.is_down:
            self.network.power_back(self.name)
        process = self.process = self.loop.spawn(self.name)
        process.skew_ns = self._skew_ns
        self.is_ready = False
        self.lives += 1
        self.loop.hand(process, self._begin, process)
        return process

    def kill(self) -> None:
        """Kill the process at once; its peers learn of it."""
        process = self.process
        if process is not None:
            self._dying(process)
            self._bury(process)
            self.network.process_died(process)

    def power_cut(self, rng: random.Random) -> None:
        """Cut the machine's power: no peer learns of it, and what was not synced is lost or torn."""
        process = self.process
        if process is not None:
            self._dying(process)
            self._bury(process)
            self.network.power_cut(process)
            self._lose_unsynced(rng)

    def ask_to_stop(self) -> None:
        """Ask the process to stop, as SIGTERM does."""
        if self.process is not None and self.stopping is not None:
            self.process.post(self.stopping.set)

    def skew(self, by_ns: int) -> None:
        """Let its wall clock jump."""
        self._skew_ns += by_ns
        if self.process is not None:
            self.process.skew_ns = self._skew_ns

    # ---- overridden by each kind of node -----------------------------------------------------------------------------

    async def live(self, process: Process) -> None:
        """Run one process to its end."""
        raise NotImplementedError

    def _dying(self, process: Process) -> None:
        """Called when the process is about to be killed."""

    def _lose_unsynced(self, rng: random.Random) -> None:
        """Lose what was not synced, after a power cut."""

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _bury(self, process: Process) -> None:
        self.deaths += 1
        self.process = None
        self.is_ready = False
        self.loop.kill(process)
        self.loop.keep((self.stopping, self))
        self.stopping = None

    def _begin(self, process: Process) -> None:
        self.stopping = asyncio.Event()
        task = self.loop.create_task(self._lived(process), name=self.name)
        task.add_done_callback(lambda ended: self._ended(process, ended))

    async def _lived(self, process: Process) -> None:
        await self.live(process)

    def _ended(self, process: Process, task: asyncio.Task[None]) -> None:
        """Handle a process that ended by itself: its host closes what it left open."""
        error = task.exception()
        told = error if error is None or _is_told(error) else AssertionError(f"{self.name} crashed")
        if told is not error:
            self.loop.call_exception_handler({"message": f"{self.name} crashed", "exception": error})
        self.loop.at(self.loop.now, self.loop.world, self._exit, process, told)

    def _exit(self, process: Process, error: BaseException | None) -> None:
        if self.process is not process:
            return
        left = asyncio.all_tasks(self.loop)
        if error is None and (mine := [task for task in left if task.process is process]):  # type: ignore[attr-defined]
            self.loop.call_exception_handler({"message": f"{self.name} ended and left tasks: {mine}"})
        transports = self.network.transports.get(process, ())
        if error is None and (open_ := [str(transport) for transport in transports if transport.is_held]):
            self.loop.call_exception_handler({"message": f"{self.name} ended and left connections: {open_[:5]}"})
        self._bury(process)
        self.network.process_died(process)
        self._on_exit(self, error)

    def _ready(self) -> None:
        self.is_ready = True

    def hear(self, event: Event) -> None:
        self._hear(self, event)


def _is_told(error: BaseException) -> bool:
    """Whether a process that ends with this error reports it in one line and an exit code (dlog/io/process.py)."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_told(inner) for inner in error.exceptions)
    return isinstance(error, DLogError)


class ZooKeeperNode(Node):
    """A server over an ensemble that outlives its process."""

    def __init__(self, *args: Any, tick_s: float, rng: random.Random, **options: Any) -> None:
        super().__init__(*args, **options)
        self.ensemble = Ensemble(tick_s=tick_s)
        self.rng = rng
        self.server: ZooKeeperServer | None = None

    async def live(self, process: Process) -> None:
        server = self.server = ZooKeeperServer(self.ensemble, rng=self.rng)
        host, _, port = ZOOKEEPER.partition(":")
        await server.start(host, int(port))
        self._ready()
        assert self.stopping is not None
        await self.stopping.wait()
        await server.close()

    def _dying(self, process: Process) -> None:
        if self.server is not None:
            self.server.vanish()
            self.loop.keep(self.server)
            self.server = None


class BookieNode(Node):
    """A bookie and its disk."""

    def __init__(self, *args: Any, bookie_options: BookieOptions, session_timeout_s: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self.options = bookie_options
        self.disk = SimulatedDisk(settling=True, bytes_max=DISK_BYTES)
        self.slow = 1.0
        self.syncs_failed_before = 0  # in this incarnation
        self.power_cuts = 0
        self.unsynced_lost = 0  # power cuts that met unsynced writes
        self._session_timeout_s = session_timeout_s
        self._threads: SimulatedThreads | None = None
        self._latency: Latency | None = None

    async def live(self, process: Process) -> None:
        options = self.options
        self.syncs_failed_before = self.disk.syncs_failed
        mount = self.disk.mount()
        self._latency = Latency(process.rng("disk"), factor=self.slow)
        threads = self._threads = SimulatedThreads(self.loop, mount, self._latency)
        listener = self.network.bind(self.name, options.port)

        async def listen(connect: Callable[[], Any]) -> asyncio.AbstractServer:
            server: asyncio.AbstractServer = await self.loop.create_server(connect, sock=listener)
            return server

        @contextlib.asynccontextmanager
        async def connect() -> AsyncIterator[BookieMetadata]:
            async with await ZooKeeperMetadata.connect(
                ZOOKEEPER, NAMESPACE, session_timeout_s=self._session_timeout_s, rng=process.rng("metadata")
            ) as metadata:
                yield metadata

        environment = bookie_running.BookieEnvironment(
            disk=mount, threads=threads, connect=connect, listen=listen, address=f"{self.name}:{options.port}"
        )
        assert self.stopping is not None
        await bookie_running.run(
            options, environment, self.stopping, on_event=self.hear, on_ready=lambda _: self._ready()
        )

    def slow_down(self, factor: float) -> None:
        """Make every operation of its disk take this many times as long from now on."""
        self.slow = factor
        if self._latency is not None:
            self._latency.factor = factor

    def _dying(self, process: Process) -> None:
        threads, self._threads = self._threads, None
        if threads is not None:
            self.loop.keep(threads)
            threads.die(process.rng("death"))
        self.disk.kill()

    def _lose_unsynced(self, rng: random.Random) -> None:
        self.power_cuts += 1
        self.unsynced_lost += bool(self.disk.operations)
        self.disk.power_cut(coin(rng, rng.choice((0.0, 0.3, 0.7, 1.0))))

    def _exit(self, process: Process, error: BaseException | None) -> None:
        if self.process is process:
            self.disk.kill()
            if self._threads is not None:
                self.loop.keep(self._threads)
                self._threads = None
        super()._exit(process, error)


class WriteProxyNode(Node):
    """A write proxy."""

    def __init__(self, *args: Any, proxy_options: WriteOptions, tuning: parts.BackendLimits, **options: Any) -> None:
        super().__init__(*args, **options)
        self.options = proxy_options
        self._tuning = tuning

    @property
    def address(self) -> str:
        return f"{self.name}:{self.options.port}"

    async def live(self, process: Process) -> None:
        assert self.stopping is not None
        await write_running.run(
            self.options,
            self.stopping,
            lambda _: self._ready(),
            on_event=self.hear,
            rng=process.rng("proxy"),
            tuning=self._tuning,
        )


class ReadProxyNode(Node):
    """A read proxy."""

    def __init__(self, *args: Any, proxy_options: ReadOptions, tuning: parts.BackendLimits, **options: Any) -> None:
        super().__init__(*args, **options)
        self.options = proxy_options
        self._tuning = tuning

    @property
    def address(self) -> str:
        return f"{self.name}:{self.options.port}"

    async def live(self, process: Process) -> None:
        assert self.stopping is not None
        await read_running.run(
            self.options,
            self.stopping,
            lambda _: self._ready(),
            on_event=self.hear,
            rng=process.rng("proxy"),
            tuning=self._tuning,
        )


class WorkNode(Node):
    """A machine on which code of the test runs: a client's work, an operator's command."""

    def __init__(self, *args: Any, work: Callable[[Process], Awaitable[None]], **options: Any) -> None:
        super().__init__(*args, **options)
        self._work = work

    async def live(self, process: Process) -> None:
        self._ready()
        await self._work(process)
