"""`dlog object`: inspects the objects of streams, and checks them against the metadata, without proxies."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

import click

from dlog.cli import stopping
from dlog.cli.discovery import Cluster, find_cluster, zookeeper_options
from dlog.cli.object_access import ObjectAccess, open_objects
from dlog.cli.output import (
    EXIT_FAILED,
    EXIT_OK,
    CommandError,
    MutatingCommand,
    confirm,
    note,
    say,
    say_json,
    say_table,
    size_text,
)
from dlog.cli.parameters import FiniteFloat
from dlog.errors import DLogError, MetadataWentBackError, TruncatedError
from dlog.model import dlsn as dlsns
from dlog.model.ids import METADATA_STREAM, WAL_STREAM, SegmentNumber, StreamName, stream_name
from dlog.model.object_streams import ObjectId, ObjectStreamId, Slice
from dlog.model.segment import Segment
from dlog.objects.fsck import (
    REMOVABLE,
    Comparison,
    Finding,
    Kind,
    ListedChain,
    find_unlisted_chains,
    shows_loss,
    slices_by_object,
)
from dlog.objects.image import Image, Range
from dlog.objects.keys import object_key
from dlog.objects.object_table import ObjectState
from dlog.objects.search import find_objects
from dlog.options import SECONDS_MAX
from dlog.stores.contract import (
    SegmentCorruptError,
    SegmentNotFoundError,
    SegmentRef,
    StoreError,
    StoreUnavailableError,
)
from dlog.stores.s3.fsck import Checked, ObjectCheck, ReadImage
from dlog.stores.s3.places import Place, parse_place, parse_segment_key, range_of
from dlog.values import value

SegmentNames = dict[ObjectStreamId, tuple[StreamName, SegmentNumber]]
F = TypeVar("F", bound=Callable[..., Any])
S3, DIRECT = "s3", "s3-direct"
YOUNG_S = 3600.0  # a chain that is younger may be listed in a moment
SLICES_SHOWN = 3  # of an object, in a table
OFFSETS_MAX = 2**63 - 1


@click.group()
def object() -> None:
    """Inspect the objects of streams in the stores s3 and s3-direct, and check them against the metadata."""


def _cluster(hosts: str | None, namespace: str | None, directory: str | None) -> Cluster:
    return find_cluster(hosts=hosts, namespace=namespace, directory=directory, need_zookeeper=True)


def _limit(what: str, default: int) -> Callable[[F], F]:
    return click.option(
        "--limit", "-n", type=click.IntRange(1), metavar="N", default=default, show_default=True, help=what
    )


# ---- ls -------------------------------------------------------------------------------------------------------------


@object.command()
@_limit("List at most N objects.", 1000)
@click.option("--after", type=click.IntRange(0), default=0, help="List objects with ids above this one. Default 0.")
@click.option(
    "--state", type=click.Choice(["prepared", "committed", "marked"]), help="List only objects in this state."
)
@zookeeper_options
def ls(
    limit: int,
    after: int,
    state: str | None,
    hosts: str | None,
    namespace: str | None,
    directory: str | None,
    as_json: bool,
) -> None:
    """List the objects of the store s3 that the metadata name, in order of their ids.

    An object is prepared, then committed, then marked for deletion; destroyed ones are not listed. Objects of
    s3-direct are named by no metadata: `dlog object show STREAM` lists them.
    """
    wanted = None if state is None else ObjectState[state.upper()]

    async def work() -> tuple[list[dict[str, Any]], int]:
        async with open_objects(_cluster(hosts, namespace, directory)) as access:
            image = await access.fresh()
            ids = (one for one in image.objects.ids() if one > after and wanted in (None, image.objects.state(one)))
            some = list(islice(ids, limit + 1))
            rows = _rows(image, await access.folder(), some[:limit])
            return rows, some[limit - 1] if len(some) > limit else 0

    rows, last = asyncio.run(work())
    if as_json:
        say_json(rows)
    else:
        say_table(
            ("object", "kind", "state", "bytes", "node", "holds", "key"),
            (
                (str(r["object"]), r["kind"], r["state"], r["bytes"], r["node"], _slices_text(r["slices"]), r["key"])
                for r in rows
            ),
        )
    if last:
        note(f"there are more: `dlog object ls --after {last}` goes on")


def _rows(image: Image, folder: str, ids: Sequence[ObjectId]) -> list[dict[str, Any]]:
    """What the metadata have of these objects, as plain values."""
    slices, segments = slices_by_object(image), _segment_names(image)
    rows = []
    for one in ids:
        state, (node, node_epoch) = image.objects.state(one), image.objects.owner(one)
        kind = "" if state is ObjectState.PREPARED else "stream" if image.objects.stream_of(one) else "set"
        held = [_slice_row(part, segments) for part in slices.get(one, [])]
        rows.append(
            {
                "object": one,
                "kind": kind,
                "state": state.name.lower(),
                "bytes": image.objects.bytes_of(one),
                "node": node,
                "node_epoch": node_epoch,
                "time_ms": image.objects.time_ms(one),
                "slices": held,
                "key": object_key(folder, one, node, node_epoch),
            }
        )
    return rows


def _segment_names(image: Image) -> SegmentNames:
    """For each object stream the segment that it is."""
    found: SegmentNames = {}
    for key, text in image.keys.items():
        named = parse_segment_key(key)
        if named is not None and text.isdigit():
            found[ObjectStreamId(int(text))] = named
    return found


def _slice_row(part: Slice, segments: SegmentNames) -> dict[str, Any]:
    stream, number = segments.get(part.stream, (None, None))
    return {
        "object_stream": part.stream,
        "stream": stream,
        "segment": number,
        "first_entry": part.start,
        "last_entry": part.end - 1,
    }


def _slices_text(slices: Sequence[dict[str, Any]]) -> str:
    shown = [
        f"{one['stream'] or one['object_stream']}{'' if one['segment'] is None else ':' + str(one['segment'])} "
        f"entries {one['first_entry']}-{one['last_entry']}"
        for one in slices[:SLICES_SHOWN]
    ]
    more = [f"and {len(slices) - SLICES_SHOWN:,} more"] if len(slices) > SLICES_SHOWN else []
    return ", ".join([*shown, *more])


# ---- show -----------------------------------------------------------------------------------------------------------


@object.command()
@click.argument("stream")
@_limit("Show at most the newest N segments.", 100)
@zookeeper_options
def show(
    stream: str, limit: int, hosts: str | None, namespace: str | None, directory: str | None, as_json: bool
) -> None:
    """Show the segments of STREAM that are in objects: how far each is written and uploaded, and its objects."""
    name = stream_name(stream)

    async def work() -> tuple[list[dict[str, Any]], int]:
        async with open_objects(_cluster(hosts, namespace, directory)) as access:
            segments = [one for one in (await access.stream(name)).listed if one.store in (S3, DIRECT)]
            image = await access.fresh()
            return [await _segment_row(access, image, one) for one in segments[-limit:]], max(0, len(segments) - limit)

    rows, left_out = asyncio.run(work())
    if as_json:
        say_json({"stream": stream, "segments": rows, "left_out": left_out})
        return
    say_table(
        ("segment", "location", "store", "state", "entries", "uploaded", "objects", "bytes", "node", "kept as"),
        (
            (
                *(r[name] for name in ("segment", "location", "store", "state", "entries", "uploaded")),
                len(r["objects"]) if r["chunks"] is None else r["chunks"],
                *(r[name] for name in ("bytes", "node", "kept_as")),
            )
            for r in rows
        ),
    )
    if left_out:
        note(f"{left_out:,} older segments are left out: --limit shows more")


async def _segment_row(access: ObjectAccess, image: Image, segment: Segment) -> dict[str, Any]:
    row: dict[str, Any] = {
        "segment": int(segment.number),
        "location": segment.name,
        "store": segment.store,
        "state": "being written",
        "entries": None,
        "uploaded": None,
        "objects": [],
        "chunks": None,
        "bytes": None,
        "node": None,
        "kept_as": "",
    }
    try:
        more = await _chain_row(access, segment.name) if segment.store == DIRECT else _range_row(image, segment.name)
    except StoreError as error:
        more = {"state": "cannot be read", "kept_as": error.message}
    return row | more


def _range_row(image: Image, name: str) -> dict[str, Any]:
    place = parse_place(name)
    found = range_of(image, place)
    if found is None:
        raise SegmentNotFoundError("the metadata of objects do not have it (any more)")
    objects = [*_objects_of(image, place, found)]
    return {
        "state": "being written" if found.end is None else "ended",
        "entries": None if found.end is None else found.end - found.start,
        "uploaded": found.committed - found.start,
        "objects": objects,
        "bytes": sum(one["bytes"] for one in objects if one["kind"] == "stream") or None,
        "node": found.node,
        "kept_as": _parts_text(objects, found),
    }


def _objects_of(image: Image, place: Place, found: Range) -> Iterable[dict[str, Any]]:
    """The objects with a segment's entries, in order."""
    at, end = max(found.start, image.streams[place.stream].start), found.committed
    while at < end:
        result = find_objects(image, place.stream, at, end, 1000)
        if not result.objects:
            return
        for one in result.objects:
            yield {
                "object": one.object,
                "kind": "set" if one.is_set_object else "stream",
                "first_entry": one.start - found.start,
                "last_entry": min(one.end, end) - found.start - 1,
                "bytes": image.objects.bytes_of(one.object),
            }
        at = result.covered_to


