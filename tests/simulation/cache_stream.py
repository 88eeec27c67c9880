"""A model of one stream as a read proxy sees it: owners that come and go, segments, metadata.

Readers are checked against this model.

Invariants:
- An owner appends and confirms in order.
- When an owner dies, a recovery decides the end of its segment once and for all: it keeps all confirmed entries and a
  random prefix of the rest.
- The number of a segment that ended empty is used again, with another location. A location is never used twice.
- A reader of the store alone sees an entry once a later one carries its LAC (or at once, where what is visible is
  final).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from actors.owner_feed import OwnerListener
from dlog.model.ids import NO_ENTRY, EntryId, Epoch, ProxyId, SegmentNumber, StreamName, Txid
from dlog.model.segment import Owner, Segment, StreamMetadata, Truncation
from dlog.wire.entry import Record, control_record, encode_entry
from tests.simulation.service.loop import SimulatedLoop

STREAM = StreamName("s")
SEALED_TXID = Txid(2**63 - 1)
MS = 1_000_000
S = 1_000_000_000


@dataclass(slots=True)
class StoredSegment:
    """The location of a segment. carried: the highest entry that a reader of the store alone may know to be confirmed.
    origin: the location where its entries were written, if they were copied from there."""

    name: str
    number: int
    incarnation: int  # incarnation of the stream, which may be deleted and created again
    payloads: list[bytes] = field(default_factory=list)
    users: list[bool] = field(default_factory=list)  # whether an entry holds a user's record
    confirmed: int = -1
    carried: int = -1
    end: int | None = None
    is_gone: bool = False
    origin: str = ""

    @property
    def written_at(self) -> str:
        return self.origin or self.name

    @property
    def lac_of_store(self) -> int:
        return self.carried if self.end is None else self.end


Word = Callable[[OwnerListener], None]


def lac_word(number: int, lac: int, ended: bool) -> Word:
    return lambda ear: ear(number, lac, ended)


def entries_word(number: int, first: int, payloads: list[bytes]) -> Word:
    return lambda ear: ear.entries(number, first, payloads)


class Channel:
    """A proxy's subscription to an owner: messages arrive in order."""

    def __init__(self, say: Callable[[Word], None], lose: Callable[[], None]) -> None:
        self.say = say
        self.lose = lose
        self.heard_at = 0  # when the last message arrives


class OwnerModel:
    """One ownership. It confirms nothing once its segment's end was decided, but may still report what was confirmed
    before."""

    def __init__(self, address: str, epoch: int) -> None:
        self.address = address
        self.epoch = epoch
        self.is_alive = True
        self.is_unaware = False  # deposed without knowing it: it still answers, with what was confirmed in its time
        self.is_ready = False
        self.segment: StoredSegment | None = None
        self.ended: list[tuple[int, int]] = []
        self.channels: list[Channel] = []


