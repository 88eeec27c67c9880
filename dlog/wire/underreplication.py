"""Text of the znodes in BookKeeper's under-replication tree, in the bytes that Java writes.

    mark    UnderreplicatedLedgerFormat: `replica: "<bookie>"\\n` for each bookie to replace, `ctime: <unix ms>\\n`
    lock    LockDataFormat: `bookieId: "<id>"\\n`; a vote for the auditor (AuditorVoteFormat) has the same text
    LAYOUT  LedgerRereplicationLayoutFormat: `type: "BASIC"\\nversion: 1\\n`
    delay   `lostBookieRecoveryDelay`: seconds, a decimal number
    pause   `pausedBookies/<id>`, our own: `seconds: <number>\\nsession: <number>\\n`

Unknown fields are skipped; invalid data is a DamagedError. Names of the znodes: dlog/io/zookeeper_layout.py.
Source: BookKeeper `ZkLedgerUnderreplicationManager`, `ZkLedgerAuditorManager`, DataFormats.proto.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from dlog.errors import DamagedError, InvalidRequestError, UnsupportedVersionError
from dlog.model.ids import BookieId, bookie_id
from dlog.wire import textproto
from dlog.wire.protobuf import Malformed

LAYOUT = b'type: "BASIC"\nversion: 1\n'
MARK_BYTES_MAX = 256 * 1024  # longer data is refused unparsed; a mark with 100 bookies has about 4 KiB

PAUSE_S_MAX = 7 * 86_400  # of a planned restart

_DELAY = re.compile(rb"\s*([0-9]{1,10})\s*\Z")
_CTIME_END = 2**63


@dataclass(frozen=True, slots=True)
class Mark:
    """That a ledger lacks copies. bookies: those whose copies are to be made again, each once, in the order in which
    they were marked. ctime_ms: Unix time of the last change of the set; None: not recorded."""

    bookies: tuple[BookieId, ...]
    ctime_ms: int | None = None

    def merge(self, bookies: Collection[BookieId], now_ms: int) -> Mark:
        """This mark with more bookies; the same object if it names all of them."""
        more = tuple(sorted(set(bookies) - set(self.bookies)))
        return Mark((*self.bookies, *more), now_ms) if more else self


@dataclass(frozen=True, slots=True)
class Pause:
    """A planned restart of a bookie, as it was announced. seconds: 0 to PAUSE_S_MAX. session: of ZooKeeper, in which
    the bookie was registered then; 0: it was not registered."""

    seconds: int
    session: int


def encode_mark(mark: Mark) -> bytes:
    lines = [f"replica: {textproto.quoted(bookie)}\n" for bookie in mark.bookies]
    if mark.ctime_ms is not None:
        lines.append(f"ctime: {mark.ctime_ms}\n")
    return "".join(lines).encode()


def decode_mark(data: bytes) -> Mark:
    """Raises DamagedError."""
    if len(data) > MARK_BYTES_MAX:
        raise DamagedError(f"a mark of an under-replicated ledger is too long: bytes={len(data)}")
    bookies: dict[BookieId, None] = {}
    ctime_ms: int | None = None
    try:
        for name, value in textproto.parse(data):
            if name == "replica":
                bookies[bookie_id(textproto.octets(value).decode())] = None
            elif name == "ctime":
                ctime_ms = textproto.integer(value)
                if not 0 <= ctime_ms < _CTIME_END:
                    raise Malformed(f"ctime out of range: value={ctime_ms}")
    except (Malformed, ValueError, InvalidRequestError) as error:
        raise DamagedError(f"a mark of an under-replicated ledger cannot be decoded: {error}") from None
    return Mark(tuple(bookies), ctime_ms)


def encode_holder(name: str) -> bytes:
    """Data of a lock or a vote. name: of the process, in the syntax of a bookie id."""
    return f"bookieId: {textproto.quoted(name)}\n".encode()


def decode_holder(data: bytes) -> str:
    """The process that has a lock or a vote; empty if it is not named. Raises DamagedError."""
    try:
        found = [textproto.octets(value).decode() for name, value in textproto.parse(data) if name == "bookieId"]
    except (Malformed, ValueError) as error:
        raise DamagedError(f"a lock or vote of the under-replication tree cannot be decoded: {error}") from None
    return found[-1] if found else ""


def encode_pause(pause: Pause) -> bytes:
    return f"seconds: {pause.seconds}\nsession: {pause.session}\n".encode()


def decode_pause(data: bytes) -> Pause:
    """Raises DamagedError."""
    try:
        fields = dict(textproto.parse(data[:MARK_BYTES_MAX]))
        seconds, session = textproto.integer(fields.get("seconds")), textproto.integer(fields.get("session"))
    except Malformed as error:
        raise DamagedError(f"a planned restart of a bookie cannot be decoded: {error}") from None
    if not 0 <= seconds <= PAUSE_S_MAX:
        raise DamagedError(f"a planned restart of a bookie is too long: seconds={seconds}")
    return Pause(seconds, session)


def check_layout(data: bytes) -> None:
    """Raises UnsupportedVersionError unless LAYOUT's data is of the layout that we write; DamagedError."""
    try:
        fields = dict(textproto.parse(data))
        kind, version = textproto.octets(fields.get("type")), textproto.integer(fields.get("version"))
    except Malformed as error:
        raise DamagedError(f"the layout of the under-replication tree cannot be decoded: {error}") from None
    if (kind, version) != (b"BASIC", 1):
        raise UnsupportedVersionError(
            f"the under-replication tree has another layout, use the program that wrote it: "
            f"type={kind.decode(errors='replace')} version={version}"
        )


def decode_delay_s(data: bytes) -> int:
    """Seconds after which a bookie counts as lost, as `lostBookieRecoveryDelay` has them. Raises DamagedError."""
    match = _DELAY.match(data)
    if match is None:
        raise DamagedError(f"lostBookieRecoveryDelay is not a number of seconds: data={data[:32]!r}")
    return int(match[1])
