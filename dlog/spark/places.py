"""Places in streams as Spark keeps them: JSON text that is compared letter by letter.

The law of this file: a place has one spelling. `[segment, entry]` is the next entry to be read, with a third number
where it begins inside an entry; behind the last entry of a segment it stays `[segment, last + 1]` until the next
segment has an entry that can be read. Offsets are an object of streams and places, keys sorted, no blanks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from dlog.errors import ConfigError

I64_MAX = 2**63 - 1


class Place(NamedTuple):
    """The first record not read yet, as far as it is known: compares as the stream is ordered."""

    segment: int
    entry: int
    slot: int = 0

    def as_json(self) -> list[int]:
        return [self.segment, self.entry, self.slot] if self.slot else [self.segment, self.entry]

    def __str__(self) -> str:
        return json.dumps(self.as_json(), separators=(",", ":"))


BEGINNING = Place(0, 0)  # before every segment, also those that are not written yet

Offsets = Mapping[str, Place]


def place_of(value: Any, what: str) -> Place:
    """Read `[segment, entry]` or `[segment, entry, slot]`. Raises ConfigError naming `what`."""
    is_list = isinstance(value, list | tuple) and 2 <= len(value) <= 3
    if is_list and all(type(part) is int and 0 <= part <= I64_MAX for part in value):
        return Place(*value)
    raise ConfigError(f"{what}: a place is [segment, entry] or [segment, entry, slot]: value={str(value)[:60]}")


def offsets_json(offsets: Offsets) -> dict[str, list[int]]:
    """As Spark is told: sorted by stream."""
    return {stream: offsets[stream].as_json() for stream in sorted(offsets)}


def offsets_of(told: Any, what: str) -> dict[str, Place]:
    """Read what `offsets_json` said, e.g. from a checkpoint. Raises ConfigError naming `what`."""
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{what}: not JSON: {str(error)[:80]}") from None
    if not isinstance(told, dict):
        raise ConfigError(f"{what}: an object of streams and places is wanted: value={str(told)[:60]}")
    return {str(stream): place_of(value, f"{what} of {stream}") for stream, value in told.items()}
