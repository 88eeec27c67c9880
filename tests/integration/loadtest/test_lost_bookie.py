"""A bookie full of ledgers is lost for good beside a writer, at a small size: dlog's, and Java's.

No speed is checked: that the copies are made again, counted and verified is.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from loadtest.lost_storage import copy_files, entry_logs
from loadtest.report import figures
from loadtest.runfile import Run
from loadtest.systems.base import CannotRunError
from loadtest.systems.java import BOOKKEEPER
from tests.integration.loadtest.rounds import green_round
from tests.parts import need

SMALL = {"backlog_mb": "6", "ledgers": "12", "seconds": "1", "warmup_s": "0.5", "rate": "200", "record_bytes": "2000"}


def checked(run: Run, system: str) -> None:
    result = figures.collect(run).where("W35", system)
    assert result is not None

    def value(name: str) -> float:
        found = result.value(name)
        assert found is not None, name
        return found

    entries = 6_000_000 * 4 // 3 // 12 // 2000
    assert value("verified_entries") >= 12 * entries
    assert 1 <= value("lost_mb") <= 12 * entries * 2000 / 1e6, "of those that the bookie is a member of"
    assert value("ledgers") >= 12
    for name in ("repair_s", "repair_mb_per_s", "copy_mb_per_s", "repair_over_copy", "response_ms.p99"):
        assert value(name) > 0, name
    assert value("p99_disturbed_over_undisturbed") > 0


@pytest.mark.zookeeper
@pytest.mark.slow
async def test_a_lost_bookie_of_dlog_is_repaired_beside_a_writer() -> None:
    run = await green_round("W35", ("dlog-recovery",), SMALL, {})
    checked(run, "dlog-recovery")
    usage = run.results[0]["usage"]
    assert {"bookie", "recovery", "write", "generator"} <= set(usage)


@pytest.mark.peers
@pytest.mark.slow
async def test_a_lost_bookie_of_java_is_repaired_beside_a_writer() -> None:
    need(shutil.which("javac") is not None, "a JDK", "apt-get install openjdk-17-jdk-headless")
    need(BOOKKEEPER.are_here(), "the jars of bookkeeper", "python -m loadtest peers install bookkeeper")
    run = await green_round("W35", ("bookkeeper-recovery",), SMALL, {})
    checked(run, "bookkeeper-recovery")
    assert run.systems["bookkeeper-recovery"]["configuration"]["autoRecoveryDaemonEnabled"] == "true"


def test_as_many_bytes_of_entry_logs_are_copied_as_are_lost(tmp_path: Path) -> None:
    room = tmp_path / "room"
    room.mkdir()
    for name, size in (("ledgers/0/entries-00000001", 3_000_000), ("ledgers/current/0.log", 2_000_000), ("a.log", 9)):
        path = tmp_path / "bookie" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(bytes(size))
    files = entry_logs(tmp_path / "bookie")
    assert [path.stat().st_size for path in files] == [3_000_000, 2_000_000]
    assert copy_files(files, room, 4_000_000) > 0
    with pytest.raises(CannotRunError, match="lack 1 of the 5000001 bytes"):
        copy_files(files, room, 5_000_001)
    assert not list(room.iterdir())