def _parts_text(objects: Sequence[dict[str, Any]], found: Range) -> str:
    own = sum(one["kind"] == "stream" for one in objects)
    parts = [f"{own} of its own"] if own else []
    parts += [f"{len(objects) - own} shared"] if own < len(objects) else []
    is_all = found.end is not None and found.committed >= found.end
    return ", ".join(parts + ([] if is_all else ["the rest in the node's write-ahead log"]))


async def _chain_row(access: ObjectAccess, name: str) -> dict[str, Any]:
    tail, folder = await access.direct.tail(name), await access.direct.folder_of(name)
    chunks = size = 0
    is_merged = False
    async for one in access.direct.objects.list(folder):
        chunks, size = chunks + 1, size + one.bytes
        is_merged = is_merged or one.location == str(folder.below("index"))
    return {
        "state": "ended" if tail.is_ended else "being written",
        "entries": tail.end,
        "uploaded": tail.end,
        "chunks": chunks,
        "bytes": size,
        "kept_as": f"{'merged, ' if is_merged else 'chunks, '}in {folder}",
    }


# ---- search ---------------------------------------------------------------------------------------------------------


@object.command()
@click.argument("stream")
@click.option(
    "--from",
    "start",
    metavar="OFFSET|DLSN",
    default="0",
    show_default=True,
    help="Where to begin: a DLSN, or a number of entries from the first segment in the store s3 on.",
)
@_limit("Find at most N objects.", 20)
@zookeeper_options
def search(
    stream: str,
    start: str,
    limit: int,
    hosts: str | None,
    namespace: str | None,
    directory: str | None,
    as_json: bool,
) -> None:
    """Show which objects of the store s3 have the entries of STREAM from there on, as readers find them.

    Prints the objects in order, how far they reach, and where the rest is, by the metadata as they are here.
    """
    name = stream_name(stream)

    async def work() -> dict[str, Any]:
        async with open_objects(_cluster(hosts, namespace, directory)) as access:
            segments = [one for one in (await access.stream(name)).segments if one.store == S3]
            if not segments:
                raise CommandError(
                    f"the stream has no segments in the store s3: stream={name}",
                    f"`dlog show {name}` shows where they are",
                    misused=False,
                )
            return _searched(await access.fresh(), await access.folder(), name, segments, start, limit)

    result = asyncio.run(work())
    if as_json:
        say_json(result)
        return
    say_table(
        ("segment", "first entry", "last entry", "object", "kind", "key"),
        (
            (r["segment"], r["first_entry"], r["last_entry"], str(r["object"]), r["kind"], r["key"])
            for r in result["objects"]
        ),
    )
    say("")
    say(f"covered    up to {result['covered_to']}, by version {result['version']} of the metadata")
    say(f"rest       {result['rest']}")


