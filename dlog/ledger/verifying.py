"""Verifies a ledger: reads every entry from every replica that should hold it and checks it.

Invariants:
- nothing is repaired;
- an entry is damaged if a replica's bytes do not verify or fewer than Qa replicas hold it;
- else it is thin (under-replicated) if a replica lacks it or could not be read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

from dlog.machine import Answer, Asked, Effect, Fact, PeerLost, Received, Send, Ticket
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import LedgerMetadata
from dlog.wire.bookie import Code, EntryRead, ReadEntry
from dlog.wire.digest import Digest, DigestMismatch

ENTRIES_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Verify:
    """Request: check entries 0..last. Reply: Verified. One request per verifier."""

    last: EntryId


@dataclass(frozen=True, slots=True)
class BadRange:
    """A bookie's copies of entries first..last, of those it should hold, that are missing or do not verify.

    kind: "damaged" or "thin", as the entries are. why: the reason for the first of them. is_wrong: the bookie holds
    copies that do not verify, while another one's do.
    """

    first: EntryId
    last: EntryId
    bookie: BookieId
    kind: str
    why: str
    is_wrong: bool = False


@dataclass(frozen=True, slots=True)
class Verified:
    """Reply to Verify. entries: number checked; damaged, thin: entry and reason. ranges: the same by bookie, in order
    of first entry.
    """

    entries: int
    damaged: tuple[tuple[EntryId, str], ...]
    thin: tuple[tuple[EntryId, str], ...]
    ranges: tuple[BadRange, ...] = ()


class _Check:
    """Replies for one entry: bookies still asked, good copies, errors by bookie."""

    __slots__ = ("good", "missing", "waiting", "wrong")

    def __init__(self, bookies: tuple[BookieId, ...]) -> None:
        self.waiting = set(bookies)
        self.good = 0
        self.wrong: dict[BookieId, str] = {}
        self.missing: dict[BookieId, str] = {}


class LedgerVerifier:
    """Verifies one ledger, once."""

    def __init__(self, ledger: LedgerId, metadata: LedgerMetadata, digest: Digest) -> None:
        self.ledger = ledger
        self._metadata = metadata
        self._digest = digest
        self._ticket: Ticket | None = None
        self._last = EntryId(-1)
        self._next = EntryId(0)
        self._checks: dict[int, _Check] = {}
        self._damaged: list[tuple[EntryId, str]] = []
        self._thin: list[tuple[EntryId, str]] = []
        self._bad: list[tuple[BookieId, str, EntryId, str, bool]] = []  # bookie, kind, entry, why, is_wrong
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
                for check in self._checks.values():
                    if peer in check.waiting:
                        check.waiting.discard(cast(BookieId, peer))
                        check.missing[cast(BookieId, peer)] = reason or "lost"
        self._settle()
        self._effects = []
        return effects

    def _note_read(self, bookie: BookieId, answer: EntryRead) -> None:
        check = self._checks.get(answer.entry)
        if check is None or bookie not in check.waiting:
            return
        check.waiting.discard(bookie)
        if answer.code is not Code.OK:
            check.missing[bookie] = answer.code.name.lower()
            return
        try:
            self._digest.verify(answer.packet, answer.entry)
            check.good += 1
        except DigestMismatch as error:
            check.wrong[bookie] = error.message

    def _settle(self) -> None:
        """Judge entries that all bookies replied to, request further ones, reply when all are judged."""
        if self._ticket is None:
            return
        for entry in [entry for entry, check in self._checks.items() if not check.waiting]:
            self._judge(EntryId(entry), self._checks.pop(entry))
        while self._next <= self._last and len(self._checks) < ENTRIES_AT_ONCE:
            bookies = self._metadata.bookies_of(self._next)
            self._checks[self._next] = _Check(bookies)
            self._effects += [Send(bookie, ReadEntry(self.ledger, self._next)) for bookie in bookies]
            self._next = EntryId(self._next + 1)
        if not self._checks and self._next > self._last:
            damaged, thin = tuple(sorted(self._damaged)), tuple(sorted(self._thin))
            result = Verified(self._last + 1, damaged, thin, self._ranges())
            self._effects.append(Answer(self._ticket, result))
            self._ticket = None

    def _judge(self, entry: EntryId, check: _Check) -> None:
        if check.wrong:
            self._damaged.append((entry, _told(check.wrong)))
        elif check.good < self._metadata.quorum.ack:
            self._damaged.append((entry, f"copies={check.good} missing: {_told(check.missing)}"))
        elif check.missing:
            self._thin.append((entry, _told(check.missing)))
            self._bad += [(bookie, "thin", entry, why, False) for bookie, why in check.missing.items()]
            return
        is_known = check.good > 0
        self._bad += [(bookie, "damaged", entry, why, is_known) for bookie, why in check.wrong.items()]
        self._bad += [(bookie, "damaged", entry, why, False) for bookie, why in check.missing.items()]

    def _ranges(self) -> tuple[BadRange, ...]:
        """Merge consecutive bad entries of a bookie that have the same kind."""
        found: list[BadRange] = []
        for bookie, kind, entry, why, is_wrong in sorted(self._bad):
            last = found[-1] if found else None
            if (
                last is not None
                and (last.bookie, last.kind, last.is_wrong) == (bookie, kind, is_wrong)
                and self._follows(bookie, last.last, entry)
            ):
                found[-1] = replace(last, last=entry)
            else:
                found.append(BadRange(entry, entry, bookie, kind, why, is_wrong))
        return tuple(sorted(found, key=lambda bad: (bad.first, bad.bookie)))

    def _follows(self, bookie: BookieId, last: EntryId, entry: EntryId) -> bool:
        """Whether the bookie should hold no entry between these two."""
        return all(bookie not in self._metadata.bookies_of(EntryId(e)) for e in range(last + 1, entry))


def _told(bookies: dict[BookieId, str]) -> str:
    return "; ".join(f"{bookie}: {why}" for bookie, why in bookies.items())
