"""Performance goals as bounds and ratios, and whether a run met them.

Source of the goals: the performance notes, section 6.

Invariants:
- a goal that the run did not measure is reported as not measured, but for a set of goals of which no system ran;
- a ratio is of two figures of the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from loadtest.report.columns import number
from loadtest.report.figures import BREACHES, OURS, Figures, Result

BOOKIES_AND_PROXIES = ("bookie", "write", "read")
PROCESSES = 7  # three bookies, two write and two read proxies


_Where = tuple[str, str, Mapping[str, Any]]  # workload, figure, and values of the cell's shape


@dataclass(frozen=True, slots=True)
class Goal:
    """at_least: the bounds are minima, else maxima. peer: the bounds are for the value of `system` divided by the
    peer's."""

    id: str
    says: str
    workload: str
    base: float
    moonshot: float | None = None
    figure: str = ""
    cell: Mapping[str, Any] = field(default_factory=dict)
    unit: str = ""
    at_least: bool = False
    scale: float = 1.0
    peer: str = ""
    system: str = OURS
    compute: Callable[[Figures], float | None] | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """Result of a goal. met: None if not measured."""

    goal: Goal
    ours: float | None
    theirs: float | None
    ratio: float | None
    met: bool | None
    is_moonshot: bool
    why: str = ""

    @property
    def outcome(self) -> str:
        if self.met is None:
            return f"not measured{f': {self.why}' if self.why else ''}"
        return "moonshot" if self.is_moonshot else "met" if self.met else "MISSED"

    def bound(self, value: float) -> str:
        """A bound as printed."""
        if self.goal.peer:
            return f"≥ {number(value)}x" if self.goal.at_least else f"≤ {number(value)}x"
        return f"{'≥' if self.goal.at_least else '≤'} {number(value)} {self.goal.unit}".strip()


def judged(figures: Figures) -> list[Judged]:
    """Every goal, in order; those of a further set only if one of its systems ran, the first ones only if theirs did or
    no other set is chosen."""
    chosen = [goal for its, goals in FURTHER if not its.isdisjoint(figures.run.systems) for goal in goals]
    has_others = OURS in figures.run.systems or not chosen
    return [_judge(figures, goal) for goal in (*(GOALS if has_others else ()), *chosen)]


def ids() -> set[str]:
    """Of all goals."""
    return {goal.id for goals in (GOALS, *(goals for _, goals in FURTHER)) for goal in goals}


def _judge(figures: Figures, goal: Goal) -> Judged:
    ours, why = _figure(figures, goal, goal.system)
    if ours is None:
        return Judged(goal, None, None, None, None, False, why)
    if not goal.peer:
        value = ours
        theirs = ratio = None
    else:
        theirs, why = _figure(figures, goal, goal.peer)
        if theirs is None or not theirs:
            return Judged(goal, ours, None, None, None, False, why)
        value = ratio = ours / theirs
    met, far = (_reaches(goal, value, bound) for bound in (goal.base, goal.moonshot))
    return Judged(goal, ours, theirs, ratio, met, met and far)


def _reaches(goal: Goal, value: float, bound: float | None) -> bool:
    return bound is not None and (value >= bound if goal.at_least else value <= bound)


def _figure(figures: Figures, goal: Goal, system: str) -> tuple[float | None, str]:
    if goal.compute is not None and system == goal.system:
        value = goal.compute(figures)
        return (
            None if value is None else value * goal.scale
        ), f"{goal.workload or 'no workload'} of {system} was not run"
    result = figures.where(goal.workload, system, **goal.cell)
    if result is None:
        return None, f"{goal.workload} of {system} was not run"
    if result.why:
        return None, f"{system} {result.why}"
    value = result.value(goal.figure)
    return (None if value is None else value * goal.scale), f"{goal.workload} of {system}"


def _share_of_one_log(figures: Figures) -> float | None:
    """Records per second with 10,000 logs over those with one log, in %."""
    one = figures.where("W5", OURS, logs=1)
    many = figures.where("W5", OURS, logs=10_000)
    if one is None or many is None:
        return None
    alone, together = one.value("records_per_s"), many.value("records_per_s")
    return together / alone * 100 if alone and together is not None else None


