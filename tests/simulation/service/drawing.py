"""Draws the plan of a seed for the simulation `service`: a cluster, a load and a list of faults.

Styles:
- quiet: no faults.
- swarm: any kinds of faults at any time.
- burst: faults at the moments of ownership changes, rolls and recoveries.
- scope: a small cluster, few records, faults bound to the k-th message of a link.
- watches: a subscriber whose link ends while its watches are set again, and one to streams that change while it has no
  contact.
- lives: streams are created and deleted under one name, while write proxies freeze.
- starved: every process has too little CPU, and there is no other fault.
- starved-heir: the same, and one of three write proxies dies.
- deletion: streams expire, are truncated, created and deleted, while write proxies do upkeep of streams without an
  owner and bookies collect garbage. Faults hit deletions and collections half way; one plan in four has no faults, and
  two in five restore metadata from a backup before the trial.
- cut-off: one write proxy is cut off from all bookies or all but too few for an ensemble, or from ZooKeeper while
  another one dies.
- cut-reader: one of two read proxies is cut off from ZooKeeper, while the stream rolls every second or two.

The other styles are small clusters with many faults of one family at a time: power and crashes; disks; ZooKeeper and
sessions; planned ends of proxies and lost connections; owners that are deposed, frozen or cut off without knowing it,
with clients that give up early; planned ends without any ZooKeeper event; the same after ZooKeeper was restored from a
backup before the trial.

In one plan of eight of every style but watches, starved, starved-heir, cut-off and cut-reader, half of
ZooKeeper's events or all of them are lost for the whole trial.
"""

from __future__ import annotations

import random
from typing import Any

from tests.simulation.plan import Fault, FaultKind, Plan
from tests.simulation.service import deletions
from tests.simulation.service.bookie_collections import STEPS
from tests.simulation.service.network import WINDOWS_BYTES

STYLES = (
    *("swarm", "burst", "scope", "power", "disk", "metadata", "hand-over", "deposed", "hints", "restored"),
    *("watches", "starved", "starved-heir", "lives", "cut-off", "cut-reader", "quiet", "deletion"),
)

_MARKS = (
    "stream.owned",
    "stream.ready",
    "segment.started",
    "segment.completed",
    "ledger.recovery_started",
    "ledger.recovery_fenced",
    "ensemble.changed",
    "ledger.fenced",
    "proxy.draining",
    "bookie.lost",
)
_ZOOKEEPER = ("expire", "cut_sessions", "stall")
_DISK = ("fsync_error", "disk_full", "slow_disk", "rot")
_PEOPLE = ("hand_over", "clock")
_KINDS: tuple[tuple[FaultKind, str], ...] = (
    (FaultKind.CRASH, ""),
    (FaultKind.POWER, ""),
    (FaultKind.PAUSE, ""),
    (FaultKind.CUT, ""),
    (FaultKind.RESET, ""),
    (FaultKind.SLOW, ""),
    (FaultKind.DROP_KTH, ""),
    (FaultKind.HOLD_KTH, ""),
    (FaultKind.META_REPLY_LOST, ""),
    (FaultKind.META_CUT, ""),
    *((FaultKind.ENVIRONMENT, message) for message in (*_ZOOKEEPER, *_DISK, *_PEOPLE)),
)

