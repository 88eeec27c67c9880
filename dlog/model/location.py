"""Where a bookie or proxy stands: its rack and region, as BookKeeper writes them, `/region/rack`.

One that publishes none stands in `/default-region/default-rack`. Two racks of the same name in different regions
are different racks. Source: BookKeeper, NetworkTopology.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from dlog.errors import InvalidRequestError

NAME_MAX = 63  # characters
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_MAX - 1}}}\Z", re.ASCII)


class NetworkLocation(NamedTuple):
    """Region and rack of a process. Its text is `/region/rack`."""

    region: str = "default-region"
    rack: str = "default-rack"

    def __str__(self) -> str:
        return f"/{self.region}/{self.rack}"

    def distance(self, other: NetworkLocation | None) -> int:
        """0: the same rack, 1: the same region, 2: another one, or not known where."""
        if other is None or other.region != self.region:
            return 2
        return int(other.rack != self.rack)

    def is_near(self, other: NetworkLocation | None) -> bool:
        """Whether the other is known to stand in the same region."""
        return self.distance(other) < 2


DEFAULT_LOCATION = NetworkLocation()


def check_location_name(kind: str, name: str) -> None:
    """Raise ValueError unless `name` can be the name of a rack or region. kind: "rack" or "region", for the message."""
    if not _NAME.match(name):
        raise ValueError(
            f"a {kind} is named with 1 to {NAME_MAX} letters, digits, dots, dashes or underscores, and begins with a "
            f"letter or digit, such as {kind}-1: {kind}={name[:80]!r}"
        )


def region_location(region: str) -> NetworkLocation:
    """The location of a process of which only the region is known. Raises InvalidRequestError."""
    try:
        check_location_name("region", region)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from None
    return NetworkLocation(region)


def parse_location(text: str) -> NetworkLocation:
    """Parse `/region/rack`, or `/rack` for a rack of the default region. Raises InvalidRequestError."""
    root, *names = text.split("/")
    if root or len(names) not in (1, 2):
        raise InvalidRequestError(f"a network location is written /region/rack: location={text[:80]!r}")
    found = NetworkLocation(rack=names[0]) if len(names) == 1 else NetworkLocation(*names)
    try:
        check_location_name("region", found.region)
        check_location_name("rack", found.rack)
    except ValueError as error:
        raise InvalidRequestError(str(error)) from None
    return found
