"""Messages between the bookie's state machine and its storage, beside Persist and Persisted.

Effects: Fetch, ListStored, SummarizeStored, Flush, MarkLedgersDeleted, IndexWithout, CollectDue, CollectAsked,
LedgersNew, SpaceAsked, PollWaits.
Facts: the others, except CollectionResult. A Fetch, ListStored or SummarizeStored is known by its token, a Flush by its
number.
"""

from __future__ import annotations

from dataclasses import dataclass

from dlog.bookie.cache import Half
from dlog.bookie.index import LedgerRow
from dlog.machine import Peer
from dlog.wire.bookie import SummarizeEntries
from dlog.wire.bookie_v3_messages import GetSpace
from dlog.wire.entry_summary import EntryOutline, Summary


@dataclass(frozen=True, slots=True)
class Fetch:
    """Effect: read entries from `entry` on in the current index. Result: `Fetched` with the same token.

    Returns at least one entry if it exists, and those that follow it without a gap, within both bounds.
    """

    token: int
    ledger: int
    entry: int
    entries_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """Fact: consecutive packets from the requested entry on. If empty, the entry is absent or `damage` says why."""

    token: int
    packets: tuple[bytes, ...] = ()
    damage: str = ""


@dataclass(frozen=True, slots=True)
class ListStored:
    """Effect: list the entries of a ledger in the current index and those in memory, of the given ids. Result:
    `StoredListed` with the same token.
    """

    token: int
    ledger: int
    in_memory: list[int]


@dataclass(frozen=True, slots=True)
class StoredListed:
    """Fact: the list, encoded (dlog/wire/bookie_availability.py); None: it cannot be read, or has too many groups."""

    token: int
    listed: bytes | None


@dataclass(frozen=True, slots=True)
class SummarizeStored:
    """Effect: summarize the entries of a range in the current index and those in memory. Result: `StoredSummarized`
    with the same token.

    wanted: has at most SUMMARY_IDS_MAX ids. in_memory: by entry; they count, whatever the index has.
    """

    token: int
    wanted: SummarizeEntries
    in_memory: dict[int, EntryOutline]


@dataclass(frozen=True, slots=True)
class StoredSummarized:
    """Fact: the summary; None: the index or an entry log cannot be read."""

    token: int
    summary: Summary | None


@dataclass(frozen=True, slots=True)
class Flush:
    """Effect: write these entries and ledger states to entry logs and index. Result: `Flushed`.

    They are all that was durable when this number was first sent and is in no earlier flush. After a failure the same
    number is sent again, with the same contents; it must then stand for the same mark.
    """

    number: int
    entries: Half
    rows: tuple[LedgerRow, ...]


@dataclass(frozen=True, slots=True)
class Flushed:
    """Fact: a Flush is durable and in the index, or failed for lack of space."""

    failure: str = ""


@dataclass(frozen=True, slots=True)
class CheckpointDue:
    """Fact: a checkpoint is due, by time or by the length of the journal."""


@dataclass(frozen=True, slots=True)
class PersistRefused:
    """Fact: no record waiting for this journal will become durable, for lack of space. Later Persists may."""

    reason: str
    journal: int = 0


@dataclass(frozen=True, slots=True)
class SpaceSeen:
    """Fact: free bytes of the fullest directory."""

    free_bytes: int


@dataclass(frozen=True, slots=True)
class CollectDue:
    """Effect: collect deleted ledgers now. Sent when the disk becomes nearly full, and when the bookie becomes
    read-only. No result.
    """


@dataclass(frozen=True, slots=True)
class LedgersNew:
    """Effect: there are ledgers new to this bookie. Sent once until `Bookie.take_new` is called."""


@dataclass(frozen=True, slots=True)
class CollectAsked:
    """Effect: reply to this peer's Collect; the collection's actor knows the state."""

    peer: Peer
    number: int


@dataclass(frozen=True, slots=True)
class SpaceAsked:
    """Effect: reply to this peer's request; the disks know."""

    peer: Peer
    request: GetSpace


@dataclass(frozen=True, slots=True)
class PollWaits:
    """Effect: the request of this peer is a long poll and waits for a later LAC; until then it uses no disk."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class InputEnded:
    """Fact: this peer's client sends nothing more but still reads: its long polls are answered now."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class SeenInMetadata:
    """Fact: metadata of these ledgers was seen under this chain of marks; see dlog/bookie/garbage_collection.py."""

    ledgers: frozenset[int]
    chain: int


@dataclass(frozen=True, slots=True)
class LedgersToDelete:
    """Fact: these ledgers are deleted for good. Result: a Bury of those that are idle; the others stay."""

    ledgers: frozenset[int]


@dataclass(frozen=True, slots=True)
class MarkLedgersDeleted:
    """Effect: record durably that these ledgers are deleted; their space may then be freed. Result:
    `LedgersMarkedDeleted`."""

    ledgers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class CopiesToSeal:
    """Fact: take no more entries of this ledger, whose copies are moved away (dlog/bookie/moved_copies.py), unless some
    of it is not in the index yet: `Bookie.is_sealed` says so."""

    ledger: int


@dataclass(frozen=True, slots=True)
class CopiesToUnseal:
    """Fact: take entries of this ledger again."""

    ledger: int


@dataclass(frozen=True, slots=True)
class CopiesToFree:
    """Fact: the entries of these sealed ledgers are not needed here any more. Result: an IndexWithout of those that are
    idle; the seals of the others end."""

    ledgers: frozenset[int]


@dataclass(frozen=True, slots=True)
class IndexWithout:
    """Effect: remove all entries of these ledgers from the index, and store these states. Result:
    `IndexRewritten`."""

    rows: tuple[LedgerRow, ...]


@dataclass(frozen=True, slots=True)
class IndexRewritten:
    """Fact: that is durable, except for `failed`, which are unchanged, for lack of space or by damage."""

    ledgers: tuple[int, ...]
    failed: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class CollectionResult:
    """Result of a garbage collection. ledgers: deleted since the last one. failure: why some space was not freed."""

    ledgers: int
    reclaimed_bytes: int
    failure: str = ""


@dataclass(frozen=True, slots=True)
class LedgersMarkedDeleted:
    """Fact: the Bury of these ledgers is durable, except for `failed`, which are unchanged for lack of space."""

    ledgers: tuple[int, ...]
    failed: frozenset[int] = frozenset()
