"""In-memory state of a bookie's ledgers."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from dlog.bookie.index import LedgerRow
from dlog.model.ids import LedgerId

NEVER = -1


@dataclass(slots=True)
class Ledger:
    """State of one ledger. Tokens are those of Persist; NEVER: nothing is being persisted."""

    ledger: LedgerId
    master_key: bytes
    fenced: bool = False
    lac: int = -1  # highest LAC in any durable entry, or explicit one
    last: int = -1  # highest durable entry
    recorded: bool = False  # the master key was passed to the journal, or is in a checkpoint
    fence_token: int = NEVER  # token of the fence that is being persisted
    fence_durable: bool = False
    seen: int = 0  # the mark chain under which metadata had it; 0: never
    explicit_lac: bytes = b""  # packet of the last durable explicit LAC
    lac_token: int = NEVER  # token of the last explicit LAC that is being persisted
    adding: dict[int, int] = field(default_factory=dict)  # entry -> token, for adds being persisted

    def __post_init__(self) -> None:
        self.master_key = _shared(self.master_key)

    def settle(self, entry: int) -> None:
        """End the persisting of an entry."""
        adding = self.adding
        del adding[entry]
        if not adding:
            adding.clear()  # an empty dict keeps its allocated capacity

    def row(self) -> LedgerRow:
        return LedgerRow(self.ledger, self.master_key, self.fenced, self.lac, self.last, self.seen, self.explicit_lac)

    def admits(self, master_key: bytes) -> bool:
        """Whether the key is the ledger's. If it was lost with a damaged journal, the first key shown is taken."""
        if not self.master_key and len(master_key) > 0:
            self.master_key = _shared(master_key)
            self.recorded = False
        return self.master_key == master_key


@lru_cache(maxsize=1024)
def _shared(master_key: bytes) -> bytes:
    """Share one copy: most ledgers have the same key."""
    return master_key


def restored(row: LedgerRow) -> Ledger:
    """The state of a ledger after a restart."""
    ledger, master_key, fenced, lac, last, seen, explicit_lac = row
    return Ledger(
        LedgerId(ledger),
        master_key,
        fenced,
        lac,
        last,
        recorded=bool(master_key),
        fence_durable=fenced,
        seen=seen,
        explicit_lac=explicit_lac,
    )
