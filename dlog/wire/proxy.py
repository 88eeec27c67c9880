"""Messages between clients, read proxies and write proxies.

A frame is `length u32 | header_bytes u16 | header | body`; `length` counts the bytes after it. The header is a msgpack
array `[op, request, field, ...]` in the order of the fields below; the body is raw bytes (a record set, or entry
payloads). The protocol is ours; docs/protocol.md specifies it. Error codes are those of dlog/errors.py.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from dlog.values import value

Buffer = bytes | bytearray | memoryview

PROTOCOL_VERSION = 1


class Op(enum.IntEnum):
    """First element of every header. Below 64: requests; from 64 on: replies and pushed messages."""

    HELLO = 1
    WRITE = 2
    READ = 3
    CREDIT = 4
    CANCEL = 5
    CREATE = 6
    DELETE = 7
    TRUNCATE = 8
    SEAL = 9
    STAT = 10
    LIST = 11
    OWNER = 12
    OWNERS = 13
    HAND_OVER = 14
    TAIL = 15
    PING = 16
    IMPORT_SEGMENTS = 17
    SINK_WRITE = 18
    MOVE_SEGMENT = 19
    GET_INCARNATION = 20
    ALTER = 21
    OBJECTS_ASK = 22
    WELCOME = 64
    WRITTEN = 65
    FAILED = 66
    DONE = 67
    ENTRIES = 68
    READER_EVENT = 69
    LAC = 70
    GOAWAY = 71


class Start(enum.IntEnum):
    """Kind of a read's start position."""

    START = 0  # the first record that is kept
    TAIL = 1  # only records confirmed after the open
    DLSN = 2  # value: [segment, entry, slot], inclusive
    TXID = 3  # value: int, first record with txid >= it
    TIME = 4  # value: unix milliseconds


class ReaderEventKind(enum.IntEnum):
    """Events of a reader; all but STARTED, CAUGHT_UP and BEHIND end it. `incarnation`: the stream's incarnation."""

    STARTED = 0  # detail: {"dlsn": [s, e, slot]} where delivery begins, "incarnation"
    CAUGHT_UP = 1  # all confirmed records were sent; more may come; detail {"incarnation": ...}
    END_OF_STREAM = 2  # sealed and all delivered; final
    TRUNCATED = 3  # position before the truncation point; detail {"first": [s, e, slot]}
    DAMAGED = 4  # an entry at or below the LAC cannot be read; detail {"dlsn": ..., "message": ...}
    MOVED = 5  # another read proxy serves this stream; detail {"location": "host:port"}
    DELETED = (
        6  # the stream was deleted; detail {"incarnation": ...} of the present stream of its name, if there is one
    )
    BEYOND_END = 7  # position after the end of the stream; detail {"end": [s, e, slot]}
    BEHIND = 8  # the next Entries do not reach the tail; detail {"segments": n, "entries": n or nil} that follow them


@value
class Hello:
    """First frame of a connection. role: "client", "read-proxy", "write-proxy", "tool".

    hops: how often the server may forward a request of this connection to the proxy that can answer it. 0: never, it
    redirects (302); 1: once. A forwarding proxy sends 0, so nothing is forwarded twice.
    """

    request: int
    version_min: int
    version_max: int
    role: str
    name: str
    hops: int = 0


@value
class Write:
    """Append one batch: body is a DistributedLog record set (LogRecordSet: 16-byte head and body); no proxy opens it.

    sequence: of this batch's first record within its producer; the next batch's is sequence + count. crc: CRC32C of
    body. txid: None lets the owner assign it. retry: sent before with unknown outcome. since: a DLSN that the client
    knew before it first used this producer id, or None. replaces: the first sequence of this producer generation. From
    there on it replaces lower generations (same first 12 bytes): they write nothing more once its first batch is
    written. None: generation 0. incarnation: of the stream (see GetIncarnation); None: any.
    """

    request: int
    stream: str
    producer: bytes  # 12 random bytes chosen by the client, and a generation, u32
    sequence: int
    count: int
    txid: int | None
    crc: int
    retry: bool
    since: tuple[int, int, int] | None = None
    replaces: int | None = None
    incarnation: str | None = None
    body: Buffer = b""


