"""Compares the copies that bookies hold of a closed ledger, without reading its entries.

    read metadata -> summaries of ranges -> differing entries read -> read metadata again -> Compared

A *part* is a range of entries of one stripe: of those that the same write set holds (id % E is the same; one stripe if
E = Qw). Each member of the write set is asked for its summary of the part: how many entries it holds, and a chained
CRC32C over their ids and contents (dlog/wire/entry_summary.py). Members that hold all of it, with equal chains, agree.
Otherwise the part is halved, and those members are asked again that hold some of it, down to single entries. Bookies
that serve no summaries, as Java's, are asked once for the list of their entries: their contents are not compared.

A bookie that answers IO_ERROR cannot read an entry of the part, as after the loss of an entry log. Its parts are halved
until one such entry is known; after that its other answers of this kind are ignored.

Invariants:
1. A copy is missing only if its bookie said so: it counted no entry of the part, does not know the ledger, does not
   list the entry, or said that the last entry it holds is below it. Nothing follows from a bookie that is not
   registered, lost, or answers with another error than IO_ERROR: it is reported as out of reach, and not asked again.
2. Each entry of a stripe is asked of each member that is in reach; what a member lacks or has differently is reported,
   and nothing else. While `narrowings_max` halvings suffice, ranges hold exactly those entries; after that a range may
   hold others, and says so.
3. Two copies that differ are told apart by the digest of the ledger alone: one is wrong if it does not verify and
   another one does. If all verify, or none does, that is reported, and no copy counts as wrong. A copy that its bookie
   cannot read is wrong if another one verifies; if none is found so, the bookie is reported as out of reach.
4. The answer is about one value of metadata. If metadata changed meanwhile, or the ledger was deleted, the answer says
   so and names no copy: bookies may have collected what they need not hold any more.
5. Entries that are written meanwhile may be found missing or not. An entry that a member held all the time is never
   found missing there.
6. In flight are at most PARTS_AT_ONCE parts; ranges that differ are kept up to RANGES_MAX, then the comparison ends
   early, and says so. Of a bookie that cannot read copies, one is reported.
7. One step looks up at most STEP_ENTRIES entries in lists, and those of one part more. The next one follows a timer: a
   ledger whose bookies all serve lists asks nothing that would end a step.
8. Parts of an ensemble are asked for up to the last entry that one of its bookies in reach holds: metadata may name a
   last entry far above it. Where no bookie holds anything of a part, they are asked for their last entries. The rest of
   an ensemble is missing on each but those that ever answered IO_ERROR: these are reported as out of reach.

Our own. BookKeeper's auditor reads the first and last entries, or lists all (AuditorReplicasCheckTask).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import cast

from dlog.errors import DLogError, MetadataUnavailableError, ProtocolError
from dlog.ledger.held_entries import LAST_HELD, LastHeldEntries
from dlog.ledger.last_entries import ABSENT
from dlog.machine import (
    Answer,
    Asked,
    Effect,
    Fact,
    MetadataSeen,
    Missing,
    PeerLost,
    Received,
    Refused,
    Send,
    SetTimer,
    Ticket,
)
from dlog.metadata_update import Found, MetadataUpdateLoop
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import LedgerKey, LedgerMetadata
from dlog.values import value
from dlog.wire.bookie import SUMMARY_IDS_MAX, Code, EntriesSummarized, EntryRead, ReadEntry, SummarizeEntries
from dlog.wire.bookie_availability import EntryList
from dlog.wire.bookie_v3_messages import EntriesListed, ListEntries
from dlog.wire.digest import Digest, DigestMismatch

PARTS_AT_ONCE = 2
STEP = "step"  # key of the timer
STEP_S = 0.001
STEP_ENTRIES = 8192  # looked up in lists in one call of the state machine: some ms; the rest follows after STEP_S
PART_ENTRIES = 16  # what a part counts as, besides
RANGES_MAX = 1000
DIFFERING_MAX = 16  # entries with differing copies that are read; of further ones no copy counts as wrong

OPEN = "open"  # values of `Compared.skipped`
CHANGED = "changed"
DELETED = "deleted"

_UNREADABLE = "io_error"


@value
class Compare:
    """Request: compare the copies of the ledger. Reply: Compared. One request per comparer.

    summaries: registered bookies that serve SUMMARIZE. lists: registered ones that do not. Others are out of reach.
    """

    summaries: frozenset[BookieId]
    lists: frozenset[BookieId] = frozenset()


@value
class MissingCopies:
    """`bookie` lacks `entries` entries of those from first to last, inclusive, with id % modulus == remainder. If
    `is_exact`, it lacks all of these."""

    bookie: BookieId
    first: EntryId
    last: EntryId
    modulus: int
    remainder: int
    entries: int
    is_exact: bool = True


@value
class DifferingCopies:
    """The bookies hold different contents for an entry from first to last (of the stripe, as in MissingCopies), or some
    cannot read theirs.

    wrong: bookies whose copy does not verify or cannot be read, if another one's verifies; why: what they returned.
    Empty: the digest does not tell which copy is right.
    """

    bookies: frozenset[BookieId]
    first: EntryId
    last: EntryId
    modulus: int
    remainder: int
    wrong: frozenset[BookieId] = frozenset()
    why: str = ""


@value
class Compared:
    """Reply to Compare. All copies agree if everything is empty.

    skipped: why no copies are reported: OPEN (only closed ledgers are compared), CHANGED or DELETED meanwhile; else
    "". entries: number compared; those above the last entry that any bookie holds are not counted. missing, differing:
    in order of first entry. out_of_reach: bookie and reason. is_complete: whether the whole ledger was compared; if
    not, more differs than is kept.
    """

    ledger: LedgerId
    entries: int = 0
    missing: tuple[MissingCopies, ...] = ()
    differing: tuple[DifferingCopies, ...] = ()
    out_of_reach: tuple[tuple[BookieId, str], ...] = ()
    is_complete: bool = True
    skipped: str = ""

    @property
    def doubt(self) -> str:
        """Why the copies are not known to be whole and equal; empty: they are, as far as their bookies can tell."""
        if self.skipped:
            return f"the ledger is {self.skipped}"
        if self.missing or self.differing:
            return "copies on other bookies are missing or differ"
        if self.out_of_reach:
            return "bookies that metadata names are out of reach"
        return "" if self.is_complete else "not all copies were compared"

    @property
    def lacking(self) -> frozenset[BookieId]:
        """Bookies that lack copies, or hold wrong ones."""
        wrong = [found.wrong for found in self.differing]
        return frozenset(found.bookie for found in self.missing).union(*wrong)


@value
class _Part:
    """Entries from first to last of one stripe, and the bookies to compare."""

    first: EntryId
    last: EntryId
    modulus: int
    remainder: int
    members: tuple[BookieId, ...]

    @property
    def ids(self) -> range:
        return range(self.first + (self.remainder - self.first) % self.modulus, self.last + 1, self.modulus)

    @property
    def entries(self) -> int:
        """The number of `ids`; `len` of a range fails for 2**63."""
        ids = self.ids
        return (ids[-1] - ids[0]) // self.modulus + 1 if ids else 0

    def halves(self, members: tuple[BookieId, ...]) -> tuple[_Part, _Part]:
        """Both halves, for these members. The part has two entries at least."""
        ids = self.ids
        middle = ids[len(ids) // 2]
        lower = replace(self, last=EntryId(middle - 1), members=members)
        return lower, replace(self, first=EntryId(middle), members=members)


@dataclass(slots=True, eq=False)
class _Question:
    """A part that members are asked about. summaries: those that answered, with count and chain. unreadable: those that
    cannot read an entry of it."""

    part: _Part
    waiting: set[BookieId]
    unreadable: set[BookieId] = field(default_factory=set)
    summaries: dict[BookieId, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Reading:
    """An entry whose copies differ or cannot be read on all bookies, to be read. unreadable: bookies that said so; the
    others' copies may be equal then. verified: bookies whose copy does; wrong: others, with the reason."""

    found: DifferingCopies
    differs: bool
    unreadable: frozenset[BookieId]
    waiting: set[BookieId] = field(default_factory=set)
    verified: set[BookieId] = field(default_factory=set)
    wrong: dict[BookieId, str] = field(default_factory=dict)


