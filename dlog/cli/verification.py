"""What `dlog ledger verify` prints, and the verification of all ledgers, a bounded number at once."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from dlog.cli.output import output, say, say_json
from dlog.errors import DLogError, LedgerNotFoundError
from dlog.model.ids import LedgerId
from dlog.model.verification import Verified

if TYPE_CHECKING:
    from dlog.io.ledgers import Ledgers

_COUNTS = ("below_write_quorum", "below_ack_quorum", "without_copy")
_BOOKIES_NAMED_MAX = 8


@dataclass(slots=True)
class Totals:
    """Sums over the ledgers that were verified. bad_ledgers: those with an entry below its write quorum. not_verified:
    ledgers that could not be read, which are not in the other numbers."""

    ledgers: int = 0
    entries: int = 0
    below_write_quorum: int = 0
    below_ack_quorum: int = 0
    without_copy: int = 0
    bad_ledgers: int = 0
    not_verified: int = 0

    @property
    def is_good(self) -> bool:
        return not self.bad_ledgers and not self.not_verified

    def add(self, found: Verified) -> None:
        self.ledgers += 1
        self.bad_ledgers += found.below_write_quorum > 0
        self.entries += found.entries
        for name in _COUNTS:
            setattr(self, name, getattr(self, name) + getattr(found, name))


async def verify_all(
    ledgers: Ledgers,
    at_once: int,
    on_found: Callable[[LedgerId, Verified | DLogError], None],
    on_progress: Callable[[Totals], None],
) -> Totals:
    """Verify every ledger, `at_once` at the same time; one that is deleted meanwhile is passed over.

    on_found: called for each ledger with a bad copy, or that could not be verified, and why. on_progress: called after
    each ledger. Memory is that of `at_once` verifications. Raises MetadataUnavailableError if the ledgers cannot be
    listed.
    """
    totals, found, listing = Totals(), aiter(ledgers.list()), asyncio.Lock()

    async def work() -> None:
        while True:
            async with listing:
                ledger = await anext(found, None)
            if ledger is None:
                return
            try:
                verified = await ledgers.verify(ledger)
            except LedgerNotFoundError:
                continue
            except DLogError as error:
                totals.not_verified += 1
                on_found(ledger, error)
            else:
                totals.add(verified)
                if verified.below_write_quorum:
                    on_found(ledger, verified)
            on_progress(totals)

    async with asyncio.TaskGroup() as tasks:
        for number in range(at_once):
            tasks.create_task(work(), name=f"verify ledgers {number}")
    return totals


@contextmanager
def progress(*, quiet: bool) -> Iterator[Callable[[Totals], None]]:
    """A line with the numbers so far, if stderr is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield lambda totals: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=sys.stdout.isatty()) as line:
        task = line.add_task("listing ledgers", total=None)

        def show(totals: Totals) -> None:
            wrong = totals.bad_ledgers + totals.not_verified
            line.update(
                task,
                description=f"{totals.ledgers:,} ledgers verified, {totals.entries:,} entries, {wrong:,} ledgers wrong",
            )

        yield show


def as_dict(ledger: int, found: Verified) -> dict[str, Any]:
    """A verification as plain values."""
    counts = {name: getattr(found, name) for name in _COUNTS}
    wrong = [asdict(bad) for bad in found.ranges]
    return {"ledger": ledger, "entries": found.entries, **counts, "wrong": wrong, "omitted": dict(found.omitted)}


def say_ranges(found: Verified) -> None:
    """Print a line for each range of bad copies, and the sum."""
    for bad in found.ranges:
        entries = f"entry {bad.first} is" if bad.first == bad.last else f"entries {bad.first} to {bad.last} are"
        say(f"{entries} {bad.kind}: {bad.bookie}: {bad.why}")
    for bookie, count in found.omitted:
        say(f"{bookie}: {count:,} further ranges of entries are bad")
    say(f"{found.entries:,} entries checked on every replica, {found.below_write_quorum:,} wrong")


def say_found(ledger: int, found: Verified | DLogError, *, as_json: bool) -> None:
    """Print one line for a ledger that is not whole, or could not be verified, and flush it."""
    if isinstance(found, DLogError):
        if as_json:
            say_json({"ledger": ledger, "error": found.message})
        else:
            say(f"ledger {ledger} could not be verified: {found.message}")
    elif as_json:
        say_json(as_dict(ledger, found))
    else:
        bookies = sorted({bad.bookie for bad in found.ranges})
        more = ", ..." if len(bookies) > _BOOKIES_NAMED_MAX else ""
        named = ", ".join(bookies[:_BOOKIES_NAMED_MAX])
        say(f"ledger {ledger}: of {found.entries:,} entries {_counts_text(found)}; bad copies on {named}{more}")
    with output():
        sys.stdout.flush()


def say_totals(totals: Totals, *, as_json: bool) -> None:
    if as_json:
        say_json(asdict(totals))
        return
    say(
        f"{totals.ledgers:,} ledgers with {totals.entries:,} entries checked on every replica: {_counts_text(totals)}; "
        f"{totals.bad_ledgers:,} ledgers wrong, {totals.not_verified:,} could not be verified"
    )


def _counts_text(found: Verified | Totals) -> str:
    return (
        f"{found.below_write_quorum:,} below the write quorum, {found.below_ack_quorum:,} below the ack quorum, "
        f"{found.without_copy:,} without a copy"
    )