def _wrong(figures: Figures) -> float | None:
    """Records of dlog that were lost, duplicated, reordered or otherwise wrong, in any round."""
    verdicts = [one["verdict"] for one in figures.run.results if one["system"] == OURS and "verdict" in one]
    return float(sum(int(verdict.get(name) or 0) for verdict in verdicts for name in BREACHES)) if verdicts else None


def _kills(figures: Figures) -> float | None:
    """Processes of dlog killed under load, in rounds that were not void."""
    found = [figures.get(workload, label, OURS) for workload in ("W10", "W12") for label in figures.labels(workload)]
    whole = [figures.get("W13", label, OURS) for label in figures.labels("W13")]
    kills = sum(len(one.gaps_ms) for one in found if one) + PROCESSES * sum(one.rounds for one in whole if one)
    return float(kills) if kills else None


def _resting(figures: Figures) -> float | None:
    """Idle memory, in bytes, of three bookies, a write and a read proxy with one log; from the mean of each role."""
    result = figures.where("W19", OURS, logs=1)
    means = [_mean(result, role) for role in BOOKIES_AND_PROXIES]
    found = [mean * count for mean, count in zip(means, (3, 1, 1), strict=True) if mean is not None]
    return sum(found) if len(found) == len(means) else None


def _mean(result: Result | None, role: str) -> float | None:
    """Bytes per process of a role."""
    if result is None:
        return None
    whole, processes = result.value(f"usage.{role}.rss_bytes"), result.value(f"usage.{role}.processes")
    return whole / processes if whole is not None and processes else None


def _loaded(figures: Figures) -> float | None:
    """Peak memory, in bytes, of all bookies and proxies under the maximum load of small records."""
    return _parts(figures.where("W3", OURS, record_bytes=100), "rss_peak_bytes")


def _parts(result: Result | None, figure: str) -> float | None:
    if result is None:
        return None
    values = [result.value(f"usage.{role}.{figure}") for role in BOOKIES_AND_PROXIES]
    found = [value for value in values if value is not None]
    return sum(found) if len(found) == len(values) else None


def _append_beyond(figures: Figures) -> float | None:
    """p50 of one append in flight to a stream on Kafka, beyond 1.3 times that of a bare producer, in ms."""
    found = [figures.where("W1", name, **_B100) for name in ("dlog-kafka", BARE)]
    ours, theirs = (None if one is None else one.value("response_ms.p50") for one in found)
    return None if ours is None or theirs is None else ours - 1.3 * theirs


def _search_growth(figures: Figures) -> float | None:
    """p50 of a search among 10^6 objects, divided by that among 10^3."""
    found = [figures.where("W30", METADATA, objects=objects) for objects in (1_000_000, 1000)]
    many, few = (None if one is None else one.value("p50_us") for one in found)
    return many / few if many is not None and few else None


def _up(goal: str, says: str, where: _Where, base: float, moonshot: float, unit: str = "", peer: str = "") -> Goal:
    workload, figure, cell = where
    return Goal(*(goal, says, workload, base, moonshot), figure=figure, cell=cell, unit=unit, peer=peer, at_least=True)


def _down(goal: str, says: str, where: _Where, base: float, moonshot: float, unit: str = "", peer: str = "") -> Goal:
    workload, figure, cell = where
    return Goal(*(goal, says, workload, base, moonshot), figure=figure, cell=cell, unit=unit, peer=peer)


