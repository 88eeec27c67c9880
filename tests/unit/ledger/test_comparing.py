"""Comparing the copies of a ledger: transcripts, and the bytes that it takes on the network."""

from __future__ import annotations

from typing import Any, cast

import pytest

from dlog.bookie.listing import list_of
from dlog.bookie.messages import SummarizeStored
from dlog.bookie.summaries import summary_of
from dlog.errors import DamagedError, MetadataUnavailableError
from dlog.ledger import comparing
from dlog.ledger.comparing import (
    DELETED,
    OPEN,
    Compare,
    Compared,
    DifferingCopies,
    LedgerComparer,
    MissingCopies,
)
from dlog.machine import (
    Answer,
    Asked,
    MetadataSeen,
    Missing,
    OutcomeUnknown,
    PeerLost,
    ReadMetadata,
    Received,
    Refused,
    Send,
    SetTimer,
    TimerFired,
    Versioned,
)
from dlog.model.ids import BookieId, EntryId
from dlog.model.ledger import LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
from dlog.wire.bookie import (
    Code,
    EntriesSummarized,
    EntryRead,
    ReadEntry,
    SummarizeEntries,
    encode_request,
    encode_response,
)
from dlog.wire.bookie_v3_messages import EntriesListed, ListEntries
from dlog.wire.entry_summary import HEAD_BYTES_MAX, EntryOutline
from tests.unit.ledger.story import DEFAULT, LEDGER, ledger, packet

A, B, C, D, E = (BookieId(name) for name in "abcde")
ALL = frozenset((A, B, C, D, E))
EVERYBODY = Compare(ALL)


class Bench:
    """Bookies with all their copies, until the test takes some away. bytes: of all requests and responses."""

    def __init__(self, value: LedgerMetadata, payload: bytes = b"x") -> None:
        self.value: Any = Versioned(value, 1)
        self.copies: dict[BookieId, dict[int, bytes]] = {bookie: {} for bookie in ALL}
        for entry in range(value.last_entry + 1):
            for bookie in value.bookies_of(entry):
                self.copies[bookie][entry] = packet(entry, payload, lac=entry - 1)
        self.lost: set[BookieId] = set()
        self.unreadable: dict[BookieId, range] = {}
        self.asked: list[tuple[BookieId, Any]] = []
        self.bytes = 0
        self.steps = 0

    def compare(self, request: Compare = EVERYBODY, narrowings_max: int = 1000) -> Any:
        machine = LedgerComparer(LEDGER, narrowings_max=narrowings_max)
        facts: list[Any] = [Asked(1, request)]
        while facts:
            assert self.steps + len(self.asked) < 20_000, "it goes on for ever"
            for effect in machine.handle(facts.pop(0)):
                match effect:
                    case ReadMetadata(token):
                        facts.append(MetadataSeen(token, self.value))
                    case Send(peer, message):
                        bookie = cast(BookieId, peer)
                        self.asked.append((bookie, message))
                        facts.append(self._answer(bookie, message))
                    case SetTimer(key):
                        self.steps += 1
                        facts.append(TimerFired(key, 0.0))
                    case Answer(_, result):
                        return result
        raise AssertionError("no answer")

    def _answer(self, bookie: BookieId, message: Any) -> Any:
        if bookie in self.lost:
            return PeerLost(bookie, "reset")
        held = self.copies[bookie]
        unreadable = self.unreadable.get(bookie, range(0))
        answer: Any
        match message:
            case SummarizeEntries() as m if any(
                e % m.modulus == m.remainder
                for e in range(max(m.first, unreadable.start), min(m.last + 1, unreadable.stop))
            ):
                answer = EntriesSummarized(LEDGER, m.first, m.request, Code.IO_ERROR)
            case ReadEntry(_, -1):
                last = max(held, default=None)
                code = Code.NO_ENTRY if last is None else Code.OK
                answer = EntryRead(LEDGER, EntryId(-1), code, b"" if last is None else held[last])
            case ReadEntry(_, entry) if entry in unreadable:
                answer = EntryRead(LEDGER, entry, Code.IO_ERROR)
            case SummarizeEntries() as m:
                summary = summary_of(
                    SummarizeStored(1, m, {}),
                    lambda e: EntryOutline(e, held[e][:HEAD_BYTES_MAX], len(held[e])) if e in held else None,
                )
                answer = EntriesSummarized(LEDGER, m.first, m.request, Code.OK, *summary)
            case ReadEntry(_, entry):
                code = Code.OK if entry in held else Code.NO_ENTRY
                answer = EntryRead(LEDGER, entry, code, held.get(entry, b""))
            case ListEntries():
                return Received(bookie, EntriesListed(LEDGER, Code.OK, list_of([], sorted(held)) or b""))
        self.bytes += sum(map(len, [*encode_request(message), *encode_response(answer)]))
        return Received(bookie, answer)


