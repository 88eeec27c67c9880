"""Mutants of the machines that own and read a stream, with the invariant that must catch each.

`mute` switches off the checks of the order of a take-over (T4, S6), where a mutant must also be caught by its effect on
the history.
"""

from __future__ import annotations

from typing import Any

from actors.owner_feed import OwnerFeed
from dlog.log.allocation import SegmentAllocator
from dlog.log.altering import SettingsAlteration
from dlog.log.changes import (
    AlterSettings,
    ListImportedSegments,
    MarkDeleted,
    RecordSinkBatch,
    SetSegmentLocation,
    StartSegment,
    TruncateTo,
)
from dlog.log.metadata_updater import StreamMetadataUpdater
from dlog.log.owner import StreamOwnerMachine
from dlog.log.producer_table import Producer, ProducerTable
from dlog.log.reading import StreamReaderMachine
from dlog.log.recovery import StreamRecovery
from dlog.log.retention import RetentionChecker
from dlog.log.rolling import SegmentRoller
from dlog.log.seeking import SeekTarget
from dlog.log.segment_cursor import SegmentCursor
from dlog.log.segment_import import SegmentImport
from dlog.log.start_position import StartPosition
from dlog.log.stream_deletion import StreamDeletion
from dlog.log.takeover import Takeover
from dlog.log.truncating import StreamTruncation
from dlog.log.writing import EntryWriter
from dlog.metadata_update import MetadataUpdateLoop
from dlog.model.offloading import Record
from dlog.model.segment import StreamMetadata
from dlog.model.sink import StageSweepRule
from dlog.ownership.claim import Claim
from proxies.write.lac_subscriptions import ConsecutiveEntries, LacSubscription
from tests.simulation.mutants import edited
from tests.simulation.mutants.metadata_update import (
    ANY_VERSION,
    CONFLICT_IS_OVERWRITTEN,
    LOST_IS_WRITTEN,
    REFUSED_IS_REPEATED,
)
from tests.simulation.store_model import StoreModel
from tests.simulation.worlds import Mutant

Edit = tuple[str, str, str]


def planted(cls: type, *edits: Edit, mute: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"planted": ((cls, edited(cls, *edits)),), "mute": mute}


#: a segment is started beside any other one in progress
UNCHECKED_START = ("apply", "segment.location != self.follows", "False")


def and_unchecked(parts: dict[str, Any]) -> dict[str, Any]:
    """The same defect in an owner whose list would take any segment: without that the list refuses its next segment."""
    return {**parts, "planted": (*parts["planted"], (StartSegment, edited(StartSegment, UNCHECKED_START)))}


DOES_NOT_FENCE = (
    ("_append", "segment is None or segment.end is not None", "segment is None"),
    ("_confirm", "segment.end is not None and entry > segment.end", "False"),
)
HISTORY = {"T1", "T2", "T5", "T6", "S2", "S3", "S4", "S5", "S6", "S8", "S9", "S10", "S14", "S15"}

#: The generations of a producer are not recognised as one producer.
UNRELATED = (
    (Producer, edited(Producer, ("__init__", "id[:NAME_BYTES]", "id"))),
    (
        ProducerTable,
        edited(
            ProducerTable,
            ("_find", "id[:NAME_BYTES]", "id"),
            ("replay", "noted.producer[:NAME_BYTES]", "noted.producer"),
        ),
    ),
)

SAYING = (
    Mutant(
        name="an owner refuses before its claim is confirmed",
        invariants=("S14",),
        parts=planted(
            EntryWriter, ("_refuse", "not is_confirmed and states_absence_from_log(error, request)", "False")
        ),
    ),
    Mutant(
        name="an owner says that a point is beyond the end before its claim is confirmed",
        invariants=("S14",),
        style="stranger",
        parts=planted(StreamTruncation, ("ask", "dlsn > end and not is_confirmed", "False")),
    ),
    Mutant(
        name="an owner says that a point is beyond the end while it recovers the segment of that point",
        invariants=("S14",),
        parts=planted(StreamTruncation, ("ask", "dlsn > start", "False")),
    ),
    Mutant(
        name="a read of metadata that was over before a batch came confirms the claim",
        invariants=("S14",),
        parts=planted(StreamMetadataUpdater, ("request_read", "self._update.reads + 1", "max(1, self._update.reads)")),
    ),
    Mutant(
        name="an owner that does not know the log yet says that the stream ends",
        invariants=("S14",),
        parts=planted(
            StreamOwnerMachine, ("write", "self.has_ended or not states_absence_from_log(refusal, request)", "True")
        ),
    ),
    Mutant(
        name="a producer's next generation does not end the older ones",
        invariants=("S15", "S2"),
        style="given-up",
        parts={"planted": UNRELATED},
    ),
    Mutant(
        name="the next owner does not know that a producer's next generation began",
        invariants=("S15", "S2"),
        style="given-up",
        parts=planted(
            ProducerTable,
            (
                "replay",
                "if producer is None or",
                "if producer is not None and producer.id != noted.producer:\n"
                "        return\n"
                "    if producer is None or",
            ),
        ),
    ),
    Mutant(
        name="a deposed owner is believed, and a generation begins whatever the log holds of the one before",
        invariants=("S2",),
        style="given-up",
        parts={
            "planted": (
                (
                    EntryWriter,
                    edited(
                        EntryWriter,
                        ("_refuse", "not is_confirmed and states_absence_from_log(error, request)", "False"),
                    ),
                ),
                (ProducerTable, edited(ProducerTable, ("_judge_generation", "first < known.next", "False"))),
            ),
            "mute": ("S14",),
        },
    ),
)

