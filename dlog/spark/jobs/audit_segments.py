"""Compares metadata of a stream with its entries: joins ranges to segments, and segments to the stream. Pure.

Invariants:
- where metadata and entries differ, metadata is reported as wrong;
- what could not be read is compared with nothing;
- a wrong number is reported once, not again by each number that was computed from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dlog.model.ids import SEGMENT_FIRST
from dlog.model.segment import Segment, StreamMetadata, Truncation
from dlog.spark.jobs.audit_entries import End, EntryValue, RangeResult, Unread, joined
from dlog.spark.jobs.audit_findings import Finding, Kind
from dlog.spark.jobs.audit_plan import SegmentFacts, StreamFacts


@dataclass(slots=True)
class Judged:
    """Result for one stream. items: a row for each segment."""

    findings: list[Finding] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    items: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class _Held:
    """The latest values from the stream's entries, across segments."""

    txid: int | None = None
    time: int | None = None  # of this segment
    sequence_id: int | None = None  # of the next record; None: unknown


def judge(facts: StreamFacts, pieces: Mapping[int, Sequence[RangeResult]]) -> Judged:
    """Compare a stream with its segments' ranges, by number and in order."""
    judged = Judged(findings=list(facts.findings), failures=list(facts.failures))
    if facts.value is None:
        return judged
    judged.findings += _judge_list(facts.value)
    held = _Held()
    number_before = None
    by_number = {segment.listed.number: segment for segment in facts.segments}
    ends: list[End] = []
    for listed in facts.value.listed:
        segment = by_number.get(listed.number)
        if segment is None:
            held.sequence_id = None  # truncated: not examined
        else:
            if number_before is None or listed.number != number_before + 1:
                held.sequence_id = 0 if listed.number == SEGMENT_FIRST else None
            found, failed, end = _judge_segment(facts.name, segment, pieces.get(listed.number, ()), held)
            judged.findings += found
            judged.failures += failed
            judged.items.append(_item(facts.name, segment, pieces.get(listed.number, ()), held, len(found)))
            ends += [] if end is None else [end]
        number_before = listed.number
    judged.findings += _judge_max_txid(facts.value, ends)
    return judged


def _judge_list(value: StreamMetadata) -> list[Finding]:
    found = []
    numbers = [segment.number for segment in value.listed]
    for before, number in itertools.pairwise(numbers):
        if number != before + 1:
            found.append(_finding(value.name, Kind.SEGMENT_GAP, number, str(before + 1), str(number)))
    if numbers and value.max_segment < numbers[-1]:
        found.append(
            _finding(value.name, Kind.MAX_SEGMENT, None, f"at least {numbers[-1]}", str(value.max_segment)),
        )
    return found


def _judge_max_txid(value: StreamMetadata, ends: Sequence[End]) -> list[Finding]:
    last = max((end.txid for end in ends), default=0)
    if value.max_txid >= last:
        return []
    return [_finding(value.name, Kind.MAX_TXID, None, f"at least {last}", str(value.max_txid))]


def _judge_segment(
    stream: str, segment: SegmentFacts, pieces: Sequence[RangeResult], held: _Held
) -> tuple[list[Finding], list[dict[str, Any]], End | None]:
    """Findings, failures, and the end of a completed segment, if known."""
    listed, number = segment.listed, segment.listed.number
    found = joined(list(itertools.chain.from_iterable(_of_piece(piece) for piece in pieces)))
    failed = _failures(stream, number, [unread for piece in pieces for unread in piece.unread])
    for before, after in itertools.pairwise(pieces):
        found += _join(stream, number, before, after)
    held.time = None  # segments from a sink got their times before they were imported after others
    for piece in pieces:
        found += _follow(stream, number, piece, held)
    first = next((piece.first_txid for piece in pieces if piece.first_txid is not None), None)
    if first is not None and listed.first_txid > first.value:
        found.append(
            _finding(stream, Kind.FIRST_TXID, number, f"at most {first.value}", str(listed.first_txid)),
        )
    if segment.last >= 0 and listed.min_entry > segment.last:
        found.append(_finding(stream, Kind.MIN_ENTRY, number, f"at most {segment.last}", str(listed.min_entry)))
    if segment.ledger is not None and segment.ledger.is_closed:
        found += _judge_length(stream, segment, pieces)
    end, is_known = _listed_end(segment, pieces)
    if not listed.completed or not segment.is_there:
        held.sequence_id = None
        return found, failed, None
    found += _judge_completed(stream, segment, end, is_known, held)
    return found, failed, end


def _listed_end(segment: SegmentFacts, pieces: Sequence[RangeResult]) -> tuple[End | None, bool]:
    """The end that the list should state, and whether its position is known.

    It is that of the last entry or, with Java's writers, of the last one with more than control records.
    """
    if not pieces or pieces[-1].of.last != segment.last:
        return None, False
    last = pieces[-1].end
    if last is not None and last.entry == segment.listed.last_entry:
        return last, True
    for piece in reversed(pieces):
        if piece.data_end is not None:
            data = piece.data_end
            return (data, True) if data.entry == segment.listed.last_entry else (last, True)
        if not piece.is_blank:
            return last, False
    return None, segment.listed.last_entry >= 0


