"""Display of `dlog up`: a live table on a terminal, else a line for each change."""

from __future__ import annotations

import errno
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from dlog.cli.output import drop, output, size_text
from dlog.cli.parts import State, SupervisedProcess

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table
    from rich.text import Text


class Screen(Protocol):
    """Shows the states of the processes of `dlog up`; `tick` is called every second. Raises OutputLostError."""

    def changed(self, part: SupervisedProcess) -> None: ...

    def message(self, text: str) -> None: ...

    def tick(self) -> None: ...

    def close(self) -> None: ...


def open_screen(parts: Sequence[SupervisedProcess]) -> Screen:
    """A live table if stdout is a terminal, else lines."""
    return _TableScreen(parts) if sys.stdout.isatty() else LineScreen()


class LineScreen:
    """Prints a line when a part becomes ready, dies or ends."""

    def __init__(self) -> None:
        self._last: dict[str, State] = {}

    def changed(self, part: SupervisedProcess) -> None:
        before = self._last.get(part.name)
        if before is part.state:
            return
        self._last[part.name] = part.state
        match part.state:
            case State.READY:
                again = f" again, restarts={part.restarts}" if part.restarts else ""
                self.message(f"{part.role} {part.name} is ready{again}: address={part.address} pid={part.pid}")
            case State.WAITING:
                self.message(f"{part.role} {part.name} {part.death()}")
            case State.STOPPED:
                self.message(f"{part.role} {part.name} has ended")
            case _:
                pass

    def message(self, text: str) -> None:
        with output():
            sys.stdout.write(text + "\n")
            sys.stdout.flush()

    def tick(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class _TableScreen:
    """Live table with role, id, address, pid, state, restarts and memory of each part.

    It ends no cluster that its terminal is gone: SIGHUP does, unless the cluster was started to ignore it.
    """

    def __init__(self, parts: Sequence[SupervisedProcess]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._parts = parts
        self._shown: dict[str, State] = {}
        self._live: Live = Live(self._table(), console=Console(), auto_refresh=False)
        with _terminal():
            self._live.start()

    def changed(self, part: SupervisedProcess) -> None:
        if self._shown.get(part.name) is not part.state and part.state is State.WAITING:
            self.message(f"{part.name} {part.death()}")
        self._shown[part.name] = part.state
        self.tick()

    def message(self, text: str) -> None:
        from rich.text import Text

        with _terminal():
            self._live.console.print(Text(text), soft_wrap=True)  # as it is: no markup, no line breaks in addresses

    def tick(self) -> None:
        with _terminal():
            self._live.update(self._table(), refresh=True)

    def close(self) -> None:
        self.tick()
        with _terminal():
            self._live.stop()

    def _table(self) -> Table:
        from rich.table import Table

        table = Table(box=None, pad_edge=False, header_style="bold")
        for head, right in (
            ("role", False),
            ("id", False),
            ("address", False),
            ("pid", True),
            ("state", False),
            ("restarts", True),
            ("memory", True),
        ):
            table.add_column(head, justify="right" if right else "left", no_wrap=True)
        for part in self._parts:
            table.add_row(*_row(part))
        return table


@contextmanager
def _terminal() -> Iterator[None]:
    """Context for writes to the terminal: once it is hung up, they are dropped. Raises OutputLostError."""
    with output():
        try:
            yield
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            drop(sys.stdout)


def _row(part: SupervisedProcess) -> tuple[Text, ...]:
    """The cells; a plain text would be read as markup, such as an IPv6 address in brackets."""
    from rich.text import Text

    rss = part.rss_bytes()
    colour = {State.READY: "green", State.WAITING: "red", State.STOPPED: "dim"}.get(part.state, "yellow")
    return (
        Text(part.role),
        Text(part.id),
        Text(part.address),
        Text(str(part.pid or "-")),
        Text(part.state.value, style=colour),
        Text(str(part.restarts)),
        Text(size_text(rss) if rss is not None else "-"),
    )