_HAND_OVER = (
    (FaultKind.ENVIRONMENT, "hand_over"),
    (FaultKind.ENVIRONMENT, "hand_over"),
    (FaultKind.RESET, ""),
    (FaultKind.PAUSE, ""),
    (FaultKind.DROP_KTH, ""),
)
_FAMILIES: dict[str, tuple[tuple[FaultKind, str], ...]] = {
    "power": ((FaultKind.POWER, ""), (FaultKind.POWER, ""), (FaultKind.CRASH, ""), (FaultKind.CUT, "")),
    "disk": (*((FaultKind.ENVIRONMENT, message) for message in _DISK), (FaultKind.POWER, "")),
    "metadata": (
        (FaultKind.META_REPLY_LOST, ""),
        (FaultKind.META_REPLY_LOST, ""),
        (FaultKind.META_CUT, ""),
        (FaultKind.CRASH, ""),
        *((FaultKind.ENVIRONMENT, message) for message in _ZOOKEEPER),
    ),
    "hand-over": _HAND_OVER,
    "deposed": (
        (FaultKind.META_CUT, ""),
        (FaultKind.PAUSE, ""),
        (FaultKind.RESET, ""),
        (FaultKind.CUT, ""),
        (FaultKind.CUT, ""),
        (FaultKind.CUT, ""),
    ),
    "hints": _HAND_OVER,
    "restored": (*_HAND_OVER, (FaultKind.CRASH, "")),
    "deletion": (
        *((FaultKind.CRASH, ""), (FaultKind.POWER, "")) * 3,
        *((FaultKind.PAUSE, ""), (FaultKind.META_CUT, ""), (FaultKind.META_REPLY_LOST, "")),
        *((FaultKind.ENVIRONMENT, message) for message in (*_ZOOKEEPER, "disk_full", "slow_disk")),
    ),
    "lives": (
        (FaultKind.RESET, ""),
        (FaultKind.CUT, ""),
        (FaultKind.META_REPLY_LOST, ""),
        (FaultKind.HOLD_KTH, ""),
        (FaultKind.CRASH, ""),
    ),
}


def draw(seed: int, style: str) -> Plan:
    """Draw the plan of a seed in a style."""
    rng = random.Random(f"{seed}/{style}/plan")
    small = style in ("scope", *_SPECIAL) or style in _FAMILIES
    quorum = rng.choice(((3, 3, 2), (3, 2, 2), (4, 3, 2), (2, 2, 2), (3, 3, 3)))
    bookies = max(quorum[0] + rng.randint(0, 1), 3)
    config: dict[str, Any] = {
        "style": style,
        "bookies": min(bookies, 5),
        "writers": 2 if small else rng.randint(2, 3),
        "readers": 1 if small else rng.randint(1, 2),
        "clients": 1 if small else rng.randint(1, 2),
        "streams": 1 if small else rng.randint(1, 3),
        "producers": 1 if small else rng.randint(1, 2),
        "duration_s": rng.choice((1.0, 2.0, 4.0)) if small else rng.choice((3.0, 6.0, 12.0)),
        "pace_s": rng.choice((0.02, 0.1, 0.3)) if small else rng.choice((0.02, 0.1, 0.1, 0.4)),
        "batch_max": rng.choice((1, 5)),
        "record_bytes": rng.choice((20, 200, 2000, 6000)),
        "cancels": rng.choice((0.0, 0.0, 0.2)),
        "look_s": rng.choice((0.1, 0.3)) if small else 1.0,
        "truncates": rng.random() < 0.4,
        "drawn": rng.random() < 0.7,
        "session_s": rng.choice((2.0, 4.0, 10.0)),
        "read_deadline_s": 60.0,
        "latency_ms": rng.choice((0.1, 0.3, 2.0)),
        "entry_log_bytes": rng.choice((64 << 10, 1 << 20)),
        "checkpoint_s": rng.choice((1.0, 5.0, 30.0)),
        "settings": {
            "ensemble": quorum[0],
            "write_quorum": quorum[1],
            "ack_quorum": quorum[2],
            "segment_bytes": rng.choice((65_536, 200_000, 10_000_000)),
            "segment_age_s": rng.choice((1.0, 3.0, 3600.0)),
            "retention_s": 0.0,
        },
    }
    if style == "restored" and quorum[0] == 2:
        config["bookies"] = 5  # a new ensemble may have none of the bookies that know a ledger id
    if style == "lives":
        config |= {"lives": True, "duration_s": 12.0}
    chances = (1.0,) if style == "hints" else (0.0,) * 14 + (0.5, 1.0)
    if style == "deletion":
        config |= {"lives": True, "truncates": True, "duration_s": rng.choice((4.0, 8.0)), "checkpoint_s": 1.0}
        config |= {"entry_log_bytes": rng.choice((8 << 10, 32 << 10)), "session_s": rng.choice((2.0, 4.0))}
        config["settings"] |= {"segment_bytes": 65_536, "segment_age_s": 1.0}
        shares = rng.choice(((0.2, 0.5), (0.5, 0.9), (0.9, 0.9)))
        config["collecting"] = {
            "gc_s": rng.choice((0.5, 1.0, 2.0)),
            "gc_look_s": rng.choice((0.1, 0.3)),
            "gc_minor_share": shares[0],
            "gc_major_share": shares[1],
            "gc_major_s": 3.0,
            "gc_bytes_s": rng.choice((10_000, 8 << 20)),  # the first copies in many small parts
        }
        config |= {"deletes": True, "upkeep_s": rng.choice((1.0, 2.0)), "kept_s": rng.choice((2.0, 8.0))}
        config["forgets"] = rng.choice(("", "", "", "stopped", "under bookies"))
        if config["forgets"] == "under bookies" and rng.random() < 0.5:  # no mark since the backup, perhaps
            config["collecting"] |= {"gc_s": 2.0, "gc_look_s": 2.0}
    if style == "deposed":  # its clients give up requests that frozen or cut-off owners do not answer
        config["append_deadline_s"] = rng.choice((0.1, 0.3, 1.0))
        config["writers"] = 3
        config["duration_s"], config["pace_s"] = rng.choice((4.0, 6.0)), 0.1
    config["events_lost"] = random.Random(f"{seed}/{style}/events").choice(chances)
    if style == "watches":
        config |= {"watched": rng.randint(4, 12), "mute_address": rng.random() < 0.2}
        config |= {"events_lost": 0.0, "duration_s": 2.0}
        streams = random.Random(f"{seed}/{style}/streams")
        config |= {"watched_streams": streams.choice((3, 12, 25)), "stream_session_s": streams.choice((1.0, 10.0))}
    if style in ("starved", "starved-heir", "cut-off"):
        config |= {"duration_s": 40.0, "pace_s": 0.3, "drawn": False, "session_s": 10.0, "silence_max_s": 10.0}
        config |= {"events_lost": 0.0, "cancels": 0.0, "truncates": False, "look_s": 5.0}
        config["settings"]["segment_age_s"] = 3600.0
    if style == "starved":  # the network has no faults: Linux receives 128 KiB for a process that does not run
        config |= {"windows_bytes": list(WINDOWS_BYTES[1:]), "suspected_max_s": 10.0}
    if style == "starved-heir":  # a take-over takes long; one that is under way is not begun again by another proxy
        config |= {"windows_bytes": list(WINDOWS_BYTES[1:]), "pace_s": 0.1, "writers": 3}
        config |= {"silence_max_s": 30.0, "takeovers_max": 1}
    if style == "cut-off":
        config |= {"duration_s": 15.0, "pace_s": 0.1, "writers": 3, "silence_max_s": 3.5}
    if style == "cut-reader":
        config |= {"drawn": False, "events_lost": 0.0, "cancels": 0.0, "truncates": False, "readers": 2}
        config |= {"duration_s": 12.0, "pace_s": 0.1, "session_s": 10.0, "record_bytes": 3000, "unheard_max_s": 3.0}
        config["settings"] |= {"segment_bytes": 65_536, "segment_age_s": 3600.0}
    faults = (
        () if style == "quiet" else _SPECIAL[style](rng, config) if style in _SPECIAL else _faults(rng, config, style)
    )
    return Plan(seed=seed, config=config, faults=tuple(faults))