class LedgerComparer:
    """Compares the copies of one ledger, once.

    password: of the ledger; the one in metadata if None. narrowings_max: halvings before ranges are reported whole.
    """

    def __init__(self, ledger: LedgerId, password: bytes | None = None, *, narrowings_max: int = 1000) -> None:
        self.ledger = ledger
        self._password = password
        self._narrowings_left = narrowings_max
        self._update = MetadataUpdateLoop(LedgerKey(ledger))
        self._ticket: Ticket | None = None
        self._request = Compare(frozenset())
        self._value: LedgerMetadata | None = None
        self._lists: dict[BookieId, EntryList | None] = {}  # None: asked for
        self._held = LastHeldEntries(ledger)
        self._doubted: set[BookieId] = set()  # answered IO_ERROR: what they do not hold may be lost
        self._rest_unknown: set[BookieId] = set()  # those of them that an ensemble's rest was not asked of
        self._entries = 0  # of the parts begun
        self._parts: Iterator[_Part] = iter(())
        self._narrowed: list[_Part] = []
        self._questions: dict[int, _Question] = {}
        self._numbers = 0
        self._missing: list[MissingCopies] = []
        self._differing: list[DifferingCopies] = []
        self._unread: list[_Reading] = []  # to be read
        self._unreadable: set[BookieId] = set()  # bookies with a copy that they cannot read, among `_unread` or read
        self._reading: _Reading | None = None
        self._out_of_reach: dict[BookieId, str] = {}
        self._is_complete = True
        self._is_done = False  # the rest is to see whether metadata is still the same
        self._effects: list[Effect] = []

    # ---- facts -------------------------------------------------------------------------------------------------------

    def handle(self, fact: Fact) -> list[Effect]:
        effects = self._effects
        match fact:
            case Asked(ticket, Compare() as request):
                assert self._ticket is None and self._value is None, "a comparer compares once"
                self._ticket, self._request = ticket, request
                self._update.read(self._effects)
            case MetadataSeen():
                self._note_metadata(fact)
            case Received(peer, EntriesSummarized() as answer) if answer.ledger == self.ledger:
                self._note_summary(cast(BookieId, peer), answer)
            case Received(peer, EntriesListed() as listed) if listed.ledger == self.ledger:
                self._note_list(cast(BookieId, peer), listed)
            case Received(peer, EntryRead() as read) if read.ledger == self.ledger and not read.fence:
                self._note_read(cast(BookieId, peer), read)
            case PeerLost(peer, reason):
                self._give_up(cast(BookieId, peer), reason or "connection lost")
        self._settle()
        self._effects = []
        return effects

    def _note_metadata(self, fact: MetadataSeen) -> None:
        match self._update.handle(fact, self._effects):
            case None:
                return
            case Found(value) if self._is_done:
                self._answer(self._result() if value == self._value else Compared(self.ledger, skipped=CHANGED))
            case Found(LedgerMetadata(is_closed=True) as value):
                self._begin(value)
            case Found():
                self._answer(Compared(self.ledger, skipped=OPEN))
            case Missing():
                self._answer(Compared(self.ledger, skipped=DELETED))
            case Refused(error):
                self._answer(error)
            case outcome:
                why = f"metadata is unreachable, retry: ledger={self.ledger} reason={outcome}"
                self._answer(MetadataUnavailableError(why))

    def _begin(self, value: LedgerMetadata) -> None:
        self._value = value
        named = {bookie for fragment in value.fragments for bookie in fragment.ensemble}
        for bookie in sorted(named - self._request.summaries):
            if bookie in self._request.lists:
                self._lists[bookie] = None
                self._effects.append(Send(bookie, ListEntries(self.ledger)))
            else:
                self._out_of_reach[bookie] = "not registered"
        self._parts = self._parts_of(value)

    def _note_summary(self, bookie: BookieId, answer: EntriesSummarized) -> None:
        question = self._questions.get(answer.request)
        if question is None or bookie not in question.waiting:
            return
        entries = len(question.part.ids)
        if answer.code is Code.OK and 0 <= answer.count <= entries:
            question.waiting.discard(bookie)
            question.summaries[bookie] = (answer.count, answer.chain)
        elif answer.code in ABSENT:
            question.waiting.discard(bookie)
            question.summaries[bookie] = (0, 0)
        elif answer.code is Code.IO_ERROR:
            question.waiting.discard(bookie)
            question.unreadable.add(bookie)
            self._doubted.add(bookie)
        elif answer.code is Code.OK:
            self._give_up(bookie, f"it counts {answer.count} entries of {entries}")
        else:
            self._give_up(bookie, answer.code.name.lower())

    def _note_list(self, bookie: BookieId, answer: EntriesListed) -> None:
        if bookie not in self._lists or self._lists[bookie] is not None:
            return
        if answer.code is not Code.OK and answer.code not in ABSENT:
            self._give_up(bookie, answer.code.name.lower())
            return
        try:
            self._lists[bookie] = EntryList(answer.listed if answer.code is Code.OK else b"")
        except ProtocolError as error:
            self._give_up(bookie, error.message)

    def _note_read(self, bookie: BookieId, answer: EntryRead) -> None:
        if answer.entry == LAST_HELD:
            if not self._held.note_read(bookie, answer):
                self._give_up(bookie, f"its last entry is not known: {answer.code.name.lower()}")
            return
        reading = self._reading
        if reading is None or bookie not in reading.waiting or answer.entry != reading.found.first:
            return
        reading.waiting.discard(bookie)
        if answer.code is not Code.OK:
            if answer.code is Code.IO_ERROR:  # other codes say nothing of the copy
                reading.wrong[bookie] = "it cannot read its copy"
            return
        try:
            self._digest().verify(answer.packet, answer.entry)
        except DigestMismatch as error:
            reading.wrong[bookie] = error.message
        else:
            reading.verified.add(bookie)

    def _give_up(self, bookie: BookieId, reason: str) -> None:
        """Ask a bookie nothing more."""
        if self._value is None:
            return
        self._out_of_reach.setdefault(bookie, reason)
        self._held.note_lost(bookie)
        if self._lists.get(bookie, False) is None:
            del self._lists[bookie]
        for question in self._questions.values():
            question.waiting.discard(bookie)
        if self._reading is not None:
            self._reading.waiting.discard(bookie)

    # ---- consequences ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Judge parts that all members answered, ask for further ones, read what differs, then check metadata."""
        if self._value is None or self._is_done or self._ticket is None or None in self._lists.values():
            return
        for number in [number for number, question in self._questions.items() if not question.waiting]:
            self._judge(self._questions.pop(number))
        entries = 0
        while len(self._questions) < PARTS_AT_ONCE and (part := self._next_part()) is not None:
            entries += self._ask(part)
            if entries >= STEP_ENTRIES:
                self._effects.append(SetTimer(STEP, STEP_S))
                return
        if not self._questions and not self._read_differing():
            self._is_done = True
            self._update.read(self._effects)

    def _next_part(self) -> _Part | None:
        if len(self._missing) + len(self._differing) > RANGES_MAX:
            self._missing = _merged(self._missing)
            if len(self._missing) + len(self._differing) > RANGES_MAX:
                self._is_complete = False
                self._narrowed.clear()
                self._parts = iter(())
        return self._narrowed.pop() if self._narrowed else next(self._parts, None)

    def _ask(self, part: _Part) -> int:
        """Ask members for their summaries, and look lists up. Returns the work of that, in entries looked up."""
        entries = PART_ENTRIES
        for bookie in part.members:
            listed = self._lists.get(bookie)
            if listed is not None:
                entries += len(part.ids)
                self._missing += _not_listed(part, bookie, listed)
        members = [b for b in part.members if b not in self._lists and b not in self._out_of_reach]
        if not members:
            return entries
        self._numbers += 1
        self._questions[self._numbers] = _Question(part, set(members))
        request = SummarizeEntries(
            self.ledger, part.first, part.last, self._numbers, part.modulus, part.remainder, self._digest().type
        )
        self._effects += [Send(bookie, request) for bookie in members]
        return entries

    def _parts_of(self, value: LedgerMetadata) -> Iterator[_Part]:
        """The ledger in parts, in order of first entries, up to the last entry that a bookie in reach holds."""
        quorum = value.quorum
        modulus = 1 if quorum.ensemble == quorum.write else quorum.ensemble
        width = SUMMARY_IDS_MAX * modulus
        ends = [*(fragment.first_entry - 1 for fragment in value.fragments[1:]), value.last_entry]
        for fragment, end in zip(value.fragments, ends, strict=True):
            for first in range(fragment.first_entry, end + 1, width):
                is_held = self._may_hold(fragment.ensemble, first)
                last = min(first + width - 1, end) if is_held else end
                for remainder in range(modulus):
                    members = tuple(fragment.ensemble[index] for index in quorum.write_set(remainder))
                    part = _Part(EntryId(first), EntryId(last), modulus, remainder, members)
                    if part.ids and is_held:
                        self._entries += part.entries
                        yield part
                    elif part.ids:
                        self._note_rest(part)
                if not is_held:
                    break

    def _may_hold(self, ensemble: Iterable[BookieId], entry: int) -> bool:
        """Whether a bookie that is in reach may hold this entry or a later one."""
        for bookie in ensemble:
            listed = self._lists.get(bookie)
            ends = listed.last < entry if listed is not None else self._held.ends_below(bookie, entry)
            if not ends and bookie not in self._out_of_reach:
                return True
        return False

    def _note_rest(self, part: _Part) -> None:
        """Record as missing this part, the rest of an ensemble's entries, of which no bookie in reach holds any.
        Bookies that reported IO_ERROR before count as out of reach: what they do not hold may be lost."""
        for bookie in part.members:
            if bookie in self._doubted:
                self._rest_unknown.add(bookie)
            elif bookie not in self._out_of_reach:
                self._missing.append(_missing(part, bookie, part.first, part.last, part.entries))

    def _judge(self, question: _Question) -> None:
        part, summaries = question.part, question.summaries
        entries = len(part.ids)
        for bookie, (count, _) in summaries.items():
            if not count:
                self._missing.append(_missing(part, bookie, part.first, part.last, entries))
        some = {bookie: summary for bookie, summary in summaries.items() if summary[0]}
        if not some:
            self._held.ask([*summaries, *sorted(question.unreadable)], self._effects)
        unreadable = frozenset(question.unreadable) - self._unreadable - self._out_of_reach.keys()
        is_equal = len(set(some.values())) <= 1 and all(count == entries for count, _ in some.values())
        if is_equal and not unreadable:
            return
        if entries > 1 and self._narrowings_left:
            self._narrowings_left -= 1
            lower, upper = part.halves((*some, *sorted(unreadable)))
            self._narrowed += (upper, lower)
            return
        if entries > 1:
            for bookie in unreadable:
                self._give_up(bookie, _UNREADABLE)
            unreadable = frozenset()
        self._unreadable |= unreadable
        for bookie, (count, _) in some.items():
            if count < entries:
                self._missing.append(_missing(part, bookie, part.first, part.last, entries - count, False))
        whole = {bookie: chain for bookie, (count, chain) in some.items() if count == entries}
        differs = len(set(whole.values())) > 1
        if not differs and not unreadable:
            return
        first, last = EntryId(part.ids[0]), EntryId(part.ids[-1])
        found = DifferingCopies(unreadable.union(whole), first, last, part.modulus, part.remainder)
        if unreadable or (entries == 1 and len(self._unread) < DIFFERING_MAX):
            self._unread.append(_Reading(found, differs, unreadable))
        else:
            self._differing.append(found)

    def _read_differing(self) -> bool:
        """Read the next entry whose copies differ from the bookies that hold it; False: all were read."""
        while True:
            reading = self._reading
            if reading is not None:
                if reading.waiting:
                    return True
                self._record_distinguished(reading)
                self._reading = None
            if not self._unread:
                return False
            self._reading = reading = self._unread.pop(0)
            reading.waiting = set(reading.found.bookies - self._out_of_reach.keys())
            request = ReadEntry(self.ledger, reading.found.first)
            self._effects += [Send(bookie, request) for bookie in sorted(reading.waiting)]

    def _record_distinguished(self, reading: _Reading) -> None:
        found = _distinguish(reading)
        if reading.differs or found.wrong:
            self._differing.append(found)
        for bookie in reading.unreadable - found.wrong:
            self._out_of_reach.setdefault(bookie, _UNREADABLE)

    def _digest(self) -> Digest:
        value = self._value
        assert value is not None
        return Digest(self.ledger, value.digest, value.password if self._password is None else self._password)

    def _result(self) -> Compared:
        assert self._value is not None
        return Compared(
            self.ledger,
            self._entries,
            tuple(sorted(_merged(self._missing), key=lambda found: (found.first, found.bookie))),
            tuple(sorted(self._differing, key=lambda found: found.first)),
            tuple(sorted((dict.fromkeys(self._rest_unknown, _UNREADABLE) | self._out_of_reach).items())),
            self._is_complete,
        )

    def _answer(self, result: Compared | DLogError) -> None:
        assert self._ticket is not None
        self._is_done = True
        self._effects.append(Answer(self._ticket, result))
        self._ticket = None


