"""`dlog cluster`: creates a cluster on a ZooKeeper, and shows its status."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from dlog.cli.discovery import zookeeper, zookeeper_options
from dlog.cli.output import MutatingCommand, say, say_json, say_table
from dlog.hostport import join_host_port
from dlog.io.clock import unix_ms

if TYPE_CHECKING:
    from dlog.io.zookeeper_metadata import ZooKeeperMetadata

LEDGERS_COUNTED_MAX = 100_000
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


@click.group()
def cluster() -> None:
    """Create a cluster on a ZooKeeper, or show its status."""


@cluster.command(cls=MutatingCommand, when_unknown="whether it was created is unknown: run it again, that is harmless")
@click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, min_open=True),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for a ZooKeeper that does not answer yet.",
)
@zookeeper_options
def init(hosts: str | None, namespace: str | None, directory: str | None, wait_s: float, as_json: bool) -> None:
    """Create the root of a cluster and bind the namespace to it. Harmless if it exists already."""
    from dlog.io.zookeeper_cluster import cluster_init

    made = asyncio.run(cluster_init(*zookeeper(hosts, namespace, directory), connect_timeout_s=wait_s))
    if as_json:
        say_json({"instance_id": made.instance_id, "namespace": made.namespace, "made": made.made, "bound": made.bound})
        return
    what = "created" if made.made else "existed already"
    bound = "bound to it now" if made.bound else "was bound to it already"
    say(f"cluster {made.instance_id} {what}; namespace {made.namespace} {bound}")


@cluster.command()
@zookeeper_options
def status(hosts: str | None, namespace: str | None, directory: str | None, as_json: bool) -> None:
    """List the registered processes, and count streams, ledgers, and ledgers that lack copies; name bookies with a
    planned restart."""
    told = asyncio.run(_status(hosts, namespace, directory))
    if as_json:
        say_json(told)
        return
    say(f"cluster    {told['instance_id']}")
    say(f"zookeeper  {told['zookeeper']}, namespace {told['namespace']}")
    more = " or more" if told["ledgers"] >= LEDGERS_COUNTED_MAX else ""
    say(f"holds      {told['streams']:,} streams, {told['ledgers']:,} ledgers{more}")
    say(f"repair     {_repair_text(told)}")
    if told["paused"]:
        say("paused     " + ", ".join(f"{bookie} ({left_s:,} s left)" for bookie, left_s in told["paused"].items()))
    say("")
    say_table(_COLUMNS, ([member[column] for column in _COLUMNS] for member in told["members"]))


def _repair_text(told: dict[str, Any]) -> str:
    """What the marks of under-replicated ledgers say, in a line."""
    from dlog.io.zookeeper_underreplication import SUMMARY_MAX

    count = told["under_replicated"]
    more = " or more" if count >= SUMMARY_MAX else ""
    oldest = "" if told["oldest_mark_s"] is None else f", the oldest mark is {told['oldest_mark_s']:,} s old"
    off = "; repair is switched off" if told["repair_disabled"] else ""
    return f"{count:,}{more} ledgers under-replicated{oldest}{off}"


async def _status(hosts: str | None, namespace: str | None, directory: str | None) -> dict[str, Any]:
    async with metadata_of(hosts, namespace, directory) as (metadata, found, path):
        members = await metadata.members()
        ledgers = 0
        async for _ in metadata.ledgers():
            ledgers += 1
            if ledgers >= LEDGERS_COUNTED_MAX:
                break
        marks = metadata.underreplication("status")
        found_marks = await marks.summary()
        oldest_ms = found_marks.oldest_ctime_ms
        bookies = [
            ("bookie", b.bookie, join_host_port(b.host, b.port), state, b.location.rack, b.location.region)
            for found_there, state in ((members.writable, "writable"), (members.readonly, "read-only"))
            for b in found_there.values()
        ]
        proxies = [
            (f"{p.role} proxy", p.proxy, p.address, "registered", None, None)
            for p in (*members.write_proxies.values(), *members.read_proxies.values())
        ]
        return {
            "instance_id": await metadata.instance_id(),
            "zookeeper": found,
            "namespace": path,
            "streams": len(await metadata.streams()),
            "ledgers": ledgers,
            "under_replicated": found_marks.ledgers,
            "oldest_mark_s": None if oldest_ms is None else max(0, unix_ms() - oldest_ms) // 1000,
            "repair_disabled": await marks.is_disabled(),
            "paused": {bookie: math.ceil(left_s) for bookie, left_s in (await marks.pauses.current()).items()},
            "members": [dict(zip(_COLUMNS, member, strict=True)) for member in (*sorted(bookies), *sorted(proxies))],
        }
