"""Tests the simulator itself: the same plan gives the same trace; faults do what they say."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from dlog.machine import (
    Answer,
    Asked,
    CompareAndSet,
    Conflict,
    Effect,
    Fact,
    MetadataSeen,
    OutcomeUnknown,
    PeerLost,
    Persist,
    Persisted,
    Received,
    Send,
    SetTimer,
    TimerFired,
)
from tests.simulation.kernel import Simulation
from tests.simulation.plan import Fault, FaultKind, Plan, draw_faults, shrink


@dataclass(frozen=True, slots=True)
class Ping:
    number: int


@dataclass(frozen=True, slots=True)
class Pong:
    number: int


class PingPairs:
    def question(self, message: Any) -> int | None:
        return message.number if isinstance(message, Ping) else None

    def answer(self, message: Any) -> int | None:
        return message.number if isinstance(message, Pong) else None


class Echo:
    """Writes each ping to its journal and answers once it is durable."""

    def __init__(self, first_token: int = 1) -> None:
        self.token = first_token
        self.waiting: list[tuple[int, Any, int]] = []

    def handle(self, fact: Fact) -> list[Effect]:
        match fact:
            case Received(peer, Ping(number)):
                self.token += 1
                self.waiting.append((self.token, peer, number))
                return [Persist(self.token, number)]
            case Persisted(upto):
                done = [w for w in self.waiting if w[0] <= upto]
                self.waiting = [w for w in self.waiting if w[0] > upto]
                return [Send(peer, Pong(number)) for _, peer, number in done]
        return []


class Caller:
    """Pings on a timer, for ever; counts what comes back."""

    def __init__(self, server: str) -> None:
        self.server = server
        self.sent = 0
        self.pongs: list[int] = []
        self.lost: list[str] = []
        self.outcomes: list[Any] = []

    def handle(self, fact: Fact) -> list[Effect]:
        match fact:
            case Asked(ticket, "go"):
                return [SetTimer("tick", 0.0), Answer(ticket, None)]
            case Asked(_, ("cas", version)):
                return [CompareAndSet("t", "key", "mine", version)]
            case TimerFired():
                self.sent += 1
                return [Send(self.server, Ping(self.sent)), SetTimer("tick", 0.01)]
            case Received(_, Pong(number)):
                self.pongs.append(number)
            case PeerLost(_, reason):
                self.lost.append(reason)
            case MetadataSeen(_, outcome):
                self.outcomes.append(outcome)
        return []


def world(plan: Plan, **kw: Any) -> tuple[Simulation, Caller]:
    sim = Simulation(plan, transport=PingPairs(), request_timeout_s=1.0, **kw)
    sim.node("server", start=lambda node: void(sim.place("server", "echo", Echo(100 * node.incarnation), listens=True)))
    sim.node("client")
    caller = Caller("echo")
    sim.place("client", "caller", caller)
    sim.ask("caller", "go")
    return sim, caller


def void(_: object) -> None:
    return None


def swarm(seed: int) -> Plan:
    rng = random.Random(f"{seed}/plan")
    faults = draw_faults(rng, servers=["server"], clients=["client"], duration_s=5, kinds=list(FaultKind))
    return Plan(seed=seed, faults=faults)


def hashes(seeds: range) -> list[int]:
    found = []
    for seed in seeds:
        sim, _ = world(swarm(seed))
        sim.run(until_s=8.0)
        found.append(sim.trace_hash)
    return found


def test_the_same_seed_has_the_same_trace_and_another_seed_another() -> None:
    assert hashes(range(20)) == hashes(range(20))
    assert len(set(hashes(range(20)))) == 20


def test_the_trace_does_not_depend_on_the_hash_seed() -> None:
    program = "from tests.simulation.test_kernel import hashes; print(hashes(range(10)))"
    seen = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("0", "1", "4711")
    }
    assert len(seen) == 1


def test_without_faults_everything_is_answered_in_order() -> None:
    sim, caller = world(Plan(seed=1))
    sim.run(until_s=2.0)
    assert caller.pongs == list(range(1, len(caller.pongs) + 1)) and len(caller.pongs) > 150
    assert not caller.lost


def test_a_crash_is_heard_at_once_and_a_power_cut_only_by_the_timeout() -> None:
    sim, caller = world(Plan(seed=1, faults=(Fault(kind=FaultKind.CRASH, at_s=1.0, for_s=0.005, a="server"),)))
    sim.run(until_s=2.0)
    assert caller.lost[0] == "crash" and len(caller.pongs) > 150
    sim, caller = world(Plan(seed=1, faults=(Fault(kind=FaultKind.POWER, at_s=1.0, for_s=5.0, a="server"),)))
    sim.run(until_s=4.0)
    assert set(caller.lost) == {"timeout"}


def test_a_power_cut_may_lose_what_was_not_synced_and_nothing_that_was() -> None:
    lost = 0
    for seed in range(40):
        plan = Plan(seed=seed, faults=(Fault(kind=FaultKind.POWER, at_s=1.0, for_s=0.5, a="server"),))
        sim, caller = world(plan, sync_s=0.02)
        sim.run(until_s=0.9999)
        written = [number for _, number in sim.disk("echo").durable + sim.disk("echo").pending]
        sim.run(until_s=1.4)
        kept = [number for _, number in sim.disk("echo").durable]
        assert kept == written[: len(kept)], "a prefix"
        assert set(caller.pongs) <= set(kept), "what was answered was durable"
        lost += len(written) - len(kept)
    assert lost > 0


def test_a_cut_holds_and_a_pause_queues() -> None:
    for kind in (FaultKind.CUT, FaultKind.PAUSE):
        sim, caller = world(Plan(seed=3, faults=(Fault(kind=kind, at_s=1.0, for_s=0.5, a="server", b="client"),)))
        sim.run(until_s=1.45)
        before = len(caller.pongs)
        assert before < 110
        sim.run(until_s=3.0)
        assert not caller.lost and len(caller.pongs) > 250
        assert caller.pongs == sorted(caller.pongs)


def test_the_kth_message_of_a_link_is_the_one_that_is_dropped() -> None:
    fault = Fault(kind=FaultKind.DROP_KTH, a="client", b="server", count=7, message="Ping")
    sim, caller = world(Plan(seed=3, faults=(fault,)))
    sim.run(until_s=0.5)
    assert 7 not in caller.pongs and caller.pongs[:8] == [1, 2, 3, 4, 5, 6, 8, 9]
    sim.run(until_s=2.0)
    assert caller.lost == ["timeout"]


def test_metadata_conflicts_and_a_lost_reply_leaves_the_write_in_place() -> None:
    sim, caller = world(Plan(seed=3, faults=(Fault(kind=FaultKind.META_REPLY_LOST, at_s=1.0, for_s=9, rate=1.0),)))
    seen = sim.metadata.create("key", "first")
    sim.ask("caller", ("cas", seen.version + 1))
    sim.run(until_s=0.9)
    assert caller.outcomes == [Conflict()] and sim.metadata.values["key"].value == "first"
    sim.run(until_s=1.1)
    sim.ask("caller", ("cas", seen.version))
    sim.run(until_s=1.9)
    assert isinstance(caller.outcomes[1], OutcomeUnknown) and sim.metadata.values["key"].value == "mine"


def test_a_plan_survives_its_text_and_shrinks_to_what_matters() -> None:
    plan = swarm(7)
    assert Plan.from_json(plan.to_json()) == plan and plan.faults
    culprit = plan.faults[-1]
    assert shrink(plan, lambda p: culprit in p.faults).faults == (culprit,)
