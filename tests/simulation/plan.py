"""Plans: what a seed means, as an explicit list that can be printed, stored, replayed and shrunk.

Swarm: each plan enables a random subset of fault kinds. Bursts: a fault with `mark` does not begin at a time but `at_s`
seconds after the run reaches that mark for the `count`-th time (kernel.Simulation.reach), so that faults meet
recoveries, rolls and ensemble changes rather than quiet hours.

Invariants:
- A plan is drawn once, from a random stream of its own, before anything runs.
- What happens inside a run draws from the environment's stream (kernel.py), so removing a fault from a plan changes
  nothing else in it.
"""

from __future__ import annotations

import enum
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any


class FaultKind(enum.Enum):
    """The kinds of faults; `a` and `b` name nodes."""

    CRASH = "crash"  # process of `a` dies, peers learn it at once; restarts after for_s
    POWER = "power"  # host of `a` dies: unsynced writes are lost, peers learn nothing; restarts after for_s
    PAUSE = "pause"  # `a` is paused for for_s: nothing is handled, everything is queued
    CUT = "cut"  # nothing passes from `a` to `b`; held and delivered when healed (both ways if `both`)
    RESET = "reset"  # connections between `a` and `b` are reset
    SLOW = "slow"  # messages from `a` to `b` take `rate` seconds more
    LOSS = "loss"  # messages between any nodes are lost with probability `rate`
    DUPLICATE = "duplicate"  # requests arrive twice with probability `rate`
    DROP_KTH = "drop_kth"  # the `count`-th message of the link a -> b (of `message`, if named) is lost
    HOLD_KTH = "hold_kth"  # the same, but it arrives for_s seconds late
    META_REPLY_LOST = "meta_reply_lost"  # replies of metadata are lost with probability `rate`; writes took place
    META_LATE = "meta_late"  # as above, and a write takes place only some time after its caller gave up
    META_CUT = "meta_cut"  # `a` cannot reach metadata
    META_TOUCH = "meta_touch"  # keys are rewritten unchanged: their versions move
    META_DELAY = "meta_delay"  # answers of metadata come up to `rate` seconds late and show a past state
    ISOLATE = "isolate"  # `a` is cut off from every node and from metadata
    FLAP = "flap"  # the link a-b is cut and mended `count` times, each for for_s
    SLOW_NODE = "slow_node"  # `a` takes `rate` seconds for everything it handles
    SLOW_DISK = "slow_disk"  # each sync of `a` takes `rate` seconds more
    CLOCK = "clock"  # the wall clock of `a` jumps by `rate` seconds, and back after for_s
    WATCH_LATE = "watch_late"  # watches are called up to `rate` seconds late
    ENVIRONMENT = "environment"  # specific to the world; `message` names it


