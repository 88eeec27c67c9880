"""The consistent-hash ring: the order in which proxies should serve a stream.

Invariants:
- processes that see the same members compute the same order;
- the ring is a hint: correctness never depends on it;
- adding or removing a member moves only the streams that it gets or had.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Iterable, Iterator

from dlog.model.ids import ProxyId

POINTS_PER_MEMBER = 64


def _point(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:8], "big")


class Ring:
    """Members on a circle, each at `points` points; immutable."""

    def __init__(self, members: Iterable[ProxyId], points: int = POINTS_PER_MEMBER) -> None:
        self.members = tuple(sorted(set(members)))
        placed = sorted((_point(f"{member}/{i}"), member) for member in self.members for i in range(points))
        self._points = [point for point, _ in placed]
        self._owners = [member for _, member in placed]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ring) and self.members == other.members

    def __hash__(self) -> int:
        return hash(self.members)

    def owner(self, key: str) -> ProxyId | None:
        """The member that should serve `key`; None if there is no member."""
        return next(self.successors(key), None)

    def successors(self, key: str) -> Iterator[ProxyId]:
        """All members, each once: the owner, then those that take over, in order."""
        start = bisect.bisect_right(self._points, _point(key))
        seen: set[ProxyId] = set()
        for i in range(len(self._owners)):
            member = self._owners[(start + i) % len(self._owners)]
            if member not in seen:
                seen.add(member)
                yield member
                if len(seen) == len(self.members):
                    return