def _rejoins(rng: random.Random, config: dict[str, Any]) -> list[Fault]:
    """A subscriber loses contact for a while, and again when only some of its watches have been set again."""
    faults = []
    for _ in range(rng.randint(1, 3)):
        at_s, for_s = rng.uniform(0.3, config["duration_s"]), rng.uniform(0.2, 1.0)
        cut: dict[str, Any] = {"kind": FaultKind.ENVIRONMENT, "message": "cut_sessions"}
        faults += [
            Fault(**cut, at_s=at_s),
            Fault(kind=FaultKind.META_CUT, a="watcher", at_s=at_s, for_s=for_s),
            Fault(kind=FaultKind.META_CUT, a="stream-watcher", at_s=at_s, for_s=2 * for_s),
            Fault(kind=FaultKind.HOLD_KTH, a="zookeeper", b="watcher", at_s=at_s, count=rng.randint(2, 20), for_s=5.0),
            Fault(**cut, at_s=at_s + for_s + rng.uniform(0.05, 0.5)),
        ]
    return faults


def _starvation(rng: random.Random, config: dict[str, Any]) -> list[Fault]:
    """Give every process a twentieth of a CPU, from some time on to the end."""
    starve = {"kind": FaultKind.ENVIRONMENT, "message": "starve"}
    return [Fault(**starve, at_s=rng.uniform(1.0, 5.0), for_s=config["duration_s"], rate=0.05)]  # type: ignore[arg-type]


