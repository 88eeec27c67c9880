"""Verifies a ledger: reads every entry from every replica that should hold it and checks it.

Invariants:
- nothing is repaired;
- an entry is damaged if a replica's bytes do not verify or fewer than Qa replicas hold it;
- else it is thin (under-replicated) if a replica lacks it or could not be read;
- entries are judged in order. Findings are kept as ranges of neighbouring entries, at most RANGES_MAX of each
  bookie; ranges beyond are counted;
- entries above the last one that any bookie of their ensemble holds are not asked for one by one, but judged as one
  range: metadata may name a last entry far above it. If only lost bookies may hold more entries, they are asked again
  after each of PAUSES_MAX pauses; after that they count as if they held none. So does one that cannot read its last
  entry, after UNSERVED_MAX entries in a row that no bookie served (dlog/ledger/held_entries.py).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from dlog.ledger.held_entries import LAST_HELD, LastHeldEntries
from dlog.machine import Answer, Asked, Effect, Fact, PeerLost, Received, Send, SetTimer, Ticket, TimerFired
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import LedgerMetadata
from dlog.model.verification import BadRange, Verified
from dlog.wire.bookie import Code, EntryRead, ReadEntry
from dlog.wire.digest import Digest, DigestMismatch

ENTRIES_AT_ONCE = 32
RANGES_MAX = 10_000  # of each bookie
PAUSES_MAX = 20
PAUSE = "pause"  # key of the timer
PAUSE_S = 0.25

_NO_LAST = "does not say which entry is its last one"


@dataclass(frozen=True, slots=True)
class Verify:
    """Request: check entries 0..last. Reply: Verified. One request per verifier."""

    last: EntryId


class _Check:
    """Replies for one entry: bookies still asked, those with a good copy, errors by bookie."""

    __slots__ = ("good", "missing", "waiting", "wrong")

    def __init__(self, bookies: tuple[BookieId, ...]) -> None:
        self.waiting = set(bookies)
        self.good: set[BookieId] = set()
        self.wrong: dict[BookieId, str] = {}
        self.missing: dict[BookieId, str] = {}


class _Findings:
    """Ranges of bad copies, built entry by entry."""

    def __init__(self) -> None:
        self._open: dict[BookieId, BadRange] = {}  # the range that the bookie's next entry may belong to
        self._ended: dict[BookieId, list[BadRange]] = {}
        self._omitted: dict[BookieId, int] = {}

    def add(
        self, bookie: BookieId, entry: EntryId, kind: str, why: str, is_wrong: bool, last: EntryId | None = None
    ) -> None:
        """Note a bad copy of `entry`, the next one that the bookie should hold. last: all its copies up to this entry
        are bad; None: only this one."""
        found, last = self._open.get(bookie), entry if last is None else last
        if found is not None and found.kind == kind:
            self._open[bookie] = replace(found, last=last, is_wrong=found.is_wrong or is_wrong)
        else:
            self.end(bookie)
            self._open[bookie] = BadRange(entry, last, bookie, kind, why, is_wrong)

    def end(self, bookie: BookieId) -> None:
        """The bookie's range goes no further: the copy of the next entry that it should hold is good."""
        found = self._open.pop(bookie, None)
        if found is None:
            return
        ended = self._ended.setdefault(bookie, [])
        if len(ended) < RANGES_MAX:
            ended.append(found)
        else:
            self._omitted[bookie] = self._omitted.get(bookie, 0) + 1

    def end_all(self) -> tuple[tuple[BadRange, ...], tuple[tuple[BookieId, int], ...]]:
        """The ranges in order of first entry, and the number of ranges left out by bookie."""
        for bookie in list(self._open):
            self.end(bookie)
        ranges = [bad for ended in self._ended.values() for bad in ended]
        return tuple(sorted(ranges, key=lambda bad: (bad.first, bad.bookie))), tuple(sorted(self._omitted.items()))


