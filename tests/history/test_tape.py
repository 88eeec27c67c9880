"""The checker reads what was written, also if the writer was killed in the middle of a row."""

from __future__ import annotations

from pathlib import Path

from dlog.model.dlsn import of
from tests.history import End, History, check, start_at
from tests.history.records import RecordMaker
from tests.history.tape import Tape, play

MAKE = RecordMaker(3, 32).make


def record(path: Path) -> None:
    tape = Tape(path)
    first = tape.invoke(1, 3, 0, 2, 10, 7)
    second = tape.invoke(1, 3, 2, 2, 11)
    third = tape.invoke(2, 3, 0, 1, 12)
    tape.ok(first, 20, of(1, 0, 0), 7)
    tape.failed(second, 21)
    tape.unknown(third, 22)
    reader = tape.open(1, start_at("dlsn", of(1, 0, 0)), 30)
    tape.delivered(reader, 31, of(1, 0, 0), 7, [MAKE(0), MAKE(1)])
    tape.end(reader, 32, End.TAIL)
    strange = tape.open(2, start_at("tail"), 33)
    tape.delivered(strange, 34, of(1, 5, 0), 7, [b"control", b"what is this"])
    tape.truncate(2, of(1, 2, 3), 40, 41, of(1, 0, 0))
    tape.invoke(2, 3, 1, 1, 50)
    tape.close()


def test_a_tape_played_back_is_the_history(tmp_path: Path) -> None:
    path = tmp_path / "one.tape"
    record(path)
    histories = {1: History(), 2: History()}
    play(path, histories)
    one, two = check(histories[1]), check(histories[2])
    assert (one.acknowledged, one.failed, one.delivered, one.is_green) == (2, 2, 2, True)
    assert (two.invoked, two.unknown, dict(two.found)) == (2, 2, {"control": 1, "invented": 1})
    assert "b'what is this' at 1:5:1" in two.text()
    assert histories[1].appends.asked_txid.tolist() == [7, -1]
    assert histories[2].truncations[0].kept > 0


def test_a_torn_last_row_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "torn.tape"
    record(path)
    path.write_bytes(path.read_bytes()[:-10])
    histories = {1: History(), 2: History()}
    play(path, histories)
    assert check(histories[2]).invoked == 1
