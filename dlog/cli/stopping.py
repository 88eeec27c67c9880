"""Runs the work of a command that changes something on an event loop, so that signals end it in order.

An exception that a signal handler raises would end whichever task runs, such as one that closing waits for. So a signal
cancels the work, which closes what it opened.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from dlog.cli.output import ending_signals

T = TypeVar("T")
CLOSE_S = 8.0  # how long the work may close what it opened; then it is cancelled again


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end and return its result, as asyncio.run does.

    The first ending signal cancels `work`; a second one, or CLOSE_S seconds, cancel it again, which ends a close that
    hangs. Then this raises KeyboardInterrupt. A third signal raises KeyboardInterrupt at once, also in code that blocks
    the loop. A signal that is ignored stays ignored. In a command that is no MutatingCommand this is asyncio.run.
    """
    numbers = ending_signals()
    if threading.current_thread() is not threading.main_thread() or any(
        signal.getsignal(number) is not signal.default_int_handler for number in numbers
    ):
        return asyncio.run(work)
    signals = 0

    async def cancelled_by_signals() -> T:
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        assert task is not None

        def cancel() -> None:
            task.cancel()
            loop.call_later(CLOSE_S, task.cancel)

        def stop(number: int, frame: object) -> None:
            nonlocal signals
            signals += 1
            if signals > 2:
                raise KeyboardInterrupt
            loop.call_soon_threadsafe(cancel)  # wakes the loop, too

        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            return await work
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    try:
        return asyncio.run(cancelled_by_signals())
    except asyncio.CancelledError:
        if not signals:
            raise
        raise KeyboardInterrupt from None
