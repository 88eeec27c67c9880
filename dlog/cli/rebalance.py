"""`dlog cluster rebalance`: moves closed ledgers from fuller bookies to emptier ones."""

from __future__ import annotations

import os
import random
from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from dlog.cli import stopping
from dlog.cli.discovery import zookeeper_options
from dlog.cli.output import MutatingCommand, note, say, say_json, table_lines
from dlog.cli.parameters import FiniteFloat, copy_rate_bytes_s
from dlog.ledger.balance import Move
from dlog.model.ids import LedgerId

if TYPE_CHECKING:
    from dlog.io.rebalance import Rebalanced, RebalanceProgress

UNTIL = 0.05  # spread of the shares at which it ends
MOVES_SHOWN = 20  # of those that --dry-run would make
_STEPS = 10  # lines about the progress of one run, about


class _Lines:
    """A line for each reason to wait, and for each tenth of the way to the wanted spread. Moves themselves are shown
    with --dry-run, the first few."""

    def __init__(self, until: float, *, shows_moves: bool) -> None:
        self._until = until
        self._shows_moves = shows_moves
        self._first_spread: float | None = None
        self._shown: tuple[str, int] | None = None
        self._moves = 0

    def show(self, now: RebalanceProgress) -> None:
        if self._first_spread is None:
            self._first_spread = now.spread
        way = max(self._first_spread - self._until, 1e-12)
        current = (now.reason, int(_STEPS * (self._first_spread - now.spread) / way))
        if current != self._shown and not self._shows_moves:
            self._shown = current
            done = f"{now.ledgers:,} ledgers moved, {now.moved_bytes:,} bytes"
            note(f"{done}, spread {_percent(now.spread)}: {now.reason or 'copying'}")

    def moving(self, ledger: LedgerId, move: Move) -> None:
        self._moves += 1
        if self._shows_moves and self._moves <= MOVES_SHOWN:
            note(f"ledger {ledger}: from {move.source} to {move.target}, about {move.size_bytes:,} bytes")
        elif self._shows_moves and self._moves == MOVES_SHOWN + 1:
            note("and more ledgers")


@click.command(cls=MutatingCommand, when_unknown="run it again: it goes on where it was")
@click.option(
    "--until",
    type=FiniteFloat(0, 1),
    default=UNTIL,
    show_default=True,
    metavar="SHARE",
    help="End once the fullest bookie's share of its disk is at most so much above the emptiest's; 0.05 is 5 points.",
)
@click.option(
    "--rate", metavar="SIZE", help="Bytes of payload to copy a second at most, such as 50MiB. Default: no limit."
)
@click.option("--dry-run", "is_dry", is_flag=True, help="Move nothing, only say what would be moved.")
@zookeeper_options
def rebalance(
    until: float,
    rate: str | None,
    is_dry: bool,
    hosts: str | None,
    namespace: str | None,
    directory: str | None,
    as_json: bool,
) -> None:
    """Move closed ledgers from fuller bookies to emptier ones, for example after adding a bookie.

    A bookie's share is what closed ledgers place on it, relative to the size of its disks. A ledger is copied first,
    then its metadata is changed; its placement policy is kept as well as before. The fuller bookie frees its old
    copy a day or two later (its option gc_moved_s; Java's bookies: within a day). It ends when the shares are even
    enough, or no move of a ledger makes them more even. May be interrupted and run again.
    """
    from dlog.cli.cluster import bookie_client_options, metadata_of
    from dlog.io.bookie_client import BookieClient
    from dlog.io.ledgers import Ledgers, LedgersOptions, resolver
    from dlog.io.rebalance import rebalance as move_ledgers
    from dlog.ledger.repair import RepairOptions

    rate_bytes_s = copy_rate_bytes_s(rate)
    lines = _Lines(until, shows_moves=is_dry)

    async def work() -> Rebalanced:
        rng = random.Random(os.urandom(8))
        limits = LedgersOptions(repair=RepairOptions(rate_bytes_per_s=rate_bytes_s))
        async with (
            metadata_of(hosts, namespace, directory) as (metadata, _, _),
            BookieClient(resolver(metadata), rng=rng, options=bookie_client_options()) as bookies,
            Ledgers(metadata, bookies, rng=rng, options=limits) as ledgers,
        ):
            return await move_ledgers(
                metadata, ledgers, lines.show, lines.moving, until=until, rate_bytes_s=rate_bytes_s, is_dry=is_dry
            )

    done = stopping.run(work())
    if as_json:
        say_json({**asdict(done), "dry_run": is_dry})
        return
    for line in table_lines(("bookie", "share"), ([b, _percent(share)] for b, share in done.shares.items())):
        say(line)
    verb = "would move" if is_dry else "moved"
    say(
        f"{verb} {done.ledgers:,} ledgers, {done.moved_bytes:,} bytes: spread {_percent(done.spread_before)} before, "
        f"{_percent(done.spread)} {'then' if is_dry else 'now'}; {done.reason}"
    )
    for reason, count in done.skipped.items():
        say(f"not moved: {count:,} ledgers: {reason}")
    if done.unknown:
        say(f"took no part, as they do not say how much space they have: {', '.join(done.unknown)}")


def _percent(share: float) -> str:
    return f"{100 * share:.4g} %"
