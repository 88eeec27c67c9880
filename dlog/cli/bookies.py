"""`dlog bookie`: lists bookies, checks that they answer, starts garbage collection. What else changes bookies is in
bookie_changes.py, what looks at the files of one in bookie_files.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import click

from dlog.cli import stopping
from dlog.cli.bookie_changes import decommission, pause, pause_left_s, replace_with
from dlog.cli.bookie_files import convert, fsck
from dlog.cli.cluster import RepairState, bookie_client_options, damaged_marks_text, metadata_of
from dlog.cli.discovery import zookeeper_options
from dlog.cli.output import (
    EXIT_FAILED,
    EXIT_OK,
    CommandError,
    MutatingCommand,
    note,
    say_json,
    say_table,
    size_text,
)
from dlog.cli.parameters import named_bookie
from dlog.cli.servers import server_command
from dlog.errors import ConnectionLostError, ProtocolError
from dlog.hostport import join_host_port
from dlog.io.bookie_questions import bookie_connection, read_space
from dlog.io.clock import monotonic_s
from dlog.io.metadata import BookieInfo
from dlog.machine import Missing
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.wire.bookie import (
    Code,
    Collect,
    CollectionReport,
    CollectionState,
    ReadEntry,
    Request,
    Response,
    ResponseDecoder,
    encode_request,
)
from dlog.wire.bookie_v3_messages import SpaceReply

PATIENCE_S = 3.0
COLLECT_PATIENCE_S = 10.0  # a bookie may be busy while it collects
_NO_LEDGER = LedgerId(2**62)  # does not exist: any reply shows that the bookie is alive
_UNDER_WAY = (CollectionState.STARTED, CollectionState.RUNNING)
_STATES = {
    CollectionState.UNKNOWN: "unknown",
    CollectionState.STARTED: "started",
    CollectionState.RUNNING: "joined",
    CollectionState.DONE: "done",
    CollectionState.FAILED: "failed",
    CollectionState.REFUSED: "refused",
}

_LISTED = ("bookie", "address", "state", "rack", "region", "under_replicated", "pause_left_s")


@click.group()
def bookie() -> None:
    """Run a bookie, list and check bookies, start their garbage collection, restart, replace, remove or repair one."""


bookie.add_command(server_command("actors.bookie", "a bookie"))
bookie.add_command(pause)
bookie.add_command(replace_with)
bookie.add_command(decommission)
bookie.add_command(fsck)
bookie.add_command(convert)


@bookie.command()
@zookeeper_options
def ls(hosts: str | None, namespace: str | None, directory: str | None, as_json: bool) -> None:
    """List the registered bookies, with the rack and region of each, those that are lost while ledgers still lack
    their copies, and those that are away for a planned restart (`dlog bookie pause`).

    Lost bookies are listed only while a recovery process runs; if none does, standard error says so."""

    async def work() -> tuple[list[dict[str, Any]], list[str]]:
        async with metadata_of(hosts, namespace, directory) as (metadata, _, _):
            members = await metadata.members()
            marks = metadata.underreplication("ls")
            warnings = (await RepairState.read(marks)).warnings()
            if warnings and await anext(metadata.ledgers(), None) is None:
                warnings = []  # there is nothing to count
            summary, paused = await marks.summary(), await marks.pauses.current()
        marked = summary.bookies
        if summary.damaged:
            warnings.append(damaged_marks_text(summary.damaged))
        states = ((members.writable, "writable"), (members.readonly, "read-only"))
        rows = [
            (info.bookie, join_host_port(info.host, info.port), state, info.location.rack, info.location.region)
            for found, state in states
            for info in sorted(found.values(), key=lambda info: info.bookie)
        ]
        registered = {*members.writable, *members.readonly}
        rows += [(lost, "", "not registered", "", "") for lost in sorted((marked.keys() | paused.keys()) - registered)]
        return [
            dict(zip(_LISTED, (*row, marked.get(row[0], 0), pause_left_s(paused, row[0])), strict=True)) for row in rows
        ], warnings

    rows, warnings = asyncio.run(work())
    for warning in warnings:
        note(warning)
    if as_json:
        say_json(rows)
    else:
        titles = [column.replace("_", "-") for column in _LISTED]
        say_table(titles, ([row[column] for column in _LISTED] for row in rows))


@bookie.command()
@click.argument("which", metavar="[BOOKIE]", required=False)
@zookeeper_options
def status(which: str | None, hosts: str | None, namespace: str | None, directory: str | None, as_json: bool) -> int:
    """Check that BOOKIE, or every registered bookie, answers, and show the free space of its disks. Exit 1 if one does
    not answer."""
    if which is not None:
        named_bookie(which)
    rows = asyncio.run(_status(which, hosts, namespace, directory))
    if as_json:
        say_json(rows)
    else:
        say_table(
            ("bookie", "address", "state", "cookie", "free", "answers"),
            ((r["bookie"], r["address"], r["state"], r["cookie"], _free(r), r["answers"]) for r in rows),
        )
    return EXIT_OK if all(r["alive"] for r in rows) else EXIT_FAILED


async def _status(
    which: str | None, hosts: str | None, namespace: str | None, directory: str | None
) -> list[dict[str, Any]]:
    async with metadata_of(hosts, namespace, directory) as (metadata, _, _):
        members = await metadata.members()
        known = {b: (info, "writable") for b, info in members.writable.items()}
        known |= {b: (info, "read-only") for b, info in members.readonly.items()}
        if which is not None:
            one = known.get(named_bookie(which))
            if one is None:
                raise CommandError(
                    f"the bookie is not registered: bookie={which}",
                    "`dlog bookie ls` lists the registered ones",
                    misused=False,
                )
            known = {named_bookie(which): one}
        rows = []
        for bookie, (info, state) in sorted(known.items()):
            cookie = await metadata.read_cookie(bookie)
            alive, answers = await _ask(info)
            space = await _space(info) if alive else SpaceReply(Code.IO_ERROR)
            rows.append(
                {
                    "bookie": bookie,
                    "address": join_host_port(info.host, info.port),
                    "state": state,
                    "cookie": "missing" if isinstance(cookie, Missing) else "kept",
                    "free_bytes": space.free_bytes,
                    "total_bytes": space.total_bytes,
                    "alive": alive,
                    "answers": answers,
                }
            )
        return rows


async def _ask(info: BookieInfo) -> tuple[bool, str]:
    """Whether the bookie answers a read request, and how fast or why not."""
    begun_s = monotonic_s()
    try:
        async with _connected(info) as ask:
            await ask(ReadEntry(_NO_LEDGER, EntryId(0)), PATIENCE_S)
    except _SilentError as error:
        return False, f"no: {error}"
    return True, f"in {(monotonic_s() - begun_s) * 1000:.1f} ms"


async def _space(info: BookieInfo) -> SpaceReply:
    """The space of the bookie's disks; without figures if it does not report it."""
    try:
        return await read_space(info.host, info.port, PATIENCE_S, bookie_client_options().tls_context())
    except (OSError, ConnectionLostError, ProtocolError):
        return SpaceReply(Code.IO_ERROR)