def _starved_heir(rng: random.Random, config: dict[str, Any]) -> list[Fault]:
    """Starve every process, and then let a write proxy die, for good."""
    dying = rng.choice([f"writer-{n + 1}" for n in range(config["writers"])])
    return [*_starvation(rng, config), Fault(kind=FaultKind.CRASH, a=dying, at_s=12.0, for_s=config["duration_s"])]


def _cut_off(rng: random.Random, config: dict[str, Any]) -> list[Fault]:
    """Cut one write proxy, any of them, off from so many bookies that the others are too few for an ensemble; or from
    ZooKeeper, while another one dies."""
    lonely, dying, _ = rng.sample([f"writer-{n + 1}" for n in range(config["writers"])], 3)
    at_s, for_s = rng.uniform(1.0, 3.0), config["duration_s"]
    if rng.random() < 0.5:
        left = rng.randrange(config["settings"]["ensemble"])
        bookies = [f"bookie-{n + 1}" for n in range(left, config["bookies"])]
        return [Fault(kind=FaultKind.CUT, a=lonely, b=bookie, at_s=at_s, for_s=for_s) for bookie in bookies]
    return [
        Fault(kind=FaultKind.META_CUT, a=lonely, at_s=at_s, for_s=for_s),
        Fault(kind=FaultKind.CRASH, a=dying, at_s=at_s + rng.uniform(0.1, 1.0), for_s=for_s),
    ]


def _cut_reader(rng: random.Random, config: dict[str, Any]) -> list[Fault]:
    """Cut one of the read proxies off from ZooKeeper for most of the trial."""
    lonely, at_s = rng.choice(("reader-1", "reader-2")), rng.uniform(1.0, 3.0)
    return [Fault(kind=FaultKind.META_CUT, a=lonely, at_s=at_s, for_s=8.0, both=True)]


_SPECIAL = {
    "watches": _rejoins,
    "starved": _starvation,
    "starved-heir": _starved_heir,
    "cut-off": _cut_off,
    "cut-reader": _cut_reader,
}


