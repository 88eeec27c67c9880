"""Makes the copies of lost bookies again, for one ledger. Several repairs, recoveries and the writer may run at once.

    read metadata -> StripeCopying of one bookie in one ensemble -> Replacing -> the next one, until none is left
    from any of them back to the first: metadata changed, or the bookie that is copied to failed

Invariants:
1. Only entries whose fate is decided are copied: up to the last entry of a closed ledger, else up to the last ensemble,
   which is left to the writer or a recovery. So no entry above the end is ever made readable.
2. A copy is made only from a packet that verifies: payload and length as read, the digest computed again, and as LAC
   the last decided entry.
3. A bookie is replaced only for entries that its replacement has confirmed, every one of them. Readers never find fewer
   copies where metadata says, and a replacement that holds another ledger under this id refuses one of them.
4. An entry is unreadable only if every bookie that should hold it and is not gone said so: it denied it, its last
   entry is below it, or its copy is damaged. So the work is bounded by what bookies hold, not by the last entry that
   metadata names. For such entries metadata keeps naming the old bookie: the ensemble is split around them. The old
   bookie may come back with the only copy; if it never does, naming another bookie would only hide the loss, and a
   foreign entry there would be taken for the missing one. Where entries are striped depends on their ids alone, so a
   split moves nothing. All other entries are repaired, and the range is reported: an entry below the end that every
   bookie denies is damage, which only an operator can judge.
   A repair never splits so that the ledger gets more than `fragments_max` fragments. Unreadable ranges with the fewest
   readable entries between them are merged until they fit; what needs no split is repaired in any case.
5. An ensemble with entries that only bookies out of reach may have stays as it is. The others are repaired, then the
   repair fails with an error that names these bookies.
6. Copies are written with the recovery flag, so that the fence does not refuse them, and never over other bytes.
7. Metadata is changed by compare-and-set from the version that was read before the copying began; after a conflict the
   entries are copied again, which costs little where they are. For a bookie may free what it holds of a ledger that
   does not name it: it raises the version first (dlog/bookie/moved_copies.py), and what it confirmed before counts no
   more.

Source: BookKeeper, ReplicationWorker and LedgerFragmentReplicator; 4 is our own: BookKeeper repairs nothing of an
ensemble with an unreadable entry, as 5 has it for one that is out of reach.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from dlog.errors import (
    DLogError,
    LedgerNotFoundError,
    MetadataUnavailableError,
    NotEnoughBookiesError,
    UnavailableError,
)
from dlog.events import EnsembleChanged, LedgerRepaired, PlacementNotKept
from dlog.ledger.placement import Placement
from dlog.ledger.recovery_retries import RETRY, RecoveryRetries
from dlog.ledger.repair_copying import PACE, BytePacer, EntryRanges, SourceHealth, Stripe, StripeCopying
from dlog.machine import (
    Answer,
    Asked,
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
    Ticket,
    TimerFired,
)
from dlog.metadata_update import Found, MetadataUpdateLoop, Written
from dlog.model.ids import BookieId, EntryId, LedgerId
from dlog.model.ledger import Fragment, LedgerKey, LedgerMetadata
from dlog.model.verification import BadRange
from dlog.options import MiB, option
from dlog.wire.bookie import EntryAdded, EntryRead
from dlog.wire.digest import Digest

#: `Repaired.waits`. It advises no recovery: that would fence a writer that is well
OPEN_LEDGER = "the last ensemble is still written: it waits until the writer closes the ledger or replaces the bookie"


@dataclass(frozen=True, slots=True)
class Repair:
    """Request: take the bookies `gone` out of the ledger's ensembles, with their entries copied to other bookies first.
    Reply: Repaired, or UnavailableError if bookies out of reach may have entries that no other bookie can serve (all
    other ensembles are repaired). Repeatable, also after an error.

    gone: bookies that shall hold nothing of the ledger any more: lost for good, or being drained. One that still
    answers is read from if no other bookie can serve an entry; if it does not, the repair does not wait for it. bad:
    copies on other bookies that are missing (`LedgerVerifier` finds them): written again to the same bookie, without a
    change of metadata.
    """

    gone: frozenset[BookieId]
    bad: tuple[BadRange, ...] = ()


class Replaced(NamedTuple):
    """In the ensemble that begins at `first_entry`, bookie `new` holds what `old` held."""

    first_entry: EntryId
    old: BookieId
    new: BookieId


class Unreadable(NamedTuple):
    """Entries first..last that `bookie` should hold and that could not be copied; metadata still names it for them.

    first, last: inclusive; only entries that `bookie` should hold are meant. reason: of the first of them.
    """

    first: EntryId
    last: EntryId
    bookie: BookieId
    reason: str


@dataclass(frozen=True, slots=True)
class Repaired:
    """Reply to Repair. The repair is complete if neither `unreadable` nor `waits` says anything.

    copied_entries, copied_bytes: confirmed by the bookies they were copied to; bytes of payload. replaced: in metadata,
    in the order in which it was changed. unreadable: in order of first entry, per bookie. waits: what must happen
    before the rest can be repaired, "" if there is nothing; the last ensemble of a ledger that is not closed is never
    repaired: recover the ledger, then ask again.
    """

    ledger: LedgerId
    copied_entries: int = 0
    copied_bytes: int = 0
    replaced: tuple[Replaced, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    waits: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairOptions:
    """Limits of one ledger's repair, and its retries before it returns an error or reports an entry as unreadable."""

    entries_max: int = option(128, sim=(1, 6))  # being read and written again
    bytes_max: int = option(8 * MiB, sim=(16, 4096))  # about, of their payload; one entry at least
    rate_bytes_per_s: int = option(0, sim=(2_000, 200_000))  # of payload, on average; 0: no limit
    retry_s: float = option(0.25, sim=(0.01, 1.0))
    attempts_max: int = option(8, sim=(2, 8))  # consecutive, without progress
    fragments_max: int = option(500)  # of the ledger; no split makes more of them: ZooKeeper refuses 1 MiB