class LedgerVerifier:
    """Verifies one ledger, once."""

    def __init__(self, ledger: LedgerId, metadata: LedgerMetadata, digest: Digest) -> None:
        self.ledger = ledger
        self._metadata = metadata
        self._digest = digest
        self._ticket: Ticket | None = None
        self._last = EntryId(-1)
        self._next = EntryId(0)  # to be requested
        self._judged = EntryId(0)  # all entries below are judged
        self._checks: dict[int, _Check] = {}  # of the entries in between
        self._held = LastHeldEntries(ledger)
        self._lost: dict[BookieId, str] = {}  # bookies without a reply since they were lost, with the reason
        self._pauses = 0  # since one of them replied
        self._is_paused = False
        self._findings = _Findings()
        self._below_write_quorum = self._below_ack_quorum = self._without_copy = 0
        self._effects: list[Effect] = []

    def handle(self, fact: Fact) -> list[Effect]:
        effects = self._effects
        match fact:
            case Asked(ticket, Verify(last)):
                assert self._ticket is None, "a verifier verifies once"
                self._ticket, self._last = ticket, last
            case Received(peer, EntryRead() as answer) if answer.ledger == self.ledger and not answer.fence:
                self._note_read(cast(BookieId, peer), answer)
            case PeerLost(peer, reason):
                self._note_lost(cast(BookieId, peer), reason or "lost")
            case TimerFired(key) if key == PAUSE:
                self._is_paused = False
                self._pauses += 1
                self._held.ask_again(sorted(self._lost), self._effects)
        self._settle()
        self._effects = []
        return effects

    def _note_lost(self, bookie: BookieId, reason: str) -> None:
        self._held.note_lost(bookie)
        waiting = [check for check in self._checks.values() if bookie in check.waiting]
        if waiting:
            self._lost[bookie] = reason
        for check in waiting:
            check.waiting.discard(bookie)
            check.missing[bookie] = reason

    def _note_read(self, bookie: BookieId, answer: EntryRead) -> None:
        if self._lost.pop(bookie, None) is not None:
            self._pauses = 0
        if answer.entry == LAST_HELD:
            self._held.note_read(bookie, answer)
            return
        check = self._checks.get(answer.entry)
        if check is None or bookie not in check.waiting:
            return
        check.waiting.discard(bookie)
        if answer.code is not Code.OK:
            check.missing[bookie] = answer.code.name.lower()
            return
        try:
            self._digest.verify(answer.packet, answer.entry)
            check.good.add(bookie)
        except DigestMismatch as error:
            check.wrong[bookie] = error.message

    def _settle(self) -> None:
        """Judge entries that all bookies replied to, request further ones, reply when all are judged."""
        if self._ticket is None:
            return
        while (check := self._checks.get(self._judged)) is not None and not check.waiting:
            self._judge(self._judged, self._checks.pop(self._judged))
            self._judged = EntryId(self._judged + 1)
        while self._next <= self._last and len(self._checks) < ENTRIES_AT_ONCE:
            ensemble = self._metadata.fragment_of(self._next).ensemble
            silent = [bookie for bookie in ensemble if not self._held.ends_below(bookie, self._next)]
            asked = [bookie for bookie in silent if not self._held.is_given_up(bookie)]
            if any(bookie not in self._lost for bookie in asked):
                self._request_next()
            elif self._checks:
                break  # they are judged before
            elif not self._lost.keys() & silent or self._pauses >= PAUSES_MAX:
                self._judge_rest(ensemble)
            else:
                if not self._is_paused and not self._held.is_waiting:
                    self._is_paused = True
                    self._effects.append(SetTimer(PAUSE, PAUSE_S))
                break
        if self._judged > self._last:
            ranges, omitted = self._findings.end_all()
            result = Verified(
                self._last + 1,
                ranges,
                below_write_quorum=self._below_write_quorum,
                below_ack_quorum=self._below_ack_quorum,
                without_copy=self._without_copy,
                omitted=omitted,
            )
            self._effects.append(Answer(self._ticket, result))
            self._ticket = None

    def _request_next(self) -> None:
        """Request the next entry of all bookies that should hold it."""
        bookies = self._metadata.bookies_of(self._next)
        self._checks[self._next] = _Check(bookies)
        self._effects += [Send(bookie, ReadEntry(self.ledger, self._next)) for bookie in bookies]
        self._next = EntryId(self._next + 1)

    def _judge_rest(self, ensemble: tuple[BookieId, ...]) -> None:
        """Judge all entries from the next one to the end of its ensemble, none of which any bookie serves."""
        first, quorum = self._next, self._metadata.quorum
        upcoming = [fragment.first_entry for fragment in self._metadata.fragments if fragment.first_entry > first]
        last = EntryId(min([self._last, *(entry - 1 for entry in upcoming)]))
        period = min(quorum.ensemble, last - first + 1)
        for index, bookie in enumerate(ensemble):
            firsts = [entry for entry in range(first, first + period) if index in quorum.write_set(entry)]
            lasts = [entry for entry in range(last - period + 1, last + 1) if index in quorum.write_set(entry)]
            if firsts:
                ends = self._held.ends_below(bookie, first)
                why = f"holds no entry above {self._held.last_of(bookie)}" if ends else self._lost.get(bookie, _NO_LAST)
                self._findings.add(bookie, EntryId(firsts[0]), "damaged", why, False, EntryId(lasts[-1]))
        entries = last - first + 1
        self._below_write_quorum += entries
        self._below_ack_quorum += entries
        self._without_copy += entries
        self._next = self._judged = EntryId(last + 1)
        self._held.note_entry(True)  # bookies are asked for the next ensemble's entries anew

    def _judge(self, entry: EntryId, check: _Check) -> None:
        for bookie in check.good:
            self._findings.end(bookie)
        self._held.note_entry(bool(check.good))
        bad = check.wrong | check.missing
        if not bad:
            return
        is_below_ack = len(check.good) < self._metadata.quorum.ack
        self._below_write_quorum += 1
        self._below_ack_quorum += is_below_ack
        self._without_copy += not check.good
        kind = "damaged" if check.wrong or is_below_ack else "thin"
        for bookie, why in bad.items():
            self._findings.add(bookie, entry, kind, why, bookie in check.wrong and bool(check.good))
        if not check.good and self._next <= self._last:
            self._held.ask(sorted(bad), self._effects)
