"""The servers of a ZooKeeper ensemble: what a hosts string says, and which address a session tries next.

Invariants:
1. A host that can never be connected to is refused when the hosts string is parsed, and not at the first failover.
2. All addresses of a name are tried before its turn comes again, so that one that does not answer hides no other.
   A name is resolved at each of its turns: the servers behind it may have changed.
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
_FORM = "write host:port[,host:port][/chroot]"


def split_hosts(text: str) -> tuple[list[tuple[str, int]], str]:
    """`h1:2181,h2:2181/chroot` -> hosts and chroot ("" if none); `;` separates too. Raises ConfigError."""
    listed, slash, chroot = text.strip().partition("/")
    hosts: list[tuple[str, int]] = []
    for part in filter(None, re.split(r"[,;\s]+", listed)):
        bracketed = _IPV6.match(part)
        host, port = (bracketed[1], bracketed[2] or "") if bracketed else part.partition(":")[::2]
        valid = _is_ipv6(host) if bracketed else _is_name(host)
        if not valid or not re.fullmatch("[0-9]{0,5}", port) or not 0 < int(port or _PORT) < 65536:
            raise ConfigError(f"not a ZooKeeper address, {_FORM}: address={part[:80]!r} value={text[:80]!r}")
        hosts.append((host, int(port or _PORT)))
    if not hosts:
        raise ConfigError(f"no ZooKeeper address, {_FORM}: value={text[:80]!r}")
    chroot = chroot.strip("/")
    if not chroot.isprintable() or "//" in chroot:
        raise ConfigError(f"not a ZooKeeper chroot, {_FORM}: chroot={chroot[:80]!r} value={text[:80]!r}")
    return hosts, "/" + chroot if slash and chroot else ""


class Servers:
    """The addresses of an ensemble, one after the other, for ever. hosts: in the order of their turns."""

    def __init__(self, hosts: Sequence[tuple[str, int]], rng: random.Random) -> None:
        self._hosts = hosts
        self._rng = rng
        self._turn = 0
        self._sizes = [1] * len(hosts)  # addresses of each host, as last resolved
        self._addresses: deque[tuple[str, int]] = deque()  # of the host whose turn it is, not tried yet

    @property
    def size(self) -> int:
        """How many addresses there are, as far as the names have been resolved."""
        return sum(self._sizes)

    async def next(self) -> tuple[str, int]:
        """The next address. Raises OSError for a name that cannot be resolved now; the turn is the next host's then."""
        if not self._addresses:
            turn = self._turn % len(self._hosts)
            self._turn += 1
            host, port = self._hosts[turn]
            loop = asyncio.get_running_loop()
            try:
                found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            except UnicodeError as error:  # of the resolver's own rules
                raise OSError(f"not a name: {error}: host={host!r}") from error
            addresses = list(dict.fromkeys((str(item[4][0]), port) for item in found))
            self._rng.shuffle(addresses)  # so that not all clients of a name share one server
            self._sizes[turn] = max(1, len(addresses))
            self._addresses.extend(addresses or [(host, port)])
        return self._addresses.popleft()


def _is_name(host: str) -> bool:
    """Whether a resolver may be asked for this host."""
    try:
        return host.isprintable() and not re.search(r"[\[\]]", host) and 0 < len(host.encode("idna")) < 254
    except UnicodeError:
        return False  # a label is empty or too long


def _is_ipv6(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True
