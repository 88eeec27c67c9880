"""Defects planted into code that deletes: garbage collection of bookies, and rounds of upkeep of write proxies.

Several rules protect each ledger, so a defect that removes one of them may do no harm. Each defect here removes as many
as are needed and says which. Faults that are added here do no harm by themselves.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

from actors.bookie.collection import GarbageCollection
from dlog.bookie.bookie import Bookie
from dlog.bookie.garbage_collection import ContactLost, GarbageCollector, LedgersListed, LedgersRead, RoundDue
from dlog.bookie.id_set import IdSet
from dlog.bookie.index import LedgerRow, RunBuilder
from dlog.bookie.manifest import LogFile
from dlog.errors import MetadataUnavailableError
from dlog.io import sorted_index
from dlog.io.ledger_dir import LedgerDir
from dlog.io.metadata import StreamHead
from dlog.machine import Missing, Versioned
from dlog.model.ids import StreamName
from dlog.model.segment import Owner, Segment, StreamKey, StreamMetadata
from dlog.stores.contract import SegmentRef
from proxies.write.admin import Admin, Removed, _DeleteResult
from proxies.write.upkeep import Upkeep
from tests.simulation.service.planting import Plant, both, instead, mutant
from tests.simulation.worlds import Mutant


def _half_listed(listed: Any) -> Any:
    """A listing that failed on the way counts as complete. One in five fails here after half of its ledgers."""

    async def wrong(self: GarbageCollection, known: frozenset[int]) -> LedgersListed:
        present: set[int] = set()
        names: list[int] = []
        with contextlib.suppress(MetadataUnavailableError):
            async for ledger in self._metadata.ledgers():
                names.append(ledger)
        if self._number % 5 == 0:
            del names[len(names) // 2 :]
        present.update(names)
        return LedgersListed(known & present)

    return wrong


def _unread(read: Any) -> Any:
    """A ledger that the listing lacks is not read once more."""

    async def wrong(self: GarbageCollection, ledgers: Any) -> LedgersRead:
        if not self._is_collecting:
            found: LedgersRead = await read(self, ledgers)
            return found
        return LedgersRead(frozenset(), frozenset(ledgers))

    return wrong


def _known_late(listed: Any) -> Any:
    """A ledger that the bookie received during the listing is looked up in it, and counts as known before it. Needs
    `_judged_late`."""

    async def wrong(self: GarbageCollection, known: frozenset[int]) -> LedgersListed:
        found: LedgersListed = await listed(self, known)
        collector, now = self._collector, self._machine.known()
        assert collector._round is not None
        late = dict.fromkeys(now.keys() - known, collector._chain)
        collector._round = replace(collector._round, known={**collector._round.known, **late})
        return found

    return wrong


def _judged_late(listed: Any) -> Any:
    """The end of the listing is evaluated with the set of ledgers that `_known_late` extends."""

    def wrong(self: GarbageCollector, due: RoundDue, present: frozenset[int]) -> Any:
        assert self._round is not None
        return listed(self, self._round, present)

    return wrong


def _any_mark(begin: Any) -> Any:
    """Any mark in metadata, or none, is taken for the bookie's last one."""

    def wrong(self: GarbageCollector, due: RoundDue) -> Any:
        first = self._first
        self._first = Versioned(self._record.mark, None) if first is None else replace(first, value=self._record.mark)
        effects = begin(self, due)
        self._first = first
        return effects

    return wrong


def _found_for_good(handle: Any) -> Any:
    """Results of reading metadata still count after contact with metadata was lost."""

    def wrong(self: GarbageCollector, fact: Any) -> Any:
        found = set(self._found)
        effects = handle(self, fact)
        if isinstance(fact, ContactLost):
            self._found |= found
        return effects

    return wrong


def _nothing(collect: Any) -> Any:
    """A collection does nothing, and reports that it is done."""

    async def wrong(self: GarbageCollection) -> None:
        self._collected.set()

    return wrong


def _in_place(compact: Any) -> Any:
    """No entry log is ever compacted."""
    return lambda self, below, bytes_max: None


def _stale(compact: Any) -> Any:
    """When a log was compacted, the manifest gets the list of logs from the start of the compaction: what was flushed
    meanwhile, to new logs or to the end of others, is forgotten."""
    begun: dict[LedgerDir, tuple[LogFile, ...]] = {}

    def wrong(self: LedgerDir, below: float, bytes_max: int) -> int | None:
        if self._victim is None:
            begun[self] = self.manifest.logs
        copied: int | None = compact(self, below, bytes_max)
        if copied == 0:
            left = {log.log for log in self.manifest.logs}
            logs = tuple(log for log in begun[self] if log.log in left)
            self._install(replace(self.manifest, logs=logs))
        return copied

    return wrong


