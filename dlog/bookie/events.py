"""Events of a bookie, for operators, tests and metrics. None happens once per entry."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dlog.events import Event


@dataclass(frozen=True, slots=True)
class BookieReadOnly(Event):
    """The bookie accepts no more ordinary adds."""

    name: ClassVar[str] = "bookie.read_only"
    level: ClassVar[str] = "warning"
    reason: str


@dataclass(frozen=True, slots=True)
class BookieWritable(Event):
    """The bookie accepts adds again."""

    name: ClassVar[str] = "bookie.writable"


@dataclass(frozen=True, slots=True)
class BookieRefused(Event):
    """By its cookie in ZooKeeper the bookie must not serve: it was taken out of the cluster. It ends."""

    name: ClassVar[str] = "bookie.refused"
    level: ClassVar[str] = "error"
    bookie: str
    reason: str


@dataclass(frozen=True, slots=True)
class PlainRefused(Event):
    """With `tls_required` the bookie refused a request of a client that did not begin TLS; at most once a minute.
    client: its address, empty on the Unix socket."""

    name: ClassVar[str] = "bookie.plain_refused"
    level: ClassVar[str] = "warning"
    client: str


@dataclass(frozen=True, slots=True)
class EntryDamaged(Event):
    """A stored entry does not verify; the request got an I/O error."""

    name: ClassVar[str] = "entry.damaged"
    level: ClassVar[str] = "error"
    ledger: int
    entry: int
    reason: str


@dataclass(frozen=True, slots=True)
class EntryConflict(Event):
    """An add of an entry that is stored with another payload was refused: two writers used one ledger id, as after
    ZooKeeper was restored from a backup. See docs/restore.md.
    """

    name: ClassVar[str] = "entry.conflict"
    level: ClassVar[str] = "error"
    ledger: int
    entry: int


@dataclass(frozen=True, slots=True)
class LedgerFencedHere(Event):
    """This bookie fenced a ledger."""

    name: ClassVar[str] = "ledger.fenced_here"
    level: ClassVar[str] = "info"
    ledger: int


@dataclass(frozen=True, slots=True)
class JournalReplayed(Event):
    """What a start replayed after the last checkpoint."""

    name: ClassVar[str] = "journal.replayed"
    groups: int
    adds: int
    ledgers: int


@dataclass(frozen=True, slots=True)
class JournalsRemoved(Event):
    """A start emptied journals that were left out of the list, and does not use them any more. dirs: separated by
    commas; they may be unmounted."""

    name: ClassVar[str] = "journals.removed"
    dirs: str


@dataclass(frozen=True, slots=True)
class CheckpointFailed(Event):
    """The disk is full; entries stay in memory and in the journal. The checkpoint is retried."""

    name: ClassVar[str] = "checkpoint.failed"
    level: ClassVar[str] = "error"
    reason: str


@dataclass(frozen=True, slots=True)
class MergeFailed(Event):
    """Index runs are not merged since one of them is damaged; reads of its entries get I/O errors."""

    name: ClassVar[str] = "merge.failed"
    level: ClassVar[str] = "error"
    reason: str


@dataclass(frozen=True, slots=True)
class BookieStarted(Event):
    """The bookie has replayed its journal and accepts requests. ledgers: how many it holds."""

    name: ClassVar[str] = "bookie.started"
    bookie: str
    address: str
    ledgers: int


@dataclass(frozen=True, slots=True)
class StorageDamaged(Event):
    """Damage found at start; requests for affected entries get I/O errors."""

    name: ClassVar[str] = "storage.damaged"
    level: ClassVar[str] = "error"
    reason: str


@dataclass(frozen=True, slots=True)
class CollectionRefused(Event):
    """Metadata cannot show which ledgers were deleted; the bookie deletes nothing."""

    name: ClassVar[str] = "collection.refused"
    level: ClassVar[str] = "error"
    reason: str


@dataclass(frozen=True, slots=True)
class MetadataChainBroken(Event):
    """Metadata lacks this bookie's last mark: it was restored from a backup, or replaced. Ledgers missing from it are
    kept; see docs/restore.md.
    """

    name: ClassVar[str] = "collection.metadata_went_back"
    level: ClassVar[str] = "warning"
    chain: int


@dataclass(frozen=True, slots=True)
class LedgersCollected(Event):
    """Garbage collection deleted ledgers that metadata no longer has, or freed space."""

    name: ClassVar[str] = "ledgers.collected"
    ledgers: int
    reclaimed_bytes: int
    live_bytes: int
    dead_bytes: int


@dataclass(frozen=True, slots=True)
class MovedCopiesFreed(Event):
    """The bookie looked for closed ledgers whose copies were moved to other bookies, and removed its own entries of
    them. kept: ledgers whose copies it kept for now; why: the most frequent reason."""

    name: ClassVar[str] = "copies.freed"
    ledgers: int
    kept: int
    why: str


@dataclass(frozen=True, slots=True)
class CollectionFailed(Event):
    """The disk is too full to record deleted ledgers or to rewrite the index without moved copies, or an entry log's
    table of contents, or the index, is damaged."""

    name: ClassVar[str] = "collection.failed"
    level: ClassVar[str] = "error"
    reason: str
