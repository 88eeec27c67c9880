"""Draws the plans of the simulated world of a ledger's repair (repair_world.py).

Styles of plan:
- "swarm": any faults while the ledger is written, recovered and repaired, and bookies that go meanwhile;
- "sealed": a short history with few other faults, then bookies are lost and repaired with faults in between;
- "open": as "sealed", and the ledger is still written; members fail for a moment, so that it has several ensembles;
- "scarce": as "sealed", and most of what bookies serve is damaged, so that some entries are not copied; a ledger
  may have few fragments;
- "race": two repairers at once, one of which is paused for long, and metadata that answers badly;
- "cut": as "sealed", and repairers that give up early cannot reach most bookies for some time;
- "moved": as "sealed", and what bookies hold is moved to others and back, while those it was moved from free it;
- "restored": spares of which some hold another ledger under the same id.
"""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.ledger_drawing import RECOVERERS, TAIL, WRITER, with_config
from tests.simulation.plan import EVERY_KIND, Fault, FaultKind, Plan, draw_faults

REPAIRERS = ("p1", "p2")
STYLES = ("swarm", "sealed", "open", "scarce", "race", "cut", "restored", "moved")
# with an ack quorum of 1 no bookie may be lost for good: they are only drained
QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2), (3, 3, 3), (5, 5, 3), (3, 2, 1), (2, 2, 1))
MARKS = ("bookie_gone", "repair_asked", "copied", "repaired_ensemble", "recovery")
REPAIR_MARKS = ("repair_asked", "copied", "repaired_ensemble")
MESSAGES = ("AddEntry", "ReadEntry", "EntryAdded", "EntryRead")


def draw_plan(seed: int, style: str = "swarm") -> Plan:
    """Draw the plan of a seed."""
    rng = random.Random(f"repair/{style}/{seed}/plan")
    ensemble, write, ack = rng.choice(QUORUMS)
    gone = rng.choice((1, 1, 2, 3))
    foreign = rng.choice((1, 1, 2)) if style == "restored" else 0
    bookies = ensemble + gone + 1 + rng.choice((0, 1, 2)) + foreign
    duration = rng.choice((0.1, 0.5, 3.0)) if style == "swarm" else rng.choice((0.1, 0.5))
    entries = rng.choice((3, 12, 40) if style == "swarm" else (3, 8, 20))
    config: dict[str, Any] = {
        "style": style,
        "quorum": [ensemble, write, ack],
        "bookies": bookies,
        "entries": entries,
        "gap_s": rng.choice((0.0, 0.0005, duration / entries)),
        "payload_max": rng.choice((0, 40, 300)),
        "calm": False,
        "recover_at": sorted(rng.uniform(0, duration) for _ in range(rng.choice((0, 1, 1, 2)))),
        "close": rng.random() < 0.4,
        "duration_s": duration,
        "fifo": rng.random() < 0.8,
        "timeout_s": rng.choice((0.05, 0.5, 5.0)),
        "sync_s": rng.choice((0.0002, 0.001)),
        "digest": rng.choice(("CRC32C", "CRC32C", "HMAC", "CRC32")),
        "real": rng.random() < 0.5,
        "gone_at": sorted((rng.uniform(0, duration), rng.random() < 0.5) for _ in range(gone)),
        "repair_at": sorted((rng.uniform(0, duration), name) for name in REPAIRERS for _ in range(2)),
    }
    names = [f"b{i}" for i in range(1, bookies + 1)]
    if style == "restored":
        held = range(entries + 3)
        config["older"] = {
            name: sorted(rng.sample(held, rng.randint(1, len(held)))) for name in rng.sample(names[ensemble:], foreign)
        }
    if style != "swarm":
        config["recover_at"] = [] if style == "open" else [duration * 0.4]
        config["gone_at"] = sorted((duration * rng.uniform(0.3, 0.9), rng.random() < 0.5) for _ in range(gone))
        config["repair_at"] = [(duration * rng.uniform(0.5, 1.0), name) for name in REPAIRERS]
    if style == "race":
        config["recover_at"] = [duration * rng.choice((0.4, rng.uniform(0.5, 1.1)))]
        at_s = duration * rng.uniform(0.6, 1.0)
        config["repair_at"] = [(at_s + rng.choice((0.0, 0.01)) * rng.random(), name) for name in REPAIRERS]
    if style == "scarce":
        config["patience"] = [rng.choice((1, 2)), 0.005]
        config["fragments_max"] = rng.choice((5, 7, 500))
    if style == "moved":
        config["repair_at"] = []
        config["move_at"] = sorted((duration * rng.uniform(0.5, 1.5), rng.choice(REPAIRERS)) for _ in range(12))
        config["look_at"] = sorted(duration * rng.uniform(0.5, 1.6) for _ in range(12))
    if style == "cut":
        config["patience"] = [rng.choice((1, 2)), rng.choice((0.005, 0.05))]
        config["timeout_s"] = 0.05
    draws = {"swarm": _draw_swarm, "sealed": _draw_sealed, "open": _draw_sealed, "scarce": _draw_scarce}
    draws |= {"race": _draw_race, "cut": _draw_cut, "restored": _draw_sealed, "moved": _draw_race}
    faults = draws[style](rng, names, duration)
    if style != "swarm":
        faults += _draw_changes(rng, names, duration, often=style == "open")
    return with_config(Plan(seed=seed, faults=faults), **config)


