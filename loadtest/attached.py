"""`python -m loadtest append|await|fan|failover|freeze|handover|away|starved|heirs`: a quick look at one cluster.

The first six are workloads, run once on the cluster that `dlog` finds; `failover`, `freeze` and `handover` have the
goals of their workloads. `heirs` starts its own cluster. Host conditions void nothing: published figures come from
`python -m loadtest W1,W2,...`, except those of outages.

Invariants:
- figures are printed only after the checker has passed every record and every append has succeeded.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import dlog
from dlog.cli.discovery import RunningCluster, find_running, target
from dlog.errors import DLogError
from loadtest import outages, spec
from loadtest.command import pair
from loadtest.report.goals import GOALS
from loadtest.runner import Plan, Runner
from loadtest.systems.base import CannotRunError, Durability, Variant
from loadtest.systems.dlog import Dlog

WORKLOADS: Mapping[str, tuple[str, Mapping[str, str]]] = {  # workload, and what is changed of it
    "append": ("W3", {"record_bytes": "100"}),
    "await": ("W20", {}),
    "fan": ("W3", {"record_bytes": "200", "producers": "4", "readers": "3"}),
    "failover": ("W10", {"faults": "20"}),
    "freeze": ("W11", {"faults": "5"}),
    "handover": ("W21", {"faults": "20"}),
}
FAULTS = ("failover", "freeze", "handover")
NAMES = (*WORKLOADS, *outages.GOALS)
OnProgress = Callable[[str], None]
FIGURES = ("records_per_s", "mb_per_s", "gap_max_ms", "delivered_mb_per_s")


def goals_of(name: str) -> dict[str, float]:
    """The most that figures of a fault may be in ms: those goals of its workload that name no other system."""
    goals = (goal for goal in GOALS if goal.workload == WORKLOADS[name][0] and not goal.peer)
    return {goal.figure.removeprefix("gap_"): goal.base for goal in goals} if name in FAULTS else {}


class RunningDlog(Dlog):
    """The cluster at `connect`, which goes on running. dir: of its `dlog up`, if it is one of this machine.

    The logs that it creates are deleted in the end.
    """

    start_s = 0.0
    durability = Durability("F", "as this cluster is configured")

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._connect = ""
        self._logs: list[str] = []

    async def start(self, room: Path, options: Mapping[str, str]) -> None:
        self._connect, self._room = options["connect"], Path(options["dir"] or room)
        self._client = await dlog.connect(self._connect).__aenter__()

    async def stop(self) -> None:
        if self._client is not None:
            for log in self._logs:
                with suppress(DLogError):  # the run has failed already, or its figures stand
                    await self._client.delete(log)
        await super().stop()

    def configuration(self) -> Mapping[str, Any]:
        return {}

    async def create(self, log: str) -> None:
        assert self._client is not None, "started"
        await self._client.create(log)
        self._logs.append(log)

    def address(self) -> dict[str, Any]:
        return {"connect": self._connect}


def main(arguments: list[str]) -> int:
    """Exit 0: green; 1: the checker found an error, or the cluster failed; 2: wrong usage."""
    given = _parser().parse_args(arguments)
    try:
        work = _work(given)
    except (ValueError, DLogError) as error:
        print(f"loadtest: {given.workload}: {error}", file=sys.stderr)
        return 2
    report: dict[str, Any] = {}
    try:
        report = asyncio.run(work)
    except* (DLogError, TimeoutError, CannotRunError) as errors:
        print(f"loadtest: {given.workload}: {first_of(errors)}", file=sys.stderr)
    if not report:
        return 1
    print(json.dumps(report) if given.json else outages.as_text(report))
    is_missed = given.strict and not all(goal["met"] for goal in report.get("goals", {}).values())
    return 0 if report["green"] and not is_missed else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "workload",
        choices=NAMES,
        help="a workload: append, await, fan; or a fault of a stream's owner: failover (kill -9), freeze (SIGSTOP, "
        "then SIGCONT), handover; or a fault of the whole cluster: away (ZooKeeper is frozen), starved (each process "
        "gets 5 %% of a CPU); faults need the `dlog up` of this directory (or --dir); or heirs: a write proxy that "
        "owns many streams dies, in a temporary cluster",
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change an option of the workload"
    )
    parser.add_argument("--rounds", "--kills", type=int, help="failover, freeze, handover: number of faults")
    parser.add_argument(
        "--streams", type=int, default=outages.STREAMS, help="heirs: number of streams that the killed proxy owns"
    )
    parser.add_argument("--seconds", type=float, help="length of the load; away, starved: of the fault (default 60)")
    parser.add_argument("--dir", help="directory of the `dlog up` that is measured")
    parser.add_argument("--strict", action="store_true", help="exit 1 also when a goal is missed")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    return parser


def _work(given: argparse.Namespace) -> Coroutine[Any, Any, dict[str, Any]]:
    """What is to be run; it returns the report. Raises ValueError, DLogError for wrong usage."""
    name, on_progress = given.workload, partial(print, file=sys.stderr) if sys.stderr.isatty() else lambda _: None
    seconds = outages.AWAY_S if given.seconds is None else given.seconds
    if given.streams < 1 or seconds <= 0:
        raise ValueError("--streams must be at least 1, --seconds above 0")
    if name == "heirs":
        return outages.Heirs(given.streams, on_progress=on_progress).go()
    running = find_running(given.dir)
    if name in WORKLOADS and name not in FAULTS:
        return _load(name, _workload(given), given.dir, running, on_progress)
    if running is None:
        raise ValueError("no `dlog up` found on this machine; start one, or name its directory with --dir")
    if name in FAULTS:
        return _run(name, _workload(given), running.connect, running.directory, on_progress)
    if name == "away":
        return outages.away(running, seconds, on_progress=on_progress)
    return outages.starved(running, seconds, on_progress)


def _workload(given: argparse.Namespace) -> spec.Workload:
    """Raises ConfigError, InvalidRequestError, ValueError."""
    identity, preset = WORKLOADS[given.workload]
    changes = {**preset, **dict(pair(change, "--set") for change in given.set)}
    for key, value in (("faults", given.rounds), ("seconds", given.seconds)):
        if value is not None:
            changes[key] = str(value)
    workload = spec.load(identity, changes=changes)
    if len(workload.cells) > 1:
        raise ValueError(f"give one value of each option: --set {' --set '.join(given.set)}")
    return workload


async def _load(
    name: str, workload: spec.Workload, directory: str | None, running: RunningCluster | None, on_progress: OnProgress
) -> dict[str, Any]:
    """As `_run`, on the cluster that the environment or this directory names."""
    connect = target(None, directory)
    is_here = running is not None and running.connect == connect
    return await _run(
        name, workload, connect, running.directory if running is not None and is_here else "", on_progress
    )


async def _run(
    name: str, workload: spec.Workload, connect: str, directory: str, on_progress: OnProgress
) -> dict[str, Any]:
    """Run a workload once; the report. Raises CannotRunError."""
    system = Variant(RunningDlog, {"connect": connect, "dir": directory}, "a cluster that runs already")
    plan = Plan(workloads=[workload], systems={"dlog": system}, rounds=1, voids=0, wait_s=0.0)
    (result,) = (await Runner(plan, on_progress).run()).results
    if "verdict" not in result:
        raise CannotRunError(result.get("error") or result["not_applicable"])
    is_green = result["green"] and not result["errors"]
    report = {"fault": name, "green": is_green, "verdict": result["verdict"], "failed": result["errors"]}
    if not is_green:
        return report
    figures = result["figures"]
    if name not in FAULTS:
        report["said"] = f"{workload.name}, {result['verdict']['acknowledged']:,} records acknowledged and read back"
        report |= {key: figures[key] for key in FIGURES if figures.get(key) is not None}
        return outages.judged(report | {f"{key}_ms": value for key, value in figures["response_ms"].items()}, {})
    gaps = {"rounds": len(figures["gaps_ms"]), "p50_ms": figures["gap_p50_ms"], "max_ms": figures["gap_max_ms"]}
    report |= gaps | {"gaps_ms": figures["gaps_ms"], "steady_max_ms": figures["steady_gap_max_ms"]}
    return outages.judged(report, goals_of(name))


def first_of(errors: BaseExceptionGroup[Any]) -> BaseException:
    """The first error in an exception group, however deeply nested."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
