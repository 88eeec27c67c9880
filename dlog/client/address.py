"""Where a cluster is: `dlog://host:port[,host:port...]`."""

from __future__ import annotations

import os

from dlog.errors import InvalidRequestError
from dlog.hostport import split_host_port

ENVIRONMENT = "DLOG_CONNECT"
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
    try:
        return split_host_port(address)
    except ValueError as error:
        raise InvalidRequestError(f"{error}; {_HOW}") from None
