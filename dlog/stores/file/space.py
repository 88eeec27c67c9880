"""Space on the disk of the file store: some is reserved for ending segments, and entries are refused without it.

An end is a new file. Without a reserve a full disk has no space for it, so that no stream can be taken over, and what
other segments append takes every block that becomes free. So the directory holds a file whose only use is its size.

Invariants:
- new segments and entries use space only while the reserve is held, except for appends that had begun before another
  process gave it up;
- the reserve is given up only to end a segment;
- it is taken again once there is twice its size, so that entries get as much.

Several processes share the directory: the name of the file says whether the reserve is held.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})


class Reserve(Protocol):
    """See dlog/io/reserve.py."""

    def is_held(self) -> bool: ...
    def hold(self, small_files_bytes: int) -> None: ...
    def give_up(self) -> bool: ...


class Space:
    """The space of one directory as one process sees it. Safe to use from several threads.

    reserve_bytes: size of the reserve; 0: there is none. on_change: called in a thread, with True when entries are
    refused for want of space, and with False when they are accepted again.
    """

    def __init__(
        self,
        reserve: Reserve,
        reserve_bytes: int,
        free_bytes: Callable[[], int],
        on_change: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._reserve = reserve
        self._reserve_bytes = reserve_bytes
        self._free_bytes = free_bytes
        self._on_change = on_change
        self._is_full = False
        self._lock = threading.Lock()

    @contextmanager
    def for_entries(self) -> Iterator[None]:
        """Around writing entries, or a new segment. Raises OSError with ENOSPC, before anything is written, if the
        reserve is not held and cannot be taken."""
        try:
            self._take_reserve()
            yield
        except OSError as error:
            if error.errno in NO_SPACE:
                self._note(is_full=True)
            raise
        self._note(is_full=False)

    def _take_reserve(self) -> None:
        """Take the reserve unless it is held. Raises OSError with ENOSPC if there is not enough space."""
        if not self._reserve_bytes or self._reserve.is_held():
            return
        if self._free_bytes() >= 2 * self._reserve_bytes:
            self._reserve.hold(0)
            if self._reserve.is_held():
                return
        raise OSError(errno.ENOSPC, "no space left on device for more than ending segments")

    def for_ending(self, work: Callable[[*Ts], T], *args: *Ts) -> T:
        """Do work that ends a segment and may be repeated; if there is no space, give up the reserve and repeat it."""
        try:
            return work(*args)
        except OSError as error:
            if error.errno not in NO_SPACE or not self._reserve_bytes:
                raise
            self._reserve.give_up()  # False: another process has, which may have left some of it
        return work(*args)

    def _note(self, *, is_full: bool) -> None:
        if self._is_full is is_full:
            return
        with self._lock:
            has_changed, self._is_full = self._is_full is not is_full, is_full
        if has_changed:
            self._on_change(is_full)
