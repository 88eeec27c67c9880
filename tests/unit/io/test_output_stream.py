"""Output that waits for a slow reader: a signal ends the wait, whatever handler the process has."""

from __future__ import annotations

import asyncio
import io
import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlog.io.output_stream import WaitingWriter


@pytest.fixture
def full() -> Iterator[tuple[int, WaitingWriter]]:
    """The read end of a full pipe, and a writer on its other end."""
    reads, writes = os.pipe()
    os.set_blocking(writes, False)
    try:
        while True:
            os.write(writes, bytes(select.PIPE_BUF))
    except BlockingIOError:
        os.set_blocking(writes, True)
    yield reads, WaitingWriter(writes)
    os.close(reads)
    os.close(writes)


def signal_once_waiting(number: signal.Signals, reads: int) -> threading.Thread:
    """Send this process the signal as soon as its main thread waits in poll(2). If it waits elsewhere, the pipe is read
    instead, lest the test hang."""
    waits_in = Path(f"/proc/self/task/{os.getpid()}/wchan")

    def send() -> None:
        limit = time.monotonic() + 20
        while not waits_in.read_text().startswith("poll_schedule"):
            if time.monotonic() > limit:
                while os.read(reads, 65_536):
                    pass
                return
        os.kill(os.getpid(), number)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def in_loop(work: Callable[[], object], number: signal.Signals) -> None:
    """Run `work` on a loop that answers the signal as soon as `work` lets it."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        if number is not signal.SIGINT:  # asyncio.run has a handler for it
            task = asyncio.current_task()
            assert task is not None
            loop.add_signal_handler(number, task.cancel)
        work()

    asyncio.run(main())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_a_wait_that_blocks_the_loop_and_the_rest_is_dropped(
    full: tuple[int, WaitingWriter], number: signal.Signals
) -> None:
    reads, writer = full
    buffered = io.BufferedWriter(writer)
    before = signal.getsignal(number)
    thread = signal_once_waiting(number, reads)

    def write() -> None:
        buffered.write(bytes(100_000))

    with pytest.raises(KeyboardInterrupt):
        in_loop(write, number)
    thread.join()
    assert signal.getsignal(number) in (before, signal.SIG_DFL)
    buffered.flush()  # returns: nobody reads


def test_everything_arrives_at_a_reader_that_is_slow(full: tuple[int, WaitingWriter]) -> None:
    reads, writer = full
    data = os.urandom(300_000)
    with io.BufferedWriter(writer) as buffered:

        def write() -> None:
            buffered.write(data)
            buffered.flush()

        thread = threading.Thread(target=write)
        thread.start()
        received = b""
        while len(received) < 65_536 + len(data):
            received += os.read(reads, 10_000)
        thread.join()
    assert received[65_536:] == data
