"""Room in a stream's buffer, and the turns of those who wait for it.

The law of this file: who asks while others wait goes behind them; one turn is out at a time, and whoever had it and
leaves gives it to the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Admission:
    """Bytes held, against a bound. The one who takes the last of it may take more than is left."""

    __slots__ = ("_bound", "_granted", "_is_open", "_loop", "_settle", "_waiting", "held")

    def __init__(self, bound: int, loop: asyncio.AbstractEventLoop, settle: Callable[[], None]) -> None:
        """settle: brings `held` up to date, called before anybody is let in."""
        self.held = 0  # bytes; whoever takes or gives back says so here
        self._bound = bound
        self._loop = loop
        self._settle = settle
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._granted = False  # somebody's turn has come, and it has not taken its bytes yet
        self._is_open = False

    @property
    def left(self) -> int:
        """Bytes below the bound; 0 or less when it is full."""
        return self._bound - self.held

    @property
    def is_free(self) -> bool:
        """Whether bytes may be taken at once: there is room, and nobody waits for it."""
        return self.held < self._bound and not self._waiting and not self._granted

    async def wait(self) -> None:
        """Wait until bytes may be taken, in the order of the calls. Take them at once after the return."""
        if self.is_free:
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
                self._granted = False  # our turn had come; it is the next one's now
                self.let_in()
            raise
        self._granted = False
        self._loop.call_soon(self.let_in)  # once the caller has taken its bytes

    def let_in(self) -> None:
        """Give the first who waits its turn; when it has taken its bytes, the next has it."""
        if self._waiting:
            self._settle()
        while self._waiting and not self._granted and (self.held < self._bound or self._is_open):
            turn = self._waiting.popleft()
            if not turn.done():
                self._granted = True
                turn.set_result(None)

    def open(self) -> None:
        """Let everybody in from now on: the buffer is no more, and they will hear why."""
        self._is_open = True
        self.let_in()
