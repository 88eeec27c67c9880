"""Who may say, by a header of the PROXY protocol, for whom it connects.

The law of this room: a header is a claim about somebody else, so it is taken only from sources that were named (or
from everybody, if none was), and a source that must send one and does not is refused: it came past the balancer.
"""

from __future__ import annotations

import enum
import ipaddress

OFF, OPTIONAL, REQUIRED = MODES = ("off", "optional", "required")

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class Expect(enum.Enum):
    """What is expected of a source."""

    NONE = enum.auto()  # a header is an offence
    MAYBE = enum.auto()
    ALWAYS = enum.auto()  # its lack is


class Preambles:
    """mode: off, optional or required. sources: networks that may (and with required, must) send a header, separated
    by commas; all others then speak for themselves. Without sources the mode holds for everybody."""

    def __init__(self, mode: str, sources: str = "") -> None:
        if mode not in MODES:
            raise ValueError(f"proxy_protocol is one of {', '.join(MODES)}: {mode!r}")
        self._mode = mode
        self._sources = tuple(_network(part.strip()) for part in sources.split(",") if part.strip())

    @property
    def of_everybody(self) -> bool:
        """Whether other proxies, too, must send a header."""
        return self._mode == REQUIRED and not self._sources

    def of(self, host: str) -> Expect:
        """What is expected of a connection from this host."""
        if self._mode == OFF or (self._sources and not self._names(host)):
            return Expect.NONE
        return Expect.MAYBE if self._mode == OPTIONAL else Expect.ALWAYS

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
