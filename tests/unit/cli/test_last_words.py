"""Tests what `dlog up` shows of the log of a process that did not start."""

from __future__ import annotations

from pathlib import Path

from dlog.cli.parts import last_words

CONFIGURED = '{"role": "file", "event": "process.configured", "level": "info"}\n'
WARNING = '{"event": "bookie.lost", "level": "warning"}\n'


def test_the_error_is_shown_without_the_configuration_before_it(tmp_path: Path) -> None:
    log = tmp_path / "write-1.log"
    log.write_text("an earlier run\n" + CONFIGURED * 40 + WARNING + "ConfigError: no directory of segments\n")
    assert last_words(log, len("an earlier run\n")) == f"{WARNING.strip()} | ConfigError: no directory of segments"


def test_without_an_error_the_last_events_are_shown(tmp_path: Path) -> None:
    log = tmp_path / "write-1.log"
    log.write_text(CONFIGURED)
    assert last_words(log, 0) == CONFIGURED.strip()
    assert last_words(log, len(CONFIGURED)) == last_words(tmp_path / "none", 0) == "nothing"
