"""Opens connections to other proxies, named by their public address, at the address registered for proxies."""

from __future__ import annotations

from typing import TypeVar

from dlog.io.metadata import Membership
from dlog.wire.proxy_protocol import LOCAL
from proxies.proxy_connection import ProxyConnection

AnyProxyConnection = TypeVar("AnyProxyConnection", bound=ProxyConnection)


class Dialler:
    """Connects to proxies. role, name: of this process (docs/protocol.md 1.2). says_preamble: send a LOCAL
    header first, as proxies require a PROXY protocol header from every source."""

    def __init__(self, role: str, name: str, metadata: Membership, *, says_preamble: bool = False) -> None:
        self._role = role
        self._name = name
        self._metadata = metadata
        self._preamble = LOCAL if says_preamble else b""

    async def open(self, address: str, timeout_s: float, kind: type[AnyProxyConnection]) -> AnyProxyConnection:
        """Connect to the proxy that is registered under `address`, within timeout_s. Raises UnavailableError."""
        peer = self._metadata.known_members().peer_address_of(address)
        return await kind.open(peer, role=self._role, name=self._name, timeout_s=timeout_s, preamble=self._preamble)