def _free(row: dict[str, Any]) -> str:
    free, total = row["free_bytes"], row["total_bytes"]
    return f"{size_text(free)} of {size_text(total)}" if free is not None and total is not None else "unknown"


class _SilentError(Exception):
    """A bookie did not answer, or not in its protocol. closed: it closed the connection instead."""

    def __init__(self, reason: str, *, closed: bool = False) -> None:
        super().__init__(reason)
        self.closed = closed


@asynccontextmanager
async def _connected(info: BookieInfo) -> AsyncIterator[Callable[[Request, float], Awaitable[Response]]]:
    """A function that sends a request to the bookie and waits for the reply, at most so long. Raises _SilentError."""
    tls = bookie_client_options().tls_context()
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter | None = None
    decoder = ResponseDecoder()
    patience_s = PATIENCE_S

    async def ask(request: Request, wait_s: float) -> Response:
        nonlocal patience_s
        patience_s = wait_s
        assert writer is not None
        async with asyncio.timeout(wait_s):
            writer.writelines(encode_request(request))
            while True:
                data = await reader.read(65536)
                if not data:
                    raise _SilentError("it closed the connection", closed=True)
                if answers := list(decoder.feed(data)):
                    return answers[0]

    try:
        async with AsyncExitStack() as stack:
            async with asyncio.timeout(PATIENCE_S):
                connected = bookie_connection(info.host, info.port, tls)
                reader, writer = await stack.enter_async_context(connected)
            yield ask
    except TimeoutError:
        raise _SilentError(f"silent for {patience_s:g} s") from None
    except (
        OSError,  # also if the registered address is invalid
        ConnectionLostError,
        ProtocolError,
    ) as error:
        raise _SilentError(str(error)) from None