EVERY_KIND = tuple(kind for kind in FaultKind if kind not in (FaultKind.WATCH_LATE, FaultKind.ENVIRONMENT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One fault: from at_s (or at_s after the count-th `mark`) for for_s seconds."""

    kind: FaultKind
    at_s: float = 0.0
    for_s: float = 0.0
    a: str = ""
    b: str = ""
    both: bool = True
    rate: float = 0.0
    count: int = 1
    message: str = ""
    mark: str = ""

    def __str__(self) -> str:
        when = f"{self.mark}+{self.at_s:.4f}" if self.mark else f"{self.at_s:.4f}"
        where = f" {self.a}{'-' if self.b else ''}{self.b}" if self.a else ""
        what = f" {self.message}" if self.message else ""
        return f"{when} {self.kind.value}{where}{what} for={self.for_s:.3f} rate={self.rate:.3f} count={self.count}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One history to run: the settings of the world (`config`, plain JSON values) and its `faults`."""

    seed: int
    config: dict[str, Any] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()

    def to_json(self) -> str:
        """Text that `from_json` reads back, as stored for a regression test."""
        faults = [{k: (v.value if isinstance(v, enum.Enum) else v) for k, v in asdict(f).items()} for f in self.faults]
        return json.dumps({"seed": self.seed, "config": self.config, "faults": faults}, indent=1)

    @staticmethod
    def from_json(text: str) -> Plan:
        raw = json.loads(text)
        faults = tuple(Fault(**{**f, "kind": FaultKind(f["kind"])}) for f in raw["faults"])
        return Plan(seed=raw["seed"], config=raw["config"], faults=faults)


def draw_faults(
    rng: random.Random,
    *,
    servers: Sequence[str],
    clients: Sequence[str],
    duration_s: float,
    kinds: Sequence[FaultKind],
    count_max: int = 12,
    marks: Sequence[str] = (),
    messages: Sequence[str] = (),
) -> tuple[Fault, ...]:
    """Draw faults over `duration_s`: a random subset of `kinds` (swarm), 70 % of them with a burst at a mark.

    servers, clients: node names; links run between the two groups. messages: type names for the indexed kinds.
    """
    enabled = [k for k in kinds if rng.random() < 0.4]
    if not enabled:
        return ()
    everyone = [*servers, *clients]
    faults: list[Fault] = []

    def one(at_s: float, mark: str) -> Fault:
        kind = rng.choice(enabled)
        server, client = rng.choice(servers), rng.choice(clients)
        for_s = rng.choice((0.001, 0.01, 0.1, 1.0)) * rng.uniform(0.5, 4.0)
        a, b = (server, client) if rng.random() < 0.5 else (client, server)
        match kind:
            case FaultKind.CRASH | FaultKind.POWER:
                victim = server if rng.random() < 0.8 else client
                return Fault(kind=kind, at_s=at_s, for_s=for_s, a=victim, mark=mark)
            case FaultKind.PAUSE:
                return Fault(kind=kind, at_s=at_s, for_s=for_s * 3, a=rng.choice(everyone), mark=mark)
            case FaultKind.CUT:
                both = rng.random() < 0.5
                return Fault(kind=kind, at_s=at_s, for_s=for_s * 3, a=a, b=b, both=both, mark=mark)
            case FaultKind.RESET:
                return Fault(kind=kind, at_s=at_s, a=a, b=b, mark=mark)
            case FaultKind.SLOW:
                return Fault(kind=kind, at_s=at_s, for_s=for_s * 4, a=a, b=b, rate=rng.uniform(0, 1.0), mark=mark)
            case FaultKind.DROP_KTH | FaultKind.HOLD_KTH:
                of = rng.choice(messages) if messages and rng.random() < 0.5 else ""
                k = rng.randint(1, 12)
                return Fault(kind=kind, at_s=at_s, for_s=for_s * 5, a=a, b=b, count=k, message=of, mark=mark)
            case FaultKind.META_CUT:
                return Fault(kind=kind, at_s=at_s, for_s=for_s * 2, a=client, mark=mark)
            case FaultKind.META_DELAY:
                return Fault(kind=kind, at_s=at_s, for_s=for_s * 2, rate=rng.choice((0.02, 0.3)), mark=mark)
            case FaultKind.ISOLATE:
                return Fault(kind=kind, at_s=at_s, for_s=for_s * 2, a=rng.choice(everyone), mark=mark)
            case FaultKind.FLAP:
                times = rng.randint(2, 6)
                return Fault(kind=kind, at_s=at_s, for_s=for_s / times, a=a, b=b, count=times, mark=mark)
            case FaultKind.SLOW_NODE:
                rate = rng.choice((0.0005, 0.005, 0.05))
                return Fault(kind=kind, at_s=at_s, for_s=for_s * 2, a=rng.choice(everyone), rate=rate, mark=mark)
            case FaultKind.SLOW_DISK:
                rate = rng.choice((0.01, 0.1, 1.0))
                return Fault(kind=kind, at_s=at_s, for_s=for_s * 2, a=rng.choice(everyone), rate=rate, mark=mark)
            case FaultKind.CLOCK:
                rate = rng.choice((-3600.0, -1.0, 1.0, 3600.0)) * rng.random()
                return Fault(kind=kind, at_s=at_s, for_s=for_s * 2, a=rng.choice(everyone), rate=rate, mark=mark)
            case FaultKind.LOSS | FaultKind.DUPLICATE:
                return Fault(kind=kind, at_s=at_s, for_s=for_s, rate=rng.uniform(0, 0.3), mark=mark)
            case _:
                return Fault(kind=kind, at_s=at_s, for_s=for_s, rate=rng.uniform(0.1, 1.0), a=a, b=b, mark=mark)

    for _ in range(rng.randint(1, count_max)):
        faults.append(one(rng.uniform(0, duration_s), ""))
    if marks and rng.random() < 0.7:
        mark = rng.choice(marks)
        faults.extend(
            one(rng.choice((0.0, 0.0005, 0.002, 0.01)) * rng.random(), mark) for _ in range(rng.randint(1, 5))
        )
    return tuple(faults)


def shrink(plan: Plan, fails: Callable[[Plan], bool], *, runs_max: int = 300) -> Plan:
    """The smallest list of faults (by ddmin) with which `fails` still holds; `plan` itself must fail."""
    faults = list(plan.faults)
    pieces, runs = 2, 0
    while len(faults) >= 1 and runs < runs_max:
        size = max(1, len(faults) // pieces)
        for start in range(0, len(faults), size):
            rest = faults[:start] + faults[start + size :]
            runs += 1
            if fails(replace(plan, faults=tuple(rest))):
                faults, pieces = rest, max(2, pieces - 1)
                break
        else:
            if size == 1:
                break
            pieces = min(len(faults), pieces * 2)
    return replace(plan, faults=tuple(faults))