def _draw_changes(rng: random.Random, names: list[str], duration: float, *, often: bool) -> tuple[Fault, ...]:
    """Draw bookies that the writer loses for a moment, so that it replaces them."""
    faults: list[Fault] = []
    for _ in range(rng.randint(1, 4) if often else rng.choice((0, 0, 1, 2))):
        kind = rng.choice((FaultKind.RESET, FaultKind.CRASH, FaultKind.PAUSE))
        at_s, for_s = rng.uniform(0, duration * (0.9 if often else 0.3)), rng.choice((0.01, 0.1))
        b = WRITER if kind is FaultKind.RESET else ""
        faults.append(Fault(kind=kind, a=rng.choice(names[:4]), b=b, at_s=at_s, for_s=for_s))
    return tuple(faults)


def _draw_swarm(rng: random.Random, names: list[str], duration: float) -> tuple[Fault, ...]:
    faults = draw_faults(
        rng,
        servers=names,
        clients=[WRITER, TAIL, *RECOVERERS, *REPAIRERS, *REPAIRERS],
        duration_s=duration,
        kinds=EVERY_KIND,
        count_max=16,
        marks=MARKS,
        messages=MESSAGES,
    )
    return faults + tuple(_draw_ailment(rng, names, duration) for _ in range(rng.choice((0, 0, 1, 3))))


def _draw_sealed(rng: random.Random, names: list[str], duration: float) -> tuple[Fault, ...]:
    """Draw faults that strike the repair only."""
    faults = [_draw_at_repair(rng, names) for _ in range(rng.randint(0, 5))]
    return (*faults, *(_draw_ailment(rng, names, duration) for _ in range(rng.choice((0, 1, 3)))))


def _draw_scarce(rng: random.Random, names: list[str], duration: float) -> tuple[Fault, ...]:
    """Draw bookies that serve part of what they hold with a wrong digest, from the time of the repair on."""
    rate = rng.choice((0.3, 0.6, 0.9))
    return tuple(
        Fault(
            kind=FaultKind.ENVIRONMENT,
            at_s=duration * 0.5,
            for_s=10.0,
            a=name,
            message="damage",
            rate=rate,
        )
        for name in names
        if rng.random() < 0.8
    )


def _draw_cut(rng: random.Random, names: list[str], duration: float) -> tuple[Fault, ...]:
    """Draw bookies that repairers cannot reach, or that are down, while they work, and a few that serve damage."""
    faults = [_draw_ailment(rng, names, duration) for _ in range(rng.choice((0, 1, 3)))]
    for name in names:
        at_s, for_s = duration * rng.uniform(0.4, 1.0), rng.choice((0.1, 0.5, 2.0))
        kind = rng.choice((FaultKind.CUT, FaultKind.CUT, FaultKind.CRASH, FaultKind.PAUSE))
        if kind is FaultKind.CUT:
            for repairer in REPAIRERS:
                faults.append(Fault(kind=kind, a=repairer, b=name, at_s=at_s, for_s=for_s))
        elif rng.random() < 0.5:
            faults.append(Fault(kind=kind, a=name, at_s=at_s, for_s=for_s))
    return tuple(faults)


def _draw_race(rng: random.Random, names: list[str], duration: float) -> tuple[Fault, ...]:
    """Draw a repairer that is paused while the other one works, and unreliable metadata."""
    faults = [_draw_at_repair(rng, names) for _ in range(rng.randint(0, 2))]
    for _ in range(rng.choice((0, 1, 1, 2))):
        mark, count = rng.choice(REPAIR_MARKS), rng.choice((1, 1, 2, 5))
        pause = Fault(
            kind=FaultKind.PAUSE,
            a=rng.choice(REPAIRERS),
            at_s=rng.uniform(0, 0.004),
            for_s=rng.choice((0.02, 0.3, 1.0)),
            mark=mark,
            count=count,
        )
        faults.append(pause)
    if rng.random() < 0.6:
        kind = rng.choice((FaultKind.META_LATE, FaultKind.META_REPLY_LOST, FaultKind.META_DELAY))
        rate = 0.05 if kind is FaultKind.META_DELAY else rng.choice((0.3, 0.8))
        faults.append(Fault(kind=kind, at_s=rng.uniform(0, duration), for_s=duration, rate=rate))
    if rng.random() < 0.3:
        faults.append(Fault(kind=FaultKind.META_TOUCH, at_s=rng.uniform(0, 0.01), mark="copied"))
    return tuple(faults)


def _draw_at_repair(rng: random.Random, names: list[str]) -> Fault:
    """Draw a fault of a bookie or a repairer while a repair runs."""
    mark, count = rng.choice(REPAIR_MARKS), rng.choice((1, 1, 2, 5))
    at_s, for_s = rng.uniform(0, 0.005), rng.choice((0.005, 0.1, 1.0))
    kind = rng.choice((FaultKind.CRASH, FaultKind.POWER, FaultKind.PAUSE, FaultKind.RESET, FaultKind.META_CUT))
    if kind is FaultKind.META_CUT:
        a, b = rng.choice(REPAIRERS), ""
    elif kind is FaultKind.RESET:
        a, b = rng.choice(names), rng.choice(REPAIRERS)
    else:
        a, b = rng.choice((*names, *names, *REPAIRERS)), ""
    return Fault(kind=kind, a=a, b=b, at_s=at_s, for_s=for_s, mark=mark, count=count)


def _draw_ailment(rng: random.Random, names: list[str], duration: float) -> Fault:
    mark = rng.choice(("", "repair_asked", "copied"))
    return Fault(
        kind=FaultKind.ENVIRONMENT,
        at_s=rng.uniform(0, 0.005 if mark else duration),
        for_s=rng.uniform(0.01, 2.0),
        a=rng.choice(names),
        message=rng.choice(("io_error", "damage", "damage", "read_only")),
        rate=rng.choice((0.05, 0.5, 1.0)),
        mark=mark,
    )
