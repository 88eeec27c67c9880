"""Checks of a stream, S1-S15 and T1-T7 of the reliability notes, over every answer and all stored data.

Online checks (`changed`, `appended`, `answered`, `delivered`) fail at the event; `final` reads everything back once the
world has settled. A payload names its writer: producer, sequence.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any

from dlog.errors import Remedy, SequenceGapError
from dlog.log.contents import read_contents
from dlog.log.messages import BatchWritten, WriteBatch
from dlog.log.owner import StreamOwnerMachine
from dlog.log.owner_context import Phase
from dlog.log.producer_table import NAME_BYTES
from dlog.model.dlsn import DLSN, of
from dlog.model.segment import Location, Segment, StreamMetadata, Truncation
from dlog.wire.entry import Record, decode_entry
from tests.simulation.kernel import Violation
from tests.simulation.store_model import StoredSegment, StoreModel

_FOR_GOOD = (Remedy.FIX, Remedy.STOP, Remedy.REPORT)


@dataclass(slots=True)
class Written:
    """One batch that a client wanted written, and the answers to it."""

    producer: bytes
    sequence: int
    payloads: tuple[bytes, ...]
    asked_at: int  # first sent
    txid: int | None
    result: BatchWritten | None = None  # acknowledged
    acked_at: int = 0
    epoch: int = 0  # of the owner that acknowledged it
    certainly_not: bool = False  # refused, and no attempt's outcome is unknown
    is_given_up: bool = False  # its outcome is unknown for good


@dataclass(slots=True)
class Delivered:
    """What one reader received since it was opened: records in order. txid: where it asked to start."""

    start: DLSN | None
    seen: list[tuple[DLSN, bytes]]
    txid: int | None = None
    resumed: set[int] = field(default_factory=set)  # how many records it had at each time it was opened again


class StreamChecks:
    """mute: invariants that are not checked (to see which check catches a mutant)."""

    def __init__(self, mute: tuple[str, ...] = ()) -> None:
        self.batches: list[Written] = []
        self.readers: list[Delivered] = []
        self.places: dict[int, Location] = {}  # segment number -> location that has held an entry
        self.claims: set[tuple[int, str]] = set()  # epoch, nonce
        self.point = of(1, 0, 0)  # acknowledged truncation point
        self.confirmed: dict[bytes, int] = {}  # producer id -> sequence behind everything that an owner acknowledged
        self.misstated: set[Location] = set()  # segments whose end in the list may differ from the store's
        self._mute = mute
        self._txids: dict[DLSN, int] = {}  # of all records read back
        self._removed_open: Collection[Location] = ()
        self._removed_numbers: set[int] = set()  # of those

    def fail(self, invariant: str, text: str) -> None:
        if invariant not in self._mute:
            raise Violation(invariant, text)

    # ---- online -----------------------------------------------------------------------------------------------------

    def changed(self, old: StreamMetadata | None, new: StreamMetadata, store: StoreModel) -> None:
        """Check a write of metadata."""
        if old is None:
            return
        if new.owner.claim != old.owner.claim:
            if new.owner.epoch != old.owner.epoch + 1:
                self.fail("T3", f"epoch went from {old.owner.epoch} to {new.owner.epoch}")
            self.claims.add((new.owner.epoch, new.owner.claim))
        elif new.owner.epoch != old.owner.epoch:
            self.fail("T3", "the epoch changed without a claim")
        before = {s.number: s for s in old.listed}
        for segment in new.listed:
            known = before.get(segment.number)
            if known is None or known.location != segment.location:
                self._started(segment, new, store)
            if known is not None and known.completed and not self._may_be(known, segment, store):
                self.fail("S9", f"a completed segment changed: {known} -> {segment}")
        for number, segment in before.items():
            if new.listed.find(number) is not None or self._is_empty(segment, store):
                continue
            if old.truncated_segment(number) is None:
                self.fail("S9", f"segment {number} left the list without being truncated")
            if segment.location in store.segments:
                self.fail("S9", f"segment {number} left the list and is still at {segment.location}")
        first_old, first_new = first_readable(old), first_readable(new)
        if first_old is not None and first_new is not None and first_new < first_old:
            self.fail("S9", f"the truncation point moved back from {first_old} to {first_new}")
        if new.max_txid < old.max_txid:
            self.fail("S7", f"the highest txid fell from {old.max_txid} to {new.max_txid}")

    def deleted(self, location: Location, value: StreamMetadata) -> None:
        """S9: a store deletes only what no reader may read, also by the metadata that Java sees."""
        for segment in value.listed:
            if segment.location == location and segment.truncation is not Truncation.TRUNCATED:
                self.fail("S9", f"segment {segment.number} was deleted at {location} before it was marked as truncated")

    def truncated(self, point: DLSN, told: DLSN, value: StreamMetadata) -> None:
        """S9: an answered truncation holds: nothing before the point can be read any more. Where a fenced foreign
        writer listed a lower end of the segment, it holds up to that, as the answer says."""
        segment = value.segment(point.segment)
        if segment is not None and segment.completed and segment.location in self.misstated:
            point = min(point, segment.last_dlsn.next_slot())
        self.point = max(self.point, point)
        first = first_readable(value)
        if told < point or (first is not None and first < point):
            self.fail("S9", f"a truncation to {point} was answered with {told}, and the first place kept is {first}")

    def denied(self, point: DLSN, value: StreamMetadata) -> None:
        """S14: a point within the acknowledged records was said to be beyond the end. Where a fenced foreign writer
        listed a lower end of the segment, that is the end."""
        segment = value.segment(point.segment)
        if segment is None or segment.location not in self.misstated:
            self.fail("S14", f"{point} is said to be beyond the end, and was acknowledged")

    def _started(self, segment: Segment, new: StreamMetadata, store: StoreModel) -> None:
        """T4: when a segment enters the list, all but the one before it have ended."""
        if segment.completed:
            return
        for other in new.segments:
            held = store.segments.get(other.location)
            if other.number < segment.number - 1 and held is not None and held.end is None:
                self.fail("T4", f"segment {segment.number} was started while {other.number} is not fenced")
        known = self.places.get(segment.number, segment.location)
        held = store.segments.get(known)
        if held is None or held.end == -1:
            self.places.pop(segment.number, None)  # no entry that was appended there survived
        elif known != segment.location:
            self.fail("S1", f"segment {segment.number} was given to {segment.location}, entries lie at {known}")

    def _may_be(self, old: Segment, new: Segment, store: StoreModel) -> bool:
        """Whether a completed segment may change to this: only its truncation moves, unless its end is corrected."""
        held = store.segments.get(old.location)
        if old.location in self.misstated and held is not None and held.end == new.last_entry:
            old = replace(
                old,
                last_entry=new.last_entry,
                last_txid=new.last_txid,
                record_count=new.record_count,
                last_slot=new.last_slot,
            )
        return _grew(old, new)

    def _is_empty(self, segment: Segment, store: StoreModel) -> bool:
        held = store.segments.get(segment.location)
        return held is None or not held.payloads

    def appended(self, stored: StoredSegment, value: StreamMetadata, store: StoreModel) -> None:
        """Check S6 and S1 when the store accepted an entry."""
        listed = value.segment(stored.number)
        if listed is not None and listed.location == stored.location:
            self.places.setdefault(stored.number, stored.location)
        for other in value.segments:
            held = store.segments.get(other.location)
            is_before = listed is not None and listed.location == stored.location and other.number < stored.number
            if is_before and held is not None and held.end is None:
                self.fail("S6", f"segment {stored.number} is written while {other.number} is not closed")

    def owned(self, epoch: int, nonce: str) -> None:
        """T3: check an owner that believes to hold a claim."""
        if (epoch, nonce) not in self.claims:
            self.fail("T3", f"epoch {epoch} is believed to be held by {nonce}, metadata never said so")

    def answered(self, owner: StreamOwnerMachine, result: Any, place: StoredSegment | None) -> None:
        """T2: check a batch that an owner acknowledged."""
        if not isinstance(result, BatchWritten) or result.duplicate:
            return
        if owner.phase is Phase.LOST:
            self.fail("T2", f"acknowledged {result.dlsn} after the claim was lost")
        if place is not None and place.end is not None and result.dlsn.entry > place.end:
            self.fail("T2", f"acknowledged {result.dlsn} above the end {place.end} that was decided")
        if place is not None and result.dlsn.entry > place.confirmed:
            self.fail("S2", f"acknowledged {result.dlsn} before the store confirmed it, confirmed={place.confirmed}")

    def confirmed_of(self, request: Any) -> int:
        """The sequence up to which the producer of this batch had its records acknowledged when the batch reached the
        owner."""
        return self.confirmed.get(request.producer, 0) if isinstance(request, WriteBatch) else 0

    def said(self, request: Any, confirmed: int, result: Any) -> None:
        """S14: check an owner's answer. confirmed: the result of `confirmed_of` when the request arrived."""
        if not isinstance(request, WriteBatch):
            return
        if isinstance(result, BatchWritten):
            after = request.sequence + request.count
            self.confirmed[request.producer] = max(after, self.confirmed.get(request.producer, 0))
        elif isinstance(result, SequenceGapError):
            if request.retry and result.expected < confirmed:
                self.fail("S14", f"{result.expected} is said to be missing, and all below {confirmed} is in the log")
        elif request.retry and result.remedy in _FOR_GOOD and request.sequence < confirmed:
            self.fail("S14", f"{request.sequence} is refused for good, and in the log: {result!r}")

    def delivered(
        self, reader: Delivered, segment: int, first: int, payloads: list[bytes], skip: int, lac: int
    ) -> None:
        """Check S8, and S4 within the reader, when entries were sent to it. lac: the LAC in the store at this
        moment."""
        if first + len(payloads) - 1 > lac:
            self.fail("S8", f"entries {first}..{first + len(payloads) - 1} of segment {segment} above the LAC {lac}")
        worth = False
        for entry, payload in enumerate(payloads, first):
            for record in decode_entry(payload):
                worth = worth or record.is_user or record.is_end_of_stream
                if record.is_user and record.slot >= (skip if entry == first else 0):
                    self._see(reader, of(segment, entry, record.slot), bytes(record.payload))
        if not worth:
            self.fail("S8", f"a reader was sent control records alone: segment {segment} entry {first}")

    def _see(self, reader: Delivered, dlsn: DLSN, payload: bytes) -> None:
        if reader.seen and dlsn <= reader.seen[-1][0]:
            invariant = "S12" if len(reader.seen) in reader.resumed else "S4"
            self.fail(invariant, f"a reader saw {dlsn} after {reader.seen[-1][0]}")
        reader.seen.append((dlsn, payload))

    # ---- at the end -------------------------------------------------------------------------------------------------

    def final(
        self,
        value: StreamMetadata,
        store: StoreModel,
        check_sinks: Callable[[list[bytes], bool], set[bytes]],
        removed_open: Collection[Location] = (),
    ) -> None:
        """Read everything back and compare, when everything is settled. removed_open: segments that their store removed
        while they were in progress: no owner knows what they hold."""
        self._removed_open = removed_open
        master = self._master(value, store)
        kept = [s for s in value.segments if s.truncation is Truncation.ACTIVE]
        has_lost = not kept or kept[0].number > 1
        first = first_readable(value) or of(value.max_segment + 1, 0, 0)
        # truncated segments are deleted in any order, so a batch that lies in several of them may be there in part
        sinks = check_sinks([master[dlsn] for dlsn in sorted(master) if dlsn >= first], has_lost)
        self._check_writes({dlsn: p for dlsn, p in master.items() if p not in sinks}, value)
        self._check_order()
        self._check_readers(master, first)

    def _master(self, value: StreamMetadata, store: StoreModel) -> dict[DLSN, bytes]:
        master: dict[DLSN, bytes] = {}
        last_txid = -1
        numbers = [s.number for s in value.listed]
        if numbers != list(range(numbers[0], numbers[0] + len(numbers))) if numbers else False:
            self.fail("S1", f"segment numbers are not dense: {numbers}")
        for segment in value.listed:
            held = store.segments.get(segment.location)
            if held is None:
                if not value.has_lost(segment.number):
                    self.fail("S9", f"segment {segment.number} is in the list and not in the store")
                continue
            is_misstated = segment.location in self.misstated and segment.last_entry != held.end
            is_unknown = is_misstated or segment.location in self._removed_open
            end = segment.last_entry if segment.completed and not is_unknown else held.confirmed
            records: list[Record] = []
            for entry in range(end + 1):
                if entry >= len(held.payloads):
                    self.fail("S2", f"entry {segment.number}:{entry} is lost, the store ends at {len(held.payloads)}")
                found = decode_entry(held.payloads[entry])
                records += found
                for record in found:
                    if record.is_user:
                        master[of(segment.number, entry, record.slot)] = bytes(record.payload)
                        self._txids[of(segment.number, entry, record.slot)] = record.txid
                        if record.txid < last_txid:
                            self.fail("S7", f"txid {record.txid} after {last_txid} at {segment.number}:{entry}")
                        last_txid = max(last_txid, record.txid)
            if segment.location in self._removed_open:
                last_txid = -1  # those that it held are not known to the next owner
                self._removed_numbers.add(segment.number)
            elif segment.completed and segment.location not in self.misstated:
                self._check_completed(segment, records, held)
        return master

    def _check_completed(self, segment: Segment, records: list[Record], held: StoredSegment) -> None:
        """S10: what metadata says of a segment is what a full read finds."""
        users = [r for r in records if r.is_user]
        if segment.record_count != len(users):
            self.fail("S10", f"segment {segment.number} counts {segment.record_count} records and holds {len(users)}")
        if held.end != segment.last_entry:
            self.fail("S10", f"segment {segment.number} ends at {segment.last_entry}, in the store at {held.end}")
        contents = read_contents(held.payloads[segment.last_entry])
        if (segment.last_slot, segment.last_txid) != (contents.last_slot, contents.last_txid):
            self.fail("S10", f"segment {segment.number}: {segment} but its last entry says {contents}")
        for position, record in enumerate(users, 1):
            if record.position != position:
                self.fail("S10", f"segment {segment.number} holds position {record.position} at {position}")

    def _check_writes(self, master: dict[DLSN, bytes], value: StreamMetadata) -> None:
        """S1, S2, S3, S7: each acknowledged batch is in the log once, where its answer said; no other records are."""
        found: dict[bytes, list[DLSN]] = {}
        for dlsn, payload in master.items():
            found.setdefault(payload, []).append(dlsn)
        numbers = [s.number for s in value.segments]
        kept_from = min(numbers, default=value.max_segment + 1)
        for batch in self.batches:
            for i, payload in enumerate(batch.payloads):
                places = found.pop(payload, [])
                if places and batch.is_given_up:
                    self._check_given_up(batch, places[0])
                if len(places) > 1:
                    self.fail("S2", f"{payload!r} was written twice, at {places}")
                if batch.result is not None:
                    self._check_acked(batch, i, places, kept_from)
                elif places and batch.certainly_not:
                    self.fail("S2", f"{payload!r} was refused for certain and lies at {places}")
        for payload, places in found.items():
            self.fail("S3", f"nobody wrote {payload!r} at {places}")

    def _check_given_up(self, batch: Written, place: DLSN) -> None:
        """S15: a batch that was given up lies before what its producer got acknowledged under a later generation."""
        for later in self.batches:
            is_later = later.producer[:NAME_BYTES] == batch.producer[:NAME_BYTES] and later.producer > batch.producer
            if is_later and later.result is not None and of(0, 0, 0) < later.result.dlsn < place:
                self.fail("S15", f"{batch} was given up, and came to lie at {place} behind {later}")

    def _check_acked(self, batch: Written, i: int, places: list[DLSN], kept_from: int) -> None:
        assert batch.result is not None
        dlsn = batch.result.dlsn
        if dlsn.segment == 0:  # a repeated batch whose position is forgotten
            if not places and kept_from <= 1:
                self.fail("S2", f"{batch.payloads[i]!r} was acknowledged as a repeated one and is nowhere")
            return
        expected = dlsn.next_slot(i)
        if dlsn.segment >= kept_from and not places:
            if of(*dlsn) >= self.point:
                self.fail("S2", f"{batch.payloads[i]!r} was acknowledged at {expected} and is nowhere")
        elif places and places[0] != expected:
            self.fail("S2", f"{batch.payloads[i]!r} was acknowledged at {expected} and lies at {places[0]}")

    def _check_order(self) -> None:
        """S5: a batch acknowledged before another was sent lies before it. T1: owners follow one another."""
        acked = [b for b in self.batches if b.result is not None and b.result.dlsn.segment > 0]
        by_ack = sorted(acked, key=lambda b: b.acked_at)
        times = [b.acked_at for b in by_ack]
        highest: list[DLSN] = []
        for batch in by_ack:
            assert batch.result is not None
            highest.append(max(batch.result.dlsn, highest[-1]) if highest else batch.result.dlsn)
        for batch in acked:
            assert batch.result is not None
            before = bisect.bisect_left(times, batch.asked_at)
            if before and highest[before - 1] > batch.result.dlsn:
                self.fail("S5", f"asked later, written before: {batch.result.dlsn} below {highest[before - 1]}")
            if batch.txid is not None and batch.result.txid not in (-1, batch.txid):
                self.fail("S7", f"asked for txid {batch.txid}, told {batch.result.txid}")
        firsts = [b for b in acked if b.result is not None and not b.result.duplicate]
        firsts.sort(key=lambda b: b.result.dlsn if b.result else of(0, 0, 0))
        for one, two in itertools.pairwise(firsts):
            if one.epoch > two.epoch:
                self.fail("T1", f"epoch {one.epoch} acknowledged {one.result} below epoch {two.epoch}: {two.result}")

    def _check_readers(self, master: dict[DLSN, bytes], first: DLSN) -> None:
        """S3, S4, S11: each reader received a contiguous run of the log."""
        order = sorted(master)
        for reader in self.readers:
            if reader.start is not None and reader.seen and reader.seen[0][0] < reader.start:
                self.fail("S11", f"started at {reader.start} and saw {reader.seen[0][0]}")
            if reader.txid is not None and reader.seen:
                self._check_seek(order, reader.txid, reader.seen[0][0], first)
            last: int | None = None
            for seen, (dlsn, payload) in enumerate(reader.seen):
                if dlsn < first and dlsn not in master:
                    last = None  # truncated since
                    continue
                if master.get(dlsn) != payload:
                    self.fail("S3", f"a reader saw {payload!r} at {dlsn}, where {master.get(dlsn)!r} lies")
                    continue
                index = bisect.bisect_left(order, dlsn)
                if last is not None and index != last + 1:
                    invariant = "S12" if seen in reader.resumed else "S4"
                    self.fail(invariant, f"a reader saw {dlsn} after {order[last]}, between lie {index - last - 1}")
                elif last is None and reader.start is not None:
                    due = bisect.bisect_left(order, max(reader.start, first))
                    is_later = index != due and due < len(order) and order[due] < dlsn
                    if is_later and reader.seen[0][0] == dlsn:
                        self.fail("S4", f"a reader that started at {reader.start} saw {dlsn} first, not {order[due]}")
                last = index

    def _check_seek(self, order: list[DLSN], txid: int, seen: DLSN, first: DLSN) -> None:
        for dlsn in order:
            if dlsn.segment in self._removed_numbers:
                continue
            if first <= dlsn < seen and self._txids[dlsn] >= txid:
                self.fail("S11", f"asked for txid {txid}, saw {seen} first, but {dlsn} has {self._txids[dlsn]}")
        if self._txids.get(seen, txid) < txid:
            self.fail("S11", f"asked for txid {txid}, saw {seen} first, which has {self._txids[seen]}")


def _grew(old: Segment, new: Segment) -> bool:
    """Whether a completed segment changed only by truncation, forward, or was moved."""
    same = (old.last_entry, old.last_txid, old.record_count, old.last_slot) == (
        new.last_entry,
        new.last_txid,
        new.record_count,
        new.last_slot,
    )
    return same and new.completed and new.truncation >= old.truncation and new.first_dlsn >= old.first_dlsn


def first_readable(value: StreamMetadata) -> DLSN | None:
    return value.first_dlsn if value.segments else None
