"""What a Python worker of Spark does once, before its first task of ours."""

from __future__ import annotations

from functools import cache

from dlog.io.process import freeze, keep_freed_memory


@cache
def settle_in() -> None:
    """Keep what is imported out of the collection that Spark makes after each task, and large buffers out of the
    hands of the kernel, which gives them back page by page."""
    keep_freed_memory()
    freeze()
