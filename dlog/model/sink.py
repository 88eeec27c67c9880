"""Batches of a sink: their identity, the stream's record of the last one, and which unused stages may be deleted.

A sink (a Spark query that writes to the stream, a copy job) numbers its batches and may repeat one whose outcome it
does not know, also after a restart. The stream records for each sink the last batch that was begun. If two programs
use one name, `epoch`, chosen by an operator, decides: a higher one shuts out the lower.

Invariants of sweeping (deleting stages that were written in vain):
- no stage that may still be imported is deleted: it goes only after a look at its stream showed that the stream refuses
  it for ever, and a later look shows that it is not listed. Age only decides which stages are looked at;
- streams record nothing of writes without a batch number. For their stages, importer and sweeper decide by
  compare-and-set on the stage's registration: the Spark driver marks it as offered before it asks the stream's owner,
  the sweeper as swept before it deletes; the second one sees the first mark and leaves the stage alone. An offered
  stage stays, however old, until the stream lists it or refuses all imports: the request may still be in flight.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from dlog.errors import DLogError, InvalidRequestError
from dlog.model.ids import StreamName, is_location_name, stream_name

SINKS_MAX = 1000  # records per stream

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}\Z", re.ASCII)
_LEDGER_STORE = "ledger"
_LEDGER_ID = re.compile(r"(0|[1-9][0-9]{0,18})\Z")
_STORE = re.compile(r"[0-9a-z]{1,64}\Z")
_NUMBERS_END = 1 << 63


def sink_name(text: str) -> str:
    """Check the name of a sink or of a query. Raises InvalidRequestError."""
    if not _NAME.match(text):
        raise InvalidRequestError(
            f"a sink's name is letters, digits and . _ : -, at most 200, a letter or digit first: name={text[:60]!r}"
        )
    return text


@dataclass(frozen=True, slots=True, order=True)
class SinkBatch:
    """One batch. sink: its sink's name. query: id of the query, a new one for each start at batch 0."""

    sink: str
    epoch: int
    query: str
    batch: int

    @property
    def producer(self) -> bytes:
        """The producer id for appending the batch: unique per batch, so that it is appended once."""
        text = "\0".join((self.sink, str(self.epoch), self.query, str(self.batch)))
        return hashlib.blake2b(text.encode(), digest_size=16, person=b"dlog sink").digest()


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """The last batch of a sink. since: it is or was to be appended, not below this segment and entry; None: it was
    imported, and is done."""

    last: SinkBatch
    since: tuple[int, int] | None = None


class Standing(enum.Enum):
    """A batch compared with the record of its sink."""

    NEW = 0
    REPEATED = 1  # the recorded batch, which was appended or was to be
    DONE = 2
    SHUT_OUT = 3  # a program with a higher epoch writes
    ANOTHER = 4  # another program writes with the same epoch


def standing(record: SinkRecord | None, batch: SinkBatch) -> Standing:
    """Compare a batch with the record of its sink."""
    if record is None or batch.epoch > record.last.epoch:
        return Standing.NEW
    if batch.epoch < record.last.epoch:
        return Standing.SHUT_OUT
    if batch.query != record.last.query:
        return Standing.ANOTHER
    if batch.batch > record.last.batch:
        return Standing.NEW
    return Standing.REPEATED if batch == record.last and record.since is not None else Standing.DONE


# ---- sweeping -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegisteredStage:
    """A registered stage: its name in its store, stream and batch, and when it was begun, by the writer's
    clock.

    incarnation: of the stream; "": unknown. is_offered: a write without a batch number is about to have it
    imported. is_swept: a sweeper is about to delete it.
    """

    name: str
    stream: StreamName
    batch: SinkBatch
    unix_ms: int
    incarnation: str = ""
    is_offered: bool = False
    is_swept: bool = False
    store: str = _LEDGER_STORE


