"""Defines positions in streams, and offsets as Spark keeps them: JSON text that Spark compares byte by byte.

Invariants:
- a position has one spelling: `[segment, entry]` is the next entry to read, with a slot as a third number if it begins
  inside an entry;
- after the last entry of a segment it stays `[segment, last + 1]` until the next segment has a readable entry;
- offsets are `{"streams": {...}, "v": 1}`: for each stream a position (`at`) and what is known of it, keys sorted,
  unknown values left out. The older form, an object of streams and positions alone, is read as well.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from dlog.errors import ConfigError

I64_MAX = 2**63 - 1
VERSION = 1


class StreamPosition(NamedTuple):
    """Position of the first record that is not read yet. Compares in the order of the stream."""

    segment: int
    entry: int
    slot: int = 0

    def as_json(self) -> list[int]:
        return [self.segment, self.entry, self.slot] if self.slot else [self.segment, self.entry]

    def __str__(self) -> str:
        return json.dumps(self.as_json(), separators=(",", ":"))


BEGINNING = StreamPosition(0, 0)  # before every segment, also before those that are not written yet

Offsets = Mapping[str, StreamPosition]


class StreamOffset(NamedTuple):
    """A position, with what later shows whether unread records are gone.

    incarnation: of the stream; empty if unknown. read: records of the segment before the position. start: records
    of the stream before the segment, as finally counted in the list; both -1 if unknown. ended: no record of the
    segment lies after the position, and none will.
    """

    position: StreamPosition
    incarnation: str = ""
    read: int = -1
    start: int = -1
    ended: bool = False

    def as_json(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"at": self.position.as_json()}
        if self.ended:
            fields["ended"] = True
        if self.incarnation:
            fields["life"] = self.incarnation
        if self.read >= 0:
            fields["read"] = self.read
        if self.start >= 0:
            fields["start"] = self.start
        return fields


Marks = Mapping[str, StreamOffset]


def position_of(value: Any, what: str) -> StreamPosition:
    """Read `[segment, entry]` or `[segment, entry, slot]`. Raises ConfigError naming `what`."""
    is_list = isinstance(value, list | tuple) and 2 <= len(value) <= 3
    if is_list and all(type(part) is int and 0 <= part <= I64_MAX for part in value):
        return StreamPosition(*value)
    raise ConfigError(f"{what}: a position is [segment, entry] or [segment, entry, slot]: value={str(value)[:60]}")


def offsets_as_json(marks: Marks) -> dict[str, Any]:
    """Offsets as JSON for Spark, sorted by stream."""
    return {"streams": {stream: marks[stream].as_json() for stream in sorted(marks)}, "v": VERSION}


def parse_offsets(offsets: Any, what: str) -> dict[str, StreamOffset]:
    """Parse what `offsets_as_json` returned, e.g. from a checkpoint. Raises ConfigError naming `what`."""
    if isinstance(offsets, str):
        try:
            offsets = json.loads(offsets)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{what}: not JSON: {str(error)[:80]}") from None
    if not isinstance(offsets, dict):
        raise ConfigError(f"{what}: expected a JSON object of streams and positions: value={str(offsets)[:60]}")
    version = offsets.get("v")
    if type(version) is not int:  # the older form, with a stream named v: a list
        return {
            str(stream): StreamOffset(position_of(value, f"{what} of {stream}")) for stream, value in offsets.items()
        }
    if version != VERSION:
        raise ConfigError(f"{what}: written by another release; continue with that release: version={version}")
    streams = offsets.get("streams")
    if not isinstance(streams, dict):
        raise ConfigError(f"{what}: expected a JSON object of streams: value={str(streams)[:60]}")
    return {str(stream): _mark_of(value, f"{what} of {stream}") for stream, value in streams.items()}


def parse_positions(offsets: Any, what: str) -> dict[str, StreamPosition]:
    """As `parse_offsets`, positions alone. Raises ConfigError naming `what`."""
    return {stream: mark.position for stream, mark in parse_offsets(offsets, what).items()}


def _mark_of(fields: Any, what: str) -> StreamOffset:
    if not isinstance(fields, dict):
        raise ConfigError(f"{what}: expected a JSON object with a position: value={str(fields)[:60]}")
    incarnation, ended = fields.get("life", ""), fields.get("ended", False)
    read, start = fields.get("read", -1), fields.get("start", -1)
    is_known = isinstance(incarnation, str) and re.fullmatch(r"[\x21-\x7e]{0,200}", incarnation) and type(ended) is bool
    if not is_known or not all(type(count) is int and -1 <= count <= I64_MAX for count in (read, start)):
        raise ConfigError(f"{what}: the fields beside the position cannot be read: value={str(fields)[:120]}")
    return StreamOffset(position_of(fields.get("at"), what), str(incarnation), read, start, ended)
