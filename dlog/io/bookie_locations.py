"""Which bookies are writable and where each bookie stands, as far as their registrations show."""

from __future__ import annotations

from collections.abc import Collection

from dlog.io.metadata import Members, Membership
from dlog.model.ids import BookieId
from dlog.model.location import NetworkLocation

REMEMBERED_MAX = 10_000  # bookies


class BookieLocations:
    """Rack and region of each bookie that is registered, or was while this process looked.

    It looks at once and at every change of the registrations until `close`. A bookie's location is remembered, since
    policies need it most once the bookie is gone. Bounded: beyond REMEMBERED_MAX the one that was first seen is
    forgotten.
    """

    def __init__(self, members: Membership) -> None:
        self._members = members
        self._seen: Members | None = None
        self._locations: dict[BookieId, NetworkLocation] = {}
        self.close = members.on_members(self._note_members)
        self._note_members()

    def writable(self, exclude: Collection[BookieId] = ()) -> list[BookieId]:
        """The writable bookies last reported, without the excluded ones."""
        return sorted(self._look().writable.keys() - set(exclude))

    def registered(self) -> dict[BookieId, NetworkLocation]:
        """Where each registered bookie stands, also read-only ones."""
        known = self._look()
        return {b: info.location for found in (known.writable, known.readonly) for b, info in found.items()}

    def remembered(self) -> dict[BookieId, NetworkLocation]:
        """Where each bookie stands, or last stood if it is not registered."""
        self._look()
        return dict(self._locations)

    def locate(self, bookie: BookieId) -> NetworkLocation | None:
        """Where a bookie stands or last stood; None: it is not registered, and was not since this process looks."""
        self._look()
        return self._locations.get(bookie)

    def _note_members(self) -> None:
        self._look()

    def _look(self) -> Members:
        known = self._members.known_members()
        if known is not self._seen:
            self._seen = known
            for info in (*known.writable.values(), *known.readonly.values()):
                self._locations[info.bookie] = info.location
            while len(self._locations) > REMEMBERED_MAX:
                del self._locations[next(iter(self._locations))]
        return known
