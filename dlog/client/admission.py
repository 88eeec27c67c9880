"""Admission to a stream's append buffer, with a queue of waiting callers.

Invariants:
- callers are admitted in the order of their calls;
- one caller is admitted at a time; if it is cancelled, the next one is admitted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Admission:
    """Bytes held, against a bound. A caller admitted below the bound may exceed it."""

    __slots__ = ("_bound", "_granted", "_is_open", "_loop", "_update_held", "_waiting", "held")

    def __init__(self, bound: int, loop: asyncio.AbstractEventLoop, update_held: Callable[[], None]) -> None:
        """bound: bytes. update_held: brings `held` up to date; called before a caller is admitted."""
        self.held = 0  # bytes; the queue and the producer add and subtract
        self._bound = bound
        self._loop = loop
        self._update_held = update_held
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._granted = False  # a caller was admitted and has not added its bytes yet
        self._is_open = False

    @property
    def is_below_bound(self) -> bool:
        return self.held < self._bound

    @property
    def free_bytes(self) -> int:
        """Bytes that may be added at once; 0 while a caller waits for room or has not used it yet."""
        if self._waiting or self._granted or self.held >= self._bound:
            return 0
        return self._bound - self.held

    async def wait(self) -> None:
        """Wait for room, in the order of the calls. Add the bytes right after the return."""
        if self.free_bytes:
            return
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(turn)
        self.let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            else:
                self._granted = False  # already admitted: pass the turn on
                self.let_in()
            raise
        self._granted = False
        self._loop.call_soon(self.let_in)  # after the caller has added its bytes

    def let_in(self) -> None:
        """Admit the first waiting caller if there is room and no other is being admitted."""
        if self._waiting:
            self._update_held()
        while self._waiting and not self._granted and (self.held < self._bound or self._is_open):
            turn = self._waiting.popleft()
            if not turn.done():
                self._granted = True
                turn.set_result(None)

    def open(self) -> None:
        """Admit all callers from now on: the producer is closed, and their appends raise."""
        self._is_open = True
        self.let_in()
