"""Keys of objects in the object storage: they follow from the object's id and owner, and can be parsed back.

    key = folder "/" last two hex digits of the id "/" id, 16 hex digits "-" node epoch "-" node, quoted

Invariants:
- Ids are never used again, and the folder has the random name of the metadata stream's incarnation: so no key is ever
  used again either.
- The node and its epoch are those for which the id was prepared, so an object shows who wrote it without any metadata.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from dlog.model.object_streams import NodeEpoch, NodeId, ObjectId
from dlog.values import value

_NAME = re.compile(r"([0-9a-f]{2})/([0-9a-f]{16})-([1-9][0-9]*)-([^/]+)\Z")


@value
class ObjectKey:
    """What the key of an object says."""

    object: ObjectId
    node: NodeId
    node_epoch: NodeEpoch


def object_key(folder: str, object: ObjectId, node: NodeId, node_epoch: NodeEpoch) -> str:
    """The key of an object. folder: of this incarnation of the metadata stream, without a slash at its end."""
    assert object > 0 and node_epoch > 0 and node
    return f"{folder}/{object & 0xFF:02x}/{object:016x}-{node_epoch}-{_quoted(node)}"


def object_folder_key(folder: str, object: int) -> tuple[str, str]:
    """The folder with an id's object, and a key there that is behind those of smaller ids and before its own."""
    its_folder = f"{folder}/{object & 0xFF:02x}"
    return its_folder, f"{its_folder}/{object:016x}"


def parse_object_key(folder: str, key: str) -> ObjectKey | None:
    """What a key below this folder says; None: it is not the key of an object."""
    if not key.startswith(folder + "/"):
        return None
    found = _NAME.match(key, len(folder) + 1)
    if found is None:
        return None
    prefix, object, node_epoch, node = found.groups()
    parsed = ObjectKey(ObjectId(int(object, 16)), NodeId(unquote(node.replace("=", "%"))), NodeEpoch(int(node_epoch)))
    if not parsed.object or prefix != object[-2:] or object_key(folder, *_fields(parsed)) != key:
        return None
    return parsed


def _quoted(name: str) -> str:
    """A name as a part of a key, percent-encoded with `=` in place of `%`, which no location may have."""
    return quote(name, safe="").replace("%", "=")


def _fields(key: ObjectKey) -> tuple[ObjectId, NodeId, NodeEpoch]:
    return key.object, key.node, key.node_epoch


# ---- snapshots ------------------------------------------------------------------------------------------------------

_SNAPSHOT = re.compile(r"snapshots/([0-9]{20})-([^/]+)\Z")


def snapshot_key(folder: str, applied: int, controller: str) -> str:
    """The key of a snapshot; keys are sorted by the number of records. controller: a name that was never used before,
    so no two snapshots have one key."""
    return f"{folder}/snapshots/{applied:020d}-{_quoted(controller)}"


def snapshots_behind(folder: str, applied: int) -> tuple[str, str]:
    """The folder of snapshots, and a key there that is behind those with at most so many records."""
    return f"{folder}/snapshots", f"{folder}/snapshots/{applied + 1:020d}"


def parse_snapshot_key(folder: str, key: str) -> int | None:
    """The number of records of the snapshot with this key; None: it is not the key of a snapshot."""
    found = _SNAPSHOT.match(key, len(folder) + 1) if key.startswith(folder + "/") else None
    return None if found is None else int(found[1])
