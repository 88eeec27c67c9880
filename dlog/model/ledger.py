"""Ledger metadata as a value: state, fragments, and the changes that the protocol makes.

Bytes: dlog/wire/ledger_metadata.py. Source: BookKeeper `LedgerMetadataFormat`.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace

from dlog.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from dlog.model.quorum import Quorum


class LedgerState(enum.IntEnum):
    """State; numbers as in the stored format."""

    OPEN = 1
    IN_RECOVERY = 2
    CLOSED = 3


class DigestType(enum.IntEnum):
    """Digest; numbers as in the stored format."""

    CRC32 = 1
    HMAC = 2
    CRC32C = 3
    DUMMY = 4


@dataclass(frozen=True, slots=True)
class LedgerKey:
    """Metadata key of one ledger (dlog/machine.py)."""

    ledger: LedgerId


@dataclass(frozen=True, slots=True)
class Fragment:
    """Entries from `first_entry` up to the next fragment's are striped over this ensemble, in its order."""

    first_entry: EntryId
    ensemble: tuple[BookieId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerMetadata:
    """A ledger's metadata. `last_entry` and `length` are valid only once the state is CLOSED."""

    quorum: Quorum
    fragments: tuple[Fragment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry: EntryId = NO_ENTRY
    length: int = 0
    digest: DigestType = DigestType.CRC32C
    password: bytes = b""
    ctime_ms: int | None = None
    custom: tuple[tuple[str, bytes], ...] = ()
    ctoken: int = field(default=0, compare=False)

    def fragment_of(self, entry_id: int) -> Fragment:
        """The fragment that holds (or would hold) this entry."""
        found = self.fragments[0]
        for fragment in self.fragments:
            if fragment.first_entry > entry_id:
                break
            found = fragment
        return found

    def bookies_of(self, entry_id: int) -> tuple[BookieId, ...]:
        """Members of the entry's write set, in striping order."""
        ensemble = self.fragment_of(entry_id).ensemble
        return tuple(ensemble[i] for i in self.quorum.write_set(entry_id))

    @property
    def is_closed(self) -> bool:
        return self.state is LedgerState.CLOSED

    def with_ensemble(self, first_entry: EntryId, ensemble: tuple[BookieId, ...]) -> LedgerMetadata:
        """Use this ensemble from `first_entry` on: replaces the last fragment if it begins there, else adds one."""
        last = self.fragments[-1]
        assert first_entry >= last.first_entry, "fragments start at increasing entries"
        kept = self.fragments[:-1] if last.first_entry == first_entry else self.fragments
        return replace(self, fragments=(*kept, Fragment(first_entry, ensemble)))

    def in_recovery(self) -> LedgerMetadata:
        return replace(self, state=LedgerState.IN_RECOVERY)

    def closed_at(self, last_entry: EntryId, length: int) -> LedgerMetadata:
        return replace(self, state=LedgerState.CLOSED, last_entry=last_entry, length=length)
