"""Tables with a begin and an end in the simulation `region`: their owners' callers, and followers with theirs.

A table number is used once. Followers ask for the ends of any tables, also of those that nobody has begun yet, drop
them, delete the front of the data topic, and retire the region.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from dlog.errors import DamagedError, DLogError, UnsupportedVersionError
from dlog.events import RegionCleaned
from dlog.options import draw
from dlog.region.counting import FINAL_EPOCH
from dlog.region.follower import Phase, RegionFollower, TableNotFoundError
from dlog.region.messages import (
    BeginTable,
    CatchUp,
    EndTable,
    ReadOn,
    RecoverTable,
    RemoveTable,
    RetireRegion,
    TableFound,
    TrimRegion,
    WriteEntries,
)
from dlog.region.options import FollowerOptions
from dlog.region.owner import RegionOwner
from dlog.region.waiting import EntryOutOfOrderError, TableEndedError
from tests.simulation.kernel import Violation
from tests.simulation.network import Node

if TYPE_CHECKING:
    from tests.simulation.region_world import RegionWorld

FOLLOWERS = ("f1", "f2", "f3")
FIRST_TABLE = 100  # those below are written without a begin
SETTLE_S = 60.0
ATTEMPTS = 3  # in quiet times
MUST_REACH = (
    *("begun", "table_ended", "ended_by_another", "table_ended_in_doubt", "begin_refused", "caught_up", "read_on"),
    *("recovered", "recovered_again", "not_found", "removed", "trimmed", "retired", "not_retired", "loaded_again"),
    *("recent_found", "retired_in_quiet_times", "write_refused_as_ended", "out_of_order"),
)


def draw_config(rng: random.Random, style: str) -> dict[str, Any]:
    """The settings of followers and their callers, and of owners' callers in the style `tables`."""
    if style == "outside":
        return {"followers": 0, "trims": 0.0}
    if style != "tables":
        trims = rng.choice((0.0, 0.05)) if style in ("swarm", "clean", "calm") else 0.0
        return {"followers": rng.choice((0, 1)), "trims": trims}
    return {
        "owners": rng.choice((1, 1, 2)),
        "followers": rng.choice((2, 3)),
        "begins": rng.choice((0.05, 0.3)),
        "ends": rng.choice((0.05, 0.2)),
        "recovers": rng.choice((0.01, 0.05)),
        "removes": rng.choice((0.01, 0.05)),
        "trims": rng.choice((0.02, 0.1)),
        "retires": rng.choice((0.0, 0.0, 0.03)),
        "closes_at": rng.choice(
            (0.3, 0.7, 9.0)
        ),  # from this part of the time on, tables are removed, and few are begun
        "refusals": rng.choice((0.0, 0.0, 0.05)),
    }


class TableCallers:
    """The callers of owners in the style `tables`."""

    def __init__(self, world: RegionWorld) -> None:
        self.world = world
        self.used = FIRST_TABLE  # the number of the next table
        self.writers: dict[int, RegionOwner] = {}  # of tables whose entries are submitted with their sequences

    @property
    def is_closing(self) -> bool:
        config = self.world.config
        return bool(self.world.sim.now_s > config["closes_at"] * config["duration_s"])

    def tick(self, name: str, machine: RegionOwner) -> None:
        """Begin, write and end tables."""
        config, rng = self.world.config, self.world.rng
        left = self.open_tables(machine)
        begins = config["begins"] if left else 0.5
        if len(left) < 4 and rng.random() < (begins * 0.2 if self.is_closing else begins):
            left.append(self.begin(name, machine, with_entries=rng.random() < 0.3))
        shared = [table for table in left if table not in self.world.checks.submitted]
        if shared:
            self.write(name, [rng.choice(shared) for _ in range(rng.choice((1, 1, 2, 4)))])
        own = [table for table, writer in self.writers.items() if writer is machine]
        if own:
            table = rng.choice(own)
            for _ in range(rng.choice((1, 1, 3))):
                self.write_next(name, table)
        if left and rng.random() < config["ends"]:
            table = rng.choice(left)
            self.world.ask(name, EndTable(table))
            if rng.random() < 0.3 and table in shared:
                self.write(name, [table])

    def open_tables(self, machine: RegionOwner) -> list[int]:
        """Tables that the owner may write, as far as it knows."""
        return [table for table in machine.state.meta.tables if table not in machine.state.rule.ended]

    def begin(self, name: str, writer: RegionOwner | None, *, with_entries: bool) -> int:
        """Begin a new table. writer: it may become the one that submits entries with their sequences. with_entries:
        write to it without waiting for the begin. Returns the table's number."""
        table, self.used = self.used, self.used + 1
        self.world.ask(name, BeginTable(table, b"about %d" % table))
        if writer is not None and self.world.rng.random() < 0.4:
            self.writers[table] = writer
            self.world.checks.submitted[table] = []
        elif with_entries:
            self.write(name, [table])
        return table

    def write_next(self, name: str, table: int) -> None:
        """Submit the next entry of a table with its sequence, as the writer of a segment does."""
        submitted = self.world.checks.submitted[table]
        submitted.append(self.world.new_payload())
        self.world.ask(name, WriteEntries(((table, submitted[-1]),), len(submitted)))

    def write(self, name: str, tables: list[int]) -> None:
        """Write one entry to each of these."""
        self.world.ask(name, WriteEntries(tuple((table, self.world.new_payload()) for table in tables)))

    def answered(self, request: Any, result: Any, *, was_in_doubt: bool) -> None:
        """Judge an answer of an owner. was_in_doubt: it appended a fence since it was asked."""
        reach, checks = self.world.sim.reach, self.world.checks
        match request, result:
            case WriteEntries(((table, _),), int()), DLogError():
                self.writers.pop(table, None)  # a writer ends with its first error
                if isinstance(result, EntryOutOfOrderError):
                    reach("out_of_order")
            case EndTable(table), TableEndedError():
                reach("ended_by_another")
                checks.refused_as_ended(table)
            case EndTable(table), int():
                reach("table_ended_in_doubt" if was_in_doubt else "table_ended")
                checks.ended(table, result)
            case BeginTable(table), int():
                reach("begun")
                checks.begun(table, result)
            case BeginTable(table), DLogError(outcome_unknown=False):
                reach("begin_refused")
                checks.refused_begins.add(table)