_B100 = {"record_bytes": 100}
_W1: _Where = ("W1", "response_ms.p50", _B100)
_W2 = {"rate": 20_000, "record_bytes": 100}
_W3_100: _Where = ("W3", "records_per_s", _B100)
_W3_1K: _Where = ("W3", "mb_per_s", {"record_bytes": 1024})
_W4: _Where = ("W4", "mb_per_s", {"batch_bytes": 102400})
_W8: _Where = ("W8", "catch_up_mb_per_s", {})
_W10: _Where = ("W10", "gap_p50_ms", {})
_W20: _Where = ("W20", "records_per_s", {})
_CPU: _Where = ("W4", "cpu_s_per_gb_with_generators", {"batch_bytes": 102400})
GOALS: tuple[Goal, ...] = (
    _up("G1", "100 B records, not batched by the application, one log", _W3_100, 500e3, 1.2e6, "records/s"),
    _up("G1", "the same against BookKeeper", _W3_100, 7, 15, peer="bookkeeper"),
    _up("G1", "the same against NATS without sync", _W3_100, 5, 10, peer="nats-default"),
    _up("G2", "1 KiB records", _W3_1K, 150, 300, "MB/s"),
    _up("G2", "the same against BookKeeper", _W3_1K, 3, 6, peer="bookkeeper"),
    _up("G2", "the same against NATS without sync", _W3_1K, 4, 8, peer="nats-default"),
    _up("G3", "batches of 100 KiB", _W4, 180, 330, "MB/s"),
    _up("G3", "the same against BookKeeper", _W4, 3, 5, peer="bookkeeper"),
    _up("G4", "the same against Kafka's default, which does not sync", _W4, 0.7, 1.2, peer="kafka-default"),
    _up("G4", "the same against Kafka with flush.messages=1", _W4, 2, 5, peer="kafka"),
    _down("G5", "one append in flight, p50", _W1, 0.8, 0.45, "ms"),
    _down("G5", "the same against BookKeeper", _W1, 1 / 3, 0.2, peer="bookkeeper"),
    _down("G6", "open loop of 20,000/s, p99", ("W2", "response_ms.p99", _W2), 5, 2.5, "ms"),
    _down("G6", "open loop of 20,000/s, p99.9", ("W2", "response_ms.p99.9", _W2), 15, 6, "ms"),
    _down("G7", "tail: delivery p99 minus append p99", ("W6", "tail_extra_p99_ms", {"rate": 20_000}), 2, 0.5, "ms"),
    _down("G8", "owner killed: ack gap, p50", _W10, 400, 60, "ms"),
    _down("G8", "owner killed: ack gap, greatest", ("W10", "gap_max_ms", {}), 1500, 250, "ms"),
    _down("G8", "the p50 against NATS", _W10, 1 / 5, 1 / 100, peer="nats"),
    _down("G8", "the p50 against Kafka", _W10, 1 / 8, 1 / 100, peer="kafka"),
    _down("G9", "owner frozen: ack gap, greatest", ("W11", "gap_max_ms", {}), 3000, 700, "ms"),
    _down("G10", "planned hand-over: ack gap, greatest", ("W21", "gap_max_ms", {}), 100, 15, "ms"),
    _down(
        "G11",
        "everything killed and restarted: first append (less data on disk than the goal's 10 GB)",
        ("W13", "first_append_s", {}),
        5,
        1,
        "s",
    ),
    _up("G13", "one stream to 50 readers", ("W7", "delivered_mb_per_s", {"readers": 50}), 250, 500, "MB/s out"),
    _down("G13", "delivery to 50 readers, p99", ("W7", "delivery_ms.p99", {"readers": 50}), 20, 20, "ms"),
    _up("G14", "catch-up read of 1 KiB records", _W8, 150, 400, "MB/s"),
    _up("G14", "the same against BookKeeper", _W8, 5, 10, peer="bookkeeper"),
    _down("G15", "append p99 during a catch-up read", ("W8", "p99_disturbed_over_undisturbed", {}), 2, 1.2, "x alone"),
    Goal("G16", "10,000 logs against one, records/s", "W5", 70, 90, unit="%", at_least=True, compute=_share_of_one_log),
    _down("G16", "memory per open log", ("W19", "bytes_per_log", {"logs": 10_000}), 20_000, 6000, "bytes"),
    Goal("G17", "memory at rest, 3 bookies and 2 proxies", "W19", 200, 130, unit="MB", scale=1e-6, compute=_resting),
    Goal("G17", "memory under load (W3, 100 B)", "W3", 600, 350, unit="MB", scale=1e-6, compute=_loaded),
    _down("G18", "cold start until ready, ZooKeeper included", ("W19", "start_s", {"logs": 1}), 2, 0.5, "s"),
    _up("G19", "asyncio client, one awaited append per record, 256 tasks", _W20, 60e3, 120e3, "records/s"),
    _up("G19", "the same against nats-py", _W20, 1.4, 2.5, peer="nats-default"),
    _down("G20", "CPU-seconds per GB in batches of 100 KiB, all processes", _CPU, 7, 4, "s/GB"),
    Goal("G21", "records lost, repeated, reordered, misplaced, early or invented", "", 0, 0, compute=_wrong),
    Goal("G21", "processes killed under load in the same run", "", 1, 100, at_least=True, compute=_kills),
)


