"""Draws the plans for the simulated world of one ledger (ledger_world.py): requests, faults, and when they happen.

Styles of plan:
- "swarm": tens of entries, any faults, bursts around recoveries and ensemble changes;
- "scope": one to three entries, every message may be held or lost by its number on its link;
- "churn": many entries under way and bookies that fail one after the other, with metadata that answers badly;
- "frozen": one bookie is paused from before a recovery to the end, and no peer notices; the others fail for a moment
  and are back: the recovery must end long before the request to the paused one times out;
- "orphan": the writer is cut off, paused or dies with entries under way; the tail is searched, then recovered;
- "restored": as "churn" or "orphan", with spare bookies of which some hold another ledger under the same id, as after
  ZooKeeper was restored from a backup; the creator of a ledger has made sure that no member does;
- "racked": as "churn", with bookies in two or three racks, and a placement policy, strict or not; sometimes a rack is
  lost until long after a recovery began, and a recoverer has restarted since and never saw where those bookies stood;
- "regions": as "racked", with regions instead of racks, of which two must hold an entry before it is confirmed; in
  some plans a bookie is moved to another region, and others are left in its own;
- "delayed": as "churn", with a writer that replaces failed members only once too few are left for an ack quorum, or
  after some time; some are lost for good, or hang for good before another one is lost;
- "hung": bookies that answer questions and hang on adds, so that one replacement after the other helps nothing; the
  writer has an ack-quorum timeout;
- "deferred": as "churn", "swarm" or "orphan", of a ledger with deferred sync that is forced now and then, with bookies
  that crash or lose power with what they have not synced;
- "polled": as "swarm" or "told", with entries all along, and a reader that has long polls;
- "explicit": as "calm", and the writer tells the LAC by itself; readers read everything before it closes the ledger;
- "calm": no recovery until the writer is done: after the faults everything must be confirmed (half of "churn" too).
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from tests.simulation.ledger_news import with_news
from tests.simulation.plan import EVERY_KIND, Fault, FaultKind, Plan, draw_faults

WRITER, TAIL, FINDER, RECOVERERS = "w", "t", "f", ("r1", "r2")
QUORUMS = ((3, 3, 2), (3, 3, 2), (3, 2, 2), (4, 3, 2), (5, 3, 2), (5, 5, 3), (3, 3, 3), (2, 2, 1), (3, 2, 1))
MARKS = ("recovery", "ensemble_change", "fenced_cover", "bookie_lost")
STYLES = (
    "swarm",
    "churn",
    "scope",
    "frozen",
    "orphan",
    "told",
    "restored",
    "racked",
    "regions",
    "delayed",
    "hung",
    "deferred",
    "polled",
    "explicit",
    "calm",
)


def draw_plan(seed: int, style: str = "swarm") -> Plan:
    """Draw the plan of a seed."""
    rng = random.Random(f"{style}/{seed}/plan")
    draws = {"swarm": _draw_swarm, "calm": _draw_swarm, "churn": _draw_churn, "scope": _draw_scope}
    draws |= {"frozen": _draw_frozen, "orphan": _draw_orphan, "told": _draw_churn, "restored": _draw_restored}
    draws |= {"deferred": _draw_deferred, "polled": _draw_polled, "explicit": _draw_explicit}
    draws |= {"racked": _draw_racked, "regions": _draw_racked, "delayed": _draw_delayed, "hung": _draw_hung}
    plan = draws[style](seed, rng, style)
    if style == "told":
        plan = with_news(plan, TAIL, rng)
    # the real bookie machine, or the looser model; that alone acknowledges before it syncs
    plan = with_config(plan, real=rng.random() < (0.1 if style == "deferred" else 0.5))
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


def _draw_explicit(seed: int, rng: random.Random, style: str) -> Plan:
    plan = _draw_swarm(seed, rng, "calm")
    polls = {"long_poll_s": rng.choice((0.05, 0.5))} if rng.random() < 0.5 else {}
    return with_config(plan, style=style, explicit_lac_s=rng.choice((0.01, 0.2, 1.0)), **polls)


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
    """Draw a deep window, and members that fail while others are being replaced."""
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
    """Draw few messages; each may be held or lost by its number."""
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
        # a writer that was paused through its own recovery, and bookies that were restarted since
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
    """Draw one member that is silent for ever with open connections; enough others refuse once, or are lost once."""
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
    """Draw a few entries under way, of which the writer misses some acknowledgements, and members that fail."""
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


def _draw_restored(seed: int, rng: random.Random, style: str) -> Plan:
    """Draw spares that hold entries of another ledger under the same id, and members that have to be replaced."""
    plan = rng.choice((_draw_churn, _draw_orphan))(seed, rng, style)
    ensemble = plan.config["quorum"][0]
    bookies = max(plan.config["bookies"], ensemble + 2)
    spares = [f"b{n}" for n in range(ensemble + 1, bookies + 1)]
    held = range(plan.config["entries"] + 3)
    older = {
        name: sorted(rng.sample(held, rng.randint(1, len(held))))
        for name in rng.sample(spares, rng.randint(1, len(spares)))
    }
    members = [f"b{n + 1}" for n in range(ensemble)]
    mark = rng.choice(("", "recovery", "fenced_cover"))
    lost = Fault(
        kind=rng.choice((FaultKind.CRASH, FaultKind.PAUSE)),
        a=rng.choice(members),
        at_s=rng.uniform(0, 0.02),
        for_s=rng.uniform(0.1, 1.0),
        mark=mark,
    )
    return with_config(replace(plan, faults=(*plan.faults, lost)), bookies=bookies, older=older)


def _draw_delayed(seed: int, rng: random.Random, style: str) -> Plan:
    """Draw a plan as "churn"; or members that are gone until long after every entry must have been confirmed without
    them; or until long after they must have been replaced; or one that hangs, and one that is lost later."""
    plan = with_config(_draw_churn(seed, rng, style), delayed_change=True)
    if rng.random() < 0.5:
        return plan
    ensemble, write, ack = rng.choice(((3, 3, 2), (4, 2, 1), (5, 3, 2), (3, 2, 1), (5, 5, 3)))
    lost = write - ack + rng.choice((0, 1, 1))
    faults = [
        Fault(kind=FaultKind.CRASH, at_s=rng.choice((0.0, 0.0005, 0.02)) * rng.random(), for_s=1000.0, a=f"b{number}")
        for number in rng.sample(range(1, ensemble + 1), lost)
    ]
    plan = with_config(
        replace(plan, faults=tuple(faults)),
        quorum=[ensemble, write, ack],
        bookies=ensemble + lost,
        calm=True,
        confirmed_by_s=20.0,
    )
    match rng.choice(("few entries", "replaced", "hung")):
        case "replaced":
            delay_max_s = rng.choice((0.3, 1.0, 2.0))
            return with_config(plan, entries=24, gap_s=0.25, duration_s=6.0, delay_max_s=delay_max_s)
        case "hung":
            hung, later = rng.sample([f"b{number}" for number in range(1, ensemble + 1)], 2)
            faults = [
                Fault(kind=FaultKind.PAUSE, at_s=0.1, for_s=1000.0, a=hung),
                Fault(kind=FaultKind.CRASH, at_s=rng.uniform(5.5, 6.5), for_s=1000.0, a=later),
            ]
            plan = with_config(replace(plan, faults=tuple(faults)), bookies=ensemble + 2, timeout_s=5.0, wait_max_s=3.0)
            return with_config(plan, entries=48, gap_s=0.25, duration_s=12.0, delay_max_s=60.0)
    return plan


def _draw_deferred(seed: int, rng: random.Random, style: str) -> Plan:
    """Draw forces all along, slow disks, and bookies that restart beside them without what was not synced."""
    plan = rng.choice((_draw_churn, _draw_swarm, _draw_orphan))(seed, rng, style)
    duration = plan.config["duration_s"]
    bookies = [f"b{n}" for n in range(1, plan.config["bookies"] + 1)]
    restarts = [
        Fault(
            kind=rng.choice((FaultKind.CRASH, FaultKind.CRASH, FaultKind.POWER)),
            at_s=rng.uniform(0, duration),
            for_s=rng.choice((0.0, 0.001, 0.05)),
            a=rng.choice(bookies),
        )
        for _ in range(rng.randint(0, 4))
    ]
    return with_config(
        replace(plan, faults=(*plan.faults, *restarts)),
        deferred_sync=True,
        sync_s=rng.choice((0.001, 0.01, 0.05)),
        force_at=sorted(rng.uniform(0, duration) for _ in range(rng.choice((1, 3, 10)))),
    )


def _draw_polled(seed: int, rng: random.Random, style: str) -> Plan:
    """Draw entries all along, and how long a poll waits: shorter and longer than the time between two entries."""
    plan = _draw_swarm(seed, rng, style)
    gap_s = plan.config["duration_s"] / plan.config["entries"]
    plan = with_config(plan, gap_s=gap_s, long_poll_s=gap_s * rng.choice((0.5, 3.0, 30.0)))
    return with_news(plan, TAIL, rng) if rng.random() < 0.3 else plan


def _draw_hung(seed: int, rng: random.Random, style: str) -> Plan:
    """Draw bookies of which most hang, for longer than the ack-quorum timeout, and entries all along."""
    ensemble, write, ack = rng.choice(((3, 3, 2), (3, 2, 2), (4, 3, 2), (3, 3, 3)))
    bookies = ensemble + rng.randint(0, 8)
    names = [f"b{i}" for i in range(1, bookies + 1)]
    duration = rng.choice((2.0, 10.0))
    config: dict[str, Any] = {
        "style": style,
        "quorum": [ensemble, write, ack],
        "bookies": bookies,
        "entries": 20,
        "gap_s": duration / 20,
        "payload_max": 20,
        "calm": True,
        "recover_at": [],
        "close": False,
        "duration_s": duration,
        "fifo": True,
        "timeout_s": rng.choice((0.2, 0.5, 5.0)),
        "sync_s": 0.001,
        "digest": "CRC32C",
        "ack_quorum_timeout_s": rng.choice((0.5, 1.0, 2.0)),
    }
    ill = rng.sample(names, rng.randint(ensemble - ack + 1, bookies))
    faults = [
        Fault(
            kind=FaultKind.ENVIRONMENT,
            at_s=rng.uniform(0, duration / 2),
            for_s=rng.choice((0.3, 3.0, 20.0)),
            a=name,
            message="hang",
        )
        for name in ill
    ]
    return Plan(seed=seed, config=config, faults=tuple(faults))


def _draw_racked(seed: int, rng: random.Random, style: str) -> Plan:
    """Draw racks, one of them smaller than the others or as large, and enough spares that a policy matters."""
    plan = _draw_churn(seed, rng, style)
    racks = rng.choice((2, 2, 3))
    bookies = plan.config["bookies"]
    if style == "regions":
        quorum = rng.choice([(e, write, ack) for e, write, ack in QUORUMS if write > 2 or e == write])
        bookies = max(bookies, quorum[0] + rng.choice((0, 1, 2)))
        plan = with_config(plan, quorum=list(quorum), strict=True, min_regions=2)
    small = rng.random() < 0.3 and style == "racked"
    rack_of = {f"b{n}": min(n % (racks + 1), racks - 1) if small else n % racks for n in range(1, bookies + 1)}
    plan = with_config(plan, bookies=bookies, racks=rack_of)
    if style == "racked":
        plan = with_config(plan, strict=rng.random() < 0.5)
    plan = _with_lost_rack(plan, rng) if rng.random() < 0.4 else plan
    return _with_moved_bookie(plan, rng) if style == "regions" and rng.random() < 0.5 else plan


def _with_moved_bookie(plan: Plan, rng: random.Random) -> Plan:
    """Move a bookie to the next region, if every ensemble can still be in two: its region keeps another bookie, and all
    members of an ensemble hold each entry."""
    config, regions = plan.config, plan.config["racks"]
    bookie, (ensemble, write, _) = rng.choice(sorted(regions)), config["quorum"]
    if list(regions.values()).count(regions[bookie]) < 2 or ensemble != write:
        return plan
    at_s = rng.uniform(0, config["duration_s"] / 3)
    move = Fault(kind=FaultKind.ENVIRONMENT, at_s=at_s, for_s=0.001, a=bookie, message="move")
    return replace(plan, faults=(*plan.faults, move))


def _with_lost_rack(plan: Plan, rng: random.Random) -> Plan:
    """Lose all bookies of a rack and the writer with entries under way, then have a recoverer start and recover."""
    config, lost = plan.config, rng.randrange(2)
    at_s = rng.uniform(0, config["duration_s"] / 6)
    begin_s = at_s + rng.uniform(0.01, 0.05)
    names = [*(name for name, rack in config["racks"].items() if rack == lost), WRITER]
    faults = [Fault(kind=FaultKind.CRASH, at_s=at_s, for_s=60.0, a=name) for name in names]
    faults.append(Fault(kind=FaultKind.CRASH, at_s=at_s + 0.005, for_s=0.001, a=RECOVERERS[0]))
    return with_config(
        replace(plan, faults=(*plan.faults, *faults)),
        recover_at=[begin_s],
        calm=False,
        duration_s=begin_s + rng.choice((0.3, 30.0)),
        sync_s=rng.choice((0.001, 0.01)),
    )


def with_config(plan: Plan, **values: Any) -> Plan:
    """The plan with other settings, for named scenarios."""
    return replace(plan, config={**plan.config, **values})
