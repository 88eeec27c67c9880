"""Trials collect their garbage one by one; what the test run itself holds is kept out of it."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> Iterator[None]:
    """Without it each trial's collection walks every object of a test run that has grown for minutes."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