# ---- regions, and streams on Kafka -----------------------------------------------------------------------------------

BARE = "kafka-aiokafka"
KAFKA_SYSTEMS = frozenset({"dlog-region", "dlog-directory", "dlog-kafka"})


def _on_kafka(goal: str, says: str, system: str, where: _Where, base: float, *, peer: str = BARE, up: bool) -> Goal:
    workload, figure, cell = where
    return Goal(goal, says, workload, base, figure=figure, cell=cell, peer=peer, system=system, at_least=up)


def _kill_goal(says: str, figure: str, most_ms: float) -> Goal:
    return Goal("K6", says, "W10", most_ms, figure=figure, unit="ms", system="dlog-kafka")


KAFKA_GOALS: tuple[Goal, ...] = (
    *(
        _on_kafka(
            "K1",
            f"region write, 1 KiB records in batches of 256 KiB, {tables} table{'s' if tables > 1 else ''}, against a "
            "bare producer",
            "dlog-region",
            ("W23", "mb_per_s", {"tables": tables}),
            least,
            up=True,
        )
        for tables, least in ((1, 0.85), (100, 0.8))
    ),
    _on_kafka(
        "K2",
        "region scan, 1 KiB records, against a bare consumer",
        "dlog-region",
        ("W24", "scan_mb_per_s", {}),
        0.6,
        up=True,
    ),
    Goal(
        "K3",
        "region of 2,000,000 records opened after a crash, snapshot over none",
        "W25",
        1 / 8,
        figure="open_ratio",
        system="dlog-region",
        unit="x",
    ),
    _on_kafka(
        "K4",
        "topics in a directory, one batch of 256 KiB in flight, p50, against write and fdatasync",
        "dlog-directory",
        ("W26", "response_ms.p50", {}),
        1.5,
        peer="file",
        up=False,
    ),
    _on_kafka(
        "K5",
        "stream on Kafka, 1 KiB records handed over one by one, against a bare producer",
        "dlog-kafka",
        ("W3", "mb_per_s", {"record_bytes": 1024}),
        0.8,
        up=True,
    ),
    Goal(
        "K5",
        "stream on Kafka, one append in flight, p50 beyond 1.3 times that of a bare send_and_wait",
        "W1",
        1.0,
        unit="ms",
        system="dlog-kafka",
        compute=_append_beyond,
    ),
    _kill_goal("stream on Kafka, owner killed: ack gap, p50", "gap_p50_ms", 600),
    _kill_goal("stream on Kafka, owner killed: ack gap, greatest", "gap_max_ms", 2000),
    _on_kafka(
        "K7",
        "leader broker killed: ack gap, p50, against a bare producer",
        "dlog-kafka",
        ("W27", "gap_p50_ms", {}),
        1.25,
        up=False,
    ),
)


# ---- streams on S3 ---------------------------------------------------------------------------------------------------