@dataclass(frozen=True, slots=True)
class Replacing:
    """The change of metadata once a stripe is copied. kept: ranges (first, last, reason) for which the old bookie
    stays. fragments_max: of the ledger; no split may lead to more."""

    stripe: Stripe
    new: BookieId
    kept: tuple[tuple[EntryId, EntryId, str], ...]
    fragments_max: int

    def apply(self, value: LedgerMetadata) -> LedgerMetadata | None:
        """Metadata with the replacement; None if `value` does not name the old bookie there, or names the new one, or
        has no room for the split any more."""
        stripe = self.stripe
        number = next((n for n, f in enumerate(value.fragments) if f.first_entry == stripe.first), None)
        if number is None or decided_last(value, number) != stripe.last:
            return None
        old = value.fragments[number].ensemble
        if old[stripe.index] != stripe.bookie or self.new in old:
            return None
        pieces = tuple(self._pieces(old, (*old[: stripe.index], self.new, *old[stripe.index + 1 :])))
        if len(pieces) > 1 and len(value.fragments) - 1 + len(pieces) > self.fragments_max:
            return None
        return replace(value, fragments=(*value.fragments[:number], *pieces, *value.fragments[number + 1 :]))

    def _pieces(self, old: tuple[BookieId, ...], new: tuple[BookieId, ...]) -> Iterator[Fragment]:
        """The fragments that take the place of the one with the ensemble `old`."""
        upcoming = self.stripe.first
        for first, last, _ in self.kept:
            if self.stripe.upcoming(upcoming) < first:
                yield Fragment(upcoming, new)
                upcoming = first
            yield Fragment(upcoming, old)
            upcoming = EntryId(last + 1)
        if not self.kept or self.stripe.upcoming(upcoming) <= self.stripe.last:
            yield Fragment(upcoming, new)


def decided_last(value: LedgerMetadata, number: int) -> EntryId | None:
    """The last entry of a fragment, if no writer or recovery can change it any more; None: it is not decided yet."""
    if number + 1 < len(value.fragments):
        return EntryId(value.fragments[number + 1].first_entry - 1)
    return value.last_entry if value.is_closed else None


