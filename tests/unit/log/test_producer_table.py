"""Tests the producer table: which batches are new, which are repetitions, and which it can no longer decide."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dlog.errors import InvalidRequestError, ProducerUnknownError, SequenceGapError
from dlog.log.dedup_trailer import ProducerTableSnapshot, TrailerBatch
from dlog.log.messages import BatchWritten, WriteBatch
from dlog.log.producer_table import NOTHING_FORGOTTEN, Batch, EntryPosition, Producer, ProducerTable
from dlog.model.dlsn import DLSN_INVALID, of
from dlog.model.ids import NO_TXID
from tests.unit.log.stage import ALICE, BOB, batch


def table(producers_max: int = 10, positions_max: int = 2, horizon: EntryPosition = NOTHING_FORGOTTEN) -> ProducerTable:
    return ProducerTable(producers_max, positions_max, horizon)


def accepted(known: ProducerTable, request: WriteBatch, *, entry: int | None = None) -> Batch:
    """Accept a new batch; with `entry`, cut it into that entry of segment 1 and confirm it."""
    producer = known.judge(request)
    assert isinstance(producer, Producer), producer
    taken = Batch(1, request, producer, 5, 5)
    known.accept(taken)
    if entry is not None:
        known.cut(taken, 1, entry, 0)
        known.confirm(taken)
    return taken


def test_batches_in_order_are_new_and_a_gap_names_what_is_expected() -> None:
    known = table()
    accepted(known, batch(0, 3))
    accepted(known, batch(3))
    refused = known.judge(batch(5))
    assert isinstance(refused, SequenceGapError)
    assert refused.expected == 4


def test_a_repetition_of_a_batch_on_its_way_is_that_batch() -> None:
    known = table()
    pending = accepted(known, batch(0, 3))
    assert known.judge(batch(0, 3, retry=True)) is pending
    assert isinstance(known.judge(batch(0, 2, retry=True)), InvalidRequestError)
    assert isinstance(known.judge(batch(0, 4, retry=True)), InvalidRequestError)


def test_a_repetition_of_a_written_batch_is_answered_with_its_place_while_that_is_known() -> None:
    known = table()
    for entry in range(3):
        accepted(known, batch(2 * entry, 2), entry=entry)
    assert known.judge(batch(4, 2, retry=True)) == BatchWritten(of(1, 2, 0), 2, 5, True, 2)  # type: ignore[arg-type]
    assert known.judge(batch(3, 1, retry=True)) == BatchWritten(of(1, 1, 1), 1, 5, True, 2)  # type: ignore[arg-type]
    forgotten = known.judge(batch(0, 2, retry=True))
    assert isinstance(forgotten, BatchWritten)
    assert forgotten.duplicate
    assert forgotten.dlsn == DLSN_INVALID


def test_a_table_never_remembers_fewer_batches_than_it_allowed_before() -> None:
    known = table()
    known.set_window(4)
    known.set_window(3)
    for entry in range(5):
        accepted(known, batch(entry), entry=entry)
    assert known.judge(batch(1, retry=True)) == BatchWritten(of(1, 1, 0), 1, 5, True, 2)  # type: ignore[arg-type]
    assert known.judge(batch(0, retry=True)) == BatchWritten(DLSN_INVALID, 1, NO_TXID, True, 2)


def test_a_later_owner_remembers_as_many_batches_as_an_earlier_one_allowed() -> None:
    """Whatever became of the segments in whose store that many were allowed, and also for producers that had written
    fewer batches when the owner changed."""
    before = table()
    before.set_window(4)
    before.set_window(2)
    accepted(before, batch(0), entry=0)
    known = table()
    known.restore(before.snapshot(), (1, 1))
    assert known.snapshot() == before.snapshot()
    for entry in range(1, 5):
        accepted(known, batch(entry), entry=entry)
    assert [len(p.positions) for p in known.snapshot().producers] == [4]


def test_a_repeated_batch_allows_the_least_window_since_a_greater_one_may_not_be_in_the_log_yet() -> None:
    known = table()
    accepted(known, batch(0), entry=0)
    known.set_window(4)
    repeated = known.judge(batch(0, retry=True))
    assert isinstance(repeated, BatchWritten)
    assert repeated.window == 2


def test_a_stranger_is_new_with_its_first_batch_only() -> None:
    known = table()
    refused = known.judge(batch(7))
    assert isinstance(refused, SequenceGapError)
    assert refused.expected == 0
    assert isinstance(known.judge(batch(0, retry=True)), Producer), "nobody was ever forgotten"


def test_once_somebody_was_forgotten_a_stranger_is_taken_only_if_it_began_after_that() -> None:
    known = table(producers_max=1)
    accepted(known, batch(0), entry=4)
    accepted(known, batch(0, producer=BOB), entry=5)
    assert known.horizon == (1, 4), "where the forgotten one wrote last"
    for since in (None, (0, 99), (1, 3), (1, 4)):
        for request in (batch(0, since=since), batch(0, retry=True, since=since), batch(1, retry=True, since=since)):
            refused = known.judge(request)
            assert isinstance(refused, ProducerUnknownError)
            assert refused.outcome_unknown is request.retry
    gap = known.judge(batch(1, since=(1, 5)))
    assert isinstance(gap, SequenceGapError), "it has certainly not written yet"
    assert gap.expected == 0
    assert isinstance(known.judge(batch(0, retry=True, since=(1, 5))), Producer), "also if it was sent before"


def test_a_copy_of_a_first_batch_held_up_until_its_producer_was_forgotten_is_not_written_again() -> None:
    known = table(producers_max=2)
    accepted(known, batch(0, producer=b"0" * 16), entry=0)
    first = batch(0, since=(1, 1))
    accepted(known, first, entry=1)
    for n in range(2, 5):
        accepted(known, batch(0, producer=bytes([n]) * 16, since=(1, n)), entry=n)
    assert isinstance(known.judge(first), ProducerUnknownError), "sent for the first time, as far as it says"


def test_the_horizon_is_part_of_a_snapshot() -> None:
    known = table(producers_max=1)
    accepted(known, batch(0), entry=4)
    accepted(known, batch(0, producer=BOB), entry=5)
    heir = table(producers_max=1)
    heir.restore(known.snapshot(), (1, 6))
    assert heir.horizon == (1, 4)
    accepted(heir, batch(0, producer=b"c" * 16, since=(1, 6)), entry=6)
    assert heir.horizon == (1, 5)


def test_of_a_producer_whose_places_were_left_out_the_snapshots_own_place_counts() -> None:
    known = table()
    accepted(known, batch(0), entry=4)
    snapshot = known.snapshot()
    thin = ProducerTableSnapshot(snapshot.horizon, tuple(p._replace(positions=()) for p in snapshot.producers))
    heir = table(producers_max=1)
    heir.restore(thin, (1, 9))
    accepted(heir, batch(0, producer=BOB), entry=10)
    assert heir.horizon == (1, 9)


def test_a_producer_with_a_batch_on_its_way_is_not_forgotten() -> None:
    known = table(producers_max=1)
    accepted(known, batch(0))
    accepted(known, batch(0, producer=BOB))
    assert known.horizon == NOTHING_FORGOTTEN
    assert len(known) == 2


def test_a_snapshot_holds_what_is_cut_and_not_what_waits() -> None:
    known = table()
    accepted(known, batch(0, 2), entry=0)
    on_its_way = accepted(known, batch(2))
    known.cut(on_its_way, 1, 1, 4)
    accepted(known, batch(3))
    accepted(known, batch(0, producer=BOB))
    snapshot = known.snapshot()
    assert [(p.producer, p.floor, p.next) for p in snapshot.producers] == [(ALICE, 0, 3)]
    assert [tuple(p) for p in snapshot.producers[0].positions] == [(0, 2, 1, 0, 0, 5), (2, 1, 1, 1, 4, 5)]
    known.uncut(on_its_way)
    assert known.snapshot().producers[0].next == 2


def test_below_the_floor_nothing_is_known() -> None:
    known = table(horizon=(3, 0))
    known.replay(TrailerBatch(ALICE, 10, 2, 0, 0), 3, 4, 99)
    assert isinstance(known.judge(batch(5, retry=True)), ProducerUnknownError)
    found = known.judge(batch(10, 2, retry=True))
    assert isinstance(found, BatchWritten)
    assert found.dlsn == of(3, 4, 0)
    assert isinstance(known.judge(batch(12)), Producer)


names = st.sampled_from([bytes([n]) * 16 for n in range(6)])


@settings(max_examples=200)
@given(st.lists(st.tuples(names, st.integers(1, 3), st.booleans()), max_size=40), st.integers(1, 6))
def test_what_the_log_tells_is_what_was_known(writes: list[tuple[bytes, int, bool]], producers_max: int) -> None:
    """A snapshot and the replay of later entries give every answer that the first table gives to a repetition."""
    first = table(producers_max, 3)
    notes: list[tuple[TrailerBatch, int]] = []
    cut_at, snapshot = 0, first.snapshot()
    expected: dict[bytes, int] = {}
    for entry, (name, count, take_snapshot) in enumerate(writes):
        if take_snapshot:
            cut_at, snapshot = entry, first.snapshot()
        producer = first.judge(batch(expected.get(name, 0), count, producer=name, since=(1, entry)))
        if not isinstance(producer, Producer):
            continue  # forgotten: begins anew as another
        sequence = producer.next
        accepted(first, batch(sequence, count, producer=name, since=(1, entry)), entry=entry)
        expected[name] = sequence + count
        notes.append((TrailerBatch(name, sequence, count, 0, 0), entry))
    second = table(producers_max, 3)
    second.restore(snapshot, (1, cut_at))
    for noted, entry in notes:
        if entry >= cut_at:
            second.replay(noted, 1, entry, 5)
    assert second.horizon == first.horizon
    for noted, _ in notes:
        repeated = batch(noted.sequence, noted.records, producer=noted.producer, retry=True)
        assert repr(second.judge(repeated)) == repr(first.judge(repeated))


# ---- generations of a producer --------------------------------------------------------------------------------------


def alice(generation: int) -> bytes:
    return ALICE[:12] + generation.to_bytes(4, "big")


def next_(sequence: int, generation: int, replaces: int, **options: Any) -> WriteBatch:
    return replace(batch(sequence, producer=alice(generation), **options), replaces=replaces)


def test_when_the_next_generation_has_begun_the_older_ones_write_nothing_more() -> None:
    known = table()
    accepted(known, batch(0, 3, producer=alice(0)), entry=0)
    accepted(known, next_(5, 1, 5), entry=1)
    for late in (batch(3, producer=alice(0)), batch(3, producer=alice(0), retry=True), batch(0, producer=alice(0))):
        refused = known.judge(late)
        assert isinstance(refused, ProducerUnknownError)
        assert refused.outcome_unknown is late.retry
    assert isinstance(known.judge(next_(6, 1, 5)), Producer)
    assert isinstance(known.judge(next_(5, 1, 5, retry=True)), BatchWritten)


def test_a_generation_begins_with_the_batch_that_it_names() -> None:
    known = table()
    for producers in ([], [batch(0, producer=alice(0))]):
        for request in producers:
            accepted(known, request, entry=0)
        gap = known.judge(next_(6, 1, 5))
        assert isinstance(gap, SequenceGapError)
        assert gap.expected == 5
        assert isinstance(known.judge(next_(5, 1, 5)), Producer)


def test_a_generation_does_not_begin_if_what_it_replaces_is_in_the_log_or_on_its_way() -> None:
    known = table()
    accepted(known, batch(0, 3, producer=alice(0)), entry=0)
    accepted(known, batch(3, producer=alice(0)))
    refused = known.judge(next_(3, 1, 3))
    assert isinstance(refused, ProducerUnknownError)
    assert refused.outcome_unknown
    assert isinstance(known.judge(next_(4, 1, 4)), Producer)


def test_a_generation_that_was_not_taken_replaces_nothing() -> None:
    known = table()
    accepted(known, batch(0, 3, producer=alice(0)), entry=0)
    begun = accepted(known, next_(5, 1, 5))
    known.withdraw(begun)
    assert isinstance(known.judge(batch(3, producer=alice(0))), Producer)
    assert isinstance(known.judge(next_(5, 1, 5)), Producer)


def test_one_whose_entry_did_not_survive_is_not_in_the_snapshot_and_the_one_before_is() -> None:
    known = table()
    accepted(known, batch(0, 3, producer=alice(0)), entry=0)
    begun = accepted(known, next_(5, 1, 5))
    known.cut(begun, 1, 1, 0)
    assert [(p.producer, p.next) for p in known.snapshot().producers] == [(alice(1), 6)]
    known.uncut(begun)
    assert [(p.producer, p.next) for p in known.snapshot().producers] == [(alice(0), 3)]
    assert isinstance(known.judge(batch(3, producer=alice(0))), ProducerUnknownError), "it is cut again"
    known.cut(begun, 2, 0, 0)
    known.confirm(begun)
    assert [(p.producer, p.next) for p in known.snapshot().producers] == [(alice(1), 6)]


def test_an_heir_knows_which_generation_is_the_newest_from_a_snapshot_and_from_what_follows() -> None:
    known = table()
    accepted(known, batch(0, 3, producer=alice(0)), entry=0)
    before = known.snapshot()
    accepted(known, next_(5, 1, 5), entry=1)
    by_snapshot, by_replay = table(), table()
    by_snapshot.restore(known.snapshot(), (1, 2))
    by_replay.restore(before, (1, 1))
    by_replay.replay(TrailerBatch(alice(1), 5, 1, 0, 0), 1, 1, 5)
    for heir in (by_snapshot, by_replay):
        assert isinstance(heir.judge(batch(3, producer=alice(0))), ProducerUnknownError)
        assert isinstance(heir.judge(next_(6, 1, 5)), Producer)
        assert len(heir) == 1, "a producer takes one place, whatever it gave up"


def test_a_generation_that_is_forgotten_takes_the_older_ones_along() -> None:
    known = table(producers_max=1)
    accepted(known, batch(0, producer=alice(0), since=(1, 0)), entry=1)
    accepted(known, next_(5, 1, 5, since=(1, 1)), entry=2)
    accepted(known, batch(0, producer=BOB, since=(1, 2)), entry=3)
    assert isinstance(known.judge(batch(1, producer=alice(0), since=(1, 0))), ProducerUnknownError)
    assert isinstance(known.judge(batch(0, producer=alice(0), since=(1, 0))), ProducerUnknownError)


# ---- who is refused -------------------------------------------------------------------------------------------------


def test_who_is_refused_pushes_nobody_out() -> None:
    known = table(producers_max=2)
    accepted(known, batch(0), entry=0)
    accepted(known, batch(0, producer=BOB), entry=1)
    for n in range(5):
        stranger = batch(0, producer=bytes([n]) * 16, since=(1, 1))
        assert isinstance(known.judge(stranger), Producer), "its owner may refuse it still"
    turned_away = [accepted(known, batch(0, producer=bytes([n]) * 16, since=(1, 1))) for n in range(5)]
    for taken in reversed(turned_away):
        known.withdraw(taken)
    assert known.horizon == NOTHING_FORGOTTEN
    assert len(known) == 2
    for name in (ALICE, BOB):
        assert isinstance(known.judge(batch(0, producer=name, retry=True)), BatchWritten)
