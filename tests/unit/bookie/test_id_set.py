"""Tests sets of ledger ids: they contain exactly what was added; bytes that do not verify are refused."""

from __future__ import annotations

import random

import pytest

from dlog.bookie.id_set import BLOCK_IDS, IdSet, decode_id_set
from dlog.errors import DamagedError


def test_holds_what_was_added_in_order_and_survives_its_bytes() -> None:
    rng = random.Random(1)
    ids = {rng.randrange(10 * BLOCK_IDS) for _ in range(3000)} | {2**40 + 5, 2**62, 0}
    made = IdSet(ids)
    for again in (made, decode_id_set(made.encode())):
        assert list(again) == sorted(ids) and len(again) == len(ids)
        assert all((number in again) == (number in ids) for number in range(10 * BLOCK_IDS))


def test_a_union_leaves_the_first_as_it_was() -> None:
    made = IdSet([1])
    assert list(made.union([2])) == [1, 2] and list(made) == [1]


def test_what_is_discarded_leaves_no_block_behind() -> None:
    made = IdSet([1, 2])
    for number in (1, 2, 3):
        made.discard(number)
    assert not made and list(made) == [] and len(decode_id_set(made.encode())) == 0


def test_dense_ids_cost_about_a_bit_each() -> None:
    made = IdSet(range(100 * BLOCK_IDS))
    assert sum(map(len, made._blocks.values())) == 100 * BLOCK_IDS // 8


def test_any_flipped_bit_is_noticed() -> None:
    data = IdSet([1, 5000]).encode()
    for at in range(len(data)):
        with pytest.raises(DamagedError):
            decode_id_set(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    for size in range(len(data)):
        with pytest.raises(DamagedError):
            decode_id_set(data[:size])
