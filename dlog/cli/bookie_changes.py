"""`dlog bookie pause` and `decommission`: announce the restart of a bookie, or take one out of the cluster."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping

import click

from dlog.cli.cluster import metadata_of
from dlog.cli.discovery import zookeeper_options
from dlog.cli.output import CommandError, MutatingCommand, note, say, say_json
from dlog.machine import Missing
from dlog.model.ids import BookieId, bookie_id
from dlog.options import parse_duration_s


def pause_left_s(paused: Mapping[BookieId, float], bookie: BookieId) -> int | None:
    """The seconds that are left of a bookie's planned restart, rounded up; None: none is announced."""
    left_s = paused.get(bookie)
    return None if left_s is None else math.ceil(left_s)


# ---- planned restarts ------------------------------------------------------------------------------------------------


@click.command(cls=MutatingCommand, when_unknown="run it again, or look at `dlog bookie ls`")
@click.argument("which", metavar="BOOKIE")
@click.option(
    "--for",
    "length",
    default="5m",
    show_default=True,
    metavar="DURATION",
    help="How long the restart takes at most, from now on: 1s to 7d.",
)
@click.option("--end", "ends", is_flag=True, help="End the announcement: the bookie counts as lost as usual again.")
@zookeeper_options
def pause(
    which: str,
    length: str,
    ends: bool,
    hosts: str | None,
    namespace: str | None,
    directory: str | None,
    as_json: bool,
) -> None:
    """Announce a planned restart of BOOKIE: while it lasts, its ledgers are not copied to other bookies. Then stop and
    start the bookie.

    It ends by itself once BOOKIE is registered again after having been away, or when the time is over; a bookie that
    is still away then counts as lost. The bookie itself goes on: stop it as usual. Java's auditors do not know of it.
    """
    bookie, seconds = bookie_id(which), math.ceil(parse_duration_s(length))

    async def work() -> bool:
        async with metadata_of(hosts, namespace, directory) as (metadata, _, _):
            pauses = metadata.underreplication("pause").pauses
            if ends:
                return await pauses.end(bookie)
            members = await metadata.members()
            known = bookie in members.writable or bookie in members.readonly
            if not known and isinstance(await metadata.read_cookie(bookie), Missing):
                raise CommandError(
                    f"the cluster has no such bookie, running or stopped: bookie={bookie}",
                    "`dlog bookie ls` lists the bookies",
                    misused=False,
                )
            await pauses.begin(bookie, seconds)
            return True

    is_done = asyncio.run(work())
    if as_json:
        say_json({"bookie": bookie, "seconds": None if ends else seconds, "ended": ends and is_done})
    elif not ends:
        say(f"{bookie} is not taken for lost within the next {seconds:,} s: stop and start it now")
    elif is_done:
        say(f"the planned restart of {bookie} is over")
    else:
        say(f"no restart of {bookie} was announced, or it was over")


# ---- decommission ----------------------------------------------------------------------------------------------------


@click.command(cls=MutatingCommand, when_unknown="run it again: it goes on where it was")
@click.argument("which", metavar="BOOKIE")
@zookeeper_options
def decommission(which: str, hosts: str | None, namespace: str | None, directory: str | None, as_json: bool) -> None:
    """Take the stopped BOOKIE out of the cluster: wait until recovery processes have copied all that it held to other
    bookies, then delete its cookie, so that it cannot start any more.

    Says how many ledgers are left and what it waits for. May be interrupted and run again.
    """
    from dlog.io.decommission import Draining, StillRegisteredError
    from dlog.io.decommission import decommission as drain

    leaving = bookie_id(which)

    def progress(now: Draining) -> None:
        note(f"{now.ledgers:,} ledgers left: {now.reason}")

    async def work() -> int:
        async with metadata_of(hosts, namespace, directory) as (metadata, _, _):
            try:
                return await drain(metadata, leaving, progress)
            except StillRegisteredError as error:
                raise CommandError(error.message, "stop the bookie, then run this again", misused=False) from None

    ledgers = asyncio.run(work())
    if as_json:
        say_json({"bookie": leaving, "ledgers": ledgers})
    else:
        say(f"{leaving} is out of the cluster: no ledger names it, {ledgers:,} did at first")
