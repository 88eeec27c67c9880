"""Messages between clients, read proxies and write proxies, and their bytes.

A frame is `length u32 | header_bytes u16 | header | body`; `length` counts what follows it. The header is one msgpack
array `[op, request, field, ...]` in the order of the fields below; the body is raw bytes (a record set, or entry
payloads). Source: ours; written down in docs/protocol.md. Numbers of errors are those of dlog/errors.py.
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
    """First element of every header. Below 64: questions; from 64 on: answers and pushes."""

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
    RELEASE = 14
    TAIL = 15
    PING = 16
    TAKE_IN = 17
    SINK_WRITE = 18
    RELOCATE = 19
    LIFE = 20
    WELCOME = 64
    WRITTEN = 65
    FAILED = 66
    DONE = 67
    ENTRIES = 68
    READER_EVENT = 69
    LAC = 70
    GOAWAY = 71


class Start(enum.IntEnum):
    """How a read's start is given."""

    START = 0
    TAIL = 1  # only what is confirmed after the open
    DLSN = 2  # value: [segment, entry, slot], inclusive
    TXID = 3  # value: int, first record with txid >= it
    TIME = 4  # value: unix milliseconds


class ReaderEventKind(enum.IntEnum):
    """Typed events of a reader; all but CAUGHT_UP and STARTED end it."""

    STARTED = 0  # detail: {"dlsn": [s, e, slot]} where delivery begins, "life" of the stream
    CAUGHT_UP = 1  # at the tail as of now; more may come; detail {"life": ...}
    END_OF_STREAM = 2  # sealed and all delivered; final
    TRUNCATED = 3  # position before the truncation point; detail {"first": [s, e, slot]}
    DAMAGED = 4  # an entry at or below the LAC cannot be read; detail {"dlsn": ..., "message": ...}
    MOVED = 5  # another read proxy serves this stream; detail {"location": "host:port"}
    DELETED = 6  # the stream is gone; detail {"life": ...} of the one that has its name now, if there is one
    BEYOND_END = 7  # the stream does not reach as far as the position; detail {"end": [s, e, slot]}


@dataclass(frozen=True, slots=True)
class Hello:
    """First frame of a connection. role: "client", "read-proxy", "write-proxy", "tool".

    hops: how often what is asked here may be handed on to the proxy that can answer it. 0: never, the answer says where
    to go (302); 1: once. A proxy that hands on says 0 itself, so nothing is handed on twice.
    """

    request: int
    version_min: int
    version_max: int
    role: str
    name: str
    hops: int = 0


@value
class Write:
    """One batch: body is a DistributedLog record set (LogRecordSet: 16-byte head and body), never opened on the way.

    sequence: of this batch's first record within its producer; the next batch's is sequence + count. crc: CRC32C of
    body. txid: None lets the owner assign it. retry: sent before, its outcome is unknown to the client. since: a place
    in the log, known to the client before it began to use this producer id; None if it knows none. replaces: the
    sequence that this id begins with. From there on it replaces the ids of lower generation with the same first 12
    bytes: of those nothing is written any more once its first batch is. None: 0, and there are none. life: of the
    stream that the batch is meant for (see Life); None: of whatever stream has the name.
    """

    request: int
    stream: str
    producer: bytes  # 12 bytes, chosen at random by the client, and a generation, u32
    sequence: int
    count: int
    txid: int | None
    crc: int
    retry: bool
    since: tuple[int, int, int] | None = None
    replaces: int | None = None
    life: str | None = None
    body: Buffer = b""


@dataclass(frozen=True, slots=True)
class Read:
    """Open a reader; its id is `request`. The server pushes up to `credit` bytes of entry payloads; see Credit.

    follow: False ends the reader (CAUGHT_UP then nothing more) at the tail as of the open. life: of the stream that the
    position is of (StreamMetadata); None or "": not known, whatever stream has the name is read.
    """

    request: int
    stream: str
    start: Start
    value: Any
    credit: int
    follow: bool
    forwarded: bool = False  # a client that was redirected here asks to be served whatever the ring says
    life: str | None = None


@dataclass(frozen=True, slots=True)
class Credit:
    """Allow `bytes` more bytes of entry payloads on reader `request`."""

    request: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """End reader or tail `request`."""

    request: int