def _faults(rng: random.Random, config: dict[str, Any], style: str) -> list[Fault]:
    bookies = [f"bookie-{n + 1}" for n in range(config["bookies"])]
    writers = [f"writer-{n + 1}" for n in range(config["writers"])]
    readers = [f"reader-{n + 1}" for n in range(config["readers"])]
    clients = [f"client-{n + 1}" for n in range(config["clients"])]
    if style in _FAMILIES:
        enabled = list(_FAMILIES[style])
    else:
        enabled = [kind for kind in _KINDS if rng.random() < (0.3 if style != "scope" else 0.2)] or [rng.choice(_KINDS)]

    links = [(writers, bookies), (writers, bookies), (readers, bookies), (readers, writers), (clients, writers)]
    if style == "deposed":
        links = [(writers, bookies), *[(clients, writers)] * 4]

    def link() -> tuple[str, str]:
        a, b = rng.choice(links)
        ends = rng.choice(a), rng.choice(b)
        return ends if rng.random() < 0.5 else (ends[1], ends[0])

    def one(at_s: float, mark: str, count: int) -> Fault:
        kind, message = rng.choice(enabled)
        for_s = rng.choice((0.01, 0.1, 1.0)) * rng.uniform(0.5, 4.0)
        a, b = link()
        common: dict[str, Any] = {"kind": kind, "message": message, "at_s": at_s, "mark": mark, "count": count}
        if kind in (FaultKind.CRASH, FaultKind.POWER):
            victim = rng.choice((bookies, bookies, writers, writers, readers, ["zookeeper"]))
            return Fault(**common, a=rng.choice(victim), for_s=for_s)
        if kind is FaultKind.PAUSE:
            victim = rng.choice((bookies, writers, writers, readers, clients, ["zookeeper"]))
            return Fault(**common, a=rng.choice(victim), for_s=for_s * 3)
        if kind is FaultKind.CUT:
            return Fault(**common, a=a, b=b, both=rng.random() < 0.5, for_s=for_s * 3)
        if kind is FaultKind.SLOW:
            return Fault(**common, a=a, b=b, rate=rng.uniform(0, 0.5), for_s=for_s * 3)
        if kind in (FaultKind.DROP_KTH, FaultKind.HOLD_KTH):
            return Fault(**{**common, "count": rng.randint(1, 20)}, a=a, b=b, for_s=for_s * 3)
        if kind is FaultKind.META_CUT:
            return Fault(
                **common, a=rng.choice([*bookies, *writers, *readers]), both=rng.random() < 0.5, for_s=for_s * 3
            )
        if message in _DISK:
            return Fault(**common, a=rng.choice(bookies), for_s=for_s * 2, rate=rng.random())
        if message == "hand_over":
            return Fault(**common, a=rng.choice([*writers, *writers, *readers]))
        if message == "clock":
            return Fault(**common, a=rng.choice([*writers, *bookies]))
        return Fault(**common, a=a, b=b, for_s=for_s * 3)

    if style == "deletion" and rng.random() < 0.25:
        return []
    if style in _FAMILIES:
        faults = []
        for _ in range(rng.randint(1, 4)):  # together: several copies of an entry are hit within moments
            at_s = rng.uniform(0, config["duration_s"])
            faults += [one(at_s + rng.expovariate(1.0) * 0.01, "", rng.randint(1, 3)) for _ in range(rng.randint(1, 4))]
        if style == "deletion":
            if rng.random() < 0.6:  # a deletion is cut short, and the client that requested it dies, too
                at_s, count = rng.choice((0.0, 0.002, 0.01)), rng.randint(1, 6)
                for name in (*writers, deletions.DELETER):
                    died: dict[str, Any] = {"mark": deletions.MARK, "count": count, "at_s": at_s * rng.random()}
                    faults.append(Fault(kind=FaultKind.CRASH, a=name, for_s=rng.uniform(0.1, 2.0), **died))
            if rng.random() < 0.6:  # owners die late and restart at once, and no client uses some of their streams
                at_s = config["duration_s"] * rng.uniform(0.5, 1.0)
                if rng.random() < 0.8:  # one is away until then: the other one claims what the ring would give to it
                    alone: dict[str, Any] = {"a": rng.choice(writers), "at_s": rng.uniform(0.0, 0.5)}
                    faults.append(Fault(kind=FaultKind.CRASH, **alone, for_s=at_s - 1.0))
                for name in writers:
                    faults.append(Fault(kind=FaultKind.CRASH, a=name, at_s=at_s, for_s=rng.uniform(0.02, 0.3)))
            for _ in range(rng.randint(0, 3)):  # owners are frozen while their streams are deleted and buried
                at_s, for_s = rng.uniform(0, config["duration_s"] / 2), rng.uniform(1.0, 6.0)
                faults.append(Fault(kind=FaultKind.PAUSE, a=rng.choice(writers), at_s=at_s, for_s=for_s))
            for _ in range(rng.randint(0, 4)):
                bookie, step = rng.choice(bookies), rng.choice(STEPS)
                kind, at_s = rng.choice((FaultKind.CRASH, FaultKind.POWER)), rng.choice((0.0, 0.0005, 0.002, 0.01))
                where: dict[str, Any] = {"a": bookie, "mark": f"{bookie}.{step}", "count": rng.randint(1, 8)}
                faults.append(Fault(kind=kind, at_s=at_s * rng.random(), for_s=rng.uniform(0.05, 2.0), **where))
        if style == "lives":
            faults += [
                Fault(
                    kind=FaultKind.PAUSE,
                    a=rng.choice(writers),
                    at_s=rng.uniform(0, config["duration_s"]),
                    for_s=rng.uniform(0.3, 3.0),
                )
                for _ in range(rng.randint(4, 12))
            ]
        return faults
    faults = [one(rng.uniform(0, config["duration_s"]), "", rng.randint(1, 3)) for _ in range(rng.randint(1, 10))]
    if style == "burst" or rng.random() < 0.3:
        for _ in range(rng.randint(1, 2)):
            mark, count = rng.choice(_MARKS), rng.randint(1, 6)
            faults += [
                one(rng.choice((0.0, 0.0005, 0.002, 0.02)) * rng.random(), mark, count)
                for _ in range(rng.randint(1, 4))
            ]
    return faults