BARE_S3, DIRECT, S3, LEDGER, METADATA = "s3-aiobotocore", "dlog-s3-direct", "dlog-s3", "dlog-ledger", "dlog-metadata"
FAST = DIRECT + "-fast"
DELAYED = "-delayed"  # the variants with 100 ms added to a PUT and 30 ms to a GET
S3_SYSTEMS = frozenset({DIRECT, DIRECT + DELAYED, FAST, FAST + DELAYED, S3, S3 + DELAYED, METADATA})
_SLOW = "with 100 ms a PUT and 30 ms a GET"
_SUFFIXES = {"": "", DELAYED: f", {_SLOW}"}
_W2_S3: _Where = ("W2", "response_ms.p99", {"rate": 10_000, "record_bytes": 1024})


def _s3(
    goal: str, says: str, system: str, where: _Where, base: float, *, peer: str = "", unit: str = "", up: bool = False
) -> Goal:
    workload, figure, cell = where
    return Goal(goal, says, workload, base, figure=figure, cell=cell, peer=peer, system=system, at_least=up, unit=unit)


def _s3_both(
    goal: str, says: str, system: str, where: _Where, base: float, *, peer: str = "", unit: str = "", up: bool = False
) -> tuple[Goal, Goal]:
    """The goal without delays, and with them; a bare peer has the same delays."""
    plain, slow = (
        _s3(
            goal,
            f"{says}{more}",
            system + suffix,
            where,
            base,
            peer=peer + suffix if peer == BARE_S3 else peer,
            unit=unit,
            up=up,
        )
        for suffix, more in _SUFFIXES.items()
    )
    return plain, slow


S3_GOALS: tuple[Goal, ...] = (
    _s3("S1", "s3-direct, one append in flight, p50, against a bare PUT", DIRECT, _W1, 1.5, peer=BARE_S3),
    _s3(
        "S1",
        f"s3-direct, one append in flight, p50, against a bare PUT, {_SLOW}",
        DIRECT + DELAYED,
        _W1,
        1.1,
        peer=BARE_S3 + DELAYED,
    ),
    *_s3_both(
        "S2",
        "s3-direct, batches of 100 KiB, MB/s, against bare PUTs of 8 MiB, as many at once",
        FAST,
        ("W28", "mb_per_s", {}),
        0.6,
        peer=BARE_S3,
        up=True,
    ),
    *_s3_both(
        "S3", "s3, log on ledgers, one append in flight, p50, against the store ledger", S3, _W1, 1.25, peer=LEDGER
    ),
    *_s3_both(
        "S3",
        "s3, log on ledgers, batches of 100 KiB, MB/s, against the store ledger",
        S3,
        _W4,
        0.7,
        peer=LEDGER,
        up=True,
    ),
    *_s3_both(
        "S3",
        "s3, log on ledgers, p99 of 10 MB/s while it uploads, against the store ledger",
        S3,
        _W2_S3,
        2,
        peer=LEDGER,
    ),
    *_s3_both("S4", "1,000 streams, 10 MB/s in all: PUTs", S3, ("W29", "puts_per_s", {}), 2, unit="PUT/s"),
    *_s3_both("S4", "1,000 streams, 10 MB/s in all: requests", S3, ("W29", "requests_per_gib", {}), 120, unit="a GiB"),
    *(
        goal
        for system in (S3, DIRECT)
        for goal in _s3_both(
            "S5",
            f"catch-up read of {system.removeprefix('dlog-')} through a proxy, MB/s, against bare reads of 8 MiB, four "
            "at once",
            system,
            ("W24", "scan_mb_per_s", {}),
            0.5,
            peer=BARE_S3,
            up=True,
        )
    ),
    _s3("S6", "search in 10^6 objects, p50", METADATA, ("W30", "p50_us", {"objects": 1_000_000}), 30, unit="µs"),
    _s3("S6", "search in 10^6 objects, p99", METADATA, ("W30", "p99_us", {"objects": 1_000_000}), 1000, unit="µs"),
    Goal("S6", "search in 10^6 objects over 10^3, p50", "W30", 2, unit="x", system=METADATA, compute=_search_growth),
    _s3("S7", "image of 10^6 objects: memory", METADATA, ("W31", "image_mb", {}), 200, unit="MB"),
    _s3("S7", "image of 10^6 objects: loaded in", METADATA, ("W31", "load_s", {}), 3, unit="s"),
    _s3("S7", "records applied to an image", METADATA, ("W31", "applied_per_s", {}), 50_000, unit="records/s", up=True),
    *(
        _s3(
            "S8",
            f"commit of {streams:,} stream{'s' * (streams > 1)} over an append of the same bytes, p50",
            S3,
            ("W32", "ratio", {"logs": streams}),
            2,
            unit="x",
        )
        for streams in (1, 1000)
    ),
    *_s3_both("S9", "node killed, 1,000 streams: written again, p50", S3, ("W33", "written_p50_s", {}), 1.5, unit="s"),
    *_s3_both("S9", "node killed, 62 MB not uploaded: all uploaded", S3, ("W33", "uploaded_s", {}), 30, unit="s"),
    _s3("S10", "recovery of 100,000 chunks: requests one after another", METADATA, ("W34", "turns", {}), 40),
)


