"""Chooses the preferred proxy of a stream with a consistent-hash ring, rebuilt when the members change.

Invariants:
- all processes that see the same members choose the same proxy;
- a member that joins or leaves moves only its own share of the streams.
"""

from __future__ import annotations

from collections.abc import Mapping

from dlog.model.ids import ProxyId
from dlog.ownership.ring import Ring


class Preference:
    """A ring over a changing set of members."""

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