@value
class Read:
    """Open a reader; its id is `request`. The server pushes up to `credit` bytes of entry payloads; see Credit.

    follow: False ends the reader at the tail as of the open, with CAUGHT_UP. incarnation: of the stream that the
    position belongs to; None or "": unknown, the present stream of the name is read. region: the client's, for which
    the serving proxy is chosen; None: not known, or the server does not take it (limit `regions` of its Welcome).
    """

    request: int
    stream: str
    start: Start
    value: Any
    credit: int
    follow: bool
    forwarded: bool = False  # the client was redirected here: serve it even if the ring names another proxy
    incarnation: str | None = None
    region: str | None = None


@value
class Credit:
    """Allow `bytes` more bytes of entry payloads for reader `request`."""

    request: int
    bytes: int


@value
class Cancel:
    """End the reader or tail `request`."""

    request: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a stream. settings: store, segment_bytes, segment_age_s, retention_s, and those that the stream's store
    takes (the store `ledger`: ensemble, write_quorum, ack_quorum, min_regions).

    incarnation: id drawn by the client, the same in each try: a repetition finds the stream created.
    deletions: as in GetIncarnation's reply before the first try; 555 if a stream was deleted since.
    """

    request: int
    stream: str
    incarnation: str
    deletions: int
    settings: dict[str, Any] = field(default_factory=dict)


@value
class Delete:
    """Delete this incarnation of the stream with all its segments; succeeds if it is gone already. force: delete it
    even if a segment in progress cannot be ended (556)."""

    request: int
    stream: str
    incarnation: str
    force: bool = False


@value
class Truncate:
    """Move the truncation point to `dlsn`; it only moves forward. incarnation: see GetIncarnation."""

    request: int
    stream: str
    incarnation: str
    dlsn: tuple[int, int, int]


@value
class Seal:
    """End the stream for good after the records acknowledged now. incarnation: see GetIncarnation."""

    request: int
    stream: str
    incarnation: str


@value
class Alter:
    """Change the named settings of the stream (keys as in Create). version: of the settings that the client has read
    (see GetIncarnation); 555 if they were altered since. Done {"settings": all of them}."""

    request: int
    stream: str
    incarnation: str
    version: int
    settings: dict[str, Any]


@value
class Stat:
    """Describe a stream: Done with a map (docs/protocol.md)."""

    request: int
    stream: str


@value
class GetIncarnation:
    """Get the incarnation id of the present stream of this name. A client asks once before a request that it may repeat
    or that may come late, and puts the id into each try, so that a late one never changes the next stream of the name.

    Done {"incarnation": str or nil (no stream), "deleted": bool (a deletion is not finished), "deletions": n}, and if
    there is one {"settings": as in Create, "settings_version": how often they were altered}.
    """

    request: int
    stream: str


@value
class List:
    """List names after `after`, in order, at most `limit`. listing: from the previous page's reply; None: start."""

    request: int
    after: str = ""
    limit: int = 1000
    listing: str | None = None


@value
class GetOwner:
    """Find the stream's owner. `suspect`: an address that just failed the client; the proxy checks it itself and claims
    the stream if that owner is gone. region: as in Read. Done {"location": "host:port", "epoch": n, ...} or Failed
    302/515."""

    request: int
    stream: str
    suspect: str | None = None
    region: str | None = None


@value
class GetOwners:
    """List the streams that this proxy owns: Done {"owned": [[stream, epoch, state], ...], "more": bool}."""

    request: int


@value
class HandOver:
    """Hand over the stream: complete its segment at the LAC, mark the claim released."""

    request: int
    stream: str
    incarnation: str


@value
class Tail:
    """Push Lac frames for this stream until cancelled (read proxy to owner), and before a Lac the Entries that it
    confirms if they are few: skip 0, any may be omitted."""

    request: int
    stream: str


@value
class Ping:
    request: int