# ---- bookies ---------------------------------------------------------------------------------------------------------

REPAIR, JAVA_REPAIR = "dlog-recovery", "bookkeeper-recovery"


def _repair(says: str, figure: str, base: float, moonshot: float | None = None, **more: Any) -> Goal:
    return Goal("G12", says, "W35", base, moonshot, figure=figure, system=REPAIR, **more)


REPAIR_GOALS: tuple[Goal, ...] = (
    _repair("copies of a lost bookie made again", "repair_mb_per_s", 100, 300, unit="MB/s", at_least=True),
    _repair("the same against Java's AutoRecovery", "repair_mb_per_s", 1, peer=JAVA_REPAIR, at_least=True),
    _repair("rate of the copies over that of a copy of files", "repair_over_copy", 0.3, unit="x", at_least=True),
    _repair("append p99 while copies are made", "p99_disturbed_over_undisturbed", 2, unit="x before"),
)

LEDGER_CLIENT = "dlog-ledger-client"


def _one_ledger(goal: str, size: str, record_bytes: int, figure: str, base: float, window: int) -> Goal:
    says = f"one ledger, entries of {size}, {window:,} in flight, against BookKeeper"
    cell = {"record_bytes": record_bytes, "window": window}
    system = LEDGER_CLIENT
    return Goal(goal, says, "W36", base, figure=figure, cell=cell, peer="bookkeeper", system=system, at_least=True)


LEDGER_GOALS: tuple[Goal, ...] = tuple(
    _one_ledger(*goal, window)
    for goal in (
        ("B1", "100 B", 100, "records_per_s", 1.0),
        ("B2", "1 KiB", 1024, "mb_per_s", 1.5),
        ("B2", "16 KiB", 16384, "mb_per_s", 1.5),
    )
    for window in (256, 1024)
)

BOOKIE, JAVA_BOOKIE = "dlog-bookie", "bookkeeper-bookie"


def _bookie(goal: str, says: str, figure: str, base: float, unit: str, scale: float = 1.0) -> Goal:
    return Goal(goal, says, "W37", base, figure=figure, unit=unit, scale=scale, peer=JAVA_BOOKIE, system=BOOKIE)


BOOKIE_GOALS: tuple[Goal, ...] = (
    _bookie("B3", "a full bookie started after kill -9, until an entry is read, against Java's", "restart_s", 0.5, "s"),
    _bookie("B4", "memory of a full bookie, against Java's", "full_rss_bytes", 0.25, "MB", 1e-6),
    _bookie("B4", "memory of a full bookie after its start, against Java's", "restarted_rss_bytes", 0.25, "MB", 1e-6),
)

#: sets of goals, and the systems that they are of
FURTHER = (
    (frozenset({REPAIR}), REPAIR_GOALS),
    (frozenset({LEDGER_CLIENT}), LEDGER_GOALS),
    (frozenset({BOOKIE}), BOOKIE_GOALS),
    (KAFKA_SYSTEMS, KAFKA_GOALS),
    (S3_SYSTEMS, S3_GOALS),
)
