"""A comparison of random copies, with bookies that fail and copies that arrive meanwhile, judged by brute force.

The bookies are played here: each has packets by entry, and answers from them with the code of the real bookie
(dlog/wire/entry_summary.py, dlog/bookie/summaries.py). Answers come in random order.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any, cast

from dlog.bookie.listing import list_of
from dlog.bookie.messages import SummarizeStored
from dlog.bookie.summaries import Summaries, summary_of
from dlog.errors import DLogError
from dlog.ledger.comparing import (
    CHANGED,
    DELETED,
    PARTS_AT_ONCE,
    RANGES_MAX,
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
    PeerLost,
    ReadMetadata,
    Received,
    Send,
    SetTimer,
    TimerFired,
    Versioned,
)
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import DigestType, Fragment, LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
from dlog.wire.bookie import Code, EntriesSummarized, EntryRead, ReadEntry, SummarizeEntries
from dlog.wire.bookie_v3_messages import EntriesListed, ListEntries
from dlog.wire.digest import Digest
from dlog.wire.entry_summary import HEAD_BYTES_MAX, EntryOutline

LEDGER = LedgerId(7)
BOOKIES = tuple(BookieId(f"b{number}:1") for number in range(7))
STEPS_MAX = 200_000


class Violation(AssertionError):
    """A broken invariant, by its number in dlog/ledger/comparing.py."""

    def __init__(self, invariant: str, why: str) -> None:
        super().__init__(f"{invariant}: {why}")
        self.invariant = invariant


@dataclass(slots=True)
class Copies:
    """What one bookie has. at_start: entries that it had when the comparison began. unreadable: those that it cannot
    read, as after the loss of an entry log."""

    packets: dict[int, bytes]
    at_start: set[int]
    knows_ledger: bool = True
    unreadable: frozenset[int] = frozenset()


class ComparingWorld:
    """One comparison, drawn from a seed."""

    def __init__(self, seed: int, comparer: type[LedgerComparer] = LedgerComparer) -> None:
        self.rng = rng = random.Random(seed)
        ensemble = rng.randint(1, 5)
        write = rng.randint(1, ensemble)
        self.digest = Digest(LEDGER, rng.choice((DigestType.CRC32C, DigestType.CRC32C, DigestType.CRC32)), b"pw")
        self.last = rng.choice((-1, 0, 3, 40, 40, 150, 300, 600, 1200))
        firsts = [0, *sorted(rng.sample(range(1, max(self.last, 2)), rng.randint(0, 2)))] if self.last > 4 else [0]
        fragments = tuple(Fragment(EntryId(f), tuple(rng.sample(BOOKIES, ensemble))) for f in firsts)
        self.value = LedgerMetadata(
            quorum=Quorum(ensemble=ensemble, write=write, ack=rng.randint(1, write)),
            fragments=fragments,
            state=LedgerState.CLOSED,
            last_entry=EntryId(self.last),
            digest=self.digest.type,
            password=b"pw",
        )
        self.lists = frozenset(b for b in BOOKIES if rng.random() < 0.15)
        self.absent = frozenset(b for b in BOOKIES if rng.random() < 0.05)
        self.failing = {b for b in BOOKIES if rng.random() < 0.15}
        self.failures: list[Any] = []  # facts from which on the machine knows that a bookie fails
        self.failed: set[BookieId] = set()
        self.copies = self._draw_copies()
        self.changes = rng.random() < 0.1
        self.reads = 0
        self.arrives = rng.random() < 0.3
        self.machine = comparer(LEDGER, narrowings_max=rng.choice((0, 5, 100_000, 100_000, 100_000)))
        self.is_exact = self.machine._narrowings_left > 1000
        self.reached: Counter[str] = Counter()
        self._lose_entry_logs(random.Random(seed))

    def _lose_entry_logs(self, rng: random.Random) -> None:
        for bookie, copy in self.copies.items():
            if rng.random() < 0.1 and bookie not in self.lists and copy.packets:
                first = rng.choice(sorted(copy.packets))
                lost = range(first, first + rng.choice((1, 1, 30, 700)))
                copy.unreadable = frozenset(copy.packets.keys() & lost)

    def holders(self, entry: int) -> tuple[BookieId, ...]:
        return self.value.bookies_of(entry)

    def packet(self, entry: int, *, body: bytes | None = None, lac: int | None = None) -> bytes:
        payload = b"%04d" % (entry % 7) if body is None else body
        lac = entry - 1 if lac is None else lac
        return b"".join(bytes(p) for p in self.digest.pack(entry, lac, 4 * (entry + 1), (payload,)))

    def _draw_copies(self) -> dict[BookieId, Copies]:
        """What each bookie has: all, but for random holes, other LACs, and now and then another content."""
        rng, last = self.rng, self.last
        copies: dict[BookieId, Copies] = {b: Copies({}, set()) for b in BOOKIES}
        for entry in range(last + 1):
            for bookie in self.holders(entry):
                copies[bookie].packets[entry] = self.packet(entry, lac=rng.choice((None, last)))
        for copy in copies.values():
            fate = rng.random()
            if fate < 0.1:
                copy.packets.clear()
                copy.knows_ledger = rng.random() < 0.5
            elif fate < 0.4:
                for _ in range(rng.randint(1, 3)):
                    first = rng.randint(0, max(last, 0))
                    for entry in range(first, first + rng.choice((1, 1, 2, 30, 700))):
                        copy.packets.pop(entry, None)
            elif fate < 0.5:
                for entry in list(copy.packets)[:: rng.randint(2, 40)]:
                    del copy.packets[entry]
            if rng.random() < 0.2 and copy.packets:
                for entry in rng.sample(sorted(copy.packets), min(rng.randint(1, 3), len(copy.packets))):
                    copy.packets[entry] = self._other(entry)
            copy.at_start = set(copy.packets)
        return copies

    def _other(self, entry: int) -> bytes:
        if self.rng.random() < 0.5:
            return self.packet(entry, body=b"else")  # verifies
        broken = bytearray(self.packet(entry))
        broken[32 + self.digest.size - 1] ^= 0x40
        return bytes(broken)

    # ---- running -----------------------------------------------------------------------------------------------------

    def run(self) -> Compared:
        """Run to the end and check the reply. Raises Violation."""
        requests = Compare(frozenset(BOOKIES) - self.lists - self.absent, self.lists - self.absent)
        waiting: list[Any] = [Asked(1, requests)]
        for _ in range(STEPS_MAX):
            if not waiting:
                raise Violation("ends", "no answer")
            fact = waiting.pop(self.rng.randrange(len(waiting)))
            if fact in self.failures:
                self.failed.add(fact.peer)
            for effect in self.machine.handle(fact):
                match effect:
                    case Answer(_, Compared() as compared):
                        self.check(compared)
                        return compared
                    case Answer(_, error):
                        raise Violation("ends", repr(error))
                    case ReadMetadata(token):
                        waiting.append(MetadataSeen(token, self._metadata()))
                    case Send(peer, message):
                        waiting.append(self._answer(cast(BookieId, peer), message))
                    case SetTimer(key):
                        self.reached["step"] += 1
                        if (fired := TimerFired(key, 0.0)) not in waiting:
                            waiting.append(fired)
            if len(self.machine._questions) > PARTS_AT_ONCE:
                raise Violation("6", "too many parts in flight")
        raise Violation("ends", "too many steps")

    def _metadata(self) -> Any:
        self.reads += 1
        if self.reads == 2 and self.changes:
            if self.rng.random() < 0.5:
                return Missing()
            other = replace(
                self.value.fragments[0], ensemble=(BookieId("new:1"), *self.value.fragments[0].ensemble[1:])
            )
            return Versioned(replace(self.value, fragments=(other, *self.value.fragments[1:])), 2)
        return Versioned(self.value, self.reads)

    def _answer(self, bookie: BookieId, message: Any) -> Any:
        if bookie in self.absent:
            raise Violation("1", f"{bookie} is not registered and was asked")
        if bookie in self.failed:
            raise Violation("1", f"{bookie} failed and was asked again")
        if bookie in self.failing and self.rng.random() < 0.3:
            return self._fail(bookie, message)
        copy = self.copies[bookie]
        if self.arrives and self.rng.random() < 0.3:
            for entry in range(self.last + 1):
                if bookie in self.holders(entry) and self.rng.random() < 0.5:
                    copy.packets.setdefault(entry, self.packet(entry))
                    copy.knows_ledger = True
        match message:
            case SummarizeEntries() as m:
                if bookie in self.lists:
                    raise Violation("1", f"{bookie} serves no summaries and was asked for one")
                if Summaries(lambda _l, _e: None).refusal(m) is not None:
                    raise Violation("6", f"a bookie would refuse {m}")
                if not copy.knows_ledger:
                    return Received(bookie, EntriesSummarized(LEDGER, m.first, m.request, Code.NO_LEDGER))
                if not copy.unreadable.isdisjoint(
                    range(m.first + (m.remainder - m.first) % m.modulus, m.last + 1, m.modulus)
                ):
                    return Received(bookie, EntriesSummarized(LEDGER, m.first, m.request, Code.IO_ERROR))
                summary = summary_of(SummarizeStored(1, m, {}), self._stored(copy))
                return Received(bookie, EntriesSummarized(LEDGER, m.first, m.request, Code.OK, *summary))
            case ListEntries():
                code = Code.OK if copy.knows_ledger else Code.NO_LEDGER
                return Received(bookie, EntriesListed(LEDGER, code, list_of([], sorted(copy.packets)) or b""))
            case ReadEntry(_, entry):
                found = max(copy.packets, default=-1) if entry == -1 else entry
                if found in copy.unreadable:
                    return Received(bookie, EntryRead(LEDGER, entry, Code.IO_ERROR))
                held = copy.packets.get(found)
                code = Code.OK if held is not None else Code.NO_ENTRY
                return Received(bookie, EntryRead(LEDGER, entry, code, held or b""))
        raise Violation("ends", f"unknown request {message}")

    def _stored(self, copy: Copies) -> Any:
        def stored(entry: int) -> EntryOutline | None:
            held = copy.packets.get(entry)
            return None if held is None else EntryOutline(entry, held[:HEAD_BYTES_MAX], len(held))

        return stored

    def _fail(self, bookie: BookieId, message: Any) -> Any:
        fact: Any = PeerLost(bookie, "reset")
        if isinstance(message, SummarizeEntries) and self.rng.random() < 0.5:
            code = self.rng.choice((Code.UNAUTHORIZED, Code.TOO_MANY_REQUESTS))
            fact = Received(bookie, EntriesSummarized(LEDGER, message.first, message.request, code))
        self.failures.append(fact)
        return fact

    # ---- judging -----------------------------------------------------------------------------------------------------

    def check(self, said: Compared | DLogError) -> None:
        assert isinstance(said, Compared)
        if self.changes:
            if said.skipped not in (CHANGED, DELETED) or said.missing or said.differing:
                raise Violation("4", f"metadata changed: {said}")
            self.reached["changed"] += 1
            return
        if said.skipped:
            raise Violation("4", said.skipped)
        out = dict(said.out_of_reach)
        named = {b for f in self.value.fragments for b in f.ensemble}
        unreadable = {bookie for bookie, copy in self.copies.items() if copy.unreadable}
        if not (self.absent & named) <= out.keys() or not out.keys() <= self.absent | self.failing | unreadable:
            raise Violation("1", f"out of reach: {sorted(out)}")
        self._check_missing(said, out.keys())
        if not self.arrives and self.is_exact:
            self._check_differing(said, out.keys())
        if said.is_complete:
            self._check_unreadable(said, out.keys())

    def _check_unreadable(self, said: Compared, out: Any) -> None:
        """A bookie that cannot read a copy is out of reach, or another one's copy of such an entry verified."""
        told = [(b, d.first) for d in said.differing for b in d.wrong if d.first in self.copies[b].unreadable]
        wrong = dict(told)
        if len(wrong) < len(told):
            raise Violation("6", f"more than one copy of a bookie that cannot be read: {told}")
        for bookie, copy in self.copies.items():
            if bookie not in self.lists and any(bookie in self.holders(entry) for entry in copy.unreadable):
                if bookie not in out and bookie not in wrong:
                    raise Violation("2", f"{bookie} cannot read {sorted(copy.unreadable)[:5]}, which is not reported")
                self.reached["unreadable"] += bookie in wrong
        for bookie, entry in wrong.items():
            others = [self.copies[b] for b in self.holders(entry) if b != bookie]
            if not any(entry in c.packets and self._verifies(c.packets[entry]) for c in others):
                raise Violation("3", f"{bookie} cannot read {entry}, and no other copy verifies")

    def _check_missing(self, said: Compared, out: Any) -> None:
        told: dict[BookieId, set[int]] = {b: set() for b in BOOKIES}
        covered: dict[BookieId, set[int]] = {b: set() for b in BOOKIES}
        for found in said.missing:
            ids = {e for e in ids_of(found) if found.bookie in self.holders(e)}
            covered[found.bookie] |= ids
            if found.is_exact:
                if told[found.bookie] & ids or len(ids) != found.entries or ids_of(found) - ids:
                    raise Violation("2", f"reported twice, or ids that it should not hold: {found}")
                told[found.bookie] |= ids
        for bookie in BOOKIES:
            copy = self.copies[bookie]
            should = {e for e in range(self.last + 1) if bookie in self.holders(e)}
            never, at_end = should - copy.packets.keys(), should - copy.at_start
            if told[bookie] - at_end:
                raise Violation("1", f"{bookie} had {sorted(told[bookie] - at_end)[:5]} all the time")
            if bookie not in out and said.is_complete and never - covered[bookie] and not copy.unreadable:
                raise Violation("2", f"{bookie} lacks {sorted(never - covered[bookie])[:5]}, which is not reported")
            if self.is_exact and any(not found.is_exact for found in said.missing):
                raise Violation("2", "not narrowed")
            self.reached["missing"] += bool(told[bookie])
            self.reached["inexact"] += bool(covered[bookie] - told[bookie])
        self.reached["out"] += bool(out)

    def _check_differing(self, said: Compared, out: Any) -> None:
        found = {d.first: d for d in said.differing if d.first == d.last}
        for entry in range(self.last + 1):
            asked = [b for b in self.holders(entry) if b not in self.lists]
            held = {b: self.copies[b].packets[entry] for b in asked if entry in self.copies[b].packets}
            sure = {b: packet for b, packet in held.items() if b not in out and not self.copies[b].unreadable}
            held = {b: packet for b, packet in held.items() if entry not in self.copies[b].unreadable}
            if len({self._content(packet) for packet in sure.values()}) > 1 and said.is_complete:
                if entry not in found or not sure.keys() <= found[EntryId(entry)].bookies:
                    raise Violation("2", f"copies of {entry} differ, which is not reported")
                self.reached["differing"] += 1
                self._check_wrong(found[EntryId(entry)], held, out, len(said.differing))
            elif (
                entry in found
                and len({self._content(packet) for packet in held.values()}) <= 1
                and all(entry not in self.copies[b].unreadable for b in asked)
            ):
                raise Violation("2", f"copies of {entry} are equal")

    def _check_wrong(self, said: DifferingCopies, held: dict[BookieId, bytes], out: Any, differing: int) -> None:
        bad = {b for b, packet in held.items() if not self._verifies(packet)}
        unreadable = {b for b in said.bookies if said.first in self.copies[b].unreadable}
        if said.wrong - bad - unreadable:
            raise Violation("3", f"good copies counted as wrong: {said}")
        if said.wrong and not held.keys() - bad:
            raise Violation("3", f"wrong without a good one: {said}")
        if not out and bad and held.keys() - bad and not bad <= said.wrong and differing <= 16:
            raise Violation("3", f"wrong copies not told: {said}")
        self.reached["wrong"] += bool(said.wrong)
        self.reached["undecided"] += not said.wrong

    def _content(self, packet: bytes) -> bytes:
        """What is the same in all copies of an entry, and what its digest says of its payload."""
        verifies = self._verifies(packet)
        return packet[24:32] + packet[32 + self.digest.size :] + (b"" if verifies else packet[32:])

    def _verifies(self, packet: bytes) -> bool:
        try:
            self.digest.verify(packet)
        except DLogError:
            return False
        return True


def ids_of(found: MissingCopies) -> set[int]:
    return {e for e in range(found.first, found.last + 1) if e % found.modulus == found.remainder}


def is_bounded(said: Compared) -> bool:
    return len(said.missing) + len(said.differing) <= 2 * RANGES_MAX
