"""The servers of a ZooKeeper ensemble: parses the hosts string and chooses the next address to try.

Invariants:
1. A host that can never be connected to is refused when the hosts string is parsed, not at the first failover. So is
   text in which an address would be taken for a part of the chroot.
2. All addresses of a name are tried before the next turn of that name, so that one dead address hides no other.
   A name is resolved again at each turn, because its servers may have changed.
"""

from __future__ import annotations

import asyncio
import ipaddress
import random
import re
import socket
from collections import deque
from collections.abc import Sequence

from dlog.errors import ConfigError

_PORT = 2181
_IPV6 = re.compile(r"\[([0-9a-fA-F:.]+)\](?::(\d+))?\Z")
_HOST = re.compile(rb"[0-9A-Za-z._-]{1,253}\Z")
_IN_CHROOT = re.compile(r"[,;\s]|:\d+(/|\Z)")  # another address, or the port of the one before
_FORM = "write host:port[,host:port][/chroot]"


def split_hosts(text: str) -> tuple[list[tuple[str, int]], str]:
    """`h1:2181,h2:2181/chroot` -> hosts and chroot ("" if none); `;` separates too. Raises ConfigError."""
    if "://" in text:
        raise ConfigError(f"a ZooKeeper address has no scheme, {_FORM}: value={text[:80]!r}")
    listed, slash, chroot = text.strip().partition("/")
    if _IN_CHROOT.search(chroot):
        raise ConfigError(
            f"all ZooKeeper addresses stand before the one chroot, {_FORM}: chroot={chroot[:80]!r} value={text[:80]!r}"
        )
    hosts: list[tuple[str, int]] = []
    for part in filter(None, re.split(r"[,;\s]+", listed)):
        bracketed = _IPV6.match(part)
        host, port = (bracketed[1], bracketed[2]) if bracketed else _split_port(part)
        valid = _is_ipv6(host) if bracketed else _is_name(host)
        number = str(_PORT) if port is None else port
        if not valid or not re.fullmatch("[0-9]{1,5}", number) or not 0 < int(number) < 65536:
            raise ConfigError(f"not a ZooKeeper address, {_FORM}: address={part[:80]!r} value={text[:80]!r}")
        hosts.append((host, int(number)))
    if not hosts:
        raise ConfigError(f"no ZooKeeper address, {_FORM}: value={text[:80]!r}")
    chroot = chroot.removesuffix("/")
    if not chroot.isprintable() or (chroot and not {"", ".", ".."}.isdisjoint(chroot.split("/"))):
        raise ConfigError(f"not a ZooKeeper chroot, {_FORM}: chroot={chroot[:80]!r} value={text[:80]!r}")
    return hosts, "/" + chroot if slash and chroot else ""


def is_same_ensemble(one: str, other: str) -> bool:
    """Whether two hosts strings name the same hosts, in any order, and the same chroot. Raises ConfigError."""
    (hosts, chroot), (others, other_chroot) = split_hosts(one), split_hosts(other)
    return set(hosts) == set(others) and chroot == other_chroot


class Servers:
    """Iterates over the addresses of an ensemble without end. hosts: in the order in which they are tried."""

    def __init__(self, hosts: Sequence[tuple[str, int]], rng: random.Random) -> None:
        self._hosts = hosts
        self._rng = rng
        self._turn = 0
        self._sizes = [1] * len(hosts)  # addresses of each host, as last resolved
        self._addresses: deque[tuple[str, int]] = deque()  # of the present host, not tried yet

    @property
    def size(self) -> int:
        """Number of addresses; a name not resolved yet counts as one."""
        return sum(self._sizes)

    async def next(self) -> tuple[str, int]:
        """The next address. Raises OSError if a name cannot be resolved now; the next call tries the next host."""
        if not self._addresses:
            turn = self._turn % len(self._hosts)
            self._turn += 1
            host, port = self._hosts[turn]
            loop = asyncio.get_running_loop()
            try:
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except UnicodeError as error:  # the resolver refuses the name
                raise OSError(f"not a host name: {error}: host={host!r}") from error
            addresses = list(dict.fromkeys((str(item[4][0]), port) for item in found))
            self._rng.shuffle(addresses)  # so that not all clients of a name share one server
            self._sizes[turn] = max(1, len(addresses))
            self._addresses.extend(addresses or [(host, port)])
        return self._addresses.popleft()


def _split_port(address: str) -> tuple[str, str | None]:
    """Host, and port if there is a colon."""
    host, colon, port = address.partition(":")
    return host, port if colon else None


def _is_name(host: str) -> bool:
    """Whether a resolver can resolve this host."""
    try:
        return host.isprintable() and _HOST.match(host.encode("idna")) is not None
    except UnicodeError:
        return False  # a label is empty or too long


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
