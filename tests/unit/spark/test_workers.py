"""What a worker of Spark does once."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from dlog.spark import workers

ROOMS = "dlog.spark.source, dlog.spark.sink, dlog.spark.jobs.audit, dlog.spark.jobs.offload, dlog.spark.jobs.replay"


def test_what_is_imported_is_no_garbage_to_be_looked_for_after_each_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trap 15."""
    kept: list[bool] = []
    monkeypatch.setattr(workers, "keep_freed_memory", lambda: kept.append(True))
    monkeypatch.setattr(workers, "freeze", gc.freeze)
    workers.settle_in.cache_clear()
    before = gc.get_freeze_count()
    try:
        workers.settle_in()
        assert gc.get_freeze_count() > before
        workers.settle_in()
        assert kept == [True], "once a process"
    finally:
        gc.unfreeze()
        workers.settle_in.cache_clear()


def test_pandas_is_not_needed() -> None:
    """Trap 18."""
    program = f"import sys; sys.modules['pandas'] = None; import {ROOMS}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
