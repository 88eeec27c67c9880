"""Copies what one bookie of an ensemble should hold to another bookie. Invariants 2 to 6 of repair.py."""

from __future__ import annotations

import bisect
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from dlog.ledger.held_entries import LAST_HELD, LastHeldEntries
from dlog.ledger.last_entries import ABSENT
from dlog.machine import Effect, Send, SetTimer
from dlog.model.ids import BookieId, EntryId
from dlog.model.quorum import Quorum
from dlog.wire.bookie import AddEntry, Code, EntryAdded, EntryRead, ReadEntry
from dlog.wire.digest import Digest, DigestMismatch, Entry

RANGES_MAX = 64  # of entries that cannot be copied to a bookie that stays; more are merged
PACE = "pace"  # key of the timer
PACE_S = 0.1
DAMAGED = (Code.IO_ERROR,)  # replies of a source that has the entry, and cannot serve it
USELESS = (Code.UNAUTHORIZED, Code.NO_LEDGER, Code.READ_ONLY)  # replies of a target that will not change soon
STEP = "step"  # key of the timer
STEP_S = 0.001
STEP_ENTRIES = 256  # begun in one call of a state machine: some ms; the rest follows after STEP_S
BURST_S = 1.0  # of the byte rate; what was not used before is lost


class SourceHealth:
    """Which bookies a repair reads from. One that was lost is not asked again before the next retry, and not at all
    after `attempts_max` losses without a reply in between."""

    __slots__ = ("_attempts_max", "_down", "_losses")

    def __init__(self, attempts_max: int) -> None:
        self._attempts_max = attempts_max
        self._down: set[BookieId] = set()
        self._losses: dict[BookieId, int] = {}

    def note_reply(self, bookie: BookieId) -> None:
        self._down.discard(bookie)
        self._losses.pop(bookie, None)

    def note_lost(self, bookie: BookieId) -> None:
        if bookie not in self._down:
            self._down.add(bookie)
            self._losses[bookie] = self._losses.get(bookie, 0) + 1

    def retry(self) -> None:
        """Let those be asked again that are not given up."""
        self._down = {bookie for bookie in self._down if self.is_given_up(bookie)}

    def is_down(self, bookie: BookieId) -> bool:
        return bookie in self._down

    def is_given_up(self, bookie: BookieId) -> bool:
        return self._losses.get(bookie, 0) >= self._attempts_max

    def losses(self, bookie: BookieId) -> int:
        return self._losses.get(bookie, 0)


class BytePacer:
    """Limits the bytes copied to an average rate: a token bucket that is refilled by a timer while it is empty. Limits
    the entries begun in one step of the state machine, too, so that it never blocks the event loop for long.

    rate_bytes_per_s: 0: no limit.
    """

    __slots__ = ("_begun", "_budget", "_fired_at_s", "_is_waiting", "_rate")

    def __init__(self, rate_bytes_per_s: int) -> None:
        self._rate = rate_bytes_per_s
        self._budget = rate_bytes_per_s * PACE_S
        self._fired_at_s: float | None = None
        self._is_waiting = False
        self._begun = 0  # entries, in this step

    @property
    def is_open(self) -> bool:
        """Whether more may be read now."""
        return self._begun < STEP_ENTRIES and not self._is_empty

    @property
    def _is_empty(self) -> bool:
        return bool(self._rate) and self._budget <= 0

    def begin_step(self) -> None:
        self._begun = 0

    def note_begun(self) -> None:
        self._begun += 1

    def note_copied(self, size: int) -> None:
        self._budget -= size

    def wait(self, out: list[Effect]) -> None:
        """Have the bucket refilled, or the next step begun."""
        if not self._is_empty:
            out.append(SetTimer(STEP, STEP_S))
        elif not self._is_waiting:
            self._is_waiting = True
            out.append(SetTimer(PACE, PACE_S))

    def note_fired(self, now_s: float) -> None:
        since_s = PACE_S if self._fired_at_s is None else now_s - self._fired_at_s
        self._fired_at_s, self._is_waiting = now_s, False
        self._budget = min(self._budget + self._rate * max(since_s, PACE_S), self._rate * BURST_S)


