"""Names of cold objects: below a folder, with a name that identifies the segment.

    <root>/<cluster>/<namespace>/<stream>/<number>-<nonce>-<bytes>.seg

The name holds the payload size, so that planning need not open the object. parse_object returns None for bad metadata.

Invariants:
- only objects with such a name are read or deleted, whatever metadata says; a name is never reused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from dlog.stores.object_storage.locations import Location, parse_location

_OBJECT = re.compile(r"(?P<number>[0-9]{18})-(?P<nonce>[0-9a-f]{16})-(?P<bytes>[0-9]{1,16})\.seg\Z")


@dataclass(frozen=True, slots=True)
class ObjectName:
    """Parts of an object's file name."""

    number: int
    nonce: str
    bytes: int  # of all entries' payloads

    def __str__(self) -> str:
        return f"{self.number:018d}-{self.nonce}-{self.bytes}.seg"


def parse_object(text: str) -> tuple[Location, ObjectName] | None:
    """Parse an object's location and name; None if it is not one."""
    found = parse_location(text)
    named = _OBJECT.match(found.name) if found is not None else None
    if found is None or named is None:
        return None
    return found, ObjectName(int(named["number"]), named["nonce"], int(named["bytes"]))


def payload_bytes(location: str) -> int:
    """Payload bytes of an object according to its name; 0 if it has none."""
    found = parse_object(location)
    return found[1].bytes if found is not None else 0
