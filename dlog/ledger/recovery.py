"""Recovers a ledger: fences it, finds its last entry, closes it. Concurrent recoveries get the same result.

Invariants:
1. Metadata is IN_RECOVERY before any bookie is asked.
2. The last ensemble is fenced until every possible ack quorum has a fenced member (coverage). The search begins at the
   highest LAC reported, and not before the last fragment.
3. Every read of the search fences too: a bookie first reached here could still complete a writer's ack quorum.
4. An entry exists if one replica has it. It does not exist once Qw - Qa + 1 replicas deny it: then no ack quorum ever
   held it. Time-outs, damage and "cannot tell" count as neither, and never end the search.
5. Existing entries are written again to their whole write set, to Qa members at least, in order, without gaps, with
   their own length. A member that holds another payload under the entry's id ends the recovery: two writers used one
   ledger id, and which is right cannot be known. Failed members are replaced in a local copy of the metadata, from the
   entry after the last safe one on; reads use the original metadata, since an empty replacement proves nothing. A
   replacement must store all that it is sent before the ledger is closed, for it may hold another ledger under this id:
   if it fails, the recovery starts over without it.
6. Entries written again carry the LAC that the search began from: nothing higher is final until the ledger is closed,
   and another recovery that saw less may close it first.
7. The ledger is closed by compare-and-set. A recovery that loses takes the winner's result.

Source: BookKeeper, LedgerRecoveryOp with #2614 and #2654; 6 is stricter than BookKeeper.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import cast

from dlog.errors import (
    DamagedError,
    DLogError,
    EntryUnreadableError,
    LedgerNotFoundError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    UnauthorizedError,
    UnavailableError,
)
from dlog.events import EnsembleChanged, LedgerRecovered, LedgerRecoveryFenced, LedgerRecoveryStarted
from dlog.ledger.placement import Placement
from dlog.ledger.window import Window
from dlog.machine import (
    Answer,
    Asked,
    CancelTimer,
    Conflict,
    Effect,
    Fact,
    MetadataSeen,
    Missing,
    OutcomeUnknown,
    PeerLost,
    Received,
    Refused,
    Send,
    SetTimer,
    Tell,
    Ticket,
    TimerFired,
)
from dlog.metadata_update import Found, MetadataUpdateLoop, Written
from dlog.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from dlog.model.ledger import LedgerKey, LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
from dlog.options import option
from dlog.wire.bookie import AddEntry, Code, EntryAdded, EntryRead, ReadEntry
from dlog.wire.digest import Digest, DigestMismatch, Entry

_ABSENT = (Code.NO_ENTRY, Code.NO_LEDGER)


@dataclass(frozen=True, slots=True)
class Recover:
    """Request: fence and close the ledger. Reply: Recovered. Repeatable, also after an error."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The last entry and length, final. `readded`: entries that this recovery wrote again."""

    last_entry: EntryId
    length: int
    metadata: LedgerMetadata
    readded: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryOptions:
    """Read-ahead of a recovery, and its retries before it returns an error."""

    ahead_entries_max: int = option(16, sim=(1, 4))  # read, and not yet written again
    retry_s: float = option(0.25, sim=(0.01, 1.0))
    attempts_max: int = option(8, sim=(1, 8))  # consecutive, without progress


class _Stage(enum.Enum):
    IDLE = "idle"
    OPENING = "opening"  # reading metadata, or setting it IN_RECOVERY
    FENCING = "fencing"
    SEARCHING = "searching"  # reading forward and writing again
    MEASURING = "measuring"  # reading the length of the last entry
    CLOSING = "closing"


class _EntryProbe:
    """Replies for one entry: its packet and source bookie; indices of bookies that denied it or could not tell."""

    __slots__ = ("doubtful", "found", "holder", "negatives")

    def __init__(self) -> None:
        self.found: Entry | None = None
        self.holder = ""
        self.negatives: set[int] = set()
        self.doubtful: set[int] = set()

    def is_absent(self, quorum: Quorum) -> bool:
        return self.found is None and len(self.negatives) >= quorum.negatives_needed

    def is_stuck(self, quorum: Quorum) -> bool:
        """Whether all have replied and the replies decide nothing."""
        return self.found is None and not self.is_absent(quorum) and self._heard >= quorum.write

    @property
    def _heard(self) -> int:
        return len(self.negatives) + len(self.doubtful)


