"""`dlog bookie pause`, `replace` and `decommission`: announce the restart of a bookie, or take one out."""

from __future__ import annotations

import math
import os
import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Protocol

import click

from dlog.cli import stopping
from dlog.cli.cluster import bookie_client_options, metadata_of
from dlog.cli.discovery import zookeeper_options
from dlog.cli.output import CommandError, MutatingCommand, note, say, say_json
from dlog.cli.parameters import copy_rate_bytes_s, named_bookie
from dlog.events import Event, PlacementNotKept
from dlog.machine import Missing
from dlog.model.ids import BookieId, LedgerId
from dlog.options import parse_duration_s

if TYPE_CHECKING:
    from rich.progress import Progress

    from dlog.io.bookie_replacement import ReplacementProgress
    from dlog.io.decommission import WaitingLedgers


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
    bookie, seconds = named_bookie(which), math.ceil(parse_duration_s(length))

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

    is_done = stopping.run(work())
    if as_json:
        say_json({"bookie": bookie, "seconds": None if ends else seconds, "ended": ends and is_done})
    elif not ends:
        say(f"{bookie} is not taken for lost within the next {seconds:,} s: stop and start it now")
    elif is_done:
        say(f"the planned restart of {bookie} is over")
    else:
        say(f"no restart of {bookie} was announced, or it was over")


# ---- progress --------------------------------------------------------------------------------------------------------


class _Display(Protocol):
    """Shows how far the drain or the replacement of a bookie is."""

    def show(self, left: int, total: int, waits: Mapping[str, str]) -> None:
        """waits: what ledgers wait for, and a line of text about it."""

    def note(self, text: str) -> None: ...


class _Lines:
    """Lines for each change of what it waits for, and for each tenth that is done."""

    def __init__(self) -> None:
        self._shown: tuple[frozenset[str], int] | None = None

    def show(self, left: int, total: int, waits: Mapping[str, str]) -> None:
        done = total - left
        current = frozenset(waits), 10 * done // max(1, total)
        if current != self._shown:
            self._shown = current
            moving = "copying" if left else "reading all ledgers again"
            self.note(f"{done:,} of {total:,} ledgers done: {'; '.join(waits.values()) or moving}")

    def note(self, text: str) -> None:
        note(text)


