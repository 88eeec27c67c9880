"""Encoding of a bookie's registration (its addresses) and of its cookie (which directories belong to it).

    registration = BookieServiceInfoFormat, protobuf: endpoints 6 {id 1, port 2, host 3, protocol 4, auth 5,
                   extensions 6}, properties 7 {key 1, value 2}; empty data means that the id is host:port
    location     = property `networkLocation`, `/region/rack`; absent: the default one. Java ignores it
    summaries    = property `dlog.summaries`, `1`: the bookie serves SUMMARIZE (docs/protocol.md)
    cookie       = `5\\n`, then CookieFormat in protobuf's text form

The cookie is stored in ZooKeeper and as file VERSION in every directory of the bookie; if they differ, the disk is not
this bookie's. Source: BookKeeper, BookieServiceInfo, Cookie.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from dlog.errors import CookieError, DamagedError, InvalidRequestError
from dlog.model.ids import BookieId
from dlog.model.location import DEFAULT_LOCATION, NetworkLocation, parse_location
from dlog.wire import protobuf, textproto
from dlog.wire.protobuf import BYTES, VARINT, Buffer, Malformed, bytes_field, int_field

ENDPOINT_ID = "bookie"
ENDPOINT_PROTOCOL = "bookie-rpc"
LOCATION = "networkLocation"
SUMMARIES = ("dlog.summaries", "1")
COOKIE_VERSION = 5
_PORT = re.compile(r"[0-9]{1,5}\Z", re.ASCII)


# ---- registration ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of a bookie; BookKeeper's protocol has the id `bookie` and the protocol `bookie-rpc`."""

    id: str
    host: str
    port: int
    protocol: str
    auth: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """Content of a registration."""

    endpoints: tuple[Endpoint, ...] = ()
    properties: tuple[tuple[str, str], ...] = ()


def encode_address(
    host: str, port: int, location: NetworkLocation = DEFAULT_LOCATION, *, summaries: bool = False
) -> bytes:
    """The registration of a bookie that listens at host:port. summaries: it serves SUMMARIZE."""
    properties: tuple[tuple[str, str], ...] = () if location == DEFAULT_LOCATION else ((LOCATION, str(location)),)
    if summaries:
        properties += (SUMMARIES,)
    return encode_service_info(BookieServiceInfo((Endpoint(ENDPOINT_ID, host, port, ENDPOINT_PROTOCOL),), properties))


def location_of(data: Buffer) -> NetworkLocation:
    """Rack and region in a registration; the default ones if it has none, or none that can be read."""
    try:
        found = dict(decode_service_info(data).properties).get(LOCATION)
        return DEFAULT_LOCATION if found is None else parse_location(found)
    except (DamagedError, InvalidRequestError):
        return DEFAULT_LOCATION


def has_summaries(data: Buffer) -> bool:
    """Whether the registration says that the bookie serves SUMMARIZE."""
    try:
        return SUMMARIES in decode_service_info(data).properties
    except DamagedError:
        return False


def address_of(bookie: BookieId, data: Buffer) -> tuple[str, int]:
    """Host and port of a registered bookie's protocol.

    Raises DamagedError if the registration does not parse or names no such endpoint.
    """
    if not data:
        host, _, port = bookie.rpartition(":")
        if not host or not _PORT.match(port) or not 0 < int(port) < 65536:
            raise DamagedError(f"bookie registered without an address: bookie={bookie}")
        return host, int(port)
    for endpoint in decode_service_info(data).endpoints:
        if endpoint.protocol == ENDPOINT_PROTOCOL and endpoint.host and 0 < endpoint.port < 65536:
            return endpoint.host, endpoint.port
    raise DamagedError(f"bookie registered without an endpoint for {ENDPOINT_PROTOCOL}: bookie={bookie}")


def encode_service_info(info: BookieServiceInfo) -> bytes:
    """Protobuf bytes, fields in Java's order."""
    out = []
    for endpoint in info.endpoints:
        fields = [_text(1, endpoint.id), int_field(2, endpoint.port), _text(3, endpoint.host)]
        fields.append(_text(4, endpoint.protocol))
        fields += [_text(5, name) for name in endpoint.auth]
        fields += [_text(6, name) for name in endpoint.extensions]
        out.append(bytes_field(6, b"".join(fields)))
    out += [bytes_field(7, _text(1, key) + _text(2, value)) for key, value in info.properties]
    return b"".join(out)


