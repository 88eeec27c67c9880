"""Draws the plans of the room `auditor`.

Styles of plan:
- "swarm": any faults, among them lost disks, planned restarts and a decommission;
- "lost": disks are lost, and recovery processes die, freeze and lose their sessions meanwhile;
- "race": bookies go again while a worker is about to delete a mark;
- "deposed": processes freeze past their session, and ZooKeeper's answers are lost, so that two may audit at once;
- "paused": planned restarts, some of which take longer than announced;
- "decommission": a bookie is taken out, and comes back meanwhile or afterwards;
- "bad": a ledger whose metadata, and a mark, cannot be decoded, and one that nobody can serve; disks are lost;
- "emptied": bookies come back with an empty disk before anybody takes them for lost.
"""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.plan import Fault, FaultKind, Plan

STYLES = ("swarm", "lost", "race", "deposed", "paused", "decommission", "bad", "emptied")
RECOVERY = ("recovery-1", "recovery-2", "recovery-3")
QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2))
MARKS = ("marked", "locking", "repaired", "verified", "completing", "unmarked", "auditor.elected", "bookie.missing")

_PROCESSES = (FaultKind.CRASH, FaultKind.PAUSE, FaultKind.META_CUT, FaultKind.SLOW)
_METADATA = ("meta_reply_lost", "expire", "cut_sessions", "stall")
_BOOKIES = ("lose_disk", "crash_bookie", "freeze_bookie", "planned_restart", "empty_disk", "cut_bookie")


def draw_plan(seed: int, style: str = "swarm") -> Plan:
    """Draw the plan of a seed."""
    rng = random.Random(f"auditor/{style}/{seed}/plan")
    ensemble, write, ack = rng.choice(QUORUMS)
    duration = rng.choice((4.0, 8.0, 16.0))
    config: dict[str, Any] = {
        "style": style,
        "quorum": [ensemble, write, ack],
        "bookies": ensemble + rng.choice((2, 3)),
        "recovery": 2 if rng.random() < 0.8 else 3,
        "writers": rng.choice((1, 2)),
        "ledgers": rng.choice((2, 3, 4)),  # of each writer
        "entries": rng.choice((1, 4, 10)),
        "deletes": rng.choice((0.0, 0.2, 0.4)),
        "leaves_open": rng.choice((0.0, 0.2)),
        "close_after_s": rng.choice((0.0, 4.0)),  # wait of the process that recovers the open ledgers in the end
        "duration_s": duration,
        "session_s": rng.choice((2.0, 4.0)),
        "lost_after_s": rng.choice((0.5, 1.0, 2.0)),
        "look_s": 0.5,
        "check_s": rng.choice((4.0, 10.0)),
        "compare_s": rng.choice((1.5, 4.0)),
        "workers": rng.choice((1, 2)),
        "open_grace_s": rng.choice((0.5, 2.0)),
        "lists": rng.random() < 0.3,  # one bookie serves no summaries, as Java's
        "held_s": {},  # by the number of a completion of a mark, for how long its worker is frozen before
        "scan_held_s": 0.0,  # for which a decommission is frozen in a scan
        "decommission_at_s": -1.0,
        "decommission_cut_s": 0.0,
        "events_lost": rng.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.5, 1.0)),
        "bad": style == "bad",
        "latency_ms": rng.choice((0.2, 1.0)),
    }
    if style == "decommission" or (style == "swarm" and rng.random() < 0.4):
        config["bookies"] += 1
        config["decommission_at_s"] = duration * rng.uniform(0.1, 0.6)
        if rng.random() < 0.3:
            config["decommission_cut_s"] = rng.choice((6.0, 12.0))
    return Plan(seed=seed, config=config, faults=tuple(_faults(rng, style, config)))