CLAIM = (
    Mutant(
        name="an answer to another claim is taken for ours",
        invariants=("T3",),
        parts=planted(
            Claim, ("_saw", "self._is_ours(value)", "self._base is not None and value.owner.epoch == self._base + 1")
        ),
    ),
    Mutant(
        name="the list is written without compare-and-set",
        invariants=("T3", "S9", "S1", "S7"),
        parts=planted(
            StreamMetadataUpdater,
            (
                "_write",
                "self._update.write(value, out)",
                f"self._update.version = {ANY_VERSION}\n        self._update.write(value, out)",
            ),
        ),
    ),
    Mutant(
        name="the list is written after a re-read that does not look at the owner",
        invariants=("S2", "S6", "T4", "S1", "S9", "T1"),
        parts=planted(StreamMetadataUpdater, ("handle", "self._claim.observe(value)", "True")),
    ),
    Mutant(
        name="a lost reply is taken for a success",
        invariants=("T3",),
        parts=planted(MetadataUpdateLoop, LOST_IS_WRITTEN),
    ),
    Mutant(
        name="a conflict is overwritten",
        invariants=("T3", "S9", "S1", "S7"),
        parts=planted(MetadataUpdateLoop, CONFLICT_IS_OVERWRITTEN),
    ),
    Mutant(
        name="a permanent refusal is tried again for ever",
        invariants=("T5", "T6"),
        style="clocks",
        parts=planted(MetadataUpdateLoop, REFUSED_IS_REPEATED),
    ),
    Mutant(
        name="pending batches are acknowledged when the claim is lost",
        invariants=("T2",),
        parts=planted(
            EntryWriter,
            (
                "fail_all",
                "out.extend(Answer(ticket, unknown) for ticket in batch.tickets)",
                "place = of(pending.segment, pending.entry, batch.slot)\n"
                "            out.extend(Answer(t, BatchWritten(place, batch.request.count, batch.txid)) "
                "for t in batch.tickets)",
            ),
        ),
    ),
    Mutant(
        name="pending batches are acknowledged when the claim is lost, by its history",
        invariants=("S2",),
        parts=planted(
            EntryWriter,
            (
                "fail_all",
                "out.extend(Answer(ticket, unknown) for ticket in batch.tickets)",
                "place = of(pending.segment, pending.entry, batch.slot)\n"
                "            out.extend(Answer(t, BatchWritten(place, batch.request.count, batch.txid)) "
                "for t in batch.tickets)",
            ),
            mute=("T2",),
        ),
    ),
)

