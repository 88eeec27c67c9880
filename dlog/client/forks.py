"""Counts forks, so that a client notices in a child process that it belongs to the parent. Cheaper than os.getpid."""

from __future__ import annotations

import os

count = 0  # how many forks lie between the process that first imported this module and this process


def _count_fork() -> None:
    global count
    count += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)
