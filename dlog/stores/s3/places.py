"""Names: of a segment's location, of the keys of its object stream, and of objects in the storage.

    location name   <object stream>.<epoch of its range>
    key             records/<stream>/<segment number>/<random>    has the id of the segment's object stream

Each segment is an object stream of its own, with one range. One object stream for all segments of a stream would not
do: the next segment is created while the last one is written, and a stream has one open range at most; a range without
entries is gone once the next one begins, and an empty segment is to be found until it is deleted; and an object stream
could be deleted together with a segment that another process began and sealed meanwhile.
"""

from __future__ import annotations

import re

from dlog.model.ids import Epoch, SegmentNumber, StreamName
from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId, ObjectStreamId
from dlog.objects.image import Image, Range
from dlog.objects.keys import object_key
from dlog.stores.contract import SegmentNotFoundError
from dlog.stores.object_storage.locations import MARKER, Location
from dlog.values import value

RECORDS = "records/"  # keys of segments begin with it
BARRIER_KEY = "barrier"  # never put; an operation on it returns the version of the controller's image
FIRST_EPOCH = Epoch(0)  # of the only range of a segment

_NAME = re.compile(r"([1-9][0-9]{0,18})\.(0|[1-9][0-9]{0,17})\Z")


@value
class Place:
    """A segment in objects: an object stream, and the epoch of its range there."""

    stream: ObjectStreamId
    epoch: Epoch

    @property
    def name(self) -> str:
        return f"{self.stream}.{self.epoch}"


def parse_place(name: str) -> Place:
    """Raises SegmentNotFoundError if no segment here can have this name."""
    found = _NAME.match(name)
    if found is None:
        raise SegmentNotFoundError(f"not the location of a segment in objects of many: location={name[:200]!r}")
    return Place(ObjectStreamId(int(found[1])), Epoch(int(found[2])))


def range_of(image: Image, place: Place) -> Range | None:
    """The range of a segment; None: it is deleted, or this image does not have it yet."""
    stream = image.streams.get(place.stream)
    if stream is None:
        return None
    return next((its for its in stream.ranges if its.epoch == place.epoch and not its.is_dropped), None)


def segment_key(stream: StreamName, number: SegmentNumber, nonce: str) -> str:
    return f"{RECORDS}{stream}/{number}/{nonce}"


def parse_segment_key(key: str) -> tuple[StreamName, SegmentNumber] | None:
    """Stream and number of the segment with this key; None: it is another key."""
    stream, _, rest = key.removeprefix(RECORDS).rpartition("/")[0].rpartition("/")
    if not key.startswith(RECORDS) or not stream or not rest.isdecimal():
        return None
    return StreamName(stream), SegmentNumber(int(rest))


def object_location(folder: Location, object: ObjectId, node: NodeId, node_epoch: NodeEpoch) -> Location:
    """Where an object lies. folder: of this incarnation of the metadata stream."""
    return Location(folder.scheme, folder.authority, object_key(folder.path, object, node, node_epoch))


def marker_of(folder: Location) -> Location:
    """The marker of the cluster whose streams are in this folder: CLUSTER/streams/INCARNATION."""
    return folder.parent.parent.below(MARKER)
