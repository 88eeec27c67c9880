"""Names of regions: their number in the keys of records, and their topics."""

from __future__ import annotations

import hashlib

from dlog.region.messages import Topic

_U64_END = 1 << 64


def region_number(name: str) -> int:
    """The number of a region in the keys of its records: a decimal name itself, else the first 8 bytes of the name's
    SHA-256."""
    if name.isascii() and name.isdigit() and int(name) < _U64_END:
        return int(name)
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8])


def topic_names(namespace: str, region: str) -> dict[Topic, str]:
    """The names of a region's topics."""
    return {topic: f"{namespace}.{topic}.{region}" for topic in Topic}
