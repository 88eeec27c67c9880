"""Draws the plans for the simulated world of a cache (cache_world.py): requests, faults, and when they happen.

Styles of plan:
- "swarm": any faults; take-overs, rolls, truncation now and then;
- "roll": segments of a few entries, owners that die, segment numbers that are used again;
- "trim": truncation and deletion all the time, a cache that is almost too small;
- "tail": readers that only read to the present tail, while owners are cut off, or while the proxy is frozen through a
  take-over and has lost its session when it resumes;
- "lives": a stream that is deleted and created again, and readers that come back to positions of this incarnation and
  of earlier ones, or to positions that never existed, while the proxy has contact with metadata or not;
- "moved": segments go to cold storage and are taken back while they are read, and their former copies are deleted;
- "frozen": readers that come while contact with metadata is lost, and a proxy that is frozen before it is back, or soon
  after.
"""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.plan import Fault, FaultKind, Plan

STYLES = ("swarm", "roll", "trim", "tail", "frozen", "moved", "lives")
KINDS = (
    FaultKind.CRASH,  # of the read proxy
    FaultKind.PAUSE,
    FaultKind.CUT,  # from the read proxy to owners
    FaultKind.LOSS,  # of the store's answers
    FaultKind.SLOW,  # the store
    FaultKind.META_CUT,
    FaultKind.META_DELAY,
    FaultKind.META_REPLY_LOST,
    FaultKind.WATCH_LATE,
)
MARKS = ("take_over", "segment_started", "truncated", "rolled", "recovered")


def draw_plan(seed: int, style: str = "swarm") -> Plan:
    """Draw the plan of a seed."""
    rng = random.Random(f"cache/{style}/{seed}/plan")
    duration = rng.choice((0.5, 2.0))
    styles: dict[str, dict[str, float]] = {
        "swarm": {"append": 60, "take_over": 2, "roll": 6, "truncate": 3, "delete": 0.3, "open": 4, "hold": 2},
        "roll": {"append": 30, "take_over": 8, "roll": 10, "truncate": 1, "delete": 0.3, "open": 4, "hold": 1},
        "trim": {"append": 40, "take_over": 1, "roll": 12, "truncate": 10, "delete": 1, "open": 6, "hold": 2},
        "tail": {"append": 40, "take_over": 3, "roll": 3, "truncate": 0.5, "delete": 0, "open": 12, "hold": 1},
        "frozen": {"append": 40, "take_over": 2, "roll": 6, "truncate": 6, "delete": 1, "open": 20, "hold": 0},
        "lives": {"append": 40, "take_over": 4, "roll": 8, "truncate": 0.5, "delete": 1.5, "open": 16, "hold": 0},
        "moved": {
            "append": 40,
            "take_over": 2,
            "roll": 10,
            "truncate": 1,
            "truncate_open": 4,
            "open": 6,
            "hold": 3,
            "relocate": 12,
        },
    }
    weights = styles[style]
    names = sorted(weights)
    count = rng.choice((20, 60, 150))
    script = sorted(
        (rng.uniform(0, duration), rng.choices(names, [weights[n] for n in names])[0]) for _ in range(count)
    )
    config: dict[str, Any] = {
        "style": style,
        "final": rng.random() < 0.3,
        "cache_bytes": rng.choice((300, 2_000, 1 << 20)) if style == "trim" else rng.choice((2_000, 1 << 20)),
        "lag_s": 0.0,  # a read of metadata shows all that was written before the request
        "followers": 0.3 if style == "tail" else 0.7,
        "dead_s": rng.choice((0.01, 0.1, 0.5)),
        "seal": rng.random() < 0.3,
        "duration_s": duration,
        "script": [[round(at_s, 6), op] for at_s, op in script],
    }
    faults = _draw_faults(rng, duration)
    config["unaware"] = rng.choice((0.0, 0.5, 1.0))  # share of deposed owners that do not know it
    config["session_s"] = rng.choice((0.02, 0.2, 10.0))  # a process that is frozen for longer has lost its session
    if style == "tail" and rng.random() < 0.2:
        config |= {"unaware": 1.0, "session_s": 0.02}
        faults = _draw_freezes(rng)
    if style == "lives":
        config |= {"positions": 0.7}
        if rng.random() < 0.5:
            config |= {"duration_s": 2.0, "unaware": 1.0}
            cut = Fault(kind=FaultKind.META_CUT, at_s=rng.uniform(0.05, 0.4), for_s=rng.uniform(0.5, 1.5), a="r")
            faults = rng.choice((_draw_losses(rng), (cut,)))
    if style == "frozen":
        config |= {"session_s": 0.02, "duration_s": 2.0}
        faults = _draw_losses(rng)
    return Plan(seed=seed, config=config, faults=faults)


def _draw_losses(rng: random.Random) -> tuple[Fault, ...]:
    """Lose contact by a cut or a freeze, and freeze the proxy at the moment when contact returns."""
    at_s = rng.uniform(0.1, 0.6)
    lost_s = rng.choice((rng.uniform(0.03, 0.1), rng.uniform(0.5, 1.2)))
    kind, again_s = (
        (FaultKind.PAUSE, rng.uniform(0.0, 0.02)) if lost_s < 0.2 else (FaultKind.META_CUT, rng.uniform(0.02, 0.2))
    )
    frozen_s = rng.uniform(0.3, 1.2) if kind is FaultKind.PAUSE else rng.uniform(0.03, 0.2)
    return (
        Fault(kind=kind, at_s=at_s, for_s=lost_s, a="r"),
        Fault(kind=FaultKind.PAUSE, at_s=at_s + lost_s + again_s, for_s=frozen_s, a="r"),
    )


def _draw_freezes(rng: random.Random) -> tuple[Fault, ...]:
    """Freeze the proxy again and again while its owner is deposed; its session is lost when it resumes."""
    return tuple(
        Fault(
            kind=FaultKind.PAUSE,
            at_s=rng.uniform(0, 0.02),
            for_s=rng.uniform(0.03, 0.3),
            a="r",
            mark="take_over",
            count=count,
        )
        for count in range(1, 6)
    )


def _draw_faults(rng: random.Random, duration: float) -> tuple[Fault, ...]:
    enabled = [kind for kind in KINDS if rng.random() < 0.4]
    if not enabled:
        return ()
    faults = []
    for _ in range(rng.randint(1, 10)):
        kind = rng.choice(enabled)
        mark, count = ("", 1) if rng.random() < 0.6 else (rng.choice(MARKS), rng.randint(1, 3))
        at_s = rng.uniform(0, 0.02 if mark else duration)
        for_s = rng.choice((0.01, 0.1, 0.5)) * rng.uniform(0.5, 2.0)
        rate = {
            FaultKind.LOSS: rng.uniform(0.05, 0.8),
            FaultKind.SLOW: rng.choice((0.02, 0.2)),
            FaultKind.META_DELAY: rng.choice((0.02, 0.3)),
            FaultKind.META_REPLY_LOST: rng.uniform(0.1, 1.0),
            FaultKind.WATCH_LATE: rng.choice((0.05, 1.0)),
        }.get(kind, 0.0)
        faults.append(Fault(kind=kind, at_s=at_s, for_s=for_s, a="r", rate=rate, mark=mark, count=count))
    return tuple(faults)
