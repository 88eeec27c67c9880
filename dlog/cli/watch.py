"""Repeats what a command shows until Ctrl-C: redrawn on a terminal, printed again elsewhere."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dlog.cli.output import flush, note, output, say, say_json
from dlog.errors import MetadataUnavailableError
from dlog.io.children import on_signals


@contextmanager
def ended_by_interrupt() -> Iterator[None]:
    """Within this context Ctrl-C cancels the current task up to the end of the context, and is no failure."""
    task = asyncio.current_task()
    assert task is not None
    interrupted = False

    def stop(_: signal.Signals) -> None:
        nonlocal interrupted
        interrupted = True
        task.cancel()

    on_signals((signal.SIGINT,), stop)
    try:
        yield
    except asyncio.CancelledError:
        if not interrupted:
            raise


async def watch(
    read: Callable[[], Awaitable[dict[str, Any]]],
    lines: Callable[[dict[str, Any]], Sequence[str]],
    *,
    every_s: float,
    as_json: bool,
) -> None:
    """Read and show for ever, with pauses of `every_s`: as a block of `lines`, or as one line of JSON.

    A block takes the place of the one before on a terminal; elsewhere a blank line precedes it. While ZooKeeper does
    not answer, that is reported once, and reading goes on; the first read raises MetadataUnavailableError. Raises
    OutputLostError.
    """
    has_shown = is_away = False
    with _as_json() if as_json else _as_blocks(lines) as show:
        while True:
            try:
                state = await read()
            except MetadataUnavailableError as error:
                if not has_shown:
                    raise
                if not is_away:
                    note(f"ZooKeeper does not answer, trying again: {error.message}")
                is_away = True
            else:
                show(state)
                has_shown, is_away = True, False
            await asyncio.sleep(every_s)


_Show = Callable[[dict[str, Any]], None]


@contextmanager
def _as_json() -> Iterator[_Show]:
    def show(state: dict[str, Any]) -> None:
        say_json(state)
        flush()

    yield show


@contextmanager
def _as_blocks(lines: Callable[[dict[str, Any]], Sequence[str]]) -> Iterator[_Show]:
    if not sys.stdout.isatty():
        blocks = 0

        def print_block(state: dict[str, Any]) -> None:
            nonlocal blocks
            for line in [""] * (blocks > 0) + list(lines(state)):
                say(line)
            blocks += 1
            flush()

        yield print_block
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    live = Live(console=Console(), auto_refresh=False)

    def redraw(state: dict[str, Any]) -> None:
        with output():
            live.update(Text("\n".join(lines(state)), no_wrap=True, overflow="crop"), refresh=True)

    with output():
        live.start()
    try:
        yield redraw
    finally:
        with output():
            live.stop()