class _Bar:
    """A progress bar, and above it a line for each reason to wait, which may be long."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=None)
        self._shown = frozenset[str]()

    def show(self, left: int, total: int, waits: Mapping[str, str]) -> None:
        if waits and self._shown != waits.keys():
            for text in waits.values():
                self.note(text)
            self._shown = frozenset(waits)
        self._bar.update(self._task, total=total, completed=total - left)

    def note(self, text: str) -> None:
        from rich.text import Text

        self._bar.console.print(Text(text), soft_wrap=True)  # as it is: no markup, no line breaks in addresses


@contextmanager
def _display() -> Iterator[_Display]:
    """A progress bar if stderr is a terminal, else lines."""
    if not sys.stderr.isatty():
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("ledgers"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=4, transient=True) as bar:
        yield _Bar(bar)


# ---- decommission ----------------------------------------------------------------------------------------------------


@click.command(cls=MutatingCommand, when_unknown="run it again: it goes on where it was")
@click.argument("which", metavar="BOOKIE")
@zookeeper_options
def decommission(which: str, hosts: str | None, namespace: str | None, directory: str | None, as_json: bool) -> None:
    """Take the stopped BOOKIE out of the cluster: wait until recovery processes have copied all that it held to other
    bookies, then delete its cookie, so that it cannot start any more.

    Shows how many ledgers are done, and what the others wait for: how many, the first of them, and what to do. May be
    interrupted and run again. Of a BOOKIE that the cluster does not have it says so.
    """
    from dlog.io.decommission import Decommissioned, Draining, StillRegisteredError
    from dlog.io.decommission import decommission as drain

    leaving = named_bookie(which)

    async def work(display: _Display) -> Decommissioned:
        def progress(now: Draining) -> None:
            waits = {group.reason: _waiting_text(group) for group in now.waiting if not group.is_moving}
            display.show(now.ledgers, now.total, waits)

        async with metadata_of(hosts, namespace, directory) as (metadata, _, _):
            try:
                return await drain(metadata, leaving, progress)
            except StillRegisteredError as error:
                raise CommandError(error.message, "stop the bookie, then run this again", misused=False) from None

    with _display() as display:
        done = stopping.run(work(display))
    if as_json:
        say_json({"bookie": leaving, **asdict(done)})
    elif not done.was_known:
        say(f"the cluster has no such bookie, and no ledger names it; perhaps it was decommissioned before: {leaving}")
    else:
        say(f"{leaving} is out of the cluster: no ledger names it, {done.ledgers:,} did at first")


def _waiting_text(group: WaitingLedgers) -> str:
    """Such as "12 ledgers (3, 5, 8, ...): repair is switched off for the cluster"."""
    first = ", ".join(map(str, group.first)) + (", ..." if group.ledgers > len(group.first) else "")
    return f"{group.ledgers:,} ledgers ({first}): {group.reason}"


# ---- replacement -----------------------------------------------------------------------------------------------------


@click.command("replace", cls=MutatingCommand, when_unknown="run it again: it goes on where it was")
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@click.option(
    "--rate", metavar="SIZE", help="Bytes of payload to copy a second at most, such as 50MiB. Default: no limit."
)
@zookeeper_options
def replace_with(
    old: str,
    new: str,
    rate: str | None,
    hosts: str | None,
    namespace: str | None,
    directory: str | None,
    as_json: bool,
) -> None:
    """Put the running bookie NEW in the place of OLD: copy what OLD holds to NEW, ledger by ledger, then take OLD out
    of the cluster.

    OLD may run meanwhile, which is the safest, or be lost. Where NEW holds a copy already, or a ledger's placement
    policy does not allow it, another bookie is chosen, and named. Once only open ledgers use OLD it asks you to stop
    OLD; it ends when OLD is stopped and nothing needs it. May be interrupted and run again.
    """
    from dlog.io.bookie_client import BookieClient
    from dlog.io.bookie_replacement import AT_ONCE, NotWritableError, Replacement, replace_bookie
    from dlog.io.ledgers import Ledgers, LedgersOptions, resolver
    from dlog.ledger.repair import RepairOptions, Replaced

    leaving, coming = named_bookie(old), named_bookie(new)
    rate_bytes_s = copy_rate_bytes_s(rate)

    async def work(display: _Display) -> Replacement:
        def elsewhere(ledger: LedgerId, made: Replaced) -> None:
            display.note(
                f"ledger {ledger} from entry {made.first_entry}: {made.new} took the place, "
                f"its ensemble or placement policy does not allow {coming}, or {coming} did not take the copies"
            )

        def progress(now: ReplacementProgress) -> None:
            display.show(now.ledgers, now.total, {now.reason: now.reason} if now.reason else {})

        def on_event(event: Event) -> None:
            if isinstance(event, PlacementNotKept):
                display.note(f"ledger {event.ledger}: its placement policy cannot be kept: {event.shortage}")

        rng = random.Random(os.urandom(8))
        limits = LedgersOptions(repair=RepairOptions(rate_bytes_per_s=rate_bytes_s // AT_ONCE))
        async with (
            metadata_of(hosts, namespace, directory) as (metadata, _, _),
            BookieClient(resolver(metadata), rng=rng, options=bookie_client_options()) as bookies,
            Ledgers(metadata, bookies, rng=rng, options=limits, on_event=on_event) as ledgers,
        ):
            try:
                return await replace_bookie(metadata, ledgers, leaving, coming, progress, elsewhere)
            except NotWritableError as error:
                raise CommandError(
                    error.message, "`dlog bookie ls` lists the bookies; start it, then run this again", misused=False
                ) from None

    with _display() as display:
        done = stopping.run(work(display))
    if as_json:
        say_json({"bookie": leaving, "replacement": coming, **asdict(done)})
    elif not done.was_known:
        say(f"the cluster has no such bookie, and no ledger names it; perhaps it was replaced before: {leaving}")
    else:
        say(
            f"{leaving} is out of the cluster: {coming} took its place in {done.moved:,} ensembles of "
            f"{done.ledgers:,} ledgers, other bookies in {done.elsewhere:,}"
        )
