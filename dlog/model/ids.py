"""Identifiers as distinct types, and the checks of names that become identifiers."""

from __future__ import annotations

import re
from typing import NewType
from urllib.parse import quote

from dlog.errors import InvalidRequestError, InvalidStreamNameError

LedgerId = NewType("LedgerId", int)
EntryId = NewType("EntryId", int)
BookieId = NewType("BookieId", str)
SegmentNumber = NewType("SegmentNumber", int)  # DistributedLog's log segment sequence number, first is 1
Epoch = NewType("Epoch", int)  # number of a claim on a stream; every claim adds one
Txid = NewType("Txid", int)
StreamName = NewType("StreamName", str)
ProxyId = NewType("ProxyId", str)

NO_ENTRY = EntryId(-1)
NO_LEDGER = LedgerId(-1)
NO_TXID = Txid(-1)
TXID_MAX = 2**63 - 2  # 2**63 - 1 marks the end of a stream
TXID_END_OF_STREAM = Txid(2**63 - 1)
SEGMENT_FIRST = SegmentNumber(1)
SEGMENT_MAX = SegmentNumber(10**18 - 1)  # a segment's number has 18 digits in its znode's name

_NOT_QUOTED = str.maketrans({character: f"%{ord(character):02X}" for character in "-.~"})  # by `quote`
_NAME_PART = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*\Z")
_BOOKIE = re.compile(r"[a-zA-Z0-9:._\-]+\Z")


def stream_name(text: str) -> StreamName:
    """Check a stream name: letters, digits, `.`, `_`, `-`, at most 200 characters, no leading dot.

    Raises InvalidStreamNameError. A name becomes one znode, so `/` is refused.
    """
    if not text:
        raise InvalidStreamNameError("a stream name may not be empty")
    if len(text) > 200:
        raise InvalidStreamNameError(f"a stream name has at most 200 characters: length={len(text)}")
    if not _NAME_PART.match(text):
        raise InvalidStreamNameError(
            f"a stream name holds letters, digits, '.', '_' and '-' and does not begin with '.': name={text[:80]!r}"
        )
    return StreamName(text)


RESERVED_PREFIX = "_dlog."  # of the names of streams that dlog keeps for itself
METADATA_STREAM = StreamName("_dlog.objects")  # the metadata of streams in objects
WAL_STREAM = StreamName("_dlog.wal")  # that segments of write-ahead logs of nodes are created for


def is_reserved(stream: str) -> bool:
    """Whether dlog keeps a stream of this name for itself: programs may read it, and only proxies change it."""
    return stream.startswith(RESERVED_PREFIX)


def user_stream_name(text: str) -> StreamName:
    """Check the name of a stream that a program creates, writes or changes. Raises InvalidStreamNameError, also for a
    reserved name."""
    if is_reserved(text):
        raise InvalidStreamNameError(
            f"stream names that begin with {RESERVED_PREFIX!r} are reserved for dlog itself, they can only be read; "
            f"choose another name: name={text[:80]!r}"
        )
    return stream_name(text)


def bookie_id(text: str) -> BookieId:
    """Check a bookie id by BookKeeper's grammar. Raises InvalidRequestError."""
    if not _BOOKIE.match(text) or text == "readonly" or len(text) > 255:
        raise InvalidRequestError(f"not a bookie id, use host:port or letters, digits, '.', '_', '-': id={text[:80]!r}")
    return BookieId(text)


LOCATION_BYTES_MAX = 512


def is_location_name(text: str) -> bool:
    """Whether a segment can have this name in its store: 1 to LOCATION_BYTES_MAX bytes of printable text."""
    return len(text) > 0 and text.isprintable() and len(text.encode()) <= LOCATION_BYTES_MAX


def escape_name(text: str) -> str:
    """Encode any text as a part of the name of a znode or a file: percent-encoded except for ASCII letters, digits and
    `_`, so that parts can be joined by `-`. `urllib.parse.unquote` decodes it."""
    return quote(text, safe="").translate(_NOT_QUOTED)
