"""Checks of a read proxy's source and cache, R1 to R6, against the true state of the stream.

The checks know every entry that was ever stored, when it was confirmed and when it was truncated. Of the source they
see what is sent to readers, and what the cache holds.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from actors.entry_cache import EntryCache
from dlog.log.source_messages import SegmentLacSeen
from dlog.model.dlsn import DLSN, of
from dlog.model.segment import StreamMetadata
from dlog.wire.entry import decode_entry
from dlog.wire.proxy import Entries, ReaderEventKind
from tests.simulation.cache_stream import StreamModel
from tests.simulation.kernel import Violation

Key = tuple[str, int]  # location and entry


@dataclass(slots=True)
class Watched:
    """One reader, from its opening to its end. known_at: at its opening, the time of the newest metadata that the proxy
    had read. seen: the user records it was sent. life: the incarnation that it named, "" if none. saved_in: the
    incarnation in which a record was confirmed at its position, "" if it starts elsewhere. is_beyond: no stream of this
    world reaches as far as its position."""

    name: str
    opened_at: int
    known_at: int
    follow: bool
    start: DLSN | None = None
    incarnation: str = ""
    saved_in: str = ""
    is_beyond: bool = False
    seen: list[Key] = field(default_factory=list)


class CacheChecks:
    """mute: invariants that are not checked."""

    def __init__(self, stream: StreamModel, mute: Collection[str] = ()) -> None:
        self.stream = stream
        self.mute = mute
        self.order: dict[Key, int] = {}  # users' entries -> their order of confirmation
        self.is_over = False
        self._taken = 0

    def fail(self, invariant: str, text: str) -> None:
        if invariant not in self.mute and not self.is_over:
            raise Violation(invariant, text)

    # ---- what readers are sent ---------------------------------------------------------------------------------------

    def lac_said(self, seen: SegmentLacSeen) -> None:
        """R2: the end that a reader is sent is the segment's end. R1: the LAC that a reader is sent is confirmed."""
        place = self.stream.stored.get(seen.location.name)
        if place is None:
            return
        if seen.lac > place.confirmed:
            self.fail("R1", f"LAC {seen.lac} of {seen.location} is told, confirmed is {place.confirmed}")
        listed = self.stream.value.segment(seen.number) if self.stream.value is not None else None
        is_there = listed is not None and listed.location == seen.location
        if seen.ended and is_there and place.end is None:
            self.fail("R2", f"segment {seen.number} is told to have ended at {seen.lac}, and goes on")

    def sent(self, reader: Watched, known: StreamMetadata | None, entries: Entries, place_name: str) -> None:
        """R1, R4: check entries that leave for a client. known: the oldest list that they may come from."""
        place = self.stream.stored[place_name]
        first = first_readable(known)
        if (
            known is not None
            and known.segments
            and self.stream.stored[known.segments[0].name].incarnation != place.incarnation
        ):
            first = None  # from another incarnation of the stream
        at = 0
        for entry, length in enumerate(entries.lengths, entries.first_entry):
            payload = bytes(entries.body[at : at + length])
            at += length
            if reader.incarnation not in ("", str(place.incarnation)):
                self.fail(
                    "R6",
                    f"{reader.name} reads life {reader.incarnation}, and was sent {place_name} of {place.incarnation}",
                )
            if entry > place.confirmed:
                self.fail("R1", f"{reader.name} was sent {place_name}:{entry}, confirmed is {place.confirmed}")
            elif payload != place.payloads[entry]:
                self.fail("R1", f"{reader.name} was sent other bytes than {place_name}:{entry} has")
            if first is not None and of(place.number, entry, 0) < first:
                self.fail("R4", f"{reader.name} was sent {place_name}:{entry}, truncated before it came")
            if any(record.is_user for record in decode_entry(payload)):
                reader.seen.append((place.written_at, entry))

    def told(self, reader: Watched, kind: ReaderEventKind) -> None:
        """R6: a position is read in its own incarnation, and is reported as beyond the end if and only if it is."""
        lives = {
            value.incarnation if value is not None else None for value in self.stream.values_since(reader.opened_at)
        }
        if reader.is_beyond and kind not in (ReaderEventKind.BEYOND_END, ReaderEventKind.DELETED):
            self.fail("R6", f"{reader.name} begins beyond the end, and was told {kind.name}")
        if kind is ReaderEventKind.BEYOND_END and lives == {reader.saved_in}:
            self.fail("R6", f"{reader.name} begins where a record was confirmed before, and was told {kind.name}")
        if kind is ReaderEventKind.DELETED and lives == {reader.incarnation}:
            self.fail("R6", f"{reader.name} reads life {reader.incarnation}, which goes on, and was told {kind.name}")

    def took_in(self) -> None:
        """Number the entries that were confirmed since the last call."""
        for _, _, entry, place in self.stream.confirmed[self._taken :]:
            self.order[place, entry] = len(self.order)
        self._taken = len(self.stream.confirmed)

    def contiguous(self, reader: Watched) -> None:
        """S4: what one reader was sent has no gap, as long as the incarnation is the same."""
        self.took_in()
        last: int | None = None
        incarnation = 0
        for key in reader.seen:
            index = self.order[key]
            if self.stream.stored[key[0]].incarnation != incarnation:
                last, incarnation = None, self.stream.stored[key[0]].incarnation
            if last is not None and index != last + 1:
                self.fail("S4", f"{reader.name} was sent {key} after number {last}, it is number {index}")
            last = index

    def ended(self, reader: Watched, position: DLSN, known: StreamMetadata | None) -> None:
        """R2: a reader that does not follow was sent the tail.

        It must have been sent all that was confirmed when it was opened, in segments that it must know of, even if the
        owner did not report them: the store finds its tail by itself.
        """
        self.contiguous(reader)
        places = {self.stream.stored[s.name].written_at for s in known.listed} if known is not None else set()
        for when, number, entry, name in reversed(self.stream.confirmed):
            if of(number, entry, 0) < position:
                break
            if when > reader.opened_at or name not in places or not self._is_kept(name):
                continue
            self.fail("R2", f"{reader.name} was told of the tail at {position}, {name}:{entry} was there before")

    def _is_kept(self, place: str) -> bool:
        value = self.stream.value
        return value is not None and any(self.stream.stored[s.name].written_at == place for s in value.listed)

    def end_of_stream(self, reader: Watched, position: DLSN) -> None:
        """R2: the end of the stream is sent only for a sealed stream, behind its last record."""
        value = self.stream.value
        if value is None or not value.is_sealed:
            self.fail("R2", f"{reader.name} was told of the stream's end, and it goes on")
        elif value.segments and position <= value.segments[-1].last_dlsn:
            self.fail("R2", f"{reader.name} was told of the stream's end at {position}")
        self.contiguous(reader)

    # ---- what the cache holds ----------------------------------------------------------------------------------------

    def bounded(self, cache: EntryCache) -> None:
        """R5: the cache never holds more bytes than its limit, and its count of them is right."""
        if cache.bytes > max(cache.bytes_max, 0):
            self.fail("R5", f"the cache holds {cache.bytes} bytes, it may hold {cache.bytes_max}")

    def genuine(self, cache: EntryCache) -> None:
        """R1: each cached entry is confirmed, and equals the entry in its segment."""
        for (key, entry), payload in cache._entries.items():
            place = self.stream.stored.get(key.partition(":")[2])
            if place is not None and (entry > place.confirmed or payload != place.payloads[entry]):
                self.fail("R1", f"the cache holds for {key}:{entry} what does not lie there")

    def forgotten(self, cache: EntryCache, then: int) -> None:
        """R4: the cache holds nothing that metadata of a while ago had already dropped."""
        value, *later = self.stream.values_since(then)
        kept = {s.name: s for s in (value.segments if value is not None else ())}
        came = {s.name for value in later for s in (value.segments if value is not None else ())}
        for key, entry in tuple(cache._entries):
            place = key.partition(":")[2]
            segment = kept.get(place)
            if segment is None:
                if place not in came:
                    self.fail("R4", f"the cache holds {place}:{entry}, which left the stream's list")
            elif entry < segment.min_entry:
                self.fail("R4", f"the cache holds {place}:{entry}, which is truncated")


def first_readable(value: StreamMetadata | None) -> DLSN | None:
    """The truncation point."""
    return value.first_dlsn if value is not None and value.segments else None
