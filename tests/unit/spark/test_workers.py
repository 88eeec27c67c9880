"""Tests what a Spark worker does once, at its start."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest

from dlog.spark import workers

ROOMS = "dlog.spark.source, dlog.spark.sink, dlog.spark.jobs.audit, dlog.spark.jobs.offload, dlog.spark.jobs.replay"
THRESHOLDS = 700, 10, 10  # Python's own


@pytest.fixture
def collector() -> Iterator[None]:
    """Reset Python's garbage collector to its state at the start of a process; the former settings are restored."""
    thresholds = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(*THRESHOLDS)
    workers.prepare_worker.cache_clear()
    yield
    workers.prepare_worker.cache_clear()
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def is_looked_at(thing: object) -> bool:
    """Whether a collection visits this object."""
    return any(one is thing for one in gc.get_objects())


def test_what_is_imported_is_no_garbage_to_be_looked_for_after_each_task(
    monkeypatch: pytest.MonkeyPatch, collector: None
) -> None:
    """Trap 15."""
    kept: list[bool] = []
    monkeypatch.setattr(workers, "keep_freed_memory", lambda: kept.append(True))
    imported: list[object] = []
    assert is_looked_at(imported)
    workers.prepare_worker()
    assert not is_looked_at(imported)
    assert all(now > was for now, was in zip(gc.get_threshold(), THRESHOLDS, strict=True))
    made_by_a_task: list[object] = []
    workers.prepare_worker()
    assert is_looked_at(made_by_a_task) and kept == [True], "once a process"


def test_pandas_is_not_needed() -> None:
    """Trap 18."""
    program = f"import sys; sys.modules['pandas'] = None; import {ROOMS}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
