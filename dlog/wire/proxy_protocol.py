"""The PROXY protocol, versions 1 and 2: a load balancer's header with the address of the client.

    v1 = "PROXY" SP ("TCP4" | "TCP6") SP source SP destination SP source port SP destination port CRLF
         | "PROXY UNKNOWN" ... CRLF                                               at most 107 bytes with CRLF
    v2 = signature 12 bytes | version << 4 | command u8 | family << 4 | transport u8 | length u16 | addresses | TLVs

Invariants:
- A preamble is checked as soon as possible; at most PREAMBLE_BYTES_MAX are kept of it.
- A preamble and a frame of ours cannot be confused: both signatures, read as a length word, exceed every bound of a
  first frame.

Source: HAProxy, doc/proxy-protocol.txt.
"""

from __future__ import annotations

import ipaddress
import struct
from dataclasses import dataclass

from dlog.errors import ProtocolError

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
V1_BEGINS = b"PROXY "
V1_BYTES_MAX = 107
V2_REST_MAX = 1024  # addresses take at most 36 bytes (216 for unix); the rest is TLVs, which we skip
PREAMBLE_BYTES_MAX = 16 + V2_REST_MAX

_LOCAL, _PROXY = 0, 1
_INET, _INET6, _UNIX = 1, 2, 3
_STREAM = 1
#: sent to another proxy that requires a preamble: this connection is our own, not a client's
LOCAL = SIGNATURE + bytes((0x20, 0x00, 0, 0))


@dataclass(frozen=True, slots=True)
class Preamble:
    """source: `host:port` of the client; "" for a connection of the balancer's own, or if unknown. size: in bytes."""

    source: str
    size: int


def begins(data: bytes) -> bool:
    """Whether data, however short, may be the beginning of a preamble."""
    return any(data[: len(mark)] == mark[: len(data)] for mark in (SIGNATURE, V1_BEGINS))


def parse(data: bytes) -> Preamble | None:
    """The preamble at the start of data; None if more bytes are needed. Raises ProtocolError if it is invalid."""
    if not begins(data):
        raise ProtocolError("not a PROXY protocol header")
    if data[:1] == SIGNATURE[:1]:
        return _parse_v2(data)
    return _parse_v1(data)


def encode_v1(source: tuple[str, int], destination: tuple[str, int]) -> bytes:
    """The line that a balancer would send."""
    family = "TCP6" if ":" in source[0] else "TCP4"
    return f"PROXY {family} {source[0]} {destination[0]} {source[1]} {destination[1]}\r\n".encode()


def encode_v2(source: tuple[str, int], destination: tuple[str, int]) -> bytes:
    """The header that a balancer would send."""
    hosts = [ipaddress.ip_address(host) for host, _ in (source, destination)]
    family = _INET6 if hosts[0].version == 6 else _INET
    body = hosts[0].packed + hosts[1].packed + struct.pack(">HH", source[1], destination[1])
    return SIGNATURE + struct.pack(">BBH", 0x20 | _PROXY, family << 4 | _STREAM, len(body)) + body


def _parse_v1(data: bytes) -> Preamble | None:
    end = data.find(b"\r\n", 0, V1_BYTES_MAX)
    if end < 0:
        if len(data) >= V1_BYTES_MAX:
            raise ProtocolError(f"PROXY header, version 1: longer than {V1_BYTES_MAX} bytes")
        return None
    size = end + 2
    words = data[:end].split(b" ")
    if words[1] == b"UNKNOWN":
        return Preamble("", size)
    if words[1] not in (b"TCP4", b"TCP6") or len(words) != 6:
        raise ProtocolError("PROXY header, version 1: not `PROXY TCP4|TCP6 source destination port port`")
    wanted = 4 if words[1] == b"TCP4" else 6
    source = _address(words[2], wanted)
    _address(words[3], wanted)
    ports = [_port(word) for word in words[4:]]
    return Preamble(_joined(source, ports[0]), size)


def _parse_v2(data: bytes) -> Preamble | None:
    if len(data) < 16:
        return None
    command, family, rest = struct.unpack_from(">BBH", data, 12)
    if command >> 4 != 2 or command & 15 not in (_LOCAL, _PROXY):
        raise ProtocolError(f"PROXY header, version 2: unknown version and command: byte={command:#04x}")
    if rest > V2_REST_MAX:
        raise ProtocolError(f"PROXY header, version 2: too long: bytes={rest} max={V2_REST_MAX}")
    if len(data) < 16 + rest:
        return None
    size = 16 + rest
    if command & 15 == _LOCAL or family >> 4 not in (_INET, _INET6):
        return Preamble("", size)
    width = 4 if family >> 4 == _INET else 16
    if rest < 2 * width + 4:
        raise ProtocolError(f"PROXY header, version 2: too short for its addresses: bytes={rest}")
    source = ipaddress.ip_address(data[16 : 16 + width])
    (port,) = struct.unpack_from(">H", data, 16 + 2 * width)
    return Preamble(_joined(source, port), size)


def _address(word: bytes, version: int) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    try:
        address = ipaddress.ip_address(word.decode("ascii"))
    except ValueError:
        raise ProtocolError("PROXY header, version 1: not an address") from None
    if address.version != version:
        raise ProtocolError("PROXY header, version 1: an address of the other family")
    return address


def _port(word: bytes) -> int:
    if not word.isdigit() or len(word) > 5 or int(word) > 65535:
        raise ProtocolError("PROXY header, version 1: not a port")
    return int(word)


def _joined(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> str:
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"