TAKING = (
    Mutant(
        name="a segment is written though another writer has used its number",
        invariants=("S1", "S2", "S3", "T5", "S6"),
        style="stranger",
        parts=planted(StartSegment, ("was_made", "present is not None and", "True or present is not None and")),
    ),
    Mutant(
        name="served before recovery",
        invariants=("S6", "T4"),
        parts=and_unchecked(planted(StreamRecovery, ("_to_recover", "return [", "return [] and ["))),
    ),
    Mutant(
        name="only the last of two segments is fenced",
        invariants=("S6", "T4"),
        style="roll",
        parts=and_unchecked(
            planted(StreamRecovery, ("_to_recover", "in value.in_progress}", "in value.in_progress[-1:]}"))
        ),
    ),
    Mutant(
        name="nothing is fenced, by the order of the take-over",
        invariants=("T4",),
        parts=and_unchecked(planted(StreamRecovery, ("_to_recover", "return [", "return [] and ["), mute=("S6",))),
    ),
    *(
        Mutant(
            name=f"the store does not fence: {invariant}",
            invariants=(invariant,),
            style="roll",
            parts={"store": edited(StoreModel, *DOES_NOT_FENCE), "mute": tuple(sorted(HISTORY - {invariant}))},
        )
        for invariant in ("T1", "S5")
    ),
    Mutant(
        name="the producer table is not recovered",
        invariants=("S2",),
        parts=planted(Takeover, ("begin", "None if self.table_known else t.table", "None")),
    ),
    Mutant(
        name="the producer table of the segment before is used when the last entry has no dedup trailer",
        invariants=("S2",),
        style="roll",
        seeds=1500,
        parts=planted(
            StreamRecovery, ("_replay", "notes[-1] if notes else self._newest_note", "notes[-1] if notes else None")
        ),
    ),
    Mutant(
        name="the last entries that a store returned with the end are taken for those that are due",
        invariants=("S2", "S14"),
        style="roll",
        seeds=1000,
        parts=planted(StreamRecovery, ("_read_on", "ending.payloads[first - ending.first :]", "ending.payloads")),
    ),
    Mutant(
        name="a segment's end is taken from the first of the entries that were read with it",
        invariants=("S10",),
        parts=planted(StreamRecovery, ("_ended", "ending.payloads[-1]", "ending.payloads[0]")),
    ),
    Mutant(
        name="the txid floor is not recovered",
        invariants=("S7",),
        parts=planted(Takeover, ("_learn", "self._txid_floor(recovery))", "0)")),
    ),
    Mutant(
        name="the number of an empty segment is not used again",
        invariants=("S1",),
        parts=planted(
            Takeover,
            (
                "progress",
                "recovery.next_number, ahead.location",
                "t.value.max_segment + 1, ahead.location",
            ),
        ),
    ),
    Mutant(
        name="a recovered segment counts the records of its last entry only",
        invariants=("S10",),
        parts=planted(StreamRecovery, ("_ended", "contents.position", "sum(contents.counts)")),
    ),
)

WRITING = (
    Mutant(
        name="acknowledged before the append is confirmed",
        invariants=("S2",),
        parts=planted(
            EntryWriter,
            (
                "cut",
                "self._append(pending, out)",
                "self._append(pending, out)\n        self._written(self._inflight.pop(), out)",
            ),
            mute=("T6",),  # its check finds the defect first
        ),
    ),
    Mutant(
        name="a repetition is answered before the original is confirmed",
        invariants=("S2",),
        parts=planted(
            EntryWriter,
            (
                "admit",
                "verdict.tickets.append(ticket)",
                "out.append(Answer(ticket, BatchWritten(of(0, -1, -1), request.count, Txid(-1), True)))",
            ),
            mute=("S17",),  # its check finds the defect first
        ),
    ),
    Mutant(
        name="a batch after a gap is taken",
        invariants=("S2",),
        style="forget",
        parts=planted(
            ProducerTable,
            (
                "judge",
                "if sequence == producer.next:",
                "producer.next = max(producer.next, sequence)\n    if sequence == producer.next:",
            ),
            mute=("S17",),
        ),
    ),
    Mutant(
        name="a forgotten producer counts as new",
        invariants=("S2",),
        style="forget",
        parts=planted(
            ProducerTable,
            (
                "_judge_stranger",
                "self.has_certainly_not_written(request.producer, request.since)",
                "request.sequence == 0",
            ),
        ),
    ),
    Mutant(
        name="a first batch sent for the first time is believed to be new",
        invariants=("S2",),
        style="forget",
        seeds=2000,
        parts=planted(
            ProducerTable,
            ("_judge_stranger", "if not self.has_certainly", "if request.retry and not self.has_certainly"),
        ),
    ),
    Mutant(
        name="a forgotten producer leaves no position before which unknown producers may have written",
        invariants=("S2",),
        style="forget",
        parts=planted(ProducerTable, ("_forget", "max(self.horizon, producer.last)", "self.horizon")),
    ),
    Mutant(
        name="an unknown producer is sent a position above what is confirmed",
        invariants=("S2",),
        style="forget",
        seeds=2000,
        parts=planted(
            EntryWriter,
            ("admit", "verdict.since = self.next_entry_floor", "verdict.since = (self.next_entry_floor[0] + 2, 0)"),
        ),
    ),
    Mutant(
        name="batches that survived the owner's own recovery are written again",
        invariants=("S2",),
        parts=planted(
            EntryWriter, ("resolve", "end is not None and pending.entry <= end.last_entry", "end is None and not lost")
        ),
    ),
    Mutant(
        name="batches that survived in a segment which another writer completed are written again",
        invariants=("S2",),
        style="stranger",
        parts=planted(
            StreamRecovery, ("_to_recover", "sorted(found)]", "sorted(found) if not found[number].completed]")
        ),
    ),
    Mutant(
        name="a refused batch keeps its sequence in its producer's order",
        invariants=("S2", "T5"),
        style="roll",
        seeds=1000,
        parts=planted(ProducerTable, ("withdraw", "producer.next = batch.request.sequence", "pass"), mute=("S17",)),
    ),
    Mutant(
        name="the LAC is not advanced when no entry follows",
        invariants=("T5",),
        parts=planted(EntryWriter, ("_watch_lac", "not self._control_timer", "False")),
    ),
    Mutant(
        name="the next segment is written before the old one is closed",
        invariants=("S6",),
        style="roll",
        parts=planted(
            SegmentRoller,
            (
                "progress",
                "t.ask_seal()",
                "self.closed(t.writing.end_of_current()) if t.writing.pipe_is_empty else None",
            ),
        ),
    ),
    Mutant(
        name="the truncation point moves back",
        invariants=("S9",),
        parts=planted(
            TruncateTo,
            ("apply", " or point <= first.first_dlsn", ""),
        ),
    ),
    Mutant(
        name="a truncation within the segment in progress is answered and does not hold",
        invariants=("S9",),
        parts=planted(
            TruncateTo,
            ("apply", "point.segment != first.number or", "not first.completed or"),
        ),
    ),
)

