"""The simulation `region`: owners that open, write, mark, clean and lose one region, and followers of it, on a model of
its two topics.

Styles of plan:
- "swarm": two processes that may own the region, and any faults;
- "takeover": they take it from each other often, also while the other is frozen;
- "late": appends arrive late, twice, or after their sender gave them up;
- "clean": much is marked and cleaned, and owners die while they clean;
- "tables": tables are begun, ended, recovered and dropped, by owners and followers (region_followers.py);
- "outside": another program deletes the front of the data topic, or empties the meta topic;
- "calm": no faults;
- "version0": entries without a nonce; the next owner begins when the one before has died or has ended, or in some plans
  beside it.

In some plans of "takeover" and "late" the owners have transactional ids: the data topic refuses an owner's append once
it has one of an owner that began later, and what an owner sends behind a failure once another one has begun.

After the run every fault ends, and a process opens the region, writes, and reads all of it. Then followers end every
table.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dlog.errors import DamagedError, DLogError
from dlog.events import RegionAppendInDoubt, RegionCleaned, RegionFenced
from dlog.options import draw
from dlog.region.follower import RegionFollower
from dlog.region.messages import (
    AppendRecords,
    CleanRegion,
    DeleteBefore,
    DropTable,
    FindStart,
    LostEntries,
    MarkDeleted,
    OpenRegion,
    SaveSnapshot,
    Topic,
    WriteEntries,
)
from dlog.region.options import RegionOptions
from dlog.region.owner import Phase, RegionFencedError, RegionOwner
from dlog.region.reading import EntryScan, RegionEntry, TailScan, find_start
from dlog.region.state import RegionState
from dlog.region.waiting import TableEndedError
from dlog.wire.region import RecordKind
from tests.simulation import region_followers
from tests.simulation.kernel import Simulation, Violation, judged
from tests.simulation.mutants import planting
from tests.simulation.network import Node
from tests.simulation.plan import EVERY_KIND, Fault, FaultKind, Plan, draw_faults
from tests.simulation.region_checks import RegionChecks
from tests.simulation.region_followers import Followers, TableCallers
from tests.simulation.region_topics import TopicModel, TopicTransport
from tests.simulation.worlds import Outcome, Room

STYLES = ("swarm", "takeover", "late", "clean", "outside", "calm", "tables", "version0")
MUST_REACH = (
    *("ack", "opened", "deposed", "in_doubt", "found_behind_a_fence", "cleaned", "saved", "read", "dropped"),
    *("foreign_between", "lost_told", "opened_without_snapshots", "refused_as_cut", "followed"),
    *("owner_refused", "passed_over"),
    *region_followers.MUST_REACH,
)
PROGRESS = {"acks": ("ack",), "take-overs": ("opened",), "entries read": ("read",)}
REGION = 7
BROKER = "broker"
OWNERS = ("o1", "o2")
TABLES_MAX = 4
KINDS = tuple(kind for kind in EVERY_KIND if not kind.value.startswith("meta") and kind is not FaultKind.CLOCK)
MARKS = ("opened", "cleaning", "in_doubt", "checkpoint")
TABLE_MARKS = ("ending", "dropping", "retiring", "loaded_again")
REACHED_BY = {  # by a machine and the first record that it appends
    (RegionOwner, RecordKind.CHECKPOINT): "checkpoint",
    (RegionFollower, RecordKind.TABLE_END): "ending",
    (RegionFollower, RecordKind.TABLE_DROPPED): "dropping",
    (RegionFollower, RecordKind.FENCE): "retiring",
}
SETTLE_S = 60.0
TAILS_MAX = 3


def draw_plan(seed: int, style: str) -> Plan:
    """Draw the plan of a seed."""
    rng = random.Random(f"region/{style}/{seed}/plan")
    duration = rng.choice((0.5, 1.0, 2.0))
    config: dict[str, Any] = {
        "style": style,
        "tables": rng.randint(1, TABLES_MAX),
        "pace_s": rng.choice((0.005, 0.02, 0.1)),
        "takeover": rng.choice((0.05, 0.2)) if style == "takeover" else rng.choice((0.0, 0.02)),
        "marks": rng.choice((0.1, 0.3)) if style == "clean" else rng.choice((0.0, 0.1)),
        "cleans": rng.choice((0.05, 0.2)) if style in ("clean", "outside") else rng.choice((0.0, 0.05)),
        "saves": rng.choice((0.0, 0.05)),
        "drops": rng.choice((0.0, 0.01)),
        "duration_s": duration,
        "timeout_s": rng.choice((0.05, 0.3)),
        "sync_s": rng.choice((0.0002, 0.002)),
    }
    if style == "version0":
        config["takeover"] = 0.0 if rng.random() < 0.6 else 0.1
    if style in ("takeover", "late"):
        config["transactional_ids"] = random.Random(f"region/{style}/{seed}/transactional_ids").random() < 0.5
    config |= region_followers.draw_config(random.Random(f"region/{style}/{seed}/followers"), style)
    kinds = KINDS
    if style == "late":
        kinds = (FaultKind.HOLD_KTH, FaultKind.DROP_KTH, FaultKind.DUPLICATE, FaultKind.CUT, FaultKind.SLOW)
    faults: tuple[Fault, ...] = ()
    if style != "calm":
        faults = draw_faults(
            rng,
            servers=(BROKER,),
            clients=(*OWNERS, *region_followers.FOLLOWERS[: config["followers"]]) if style == "tables" else OWNERS,
            duration_s=duration,
            kinds=kinds,
            marks=MARKS + TABLE_MARKS if style == "tables" else MARKS,
            messages=("AppendRecords", "RecordsAppended", "DeleteBefore", "RecordsRead"),
        )
    if style == "outside":
        for _ in range(rng.randint(1, 3)):
            faults += (
                Fault(
                    kind=FaultKind.ENVIRONMENT,
                    at_s=rng.uniform(0, duration),
                    message=rng.choice(("cut_data", "empty_meta")),
                    rate=rng.random(),
                ),
            )
    return Plan(seed=seed, config=config, faults=faults)


class RegionWorld:
    """One history; see the module's docstring."""

    def __init__(self, plan: Plan, *, trace: bool = False) -> None:
        self.plan = plan
        config = plan.config
        self.config = config
        self.rng = random.Random(f"{plan.seed}/callers")
        self.options = draw(RegionOptions, random.Random(f"{plan.seed}/options"))
        if config["style"] == "version0":
            self.options = replace(self.options, format=0)
        self.sim = Simulation(
            plan,
            transport=TopicTransport(),
            trace=trace,
            request_timeout_s=config["timeout_s"],
            sync_s=config["sync_s"],
            fifo=False,
        )
        self.checks = RegionChecks(REGION, self.options.map_every, is_plain=self.options.format == 0)
        self.models: dict[str, TopicModel] = {}
        self.written = 0
        self.is_over = False
        self.tails: list[tuple[int, TailScan, list[RegionEntry]]] = []  # followers: where they began, what they saw
        self.owner_numbers: dict[RegionOwner, int] = {}  # when each owner began to append, in their order
        self.owner_of: dict[AppendRecords, tuple[int, bool]] = {}  # and whether it is behind a failure
        self.owner_seen = 0  # by the leader of the data topic
        self.snapshot_deleters: dict[int, RegionOwner] = {}  # by offset: who asked to delete the snapshots below it
        self._checked: dict[str, tuple[int, int]] = {}  # by owner: what was compared with the truth last
        self.was_cut = False  # another program deleted records or snapshots
        self.region = REGION
        self.owners = OWNERS[: config.get("owners", len(OWNERS))]
        self.tables = TableCallers(self) if config["style"] == "tables" else None
        self.sim.node(BROKER, self._start_broker)
        for name in OWNERS:
            self.sim.node(name, self._start_owner)
        self.followers = Followers(self)
        self.sim.on_environment = self._environment
        self.sim.on_effect = self._see_effect
        self.sim.every_event = self._check
        for name in self.owners:
            self._tick_later(name)
        self.ask(OWNERS[0], OpenRegion())

    # ---- nodes -------------------------------------------------------------------------------------------------------

    def _start_broker(self, _: Node) -> None:
        checks = self.checks
        data = TopicModel(
            random.Random(self.sim.rng.random()),
            self.sim.disk(Topic.DATA).durable,
            on_append=checks.truth.appended,
            on_delete=self._front_deleted,
            refusals=self.config.get("refusals", 0.0),
            is_former_owner=self._is_former_owner,
        )
        meta = TopicModel(
            random.Random(self.sim.rng.random()),
            self.sim.disk(Topic.META).durable,
            on_append=checks.snapshot_appended,
            on_delete=self._snapshots_deleted,
        )
        if self.models:  # what another program deleted stays deleted
            data.first = max(data.first, self.models[Topic.DATA].first)
            meta.first = max(meta.first, self.models[Topic.META].first)
        self.models = {Topic.DATA: data, Topic.META: meta}
        for topic, model in self.models.items():
            self.sim.place(BROKER, topic, model, listens=True)

    def _is_former_owner(self, append: AppendRecords) -> bool:
        """What a broker answers that knows producer epochs. An owner asks for its next epoch behind each failure."""
        owner, is_behind_failure = self.owner_of.get(append, (self.owner_seen, False))
        if owner < self.owner_seen or (is_behind_failure and owner < len(self.owner_numbers)):
            self.sim.reach("owner_refused")
            return True
        self.owner_seen = owner
        return False

    def _front_deleted(self, offset: int) -> None:
        if offset > self.checks.cut_first:
            self.checks.deleted(offset)

    def _snapshots_deleted(self, offset: int) -> None:
        self.checks.meta_first = max(self.checks.meta_first, offset)
        owner = self.snapshot_deleters.get(offset)
        if owner is not None and owner.state.rule.nonce != self.checks.truth.rule.nonce:
            # one that does not know of its successor deletes the successor's snapshots; the check-points are left
            self.checks.cut_snapshots = max(self.checks.cut_snapshots, offset)
            self.sim.reach("snapshots_deleted_by_a_former_owner")

    def _start_owner(self, node: Node) -> None:
        rng = random.Random(self.sim.rng.random())
        machine = RegionOwner(REGION, lambda: rng.randbytes(16), self.options)
        self.sim.place(node.name, node.name, machine, on_event=lambda event: self._heard(machine, event))

    def _owner(self, name: str) -> RegionOwner | None:
        machine: RegionOwner | None = self.sim.machine(name)
        return machine

    def _heard(self, machine: RegionOwner, event: Any) -> None:
        match event:
            case RegionFenced():
                self.sim.reach("deposed")
            case RegionAppendInDoubt():
                self.sim.reach("in_doubt")
            case RegionCleaned():
                self.sim.reach("cleaned")

    def _see_effect(self, host: Any, effect: Any) -> None:
        message = getattr(effect, "message", None)
        name = type(message).__name__
        if isinstance(message, DeleteBefore) and effect.peer == Topic.DATA:
            self.sim.reach("cleaning")
        machine = host.machine
        if isinstance(message, DeleteBefore) and effect.peer == Topic.META and isinstance(machine, RegionOwner):
            self.snapshot_deleters[message.offset] = machine
        if isinstance(message, AppendRecords):
            if self.config.get("transactional_ids") and effect.peer == Topic.DATA and isinstance(machine, RegionOwner):
                is_behind_failure = machine in self.owner_numbers and machine.phase is Phase.FENCING
                owner = self.owner_numbers.setdefault(machine, len(self.owner_numbers) + 1)
                self.owner_of[message] = (owner, is_behind_failure)
            mark = REACHED_BY.get((type(machine), RecordKind(message.records[0][0][0])))
            if mark is not None:
                self.sim.reach(mark)
        if isinstance(machine, RegionOwner) and name == "ReadRecords" and machine.phase is Phase.SERVING:
            self.sim.reach("foreign_between")

    def _check(self) -> None:
        self.followers.check()
        for name in OWNERS:
            machine = self._owner(name)
            if machine is None or machine.phase not in (Phase.SERVING, Phase.DEPOSED):
                continue
            if self._checked.get(name) != (id(machine), machine.state.offset):
                self._checked[name] = (id(machine), machine.state.offset)
                self.checks.state_is(machine.state)

    def _environment(self, fault: Fault) -> None:
        """Another program deletes."""
        self.was_cut = True
        model = self.models[Topic.DATA if fault.message == "cut_data" else Topic.META]
        if not self.sim.is_up(BROKER):
            return
        if fault.message == "empty_meta":
            self.checks.cut_snapshots = model.next
        else:
            self.checks.cut_first = max(self.checks.cut_first, int(model.next * fault.rate))
        model.cut(int(model.next * fault.rate) if fault.message == "cut_data" else model.next)

    # ---- callers -----------------------------------------------------------------------------------------------------

    def ask(self, name: str, request: Any) -> None:
        """Ask an owner, if it is up."""
        machine = self._owner(name)
        if isinstance(request, WriteEntries):
            self.checks.writes.update((payload, request.entries) for _, payload in request.entries)
        if machine is not None:
            tables = machine.state.meta.tables
            next = tables[request.table].next_seq_num if isinstance(request, DropTable) else 0
            fences = len(machine._nonces)
            self.sim.ask(name, request, lambda result: self._answered(machine, request, result, next, fences))

    def _tick_later(self, name: str) -> None:
        self.sim.call_in(self.rng.expovariate(1.0) * self.config["pace_s"], self._tick, name)

    def _tick(self, name: str) -> None:
        if self.is_over:
            return
        self._tick_later(name)
        machine = self._owner(name)
        if machine is None:
            return
        config, rng = self.config, self.rng
        if machine.phase is Phase.DEPOSED:
            if rng.random() < config["takeover"] or self._nobody_serves():
                self._start_owner(self.sim.nodes[name])
                self.ask(name, OpenRegion())
            else:
                self.ask(name, SaveSnapshot())
            return
        if machine.phase is Phase.CLOSED:
            if rng.random() < config["takeover"] or self._nobody_serves():
                self.ask(name, OpenRegion())
            return
        if self.tables is not None:
            self.tables.tick(name, machine)
        else:
            self._write(name)
        tables = list(machine.state.meta.tables.items())
        if tables and rng.random() < config["marks"]:
            table, meta = rng.choice(tables)
            below = min(meta.next_seq_num, meta.latest_marked_deleted + rng.randint(1, 5))
            self.checks.marks[table] = max(self.checks.marks.get(table, 0), below)
            self.ask(name, MarkDeleted(table, below))
        if tables and self.tables is None and rng.random() < config["drops"]:
            table, meta = rng.choice(tables)
            self.checks.marks[table] = 1 << 62  # up to its end, whatever that will be
            self.ask(name, DropTable(table))
        if rng.random() < config["cleans"]:
            self.ask(name, CleanRegion())
        if rng.random() < config["saves"]:
            self.ask(name, SaveSnapshot())
        if rng.random() < 0.05:
            self._read(machine)
        if rng.random() < 0.1:
            self._follow()

    def _nobody_serves(self) -> bool:
        machines = [self._owner(name) for name in OWNERS]
        return not any(m is not None and m.phase not in (Phase.CLOSED, Phase.DEPOSED) for m in machines)

    def _write(self, name: str) -> None:
        entries = []
        for _ in range(self.rng.choice((1, 1, 2, 4))):
            payload = self.new_payload()
            entries.append((self.rng.randrange(self.config["tables"]), payload))
        self.ask(name, WriteEntries(tuple(entries)))

    def new_payload(self) -> bytes:
        """One that was never used."""
        self.written += 1
        return b"%d" % self.written

    def _answered(self, machine: RegionOwner, request: Any, result: Any, next: int, fences: int) -> None:
        """next: of the table, when it was asked. fences: of the owner, when it was asked."""
        reach, checks = self.sim.reach, self.checks
        if self.tables is not None:
            self.tables.answered(request, result, was_in_doubt=len(machine._nonces) > fences)
        if isinstance(result, DLogError):
            if isinstance(request, WriteEntries) and isinstance(result, TableEndedError):
                reach("write_refused_as_ended")
                checks.refused_in_part.append(request.entries)
            elif isinstance(request, WriteEntries) and not result.outcome_unknown:
                checks.refused.update(payload for _, payload in request.entries)
            if isinstance(request, OpenRegion) and isinstance(result, DamagedError):
                if not self.was_cut:
                    raise Violation("K1", f"the region does not open: {result}")
                reach("refused_as_cut")
            return
        match request:
            case OpenRegion():
                reach("opened")
                checks.state_is(machine.state, is_new=not self.was_cut)
                if self.models[Topic.META].first == self.models[Topic.META].next:
                    reach("opened_without_snapshots")
            case WriteEntries(entries):
                reach("ack")
                if machine._is_found:
                    reach("found_behind_a_fence")
                checks.acknowledged(entries, result)
            case SaveSnapshot():
                reach("saved")
            case DropTable(table):
                reach("dropped")
                checks.dropped(table, next)

    def _read(self, machine: RegionOwner) -> None:
        """Read the whole region, as of the state of its owner."""
        model = self.models[Topic.DATA]
        state = machine.state
        start = find_start(state, model.first, FindStart())
        scan = EntryScan(REGION, start)
        found: list[RegionEntry | LostEntries] = []
        while not scan.is_done:
            found += scan.feed(model.read(scan.offset, self.rng.choice((1, 3, 100))))
        if start.begin == start.end:
            found += scan.feed(())
        self.checks.read(state, found, model.first)
        if state.meta.tables:
            self._read_table(state, sorted(state.meta.tables)[self.written % len(state.meta.tables)])
        if len(self.tails) < TAILS_MAX:
            self.tails.append((start.end, TailScan(REGION, start, None), []))
        self.sim.reach("read")
        if any(isinstance(one, LostEntries) for one in found):
            self.sim.reach("lost_told")

    def _read_table(self, state: RegionState, table: int) -> None:
        """Read one table, passing over whatever the mapping allows."""
        model = self.models[Topic.DATA]
        scan = EntryScan(REGION, find_start(state, model.first, FindStart(((table, 0),)), seek_bytes=1))
        found: list[RegionEntry | LostEntries] = []
        is_done = False
        while not is_done:
            is_done = scan.is_done
            records = [] if is_done else model.read(scan.offset, 5)
            found += scan.feed(records)
            if records and scan.offset > records[-1].offset + 1:
                self.sim.reach("passed_over")
        self.checks.read(state, found, model.first, table)

    def _follow(self) -> None:
        """Let each follower read on; one whose next record was deleted ends."""
        model = self.models[Topic.DATA]
        for tail in list(self.tails):
            begin, scan, seen = tail
            if scan.offset < model.first:
                self.tails.remove(tail)
                continue
            seen += scan.feed(model.read(scan.offset, self.rng.choice((1, 3, 100))))
            self.checks.followed(begin, scan.offset, seen)
            self.sim.reach("followed")

    # ---- the run -----------------------------------------------------------------------------------------------------

    def run(self) -> None:
        try:
            self._run()
        except DLogError as error:  # of a machine that finds the topic other than it should be
            raise Violation("K1", f"{type(error).__name__}: {error}") from error

    def _run(self) -> None:
        sim = self.sim
        sim.run(until_s=self.config["duration_s"])
        self.is_over = True
        sim.heal()
        sim.run(until_s=sim.now_s + 5.0)
        results: list[Any] = []
        self._start_owner(sim.nodes["o1"])
        last = self._owner("o1")
        assert last is not None
        sim.ask("o1", OpenRegion(), results.append)
        if not sim.run(until_s=sim.now_s + SETTLE_S, until=lambda: bool(results)):
            raise Violation("K1", "the region does not open in quiet times")
        if isinstance(results[0], RegionFencedError) and self.followers.is_retired:
            self.followers.finish()
            self.checks.finish()
            return
        if isinstance(results[0], DLogError):
            if not (self.was_cut and isinstance(results[0], DamagedError)):
                raise Violation("K1", f"the region does not open in quiet times: {results[0]}")
            self.sim.reach("refused_as_cut")
            self.checks.finish()
            return
        self.checks.state_is(last.state, is_new=not self.was_cut)
        if self.tables is None:
            self._write("o1")
        else:
            self.tables.used += 1  # nobody has asked for this one
            self.tables.begin("o1", None, with_entries=True)
        sim.run(until_s=sim.now_s + SETTLE_S, until=lambda: bool(self.checks.acked) and not last._waiting)
        sim.run(until_s=sim.now_s + 1.0)
        self._read(last)
        self._follow()
        self.followers.finish()
        self.checks.finish()
        newest = b"%d" % self.written
        if newest not in self.checks.acked.values() and newest not in self.checks.refused:
            raise Violation("K5", "a write in quiet times is not answered")


def run_plan(plan: Plan, parts: Mapping[str, Any] | None = None, trace: bool = False) -> Outcome:
    """Run one plan to its end or to the first violation. parts["planted"]: pairs of a class and its mutant."""
    with planting((parts or {}).get("planted", ())):
        world = RegionWorld(plan, trace=trace)
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
    )


def room() -> Room:
    """The simulation `region` of `python -m tests.simulation`."""
    from tests.simulation.mutants.region import MUTANTS
    from tests.simulation.mutants.region_plain import PLAIN_MUTANTS

    return Room(
        name="region",
        styles=STYLES,
        draw=draw_plan,
        run=run_plan,
        must_reach=MUST_REACH,
        mutants=(*MUTANTS, *PLAIN_MUTANTS),
        progress=PROGRESS,
    )
