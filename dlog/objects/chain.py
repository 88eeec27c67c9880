"""A segment as a chain of numbered chunks in an object storage: who may believe what, and when.

Chunk n is an object that is created only where there is none, so its existence is the commit: there is no other state.
Number 0 is BEGIN. The writer creates DATA chunks, several at once; it ends the segment by a SEAL, a recovery by a
FENCE. The first of these ends the segment; the chunks of the writer that are created behind it do not count.

    counts: chunk n counts if all chunks below it exist and none of them is a SEAL or a FENCE

Invariants:
- a chunk that counts, counts for ever: chunks of a segment without an end are never deleted or replaced;
- the writer has at most `in_flight_max` chunks that are not confirmed, and confirms in order: so a chunk is confirmed
  only if it counts, and none of its chunks lies further than `in_flight_max` above the first gap, or above the end;
- a recovery reports an end only at a FENCE or SEAL below which all chunks count; where it finds a chunk that counts
  instead, it goes on with the next. So it is repeatable, and all recoveries find the same end;
- a chunk says how many chunks from BEGIN on existed when it was created. If one of these is missing, or a SEAL or
  FENCE, it was deleted by another program, and is no end: the chain is damaged. The last chunks may be missing
  unnoticed: nothing above shows it;
- after the last listing, and after its FENCE, a search sees that BEGIN exists. As a deletion begins with BEGIN, what is
  missing in the listing was never there, and the FENCE is at no number that was used before;
- a recovery that a live writer outruns creates a FENCE `ahead` numbers above a chunk that counts: the writer cannot
  pass it. So all chunks exist that lie further than `ahead` below any chunk. A FENCE does not know the end, which is
  that of the chunk before it.

Whether a chunk with an unclear answer is one's own is resolved below, by the random nonce in its head
(dlog/stores/object_storage/creating.py). What stays UNKNOWN ends the writer: only a recovery can tell.

The classes are values: `after(fact)` returns the next state and the effects.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dlog.errors import DamagedError
from dlog.values import value
from dlog.wire.chunk import ChunkHead, ChunkKind

IN_FLIGHT_MAX = 8
AHEAD = 4  # times in_flight_max: until a recovery that was outrun knows the tail and has created a FENCE ahead of it, a
# writer makes up to in_flight_max chunks in the time of each of three requests
PAGE = 1000  # numbers of one listing


class Put(enum.Enum):
    """What became of a chunk that was to be created."""

    MADE = "made"
    EXISTS = "exists"  # a chunk of another process has this number
    UNKNOWN = "unknown"  # it may have been created, or be created later


# ---- facts and effects ----------------------------------------------------------------------------------------------


@value
class EntryAppended:
    """Fact: the next entry is to be written. bytes: of its payload."""

    bytes: int


@value
class LingerOver:
    """Fact: the entries that wait for a chunk have waited long enough."""


@value
class SealAsked:
    """Fact: no further entry comes."""


@value
class ChunkPut:
    """Fact: the answer to CreateChunk."""

    number: int
    result: Put


@value
class Listed:
    """Fact: the answer to ListBehind: numbers of the chunks above, in order: all, or as many as a listing has."""

    behind: int
    numbers: tuple[int, ...]


@value
class HeadsRead:
    """Fact: the answer to ReadHeads, in the order of their numbers."""

    heads: tuple[ChunkHead, ...]


@value
class CreateChunk:
    """Effect: create a chunk unless there is one of this number. first, end: its entries, half-open. contiguous: number
    of chunks from BEGIN on that certainly exist."""

    number: int
    kind: ChunkKind
    first: int
    end: int
    contiguous: int


@value
class ListBehind:
    """Effect: list the chunks with greater numbers. One that is listed must be durable."""

    number: int


@value
class ReadHeads:
    """Effect: read the heads of these chunks, which were listed, perhaps of none; then see that BEGIN exists. While it
    does, no chunk has been deleted; if it does not, the machine gets no answer."""

    numbers: tuple[int, ...]


@value
class Begun:
    """Effect: the chain exists, and is this writer's. Entries may be appended."""


@value
class Confirmed:
    """Effect: the entries below `end` are written, and every recovery keeps them."""

    end: int


@value
class Sealed:
    """Effect: the segment is sealed; it has `end` entries."""

    end: int


@value
class Fenced:
    """Effect: another process has ended the segment; entries that are not confirmed may or may not be in it."""


@value
class GivenUp:
    """Effect: it is unknown whether a chunk was created; entries that are not confirmed may or may not be written."""


@value
class TailFound:
    """Effect: `end` entries count. next_number: of the first chunk that does not exist, or of the chunk that ends the
    segment. payload_bytes: of these entries. is_ended: no further entry will count."""

    end: int
    next_number: int
    payload_bytes: int
    is_ended: bool


