"""Writes the entries that a recovery finds to their whole write sets again. Invariants 5 and 6 of recovery.py."""

from __future__ import annotations

from dlog.errors import DamagedError, NotEnoughBookiesError
from dlog.events import EnsembleChanged, PlacementNotKept
from dlog.ledger.last_entries import LastEntryPoll
from dlog.ledger.placement import Placement
from dlog.ledger.recovery_retries import RecoveryRetries
from dlog.ledger.window import Window
from dlog.machine import Effect, Emit
from dlog.model.ids import BookieId, EntryId
from dlog.wire.bookie import AddEntry, Code, EntryAdded
from dlog.wire.digest import Entry


class ReplacementPool:
    """Bookies that a recovery may use as replacements, also after it started over.

    failed: during this recovery; used only if nothing else helps. foreign: hold another ledger under this id.
    """

    __slots__ = ("failed", "foreign", "placement")

    def __init__(self, placement: Placement) -> None:
        self.placement = placement
        self.failed: set[BookieId] = set()
        self.foreign: set[BookieId] = set()

    def choose(self, window: Window, *, again: bool, strict: bool = True) -> dict[int, BookieId]:
        """Return replacements by bookie index. again: also bookies that failed before. strict: False: a strict policy
        is kept as far as possible.

        Bookies may have been moved to another region. If all members that did not fail may acknowledge an entry, and
        the policy still would not accept them, one of them is replaced.
        """
        exclude = self.foreign if again else self.foreign | self.failed
        placement = self.placement if strict else self.placement.without_strict()
        found = placement.replace(window.quorum, window.ensemble, window.failed_indices(), exclude)
        if found or window.can_progress():
            return found
        for index in window.head_indices():
            found = placement.replace(window.quorum, window.ensemble, [index], exclude)
            if found and window.would_confirm(found):
                return found
        return {}