TRUNCATED = (
    Mutant(
        name="truncated segments are deleted before metadata shows it to Java readers",
        invariants=("S9",),
        parts=planted(
            StreamTruncation,
            ("delete_next", "t.register.want(MarkTruncated(self._portion[-1].number))", "self.marked()"),
        ),
    ),
    Mutant(
        name="truncated segments are forgotten while they are being deleted",
        invariants=("S9",),
        parts=planted(
            StreamTruncation,
            (
                "marked",
                "self._deleting[location] = None",
                "self._context.register.want(ForgetTruncated(self._portion[-1].number))",
            ),
        ),
    ),
    Mutant(
        name="the truncated segments of a former owner are left",
        invariants=("T5",),
        parts=planted(StreamOwnerMachine, ("_hold", "self._truncating.delete_next()", "pass")),
    ),
    Mutant(
        name="all truncated segments are marked at once",
        invariants=("T5",),
        style="clocks",
        parts=planted(StreamTruncation, ("delete_next", "[: t.options.truncate_portion]", "[:]")),
    ),
    Mutant(
        name="changes that wait together with a refused one are given up with it",
        invariants=("T5", "T6"),
        style="clocks",
        parts=planted(StreamMetadataUpdater, ("_handle_refusal", "len(self._writing) > 1", "False")),
    ),
    Mutant(
        name="only the first portion of the truncated segments is deleted",
        invariants=("T5",),
        parts=planted(StreamTruncation, ("forgotten", "self.delete_next()", "pass")),
    ),
)

PAST_THE_LAC = (
    ("_step", "self.position.entry <= cursor.lac:", "self.position.entry <= cursor.lac + (not cursor.lac_is_final):"),
    ("_read_on", "EntryId(cursor.lac), room", "EntryId(cursor.lac + (not cursor.lac_is_final)), room"),
    ("_push", "<= cursor.lac,", "<= cursor.lac + 1,"),
)

PHASES = (
    Mutant(
        name="a claim is released before the owner's segment is sealed",
        invariants=("assert",),
        parts=planted(StreamOwnerMachine, ("_progress_draining", "t.ask_seal()", "t.register.want(MarkReleased())")),
    ),
)