@value
class NoChain:
    """Effect: there is no BEGIN: the segment was never created, or is deleted."""


@value
class ChunksFound:
    """Effect: these chunks count, too. is_ended: the last of them ends the segment."""

    heads: tuple[ChunkHead, ...]
    is_ended: bool


WriterEffect = CreateChunk | Begun | Confirmed | Sealed | Fenced | GivenUp
FollowerEffect = ListBehind | ReadHeads | ChunksFound
TailEffect = ListBehind | ReadHeads | CreateChunk | TailFound | NoChain | GivenUp


# ---- the writer -----------------------------------------------------------------------------------------------------


class Phase(enum.Enum):
    """State of a writer."""

    BEGINNING = "beginning"  # nothing may be appended: the chain may be another writer's
    OPEN = "open"
    SEALING = "sealing"
    OVER = "over"


@dataclass(frozen=True, slots=True)
class ChainWriter:
    """Cuts entries into chunks, creates them and confirms entries in order.

    A chunk is cut when it is full, when it has lingered, and at once while no other is in flight. next_number: of the
    next chunk. in_flight: chunks that are not confirmed, in order: number, end of its entries, whether it was made.
    confirmed, cut, appended: numbers of entries. gathered_bytes: of the entries that are not cut. seal_number: of the
    SEAL, which is created once all entries are confirmed.
    """

    chunk_bytes_max: int
    in_flight_max: int = IN_FLIGHT_MAX
    phase: Phase = Phase.BEGINNING
    next_number: int = 0
    in_flight: tuple[tuple[int, int, bool], ...] = ()
    confirmed: int = 0
    cut: int = 0
    appended: int = 0
    gathered_bytes: int = 0
    has_lingered: bool = False
    seal_number: int | None = None

    def begin(self) -> tuple[ChainWriter, list[WriterEffect]]:
        """Create the BEGIN chunk."""
        assert self.next_number == 0
        begun, effect = self._create(ChunkKind.BEGIN)
        return begun, [effect]

    def after(self, fact: EntryAppended | LingerOver | SealAsked | ChunkPut) -> tuple[ChainWriter, list[WriterEffect]]:
        if self.phase is Phase.OVER:
            return self, []
        match fact:
            case EntryAppended(size):
                assert self.phase is Phase.OPEN
                gathered = self.gathered_bytes + size
                return replace(self, appended=self.appended + 1, gathered_bytes=gathered)._advance()
            case LingerOver():
                return replace(self, has_lingered=self.cut < self.appended)._advance()
            case SealAsked():
                assert self.phase is Phase.OPEN
                return replace(self, phase=Phase.SEALING)._advance()
            case ChunkPut(_, Put.EXISTS):
                return replace(self, phase=Phase.OVER), [Fenced()]
            case ChunkPut(_, Put.UNKNOWN):
                return replace(self, phase=Phase.OVER), [GivenUp()]
            case ChunkPut(number, _):
                made = tuple((n, end, is_made or n == number) for n, end, is_made in self.in_flight)
                return replace(self, in_flight=made)._advance()

    def _advance(self) -> tuple[ChainWriter, list[WriterEffect]]:
        """Confirm what is made in order, then cut chunks. The only place that does either."""
        writer, effects = self, list[WriterEffect]()
        while writer.in_flight and writer.in_flight[0][2]:
            number, end, _ = writer.in_flight[0]
            phase = writer.phase
            if number == 0:
                phase = Phase.OPEN
                effects.append(Begun())
            elif number == writer.seal_number:
                phase = Phase.OVER
                effects.append(Sealed(end))
            else:
                effects.append(Confirmed(end))
            writer = replace(writer, phase=phase, in_flight=writer.in_flight[1:], confirmed=end)
        while writer._has_chunk_to_cut():
            writer, effect = writer._create(ChunkKind.DATA)
            effects.append(effect)
        if writer.phase is Phase.SEALING and not writer.in_flight and writer.cut == writer.appended:
            writer, effect = replace(writer, seal_number=writer.next_number)._create(ChunkKind.SEAL)
            effects.append(effect)
        return writer, effects

    def _has_chunk_to_cut(self) -> bool:
        if self.phase not in (Phase.OPEN, Phase.SEALING) or self.cut == self.appended:
            return False
        is_due = self.gathered_bytes >= self.chunk_bytes_max or self.has_lingered or self.phase is Phase.SEALING
        return not self.in_flight or (is_due and len(self.in_flight) < self.in_flight_max)

    def _create(self, kind: ChunkKind) -> tuple[ChainWriter, CreateChunk]:
        """Create a chunk of all entries that are not cut."""
        contiguous = self.in_flight[0][0] if self.in_flight else self.next_number
        effect = CreateChunk(self.next_number, kind, self.cut, self.appended, contiguous)
        changed = replace(
            self,
            next_number=self.next_number + 1,
            in_flight=(*self.in_flight, (self.next_number, self.appended, False)),
            cut=self.appended,
            gathered_bytes=0,
            has_lingered=False,
        )
        return changed, effect


