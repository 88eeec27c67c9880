"""Where a cluster is: `dlog://host:port[,host:port...]`."""

from __future__ import annotations

import os
import re

from dlog.errors import InvalidRequestError

ENVIRONMENT = "DLOG_CONNECT"
_HOST = re.compile(r"[^\s\x00-\x1f\x7f\ud800-\udfff/@]{1,253}\Z")  # names beyond ASCII are the resolver's affair
_PORT = re.compile(r"[0-9]{1,5}\Z", re.ASCII)
_HOW = "write dlog://host:port[,host:port]"


def target_addresses(target: str | None) -> tuple[str, ...]:
    """Addresses of a target, or of DLOG_CONNECT if none is given. Raises InvalidRequestError that says what to do."""
    told = target if target is not None else os.environ.get(ENVIRONMENT, "")
    if not told:
        raise InvalidRequestError(f"no cluster named: {_HOW} or set {ENVIRONMENT} (`dlog up` prints it)")
    return parse_target(told)


def parse_target(target: str) -> tuple[str, ...]:
    """Read a target into addresses `host:port`, in the order given, each once.

    The scheme may be left out. IPv6 hosts stand in brackets. Raises InvalidRequestError that says how it is written.
    """
    body = target.strip()
    scheme, separator, rest = body.partition("://")
    if separator:
        if scheme.lower() != "dlog":
            raise InvalidRequestError(f"not an address of a dlog cluster, {_HOW}: address={target[:80]!r}")
        body = rest
    addresses: list[str] = []
    for part in body.rstrip("/").split(","):
        address = part.strip()
        split_address(address)
        if address not in addresses:
            addresses.append(address)
    return tuple(addresses)


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port`. Raises InvalidRequestError."""
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise InvalidRequestError(f"an IPv6 host stands in brackets, as in [::1]:7400: address={address[:80]!r}")
    if not _HOST.match(host) or not _PORT.match(port) or not 0 < int(port) < 65536:
        raise InvalidRequestError(f"not an address, {_HOW}: address={address[:80]!r}")
    return host, int(port)