def closed(last: int, *fragments: str, quorum: Quorum = DEFAULT) -> LedgerMetadata:
    return ledger(*fragments, quorum=quorum, state=LedgerState.CLOSED, last=last)


def lacks(bookie: BookieId, first: int, last: int, modulus: int = 1, remainder: int = 0) -> MissingCopies:
    entries = len(range(first, last + 1, modulus))
    return MissingCopies(bookie, EntryId(first), EntryId(last), modulus, remainder, entries)


def test_equal_copies_take_less_than_one_percent_of_the_data() -> None:
    payload = bytes(1024)
    for quorum, fragment in (
        (DEFAULT, "0 a b c"),
        (Quorum(ensemble=5, write=3, ack=2), "0 a b c d e"),
    ):
        bench = Bench(closed(999, fragment, quorum=quorum), payload)
        assert bench.compare() == Compared(LEDGER, 1000)
        held = sum(len(copy) for copies in bench.copies.values() for copy in copies.values())
        assert held > 3 * 1000 * 1024
        assert bench.bytes < held / 100, f"{bench.bytes} bytes on the network for {held}"


def test_one_missing_entry_is_narrowed_with_less_than_one_percent_of_the_data() -> None:
    bench = Bench(closed(999), bytes(1024))
    del bench.copies[B][700]
    assert bench.compare() == Compared(LEDGER, 1000, (lacks(B, 700, 700),))
    assert bench.bytes < 3 * 1000 * 1024 / 100


def test_an_empty_bookie_is_found_without_narrowing() -> None:
    bench = Bench(closed(999, "0 a b c", "400 a d c"))
    bench.copies[D].clear()
    assert bench.compare().missing == (lacks(D, 400, 999),)
    assert all(isinstance(message, SummarizeEntries) for _, message in bench.asked)
    assert len(bench.asked) == 9, "three parts of three members"


def test_an_entry_that_all_lack_is_found() -> None:
    bench = Bench(closed(9))
    for bookie in (A, B, C):
        del bench.copies[bookie][4]
    assert bench.compare().missing == (lacks(A, 4, 4), lacks(B, 4, 4), lacks(C, 4, 4))


def test_stripes_are_compared_among_their_holders() -> None:
    bench = Bench(closed(29, "0 a b c d e", quorum=Quorum(ensemble=5, write=2, ack=2)))
    for entry in (11, 16):
        del bench.copies[C][entry]  # 11 % 5 == 1: b and c
    assert bench.compare() == Compared(LEDGER, 30, (lacks(C, 11, 16, 5, 1),))


def test_a_bookie_that_is_lost_or_not_registered_lacks_nothing() -> None:
    bench = Bench(closed(9))
    bench.lost.add(B)
    found = bench.compare(Compare(ALL - {C}))
    assert found == Compared(LEDGER, 10, out_of_reach=((B, "reset"), (C, "not registered")))


def test_a_bookie_without_summaries_is_asked_for_its_list_once() -> None:
    bench = Bench(closed(1999))
    bench.copies[C].clear()
    for entry in (3, 4, 1700):
        del bench.copies[B][entry]
    found = bench.compare(Compare(frozenset({A}), frozenset({B, C})))
    assert found == Compared(LEDGER, 2000, (lacks(C, 0, 1999), lacks(B, 3, 4), lacks(B, 1700, 1700)))
    assert [asked for asked in bench.asked if asked[0] != A] == [(B, ListEntries(LEDGER)), (C, ListEntries(LEDGER))]


def test_a_ledger_of_lists_alone_is_compared_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparing, "STEP_ENTRIES", 1000)  # less than the three lists of one part
    bench = Bench(closed(1999))
    for entry in (3, 4, 1700):
        del bench.copies[B][entry]
    found = bench.compare(Compare(frozenset(), frozenset({A, B, C})))
    assert found == Compared(LEDGER, 2000, (lacks(B, 3, 4), lacks(B, 1700, 1700)))
    assert bench.steps == 4, "one for each part: after it others may use the event loop"