def _searched(
    image: Image, folder: str, stream: StreamName, segments: Sequence[Segment], start: str, limit: int
) -> dict[str, Any]:
    at, entry = _begin(image, stream, segments, start)
    objects: list[dict[str, Any]] = []
    covered, rest = f"{segments[at].number}:{entry}:0", "there is none: these are all entries"
    for index, segment in enumerate(segments[at:], at):
        place = parse_place(segment.name)
        found = range_of(image, place)
        if found is None:
            rest = f"segment {segment.number} is not known here yet, or deleted"
            break
        first, end = found.start + entry, found.start + (1 << 62) if found.end is None else found.end
        if first > end:
            raise CommandError(
                f"the segment has fewer entries: stream={stream} segment={segment.number} entry={entry} "
                f"entries={end - found.start}",
                f"`dlog object show {stream}` lists its segments",
                misused=False,
            )
        entry = 0
        try:
            result = find_objects(image, place.stream, first, max(first, end), limit - len(objects))
        except TruncatedError as error:
            rest = error.message
            break
        for one in result.objects:
            row: dict[str, Any] = {"object": one.object, "kind": "set" if one.is_set_object else "stream"}
            row |= {"key": object_key(folder, one.object, *image.objects.owner(one.object))}
            row |= {"segment": int(segment.number), "first_entry": one.start - found.start}
            objects.append(row | {"last_entry": one.end - found.start - 1})
        covered_to = result.covered_to if result.objects else min(result.covered_to, max(found.start, found.committed))
        covered = f"{segment.number}:{covered_to - found.start}:0"
        if result.covered_to < end:
            is_full = len(objects) >= limit and result.covered_to < found.committed
            rest = (
                f"more objects follow: `dlog object search {stream} --from {covered}`"
                if is_full
                else _log(image, found)
            )
            break
        if len(objects) >= limit and segment is not segments[-1]:
            covered = f"{segments[index + 1].number}:0:0"  # segments between them may be in other stores
            rest = f"more segments follow: `dlog object search {stream} --from {covered}`"
            break
    return {"stream": stream, "objects": objects, "covered_to": covered, "version": image.version, "rest": rest}