class LedgerRepairer:
    """Repairs one ledger, one request at a time.

    password: of the ledger; the one in metadata if None.
    """

    def __init__(
        self,
        ledger: LedgerId,
        placement: Placement,
        options: RepairOptions = RepairOptions(),
        password: bytes | None = None,
    ) -> None:
        self.ledger = ledger
        self._placement = placement
        self._options = options
        self._password = password
        self._retries = RecoveryRetries(options.retry_s, options.attempts_max)
        self._pacer = BytePacer(options.rate_bytes_per_s)
        self._update = MetadataUpdateLoop(LedgerKey(ledger))
        self._ticket: Ticket | None = None  # None: no repair is running
        self._stage: StripeCopying | Replacing | None = None  # None: it reads metadata, or no repair is running
        self._copied_from: Any = None  # version of metadata when the copying began
        self._effects: list[Effect] = []
        self._forget(Repair(frozenset()))

    def _forget(self, request: Repair) -> None:
        """Begin with a request; what earlier ones learned does not count."""
        self._request = request
        self._value: LedgerMetadata | None = None  # metadata as last read or written
        self._result = Repaired(self.ledger)
        self._health = SourceHealth(self._options.attempts_max)
        self._failed: set[BookieId] = set()  # as replacements, since the last retry
        self._foreign: set[BookieId] = set()  # hold another ledger under this id
        self._restarts = 0  # since the last replacement
        self._kept: dict[BookieId, EntryRanges] = {}  # entries for which metadata keeps a bookie, in this request
        self._blocked: dict[BookieId, str] = {}  # out of reach, with the reason: entries wait for them
        self._bad = list(request.bad)
        self._retries.attempts = 0

    # ---- entry point -------------------------------------------------------------------------------------------------

    def handle(self, fact: Fact) -> list[Effect]:
        effects = self._effects
        self._pacer.begin_step()
        try:
            self._note(fact)
            self._settle()
        except DLogError as error:
            self._fail(error)
        self._effects = []
        return effects

    def _note(self, fact: Fact) -> None:
        copying = self._stage if isinstance(self._stage, StripeCopying) else None
        match fact:
            case Received(peer, EntryRead() as answer) if answer.ledger == self.ledger and not answer.fence:
                if copying is not None:
                    copying.note_read(cast(BookieId, peer), answer, self._effects)
            case Received(peer, EntryAdded() as answer) if answer.ledger == self.ledger:
                if copying is not None and copying.note_added(cast(BookieId, peer), answer):
                    self._retries.attempts = 0
            case PeerLost(peer, reason):
                if copying is not None:
                    copying.note_lost(cast(BookieId, peer), reason)
            case MetadataSeen():
                self._note_metadata(fact)
            case TimerFired(key, now_s) if key == PACE:
                self._pacer.note_fired(now_s)
            case TimerFired(key) if key == RETRY and self._retries.is_waiting:
                self._retries.is_waiting = False
                self._retry()
            case Asked(ticket, Repair() as request):
                assert self._ticket is None, "one request at a time"
                self._ticket = ticket
                self._forget(request)
                self._update.read(self._effects)

    def _retry(self) -> None:
        """Ask bookies again that could not serve an entry, or read metadata again."""
        if isinstance(self._stage, StripeCopying):
            self._health.retry()
            self._stage.retry()
        elif self._update.is_idle:
            self._failed.clear()
            self._update.read(self._effects)

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def _note_metadata(self, fact: MetadataSeen) -> None:
        match self._update.handle(fact, self._effects):
            case Written(value) if isinstance(self._stage, Replacing):
                self._note_replaced(self._stage, value)
            case Written(value) | Found(value):  # written: for an earlier request, which was reported as failed
                self._note_found(value)
            case Missing():
                raise LedgerNotFoundError(f"no such ledger, never created or deleted: ledger={self.ledger}")
            case Refused(error):
                raise error
            case Conflict() | OutcomeUnknown() if self._update.wrote:
                self._update.read(self._effects)
            case OutcomeUnknown(reason):
                why = f"metadata is unreachable, retry: ledger={self.ledger} reason={reason}"
                self._retries.wait(MetadataUnavailableError(why), self._effects)

    def _note_found(self, value: LedgerMetadata) -> None:
        """Metadata was read: write the change that is due if it still fits, else look for the next stripe in it."""
        self._value = value
        self._placement = self._placement.for_ledger(value)
        stage = self._stage
        is_same = self._update.version == self._copied_from
        if isinstance(stage, Replacing) and is_same and (changed := stage.apply(value)) is not None:
            self._write(stage, value, changed)
        else:
            self._next_stripe()

    def _write(self, change: Replacing, value: LedgerMetadata, changed: LedgerMetadata) -> None:
        """Write changed metadata, unless the ensemble has changed meanwhile so that its policy forbids it."""
        stripe = change.stripe
        old = value.fragment_of(stripe.first).ensemble
        new = (*old[: stripe.index], change.new, *old[stripe.index + 1 :])
        if not self._placement.allows(value.quorum, old, new):
            self._failed.add(change.new)
            self._count_restart(change.new, "the ledger's placement policy does not allow it")
            self._next_stripe()
            return
        if shortage := self._placement.shortage(value.quorum, new):  # reported first: a write may take effect unnoticed
            self._effects.append(Emit(PlacementNotKept(self.ledger, stripe.first, new, shortage)))
        self._stage = change
        self._update.write(changed, self._effects)

    def _note_replaced(self, done: Replacing, value: LedgerMetadata) -> None:
        self._value, self._retries.attempts, self._restarts = value, 0, 0
        made = Replaced(done.stripe.first, done.stripe.bookie, done.new)
        self._result = replace(self._result, replaced=(*self._result.replaced, made))
        self._effects.append(Emit(EnsembleChanged(self.ledger, made.first_entry, ((made.old, made.new),))))
        self._keep(done.stripe, done.kept)
        self._next_stripe()

    def _keep(self, stripe: Stripe, kept: Sequence[tuple[EntryId, EntryId, str]]) -> None:
        """Report what could not be copied, and do not try it again for this request."""
        made = tuple(Unreadable(first, last, stripe.bookie, reason) for first, last, reason in kept)
        self._result = replace(self._result, unreadable=(*self._result.unreadable, *made))
        ranges = self._kept.setdefault(stripe.bookie, EntryRanges())
        for first, last, _ in kept:
            ranges.add(first, last)

    # ---- from stripe to stripe ---------------------------------------------------------------------------------------

    def _next_stripe(self) -> None:
        """Copy the next stripe of a bookie that is gone, else the next bad range; if there is none, answer."""
        assert self._value is not None
        self._stage = None
        value = self._value
        for number, fragment in enumerate(value.fragments):
            last = decided_last(value, number)
            for index, bookie in enumerate(fragment.ensemble):
                if bookie not in self._request.gone or last is None:
                    continue
                stripe = Stripe(value.quorum, fragment.ensemble, index, fragment.first_entry, last)
                if not self._is_kept(stripe):
                    self._copy_elsewhere(stripe)
                    return
        bad = self._next_bad(value)
        if bad is not None:
            self._copy(bad, bad.bookie)
        else:
            self._succeed(value)

    def _is_kept(self, stripe: Stripe) -> bool:
        """Whether all that the stripe's bookie should hold is to stay on it; one that should hold nothing does not."""
        ranges, upcoming = self._kept.get(stripe.bookie), stripe.upcoming(stripe.first)
        if ranges is None or upcoming > stripe.last:
            return False
        while upcoming <= stripe.last and (last := ranges.last_from(upcoming)) is not None:
            upcoming = stripe.upcoming(last + 1)
        return upcoming > stripe.last

    def _next_bad(self, value: LedgerMetadata) -> Stripe | None:
        """The next missing copies on a bookie that stays, as far as they lie in one ensemble."""
        while self._bad:
            bad = self._bad.pop()
            for number, fragment in enumerate(value.fragments):
                last = decided_last(value, number)
                if last is None or bad.bookie not in fragment.ensemble or bad.bookie in self._request.gone:
                    continue
                first, last = max(bad.first, fragment.first_entry), min(bad.last, last)
                if first <= last:
                    if last < bad.last:
                        self._bad.append(replace(bad, first=EntryId(last + 1)))
                    index = fragment.ensemble.index(bad.bookie)
                    return Stripe(value.quorum, fragment.ensemble, index, first, last)
        return None

    def _copy_elsewhere(self, stripe: Stripe) -> None:
        """Choose a replacement and copy to it."""
        exclude = self._request.gone | self._failed | self._foreign
        chosen = self._placement.replace(stripe.quorum, stripe.ensemble, [stripe.index], exclude)
        if chosen:
            self._copy(stripe, chosen[stripe.index])
        else:
            self._stage = None
            why = (
                "no bookie can replace the one that is gone, start more where the ledger's placement policy allows them"
            )
            error = NotEnoughBookiesError(f"{why}: ledger={self.ledger} bookie={stripe.bookie}")
            self._retries.wait(error, self._effects)

    def _copy(self, stripe: Stripe, target: BookieId) -> None:
        assert self._value is not None
        value, options = self._value, self._options
        self._copied_from = self._update.version
        digest = Digest(self.ledger, value.digest, value.password if self._password is None else self._password)
        self._stage = StripeCopying(
            stripe,
            target,
            self._request.gone,
            digest,
            value.last_entry if value.is_closed else EntryId(value.fragments[-1].first_entry - 1),
            self._health,
            self._pacer,
            entries_max=options.entries_max,
            bytes_max=options.bytes_max,
            attempts_max=options.attempts_max,
            splits_max=None if target == stripe.bookie else self._splits_max(value),
        )

    def _splits_max(self, value: LedgerMetadata) -> int:
        """How many ranges may be split off one ensemble; 0 as soon as little room is left, so that later repairs do not
        copy again and again what they cannot name. A range takes two fragments more, less two at the ends."""
        room = self._options.fragments_max - len(value.fragments)
        return room // 2 if room > 3 else 0

    # ---- consequences ------------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Go on copying, and to the next stage once all is copied."""
        while isinstance(copying := self._stage, StripeCopying):
            is_stuck = copying.settle(self._effects)
            if copying.failure:
                self._note_failure(copying)
            elif copying.is_finished:
                self._note_copied(copying)
            else:
                if is_stuck:
                    self._retries.pause(self._effects)
                break

    def _note_copied(self, copying: StripeCopying) -> None:
        """Every entry of the stripe is on the target or unreadable: change metadata, unless there is nothing to."""
        assert self._value is not None
        self._count(copying)
        if copying.blocked:
            self._leave(copying.stripe, copying.blocked)
            return
        if not copying.is_in_place:
            change = Replacing(copying.stripe, copying.target, copying.unreadable, self._options.fragments_max)
            changed = change.apply(self._value)
            assert changed is not None, "metadata has not been read since the target was chosen"
            if changed != self._value:
                self._write(change, self._value, changed)
                return
        self._keep(copying.stripe, copying.unreadable)
        self._next_stripe()

    def _note_failure(self, copying: StripeCopying) -> None:
        """The target is of no use: choose another one, which needs all entries. Raises NotEnoughBookiesError."""
        self._count(copying)
        stripe, target = copying.stripe, copying.target
        if copying.is_in_place:
            self._leave(stripe, {target: copying.failure})
            return
        (self._foreign if copying.is_foreign else self._failed).add(target)
        self._count_restart(target, copying.failure)
        self._copy_elsewhere(stripe)

    def _leave(self, stripe: Stripe, reasons: Mapping[BookieId, str]) -> None:
        """Go on without a stripe that needs bookies which are out of reach."""
        self._blocked = {**reasons, **self._blocked}
        self._kept.setdefault(stripe.bookie, EntryRanges()).add(stripe.first, stripe.last)
        self._next_stripe()

    def _count_restart(self, target: BookieId, reason: str) -> None:
        """A replacement is of no use. Raises NotEnoughBookiesError after too many in a row."""
        self._restarts += 1
        if self._restarts > self._options.attempts_max:
            why = "too many replacement bookies failed, check them (dlog bookie ls)"
            raise NotEnoughBookiesError(f"{why}: ledger={self.ledger} last={target} reason={reason}")

    def _count(self, copying: StripeCopying) -> None:
        result = self._result
        entries, size = result.copied_entries + copying.copied_entries, result.copied_bytes + copying.copied_bytes
        self._result = replace(result, copied_entries=entries, copied_bytes=size)

    def _succeed(self, value: LedgerMetadata) -> None:
        """Answer, as all is repaired that can be. Raises UnavailableError if some of it needs bookies out of reach."""
        if self._blocked:
            why = (
                "bookies that may have its entries are out of reach, check them (dlog bookie ls), then repair it again"
            )
            bookies = ", ".join(f"{bookie} ({reason})" for bookie, reason in sorted(self._blocked.items()))
            raise UnavailableError(f"{why}: ledger={self.ledger} bookies={bookies}")
        last, request = value.fragments[-1], self._request
        undecided = not request.gone.isdisjoint(last.ensemble) or any(b.last >= last.first_entry for b in request.bad)
        result = replace(self._result, waits=OPEN_LEDGER if undecided and not value.is_closed else "")
        replaced = tuple((str(made.old), str(made.new)) for made in result.replaced)
        self._effects.append(
            Emit(LedgerRepaired(self.ledger, result.copied_entries, replaced, len(result.unreadable), result.waits))
        )
        self._answer(result)

    def _fail(self, error: DLogError) -> None:
        """Give up for now; the next request starts over."""
        self._update.stop(self._effects)
        self._answer(error)

    def _answer(self, result: Repaired | DLogError) -> None:
        assert self._ticket is not None
        self._effects.append(Answer(self._ticket, result))
        self._ticket = self._stage = None
        self._retries.stop(self._effects)