def registered_stage(sink: str, name: str, fields: object) -> RegisteredStage | None:
    """Decode a stage's registration from JSON; None if it is not valid: such a stage is never swept. One that names no
    store is a ledger."""
    if not isinstance(fields, dict):
        return None
    store = fields.get("store", _LEDGER_STORE)
    if not isinstance(store, str) or not _STORE.match(store) or not _is_segment_name(store, name):
        return None
    stream, query = fields.get("stream"), fields.get("query")
    epoch, batch, unix_ms = fields.get("epoch"), fields.get("batch"), fields.get("unix_ms")
    incarnation = fields.get("life", "")
    if not (isinstance(stream, str) and isinstance(query, str) and isinstance(incarnation, str)):
        return None
    if not (_is_count(epoch) and _is_count(batch) and _is_count(unix_ms)):
        return None
    try:
        known = SinkBatch(sink, epoch, sink_name(query), batch)
        is_offered, is_swept = fields.get("offered") is True, fields.get("swept") is True
        return RegisteredStage(name, stream_name(stream), known, unix_ms, incarnation, is_offered, is_swept, store)
    except DLogError:
        return None


def _is_segment_name(store: str, text: str) -> bool:
    """Whether a stage of this store can have this location."""
    if store == _LEDGER_STORE:
        return _LEDGER_ID.match(text) is not None and int(text) < _NUMBERS_END
    return is_location_name(text)


def _is_count(value: object) -> TypeGuard[int]:
    """Whether it is a non-negative 63-bit integer; a bool is not."""
    return type(value) is int and 0 <= value < _NUMBERS_END


@dataclass(frozen=True, slots=True)
class StreamLook:
    """One look at a stage's stream. record: of the sink. locations: stores and locations where its segments lie,
    or were moved from. is_open: False if it is sealed or deleted, and refuses all imports."""

    record: SinkRecord | None = None
    locations: frozenset[tuple[str, str]] = frozenset()
    is_open: bool = True
    incarnation: str = ""


class SweepDecision(enum.Enum):
    """What to do with a registered stage."""

    STAYS = 0  # it may still be imported, or is too young for a look
    LOOK = 1  # look at its stream (again), then judge again
    LISTED = 2  # it is a segment: remove the registration, never delete it
    GOES = 3  # it will never be imported: delete it


@dataclass(frozen=True, slots=True)
class StageSweepRule:
    """The rule of one sweeper. done: its own last decided batch. before_unix_ms: look at stages that others began
    earlier. is_numbered: streams record batches of this sink; otherwise the registration counts."""

    done: SinkBatch
    before_unix_ms: float
    is_numbered: bool = True

    def judge(self, stage: RegisteredStage, looks: Sequence[StreamLook]) -> SweepDecision:
        """Judge a stage by the looks at its stream so far, each begun after the previous one was complete.

        Every look must show that the stage is refused; the segment list of the last one counts. If the stage was
        imported, that was before it was refused, so a later look shows it. A stream that accepts it again is another
        incarnation.
        """
        if not self._is_worth_a_look(stage):
            return SweepDecision.STAYS
        if not all(self._is_refused(stage, look) for look in looks):
            return SweepDecision.STAYS
        if len(looks) < 2:
            return SweepDecision.LOOK
        return SweepDecision.LISTED if (stage.store, stage.name) in looks[-1].locations else SweepDecision.GOES

    def _is_worth_a_look(self, stage: RegisteredStage) -> bool:
        if self._is_own(stage):
            return stage.batch.batch <= self.done.batch
        return stage.unix_ms < self.before_unix_ms

    def _is_refused(self, stage: RegisteredStage, look: StreamLook) -> bool:
        """Whether this stream will never import the stage. A REPEATED batch of our own is refused too: it is decided,
        so it was appended, which the log shows."""
        if not look.is_open:
            return True
        if stage.incarnation and look.incarnation and stage.incarnation != look.incarnation:
            return True  # an import names the incarnation that the stage was written for
        if not self.is_numbered:
            return not stage.is_offered or self._is_own(stage) or (stage.store, stage.name) in look.locations
        verdict = standing(look.record, stage.batch)
        return verdict is not Standing.NEW and (verdict is not Standing.REPEATED or self._is_own(stage))

    def _is_own(self, stage: RegisteredStage) -> bool:
        return (stage.batch.epoch, stage.batch.query) == (self.done.epoch, self.done.query)