class RecoveryWriter:
    """Writes entries again, in order.

    fence: the completed poll that fenced the ledger. lag_max: of Window. metadata: a local copy, with the replacements.
    pushed_count: entries sent.
    """

    def __init__(self, fence: LastEntryPoll, pool: ReplacementPool, lag_max: int, retries: RecoveryRetries) -> None:
        self.metadata = fence.metadata
        self.pushed_count = 0
        self._lac = fence.lac
        self._digest = fence.digest
        self._ensemble = fence.ensemble  # before replacements
        self._pool = pool
        self._retries = retries
        # the length at the LAC is unknown, and not needed: every entry has its own
        self._window = Window(fence.metadata.quorum, self._ensemble, fence.lac, 0, lag_max, pool.placement.confirms)
        self._holders: dict[EntryId, str] = {}  # by entry: the bookie its copy came from
        self._owed: dict[BookieId, set[EntryId]] = {}  # by replacement: entries sent to it and not yet stored

    @property
    def pushed(self) -> EntryId:
        """Last entry that was sent again."""
        return self._window.pushed

    @property
    def confirmed(self) -> EntryId:
        """Last entry that Qa members hold, in as many regions as the policy asks."""
        return self._window.lac

    @property
    def length(self) -> int:
        """Length of the ledger up to the last confirmed entry; only valid if an entry was written again."""
        return self._window.length

    @property
    def is_owed(self) -> bool:
        """Whether a replacement has not yet stored all that it was sent."""
        return any(self._owed.values())

    def failed_replacements(self) -> list[BookieId]:
        """Replacements that failed: the local metadata names them for entries that they lack."""
        return [bookie for bookie in self._window.failed if bookie in self._owed]

    def push(self, entry: Entry, holder: str, out: list[Effect]) -> None:
        """Write an entry again to its whole write set. holder: the bookie its copy came from."""
        entry_id, digest = entry.entry_id, self._digest
        self._holders[entry_id] = holder
        parts = digest.pack(entry_id, self._lac, entry.length, (entry.payload,))
        message = AddEntry(digest.ledger_id, entry_id, digest.master_key, parts, recovery=True, high_priority=True)
        out += self._window.push(message, entry.length)
        for bookie in set(self._owed).intersection(self._window.members(entry_id)):
            self._owed[bookie].add(entry_id)
        self.pushed_count += 1

    def note_added(self, bookie: BookieId, answer: EntryAdded) -> None:
        """Raises DamagedError."""
        if not self.pushed_count:
            return  # a reply to an earlier search
        if answer.code is Code.OK:
            self._window.acknowledge(bookie, answer.entry)
            self._owed.get(bookie, set()).discard(answer.entry)
        elif answer.code is Code.UNAUTHORIZED and bookie not in self._ensemble:
            self._pool.foreign.add(bookie)
            self._window.refuse(bookie, "holds another ledger under this id")
        elif answer.code is Code.UNAUTHORIZED:
            raise DamagedError(
                f"bookies hold different entries under one id; was ZooKeeper restored from a backup? "
                f"See docs/restore.md: ledger={self._digest.ledger_id} entry={answer.entry} "
                f"refused_by={bookie} read_from={self._holders.get(answer.entry, 'unknown')}"
            )
        else:
            self._window.refuse(bookie, answer.code.name.lower())

    def note_lost(self, bookie: BookieId, reason: str) -> None:
        self._window.disconnect(bookie, reason or "connection lost")

    def confirm(self) -> None:
        """Confirm the entries that have an ack quorum."""
        if self._window.confirm():
            self._retries.attempts = 0

    def replace_failed(self, out: list[Effect]) -> None:
        """Replace failed members while entries wait for them. Raises NotEnoughBookiesError."""
        if len(self._window) and (self._window.failed or not self._window.can_progress()):
            self._replace_failed(out, again=False)

    def retry(self, out: list[Effect]) -> None:
        """Replace failed members, or send to them again. Raises NotEnoughBookiesError."""
        if self._window.failed or not self._window.can_progress():
            self._replace_failed(out, again=True)

    def _replace_failed(self, out: list[Effect], *, again: bool) -> None:
        """Replace failed members in the local copy of metadata, from the entry after the last confirmed one on.

        A strict policy is kept as far as possible where it leaves no ack quorum in reach, nor members to send to again;
        but one that asks several regions to hold an entry is kept in any case.
        """
        window = self._window
        if found := self._pool.choose(window, again=again):
            self._adopt(found, out)
        elif again:
            for bookie in list(window.failed):
                if self._pool.placement.is_writable(bookie):
                    out += window.readmit(bookie)
        if (again or self._retries.is_last) and not window.can_progress():
            self._adopt(self._pool.choose(window, again=True, strict=False), out)
        if window.can_progress():
            if window.failed:
                self._retries.pause(out)  # retry failed ones early: the others may be frozen for long
        elif not self._retries.is_waiting:
            why = "too few bookies to write entries again, start more (dlog bookie ls)"
            text = f"{why}: ledger={self._digest.ledger_id} entry={window.lac + 1}"
            if self._pool.placement.confirms is not None:
                text = f"{text}; {self._pool.placement.shortage(window.quorum, window.ensemble) or 'a region is away'}"
            self._retries.wait(NotEnoughBookiesError(text), out)

    def _adopt(self, found: dict[int, BookieId], out: list[Effect]) -> None:
        """Replace members by bookie index, in the local copy of metadata."""
        if not found:
            return
        window, ledger = self._window, self._digest.ledger_id
        old, first = window.ensemble, EntryId(window.lac + 1)
        ensemble = tuple(found.get(i, bookie) for i, bookie in enumerate(old))
        self.metadata = self.metadata.with_ensemble(first, ensemble)
        self._pool.failed.update(old[i] for i in found)
        sends = window.adopt(ensemble)
        out += sends
        for bookie in found.values():
            self._owed[bookie] = {send.message.entry for send in sends if send.peer == bookie}
        replaced = tuple((str(old[i]), str(new)) for i, new in found.items())
        out.append(Emit(EnsembleChanged(ledger, first, replaced)))
        if shortage := self._pool.placement.shortage(window.quorum, ensemble):
            out.append(Emit(PlacementNotKept(ledger, first, ensemble, shortage)))