class LedgerRecoverer:
    """Recovers one ledger; others may recover it at the same time.

    password: of the ledger; the one in metadata if None.
    """

    def __init__(
        self,
        ledger: LedgerId,
        placement: Placement,
        options: RecoveryOptions = RecoveryOptions(),
        password: bytes | None = None,
    ) -> None:
        self.ledger = ledger
        self.result: Recovered | None = None
        self._placement = placement
        self._options = options
        self._password = password
        self._stage = _Stage.IDLE
        self._tickets: list[Ticket] = []
        self._update = MetadataUpdateLoop(LedgerKey(ledger))
        self._attempts = 0  # consecutive, without progress
        self._waiting = False  # the retry timer is running
        self._effects: list[Effect] = []
        self._quarantine: set[BookieId] = set()
        self._foreign: set[BookieId] = set()  # hold another ledger under this id
        self._restarts = 0

    # ---- entry point -------------------------------------------------------------------------------------------------

    def handle(self, fact: Fact) -> list[Effect]:
        effects = self._effects
        match fact:
            case Received(peer, EntryRead() as answer) if answer.ledger == self.ledger:
                self._note_read(cast(BookieId, peer), answer)
            case Received(peer, EntryAdded() as answer) if answer.ledger == self.ledger:
                self._note_added(cast(BookieId, peer), answer)
            case PeerLost(peer, reason):
                self._note_lost(cast(BookieId, peer), reason)
            case MetadataSeen():
                self._note_metadata(fact)
            case TimerFired("retry") if self._waiting:
                self._waiting = False
                self._retry()
            case Asked(ticket, Recover()):
                self._note_asked(ticket)
        self._settle()
        self._effects = []
        return effects

    def _note_asked(self, ticket: Ticket) -> None:
        if self.result is not None:
            self._effects.append(Answer(ticket, self.result))
            return
        self._tickets.append(ticket)
        if self._stage is _Stage.IDLE:
            self._attempts = self._restarts = 0
            self._open()

    def _open(self) -> None:
        """Start, or start over, from current metadata."""
        self._stage = _Stage.OPENING
        self._update.read(self._effects)

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def _note_metadata(self, fact: MetadataSeen) -> None:
        match self._update.handle(fact, self._effects):
            case Written(value) | Found(value):
                self._note_value(value)
            case Missing():
                self._fail(LedgerNotFoundError(f"no such ledger, never created or deleted: ledger={self.ledger}"))
            case Refused(error):
                self._fail(error)
            case Conflict() | OutcomeUnknown() if self._update.wrote:
                self._update.read(self._effects)
            case OutcomeUnknown(reason):
                self._wait(
                    MetadataUnavailableError(f"metadata is unreachable, retry: ledger={self.ledger} reason={reason}")
                )

    def _note_value(self, value: LedgerMetadata) -> None:
        """Go on from this value of metadata, read or written."""
        if value.is_closed:
            self._finish(value)
        elif self._stage is _Stage.CLOSING and self._is_unchanged(value):
            self._write_end()
        elif value.state is LedgerState.IN_RECOVERY:
            self._begin(value)
        else:
            self._stage = _Stage.OPENING
            self._update.write(value.in_recovery(), self._effects)

    def _is_unchanged(self, value: LedgerMetadata) -> bool:
        """Whether metadata still names the fragments that were searched."""
        return value.state is LedgerState.IN_RECOVERY and value.fragments == self._metadata.fragments

    # ---- fencing -----------------------------------------------------------------------------------------------------

    def _begin(self, value: LedgerMetadata) -> None:
        """Metadata is IN_RECOVERY: fence the last ensemble."""
        last = value.fragments[-1]
        password = value.password if self._password is None else self._password
        self._metadata = value
        self._local = value  # with this recovery's replacements; written when closing
        self._digest = Digest(self.ledger, value.digest, password)
        self._ensemble = last.ensemble
        self._places = {bookie: i for i, bookie in enumerate(last.ensemble)}
        self._fenced: set[int] = set()
        self._mute: set[int] = set()  # indices of bookies that replied with an error or were lost
        self._lac = EntryId(last.first_entry - 1)
        self._tail: dict[int, Entry] = {}  # last entries that bookies reported, by id
        self._stage = _Stage.FENCING
        self._effects.append(Tell(LedgerRecoveryStarted(self.ledger, last.ensemble)))
        for bookie in last.ensemble:
            self._ask_entry(bookie, NO_ENTRY)

    def _note_fenced(self, place: int, answer: EntryRead) -> None:
        if answer.code is Code.OK:
            try:
                entry = self._digest.verify(answer.packet)
            except DigestMismatch:
                self._mute.add(place)
                return
            self._tail[entry.entry_id] = entry
            self._lac = max(self._lac, entry.lac)
        elif answer.code not in _ABSENT:
            self._mute.add(place)
            return
        self._fenced.add(place)
        self._mute.discard(place)

    def _search(self) -> None:
        """Look for entries after the LAC, now that every possible ack quorum has a fenced member."""
        assert self._metadata.quorum.covered(self._fenced), "no search before fence coverage"
        assert self._lac >= self._metadata.fragments[-1].first_entry - 1, "the search stays in the last fragment"
        fenced = tuple(self._ensemble[i] for i in sorted(self._fenced))
        self._effects.append(Tell(LedgerRecoveryFenced(self.ledger, self._lac, fenced)))
        self._stage = _Stage.SEARCHING
        self._attempts = 0
        self._searches: dict[int, _EntryProbe] = {}
        self._asked = self._lac  # highest entry requested
        self._end: EntryId | None = None  # last entry of the ledger, once known
        self._readded = 0
        self._window: Window | None = None  # from the first entry found on
        self._holders: dict[int, str] = {}  # by entry: the bookie its copy came from
        self._owed: dict[BookieId, set[EntryId]] = {}  # by replacement: entries sent to it and not yet stored

    # ---- searching ---------------------------------------------------------------------------------------------------

    def _note_read(self, bookie: BookieId, answer: EntryRead) -> None:
        if answer.code is Code.UNAUTHORIZED and self._stage is not _Stage.IDLE:
            why = f"the bookie rejects the ledger's password, check it: ledger={self.ledger} bookie={bookie}"
            self._fail(UnauthorizedError(why))
        elif self._stage is _Stage.FENCING and answer.entry == NO_ENTRY and answer.fence:
            if bookie in self._places:
                self._note_fenced(self._places[bookie], answer)
        elif self._stage is _Stage.SEARCHING and answer.fence:
            search = self._searches.get(answer.entry)
            if search is not None and bookie in self._places:
                self._note_found(search, bookie, answer)
        elif self._stage is _Stage.MEASURING and answer.entry == self._lac and not answer.fence:
            self._note_length(bookie, answer)

    def _note_found(self, search: _EntryProbe, bookie: BookieId, answer: EntryRead) -> None:
        place = self._places[bookie]
        if place not in self._metadata.quorum.write_set(answer.entry):
            return
        if answer.code is Code.OK:
            if search.found is None:
                try:
                    search.found, search.holder = self._digest.verify(answer.packet, answer.entry), bookie
                except DigestMismatch:
                    search.doubtful.add(place)
        elif answer.code in _ABSENT:
            search.negatives.add(place)
            search.doubtful.discard(place)
        elif place not in search.negatives:
            search.doubtful.add(place)

    def _note_added(self, bookie: BookieId, answer: EntryAdded) -> None:
        if self._stage is not _Stage.SEARCHING or self._window is None:
            return
        if answer.code is Code.OK:
            self._window.acknowledge(bookie, answer.entry)
            self._owed.get(bookie, set()).discard(answer.entry)
        elif answer.code is Code.UNAUTHORIZED and bookie not in self._places:
            self._foreign.add(bookie)
            self._window.refuse(bookie, "holds another ledger under this id")
        elif answer.code is Code.UNAUTHORIZED:
            why = (
                f"bookies hold different entries under one id; was ZooKeeper restored from a backup? "
                f"See docs/restore.md: ledger={self.ledger} entry={answer.entry} "
                f"refused_by={bookie} read_from={self._holders.get(answer.entry, 'unknown')}"
            )
            self._fail(DamagedError(why))
        else:
            self._window.refuse(bookie, answer.code.name.lower())

    def _note_lost(self, bookie: BookieId, reason: str) -> None:
        if self._stage is _Stage.FENCING and (place := self._places.get(bookie)) is not None:
            if place not in self._fenced:
                self._mute.add(place)
        elif self._stage is _Stage.SEARCHING:
            if (place := self._places.get(bookie)) is not None:
                for entry, search in self._searches.items():
                    if place in self._metadata.quorum.write_set(entry) and place not in search.negatives:
                        search.doubtful.add(place)
            if self._window is not None:
                self._window.disconnect(bookie, reason or "connection lost")
        elif self._stage is _Stage.MEASURING:
            self._measured.add(bookie)

    # ---- consequences ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        if self._stage is _Stage.FENCING:
            if self._metadata.quorum.covered(self._fenced):
                self._search()
            elif self._mute:
                self._pause()
        if self._stage is _Stage.SEARCHING:
            self._settle_search()
        if self._stage is _Stage.MEASURING:
            self._settle_length()

    def _settle_search(self) -> None:
        quorum = self._metadata.quorum
        if self._window is not None and self._window.confirm():
            self._attempts = 0
        while self._end is None:
            upcoming = EntryId(self._pushed + 1)
            search = self._searches.get(upcoming)
            if search is not None and search.found is not None:
                self._holders[upcoming] = search.holder
                self._readd(upcoming, search.found)
                del self._searches[upcoming]
            elif search is not None and search.is_absent(quorum):
                assert len(search.negatives) >= quorum.write - quorum.ack + 1, "Qw - Qa + 1 denials end a ledger"
                self._end = EntryId(upcoming - 1)
                self._searches.clear()
            elif self._asked - self._confirmed < self._options.ahead_entries_max:
                self._asked = EntryId(self._asked + 1)
                self._searches[self._asked] = _EntryProbe()
                for bookie in self._members(self._asked):
                    self._ask_entry(bookie, self._asked)
            else:
                if search is not None and search.doubtful:
                    self._pause()
                break
        if self._window is not None and self._window.failed and (len(self._window) or self._unfit):
            self._mend(self._window, again=False)
        is_safe = self._end is not None and self._confirmed == self._end and not any(self._owed.values())
        if self._stage is _Stage.SEARCHING and is_safe:
            self._measure()

    @property
    def _unfit(self) -> list[BookieId]:
        """Failed replacements: the local metadata names them for entries that they lack."""
        return [] if self._window is None else [bookie for bookie in self._window.failed if bookie in self._owed]

    def _begin_again(self) -> None:
        """Start over from current metadata, without the failed replacements."""
        unfit = self._unfit
        self._quarantine.update(unfit)
        self._restarts += 1
        if self._restarts > self._options.attempts_max:
            why = (
                f"too many replacement bookies failed, check them (dlog bookie ls): ledger={self.ledger} "
                f"last={', '.join(unfit)}"
            )
            self._fail(NotEnoughBookiesError(why))
        else:
            self._stop_waiting()
            self._open()

    @property
    def _pushed(self) -> int:
        """Last entry that was sent again."""
        return self._lac if self._window is None else self._window.pushed

    @property
    def _confirmed(self) -> int:
        """Last entry that Qa members hold."""
        return self._lac if self._window is None else self._window.lac

    def _members(self, entry: EntryId) -> list[BookieId]:
        return [self._ensemble[i] for i in self._metadata.quorum.write_set(entry)]

    def _readd(self, entry_id: EntryId, entry: Entry) -> None:
        """Write an entry again to its whole write set."""
        if self._window is None:
            before = entry.length - len(entry.payload)
            quorum = self._metadata.quorum
            self._window = Window(quorum, self._ensemble, self._lac, before, lag_max=self._options.ahead_entries_max)
        length = entry.length
        parts = self._digest.pack(entry_id, self._lac, length, (entry.payload,))
        message = AddEntry(self.ledger, entry_id, self._digest.master_key, parts, recovery=True, high_priority=True)
        self._effects += self._window.push(message, length)
        for bookie in set(self._owed).intersection(self._window.members(entry_id)):
            self._owed[bookie].add(entry_id)
        self._readded += 1

    def _mend(self, window: Window, *, again: bool) -> None:
        """Replace failed members in the local copy of metadata, from the entry after the last confirmed one on."""
        if self._unfit:
            self._begin_again()
            return
        exclude = self._foreign if again else self._foreign | self._quarantine
        found = self._placement.replace(window.quorum, window.ensemble, window.failed_indices(), exclude)
        if found:
            old = window.ensemble
            ensemble = tuple(found.get(i, bookie) for i, bookie in enumerate(old))
            first = EntryId(window.lac + 1)
            self._local = self._local.with_ensemble(first, ensemble)
            self._quarantine.update(old[i] for i in found)
            sends = window.adopt(ensemble)
            self._effects += sends
            for bookie in found.values():
                self._owed[bookie] = {send.message.entry for send in sends if send.peer == bookie}
            replaced = tuple((str(old[i]), str(new)) for i, new in found.items())
            self._effects.append(Tell(EnsembleChanged(self.ledger, first, replaced)))
        elif again:
            for bookie in list(window.failed):
                if self._placement.is_writable(bookie):
                    self._effects += window.readmit(bookie)
        if window.can_progress():
            if window.failed:
                self._pause()  # retry failed ones early: the others may be frozen for long
        elif not self._waiting:
            why = f"too few bookies to write entries again, start more: ledger={self.ledger} entry={window.lac + 1}"
            self._wait(NotEnoughBookiesError(why))

    # ---- the length and the end --------------------------------------------------------------------------------------

    def _measure(self) -> None:
        """Determine the ledger's length, now that every entry is safe."""
        last = self._end
        assert last is not None and last >= self._lac
        if self._window is not None:
            self._length = self._window.length
        elif last == NO_ENTRY:
            self._length = 0
        elif last in self._tail:
            self._length = self._tail[last].length
        elif last + 1 in self._tail:
            self._length = self._tail[last + 1].length - len(self._tail[last + 1].payload)
        else:
            self._stage = _Stage.MEASURING
            self._measured: set[BookieId] = set()
            for bookie in self._metadata.bookies_of(last):
                self._effects.append(Send(bookie, ReadEntry(self.ledger, last, high_priority=True)))
            return
        self._close()

    def _note_length(self, bookie: BookieId, answer: EntryRead) -> None:
        if answer.code is Code.OK:
            try:
                self._length = self._digest.verify(answer.packet, answer.entry).length
                self._close()
                return
            except DigestMismatch:
                pass
        self._measured.add(bookie)

    def _settle_length(self) -> None:
        """The last entry cannot be read: retry, at last use the nearest length known; it is a statistic."""
        if self._waiting or not self._measured.issuperset(self._metadata.bookies_of(self._lac)):
            return
        if self._attempts < self._options.attempts_max:
            self._wait(
                EntryUnreadableError(f"cannot read the last entry, retry: ledger={self.ledger} entry={self._lac}")
            )
        else:
            known = [e.length for e in self._tail.values() if e.entry_id <= self._lac]
            self._length = max(known, default=0)
            self._close()

    def _close(self) -> None:
        self._stage = _Stage.CLOSING
        self._attempts = 0
        self._write_end()

    def _write_end(self) -> None:
        assert self._end is not None
        self._update.write(self._local.closed_at(self._end, self._length), self._effects)

    def _finish(self, value: LedgerMetadata) -> None:
        """The ledger is closed, by this recovery or by another client."""
        readded = self._readded if self._stage is _Stage.CLOSING else 0
        self.result = Recovered(value.last_entry, value.length, value, readded)
        self._stage = _Stage.IDLE
        self._effects.append(Tell(LedgerRecovered(self.ledger, value.last_entry, readded)))
        self._effects += [Answer(ticket, self.result) for ticket in self._tickets]
        self._tickets.clear()
        self._stop_waiting()

    def _fail(self, error: DLogError) -> None:
        """Give up for now; the next Recover request starts over."""
        self._stage = _Stage.IDLE
        self._update.stop(self._effects)
        self._effects += [Answer(ticket, type(error)(error.message)) for ticket in self._tickets]
        self._tickets.clear()
        self._stop_waiting()

    # ---- requests and retries ----------------------------------------------------------------------------------------

    def _wait(self, error: DLogError) -> None:
        """Record an attempt without progress: retry later, or fail with `error` after `attempts_max` in a row."""
        self._attempts += 1
        if self._attempts >= self._options.attempts_max and self._stage is not _Stage.MEASURING:
            self._fail(error)
        else:
            self._pause()

    def _pause(self) -> None:
        if not self._waiting:
            self._waiting = True
            self._effects.append(SetTimer("retry", self._options.retry_s))

    def _stuck(self) -> DLogError | None:
        """Why no progress is possible, once every bookie asked has replied; else None.

        Bookies that replied with an error are asked again all the same: the others may be frozen for long. But only a
        round that all replied to counts as an attempt.
        """
        if self._stage is _Stage.FENCING and len(self._fenced) + len(self._mute) == len(self._ensemble):
            return UnavailableError(
                f"too few bookies replied to fence the ledger, start them (dlog bookie ls): ledger={self.ledger}"
            )
        upcoming = EntryId(self._pushed + 1) if self._stage is _Stage.SEARCHING else NO_ENTRY
        search = self._searches.get(upcoming) if self._stage is _Stage.SEARCHING else None
        if search is not None and search.is_stuck(self._metadata.quorum):
            return EntryUnreadableError(
                f"too few replicas replied to tell whether an entry exists, start their bookies: ledger={self.ledger} "
                f"entry={upcoming}"
            )
        return None

    def _stop_waiting(self) -> None:
        if self._waiting:
            self._waiting = False
            self._effects.append(CancelTimer("retry"))

    def _retry(self) -> None:
        stuck = self._stuck()
        if stuck is not None:
            self._attempts += 1
            if self._attempts >= self._options.attempts_max:
                self._fail(stuck)
                return
        match self._stage:
            case _Stage.OPENING | _Stage.CLOSING:
                self._update.read(self._effects)
            case _Stage.FENCING:
                for place in sorted(self._mute):
                    self._ask_entry(self._ensemble[place], NO_ENTRY)
                self._mute.clear()
            case _Stage.SEARCHING:
                for entry, search in self._searches.items():
                    for place in sorted(search.doubtful):
                        self._ask_entry(self._ensemble[place], EntryId(entry))
                    search.doubtful.clear()
                if self._window is not None and self._window.failed:
                    self._mend(self._window, again=True)
            case _Stage.MEASURING:
                self._measured.clear()
                for bookie in self._metadata.bookies_of(self._lac):
                    self._effects.append(Send(bookie, ReadEntry(self.ledger, self._lac, high_priority=True)))

    def _ask_entry(self, bookie: BookieId, entry: EntryId) -> None:
        """Read an entry and fence: every read of a recovery fences."""
        key = self._digest.master_key
        message = ReadEntry(self.ledger, entry, fence=True, master_key=key, high_priority=True)
        self._effects.append(Send(bookie, message))
