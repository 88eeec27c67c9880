"""Commands on whole streams: create, alter, ls, show, truncate, seal, delete, owners."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

import click

from dlog.cli import stopping
from dlog.cli.discovery import cluster_options, target
from dlog.cli.output import CommandError, MutatingCommand, confirm, dlsn_text, say, say_json, say_table, size_text
from dlog.client.client import Client, connect
from dlog.client.stream_info import SegmentInfo, SettingsChanges, StreamInfo, StreamSettings, settings_to_map
from dlog.model import dlsn as dlsns
from dlog.model.ids import stream_name, user_stream_name
from dlog.options import parse_bytes, parse_duration_s
from dlog.stores.kinds import SCHEMAS

T = TypeVar("T")


def ask(connect_to: str | None, directory: str | None, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run `work` with a client of the selected cluster."""

    async def run() -> T:
        async with connect(target(connect_to, directory)) as client:
            await client.reach()
            return await work(client)

    return stopping.run(run())


def _store_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    where = (
        "Where segments lie: on bookies (ledger), in files of the machine that all processes of the cluster run on "
        "(file), in topics of Kafka (kafka), or as objects on S3 or in a directory: acknowledged by "
        "these (s3-direct), or by a log in another store and uploaded later (s3)."
    )
    return click.option("--store", type=click.Choice(list(SCHEMAS)), help=f"{where} {default}")


def settings_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a stream's settings, except the store."""
    for option in reversed(_SETTINGS_OPTIONS):
        command = option(command)
    return command


_SETTINGS_OPTIONS = (
    click.option("--ensemble", type=click.IntRange(1), help="Bookies per segment; entries are striped over them."),
    click.option("--write-quorum", type=click.IntRange(1), help="Copies of each entry."),
    click.option(
        "--ack-quorum",
        type=click.IntRange(1),
        help="Copies that must be synced to disk before an append is acknowledged.",
    ),
    click.option(
        "--min-regions",
        type=click.IntRange(1),
        help="Regions whose bookies must hold an append before it is acknowledged (`dlog bookie ls` shows regions).",
    ),
    click.option(
        "--retention",
        metavar="TIME",
        help="How long a completed segment is kept, such as 72h; 0: for ever.",
    ),
    click.option(
        "--segment-bytes",
        metavar="SIZE",
        help="Size at which a segment is completed and the next begins, such as 256MiB.",
    ),
    click.option(
        "--segment-age", metavar="TIME", help="Age at which a segment is completed and the next begins, such as 2h."
    ),
)


def _settings(given: Mapping[str, Any]) -> SettingsChanges:
    """The settings among a command's options. Raises click.BadParameter, InvalidRequestError."""
    names = ("store", "ensemble", "write_quorum", "ack_quorum", "min_regions")
    settings: dict[str, Any] = {name: given[name] for name in names if given[name] is not None}
    if given["retention"] is not None:
        settings["retention_s"] = _age_s("--retention", given["retention"], zero="for ever")
    if given["segment_age"] is not None:
        settings["segment_age_s"] = _age_s("--segment-age", given["segment_age"])
    if given["segment_bytes"] is not None:
        settings["segment_bytes"] = parse_bytes(given["segment_bytes"])
    return cast(SettingsChanges, settings)


def _age_s(option: str, text: str, *, zero: str = "") -> float:
    """An age in seconds, at least 1, from text with a unit. zero: what 0 means; empty: 0 is refused. Raises
    CommandError, ConfigError."""
    seconds = parse_duration_s(text)
    how = f"write {option} with a unit, such as 7d, 12h or 90s{f', or 0: {zero}' if zero else ''}"
    if seconds == 0 and zero:
        return seconds
    if text.strip()[-1].isdigit():
        raise CommandError(f"a time without a unit may be any of seconds, hours and days: {option}={text}", how)
    if seconds < 1:
        raise CommandError(f"the time is shorter than a second: {option}={text}", how)
    return seconds


@click.command(
    cls=MutatingCommand,
    when_unknown="whether the stream was created is unknown: `dlog ls` shows it; creating it again is harmless",
)
@click.argument("stream")
@_store_option("Default: the first that the cluster's proxies have, mostly ledger.")
@settings_options
@click.option(
    "--exist-ok", is_flag=True, help="Succeed if the stream exists already and has the settings that are given here."
)
@cluster_options
def create(
    stream: str, exist_ok: bool, connect: str | None, directory: str | None, as_json: bool, **given: Any
) -> None:
    """Create STREAM.

    Without options: 3 bookies per segment, 3 copies of which 2 acknowledge, segments of 256 MiB and at most 2 hours,
    kept for ever.
    """
    settings = _settings(given)
    user_stream_name(stream)
    made = ask(connect, directory, lambda client: client.create(stream, exist_ok=exist_ok, **settings))
    if as_json:
        exists = {"exists": True, "settings": settings_to_map(made.settings)}
        result = exists if exist_ok else {"created": True, "settings": settings}
        say_json({"stream": stream, **result})
    else:
        say(f"{stream} exists" if exist_ok else f"created {stream}")


