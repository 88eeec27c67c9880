"""Advises which proxy should own a stream now, from metadata, the owner's health and the ring.

Invariants:
- a live owner keeps its stream, whatever the ring and regions say;
- without one the ring chooses among the live proxies of a region: that of the owner that has died, so that all proxies
  give the same advice while it is registered; else that of the client, or, if it named none, of this proxy. The chosen
  proxy chooses itself. A region without a live proxy is passed over;
- it only advises: the claim that may follow names the epoch that was read, and fails if another proxy was faster.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from dlog.io.metadata import ProxyInfo
from dlog.model.ids import Epoch, ProxyId, StreamName
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation
from dlog.model.segment import Owner, StreamMetadata
from dlog.ownership.evidence import Advice, Probe, judge
from proxies.detector import Detector
from proxies.preference import Preference
from proxies.streams import ProxyMetadata, read_stream


@dataclass(frozen=True, slots=True)
class ClaimHere:
    """This proxy should claim the stream, if the newest claim still has this epoch.

    held_by: address of that claim's owner, "" if it was released. incarnation: of the stream that was read."""

    if_epoch: Epoch
    held_by: str = ""
    incarnation: str = ""


@dataclass(frozen=True, slots=True)
class GoElsewhere:
    """The proxy at `address` owns the stream (is_owner), or should, by the ring.

    epoch: of the newest claim. incarnation: of the stream that was read."""

    address: str
    epoch: Epoch
    is_owner: bool
    incarnation: str = ""


class OwnershipAdvisor:
    """Ownership advice for one proxy. location: where it stands. drains: whether it takes no more streams."""

    def __init__(
        self,
        me: ProxyId,
        address: str,
        metadata: ProxyMetadata,
        detector: Detector,
        drains: Callable[[], bool],
        location: NetworkLocation = DEFAULT_LOCATION,
    ) -> None:
        self._me = me
        self._here = ProxyInfo(me, "write", address, location=location)
        self._metadata = metadata
        self._detector = detector
        self._drains = drains
        self._ring = Preference()

    async def judge(
        self, stream: StreamName, doubted: Collection[str] = (), client: NetworkLocation | None = None
    ) -> ClaimHere | GoElsewhere:
        """Read the stream's metadata and advise. doubted: addresses that failed a client, to be probed first. client:
        where the client stands; None: not known.

        Raises StreamNotFoundError, MetadataUnavailableError.
        """
        seen = await read_stream(self._metadata, stream)
        assert isinstance(seen.value, StreamMetadata)
        owner, incarnation = seen.value.owner, seen.value.incarnation
        if not await self._may_claim(owner, doubted):
            return GoElsewhere(owner.address, owner.epoch, True, incarnation)
        if owner.proxy == self._me and owner.epoch and not owner.released and not self._drains():
            # no other proxy may claim it: to them this proxy is the registered, live owner
            return ClaimHere(owner.epoch, owner.address, incarnation)
        near = (*self._place_of(owner), client or self._here.location)
        preferred = self._choose(stream, near)
        while preferred is not None and preferred in doubted and await self._detector.is_gone(preferred):
            preferred = self._choose(stream, near)
        if preferred is None or preferred in doubted:
            return ClaimHere(owner.epoch, owner.address if owner.epoch and not owner.released else "", incarnation)
        return GoElsewhere(preferred, owner.epoch, False, incarnation)

    def preferred(self, stream: str) -> str | None:
        """Address of the proxy that the ring prefers for a stream in this region, or in all if this one has no other;
        None: this one, or no other."""
        return self._choose(stream, (self._here.location,))

    def maintainer(self, stream: str) -> str | None:
        """Address of the proxy that maintains a stream without an owner, one of all regions; None: this one."""
        return self._choose(stream, ())

    def _choose(self, stream: str, near: Iterable[NetworkLocation]) -> str | None:
        proxies = self._metadata.known_members().write_proxies.values()
        members = {p.proxy: p for p in proxies if not self._detector.suspects(p.address)}
        members.pop(self._me, None)
        if not self._drains():
            members[self._me] = self._here
        chosen = self._ring.choose(members, stream, near)
        return None if chosen is None or chosen.proxy == self._me else chosen.address

    def _place_of(self, owner: Owner) -> tuple[NetworkLocation, ...]:
        """Where the stream's owner stands, in a tuple; empty if the owner released the stream, is not registered, or is
        registered without a region. Proxies without a region (of older versions, too) choose among all proxies: if
        others chose by a region there, the two would redirect clients to each other."""
        found = None if owner.released else self._metadata.known_members().write_proxies.get(owner.proxy)
        return () if found is None or found.location.region == DEFAULT_LOCATION.region else (found.location,)

    async def _may_claim(self, owner: Owner, doubted: Collection[str]) -> bool:
        """Whether evidence allows to replace this claim; probes the owner if unclear."""
        registered = {p.proxy: p.address for p in self._metadata.known_members().write_proxies.values()}
        suspected = owner.address in doubted
        probe = Probe.NO_ANSWER if self._detector.suspects(owner.address) else Probe.NOT_ASKED
        advice = judge(owner, me=self._me, registered=registered, suspected=suspected, probe=probe).advice
        if advice is Advice.ASK:
            probe = Probe.NO_ANSWER if await self._detector.is_gone(owner.address) else Probe.OWNS
            advice = judge(owner, me=self._me, registered=registered, suspected=suspected, probe=probe).advice
        return advice is Advice.CLAIM
