"""The room `auditor`: several ledgers and bookies, recovery processes, and a decommission in one history.

The recovery processes are `actors/recovery/running.py`, the decommission is dlog/io/decommission.py, and writers use
dlog/io/ledgers.py, all on the virtual loop, network and ZooKeeper of the room `service`. Bookies and the connections to
them are auditor_bookies.py.

Faults are in auditor_faults.py, checks in auditor_checks.py, and plans are drawn in auditor_drawing.py. After the
faults the world heals, all ledgers are closed, and everything that L19 and L25 to L27 demand must happen.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any

from actors.recovery import running
from actors.recovery.options import RecoveryOptions
from dlog.errors import DLogError, LedgerNotFoundError, MetadataUnavailableError
from dlog.events import Event
from dlog.io import decommission as decommissions
from dlog.io.bookie_client import BookieClientOptions
from dlog.io.ledger_handles import LedgerWriter
from dlog.io.ledgers import Ledgers
from dlog.io.zookeeper import ANY_VERSION
from dlog.io.zookeeper_cluster import cluster_init
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_protocol import NoNodeError
from dlog.ledger.ledger_options import LedgerOptions
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import LedgerKey
from dlog.model.quorum import Quorum
from tests.simulation.auditor_bookies import AuditedBookie, SimulatedBookieClient
from tests.simulation.auditor_checks import OPERATOR, PATHS, AuditorChecks
from tests.simulation.auditor_drawing import STYLES, draw_plan
from tests.simulation.auditor_faults import AuditorFaults, slows_auditor
from tests.simulation.kernel import Violation
from tests.simulation.mutants.auditor import MUTANTS
from tests.simulation.plan import Plan
from tests.simulation.service import entropy, hints
from tests.simulation.service.loop import Process, S, SimulatedLoop
from tests.simulation.service.network import Network
from tests.simulation.service.nodes import NAMESPACE, ZOOKEEPER, Node, WorkNode, ZooKeeperNode
from tests.simulation.worlds import Outcome, Room

BOOT_S = 30.0
SETTLE_S = 60.0  # of virtual time, after the faults
LOOK_NS = S // 20  # between two looks whether all is done
COLLECT_NS = S // 2
BOOKIE_TIMEOUT_S = 1.0


class RecoveryNode(Node):
    """A recovery process."""

    def __init__(self, *args: Any, world: AuditorWorld, **options: Any) -> None:
        super().__init__(*args, **options)
        self.world = world

    async def live(self, process: Process) -> None:
        assert self.stopping is not None
        world = self.world

        def bookies(_: ZooKeeperMetadata, limits: BookieClientOptions) -> Any:
            return world.bookie_client(process)

        environment = running.RecoveryEnvironment(lambda: world.metadata(process), bookies)
        await running.run(
            world.options,
            LedgerOptions(disk_weight_max=0),  # simulated bookies have no disks of different sizes
            f"{self.name}:1",
            environment,
            self.stopping,
            on_event=self.hear,
            rng=process.rng("recovery"),
            on_ready=lambda _: self._ready(),
        )


class AuditorWorld:
    """One trial."""

    def __init__(self, plan: Plan) -> None:
        config = plan.config
        self.plan = plan
        self.loop = SimulatedLoop(plan.seed)
        self.network = Network(self.loop, latency_ns=int(config["latency_ms"] * 1_000_000))
        self.rng = random.Random(f"{plan.seed}/world")
        self.begun_ns = self.loop.now
        self.begun_s = -1.0  # when faults began; -1: not yet
        self.reached: Counter[str] = Counter()
        self.options = RecoveryOptions(
            lost_after_s=config["lost_after_s"],
            check_s=config["check_s"],
            retry_s=1.0,
            compare_s=config["compare_s"],
            look_s=config["look_s"],
            workers=config["workers"],
            open_grace_s=config["open_grace_s"],
            backoff_s=0.5,
            backoff_max_s=4.0,
        )
        ensemble, write, ack = config["quorum"]
        self.quorum = Quorum(ensemble=ensemble, write=write, ack=ack)
        slow_s = sum(
            fault.for_s + fault.rate + 2 * config["session_s"] for fault in plan.faults if slows_auditor(fault)
        )
        self.slow_ns = int((slow_s + 0.2) * S)  # by which a listing of registrations may be late
        self.listing_gap_ns = self.slow_ns + int(4 * config["look_s"] * S)
        self.checks = AuditorChecks(self)
        self.nodes: dict[str, Node] = {}
        self.bad: set[LedgerId] = set()  # never whole: undecodable, or nobody can serve them
        self.decommissioned: set[BookieId] = set()  # a decommission of it has begun
        self.reformatted: set[BookieId] = set()  # its cookie was deleted by hand
        self.gone: set[str] = set()  # nodes that stay down
        self.held_down: set[str] = set()  # nodes that an operator has stopped
        self.held_ledger: LedgerId | None = None  # whose mark a frozen worker is about to delete
        self._cut_until: dict[str, int] = {}  # bookie -> until when nobody reaches it
        session_s = config["session_s"]
        self.zookeeper: ZooKeeperNode = self._add(ZooKeeperNode, "zookeeper", tick_s=session_s / 4, rng=self.rng)
        self.bookies: list[AuditedBookie] = [
            self._add(
                AuditedBookie,
                f"bookie-{number + 1}",
                world=self,
                summaries=number > 0 or not config["lists"],
                session_s=session_s,
            )
            for number in range(config["bookies"])
        ]
        self.names = {bookie.bookie: bookie for bookie in self.bookies}
        self.recovery = [
            self._add(RecoveryNode, f"recovery-{number + 1}", world=self) for number in range(config["recovery"])
        ]
        self.clients = [
            self._add(WorkNode, f"writer-{number + 1}", work=self._write) for number in range(config["writers"])
        ]
        self.ledgers_left = {writer.name: config["ledgers"] for writer in self.clients}
        if config["decommission_at_s"] >= 0:
            self.clients.append(self._add(WorkNode, OPERATOR, work=self._decommission))
        self.faults = AuditorFaults(self)

    def _add(self, cls: Callable[..., Any], name: str, **options: Any) -> Any:
        node = self.nodes[name] = cls(self.network, name, self._hear, self._exited, **options)
        return node

    def bookie_of(self, bookie: BookieId) -> AuditedBookie:
        return self.names[bookie]

    def is_cut(self, _: str, bookie: str) -> bool:
        return self.loop.now < self._cut_until.get(bookie, 0)

    def cut(self, bookie: str, for_s: float) -> None:
        """Let nobody reach the bookie; it reaches ZooKeeper."""
        self._cut_until[bookie] = self.loop.now + int(for_s * S)

    def bookie_client(self, process: Process) -> SimulatedBookieClient:
        return SimulatedBookieClient(self, process, BOOKIE_TIMEOUT_S)

    @contextlib.asynccontextmanager
    async def metadata(self, process: Process) -> AsyncIterator[ZooKeeperMetadata]:
        async with await ZooKeeperMetadata.connect(
            ZOOKEEPER, NAMESPACE, session_timeout_s=self.plan.config["session_s"], rng=process.rng("metadata")
        ) as metadata:
            yield metadata

    # ---- events ------------------------------------------------------------------------------------------------------

    def reach(self, mark: str) -> None:
        """Count a mark; faults bound to it strike."""
        self.reached[mark] += 1
        if self.begun_s >= 0:
            self.faults.on_mark(mark, self.reached[mark])

    def _hear(self, node: Node, event: Event) -> None:
        if self.loop.on_line is not None:
            self.loop.note(f"tells {event}")
        self.reach(event.name)

    def _exited(self, node: Node, error: BaseException | None) -> None:
        """Restart a process that ended by itself, as a supervisor does, unless an operator stopped it."""
        if self.loop.on_line is not None:
            self.loop.note(f"{node.name} ended: {error!r}")
        is_done = isinstance(node, WorkNode) and error is None
        if not is_done:
            self.loop.at(self.loop.now + S // 2, self.loop.world, self.boot_if_down, node)

    def boot_if_down(self, node: Node) -> None:
        if node.process is None and node.name not in self.gone | self.held_down:
            node.boot()

    # ---- what processes do -------------------------------------------------------------------------------------------

    async def _write(self, process: Process) -> None:
        """Write ledgers, close most of them, and delete some."""
        config, rng = self.plan.config, process.rng("work")
        async with self._ledgers(process) as ledgers:
            while self.ledgers_left[process.node] > 0 and not self.faults.is_over:
                self.ledgers_left[process.node] -= 1
                with contextlib.suppress(DLogError):
                    writer = await ledgers.create(self.quorum)
                    await self._fill(writer, rng)
                    if rng.random() < config["leaves_open"]:
                        await writer.abandon()
                        continue
                    await writer.close()
                    self.reach("closed")
                    if rng.random() < config["deletes"]:
                        await asyncio.sleep(rng.uniform(0.0, config["duration_s"] / 2))
                        await ledgers.delete(writer.ledger_id)
                        self.reach("deleted")

    async def _fill(self, writer: LedgerWriter, rng: random.Random) -> None:
        config = self.plan.config
        payloads = self.checks.payloads.setdefault(writer.ledger_id, {})
        gap_s = config["duration_s"] / 2 / config["ledgers"] / config["entries"]
        for number in range(config["entries"]):
            payload = b"%d" % number * (number + 1)
            entry = await writer.append((payload,))
            payloads[entry] = payload
            await asyncio.sleep(gap_s * rng.random())

    @contextlib.asynccontextmanager
    async def _ledgers(self, process: Process) -> AsyncIterator[Ledgers]:
        async with (
            self.metadata(process) as metadata,
            self.bookie_client(process) as bookies,
            Ledgers(metadata, bookies, rng=process.rng("ledgers")) as ledgers,  # type: ignore[arg-type]  # a model
        ):
            yield ledgers

    async def _decommission(self, process: Process) -> None:
        """Take the last bookie out of the cluster."""
        node, config = self.bookies[-1], self.plan.config
        await asyncio.sleep(max(0.0, self.begun_s + config["decommission_at_s"] - self.loop.now_s))
        while not (node.bookie in self.decommissioned or self.faults.may_lose(node)):  # noqa: ASYNC110 - faults set no event
            await asyncio.sleep(0.2)
        if node.bookie not in self.decommissioned:
            self.decommissioned.add(node.bookie)
            if config["decommission_cut_s"]:  # it goes on without ZooKeeper, and is taken for stopped
                until_ns = self.loop.now + int(config["decommission_cut_s"] * S)
                self.network.cut(node.name, "zookeeper", until_ns)
                self.network.cut("zookeeper", node.name, until_ns)
            else:
                self._stop(node)
        async with self.metadata(process) as metadata:
            while True:
                try:
                    await decommissions.decommission(metadata, node.bookie, self._draining, look_s=0.3)
                except decommissions.StillRegisteredError:
                    if not config["decommission_cut_s"] or self.faults.is_over:
                        self._stop(node)
                except MetadataUnavailableError:
                    pass
                else:
                    break
                await asyncio.sleep(0.5)
        self.gone.add(node.name)
        self.reach("decommissioned")

    def _draining(self, _: object) -> None:
        self.reach("draining")

    def _stop(self, node: Node) -> None:
        self.held_down.add(node.name)
        node.ask_to_stop()

    def stop_for(self, node: AuditedBookie, for_s: float) -> None:
        """Stop a bookie as planned, so that its registration goes at once, and start it after a while."""
        self._stop(node)

        def start() -> None:
            if node.bookie not in self.decommissioned:
                self.held_down.discard(node.name)
                self.boot_if_down(node)

        self.loop.at(self.loop.now + int(for_s * S), self.loop.world, start)

    async def planned_restart(self, process: Process, node: AuditedBookie, announced_s: int, away_s: float) -> None:
        """Announce a restart, stop the bookie, and start it after a while."""
        async with self.metadata(process) as metadata:
            await metadata.underreplication(process.node).pauses.begin(node.bookie, announced_s)
        self.reach("paused")
        self.stop_for(node, away_s)

    async def delete(self, process: Process, ledger: LedgerId) -> None:
        """Delete a ledger."""
        async with self.metadata(process) as metadata:
            await metadata.delete(LedgerKey(ledger))

    async def reformat(self, process: Process, node: AuditedBookie) -> None:
        """Start a bookie with an empty disk, as docs/operations.md says: its cookie is deleted by hand."""
        self.reformatted.add(node.bookie)
        while True:
            with contextlib.suppress(MetadataUnavailableError):
                async with self.metadata(process) as metadata:
                    with contextlib.suppress(NoNodeError):
                        await metadata.zookeeper.delete(PATHS.cookie(node.bookie), ANY_VERSION)
                break
            await asyncio.sleep(0.1)
        self.reformatted.discard(node.bookie)
        self.held_down.discard(node.name)
        self.loop.at(self.loop.now, self.loop.world, self.boot_if_down, node)

    async def hold_completion(self, ledger: LedgerId) -> None:
        """Freeze a worker that is about to delete a mark, if the plan says so of this one."""
        self.reach("completing")
        held_s = self.plan.config["held_s"].get(str(self.reached["completing"]), 0.0)
        if held_s and not self.faults.is_over:
            self.held_ledger = ledger
            self.reach("held")
            await asyncio.sleep(held_s)

    async def hold_scan(self) -> None:
        """Freeze the decommission while it lists ledgers of which none names the bookie, if the plan says so."""
        checks = self.checks
        if self.loop.process.node == OPERATOR and not any(
            checks.is_named(ledger, bookie) for ledger in checks.ledgers for bookie in self.decommissioned
        ):
            self.reach("last_scan")
            if not self.faults.is_over:
                await asyncio.sleep(self.plan.config["scan_held_s"])

    def launch(self, name: str, work: Callable[[Process], Awaitable[None]]) -> WorkNode:
        """Run something once on a machine of its own; an error ends it."""
        node = WorkNode(self.network, name, self._hear, lambda _, __: None, work=work)
        node.boot()
        return node

    def _collect(self) -> None:
        """Let a bookie collect the ledgers that are deleted."""
        node = self.rng.choice(self.bookies)
        if node.process is not None:
            for ledger in self.checks.deleted:
                node.collect(ledger)
        self.loop.at(self.loop.now + COLLECT_NS, self.loop.world, self._collect)

    # ---- the trial ---------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run the trial. Raises Violation."""
        self.zookeeper.boot()
        self._until(lambda: self.zookeeper.is_ready, BOOT_S, "ZooKeeper is up")
        self._ask(lambda _: cluster_init(ZOOKEEPER, NAMESPACE), "cluster init")
        for node in (*self.bookies, *self.recovery):
            node.boot()
        self._until(lambda: all(n.is_ready for n in (*self.bookies, *self.recovery)), BOOT_S, "the cluster is up")
        if self.plan.config["bad"]:
            self._ask(self._make_bad, "what cannot be repaired")
        self.begun_s = self.loop.now_s
        self.faults.begin()
        self._collect()
        for node in self.clients:
            self.boot_if_down(node)
        self.loop.run(until_s=self.begun_s + self.plan.config["duration_s"])
        self._heal()
        self._settle()

    async def _make_bad(self, process: Process) -> None:
        """Make a ledger and a mark that cannot be decoded, and a ledger that the loss of a disk destroys."""
        async with self.metadata(process) as metadata:
            damaged, unmarkable = await metadata.new_ledger_id(), await metadata.new_ledger_id()
            self.bad |= {damaged, unmarkable}
            await metadata.zookeeper.create(PATHS.ledger(damaged), b"damaged", parents=True)
            mark = PATHS.underreplication.mark(unmarkable)
            await metadata.zookeeper.create(mark, b"damaged", parents=True)
        async with self._ledgers(process) as ledgers:
            for _ in range(5):
                writer = await ledgers.create(Quorum(ensemble=1, write=1, ack=1))
                self.bad.add(writer.ledger_id)
                await writer.append((b"once",))
                await writer.close()

    def _heal(self) -> None:
        self.faults.heal()
        self.network.heal()
        self._cut_until.clear()
        for node in self.nodes.values():
            if node.process is not None:
                self.loop.resume(node.process)
            else:
                self.boot_if_down(node)

    def _settle(self) -> None:
        """Demand that all is repaired now. Raises Violation."""
        self._until(self._is_up, SETTLE_S, "every process is up again")
        until_s = self.loop.now_s + SETTLE_S
        self._ask(self._close_all, "all ledgers are closed", within_s=SETTLE_S)
        looked_ns, left = 0, self.checks.unfinished()

        def is_done() -> bool:
            nonlocal looked_ns, left
            if self.loop.now >= looked_ns + LOOK_NS:
                looked_ns, left = self.loop.now, self.checks.unfinished()
            return left is None

        if not self.loop.run(until_s=until_s, until=is_done):
            assert left is not None
            raise Violation(left[0], f"after {SETTLE_S:g} s without a fault: {left[1]}")
        if self.decommissioned and not self.bad:
            self._until(lambda: self.bookies[-1].name in self.gone, SETTLE_S, "a decommission ends")
        self.checks.check_contents()
        self.reach("whole")

    def _is_up(self) -> bool:
        """Whether all processes are ready that are not gone, and that no operator has stopped for good."""
        down = self.gone | (self.held_down & {self.bookies[-1].name})
        return all(node.is_ready for node in (*self.bookies, *self.recovery) if node.name not in down)

    async def _close_all(self, process: Process) -> None:
        """Recover the ledgers that are open, once the writers have ended; as owners of streams do."""
        while any(node.process is not None for node in self.clients if node.name != OPERATOR):  # noqa: ASYNC110 - simulated time
            await asyncio.sleep(0.5)
        await asyncio.sleep(self.plan.config["close_after_s"])
        async with self._ledgers(process) as ledgers:
            for ledger in sorted(self.checks.ledgers.keys() - self.bad):
                while ledger in self.checks.ledgers and not self.checks.ledgers[ledger].is_closed:
                    with contextlib.suppress(LedgerNotFoundError):
                        try:
                            await ledgers.recover(ledger)
                        except DLogError as error:
                            self.loop.note(f"recovery of {ledger}: {error}")
                            await asyncio.sleep(0.5)

    def _ask(self, work: Callable[[Process], Awaitable[Any]], what: str, within_s: float = BOOT_S) -> None:
        ended: list[BaseException | None] = []

        async def run(process: Process) -> None:
            await work(process)

        node = WorkNode(self.network, "helper", self._hear, lambda _, error: ended.append(error), work=run)
        node.boot()
        self._until(lambda: bool(ended), within_s, what)
        if ended[0] is not None:
            raise Violation("L19", f"{what}: {ended[0]!r}")

    def _until(self, holds: Callable[[], bool], within_s: float, what: str) -> None:
        if not self.loop.run(until_s=self.loop.now_s + within_s, until=holds):
            raise Violation("L19", f"not within {within_s:g} s: {what}")