@dataclass(frozen=True, slots=True)
class Create:
    """Create a stream. settings: keys of StreamSettings flattened (store, ensemble, write_quorum, ack_quorum,
    segment_bytes, segment_age_s, retention_s).

    life: of the stream to be made, drawn by who asks, the same in each try: a repetition finds that it is made.
    deletions: as Life told them before the first try; once a stream was deleted since, the answer is 555.
    """

    request: int
    stream: str
    life: str
    deletions: int
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete the stream of this name and life, with all its segments; one that is gone already is deleted. force: also
    if a segment in progress cannot be ended (556)."""

    request: int
    stream: str
    life: str
    force: bool = False


@dataclass(frozen=True, slots=True)
class Truncate:
    """Records before `dlsn` may go. The point only moves forward. life: see Life."""

    request: int
    stream: str
    life: str
    dlsn: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Seal:
    """End the stream for good after what is acknowledged now. life: see Life."""

    request: int
    stream: str
    life: str


@dataclass(frozen=True, slots=True)
class Stat:
    """What is known of a stream: answered by Done with a map (docs/protocol.md)."""

    request: int
    stream: str


@dataclass(frozen=True, slots=True)
class Life:
    """Which stream has this name now? Asked once by who then asks for something that may be repeated or come late, and
    names the life in each try: what was meant for a stream that was deleted never changes the next one of its name.

    Done {"life": str or nil (there is none), "deleted": bool (a deletion is not finished), "deletions": n}.
    """

    request: int
    stream: str


@dataclass(frozen=True, slots=True)
class List:
    """Names after `after`, in order, at most `limit`. listing: as the answer to the page before said; None: begin."""

    request: int
    after: str = ""
    limit: int = 1000
    listing: str | None = None


@dataclass(frozen=True, slots=True)
class GetOwner:
    """Who owns the stream? `suspect`: an address that just failed the asker; the proxy checks it by itself and claims
    the stream if the owner is indeed gone. Done {"location": "host:port", "epoch": n} or Failed 302/515."""

    request: int
    stream: str
    suspect: str | None = None


@dataclass(frozen=True, slots=True)
class GetOwners:
    """All streams this proxy owns: Done {"owned": [[stream, epoch, state], ...]}."""

    request: int


@dataclass(frozen=True, slots=True)
class Release:
    """Hand the stream back (planned hand-over): seal at the LAC, mark released. life: see Life."""

    request: int
    stream: str
    life: str


@dataclass(frozen=True, slots=True)
class Tail:
    """Push Lac frames for this stream until cancelled (read proxy to owner), and Entries before the Lac that confirms
    them, where they are few: skip 0, and any may be left out."""

    request: int
    stream: str


@dataclass(frozen=True, slots=True)
class Ping:
    request: int


@dataclass(frozen=True, slots=True)
class TakeIn:
    """Take closed ledgers in as segments, behind all that is written, in this order: all of them or none. parts: place
    and last entry of each. sink, epoch, query, batch: whose batch it is (dlog/model/sink.py); sink "": nobody's, what
    is in the list is not taken again. since: who asks has read the log, and nothing of the batch lies below. A
    batch may have no parts: it is remembered. life: see Life.

    Done {"first": segment, "segments": n, "records": n, "duplicate": bool}.
    """

    request: int
    stream: str
    life: str
    sink: str
    epoch: int
    query: str
    batch: int
    since: tuple[int, int, int] | None
    parts: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class SinkWrite:
    """Append a sink's batch as one record set, once whatever is repeated. Done {"dlsn": [s, e, slot] or nil, "count":
    n, "txid": n, "duplicate": bool}. life: see Life."""

    request: int
    stream: str
    life: str
    sink: str
    epoch: int
    query: str
    batch: int
    since: tuple[int, int, int] | None
    count: int
    txid: int | None
    crc: int
    body: Buffer = b""


@dataclass(frozen=True, slots=True)
class Relocate:
    """Completed segment `segment` lies at `to_place` of `to_store` from now on, no longer at `place` of `store`. life:
    see Life."""

    request: int
    stream: str
    life: str
    segment: int
    store: str
    place: str
    to_store: str
    to_place: str


@dataclass(frozen=True, slots=True)
class Welcome:
    """version: the one both will speak. limits: frame_bytes_max, batch_bytes_max, inflight_bytes_max, ..."""

    request: int
    version: int
    server: str
    role: str
    limits: dict[str, int]


@value
class Written:
    """Batches `first`..`last` (request ids) are durable, back to back in one entry from `dlsn` on.

    The second batch's first slot is dlsn.slot + count of the first, and so on. txid: of the first batch.
    """

    first: int
    last: int
    dlsn: tuple[int, int, int]
    txid: int
    duplicate: bool = False


@dataclass(frozen=True, slots=True)
class Failed:
    """The question failed. detail may carry {"expected": n} (sequence gap), {"first": [s, e, slot]} (truncated)."""

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

    lengths: bytes of each; the body is their concatenation. skip: slots of the first entry to drop before delivery.
    """

    request: int
    segment: int
    first_entry: int
    lengths: tuple[int, ...]
    skip: int
    body: Buffer = b""

    def payloads(self) -> Iterator[memoryview]:
        """A view of each."""
        body, at = memoryview(self.body), 0
        for length in self.lengths:
            yield body[at : at + length]
            at += length


@dataclass(frozen=True, slots=True)
class ReaderEvent:
    request: int
    kind: ReaderEventKind
    detail: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Lac:
    """Segment `segment` is confirmed up to entry `lac`; `ended`: it is complete and holds nothing after it."""

    request: int
    segment: int
    lac: int
    ended: bool = False


@dataclass(frozen=True, slots=True)
class GoAway:
    """This proxy drains: finish what is in flight, take new work to `location` (or ask the ring)."""

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
    | Stat
    | Life
    | List
    | GetOwner
    | GetOwners
    | Release
    | Tail
    | Ping
    | TakeIn
    | SinkWrite
    | Relocate
)
Reply = Welcome | Written | Failed | Done | Entries | ReaderEvent | Lac | GoAway
Message = Question | Reply
