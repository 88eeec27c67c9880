"""Positions to read from: a DLSN, a transaction id, a time, the first record, or the tail.

A position may contain the incarnation id of its stream; it is then rejected by a re-created stream of the same name.
Its text form is INCARNATION@DLSN; INCARNATION is empty if the stream has no id.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from dlog.client.check import check_txid
from dlog.errors import InvalidRequestError
from dlog.model.dlsn import DLSN, of, parse
from dlog.options import UNIX_MS_END, UNIX_MS_MIN
from dlog.wire.proxy import Start

_INCARNATION = re.compile(r"[0-9A-Za-z]{1,64}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a stream: from `at_dlsn`, `at_txid`, `at_time`, `Record.position`, or START, or TAIL.

    incarnation: of the stream id, or "" for any stream of the name. follows: it is the position after a record
    (`Record.position`), so nothing is left out from there on. The `str` of a DLSN position can be given to `at_dlsn`
    and to `read` as `start` and as `after`.
    """

    kind: Start
    value: Any = None
    incarnation: str = ""
    follows: bool = field(default=False, compare=False)

    def __str__(self) -> str:
        if self.kind is not Start.DLSN:
            return self.kind.name.lower() if self.value is None else f"{self.kind.name.lower()}={self.value}"
        return f"{self.incarnation}@{of(*self.value)}" if self.incarnation or self.follows else str(of(*self.value))


#: the first record that is retained
START = Position(Start.START)
#: the end: only records written from now on
TAIL = Position(Start.TAIL)


def at_dlsn(dlsn: DLSN | str, incarnation: str = "") -> Position:
    """Start at this DLSN, or at the next record if there is none. Text may be INCARNATION@DLSN, as
    the text of `Record.position` does. Raises InvalidRequestError."""
    if isinstance(dlsn, str) and "@" in dlsn:
        incarnation, _, dlsn = dlsn.strip().partition("@")
        if incarnation and not _INCARNATION.match(incarnation):
            raise InvalidRequestError(
                f"invalid stream incarnation, write INCARNATION@segment:entry:slot: value={incarnation[:70]!r}"
            )
    parsed = parse(dlsn) if isinstance(dlsn, str) else dlsn
    return Position(Start.DLSN, tuple(parsed), incarnation)


def after_record(dlsn: DLSN, incarnation: str = "") -> Position:
    """The position after the record at this DLSN."""
    return Position(Start.DLSN, tuple(dlsn.next_slot()), incarnation, follows=True)


def begin_of(start: Position | DLSN | str | datetime | None, after: Position | DLSN | str | None) -> Position:
    """Where a read begins that was given `start` and `after`. Raises InvalidRequestError."""
    if after is None:
        return position(start)
    if start is not None:
        raise InvalidRequestError("give either start= or after=, not both")
    match after:
        case str() if "@" in after:
            return at_dlsn(after)  # the text of a record's position
        case str() | DLSN():
            return after_record(parse(after) if isinstance(after, str) else after)
        case Position(kind=Start.DLSN):
            return after if after.follows else after_record(of(*after.value), after.incarnation)
    raise InvalidRequestError(f"invalid position to read after, use a DLSN or a record's position: {after!r}")


def at_txid(txid: int) -> Position:
    """Start at the first record whose transaction id is `txid` or above. Raises InvalidRequestError."""
    check_txid(txid)
    return Position(Start.TXID, txid)


def at_time(when: datetime | float) -> Position:
    """Start at the first record that its owner received at or after `when`: a datetime with time zone, or unix seconds.

    Raises InvalidRequestError, also for a datetime without time zone, which is ambiguous, and for a time before
    September 2001 or after 2099, which is most often a date or milliseconds.
    """
    if isinstance(when, datetime) and when.utcoffset() is None:
        raise InvalidRequestError(
            "a datetime without a time zone is ambiguous; use when.astimezone() if it is local time, "
            f"when.replace(tzinfo=UTC) if it is UTC: time={when!r}"
        )
    seconds = when.timestamp() if isinstance(when, datetime) else float(when)
    if not UNIX_MS_MIN <= seconds * 1000 < UNIX_MS_END:
        raise InvalidRequestError(
            f"a time must be unix seconds, not milliseconds, or a datetime, between 2001-09-09 and 2100: time={when!r}"
        )
    return Position(Start.TIME, int(seconds * 1000))


def position(start: Position | DLSN | str | datetime | None) -> Position:
    """Convert what `read(start=...)` accepts: Position, DLSN, their text, datetime, "start", "tail", None (start)."""
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
    raise InvalidRequestError(f"invalid start position, use a DLSN, at_txid(n), at_time(t), START or TAIL: {start!r}")
