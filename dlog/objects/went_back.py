"""Learns from the object storage whether the metadata stream has lost records.

If ZooKeeper is restored to an earlier state, the metadata stream lacks the segments that began since. A controller that
went on from there would give out ids again that were used, and streams and entries would be missing unnoticed.

Invariants:
- An object is written only under an id whose preparation is confirmed, and a snapshot only once all its records are
  confirmed. So what a replay of the whole stream does not know proves that records are lost, unless a controller that
  took over since has recorded them: an append to the stream decides that.
- The check costs PLACES lists of one object each, which may run at once. Each id leads to one of 256 folders, and not
  all are looked at: a loss is found if objects are left with ids among the first eight that were lost, or in a row of
  32, and always if a snapshot was lost.
"""

from __future__ import annotations

from dlog.objects.image import Image
from dlog.objects.keys import object_folder_key, parse_object_key, parse_snapshot_key, snapshots_behind
from dlog.values import value

OFFSETS = (*range(8), *range(32, 256, 32))  # of ids from the next one on, whose folders are looked at
PLACES = len(OFFSETS) + 1


@value
class Place:
    """A folder, and the key behind which the first object of it is wanted."""

    folder: str
    behind: str


def places_of_later(folder: str, image: Image) -> tuple[Place, ...]:
    """Where objects may be that the image does not know yet. folder: of this incarnation of the metadata stream."""
    next_id = image.objects.next_id
    return (
        Place(*snapshots_behind(folder, image.version)),
        *(Place(*object_folder_key(folder, next_id + offset)) for offset in OFFSETS),
    )


def is_later(folder: str, image: Image, key: str) -> bool:
    """Whether a key is of an object or a snapshot that was recorded by records that the image lacks."""
    applied = parse_snapshot_key(folder, key)
    if applied is not None:
        return applied > image.version
    parsed = parse_object_key(folder, key)
    return parsed is not None and parsed.object >= image.objects.next_id
