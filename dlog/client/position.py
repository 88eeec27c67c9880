"""Where a read begins: a DLSN, a transaction id, a time, the first record there is, or the tail.

A position with the life of its stream is not read in another stream of the same name. As text it is LIFE@DLSN.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from dlog.errors import InvalidRequestError
from dlog.model.dlsn import DLSN, of, parse
from dlog.model.ids import TXID_MAX
from dlog.wire.proxy import Start

_LIFE = re.compile(r"[0-9A-Za-z]{1,64}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Position:
    """Made by `at_dlsn`, `at_txid`, `at_time`, taken from a record (`Record.position`), or one of START and TAIL.

    life: of the stream that it is of, "" if that is not known: then it is read in whatever stream has the name.
    `str` gives what `at_dlsn` reads, for a position that is a DLSN.
    """

    kind: Start
    value: Any = None
    life: str = ""

    def __str__(self) -> str:
        if self.kind is not Start.DLSN:
            return self.kind.name.lower() if self.value is None else f"{self.kind.name.lower()}={self.value}"
        return f"{self.life}@{of(*self.value)}" if self.life else str(of(*self.value))


#: the first record that is kept
START = Position(Start.START)
#: whatever is written from now on
TAIL = Position(Start.TAIL)


def at_dlsn(dlsn: DLSN | str, life: str = "") -> Position:
    """From this place on; if it holds no record, from the next that does. A text may name the stream's life too, as
    `Record.position` does: LIFE@DLSN. Raises InvalidRequestError."""
    if isinstance(dlsn, str) and "@" in dlsn:
        life, _, dlsn = dlsn.strip().partition("@")
        if not _LIFE.match(life):
            raise InvalidRequestError(f"not the life of a stream, write LIFE@segment:entry:slot: value={life[:70]!r}")
    place = parse(dlsn) if isinstance(dlsn, str) else dlsn
    return Position(Start.DLSN, tuple(place), life)


def at_txid(txid: int) -> Position:
    """From the first record whose transaction id is `txid` or above. Raises InvalidRequestError."""
    if not 0 <= txid <= TXID_MAX:
        raise InvalidRequestError(f"a transaction id lies between 0 and {TXID_MAX}: txid={txid}")
    return Position(Start.TXID, txid)


def at_time(when: datetime | float) -> Position:
    """From the first record taken at or after `when`: a datetime that says of which time zone it is, or unix seconds.

    Raises InvalidRequestError, also for a datetime without a zone: local time to some, UTC to others.
    """
    if isinstance(when, datetime) and when.utcoffset() is None:
        raise InvalidRequestError(
            "a datetime without a time zone is not a point in time; write when.astimezone() if it is local time, "
            f"when.replace(tzinfo=UTC) if it is UTC: time={when!r}"
        )
    seconds = when.timestamp() if isinstance(when, datetime) else float(when)
    if not 0 <= seconds < 2**53:
        raise InvalidRequestError(f"a time is given in unix seconds or as a datetime: time={when!r}")
    return Position(Start.TIME, int(seconds * 1000))


def position(start: Position | DLSN | str | datetime | None) -> Position:
    """What `read(start=...)` accepts: a Position, a DLSN, their text, a datetime, "start", "tail", None (the start)."""
    match start:
        case None | "start":
            return START
        case "tail":
            return TAIL
        case Position():
            return start
        case DLSN() | str():
            return at_dlsn(start)
        case datetime():
            return at_time(start)
    raise InvalidRequestError(f"not a place to read from, use a DLSN, at_txid(n), at_time(t), START or TAIL: {start!r}")
