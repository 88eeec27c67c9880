"""Feeds each decoder bytes of every kind: it raises only its own errors, decodes pieces as the whole, and allocates no
more than the input justifies."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.decoders import TARGETS, Target, mutated, one, outcome

ROUNDS = 1500
BY_NAME = {target.name: target for target in TARGETS}


@pytest.mark.parametrize("name", BY_NAME)
def test_neighbours_of_what_is_right(name: str) -> None:
    rng = random.Random(11)
    for _ in range(ROUNDS):
        one(BY_NAME[name], rng)


@pytest.mark.parametrize("name", BY_NAME)
def test_the_seeds_are_right(name: str) -> None:
    """The seeds decode; otherwise all mutations would be refused for one reason."""
    target = BY_NAME[name]
    if name not in ("index trailers", "index chunks", "packets"):
        for seed in target.seeds:
            target.decode(seed)


@settings(max_examples=150)
@given(st.sampled_from(TARGETS), st.binary(max_size=300))
def test_arbitrary_bytes(target: Target, data: bytes) -> None:
    outcome(target.decode, target.errors, data)


@pytest.mark.parametrize("name", BY_NAME)
def test_what_is_declared_does_not_allocate(name: str) -> None:
    """A decoder allocates at most what LZ4 can make of the bytes (two bombs of 2 MiB in one entry), far below what is
    declared."""
    target, rng = BY_NAME[name], random.Random(12)
    tracemalloc.start()
    try:
        for _ in range(100):
            data = mutated(rng.choice(target.seeds), rng)
            tracemalloc.reset_peak()
            before = tracemalloc.get_traced_memory()[0]
            outcome(target.decode, target.errors, data)
            assert tracemalloc.get_traced_memory()[1] - before < 8 << 20, data.hex()
    finally:
        tracemalloc.stop()
