"""`dlog cluster`: creates a cluster on a ZooKeeper, and shows its status. `rebalance` is in rebalance.py."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

import click

from dlog.cli import stopping
from dlog.cli.discovery import zookeeper, zookeeper_options
from dlog.cli.output import CommandError, MutatingCommand, say, say_json, table_lines
from dlog.cli.parameters import FiniteFloat
from dlog.cli.rebalance import rebalance
from dlog.cli.watch import ended_by_interrupt, watch
from dlog.hostport import join_host_port
from dlog.io.clock import unix_ms
from dlog.options import SECONDS_MAX, parse_duration_s

if TYPE_CHECKING:
    from dlog.io.bookie_client import BookieClientOptions
    from dlog.io.zookeeper_metadata import ZooKeeperMetadata
    from dlog.io.zookeeper_underreplication import ZooKeeperUnderreplication

LEDGERS_COUNTED_MAX = 100_000
WATCH_S, WATCH_MIN_S = 1.0, 0.1  # between two states that --watch shows
_COLUMNS = ("role", "id", "address", "state", "rack", "region")


@asynccontextmanager
async def metadata_of(
    hosts: str | None, namespace: str | None, directory: str | None
) -> AsyncIterator[tuple[ZooKeeperMetadata, str, str]]:
    """Metadata of the selected cluster, with ZooKeeper's hosts and the namespace."""
    from dlog.io.zookeeper_metadata import ZooKeeperMetadata

    found, path = zookeeper(hosts, namespace, directory)
    async with await ZooKeeperMetadata.connect(found, path) as metadata:
        yield metadata, found, path


def bookie_client_options() -> BookieClientOptions:
    """How commands connect to bookies: section [ledger], as far as the environment has it. Raises ConfigError."""
    from dlog.io.bookie_client import BookieClientOptions
    from dlog.io.settings import load
    from dlog.ledger.ledger_options import LedgerOptions

    return BookieClientOptions().configured(load(LedgerOptions, "ledger", None, {}))


@dataclass(frozen=True, slots=True)
class RepairState:
    """Whether lost copies are found and made again. runs: a recovery process, or Java's AutoRecovery, is connected to
    ZooKeeper. is_disabled: an operator has switched repair off for the cluster."""

    runs: bool
    is_disabled: bool

    @classmethod
    async def read(cls, marks: ZooKeeperUnderreplication) -> Self:
        return cls(await marks.has_recovery_process(), await marks.is_disabled())

    def warnings(self) -> list[str]:
        """Why the marks do not count all ledgers that lack copies; none if an auditor counts them."""
        found = []
        if not self.runs:
            found.append(
                "no recovery process runs: lost copies are neither counted nor made; start one: dlog recovery run"
            )
        if self.is_disabled:
            found.append("repair is switched off: lost copies are neither counted nor made")
        return found


def damaged_marks_text(ledgers: Sequence[int]) -> str:
    """What to say of ledgers whose marks cannot be read or decoded."""
    from dlog.io.zookeeper_underreplication import DAMAGED_NAMED_MAX

    more = ", ..." if len(ledgers) == DAMAGED_NAMED_MAX else ""
    return (
        f"the marks of ledgers {', '.join(map(str, ledgers))}{more} cannot be read or decoded, so these are not "
        f"repaired: delete these marks (docs/operations.md)"
    )


@click.group()
def cluster() -> None:
    """Create a cluster on a ZooKeeper, show its status, or make the use of its disks more even."""


cluster.add_command(rebalance)


@cluster.command(cls=MutatingCommand, when_unknown="whether it was created is unknown: run it again, that is harmless")
@click.option(
    "--wait",
    "wait_s",
    type=FiniteFloat(0, SECONDS_MAX, min_open=True),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a ZooKeeper that does not answer yet.",
)
@zookeeper_options
def init(hosts: str | None, namespace: str | None, directory: str | None, wait_s: float, as_json: bool) -> None:
    """Create the root of a cluster and bind the namespace to it. Harmless if it exists already."""
    from dlog.io.zookeeper_cluster import cluster_init

    made = stopping.run(cluster_init(*zookeeper(hosts, namespace, directory), connect_timeout_s=wait_s))
    if as_json:
        say_json({"instance_id": made.instance_id, "namespace": made.namespace, "made": made.made, "bound": made.bound})
        return
    what = "created" if made.made else "existed already"
    bound = "bound to it now" if made.bound else "was bound to it already"
    say(f"cluster {made.instance_id} {what}; namespace {made.namespace} {bound}")


