"""What the bookie machine asks of its storage, and what it hears from it, beside Persist and Persisted.

Effects: Fetch, Flush, Bury, CollectDue, CollectAsked, LedgersNew. Facts: the others, but for Freed. A Fetch is known by
its token, a Flush by its number.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog.bookie.cache import Half
from dlog.bookie.index import LedgerRow
from dlog.machine import Peer


@dataclass(frozen=True, slots=True)
class Fetch:
    """Effect: look up entries from `entry` on in the index as it is now; answered by `Fetched` with the same token.

    At least one entry if it is there, and those that follow it without a gap, up to both bounds.
    """

    token: int
    ledger: int
    entry: int
    entries_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """Fact: consecutive packets from the entry asked for. None: `damage` says why, or the entry is absent."""

    token: int
    packets: tuple[bytes, ...] = ()
    damage: str = ""


@dataclass(frozen=True, slots=True)
class Flush:
    """Effect: put these entries and ledger states into entry logs and index. Answered by `Flushed`.

    They are everything that was durable when the number was first heard and is in no earlier flush; after a failure the
    same number comes again with the same contents, and the mark it stands for must be the same, too.
    """

    number: int
    entries: Half
    rows: tuple[LedgerRow, ...]


@dataclass(frozen=True, slots=True)
class Flushed:
    """Fact: a Flush is durable and in the index, or failed for want of space."""

    failure: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointDue:
    """Fact: time, or the length of the journal, asks for a checkpoint."""


@dataclass(frozen=True, slots=True)
class PersistRefused:
    """Fact: nothing that waits for the journal will become durable, for want of space; later Persists may."""

    reason: str


@dataclass(frozen=True, slots=True)
class SpaceSeen:
    """Fact: free bytes of the fullest directory."""

    free_bytes: int


@dataclass(frozen=True, slots=True)
class CollectDue:
    """Effect: collect ledgers that are gone now. Given when the disk becomes nearly full, and when the bookie becomes
    read-only; not answered."""


@dataclass(frozen=True, slots=True)
class LedgersNew:
    """Effect: there are ledgers that were never heard of before. Given once until `Bookie.take_new` is called."""


@dataclass(frozen=True, slots=True)
class CollectAsked:
    """Effect: answer this peer's Collect; what runs the collections knows of them."""

    peer: Peer
    number: int


@dataclass(frozen=True, slots=True)
class SeenInMetadata:
    """Fact: metadata of these ledgers was seen under this chain of marks; see dlog/bookie/collecting.py."""

    ledgers: frozenset[int]
    chain: int


@dataclass(frozen=True, slots=True)
class BuryDue:
    """Fact: these ledgers are gone for good. Answered by a Bury of those of them that rest; the others stay."""

    ledgers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Bury:
    """Effect: put on stable storage that these ledgers are gone; what they hold may be freed then. Answered by
    `Buried`."""

    ledgers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Freed:
    """What a collection did on the disk. ledgers: deleted since the last. failure: why some of what is gone is left."""

    ledgers: int
    reclaimed_bytes: int
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Buried:
    """Fact: a Bury of these ledgers is durable, except for `failed`, of which nothing was touched for want of space."""

    ledgers: tuple[int, ...]
    failed: frozenset[int] = frozenset()
