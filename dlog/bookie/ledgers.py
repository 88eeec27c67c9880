"""What a bookie knows of each ledger it has heard of."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from dlog.bookie.index import LedgerRow
from dlog.model.ids import LedgerId

NEVER = -1


@dataclass(slots=True)
class Ledger:
    """State of one ledger. Tokens are those of Persist; NEVER means that none was needed."""

    ledger: LedgerId
    master_key: bytes
    fenced: bool = False
    lac: int = -1  # highest LAC any durable entry carried
    last: int = -1  # highest durable entry
    recorded: bool = False  # the journal, or a checkpoint, was handed the master key
    fence_token: int = NEVER  # the fence is on its way to the disk with this token
    fence_durable: bool = False
    seen: int = 0  # the chain under which metadata of it was seen; 0: never
    adding: dict[int, int] = field(default_factory=dict)  # entry -> token, for adds on their way to the disk

    def __post_init__(self) -> None:
        self.master_key = _shared(self.master_key)

    def settle(self, entry: int) -> None:
        """It is not on its way to the disk any more."""
        adding = self.adding
        del adding[entry]
        if not adding:
            adding.clear()  # an empty dict keeps the room it had

    def row(self) -> LedgerRow:
        return LedgerRow(self.ledger, self.master_key, self.fenced, self.lac, self.last, self.seen)

    def admits(self, master_key: bytes) -> bool:
        """Whether the key is the ledger's. A key lost with a damaged journal is replaced by the first one shown."""
        if not self.master_key and len(master_key) > 0:
            self.master_key = _shared(master_key)
            self.recorded = False
        return self.master_key == master_key


@lru_cache(maxsize=1024)
def _shared(master_key: bytes) -> bytes:
    """Most ledgers of a cluster have the same."""
    return master_key


def restored(row: LedgerRow) -> Ledger:
    """The state a restart found."""
    ledger, master_key, fenced, lac, last, seen = row
    return Ledger(
        LedgerId(ledger), master_key, fenced, lac, last, recorded=bool(master_key), fence_durable=fenced, seen=seen
    )