@value
class ImportSegments:
    """Import closed stages as segments after everything written, in this order, all or none. parts: location and last
    entry of each, in `store` (None: ledger). sink, epoch, query, batch: identify the batch (dlog/model/sink.py);
    sink "": no sink, and stages in the list are not imported again. since: the client has read the log up to here and
    found nothing of the batch. A batch without parts is only remembered. incarnation: see GetIncarnation.

    Done {"first": segment, "segments": n, "records": n, "duplicate": bool}.
    """

    request: int
    stream: str
    incarnation: str
    sink: str
    epoch: int
    query: str
    batch: int
    since: tuple[int, int, int] | None
    store: str | None
    parts: tuple[tuple[str, int], ...]


@value
class SinkWrite:
    """Append a sink's batch as one record set, once even if repeated. Done {"dlsn": [s, e, slot] or nil, "count": n,
    "txid": n, "duplicate": bool}. incarnation: see GetIncarnation."""

    request: int
    stream: str
    incarnation: str
    sink: str
    epoch: int
    query: str
    batch: int
    since: tuple[int, int, int] | None
    count: int
    txid: int | None
    crc: int
    body: Buffer = b""


@value
class MoveSegment:
    """Change the location of completed segment `segment` from `location` of `store` to `to_location` of `to_store`."""

    request: int
    stream: str
    incarnation: str
    segment: int
    store: str
    location: str
    to_store: str
    to_location: str


@value
class ObjectsAsk:
    """Have the controller of streams in objects decide an operation (dlog/objects/operation_codec.py). suspect: an
    address that just failed the client, see GetOwner. Done {"answer": [bin, ...]}: the parts of the answer's bytes; a
    refusal of the controller is an answer, too."""

    request: int
    suspect: str | None = None
    body: Buffer = b""


@value
class Welcome:
    """Reply to Hello. version: the one used from now on. limits: frame_bytes_max, batch_bytes_max, ..."""

    request: int
    version: int
    server: str
    role: str
    limits: dict[str, int]


@value
class Written:
    """Batches `first`..`last` (request ids) are durable, contiguous in one entry from `dlsn` on.

    The second batch's first slot is dlsn.slot + count of the first, and so on. txid: of the first batch. window: most
    batches that the producer may have unanswered from now on, as many as the log remembers; None: WINDOW_MIN of
    dlog/model/window.py.
    """

    first: int
    last: int
    dlsn: tuple[int, int, int]
    txid: int
    duplicate: bool = False
    window: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Reply: the request failed. detail: attributes of some errors, such as {"expected": n} of a sequence gap
    (docs/protocol.md); a key that is not known is ignored."""

    request: int
    code: int
    message: str
    location: str | None = None
    outcome_unknown: bool = False
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Done:
    request: int
    result: dict[str, Any] = field(default_factory=dict)


@value
class Entries:
    """Consecutive entry payloads of one segment, as stored (enveloped), from `first_entry` on.

    lengths: bytes of each; the body joins them. skip: slots of the first entry to drop before delivery.
    """

    request: int
    segment: int
    first_entry: int
    lengths: tuple[int, ...]
    skip: int
    body: Buffer = b""

    def payloads(self) -> Iterator[memoryview]:
        """A view of each payload."""
        body, at = memoryview(self.body), 0
        for length in self.lengths:
            yield body[at : at + length]
            at += length


@dataclass(frozen=True, slots=True)
class ReaderEvent:
    request: int
    kind: ReaderEventKind
    detail: dict[str, Any] = field(default_factory=dict)


@value
class Lac:
    """Segment `segment` is confirmed up to entry `lac`; `ended`: it is complete and ends there."""

    request: int
    segment: int
    lac: int
    ended: bool = False


@value
class GoAway:
    """This proxy drains: it answers pending requests; send new ones to `location`, or to the proxy the ring names."""

    request: int
    reason: str
    location: str | None = None


Question = (
    Hello
    | Write
    | Read
    | Credit
    | Cancel
    | Create
    | Delete
    | Truncate
    | Seal
    | Alter
    | Stat
    | GetIncarnation
    | List
    | GetOwner
    | GetOwners
    | HandOver
    | Tail
    | Ping
    | ImportSegments
    | SinkWrite
    | MoveSegment
    | ObjectsAsk
)
Reply = Welcome | Written | Failed | Done | Entries | ReaderEvent | Lac | GoAway
Message = Question | Reply
