"""Prepares a Python worker of Spark before its first dlog task."""

from __future__ import annotations

from functools import cache

from dlog.io.process import freeze, keep_freed_memory


@cache
def prepare_worker() -> None:
    """Exclude imported modules from the garbage collection that Spark runs after each task, and keep freed large
    buffers in the process: the kernel would return them page by page."""
    keep_freed_memory()
    freeze()
