"""Tests the entry cache: it is bounded and immutable, and has no effect on entries that it does not hold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from actors.entry_cache import ENTRY_OVERHEAD_BYTES, EntryCache


def test_a_run_ends_at_the_first_gap_at_the_last_asked_for_or_with_enough_bytes() -> None:
    cache = EntryCache(1 << 20)
    cache.put("m:1", 3, [b"a" * 10, b"b" * 10, b"c" * 10])
    cache.put("m:1", 7, [b"d"])
    assert cache.run("m:1", 3, 9, 1000) == [b"a" * 10, b"b" * 10, b"c" * 10]
    assert cache.run("m:1", 4, 4, 1000) == [b"b" * 10]
    assert cache.run("m:1", 3, 9, 11) == [b"a" * 10, b"b" * 10]
    assert cache.run("m:1", 2, 9, 1000) == []
    assert cache.run("m:2", 3, 9, 1000) == []


def test_what_was_used_least_recently_goes_first() -> None:
    cost = 100 + ENTRY_OVERHEAD_BYTES
    cache = EntryCache(3 * cost)
    cache.put("m:1", 0, [b"0" * 100, b"1" * 100, b"2" * 100])
    cache.run("m:1", 0, 0, 1)
    cache.put("m:1", 3, [b"3" * 100])
    assert [cache.holds("m:1", entry) for entry in range(4)] == [True, False, True, True]


def test_a_dropped_segment_and_a_truncated_head_leave_at_once() -> None:
    cache = EntryCache(1 << 20)
    cache.put("m:1", 0, [b"x", b"y", b"z"])
    cache.put("m:2", 0, [b"x"])
    cache.drop("m:1", 2)
    assert [cache.holds("m:1", entry) for entry in range(3)] == [False, False, True]
    cache.drop("m:1")
    assert not cache.holds("m:1", 2)
    cache.drop("m:2")
    assert cache.bytes == 0 == len(cache)


class CountedKey(str):
    """A segment key that counts how often it is hashed or compared."""

    __slots__ = ()
    operations = 0

    def __hash__(self) -> int:
        CountedKey.operations += 1
        return str.__hash__(self)

    def __eq__(self, other: object) -> bool:
        CountedKey.operations += 1
        return str.__eq__(self, other)


def test_dropping_a_segment_costs_what_is_held_of_it() -> None:
    cache = EntryCache(1 << 20)
    for segment in range(500):
        cache.put(CountedKey(f"m:{segment}"), 0, [b"x", b"y"])
    CountedKey.operations = 0
    for _ in range(10):
        cache.drop(CountedKey("m:9999"))
    assert CountedKey.operations <= 10 * 2, "nothing is held of it"
    cache.drop(CountedKey("m:7"), 1)
    assert CountedKey.operations <= 10 * 2 + 12
    assert not cache.holds("m:7", 0) and cache.holds("m:7", 1) and len(cache) == 999


def test_no_trace_is_left_of_a_segment_of_which_nothing_is_held() -> None:
    cache = EntryCache(10 * (1 + ENTRY_OVERHEAD_BYTES))
    for segment in range(100):
        cache.put(f"m:{segment}", 0, [b"x"])
    assert len(cache._by_segment) == len(cache) == 10
    for segment in range(100):
        cache.drop(f"m:{segment}")
    assert not cache._by_segment


@given(
    st.lists(st.tuples(st.sampled_from(["m:1", "m:2"]), st.integers(0, 20), st.lists(st.integers(0, 400), max_size=4))),
    st.integers(0, 3000),
)
def test_it_never_holds_more_than_it_may_and_never_says_what_was_not_put(
    puts: list[tuple[str, int, list[int]]], bytes_max: int
) -> None:
    cache = EntryCache(bytes_max)
    truth: dict[tuple[str, int], bytes] = {}
    for segment, first, sizes in puts:
        payloads = [b"%d" % (first + i) + b"." * size for i, size in enumerate(sizes)]
        payloads = [truth.setdefault((segment, first + i), p) for i, p in enumerate(payloads)]
        cache.put(segment, first, payloads)
        assert cache.bytes <= bytes_max
        for entry in range(25):
            for found in cache.run(segment, entry, entry, 1):
                assert found == truth[segment, entry]
