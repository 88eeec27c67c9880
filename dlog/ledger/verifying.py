"""Verifying a ledger: every entry is read from every replica that should hold it, and checked.

The law of this file: nothing is mended and nothing concluded from silence. An entry is damaged if a replica's bytes do
not verify or fewer than Qa replicas hold it; it is thin if some replica lacks it or could not be asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from dlog.machine import Answer, Asked, Effect, Fact, PeerLost, Received, Send, Ticket
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import LedgerMetadata
from dlog.wire.bookie import Code, EntryRead, ReadEntry
from dlog.wire.digest import Digest, DigestMismatch

ENTRIES_AT_ONCE = 32


@dataclass(frozen=True, slots=True)
class Verify:
    """Ask: check entries 0..last. Answer: Verified. One at a time."""

    last: EntryId


@dataclass(frozen=True, slots=True)
class Verified:
    """entries: how many were checked; damaged, thin: those that are not as they should be, with why."""

    entries: int
    damaged: tuple[tuple[EntryId, str], ...]
    thin: tuple[tuple[EntryId, str], ...]


class _Check:
    """One entry: who has not answered, who holds it, what is wrong."""

    __slots__ = ("good", "missing", "waiting", "wrong")

    def __init__(self, bookies: tuple[BookieId, ...]) -> None:
        self.waiting = set(bookies)
        self.good = 0
        self.wrong: list[str] = []
        self.missing: list[str] = []


class LedgerVerifier:
    """Checks one ledger, once."""

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
                        check.missing.append(f"{peer}: {reason or 'lost'}")
        self._settle()
        self._effects = []
        return effects

    def _note_read(self, bookie: BookieId, answer: EntryRead) -> None:
        check = self._checks.get(answer.entry)
        if check is None or bookie not in check.waiting:
            return
        check.waiting.discard(bookie)
        if answer.code is not Code.OK:
            check.missing.append(f"{bookie}: {answer.code.name.lower()}")
            return
        try:
            self._digest.verify(answer.packet, answer.entry)
            check.good += 1
        except DigestMismatch as error:
            check.wrong.append(f"{bookie}: {error.message}")

    def _settle(self) -> None:
        """Judge what has been answered, ask for more, end when all is judged."""
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
            result = Verified(self._last + 1, tuple(sorted(self._damaged)), tuple(sorted(self._thin)))
            self._effects.append(Answer(self._ticket, result))
            self._ticket = None

    def _judge(self, entry: EntryId, check: _Check) -> None:
        if check.wrong:
            self._damaged.append((entry, "; ".join(check.wrong)))
        elif check.good < self._metadata.quorum.ack:
            self._damaged.append((entry, f"copies={check.good} missing: " + "; ".join(check.missing)))
        elif check.missing:
            self._thin.append((entry, "; ".join(check.missing)))