def test_the_digest_tells_which_copy_is_wrong() -> None:
    bench = Bench(closed(9))
    broken = bytearray(bench.copies[B][5])
    broken[35] ^= 1  # of its digest
    bench.copies[B][5] = bytes(broken)
    bench.copies[C][7] = packet(7, b"y", length=1)  # another value, which verifies
    found = bench.compare()
    assert isinstance(found, Compared) and not found.missing and found.lacking == {B}
    first, second = found.differing
    assert first.first == 5 and first.bookies == {A, B, C} and first.wrong == {B}
    assert "b: digest does not match" in first.why
    assert second == DifferingCopies(frozenset({A, B, C}), EntryId(7), EntryId(7), 1, 0)


def test_a_copy_that_cannot_be_read_is_wrong_if_another_one_verifies() -> None:
    """As after the loss of an entry log. One such copy is looked for: the worker reads the whole ledger anyway."""
    bench = Bench(closed(1999))
    bench.unreadable[B] = range(300, 1800)
    del bench.copies[C][1900]
    found = bench.compare()
    (bad,) = found.differing
    assert bad.first == bad.last and bad.first in bench.unreadable[B]
    assert (bad.bookies, bad.wrong) == ({A, B, C}, {B})
    assert bad.why == "b: it cannot read its copy"
    assert found.missing == (lacks(C, 1900, 1900),) and not found.out_of_reach and found.is_complete
    assert sum(bookie == B for bookie, _ in bench.asked) < 60, "it is not narrowed down for each of the 1,500"


def test_a_copy_that_cannot_be_read_says_nothing_if_no_other_one_verifies() -> None:
    bench = Bench(closed(9))
    bench.unreadable[B] = range(4, 5)
    del bench.copies[A][4], bench.copies[C][4]
    found = bench.compare()
    assert (found.missing, found.differing) == ((lacks(A, 4, 4), lacks(C, 4, 4)), ())
    assert found.out_of_reach == ((B, "io_error"),)


def test_a_part_that_cannot_be_read_says_nothing_without_halvings_left() -> None:
    bench = Bench(closed(9))
    bench.unreadable[B] = range(4, 5)
    assert bench.compare(narrowings_max=2) == Compared(LEDGER, 10, out_of_reach=((B, "io_error"),))


def test_a_copy_that_can_be_read_after_all_is_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(closed(9))
    bench.unreadable[B] = range(4, 5)
    answer = bench._answer

    def reads(bookie: BookieId, message: Any) -> Any:
        if isinstance(message, ReadEntry):
            bench.unreadable.clear()
        return answer(bookie, message)

    monkeypatch.setattr(bench, "_answer", reads)
    assert bench.compare() == Compared(LEDGER, 10, out_of_reach=((B, "io_error"),))


def test_copies_with_another_lac_are_equal() -> None:
    bench = Bench(closed(9))
    bench.copies[B] = {entry: packet(entry, b"x", lac=9) for entry in range(10)}
    assert bench.compare() == Compared(LEDGER, 10)


def test_without_halvings_left_a_whole_part_is_reported() -> None:
    bench = Bench(closed(9))
    del bench.copies[B][4]
    (found,) = bench.compare(narrowings_max=1).missing
    assert found == MissingCopies(B, EntryId(0), EntryId(4), 1, 0, 1, is_exact=False)


def test_what_is_not_compared_is_said() -> None:
    assert Bench(ledger()).compare() == Compared(LEDGER, skipped=OPEN)
    assert Bench(closed(-1)).compare() == Compared(LEDGER, 0)
    bench = Bench(closed(9))
    for outcome, said in (
        (Missing(), Compared(LEDGER, skipped=DELETED)),
        (OutcomeUnknown("no answer"), MetadataUnavailableError),
        (Refused(DamagedError("cannot be decoded")), DamagedError),
    ):
        bench.value = outcome
        found = bench.compare()
        assert found == said or (isinstance(said, type) and isinstance(found, said))


