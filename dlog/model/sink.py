"""Batches of a sink: who writes them, which they are, and what is remembered of the last one.

A sink (a Spark query that writes to the stream, a copy job) numbers its batches and may repeat one whose outcome it
does not know, also after a restart. The stream remembers for each sink the last batch that was begun; which of two
programs may go on under one name is decided by `epoch`, given by a person: a higher one shuts out the lower.

What tasks staged in vain is swept, but nothing that somebody may still have taken in: a stage goes once its stream was
seen to refuse it for ever, and was looked at again behind that and does not list it. Age says what is worth a look.

Of writes without a number no stream remembers anything, so who sweeps and who has them taken in decide it between them,
by compare-and-set on the stage's registration: the driver says that the stage is offered before it asks the stream's
owner, the sweeper says that it is swept before it deletes. The second of them sees the first and leaves it. What was
offered stays, however old by whatever clock, until the stream lists it or refuses everybody: the request may still be
on its way.
"""

from __future__ import annotations

import enum
import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeGuard

from dlog.errors import DLogError, InvalidRequestError
from dlog.model.ids import StreamName, stream_name

SINKS_MAX = 1000  # remembered of one stream

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}\Z", re.ASCII)
_PLACE = re.compile(r"(0|[1-9][0-9]{0,18})\Z")  # a ledger id
_NUMBERS_END = 1 << 63


def sink_name(text: str) -> str:
    """The name of a sink, or of a query. Raises InvalidRequestError."""
    if not _NAME.match(text):
        raise InvalidRequestError(
            f"a sink's name is letters, digits and . _ : -, at most 200, a letter or digit first: name={text[:60]!r}"
        )
    return text


@dataclass(frozen=True, slots=True, order=True)
class SinkBatch:
    """One batch. sink: its name. query: which program counts, another one for each beginning from batch 0."""

    sink: str
    epoch: int
    query: str
    batch: int

    @property
    def producer(self) -> bytes:
        """Under which producer id the batch is appended, where it is: its own, so that it is appended once."""
        text = "\0".join((self.sink, str(self.epoch), self.query, str(self.batch)))
        return hashlib.blake2b(text.encode(), digest_size=16, person=b"dlog sink").digest()


@dataclass(frozen=True, slots=True)
class SinkRecord:
    """The last batch of a sink. since: it is appended, and nothing of it lies below this segment and entry; None: it
    was taken in as segments, and is done."""

    last: SinkBatch
    since: tuple[int, int] | None = None


class Standing(enum.Enum):
    """What a batch is to what is remembered of its sink."""

    NEW = 0
    REPEATED = 1  # the last one, which is appended, or was to be
    DONE = 2
    SHUT_OUT = 3  # a program of a higher epoch writes
    ANOTHER = 4  # another program writes under the same epoch


def standing(record: SinkRecord | None, batch: SinkBatch) -> Standing:
    """Judge a batch."""
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
    """A stage: the ledger it is, the stream it was written for, whose batch, and when it was begun by some clock.

    life: which stream of that name; "": not known. is_offered: a write without a number is about to have it taken in.
    is_swept: somebody is about to delete it.
    """

    place: str
    stream: StreamName
    batch: SinkBatch
    unix_ms: int
    life: str = ""
    is_offered: bool = False
    is_swept: bool = False


def registered_stage(sink: str, place: str, told: object) -> RegisteredStage | None:
    """What was registered of a stage, from JSON; None if it cannot be understood: then it is nobody's to sweep."""
    if not isinstance(told, dict) or not _PLACE.match(place) or int(place) >= _NUMBERS_END:
        return None
    stream, query = told.get("stream"), told.get("query")
    epoch, batch, unix_ms = told.get("epoch"), told.get("batch"), told.get("unix_ms")
    life = told.get("life", "")
    if not (isinstance(stream, str) and isinstance(query, str) and isinstance(life, str)):
        return None
    if not (_is_count(epoch) and _is_count(batch) and _is_count(unix_ms)):
        return None
    try:
        known = SinkBatch(sink, epoch, sink_name(query), batch)
        is_offered, is_swept = told.get("offered") is True, told.get("swept") is True
        return RegisteredStage(place, stream_name(stream), known, unix_ms, life, is_offered, is_swept)
    except DLogError:
        return None


def _is_count(value: object) -> TypeGuard[int]:
    """A bool is none, though it is an int to Python."""
    return type(value) is int and 0 <= value < _NUMBERS_END


@dataclass(frozen=True, slots=True)
class StreamLook:
    """One reading of a stage's stream. record: what it remembers of the sink. places: of its segments, in the store of
    stages. is_open: or it is sealed or gone, and refuses everybody. life: which stream of that name it is."""

    record: SinkRecord | None = None
    places: frozenset[str] = frozenset()
    is_open: bool = True
    life: str = ""


class Verdict(enum.Enum):
    """What becomes of a registered stage."""

    STAYS = 0  # somebody may have it taken in yet, or it is too young to be worth a look
    LOOK = 1  # read its stream, once more, and ask again
    LISTED = 2  # it is a segment: not registered any more, and never deleted
    GOES = 3  # nobody will take it in: it is deleted


@dataclass(frozen=True, slots=True)
class Sweep:
    """What a sweeper knows by itself. done: a batch of its own that was decided. before_unix_ms: what others began
    earlier is worth a look. is_numbered: streams remember batches of this sink; of others a registration says it."""

    done: SinkBatch
    before_unix_ms: float
    is_numbered: bool = True

    def judge(self, stage: RegisteredStage, looks: Sequence[StreamLook]) -> Verdict:
        """Judge a stage by the looks at its stream so far, each begun when the one before had come back.

        The first must show that the stage is refused; the list counts as the last shows it. A stage that was taken in
        was so before it was refused, and a look behind that finds it. A stream that takes it again is another one, made
        anew under the name.
        """
        if not self._is_worth_a_look(stage):
            return Verdict.STAYS
        if not all(self._is_refused(stage, look) for look in looks):
            return Verdict.STAYS
        if len(looks) < 2:
            return Verdict.LOOK
        return Verdict.LISTED if stage.place in looks[-1].places else Verdict.GOES

    def _is_worth_a_look(self, stage: RegisteredStage) -> bool:
        if self._is_own(stage):
            return stage.batch.batch <= self.done.batch
        return stage.unix_ms < self.before_unix_ms

    def _is_refused(self, stage: RegisteredStage, look: StreamLook) -> bool:
        """Whether this stream will never take it in. One of ours that was to be appended was, since it is decided, and
        the log says so to whoever asks."""
        if not look.is_open:
            return True
        if stage.life and look.life and stage.life != look.life:
            return True  # taken in is what names the life that it was written for
        if not self.is_numbered:
            return not stage.is_offered or self._is_own(stage) or stage.place in look.places
        verdict = standing(look.record, stage.batch)
        return verdict is not Standing.NEW and (verdict is not Standing.REPEATED or self._is_own(stage))

    def _is_own(self, stage: RegisteredStage) -> bool:
        return (stage.batch.epoch, stage.batch.query) == (self.done.epoch, self.done.query)