class Followers:
    """The nodes with followers, and their callers."""

    def __init__(self, world: RegionWorld) -> None:
        self.world = world
        self.rng = random.Random(f"{world.plan.seed}/followers")
        options = draw(FollowerOptions, random.Random(f"{world.plan.seed}/follower options"))
        self.options = replace(options, map_every=world.options.map_every)
        self.names = FOLLOWERS[: world.config.get("followers", 0)]
        self._recovered: set[int] = set()
        self._checked: dict[str, tuple[int, int]] = {}  # by node: what was compared with the truth last
        self._loading: dict[str, int] = {}  # by node: the state that is loaded again
        for name in self.names:
            world.sim.node(name, self._start)
            self._tick_later(name)

    @property
    def is_retired(self) -> bool:
        """Whether a final fence is in force."""
        return self.world.checks.truth.rule.epoch == FINAL_EPOCH

    def machine(self, name: str) -> RegionFollower | None:
        found: RegionFollower | None = self.world.sim.machine(name)
        return found

    def check(self) -> None:
        """Compare what each follower knows with the truth."""
        for name in self.names:
            machine = self.machine(name)
            if machine is None or machine.state is None:
                continue
            if machine.phase is Phase.LOADING and self._loading.get(name) != id(machine.state):
                self._loading[name] = id(machine.state)
                self.world.sim.reach("loaded_again")
            if machine.phase is not Phase.FOLLOWING:
                continue
            if self._checked.get(name) != (id(machine.state), machine.state.offset):
                self._checked[name] = (id(machine.state), machine.state.offset)
                self.world.checks.state_is(machine.state, invariant="K8")

    def _start(self, node: Node) -> None:
        rng = random.Random(self.world.sim.rng.random())
        machine = RegionFollower(self.world.region, lambda: rng.randbytes(16), self.options)
        self.world.sim.place(node.name, node.name, machine, on_event=self._heard)

    def _heard(self, event: Any) -> None:
        if isinstance(event, RegionCleaned):
            self.world.sim.reach("trimmed")

    # ---- callers -----------------------------------------------------------------------------------------------------

    def _tick_later(self, name: str) -> None:
        self.world.sim.call_in(self.rng.expovariate(1.0) * self.world.config["pace_s"], self._tick, name)

    def _tick(self, name: str) -> None:
        if self.world.is_over:
            return
        self._tick_later(name)
        machine = self.machine(name)
        if machine is None:
            return
        config, rng = self.world.config, self.rng
        self._find_recent(machine)
        if rng.random() < 0.5:
            self.ask(name, rng.choice((CatchUp(), ReadOn(), ReadOn())))
        if rng.random() < config["trims"]:
            self.ask(name, TrimRegion())
        if self.world.tables is not None:
            self._ask_about_tables(name, machine, self.world.tables)

    def _ask_about_tables(self, name: str, machine: RegionFollower, tables: TableCallers) -> None:
        config, rng = self.world.config, self.rng
        last = max(FIRST_TABLE, tables.used - (rng.random() < 0.7))  # a few times one that was never begun
        number = rng.randint(max(FIRST_TABLE, last - 8), last)
        if rng.random() < config["recovers"]:
            self.ask(name, RecoverTable(number))
        if rng.random() < config["removes"]:
            self.ask(name, RemoveTable(number if rng.random() < 0.5 else rng.randint(FIRST_TABLE, number)))
        if rng.random() < config["retires"]:
            self.ask(name, RetireRegion())
        if tables.is_closing and rng.random() < 0.3:
            for table in machine.state.meta.tables if machine.state is not None else ():
                self.ask(name, RemoveTable(table))
            if config["retires"]:
                self.ask(name, RetireRegion())

    def _find_recent(self, machine: RegionFollower) -> None:
        if machine.state is None or not machine.state.meta.tables:
            return
        rng = self.rng
        table, meta = rng.choice(list(machine.state.meta.tables.items()))
        first = max(1, meta.next_seq_num - rng.randint(1, 5))
        found = machine.recent.find(table, first, first + 100, rng.choice((1, 10, 1000)))
        if found:
            self.world.sim.reach("recent_found")
        self.world.checks.recent(table, first, found)

    def ask(self, name: str, request: Any, results: list[Any] | None = None) -> None:
        """Ask a follower. results: gets the answer, too."""

        end = self.world.checks.truth.next

        def answered(result: Any) -> None:
            self._answered(request, result)
            machine = self.machine(name)
            if request == CatchUp() and result is None and machine is not None and machine.state is not None:
                self.world.checks.caught_up(machine.state, end)
            if results is not None:
                results.append(result)

        self.world.sim.ask(name, request, answered)

    def _answered(self, request: Any, result: Any) -> None:
        reach, checks = self.world.sim.reach, self.world.checks
        match request, result:
            case _, DamagedError() | UnsupportedVersionError():
                raise Violation("K8", f"a follower cannot read: {result}")
            case RecoverTable(table), TableFound(entries, payload_bytes):
                reach("recovered_again" if table in self._recovered else "recovered")
                self._recovered.add(table)
                checks.ended(table, entries, payload_bytes)
            case RecoverTable(table), TableNotFoundError():
                reach("not_found")
                checks.not_found(table)
            case RemoveTable(table), None:
                reach("removed")
                checks.removed(table)
            case RetireRegion(), bool():
                reach("retired" if result else "not_retired")
                if result:
                    checks.retired()
            case CatchUp(), None:
                reach("caught_up")
            case ReadOn(), True:
                reach("read_on")

    # ---- quiet times -------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """In quiet times every follower does all that it is asked for."""
        if not self.names:
            return
        world, tables = self.world, self.world.tables
        truth = world.checks.truth
        for name in self.names:
            self._do(name, CatchUp())
        for table in range(FIRST_TABLE, tables.used + 1) if tables is not None else ():
            is_there = table in truth.tables and table not in truth.drops
            result = self._do(self.rng.choice(self.names), RecoverTable(table))
            if isinstance(result, TableFound) != is_there:
                raise Violation("K11", f"the end of table {table} in quiet times: {result}, it is there: {is_there}")
        world.sim.node("new", self._start)  # it begins with what was saved
        self._do("new", CatchUp())
        machine = self.machine("new")
        assert machine is not None and machine.state is not None, "it has caught up"
        world.checks.state_is(machine.state, invariant="K8")
        if tables is None or self.rng.random() < 0.5:
            return
        for table in list(machine.state.meta.tables):
            self._do(self.rng.choice(self.names), RemoveTable(table))
        self._do("new", TrimRegion())
        if self._do("new", RetireRegion()) is not True:
            raise Violation("K11", "the region is not retired in quiet times, and no table is left")
        world.sim.reach("retired_in_quiet_times")

    def _do(self, name: str, request: Any) -> Any:
        """Ask; the first connections may still be those of a broker that died, so some attempts may fail."""
        sim = self.world.sim
        for _ in range(ATTEMPTS):
            results: list[Any] = []
            self.ask(name, request, results)
            if not sim.run(until_s=sim.now_s + SETTLE_S, until=lambda: bool(results)):  # noqa: B023 - called in this turn of the loop only
                raise Violation("K11", f"no answer in quiet times: {request}")
            if not isinstance(results[0], DLogError) or isinstance(results[0], TableNotFoundError):
                return results[0]
            sim.run(until_s=sim.now_s + 1.0)
        raise Violation("K11", f"not done in quiet times: {request}: {results[0]}")