@cluster.command()
@click.option("--watch", "-w", "watches", is_flag=True, help="Show it again and again until Ctrl-C.")
@click.option("--every", metavar="TIME", help="With --watch: pause before it is read again. Default 1s.")
@zookeeper_options
def status(
    watches: bool, every: str | None, hosts: str | None, namespace: str | None, directory: str | None, as_json: bool
) -> None:
    """List the registered processes, and count streams, ledgers, and ledgers that lack copies; name bookies with a
    planned restart.

    With --watch and --json, one document on each line.
    """
    if every is not None and not watches:
        raise CommandError(f"--every is for --watch: every={every}", "add --watch, or leave out --every")
    every_s = WATCH_S if every is None else parse_duration_s(every)
    if every_s < WATCH_MIN_S:
        raise CommandError(f"the pause is too short: every={every}", f"give --every at least {WATCH_MIN_S * 1000:g}ms")

    async def work() -> None:
        with ended_by_interrupt() if watches else nullcontext():
            await show()

    async def show() -> None:
        async with metadata_of(hosts, namespace, directory) as (metadata, found, path):

            async def read() -> dict[str, Any]:
                return await _status(metadata, found, path)

            if watches:
                await watch(read, _timed_lines, every_s=every_s, as_json=as_json)
            state = await read()
        if as_json:
            say_json(state)
            return
        for line in _lines(state):
            say(line)

    asyncio.run(work())


def _timed_lines(state: dict[str, Any]) -> list[str]:
    time = datetime.fromtimestamp(state["unix_ms"] / 1000, UTC).isoformat(timespec="seconds")
    return [f"time       {time}", *_lines(state)]


def _lines(state: dict[str, Any]) -> list[str]:
    paused = ", ".join(f"{bookie} ({left_s:,} s left)" for bookie, left_s in state["paused"].items())
    more = " or more" if state["ledgers"] >= LEDGERS_COUNTED_MAX else ""
    return [
        f"cluster    {state['instance_id']}",
        f"zookeeper  {state['zookeeper']}, namespace {state['namespace']}",
        f"holds      {state['streams']:,} streams, {state['ledgers']:,} ledgers{more}",
        f"repair     {_repair_text(state)}",
        *([f"paused     {paused}"] if paused else []),
        "",
        *table_lines(_COLUMNS, ([member[column] for column in _COLUMNS] for member in state["members"])),
    ]


def _repair_text(state: dict[str, Any]) -> str:
    """What the marks of under-replicated ledgers say, in a line. That there are none means something only while
    somebody counts."""
    from dlog.io.zookeeper_underreplication import SUMMARY_MAX

    count = state["under_replicated"]
    more = " or more" if count >= SUMMARY_MAX else ""
    oldest = "" if state["oldest_mark_s"] is None else f", the oldest mark is {state['oldest_mark_s']:,} s old"
    repair = RepairState(state["recovery_runs"], state["repair_disabled"])
    warnings = repair.warnings() if state["ledgers"] else []  # without ledgers there is nothing to count
    counted = [f"{count:,}{more} ledgers under-replicated{oldest}"] if count or not warnings else []
    damaged = [damaged_marks_text(state["damaged_marks"])] if state["damaged_marks"] else []
    return "; ".join((*counted, *damaged, *warnings))


async def _status(metadata: ZooKeeperMetadata, hosts: str, namespace: str) -> dict[str, Any]:
    members = await metadata.members()
    ledgers = 0
    async for _ in metadata.ledgers():
        ledgers += 1
        if ledgers >= LEDGERS_COUNTED_MAX:
            break
    marks = metadata.underreplication("status")
    repair, found_marks = await RepairState.read(marks), await marks.summary()
    oldest_ms = found_marks.oldest_ctime_ms
    bookies = [
        ("bookie", b.bookie, join_host_port(b.host, b.port), state, b.location.rack, b.location.region)
        for found_there, state in ((members.writable, "writable"), (members.readonly, "read-only"))
        for b in found_there.values()
    ]
    proxies = [
        (f"{p.role} proxy", p.proxy, p.address, "registered", p.location.rack, p.location.region)
        for p in (*members.write_proxies.values(), *members.read_proxies.values())
    ]
    return {
        "instance_id": await metadata.instance_id(),
        "unix_ms": unix_ms(),
        "zookeeper": hosts,
        "namespace": namespace,
        "streams": len(await metadata.streams()),
        "ledgers": ledgers,
        "under_replicated": found_marks.ledgers,
        "oldest_mark_s": None if oldest_ms is None else max(0, unix_ms() - oldest_ms) // 1000,
        "damaged_marks": list(found_marks.damaged),
        "repair_disabled": repair.is_disabled,
        "recovery_runs": repair.runs,
        "paused": {bookie: math.ceil(left_s) for bookie, left_s in (await marks.pauses.current()).items()},
        "members": [dict(zip(_COLUMNS, member, strict=True)) for member in (*sorted(bookies), *sorted(proxies))],
    }