def _faults(rng: random.Random, style: str, config: dict[str, Any]) -> list[Fault]:
    duration = config["duration_s"]
    recovery = RECOVERY[: config["recovery"]]
    bookies = [f"bookie-{number + 1}" for number in range(config["bookies"])]

    def at() -> float:
        return float(rng.uniform(0.1, 1.0) * duration)

    def on(message: str, **options: Any) -> Fault:
        chosen = {"at_s": at(), "for_s": rng.choice((0.3, 1.0, 3.0, 6.0)), "a": rng.choice(bookies), **options}
        return Fault(kind=FaultKind.ENVIRONMENT, message=message, **chosen)

    def of(kind: FaultKind, **options: Any) -> Fault:
        chosen = {"at_s": at(), "for_s": rng.choice((0.3, 1.0, 3.0, 6.0)), "a": rng.choice(recovery), **options}
        if kind is FaultKind.SLOW:
            chosen |= {"b": "zookeeper", "rate": rng.choice((0.5, 3.0))}
        return Fault(kind=kind, **chosen)

    def metadata() -> Fault:
        return on(rng.choice(_METADATA), count=rng.randint(1, 3), a="", for_s=rng.uniform(0.1, 3.0))

    def anything() -> Fault:
        choice = rng.random()
        if choice < 0.35:
            return of(rng.choice(_PROCESSES))
        return metadata() if choice < 0.6 else on(rng.choice(_BOOKIES))

    def burst() -> list[Fault]:
        """Faults of one kind of moment."""
        mark, count = rng.choice(MARKS), rng.randint(1, 3)
        made = [anything() for _ in range(rng.randint(1, 2))]
        return [_at_mark(fault, mark, count, rng) for fault in made]

    faults: list[Fault] = []
    match style:
        case "lost":
            config["leaves_open"] = rng.choice((0.3, 0.6))
            faults += [on("lose_disk") for _ in range(rng.randint(1, 2))]
            faults += [of(rng.choice(_PROCESSES)) for _ in range(rng.randint(0, 3))]
            faults += [metadata() for _ in range(rng.randint(0, 2))]
            if rng.random() < 0.5:
                faults.append(_at_mark(on("delete_marked", a=""), "marked", rng.randint(1, 2), rng))
        case "race":
            config |= {"lost_after_s": 0.5, "duration_s": duration + 8.0}
            faults += [on("crash_bookie", at_s=at() / 2, for_s=rng.uniform(2.0, 6.0)) for _ in range(rng.randint(1, 3))]
            faults += [on("empty_disk", for_s=0.1) for _ in range(rng.randint(0, 2))]
            for number in range(1, 4):
                config["held_s"][str(rng.randint(1, 6))] = rng.uniform(1.5, 4.0)
                again = on(rng.choice(("crash_marked", "crash_marked", "lose_marked")), for_s=rng.uniform(3.0, 8.0))
                faults.append(_at_mark(again, "held", number, rng))
        case "deposed":
            faults += [on(rng.choice(("lose_disk", "crash_bookie"))) for _ in range(rng.randint(1, 2))]
            faults += [of(rng.choice((FaultKind.PAUSE, FaultKind.META_CUT))) for _ in range(rng.randint(1, 3))]
            faults += [metadata() for _ in range(rng.randint(1, 3))]
            if rng.random() < 0.3:
                faults.append(on("expire_voters", a=""))
            if rng.random() < 0.7:
                faults += [_at_mark(on("lose_reply", a=""), "locking", count, rng) for count in (1, 2, 4)]
        case "paused":
            config["duration_s"] += 8.0
            faults += [on("planned_restart", for_s=rng.choice((1.0, 4.0, 9.0))) for _ in range(rng.randint(1, 3))]
            faults += [anything() for _ in range(rng.randint(0, 2))]
        case "decommission":
            faults += [on("return", a="") for _ in range(rng.randint(0, 2))]
            if rng.random() < 0.7:
                config["scan_held_s"] = 1.5
                back = on("return", a="", for_s=rng.choice((0.2, 0.5, 3.0)), at_s=rng.uniform(0.0, 1.0))
                faults.append(_at_mark(back, "last_scan", rng.choice((1, 1, 2)), rng))
            faults += [anything() for _ in range(rng.randint(0, 2))]
        case "bad":
            faults += [on("empty_disk"), *(on("lose_disk") for _ in range(rng.randint(0, 2)))]
            faults += [anything() for _ in range(rng.randint(0, 2))]
        case "emptied":
            faults += [on("empty_disk", for_s=rng.uniform(0.05, 0.4)) for _ in range(rng.randint(1, 3))]
            faults += [anything() for _ in range(rng.randint(0, 2))]
        case _:
            faults += [anything() for _ in range(rng.randint(1, 6))]
    if rng.random() < 0.5:
        faults += burst()
    if rng.random() < 0.2:
        others = ["writer-1", "operator"] if config["decommission_at_s"] >= 0 else ["writer-1"]
        faults.append(of(FaultKind.CRASH, a=rng.choice(others)))
    return faults


def _at_mark(fault: Fault, mark: str, count: int, rng: random.Random) -> Fault:
    delay_s = fault.at_s if mark == "last_scan" else rng.choice((0.0, 0.0, 0.002, 0.05)) * rng.random()
    return Fault(**{**{f: getattr(fault, f) for f in fault.__slots__}, "mark": mark, "count": count, "at_s": delay_s})