READING = (
    Mutant(
        name="a control record reaches a reader",
        invariants=("S8",),
        parts=planted(
            StreamReaderMachine, ("_push", "not all(map(cursor.is_control_only, got.payloads))", "got.payloads")
        ),
    ),
    Mutant(
        name="read past the LAC",
        invariants=("S8",),
        parts=planted(StreamReaderMachine, *PAST_THE_LAC),
    ),
    Mutant(
        name="read past the LAC, by its history",
        invariants=("S3", "S4"),
        seeds=1500,
        parts=planted(StreamReaderMachine, *PAST_THE_LAC, mute=("S8",)),
    ),
    Mutant(
        name="a completed segment is read only to the end in the list",
        invariants=("S4",),
        style="stranger",
        seeds=1000,
        parts=planted(
            StreamReaderMachine,
            (
                "_follow_segment",
                "has_taken=known is not None and known.has_taken)\n",
                "has_taken=known is not None and known.has_taken)\n"
                "    if listed is not None and listed.completed and not self.has_ended:\n"
                "        self._cursor.lac, self._cursor.lac_is_final = listed.last_entry, True\n",
            ),
        ),
    ),
    Mutant(
        name="an empty segment that ended counts as read",
        invariants=("S4",),
        parts=planted(SegmentCursor, ("note_lac", "seen.ended and self.lac == NO_ENTRY", "False")),
    ),
    Mutant(
        name="a reader waits for the end of an empty segment that the list shows as completed",
        invariants=("T5",),
        style="stranger",
        seeds=3000,
        parts=planted(SegmentCursor, ("update", "self._watched, self.is_void = None, False", "self._watched = None")),
    ),
    Mutant(
        name="a read ends where an old list says",
        invariants=("S4",),
        seeds=1000,
        parts=planted(StreamReaderMachine, ("_is_stop_in_doubt", "return self._stop is not None", "return False")),
    ),
    Mutant(
        name="a reader that goes on begins an entry before its position",
        invariants=("S12",),
        parts=planted(StartPosition, ("_choose_dlsn", "max(0, dlsn.entry)", "max(0, dlsn.entry - 1)")),
    ),
    Mutant(
        name="a reader that goes on begins an entry after its position",
        invariants=("S12",),
        style="final",
        seeds=1000,
        parts=planted(StartPosition, ("_choose_dlsn", "max(0, dlsn.entry)", "dlsn.entry + (self._read.credit == 500)")),
    ),
    Mutant(
        name="a segment is started beside one that another writer began",
        invariants=("T4",),
        style="emptied",
        seeds=3000,
        parts=planted(StartSegment, UNCHECKED_START),
    ),
    Mutant(
        name="a position before the next segment counts as truncated while the list is empty",
        invariants=("S9",),
        style="emptied",
        seeds=3000,
        parts=planted(StartPosition, ("_choose_dlsn", "stream.is_number_final(dlsn.segment)", "True")),
    ),
    Mutant(
        name="a seek goes to the first record after the one it looks for",
        invariants=("S11",),
        parts=planted(SeekTarget, ("is_before", "contents.last_txid < self.least", "contents.last_txid <= self.least")),
    ),
    Mutant(
        name="a search leaves out the first entry that the store has left",
        invariants=("S11",),
        parts=planted(StartPosition, ("narrow", "self._target, first, last", "self._target, first + 1, last")),
    ),
)

FOLLOWING = (
    Mutant(
        name="batches that survived are answered before followers are notified",
        invariants=("T6",),
        parts=planted(
            Takeover,
            ("_learn", "if end is not None and number not in recovery.removed:", "if False:"),
            (
                "_complete",
                "t.unix_ms))",
                "t.unix_ms)); t.out.append(Emit(LacMoved(t.stream, number, end.last_entry, True)))",
            ),
        ),
    ),
    Mutant(
        name="an owner that replaces its empty segment does not notify followers",
        invariants=("T6",),
        parts=planted(Takeover, ("_complete", "t.out.append(Emit(", "end is None or t.out.append(Emit(")),
    ),
    Mutant(
        name="an owner whose empty segment another writer dropped does not notify followers",
        invariants=("T6",),
        style="stranger",
        seeds=1000,
        parts=planted(Takeover, ("begin", "t.report_dropped()", "pass")),
    ),
    Mutant(
        name="a gap in the entries that are sent along is not noticed",
        invariants=("T6",),
        parts=planted(
            ConsecutiveEntries,
            ("followed_by", "(self.segment, self.first + len(self.payloads)) != (other.segment, other.first)", "False"),
        ),
    ),
    Mutant(
        name="entries in flight are sent along before they are confirmed",
        invariants=("T6",),
        parts=planted(
            EntryWriter,
            (
                "appended",
                "entries=tuple(confirmed)",
                "entries=tuple(confirmed + [p.parts for p in self._inflight])",
            ),
        ),
    ),
    Mutant(
        name="the end of an empty segment is applied to the location where its number is found now",
        invariants=("T6",),
        style="stranger",
        seeds=1000,
        parts=planted(
            OwnerFeed,
            (
                "_forget",
                "self._located.pop(number, None)",
                "number in self._located and self._listener.on_lac(self._located.pop(number), -1, True)",
            ),
        ),
    ),
    Mutant(
        name="the end of an empty segment is replaced by the next message about its number",
        invariants=("T6",),
        style="roll",
        seeds=1500,
        parts=planted(LacSubscription, ("note", "if _ended_empty(event):", "if False:")),
    ),
    Mutant(
        name="the end of an empty segment is applied to the next segment of its number",
        invariants=("T6",),
        parts=planted(
            OwnerFeed,
            (
                "__call__",
                "if ended and lac == NO_ENTRY:",
                "if ended and lac == NO_ENTRY and number in self._located:",
            ),
        ),
    ),
    Mutant(
        name="a read of metadata from before a segment ended empty decides where its number lies now",
        invariants=("T6",),
        style="stranger",
        seeds=1500,
        parts=planted(
            OwnerFeed,
            ("_forget", "self._outdated_reads.get(number, 0) + 1", "0"),
            ("locate", "self._waiting.pop(number)", "self._waiting.pop(number, (NO_ENTRY, False))"),
        ),
    ),
)

