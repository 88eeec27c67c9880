"""Compares metadata of segments with the contents of their entries: one wrong number is one finding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dlog.model.ids import BookieId, EntryId, SegmentNumber, StreamName, Txid
from dlog.model.ledger import Fragment, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.model.segment import Segment, StreamMetadata, Truncation
from dlog.spark.jobs.audit_entries import EntryVerifier, RangeResult, Unread
from dlog.spark.jobs.audit_findings import Kind
from dlog.spark.jobs.audit_plan import SegmentFacts, StreamFacts
from dlog.spark.jobs.audit_segments import judge
from dlog.spark.planning import Range
from tests.unit.spark.audit_parts import Laid, lay, packed

NAME = StreamName("s")
OPEN = LedgerMetadata(quorum=Quorum(), fragments=(Fragment(EntryId(0), (BookieId("b"),) * 3),))


class Sound:
    """A stream of five segments without a fault; the last one is open."""

    def __init__(self) -> None:
        self.laid: list[Laid] = []
        self.segments: list[SegmentFacts] = []
        sequence_id = 0
        for number in range(1, 6):
            begin = number * 100
            laid = lay(packed([[[b"x"] * number], [[b"y"], [b"z"] * 2]], txid=begin, unix_ms=begin))
            self.laid.append(laid)
            listed = Segment(
                number=SegmentNumber(number),
                name=str(number),
                first_txid=Txid(begin - 50),
                completed=number < 5,
                last_txid=Txid(laid.last_txid if number < 5 else -1),
                last_entry=EntryId(1 if number < 5 else -1),
                last_slot=laid.last_slot if number < 5 else -1,
                record_count=laid.records if number < 5 else 0,
                start_sequence_id=sequence_id if number < 5 else -1,
            )
            sequence_id += laid.records
            ledger = OPEN.closed_at(EntryId(1), laid.lengths[-1]) if number < 5 else OPEN
            self.segments.append(SegmentFacts(listed=listed, ledger=ledger, last=1))
        self.max_segment, self.max_txid = 5, self.laid[3].last_txid

    def change(self, number: int, **wrong: Any) -> None:
        facts = self.segments[number - 1]
        self.segments[number - 1] = replace(facts, listed=replace(facts.listed, **wrong))

    def drop(self, number: int) -> None:
        self.segments = [facts for facts in self.segments if facts.listed.number != number]

    def pieces(self) -> dict[int, list[RangeResult]]:
        found = {}
        for facts in self.segments:
            number = facts.listed.number
            proof = EntryVerifier(Range(stream=NAME, segment=number, name=str(number), store="ledger", first=0, last=1))
            laid = self.laid[number - 1]
            for entry, (payload, length) in enumerate(zip(laid.payloads, laid.lengths, strict=True)):
                proof.entry(entry, payload, length)
            found[int(number)] = [proof.piece]
        return found

    def facts(self) -> StreamFacts:
        value = StreamMetadata(
            name=NAME,
            segments=tuple(facts.listed for facts in self.segments),
            max_segment=SegmentNumber(self.max_segment),
            max_txid=Txid(self.max_txid),
        )
        return StreamFacts(NAME, value, tuple(self.segments))

    def told(self) -> list[tuple[Kind, int | None, str, str]]:
        return [(f.kind, f.segment, f.expected, f.found) for f in judge(self.facts(), self.pieces()).findings]


def test_a_sound_stream_has_no_finding_and_an_item_a_segment() -> None:
    sound = Sound()
    assert sound.told() == []
    items = judge(sound.facts(), sound.pieces()).items
    assert [(item["segment"], item["state"], item["records"]) for item in items] == [
        *((number, "completed", number + 3) for number in range(1, 5)),
        (5, "in progress", 8),
    ]
    assert (items[0]["first_txid"], items[0]["last_txid"]) == (100, 102)


@pytest.mark.parametrize("number", [2, 3, 4])
@pytest.mark.parametrize(
    ("kind", "wrong", "shift"),
    [
        (Kind.RECORD_COUNT, "record_count", 1),
        (Kind.LAST_SLOT, "last_slot", 1),
        (Kind.LAST_TXID, "last_txid", 1),
        (Kind.LAST_TXID, "last_txid", -1),
        (Kind.LAST_ENTRY, "last_entry", -1),
        (Kind.START_SEQUENCE_ID, "start_sequence_id", 1),
        (Kind.FIRST_TXID, "first_txid", 51),
        (Kind.MIN_ENTRY, "min_entry", 2),
    ],
)
def test_one_wrong_number_of_a_segment_is_one_finding(kind: Kind, wrong: str, shift: int, number: int) -> None:
    sound = Sound()
    right = getattr(sound.segments[number - 1].listed, wrong)
    sound.change(number, **{wrong: right + shift})
    ((found_kind, segment, _, found),) = sound.told()
    assert (found_kind, segment, found) == (kind, number, str(right + shift))


def test_numbers_of_the_stream() -> None:
    sound = Sound()
    sound.max_segment, sound.max_txid = 4, 1
    assert sound.told() == [
        (Kind.MAX_SEGMENT, None, "at least 5", "4"),
        (Kind.MAX_TXID, None, "at least 402", "1"),
    ]


def test_a_number_that_is_left_out() -> None:
    sound = Sound()
    sound.drop(3)
    assert sound.told() == [(Kind.SEGMENT_GAP, 4, "3", "4")]


def test_a_segment_that_was_truncated_is_not_looked_at() -> None:
    sound = Sound()
    sound.change(1, truncation=Truncation.TRUNCATED, record_count=77)
    facts = sound.facts()
    facts.segments = facts.segments[1:]
    assert judge(facts, {n: p for n, p in sound.pieces().items() if n > 1}).findings == []


def test_a_segment_that_begins_below_the_one_before_it() -> None:
    sound = Sound()
    sound.laid[2] = lay(packed([[[b"x"] * 3], [[b"y"], [b"z"] * 2]], txid=150, unix_ms=150))
    sound.change(3, last_txid=Txid(152), first_txid=Txid(100))
    facts = sound.segments[2]
    assert facts.ledger is not None
    sound.segments[2] = replace(facts, ledger=OPEN.closed_at(EntryId(1), sound.laid[2].lengths[-1]))
    # its times are lower too, as they may be for a sink's stages
    assert [told[:2] for told in sound.told()] == [(Kind.TXID, 3)]


def test_a_ledger_that_miscounts_its_bytes() -> None:
    sound = Sound()
    facts = sound.segments[1]
    sound.segments[1] = replace(facts, ledger=OPEN.closed_at(EntryId(1), 5))
    assert sound.told() == [(Kind.LEDGER_LENGTH, 2, str(sound.laid[1].lengths[-1]), "5")]


def test_of_a_segment_that_was_not_read_to_its_end_no_count_is_judged() -> None:
    sound = Sound()
    sound.change(2, record_count=1, last_slot=0, last_txid=Txid(0))
    pieces = sound.pieces()
    proof = EntryVerifier(Range(stream=NAME, segment=2, name="2", store="ledger", first=0, last=1))
    proof.entry(0, sound.laid[1].payloads[0], sound.laid[1].lengths[0])
    proof.hole()
    pieces[2] = [proof.piece]
    assert judge(sound.facts(), pieces).findings == []


def test_what_could_not_be_read_is_one_failure_over_the_borders_of_ranges() -> None:
    sound = Sound()
    pieces = sound.pieces()
    pieces[2][0].unread = [
        Unread(0, 3, "b1", "away"),
        Unread(4, 9, "b1", "lost a moment ago"),
        Unread(4, 9, "b2", "away"),
    ]
    judged = judge(sound.facts(), pieces)
    assert judged.findings == []
    assert [(f["stream"], f["segment"], f["bookie"], f["entries"]) for f in judged.failures] == [
        ("s", 2, "b1", "0..9"),
        ("s", 2, "b2", "4..9"),
    ]