def _log(image: Image, found: Range) -> str:
    """Where what is not uploaded of a range is."""
    node = image.nodes.get(found.node)
    what = "being written" if found.end is None else "ended, and not wholly uploaded"
    if node is None or not node.wal:
        return f"the segment is {what}, and node {found.node} has no write-ahead log"
    wal = ", ".join(f"{one.store} {one.name}" for one in node.wal if one.number >= node.flush_point.segment)
    at = f"its segment {node.flush_point.segment}, entry {node.flush_point.entry}"
    return f"the segment is {what}: in the write-ahead log of node {found.node}, from {at} on ({wal or 'none yet'})"


def _begin(image: Image, stream: StreamName, segments: Sequence[Segment], start: str) -> tuple[int, int]:
    """Index of the segment, and the entry in it."""
    if re.fullmatch(r"[0-9]{1,19}", start):
        left = int(start)
        for at, segment in enumerate(segments):
            found = range_of(image, parse_place(segment.name))
            if found is None or found.end is None or left < found.end - found.start or at == len(segments) - 1:
                return at, left
            left -= found.end - found.start
    wanted = dlsns.parse(start)
    for at, segment in enumerate(segments):
        if segment.number == wanted.segment:
            return at, int(wanted.entry)
    raise CommandError(
        f"the stream does not have this segment in the store s3 (any more): stream={stream} segment={wanted.segment}",
        f"`dlog object show {stream}` lists its segments",
        misused=False,
    )


