"""Makes the copies of lost bookies again, for one ledger: the request and its reply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from dlog.ledger.verifying import BadRange
from dlog.model.ids import BookieId, EntryId, LedgerId


@dataclass(frozen=True, slots=True)
class Repair:
    """Request: take the bookies `gone` out of the ledger's ensembles, with their entries copied to other bookies first.
    Reply: Repaired. Repeatable, also after an error.

    gone: bookies that shall hold nothing of the ledger any more: lost for good, or being drained. One that still
    answers is read from if no other bookie can serve an entry. bad: copies on other bookies that are missing
    (`LedgerVerifier` finds them): written again to the same bookie, without a change of metadata.
    """

    gone: frozenset[BookieId]
    bad: tuple[BadRange, ...] = ()


class Replaced(NamedTuple):
    """In the ensemble that begins at `first_entry`, bookie `new` holds what `old` held."""

    first_entry: EntryId
    old: BookieId
    new: BookieId


class Unreadable(NamedTuple):
    """Entries first..last that `bookie` should hold and that could not be copied; metadata still names it for them.

    first, last: inclusive; only entries that `bookie` should hold are meant. reason: of the first of them.
    """

    first: EntryId
    last: EntryId
    bookie: BookieId
    reason: str


@dataclass(frozen=True, slots=True)
class Repaired:
    """Reply to Repair. The repair is complete if neither `unreadable` nor `waits` says anything.

    copied_entries, copied_bytes: confirmed by the bookies they were copied to; bytes of payload. replaced: in metadata,
    in the order in which it was changed. unreadable: in order of first entry, per bookie. waits: what must happen
    before the rest can be repaired, "" if there is nothing; the last ensemble of a ledger that is not closed is never
    repaired: recover the ledger, then ask again.
    """

    ledger: LedgerId
    copied_entries: int = 0
    copied_bytes: int = 0
    replaced: tuple[Replaced, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    waits: str = ""
