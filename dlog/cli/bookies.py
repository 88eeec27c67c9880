"""`dlog bookie`: who stores, and whether they answer."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from dlog.cli.cluster import metadata_of
from dlog.cli.discovery import zookeeper_options
from dlog.cli.telling import EXIT_FAILED, EXIT_OK, CommandError, say_json, say_table
from dlog.errors import ProtocolError
from dlog.hostport import join_host_port
from dlog.io.clock import monotonic_s
from dlog.io.metadata import BookieInfo
from dlog.machine import Missing
from dlog.model.ids import EntryId, LedgerId, bookie_id
from dlog.wire.bookie import ReadEntry, ResponseDecoder, encode_request

PATIENCE_S = 3.0
_NO_LEDGER = LedgerId(2**62)  # nobody has it: an answer of any kind is a sign of life


@click.group()
def bookie() -> None:
    """Bookies: the processes that store entries."""


@bookie.command()
@zookeeper_options
def ls(hosts: str | None, namespace: str | None, directory: str | None, as_json: bool) -> None:
    """List the bookies that are registered."""

    async def work() -> list[dict[str, Any]]:
        async with metadata_of(hosts, namespace, directory) as (metadata, _, _):
            members = await metadata.members()
        states = ((members.writable, "writable"), (members.readonly, "read-only"))
        return [
            {"bookie": info.bookie, "address": join_host_port(info.host, info.port), "state": state}
            for found, state in states
            for info in sorted(found.values(), key=lambda info: info.bookie)
        ]

    rows = asyncio.run(work())
    if as_json:
        say_json(rows)
    else:
        say_table(("bookie", "address", "state"), ((r["bookie"], r["address"], r["state"]) for r in rows))


@bookie.command()
@click.argument("which", metavar="[BOOKIE]", required=False)
@zookeeper_options
def status(which: str | None, hosts: str | None, namespace: str | None, directory: str | None, as_json: bool) -> int:
    """Ask BOOKIE, or every registered one, whether it answers. Exit 1 if one does not."""
    if which is not None:
        bookie_id(which)
    rows = asyncio.run(_status(which, hosts, namespace, directory))
    if as_json:
        say_json(rows)
    else:
        say_table(
            ("bookie", "address", "state", "cookie", "answers"),
            ((r["bookie"], r["address"], r["state"], r["cookie"], r["answers"]) for r in rows),
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
            one = known.get(bookie_id(which))
            if one is None:
                raise CommandError(
                    f"no such bookie is registered: bookie={which}",
                    "`dlog bookie ls` lists those that are",
                    misused=False,
                )
            known = {bookie_id(which): one}
        rows = []
        for bookie, (info, state) in sorted(known.items()):
            cookie = await metadata.read_cookie(bookie)
            alive, answers = await _ask(info)
            rows.append(
                {
                    "bookie": bookie,
                    "address": join_host_port(info.host, info.port),
                    "state": state,
                    "cookie": "missing" if isinstance(cookie, Missing) else "kept",
                    "alive": alive,
                    "answers": answers,
                }
            )
        return rows


async def _ask(info: BookieInfo) -> tuple[bool, str]:
    """Whether it answers a question of its protocol, and how fast or why not."""
    begun_s = monotonic_s()
    try:
        async with asyncio.timeout(PATIENCE_S):
            reader, writer = await asyncio.open_connection(info.host, info.port)
            try:
                writer.writelines(encode_request(ReadEntry(_NO_LEDGER, EntryId(0))))
                decoder = ResponseDecoder()
                while True:
                    data = await reader.read(65536)
                    if not data:
                        return False, "no: it closed the connection"
                    if list(decoder.feed(data)):
                        return True, f"in {(monotonic_s() - begun_s) * 1000:.1f} ms"
            finally:
                writer.close()
    except TimeoutError:
        return False, f"no: silent for {PATIENCE_S:g} s"
    except (
        OSError,
        ProtocolError,
        ValueError,
        OverflowError,
    ) as error:  # the last two: what is registered is no address
        return False, f"no: {error}"
