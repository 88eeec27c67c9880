"""Messages of a region's machines: questions to topics and their answers, and what callers ask for.

Each question has a number of its own; an answer bears the number of its question.
"""

from __future__ import annotations

import enum

from dlog.errors import DLogError
from dlog.region.counting import CountingRule
from dlog.region.topics import RecordBytes, Stored
from dlog.values import value


class Topic(enum.StrEnum):
    """The topics of a region, as peers of its machines."""

    DATA = "data"
    META = "meta"


# ---- questions to a topic, and their answers -------------------------------------------------------------------------


@value
class AppendRecords:
    """Append records together."""

    number: int
    records: tuple[RecordBytes, ...]


@value
class RecordsAppended:
    """The records lie in the topic, the first one at `offset`."""

    number: int
    offset: int


@value
class ReadRecords:
    """Read records from an offset on."""

    number: int
    offset: int


@value
class RecordsRead:
    """Some records; none: the topic has none from this offset on."""

    number: int
    records: tuple[Stored, ...]


@value
class AskOffsets:
    """Ask for the first offset and the next one."""

    number: int


@value
class OffsetsFound:
    """first: the first offset that is not deleted. next: the next that is given out."""

    number: int
    first: int
    next: int


@value
class DeleteBefore:
    """Delete the records below an offset."""

    number: int
    offset: int


@value
class BeforeDeleted:
    """The records are deleted."""

    number: int


@value
class TopicFailed:
    """The question failed. An append may have been made, or may still be made."""

    number: int
    error: DLogError


Question = AppendRecords | ReadRecords | AskOffsets | DeleteBefore
Reply = RecordsAppended | RecordsRead | OffsetsFound | BeforeDeleted | TopicFailed


# ---- requests of callers ---------------------------------------------------------------------------------------------


@value
class OpenRegion:
    """Answered when the region's state is known, and an owner's fence is in force. Raises DamagedError, FencedError,
    and what the topics raise."""


@value
class WriteEntries:
    """Append entries of one or several tables together, all or none: pairs of a table and a payload. Answered with
    their sequences. Raises RegionFencedError, TableEndedError, OverCapacityError, RecordTooLargeError.

    sequence: that the one entry must get; None: the next one. Else EntryOutOfOrderError is raised: an entry of the
    table that was submitted before it was refused.
    """

    entries: tuple[tuple[int, bytes], ...]
    sequence: int | None = None


@value
class BeginTable:
    """Begin a table that was never used, before its first entry. payload: describes it. Answered with an offset at or
    before all its records. Raises as WriteEntries."""

    table: int
    payload: bytes


@value
class EndTable:
    """End a table for good, behind the writes before. Answered with the sequence of its last entry, 0 if it has none.
    Raises TableEndedError if it has ended already, not by this request, RegionFencedError: it may have ended."""

    table: int


@value
class AwaitWrites:
    """Wait for the writes before. Answered once none waits or is under way. Raises RegionFencedError."""


@value
class MarkDeleted:
    """Mark everything of a table below a sequence as deletable. Durable with the next snapshot or check-point."""

    table: int
    below: int


@value
class DropTable:
    """Mark a whole table as deletable. Answered once a check-point with the mark is durable; a snapshot follows."""

    table: int


@value
class SaveSnapshot:
    """Append a snapshot to the meta topic, unless nothing has changed. Answered with the offset that it is true at. An
    owner that takes the region over at the same time may not see its marks."""


@value
class CleanRegion:
    """Delete the records that no table needs. Answered with the offset below which they are deleted; None: there was
    nothing to gain."""


@value
class FindStart:
    """Find where a reader begins. starts: the tables that it wants, each with a sequence (0: its mark); None: all, from
    their marks on. first: the first offset that the data topic has, if the reader knows better. Answered with a
    ReadingStart. Raises InvalidRequestError: an unknown table, or a sequence beyond the next one."""

    starts: tuple[tuple[int, int], ...] | None = None
    first: int = 0


@value
class CatchUp:
    """Read everything that the data topic has now."""


@value
class ReadOn:
    """Read once what follows in the data topic. Answered with whether there was anything."""


@value
class RecoverTable:
    """End a table for good, also one that another process writes, and find its last entry. Answered with a
    TableFound. Raises TableNotFoundError: it was dropped, or never begun, and then it cannot be begun any more."""

    table: int


@value
class RemoveTable:
    """End a table, and say that nobody needs its entries. Answered once that is durable. A table that was never begun
    cannot be begun any more."""

    table: int


@value
class RetireRegion:
    """End the region for all owners, to delete the topics. Answered with whether no table is left: only then may they
    be deleted. If tables are left when this is asked, nothing is ended."""


@value
class TrimRegion:
    """Delete the records that no table needs. Answered with the offset below which they are deleted; None: there was
    nothing to gain."""


@value
class TableFound:
    """A table that has ended: how many entries it has, and the bytes of their payloads."""

    entries: int
    payload_bytes: int


@value
class LostEntries:
    """Entries of a table that are no longer there: sequences from `first` on, below `end`."""

    table: int
    first: int
    end: int


@value
class ReadingStart:
    """Where a reader begins and ends: offsets `begin` <= offset < `end`; the record at `begin` counts. ends: by table,
    the first sequence wanted, the next one that will be given out, and the offset behind the last record that counts.
    lost: what was wanted and is deleted. rule: in force at `end`, for a reader that goes on there. floors: of wanted
    tables, a record that counts: table, offset, sequence. following: if there is no fence, the next sequence of each
    table at `end`. seeks: of few wanted tables, a record in front of which many bytes are of others: table, sequence,
    offset; None: the reader takes all records."""

    begin: int
    end: int
    ends: dict[int, tuple[int, int, int]]
    lost: tuple[LostEntries, ...]
    rule: CountingRule
    floors: tuple[tuple[int, int, int], ...] = ()
    following: tuple[tuple[int, int], ...] = ()
    seeks: tuple[tuple[int, int, int], ...] | None = None
