"""Locations of segments in regions: `REGION/TABLE@OFFSET`."""

from __future__ import annotations

import re
from typing import NamedTuple

from dlog.stores.contract import SegmentNotFoundError

_LOCATION = re.compile(r"([a-zA-Z0-9_-]{1,100})/(0|[1-9]\d{0,18})@(0|[1-9]\d{0,18})\Z")


class TableLocation(NamedTuple):
    """A segment's table. offset: of the record in the region's data topic that began it."""

    region: str
    table: int
    offset: int

    def __str__(self) -> str:
        return f"{self.region}/{self.table}@{self.offset}"


def parse_location(name: str) -> TableLocation:
    """Raises SegmentNotFoundError for what is no location in a region."""
    match = _LOCATION.match(name)
    if match is None:
        raise SegmentNotFoundError(f"not a segment in a region, those are named REGION/TABLE@OFFSET: location={name}")
    return TableLocation(match[1], int(match[2]), int(match[3]))