@click.command(
    cls=MutatingCommand,
    when_unknown="whether the settings were altered is unknown: `dlog show STREAM` shows them; altering them again is "
    "harmless",
)
@click.argument("stream")
@_store_option("From the next segment on.")
@settings_options
@cluster_options
def alter(stream: str, connect: str | None, directory: str | None, as_json: bool, **given: Any) -> None:
    """Change settings of STREAM while it is written: those that are given here. The retention applies at once, the
    others from the next segment on."""
    settings = _settings(given)
    user_stream_name(stream)
    if not settings:
        raise click.UsageError("no setting is given; `dlog alter --help` lists them")
    now = ask(connect, directory, lambda client: client.alter(stream, **settings))
    if as_json:
        say_json({"stream": stream, "settings": settings_to_map(now)})
    else:
        say(f"altered {stream}")
        _say_settings(now)


@click.command()
@cluster_options
def ls(connect: str | None, directory: str | None, as_json: bool) -> None:
    """List the streams."""

    async def names(client: Client) -> list[str]:
        return [name async for name in client.streams()]

    found = ask(connect, directory, names)
    if as_json:
        say_json(found)
        return
    for name in found:
        say(name)
    if not found and sys.stdout.isatty():
        say("no streams yet; create one with `dlog create NAME`")


@click.command()
@click.argument("stream")
@cluster_options
def show(stream: str, connect: str | None, directory: str | None, as_json: bool) -> None:
    """Show the settings, owner and segments of STREAM."""
    stream_name(stream)
    info = ask(connect, directory, lambda client: client.stat(stream))
    if as_json:
        say_json(_stream_json(info))
        return
    say(f"stream     {info.name}{'  (sealed)' if info.is_sealed else ''}")
    say(f"records    {dlsn_text(info.first_dlsn)} .. {dlsn_text(info.last_dlsn)}")
    _say_settings(info.settings, info.durability)
    owner = info.owner
    if owner is not None:
        released = " (released)" if owner.is_released else ""
        state = f", {owner.state}" if owner.state else ""
        say(f"owner      {owner.location}{released}, epoch {owner.epoch}{state}")
    else:
        say("owner      none yet; the first append assigns one")
    if info.segments_to_delete:
        say(f"truncated  {info.segments_to_delete} segments are still being deleted by the owner")
    if info.segments:
        say("")
        say_table(
            ("segment", "location", "store", "first", "last", "records", "completed", "state"),
            (
                (
                    s.number,
                    s.location,
                    s.store,
                    dlsn_text(s.first_dlsn),
                    dlsn_text(s.last_dlsn),
                    s.records if s.is_completed else None,
                    _when(s.completed_unix_ms) if s.is_completed else "in progress",
                    truncation_text(s),
                )
                for s in info.segments
            ),
        )


@click.command(
    cls=MutatingCommand,
    when_unknown="whether it was truncated is unknown: `dlog show STREAM` shows it; truncating again is harmless",
)
@click.argument("stream")
@click.argument("dlsn")
@cluster_options
def truncate(stream: str, dlsn: str, connect: str | None, directory: str | None, as_json: bool) -> None:
    """Truncate STREAM: records before DLSN can no longer be read; whole segments of them are deleted. The truncation
    point only moves forward. Exit 1 if DLSN is after the last record."""
    user_stream_name(stream)
    at = dlsns.parse(dlsn)
    first = ask(connect, directory, lambda client: client.truncate(stream, at))
    if as_json:
        say_json({"stream": stream, "first": list(first)})
    else:
        say(f"truncated {stream}; the first DLSN kept is {first}")


@click.command(
    cls=MutatingCommand,
    when_unknown="whether it was sealed is unknown: `dlog show STREAM` shows it; sealing it again is harmless",
)
@click.argument("stream")
@cluster_options
def seal(stream: str, connect: str | None, directory: str | None, as_json: bool) -> None:
    """Seal STREAM for good after its last acknowledged record. Readers then end there."""
    user_stream_name(stream)
    ask(connect, directory, lambda client: client.seal(stream))
    if as_json:
        say_json({"stream": stream, "sealed": True})
    else:
        say(f"sealed {stream}")


