"""Compaction plans: which objects are replaced by which others. Pure functions of the image and of objects' indexes.

What is uploaded as stream-set objects ends in stream objects, a few large ones for each stream:

- CLEAN_UP: objects without a live entry are given up, with nothing in their place.
- FORCE_SPLIT: of stream-set objects that are older than two hours each stream gets a stream object.
- MERGE: younger stream-set objects that share streams become one; a stream with 8 MiB or more in a row in them gets a
  stream object.
- MINOR, MAJOR: stream objects that follow one another without a gap become one, up to 128 MiB, up to 10 GiB.

An entry is *live* as StreamImage.live_parts has it. Entries that are not live are left out.

What a plan needs of the image is gathered in steps, so that an event loop does other work between them; the image may
change meanwhile. What is gathered does not change any more, so it may be planned in a thread. A plan of an image that
has changed since is abandoned or refused, never wrong: see find_uncovered.

Invariants:
- the new objects of a plan have every live entry of its sources, once, and no other: `find_uncovered` proves it again
  of what was written, with the image as it is just before the commit;
- an object is rewritten by MERGE, MINOR or MAJOR only together with at least half as many bytes of others, so an entry
  is rewritten a logarithmic number of times.

Source: AutoMQ 1.1.0, CompactionAnalyzer and StreamObjectCompactor; the rule on rewriting is ours.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from dlog.model.object_streams import SLICES_MAX, NodeEpoch, NodeId, ObjectId, ObjectStreamId, Slice
from dlog.objects.image import Image, NodeImage, ObjectState, SliceTable
from dlog.values import value
from dlog.wire.stream_object import ObjectIndex

MIB = 1 << 20
STEP = 1000  # slices that are looked at in one step
STREAMS_STEP = 10_000  # streams that are looked at in one step
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOptions:
    """When and how much to compact.

    force_split_after_ms: age at which a stream-set object is split. set_objects_max: of the newest stream-set objects,
    so many are looked at in one round. memory_bytes: of the stream-set objects of one plan. split_bytes: a stream with
    so many bytes in a row gets a stream object. minor_bytes, major_bytes: largest result of a merge of stream objects.
    sources_max, new_objects_max, runs_max: of one plan; a run is an interval of a stream, in a new object.
    """

    force_split_after_ms: int = 2 * 3600 * 1000
    set_objects_max: int = 500
    memory_bytes: int = 200 * MIB
    split_bytes: int = 8 * MIB
    minor_bytes: int = 128 * MIB
    major_bytes: int = 10 << 30
    sources_max: int = 1000
    new_objects_max: int = SLICES_MAX
    runs_max: int = SLICES_MAX


class PlanKind(enum.Enum):
    """Why objects are replaced; see the module."""

    CLEAN_UP = "clean-up"
    FORCE_SPLIT = "force-split"
    MERGE = "merge"
    MINOR = "minor"
    MAJOR = "major"


@value
class Part:
    """Entries start..end-1 of a stream, all of them in the object `source`."""

    source: ObjectId
    stream: ObjectStreamId
    start: int
    end: int

    def blocks(self, index: ObjectIndex) -> range:
        """The blocks of the source that have these entries; the first and last may have others too."""
        return index.find(self.stream, self.start, self.end)


@value
class NewObject:
    """An object to write. parts: in order of stream and offset. order, time_ms: of a stream-set object."""

    is_set_object: bool
    order: ObjectId
    time_ms: int
    parts: tuple[Part, ...]

    def slices(self) -> tuple[Slice, ...]:
        return tuple(_joined(Slice(part.stream, part.start, part.end) for part in self.parts))


@value
class CompactionPlan:
    """Objects of a node, or of one stream, and what takes their place. bytes: of the sources."""

    kind: PlanKind
    node: NodeId
    sources: tuple[ObjectId, ...]
    new_objects: tuple[NewObject, ...]
    bytes: int


# ---- steps ----------------------------------------------------------------------------------------------------------

#: work that yields where it may be interrupted, and returns its result
Steps = Generator[None, None, T]


def finish(steps: Steps[T]) -> T:
    """Do all steps at once."""
    while True:
        try:
            next(steps)
        except StopIteration as stop:
            result: T = stop.value
            return result


# ---- nodes ----------------------------------------------------------------------------------------------------------


def taken_over_nodes(image: Image) -> list[tuple[NodeId, NodeEpoch]]:
    """Nodes that another process has taken over, with all that they left uploaded. Their objects are to be
    compacted by another process, under the node epoch that comes with each: one that comes back has a greater epoch, so
    what is not committed by then is refused."""
    return [(node, its.node_epoch) for node, its in image.nodes.items() if its.is_failover and not its.wal]


# ---- stream-set objects ---------------------------------------------------------------------------------------------


@value
class SetSource:
    """A stream-set object of a node. slices: its live parts, sorted by `plan_gathered`."""

    object: ObjectId
    order: ObjectId
    time_ms: int
    bytes: int
    slices: tuple[Slice, ...]


def set_objects_to_read(image: Image, node: NodeId, options: CompactionOptions) -> tuple[ObjectId, ...]:
    """The stream-set objects of which `plan_set_objects` needs the indexes, in order."""
    return tuple(source.object for source in finish(gather_set_objects(image, node, options)) if source.slices)


def plan_set_objects(
    image: Image, node: NodeId, now_ms: int, indexes: Mapping[ObjectId, ObjectIndex], options: CompactionOptions
) -> list[CompactionPlan]:
    """Plans for the stream-set objects of a node; no two have a source in common.

    now_ms: time of the object storage. indexes: those of set_objects_to_read; objects without one are left alone.
    """
    return plan_gathered(node, finish(gather_set_objects(image, node, options)), now_ms, indexes, options)


def plan_gathered(
    node: NodeId,
    gathered: Iterable[SetSource],
    now_ms: int,
    indexes: Mapping[ObjectId, ObjectIndex],
    options: CompactionOptions,
) -> list[CompactionPlan]:
    """As plan_set_objects, with what gather_set_objects found."""
    sources = [replace(source, slices=tuple(sorted(source.slices, key=_by_place))) for source in gathered]
    plans = _clean_up(node, [(source.object, source.bytes) for source in sources if not source.slices], options)
    there = [source for source in sources if source.slices and source.object in indexes]
    old = [source for source in there if source.time_ms + options.force_split_after_ms <= now_ms]
    for batch in _batches(old, options):
        plans.append(_set_plan(PlanKind.FORCE_SPLIT, node, batch, indexes, 0, options))
    young = [source for source in there if source.time_ms + options.force_split_after_ms > now_ms]
    for batch in _batches(young[-options.set_objects_max :], options):
        shared = _sharing(batch, indexes, options)
        if _is_worth_it([one.bytes for one in shared]):
            plans.append(_set_plan(PlanKind.MERGE, node, shared, indexes, options.split_bytes, options))
    return plans


def gather_set_objects(image: Image, node: NodeId, options: CompactionOptions) -> Steps[list[SetSource]]:
    """The stream-set objects of a node in their order: as many of the oldest and of the newest as a round looks at."""
    its = image.nodes.get(node)
    if its is None:
        return []
    known = sorted(its.set_objects, key=lambda object: (its.set_objects[object][0], object))
    if len(known) > 2 * options.set_objects_max:
        known = known[: options.set_objects_max] + known[-options.set_objects_max :]
    found = [(object, *its.set_objects[object][:2], image.objects.bytes_of(object)) for object in known]
    live: dict[int, list[Slice]] = {object: [] for object in known}
    streams: set[int] = set()
    for object in known:
        streams.update(its.set_objects[object][2])
    done = 0
    for stream in map(ObjectStreamId, streams):
        table, its_stream = its.slices.get(stream), image.streams.get(stream)
        if table is None or its_stream is None:
            continue
        for start, end, number in table.copied_rows():
            slices = live.get(number)
            if slices is not None:
                slices += [Slice(stream, *part) for part in its_stream.live_parts(start, end)]
            done += 1
            if done % STEP == 0:
                yield
    return [SetSource(*source, tuple(live[source[0]])) for source in found]


def set_slices(image: Image, node: NodeImage, objects: Iterable[ObjectId]) -> dict[ObjectId, list[Slice]]:
    """The slices of stream-set objects of a node that metadata has, live or not, sorted by stream and offset."""
    found: dict[ObjectId, list[Slice]] = {object: [] for object in objects}
    streams = {number for object in found if object in node.set_objects for number in node.set_objects[object][2]}
    for stream in map(ObjectStreamId, sorted(streams)):
        if stream in image.streams and (table := node.slices.get(stream)) is not None:
            _collect(stream, table, found)
    return found


def _collect(stream: ObjectStreamId, table: SliceTable, found: dict[ObjectId, list[Slice]]) -> None:
    for at, object in enumerate(table.objects):
        slices = found.get(ObjectId(object))
        if slices is not None:
            slices.append(Slice(stream, table.starts[at], table.ends[at]))


def _batches(sources: Sequence[SetSource], options: CompactionOptions) -> Iterator[list[SetSource]]:
    """Neighbours that together keep within the memory of one plan and the slices of one commit; one that exceeds these
    is alone."""
    batch: list[SetSource] = []
    size, runs = 0, _RunCount()
    for source in sources:
        is_full = size + source.bytes > options.memory_bytes or len(batch) == options.sources_max
        if batch and (is_full or runs.with_these(source.slices) > options.runs_max):
            yield batch
            batch, size, runs = [], 0, _RunCount()
        batch.append(source)
        size += source.bytes
        runs.add(source.slices)
    if batch:
        yield batch


class _RunCount:
    """Counts the runs that slices form which do not overlap."""

    def __init__(self) -> None:
        self._runs = 0
        self._starts: set[tuple[ObjectStreamId, int]] = set()
        self._ends: set[tuple[ObjectStreamId, int]] = set()

    def with_these(self, slices: Iterable[Slice]) -> int:
        """The number of runs with the slices of another object."""
        return self._runs + sum(
            1 - ((part.stream, part.start) in self._ends) - ((part.stream, part.end) in self._starts) for part in slices
        )

    def add(self, slices: Sequence[Slice]) -> None:
        self._runs = self.with_these(slices)
        self._starts.update((part.stream, part.start) for part in slices)
        self._ends.update((part.stream, part.end) for part in slices)


def _sharing(
    batch: Sequence[SetSource], indexes: Mapping[ObjectId, ObjectIndex], options: CompactionOptions
) -> list[SetSource]:
    """Those that have a stream in common with another one, or a stream that is to be split out."""
    count = Counter(stream for source in batch for stream in {part.stream for part in source.slices})

    def is_of_use(source: SetSource) -> bool:
        return any(
            count[part.stream] > 1 or part_bytes(_part(source, part), indexes) >= options.split_bytes
            for part in source.slices
        )

    return [source for source in batch if is_of_use(source)]


def _part(source: SetSource, part: Slice) -> Part:
    return Part(source.object, part.stream, part.start, part.end)


def part_bytes(part: Part, indexes: Mapping[ObjectId, ObjectIndex]) -> int:
    """Bytes of the blocks that have these entries."""
    index = indexes[part.source]
    return sum(index.blocks[at].bytes for at in part.blocks(index))


def _set_plan(
    kind: PlanKind,
    node: NodeId,
    batch: Sequence[SetSource],
    indexes: Mapping[ObjectId, ObjectIndex],
    split_bytes: int,
    options: CompactionOptions,
) -> CompactionPlan:
    """A plan for these stream-set objects: runs of `split_bytes` or more become stream objects, as long as the plan may
    have more new ones; all others are kept in stream-set objects."""
    parts = sorted(
        (_part(source, part) for source in batch for part in source.slices),
        key=lambda part: (part.stream, part.start),
    )
    order, time_ms = min(source.order for source in batch), min(source.time_ms for source in batch)
    new_objects: list[NewObject] = []
    kept: list[list[Part]] = []
    for run in _runs(parts):
        size = sum(part_bytes(part, indexes) for part in run)
        if size >= split_bytes and len(new_objects) < options.new_objects_max:
            new_objects.append(NewObject(False, order, time_ms, tuple(run)))
        else:
            kept.append(run)
    for first in range(0, len(kept), SLICES_MAX):
        some = tuple(part for run in kept[first : first + SLICES_MAX] for part in run)
        new_objects.append(NewObject(True, order, time_ms, some))
    sources = tuple(source.object for source in batch)
    return CompactionPlan(kind, node, sources, tuple(new_objects), sum(source.bytes for source in batch))


def _runs(parts: Iterable[Part]) -> Iterator[list[Part]]:
    """Sorted parts, grouped where one begins where the one before ends."""
    run: list[Part] = []
    for part in parts:
        if run and (run[-1].stream, run[-1].end) != (part.stream, part.start):
            yield run
            run = []
        run.append(part)
    if run:
        yield run


# ---- stream objects -------------------------------------------------------------------------------------------------


@value
class OwnSource:
    """A stream object. parts: what is live of it."""

    object: ObjectId
    bytes: int
    parts: tuple[Part, ...]


def streams_of(image: Image, node: NodeId) -> list[ObjectStreamId]:
    """The streams whose objects this node merges: those of which it has the last range."""
    return finish(gather_streams(image, node))


def gather_streams(image: Image, node: NodeId) -> Steps[list[ObjectStreamId]]:
    """As streams_of."""
    streams, found = list(image.streams), list[ObjectStreamId]()
    for first in range(0, len(streams), STREAMS_STEP):
        for stream in streams[first : first + STREAMS_STEP]:
            its = image.streams.get(stream)
            if its is not None and its.ranges and its.ranges[-1].node == node and len(its.objects):
                found.append(stream)
        yield
    return found


def plan_stream_objects(
    image: Image, node: NodeId, stream: ObjectStreamId, options: CompactionOptions, *, is_major: bool
) -> list[CompactionPlan]:
    """Plans for the stream objects of a stream; no two have a source in common."""
    return plan_gathered_stream(node, finish(gather_stream_objects(image, stream)), options, is_major=is_major)


def gather_stream_objects(image: Image, stream: ObjectStreamId) -> Steps[list[OwnSource]]:
    """The stream objects of a stream that are committed, in order."""
    its, sources = image.streams.get(stream), list[OwnSource]()
    if its is None:
        return sources
    for done, (start, end, number) in enumerate(its.objects.copied_rows(), 1):
        object = ObjectId(number)
        if image.objects.state(object) is ObjectState.COMMITTED:
            parts = tuple(Part(object, stream, *part) for part in its.live_parts(start, end))
            sources.append(OwnSource(object, image.objects.bytes_of(object), parts))
        if done % STEP == 0:
            yield
    return sources


def plan_gathered_stream(
    node: NodeId, gathered: Sequence[OwnSource], options: CompactionOptions, *, is_major: bool
) -> list[CompactionPlan]:
    """As plan_stream_objects, with what gather_stream_objects found."""
    sources = [source for source in gathered if source.parts]
    plans = _clean_up(node, [(source.object, source.bytes) for source in gathered if not source.parts], options)
    bytes_max = options.major_bytes if is_major else options.minor_bytes
    kind = PlanKind.MAJOR if is_major else PlanKind.MINOR
    for group in _groups(sources, bytes_max, options):
        new_objects = tuple(
            NewObject(False, group[0].object, 0, tuple(run))
            for run in _runs(part for one in group for part in one.parts)
        )
        named = tuple(one.object for one in group)
        plans.append(CompactionPlan(kind, node, named, new_objects, sum(one.bytes for one in group)))
    return plans


def _groups(sources: Sequence[OwnSource], bytes_max: int, options: CompactionOptions) -> Iterator[Sequence[OwnSource]]:
    """Neighbours without a gap between them that are worth a merge."""
    group: list[OwnSource] = []
    size = 0
    for source in sources:
        has_gap = bool(group) and group[-1].parts[-1].end != source.parts[0].start
        if group and (has_gap or size + source.bytes > bytes_max or len(group) == options.sources_max):
            yield from _worth_a_merge(group)
            group, size = [], 0
        group.append(source)
        size += source.bytes
    yield from _worth_a_merge(group)


def _is_worth_it(sizes: Sequence[int]) -> bool:
    """Whether objects of these sizes are to be rewritten as one."""
    return len(sizes) > 1 and 2 * sum(sizes) >= 3 * max(sizes)


def _worth_a_merge(group: Sequence[OwnSource]) -> Iterator[Sequence[OwnSource]]:
    """The group, if it is worth a merge; else those on both sides of its largest object."""
    waiting = [group]
    while waiting:
        some = waiting.pop()
        if len(some) < 2:
            continue
        largest = max(range(len(some)), key=lambda at: some[at].bytes)
        if _is_worth_it([one.bytes for one in some]):
            yield some
        else:
            waiting += [some[largest + 1 :], some[:largest]]


def _clean_up(node: NodeId, dead: Sequence[tuple[ObjectId, int]], options: CompactionOptions) -> list[CompactionPlan]:
    plans = []
    for first in range(0, len(dead), options.sources_max):
        some = dead[first : first + options.sources_max]
        named = tuple(object for object, _ in some)
        plans.append(CompactionPlan(PlanKind.CLEAN_UP, node, named, (), sum(size for _, size in some)))
    return plans


# ---- the proof ------------------------------------------------------------------------------------------------------


def find_uncovered(
    image: Image, node: NodeId, sources: Sequence[ObjectId], written: Iterable[Sequence[Slice]]
) -> str | None:
    """Why the new objects may not replace the sources; None: they have each live entry of the sources exactly once, and
    no entry that the sources do not have.

    written: of each new object what it really has, as its encoder counted it.
    """
    for source in sources:
        if image.objects.state(source) is not ObjectState.COMMITTED:
            return f"a source is gone: object={source} state={image.objects.state(source).name.lower()}"
        if image.objects.stream_of(source) is None and source not in image.nodes[node].set_objects:
            return f"a source is the stream-set object of another node: object={source} node={node}"
    there = _slices_of(image, node, sources)
    live = [
        Slice(part.stream, start, end)
        for part in there
        for start, end in image.streams[part.stream].live_parts(part.start, part.end)
    ]
    new = sorted((part for slices in written for part in slices), key=_by_place)
    for one, following in pairwise(new):
        if one.stream == following.stream and following.start < one.end:
            return f"entries would be twice in the new objects: stream={one.stream} entry={following.start}"
    known = [part for part in new if part.stream in image.streams]
    missing = _difference(live, known)
    if missing is not None:
        return f"a live entry would be lost: stream={missing.stream} entry={missing.start}"
    foreign = _difference(known, there)
    if foreign is not None:
        return f"the sources do not have an entry of the new objects: stream={foreign.stream} entry={foreign.start}"
    return None


def _slices_of(image: Image, node: NodeId, objects: Iterable[ObjectId]) -> list[Slice]:
    """The slices of committed objects that metadata has, live or not."""
    found: dict[ObjectId, list[Slice]] = {}
    streams = set()
    for object in objects:
        stream = image.objects.stream_of(object)
        if stream is not None:
            found[object] = []
            streams.add(stream)
    for stream in streams & image.streams.keys():
        _collect(stream, image.streams[stream].objects, found)
    if node in image.nodes:
        found |= set_slices(image, image.nodes[node], (object for object in objects if object not in found))
    return [part for slices in found.values() for part in slices]


def _by_place(part: Slice) -> tuple[int, int]:
    return part.stream, part.start


def _joined(parts: Iterable[Slice]) -> Iterator[Slice]:
    """Sorted slices, those that abut or overlap joined."""
    last: Slice | None = None
    for part in parts:
        if last is not None and last.stream == part.stream and part.start <= last.end:
            last = Slice(last.stream, last.start, max(last.end, part.end))
        else:
            if last is not None:
                yield last
            last = part
    if last is not None:
        yield last


def _difference(wanted: Iterable[Slice], covering: Iterable[Slice]) -> Slice | None:
    """The first part of `wanted` that is not in `covering`; None: all is."""
    cover = list(_joined(sorted(covering, key=_by_place)))
    at = 0
    for part in _joined(sorted(wanted, key=_by_place)):
        while at < len(cover) and (cover[at].stream, cover[at].end) <= (part.stream, part.start):
            at += 1
        if at == len(cover) or cover[at].stream != part.stream or cover[at].start > part.start:
            return part
        if cover[at].end < part.end:
            return Slice(part.stream, cover[at].end, part.end)
    return None
