"""`python -m loadtest append|await|fan|failover|freeze|handover|away|starved|heirs`: quick measurement of one cluster.

`heirs` starts its own cluster. Host conditions are not checked: published figures come from `python -m loadtest
W1,W2,...`, except those of owner failures.

Invariants:
- figures are printed only after the checker has passed every record.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import uuid
from functools import partial
from typing import Any

import dlog
from dlog.cli.discovery import find_running
from dlog.errors import DLogError, InvalidRequestError
from loadtest import faults, outages, starved
from loadtest.systems.base import CannotRunError
from loadtest.workload import WORKLOADS, Run, Workload, load

NAMES = (*(path.stem for path in sorted(WORKLOADS.glob("[a-z]*.toml"))), *faults.KINDS, *outages.NAMES)


def main(arguments: list[str]) -> int:
    """Exit 0: green; 1: the checker found an error, or the cluster failed; 2: wrong usage."""
    parser = argparse.ArgumentParser(prog="python -m loadtest", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "workload",
        help="a workload (append, await, fan or a TOML file); or a fault of a stream's owner: failover (kill -9), "
        "freeze (SIGSTOP, then SIGCONT), handover; or a fault of the whole cluster: away (ZooKeeper is frozen), "
        "starved (each process gets 5 %% of a CPU); faults need the `dlog up` of this directory (or --dir); or heirs: "
        "a write proxy that owns many streams dies, in a temporary cluster",
    )
    parser.add_argument("--stream", help="stream to use; default: a new one, deleted at the end")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change an option of the workload"
    )
    parser.add_argument("--rounds", "--kills", type=int, help="failover, freeze, handover: number of faults")
    parser.add_argument(
        "--streams", type=int, default=outages.STREAMS, help="heirs: number of streams that the killed proxy owns"
    )
    parser.add_argument("--seconds", type=float, default=outages.AWAY_S, help="away, starved: duration of the fault")
    parser.add_argument("--dir", help="directory of the `dlog up` whose processes are killed or frozen")
    parser.add_argument("--strict", action="store_true", help="exit 1 also when a goal is missed")
    parser.add_argument("--json", action="store_true", help="print one JSON object on standard output")
    given = parser.parse_args(arguments)
    if given.workload in faults.KINDS:
        return hurt(given)
    if given.workload in outages.NAMES:
        return break_off(given)
    try:
        changes = dict(_pair(change) for change in given.set)
        workload = load(given.workload, changes)
    except (ValueError, InvalidRequestError) as error:
        print(f"loadtest: {error}", file=sys.stderr)
        return 2
    result: dict[str, Any] = {}
    try:
        result = asyncio.run(go(workload, given.stream))
    except* DLogError as errors:
        print(f"loadtest: {first_of(errors)}", file=sys.stderr)
    if not result:
        return 1
    print(json.dumps(result) if given.json else as_text(result))
    return 0 if result["green"] else 1


def hurt(given: argparse.Namespace) -> int:
    """Run failover, freeze or handover."""
    running = find_running(given.dir)
    if running is None or (given.rounds is not None and given.rounds < 1):
        why = (
            "no `dlog up` found on this machine; start one, or name its directory with --dir"
            if running is None
            else "--rounds must be at least 1"
        )
        print(f"loadtest: {given.workload}: {why}", file=sys.stderr)
        return 2
    kind = faults.KINDS[given.workload]
    tell = partial(print, file=sys.stderr) if sys.stderr.isatty() else lambda _: None
    ordeal = faults.Ordeal(kind=kind, running=running, rounds=given.rounds or kind.rounds, tell=tell)
    result: dict[str, Any] = {}
    try:
        result = asyncio.run(ordeal.go(given.stream or f"loadtest-{uuid.uuid4().hex[:8]}")).as_json(kind)
    except* (DLogError, TimeoutError) as errors:
        print(f"loadtest: {first_of(errors)!r}", file=sys.stderr)
    if not result:
        return 1
    print(json.dumps(result) if given.json else faults.as_text(result))
    met = result["green"] and all(goal["met"] for goal in result["goals"].values())
    return 0 if met or (result["green"] and not given.strict) else 1


def break_off(given: argparse.Namespace) -> int:
    """Run heirs, away or starved."""
    running = find_running(given.dir) if given.workload != "heirs" else None
    if given.streams < 1 or given.seconds <= 0:
        print(f"loadtest: {given.workload}: --streams must be at least 1, --seconds above 0", file=sys.stderr)
        return 2
    if given.workload != "heirs" and running is None:
        print(
            f"loadtest: {given.workload}: no `dlog up` found on this machine; start one, or name its directory with "
            "--dir",
            file=sys.stderr,
        )
        return 2
    tell = partial(print, file=sys.stderr) if sys.stderr.isatty() else lambda _: None
    stream = given.stream or f"loadtest-{uuid.uuid4().hex[:8]}"
    if running is None:
        going = outages.Heirs(given.streams, tell=tell).go()
    elif given.workload == "away":
        going = outages.Away(running, given.seconds, tell=tell).go(stream)
    else:
        going = starved.Starved(running, given.seconds, tell=tell).go(stream)
    result: dict[str, Any] = {}
    try:
        result = asyncio.run(going)
    except* (DLogError, TimeoutError, CannotRunError) as errors:
        print(f"loadtest: {first_of(errors)!r}", file=sys.stderr)
    if not result:
        return 1
    print(json.dumps(result) if given.json else outages.as_text(result))
    met = result["green"] and all(goal["met"] for goal in result["goals"].values())
    return 0 if met or (result["green"] and not given.strict) else 1


def _pair(change: str) -> tuple[str, str]:
    key, equals, value = change.partition("=")
    if not equals:
        raise InvalidRequestError(f"expected KEY=VALUE, as in records=1000: --set {change[:60]}")
    return key, value


async def go(workload: Workload, stream: str | None) -> dict[str, Any]:
    """Run the workload on the cluster that `dlog` finds (DLOG_CONNECT, or the `dlog up` of this directory)."""
    name = stream or f"loadtest-{uuid.uuid4().hex[:8]}"
    async with dlog.connect() as client:
        if stream is None:
            await client.create(name)
        run = Run(workload, name)
        verdict = await run.go(client)
        if stream is None:
            await client.delete(name)
    result: dict[str, Any] = {"green": verdict.is_green, "verdict": verdict.as_json(), "failed": run.failed[:10]}
    if verdict.is_green:
        payload_bytes = verdict.acknowledged * workload.record_bytes
        result |= {
            "seconds": round(run.seconds, 3),
            "records_per_s": round(verdict.acknowledged / run.seconds),
            "mb_per_s": round(payload_bytes / run.seconds / 1e6, 1),
            "ack_gap_max_ms": round(run.gap_s * 1000, 1),
            "read_back_records_per_s": round(verdict.acknowledged / run.read_seconds),
        }
    return result


def first_of(errors: BaseExceptionGroup[Any]) -> BaseException:
    """The first error in an exception group, however deeply nested."""
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def as_text(result: dict[str, Any]) -> str:
    counts = " ".join(f"{k}={v}" for k, v in result["verdict"].items() if k != "examples")
    if not result["green"]:
        return "\n".join([f"NOT GREEN, so no figures: {counts}", *result["verdict"]["examples"]])
    speed = " ".join(f"{k}={v}" for k, v in result.items() if k not in ("green", "verdict", "failed"))
    return f"green: {counts}\n{speed}"
