"""Decides which sources may or must send a PROXY protocol header, which names the real client.

Invariants:
- a header is accepted only from the configured networks, or from every source if none is configured;
- a source that must send a header and does not is refused: it bypassed the load balancer.
"""

from __future__ import annotations

import enum
import ipaddress

OFF, OPTIONAL, REQUIRED = MODES = ("off", "optional", "required")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class HeaderExpectation(enum.Enum):
    """Whether a source sends a header."""

    NONE = enum.auto()  # a header is an error
    MAYBE = enum.auto()
    ALWAYS = enum.auto()  # a missing header is an error


class ProxyHeaderPolicy:
    """Header policy. mode: off, optional or required. sources: networks, separated by commas, that may (required: must)
    send a header; others must not. Without sources the mode applies to all."""

    def __init__(self, mode: str, sources: str = "") -> None:
        if mode not in MODES:
            raise ValueError(f"proxy_protocol must be one of {', '.join(MODES)}: {mode!r}")
        self._mode = mode
        self._sources = tuple(_network(part.strip()) for part in sources.split(",") if part.strip())

    @property
    def of_everybody(self) -> bool:
        """Whether even other proxies must send a header."""
        return self._mode == REQUIRED and not self._sources

    def of(self, host: str) -> HeaderExpectation:
        """Whether a connection from this host sends a header."""
        if self._mode == OFF or (self._sources and not self._names(host)):
            return HeaderExpectation.NONE
        return HeaderExpectation.MAYBE if self._mode == OPTIONAL else HeaderExpectation.ALWAYS

    def _names(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self._sources)


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise ValueError(f"not a network, write 10.0.0.0/8 or 10.1.2.3: {text!r}") from None
