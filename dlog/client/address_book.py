"""The proxy addresses that a client knows, and in which order to try them. Pure: times are arguments."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from types import MappingProxyType

from dlog.client.address_backoff import AddressBackoff
from dlog.model.location import NetworkLocation

ADDRESSES_MAX = 1_000  # remembered proxies; beyond it the oldest that are not in use are forgotten
NEAR_AGAIN_S = 5.0  # after a failure, a proxy of the own region is not preferred for this long


class AddressBook:
    """Addresses that are configured or were named by a server, with the role, region and last failure of each.

    rest_max_s: longest pause between two attempts to connect to an unreachable address. region: the client's; empty:
    not known, so no address is nearer than others.
    """

    def __init__(self, configured: tuple[str, ...], rest_max_s: float, region: str = "") -> None:
        self.configured = configured
        self.known: dict[str, None] = dict.fromkeys(configured)  # in the order they were learned
        self._roles: dict[str, str] = {}  # address -> role, after a handshake
        self._locations: dict[str, NetworkLocation] = {}  # of addresses whose region a server reported
        self._here = NetworkLocation(region) if region else None
        self._failed_s: dict[str, float] = {}  # address -> time of its last failure
        self._backoff = AddressBackoff(rest_max_s)

    def learn(self, addresses: Iterable[str], regions: Mapping[str, str] = MappingProxyType({})) -> bool:
        """Add addresses, and the regions of known ones. Returns whether there are more than ADDRESSES_MAX now."""
        for address in addresses:
            if address and address not in self.known:
                self.known[address] = None
        self._locations.update({a: NetworkLocation(str(regions[a])) for a in regions if a in self.known})
        return len(self.known) > ADDRESSES_MAX

    def on_connected(self, address: str, role: str) -> None:
        self._failed_s.pop(address, None)
        self._backoff.reached(address)
        self._roles[address] = role

    def on_failed(self, address: str, now_s: float) -> None:
        """An attempt to connect failed."""
        self._failed_s[address] = now_s
        self._backoff.failed(address, now_s)

    def on_slow(self, address: str, now_s: float) -> None:
        """Another address answered first: rank this one behind others from now on."""
        self._failed_s[address] = now_s

    def may_try(self, address: str, now_s: float) -> bool:
        """Whether no pause after a failure is running for the address."""
        return self._backoff.may_try(address, now_s)

    def is_stranger(self, address: str) -> bool:
        """Whether a server named the address and no connection was made yet: it may be unreachable from here."""
        return address not in self._roles and address not in self.configured

    def ranked(self, role: str, avoid: Collection[str], is_connected: Callable[[str], bool], now_s: float) -> list[str]:
        """Addresses to try for this role, the most promising first; `avoid` comes last, as it may have recovered. Those
        of the own region come before those whose region is not known, and these before those of others."""

        def rank(address: str) -> tuple[bool, bool, bool, int, bool, bool, float]:
            found = self._roles.get(address, "")
            is_stranger = self.is_stranger(address)
            return (
                is_stranger and not self._backoff.may_try(address, now_s),
                address in avoid,
                bool(found) and not found.startswith(role),
                self._remoteness(address, now_s),
                not is_connected(address),
                is_stranger,
                self._failed_s.get(address, 0.0),
            )

        return sorted(self.known, key=rank)

    def _remoteness(self, address: str, now_s: float) -> int:
        """0: of the own region, 1: not known, 2: of another one, or failed lately."""
        if self._here is None:
            return 0
        failed_s = self._failed_s.get(address)
        if failed_s is not None and now_s < failed_s + NEAR_AGAIN_S:
            return 2
        location = self._locations.get(address)
        return 1 if location is None else 0 if self._here.is_near(location) else 2

    def forget_surplus(self, busy: Collection[str]) -> set[str]:
        """Forget the oldest addresses, down to nine tenths of ADDRESSES_MAX, so that this is rare. Configured and busy
        ones stay. Returns those forgotten."""
        surplus = len(self.known) - ADDRESSES_MAX * 9 // 10
        staying = {*busy, *self.configured}
        gone = set(islice((address for address in self.known if address not in staying), surplus))
        for by_address in (self.known, self._roles, self._failed_s, self._locations):
            for address in gone & by_address.keys():
                del by_address[address]
        return gone