@dataclass(frozen=True, slots=True)
class Stripe:
    """Entries first..last of one ensemble that the bookie at `index` should hold."""

    quorum: Quorum
    ensemble: tuple[BookieId, ...]
    index: int
    first: EntryId
    last: EntryId

    @property
    def bookie(self) -> BookieId:
        return self.ensemble[self.index]

    def upcoming(self, entry: int) -> EntryId:
        """The first entry of the stripe that is `entry` or later; above `last` if there is none."""
        while entry <= self.last and self.index not in self.quorum.write_set(entry):
            entry += 1
        return EntryId(entry)

    def holders(self, entry: int) -> list[BookieId]:
        """The bookies that should hold the entry."""
        return [self.ensemble[i] for i in self.quorum.write_set(entry)]

    def all_holders(self) -> list[BookieId]:
        """All bookies that should hold entries of the stripe, its own among them."""
        sets = map(self.quorum.write_set, range(self.quorum.ensemble))
        indexes = {index for held_by in sets if self.index in held_by for index in held_by}
        return [self.ensemble[i] for i in sorted(indexes)]


class EntryRanges:
    """A set of entries, as ascending ranges that do not touch."""

    __slots__ = ("_first", "_last")

    def __init__(self) -> None:
        self._first: list[EntryId] = []
        self._last: list[EntryId] = []

    def add(self, first: EntryId, last: EntryId) -> None:
        begin, end = bisect.bisect_left(self._last, first - 1), bisect.bisect_right(self._first, last + 1)
        if begin < end:
            first, last = min(first, self._first[begin]), max(last, self._last[end - 1])
        self._first[begin:end], self._last[begin:end] = [first], [last]

    def last_from(self, entry: EntryId) -> EntryId | None:
        """The end of the range that has the entry; None: no range has it."""
        number = bisect.bisect_right(self._first, entry) - 1
        return self._last[number] if number >= 0 and self._last[number] >= entry else None


class _Copy:
    """One entry that is being copied. asked: the bookie that was sent a read, None: none. size: payload bytes sent to
    the target, -1: none yet. failed: bookies that could not serve it in this round, with the reason; damaged: those of
    them that reported their copy as damaged; denied: those that do not hold it."""

    __slots__ = ("asked", "damaged", "denied", "failed", "rounds", "size")

    def __init__(self) -> None:
        self.asked: BookieId | None = None
        self.size = -1
        self.failed: dict[BookieId, str] = {}
        self.damaged: set[BookieId] = set()
        self.denied: set[BookieId] = set()
        self.rounds = 0