def decode_service_info(data: Buffer) -> BookieServiceInfo:
    """Unknown fields are skipped. Raises DamagedError."""
    try:
        endpoints: list[Endpoint] = []
        properties: list[tuple[str, str]] = []
        for number, value in _messages(data):
            if number == 6:
                endpoints.append(_endpoint(value))
            elif number == 7:
                pair = dict(_messages(value))
                properties.append((bytes(pair.get(1, b"")).decode(), bytes(pair.get(2, b"")).decode()))
    except (Malformed, UnicodeDecodeError) as error:
        raise DamagedError(f"bookie registration cannot be decoded: {error}") from None
    return BookieServiceInfo(tuple(endpoints), tuple(properties))


def _endpoint(data: memoryview) -> Endpoint:
    texts: dict[int, list[str]] = {}
    port = 0
    for number, wire_type, value in protobuf.fields(data):
        if wire_type == BYTES and isinstance(value, memoryview):
            texts.setdefault(number, []).append(bytes(value).decode())
        elif number == 2 and wire_type == VARINT and isinstance(value, int):
            port = protobuf.signed(value)
    last = {number: found[-1] for number, found in texts.items()}
    auth, extensions = tuple(texts.get(5, ())), tuple(texts.get(6, ()))
    return Endpoint(last.get(1, ""), last.get(3, ""), port, last.get(4, ""), auth, extensions)


def _messages(data: Buffer) -> Iterable[tuple[int, memoryview]]:
    for number, wire_type, value in protobuf.fields(data):
        if wire_type == BYTES and isinstance(value, memoryview):
            yield number, value


def _text(number: int, value: str) -> bytes:
    return bytes_field(number, value.encode())


# ---- cookie ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cookie:
    """The bookie and cluster that these directories belong to. The order of directories matters."""

    bookie: BookieId
    journal_dirs: tuple[str, ...]
    ledger_dirs: tuple[str, ...]
    instance_id: str
    index_dirs: tuple[str, ...] = ()


def encode_cookie(cookie: Cookie) -> str:
    """The text stored in ZooKeeper and in the VERSION files."""
    lines = [
        f"{COOKIE_VERSION}",
        f"bookieHost: {textproto.quoted(cookie.bookie)}",
        f"journalDir: {textproto.quoted(','.join(cookie.journal_dirs))}",
        f"ledgerDirs: {textproto.quoted(_counted(cookie.ledger_dirs))}",
    ]
    if cookie.instance_id:
        lines.append(f"instanceId: {textproto.quoted(cookie.instance_id)}")
    if cookie.index_dirs:
        lines.append(f"indexDirs: {textproto.quoted(_counted(cookie.index_dirs))}")
    return "\n".join(lines) + "\n"


def decode_cookie(text: str | bytes) -> Cookie:
    """Parse a cookie. Raises CookieError if it is none of version 4 or 5."""
    data = text.encode() if isinstance(text, str) else text
    version, newline, body = data.partition(b"\n")
    if version.strip() not in (b"4", b"5") or not newline:
        raise CookieError(f"not a cookie of version 4 or 5: begins with {data[:20]!r}")
    try:
        found = {name: textproto.octets(value).decode() for name, value in textproto.parse(body)}
        return Cookie(
            BookieId(found["bookieHost"]),
            tuple(found["journalDir"].split(",")),
            _uncounted(found["ledgerDirs"]),
            found.get("instanceId", ""),
            _uncounted(found["indexDirs"]) if found.get("indexDirs") else (),
        )
    except (Malformed, UnicodeDecodeError) as error:
        raise CookieError(f"cookie cannot be decoded: {error}") from None
    except KeyError as error:
        raise CookieError(f"cookie lacks a field: field={error.args[0]}") from None


def _counted(dirs: tuple[str, ...]) -> str:
    return "\t".join([str(len(dirs)), *dirs])


def _uncounted(text: str) -> tuple[str, ...]:
    count, *dirs = text.split("\t")
    if count != str(len(dirs)):
        raise CookieError(f"cookie's directory count differs from its list: value={text[:80]!r}")
    return tuple(dirs)
