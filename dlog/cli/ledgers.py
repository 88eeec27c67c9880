"""`dlog ledger`: commands on ledgers, which use ZooKeeper and bookies directly, without proxies."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import click

from dlog.cli import stopping, verification
from dlog.cli.cluster import bookie_client_options, metadata_of
from dlog.cli.discovery import zookeeper_options
from dlog.cli.output import (
    EXIT_FAILED,
    EXIT_OK,
    CommandError,
    MutatingCommand,
    confirm,
    note,
    say,
    say_bytes,
    say_json,
    say_table,
)
from dlog.errors import DamagedError, DLogError, LedgerNotFoundError, UnavailableError, UnsupportedVersionError
from dlog.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId

if TYPE_CHECKING:
    from dlog.io.ledgers import Ledgers
    from dlog.io.zookeeper_metadata import ZooKeeperMetadata
    from dlog.model.ledger import LedgerMetadata
    from dlog.model.verification import Verified

READ_BYTES = 1024 * 1024
PENDING_MAX = 1000  # entries of `create` that are sent and not confirmed
PENDING_BYTES_MAX = 16 * 1024 * 1024  # of these; far less than a connection to a bookie may lag
VERIFIED_AT_ONCE = 4
BOOKIES_AWAY = (
    "start the ledger's bookies that are away: `dlog ledger show LEDGER` names its bookies, `dlog bookie ls` those "
    "that run"
)


@asynccontextmanager
async def ledgers_of(hosts: str | None, namespace: str | None, directory: str | None) -> AsyncIterator[Ledgers]:
    """A ledger client of the selected cluster. An UnavailableError that leaves it advises to start bookies."""
    from dlog.io.bookie_client import BookieClient
    from dlog.io.ledgers import Ledgers, resolver

    rng = random.Random(os.urandom(8))
    async with (
        metadata_of(hosts, namespace, directory) as (metadata, _, _),
        BookieClient(resolver(metadata), rng=rng, options=bookie_client_options()) as bookies,
        Ledgers(metadata, bookies, rng=rng) as ledgers,
    ):
        try:
            yield ledgers
        except UnavailableError as error:
            if type(error) is UnavailableError and error.next_step is None:  # the cluster runs, its bookies do not
                error.next_step = BOOKIES_AWAY
            raise


@click.group()
def ledger() -> None:
    """Inspect, verify and recover ledgers, which hold segments."""


@ledger.command()
@zookeeper_options
def ls(hosts: str | None, namespace: str | None, directory: str | None, as_json: bool) -> int:
    """List the ledgers of the cluster with their state. Exit 1 if one's metadata cannot be read.

    Such a ledger is named on standard error; with --json it has the keys ledger and error only.
    """

    async def work() -> int:
        async with metadata_of(hosts, namespace, directory) as (metadata, _, _):
            found = [ledger async for ledger in metadata.ledgers()]
        async with ledgers_of(hosts, namespace, directory) as ledgers:
            rows: list[dict[str, Any]] = []
            wrong: dict[LedgerId, DLogError] = {}
            for number in found:
                try:
                    rows.append(describe(number, await ledgers.metadata_of(number)))
                except LedgerNotFoundError:
                    continue  # deleted meanwhile
                except (DamagedError, UnsupportedVersionError) as error:
                    wrong[number] = error
        for unreadable, reason in wrong.items():
            note(f"metadata of ledger {unreadable} cannot be read: {reason.message}")
        if as_json:
            say_json([*rows, *({"ledger": int(number), "error": error.message} for number, error in wrong.items())])
            return EXIT_FAILED if wrong else EXIT_OK
        say_table(
            ("ledger", "state", "entries", "bytes", "E/Qw/Qa", "fragments"),
            ((str(r["ledger"]), r["state"], r["entries"], r["bytes"], _quorum(r), len(r["fragments"])) for r in rows),
        )
        return EXIT_FAILED if wrong else EXIT_OK

    return asyncio.run(work())


@ledger.command()
@click.argument("number", metavar="LEDGER", type=click.IntRange(0, 2**63 - 1))
@zookeeper_options
def show(number: int, hosts: str | None, namespace: str | None, directory: str | None, as_json: bool) -> None:
    """Show the metadata of LEDGER, and whether its ensembles keep its placement policy."""

    async def work() -> dict[str, Any]:
        async with ledgers_of(hosts, namespace, directory) as ledgers:
            metadata = await ledgers.metadata_of(LedgerId(number))
            return describe(number, metadata) | {"placement": describe_placement(ledgers, metadata)}

    info = asyncio.run(work())
    if as_json:
        say_json(info)
        return
    say(f"ledger     {number}, {info['state']}")
    say(f"quorum     ensemble/write/ack {_quorum(info)}, digest {info['digest']}")
    if info["entries"] is not None:
        say(f"holds      {info['entries']:,} entries, {info['bytes']:,} bytes")
    say(f"placement  {placement_text(info['placement'])}")
    for key, value in info["custom"].items():
        say(f"{key:<10} {value}")
    say("")
    say_table(("from entry", "bookies"), ((f["first_entry"], ", ".join(f["bookies"])) for f in info["fragments"]))


@ledger.command()
@click.argument("number", metavar="LEDGER", type=click.IntRange(0, 2**63 - 1))
@click.option("--first", type=click.IntRange(0), default=0, help="First entry to print. Default 0.")
@click.option("--last", type=click.IntRange(0), help="Last entry to print. Default: the last confirmed entry.")
@click.option(
    "--format", "form", type=click.Choice(["text", "raw"]), default="text", help="raw: payloads without separator."
)
@zookeeper_options
def read(
    number: int,
    first: int,
    last: int | None,
    form: str,
    hosts: str | None,
    namespace: str | None,
    directory: str | None,
    as_json: bool,
) -> None:
    """Print entries of LEDGER, up to the last confirmed one. Does not fence its writer."""
    if form == "raw" and sys.stdout.isatty():
        raise CommandError("--format raw is binary, and standard output is a terminal", "redirect it to a file or pipe")

    async def work() -> None:
        async with ledgers_of(hosts, namespace, directory) as ledgers:
            known = LedgerId(number)
            confirmed = await ledgers.last_confirmed(known)
            end = confirmed if last is None else EntryId(min(last, confirmed))
            reader = await ledgers.open(known)
            reader.learn_lac(confirmed)
            at = EntryId(first)
            while NO_ENTRY < at <= end:
                for payload in await reader.read(at, end, READ_BYTES):
                    _say_entry(at, payload, form, as_json)
                    at = EntryId(at + 1)
            await reader.close()

    asyncio.run(work())


@ledger.command()
@click.argument("number", metavar="[LEDGER]", type=click.IntRange(0, 2**63 - 1), required=False)
@click.option("--all", "is_all", is_flag=True, help="Verify every ledger of the cluster.")
@click.option(
    "--at-once",
    type=click.IntRange(1, 256),
    metavar="N",
    help=f"With --all: ledgers verified at the same time. Default {VERIFIED_AT_ONCE}.",
)
@zookeeper_options
def verify(
    number: int | None,
    is_all: bool,
    at_once: int | None,
    hosts: str | None,
    namespace: str | None,
    directory: str | None,
    as_json: bool,
) -> int:
    """Read every entry of LEDGER, or of all ledgers, from every replica and check it. Repairs nothing. Exit 1 if one is
    wrong.

    Open ledgers are checked up to the last confirmed entry. With --all, a line for each ledger that is not whole, then
    the sums; a ledger that cannot be verified stops no other one.
    """
    if number is None:
        if not is_all:
            raise CommandError("no ledger is named", "name one that `dlog ledger ls` lists, or add --all")
        return asyncio.run(_verify_all(at_once or VERIFIED_AT_ONCE, hosts, namespace, directory, as_json))
    if is_all or at_once is not None:
        option = "--all" if is_all else "--at-once"
        raise CommandError(
            f"a LEDGER and {option} exclude each other: ledger={number}", f"leave out LEDGER or {option}"
        )
    one = LedgerId(number)

    async def work() -> Verified:
        async with ledgers_of(hosts, namespace, directory) as ledgers:
            return await ledgers.verify(one)

    found = asyncio.run(work())
    if as_json:
        say_json(verification.as_dict(one, found))
    else:
        verification.say_ranges(found)
    return EXIT_FAILED if found.below_write_quorum else EXIT_OK


async def _verify_all(
    at_once: int, hosts: str | None, namespace: str | None, directory: str | None, as_json: bool
) -> int:
    def on_found(ledger: LedgerId, found: Verified | DLogError) -> None:
        verification.say_found(ledger, found, as_json=as_json)

    async with ledgers_of(hosts, namespace, directory) as ledgers:
        with verification.progress(quiet=as_json) as show:
            totals = await verification.verify_all(ledgers, at_once, on_found, show)
    verification.say_totals(totals, as_json=as_json)
    if totals.bad_ledgers:
        note("`dlog ledger verify LEDGER` lists the bad copies of a ledger")
    return EXIT_OK if totals.is_good else EXIT_FAILED


@ledger.command(
    cls=MutatingCommand,
    when_unknown="`dlog ledger ls` shows whether the ledger is there; close it by `dlog ledger recover LEDGER`",
)
@click.argument("file")
@click.option(
    "--id",
    "number",
    type=click.IntRange(0, 2**63 - 1),
    help="Id of the ledger, one that no ledger ever had. From 2**62 on none is assigned to others. Default: the next.",
)
@click.option(
    "--quorum",
    metavar="E/QW/QA",
    default="3/3/2",
    show_default=True,
    help="Ensemble size, copies of each entry, acknowledgements waited for.",
)
@click.option("--digest", type=click.Choice(["CRC32C", "CRC32", "HMAC", "DUMMY"]), default="CRC32C", show_default=True)
@click.option("--custom", metavar="KEY=VALUE", multiple=True, help="Custom metadata; may be repeated.")
@zookeeper_options
def create(
    file: str,
    number: int | None,
    quorum: str,
    digest: str,
    custom: tuple[str, ...],
    hosts: str | None,
    namespace: str | None,
    directory: str | None,
    as_json: bool,
) -> None:
    """Create a ledger with the lines of FILE ('-': stdin) as its entries, and close it. It belongs to no stream."""
    sizes = quorum.split("/")
    if len(sizes) != 3 or not all(size.isascii() and size.isdigit() and len(size) <= 3 for size in sizes):
        raise CommandError(f"not a quorum: value={quorum[:60]!r}", "write ensemble/write/ack, as 3/3/2")
    pairs: list[tuple[str, bytes]] = []
    for text in custom:
        key, equals, value = text.partition("=")
        if not key or not equals or key.startswith("dlog."):
            raise CommandError(
                f"not custom metadata: value={text[:60]!r}", "write KEY=VALUE; keys that begin with dlog. are taken"
            )
        pairs.append((key, value.encode()))

    created: list[LedgerId] = []
    pending: deque[tuple[asyncio.Future[EntryId], int]] = deque()
    acknowledged = 0

    async def work(descriptor: int) -> dict[str, Any]:
        nonlocal acknowledged
        sized = Quorum(ensemble=int(sizes[0]), write=int(sizes[1]), ack=int(sizes[2]))
        async with ledgers_of(hosts, namespace, directory) as ledgers:
            given = None if number is None else LedgerId(number)
            writer = await ledgers.create(sized, digest=DigestType[digest], custom=tuple(pairs), ledger=given)
            created.append(writer.ledger_id)
            pending_bytes = 0
            async for lines, _ in line_batches(descriptor):
                for line in lines:
                    pending.append((writer.append((line,)), len(line)))
                    pending_bytes += len(line)
                    while len(pending) > PENDING_MAX or pending_bytes > PENDING_BYTES_MAX:
                        future, size = pending[0]
                        await future
                        pending.popleft()
                        acknowledged += 1
                        pending_bytes -= size
            while pending:
                await pending[0][0]
                pending.popleft()
                acknowledged += 1
            await writer.close()
            return describe(writer.ledger_id, writer.metadata)

    from dlog.cli.append import line_batches, opened_input
    from dlog.model.ledger import DigestType
    from dlog.model.quorum import Quorum

    try:
        with opened_input(file) as descriptor:
            info = stopping.run(work(descriptor))
    except BaseException:  # also Ctrl-C
        acknowledged += sum(1 for _ in takewhile(_is_confirmed, (future for future, _ in pending)))
        for made in created:
            note(
                f"ledger {made} was created, {acknowledged} entries are acknowledged, and it may be open: "
                f"`dlog ledger recover {made}` closes it"
            )
        raise
    if as_json:
        say_json(info)
    else:
        say(f"ledger {info['ledger']} is closed: {info['entries']:,} entries, {info['bytes']:,} bytes")


@ledger.command(
    cls=MutatingCommand,
    when_unknown="`dlog ledger show LEDGER` shows whether it is closed; recovering it again is harmless",
)
@click.argument("number", metavar="LEDGER", type=click.IntRange(0, 2**63 - 1))
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@zookeeper_options
def recover(
    number: int, yes: bool, hosts: str | None, namespace: str | None, directory: str | None, as_json: bool
) -> None:
    """Fence the writer of LEDGER, find the last entry, close it. A live writer can no longer append."""
    if not yes:
        confirm(f"Fence the writer of ledger {number}, if it is alive?", "whether to fence its writer")

    async def work() -> dict[str, Any]:
        async with ledgers_of(hosts, namespace, directory) as ledgers:
            found = await ledgers.recover(LedgerId(number))
            return {"ledger": number, "last_entry": found.last_entry, "bytes": found.length, "readded": found.readded}

    result = stopping.run(work())
    if as_json:
        say_json(result)
    else:
        say(f"ledger {number} is closed: last entry {result['last_entry']}, {result['bytes']:,} bytes")
        if result["readded"]:
            note(f"{result['readded']} entries were written again")


@ledger.command()
@click.option(
    "--from", "first", type=click.IntRange(0, 2**63 - 1), default=0, help="First ledger id to look for. Default 0."
)
@click.option(
    "--gap",
    type=click.IntRange(1),
    default=1000,
    show_default=True,
    help="Stop after this many consecutive ids that no bookie has.",
)
@zookeeper_options
def strays(first: int, gap: int, hosts: str | None, namespace: str | None, directory: str | None, as_json: bool) -> int:
    """Find ledgers that bookies hold but metadata does not name, as after ZooKeeper was restored from a backup.

    Looks for every id on every bookie. `dlog ledger adopt` makes such a ledger readable. Exit 1 if a bookie did not
    answer, or is away. Ledgers of deleted streams are listed too, until garbage collection has removed them.
    """

    async def work() -> tuple[list[UnlistedLedger], frozenset[BookieId]]:
        async with metadata_of(hosts, namespace, directory) as (metadata, _, _):
            bookies, away = await _bookies_of(metadata)
        async with ledgers_of(hosts, namespace, directory) as ledgers:
            strays = find_unlisted_ledgers(ledgers, bookies, first=LedgerId(first), gap=gap)
            return [stray async for stray in strays], away

    from dlog.io.unlisted_ledgers import UnlistedLedger, find_unlisted_ledgers

    found, away = asyncio.run(work())
    silent = sorted(away.union(*(stray.silent for stray in found)))
    found = [stray for stray in found if stray.bookies]
    if as_json:
        say_json({"strays": [{"ledger": s.ledger, "bookies": s.bookies} for s in found], "silent": silent})
    else:
        say_table(("ledger", "bookies"), ((str(stray.ledger), ", ".join(stray.bookies)) for stray in found))
    if silent:
        note(f"did not answer for every ledger: {', '.join(silent)}")
    return EXIT_FAILED if silent else EXIT_OK


@ledger.command(
    cls=MutatingCommand,
    when_unknown="`dlog ledger show LEDGER` shows whether it has metadata now; if not, adopt it again",
)
@click.argument("number", metavar="LEDGER", type=click.IntRange(0, 2**63 - 1))
@click.option(
    "--digest",
    type=click.Choice(["CRC32C", "CRC32", "HMAC", "DUMMY"]),
    default="CRC32C",
    show_default=True,
    help="Digest type of its entries; ledgers of dlog have CRC32C.",
)
@click.option(
    "--incomplete",
    is_flag=True,
    help="Adopt it though bookies do not answer. Its recovery ends before the first entry that only they hold.",
)
@zookeeper_options
def adopt(
    number: int,
    digest: str,
    incomplete: bool,
    hosts: str | None,
    namespace: str | None,
    directory: str | None,
    as_json: bool,
) -> None:
    """Write metadata for LEDGER, which bookies hold but metadata does not name, so that it can be recovered and read.

    Refused while a bookie that may hold some of its entries does not answer. Next: `dlog ledger recover LEDGER`, `dlog
    ledger read LEDGER`. It belongs to no stream.
    """

    async def work() -> dict[str, Any]:
        async with metadata_of(hosts, namespace, directory) as (metadata, _, _):
            bookies, away = await _bookies_of(metadata)
        async with ledgers_of(hosts, namespace, directory) as ledgers:
            vetted = await ledgers.find_holders(LedgerId(number), bookies)
            silent = sorted(away | (bookies - vetted.known_to - vetted.unknown_to))
            if silent and not incomplete:
                raise CommandError(
                    f"bookies that may hold entries of the ledger do not answer: ledger={number} "
                    f"bookies={','.join(silent)}",
                    "start them, or take lost ones out with `dlog bookie decommission`; --incomplete adopts what the "
                    "others hold",
                    misused=False,
                )
            if not vetted.known_to:
                raise CommandError(
                    f"no bookie has the ledger: ledger={number}", "`dlog ledger strays` lists such ledgers"
                )
            return describe(number, await ledgers.adopt(LedgerId(number), vetted.known_to, DigestType[digest]))

    from dlog.model.ledger import DigestType

    info = stopping.run(work())
    if as_json:
        say_json(info)
    else:
        bookies = ", ".join(info["fragments"][0]["bookies"])
        say(f"ledger {number} has metadata now, on {bookies}; next: dlog ledger recover {number}")


async def _bookies_of(metadata: ZooKeeperMetadata) -> tuple[frozenset[BookieId], frozenset[BookieId]]:
    """The registered bookies, and those of the cluster that are away."""
    members = await metadata.members()
    registered = frozenset([*members.writable, *members.readonly])
    return registered, await metadata.bookies_with_cookie() - registered


def _is_confirmed(future: asyncio.Future[EntryId]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def describe(number: int, metadata: LedgerMetadata) -> dict[str, Any]:
    """Ledger metadata as plain values."""
    closed = metadata.is_closed
    return {
        "ledger": int(number),
        "state": metadata.state.name.lower().replace("_", " "),
        "entries": metadata.last_entry + 1 if closed else None,
        "bytes": metadata.length if closed else None,
        "ensemble": metadata.quorum.ensemble,
        "write_quorum": metadata.quorum.write,
        "ack_quorum": metadata.quorum.ack,
        "digest": metadata.digest.name,
        "ctime_ms": metadata.ctime_ms,
        "custom": {key: value.decode(errors="backslashreplace") for key, value in metadata.custom},
        "fragments": [{"first_entry": f.first_entry, "bookies": list(f.ensemble)} for f in metadata.fragments],
    }


def describe_placement(ledgers: Ledgers, metadata: LedgerMetadata) -> dict[str, Any]:
    """A ledger's placement policy, and whether its ensembles keep it; None: a bookie's location is not known. wrong: by
    the first entry of each fragment that does not keep it, what is lacking."""
    policy, shortages = ledgers.placement_of(metadata)
    found = zip(metadata.fragments, shortages, strict=True)
    wrong = {int(fragment.first_entry): shortage for fragment, shortage in found if shortage is not None}
    kept = None if wrong else True
    if any(shortage.is_certain for shortage in wrong.values()):
        kept = False
    return {"policy": str(policy), "kept": kept, "wrong": {str(first): str(why) for first, why in wrong.items()}}


def placement_text(placement: dict[str, Any]) -> str:
    """The result of `describe_placement` in one line."""
    if placement["policy"] == "random":
        return "random: any bookies, whatever rack they stand in"
    if placement["kept"]:
        return f"{placement['policy']}: kept by every ensemble"
    kept = "not kept" if placement["kept"] is False else "not certain"
    return f"{placement['policy']}: {kept}: " + "; ".join(
        f"from entry {first}: {why}" for first, why in placement["wrong"].items()
    )


def _quorum(info: dict[str, Any]) -> str:
    return f"{info['ensemble']}/{info['write_quorum']}/{info['ack_quorum']}"


def _say_entry(entry: int, payload: bytes, form: str, as_json: bool) -> None:
    if as_json:
        import base64

        say_json({"entry": entry, "bytes": len(payload), "payload_base64": base64.b64encode(payload).decode()})
    elif form == "raw":
        say_bytes(payload)
    else:
        head = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in payload[:64])
        say(f"{entry}\t{len(payload)} bytes\t{head}{'...' if len(payload) > 64 else ''}")
