"""Forwards requests for write proxies that came to a read proxy, so that a client needs only one address to begin.

Invariants:
- a request goes to one proxy that accepts a connection, the ring's choice in the client's region first (in this one, if
  the client named none); a proxy that failed lately is tried last, because a dead proxy stays registered for a while;
- a request sent on a connection that then broke is not sent again unless a repetition is harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dlog.errors import ConnectionLostError, RequestTimeoutError, StreamUnavailableError, UnavailableError
from dlog.io.clock import SYSTEM_CLOCK, Clock
from dlog.io.metadata import Membership, ProxyInfo
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation
from dlog.ownership.ring import Ring
from dlog.wire.proxy import (
    Alter,
    Create,
    Delete,
    GetIncarnation,
    GetOwner,
    HandOver,
    ImportSegments,
    MoveSegment,
    Seal,
    SinkWrite,
    Truncate,
)
from proxies.dialling import Dialler
from proxies.dispatch import client_location
from proxies.proxy_connection import ProxyConnection

Handed = (
    Alter
    | Create
    | Delete
    | GetOwner
    | GetIncarnation
    | HandOver
    | MoveSegment
    | Seal
    | SinkWrite
    | ImportSegments
    | Truncate
)

CONNECT_S = 0.3
ANSWER_S = 15.0
REST_S = 2.0  # how long a failed proxy is tried last


class Relay:
    """Connections to write proxies for forwarded requests; opened on demand, kept until they break. here: where this
    process stands."""

    def __init__(
        self,
        dialler: Dialler,
        metadata: Membership,
        *,
        here: NetworkLocation = DEFAULT_LOCATION,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._dialler = dialler
        self._metadata = metadata
        self._here = here
        self._clock = clock
        self._links: dict[str, ProxyConnection] = {}
        self._failed_s: dict[str, float] = {}

    async def ask(self, question: Handed) -> dict[str, Any]:
        """Forward a request; returns the reply, or raises the error in it.

        Raises StreamUnavailableError if no write proxy can be reached; ConnectionLostError and RequestTimeoutError with
        the outcome unknown, InvalidRequestError.
        """
        client = client_location(question.region) if isinstance(question, GetOwner) else None
        for address in self.addresses(question.stream, client):
            try:
                link = await self._open(address)
            except UnavailableError:
                continue
            try:
                async with asyncio.timeout(ANSWER_S):
                    answer: dict[str, Any] = await link.ask(_numbered(question))
            except ConnectionLostError:
                self._fail(address)
                if isinstance(question, GetOwner | GetIncarnation):
                    continue
                raise
            except TimeoutError as error:
                raise RequestTimeoutError(f"a write proxy does not reply: address={address}") from error
            return answer
        raise StreamUnavailableError("no write proxy can be reached, try again")

    def addresses(self, stream: str, client: NetworkLocation | None = None) -> list[str]:
        """Write proxies in the order to try for a stream, those near the client first. client: None: not known."""
        members = self._metadata.known_members().write_proxies
        near, now_s = client or self._here, self._clock.monotonic_s()

        def rank(info: ProxyInfo) -> tuple[bool, bool]:
            has_failed = self._failed_s.get(info.address, -REST_S) + REST_S > now_s
            return has_failed, not near.is_near(info.location)

        ordered = sorted((members[proxy] for proxy in Ring(members).successors(stream)), key=rank)
        return [info.address for info in ordered]

    def close(self) -> None:
        links, self._links = self._links, {}
        for link in links.values():
            link.close()

    async def _open(self, address: str) -> ProxyConnection:
        link = self._links.get(address)
        if link is not None and not link.ended:
            return link
        try:
            link = await self._dialler.open(address, CONNECT_S, ProxyConnection)
        except UnavailableError:
            self._fail(address)
            raise
        former = self._links.get(address)
        if former is not None and not former.ended:  # two calls opened one at once
            link.close()
            return former
        self._links[address] = link
        return link

    def _fail(self, address: str) -> None:
        link = self._links.get(address)
        if link is not None and link.ended:  # otherwise another request has opened one meanwhile
            del self._links[address]
        known = {info.address for info in self._metadata.known_members().write_proxies.values()}
        self._failed_s = {a: s for a, s in self._failed_s.items() if a in known}
        self._failed_s[address] = self._clock.monotonic_s()


def _numbered(question: Handed) -> Callable[[int], Handed]:
    """The request under another number, and without a region, which an older write proxy would not know."""
    if isinstance(question, GetOwner):
        return lambda number: replace(question, request=number, region=None)
    return lambda number: replace(question, request=number)