def _failures(stream: str, number: int, reported: Sequence[Unread]) -> list[dict[str, Any]]:
    """A row for each bookie and series of entries, with the first error: later errors follow from it."""
    whole: list[Unread] = []
    for unread in reported:
        for i, before in enumerate(whole):
            is_same = before.bookie == unread.bookie and (unread.bookie or before.error == unread.error)
            if is_same and before.last + 1 == unread.first:
                whole[i] = before._replace(last=unread.last)
                break
        else:
            whole.append(unread)
    return [
        {
            "stream": stream,
            "segment": int(number),
            "entries": f"{one.first}..{one.last}",
            "bookie": one.bookie,
            "error": one.error,
        }
        for one in whole
    ]


def _of_piece(piece: RangeResult) -> list[Finding]:
    if not piece.findings_left_out:
        return piece.findings
    more = Finding(
        kind=Kind.MORE,
        stream=piece.of.stream,
        segment=piece.of.segment,
        entry=piece.of.first,
        expected="no finding",
        found=f"{piece.findings_left_out} more in entries {piece.of.first}..{piece.of.last}",
    )
    return [*piece.findings, more]


def _join(stream: str, number: int, before: RangeResult, after: RangeResult) -> list[Finding]:
    """Check where one range ends and the next begins."""
    found = []
    pairs: tuple[tuple[Kind, int | None, EntryValue | None], ...] = (
        (Kind.POSITION, before.last_position, after.held_position),
        (Kind.LENGTH, before.last_length, after.held_length),
    )
    for kind, known, held in pairs:
        if known is not None and held is not None and known != held.value:
            found.append(_finding(stream, kind, number, f"{known} before it", str(held.value), held.entry))
    return found


def _follow(stream: str, number: int, piece: RangeResult, held: _Held) -> list[Finding]:
    """Check what must not decrease: txids along the stream, times along a segment."""
    found = []
    for kind, known, first in ((Kind.TXID, held.txid, piece.first_txid), (Kind.TIME, held.time, piece.first_time)):
        if known is not None and first is not None and first.value < known:
            found.append(_finding(stream, kind, number, f"at least {known}", str(first.value), first.entry))
    held.txid = held.txid if piece.last_txid is None else piece.last_txid
    held.time = held.time if piece.last_time is None else piece.last_time
    return found


def _judge_length(stream: str, segment: SegmentFacts, pieces: Sequence[RangeResult]) -> list[Finding]:
    """Check the ledger's own length."""
    assert segment.ledger is not None
    length = 0 if segment.last < 0 else pieces[-1].last_length if pieces else None
    if length is None or length == segment.ledger.length:
        return []
    number = segment.listed.number
    return [_finding(stream, Kind.LEDGER_LENGTH, number, str(length), str(segment.ledger.length))]


def _judge_completed(stream: str, segment: SegmentFacts, end: End | None, is_known: bool, held: _Held) -> list[Finding]:
    """Check the list's values for a completed segment."""
    listed, decided = segment.listed, segment.decided_end
    claims: list[tuple[Kind, object, object]] = []
    records = None if segment.last >= 0 else listed.record_count
    if end is not None and end.entry == listed.last_entry:
        claims += [
            (Kind.LAST_SLOT, end.slot, listed.last_slot),
            (Kind.LAST_TXID, end.txid, listed.last_txid),
            (Kind.RECORD_COUNT, end.position, listed.record_count),
        ]
        records = end.position
    elif decided is not None and (is_known or listed.last_entry > decided):
        claims.append((Kind.LAST_ENTRY, decided, listed.last_entry))  # the other values belong to that entry
    if listed.start_sequence_id >= 0:
        if held.sequence_id is None:
            held.sequence_id = listed.start_sequence_id
        claims.append((Kind.START_SEQUENCE_ID, held.sequence_id, listed.start_sequence_id))
    else:
        held.sequence_id = None
    if held.sequence_id is not None:
        held.sequence_id = None if records is None else held.sequence_id + records
    return [
        _finding(stream, kind, listed.number, str(right), str(claimed))
        for kind, right, claimed in claims
        if right != claimed
    ]


def _item(
    stream: str, segment: SegmentFacts, pieces: Sequence[RangeResult], held: _Held, findings: int
) -> dict[str, Any]:
    listed = segment.listed
    txids = [piece.first_txid.value for piece in pieces if piece.first_txid is not None]
    last_txids = [piece.last_txid for piece in pieces if piece.last_txid is not None]
    return {
        "stream": stream,
        "segment": int(listed.number),
        "state": state_of(listed),
        "store": listed.store,
        "location": listed.name,
        "entries": sum(piece.entries for piece in pieces),
        "records": sum(piece.records for piece in pieces),
        "bytes": sum(piece.payload_bytes for piece in pieces),
        "read_bytes": sum(piece.read_bytes for piece in pieces),
        "replicas": max((piece.replicas for piece in pieces), default=0),
        "first_txid": txids[0] if txids else None,
        "last_txid": last_txids[-1] if last_txids else None,
        "findings": findings,
    }


def state_of(segment: Segment) -> str:
    """The state of a segment, in words."""
    if not segment.completed:
        return "in progress"
    return "truncated in part" if segment.truncation is Truncation.PARTIAL else "completed"


def _finding(
    stream: str, kind: Kind, segment: int | None, expected: str, found: str, entry: int | None = None
) -> Finding:
    return Finding(kind=kind, stream=stream, segment=segment, entry=entry, expected=expected, found=found)