@contextlib.contextmanager
def _planted(parts: Mapping[str, Any]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for plant in parts.values():
            stack.enter_context(plant())
        yield


def run(plan: Plan, parts: Mapping[str, Any] = {}, trace: bool = False) -> Outcome:
    """Run one trial of a plan; see tests/simulation/worlds.py. parts: plants defects into production code."""
    violation, text = "", ""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()  # so that a collection looks at the objects of this trial alone
    lines: list[str] | None = [] if trace else None
    try:
        world = AuditorWorld(plan)
        loop, reached = world.loop, world.reached
        if lines is not None:
            loop.on_line = lines.append
        with entropy.of(loop), _planted(parts), world.checks.watching(), hints.lost(plan):
            try:
                world.run()
            except Violation as error:
                violation, text = error.invariant, str(error)
            virtual_s = loop.now_s - 1000
            left = loop.dispose(world.__dict__.clear, judged=True)
        del left
    finally:
        gc.unfreeze()
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


MUST_REACH = (
    *("whole", "closed", "deleted", "marked", "unmarked", "repaired", "verified", "mark.completed", "held"),
    *("auditor.elected", "bookie.missing", "compared", "found_lacking", "copies.missing", "paused", "draining"),
    *("repaired_after_pause", "last_scan", "forgotten", "decommissioned", "ledger.not_audited", "repair.failed"),
    *("fault.lose_disk", "fault.empty_disk", "fault.crash_bookie", "fault.planned_restart", "fault.return"),
    *("fault.pause", "fault.crash", "fault.expire", "fault.meta_reply_lost", "fault.meta_cut"),
)


def room() -> Room:
    return Room(
        name="auditor",
        styles=STYLES,
        draw=draw_plan,
        run=run,
        must_reach=MUST_REACH,
        mutants=MUTANTS,
        progress={
            "marks": ("marked",),
            "completed": ("mark.completed",),
            "comparisons": ("compared",),
            "decommissions": ("decommissioned",),
        },
        rare=(
            "entries.unreadable",
            "fault.crash_marked",
            "fault.lose_marked",
            "fault.delete_marked",
            "fault.expire_voters",
        ),
    )
