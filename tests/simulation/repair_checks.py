"""Checks of a ledger whose copies are made again: L13, L15 to L18, L31 and L34, made whenever metadata changes, by what
bookies hold, and of L18 by what they answered.

A bookie that lost its disk counts as a holder of what it held until then where a writer or a recovery relied on it, and
not where live copies are counted.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from dlog.events import EnsembleChanged
from dlog.ledger.repair import Repair, Repaired
from dlog.machine import Answer, Asked, CompareAndSet, Conflict, Effect, Emit, Fact, MetadataSeen, Received, Send
from dlog.model.ids import BookieId
from dlog.model.ledger import LedgerMetadata
from dlog.wire.bookie import AddEntry, Code, EntryRead
from dlog.wire.digest import ENTRY_HEAD, DigestMismatch
from tests.simulation.kernel import Violation
from tests.simulation.ledger_checks import ABSENT, LedgerChecks
from tests.simulation.network import Host


@dataclass(slots=True)
class RequestSeen:
    """A request for a repair. values: metadata since it began. refused: bookies by entry that said that they cannot
    serve it: they do not hold it, or their copy is damaged."""

    gone: frozenset[BookieId]
    values: list[LedgerMetadata]
    refused: dict[int, set[BookieId]] = field(default_factory=dict)

    def silent(self, entry: int, bookie: BookieId) -> set[BookieId]:
        """Other bookies that hold the entry by all metadata since the request began, and did not say that they cannot
        serve it."""
        holders = set.intersection(*(set(value.bookies_of(entry)) for value in self.values))
        return holders - self.gone - self.refused.get(entry, set()) - {bookie}


class RepairChecks(LedgerChecks):
    """Checks of one ledger that repairers work on. lost: bookies whose disk is gone for good."""

    lost: frozenset[BookieId] = frozenset()
    deleted = False
    fragments_max = 0  # of a ledger that a repair splits
    _targets: dict[tuple[str, int], Any]

    def __init__(self, *args: Any, **kw: Any) -> None:
        super().__init__(*args, **kw)
        self._requests: dict[str, RequestSeen] = {}  # the last of each host
        self._targets = {}  # host and entry -> the bookie that it was copied to last
        self._freed: dict[BookieId, set[int]] = {}  # entries that a bookie freed, and was not given again
        self._lost_at: dict[BookieId, int] = {}
        self._look_at: dict[BookieId, int] = {}  # when the last look of a bookie for moved copies began

    def lose(self, bookie: BookieId) -> None:
        """Empty the disk of a bookie that is down."""
        self._scan()
        self.sim.disk(bookie).durable.clear()
        self._scanned[bookie] = 0
        self.lost |= {bookie}
        self._lost_at[bookie] = self.sim.now

    def forget(self, bookie: BookieId, entries: Collection[int]) -> None:
        """Take entries from the disk of a bookie that is down."""
        self._scan()
        disk = self.sim.disk(bookie)
        disk.durable[:] = [(n, record) for n, record in disk.durable if record[0] != "add" or record[2] not in entries]
        self._scanned[bookie] = len(disk.durable)
        for entry in entries:
            self._holds[bookie].pop(entry, None)

    # ---- copies that were moved away ---------------------------------------------------------------------------------

    def looks(self, bookie: BookieId) -> None:
        """Note that a bookie begins to look for copies that it may free."""
        self._look_at[bookie] = self.sim.now

    def doubt(self) -> str:
        """Why not all copies are now on the bookies that metadata names and in reach."""
        value = self.sim.metadata.values.get(self.key)
        if value is None or not value.value.is_closed:
            return "the ledger is open or deleted"
        for entry in range(value.value.last_entry + 1):
            named = set(value.value.bookies_of(entry))
            if self.live(entry, named) != named or not all(self.sim.machine(bookie) for bookie in named):
                return "copies are missing or out of reach"
        return ""

    def holds(self, bookie: BookieId) -> bool:
        """Whether the bookie has any entry on stable storage."""
        self._scan()
        return bool(self._holds[bookie])

    def freed(self, bookie: BookieId) -> None:
        """Check that a bookie might free the copies that it has just taken from its disk."""
        self.sim.reach("freed")
        held = self._holds[bookie]
        self._freed.setdefault(bookie, set()).update(held)
        held.clear()
        self._fenced.discard(bookie)
        self._scanned[bookie] = 0
        self._scan()
        if bookie not in self._fenced:
            raise Violation("L34", f"{bookie} freed its copies, and would take entries of an old writer")
        if self.deleted:
            return
        value = self.metadata
        if not value.is_closed:
            raise Violation("L31", f"{bookie} freed copies of a ledger that is not closed")
        for entry in range(value.last_entry + 1):
            named = value.bookies_of(entry)
            if bookie in named:
                raise Violation("L31", f"{bookie} freed its copy of entry {entry}, which metadata says it holds")
            gone = [b for b in named if b in self._lost_at and self._lost_at[b] < self._look_at[bookie]]
            if gone:
                raise Violation("L31", f"{bookie} freed its copy of entry {entry}, and {gone} had lost theirs")

    def live(self, entry: int, bookies: Iterable[BookieId], new: Collection[BookieId] = ()) -> set[BookieId]:
        """Those of the bookies that hold the entry on a disk that is not lost. new: not yet named by metadata; what
        they held when they were chosen counts."""
        return {b for b in self.holders(entry).intersection(bookies) if b in new or b not in self.lost}

    def may_follow(self, old: LedgerMetadata, new: LedgerMetadata) -> bool:
        """Bookies of a closed ledger may be replaced, and its ensembles split."""
        return replace(new, fragments=old.fragments) == old

    def metadata_changed(self, key: Any, old: LedgerMetadata | None, new: LedgerMetadata) -> None:
        super().metadata_changed(key, old, new)
        if key != self.key or old is None:
            return
        for request in self._requests.values():
            request.values.append(new)
        for entry in range(self.decided(old) + 1):
            named, naming = old.bookies_of(entry), new.bookies_of(entry)
            if named != naming:
                self._check_entry(entry, named, naming)
        decided = self.decided(old)
        before, after = (sum(f.first_entry <= decided for f in value.fragments) for value in (old, new))
        if after > before:  # a writer and a recovery begin fragments behind what is decided
            self.sim.reach("ensemble_split")
            if len(new.fragments) > self.fragments_max:
                raise Violation("L15", f"a repair split an ensemble, now there are {len(new.fragments)} fragments")

    def _check_entry(self, entry: int, before: tuple[BookieId, ...], after: tuple[BookieId, ...]) -> None:
        """Check an entry for which metadata names other bookies than before."""
        new = set(after) - set(before)
        if new & self._freed.keys():
            self.sim.reach("freed_and_chosen_again")
        if len(set(after)) < len(after):
            raise Violation("L15", f"metadata names a bookie twice for entry {entry}: {after}")
        for bookie in sorted(new):
            if bookie not in self.holders(entry):
                if entry in self._freed.get(bookie, ()):
                    raise Violation("L31", f"metadata names {bookie} for entry {entry}, of which it freed its copy")
                raise Violation("L15", f"metadata says that {bookie} holds entry {entry}: {before} -> {after}")
            self.check_bytes(bookie, entry)
        held, holding = self.live(entry, before), self.live(entry, after, new)
        if len(holding) < len(held):
            raise Violation("L13", f"entry {entry} was live on {sorted(held)}, and now is on {sorted(holding)}")

    def ended(self, who: str, last_entry: int, length: int) -> None:
        """Check an end that a caller was sent. A recovery that began before the ledger was deleted may end later."""
        if not self.deleted:
            super().ended(who, last_entry, length)

    def check_bytes(self, bookie: BookieId, entry: int) -> None:
        """Check a copy against what was written: payload and length, and the LAC against what is decided."""
        packet = self._holds[bookie][entry]
        _, _, lac, length = ENTRY_HEAD.unpack_from(packet)
        if packet[ENTRY_HEAD.size + self.digest.size :] != self.payloads[entry]:
            raise Violation("L16", f"{bookie} holds other bytes for entry {entry}")
        if length != sum(len(self.payloads[e]) for e in range(entry + 1)):
            raise Violation("L16", f"{bookie} holds entry {entry} with the length {length}")
        if not self.deleted and lac > max(self.lac, self.decided(self.metadata)):
            raise Violation("L13", f"{bookie} holds entry {entry} with the LAC {lac}")

    def check_whole(self) -> None:
        """Check that each entry is on its whole write set."""
        metadata = self.metadata
        for entry in range(metadata.last_entry + 1):
            missing = set(metadata.bookies_of(entry)) - self.live(entry, metadata.bookies_of(entry))
            if missing:
                raise Violation("L15", f"entry {entry} was repaired, and {sorted(missing)} do not hold it")

    # ---- what repairers do -------------------------------------------------------------------------------------------

    def see_effect(self, host: Host, effect: Effect) -> None:
        if not host.address.endswith("/repairer"):
            super().see_effect(host, effect)
        elif isinstance(effect, Send) and isinstance(effect.message, AddEntry):
            self._see_copy(host, effect.peer, effect.message)
        elif isinstance(effect, Emit) and isinstance(effect.event, EnsembleChanged):
            self.sim.reach("repaired_ensemble")
        elif isinstance(effect, CompareAndSet):
            self._check_split(host, self.known[host.address], effect.value)
        elif isinstance(effect, Answer) and isinstance(effect.result, Repaired):
            self._check_unreadable(host, effect.result)

    def _check_split(self, host: Host, old: LedgerMetadata, new: LedgerMetadata) -> None:
        """Check a change of metadata that is about to be written: for which entries a bookie stays in an ensemble that
        is split."""
        ends = [fragment.first_entry for fragment in old.fragments[1:]] + [self.decided(old) + 1]
        for fragment, end in zip(old.fragments, ends, strict=True):
            pieces = [f for f in new.fragments if fragment.first_entry <= f.first_entry < end]
            changed = [piece for piece in pieces if piece.ensemble != fragment.ensemble]
            if len(pieces) < 2 or not changed:
                continue
            pairs = zip(fragment.ensemble, changed[0].ensemble, strict=True)
            (bookie,) = [before for before, after in pairs if before != after]
            for piece, piece_end in zip(pieces, [*(p.first_entry for p in pieces[1:]), end], strict=True):
                if piece not in changed:
                    self._check_given_up(host, bookie, range(piece.first_entry, piece_end))

    def _check_unreadable(self, host: Host, result: Repaired) -> None:
        for found in result.unreadable:
            whole = "too many fragments" in found.reason  # for one entry the whole stripe is given up
            self._check_given_up(host, found.bookie, range(found.first, found.last + 1), whole=whole)

    def _check_given_up(self, host: Host, bookie: BookieId, entries: range, *, whole: bool = False) -> None:
        """Check entries that are not copied from the bookie: the first and the last one, as there may be others between
        them. whole: any. Entries do not count that another repair moved to other bookies meanwhile."""
        request = self._requests[host.address]
        stripe = [e for e in entries if bookie in request.values[0].bookies_of(e)]
        due = stripe if whole else [*stripe[:1], *stripe[-1:]]
        held = [e for e in due if all(bookie in value.bookies_of(e) for value in request.values)]
        if not held:
            return
        silent = [request.silent(entry, bookie) for entry in held]
        if all(silent) if whole else any(silent):
            raise Violation("L18", f"entries {entries} of {bookie} are given up, not asked or out of reach: {silent}")
        self.sim.reach("given_up")

    def _see_copy(self, host: Host, target: Any, message: AddEntry) -> None:
        self.sim.reach("copied")
        if self._targets.setdefault((host.address, message.entry), target) != target:
            self._targets[host.address, message.entry] = target
            self.sim.reach("copied_to_another")
        if self.deleted:
            return
        if message.entry > self.decided(self.metadata):
            raise Violation("L13", f"entry {message.entry} is copied, decided is {self.decided(self.metadata)}")

    def see_fact(self, host: Host, fact: Fact) -> None:
        super().see_fact(host, fact)
        if not host.address.endswith("/repairer"):
            return
        if isinstance(fact, MetadataSeen) and isinstance(fact.outcome, Conflict):
            self.sim.reach("repair_conflict")
        elif isinstance(fact, Asked) and isinstance(fact.request, Repair) and not self.deleted:
            self._requests[host.address] = RequestSeen(fact.request.gone, [self.metadata])
        elif isinstance(fact, Received) and isinstance(fact.message, EntryRead) and self._is_refusal(fact.message):
            request = self._requests[host.address]
            request.refused.setdefault(fact.message.entry, set()).add(BookieId(str(fact.peer)))

    def _is_refusal(self, answer: EntryRead) -> bool:
        """Whether the bookie said that it does not hold the entry, or a damaged copy."""
        if answer.code is Code.OK:
            try:
                self.digest.verify(answer.packet, answer.entry)
            except DigestMismatch:
                return True
        return answer.code in (*ABSENT, Code.IO_ERROR)
