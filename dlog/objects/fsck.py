"""Compares the objects of a bucket with the metadata of streams in objects. Pure functions of listings and images.

The bucket is listed between two images. An object that the first one has as committed was there before the listing;
one that the second one still has as committed was not deleted before its end.

Invariants:
- an orphan is named by no metadata and never will be: its id belongs to another owner, or its snapshot lies behind one
  that is recorded. The same holds for a zombie, since ids are never used again. Ids of prepared objects, and ids that
  the image does not know yet, are neither;
- one that was deleted after it was listed looks like an orphan or a zombie too: the caller looks for it once more;
- an image that lags makes fewer findings about objects that are there, never another kind of them.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Collection, Iterable, Iterator, Sequence

from dlog.model.ids import METADATA_STREAM, WAL_STREAM
from dlog.model.object_streams import ObjectId, ObjectStreamId, Slice
from dlog.objects.image import Image, SliceTable
from dlog.objects.keys import parse_object_key, parse_snapshot_key
from dlog.objects.object_table import ObjectState
from dlog.values import value

OVERDUE_MS = 10 * 60_000  # after its expiry, a prepared object should be marked
_ALL = 1 << 62


class Kind(enum.StrEnum):
    """What is wrong. Only what is in REMOVABLE may be deleted."""

    ORPHAN = "orphan"  # named by no metadata, and never will be
    HOLE = "hole"  # entries that are uploaded by the metadata are in no object
    ZOMBIE = "zombie"  # the metadata has it as destroyed: it landed after its deletion
    UNFINISHED = "unfinished"  # an upload in parts whose object was committed without it, or never will be
    MISSING = "missing"  # committed by the metadata, and not there
    DAMAGED = "damaged"  # a checksum does not match, or it is not what the metadata say
    OVERDUE = "overdue"  # prepared, never committed, and not marked long after its expiry
    FOREIGN = "foreign"  # no object of this cluster has such a name
    LOST = "lost"  # a segment of s3-direct that no stream lists since ZooKeeper went back


REMOVABLE = frozenset({Kind.ORPHAN, Kind.ZOMBIE, Kind.UNFINISHED})


@value
class ListedObject:
    """An object of the bucket. key: below the root of streams, so it begins with the name of an incarnation."""

    key: str
    bytes: int


@value
class Finding:
    """One thing that is wrong. place: key of the object, name of a chain, or the interval of entries."""

    kind: Kind
    place: str
    why: str
    object: ObjectId | None = None
    stream: ObjectStreamId | None = None


@value
class Comparison:
    """Result of a comparison. named: listed objects that the image names. later: those with ids or numbers of records
    that the image does not know yet, so that a later one may name them."""

    findings: tuple[Finding, ...]
    named: int
    later: int


def committed_objects(image: Image) -> array[int]:
    """Ids of the objects that an image has as committed, in order; they stay as they are when the image goes on."""
    state, committed = image.objects.state, ObjectState.COMMITTED
    return array("Q", (object for object in image.objects.ids() if state(object) is committed))


def compare(
    image: Image,
    folder: str,
    listed: Iterable[ListedObject],
    committed_before: Collection[int],
    now_ms: int,
    *,
    overdue_ms: int = OVERDUE_MS,
) -> Comparison:
    """Compare the objects below the root of streams with an image that was read after they were listed.

    folder: of the incarnation of the metadata stream. committed_before: by an image that was read before. now_ms: by
    the storage's clock.
    """
    findings: list[Finding] = []
    there: set[int] = set()
    named = later = 0
    for one in listed:
        finding, object = _judge(image, folder, one)
        if isinstance(finding, Finding):
            findings.append(finding)
        elif finding:
            named += 1
        else:
            later += 1
        if object is not None and finding is True:
            there.add(object)
    for object in committed_before:
        if object not in there and image.objects.state(object) is ObjectState.COMMITTED:
            findings.append(Finding(Kind.MISSING, _name(object), "the metadata has it as committed", ObjectId(object)))
    for overdue in image.objects.expired(now_ms - overdue_ms, _ALL):
        node, node_epoch = image.objects.owner(overdue)
        late_s = (now_ms - image.objects.time_ms(overdue)) // 1000
        why = f"prepared by {node}, epoch {node_epoch}, and expired {late_s:,} s ago: is there a controller?"
        findings.append(Finding(Kind.OVERDUE, _name(overdue), why, overdue))
    findings += find_holes(image)
    return Comparison(tuple(findings), named, later)


def is_removable(image: Image, folder: str, one: ListedObject) -> bool:
    """Whether no metadata names an object and none ever will, so that it may be deleted."""
    finding, _ = _judge(image, folder, one)
    return isinstance(finding, Finding) and finding.kind in REMOVABLE


def judge_unfinished(image: Image, folder: str, key: str) -> Finding | None:
    """The finding about an upload in parts that is not finished; None: it may be in progress, or is not of this
    cluster. An object that is prepared, or not known yet, may still be written."""
    parsed = parse_object_key(folder, key)
    if parsed is None:
        return None
    state = image.objects.state(parsed.object)
    if state in (ObjectState.UNKNOWN, ObjectState.PREPARED):
        return None
    return Finding(Kind.UNFINISHED, key, f"its object is {state.name.lower()}", parsed.object)


def _judge(image: Image, folder: str, one: ListedObject) -> tuple[Finding | bool, int | None]:
    """What is wrong with an object; True: the image names it; False: a later one may. And its id."""
    applied = parse_snapshot_key(folder, one.key)
    if applied is not None:
        if any(snapshot.key == one.key for snapshot in image.snapshots):
            return True, None
        if not image.snapshots or applied > image.snapshots[-1].applied:
            return False, None
        return Finding(Kind.ORPHAN, one.key, "a snapshot of metadata that was not recorded, or is replaced"), None
    key = parse_object_key(folder, one.key)
    if key is None:
        what = "no object of a stream has such a name"
        if not one.key.startswith(folder + "/"):
            what = "it is not of this incarnation of the metadata stream"
        return Finding(Kind.FOREIGN, one.key, what), None
    state = image.objects.state(key.object)
    if state is ObjectState.UNKNOWN:
        return False, None
    if state is ObjectState.DESTROYED:
        return Finding(Kind.ZOMBIE, one.key, "the metadata has it as destroyed", key.object), None
    node, node_epoch = image.objects.owner(key.object)
    if (node, node_epoch) != (key.node, key.node_epoch):
        why = f"its id was given to {node}, epoch {node_epoch}"
        return Finding(Kind.ORPHAN, one.key, why, key.object), None
    return True, key.object


# ---- entries --------------------------------------------------------------------------------------------------------


def find_holes(image: Image) -> Iterator[Finding]:
    """Uploaded entries that are in no object by the metadata, and entries of ended ranges that are nowhere."""
    for stream, its in image.streams.items():
        for one in its.ranges:
            if one.is_dropped:
                continue
            node = image.nodes.get(one.node)
            tables = [its.objects, *((node.slices[stream],) if node is not None and stream in node.slices else ())]
            start = max(one.start, its.start)
            for first, end in _gaps(tables, start, one.committed):
                yield _hole(stream, first, end, "uploaded by the metadata, and in no object")
            lost = max(start, one.committed)
            if one.end is not None and lost < one.end and (node is None or not node.wal):
                yield _hole(stream, lost, one.end, f"not uploaded, and {one.node} has no write-ahead log")


def missing_parts(expected: Sequence[Slice], found: Iterable[Slice]) -> list[Slice]:
    """What an object should have by the metadata, and does not have by its index. Both are sorted."""
    tables: dict[ObjectStreamId, SliceTable] = {}
    for part in found:
        tables.setdefault(part.stream, SliceTable()).add(part.start, part.end, ObjectId(1))
    lacking: list[Slice] = []
    for part in expected:
        table = tables.get(part.stream)
        gaps = _gaps([table] if table is not None else [], part.start, part.end)
        lacking += [Slice(part.stream, first, end) for first, end in gaps]
    return lacking


def slices_by_object(image: Image) -> dict[int, list[Slice]]:
    """What the metadata has in each object, sorted: only what is live."""
    found: dict[int, list[Slice]] = {}
    for stream in sorted(image.streams):
        its = image.streams[stream]
        tables = [its.objects, *(node.slices[stream] for node in image.nodes.values() if stream in node.slices)]
        for table in tables:
            for start, end, object in zip(table.starts, table.ends, table.objects, strict=True):
                parts = (Slice(stream, first, last) for first, last in its.live_parts(start, end))
                found.setdefault(object, []).extend(parts)
    return found


def _gaps(tables: Sequence[SliceTable], start: int, end: int) -> list[tuple[int, int]]:
    """The parts of [start, end) that no slice has."""
    gaps: list[tuple[int, int]] = []
    found: list[tuple[int, int]] = []
    for table in tables:
        for at in range(max(0, table.floor(start)), len(table)):
            if table.starts[at] >= end:
                break
            found.append((table.starts[at], table.ends[at]))
    for first, last in sorted(found):
        if start >= end:
            break
        if first > start:
            gaps.append((start, min(first, end)))
        start = max(start, last)
    if start < end:
        gaps.append((start, end))
    return gaps


def _hole(stream: ObjectStreamId, first: int, end: int, why: str) -> Finding:
    return Finding(Kind.HOLE, f"stream {stream}, entries {first} to {end - 1}", why, stream=stream)


def _name(object: int) -> str:
    return f"object {object}"


# ---- chains ---------------------------------------------------------------------------------------------------------


@value
class ListedChain:
    """A segment of `s3-direct` in the bucket. stream, number: by its first chunk; empty and 0: that is gone, or cannot
    be read. age_ms: since its last object was created. has_entries: asked only of segments that dlog keeps for itself.
    """

    name: str
    stream: str
    age_ms: int
    number: int = 0
    has_entries: bool = False


def shows_loss(chain: ListedChain, first_number: int) -> bool:
    """Whether a chain that no metadata names shows that ZooKeeper went back to an older state.

    first_number: of the segments that the metadata stream lists now. A segment of that stream or of a write-ahead log
    gets entries only once it is listed; it leaves the list of the stream from the front only, and that of a log only
    once its objects are deleted.
    """
    if not chain.has_entries:
        return False
    return chain.stream == WAL_STREAM or (chain.stream == METADATA_STREAM and chain.number >= first_number)


def find_unlisted_chains(
    chains: Iterable[ListedChain], named: Collection[str], unknown: Collection[str], young_ms: int
) -> list[Finding]:
    """Chains that no stream lists. named: by all metadata, read after the chains were listed. unknown: streams whose
    metadata cannot be read: a chain of one of them, or of no known stream while there are any, is not judged, and
    neither is one that is younger than young_ms, which may be listed in a moment."""
    return [
        Finding(Kind.ORPHAN, chain.name, f"no stream lists it; it was made for {chain.stream or 'an unknown stream'}")
        for chain in chains
        if chain.name not in named
        and chain.age_ms >= young_ms
        and not (unknown and (not chain.stream or chain.stream in unknown))
    ]