class StreamModel:
    """The stream and the events that change it. `rng` draws latencies; changes of metadata are passed to
    `on_change`."""

    def __init__(
        self,
        loop: SimulatedLoop,
        rng: random.Random,
        *,
        final: bool,
        reach: Callable[[str], None],
        unaware: Callable[[], bool] = lambda: False,
    ) -> None:
        self.loop = loop
        self.unaware = unaware
        self.rng = rng
        self.final = final
        self.reach = reach
        self.stored: dict[str, StoredSegment] = {}
        self.lives = 1
        self.value: StreamMetadata | None = StreamMetadata(name=STREAM, incarnation="1")
        self.history: list[tuple[int, StreamMetadata | None]] = [(loop.now, self.value)]
        self.on_change: Callable[[], None] = lambda: None
        self.owners: dict[str, OwnerModel] = {}
        self.owner: OwnerModel | None = None
        self.confirmed: list[tuple[int, int, int, str]] = []  # users' entries in order: when, number, entry, location
        self.written = 0
        self._epochs = 0
        self._made = 0

    # ---- metadata ----------------------------------------------------------------------------------------------------

    def write(self, value: StreamMetadata | None) -> None:
        self.value = value
        self.history.append((self.loop.now, value))
        self.on_change()

    def decide(self, stored: StoredSegment, end: int) -> int:
        """Decide the segment's end, for good."""
        stored.end = end
        self._show(stored, end)
        return end

    def value_at(self, when: int) -> StreamMetadata | None:
        """Metadata as it was at a time."""
        found = self.history[0][1]
        for since, value in reversed(self.history):
            if since <= when:
                return value
        return found

    def values_since(self, when: int) -> list[StreamMetadata | None]:
        """Metadata as it was then, and every later state."""
        return [self.value_at(when), *(value for at, value in self.history if at > when)]

    # ---- owners ------------------------------------------------------------------------------------------------------

    def take_over(self, *, dead_s: float) -> None:
        """Take over after the owner died or was deposed: claim the stream, recover the last segment and go on."""
        if self.value is None or self.value.is_sealed:
            return
        old = self.owner
        if old is not None:
            old.is_alive = False
            old.is_unaware = self.unaware()
            self.reach("take_over")
            if not old.is_unaware and self.rng.random() < 0.5:
                self._lose(old)
        self._epochs += 1
        self._made += 1
        owner = self.owner = OwnerModel(f"w{self._epochs}", self._epochs)
        self.owners[owner.address] = owner
        self.after(dead_s, self._claim, owner)

    def _lose(self, owner: OwnerModel) -> None:
        owner.is_unaware = False
        channels, owner.channels = owner.channels, []
        for channel in channels:
            channel.lose()

    def _claim(self, owner: OwnerModel) -> None:
        if owner is not self.owner or self.value is None:
            return
        claim = Owner(
            epoch=Epoch(owner.epoch), proxy=ProxyId(owner.address), address=owner.address, claim=owner.address
        )
        self.write(replace(self.value, owner=claim))
        self.after(self.rng.random() * 0.05, self._recover, owner)

    def _recover(self, owner: OwnerModel) -> None:
        if owner is not self.owner or self.value is None:
            return
        last = next(iter(self.value.in_progress), None)
        if last is not None:
            stored = self.stored[last.name]
            if stored.end is None:
                end = self.rng.randint(stored.confirmed, len(stored.payloads) - 1)
                for entry in range(stored.confirmed + 1, end + 1):
                    self._confirmed(stored, entry)
                del stored.payloads[end + 1 :], stored.users[end + 1 :]
                self.decide(stored, end)
                self.reach("recovered")
        self.after(self.rng.random() * 0.05, self._start, owner)

    def _start(self, owner: OwnerModel) -> None:
        """Complete the old segment (or drop an empty one) and name the next, in one write."""
        value = self.value
        if owner is not self.owner or value is None:
            return
        number = value.max_segment + 1
        for segment in value.in_progress:
            stored = self.stored[segment.name]
            assert stored.end is not None
            if stored.end == NO_ENTRY:
                value = value.without_segment(segment.number)
                number = segment.number
                self.reach("number_came_again")
            else:
                value = value.with_segment(self._completed(segment, stored))
        owner.is_ready = True
        self.write(self._opened(value, number, owner))
        for old in self.owners.values():
            if old is not owner:
                self.after(self.rng.random() * 0.5, self._lose, old)

    def _completed(self, segment: Segment, stored: StoredSegment) -> Segment:
        assert stored.end is not None
        last = stored.end
        count = sum(stored.users)
        return replace(
            segment, completed=True, last_entry=EntryId(last), last_slot=0, last_txid=Txid(0), record_count=count
        )

    def _opened(self, value: StreamMetadata, number: int, owner: OwnerModel) -> StreamMetadata:
        self._made += 1
        stored = owner.segment = StoredSegment(f"{number}.{self._made}", number, self.lives)
        self.stored[stored.name] = stored
        segment = Segment(number=SegmentNumber(number), name=stored.name, first_txid=Txid(0))
        self.reach("segment_started")
        return replace(value.with_segment(segment), max_segment=SegmentNumber(max(number, value.max_segment)))

    def roll(self) -> None:
        """End the segment at its LAC and start the next one, in one write or in two."""
        owner, value = self.owner, self.value
        if owner is None or not owner.is_ready or owner.segment is None or value is None or value.is_sealed:
            return
        stored = owner.segment
        if stored.end is not None or stored.confirmed != len(stored.payloads) - 1 or stored.confirmed < 0:
            return
        end = self.decide(stored, stored.confirmed)
        segment = value.segment(stored.number)
        assert segment is not None and segment.name == stored.name
        owner.ended.append((stored.number, end))
        self._tell(owner, stored.number, end, True)
        self.write(self._opened(value.with_segment(self._completed(segment, stored)), stored.number + 1, owner))
        self.reach("rolled")

    def seal(self) -> None:
        """Seal the stream."""
        owner, value = self.owner, self.value
        if owner is None or not owner.is_ready or owner.segment is None or value is None or value.is_sealed:
            return
        stored = owner.segment
        if stored.end is not None or stored.confirmed != len(stored.payloads) - 1:
            return
        end = self.decide(stored, stored.confirmed)
        segment = value.segment(stored.number)
        assert segment is not None
        if end == NO_ENTRY:
            value = value.without_segment(segment.number)
        else:
            value = value.with_segment(self._completed(segment, stored))
        self._tell(owner, stored.number, end, True)
        self.write(replace(value, max_txid=SEALED_TXID))
        self.reach("sealed")

    # ---- records -----------------------------------------------------------------------------------------------------

    def append(self, *, control: bool = False) -> None:
        """Append an entry; it is confirmed a little later, in order, if the owner still may."""
        owner = self.owner
        if owner is None or not owner.is_ready or not owner.is_alive or owner.segment is None:
            return
        stored = owner.segment
        if stored.end is not None:
            return
        position = sum(stored.users) + (not control)
        if control:
            record = control_record(position, 0)
        else:
            self.written += 1
            text = f"record {self.written} ".encode() + bytes(self.rng.choice((0, 5, 200)))
            record = Record(0, position, 0, text)
        stored.payloads.append(b"".join(bytes(part) for part in encode_entry([record])))
        stored.users.append(not control)
        if not self.final:
            self._show(stored, stored.confirmed)
        self.after(self.rng.expovariate(1.0) * 0.002, self._confirm, owner, stored, len(stored.payloads) - 1)

    def _confirm(self, owner: OwnerModel, stored: StoredSegment, entry: int) -> None:
        if stored.end is not None or not owner.is_alive:
            return
        first = stored.confirmed + 1
        for one in range(first, entry + 1):
            self._confirmed(stored, one)
        if first <= entry and self.rng.random() < 0.7:
            self._send_along(owner, stored, first)
        self._tell(owner, stored.number, stored.confirmed, False)
        if not self.final and any(stored.users[stored.carried + 1 : stored.confirmed + 1]):
            self.after(0.005, self._carry, owner, stored, entry)

    def _confirmed(self, stored: StoredSegment, entry: int) -> None:
        stored.confirmed = max(stored.confirmed, entry)
        if self.final:
            self._show(stored, stored.confirmed)
        if stored.users[entry]:
            self.confirmed.append((self.loop.now, stored.number, entry, stored.name))

    def _show(self, stored: StoredSegment, upto: int) -> None:
        stored.carried = max(stored.carried, upto)

    def _carry(self, owner: OwnerModel, stored: StoredSegment, entry: int) -> None:
        """Append a control record if nothing followed: it lets readers of the store alone see what was confirmed."""
        if stored.end is None and len(stored.payloads) - 1 == entry and owner is self.owner:
            self.append(control=True)

    def _send_along(self, owner: OwnerModel, stored: StoredSegment, first: int) -> None:
        """Send entries that are confirmed now, or the first or last of them, along with the LAC."""
        last = stored.confirmed
        self.reach("sent_along")
        if self.rng.random() < 0.2:
            first, last = self.rng.choice(((first, first), (last, last)))
        for channel in owner.channels:
            self.say(channel, entries_word(stored.number, first, stored.payloads[first : last + 1]))

    def _tell(self, owner: OwnerModel, number: int, lac: int, ended: bool) -> None:
        for channel in owner.channels:
            self.say(channel, lac_word(number, lac, ended))

    def say(self, channel: Channel, word: Word) -> None:
        """Send a message: it arrives later, in order."""
        channel.heard_at = max(channel.heard_at + 1, self.loop.now + int(self.rng.expovariate(1.0) * MS))
        self.loop.at(channel.heard_at, self.loop.world, channel.say, word)

    # ---- truncating, moving, deleting --------------------------------------------------------------------------------

    def truncate(self) -> None:
        """Move the truncation point forward: within a segment, and over whole ones that leave list and store."""
        value = self.value
        if value is None:
            return
        done = [s for s in value.segments if s.completed]
        if not done:
            return
        victim = self.rng.choice(done)
        value = value.with_truncated_before(victim.number)
        for segment in done:
            if value.has_lost(segment.number):
                self.after(self.rng.choice((0.3, 0.6, 4.0)), self._drop, segment)
        if victim.min_entry < victim.last_entry:
            entry = self.rng.randint(victim.min_entry, victim.last_entry)
            value = value.with_segment(replace(victim, truncation=Truncation.PARTIAL, min_entry=EntryId(entry)))
        self.write(value)
        self.reach("truncated")

    def truncate_open(self) -> None:
        """Move the truncation point forward within the segment in progress, up to behind what is confirmed."""
        value = self.value
        if value is None or not value.in_progress:
            return
        segment = value.in_progress[-1]
        stored = self.stored[segment.name]
        if segment is value.segments[0] and segment.min_entry <= stored.confirmed:
            entry = EntryId(self.rng.randint(segment.min_entry + 1, stored.confirmed + 1))
            self.write(value.with_segment(replace(segment, truncation=Truncation.PARTIAL, min_entry=entry)))
            self.reach("truncated_open")

    def relocate(self) -> None:
        """Copy a completed segment to cold storage, or take it back while its first copy exists. The copy that the list
        does not name any more is deleted a little later."""
        value = self.value
        done = [s for s in value.segments if s.completed] if value else []
        if value is None or not done:
            return
        segment = self.rng.choice(done)
        stored = self.stored[segment.name]
        if segment.store == "ledger":
            self._made += 1
            to = replace(stored, name=f"cold-{segment.number}.{self._made}", origin=stored.written_at)
            self.stored[to.name] = to
            self.reach("went_cold")
        else:
            to = self.stored[stored.written_at]
            if to.is_gone:
                return
            self.reach("taken_back")
        store = "cold" if segment.store == "ledger" else "ledger"
        self.write(value.with_segment(replace(segment, store=store, name=to.name)))
        self.after(self.rng.choice((0.02, 0.3, 2.0)), self._forget_unnamed, stored)

    def _forget_unnamed(self, stored: StoredSegment) -> None:
        """Delete a copy, unless the list names it again."""
        if self.value is None or all(s.name != stored.name for s in self.value.listed):
            self._forget(stored.name)

    def _drop(self, segment: Segment) -> None:
        """Remove the segment from the list, then from the store."""
        value = self.value
        if value is not None and value.truncated and value.truncated[0].name == segment.name:
            self.write(value.without_truncated(segment.number))
            self.after(0.3, self._forget, segment.name)
        elif value is not None and any(s.name == segment.name for s in value.truncated):
            self.after(0.1, self._drop, segment)

    def _forget(self, stored: str) -> None:
        self.stored[stored].is_gone = True
        self.reach("deleted_segment")

    def delete(self) -> None:
        """Delete the stream; another one of the same name is created a little later."""
        value = self.value
        if value is None:
            return
        if self.owner is not None:
            self.owner.is_alive = False
            self._lose(self.owner)
        self.write(None)
        for segment in value.listed:
            stored = self.stored[segment.name]
            if stored.end is None:
                self.decide(stored, stored.confirmed)
            self.after(0.3, self._forget, segment.name)
        self.reach("deleted")
        self.after(self.rng.random() * 0.3, self._create)

    def _create(self) -> None:
        if self.value is None:
            self.lives += 1
            self.write(StreamMetadata(name=STREAM, incarnation=str(self.lives)))
            self.take_over(dead_s=0.0)

    def after(self, delay_s: float, callback: Callable[..., None], *args: object) -> None:
        """Run this later, in the process of the world."""
        self.loop.at(self.loop.now + int(delay_s * S), self.loop.world, callback, *args)
