"""Segment objects in memory: made as the job makes them, and damaged ones."""

from __future__ import annotations

from collections.abc import Sequence

from dlog.model.ids import SegmentNumber, StreamName
from dlog.stores.cold.format import Builder, Contents, Head
from dlog.stores.cold.locations import ObjectName
from dlog.stores.contract import SegmentRef
from dlog.stores.object_storage.locations import folder_of, parse_root

Buffer = bytes | bytearray | memoryview

ROOT = parse_root("file:///cold")


def head(entries: int, **changes: object) -> Head:
    told: dict[str, object] = {
        "stream": "orders",
        "incarnation": "abc",
        "number": 7,
        "last_entry": entries - 1,
        "last_slot": 3,
        "first_txid": 10,
        "last_txid": 20,
        "records": 5,
        "completed_unix_ms": 1_700_000_000_000,
        "start_sequence_id": 0,
        "is_enveloped": True,
        "source_store": "ledger",
        "source_name": "4711",
    }
    return Head(**{**told, **changes})  # type: ignore[arg-type]


def contents(entry: int) -> Contents:
    """The content of an entry in these tests; every fourth holds no record."""
    return Contents() if entry % 4 == 3 else Contents(100 + entry, 101 + entry, 5000 + entry, entry % 3, 2)


def built(payloads: Sequence[bytes], of: Head | None = None) -> bytes:
    """The object of a segment with these entries."""
    builder = Builder(of or head(len(payloads)))
    parts: list[Buffer] = [builder.begin()]
    for entry, payload in enumerate(payloads):
        builder.add(payload, contents(entry))
        parts.append(payload)
    return b"".join([*parts, *builder.end()])


def ref(size: int = 0, number: int = 7, stream: str = "orders") -> SegmentRef:
    """The location of an object in these tests."""
    folder = folder_of(ROOT, "cluster", "/dlog", stream)
    place = folder.below(str(ObjectName(number, "00112233aabbccdd", size)))
    return SegmentRef(StreamName(stream), SegmentNumber(number), str(place))
