"""The world of one ledger: a writer, a tailing reader, two recoverers and bookies, with faults between all of them.

Now and then somebody who cannot ask the writer wants to know the tail as of now.

Styles of plan:
- "swarm": tens of entries, any faults, bursts around recoveries and ensemble changes;
- "scope": one to three entries, every message may be held or lost by its number on its link;
- "churn": many entries under way and bookies that fail one after the other, with metadata that answers badly;
- "frozen": one bookie stands still from before a recovery to the end, and shows it to nobody; the others fail for a
  moment and are back: the recovery must end long before the silent one is given up;
- "orphan": the writer is cut off, stands still or dies with entries under way; the tail is asked for, then recovered;
- "calm": nobody recovers until the writer is done: after the faults everything must be confirmed (half of "churn" too).

After the faults the world heals; then the ledger must end up closed, everybody must have an answer, and everything
confirmed must be readable.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from dlog.errors import DLogError
from dlog.ledger.adding import Add, AddingOptions, Close, Closed, LedgerAdder
from dlog.ledger.finding import FindingOptions, FindTail, TailFinder
from dlog.ledger.placement import RandomPlacement
from dlog.ledger.reading import LedgerReader, Read, ReadDone, ReadingOptions
from dlog.ledger.recovery import LedgerRecoverer, Recover, Recovered, RecoveryOptions
from dlog.ledger.tailing import LacSeen, LedgerTailer, ReadLac, TailingOptions, WaitLac
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import DigestType, Fragment, LedgerKey, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.options import draw
from dlog.wire.bookie import AddEntry, BatchDone, BatchRead, EntryAdded, EntryRead, ReadEntry
from dlog.wire.digest import Digest
from tests.simulation.bookie_model import Ailments, BookieModel
from tests.simulation.housed_bookie import HousedBookie
from tests.simulation.kernel import Simulation, Violation
from tests.simulation.ledger_checks import LedgerChecks
from tests.simulation.ledger_news import News, with_news
from tests.simulation.network import Node
from tests.simulation.plan import EVERY_KIND, Fault, FaultKind, Plan, draw_faults
from tests.simulation.worlds import Outcome, Room

LEDGER = LedgerId(7)
KEY = LedgerKey(LEDGER)
PASSWORD = b"secret"
WRITER, TAIL, FINDER, RECOVERERS = "w", "t", "f", ("r1", "r2")
QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2), (5, 5, 3), (3, 3, 3), (2, 2, 1), (3, 2, 1))
MARKS = ("recovery", "ensemble_change", "fenced_cover", "bookie_lost")
MUST_REACH = (
    "ack",
    "recovered",
    "readded",
    "ensemble_change",
    "closed_by_writer",
    "fenced_writer",
    "read",
    "metadata.conflict",
    "recovery_changed_ensemble",
    "settled_unknown",
    "recovered_beside_the_silent",
    "found",
    "found_beyond_the_lac",
    "found_beyond_the_writer",
)
STYLES = ("swarm", "churn", "scope", "frozen", "orphan", "told", "calm")
CHANGES = ("ensemble_change", "recovery_changed_ensemble")
RARE = ("recovery_failed", "read_failed", "fault.meta_late", "fault.hold_kth", "fault.power")
SETTLE_S = 120.0


class BookieTransport:
    """Requests and responses of v2 are matched by what they ask, as on the wire."""

    def question(self, message: Any) -> Any:
        if isinstance(message, AddEntry):
            return ("add", message.ledger, message.entry)
        if isinstance(message, ReadEntry):
            return ("read", message.ledger, message.entry, message.fence)
        if isinstance(message, BatchRead):
            return ("batch", message.request)
        return None

    def answer(self, message: Any) -> Any:
        if isinstance(message, EntryAdded):
            return ("add", message.ledger, message.entry)
        if isinstance(message, EntryRead):
            return ("read", message.ledger, message.entry, message.fence)
        if isinstance(message, BatchDone):
            return ("batch", message.request)
        return None


def draw_plan(seed: int, style: str = "swarm") -> Plan:
    """The plan that a seed means."""
    rng = random.Random(f"{style}/{seed}/plan")
    draws = {"swarm": _draw_swarm, "calm": _draw_swarm, "churn": _draw_churn, "scope": _draw_scope}
    draws |= {"frozen": _draw_frozen, "orphan": _draw_orphan, "told": _draw_churn}
    plan = draws[style](seed, rng, style)
    if style == "told":
        plan = with_news(plan, TAIL, rng)
    plan = with_config(plan, real=rng.random() < 0.5)  # the real bookie machine, or the looser model
    if "find_at" in plan.config or style == "calm" or rng.random() < 0.5:
        return plan
    return with_config(plan, find_at=[rng.uniform(0, plan.config["duration_s"]) for _ in range(rng.randint(1, 3))])


def _draw_swarm(seed: int, rng: random.Random, style: str) -> Plan:
    ensemble, write, ack = rng.choice(QUORUMS)
    bookies = ensemble + rng.choice((0, 1, 1, 2))
    duration = rng.choice((0.1, 0.5, 3.0))
    recover_at = sorted(rng.uniform(0, duration) for _ in range(rng.choice((0, 1, 1, 2))))
    entries = rng.choice((5, 20, 40))
    config: dict[str, Any] = {
        "style": style,
        "quorum": [ensemble, write, ack],
        "bookies": bookies,
        "entries": entries,
        "gap_s": rng.choice((0.0, 0.0005, duration / entries, duration / entries)),
        "payload_max": rng.choice((0, 40, 300)),
        "calm": style == "calm",
        "recover_at": recover_at,
        "close": rng.random() < 0.3,
        "duration_s": duration,
        "fifo": rng.random() < 0.8,
        "timeout_s": rng.choice((0.05, 0.5, 5.0)),
        "sync_s": rng.choice((0.0002, 0.001, 0.01)),
        "digest": rng.choice(("CRC32C", "CRC32C", "HMAC", "CRC32")),
    }
    names = [f"b{i}" for i in range(1, bookies + 1)]
    clients = [WRITER] if style == "calm" else [WRITER, WRITER, TAIL, *RECOVERERS]
    faults = draw_faults(
        rng,
        servers=names,
        clients=clients,
        duration_s=duration,
        kinds=EVERY_KIND,
        count_max=24,
        marks=MARKS,
        messages=("AddEntry", "ReadEntry", "EntryAdded", "EntryRead"),
    )
    if style == "calm":
        spared = (FaultKind.CRASH, FaultKind.POWER)
        faults = tuple(f for f in faults if not (f.kind in spared and f.a == WRITER))
    if rng.random() < 0.4:
        faults += tuple(_draw_ailment(rng, names, duration) for _ in range(rng.randint(1, 3)))
    return Plan(seed=seed, config=config, faults=faults)


def _draw_ailment(rng: random.Random, bookies: Collection[str], duration: float) -> Fault:
    return Fault(
        kind=FaultKind.ENVIRONMENT,
        at_s=rng.uniform(0, duration),
        for_s=rng.uniform(0.01, 2.0),
        a=rng.choice(list(bookies)),
        message=rng.choice(("io_error", "damage", "read_only")),
        rate=rng.choice((0.05, 0.5, 1.0)),
    )


def _draw_churn(seed: int, rng: random.Random, style: str) -> Plan:
    """A deep window, and members that fail while others are being replaced."""
    ensemble, write, ack = rng.choice(((3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2), (5, 3, 3), (3, 3, 3)))
    bookies = ensemble + rng.choice((1, 1, 2, 3))
    names = [f"b{i}" for i in range(1, bookies + 1)]
    duration = rng.choice((0.02, 0.1, 0.3))
    entries = rng.choice((4, 12, 40))
    calm = rng.random() < 0.5
    config: dict[str, Any] = {
        "style": style,
        "quorum": [ensemble, write, ack],
        "bookies": bookies,
        "entries": entries,
        "gap_s": rng.choice((0.0, duration / entries)),
        "payload_max": 20,
        "calm": calm,
        "recover_at": [rng.uniform(duration / 2, duration * 3)],
        "close": rng.random() < 0.3,
        "duration_s": duration * 3,
        "fifo": rng.random() < 0.5,
        "timeout_s": rng.choice((0.02, 0.05, 5.0)),
        "sync_s": rng.choice((0.001, 0.005)),
        "digest": "CRC32C",
    }
    faults: list[Fault] = []
    for _ in range(rng.randint(2, 10)):
        kind = rng.choice((FaultKind.RESET, FaultKind.CRASH, FaultKind.PAUSE, FaultKind.ENVIRONMENT, FaultKind.SLOW))
        mark, count = rng.choice((("", 1), ("bookie_lost", 1), ("bookie_lost", 2), ("ensemble_change", 1)))
        at_s = rng.uniform(0, 0.005 if mark else duration)
        a, for_s, rate = rng.choice(names), rng.uniform(0.01, 0.3), rng.uniform(0.01, 0.1)
        if kind is FaultKind.ENVIRONMENT:
            what, rate = rng.choice(("io_error", "read_only")), rng.choice((0.2, 1.0))
            fault = Fault(kind=kind, at_s=at_s, for_s=for_s, a=a, message=what, rate=rate, mark=mark, count=count)
        else:
            b = "" if kind in (FaultKind.CRASH, FaultKind.PAUSE) else WRITER
            fault = Fault(kind=kind, at_s=at_s, for_s=for_s, a=a, b=b, rate=rate, mark=mark, count=count)
        faults.append(fault)
    if rng.random() < 0.5:
        kind = rng.choice((FaultKind.META_LATE, FaultKind.META_REPLY_LOST))
        faults.append(Fault(kind=kind, at_s=0, for_s=duration * 3, rate=rng.choice((0.3, 0.8))))
    return Plan(seed=seed, config=config, faults=tuple(faults))


def _draw_scope(seed: int, rng: random.Random, style: str) -> Plan:
    """Few messages; each may be held or lost by its number."""
    ensemble, write, ack = rng.choice(((3, 3, 2), (3, 3, 2), (4, 3, 2), (3, 2, 2)))
    bookies = ensemble + rng.choice((0, 1))
    names = [f"b{i}" for i in range(1, bookies + 1)]
    config: dict[str, Any] = {
        "style": style,
        "quorum": [ensemble, write, ack],
        "bookies": bookies,
        "entries": rng.randint(1, 3),
        "gap_s": rng.choice((0.0, 0.002, 0.01)),
        "payload_max": 8,
        "calm": False,
        "recover_at": sorted(rng.uniform(0, 0.02) for _ in range(rng.choice((1, 1, 2)))),
        "close": False,
        "duration_s": 0.5,
        "fifo": False,
        "timeout_s": 5.0,
        "sync_s": 0.001,
        "digest": "CRC32C",
    }
    faults: list[Fault] = []
    rate = rng.choice((0.1, 0.2, 0.35))
    for client, message in ((WRITER, "AddEntry"), ("r1", "ReadEntry"), ("r2", "ReadEntry"), ("r1", "AddEntry")):
        for bookie in names:
            for k in (1, 2, 3):
                if rng.random() < rate:
                    kind = FaultKind.DROP_KTH if rng.random() < 0.25 else FaultKind.HOLD_KTH
                    for_s = rng.choice((0.003, 0.02, 0.1, 0.4, 7.0)) * rng.uniform(0.5, 1.5)
                    faults.append(Fault(kind=kind, a=client, b=bookie, message=message, count=k, for_s=for_s))
    if rng.random() < 0.1:
        # a writer that slept through its own recovery, and bookies that were restarted since
        faults = [Fault(kind=FaultKind.PAUSE, a=WRITER, at_s=rng.choice((0.0, 0.001, 0.01)), for_s=2.0)]
        for bookie in names:
            if rng.random() < 0.7:
                kind = rng.choice((FaultKind.POWER, FaultKind.CRASH))
                faults.append(Fault(kind=kind, a=bookie, at_s=0.01, for_s=rng.uniform(0.01, 0.1), mark="recovered"))
    elif rng.random() < 0.5:
        victim = rng.choice(names)
        kind = rng.choice((FaultKind.POWER, FaultKind.CRASH, FaultKind.PAUSE))
        mark = rng.choice(("", "recovery", "fenced_cover"))
        faults.append(Fault(kind=kind, a=victim, at_s=rng.uniform(0, 0.02), for_s=rng.uniform(0.001, 0.1), mark=mark))
    return Plan(seed=seed, config=config, faults=tuple(faults))


def _draw_frozen(seed: int, rng: random.Random, style: str) -> Plan:
    """One member is silent for ever and its connections stay open; enough others refuse once, or are lost once."""
    frozen, *others = rng.sample(["b1", "b2", "b3"], 3)
    config: dict[str, Any] = {
        "style": style,
        "quorum": [3, 3, 2],
        "bookies": 3,
        "entries": rng.choice((1, 5, 20)),
        "gap_s": 0.001,
        "payload_max": 20,
        "calm": False,
        "recover_at": [0.1],
        "close": False,
        "duration_s": 1.0,
        "fifo": True,
        "timeout_s": 60.0,
        "sync_s": 0.001,
        "digest": "CRC32C",
        "recovered_by_s": 20.0,
    }
    faults = [Fault(kind=FaultKind.PAUSE, a=frozen, at_s=rng.uniform(0.0, 0.09), for_s=1000.0)]
    for bookie in others:
        at_s, for_s = rng.choice((0.0, 0.0005, 0.002)) * rng.random(), rng.uniform(0.01, 0.3)
        mark = rng.choice(("recovery", "recovery", "fenced_cover"))
        match rng.choice(("refuse", "refuse", "crash", "")):
            case "refuse":
                kind, rate = FaultKind.ENVIRONMENT, 1.0
                fault = Fault(kind=kind, a=bookie, at_s=at_s, for_s=for_s, rate=rate, message="io_error", mark=mark)
                faults.append(fault)
            case "crash":
                faults.append(Fault(kind=FaultKind.CRASH, a=bookie, at_s=at_s, for_s=for_s, mark=mark))
    return Plan(seed=seed, config=config, faults=tuple(faults))


def _draw_orphan(seed: int, rng: random.Random, style: str) -> Plan:
    """A few entries under way, some of whose acknowledgements the writer never hears, and members that fail."""
    ensemble, write, ack = rng.choice(((3, 3, 2), (3, 3, 2), (4, 3, 2), (3, 2, 2), (3, 2, 1), (5, 3, 2)))
    names = [f"b{i}" for i in range(1, ensemble + rng.choice((0, 1, 2)) + 1)]
    config: dict[str, Any] = {
        "style": style,
        "quorum": [ensemble, write, ack],
        "bookies": len(names),
        "entries": rng.choice((1, 3, 8)),
        "gap_s": rng.choice((0.0, 0.001, 0.004)),
        "payload_max": 20,
        "calm": False,
        "recover_at": sorted(rng.uniform(0.0, 0.6) for _ in range(rng.choice((0, 1, 2)))),
        "close": rng.random() < 0.2,
        "duration_s": 0.6,
        "fifo": rng.random() < 0.5,
        "timeout_s": rng.choice((0.02, 0.1, 5.0)),
        "sync_s": rng.choice((0.0002, 0.001, 0.01)),
        "digest": "CRC32C",
        "find_at": sorted(rng.choice((0.03, 0.3, 0.6)) * rng.random() for _ in range(rng.randint(1, 4))),
    }
    faults: list[Fault] = []
    kind = rng.choice((FaultKind.CRASH, FaultKind.PAUSE, FaultKind.PAUSE, None))
    if kind is not None:
        faults.append(Fault(kind=kind, a=WRITER, at_s=rng.uniform(0, 0.03), for_s=rng.uniform(0.01, 0.5)))
    for bookie in names:
        for k in (1, 2, 3):
            for message in ("AddEntry", "EntryAdded"):
                if rng.random() < 0.15:
                    a, b = (WRITER, bookie) if message == "AddEntry" else (bookie, WRITER)
                    what = rng.choice((FaultKind.DROP_KTH, FaultKind.HOLD_KTH))
                    for_s = rng.choice((0.005, 0.1, 0.7))
                    faults.append(Fault(kind=what, a=a, b=b, message=message, count=k, for_s=for_s))
        if rng.random() < 0.3:
            what = rng.choice((FaultKind.RESET, FaultKind.CRASH, FaultKind.POWER, FaultKind.PAUSE))
            mark = rng.choice(("", "", "found", "recovery"))
            b = WRITER if what is FaultKind.RESET else ""
            at_s, for_s = rng.uniform(0, 0.05), rng.choice((0.01, 0.3))
            faults.append(Fault(kind=what, a=bookie, b=b, at_s=at_s, for_s=for_s, mark=mark))
    return Plan(seed=seed, config=config, faults=tuple(faults))


class LedgerWorld:
    """One history of one ledger. parts: classes that replace the true ones (mutants)."""

    def __init__(self, plan: Plan, parts: Mapping[str, Any], *, trace: bool = False) -> None:
        config = plan.config
        self.plan = plan
        self.config = config
        self.parts = parts
        self.sim = Simulation(
            plan,
            transport=BookieTransport(),
            trace=trace,
            fifo=config["fifo"],
            request_timeout_s=config["timeout_s"],
            sync_s=config["sync_s"],
        )
        self.sim.on_environment = self.sicken
        self.bookies = [BookieId(f"b{i}") for i in range(1, config["bookies"] + 1)]
        ensemble, write, ack = config["quorum"]
        quorum = Quorum(ensemble=ensemble, write=write, ack=ack)
        self.ailments = {b: Ailments(random.Random(self.sim.rng.random())) for b in self.bookies}
        self.digest = Digest(LEDGER, DigestType[config["digest"]], PASSWORD)
        self.payloads: list[bytes] = []
        self.results: dict[int, Any] = {}  # entry number -> EntryId or error
        self.close_result: Any = None
        self.close_asked = False
        self.recovered: dict[str, Recovered] = {}
        self.recovering: dict[str, bool] = {}
        self.read: dict[int, bytes] = {}
        self.tail_closed = False
        self.news = News(self, TAIL)
        self.finders = self.finding = 0  # that were, and that have no answer yet
        self.checks = LedgerChecks(self.sim, KEY, self.bookies, quorum, self.digest, mute=parts.get("mute", ()))
        self.options = random.Random(f"{plan.seed}/options")
        metadata = LedgerMetadata(
            quorum=quorum,
            fragments=(Fragment(EntryId(0), tuple(self.bookies[:ensemble])),),
            digest=self.digest.type,
            password=PASSWORD,
        )
        for bookie in self.bookies:
            self.sim.node(bookie, start=self.start_bookie)
        created = self.sim.metadata.create(KEY, metadata)
        self.sim.node(WRITER)
        self.adder = parts.get("adder", LedgerAdder)(
            LEDGER, created, self.digest, self.placement(), draw(AddingOptions, self.options)
        )
        self.sim.place(WRITER, "w/adder", self.adder)
        for name in RECOVERERS:
            self.sim.node(name, start=self.start_recoverer)
        self.sim.node(TAIL, start=self.start_tail)
        self.sim.node(FINDER)

    # ---- who lives here ----------------------------------------------------------------------------------------------

    def start_bookie(self, node: Node) -> None:
        made = self.parts.get("bookie", HousedBookie if self.config.get("real") else BookieModel)
        name = BookieId(node.name)
        self.sim.place(name, name, made(self.sim.disk(name).durable, self.ailments[name]), listens=True)

    def start_recoverer(self, node: Node) -> None:
        options = draw(RecoveryOptions, self.options)
        made = self.parts.get("recoverer", LedgerRecoverer)
        self.sim.place(node.name, f"{node.name}/recoverer", made(LEDGER, self.placement(), options, PASSWORD))
        if self.recovering.get(node.name):
            self.ask_recovery(node.name)

    def start_tail(self, node: Node) -> None:
        metadata = self.sim.metadata.values[KEY].value
        tailer = self.parts.get("tailer", LedgerTailer)(
            LEDGER, metadata, self.digest, draw(TailingOptions, self.options)
        )
        self.sim.place(TAIL, "t/tailer", tailer)
        reader = self.parts.get("reader", LedgerReader)(
            LEDGER, metadata, self.digest, draw(ReadingOptions, self.options)
        )
        self.sim.place(TAIL, "t/reader", reader)
        self.next_read = 0
        self.checks.new_session()
        self.news.begin()
        self.wait_lac()

    def placement(self) -> RandomPlacement:
        return RandomPlacement(self.candidates, random.Random(self.sim.rng.random()))

    def candidates(self, exclude: Collection[BookieId]) -> list[BookieId]:
        """The writable bookies as registered; a dead one stays registered for a while."""
        stale = self.sim.rng.random() < 0.2
        return [b for b in self.bookies if b not in exclude and (stale or self.sim.is_up(b))]

    def sicken(self, fault: Fault) -> None:
        ailments = self.ailments[BookieId(fault.a)]
        match fault.message:
            case "io_error":
                ailments.io_error = fault.rate
            case "damage":
                ailments.damage = fault.rate
            case "read_only":
                ailments.read_only = True
        self.sim.call_in(fault.for_s, ailments.cure)

    # ---- what they do ------------------------------------------------------------------------------------------------

    def add(self, number: int) -> None:
        payload = b"%d:" % number + bytes(self.sim.rng.randrange(self.config["payload_max"] + 1))
        self.payloads.append(payload)
        if not self.sim.is_up(WRITER) or "w/adder" not in self.sim.hosts:
            return
        self.checks.asked(number, payload)
        self.sim.ask("w/adder", Add((payload[:2], payload[2:])), lambda result: self.added(number, result))

    def added(self, number: int, result: Any) -> None:
        self.results[number] = result
        if isinstance(result, DLogError):
            self.sim.reach("add_failed")
            return
        self.sim.reach("ack")
        self.checks.acked(number, result)

    def close(self) -> None:
        if not self.close_asked and "w/adder" in self.sim.hosts:
            self.close_asked = True
            drain = self.config["calm"] or self.plan.seed % 3 > 0
            self.sim.ask("w/adder", Close(drain=drain), self.closed)

    def closed(self, result: Any) -> None:
        self.close_result = result
        if isinstance(result, Closed):
            self.sim.reach("closed_by_writer")
            self.checks.ended("writer", result.last_entry, result.length)

    def recover(self, name: str) -> None:
        self.recovering[name] = True
        if self.sim.is_up(name):
            self.ask_recovery(name)

    def ask_recovery(self, name: str) -> None:
        self.sim.ask(f"{name}/recoverer", Recover(), lambda result: self.after_recovery(name, result))

    def after_recovery(self, name: str, result: Any) -> None:
        if isinstance(result, DLogError):
            self.sim.reach("recovery_failed")
            self.sim.call_in(0.2, self.ask_recovery, name, node=name)
            return
        self.recovered[name] = result
        self.recovering[name] = False
        self.sim.reach("recovered")
        if result.readded:
            self.sim.reach("readded")
        self.checks.ended(name, result.last_entry, result.length)

    def wait_lac(self) -> None:
        above = EntryId(self.next_read - 1)
        request = ReadLac() if self.sim.rng.random() < 0.1 else WaitLac(above)
        self.sim.ask("t/tailer", request, self.saw_lac)

    def saw_lac(self, seen: LacSeen | DLogError) -> None:
        if isinstance(seen, DLogError):
            self.sim.call_in(0.05, self.wait_lac, node=TAIL)
            return
        self.checks.visible(seen)
        if seen.lac >= self.next_read:
            last = EntryId(min(seen.lac, self.next_read + 20))
            limit = self.sim.rng.choice((100, 1000, 1 << 20))
            self.sim.ask("t/reader", Read(EntryId(self.next_read), last, limit), self.saw_entries)
        elif seen.closed:
            self.tail_closed = True
        else:
            self.sim.call_in(0.01, self.wait_lac, node=TAIL)

    def find(self) -> None:
        """Somebody comes who wants to know what there is by now."""
        self.finders += 1
        self.finding += 1
        address, acked = f"{FINDER}/finder{self.finders}", self.checks.lac
        made = self.parts.get("finder", TailFinder)
        self.sim.place(FINDER, address, made(LEDGER, self.digest, draw(FindingOptions, self.options)))
        self.sim.ask(address, FindTail(), lambda result: self.found(address, acked, result))

    def found(self, address: str, acked: int, result: LacSeen | DLogError) -> None:
        self.finding -= 1
        self.sim.remove(address)
        if isinstance(result, DLogError):
            self.sim.reach("find_failed")
            if self.sim.healed:
                self.sim.call_in(0.05, self.find)
            return
        self.sim.reach("found")
        self.checks.found(result, acked)

    def saw_entries(self, result: ReadDone | DLogError) -> None:
        if isinstance(result, DLogError):
            self.checks.read_failed(result)
            self.sim.call_in(0.05, self.wait_lac, node=TAIL)
            return
        self.sim.reach("read")
        for entry in result.entries:
            if entry.entry_id != self.next_read:
                raise Violation("L3", f"read {entry.entry_id} where {self.next_read} was next")
            self.checks.read_entry(entry.entry_id, bytes(entry.payload))
            self.next_read += 1
        self.wait_lac()

    # ---- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """The faulty part, then the healed one with its demands."""
        config, sim = self.config, self.sim
        for number in range(config["entries"]):
            sim.call_in(number * config["gap_s"], self.add, number)
        for at_s in config.get("find_at", ()):
            sim.call_in(at_s, self.find)
        if not config["calm"]:
            for name, at_s in zip(RECOVERERS, config["recover_at"], strict=False):
                sim.call_in(at_s, self.recover, name)
            if config["close"]:
                sim.call_in(config["duration_s"] * 0.9, self.close)
        sim.run(until_s=config["duration_s"] + 0.5)
        if "recovered_by_s" in config:
            if not sim.run(until_s=config["recovered_by_s"], until=lambda: bool(self.recovered)):
                raise Violation("liveness", "enough bookies are well, and a recovery waits for the one that is silent")
            sim.reach("recovered_beside_the_silent")
        sim.heal()
        for ailments in self.ailments.values():
            ailments.cure()
        if config["calm"]:
            self.demand(lambda: len(self.results) == config["entries"], "an add was never answered")
            if not self.adder.is_dead:
                self.close()
                self.demand(lambda: self.close_result is not None, "the close was never answered")
        if "find_at" in config:
            self.find()
            self.demand(lambda: not self.finding, "a tail was never found")
        if not self.recovered:
            self.recover(RECOVERERS[0])
        self.demand(lambda: not any(self.recovering.values()), "a recovery never ended")
        self.demand(lambda: self.tail_closed, "the tail never heard of the end")
        if "w/adder" in sim.hosts:
            self.close()
            self.demand(lambda: self.close_result is not None, "the close was never answered")
            self.demand(lambda: len(self.results) == len(self.checks.payloads), "an add was never answered")
        self.checks.finish()

    def demand(self, condition: Any, text: str) -> None:
        if not self.sim.run(until_s=self.sim.now_s + SETTLE_S, until=condition):
            raise Violation("liveness", text)


def run_plan(plan: Plan, parts: Mapping[str, Any] | None = None, *, trace: bool = False) -> Outcome:
    """Run one plan to its end or to the first violation."""
    world = LedgerWorld(plan, parts or {}, trace=trace)
    violation = text = ""
    try:
        world.run()
    except Violation as found:
        violation, text = found.invariant, str(found)
    except AssertionError as error:
        violation, text = "assertion", f"an assertion of a machine failed: {error}"
    sim = world.sim
    return Outcome(
        plan=plan,
        violation=violation,
        text=text,
        reached=sim.reached,
        trace_hash=sim.trace_hash,
        events=sim.events,
        virtual_s=sim.now_s,
        lines=sim.lines,
        story=sim.story("w/adder") if violation else "",
    )


def with_config(plan: Plan, **values: Any) -> Plan:
    """The plan with other settings: for named scenarios."""
    return replace(plan, config={**plan.config, **values})


def room() -> Room:
    """The room `ledger` of `python -m tests.simulation`."""
    from tests.simulation.mutants.ledger import MUTANTS

    return Room(
        name="ledger",
        styles=STYLES,
        draw=draw_plan,
        run=run_plan,
        must_reach=MUST_REACH,
        mutants=MUTANTS,
        progress={"acks": ("ack",), "recoveries": ("recovered",), "ensemble changes": CHANGES},
        rare=RARE,
    )
