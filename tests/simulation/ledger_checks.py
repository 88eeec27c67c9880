"""Checks of a ledger, L1 to L12, L29, L30, L33, P1 and P2 of the reliability goals.

They are made as events happen, with access to all state.

The checker sees every fact and effect, every version of metadata and every journal. It uses nothing of how the machines
work: only messages, metadata, answers and what is durable.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from dlog.errors import DLogError, EntryMissingError, UnavailableError
from dlog.events import (
    BookieLost,
    EnsembleChanged,
    LedgerFenced,
    LedgerRecoveryFenced,
    LedgerRecoveryStarted,
    PlacementNotKept,
)
from dlog.ledger.adding import AddingOptions
from dlog.ledger.tailing import LedgerLac
from dlog.machine import (
    CompareAndSet,
    Effect,
    Emit,
    Fact,
    MetadataSeen,
    OutcomeUnknown,
    PeerLost,
    Received,
    Send,
    Versioned,
)
from dlog.model.ids import BookieId, EntryId
from dlog.model.ledger import LedgerKey, LedgerMetadata, LedgerState
from dlog.model.quorum import Quorum
from dlog.wire.bookie import AddEntry, Code, EntryAdded, EntryRead, ReadEntry
from dlog.wire.bookie_v3_messages import ReadWithLacDone, WriteLac
from dlog.wire.digest import ENTRY_HEAD, Digest
from tests.simulation.kernel import S, Simulation, Violation
from tests.simulation.network import Host
from tests.simulation.shipped_bookie import journal_records

ABSENT = (Code.NO_ENTRY, Code.NO_LEDGER)
SLACK_S = 0.001
REPLACED_S = 2.0  # to notice a lost bookie and to replace it, where there is a spare and metadata answers


class LedgerChecks:
    """Checks one ledger in one simulation."""

    def __init__(
        self,
        sim: Simulation,
        key: LedgerKey,
        bookies: Collection[BookieId],
        quorum: Quorum,
        digest: Digest,
        mute: Collection[str] = (),
    ) -> None:
        self.sim = sim
        self.key = key
        self.ledger = key.ledger
        self.quorum = quorum
        self.digest = digest
        self.mute = mute  # invariants whose evidence is not checked, so that a mutant must show in the history
        self.payloads: dict[int, bytes] = {}  # by entry id: ids are assigned in order of requests
        self.asked_at: dict[int, int] = {}
        self.lac = -1  # highest entry acknowledged to the writer's caller; with deferred sync: told to be durable
        self.last_written = self.carried = -1  # with deferred sync: acknowledged; highest LAC that an add has told
        self.closed_at: int | None = None
        self.ends: dict[str, tuple[int, int]] = {}
        self.packets: dict[int, bytes] = {}  # as the writer first sent them
        self.bytes_read: dict[int, bytes] = {}
        self.session_lac = -1
        self.visible_max = -1
        self.known: dict[str, LedgerMetadata] = {}  # metadata as each host read it last
        self.searching: dict[str, tuple[int, dict[int, set[BookieId]]]] = {}  # host -> from, denials by entry
        self.racks: Mapping[str, int] = {}  # by bookie; none: the ledger has no placement policy
        self.strict = False
        self.min_regions = 1  # with more, `racks` are regions
        self.stood: dict[str, set[int]] = {}  # the racks in which each bookie stands, or stood before it was moved
        self.told_unkept: set[tuple[str, ...]] = set()  # ensembles that an event has named
        self.writer, self.adding = "", AddingOptions()  # the address of the writer, and its options
        self.failed: set[str] = set()  # bookies that the writer may take for failed, and has sent nothing since
        self.failed_at: dict[str, int] = {}  # when it may have taken them for failed; they acknowledged nothing since
        self.wait_max_s = 0.0  # for the oldest entry, in plans where any loss can be made up for at once; 0: no bound
        self.stored: dict[int, set[str]] = {}  # by entry: the bookies whose acknowledgement the writer has received
        self.waits_since: int | None = None  # when the writer's oldest entry became the oldest; None: none waits
        self.unanswered = 0
        self._holds: dict[BookieId, dict[int, bytes]] = {b: {} for b in bookies}  # packets; also of a disk lost since
        self._fenced: set[BookieId] = set()
        self._scanned: dict[BookieId, int] = {b: len(sim.disk(b).durable) for b in bookies}  # past an older ledger's
        sim.metadata.on_change = self.metadata_changed
        sim.on_fact = self.see_fact
        sim.on_effect = self.see_effect

    # ---- state of all bookies ----------------------------------------------------------------------------------------

    def holders(self, entry: int) -> set[BookieId]:
        """The bookies that have the entry on stable storage."""
        self._scan()
        return {b for b, held in self._holds.items() if entry in held}

    def fenced(self) -> set[BookieId]:
        """The bookies that have a fence on stable storage."""
        self._scan()
        return self._fenced

    def _scan(self) -> None:
        for bookie, upto in self._scanned.items():
            durable = self.sim.disk(bookie).durable
            for _, data in durable[upto:]:
                for record in journal_records(data):
                    if record[0] == "fence":
                        self._fenced.add(bookie)
                    elif record[0] == "add":
                        self._holds[bookie].setdefault(record[2], record[3])
            self._scanned[bookie] = len(durable)

    @property
    def metadata(self) -> LedgerMetadata:
        value = self.sim.metadata.values[self.key].value
        assert isinstance(value, LedgerMetadata)
        return value

    def held_in_ensemble(self, entry: int, metadata: LedgerMetadata) -> int:
        """How many of the bookies that metadata names for an entry have it."""
        return len(self.holders(entry) & set(metadata.bookies_of(entry)))

    # ---- the writer --------------------------------------------------------------------------------------------------

    def asked(self, number: int, payload: bytes) -> None:
        self.asked_at[len(self.payloads)] = self.sim.now
        self.payloads[len(self.payloads)] = payload
        self.unanswered += 1
        if self.waits_since is None:
            self.waits_since = self.sim.now

    def watch_writer(self, address: str, options: AddingOptions, wait_max_s: float = 0.0) -> None:
        """Check what these options promise, of the writer at this address."""
        self.writer, self.adding, self.wait_max_s = address, options, wait_max_s

    def answered(self, result: Any) -> None:
        """Check how long the oldest entry waited for its answer."""
        timeout_s, since = self.adding.ack_quorum_timeout_s, self.waits_since
        assert since is not None
        self.unanswered -= 1
        waited_s = (self.sim.now - since) / S
        if self.wait_max_s and waited_s > self.wait_max_s:
            raise Violation("L29", f"an entry waited {waited_s} s, though there was a spare for each lost bookie")
        if timeout_s and waited_s > 1.5 * timeout_s + SLACK_S:
            raise Violation("L30", f"an entry waited {waited_s} s, the ack-quorum timeout is {timeout_s} s")
        if isinstance(result, UnavailableError) and result.outcome_unknown and "an ack quorum for" in result.message:
            self.sim.reach("ack_quorum_timeout")
            if waited_s < timeout_s - SLACK_S:
                raise Violation("L30", f"the writer gave up after {waited_s} s, its timeout is {timeout_s} s")
        if not self.unanswered:
            self.waits_since = None
        elif not isinstance(result, DLogError):
            self.waits_since = self.sim.now

    def _see_writers_change(self, value: LedgerMetadata) -> None:
        """Check that a writer which delays changes leaves an ensemble only once it may confirm no more with members
        that did not fail or have acknowledged since, or once one was lost for about as long as a change may wait."""
        known = self.known.get(self.writer, self.metadata)
        head, old = value.fragments[-1].first_entry, known.fragments[-1].ensemble
        if not self.adding.delayed_change or value.is_closed or value.fragments[-1].ensemble == old:
            return
        members = {old[index] for index in self.quorum.write_set(head)}
        left = members - self.failed_at.keys() | members & self.stored.get(head, set())
        if self._lost_for(self.adding.delay_max_s * 2 / 3 - SLACK_S, old):
            self.sim.reach("change_put_off_no_longer")
        elif len(left) >= self.quorum.ack:
            raise Violation("L29", f"{old} was changed at entry {head}, and {sorted(left)} may still confirm it")

    def acked(self, number: int, entry: EntryId) -> None:
        """Check an add that was answered with success."""
        metadata = self.metadata
        if entry != self.lac + 1:
            raise Violation("L6", f"entry {entry} confirmed after {self.lac}")
        self.lac = entry
        held = self.held_in_ensemble(entry, metadata)
        if held < self.quorum.ack:
            raise Violation(
                "L10", f"entry {entry} confirmed, {held} of its ensemble {metadata.bookies_of(entry)} hold it"
            )
        self._check_regions(entry, metadata, is_new=True)
        if metadata.is_closed:
            if entry > metadata.last_entry:
                raise Violation("L7", f"entry {entry} confirmed, the ledger was closed at {metadata.last_entry}")
            if self.closed_at is not None and self.asked_at[entry] > self.closed_at:
                raise Violation("L7", f"entry {entry} confirmed though asked for after the ledger was closed")

    def written(self, entry: EntryId) -> None:
        """Check an add with deferred sync that was answered with success: it may be lost until a force."""
        if entry != self.last_written + 1:
            raise Violation("L6", f"entry {entry} is written after {self.last_written}")
        self.last_written = entry

    def forced(self, lac: EntryId, written: int) -> None:
        """Check a force that was answered with success. `written` was the last acknowledged add at the request."""
        if lac < written:
            raise Violation("L33", f"a force was answered with {lac}, and {written} was acknowledged before it")
        metadata = self.metadata
        for entry in range(self.lac + 1, lac + 1):
            held = self.held_in_ensemble(entry, metadata)
            if held < self.quorum.ack:
                where = metadata.bookies_of(EntryId(entry))
                raise Violation("L33", f"entry {entry} is told to be durable, {held} of its ensemble {where} hold it")
        self.lac = max(self.lac, lac)

    def _see_carried(self, lac: int) -> None:
        """Check a LAC that an add with deferred sync tells readers: everything up to it is durable."""
        metadata = self.metadata
        for entry in range(max(self.lac, self.carried) + 1, lac + 1):
            held = self.held_in_ensemble(entry, metadata)
            if held < self.quorum.ack:
                raise Violation("L33", f"LAC {lac} is told, {held} of its ensemble hold entry {entry}")
        self.carried = max(self.carried, lac)

    def see_effect(self, host: Host, effect: Effect) -> None:
        if isinstance(effect, Send):
            message = effect.message
            if isinstance(message, AddEntry) and not message.recovery:
                if host.address == self.writer:
                    self._see_left_out(message)
                    self.failed.discard(str(effect.peer))
                self._see_add(message)
            elif isinstance(message, WriteLac) and message.lac > self.lac:
                raise Violation("L5", f"bookies are told LAC {message.lac}, confirmed is {self.lac}")
            elif isinstance(message, ReadEntry) and host.address in self.searching:
                self._see_search(host, message)
        elif isinstance(effect, Emit):
            self._see_event(host, effect.event)
        elif isinstance(effect, CompareAndSet) and host.address == self.writer:
            self._see_writers_change(effect.value)
        elif isinstance(effect, CompareAndSet) and "recoverer" in host.address and effect.value.is_closed:
            self._see_end(host, effect.value)

    def _see_add(self, message: AddEntry) -> None:
        packet = b"".join(bytes(part) for part in message.parts)
        first = self.packets.setdefault(message.entry, packet)
        if packet != first:
            raise Violation("L11", f"entry {message.entry} sent with other bytes than before")
        lac = _lac_of(packet)
        if message.deferred:
            self._see_carried(lac)
        elif lac > self.lac:
            raise Violation("L5", f"entry {message.entry} carries LAC {lac}, confirmed is {self.lac}")

    # ---- recovery ----------------------------------------------------------------------------------------------------

    def _see_event(self, host: Host, event: Any) -> None:
        match event:
            case LedgerRecoveryStarted():
                self.sim.reach("recovery")
                self.searching.pop(host.address, None)
            case LedgerRecoveryFenced(_, entry, _):
                self._see_coverage(host, entry)
                self.searching[host.address] = (entry, {})
                self.sim.reach("fenced_cover")
            case EnsembleChanged():
                if host.address == self.writer:
                    gone = {old for old, _ in event.replaced}
                    self.stored = {entry: bookies - gone for entry, bookies in self.stored.items()}
                    self.failed_at = {b: since for b, since in self.failed_at.items() if b not in gone}
                self.sim.reach("recovery_changed_ensemble" if "recoverer" in host.address else "ensemble_change")
            case LedgerFenced():
                self.sim.reach("fenced_writer")
            case PlacementNotKept():
                self.told_unkept.add(event.ensemble)
            case BookieLost():
                self.sim.reach("bookie_lost")
                if host.address == self.writer:
                    self._note_failed(event.peer)

    def _see_coverage(self, host: Host, entry: int) -> None:
        metadata = self.metadata
        last = metadata.fragments[-1]
        if "L8" in self.mute:
            return
        fenced = [bookie in self.fenced() for bookie in last.ensemble]
        if metadata.is_closed:
            return  # another recovery has finished; the evidence of this one does not count
        for start in range(len(fenced)):
            window = [fenced[(start + i) % len(fenced)] for i in range(self.quorum.write)]
            if window.count(True) < self.quorum.negatives_needed:
                raise Violation("L8", f"the search begins with {fenced} of {last.ensemble} fenced")
        last = self.known[host.address].fragments[-1]  # a process that finds the tail may have added one since
        if entry < last.first_entry - 1:
            raise Violation("L9", f"the search begins behind {entry}, the last fragment at {last.first_entry}")

    def _see_search(self, host: Host, message: ReadEntry) -> None:
        if message.entry > self.searching[host.address][0] and not message.fence and "L8" not in self.mute:
            raise Violation("L8", f"entry {message.entry} sought by recovery without a fence")

    def see_fact(self, host: Host, fact: Fact) -> None:
        if host.address == self.writer:
            self._see_writers_fact(fact)
        if isinstance(fact, Received):
            answer = fact.message
            if isinstance(answer, ReadWithLacDone) and answer.code is Code.OK and answer.waited:
                self.sim.reach("long_poll_waited")
            if isinstance(answer, EntryRead) and answer.fence and answer.entry >= 0 and answer.code in ABSENT:
                _, denials = self.searching.get(host.address, (0, {}))
                denials.setdefault(answer.entry, set()).add(BookieId(str(fact.peer)))
        elif isinstance(fact, MetadataSeen):
            if isinstance(fact.outcome, OutcomeUnknown):
                self.sim.reach("settled_unknown")
            elif isinstance(fact.outcome, Versioned):
                self.known[host.address] = fact.outcome.value

    def _see_writers_fact(self, fact: Fact) -> None:
        if isinstance(fact, PeerLost):
            self._note_failed(str(fact.peer))
        elif isinstance(fact, Received) and isinstance(fact.message, EntryAdded):
            peer = str(fact.peer)
            if fact.message.code is Code.OK:
                self.stored.setdefault(fact.message.entry, set()).add(peer)
                self.failed_at.pop(peer, None)
                if peer in self.failed:
                    self.failed_at[peer] = self.sim.now
            else:
                self._note_failed(peer)

    def _note_failed(self, bookie: str) -> None:
        self.failed.add(bookie)
        self.failed_at.setdefault(bookie, self.sim.now)

    def _lost_for(self, time_s: float, ensemble: Sequence[BookieId]) -> list[BookieId]:
        """The members that failed so long ago and have acknowledged nothing since."""
        now = self.sim.now
        return [b for b in ensemble if now - self.failed_at.get(b, now) >= time_s * S]

    def _see_left_out(self, message: AddEntry) -> None:
        """Note that an entry goes to an ensemble with a failed member, which a delayed change left there, and check
        that it was not lost for too long."""
        ensemble = self.known.get(self.writer, self.metadata).fragments[-1].ensemble
        if self.adding.delayed_change and self.failed & {ensemble[i] for i in self.quorum.write_set(message.entry)}:
            self.sim.reach("change_put_off")
        if self.adding.delayed_change and (lost := self._lost_for(self.adding.delay_max_s + REPLACED_S, ensemble)):
            raise Violation("L29", f"entry {message.entry} is sent, and {lost} of {ensemble} are not replaced")

    def _see_end(self, host: Host, value: LedgerMetadata) -> None:
        """Check a recovery that is about to write an end: it must have received enough denials of the entry behind
        it."""
        _, denials = self.searching.get(host.address, (0, {}))
        denied = denials.get(value.last_entry + 1, set())
        if len(denied) < self.quorum.negatives_needed and "L8" not in self.mute:
            raise Violation("L8", f"end at {value.last_entry} with the next entry denied by {sorted(denied)} only")

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def metadata_changed(self, key: Any, old: LedgerMetadata | None, new: LedgerMetadata) -> None:
        if key != self.key:
            return
        firsts = firsts_of(new)
        if firsts[0] != 0 or any(a >= b for a, b in pairwise(firsts)):
            raise Violation("L9", f"fragments begin at {firsts}")
        if old is None:
            return
        self._see_ensembles(old, new)
        if old.is_closed and not self.may_follow(old, new):
            raise Violation("L2", f"a closed ledger was changed: {old} -> {new}")
        if old.state is LedgerState.IN_RECOVERY and new.state is LedgerState.OPEN:
            raise Violation("L2", "a ledger in recovery was opened again")
        for entry in range(new.fragments[-1].first_entry, self.lac + 1):
            held = self.held_in_ensemble(entry, new)
            if held < self.quorum.ack:
                raise Violation("L10", f"confirmed entry {entry} is now in {new.bookies_of(entry)}, {held} hold it")
        if new.is_closed and not old.is_closed:
            self.closed_at = self.sim.now
            self._closed(new)

    def _check_regions(self, entry: int, metadata: LedgerMetadata, *, is_new: bool) -> None:
        """Check that enough regions hold a confirmed entry, on bookies that metadata names for it. is_new: it is
        confirmed now; else a bookie may have been moved since."""
        if self.min_regions == 1:
            return
        holders = self.holders(entry) & set(metadata.bookies_of(entry))
        regions = {self.racks[bookie] for bookie in holders} if is_new else self._stood(holders)
        if len(regions) < self.min_regions:
            raise Violation("P2", f"entry {entry} is confirmed, {sorted(holders)} of one region hold it")
        self.sim.reach("held_by_two_regions")

    def moved(self, bookie: str) -> None:
        """A bookie stands in another rack now."""
        self.stood[bookie].add(self.racks[bookie])
        self.sim.reach("moved")

    def _stood(self, bookies: Iterable[BookieId]) -> set[int]:
        return {rack for bookie in bookies for rack in self.stood[bookie]}

    def watch_placement(self, created: LedgerMetadata, racks: Mapping[str, int], min_regions: int) -> None:
        """Check the ensembles by these racks from now on. The creator of the ledger tells of the first one.
        min_regions: how many must hold what is confirmed; with more than one, racks are regions."""
        self.racks, self.min_regions = racks, min_regions
        self.stood = {bookie: {rack} for bookie, rack in racks.items()}
        self.strict = b"strict" in dict(created.custom).get("dlog.placement", b"")
        self.told_unkept.add(created.fragments[0].ensemble)

    def _see_ensembles(self, old: LedgerMetadata, new: LedgerMetadata) -> None:
        """Check that a new ensemble has two racks in each write quorum, or that an event named it; strict: that no
        write quorum was left with one that had two, but by a recovery that could not store an entry otherwise."""
        for fragment in new.fragments if self.racks else ():
            ensemble, before = fragment.ensemble, old.fragment_of(fragment.first_entry).ensemble
            if fragment in old.fragments:
                continue
            alone, alone_before = self._in_one_rack(ensemble), self._in_one_rack(before, perhaps=True)
            self.sim.reach("one_rack" if alone else "two_racks")
            if (
                self.strict
                and alone - alone_before
                and not self._is_forced(alone - alone_before, before, ensemble, new)
            ):
                raise Violation("P1", f"{ensemble} has copies in one rack where {before} had two: {sorted(alone)}")
            if alone and ensemble not in self.told_unkept:
                raise Violation("P1", f"{ensemble} has copies in one rack, and no event said so: {sorted(alone)}")

    def _is_forced(
        self, alone: set[int], old: Sequence[BookieId], ensemble: Sequence[BookieId], new: LedgerMetadata
    ) -> bool:
        """Whether a recovery replaced so many members of one of these write quorums that the others are fewer than
        Qa."""
        if not new.is_closed or self.min_regions > 1:
            return False
        self.sim.reach("strict_recovery_in_one_rack")
        kept = [a == b for a, b in zip(old, ensemble, strict=True)]
        numbers = (sum(kept[(start + i) % len(kept)] for i in range(self.quorum.write)) for start in alone)
        return min(numbers) < self.quorum.ack

    def _in_one_rack(self, ensemble: Sequence[BookieId], *, perhaps: bool = False) -> set[int]:
        """The write quorums with one rack, by their first bookie index. A bookie that was moved may have stood in
        either rack when the ensemble was chosen. perhaps: also those that may have had one rack then."""
        size, write = len(ensemble), self.quorum.write
        found = set()
        for start in range(size) if write > 1 else ():
            stood = [self.stood[ensemble[(start + i) % size]] for i in range(write)]
            if set.intersection(*stood) if perhaps else len(set.union(*stood)) == 1:
                found.add(start)
        return found

    def may_follow(self, old: LedgerMetadata, new: LedgerMetadata) -> bool:
        """Whether this change of a closed ledger is allowed: none is, where nothing is repaired."""
        return new == old

    def _closed(self, new: LedgerMetadata) -> None:
        if new.last_entry < self.visible_max:
            raise Violation("L5", f"closed at {new.last_entry}, a reader was told of {self.visible_max}")
        if new.last_entry < self.lac:
            raise Violation("L1", f"closed at {new.last_entry}, confirmed is {self.lac}")
        if new.last_entry < new.fragments[-1].first_entry - 1:
            raise Violation(
                "L9", f"closed at {new.last_entry} before the last fragment {new.fragments[-1].first_entry}"
            )
        for entry in range(new.last_entry + 1):
            held = self.held_in_ensemble(entry, new)
            if held < self.quorum.ack:
                raise Violation("L4", f"closed at {new.last_entry}, {held} of {new.bookies_of(entry)} hold {entry}")
            self._check_regions(entry, new, is_new=False)
        length = sum(len(self.payloads[e]) for e in range(new.last_entry + 1))
        if new.length != length:
            raise Violation("length", f"closed with length {new.length}, the payloads have {length}")

    def ended(self, who: str, last_entry: int, length: int) -> None:
        """Check an end of the ledger that a caller was sent."""
        self.ends[who] = (last_entry, length)
        metadata = self.metadata
        if not metadata.is_closed or (last_entry, length) != (metadata.last_entry, metadata.length):
            end = (metadata.last_entry, metadata.length)
            raise Violation("L12", f"{who} was told the end {last_entry, length}, metadata says {end}")

    def returned(self, last_entry: int, payloads: Sequence[bytes]) -> None:
        """Check the last entries of the ledger that a recovery returned."""
        for entry, payload in enumerate(payloads, last_entry + 1 - len(payloads)):
            self.sim.reach("returned_with_the_end")
            if payload != self.payloads[entry]:
                text = f"entry {entry} was returned with the end as {payload!r}, written as {self.payloads[entry]!r}"
                raise Violation("L3", text)

    # ---- readers -----------------------------------------------------------------------------------------------------

    def new_session(self) -> None:
        self.session_lac = -1

    def decided(self, metadata: LedgerMetadata) -> int:
        """The last entry that no writer or recovery can change any more. A copy that a repair made of a closed ledger
        tells it to readers that do not know of the end."""
        return metadata.last_entry if metadata.is_closed else metadata.fragments[-1].first_entry - 1

    def visible(self, seen: LedgerLac) -> None:
        """Check a LAC that a tailing reader was sent."""
        if seen.lac < self.session_lac:
            raise Violation("L5", f"the LAC of a reader went from {self.session_lac} to {seen.lac}")
        decided = self.decided(self.metadata)
        if not seen.closed and seen.lac > max(self.lac, self.carried, decided):
            raise Violation("L5", f"LAC {seen.lac} is visible, confirmed is {self.lac}, decided {decided}")
        self.session_lac = seen.lac
        self.visible_max = max(self.visible_max, seen.lac)

    def found(self, seen: LedgerLac, acked: int) -> None:
        """Check a tail that was found without the writer. `acked` was the last entry acknowledged at the request."""
        if seen.lac < acked:
            raise Violation(
                "L5", f"the tail is told to be {seen.lac}, and {acked} was acknowledged before the question"
            )
        metadata = self.metadata
        if not seen.closed:
            self.sim.reach("found_beyond_the_writer" if seen.lac > self.lac else "found_as_the_writer")
            if seen.lac > max((_lac_of(packet) for packet in self.packets.values()), default=-1):
                self.sim.reach("found_beyond_the_lac")
        if metadata.is_closed and seen.lac > metadata.last_entry:
            raise Violation("L5", f"the tail is told to be {seen.lac}, the ledger ended at {metadata.last_entry}")
        self.visible_max = max(self.visible_max, seen.lac)

    def read_entry(self, entry: int, payload: bytes) -> None:
        known = self.bytes_read.setdefault(entry, payload)
        if known != payload or payload != self.payloads[entry]:
            raise Violation("L3", f"entry {entry} was read as {payload!r}, written as {self.payloads[entry]!r}")

    def read_failed(self, error: DLogError) -> None:
        if isinstance(error, EntryMissingError):
            raise Violation("L5", f"a reader was told that a confirmed entry is missing: {error}")
        self.sim.reach("read_failed")

    # ---- the end -----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Check the quiet state at the end: the ledger is closed and the tail has read to its end."""
        metadata = self.metadata
        if metadata.last_entry < self.visible_max:
            raise Violation("L5", f"LAC {self.visible_max} was visible, the ledger ended at {metadata.last_entry}")
        for entry in range(metadata.last_entry + 1):
            if entry not in self.bytes_read:
                raise Violation("L1", f"entry {entry} of {metadata.last_entry} was never read")
        for bookie in self._holds:
            for _, data in self.sim.disk(bookie).durable:
                for record in journal_records(data):
                    if (
                        record[0] == "add"
                        and record[2] <= metadata.last_entry
                        and bookie in metadata.bookies_of(record[2])
                    ):
                        payload = record[3][ENTRY_HEAD.size + self.digest.size :]
                        if payload != self.payloads[record[2]]:
                            raise Violation("L3", f"{bookie} holds other bytes for entry {record[2]}")


def _lac_of(packet: bytes) -> int:
    """The LAC stored in an entry."""
    lac: int = ENTRY_HEAD.unpack_from(packet)[2]
    return lac


def firsts_of(metadata: LedgerMetadata) -> list[int]:
    """The first entries of the fragments."""
    return [f.first_entry for f in metadata.fragments]
