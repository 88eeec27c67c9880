"""Runs one trial of a whole cluster on a virtual loop: build it from a plan, start it, apply load and faults, heal,
check.

The service runs as it ships (nodes.py); its load is workload.py; its faults are faults.py; its checks are checks.py.

Invariants:
- Safety is demanded throughout.
- Liveness is demanded only after `heal`, when every fault is over and every machine is up again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from dlog.bookie.options import BookieOptions
from dlog.client.options import ClientOptions
from dlog.client.position import START, TAIL
from dlog.events import Event, ProxySuspected, ProxyTrusted
from dlog.io.bookie_client import BookieClientOptions
from dlog.io.ledgers import LedgersOptions
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_members import MemberOptions
from dlog.ledger.adding import AddingOptions
from dlog.ledger.recovery import RecoveryOptions
from dlog.options import KiB, draw
from proxies import parts
from proxies.read.options import ReadOptions
from proxies.write.options import WriteOptions
from tests.history import History
from tests.simulation.kernel import Violation
from tests.simulation.plan import Plan
from tests.simulation.service import (
    bookie_collections,
    checks,
    deletions,
    entropy,
    faults,
    hints,
    lives,
    monitor,
    watching,
    watching_streams,
    workload,
)
from tests.simulation.service.loop import MS, Process, S, SimulatedLoop
from tests.simulation.service.network import WINDOWS_BYTES, Network
from tests.simulation.service.nodes import (
    NAMESPACE,
    ZOOKEEPER,
    BookieNode,
    Node,
    ReadProxyNode,
    WorkNode,
    WriteProxyNode,
    ZooKeeperNode,
)
from tests.simulation.worlds import Outcome

T = TypeVar("T")

BOOT_S = 30.0  # until a cluster without faults is up
STOP_S = 60.0  # until all processes that were asked to stop have ended

#: options under which service is refused by design are not drawn: a client that may not connect has no liveness
_SERVING = {"connections_max": 2000}
_READING = {**_SERVING, "readers_max": 10_000, "readers_per_connection_max": 1000, "streams_max": 10_000}


class World:
    """One trial."""

    def __init__(self, plan: Plan, parts_: Mapping[str, Any]) -> None:
        config = plan.config
        self.plan = plan
        self.mutant = dict(parts_)
        self.loop = SimulatedLoop(plan.seed)
        windows = config.get("windows_bytes", WINDOWS_BYTES)
        self.suspected: dict[tuple[str, str], int] = {}  # (proxy, address that it suspects) -> since when, in ns
        self.network = Network(self.loop, latency_ns=int(config["latency_ms"] * MS), windows_bytes=windows)
        self.rng = random.Random(f"{plan.seed}/world")
        self.reached: Counter[str] = Counter()
        self.healed = False
        self.over = False  # the workload starts nothing new
        self.wanted_up = True
        self.nodes: dict[str, Node] = {}
        self.bookies: list[BookieNode] = []
        self.writers: list[WriteProxyNode] = []
        self.readers: list[ReadProxyNode] = []
        self.clients: list[WorkNode] = []
        self.zookeeper: ZooKeeperNode
        self.settings: dict[str, Any] = dict(config["settings"])
        self.faults = faults.Faults(self)
        self.monitor = monitor.Monitor(self)
        self.collections = bookie_collections.Collections(self)
        self.deletions = deletions.Deletions(self)
        self.watching = watching.Watching(self)
        self.watching_streams = watching_streams.WatchingStreams(self)
        self.followers: list[asyncio.Task[None]] = []
        self.administrators: list[lives.Administrator] = []
        self._build()
        self.streams = [
            workload.StreamNotes(f"stream-{number}", History(f"stream-{number}")) for number in range(config["streams"])
        ]
        self.work = workload.Work(
            loop=self.loop,
            streams=self.streams,
            addresses="dlog://" + ",".join([w.address for w in self.writers] + [r.address for r in self.readers]),
            options=self._client_options,
            impatient=dataclasses.replace(
                self._client_options,
                append_deadline_s=config.get("append_deadline_s", self._client_options.append_deadline_s),
            ),
            reached=self.reached,
            pace_s=config["pace_s"],
            look_s=config["look_s"],
            batch_max=config["batch_max"],
            record_bytes=config["record_bytes"],
            cancels=config["cancels"],
            is_over=lambda: self.over,
        )
        for number in range(config["clients"]):
            self.clients.append(self._add(WorkNode, f"client-{number + 1}", work=self._client(number)))
        for name, work in (self.watching.works | self.watching_streams.works | self.deletions.works).items():
            self.clients.append(self._add(WorkNode, name, work=work))

    # ---- building ----------------------------------------------------------------------------------------------------

    def _build(self) -> None:
        config = self.plan.config
        rng = random.Random(f"{self.plan.seed}/options")
        drawn = config["drawn"]

        def options(cls: type[T], **fixed: Any) -> T:
            chosen = draw(cls, rng) if drawn else cls()
            return dataclasses.replace(chosen, **fixed)  # type: ignore[type-var]

        session_s = config["session_s"]
        tuning = parts.BackendLimits(
            session_timeout_s=session_s,
            bookies=options(BookieClientOptions),
            ledgers=LedgersOptions(adding=options(AddingOptions), recovery=options(RecoveryOptions)),
            members=draw(MemberOptions, random.Random(f"{self.plan.seed}/members")),
        )
        self._client_options = options(ClientOptions, read_deadline_s=config["read_deadline_s"])
        self.zookeeper = self._add(ZooKeeperNode, "zookeeper", tick_s=session_s / 4, rng=self.rng)
        for number in range(config["bookies"]):
            chosen = options(
                BookieOptions,
                host=f"bookie-{number + 1}",
                port=3181,
                dir="/data",
                zookeeper=ZOOKEEPER,
                namespace=NAMESPACE,
                journal_file_bytes=rng.choice((16, 64, 256)) * KiB,  # they are written ahead, as a whole
                entry_log_bytes=config["entry_log_bytes"],
                checkpoint_s=config["checkpoint_s"],
                disk_check_s=1.0,
                disk_free_min_bytes=1 << 20,
                disk_free_reserve_bytes=1 << 18,
                **config.get("collecting", {"gc_s": 0.0}),
            )
            self.bookies.append(
                self._add(BookieNode, f"bookie-{number + 1}", bookie_options=chosen, session_timeout_s=session_s)
            )
        where = {"zookeeper": ZOOKEEPER, "namespace": NAMESPACE, "log_level": "error"}
        for number in range(config["writers"]):
            name = f"writer-{number + 1}"
            write = options(WriteOptions, host=name, port=7400, **where, **_SERVING)
            write = dataclasses.replace(write, batch_bytes_max=WriteOptions().batch_bytes_max)
            if "upkeep_s" in config:
                write = dataclasses.replace(write, upkeep_s=config["upkeep_s"])
            self.writers.append(self._add(WriteProxyNode, name, proxy_options=write, tuning=tuning))
        for number in range(config["readers"]):
            name = f"reader-{number + 1}"
            read = options(ReadOptions, host=name, port=7500, **where, **_READING)
            self.readers.append(self._add(ReadProxyNode, name, proxy_options=read, tuning=tuning))

    def _add(self, cls: Callable[..., Any], name: str, **options: Any) -> Any:
        node = self.nodes[name] = cls(self.network, name, self.hear, self._exited, **options)
        return node

    # ---- events ------------------------------------------------------------------------------------------------------

    def reach(self, mark: str) -> None:
        """Count a mark; faults bound to it strike."""
        self.reached[mark] += 1
        self.faults.on_mark(mark, self.reached[mark])

    def hear(self, node: Node, event: Event) -> None:
        """Handle an event that a process of the cluster emits."""
        if self.loop.on_line is not None:
            self.loop.note(f"tells {event}")
        self.reach(event.name)
        self.monitor.hear(node, event)
        if isinstance(event, ProxySuspected):
            self.suspected.setdefault((node.name, event.peer), self.loop.now)
        elif isinstance(event, ProxyTrusted):
            self.suspected.pop((node.name, event.peer), None)

    def _exited(self, node: Node, error: BaseException | None) -> None:
        """Restart a process that ended by itself, as a supervisor does, unless it was asked to end."""
        self.reached[f"exit.{type(error).__name__}" if error is not None else "exit"] += 1
        if self.loop.on_line is not None:
            self.loop.note(f"{node.name} ended: {error!r}")
        if self.wanted_up and node not in self.clients:
            delay_ns = int(self.rng.uniform(0.05, 1.0) * S)
            self.loop.at(self.loop.now + delay_ns, self.loop.world, self.boot_if_down, node)

    def boot_if_down(self, node: Node) -> None:
        if node.process is None and self.wanted_up:
            if self.loop.on_line is not None:
                self.loop.note(f"{node.name} begins")
            node.boot()

    def ask(self, name: str, work: Callable[[Process], Awaitable[T]], *, within_s: float, what: str) -> T:
        """Run something on a machine of its own and return its result; V1 if it takes longer."""
        results: list[T] = []

        async def run(process: Process) -> None:
            results.append(await work(process))

        ended: list[BaseException | None] = []
        node = WorkNode(self.network, name, self.hear, lambda _, error: ended.append(error), work=run)
        node.boot()
        if not self.loop.run(until_s=self.loop.now_s + within_s, until=lambda: bool(ended)):
            raise Violation("V1", f"not done after {within_s:g} s: {what}")
        if ended[0] is not None:
            raise Violation("V1", f"{what}: {ended[0]!r}")
        return results[0]

    # ---- the trial ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the trial. Raises Violation."""
        self.boot()
        begun_s = self.loop.now_s
        for client in self.clients:
            self.boot_if_down(client)
        self.faults.begin()
        self.loop.run(until_s=begun_s + self.plan.config["duration_s"])
        checks.not_silent(self)
        checks.lives_kept(self)
        self.heal()
        checks.settled(self)
        self.watching.judge()
        self.watching_streams.judge()
        self.collections.settle()
        self.stop()
        checks.judge(self)

    def boot(self) -> None:
        """Start every machine and create every stream; no faults yet."""
        self.zookeeper.boot()
        self.until(lambda: self.zookeeper.is_ready, BOOT_S, "ZooKeeper is up")
        self.ask("operator", lambda _: cluster_init(ZOOKEEPER, NAMESPACE), within_s=BOOT_S, what="cluster init")
        self._start_service()

        async def create(_: Process) -> None:
            async with workload.connect(self.work) as client:
                for notes in self.streams:
                    await workload.create(client, notes.name, self.settings)

        self.ask("operator", create, within_s=BOOT_S, what="streams are made")
        if self.plan.config["style"] == "restored" or self.plan.config.get("forgets"):
            self._live_and_forget()
        if self.watching.works:
            for name in self.watching.works:
                self.nodes[name].boot()
            self.until(self.watching.knows_all, BOOT_S, "a subscriber has seen every znode")
        if self.watching_streams.works:
            for name in self.watching_streams.works:
                self.nodes[name].boot()
            self.until(self.watching_streams.knows_all, BOOT_S, "a subscriber has seen every stream")

    def _live_and_forget(self) -> None:
        """Run the cluster, stop it, restore ZooKeeper from an older backup, and start again. Bookies hold ledgers that
        the backup lacks and whose ids are given out again; no reader may get their entries. Bookies that collect
        garbage have seen metadata of these ledgers, and must not take its loss for a deletion."""
        bookies = [] if self.plan.config.get("forgets") == "under bookies" else self.bookies
        if self.collections.is_on:
            self.ask(
                "before", self.collections.live_before_backup, within_s=2 * BOOT_S, what="a life before the backup"
            )
        self._stop_service(bookies)
        ensemble = self.zookeeper.ensemble
        tree, zxid = ensemble.tree.copy(), ensemble.zxid
        self._start_service()

        async def live(_: Process) -> None:
            async with workload.connect(self.work) as client:
                for number in range(3):
                    for notes in self.streams:
                        await client.append(notes.name, b"forgotten %d" % number)
                        await client.hand_over(notes.name)  # the next writer begins a segment
                if self.collections.is_on:
                    await self.collections.live_after_backup(client)

        self.ask("forgotten", live, within_s=2 * BOOT_S, what="a life that is forgotten")
        self._stop_service(bookies)
        self.zookeeper.kill()
        ensemble.tree, ensemble.zxid = tree, zxid
        self.monitor.forget_metadata(tree)
        self.zookeeper.boot()
        self.until(lambda: self.zookeeper.is_ready, BOOT_S, "ZooKeeper is up again")
        if not bookies:
            self.loop.run(until_s=self.loop.now_s + 10 * self.plan.config["session_s"])  # until sessions are new
        self._start_service()

    def _start_service(self) -> None:
        service: list[Node] = [*self.bookies, *self.writers, *self.readers]
        for node in service:
            if node.process is None:
                node.boot()
        self.until(lambda: all(node.is_ready for node in service), BOOT_S, "the cluster is up")

    def _stop_service(self, bookies: Sequence[BookieNode]) -> None:
        self.wanted_up = False
        self._end(self.readers, self.writers, bookies)
        self.wanted_up = True

    def heal(self) -> None:
        """End all faults and start every machine; no fault strikes any more."""
        self.healed = True
        self.loop.note("healed")
        self.faults.heal()
        self.network.heal()
        for node in self.nodes.values():
            if node.process is not None:
                self.loop.resume(node.process)
            elif node not in self.clients:
                self.boot_if_down(node)
        self.over = True

    def stop(self) -> None:
        """Stop all processes in order; none may leave a task or a connection behind."""
        self.wanted_up = False
        self._end(self.clients, self.readers, self.writers, self.bookies, [self.zookeeper])
        self.loop.run(until_s=self.loop.now_s + 1.0)
        checks.nothing_left(self)

    def _end(self, *groups: Sequence[Node]) -> None:
        """Ask these groups to stop, one after the other; return when they have ended."""
        for group in groups:
            for node in group:
                node.ask_to_stop()
            nodes = list(group)
            self.until(lambda nodes=nodes: all(n.process is None for n in nodes), STOP_S, "asked to stop")  # type: ignore[misc]

    def until(
        self, holds: Callable[[], bool], within_s: float, what: str, detail: Callable[[], str] = lambda: ""
    ) -> None:
        """Run until the condition holds; V1 if that takes longer."""
        if not self.loop.run(until_s=self.loop.now_s + within_s, until=holds):
            down = [node.name for node in self.nodes.values() if node.is_ready is not self.wanted_up]
            raise Violation("V1", f"not within {within_s:g} s: {what}; not ready or not ended: {down} {detail()}")

    def _client(self, number: int) -> Callable[[Process], Awaitable[None]]:
        """Run the work of one client, to the end of the trial."""

        async def work(process: Process) -> None:
            config, shared = self.plan.config, self.work
            rng = process.rng("work")
            async with workload.connect(shared, patient=False) as client, asyncio.TaskGroup() as tasks:
                for index, notes in enumerate(self.streams):
                    for _ in range(config["producers"]):
                        tasks.create_task(
                            workload.writing(shared, client, notes, process, shared.producer()), name=f"write {index}"
                        )
                    start = START if rng.random() < 0.7 else TAIL
                    self.followers.append(
                        tasks.create_task(workload.following(shared, client, notes, process, start), name="follow")
                    )
                    tasks.create_task(
                        workload.looking(shared, client, notes, f"{process!r} looks", process.rng(f"look {index}")),
                        name=f"look {index}",
                    )
                    if config["truncates"] and number == 0:
                        tasks.create_task(
                            workload.truncating(shared, client, notes, process.rng("truncate")), name="truncate"
                        )
                if config.get("lives"):
                    name, rng = f"lives-{number + 1}", process.rng("lives")
                    administrator = lives.Administrator(shared, client, name, self.settings, rng)
                    self.administrators.append(administrator)
                    tasks.create_task(administrator.run(), name="lives")
                tasks.create_task(self._let_go(process), name="end")

        return work

    async def _let_go(self, process: Process) -> None:
        """Cancel followers, which wait for ever, once asked to stop."""
        node = self.nodes[process.node]
        assert node.stopping is not None
        await node.stopping.wait()
        for task in self.followers:
            if task.process is process:  # type: ignore[attr-defined]
                task.cancel()


