"""Runs are joined where they are dense; an unreadable line is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.history import (
    RUN_SPAN_NS,
    AckedRun,
    Broken,
    End,
    HistoryWriter,
    ReadRun,
    RefusedRun,
    Sent,
    after,
    notes,
)


def test_dense_runs_join_and_others_do_not(tmp_path: Path) -> None:
    path = tmp_path / "h"
    writer = HistoryWriter(str(path))
    writer.acked(0, 1, 0, 2, (5, 0), 100)
    writer.acked(0, 1, 2, 1, (5, 2), 101)
    writer.acked(1, 1, 0, 1, (9, 9), 102)  # another log
    writer.acked(0, 1, 3, 1, (6, 0), 103)  # another position
    writer.acked(0, 1, 4, 1, (6, 1), 103 + RUN_SPAN_NS)  # too late to be joined
    writer.acked(0, 1, 5, 1, None, 104)
    writer.acked(0, 1, 6, 2, None, 105)
    writer.refused(0, 1, 8, 1, True)
    writer.sent(0, 1, 9)
    writer.close()
    assert sorted(map(str, notes(path))) == sorted(
        map(
            str,
            [
                AckedRun(0, 1, 0, 3, (5, 0), 100),
                AckedRun(0, 1, 3, 1, (6, 0), 103),
                AckedRun(0, 1, 4, 1, (6, 1), 103 + RUN_SPAN_NS),
                AckedRun(1, 1, 0, 1, (9, 9), 102),
                AckedRun(0, 1, 5, 3, None, 104),
                RefusedRun(0, 1, 8, 1, True),
                Sent(0, 1, 9),
            ],
        )
    )


def test_what_a_reader_was_given_stays_in_order(tmp_path: Path) -> None:
    path = tmp_path / "h"
    writer = HistoryWriter(str(path))
    writer.read(0, 1, 0, 1, (1, 0), 10)
    writer.read(0, 2, 0, 1, (1, 1), 11)
    writer.broken(0, (1, 2), b"\xff\x00")
    writer.read(0, 1, 1, 1, (1, 3), 12)
    writer.end(0)
    writer.close()
    assert list(notes(path)) == [
        ReadRun(0, 1, 0, 1, (1, 0), 10),
        ReadRun(0, 2, 0, 1, (1, 1), 11),
        Broken(0, (1, 2), "ff00"),
        ReadRun(0, 1, 1, 1, (1, 3), 12),
        End(0),
    ]


@pytest.mark.parametrize(
    "line", ["", "Z 0", "R 0 1 2", "R 0 1 2 0 5 6", "R a 1 2 3 4.5 6", "A 0 1 2 3 4..5 6", "F 0 1 2 3 2", "S 0 1"]
)
def test_a_line_that_cannot_be_read_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "h"
    path.write_text(f"E 0\n{line}\n")
    with pytest.raises(ValueError, match="h:2"):
        list(notes(path))


def test_places_count_in_their_last_number() -> None:
    assert after((1, 2, 3), 4) == (1, 2, 7)
    assert after((9,), 0) == (9,)