SINKS = (
    Mutant(
        name="a batch of a sink is imported as often as it is requested",
        invariants=("S13",),
        style="sink",
        parts={
            "planted": (
                (
                    SegmentImport,
                    edited(SegmentImport, ("_is_dealt_with", "verdict is Standing.DONE or (", "False or (")),
                ),
                (
                    ListImportedSegments,
                    edited(
                        ListImportedSegments,
                        ("apply", "not may_remember(value, record, or_repeated=True)", "False"),
                        ("was_made", "self.record is not None", "False"),
                    ),
                ),
            ),
        },
    ),
    Mutant(
        name="a batch of a sink is appended under another producer each time",
        invariants=("S13",),
        style="sink",
        parts=planted(SegmentImport, ("_append", "producer=record.last.producer", "producer=b'%016d' % head.ticket")),
    ),
    Mutant(
        name="a batch that was to be appended is imported, whether it was appended or not",
        invariants=("S13",),
        style="sink",
        parts=planted(SegmentImport, ("_doubt", "record.since is None", "True")),
    ),
    Mutant(
        name="a program that was shut out goes on",
        invariants=("T7",),
        style="sink",
        parts={
            "planted": (
                (
                    SegmentImport,
                    edited(
                        SegmentImport,
                        ("_judge", "verdict = standing(record, batch)", "verdict = standing(None, batch)"),
                    ),
                ),
                (RecordSinkBatch, edited(RecordSinkBatch, ("apply", "if may_remember(value, self.record)", "if True"))),
            ),
        },
    ),
    Mutant(
        name="writes go on while segments are imported",
        invariants=("S7",),
        style="sink",
        parts=planted(StreamOwnerMachine, ("write", " and not t.writes_wait", "")),
    ),
    Mutant(
        name="segments are imported whatever their txids",
        invariants=("S7",),
        style="sink",
        parts=planted(SegmentImport, ("_is_taken_in", "error = self._order(head)", "error = None")),
    ),
    Mutant(
        name="txids go on from before the imported segments",
        invariants=("S7",),
        style="sink",
        parts=planted(SegmentImport, ("taken_in", "t.writing.txid = max(", "t.writing.txid = min(")),
    ),
    Mutant(
        name="an empty batch is answered as done and not remembered",
        invariants=("T7",),
        style="sink",
        parts=planted(
            SegmentImport,
            (
                "_is_empty",
                "head.change = RecordSinkBatch(SinkRecord(batch))",
                "return self._drop(SegmentsImported(batch.epoch, 0, 0))",
            ),
        ),
    ),
    Mutant(
        name="a stage is swept because it is old",
        invariants=("S13", "E2"),
        style="sink",
        seeds=1000,
        parts=planted(StageSweepRule, ("judge", "self._is_refused(stage, look)", "True")),
    ),
    Mutant(
        name="a stage is swept by a list that was read before it was refused",
        invariants=("S13", "E2"),
        style="sink",
        seeds=2000,
        parts=planted(
            StageSweepRule,
            ("judge", "for look in looks)", "for look in looks[1:])"),
            ("judge", "looks[-1]", "looks[0]"),
        ),
    ),
)

_AGE = "Expire(min(own_ms, metadata_ms))"
_ALWAYS = ("judge", "if abs(own_ms - metadata_ms) <= t.options.clocks_apart_max_s * 1000:", "if True:")
_COMPLETED = "max(segment.completed_unix_ms, segment.metadata_unix_ms)"


def _by_clock(now: str, completed: str) -> dict[str, Any]:
    """A segment's age is computed from these two expressions."""
    return {
        "planted": (
            (RetentionChecker, edited(RetentionChecker, _ALWAYS, ("judge", _AGE, f"Expire({now})"))),
            (StreamMetadata, edited(StreamMetadata, ("expires_unix_ms", _COMPLETED, completed))),
        ),
    }


