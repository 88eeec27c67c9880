"""Chooses the preferred proxy of a stream with a consistent-hash ring, rebuilt when the members change.

A caller may name regions. Then the first member in the stream's order on the ring that stands in the first of them with
any member is preferred, and without one the first member of all. That one is also the first of its own region: a stream
that is served across regions for lack of a proxy is served where the readers or writers of that region are.

Invariants:
- all processes that see the same members choose the same proxy for the same regions;
- a member that joins or leaves moves only its own share of the streams;
- the member preferred among all is the one preferred in its own region, so it does not redirect to another.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from dlog.io.metadata import ProxyInfo
from dlog.model.ids import ProxyId
from dlog.model.location import NetworkLocation
from dlog.ownership.ring import Ring


class Preference:
    """A ring over a changing set of members."""

    __slots__ = ("_members", "_ring")

    def __init__(self) -> None:
        self._members: frozenset[ProxyId] = frozenset()
        self._ring = Ring(())

    def choose(
        self, members: Mapping[ProxyId, ProxyInfo], stream: str, near: Iterable[NetworkLocation] = ()
    ) -> ProxyInfo | None:
        """The member preferred for this stream; None if there are no members. near: in their regions, if possible, the
        first of them first."""
        if members.keys() != self._members:
            self._members = frozenset(members)
            self._ring = Ring(members)
        allowed = _first_near(members, near)
        return next((members[proxy] for proxy in self._ring.successors(stream) if proxy in allowed), None)


def _first_near(members: Mapping[ProxyId, ProxyInfo], near: Iterable[NetworkLocation]) -> Collection[ProxyId]:
    """The members in the region of the first location that has any; without one all members."""
    for here in near:
        if found := {proxy for proxy, info in members.items() if here.is_near(info.location)}:
            return found
    return members.keys()
