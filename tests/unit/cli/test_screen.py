"""Tests of what `dlog up` prints on a terminal: each text as it is, and nothing once the terminal is gone."""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dlog.cli.bookie_changes import _display
from dlog.cli.parts import ProcessPart, SupervisedProcess
from dlog.cli.screen import open_screen

ADDRESS = "[fd00:a:b::1]:24000"  # `[fd00` begins a tag of rich's markup, and `:a:` is one of its emoji
BOOKIE = "fd00:a:b::1:24001"
MESSAGE = f"write-1 died; its last output: cannot bind [/tmp/x]: address={ADDRESS} {'dlog://' + 80 * 'a'}"
SILENCE_S = 5.0  # nothing more is printed
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[a-zA-Z]")


class Terminal:
    """A terminal in the place of standard output and standard error."""

    def __init__(self) -> None:
        self.master, descriptor = os.openpty()
        self.stream = os.fdopen(descriptor, "w")

    def shows(self, *texts: str) -> bool:
        """Whether all these texts are printed, without colours and movements of the cursor."""
        self.stream.flush()
        printed, missing = b"", list(texts)
        while missing and select.select([self.master], [], [], SILENCE_S)[0]:
            printed += os.read(self.master, 1 << 16)
            shown = _CONTROL.sub(b"", printed).decode(errors="replace")
            missing = [text for text in texts if text not in shown]
        return not missing

    def hang_up(self) -> None:
        os.close(self.master)
        self.master = -1

    def close(self) -> None:
        self.stream.close()
        if self.master >= 0:
            os.close(self.master)


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """No fixture: pytest sets sys.stdout again between fixtures and test."""
    made = Terminal()
    with monkeypatch.context() as patch:
        patch.setenv("TERM", "xterm")
        patch.setenv("COLUMNS", "100")
        patch.setattr(sys, "stdout", made.stream)
        patch.setattr(sys, "stderr", made.stream)
        yield made
    made.close()


def parts(directory: Path) -> list[SupervisedProcess]:
    def ignore(_: SupervisedProcess) -> None:
        """Do nothing."""

    part = ProcessPart("write", "write-1", ADDRESS, "no.module", [], directory / "log", ignore)
    part.id = BOOKIE
    return [part]


def test_the_table_and_messages_show_each_text_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown:
        screen = open_screen(parts(tmp_path))
        screen.tick()
        assert shown.shows(ADDRESS, BOOKIE)
        screen.message(MESSAGE)
        assert shown.shows(MESSAGE)
        screen.close()


def test_a_terminal_that_is_hung_up_ends_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its SIGHUP has `dlog up` stop in order, which prints, too."""
    with terminal(monkeypatch) as shown:
        screen = open_screen(parts(tmp_path))
        screen.tick()
        shown.hang_up()
        screen.message("stopping")
        screen.tick()
        screen.close()


def test_notes_beside_a_progress_bar_show_each_text_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown, _display() as display:
        display.note(MESSAGE)
        assert shown.shows(MESSAGE)