RETENTION = (
    Mutant(
        name="a segment's age is judged by the timestamps of records",
        invariants=("E1",),
        style="clocks",
        parts=_by_clock("t.unix_ms", "segment.completed_unix_ms"),
    ),
    Mutant(
        name="a segment's age is judged by the clocks of proxies alone",
        invariants=("E1",),
        style="clocks",
        parts=_by_clock("own_ms", "segment.completed_unix_ms"),
    ),
    Mutant(
        name="a segment's age is judged by metadata's clock alone",
        invariants=("E1",),
        style="clocks",
        parts=_by_clock("metadata_ms", "segment.metadata_unix_ms"),
    ),
    Mutant(
        name="the owner's present clock is believed without a check",
        invariants=("E1",),
        style="clocks",
        parts=_by_clock("own_ms", _COMPLETED),
    ),
    Mutant(
        name="metadata's present clock is believed without a check",
        invariants=("E1",),
        style="clocks",
        parts=_by_clock("metadata_ms", _COMPLETED),
    ),
    Mutant(
        name="metadata's clock at a segment's completion is believed without a check",
        invariants=("E1",),
        style="clocks",
        parts=_by_clock("min(own_ms, metadata_ms)", "segment.metadata_unix_ms"),
    ),
    Mutant(
        name="a writer's time of its segment's completion is believed without a check",
        invariants=("E1",),
        style="clocks",
        parts=_by_clock("min(own_ms, metadata_ms)", "segment.completed_unix_ms"),
    ),
    Mutant(
        name="a segment's completion is dated by its last batch",
        invariants=("E1",),
        style="clocks",
        seeds=1500,
        parts=planted(StreamOwnerMachine, ("_note", "if now_s:", "if False:")),
    ),
)

LIVES = (
    Mutant(
        name="a deletion claims whatever stream has the name",
        invariants=("D1",),
        style="lives",
        parts=planted(Claim, ("begin", "self.incarnation = incarnation", "self.incarnation = None")),
    ),
    Mutant(
        name="an owner seals and truncates for whatever incarnation is named",
        invariants=("D1",),
        style="lives",
        parts=planted(
            StreamOwnerMachine, ("_is_of_this_incarnation", "request.incarnation == self.incarnation", "True")
        ),
    ),
    Mutant(
        name="a stream is deleted without a fence",
        invariants=("D2",),
        style="lives",
        parts={
            "planted": (
                (StreamDeletion, edited(StreamDeletion, ("_end_segments", "if s.location not in known", "if False"))),
                (MarkDeleted, edited(MarkDeleted, ("apply", "self.ended is not None and", "False and"))),
            )
        },
    ),
    Mutant(
        name="a segment whose store is out of reach counts as ended",
        invariants=("D2",),
        style="lives",
        parts=planted(
            StreamDeletion,
            (
                "_note",
                "self._failed.update(self._asked)\n            self._asked.clear()",
                "self._ended.update(self._asked)\n            self._asked.clear()\n            self._mark_if_ended()",
            ),
        ),
    ),
)

ALTERING = (
    Mutant(
        name="settings are altered whatever version they have by now",
        invariants=("D3",),
        style="lives",
        parts=planted(AlterSettings, ("apply", "value.settings.version != self.settings.version - 1", "False")),
    ),
    Mutant(
        name="settings are altered in whatever incarnation the owner has",
        invariants=("D1",),
        style="lives",
        parts=planted(
            StreamOwnerMachine,
            (
                "_is_of_this_incarnation",
                "request.incarnation == self.incarnation",
                "(isinstance(request, AlterStream) or request.incarnation == self.incarnation)",
            ),
        ),
    ),
    Mutant(
        name="an alteration that comes late is answered as done",
        invariants=("D3",),
        style="lives",
        parts=planted(SettingsAlteration, ("done", "now == wanted", "now.version >= wanted.version")),
    ),
    Mutant(
        name="an owner that lost its claim says that the settings were not altered",
        invariants=("D3",),
        style="lives",
        parts=planted(
            SettingsAlteration,
            (
                "fail",
                "Answer(ticket, unknown)",
                'Answer(ticket, StaleRequestError("the claim has ended", outcome_unknown=False))',
            ),
        ),
    ),
    Mutant(
        name="an owner refuses an alteration that old metadata forbids",
        invariants=("D3",),
        style="lives",
        parts=planted(StreamMetadataUpdater, ("want", "SetSegmentLocation | AlterSettings", "SetSegmentLocation")),
    ),
)

OFFLOADING = (
    Mutant(
        name="a hot copy is deleted before metadata announces it",
        invariants=("E2",),
        style="offload",
        parts=planted(Record, ("deleting", "is_deleting=True", "is_deleting=False")),
    ),
    Mutant(
        name="a segment is taken back whose hot copy is being deleted",
        invariants=("E2",),
        style="offload",
        parts=planted(Record, ("returning", "if self.is_deleting:", "if False:")),
    ),
    Mutant(
        name="a hot copy is deleted though a request to take the segment back may be on its way",
        invariants=("E2",),
        style="offload",
        parts=planted(Record, ("returning", ", taken_back_from=tuple(left))", ")")),
    ),
    Mutant(
        name="a segment is moved whatever its location is by now",
        invariants=("E2",),
        style="offload",
        parts=planted(SetSegmentLocation, ("apply", "segment.location != self.at", "False")),
    ),
)

