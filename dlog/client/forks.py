"""Counts forks, so that a client notices in a child process that it belongs to the parent. Cheaper than os.getpid."""

from __future__ import annotations

import os

from dlog.errors import ClosedError

count = 0  # how many forks lie between the process that first imported this module and this process


def check(before: int, *, outcome_unknown: bool = False) -> None:
    """Raise ClosedError if this process was forked since the client was made. before: `count` at that time."""
    if before != count:
        raise ClosedError(
            "this client belongs to the parent process; open another one after the fork",
            outcome_unknown=outcome_unknown,
        )


def _count_fork() -> None:
    global count
    count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)
