"""The simulated world of one ledger: a writer, a tailing reader, two recoverers and bookies, with faults between them.

Now and then a client that cannot ask the writer searches the present tail. Plans are drawn in ledger_drawing.py.

After the faults the world heals; then the ledger must end up closed, every request must be answered, and everything
confirmed must be readable.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from dlog.errors import DLogError
from dlog.ledger.adding import Add, AddingOptions, Close, Closed, LedgerAdder
from dlog.ledger.deferring import DeferredLedgerAdder, Force
from dlog.ledger.finding import FindingOptions, FindTail, TailFinder
from dlog.ledger.placement import Placement, RandomPlacement
from dlog.ledger.placement_policy import RACK, RANDOM, Locate, policy_metadata
from dlog.ledger.reading import EntryReader, ReadDone, ReadingOptions, ReadLedger
from dlog.ledger.recovery import LedgerRecoverer, Recover, Recovered, RecoveryOptions
from dlog.ledger.spread_placement import SpreadPlacement
from dlog.ledger.tailing import LedgerLac, LedgerTailer, ReadLac, TailingOptions, WaitLac
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import DigestType, Fragment, LedgerKey, LedgerMetadata
from dlog.model.location import NetworkLocation
from dlog.model.quorum import Quorum
from dlog.options import draw
from dlog.wire.bookie import AddEntry, BatchRead, BatchReadDone, EntryAdded, EntryRead, ReadEntry
from dlog.wire.bookie_v3_messages import (
    ForceLedger,
    LacRead,
    LacWritten,
    LedgerForced,
    ReadWithLac,
    ReadWithLacDone,
    WriteLac,
)
from dlog.wire.bookie_v3_messages import ReadLac as ReadExplicitLac
from dlog.wire.digest import Digest
from tests.simulation.bookie_model import Ailments, BookieModel
from tests.simulation.kernel import Simulation, Violation, judged
from tests.simulation.ledger_checks import LedgerChecks
from tests.simulation.ledger_drawing import (
    FINDER,
    RECOVERERS,
    STYLES,
    TAIL,
    WRITER,
    draw_plan,
)
from tests.simulation.ledger_news import News
from tests.simulation.ledger_older import durable_records
from tests.simulation.mutants import planting
from tests.simulation.network import Node
from tests.simulation.plan import Fault, Plan
from tests.simulation.shipped_bookie import ShippedBookie
from tests.simulation.worlds import Outcome, Room

LEDGER = LedgerId(7)
KEY = LedgerKey(LEDGER)
PASSWORD = b"secret"
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
    "one_rack",
    "two_racks",
    "change_put_off",
    "change_put_off_no_longer",
    "confirmed_beside_the_lost",
    "ack_quorum_timeout",
    "forced",
    "long_poll_waited",
    "read_before_the_close",
)
CHANGES = ("ensemble_change", "recovery_changed_ensemble")
RARE = ("recovery_failed", "read_failed", "fault.meta_late", "fault.hold_kth", "fault.power")
SETTLE_S = 120.0


class BookieTransport:
    """Matches requests and responses of v2 by their content, as on the wire. Of long polls, which v3 numbers, a tailer
    has one at a bookie."""

    def question(self, message: Any) -> Any:
        if isinstance(message, AddEntry):
            return ("add", message.ledger, message.entry)
        if isinstance(message, ReadEntry):
            return ("read", message.ledger, message.entry, message.fence)
        if isinstance(message, BatchRead):
            return ("batch", message.request)
        if isinstance(message, ForceLedger):
            return ("force", message.number)
        if isinstance(message, ReadWithLac):
            return ("poll", message.ledger)
        if isinstance(message, WriteLac):
            return ("tell", message.ledger)
        if isinstance(message, ReadExplicitLac):
            return ("lac", message.ledger)
        return None

    def answer(self, message: Any) -> Any:
        if isinstance(message, EntryAdded):
            return ("add", message.ledger, message.entry)
        if isinstance(message, EntryRead):
            return ("read", message.ledger, message.entry, message.fence)
        if isinstance(message, BatchReadDone):
            return ("batch", message.request)
        if isinstance(message, LedgerForced):
            return ("force", message.number)
        if isinstance(message, ReadWithLacDone):
            return ("poll", message.ledger)
        if isinstance(message, LacWritten):
            return ("tell", message.ledger)
        if isinstance(message, LacRead):
            return ("lac", message.ledger)
        return None


class LedgerWorld:
    """One history of one ledger. parts: classes that replace the production ones (mutants)."""

    checks_class = LedgerChecks

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
        self.finders = self.finding = 0  # all so far; those without an answer yet
        self.forcing = 0  # forces without an answer
        self.bookie_class = parts.get("bookie", ShippedBookie if config.get("real") else BookieModel)
        for bookie, older in config.get("older", {}).items():
            held = durable_records(self.digest, older, real=issubclass(self.bookie_class, ShippedBookie))
            self.sim.disk(bookie).durable.extend(held)
        self.checks = self.checks_class(self.sim, KEY, self.bookies, quorum, self.digest, mute=parts.get("mute", ()))
        self.options = random.Random(f"{plan.seed}/options")
        self.racks: dict[str, int] = dict(config.get("racks", {}))
        self.min_regions: int = config.get("min_regions", 1)
        policy = replace(RACK, strict=config["strict"]) if self.racks else RANDOM
        self.policy = policy.with_min_regions(self.min_regions)
        metadata = LedgerMetadata(
            quorum=quorum,
            fragments=(Fragment(EntryId(0), self.first_ensemble(quorum)),),
            digest=self.digest.type,
            password=PASSWORD,
            custom=policy_metadata(self.policy),
        )
        self.checks.watch_placement(metadata, self.racks, self.min_regions)
        for bookie in self.bookies:
            self.sim.node(bookie, start=self.start_bookie)
        created = self.sim.metadata.create(KEY, metadata)
        self.sim.node(WRITER)
        adding = replace(
            draw(AddingOptions, self.options),
            delayed_change=config.get("delayed_change", False),
            ack_quorum_timeout_s=config.get("ack_quorum_timeout_s", 0.0),
            delay_max_s=config.get("delay_max_s", AddingOptions().delay_max_s),
            explicit_lac_s=config.get("explicit_lac_s", 0.0),
        )
        if "confirmed_by_s" in config:
            adding = replace(adding, give_up_s=15.0, replace_retry_s=0.1)
        self.checks.watch_writer("w/adder", adding, config.get("wait_max_s", 0.0))
        self.deferred: bool = config.get("deferred_sync", False)
        made = parts.get("deferred_adder", DeferredLedgerAdder) if self.deferred else parts.get("adder", LedgerAdder)
        self.adder = made(LEDGER, created, self.digest, self.placement().for_ledger(metadata), adding)
        self.sim.place(WRITER, "w/adder", self.adder)
        for name in RECOVERERS:
            self.sim.node(name, start=self.start_recoverer)
        self.sim.node(TAIL, start=self.start_tail)
        self.sim.node(FINDER)

    # ---- nodes and machines ------------------------------------------------------------------------------------------

    def start_bookie(self, node: Node) -> None:
        name = BookieId(node.name)
        self.sim.place(name, name, self.bookie_class(self.sim.disk(name).durable, self.ailments[name]), listens=True)

    def start_recoverer(self, node: Node) -> None:
        options = draw(RecoveryOptions, self.options)
        made = LedgerRecoverer(LEDGER, self.placement(self.looking(node)), options, PASSWORD)
        self.sim.place(node.name, f"{node.name}/recoverer", made)
        if self.recovering.get(node.name):
            self.ask_recovery(node.name)

    def start_tail(self, node: Node) -> None:
        metadata = self.sim.metadata.values[KEY].value
        explicit = "explicit_lac_s" in self.config
        tailing = replace(
            draw(TailingOptions, self.options),
            long_poll_s=self.config.get("long_poll_s", 0.0),
            explicit_lac=explicit,
        )
        tailer = self.parts.get("tailer", LedgerTailer)(LEDGER, metadata, self.digest, tailing)
        self.sim.place(TAIL, "t/tailer", tailer)
        reader = self.parts.get("reader", EntryReader)(
            LEDGER, metadata, self.digest, draw(ReadingOptions, self.options)
        )
        self.sim.place(TAIL, "t/reader", reader)
        self.next_read = 0
        self.checks.new_session()
        self.news.begin()
        self.wait_lac()

    def placement(self, locate: Locate | None = None) -> Placement:
        """locate: what the process knows; None: where every bookie stands."""
        rng = random.Random(self.sim.rng.random())
        if self.racks:
            return SpreadPlacement(RANDOM, self.candidates, locate or self.locate, rng)
        return RandomPlacement(self.candidates, rng)

    def first_ensemble(self, quorum: Quorum) -> tuple[BookieId, ...]:
        """The first bookies; with racks, an ensemble that keeps the policy if there is one."""
        if not self.racks:
            return tuple(self.bookies[: quorum.ensemble])
        policy = self.policy if self.min_regions > 1 else RACK
        chooser = SpreadPlacement(policy, lambda _: self.bookies, self.locate, random.Random(self.plan.seed))
        return chooser.choose(quorum)

    def locate(self, bookie: BookieId) -> NetworkLocation:
        name = f"r{self.racks[bookie]}"
        return NetworkLocation(region=name) if self.min_regions > 1 else NetworkLocation(rack=name)

    def looking(self, node: Node) -> Locate:
        """What a process knows that starts now: a bookie's location once it has found it registered."""
        seen = {bookie for bookie in self.bookies if node.incarnation == 1 or self.sim.is_up(bookie)}

        def locate(bookie: BookieId) -> NetworkLocation | None:
            if self.sim.is_up(bookie):
                seen.add(bookie)
            elif bookie not in seen:
                self.sim.reach("unlocated")
                return None
            return self.locate(bookie)

        return locate

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
            case "hang":
                ailments.hangs = True
            case "move":
                self.racks[fault.a] = (self.racks[fault.a] + 1) % (max(self.racks.values()) + 1)
                self.checks.moved(fault.a)
        self.sim.call_in(fault.for_s, ailments.cure)

    # ---- work --------------------------------------------------------------------------------------------------------

    def add(self, number: int) -> None:
        payload = b"%d:" % number + bytes(self.sim.rng.randrange(self.config["payload_max"] + 1))
        self.payloads.append(payload)
        if not self.sim.is_up(WRITER) or "w/adder" not in self.sim.hosts:
            return
        self.checks.asked(number, payload)
        self.sim.ask("w/adder", Add((payload[:2], payload[2:])), lambda result: self.added(number, result))

    def added(self, number: int, result: Any) -> None:
        self.results[number] = result
        self.checks.answered(result)
        if isinstance(result, DLogError):
            self.sim.reach("add_failed")
            return
        self.sim.reach("ack")
        if self.deferred:
            self.checks.written(result)
        else:
            self.checks.acked(number, result)

    def force(self) -> None:
        if self.sim.is_up(WRITER) and "w/adder" in self.sim.hosts:
            written = self.checks.last_written
            self.forcing += 1
            self.sim.ask("w/adder", Force(), lambda result: self.forced(written, result))

    def forced(self, written: int, result: Any) -> None:
        self.forcing -= 1
        if not isinstance(result, DLogError):
            self.sim.reach("forced")
            self.checks.forced(result, written)

    def close(self) -> None:
        if not self.close_asked and "w/adder" in self.sim.hosts:
            self.close_asked = True
            drain = self.config["calm"] or self.plan.seed % 3 > 0
            written = self.checks.last_written if drain else -1
            self.sim.ask("w/adder", Close(drain=drain), lambda result: self.closed(result, written))

    def closed(self, result: Any, written: int) -> None:
        """written: last add with deferred sync that was acknowledged before the close, if it makes all durable."""
        self.close_result = result
        if isinstance(result, Closed):
            if result.last_entry < written:
                raise Violation("L33", f"closed at {result.last_entry}, and {written} was acknowledged")
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
        self.checks.returned(result.last_entry, result.last_payloads)

    def wait_lac(self) -> None:
        above = EntryId(self.next_read - 1)
        request = ReadLac() if self.sim.rng.random() < 0.1 else WaitLac(above)
        self.sim.ask("t/tailer", request, self.saw_lac)

    def saw_lac(self, seen: LedgerLac | DLogError) -> None:
        if isinstance(seen, DLogError):
            self.sim.call_in(0.05, self.wait_lac, node=TAIL)
            return
        self.checks.visible(seen)
        if seen.lac >= self.next_read:
            last = EntryId(min(seen.lac, self.next_read + 20))
            limit = self.sim.rng.choice((100, 1000, 1 << 20))
            self.sim.ask("t/reader", ReadLedger(EntryId(self.next_read), last, limit), self.saw_entries)
        elif seen.closed:
            self.tail_closed = True
        else:
            self.sim.call_in(0.01, self.wait_lac, node=TAIL)

    def find(self) -> None:
        """Search the present tail as a new client."""
        self.finders += 1
        self.finding += 1
        address, acked = f"{FINDER}/finder{self.finders}", self.checks.lac
        confirms = SpreadPlacement(self.policy, self.candidates, self.locate, self.options).confirms
        self.sim.place(FINDER, address, TailFinder(LEDGER, self.digest, draw(FindingOptions, self.options), confirms))
        self.sim.ask(address, FindTail(), lambda result: self.found(address, acked, result))

    def found(self, address: str, acked: int, result: LedgerLac | DLogError) -> None:
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
        """Run the part with faults, then the healed part with its demands."""
        config, sim = self.config, self.sim
        for number in range(config["entries"]):
            sim.call_in(number * config["gap_s"], self.add, number)
        for at_s in config.get("find_at", ()):
            sim.call_in(at_s, self.find)
        for at_s in config.get("force_at", ()):
            sim.call_in(at_s, self.force)
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
        if "confirmed_by_s" in config:
            sim.run(until_s=config["confirmed_by_s"], until=lambda: self.is_answered)
            if [result for result in self.results.values() if isinstance(result, DLogError)] or not self.is_answered:
                raise Violation("liveness", "there are bookies for each that is lost, and an entry is not confirmed")
            sim.reach("confirmed_beside_the_lost")
        sim.heal()
        for ailments in self.ailments.values():
            ailments.cure()
        if config["calm"]:
            self.demand(lambda: self.is_answered, "an add was never answered")
            self.demand(lambda: not self.forcing, "a force was never answered")
            if "explicit_lac_s" in config and not self.adder.is_dead:
                self.demand(lambda: self.next_read > self.checks.lac, "the tail never read the last entry")
                sim.reach("read_before_the_close")
            if not self.adder.is_dead:
                self.close()
                self.demand(lambda: self.close_result is not None, "the close was never answered")
        if (
            "find_at" in config and not sim.reached["moved"]
        ):  # else the ensemble may have one region: a recovery goes on
            self.find()
            self.demand(lambda: not self.finding, "a tail was never found")
        if not self.recovered:
            self.recover(RECOVERERS[0])
        self.demand(lambda: not any(self.recovering.values()), "a recovery never ended")
        self.demand(lambda: not self.finding, "a tail was never found")
        self.demand(lambda: self.tail_closed, "the tail never heard of the end")
        if "w/adder" in sim.hosts:
            self.close()
            self.demand(lambda: self.close_result is not None, "the close was never answered")
            self.demand(lambda: len(self.results) == len(self.checks.payloads), "an add was never answered")
        self.checks.finish()

    @property
    def is_answered(self) -> bool:
        return bool(len(self.results) == self.config["entries"])

    def demand(self, condition: Any, text: str) -> None:
        if not self.sim.run(until_s=self.sim.now_s + SETTLE_S, until=condition):
            raise Violation("liveness", text)


def run_plan(plan: Plan, parts: Mapping[str, Any] | None = None, *, trace: bool = False) -> Outcome:
    """Run one plan to its end or to the first violation. parts["planted"]: pairs of a class and its mutant."""
    return run_world(LedgerWorld, "w/adder", plan, parts, trace=trace)


def run_world(
    make: type[LedgerWorld], address: str, plan: Plan, parts: Mapping[str, Any] | None, *, trace: bool
) -> Outcome:
    """`run_plan` in another world. address: of the machine whose last facts are printed with a violation."""
    parts = parts or {}
    with planting(parts.get("planted", ())):
        world = make(plan, parts, trace=trace)
        violation, text = judged(world.run, trace=trace)
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
        story=sim.story(address) if violation else "",
    )


def room() -> Room:
    """The simulation `ledger` of `python -m tests.simulation`."""
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