# ---- fsck -----------------------------------------------------------------------------------------------------------


@value
class _Fsck:
    """Result of a check. chains: of s3-direct. removed: findings that were repaired. obstacle: why nothing may be
    removed."""

    checked: Checked
    chains: int
    chain_findings: tuple[Finding, ...]
    removed: int
    obstacle: DLogError | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        return self.checked.findings + self.chain_findings

    @property
    def removable(self) -> tuple[Finding, ...]:
        return tuple(one for one in self.findings if one.kind in REMOVABLE)


@object.command(cls=MutatingCommand, when_unknown="how much was removed is unknown: run it again, that is harmless")
@click.option("--repair", is_flag=True, help="Remove orphans, zombies and unfinished uploads, and nothing else.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("--no-blocks", is_flag=True, help="Do not read the objects: compare the listing with the metadata only.")
@click.option(
    "--older-than",
    type=FiniteFloat(0, SECONDS_MAX),
    metavar="SECONDS",
    default=YOUNG_S,
    show_default=True,
    help="Age of a segment of s3-direct that no stream lists, before it is reported.",
)
@click.option("--segments", "listed", metavar="STREAM", help="Print the segments of STREAM that the bucket has, only.")
@_limit("Print at most N findings; --json prints all.", 100)
@zookeeper_options
def fsck(
    repair: bool,
    yes: bool,
    no_blocks: bool,
    older_than: float,
    listed: str | None,
    limit: int,
    hosts: str | None,
    namespace: str | None,
    directory: str | None,
    as_json: bool,
) -> int:
    """Check the objects of the cluster against the metadata. Reads every block. Exit 1 if something is wrong.

    \b
    orphan    named by no metadata, and never will be; --repair removes it
    unfinished  an upload in parts that nobody will finish; --repair removes it
    hole      entries that are uploaded by the metadata are in no object
    zombie    destroyed by the metadata: an upload landed after the deletion; --repair removes it
    missing   committed by the metadata, and not there
    damaged   a checksum does not match
    overdue   prepared and not committed, long after its expiry
    foreign   no object of the cluster has such a name
    lost      no stream lists this segment since ZooKeeper went back (docs/restore.md)

    --repair removes nothing while no controller answers, or after ZooKeeper went back.
    Of s3-direct it finds the segments that no stream lists; `dlog pipeline audit` reads the others.
    """
    cluster = _cluster(hosts, namespace, directory)
    if listed is not None:
        name = stream_name(listed)
        if repair:
            raise CommandError("--segments prints segments, and repairs nothing", "leave out --repair")
        return _say_segments(name, asyncio.run(_segments(cluster, name)), as_json)

    result = stopping.run(_check(cluster, not no_blocks, older_than))
    if repair and result.obstacle is not None:
        raise result.obstacle
    if repair and result.removable:
        if not yes:
            confirm(f"Remove {len(result.removable):,} leftovers from the bucket?", "whether to remove them")
        result = replace(result, removed=stopping.run(_remove(cluster, result, older_than)))
    left = len(result.findings) - result.removed
    code = EXIT_FAILED if left or isinstance(result.obstacle, MetadataWentBackError) else EXIT_OK
    if as_json:
        say_json(_fsck_json(result))
        return code
    for one in result.findings[:limit]:
        say(f"{one.kind:<10}  {one.place}: {one.why}")
    if len(result.findings) > limit:
        note(f"{len(result.findings) - limit:,} more findings: --limit or --json prints them")
    checked = result.checked
    say(
        f"{checked.listed:,} objects of {size_text(checked.bytes)} and {result.chains:,} segments of s3-direct listed, "
        f"{checked.blocks:,} blocks of {checked.objects:,} objects read, {len(result.findings):,} findings"
        + (f", {result.removed:,} removed" if repair else "")
    )
    if result.obstacle is not None:
        note(f"`dlog object fsck --repair` would remove nothing: {result.obstacle.message}")
    elif not repair and result.removable:
        note(f"`dlog object fsck --repair` removes {len(result.removable):,} of them")
    return code


async def _check(cluster: Cluster, reads_blocks: bool, older_than_s: float) -> _Fsck:
    async with open_objects(cluster) as access:
        if not await access.has_objects():
            return _Fsck(Checked(Comparison((), 0, 0), (), 0, 0, 0, 0, 0), 0, (), 0)
        checked = await (await _object_check(access, access.fresh)).run(reads_blocks=reads_blocks)
        chains = await _chains(access)
        unlisted, obstacle = await _unlisted(access, cluster, chains, older_than_s)
        return _Fsck(checked, len(chains), tuple(unlisted), 0, obstacle)


async def _remove(cluster: Cluster, result: _Fsck, older_than_s: float) -> int:
    """Remove the findings of `result` that are still orphans, and return their number. Raises the obstacle, if there is
    one now."""
    async with open_objects(cluster) as access:
        chains = await _chains(access)
        unlisted, obstacle = await _unlisted(access, cluster, chains, older_than_s)
        if obstacle is not None:
            raise obstacle
        removed = await (await _object_check(access, access.newest)).remove(result.checked.findings)
        wanted = {one.place for one in result.chain_findings}
        for one in unlisted:
            if one.place not in wanted:
                continue
            await access.direct.delete(SegmentRef(StreamName("_"), SegmentNumber(1), one.place))
            removed += 1
        return removed


async def _object_check(access: ObjectAccess, fresh: ReadImage) -> ObjectCheck:
    objects, root, folder = access.direct.objects, await access.root(), await access.folder()
    return ObjectCheck(objects, root, folder, access.store.reads, access.image, fresh)


async def _first_number(access: ObjectAccess) -> int:
    """Of the segments that the metadata stream lists; 0: it lists none."""
    if not access.has_metadata:
        return 0
    return min((int(one.number) for one in (await access.stream(METADATA_STREAM)).listed), default=0)


async def _chains(access: ObjectAccess) -> list[str]:
    return [name async for name in access.direct.list()]


async def _unlisted(
    access: ObjectAccess, cluster: Cluster, chains: Sequence[str], older_than_s: float
) -> tuple[list[Finding], DLogError | None]:
    """The chains that no stream lists, and no node has as its log; and why nothing may be removed. chains: listed
    before. Without a controller no chain is judged: the newest logs are not known then."""
    try:
        named, unknown = await _named(access, cluster)
    except StoreUnavailableError as error:
        cause = error.__cause__
        return [], cause if isinstance(cause, MetadataWentBackError) else error
    described = [one for name in chains if name not in named and (one := await _described(access, name)) is not None]
    orphans = find_unlisted_chains(described, named, unknown, int(older_than_s * 1000))
    suspects = [one for one in described if one.stream not in unknown and shows_loss(one, 0)]
    if suspects:
        named, unknown = await _named(access, cluster)  # with those that were listed before they got entries
        first = await _first_number(access)
        lost = [one for one in suspects if one.name not in named and shows_loss(one, first)]
        if lost:
            return await _lost(access, [one for one in described if one.name not in named]), _went_back(lost[0])
    return orphans, None


async def _named(access: ObjectAccess, cluster: Cluster) -> tuple[set[str], set[str]]:
    """Locations that metadata name, with those of logs, and streams whose locations are not known. Raises StoreError:
    StoreUnavailableError if no controller answers."""
    from dlog.spark.jobs.audit_orphans import read_named_segments

    named = await read_named_segments(access.metadata, cluster.zookeeper, cluster.namespace)
    image = await access.newest()
    logs = {one.name for node in image.nodes.values() for one in node.wal if one.store == DIRECT}
    others = named.with_logs - {cluster.namespace}  # their logs are not read here
    return named.names | logs, named.unknown | ({str(WAL_STREAM)} if others else set())


async def _described(access: ObjectAccess, name: str) -> ListedChain | None:
    """A segment of s3-direct, as `find_unlisted_chains` takes it; None: it was deleted meanwhile."""
    try:
        age_ms = int(await access.direct.age_s(name) * 1000)
    except SegmentNotFoundError:
        return None
    try:
        found = await access.direct.describe(name)
    except (SegmentNotFoundError, SegmentCorruptError):
        return ListedChain(name, "", age_ms)
    has_entries = False
    if found.stream in (METADATA_STREAM, WAL_STREAM):
        try:
            has_entries = (await access.direct.tail(name)).end > 0
        except SegmentNotFoundError:
            return None
        except SegmentCorruptError:
            has_entries = True
    return ListedChain(name, str(found.stream), age_ms, int(found.number), has_entries)


async def _lost(access: ObjectAccess, chains: Sequence[ListedChain]) -> list[Finding]:
    """All unlisted chains, after ZooKeeper went back: each may be the only copy of acknowledged records."""
    return [
        Finding(
            Kind.LOST,
            chain.name,
            f"no stream lists it since ZooKeeper went back; it was made for {chain.stream or 'an unknown stream'}, "
            f"segment {chain.number}: objects in {await access.direct.folder_of(chain.name)}",
        )
        for chain in chains
    ]


def _went_back(chain: ListedChain) -> MetadataWentBackError:
    return MetadataWentBackError(
        "ZooKeeper went back to an older state: what no stream lists may be the only copy of acknowledged records, "
        f"keep it and follow docs/restore.md: stream={chain.stream} segment={chain.number} location={chain.name}"
    )


def _fsck_json(result: _Fsck) -> dict[str, Any]:
    checked = result.checked
    return {
        "version": checked.version,
        "objects_listed": checked.listed,
        "bytes_listed": checked.bytes,
        "objects_later": checked.comparison.later,
        "objects_read": checked.objects,
        "blocks_read": checked.blocks,
        "chains_listed": result.chains,
        "removed": result.removed,
        "obstacle": None if result.obstacle is None else result.obstacle.message,
        "findings": [
            {"kind": str(one.kind), "place": one.place, "why": one.why, "object": one.object} for one in result.findings
        ],
    }


# ---- segments, from the bucket and the metadata stream alone --------------------------------------------------------


async def _segments(cluster: Cluster, stream: StreamName) -> list[dict[str, Any]]:
    """The segments of a stream that are in objects, whatever its own metadata have."""
    async with open_objects(cluster) as access:
        if not await access.has_objects():
            return []
        image = await access.image()
        rows: list[dict[str, Any]] = []
        for object_stream, (name, number) in _segment_names(image).items():
            its = image.streams.get(object_stream)
            for found in its.ranges if name == stream and its is not None else ():
                if not found.is_dropped:
                    place = f"{object_stream}.{found.epoch}"
                    entries = None if found.end is None else found.end - found.start
                    rows.append(_listed_segment(number, S3, place, entries, found.end is not None))
        for chain in await _chains(access):
            try:
                described = await access.direct.describe(chain)
                if described.stream == stream:
                    tail = await access.direct.tail(chain)
                    rows.append(_listed_segment(described.number, DIRECT, chain, tail.end, tail.is_ended))
            except DLogError as error:
                note(f"a segment of s3-direct cannot be read: location={chain}: {error.message}")
        return sorted(rows, key=lambda row: (row["segment"], row["store"], row["location"]))


def _listed_segment(number: int, store: str, location: str, entries: int | None, is_ended: bool) -> dict[str, Any]:
    return {"segment": int(number), "store": store, "location": location, "entries": entries, "ended": is_ended}


def _say_segments(stream: StreamName, rows: list[dict[str, Any]], as_json: bool) -> int:
    if as_json:
        say_json({"stream": stream, "segments": rows})
    else:
        say_table(("segment", "store", "location", "entries", "ended"), (tuple(row.values()) for row in rows))
    return EXIT_OK
