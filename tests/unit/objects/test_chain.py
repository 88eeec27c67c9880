"""Tests the writer, the search for the tail, recovery and following of a chain, by their transcripts."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from dlog.errors import DamagedError
from dlog.objects.chain import (
    IN_FLIGHT_MAX,
    PAGE,
    Begun,
    ChainFollower,
    ChainTail,
    ChainWriter,
    ChunkPut,
    ChunksFound,
    Confirmed,
    CreateChunk,
    EntryAppended,
    Fenced,
    GivenUp,
    HeadsRead,
    LingerOver,
    ListBehind,
    Listed,
    NoChain,
    Put,
    ReadHeads,
    SealAsked,
    Sealed,
    TailFound,
    TailSearch,
)
from dlog.wire.chunk import ChunkHead, ChunkKind, rows_size

BEGIN, DATA, SEAL, FENCE = ChunkKind.BEGIN, ChunkKind.DATA, ChunkKind.SEAL, ChunkKind.FENCE


class Writing:
    """A writer that has begun; what it does is returned by each call."""

    def __init__(self, chunk_bytes_max: int = 100) -> None:
        self.writer, effects = ChainWriter(chunk_bytes_max).begin()
        assert effects == [CreateChunk(0, BEGIN, 0, 0, 0)]
        assert self.made(0) == [Begun()]

    def append(self, size: int = 10) -> list[object]:
        return self._after(EntryAppended(size))

    def made(self, number: int) -> list[object]:
        return self._after(ChunkPut(number, Put.MADE))

    def linger(self) -> list[object]:
        return self._after(LingerOver())

    def seal(self) -> list[object]:
        return self._after(SealAsked())

    def put(self, number: int, result: Put) -> list[object]:
        return self._after(ChunkPut(number, result))

    def _after(self, fact: EntryAppended | ChunkPut | LingerOver | SealAsked) -> list[object]:
        self.writer, effects = self.writer.after(fact)
        return list(effects)


class TestWriter:
    """When chunks are cut, and what is confirmed."""

    def test_a_chunk_is_cut_at_once_while_nothing_is_in_flight(self) -> None:
        writing = Writing()
        assert writing.append() == [CreateChunk(1, DATA, 0, 1, 1)]
        assert writing.append() == writing.append() == []
        assert writing.made(1) == [Confirmed(1), CreateChunk(2, DATA, 1, 3, 2)]

    def test_a_full_chunk_does_not_wait(self) -> None:
        writing = Writing()
        writing.append()
        assert writing.append(99) == []
        assert writing.append(1) == [CreateChunk(2, DATA, 1, 3, 1)]

    def test_entries_that_have_lingered_do_not_wait(self) -> None:
        writing = Writing()
        assert writing.linger() == []
        writing.append()
        assert writing.append() == []
        assert writing.linger() == [CreateChunk(2, DATA, 1, 2, 1)]
        assert writing.append() == [], "the next ones have not lingered"

    def test_chunks_are_confirmed_in_order(self) -> None:
        writing = Writing()
        for _ in range(3):
            writing.append(100)
        assert writing.made(2) == writing.made(3) == []
        assert writing.made(1) == [Confirmed(1), Confirmed(2), Confirmed(3)]

    def test_so_many_chunks_are_in_flight_and_the_rest_is_gathered(self) -> None:
        writing = Writing()
        effects = [effect for _ in range(IN_FLIGHT_MAX + 3) for effect in writing.append(100)]
        assert len(effects) == IN_FLIGHT_MAX
        cut = CreateChunk(IN_FLIGHT_MAX + 1, DATA, IN_FLIGHT_MAX, IN_FLIGHT_MAX + 3, 2)
        assert writing.made(1) == [Confirmed(1), cut]

    def test_a_seal_follows_when_all_is_confirmed(self) -> None:
        writing = Writing()
        writing.append()
        writing.append()
        assert writing.seal() == [CreateChunk(2, DATA, 1, 2, 1)]
        assert writing.made(2) == []
        assert writing.made(1) == [Confirmed(1), Confirmed(2), CreateChunk(3, SEAL, 2, 2, 3)]
        assert writing.made(3) == [Sealed(2)]
        assert writing.made(3) == []

    def test_an_empty_segment_is_sealed(self) -> None:
        writing = Writing()
        assert writing.seal() == [CreateChunk(1, SEAL, 0, 0, 1)]
        assert writing.made(1) == [Sealed(0)]

    @pytest.mark.parametrize(("result", "effect"), [(Put.EXISTS, Fenced()), (Put.UNKNOWN, GivenUp())])
    def test_nothing_is_confirmed_or_created_after_a_failure(self, result: Put, effect: object) -> None:
        writing = Writing()
        for _ in range(3):
            writing.append(100)
        assert writing.put(2, result) == [effect]
        assert writing.made(1) == writing.made(3) == writing.append() == writing.linger() == []


class Chain:
    """Chunks of ten entries, of a writer. Answers listings and reads; counts requests that wait for each other."""

    def __init__(self, many: int, *, end: ChunkKind | None = None, missing: set[int] = frozenset()) -> None:  # type: ignore[assignment]  # an empty default
        self.numbers = [number for number in range(many) if number not in missing]
        self.end = (many - 1, end) if end is not None else None
        self.requests = 0
        self.grows_by = 0
        self.unconfirmed = IN_FLIGHT_MAX - 1  # chunks below each one, when it was created

    def head(self, number: int) -> ChunkHead:
        kind = BEGIN if number == 0 else DATA
        if self.end is not None and number == self.end[0]:
            kind = self.end[1]
        first = max(0, 10 * (number - 1))
        last = first + (10 if kind is DATA else 0)
        size = rows_size(10) + 70 if kind is DATA else 0
        contiguous = max(0, number - self.unconfirmed)
        return ChunkHead(kind, b"", b"", number, 1, contiguous, first, last, 7 * first, size, 0)

    def answer(self, effect: object) -> Listed | HeadsRead:
        self.requests += 1
        if self.grows_by:
            top = self.numbers[-1]
            self.numbers += range(top + 1, top + 1 + self.grows_by)
        match effect:
            case ListBehind(behind):
                return Listed(behind, tuple([number for number in self.numbers if number > behind][:PAGE]))
            case ReadHeads(numbers):
                return HeadsRead(tuple(map(self.head, numbers)))
        raise AssertionError(effect)

    def find(self, tail: ChainTail) -> tuple[ChainTail, object]:
        """The machine and its first effect that is no listing and no read."""
        tail, (effect,) = tail.begin()
        while isinstance(effect, (ListBehind, ReadHeads)):
            tail, (effect,) = tail.after(self.answer(effect))
        return tail, effect


class TestTail:
    """The search for the tail, and recovery."""

    @pytest.mark.parametrize("many", [1, 2, 9, 10, PAGE - 1, PAGE, PAGE + 1, 2999, 3000, 3001, 12_345, 100_000])
    def test_the_tail_is_found_in_few_requests(self, many: int) -> None:
        chain = Chain(many)
        _, found = chain.find(ChainTail(is_recovery=False))
        entries = 10 * (many - 1)
        assert found == TailFound(entries, many, 7 * entries, False)
        assert chain.requests <= 20

    def test_the_tail_of_any_chain_is_found(self) -> None:
        rng = random.Random(1)
        for _ in range(200):
            many = rng.randrange(1, rng.choice((20, 5000, 40_000)))
            _, found = Chain(many).find(ChainTail(is_recovery=False))
            assert found == TailFound(10 * (many - 1), many, 70 * (many - 1), False)

    def test_the_tail_of_a_chain_that_grows_covers_what_was_there_before(self) -> None:
        for grows_by in (1, 7, 500, 1500):
            chain = Chain(5_000)
            chain.grows_by = grows_by
            _, found = chain.find(ChainTail(is_recovery=False))
            assert isinstance(found, TailFound)
            assert 5_000 <= found.next_number <= chain.numbers[-1] + 1

    def test_a_chain_that_does_not_exist_is_told(self) -> None:
        assert Chain(0).find(ChainTail(is_recovery=True))[1] == NoChain()
        assert Chain(3, missing={0}).find(ChainTail(is_recovery=True))[1] == NoChain()

    def test_chunks_behind_a_gap_do_not_count(self) -> None:
        chain = Chain(20, missing={15, 17})
        tail, effect = chain.find(ChainTail(is_recovery=True))
        assert effect == CreateChunk(15, FENCE, 140, 140, 15)
        tail, effects = tail.after(ChunkPut(15, Put.MADE))
        assert effects == [ListBehind(15)]
        tail, effects = tail.after(Listed(15, (16, 18)))
        assert effects == [ReadHeads((16, 18))], "BEGIN is still there"
        chain.unconfirmed = 10
        assert tail.after(HeadsRead((chain.head(16), chain.head(18))))[1] == [TailFound(140, 15, 980, True)]

    def test_an_end_in_the_place_of_a_chunk_that_was_deleted_is_damage(self) -> None:
        chain = Chain(20, missing={15, 17})
        chain.unconfirmed = 10
        tail, _ = chain.find(ChainTail(is_recovery=True))
        tail, _ = tail.after(ChunkPut(15, Put.MADE))
        tail, _ = tail.after(Listed(15, (16, 18)))
        chain.unconfirmed = 0
        with pytest.raises(DamagedError, match="in its place since: number=15"):
            tail.after(HeadsRead((chain.head(16), chain.head(18))))
        chain = Chain(20, end=FENCE)
        chain.numbers += range(20, 19 + IN_FLIGHT_MAX)
        chain.unconfirmed = 0
        for is_recovery in (True, False):
            with pytest.raises(DamagedError, match="in its place since: number=19"):
                chain.find(ChainTail(is_recovery))

    @pytest.mark.parametrize("end", [SEAL, FENCE])
    def test_the_end_that_was_decided_is_found(self, end: ChunkKind) -> None:
        _, found = Chain(20, end=end).find(ChainTail(is_recovery=True))
        assert found == TailFound(180, 19, 7 * 180, True)

    def test_chunks_behind_the_end_do_not_count(self) -> None:
        chain = Chain(20, end=FENCE)
        chain.numbers += range(20, 19 + IN_FLIGHT_MAX)
        _, found = chain.find(ChainTail(is_recovery=True))
        assert found == TailFound(180, 19, 7 * 180, True)

    def test_a_recovery_that_is_outrun_stops_the_writer_ahead_and_ends_the_segment_at_the_gap(self) -> None:
        chain = Chain(20)
        tail, effect = chain.find(ChainTail(is_recovery=True))
        assert effect == CreateChunk(20, FENCE, 190, 190, 20)
        stop = 19 + tail.ahead
        tail, effects = tail.after(ChunkPut(20, Put.EXISTS))
        assert effects == [CreateChunk(stop, FENCE, 190, 190, 20)], "the writer is stopped there"
        tail, effects = tail.after(ChunkPut(stop, Put.MADE))
        assert effects == [ListBehind(19)]
        tail, effects = tail.after(Listed(19, (20, 21, stop)))
        assert effects == [ReadHeads((20, 21, stop))]
        barrier = ChunkHead(FENCE, b"", b"", stop, 1, 20, 190, 190, 1330, 0, 0)
        tail, effects = tail.after(HeadsRead((chain.head(20), chain.head(21), barrier)))
        assert effects == [CreateChunk(22, FENCE, 210, 210, 22)], "behind all chunks that were faster"
        tail, effects = tail.after(ChunkPut(22, Put.EXISTS))
        assert effects == [ListBehind(21)], "no second FENCE ahead"
        chain.end = (22, FENCE)
        tail, effects = tail.after(Listed(21, (22, stop)))
        tail, effects = tail.after(HeadsRead((chain.head(22), barrier)))
        assert effects == [TailFound(210, 22, 1470, True)]

    def test_a_recovery_that_is_outrun_again_creates_the_next_fence_ahead_at_once(self) -> None:
        chain = Chain(20)
        tail, _ = chain.find(ChainTail(is_recovery=True))
        tail, _ = tail.after(ChunkPut(20, Put.EXISTS))
        stop = 19 + tail.ahead
        tail, effects = tail.after(ChunkPut(stop, Put.EXISTS))
        assert effects == [ListBehind(19)]
        numbers = tuple(range(20, stop + 1))
        tail, _ = tail.after(Listed(19, numbers))
        tail, effects = tail.after(HeadsRead(tuple(map(chain.head, numbers))))
        assert effects == [CreateChunk(stop + tail.ahead, FENCE, 10 * stop, 10 * stop, stop + 1)]

    def test_the_fence_of_another_recovery_ahead_is_as_good_as_its_own(self) -> None:
        chain = Chain(20)
        tail, _ = chain.find(ChainTail(is_recovery=True))
        tail, _ = tail.after(ChunkPut(20, Put.EXISTS))
        stop = 19 + tail.ahead
        tail, _ = tail.after(ChunkPut(stop, Put.EXISTS))
        tail, _ = tail.after(Listed(19, (20, stop)))
        barrier = ChunkHead(FENCE, b"", b"", stop, 1, 20, 190, 190, 1330, 0, 0)
        tail, effects = tail.after(HeadsRead((chain.head(20), barrier)))
        assert effects == [CreateChunk(21, FENCE, 200, 200, 21)]

    def test_a_fence_ahead_ends_the_segment_once_the_writer_has_filled_the_gap(self) -> None:
        chain = Chain(20)
        tail, _ = chain.find(ChainTail(is_recovery=True))
        tail, _ = tail.after(ChunkPut(20, Put.EXISTS))
        stop = 19 + tail.ahead
        tail, _ = tail.after(ChunkPut(stop, Put.MADE))
        tail, effects = tail.after(Listed(19, tuple(range(20, stop + 1))))
        assert effects == [ReadHeads(tuple(range(20, stop + 1)))]
        fence = ChunkHead(FENCE, b"", b"", stop, 1, 20, 190, 190, 1330, 0, 0)
        tail, effects = tail.after(HeadsRead((*map(chain.head, range(20, stop)), fence)))
        end = 10 * (stop - 1)
        assert effects == [TailFound(end, stop, 7 * end, True)]

    def test_a_fence_that_is_unclear_is_told(self) -> None:
        tail, _ = Chain(20).find(ChainTail(is_recovery=True))
        assert tail.after(ChunkPut(20, Put.UNKNOWN))[1] == [GivenUp()]

    def test_a_chunk_that_is_missing_where_it_cannot_is_damage(self) -> None:
        with pytest.raises(DamagedError, match="missing below the tail"):
            Chain(100, missing=set(range(50, 95))).find(ChainTail(is_recovery=True))

    def test_a_chunk_that_does_not_continue_the_one_before_is_damage(self) -> None:
        chain = Chain(20)
        tail, _ = chain.find(ChainTail(is_recovery=True))
        tail, _ = tail.after(ChunkPut(20, Put.EXISTS))
        tail, _ = tail.after(ChunkPut(19 + tail.ahead, Put.MADE))
        tail, _ = tail.after(Listed(19, (20,)))
        with pytest.raises(DamagedError, match="does not continue"):
            tail.after(HeadsRead((replace(chain.head(21), number=20),)))

    @pytest.mark.parametrize("is_recovery", [True, False])
    def test_a_missing_chunk_that_was_confirmed_is_damage_and_no_end(self, is_recovery: bool) -> None:
        for missing in range(5, 19):
            chain = Chain(20, missing={missing})
            chain.unconfirmed = 0
            with pytest.raises(DamagedError, match=f"missing: number={missing}"):
                chain.find(ChainTail(is_recovery))

    def test_a_missing_chunk_below_a_seal_is_damage(self) -> None:
        chain = Chain(20, end=SEAL, missing={17, 18})
        chain.unconfirmed = 0
        with pytest.raises(DamagedError, match="missing: number=17"):
            chain.find(ChainTail(is_recovery=True))

    def test_a_listing_that_missed_a_chunk_is_repeated(self) -> None:
        chain = Chain(20)
        chain.unconfirmed = 0
        tail, effects = ChainTail(is_recovery=True, search=TailSearch(low=19)).begin()
        while not tail.waits_for_window:
            tail, effects = tail.after(chain.answer(effects[0]))
        tail, effects = tail.after(Listed(2, tuple(number for number in range(3, 20) if number != 12)))
        tail, effects = tail.after(chain.answer(effects[0]))
        assert effects == [ListBehind(2)]
        tail, effects = tail.after(chain.answer(effects[0]))
        tail, effects = tail.after(chain.answer(effects[0]))
        assert effects == [CreateChunk(20, FENCE, 190, 190, 20)]

    def test_a_chain_of_fences_is_damage(self) -> None:
        tail, _ = ChainTail(is_recovery=True).begin()
        numbers = tuple(range(40))
        tail, _ = tail.after(Listed(-1, numbers))
        tail, _ = tail.after(Listed(22, numbers[23:]))
        fences = tuple(ChunkHead(FENCE, b"", b"", number, 1, 0, 0, 0, 0, 0, 0) for number in numbers[23:])
        with pytest.raises(DamagedError, match="before a FENCE"):
            tail.after(HeadsRead(fences))


class TestFollower:
    """What a reader believes of a chain that grows."""

    def test_chunks_are_found_up_to_the_first_gap(self) -> None:
        chain, follower = Chain(10, missing={7}), ChainFollower()
        assert follower.poll() == [ListBehind(-1)]
        follower, effects = follower.after(chain.answer(ListBehind(-1)))
        assert effects == [ReadHeads(tuple(range(7)))]
        follower, effects = follower.after(chain.answer(ReadHeads(tuple(range(7)))))
        assert effects == [ChunksFound(tuple(map(chain.head, range(7))), False)]
        assert (follower.next_number, follower.end) == (7, 60)
        follower, effects = follower.after(chain.answer(ListBehind(6)))
        assert effects == []

    def test_nothing_is_found_behind_the_end(self) -> None:
        chain, follower = Chain(5, end=FENCE), ChainFollower()
        chain.numbers.append(5)
        follower, effects = follower.after(chain.answer(ListBehind(-1)))
        assert effects == [ReadHeads(tuple(range(6)))]
        follower, effects = follower.after(chain.answer(ReadHeads(tuple(range(6)))))
        assert effects == [ChunksFound(tuple(map(chain.head, range(5))), True)]
        assert (follower.is_ended, follower.end, follower.poll()) == (True, 30, [])
