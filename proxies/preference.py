"""Which of some proxies a stream should be served by: the consistent ring, kept while its members stay the same.

The law of this room: all who see the same members point at the same proxy, and a member that comes or goes moves only
its own share of the streams.
"""

from __future__ import annotations

from collections.abc import Mapping

from dlog.lease.ring import Ring
from dlog.model.ids import ProxyId


class Preference:
    """Asks a ring over members that change now and then."""

    __slots__ = ("_members", "_ring")

    def __init__(self) -> None:
        self._members: frozenset[ProxyId] = frozenset()
        self._ring = Ring(())

    def choose(self, members: Mapping[ProxyId, str], stream: str) -> ProxyId | None:
        """The member preferred for this stream, by id; None if there are no members."""
        if members.keys() != self._members:
            self._members = frozenset(members)
            self._ring = Ring(members)
        return self._ring.owner(stream)