class StripeCopying:
    """Copies a stripe to `target`, many entries at a time.

    target: the stripe's own bookie (its missing copies are written again), or another one. last_resort: bookies that
    are gone; they are read from only if no other can serve an entry, and need not answer. lac: LAC field of the copies;
    every entry up to it is final.
    splits_max: ranges of unreadable entries that are told apart; those with the fewest entries between them are merged.
    0: one unreadable entry makes the whole stripe unreadable, and nothing more of it is copied. None: the ensemble is
    not split for them. failure: why the target is of no use, "" as long as it is. After a lost reply or a refusal that
    may be over soon the entries concerned are copied again after a pause; `attempts_max` of them without a confirmed
    copy in between are a failure. is_foreign: it holds another ledger under this id.
    unreadable: (first, last, reason), ascending. blocked: bookies that are out of reach, each with the reason, and may
    have entries that no other bookie can serve. In place the other entries are copied; to another bookie nothing more
    is, as it needs them all. copied_entries, copied_bytes: confirmed by the target.
    """

    def __init__(
        self,
        stripe: Stripe,
        target: BookieId,
        last_resort: frozenset[BookieId],
        digest: Digest,
        lac: EntryId,
        health: SourceHealth,
        pacer: BytePacer,
        *,
        entries_max: int,
        bytes_max: int,
        attempts_max: int,
        splits_max: int | None = None,
    ) -> None:
        self.stripe = stripe
        self.target = target
        self.failure = ""
        self.is_foreign = False
        self.blocked: dict[BookieId, str] = {}
        self.copied_entries = 0
        self.copied_bytes = 0
        self._last_resort = last_resort
        self._digest = digest
        self._lac = lac
        self._health = health
        self._pacer = pacer
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._attempts_max = attempts_max
        self._ranges_max = RANGES_MAX if splits_max is None else splits_max
        self._pauses = 0  # after troubles of the target, since it confirmed a copy
        self._is_paused = False
        self._held = LastHeldEntries(digest.ledger_id)
        self._sources = [bookie for bookie in stripe.all_holders() if bookie != target]
        self._next = stripe.upcoming(stripe.first)
        self._copies: dict[EntryId, _Copy] = {}
        self._unasked: dict[EntryId, _Copy] = {}  # those of them that no bookie is being asked for, nor sent
        self._writing = 0  # entries sent to the target and not confirmed
        self._writing_bytes = 0
        self._size = bytes_max // 16  # expected of an entry that is being read: the largest of late
        self._unreadable: list[tuple[EntryId, EntryId, str]] = []

    @property
    def is_in_place(self) -> bool:
        return self.target == self.stripe.bookie

    @property
    def is_finished(self) -> bool:
        """Whether every entry is on the target, is listed as unreadable, or is blocked."""
        return self._next > self.stripe.last and not self._copies

    @property
    def unreadable(self) -> tuple[tuple[EntryId, EntryId, str], ...]:
        return tuple(self._unreadable)

    # ---- facts -------------------------------------------------------------------------------------------------------

    def note_read(self, bookie: BookieId, answer: EntryRead, out: list[Effect]) -> None:
        if answer.entry == LAST_HELD:
            self._held.note_read(bookie, answer)
            return
        copy = self._copies.get(answer.entry)
        if copy is None or copy.asked != bookie:
            return
        copy.asked = None
        self._health.note_reply(bookie)
        if answer.code is Code.OK:
            try:
                entry = self._digest.verify(answer.packet, answer.entry)
            except DigestMismatch as error:
                copy.failed[bookie] = error.message
                copy.damaged.add(bookie)
            else:
                self._held.note_entry(True)
                self._write(copy, entry, out)
                return
        elif answer.code in ABSENT:
            copy.denied.add(bookie)
        else:
            copy.failed[bookie] = answer.code.name.lower()
            if answer.code in DAMAGED:
                copy.damaged.add(bookie)
        self._unasked[answer.entry] = copy

    def _write(self, copy: _Copy, entry: Entry, out: list[Effect]) -> None:
        copy.size = len(entry.payload)
        self._writing += 1
        self._writing_bytes += copy.size
        self._size = max(copy.size, self._size * 7 // 8)
        self._pacer.note_copied(copy.size)
        digest = self._digest
        parts = digest.pack(entry.entry_id, self._lac, entry.length, (entry.payload,))
        out.append(
            Send(self.target, AddEntry(digest.ledger_id, entry.entry_id, digest.master_key, parts, recovery=True))
        )

    def note_added(self, bookie: BookieId, answer: EntryAdded) -> bool:
        """Record a reply of the target. Returns whether an entry was confirmed."""
        copy = self._copies.get(answer.entry)
        if bookie != self.target or copy is None or copy.size < 0:
            return False
        if answer.code is Code.OK:
            self._finish(answer.entry, copy)
            self._pauses = 0
            self.copied_entries += 1
            self.copied_bytes += copy.size
            return True
        if answer.code is Code.UNAUTHORIZED and self.is_in_place:
            self._finish(answer.entry, copy)
            self._list(
                answer.entry,
                answer.entry,
                f"{bookie} holds other bytes, which are never overwritten: replace the bookie",
            )
        elif answer.code in USELESS:
            self.is_foreign = self.is_foreign or answer.code is Code.UNAUTHORIZED
            self.failure = self.failure or answer.code.name.lower()
        else:
            self._copy_again([answer.entry], answer.code.name.lower())
        return False

    def _copy_again(self, entries: Collection[EntryId], reason: str) -> None:
        """Have entries that the target did not confirm read and sent again after a pause; their payload is not kept."""
        for entry in entries:
            self._finish(entry, self._copies[entry])
            self._copies[entry] = self._unasked[entry] = _Copy()
        if not self._is_paused:
            self._is_paused = True
            self._pauses += 1
            if self._pauses >= self._attempts_max:
                self.failure = self.failure or reason

    def note_lost(self, bookie: BookieId, reason: str) -> None:
        reason = reason or "connection lost"
        self._held.note_lost(bookie)
        if bookie == self.target:
            if self._writing:
                self._copy_again([entry for entry, copy in self._copies.items() if copy.size >= 0], reason)
            return
        waiting = {entry: copy for entry, copy in self._copies.items() if copy.asked == bookie}
        if waiting:
            self._health.note_lost(bookie)
        for copy in waiting.values():
            copy.asked = None
            copy.failed[bookie] = reason
        self._unasked.update(waiting)

    def retry(self) -> None:
        """Begin another round for entries that no bookie could serve in the last one."""
        was_paused, self._is_paused = self._is_paused, False
        for copy in self._unasked.values():
            if was_paused and not copy.failed:
                continue  # it waited for the target
            copy.rounds += 1
            if copy.rounds < self._attempts_max:
                copy.failed.clear()
                copy.damaged.clear()

    # ---- consequences ------------------------------------------------------------------------------------------------

    def settle(self, out: list[Effect]) -> bool:
        """Send reads, and sort out what cannot be read. Returns whether an entry waits for the next retry."""
        if self._is_paused:
            return True
        for entry, copy in list(self._unasked.items()):
            if entry in self._unasked:  # else an entry before it stopped the stripe
                self._ask(entry, copy, out)
        if self._next <= self.stripe.last and all(map(self._serves_no_more, self._sources)):
            self._leave_rest()
        while self._next <= self.stripe.last and self._has_room(out):
            self._pacer.note_begun()
            entry, copy = self._next, _Copy()
            self._next = self.stripe.upcoming(entry + 1)
            self._copies[entry] = self._unasked[entry] = copy
            self._ask(entry, copy, out)
        return bool(self._unasked)

    def _serves_no_more(self, bookie: BookieId) -> bool:
        """Whether a source serves none of the entries from `_next` on: it was given up, or said that it holds none."""
        is_given_up = self._health.is_given_up(bookie) or self._held.is_given_up(bookie)
        return is_given_up or self._held.ends_below(bookie, self._next)

    def _leave_rest(self) -> None:
        """No source serves the entries from `_next` on: list them as unreadable, or, if bookies out of reach may have
        them, as blocked."""
        reasons = {bookie: self._why_no_more(bookie) for bookie in self._sources}
        silent = [b for b in self._sources if b not in self._last_resort and not self._held.ends_below(b, self._next)]
        if silent:
            self._block({bookie: reasons[bookie] for bookie in silent})
        else:
            self._list(self._next, self.stripe.last, _reason(reasons))
        self._next = EntryId(self.stripe.last + 1)

    def _why_no_more(self, bookie: BookieId) -> str:
        if self._held.ends_below(bookie, self._next):
            return f"holds no entry above {self._held.last_of(bookie)}"
        return "unreachable" if self._health.is_given_up(bookie) else "does not say which entry is its last one"

    def _has_room(self, out: list[Effect]) -> bool:
        if not self._pacer.is_open:
            self._pacer.wait(out)
            return False
        reading = len(self._copies) - self._writing
        expected = self._writing_bytes + (reading + 1) * self._size
        return not self._copies or (len(self._copies) < self._entries_max and expected <= self._bytes_max)

    def _ask(self, entry: EntryId, copy: _Copy, out: list[Effect]) -> None:
        """Read an entry from the next bookie. One that none can serve, now or later, is unreadable if every bookie that
        is not gone said so."""
        sources = [bookie for bookie in self.stripe.holders(entry) if bookie != self.target]
        for bookie in sorted(sources, key=lambda b: (b in self._last_resort, self._health.losses(b))):
            if bookie not in copy.failed and bookie not in copy.denied and not self._health.is_down(bookie):
                copy.asked = bookie
                del self._unasked[entry]
                out.append(Send(bookie, ReadEntry(self._digest.ledger_id, entry)))
                return
        hopeful = [b for b in sources if b not in copy.denied and not self._health.is_given_up(b)]
        if not hopeful or copy.rounds >= self._attempts_max:
            del self._copies[entry], self._unasked[entry]
            self._held.note_entry(False)
            reasons = {
                b: copy.failed.get(b, "does not hold it" if b in copy.denied else "unreachable") for b in sources
            }
            if self._next <= self.stripe.last:
                self._held.ask([b for b in sources if b in copy.denied | copy.damaged], out)
            silent = [b for b in sources if b not in self._last_resort | copy.denied | copy.damaged]
            if silent:
                self._block({bookie: reasons[bookie] for bookie in silent})
                return
            self._list(entry, entry, _reason(reasons))

    def _block(self, reasons: Mapping[BookieId, str]) -> None:
        """Leave entries as they are that these bookies may have."""
        self.blocked = {**reasons, **self.blocked}  # of a bookie's reasons the first says most
        if not self.is_in_place:
            self._stop()

    def _finish(self, entry: EntryId, copy: _Copy) -> None:
        del self._copies[entry]
        self._writing -= 1
        self._writing_bytes -= copy.size

    def _list(self, first: EntryId, last: EntryId, reason: str) -> None:
        """List entries as unreadable; neighbours in the stripe become one range."""
        if not self._ranges_max:
            self._give_up(f"{reason}; the ledger has too many fragments to split this one further")
            return
        ranges, upcoming = self._unreadable, self.stripe.upcoming
        at = bisect.bisect(ranges, (first, last, reason))
        ranges.insert(at, (first, last, reason))
        if at + 1 < len(ranges) and upcoming(last + 1) >= ranges[at + 1][0]:
            self._merge(at)
        if at and upcoming(ranges[at - 1][1] + 1) >= first:
            self._merge(at - 1)
        if len(ranges) > self._ranges_max:
            self._merge(min(range(len(ranges) - 1), key=lambda n: ranges[n + 1][0] - ranges[n][1]))

    def _merge(self, at: int) -> None:
        """Merge a range with the next one."""
        (first, ended, reason), (_, last, _) = self._unreadable[at : at + 2]
        self._unreadable[at : at + 2] = [(first, max(ended, last), reason)]

    def _give_up(self, reason: str) -> None:
        """List the whole stripe as unreadable."""
        self._unreadable = [(self.stripe.first, self.stripe.last, reason)]
        self._stop()

    def _stop(self) -> None:
        """Copy nothing more; replies that are on their way do not matter."""
        self._copies.clear()
        self._unasked.clear()
        self._writing = self._writing_bytes = 0
        self._next = EntryId(self.stripe.last + 1)


def _reason(reasons: Mapping[BookieId, str]) -> str:
    """The text that says why no source can serve an entry. reasons: by source."""
    return "; ".join(f"{bookie}: {why}" for bookie, why in reasons.items()) or "it had no other copy"
