"""Parses cluster addresses: `dlog://host:port[,host:port...]`."""

from __future__ import annotations

import os

from dlog.errors import InvalidRequestError
from dlog.hostport import split_host_port

ENVIRONMENT = "DLOG_CONNECT"
REGION = "DLOG_REGION"  # environment variable: the region that clients stand in
_HOW = "write dlog://host:port[,host:port]"


def target_addresses(target: str | None) -> tuple[str, ...]:
    """Addresses in a target, or in DLOG_CONNECT if it is None. Raises InvalidRequestError with an example."""
    text = target if target is not None else os.environ.get(ENVIRONMENT, "")
    if not text:
        raise InvalidRequestError(f"no cluster address given: {_HOW} or set {ENVIRONMENT} (`dlog up` prints it)")
    return parse_target(text)


def parse_target(target: str) -> tuple[str, ...]:
    """Parse a target into `host:port` addresses, in the order given, without duplicates.

    The scheme `dlog://` is optional. IPv6 hosts are in brackets. Raises InvalidRequestError with an example.
    """
    body = target.strip()
    scheme, separator, rest = body.partition("://")
    if separator:
        if scheme.lower() != "dlog":
            raise InvalidRequestError(f"not a dlog address, {_HOW}: address={target[:80]!r}")
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
