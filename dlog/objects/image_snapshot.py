"""An image as the contents of a snapshot, and back.

Invariants:
- equal images give equal contents, whether they were loaded or made of records;
- contents that do not fit together are a DamagedError.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate, chain

from dlog.errors import DamagedError
from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    NodeEpoch,
    NodeId,
    ObjectId,
    ObjectStreamId,
    SnapshotWritten,
    WalPosition,
    WalSegment,
)
from dlog.objects.image import Image, NodeImage, Range, SliceTable, StreamImage
from dlog.objects.object_table import ObjectRows
from dlog.wire.object_snapshot import SnapshotContents, SnapshotNode

_OPEN = (1 << 64) - 1  # the end of an open range


def contents_of(image: Image) -> SnapshotContents:
    """The contents of a snapshot of this image; they share nothing with it."""
    contents = SnapshotContents.empty()
    columns = contents.columns
    rows, owners = image.objects.rows()
    columns |= {
        "object_ids": rows.ids,
        "object_states": rows.states,
        "object_bytes": rows.bytes,
        "object_times": rows.times,
        "object_owners": rows.owners,
        "object_streams": rows.streams,
    }
    nodes = dict(sorted(image.nodes.items()))
    contents.applied, contents.next_stream, contents.next_object = image.version, image.next_stream, image.next_object
    contents.keys = sorted(image.keys.items())
    contents.owners = [(str(node), int(epoch)) for node, epoch in owners]
    contents.snapshots = [(one.key, one.applied, one.bytes, one.crc32c) for one in image.snapshots]
    contents.nodes = [_snapshot_node(name, node) for name, node in nodes.items()]
    _write_streams(image, {name: at for at, name in enumerate(nodes)}, columns)
    for node in nodes.values():
        _write_node(node, columns)
    return contents


def _snapshot_node(name: NodeId, node: NodeImage) -> SnapshotNode:
    wal = [(one.number, int(one.node_epoch), one.store, one.name) for one in node.wal]
    flush = node.flush_point
    return SnapshotNode(str(name), int(node.node_epoch), node.is_failover, flush.segment, flush.entry, wal)


def _write_streams(image: Image, nodes: dict[NodeId, int], columns: dict[str, array[int]]) -> None:
    streams = sorted(image.streams.items())
    columns["stream_ids"].extend([number for number, _ in streams])
    columns["stream_epochs"].extend([stream.epoch for _, stream in streams])
    columns["stream_starts"].extend([stream.start for _, stream in streams])
    columns["stream_ranges"].extend([len(stream.ranges) for _, stream in streams])
    columns["stream_objects"].extend([len(stream.objects) for _, stream in streams])
    ranges = list(chain.from_iterable(stream.ranges for _, stream in streams))
    columns["range_epochs"].extend([its.epoch for its in ranges])
    columns["range_nodes"].extend([nodes[its.node] for its in ranges])
    columns["range_node_epochs"].extend([its.node_epoch for its in ranges])
    columns["range_starts"].extend([its.start for its in ranges])
    columns["range_ends"].extend([_OPEN if its.end is None else its.end for its in ranges])
    columns["range_committed"].extend([its.committed for its in ranges])
    columns["range_dropped"].extend([its.is_dropped for its in ranges])
    for _, stream in streams:
        columns["slice_starts"].extend(stream.objects.starts)
        columns["slice_ends"].extend(stream.objects.ends)
        columns["slice_objects"].extend(stream.objects.objects)


def _write_node(node: NodeImage, columns: dict[str, array[int]]) -> None:
    columns["node_sets"].append(len(node.set_objects))
    columns["node_streams"].append(len(node.slices))
    for number, (order, time_ms, streams) in sorted(node.set_objects.items()):
        columns["set_ids"].append(number)
        columns["set_orders"].append(order)
        columns["set_times"].append(time_ms)
        columns["set_slices"].append(len(streams))
        columns["set_streams"].extend(streams)
    for stream, table in sorted(node.slices.items()):
        columns["part_streams"].append(stream)
        columns["part_slices"].append(len(table))
        columns["part_starts"].extend(table.starts)
        columns["part_ends"].extend(table.ends)
        columns["part_objects"].extend(table.objects)


# ---- loading --------------------------------------------------------------------------------------------------------


def image_of(contents: SnapshotContents) -> Image:
    """The image of which these are the contents. Takes the columns over. Raises DamagedError."""
    image, columns = Image(), contents.columns
    rows = ObjectRows()
    rows.ids, rows.states, rows.bytes = columns["object_ids"], columns["object_states"], columns["object_bytes"]
    rows.times, rows.owners, rows.streams = (
        columns["object_times"],
        columns["object_owners"],
        columns["object_streams"],
    )
    owners = [(NodeId(node), NodeEpoch(epoch)) for node, epoch in contents.owners]
    image.version = contents.applied
    image.next_stream = ObjectStreamId(contents.next_stream)
    image.objects.load(rows, owners, ObjectId(contents.next_object))
    image.keys = dict(contents.keys)
    image.snapshots = [SnapshotWritten(*one) for one in contents.snapshots]
    _check_lengths(contents)
    names = [NodeId(node.name) for node in contents.nodes]
    _read_streams(image, names, columns)
    _read_nodes(image, contents)
    _name_streams(image)
    return image


def _name_streams(image: Image) -> None:
    """Let streams know their keys, and the image those that were never opened."""
    for key, value in image.keys.items():
        image.name_stream(key, value)
    image.unopened = dict.fromkeys(sorted(image.unopened))


#: columns of one length; and which counts add up to the length of which columns
_EQUAL = (
    ("stream_ids", "stream_epochs", "stream_starts", "stream_ranges", "stream_objects"),
    (
        *("range_epochs", "range_nodes", "range_node_epochs", "range_starts"),
        *("range_ends", "range_committed", "range_dropped"),
    ),
    ("slice_starts", "slice_ends", "slice_objects"),
    ("node_sets", "node_streams"),
    ("set_ids", "set_orders", "set_times", "set_slices"),
    ("part_streams", "part_slices"),
    ("part_starts", "part_ends", "part_objects"),
)
_SUMS = (
    ("stream_ranges", "range_epochs"),
    ("stream_objects", "slice_starts"),
    ("node_sets", "set_ids"),
    ("node_streams", "part_streams"),
    ("set_slices", "set_streams"),
    ("part_slices", "part_starts"),
)


def _check_lengths(contents: SnapshotContents) -> None:
    columns = contents.columns
    for names in _EQUAL:
        if len({len(columns[name]) for name in names}) != 1:
            raise DamagedError(f"columns of a snapshot differ in length: columns={', '.join(names)}")
    for counts, rows in _SUMS:
        if sum(columns[counts]) != len(columns[rows]):
            raise DamagedError(f"columns of a snapshot do not fit together: columns={counts}, {rows}")
    if len(columns["node_sets"]) != len(contents.nodes):
        raise DamagedError("columns of a snapshot do not fit together: columns=node_sets")
    if any(at >= len(contents.nodes) for at in set(columns["range_nodes"])):
        raise DamagedError("a range in a snapshot has no node")
    numbers = columns["stream_ids"]
    if len(set(numbers)) != len(numbers) or (numbers and not 0 < min(numbers) <= max(numbers) < contents.next_stream):
        raise DamagedError("streams in a snapshot have the same id, or one that was never given")


def _parts(counts: array[int]) -> Iterator[slice]:
    """The rows of each, if each has so many."""
    for count, end in zip(counts, accumulate(counts), strict=True):
        yield slice(end - count, end)


def _read_streams(image: Image, nodes: list[NodeId], columns: dict[str, array[int]]) -> None:
    starts, ends, objects = columns["slice_starts"], columns["slice_ends"], columns["slice_objects"]
    ranges = []
    for epoch, node, node_epoch, start, end, committed, is_dropped in zip(
        columns["range_epochs"],
        columns["range_nodes"],
        columns["range_node_epochs"],
        columns["range_starts"],
        columns["range_ends"],
        columns["range_committed"],
        columns["range_dropped"],
        strict=True,
    ):
        its = Range(Epoch(epoch), nodes[node], NodeEpoch(node_epoch), start)
        its.end = None if end == _OPEN else end
        its.committed = committed
        its.is_dropped = bool(is_dropped)
        if not start <= committed <= end:
            raise DamagedError(f"a range in a snapshot is not in order: start={start} end={end} committed={committed}")
        ranges.append(its)
    for number, epoch, start, its_ranges, its_objects in zip(
        columns["stream_ids"],
        columns["stream_epochs"],
        columns["stream_starts"],
        _parts(columns["stream_ranges"]),
        _parts(columns["stream_objects"]),
        strict=True,
    ):
        stream = image.streams[ObjectStreamId(number)] = StreamImage()
        stream.epoch = Epoch(epoch)
        stream.start = start
        stream.ranges = ranges[its_ranges]
        if any(left.end != right.start for left, right in zip(stream.ranges, stream.ranges[1:], strict=False)):
            raise DamagedError(f"the ranges of a stream in a snapshot do not abut: stream={number}")
        stream.objects = _table(starts[its_objects], ends[its_objects], objects[its_objects])


def _read_nodes(image: Image, contents: SnapshotContents) -> None:
    columns = contents.columns
    set_parts = list(_parts(columns["set_slices"]))
    tables = [
        (
            ObjectStreamId(stream),
            _table(*(columns[name][part] for name in ("part_starts", "part_ends", "part_objects"))),
        )
        for stream, part in zip(columns["part_streams"], _parts(columns["part_slices"]), strict=True)
    ]
    for its, sets, streams in zip(
        contents.nodes, _parts(columns["node_sets"]), _parts(columns["node_streams"]), strict=True
    ):
        node = image.nodes[NodeId(its.name)] = NodeImage()
        node.node_epoch = NodeEpoch(its.node_epoch)
        node.is_failover = its.is_failover
        node.flush_point = WalPosition(its.flush_segment, its.flush_entry)
        node.wal = [WalSegment(number, NodeEpoch(epoch), store, name) for number, epoch, store, name in its.wal]
        for at in range(sets.start, sets.stop):
            node.set_objects[ObjectId(columns["set_ids"][at])] = (
                ObjectId(columns["set_orders"][at]),
                columns["set_times"][at],
                columns["set_streams"][set_parts[at]],
            )
        node.slices = dict(tables[streams])
    if len(image.nodes) != len(contents.nodes):
        raise DamagedError("nodes in a snapshot have the same name")


def _table(starts: array[int], ends: array[int], objects: array[int]) -> SliceTable:
    table = SliceTable()
    table.starts, table.ends, table.objects = starts, ends, objects
    if any(map(int.__ge__, starts, ends)) or any(map(int.__gt__, ends, starts[1:])):
        raise DamagedError("slices in a snapshot overlap, or are empty")
    return table