# ---- the tail -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TailSearch:
    """Finds the last chunks of a chain of n chunks in O(log n) listings, also while it grows.

    low: a chunk with this number exists, -1: none is known.
    empty: there was no chunk above this number; None: none is known. step: how far the next listing looks ahead. page:
    most numbers of a listing, greater than ChainTail.ahead + 1.
    """

    low: int = -1
    empty: int | None = None
    step: int = 0
    page: int = PAGE
    is_done: bool = False

    def next_behind(self) -> int:
        """The number behind which to list."""
        if self.empty is None:
            return self.low + self.step
        gap = self.empty - self.low
        return self.low + (gap // 2 if gap > self.page else 0)

    def after(self, listed: Listed) -> TailSearch:
        if len(listed.numbers) >= self.page:
            low = listed.numbers[-1]
            if self.empty is not None and low < self.empty:
                return replace(self, low=low)
            return replace(self, low=low, empty=None, step=2 * max(self.step, self.page // 2))
        if listed.numbers or listed.behind <= self.low:
            return replace(self, low=max([self.low, *listed.numbers]), is_done=True)
        return replace(self, empty=listed.behind)


@dataclass(frozen=True, slots=True)
class ChainTail:
    """Finds how many entries count; a recovery then ends the segment there.

    is_recovery: create a FENCE. in_flight_max: at least that of any writer. next_number: of the first chunk that is not
    known to exist; end and payload_bytes: of the entries below it; 0 and None: not known. asked: the number of the
    FENCE that is being created. is_outrun: another process had used that number before. has_barrier: there was a FENCE
    ahead of the writer when heads were read last. waits_for_window: the search is done, the chunks near the tail are
    being listed. first: of the numbers whose heads are being read. suspected: this chunk is missing, and a
    chunk above says that it existed; chunks are listed again before that is reported as damage, since a listing that
    takes long may miss a chunk that is older than one that it has. has_ended: the FENCE is created.
    """

    is_recovery: bool
    in_flight_max: int = IN_FLIGHT_MAX
    search: TailSearch = TailSearch()
    next_number: int = 0
    end: int | None = None
    payload_bytes: int = 0
    asked: int = -1
    is_outrun: bool = False
    has_barrier: bool = False
    waits_for_window: bool = False
    first: int = 0
    suspected: int | None = None
    has_ended: bool = False

    @property
    def ahead(self) -> int:
        """How far above a chunk that counts a FENCE may be created."""
        return AHEAD * self.in_flight_max

    def begin(self) -> tuple[ChainTail, list[TailEffect]]:
        assert self.search.page > self.ahead + 1
        return self, [ListBehind(self.search.next_behind())]

    def after(self, fact: Listed | HeadsRead | ChunkPut) -> tuple[ChainTail, list[TailEffect]]:
        match fact:
            case Listed(_, numbers) if self.has_ended:
                return self, [ReadHeads(numbers)]
            case Listed() if self.waits_for_window:
                return self._window_listed(fact)
            case Listed():
                search = self.search.after(fact)
                if not search.is_done:
                    return replace(self, search=search), [ListBehind(search.next_behind())]
                if search.low < 0:
                    return replace(self, search=search), [NoChain()]
                window = max(-1, search.low - self.ahead - 1)  # the end and the first gap lie above
                return replace(self, search=search, waits_for_window=True), [ListBehind(window)]
            case HeadsRead(heads) if self.has_ended:
                assert self.end is not None
                _check_end(self.next_number, heads)
                return self, [TailFound(self.end, self.next_number, self.payload_bytes, True)]
            case HeadsRead(heads):
                return self._heads_read(heads)
            case ChunkPut(number, result):
                assert self.is_recovery and number == self.asked and self.end is not None
                match result:
                    case Put.MADE if number == self.next_number:
                        return replace(self, has_ended=True), [ListBehind(number)]
                    case Put.EXISTS if number == self.next_number and not self.has_barrier:
                        return replace(self, is_outrun=True)._stop_ahead()
                    case Put.MADE | Put.EXISTS:
                        return self, [ListBehind(self.next_number - 1)]
                    case Put.UNKNOWN:
                        return self, [GivenUp()]

    def _window_listed(self, listed: Listed) -> tuple[ChainTail, list[TailEffect]]:
        """Read the heads of the last chunks: the end, if there is one, is among those before the first gap."""
        first = listed.behind + 1
        if _first_gap(first, listed.numbers) == first:
            if first == 0:
                return self, [NoChain()]
            if first != self.next_number:
                raise DamagedError(f"a chunk is missing below the tail of the segment: number={first}")
            if not listed.numbers:
                return self._fence(first)
        return replace(self, first=first), [ReadHeads(listed.numbers)]

    def _heads_read(self, heads: Sequence[ChunkHead]) -> tuple[ChainTail, list[TailEffect]]:
        before_gap = [head for at, head in enumerate(heads) if head.number == self.first + at]
        counting = heads_that_count(before_gap, self.end)
        end, size = _end_of(counting, self.end), self.payload_bytes
        for head in counting:
            if head.kind is not ChunkKind.FENCE:
                size = head.bytes_before + (head.payload_bytes if head.kind is ChunkKind.DATA else 0)
        if counting and counting[-1].kind.is_end:
            _check_end(counting[-1].number, heads)
            return self, [TailFound(end, counting[-1].number, size, True)]
        free = self.first + len(counting)
        if any(head.contiguous > free for head in heads):
            if free == self.suspected:
                raise DamagedError(f"a chunk of the segment is missing: number={free}")
            return replace(self, suspected=free), [ListBehind(self.first - 1)]
        barrier = any(head.kind is ChunkKind.FENCE and head.number > free for head in heads)
        tail = replace(self, next_number=free, end=end, payload_bytes=size, has_barrier=barrier)
        if not self.is_recovery:
            return tail, [TailFound(end, free, size, False)]
        return tail._stop_ahead() if self.is_outrun and not barrier else tail._fence(free)

    def _stop_ahead(self) -> tuple[ChainTail, list[TailEffect]]:
        return self._fence(self.next_number - 1 + self.ahead)

    def _fence(self, number: int) -> tuple[ChainTail, list[TailEffect]]:
        assert self.end is not None
        fence = CreateChunk(number, ChunkKind.FENCE, self.end, self.end, self.next_number)
        return replace(self, asked=number), [fence]


# ---- following ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainFollower:
    """Follows a chain while it grows. next_number: of the first chunk that is not known; all below it count. end: of
    their entries; None: not known."""

    next_number: int = 0
    end: int | None = None
    is_ended: bool = False

    def poll(self) -> list[FollowerEffect]:
        """Look for further chunks; nothing is to be done at the end of the segment."""
        return [] if self.is_ended else [ListBehind(self.next_number - 1)]

    def after(self, fact: Listed | HeadsRead) -> tuple[ChainFollower, list[FollowerEffect]]:
        match fact:
            case Listed(behind, numbers):
                assert behind == self.next_number - 1
                end = _first_gap(self.next_number, numbers)
                numbers = tuple(range(self.next_number, end))
                return self, [ReadHeads(numbers)] if numbers else []
            case HeadsRead(heads):
                counting = heads_that_count(heads, self.end)
                last = counting[-1]
                changed = ChainFollower(last.number + 1, _end_of(counting, self.end), last.kind.is_end)
                return changed, [ChunksFound(counting, last.kind.is_end)]


def _first_gap(first: int, numbers: Sequence[int]) -> int:
    """The first number from `first` on that is not listed."""
    for number in numbers:
        if number != first:
            break
        first += 1
    return first


def _check_end(number: int, heads: Sequence[ChunkHead]) -> None:
    """Raise DamagedError if a chunk that is known to have existed had the number of the end."""
    if any(head.contiguous > number for head in heads):
        raise DamagedError(f"a chunk was deleted, and the segment ended in its place since: number={number}")


def _end_of(counting: Sequence[ChunkHead], known: int | None) -> int:
    """The end of the entries of these chunks. known: of those below them."""
    ends = [head.end for head in counting if head.kind is not ChunkKind.FENCE]
    end = ends[-1] if ends else known
    if end is None:
        raise DamagedError("the chunk before a FENCE is missing")
    return end


def heads_that_count(heads: Sequence[ChunkHead], first: int | None) -> tuple[ChunkHead, ...]:
    """Those of consecutive chunks that count, if the chunk below them does: up to the first SEAL or FENCE.

    first: the entry that they begin with, None: not known. Raises DamagedError if one does not continue the one before.
    """
    counting: list[ChunkHead] = []
    for head in heads:
        if first not in (None, head.first) and head.kind is not ChunkKind.FENCE:
            raise DamagedError(
                f"a chunk does not continue the one before: number={head.number} first={head.first} expected={first}"
            )
        first = head.end
        counting.append(head)
        if head.kind.is_end:
            break
    return tuple(counting)
