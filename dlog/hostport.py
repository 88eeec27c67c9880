"""Parses and formats addresses, `host:port`. An IPv6 host has brackets in an address, `[::1]:7400`, and none alone, as
in the option `--host ::1`; brackets around a host alone are accepted."""

from __future__ import annotations

import re

_PORT = re.compile(r"[0-9]{1,5}\Z", re.ASCII)
_HOST = re.compile(r"[^\s/@\[\]]{1,253}\Z")  # non-ASCII names are left to the resolver
ANY_HOSTS = ("0.0.0.0", "::", "")


def join_host_port(host: str, port: int) -> str:
    """`host:port`, with brackets around an IPv6 host."""
    host = bare_host(host)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def split_host_port(address: str) -> tuple[str, int]:
    """Host without brackets, and port. Raises ValueError with the reason."""
    host, _, port = address.rpartition(":")
    name = bare_host(host)
    if ":" in host and name == host:
        raise ValueError(f"an IPv6 host needs brackets, as in [::1]:7400: address={address[:80]!r}")
    if not _is_host(name) or not _PORT.match(port) or not 0 < int(port) < 65536:
        raise ValueError(f"not an address, use host:port: address={address[:80]!r}")
    return name, int(port)


def _is_host(name: str) -> bool:
    """Whether the name can be passed to a resolver."""
    try:
        return bool(_HOST.match(name)) and name.isprintable() and (":" in name or bool(name.encode("idna")))
    except UnicodeError:  # a label is empty or too long
        return False


def bare_host(host: str) -> str:
    """The host without the brackets of an IPv6 one."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") and ":" in host else host


def is_any_host(host: str) -> bool:
    """Whether a server that listens on `host` listens on every interface."""
    return bare_host(host) in ANY_HOSTS