@contextlib.contextmanager
def _planted(world: World) -> Iterator[None]:
    """Plant the world's defects into production code, while the trial lasts."""
    with contextlib.ExitStack() as stack:
        for plant in world.mutant.values():
            stack.enter_context(plant())
        yield


def run(plan: Plan, parts_: Mapping[str, Any] = {}, trace: bool = False) -> Outcome:
    """Run one trial of a plan; see tests/simulation/worlds.py."""
    violation, text = "", ""
    was_enabled = gc.isenabled()
    gc.disable()
    lines: list[str] | None = [] if trace else None
    try:
        world = World(plan, parts_)
        loop, reached = world.loop, world.reached
        if lines is not None:
            loop.on_line = lines.append
        watches, collected = watching.few_a_packet(plan), world.collections.watching()
        with entropy.of(loop), world.monitor.watching(), hints.lost(plan), watches, collected, _planted(world):
            try:
                world.run()
            except Violation as error:
                violation, text = error.invariant, str(error)
            virtual_s = loop.now_s - 1000
            left = loop.dispose(world.__dict__.clear, judged=bool(violation))
        if left and not violation:
            violation, text = "V3", f"V3: {left[0]}"
    finally:
        if was_enabled:
            gc.enable()
    return Outcome(
        plan=plan,
        violation=violation,
        text=text,
        reached=reached,
        trace_hash=loop.trace_hash,
        events=loop.events,
        virtual_s=virtual_s,
        lines=lines,
    )
