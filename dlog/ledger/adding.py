"""Writes a ledger: assigns entry ids, counts ack quorums, replaces failed bookies, closes.

Invariants:
- an entry is confirmed once Qa members of the ensemble *that metadata names for it* hold it, in as many regions as the
  placement policy asks, and all entries before it are confirmed. While a compare-and-set is in flight or its outcome
  unknown, nothing is confirmed; acknowledgements received meanwhile are recorded and count afterwards;
- a failed member is replaced from entry LAC + 1 on, by compare-and-set from a value that is OPEN and still names it;
  after a conflict the value found in metadata is adopted;
- an unknown outcome is resolved by a later write that succeeds, or by reading the proposed value at another version
  than it was written over (dlog/metadata_update.py);
- a replacement must report that it has no such ledger before metadata names it (vetting.py): entries of another ledger
  under this id would be served to readers. The first members were vetted at creation;
- under a strict placement policy no write quorum gets fewer racks or regions than the policy asks, if it had them:
  replacements that would do so one by one are written together (`Placement.allows`);
- as long as Qa members are reachable the ledger goes on without the failed ones; metadata changes only when there is a
  replacement, and, with `delayed_change`, only once the other members cannot confirm the next entry, or once a member
  has failed and acknowledged nothing for `delay_max_s`, or up to a third less: else recovery would fence the ledger;
- a delayed change does not count on a member that failed and has acknowledged nothing since it was readmitted;
- with `ack_quorum_timeout_s` the handle ends if the oldest entry was not confirmed for so long, or up to half as long
  again, whatever was replaced meanwhile: a process that was frozen finds that only after it ran half of that time;
- one FENCED reply ends the handle: the outcome of pending entries is then unknown, and recovery decides.

Source: BookKeeper protocol, "Writing to ledgers" (specs: docs/protocol.md); `delayEnsembleChange`,
`maxAllowedEnsembleChanges`, `addEntryQuorumTimeoutSec` of its client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from dlog.errors import (
    ClosedError,
    DLogError,
    InvalidRequestError,
    LedgerFencedError,
    LedgerNotFoundError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    UnauthorizedError,
    UnavailableError,
)
from dlog.events import BookieLost, EnsembleChanged, LedgerClosed, LedgerFenced, PlacementNotKept
from dlog.ledger.early_entries import EarlyEntries
from dlog.ledger.placement import Placement, refusal
from dlog.ledger.vetting import is_known, vet_request
from dlog.ledger.window import Window
from dlog.machine import (
    Answer,
    Asked,
    CancelTimer,
    Conflict,
    Effect,
    Emit,
    Fact,
    MetadataSeen,
    Missing,
    OutcomeUnknown,
    PeerLost,
    Received,
    Refused,
    Send,
    SetTimer,
    Ticket,
    TimerFired,
    Versioned,
)
from dlog.metadata_update import Found, MetadataUpdateLoop, Written
from dlog.model.ids import NO_ENTRY, BookieId, EntryId, LedgerId
from dlog.model.ledger import LedgerKey, LedgerMetadata, LedgerState
from dlog.options import option
from dlog.values import value
from dlog.wire.bookie import AddEntry, Code, EntryAdded, EntryRead
from dlog.wire.bookie_v3_messages import WriteLac
from dlog.wire.digest import Buffer, Digest


@value
class Add:
    """Request: add one entry of these payload parts. Reply: its EntryId once confirmed, in request order.

    entry: its id, if the caller gives the ids of this ledger, of all entries or of none. It may come before entries
    with lower ids, and waits for them; replies come in order of ids. OverCapacityError at once if it comes too early.
    """

    parts: tuple[Buffer, ...]
    entry: EntryId | None = None


@dataclass(frozen=True, slots=True)
class Close:
    """Request: close the ledger at its LAC. Reply: Closed.

    drain: confirm the pending entries first. If False they fail at once, and a close that succeeds leaves them out.
    """

    drain: bool = True


@dataclass(frozen=True, slots=True)
class Closed:
    """Reply to Close: the ledger's last entry (NO_ENTRY if it is empty) and its payload bytes. Final."""

    last_entry: EntryId
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AddingOptions:
    """Limits and retry intervals of a writer."""

    ensemble_changes_max: int = option(100, sim=(4, 40))  # per ledger; one more ends the handle
    lag_entries_max: int = option(5_000, sim=(8, 200))  # confirmed entries a member may lag behind
    replace_retry_s: float = option(0.25, sim=(0.01, 1.0))  # until replacing or readmitting is retried; doubles
    metadata_retry_s: float = option(0.1, sim=(0.01, 0.5))
    give_up_s: float = option(15.0, sim=(0.5, 15.0))  # without progress: no ack quorum reachable, or no metadata
    delayed_change: bool = False  # replace failed members only once too few are left for an ack quorum
    delay_max_s: float = 15.0  # for which it is delayed; well below `open_grace_s` of recovery
    ack_quorum_timeout_s: float = 0.0  # for the oldest entry, whatever was replaced meanwhile; 0: none
    early_entries_max: int = 5_000  # a given entry id is at most so far above the last entry that was sent
    unforced_entries_max: int = 10_000  # with deferred sync: kept in memory until a force
    explicit_lac_s: float = 0.0  # after which bookies are sent a LAC that no entry has carried; 0: never. v3 only


