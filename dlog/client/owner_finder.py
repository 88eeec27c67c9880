"""Finds the owner of one stream for its producer, from what replies and failures report of the owner's address."""

from __future__ import annotations

import asyncio

from dlog.client.backoff import Backoff
from dlog.client.connection import Connection, position_of
from dlog.client.producer_identity import ProducerIdentity
from dlog.client.routing import Router
from dlog.errors import DLogError, OwnedElsewhereError
from dlog.wire.proxy import GetOwner


class OwnerFinder:
    """Connects to the stream's owner. `identity` and `backoff` are shared with the producer."""

    def __init__(self, stream: str, router: Router, identity: ProducerIdentity, backoff: Backoff) -> None:
        self.is_pause_due = False  # the last attempt to send or to find the owner failed: back off first
        self._stream = stream
        self._router = router
        self._identity = identity
        self._backoff = backoff
        self._moving_to: str | None = None  # address of the new owner, named by a draining server or a redirect
        self._suspect: str | None = None  # address that just failed, or may be cut off from metadata

    @property
    def is_owner_moving(self) -> bool:
        """Whether a server named another owner since the last `find`."""
        return self._moving_to is not None

    async def find(self) -> Connection:
        """Make one attempt to connect to the owner, after a pause if one is due. Raises DLogError (see `on_failed`).

        Before the first batch it asks for the stream's incarnation, so that no batch enters a later one, and for a
        position before all that this producer writes.
        """
        if self.is_pause_due:
            self.is_pause_due = False
            await asyncio.sleep(self._router.pause_s(self._backoff))
        if self._moving_to is not None:
            self._router.owner_is(self._stream, self._moving_to)
            self._moving_to = None
        connection = await self._router.owner(self._stream, self._suspect)
        if self._identity.incarnation is None:
            result = await connection.ask(lambda request: GetOwner(request, self._stream, None))
            self._identity.learn_stream(str(result.get("incarnation") or ""), position_of(result.get("since")))
        return connection

    def on_found(self) -> None:
        self._suspect = None

    def on_failed(self, error: DLogError) -> None:
        """The attempt failed, and may be repeated."""
        self._moving_to = error.location if isinstance(error, OwnedElsewhereError) else None
        self.is_pause_due = True

    def on_lost(self, address: str) -> None:
        """The connection to the owner at `address` is lost."""
        self._suspect = address
        self.forget(address)

    def on_moved(self, address: str, location: str | None) -> None:
        """The server at `address` drains. location: the next owner, if it named one."""
        self._moving_to = location
        self.forget(address)

    def on_refused(self, address: str, location: str | None) -> None:
        """The server at `address` does not own the stream. Without a `location` it may be cut off from metadata: ask
        another proxy."""
        self.on_moved(address, location)
        if location is None:
            self._suspect = address

    def forget(self, address: str) -> None:
        """Forget that the owner is at `address`."""
        self._router.forget(self._stream, address)

    def forget_stream(self) -> None:
        """The stream was deleted, or created: the next batch is for the one that has the name then."""
        self._identity.forget_stream()
        self._router.forget_stream(self._stream)
