"""A signal cancels the work of a command, which still closes what it opened; a close that hangs ends, too."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from dlog.cli import stopping
from dlog.cli.output import MutatingCommand, StoppedError

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


@pytest.fixture(autouse=True)
def not_ignored() -> Iterator[None]:
    """Tests run under nohup ignore SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def invoke(work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    """Run the work as a changing command does."""
    command = MutatingCommand("change", callback=lambda: stopping.run(work()), when_unknown="look at it")
    command.main(args=[], standalone_mode=False)


@pytest.mark.parametrize("ignored", [None, signal.SIGINT])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_in_a_task_that_closing_needs_ends_the_work_in_order(
    number: signal.Signals, ignored: signal.Signals | None
) -> None:
    """With SIGINT ignored as well: so it is for a background job of a script."""
    if number is ignored:
        pytest.skip("it ends nothing")
    closed: list[bool] = []

    async def work() -> None:
        closing, answered, is_driving = asyncio.Event(), asyncio.Event(), True

        async def drive() -> None:
            os.kill(os.getpid(), number)
            await closing.wait()
            answered.set()

        async with asyncio.TaskGroup() as tasks:
            driver = tasks.create_task(drive(), name="driver")
            driver.add_done_callback(lambda _: answered.set())
            try:
                await asyncio.Event().wait()
            finally:
                is_driving = not driver.done()
                closing.set()
                await answered.wait()
                closed.append(is_driving)

    before = signal.getsignal(signal.SIGINT)
    if ignored is not None:
        signal.signal(ignored, signal.SIG_IGN)
    try:
        with pytest.raises(StoppedError, match="stopped before the reply came"):
            invoke(work)
    finally:
        signal.signal(signal.SIGINT, before)
    assert closed == [True]


@pytest.mark.parametrize("signals", [1, 2])
def test_a_close_that_hangs_ends_by_its_deadline_or_a_second_signal(
    monkeypatch: pytest.MonkeyPatch, signals: int
) -> None:
    if signals == 1:
        monkeypatch.setattr(stopping, "CLOSE_S", 0.0)

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()
        finally:
            if signals == 2:
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.Event().wait()

    with pytest.raises(StoppedError):
        invoke(work)


def test_a_third_signal_ends_code_that_blocks_the_loop() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            for _ in range(3):
                os.kill(os.getpid(), signal.SIGTERM)
            ended.append("went on")
        except KeyboardInterrupt:
            ended.append("interrupted")
            raise

    with pytest.raises(StoppedError):
        invoke(work)
    assert ended == ["interrupted"]


def test_a_command_that_changes_nothing_is_ended_by_the_system() -> None:
    async def work() -> object:
        return signal.getsignal(signal.SIGTERM)

    assert stopping.run(work()) is signal.SIG_DFL


def test_handlers_are_as_before_and_a_result_is_returned() -> None:
    results: list[int] = []

    async def work() -> None:
        results.append(7)

    before = [signal.getsignal(number) for number in SIGNALS]
    invoke(work)
    assert results == [7]
    assert [signal.getsignal(number) for number in SIGNALS] == before