# ---- garbage collection ----------------------------------------------------------------------------------------------


@bookie.command(cls=MutatingCommand, when_unknown="run it again: it joins a collection that still runs")
@click.argument("which", metavar="[BOOKIE]...", nargs=-1)
@click.option("--wait", "waits", is_flag=True, help="Wait until the collections have ended, and print their results.")
@zookeeper_options
def gc(
    which: tuple[str, ...], waits: bool, hosts: str | None, namespace: str | None, directory: str | None, as_json: bool
) -> int:
    """Start garbage collection on each BOOKIE, or on every registered one: delete ledgers that metadata no longer
    names, and entry logs that hold no other ledger.

    It deletes nothing that a bookie's periodic collection would not delete. If a bookie is collecting already, that
    collection is joined. Exit 1 if a bookie does not answer, or its collection fails or is refused.
    """
    named = [named_bookie(one) for one in which]
    rows = stopping.run(_gc(named, waits, hosts, namespace, directory))
    if as_json:
        say_json(rows)
    else:
        say_table(
            ("bookie", "state", "ledgers removed", "reclaimed", "left", "never seen", "why"),
            (
                (
                    row["bookie"],
                    row["state"],
                    row["removed"],
                    size_text(row["reclaimed_bytes"]) if row["reclaimed_bytes"] is not None else None,
                    row["ledgers"],
                    row["unseen"],
                    row["reason"],
                )
                for row in rows
            ),
        )
    return EXIT_OK if all(row["state"] in ("started", "joined", "done") for row in rows) else EXIT_FAILED


async def _gc(
    named: list[BookieId], waits: bool, hosts: str | None, namespace: str | None, directory: str | None
) -> list[dict[str, Any]]:
    async with metadata_of(hosts, namespace, directory) as (metadata, _, _):
        members = await metadata.members()
    known = {**members.writable, **members.readonly}
    unknown = [one for one in named if one not in known]
    if unknown:
        raise CommandError(
            f"the bookie is not registered: bookie={','.join(unknown)}",
            "`dlog bookie ls` lists the registered ones; no collection was started",
            misused=False,
        )
    if not known:
        raise CommandError("no bookie is registered", "start bookies; `dlog bookie ls` lists them", misused=False)
    async with asyncio.TaskGroup() as tasks:
        asked = [
            tasks.create_task(_collect(known[one], waits), name=f"collect {one}") for one in sorted(set(named or known))
        ]
    return [task.result() for task in asked]


async def _collect(info: BookieInfo, waits: bool) -> dict[str, Any]:
    """One row of the result. The collection goes on if this command ends early."""
    row: dict[str, Any] = {"bookie": info.bookie, "state": "no answer", "removed": None, "reclaimed_bytes": None}
    row |= {"ledgers": None, "unseen": None, "reason": ""}
    try:
        async with _connected(info) as ask:
            report = await ask(Collect(), COLLECT_PATIENCE_S)
            pause_s = 0.05
            while waits and isinstance(report, CollectionReport) and report.state in _UNDER_WAY:
                await asyncio.sleep(pause_s)
                pause_s = min(1.0, pause_s * 2)
                report = await ask(Collect(report.number), COLLECT_PATIENCE_S)
    except _SilentError as error:
        hint = ": Java bookies and older ones do so, they cannot collect on request" if error.closed else ""
        return row | {"reason": f"{error}{hint}"}
    if not isinstance(report, CollectionReport) or report.code is not Code.OK:
        return row | {"reason": "unexpected reply: is it a bookie of this version?"}
    row |= {"state": _STATES[report.state], "reason": report.reason}
    if report.state in (CollectionState.DONE, CollectionState.FAILED):
        row |= {"removed": report.removed, "reclaimed_bytes": report.reclaimed_bytes}
        row |= {"ledgers": report.ledgers, "unseen": report.unseen}
    return row