STORES = (
    Mutant(
        name="a segment that was created ahead keeps the settings of then",
        invariants=("S18",),
        style="stores",
        parts=planted(
            SegmentAllocator,
            (
                "discard_other",
                "(ahead.number, ahead.location.store, ahead.settings) == wanted",
                "(ahead.number, ahead.location.store) == wanted[:2]",
            ),
        ),
    ),
    Mutant(
        name="a roll begins the next segment while an alteration is under way",
        invariants=("S18",),
        style="stores",
        parts=planted(SegmentRoller, ("_begin", "t.register.wants(AlterSettings)", "False")),
    ),
    Mutant(
        name="a take-over begins the next segment while an alteration is under way",
        invariants=("S18",),
        seeds=3000,
        style="stores",
        parts=planted(Takeover, ("progress", "t.register.wants(AlterSettings)", "False")),
    ),
    Mutant(
        name="of a moved segment's first location only ledgers are remembered",
        invariants=("S16", "E2"),
        style="stores",
        parts=planted(
            SetSegmentLocation,
            ("apply", "None if self.to == first", "None if self.to == first or first.store != LEDGER"),
        ),
    ),
    Mutant(
        name="a moved segment's first location is not remembered",
        invariants=("S16", "E2"),
        style="stores",
        parts=planted(SetSegmentLocation, ("apply", "None if self.to == first", "None if True")),
    ),
)

REMOVED = (
    Mutant(
        name="a removed producer table counts as an empty one",
        invariants=("S2", "S14"),
        style="removed",
        parts=planted(ProducerTable, ("forget_all", "self.horizon = horizon", "pass")),
    ),
    Mutant(
        name="the producer table of an older segment is taken for that of a removed one",
        invariants=("S2", "S14"),
        style="removed",
        parts=planted(
            StreamRecovery,
            ("_removed", "return self._end_without_table()", "return self._look_into_next()"),
            ("_look_into_next", " or segment.number in self.removed", ""),
        ),
    ),
    Mutant(
        name="a removed segment in progress is dropped as an empty one",
        invariants=("S9", "S1"),
        style="removed",
        parts=planted(
            StreamRecovery,
            (
                "_removed",
                "return self._learn()",
                "if not segment.completed:\n        ending.end, ending.last_entry = None, NO_ENTRY\n"
                "    return self._learn()",
            ),
        ),
    ),
    Mutant(
        name="entries in flight in a removed segment are written again",
        invariants=("S2",),
        style="removed",
        seeds=1500,
        parts=planted(StreamRecovery, ("_removed", "self._under_way.get(segment.number) == segment.location", "False")),
    ),
    Mutant(
        name="followers are sent an end of a removed segment that the owner does not know",
        invariants=("T6",),
        style="removed",
        parts=planted(Takeover, ("_learn", " and number not in recovery.removed", "")),
    ),
    Mutant(
        name="a removed segment is reported as damaged",
        invariants=("S9",),
        style="removed",
        parts=planted(StreamReaderMachine, ("_follow_segment", "isinstance(lost, SegmentTruncatedError)", "False")),
    ),
    Mutant(
        name="a reader passes a removed segment without an event",
        invariants=("S4", "S12"),
        style="removed",
        parts=planted(
            StreamReaderMachine,
            ("_note_removed", "self._start is None or not self._start.is_of_tail", "False"),
            ("_note_removed", "self._start.is_after_lac = False", "self._start = None"),
        ),
    ),
    Mutant(
        name="a removed segment is reported as truncated while it is in progress",
        invariants=("S9",),
        style="removed",
        parts=planted(StreamReaderMachine, ("_note_removed", "not listed.completed", "False")),
    ),
)

WINDOWS = (
    Mutant(
        name="an owner remembers fewer batches than the window that it grants",
        invariants=("S17",),
        style="stores",
        parts=planted(ProducerTable, ("set_window", "max(self._window_max, window)", "self._window_max")),
    ),
    Mutant(
        name="batches in flight are forgotten when the stream moves to a store with a smaller window",
        invariants=("S17",),
        style="stores",
        parts=planted(ProducerTable, ("set_window", "max(self._window_max, window)", "window")),
    ),
    Mutant(
        name="a new owner remembers as many batches as its own segment's store needs",
        invariants=("S17",),
        style="stores",
        parts=planted(ProducerTable, ("restore", "max(self._window_max, snapshot.window)", "self._window_max")),
    ),
)

MUTANTS = (
    *WINDOWS,
    *SAYING,
    *CLAIM,
    *TAKING,
    *WRITING,
    *TRUNCATED,
    *PHASES,
    *READING,
    *FOLLOWING,
    *SINKS,
    *RETENTION,
    *LIVES,
    *ALTERING,
    *OFFLOADING,
    *STORES,
    *REMOVED,
)
