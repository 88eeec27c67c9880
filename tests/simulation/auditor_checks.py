"""Checks of the room `auditor`: L19 to L28, by what is committed to ZooKeeper, what bookies hold, and what processes
asked for.

A copy counts if the bookie's present disk has it. That a bookie lacks a copy of an open ledger is judged up to a LAC
that every member of its last ensemble knows.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Collection, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from unittest import mock

from dlog.errors import DamagedError
from dlog.io.ledgers import Ledgers
from dlog.io.zookeeper_layout import LedgerPaths
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.io.zookeeper_underreplication import MarkedLedger, ZooKeeperUnderreplication
from dlog.ledger.comparing import Compared
from dlog.ledger.repair import Repaired
from dlog.model.ids import BookieId, LedgerId
from dlog.model.ledger import LedgerMetadata
from dlog.model.verification import Verified
from dlog.wire.digest import ENTRY_HEAD, Digest
from dlog.wire.ledger_metadata import decode
from dlog.wire.underreplication import decode_mark, decode_pause
from tests.simulation.kernel import Violation
from tests.simulation.service.loop import S
from tests.simulation.service.zookeeper_ensemble import Ensemble
from tests.simulation.service.zookeeper_tree import Change, DataSet, NodeCreated, NodeDeleted

if TYPE_CHECKING:
    from tests.simulation.auditor_world import AuditorWorld

PATHS = LedgerPaths()
OPERATOR = "operator"
LOCKED_NS_MAX = 30 * S  # for which a marked ledger may be locked once faults have ended


@dataclass(slots=True)
class Marked:
    """A mark, or a call of `mark` under way. unproved: bookies that were not seen, since it was last written or called,
    to be registered with all their copies, or to be named no more."""

    bookies: frozenset[BookieId]
    unproved: set[BookieId]


@dataclass(slots=True)
class Standing:
    """Registrations of a bookie. absences: (from, to) in ns; the last one is open, -1, while it is not registered.
    last_ns: when it was last registered; -1: never."""

    is_registered: bool = False
    last_ns: int = -1
    absences: list[tuple[int, int]] = field(default_factory=list)


class AuditorChecks:
    """Judges one world; raises nothing, but ends the trial with the first violation."""

    def __init__(self, world: AuditorWorld) -> None:
        self.world = world
        self.ledgers: dict[LedgerId, LedgerMetadata] = {}
        self.deleted: set[LedgerId] = set()
        self.marks: dict[LedgerId, Marked] = {}
        self.payloads: dict[LedgerId, dict[int, bytes]] = {}  # of confirmed entries
        self._calls: list[tuple[LedgerId, Marked]] = []  # of `mark`
        self._standings: dict[BookieId, Standing] = {}
        self._named_ns: dict[tuple[LedgerId, BookieId], int] = {}  # since when metadata names the bookie
        self._scan_ns: dict[str, int] = {}  # node -> when it last began to list all ledgers
        self._paused_ns: dict[BookieId, tuple[int, int]] = {}  # since, until
        self._were_paused: set[BookieId] = set()
        self._locked_ns: dict[LedgerId, int] = {}
        self._lacking: set[tuple[LedgerId, BookieId]] = set()  # by comparisons
        self._out_of_reach: set[tuple[LedgerId, BookieId]] = set()
        self._to_mark: dict[Any, tuple[LedgerId, frozenset[BookieId]]] = {}  # by task, what its comparison found

    def broken(self, invariant: str, text: str) -> None:
        if self.world.loop.breach is None:
            self.world.loop.breach = Violation(invariant, text)

    @property
    def _now(self) -> int:
        return self.world.loop.now

    # ---- what is there -----------------------------------------------------------------------------------------------

    def standing(self, bookie: BookieId) -> Standing:
        return self._standings.setdefault(bookie, Standing(absences=[(self.world.begun_ns, -1)]))

    def is_registered(self, bookie: BookieId) -> bool:
        return self.standing(bookie).is_registered

    def lacks(self, ledger: LedgerId, bookie: BookieId) -> list[int]:
        """Entries that the bookie should hold and does not."""
        value, held = self.ledgers[ledger], self.world.bookie_of(bookie).entries
        last = value.last_entry if value.is_closed else self._known_lac(ledger, value)
        return [e for e in range(last + 1) if bookie in value.bookies_of(e) and (ledger, e) not in held]

    def _known_lac(self, ledger: LedgerId, value: LedgerMetadata) -> int:
        lacs: list[int] = []
        for bookie in value.fragments[-1].ensemble:
            packets = [p for (of, _), p in self.world.bookie_of(bookie).entries.items() if of == ledger]
            if packets:
                lacs.append(max(ENTRY_HEAD.unpack_from(packet)[2] for packet in packets))
        return min(lacs, default=-1)

    def is_named(self, ledger: LedgerId, bookie: BookieId) -> bool:
        value = self.ledgers.get(ledger)
        return value is not None and any(bookie in fragment.ensemble for fragment in value.fragments)

    # ---- what is committed -------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Observe production code while this context is entered."""
        commit, mark = Ensemble._commit, ZooKeeperUnderreplication.mark
        lock, repair, verify, compare = ZooKeeperUnderreplication.lock, Ledgers.repair, Ledgers.verify, Ledgers.compare
        complete, ledgers, checks = ZooKeeperUnderreplication.complete, ZooKeeperMetadata.ledgers, self

        def committing(self: Ensemble, changes: tuple[Change, ...], *args: Any, **options: Any) -> int:
            checks._committed(self, changes)
            return commit(self, changes, *args, **options)

        async def marking(
            self: ZooKeeperUnderreplication, ledger: LedgerId, bookies: Collection[BookieId], *args: Any
        ) -> bool:
            call = checks._begin_mark(ledger, frozenset(bookies))
            try:
                is_new = await mark(self, ledger, bookies, *args)
            finally:
                checks._calls.remove(call)
            checks._end_mark(*call)
            return is_new

        async def repairing(self: Ledgers, ledger: LedgerId, gone: frozenset[BookieId], **options: Any) -> Repaired:
            checks._check_pauses(ledger, gone)
            done = await repair(self, ledger, gone, **options)
            checks.world.reach("repaired")
            return done

        async def verifying(self: Ledgers, ledger: LedgerId, **options: Any) -> Verified:
            verified = await verify(self, ledger, **options)
            checks.world.reach("verified")
            return verified

        async def comparing(self: Ledgers, ledger: LedgerId, **options: Any) -> Compared:
            before = checks._copies_lacking(ledger)
            compared = await compare(self, ledger, **options)
            checks._compared(before, compared)
            return compared

        async def completing(self: ZooKeeperUnderreplication, marked: MarkedLedger) -> bool:
            await checks.world.hold_completion(marked.ledger)
            return await complete(self, marked)

        async def locking(self: ZooKeeperUnderreplication, ledger: LedgerId) -> MarkedLedger | None:
            checks.world.reach("locking")
            return await lock(self, ledger)

        async def listing(self: ZooKeeperMetadata) -> AsyncIterator[LedgerId]:
            checks._scan_ns[checks.world.loop.process.node] = checks._now
            await checks.world.hold_scan()
            async for ledger in ledgers(self):
                yield ledger

        with (
            mock.patch.object(Ensemble, "_commit", committing),
            mock.patch.object(ZooKeeperUnderreplication, "mark", marking),
            mock.patch.object(ZooKeeperUnderreplication, "complete", completing),
            mock.patch.object(ZooKeeperUnderreplication, "lock", locking),
            mock.patch.object(ZooKeeperMetadata, "ledgers", listing),
            mock.patch.object(Ledgers, "repair", repairing),
            mock.patch.object(Ledgers, "verify", verifying),
            mock.patch.object(Ledgers, "compare", comparing),
        ):
            yield

    def _committed(self, ensemble: Ensemble, changes: tuple[Change, ...]) -> None:
        paths = PATHS.underreplication
        for change in changes:
            if not isinstance(change, NodeCreated | DataSet | NodeDeleted):
                continue
            data = None if isinstance(change, NodeDeleted) else change.data or b""
            directory, _, name = change.path.rpartition("/")
            if directory in (PATHS.available, PATHS.readonly) and name in self.world.names:
                is_there = change.path in ensemble.tree.nodes
                if is_there is not isinstance(change, NodeDeleted):  # else a test, which the transaction takes back
                    self._registered(ensemble, BookieId(name), is_registered=is_there)
            elif directory == PATHS.cookies and data is None:
                self._forgotten(BookieId(name))
            elif directory == paths.pauses:
                self._paused(ensemble, BookieId(name), data)
            elif directory == paths.locks:
                ledger = paths.ledger_of_lock(name)
                if ledger is not None and data is not None:
                    self._locked_ns[ledger] = self._now
            elif change.path.startswith(f"{paths.marks}/"):
                ledger = paths.ledger_of_lock(name)
                if ledger is not None:
                    self._mark_written(ledger, data)
            elif (ledger := PATHS.ledger_of(change.path)) is not None:
                self._ledger_written(ledger, data)

    def _ledger_written(self, ledger: LedgerId, data: bytes | None) -> None:
        before = self.ledgers.pop(ledger, None)
        if data is None:
            self.deleted.add(ledger)
            return
        try:
            self.ledgers[ledger] = value = decode(data)
        except DamagedError:
            return
        for bookie in {b for fragment in value.fragments for b in fragment.ensemble}:
            if before is None or not any(bookie in fragment.ensemble for fragment in before.fragments):
                self._named_ns[ledger, bookie] = self._now
        self._prove(ledger)

    def _registered(self, ensemble: Ensemble, bookie: BookieId, *, is_registered: bool) -> None:
        standing = self.standing(bookie)
        if is_registered and PATHS.cookie(bookie) not in ensemble.tree.nodes:
            self.broken("L24", f"{bookie} registers, and has no cookie")
        if is_registered == standing.is_registered:
            return
        standing.is_registered, standing.last_ns = is_registered, self._now
        if is_registered:
            standing.absences[-1] = (standing.absences[-1][0], self._now)
            self._paused_ns.pop(bookie, None)
        else:
            standing.absences.append((self._now, -1))
        for ledger in list(self.marks):
            self._prove(ledger)

    def _paused(self, ensemble: Ensemble, bookie: BookieId, data: bytes | None) -> None:
        if data is None:  # at its end, or by a decommission
            if bookie in self.world.decommissioned:
                self._paused_ns.pop(bookie, None)
        else:
            self._paused_ns.pop(bookie, None)
            self._were_paused.add(bookie)
            pause, znode = decode_pause(data), ensemble.tree.nodes.get(f"{PATHS.available}/{bookie}")
            if znode is None or znode.owner == pause.session:  # else it is over already
                self._paused_ns[bookie] = (self._now, self._now + pause.seconds * S)

    def _forgotten(self, bookie: BookieId) -> None:
        if bookie in self.world.reformatted:  # by hand, with an empty disk
            return
        begun_ns, standing = self._scan_ns.get(OPERATOR, -1), self.standing(bookie)
        if standing.is_registered or standing.last_ns >= begun_ns:
            self.broken("L23", f"{bookie} is forgotten, and was registered since the last scan")
        for ledger in self.ledgers:
            if self.is_named(ledger, bookie) and self._named_ns[ledger, bookie] < begun_ns:
                self.broken("L23", f"{bookie} is forgotten, and ledger {ledger} names it")
        self.world.reach("forgotten")

    # ---- marks -------------------------------------------------------------------------------------------------------

    def stored(self, ledger: int) -> None:
        """An entry was stored on a bookie."""
        self._prove(LedgerId(ledger))

    def _prove(self, ledger: LedgerId) -> None:
        for mark in itertools.chain([self.marks[ledger]] if ledger in self.marks else [], self._calls_of(ledger)):
            for bookie in list(mark.unproved):
                if self._is_proved(ledger, bookie):
                    mark.unproved.discard(bookie)

    def _calls_of(self, ledger: LedgerId) -> Iterator[Marked]:
        return (mark for of, mark in self._calls if of == ledger)

    def _is_proved(self, ledger: LedgerId, bookie: BookieId) -> bool:
        if not self.is_named(ledger, bookie):
            return True
        return self.is_registered(bookie) and not self.lacks(ledger, bookie)

    def _mark_written(self, ledger: LedgerId, data: bytes | None) -> None:
        before = self.marks.pop(ledger, None)
        if data is None:
            if before is not None and before.unproved and ledger in self.ledgers:
                self.broken("L20", f"the mark of ledger {ledger} is deleted, and {sorted(before.unproved)} lack copies")
            self.world.reach("unmarked")
            return
        try:
            bookies = frozenset(decode_mark(data).bookies)
        except DamagedError:
            return
        for bookie in sorted(bookies - (before.bookies if before is not None else frozenset())):
            self._check_reason(ledger, bookie)
        self.marks[ledger] = Marked(bookies, set(bookies))
        self._prove(ledger)
        self.world.reach("marked")

    def _begin_mark(self, ledger: LedgerId, bookies: frozenset[BookieId]) -> tuple[LedgerId, Marked]:
        expected = self._to_mark.pop(asyncio.current_task(), None)
        if expected is not None and expected != (ledger, bookies):
            self.broken("L28", f"a comparison found {expected}, and ledger {ledger} is marked for {sorted(bookies)}")
        call = (ledger, Marked(bookies, set(bookies)))
        self._calls.append(call)
        self._prove(ledger)
        return call

    def _end_mark(self, ledger: LedgerId, call: Marked) -> None:
        mark = self.marks.get(ledger)
        if mark is not None:
            mark.unproved |= call.unproved
        elif call.unproved and ledger in self.ledgers:
            self.broken("L20", f"ledger {ledger} was marked, and has no mark: {sorted(call.unproved)} lack copies")

    def _check_reason(self, ledger: LedgerId, bookie: BookieId) -> None:
        """Check that the bookie of a new mark was away for long enough, is decommissioned, or lacked a copy."""
        if bookie in self.world.decommissioned or (ledger, bookie) in self._lacking or self._was_away(bookie):
            return
        by = "L28" if (ledger, bookie) in self._out_of_reach else "L21"
        self.broken(by, f"ledger {ledger} is marked for {bookie}, which lacks nothing and was not away for long")

    def _was_away(self, bookie: BookieId) -> bool:
        """Whether an auditor may have found the bookie absent for `lost_after_s`. It may not have noticed a return that
        was shorter than the time between two of its listings."""
        world = self.world
        first = last = -1
        least_ns = int(world.options.lost_after_s * S) - world.slow_ns
        for since, until in self.standing(bookie).absences:
            if first < 0 or since - last > world.listing_gap_ns:
                first = since
            last = until if until >= 0 else self._now
            if last - first >= least_ns and self._now - last <= world.listing_gap_ns:
                return True
        return False

    # ---- what processes ask for --------------------------------------------------------------------------------------

    def _check_pauses(self, ledger: LedgerId, gone: frozenset[BookieId]) -> None:
        for bookie in sorted(gone):
            since, until = self._paused_ns.get(bookie, (0, 0))
            if since and since < self._locked_ns.get(ledger, 0) and self._now < until:
                self.broken("L22", f"copies of {bookie} in ledger {ledger} are moved during its planned restart")
            if bookie in self._were_paused:
                self.world.reach("repaired_after_pause")

    def _copies_lacking(self, ledger: LedgerId) -> dict[BookieId, tuple[int, list[int]]]:
        """By bookie, how many disks it has lost, and which copies it lacks."""
        value = self.ledgers.get(ledger)
        if value is None or not value.is_closed:
            return {}
        bookies = {bookie for fragment in value.fragments for bookie in fragment.ensemble}
        return {b: (self.world.bookie_of(b).losses, self.lacks(ledger, b)) for b in sorted(bookies)}

    def _compared(self, before: dict[BookieId, tuple[int, list[int]]], compared: Compared) -> None:
        ledger = compared.ledger
        self._out_of_reach |= {(ledger, bookie) for bookie, _ in compared.out_of_reach}
        if compared.skipped or ledger not in self.ledgers:
            return
        self.world.reach("compared")
        after, out = self._copies_lacking(ledger), {bookie for bookie, _ in compared.out_of_reach}
        for bookie in before.keys() & after.keys():
            (losses, lacked), (losses_now, lacks) = before[bookie], after[bookie]
            told = bookie in compared.lacking
            if told and not lacked and not lacks and losses == losses_now:
                self.broken("L28", f"a comparison of ledger {ledger} found that {bookie} lacks copies, and it has all")
            sure = set(lacked).intersection(lacks) if losses == losses_now else set()
            if sure and not told and bookie not in out and compared.is_complete:
                self.broken("L28", f"a comparison of ledger {ledger} did not find that {bookie} lacks {sorted(sure)}")
        if compared.lacking:
            self.world.reach("found_lacking")
            self._lacking |= {(ledger, bookie) for bookie in compared.lacking}
            self._to_mark[asyncio.current_task()] = (ledger, compared.lacking)

    # ---- in the end --------------------------------------------------------------------------------------------------

    def unfinished(self) -> tuple[str, str] | None:
        """What is still to be done once faults have ended: the invariant that it breaks and what it is; None:
        nothing."""
        tree, world = self.world.zookeeper.ensemble.tree, self.world
        sessions = world.zookeeper.ensemble.sessions
        for name in sorted(tree.nodes[PATHS.underreplication.locks].children):
            ledger = PATHS.underreplication.ledger_of_lock(name)
            assert ledger is not None
            if tree.nodes[f"{PATHS.underreplication.locks}/{name}"].owner not in sessions:
                return "L25", f"the lock of ledger {ledger} belongs to no session"
            if ledger in self.marks.keys() - world.bad and self._now - self._locked_ns[ledger] > LOCKED_NS_MAX:
                return "L25", f"ledger {ledger} is marked, and locked since long ago"
        for ledger in sorted(self.marks):
            if ledger not in self.ledgers and ledger not in world.bad:
                return "L26", f"ledger {ledger} is deleted, and is marked"
        for ledger, value in sorted(self.ledgers.items()):
            if ledger not in world.bad and (why := self._is_not_whole(ledger, value)):
                return "L27" if world.bad else "L19", f"ledger {ledger} {why}"
        if marks := sorted(self.marks.keys() - world.bad):
            return "L27" if world.bad else "L19", f"ledgers are marked and whole: {marks}"
        return None

    def _is_not_whole(self, ledger: LedgerId, value: LedgerMetadata) -> str:
        if not value.is_closed:
            return "is open"
        for fragment in value.fragments:
            if unregistered := [bookie for bookie in fragment.ensemble if not self.is_registered(bookie)]:
                return f"names {unregistered}, which are not registered"
        for bookie in sorted({b for fragment in value.fragments for b in fragment.ensemble}):
            if entries := self.lacks(ledger, bookie):
                return f"lacks {entries} on {bookie}"
        return ""

    def check_contents(self) -> None:
        """Check that each confirmed entry is there, on its whole write set, as it was written. Raises Violation."""
        for ledger, payloads in self.payloads.items():
            value = self.ledgers.get(ledger)
            if value is None or ledger in self.world.bad:
                continue
            digest = Digest(ledger, value.digest, value.password)
            for entry, payload in payloads.items():
                if entry > value.last_entry:
                    raise Violation("L19", f"ledger {ledger} ends at {value.last_entry}, and {entry} was confirmed")
                for bookie in value.bookies_of(entry):
                    packet = self.world.bookie_of(bookie).entries[ledger, entry]
                    digest.verify(packet, entry)
                    if packet[ENTRY_HEAD.size + digest.size :] != payload:
                        raise Violation("L19", f"{bookie} holds other bytes for entry {entry} of ledger {ledger}")