def _missing(
    part: _Part, bookie: BookieId, first: int, last: int, entries: int, is_exact: bool = True
) -> MissingCopies:
    """Of a part; first and last are made those of its stripe."""
    ids = replace(part, first=EntryId(first), last=EntryId(last)).ids
    return MissingCopies(bookie, EntryId(ids[0]), EntryId(ids[-1]), part.modulus, part.remainder, entries, is_exact)


def _not_listed(part: _Part, bookie: BookieId, listed: EntryList) -> Iterator[MissingCopies]:
    for is_listed, run in groupby(part.ids, listed.__contains__):
        if not is_listed:
            ids = list(run)
            yield _missing(part, bookie, ids[0], ids[-1], len(ids))


def _merged(ranges: Iterable[MissingCopies]) -> list[MissingCopies]:
    """The same with ranges joined that follow each other."""
    found: list[MissingCopies] = []
    for one in sorted(ranges, key=lambda one: (one.bookie, one.modulus, one.remainder, one.first)):
        before = found[-1] if found else None
        if (
            before is not None
            and (before.bookie, before.modulus, before.remainder) == (one.bookie, one.modulus, one.remainder)
            and before.last + one.modulus == one.first
            and before.is_exact == one.is_exact
        ):
            found[-1] = replace(before, last=one.last, entries=before.entries + one.entries)
        else:
            found.append(one)
    return found


def _distinguish(reading: _Reading) -> DifferingCopies:
    if not reading.verified or not reading.wrong:
        return reading.found
    why = "; ".join(f"{bookie}: {reason}" for bookie, reason in sorted(reading.wrong.items()))
    return replace(reading.found, wrong=frozenset(reading.wrong), why=why)