@pytest.mark.parametrize("listed", [bytes(10), b"\0\0\0\1" + bytes(60), bytes(4) + b"\0\0\0\1" + bytes(56)])
def test_a_list_that_cannot_be_decoded_says_nothing(listed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(closed(9))
    answer = bench._answer

    def answers(bookie: BookieId, message: Any) -> Any:
        if isinstance(message, ListEntries):
            return Received(bookie, EntriesListed(LEDGER, Code.OK, listed))
        return answer(bookie, message)

    monkeypatch.setattr(bench, "_answer", answers)
    found = bench.compare(Compare(frozenset({A, B}), frozenset({C})))
    assert not found.missing and [bookie for bookie, _ in found.out_of_reach] == [C]


FAR = 2**63 - 1


class TestMetadataThatNamesALastEntryFarAboveWhatBookiesHold:
    """The work is bounded by what bookies hold; that they lack the rest is one range of each."""

    def bench(self, held: int, *fragments: str, quorum: Quorum = DEFAULT) -> Bench:
        bench = Bench(closed(held - 1, *fragments, quorum=quorum))
        bench.value = Versioned(closed(FAR, *fragments, quorum=quorum), 1)
        return bench

    def rest(self, first: int, *bookies: BookieId) -> tuple[MissingCopies, ...]:
        return tuple(MissingCopies(b, EntryId(first), EntryId(FAR), 1, 0, FAR - first + 1) for b in bookies)

    def test_the_rest_is_missing(self) -> None:
        bench = self.bench(700)
        found = bench.compare()
        assert found.missing == self.rest(700, A, B, C) and not found.out_of_reach and found.is_complete
        assert found.entries < 10_000 and len(bench.asked) < 200

    def test_nobody_holds_anything(self) -> None:
        bench = self.bench(0)
        assert bench.compare().missing == self.rest(0, A, B, C)
        assert len(bench.asked) < 30

    def test_a_bookie_that_has_more_is_asked_on(self) -> None:
        bench = self.bench(3000)
        for bookie in (A, C):
            for entry in range(10, 3000):
                del bench.copies[bookie][entry]
        assert bench.compare().missing == (*self.rest(10, A, C), *self.rest(3000, B))

    def test_stripes(self) -> None:
        bench = self.bench(50, "0 a b c d e", quorum=Quorum(ensemble=5, write=2, ack=2))
        found = bench.compare()
        assert {m.bookie for m in found.missing} == set(ALL) and {m.first for m in found.missing} == set(range(50, 55))
        assert sum(m.entries for m in found.missing) == 2 * (FAR + 1 - 50)
        assert max(m.last for m in found.missing) == FAR and all(m.last > FAR - 5 for m in found.missing)

    def test_each_ensemble_has_its_own_end(self) -> None:
        bench = self.bench(20, "0 a b c", "10 d b c")
        bench.value = Versioned(closed(FAR, "0 a b c", f"{2**62} d b c"), 1)
        found = bench.compare()
        assert [(m.bookie, m.first, m.last) for m in found.missing] == [
            (A, 10, 2**62 - 1),
            (B, 20, FAR),
            (C, 20, FAR),
            (D, 2**62, FAR),
        ]

    def test_lists(self) -> None:
        bench = self.bench(700)
        for request in (Compare(frozenset(), ALL), Compare(frozenset({A}), frozenset({B, C}))):
            assert bench.compare(request).missing == self.rest(700, A, B, C)
            assert bench.steps < 10 and len(bench.asked) < 200

    def test_bookies_out_of_reach_lack_nothing(self) -> None:
        bench = self.bench(10)
        bench.lost.add(B)
        found = bench.compare(Compare(ALL - {C}))
        assert found.missing == self.rest(10, A)
        assert found.out_of_reach == ((B, "reset"), (C, "not registered"))
        bench.lost |= {A}
        assert bench.compare(Compare(ALL - {C})).missing == ()
        assert bench.compare(Compare(frozenset())).entries == 0

    def test_a_bookie_that_may_have_lost_entries_lacks_nothing(self) -> None:
        """It answers IO_ERROR in place of NO_ENTRY; what it held last is no denial of what it held before."""
        bench = self.bench(10)
        bench.unreadable[B] = range(10, FAR)
        found = bench.compare()
        assert found.missing == self.rest(10, A, C)
        assert found.out_of_reach == ((B, "io_error"),)

    def test_the_rest_is_in_doubt_if_each_bookie_may_have_lost_entries(self) -> None:
        """Each has one copy that it cannot read; only what it was asked for and counted as none is missing."""
        bench = self.bench(700)
        for number, bookie in enumerate((A, B, C)):
            bench.unreadable[bookie] = range(number, number + 1)
        found = bench.compare()
        assert {m.bookie for m in found.missing} == {A, B, C} and all(m.last < 10_000 for m in found.missing)
        assert [(d.first, d.wrong) for d in found.differing] == [(0, {A}), (1, {B}), (2, {C})]
        assert found.out_of_reach == ((A, "io_error"), (B, "io_error"), (C, "io_error"))
