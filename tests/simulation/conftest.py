"""Keeps objects of the test run itself out of the garbage collections that each trial makes."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module", autouse=True)
def little_to_collect() -> Iterator[None]:
    """Freeze existing objects: otherwise each trial's collection walks every object of a test run that has grown for
    minutes."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