def _first_part(entries_to_move: Any) -> Any:
    """A log counts as empty when only a first part of it was copied."""

    def wrong(self: LedgerDir, victim: Any, bytes_max: int) -> Any:
        moved = entries_to_move(self, victim, bytes_max)
        victim.ledgers.clear()
        return moved

    return wrong


def _forgotten(load: Any) -> Any:
    """A bookie that starts again does not read which ledgers it has buried."""

    def wrong(self: LedgerDir) -> list[LedgerRow]:
        rows: list[LedgerRow] = load(self)
        self.gone = IdSet()
        return rows

    return wrong


def _unburied(bury: Any) -> Any:
    """That a ledger is buried is not written to disk."""

    def wrong(self: LedgerDir, ledgers: Any) -> None:
        buried = tuple(ledgers)
        with mock.patch.object(self.reserve, "replace_file", lambda *_: None):
            bury(self, buried)

    return wrong


@contextlib.contextmanager
def _open_again() -> Iterator[None]:
    """The state machine forgets a buried ledger as if it had never existed: the next add creates it again. Here the
    last add of each ledger comes a second time when it was buried, as from a writer that was frozen: that alone does no
    harm."""
    add, buried = Bookie._add, Bookie._buried
    last: dict[tuple[Bookie, int], tuple[Any, Any]] = {}

    def noted(self: Bookie, peer: Any, m: Any, out: list[Any], known_absent: bool = False) -> None:
        last[self, m.ledger] = (peer, m)
        add(self, peer, m, out, known_absent)

    def wrong(self: Bookie, fact: Any, out: list[Any]) -> None:
        buried(self, fact, out)
        self._gone = IdSet()
        for ledger in fact.ledgers:
            if (self, ledger) in last:
                add(self, *last[self, ledger], out)

    with mock.patch.multiple(Bookie, _add=noted, _buried=wrong):
        yield


def _rewritten(spoil: Callable[[LedgerRow], LedgerRow]) -> Plant:
    """Rewriting an index, as happens to one that is mostly of deleted ledgers, corrupts the ledger states in it."""

    @contextlib.contextmanager
    def plant() -> Iterator[None]:
        merged, finish = sorted_index._merged, RunBuilder.finish

        def spoilt(self: RunBuilder, rows: Iterable[LedgerRow]) -> Any:
            return finish(self, map(spoil, rows))

        def wrong(runs: Any, builder: RunBuilder, gone: IdSet) -> Any:
            with mock.patch.object(RunBuilder, "finish", spoilt):
                yield from merged(runs, builder, gone)

        with mock.patch.object(sorted_index, "_merged", wrong):
            yield

    return plant


COLLECTION: tuple[Mutant, ...] = (
    mutant(
        "a listing that failed on the way counts as complete",
        ("J12",),
        lambda: both(instead(GarbageCollection, "_list", _half_listed), instead(GarbageCollection, "_read", _unread)),
        style="deletion",
        seeds=40,
    ),
    mutant(
        "a ledger that was made while metadata was listed counts as gone",
        ("J12",),
        lambda: both(
            *(instead(GarbageCollection, "_list", _known_late), instead(GarbageCollection, "_read", _unread)),
            instead(GarbageCollector, "_listed", _judged_late),
        ),
        style="deletion",
        seeds=60,
    ),
    mutant(
        "ledgers are collected though metadata went back",
        ("J12",),
        instead(GarbageCollector, "_begin", _any_mark),
        style="deletion",
        seeds=60,
    ),
    mutant(
        "a listing of metadata counts though the session was lost",
        ("J12",),
        instead(GarbageCollector, "handle", _found_for_good),
        style="deletion",
        seeds=200,
    ),
    mutant(
        "nothing is ever collected", ("V5",), instead(GarbageCollection, "collect", _nothing), style="deletion", seeds=5
    ),
    mutant("no entry log is compacted", ("V5",), instead(LedgerDir, "compact", _in_place), style="deletion", seeds=40),
    mutant(
        "entries flushed during a compaction are lost",
        ("J1", "J5"),
        instead(LedgerDir, "compact", _stale),
        style="deletion",
        seeds=60,
    ),
    mutant(
        "a log is deleted when a part of it was copied",
        ("J1", "J5"),
        instead(LedgerDir, "_entries_to_move", _first_part),
        style="deletion",
        seeds=60,
    ),
    mutant(
        "a restart forgets which ledgers were deleted",
        ("J12",),
        instead(LedgerDir, "load", _forgotten),
        style="deletion",
        seeds=60,
    ),
    mutant(
        "deleted ledgers are not recorded on disk",
        ("J12",),
        instead(LedgerDir, "bury", _unburied),
        style="deletion",
        seeds=60,
    ),
    mutant("a deleted ledger takes adds again", ("J12",), _open_again, style="deletion", seeds=40),
    mutant(
        "an index that is rewritten loses the fences",
        ("J2",),
        _rewritten(lambda row: row._replace(fenced=False)),
        style="deletion",
        seeds=60,
    ),
    mutant(
        "an index that is rewritten loses the keys",
        ("J3",),
        _rewritten(lambda row: row._replace(master_key=b"")),
        style="deletion",
        seeds=60,
    ),
)


