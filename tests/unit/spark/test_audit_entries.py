"""The audit of entries: a sound segment passes with any ranges, and a wrong entry is reported once."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlog.model.ids import BookieId, EntryId, LedgerId, SegmentNumber, StreamName, Txid
from dlog.model.ledger import Fragment, LedgerMetadata
from dlog.model.quorum import Quorum
from dlog.model.segment import Segment, StreamMetadata
from dlog.spark.jobs.audit_entries import EntryVerifier, RangeResult, joined
from dlog.spark.jobs.audit_findings import FINDINGS_MAX, Finding, Kind, rows
from dlog.spark.jobs.audit_plan import SegmentFacts, StreamFacts
from dlog.spark.jobs.audit_segments import Judged, judge
from dlog.spark.planning import Range
from dlog.wire.entry import Codec, Record, control_record, encode_entry, end_of_stream_record
from tests.unit.spark.audit_parts import Laid, lay, packed, with_one

NAME = StreamName("s")
LEDGER = LedgerId(7)


def whole(last: int) -> Range:
    return Range(stream=NAME, segment=1, name=str(LEDGER), store="ledger", first=0, last=last)


def prove(
    laid: Laid, cuts: tuple[int, ...] = (), holes: tuple[int, ...] = (), verify: str = "full"
) -> list[RangeResult]:
    """Audit each range between the cuts in a task of its own."""
    borders = [0, *sorted(set(cuts) & set(range(1, len(laid.payloads)))), len(laid.payloads)]
    pieces = []
    for first, end in itertools.pairwise(borders):
        proof = EntryVerifier(replace(whole(0), first=first, last=end - 1), verify=verify)
        for entry in range(first, end):
            if entry in holes:
                proof.hole()
            else:
                proof.entry(entry, memoryview(laid.payloads[entry]), laid.lengths[entry])
        pieces.append(proof.piece)
    return pieces


def facts_of(laid: Laid) -> StreamFacts:
    """The correct values in metadata."""
    last = EntryId(len(laid.payloads) - 1)
    listed = Segment(
        number=SegmentNumber(1),
        name=str(LEDGER),
        first_txid=Txid(0),
        completed=True,
        last_txid=Txid(laid.last_txid),
        last_entry=last,
        last_slot=laid.last_slot,
        record_count=laid.records,
        start_sequence_id=0,
    )
    ledger = LedgerMetadata(quorum=Quorum(), fragments=(Fragment(EntryId(0), (BookieId("b"),) * 3),))
    value = StreamMetadata(name=NAME, segments=(listed,), max_segment=SegmentNumber(1), max_txid=Txid(laid.last_txid))
    segment = SegmentFacts(listed=listed, ledger=ledger.closed_at(last, laid.lengths[-1]), last=last)
    return StreamFacts(NAME, value, (segment,))


def judged(laid: Laid, pieces: list[RangeResult]) -> Judged:
    return judge(facts_of(laid), {1: pieces})


def told(findings: list[Finding]) -> list[tuple[Kind, int | None]]:
    return [(finding.kind, finding.entry) for finding in findings]


values = st.binary(max_size=30)
shapes = st.lists(
    st.lists(st.lists(values, min_size=1, max_size=40), max_size=3), min_size=1, max_size=6
)  # entries of sets of values
cuts = st.lists(st.integers(1, 5), max_size=3).map(tuple)


@given(shapes, cuts, st.sampled_from(Codec), st.sampled_from(["full", "crc", "none"]))
def test_what_is_right_is_found_right_however_it_is_cut(
    shape: list[list[list[bytes]]], cuts: tuple[int, ...], codec: Codec, verify: str
) -> None:
    laid = lay([replace(entry, codec=codec) for entry in packed(shape)])
    pieces = prove(laid, cuts, verify=verify)
    result = judged(laid, pieces)
    assert result.findings == [] and result.failures == []
    (item,) = result.items
    assert item["entries"] == len(shape)
    assert item["bytes"] == sum(map(len, laid.payloads))
    if verify != "none":
        assert item["records"] == laid.records


SHAPE = [[[b"a" * n, b"b" * n, b"c"], [b"d"]] for n in range(1, 6)]  # five entries of two sets


@pytest.mark.parametrize("cuts", [(), (1,), (2,), (3,), (1, 2, 3, 4)])
@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Kind.RECORD_SET_CRC, {"crc_shift": 1, "sets": ((13, (b"x", b"y", b"z", b"w")),)}),
        (Kind.SLOT, {"slot_shift": 1}),
        (Kind.NOTE, {"noted_shift": 1}),
        (Kind.UNDECODABLE, {"torn": True, "sets": ((13, (b"x", b"y", b"z", b"w")),)}),
        (Kind.TIME, {"unix_ms": 999}),
        (Kind.TXID, {"sets": ((9, (b"x", b"y", b"z")), (14, (b"w",)))}),
    ],
)
def test_a_wrong_entry_is_told_of_once_however_it_is_cut(
    kind: Kind, wrong: dict[str, object], cuts: tuple[int, ...]
) -> None:
    laid = lay(with_one(packed(SHAPE), 2, **wrong))
    findings = judged(laid, prove(laid, cuts)).findings
    assert told(findings) == [(kind, 2)]
    assert findings == judged(laid, prove(laid)).findings


@pytest.mark.parametrize("cuts", [(), (2,), (1, 2, 3, 4)])
def test_a_gap_of_positions_is_told_of_once_and_counted_on_from(cuts: tuple[int, ...]) -> None:
    entries = packed(SHAPE)
    for number in range(2, 5):
        entries = with_one(entries, number, position=entries[number].position + 3)
    laid = lay(entries)
    laid = replace(laid, records=laid.records + 3)  # as its owner counted, and as the list says
    findings = judged(laid, prove(laid, cuts)).findings
    assert told(findings) == [(Kind.POSITION, 2)]
    assert findings == judged(laid, prove(laid)).findings


@pytest.mark.parametrize("cuts", [(), (2,), (1, 2, 3, 4)])
def test_a_length_that_does_not_follow_is_told_of_once(cuts: tuple[int, ...]) -> None:
    laid = lay(packed(SHAPE))
    laid = replace(laid, lengths=(*laid.lengths[:2], *(length + 5 for length in laid.lengths[2:])))
    findings = judged(laid, prove(laid, cuts)).findings
    assert told(findings) == [(Kind.LENGTH, 2)]
    assert findings == judged(laid, prove(laid)).findings


@given(cuts, st.integers(0, 4))
def test_around_a_hole_nothing_is_concluded_that_may_be_otherwise(cuts: tuple[int, ...], hole: int) -> None:
    laid = lay(packed(SHAPE))
    assert judged(laid, prove(laid, cuts, (hole,))).findings == []


def test_an_entry_that_is_none_is_a_hole_behind_which_counting_goes_on() -> None:
    laid = lay(packed(SHAPE))
    broken = replace(
        laid, payloads=(*laid.payloads[:2], b"\x01" + bytes(len(laid.payloads[2]) - 1), *laid.payloads[3:])
    )
    (finding,) = judged(broken, prove(broken)).findings
    assert (finding.kind, finding.entry) == (Kind.UNDECODABLE, 2)
    assert "declared size differs from the bytes present" in finding.found


def test_java_may_not_count_its_records() -> None:
    payloads = tuple(b"".join(map(bytes, encode_entry([Record(0, 0, txid, b"x")]))) for txid in (1, 2, 3))
    lengths = tuple(itertools.accumulate(map(len, payloads)))
    laid = Laid(payloads, lengths, 0, 0, 3)
    for cuts in ((), (1,), (1, 2)):
        assert judged(laid, prove(laid, cuts)).findings == []


def test_entries_of_java_are_counted_record_by_record() -> None:
    def payload(position: int) -> bytes:
        records = [Record(0, position + i, 5, b"x" * i) for i in range(3)]
        return b"".join(map(bytes, encode_entry(records)))

    end = b"".join(map(bytes, encode_entry([end_of_stream_record(6)])))
    payloads = (payload(1), payload(4), end)
    laid = Laid(payloads, tuple(itertools.accumulate(map(len, payloads))), 6, 0, 2**63 - 1)
    assert judged(laid, prove(laid)).findings == []
    assert judged(laid, prove(laid, (1, 2))).items[0]["records"] == 6
    gap = replace(laid, payloads=(payload(1), payload(5), end))
    # the end of stream has the right count, which no longer follows from the entries before it
    assert told(judged(gap, prove(gap)).findings) == [(Kind.POSITION, 1), (Kind.POSITION, 2)]


@pytest.mark.parametrize("cuts", [(), (1,), (2,), (1, 2, 3)])
def test_java_lists_the_last_entry_that_is_more_than_control(cuts: tuple[int, ...]) -> None:
    def entry(*records: Record) -> bytes:
        return b"".join(map(bytes, encode_entry(records)))

    controls = [entry(control_record(2, 7)), entry(control_record(2, 7))]
    payloads = (entry(Record(0, 1, 6, b"x"), Record(0, 2, 7, b"y")), *controls)
    lengths = tuple(itertools.accumulate(map(len, payloads)))
    laid = Laid(payloads, lengths, 2, 0, 7)
    assert judged(laid, prove(laid, cuts)).findings == [], "as an owner of ours lists it"
    facts = facts_of(laid)
    assert facts.value is not None
    for last_entry, last_slot, kinds in (
        (0, 1, []),
        (0, 0, [Kind.LAST_SLOT]),
        (1, 0, [Kind.LAST_ENTRY]),
        (3, 0, [Kind.LAST_ENTRY]),
    ):
        listed = replace(facts.value.segments[0], last_entry=EntryId(last_entry), last_slot=last_slot)
        facts.value = replace(facts.value, segments=(listed,))
        facts.segments = (replace(facts.segments[0], listed=listed),)
        found = judge(facts, {1: prove(laid, cuts)}).findings
        assert [finding.kind for finding in found] == kinds
        unknown = judge(facts, {1: prove(laid, cuts, (1,))}).findings
        assert [f.kind for f in unknown] == ([Kind.LAST_ENTRY] if last_entry == 3 else []), "a hole may hold records"


def test_what_goes_on_is_one_finding_and_what_is_too_much_is_counted() -> None:
    piece = RangeResult(whole(10_000))
    for entry in range(5):
        piece.find(Kind.MISSING, entry, "a copy", "no_entry", "b1")
        piece.find(Kind.MISSING, entry, "a copy", "no_entry", "b2")
    assert [(f.entry, f.entries, f.bookie) for f in piece.findings] == [(0, 5, "b1"), (0, 5, "b2")]
    assert rows(piece.findings)[0]["found"] == "no_entry; so are entries 0..4"
    other = RangeResult(replace(whole(0), first=5, last=9))
    other.find(Kind.MISSING, 5, "a copy", "no_entry", "b1")
    assert [(f.entry, f.entries) for f in joined([*piece.findings, *other.findings])] == [(0, 6), (0, 5)]
    for entry in range(0, 2 * FINDINGS_MAX + 20, 2):
        piece.find(Kind.DIGEST, entry, "", f"{entry}")
    assert len(piece.findings) == FINDINGS_MAX
    assert piece.findings_left_out == 12