DELAY_TICKS = 3  # of timer "delay" in delay_max_s
DOUBLINGS_MAX = 3  # of replace_retry_s: 2 s. A bookie that is back is taken in that late, a new loss is seen to at once


class LedgerAdder:
    """The only writer of a ledger that was just created, on bookies that held nothing under its id.

    metadata: as created, with its version. digest: of the ledger (dlog/wire/digest.py). lac, length: of the last
    confirmed entry. error: why the handle is dead, None while it lives; a closed ledger's handle is dead as well.
    """

    __slots__ = (
        "_again",
        "_candidates",
        "_closers",
        "_closing",
        "_delayed",
        "_digest",
        "_early",
        "_effects",
        "_foreign",
        "_fruitless",
        "_metadata",
        "_options",
        "_placement",
        "_quarantine",
        "_quorum_lac",
        "_quorum_ticks",
        "_replaced",
        "_replacement_due",
        "_reported_lost",
        "_sent_lac",
        "_suspects",
        "_timers",
        "_update",
        "_vetted",
        "_window",
        "ensemble_changes",
        "error",
        "ledger",
    )

    def __init__(
        self,
        ledger: LedgerId,
        metadata: Versioned,
        digest: Digest,
        placement: Placement,
        options: AddingOptions = AddingOptions(),
    ) -> None:
        value: LedgerMetadata = metadata.value
        assert value.state is LedgerState.OPEN and len(value.fragments) == 1, "a writer needs a newly created ledger"
        self.ledger = ledger
        self.error: DLogError | None = None
        self.ensemble_changes = 0
        self._metadata = value
        self._update = MetadataUpdateLoop(LedgerKey(ledger), version=metadata.version)
        self._digest = digest
        self._placement = placement
        self._options = options
        self._window = Window(
            value.quorum, value.fragments[0].ensemble, NO_ENTRY, 0, options.lag_entries_max, placement.confirms
        )
        self._early: EarlyEntries | None = None  # if the caller gives entry ids
        self._closing: Close | None = None
        self._closers: tuple[Ticket, ...] = ()
        self._replaced: tuple[tuple[str, str], ...] = ()  # by the proposed value: (old bookie, new bookie)
        self._replacement_due = False  # something changed that makes a replacement worth trying
        self._delayed = False  # failed members are left in place, since the others suffice
        # with delayed_change: members that failed and acknowledged nothing since, and the ticks of timer "delay" since
        self._suspects: dict[BookieId, int] = {}
        self._again = False  # this try is a retry: quarantined bookies may be chosen, failed members readmitted
        self._quarantine: frozenset[BookieId] = _NONE
        self._candidates: tuple[tuple[int, BookieId], ...] = ()  # (bookie index to replace, bookie being vetted for it)
        self._vetted = frozenset(value.fragments[0].ensemble)  # hold nothing of this id but what this writer sent
        self._foreign: frozenset[BookieId] = _NONE  # hold another ledger under this id
        self._fruitless = 0  # retries in a row that found no replacement
        self._sent_lac = NO_ENTRY  # the highest that an entry or an explicit LAC has carried
        self._reported_lost: frozenset[BookieId] = _NONE
        self._timers: tuple[str, ...] = ()
        self._quorum_ticks = -1  # of timer "quorum" since `_quorum_lac` was confirmed; -1: it does not run
        self._quorum_lac = NO_ENTRY
        self._effects: list[Effect] = []

    @property
    def lac(self) -> EntryId:
        """Last confirmed entry, NO_ENTRY before the first."""
        return self._window.lac

    @property
    def length(self) -> int:
        """Payload bytes up to the LAC."""
        return self._window.length

    @property
    def pending(self) -> int:
        """How many entries are not confirmed."""
        return len(self._window)

    @property
    def metadata(self) -> LedgerMetadata:
        """The last value known to be in ZooKeeper."""
        return self._metadata

    @property
    def is_dead(self) -> bool:
        return self.error is not None

    # ---- entry point -------------------------------------------------------------------------------------------------

    def handle(self, fact: Fact) -> list[Effect]:
        effects = self._effects
        if isinstance(fact, Received):
            bookie, message = cast(BookieId, fact.peer), fact.message
            if self.error is None and isinstance(message, EntryAdded):
                self._note_added(bookie, message)
            elif self.error is None and isinstance(message, EntryRead) and message.ledger == self.ledger:
                self._note_vetted(bookie, is_known(message))
        elif isinstance(fact, Asked):
            self._note_asked(fact)
        elif self.error is None:
            match fact:
                case PeerLost(peer, reason):
                    self._window.disconnect(cast(BookieId, peer), reason or "connection lost")
                    self._note_vetted(cast(BookieId, peer), None)
                    self._sent_lac = NO_ENTRY  # it may not have come there
                case MetadataSeen():
                    self._note_metadata(fact)
                case TimerFired("quorum"):
                    self._note_quorum_timer()
                case TimerFired(key):
                    self._note_timer(key)
        if self.error is None:
            self._settle()
        self._effects = []
        return effects

    def _note_asked(self, fact: Asked) -> None:
        ticket, request = fact.ticket, fact.request
        if isinstance(request, Add):
            if self.error is not None or self._closing is not None:
                self._effects.append(Answer(ticket, self._refusal()))
                return
            if request.entry is None and self._early is None:
                self._push(ticket, request.parts)
            else:
                self._note_given(ticket, request)
        elif isinstance(request, Close):
            if self.error is not None:
                self._effects.append(Answer(ticket, self._close_answer()))
                return
            self._closing = self._closing or request
            self._closers += (ticket,)
            self._drop_early(ClosedError(f"the ledger is closed before the entries below came: ledger={self.ledger}"))
            if not request.drain:
                self._closing = request
                why = (
                    f"closed without waiting for the entry; it is left out if the close succeeds: ledger={self.ledger}"
                )
                for pending in self._window.abandon():
                    self._effects.append(Answer(pending.ticket, ClosedError(why, outcome_unknown=True)))
        else:
            raise AssertionError(f"not a request of a ledger writer: {request!r}")

    def _push(self, ticket: Ticket, payload: tuple[Buffer, ...]) -> None:
        """Send the next entry."""
        window = self._window
        entry = EntryId(window.pushed + 1)
        length = window.pushed_length + sum(map(len, payload))
        parts = self._digest.pack(entry, window.lac, length, payload)
        self._sent_lac = window.lac
        self._effects += window.push(AddEntry(self.ledger, entry, self._digest.master_key, parts), length, ticket)
        if self._quorum_ticks < 0 and self._options.ack_quorum_timeout_s:
            self._watch_quorum()

    def _note_given(self, ticket: Ticket, request: Add) -> None:
        """Send entries with given ids as far as there is no gap."""
        window, early, entry = self._window, self._early, request.entry
        if early is None and window.pushed == NO_ENTRY:
            early = EarlyEntries(self._options.early_entries_max)
        if early is None or entry is None:
            text = f"give the ids of all entries of a ledger, or of none: ledger={self.ledger}"
            self._effects.append(Answer(ticket, InvalidRequestError(text)))
        elif (refused := early.refusal(self.ledger, entry, window.pushed)) is not None:
            self._effects.append(Answer(ticket, refused))
        else:
            self._early = early
            early.put(entry, ticket, request.parts)
            while (found := early.take(window.pushed + 1)) is not None:
                self._push(*found)

    def _drop_early(self, error: DLogError) -> None:
        """Answer the adds that were never sent, since an entry with a lower id is missing."""
        for ticket in self._early.abandon() if self._early is not None else ():
            self._effects.append(Answer(ticket, type(error)(error.message, outcome_unknown=False)))

    def _note_added(self, bookie: BookieId, message: EntryAdded) -> None:
        if message.ledger != self.ledger:
            return
        code = message.code
        if code is Code.OK:
            self._window.acknowledge(bookie, message.entry)
            if self._suspects:
                self._suspects.pop(bookie, None)
        elif code is Code.FENCED:
            self._effects.append(Emit(LedgerFenced(self.ledger, bookie)))
            self._die(
                LedgerFencedError(
                    f"another client took over the ledger, use a new one: ledger={self.ledger} bookie={bookie}"
                )
            )
        elif code is Code.UNAUTHORIZED:
            why = "the bookie rejects the ledger's password, or holds another entry under this id, see docs/restore.md"
            self._die(UnauthorizedError(f"{why}: ledger={self.ledger} entry={message.entry} bookie={bookie}"))
        else:
            self._window.refuse(bookie, code.name.lower())

    def _note_vetted(self, bookie: BookieId, known: bool | None) -> None:
        """Record whether a candidate holds anything under our ledger id. None: it cannot tell, or its connection is
        lost.
        """
        if bookie in self._vetted or all(bookie != candidate for _, candidate in self._candidates):
            return
        if known is False:
            self._vetted |= {bookie}
        else:
            self._candidates = tuple(c for c in self._candidates if c[1] != bookie)
            if known:
                self._foreign |= {bookie}
            else:
                self._quarantine |= {bookie}
        self._replacement_due = True

    def _note_timer(self, key: object) -> None:
        if key not in self._timers:
            return  # it fired before the cancellation took effect
        self._timers = tuple(k for k in self._timers if k != key)
        match key:
            case "replace":
                self._replacement_due = self._again = True
            case "delay":
                self._suspects = {bookie: ticks + 1 for bookie, ticks in self._suspects.items()}
                self._watch_suspects()
            case "metadata":
                self._update.read(self._effects)
            case "lac":
                self._send_lac()
            case "give_up":
                why = (
                    f"no entry was confirmed for {self._options.give_up_s} s, check bookies (dlog bookie ls) and "
                    f"ZooKeeper: ledger={self.ledger} lac={self.lac}"
                )
                if why_none := refusal(self._placement, self._window.quorum):
                    why = f"{why}; {why_none}"
                if not self._update.is_current:
                    self._die(MetadataUnavailableError(f"metadata is unreachable, {why}", outcome_unknown=True))
                else:
                    self._die(NotEnoughBookiesError(why, outcome_unknown=True))

    def _send_lac(self) -> None:
        """Send the bookies the LAC, unless an entry has carried it meanwhile; again after a connection was lost."""
        lac = self._window.lac
        if lac > self._sent_lac:
            self._sent_lac = lac
            message = WriteLac(self.ledger, lac, self._digest.master_key, self._digest.pack_lac(lac))
            self._effects += [Send(bookie, message) for bookie in self._metadata.fragments[-1].ensemble]

    def _note_metadata(self, fact: MetadataSeen) -> None:
        match self._update.handle(fact, self._effects):
            case Written(value):
                self._take_in(value)
            case Found(value):
                self._note_read(value)
            case Missing():
                self._die(LedgerNotFoundError(f"the ledger was deleted: ledger={self.ledger}", outcome_unknown=True))
            case Refused(error):
                text = f"ZooKeeper rejected the ledger's metadata: {error.message}: ledger={self.ledger}"
                self._die(MetadataUnavailableError(text, outcome_unknown=True))
            case Conflict() | OutcomeUnknown() if self._update.wrote:
                self._update.read(self._effects)
            case OutcomeUnknown():
                self._set_timer("metadata", self._options.metadata_retry_s)

    def _note_read(self, value: LedgerMetadata) -> None:
        """Go on from metadata as read after a conflict or an unknown outcome."""
        last = value.fragments[-1]
        if value.state is LedgerState.CLOSED and self._closing is not None and self._is_our_end(value):
            self._take_in(value)
        elif value.state is not LedgerState.OPEN or last.first_entry > self.lac + 1:
            self._effects.append(Emit(LedgerFenced(self.ledger, METADATA_PEER)))
            state = value.state.name.lower()
            self._die(
                LedgerFencedError(
                    f"another client took over the ledger, use a new one: ledger={self.ledger} state={state}"
                )
            )
        else:
            # our value is not in ZooKeeper, but the write may be in flight: only a write from this version resolves it
            self._metadata = value
            self._adopt(value)
            self._update.write(self._next_value(settle=True), self._effects)

    def _is_our_end(self, value: LedgerMetadata) -> bool:
        return value.last_entry == self.lac and value.length == self.length and not len(self._window)

    def _take_in(self, value: LedgerMetadata) -> None:
        """This value is in ZooKeeper, and no write of ours is in flight."""
        self._metadata = value
        self._drop_timer("give_up")
        if value.is_closed:
            self._effects.append(Emit(LedgerClosed(self.ledger, value.last_entry, value.length)))
            self._die(ClosedError(f"the ledger is closed: ledger={self.ledger}"))
        else:
            self._adopt(value)

    def _adopt(self, value: LedgerMetadata) -> None:
        """Use the ensemble that metadata names from LAC + 1 on."""
        last = value.fragments[-1]
        assert last.first_entry <= self.lac + 1, "nothing was confirmed while the change was in flight"
        old = self._window.ensemble
        if last.ensemble != old:
            replaced = tuple((a, b) for a, b in zip(old, last.ensemble, strict=True) if a != b)
            self.ensemble_changes += 1
            self._quarantine |= {a for a, _ in replaced}
            self._reported_lost -= set(old)
            self._effects += self._window.adopt(last.ensemble)
            self._suspects = {bookie: ticks for bookie, ticks in self._suspects.items() if bookie in last.ensemble}
            self._effects.append(Emit(EnsembleChanged(self.ledger, last.first_entry, replaced)))
        self._replacement_due = True

    # ---- consequences ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Derive every consequence of the facts so far. Only this method confirms entries."""
        window = self._window
        if not self._update.is_current:  # metadata may differ from the value in use
            self._set_timer("give_up", self._options.give_up_s)
            return
        effects = self._effects
        lac = window.lac
        for pending in window.confirm():
            effects.append(Answer(pending.ticket, pending.entry))
        if self._options.explicit_lac_s and window.lac > self._sent_lac:
            self._set_timer("lac", self._options.explicit_lac_s)
        if self._timers and (window.lac != lac or not len(window)):  # a failed replacement is no progress
            self._drop_timer("give_up")
        if self._closing is not None and not len(window):
            self._update.write(self._next_value(settle=False), self._effects)
        elif window.failed or not window.can_progress():
            self._replace_failed()
        elif self._timers or self._fruitless:
            self._fruitless = 0
            self._drop_timer("replace")

    def _replace_failed(self) -> None:
        """Replace failed members if there are candidates, else go on while Qa members remain."""
        window = self._window
        news = [bookie for bookie in window.failed if bookie not in self._reported_lost]
        for bookie in news:
            self._reported_lost |= {bookie}
            self._effects.append(Emit(BookieLost(bookie, window.failed[bookie])))
        if self._options.delayed_change:
            self._suspects = dict.fromkeys(window.failed, 0) | self._suspects
            self._watch_suspects()
        was_delayed, self._delayed = self._delayed, self._may_wait()
        if self._replacement_due or news or (was_delayed and not self._delayed):
            again, self._replacement_due, self._again = self._again, False, False
            value = None if self._delayed else self._replace(again)
            if value is not None:
                if self.ensemble_changes >= self._options.ensemble_changes_max:
                    why = (
                        f"too many ensemble changes, check bookies: ledger={self.ledger} "
                        f"max={self._options.ensemble_changes_max}"
                    )
                    self._die(UnavailableError(why, outcome_unknown=True))
                else:
                    self._update.write(value, self._effects)
                return
            if again:
                self._readmit()
                self._fruitless = 0 if self._candidates else min(self._fruitless + 1, DOUBLINGS_MAX)
        if window.failed:
            self._set_timer("replace", self._options.replace_retry_s * 2**self._fruitless)
        if not window.can_progress():
            self._set_timer("give_up", self._options.give_up_s)  # cancelled when an entry is confirmed

    def _may_wait(self) -> bool:
        """Whether failed members need not be replaced yet."""
        window, suspects = self._window, self._suspects
        if not self._options.delayed_change or any(suspects.get(b, 0) >= DELAY_TICKS for b in window.failed):
            return False
        return window.can_progress(without=suspects)

    def _replace(self, again: bool) -> LedgerMetadata | None:
        """Metadata with vetted replacements for as many failed members as possible; None if there is none yet."""
        window = self._window
        failed = window.failed_indices()
        asked = {b for _, b in self._candidates}
        chosen = {
            index: b
            for index, b in self._candidates
            if index in failed
            and b not in window.ensemble
            and (b in self._vetted or not again)  # on a retry: drop a candidate that has not answered
            and self._placement.is_writable(b)
        }
        quorum, now = window.quorum, window.ensemble
        exclude = {*now, *self._foreign, *chosen.values()} | (_NONE if again else self._quarantine)
        missing = [index for index in failed if index not in chosen]
        chosen |= self._placement.replace(quorum, _with_members(now, chosen), missing, exclude)
        if not self._placement.allows(quorum, now, _with_members(now, chosen)):
            exclude = {*self._foreign} | (_NONE if again else self._quarantine)
            chosen = self._placement.replace(quorum, now, failed, exclude)
        self._candidates = tuple(chosen.items())
        for bookie in chosen.values():
            if bookie not in self._vetted and bookie not in asked:
                self._effects.append(Send(bookie, vet_request(self.ledger)))
        found = {index: b for index, b in chosen.items() if b in self._vetted}
        ensemble = _with_members(now, found)
        if not found or not self._placement.allows(quorum, now, ensemble):
            return None
        if shortage := self._placement.shortage(quorum, ensemble):  # reported first: a write may take effect unnoticed
            event = PlacementNotKept(self.ledger, EntryId(self.lac + 1), ensemble, shortage)
            self._effects.append(Emit(event))
        return self._metadata.with_ensemble(EntryId(self.lac + 1), ensemble)

    def _readmit(self) -> None:
        """No replacement was found: send again to the failed members that are writable."""
        for bookie in list(self._window.failed):
            if self._placement.is_writable(bookie):
                self._reported_lost -= {bookie}
                self._effects += self._window.readmit(bookie)

    def _next_value(self, *, settle: bool) -> LedgerMetadata:
        """The value to write next: closed if drained to close, else with replacements, else unchanged."""
        if self._closing is not None and not len(self._window):
            return self._metadata.closed_at(self.lac, self.length)
        assert settle
        value = self._replace(again=False) if self._window.failed and not self._may_wait() else None
        return value or self._metadata

    # ---- timers ------------------------------------------------------------------------------------------------------

    def _set_timer(self, key: str, after_s: float) -> None:
        """Start a timer unless it is running."""
        if key not in self._timers:
            self._timers += (key,)
            self._effects.append(SetTimer(key, after_s))

    def _drop_timer(self, key: str) -> None:
        if key in self._timers:
            self._timers = tuple(k for k in self._timers if k != key)
            self._effects.append(CancelTimer(key))

    def _watch_suspects(self) -> None:
        """Start timer "delay" unless it is running or no member needs it. Ticks, since a frozen process misses them."""
        if any(ticks < DELAY_TICKS for ticks in self._suspects.values()):
            self._set_timer("delay", self._options.delay_max_s / DELAY_TICKS)

    def _watch_quorum(self) -> None:
        """Start timer "quorum". It ends when it fires and no entry waits: no entry costs a timer of its own."""
        self._quorum_ticks, self._quorum_lac = 0, self._window.answered
        self._effects.append(SetTimer("quorum", self._options.ack_quorum_timeout_s / 2))

    def _note_quorum_timer(self) -> None:
        if self._quorum_ticks < 0:
            return
        ticks = self._quorum_ticks + 1
        if self._window.answered == self._window.pushed or not len(self._window):
            self._quorum_ticks = -1
        elif self._window.answered != self._quorum_lac:
            self._watch_quorum()
        elif ticks < 2:
            self._quorum_ticks = ticks
            self._effects.append(SetTimer("quorum", self._options.ack_quorum_timeout_s / 2))
        else:
            self._quorum_ticks = -1
            why = (
                f"an entry was not confirmed by an ack quorum for {self._options.ack_quorum_timeout_s} s, check "
                f"bookies (dlog bookie ls): ledger={self.ledger} entry={self._window.answered + 1}"
            )
            self._die(UnavailableError(why, outcome_unknown=True))

    # ---- end of the handle -------------------------------------------------------------------------------------------

    def _die(self, error: DLogError) -> None:
        """End the handle: answer every pending request, in order."""
        if self.error is not None:
            return
        self.error = error
        for pending in self._window.abandon():
            unknown = type(error)(error.message, outcome_unknown=True)
            self._effects.append(Answer(pending.ticket, unknown))
        self._drop_early(error)
        for ticket in self._closers:
            self._effects.append(Answer(ticket, self._close_answer()))
        self._closers = ()
        for key in sorted(self._timers):
            self._effects.append(CancelTimer(key))
        self._timers = ()
        if self._quorum_ticks >= 0:
            self._quorum_ticks = -1
            self._effects.append(CancelTimer("quorum"))

    def _close_answer(self) -> Closed | DLogError:
        if self._metadata.is_closed:
            return Closed(self.lac, self.length)
        assert self.error is not None
        return type(self.error)(self.error.message)

    def _refusal(self) -> DLogError:
        """The error for an add to a dead or closing handle: the entry is not in the ledger."""
        if self.error is None:
            return ClosedError(f"the ledger is being closed, add to a new one: ledger={self.ledger}")
        return type(self.error)(self.error.message, outcome_unknown=False)


def _with_members(ensemble: tuple[BookieId, ...], by_index: Mapping[int, BookieId]) -> tuple[BookieId, ...]:
    """The ensemble with some members replaced."""
    return tuple(by_index.get(i, bookie) for i, bookie in enumerate(ensemble))


METADATA_PEER = "metadata"
_NONE: frozenset[BookieId] = frozenset()  # shared by all ledgers: an empty frozenset takes 216 B