# ---- rounds of upkeep ------------------------------------------------------------------------------------------------


def _left(look_after: Any) -> Any:
    """A round of upkeep does not finish the deletion of a stream that is marked as deleted."""

    async def wrong(self: Upkeep, name: StreamName, head: StreamHead) -> None:
        if not head.owner.deleted:
            await look_after(self, name, head)

    return wrong


def _without_segments(finish: Any) -> Any:
    """Finishing a deletion that was cut short removes the stream and leaves its ledgers."""

    async def wrong(self: Admin, stream: StreamName, incarnation: str | None = None, *, force: bool = False) -> Removed:
        if incarnation is None:
            found = await self._metadata.read(StreamKey(stream))
            if isinstance(found, Missing) and found.left is not None:
                await self._metadata.remove(stream, found.left.value.incarnation)
            return Removed(0, True)
        removed: Removed = await finish(self, stream, incarnation, force=force)
        return removed

    return wrong


def _untouched(has_something: Any) -> Any:
    """A round of upkeep does not take over a stream that has expired segments."""
    return lambda self, value: bool(value.truncated)


def _marked_once(finish: Any) -> Any:
    """The mark of a deleted stream is removed although a store could not delete everything. Needs `_unstable`."""

    async def wrong(self: Admin, stream: StreamName, incarnation: str | None = None, *, force: bool = False) -> Removed:
        removed: Removed = await finish(self, stream, incarnation, force=True)
        return removed

    return wrong


def _unstable(delete_segment: Any) -> Any:
    """One deletion of a segment in three fails: that alone does no harm."""
    turns = itertools.count()

    async def wrong(self: Admin, store: str, ref: SegmentRef) -> Any:
        return _DeleteResult.LATER if next(turns) % 3 == 0 else await delete_segment(self, store, ref)

    return wrong


def _not_claimed(is_ours: Any) -> Any:
    """A round of upkeep skips a claimed stream if a proxy is registered under the owner's id. That proxy relies on the
    hash ring, although it does not know the stream any more."""

    def wrong(self: Upkeep, name: StreamName, owner: Owner) -> bool:
        return bool(is_ours(self, name, owner)) and self._preferred(name) is None

    return wrong


def _early(expires_unix_ms: Any) -> Any:
    """A segment expires after half of its retention."""

    def wrong(self: StreamMetadata, segment: Segment) -> int | None:
        expires_ms = expires_unix_ms(self, segment)
        return None if expires_ms is None else expires_ms - int(self.settings.retention_s * 500)

    return wrong


def _all_but_the_last(look_after: Any) -> Any:
    """A round of upkeep truncates a stream with a retention to its last segment, even if the others have not
    expired."""

    async def wrong(self: Upkeep, name: StreamName, head: StreamHead) -> None:
        found = await self._metadata.read(StreamKey(name))
        if head.retention_s > 0 and isinstance(found, Versioned) and found.value.owner.released:
            trimmed = found.value.with_truncated_before(found.value.max_segment)
            await self._metadata.compare_and_set(StreamKey(name), trimmed, found.version)
        await look_after(self, name, head)

    return wrong


UPKEEP: tuple[Mutant, ...] = (
    mutant(
        "a round of upkeep does not finish deletions",
        ("D3",),
        instead(Upkeep, "_look_after", _left),
        style="deletion",
        seeds=40,
    ),
    mutant(
        "a process that finishes a deletion leaves the ledgers",
        ("D3",),
        instead(Admin, "finish_deletion", _without_segments),
        style="deletion",
        seeds=40,
    ),
    mutant(
        "the mark of a deletion goes though a store could not delete all",
        ("D3",),
        lambda: both(instead(Admin, "finish_deletion", _marked_once), instead(Admin, "_delete_segment", _unstable)),
        style="deletion",
        seeds=20,
    ),
    mutant(
        "a stream that nobody owns keeps what has expired",
        ("E3",),
        instead(Upkeep, "_has_something_to_delete", _untouched),
        style="deletion",
        seeds=20,
    ),
    mutant(
        "a restarted proxy leaves the streams that it had claimed to the ring",
        ("E3",),
        instead(Upkeep, "_is_ours", _not_claimed),
        style="deletion",
        seeds=60,
    ),
    mutant(
        "a segment expires when half of its retention is over",
        ("E1",),
        instead(StreamMetadata, "expires_unix_ms", _early),
        style="deletion",
        seeds=20,
    ),
    mutant(
        "a round of upkeep truncates what has not expired",
        ("E1",),
        instead(Upkeep, "_look_after", _all_but_the_last),
        style="deletion",
        seeds=20,
    ),
)