@click.command(
    cls=MutatingCommand,
    when_unknown="whether it was deleted is unknown: `dlog ls` shows it; if it is listed there, delete it again",
)
@click.argument("stream")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "--force",
    is_flag=True,
    help="Delete it even if its last segment cannot be closed, because too few of its bookies are left. An owner that "
    "is cut off may then acknowledge records that can never be read. Stores that do not answer keep their "
    "segments.",
)
@cluster_options
def delete(stream: str, yes: bool, force: bool, connect: str | None, directory: str | None, as_json: bool) -> None:
    """Delete STREAM and all its records. Later appends are not acknowledged."""
    user_stream_name(stream)
    if not yes:
        confirm(f"Delete {stream} and all its records?", "whether to delete all records")
    ask(connect, directory, lambda client: client.delete(stream, force=force))
    if as_json:
        say_json({"stream": stream, "deleted": True})
    else:
        say(f"deleted {stream}")


@click.command()
@cluster_options
def owners(connect: str | None, directory: str | None, as_json: bool) -> None:
    """List the streams that have an owner."""
    found = ask(connect, directory, lambda client: client.owners())
    if as_json:
        say_json([{"stream": o.stream, "epoch": o.epoch, "state": o.state, "location": o.location} for o in found])
    elif found:
        say_table(("stream", "owner", "epoch", "state"), ((o.stream, o.location, o.epoch, o.state) for o in found))
    elif sys.stdout.isatty():
        say("no stream has an owner now; the first append to a stream assigns one")


def truncation_text(segment: SegmentInfo) -> str:
    """Whether the truncation point lies in the segment, as text."""
    return "partial" if segment.is_cut else "active"


def _say_settings(settings: StreamSettings, durability: str | None = None) -> None:
    of_store = "".join(f", {name.replace('_', ' ')} {value}" for name, value in settings.store_settings.items())
    say(f"store      {settings.store}{of_store}{f', {_DURABILITY.get(durability, durability)}' if durability else ''}")
    say(
        f"segments   end at {size_text(settings.segment_bytes)} or {_duration(settings.segment_age_s)}, "
        f"{retention_text(settings.retention_s)}"
    )


_DURABILITY = {
    "synced": "records are synced to disks before they are acknowledged",
    "page caches": "records are acknowledged from page caches, and synced later",
}


def _stream_json(stream: StreamInfo) -> dict[str, Any]:
    """The keys are those of the reply to STAT (docs/protocol.md, 1.8)."""
    owner = stream.owner
    fields: dict[str, Any] = {
        "stream": stream.name,
        "incarnation": stream.incarnation,
        "sealed": stream.is_sealed,
        "settings": settings_to_map(stream.settings),
        "owner": {
            "epoch": owner.epoch if owner else 0,
            "proxy": (owner.proxy if owner else None) or "",
            "location": owner.location if owner else "",
            "released": owner.is_released if owner else False,
        },
        "first_dlsn": stream.first_dlsn,
        "last_dlsn": stream.last_dlsn,
        "last_txid": stream.last_txid,
        "records": stream.records,
        "segments": [_segment_json(segment) for segment in stream.segments],
        "segments_left_out": stream.segments_left_out,
        "segments_to_delete": stream.segments_to_delete,
    }
    if stream.durability is not None:
        fields["durability"] = stream.durability
    if owner is not None and owner.state is not None:
        fields |= {"state": owner.state, "producers": stream.producers}
    return fields


def _segment_json(segment: SegmentInfo) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "number": segment.number,
        "store": segment.store,
        "location": segment.location,
        "completed": segment.is_completed,
        "first_txid": segment.first_txid,
        "last_txid": segment.last_txid,
        "first_dlsn": segment.first_dlsn,
        "last_dlsn": segment.last_dlsn,
        "records": segment.records,
        "completed_unix_ms": segment.completed_unix_ms,
        "truncation": truncation_text(segment),
    }
    return fields if segment.lac is None else {**fields, "lac": segment.lac}


def retention_text(retention_s: float) -> str:
    """The retention as text."""
    return f"kept for {_duration(retention_s)}" if retention_s else "kept for ever"


def _duration(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        if seconds >= size and seconds % size == 0:
            return f"{int(seconds / size)}{unit}"
    return f"{seconds}s"


def _when(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M:%SZ")
