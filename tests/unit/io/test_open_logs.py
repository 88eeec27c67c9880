"""Tests how many entry logs a bookie keeps open, and readers of logs that it closes or deletes."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dlog.bookie.journal import FIRST_MARKS
from dlog.errors import DamagedError
from dlog.io.disk import File, RealDisk
from dlog.io.ledger_dir import LedgerDir
from dlog.io.open_logs import OpenLogs
from tests.crashpoints.station import packet
from tests.unit.bookie.test_ledger_dir import half, row

LOGS = 50
OPEN_MAX = 5
BODY = bytes(5000)  # fills an entry log, by its size limit


def descriptors(directory: Path) -> list[str]:
    """Entry logs, deleted ones too, that this process has open: a name for each descriptor."""
    found = []
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
        except OSError:
            continue  # the descriptor of this listing
        if path.startswith(f"{directory}/entries-"):
            found.append(path)
    return found


@pytest.fixture
def logs(tmp_path: Path) -> Iterator[LedgerDir]:
    """An entry log for each of `LOGS` ledgers, with one entry."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("descriptors are counted where Linux shows them")
    made = LedgerDir(RealDisk(), str(tmp_path), 1000, OPEN_MAX)
    made.load()
    for ledger in range(LOGS):
        made.flush(half((ledger, 0), body=BODY), [row(ledger, 0)], FIRST_MARKS)
    assert len(made.manifest.logs) == LOGS
    yield made
    made.close()


def read(logs: LedgerDir, ledger: int) -> list[bytes]:
    return logs.lookup(ledger, 0, 1, 1 << 20)


def test_descriptors_do_not_grow_with_data(logs: LedgerDir, tmp_path: Path) -> None:
    assert len(descriptors(tmp_path)) <= OPEN_MAX, "written"
    for _ in range(3):
        for ledger in range(LOGS):
            assert read(logs, ledger) == [packet(ledger, 0, BODY)]
            assert len(descriptors(tmp_path)) <= OPEN_MAX
    assert len(descriptors(tmp_path)) == OPEN_MAX, "those that were read last"
    logs.collect()
    assert not logs.missing_logs()
    assert len(descriptors(tmp_path)) == OPEN_MAX
    again = LedgerDir(RealDisk(), str(tmp_path), 1000, OPEN_MAX)
    again.load()
    assert not again.missing_logs()
    again.close()
    logs.close()
    assert not descriptors(tmp_path)


def test_a_look_at_all_logs_closes_none_that_is_read(logs: LedgerDir, tmp_path: Path) -> None:
    for ledger in range(OPEN_MAX):
        read(logs, ledger)
    before = sorted(descriptors(tmp_path))
    logs.collect()
    assert sorted(descriptors(tmp_path)) == before


def test_a_log_that_grows_is_written_on_after_it_was_closed(tmp_path: Path) -> None:
    made = LedgerDir(RealDisk(), str(tmp_path), 1 << 20, 1)
    made.load()
    for entry in range(20):
        made.flush(half((1, entry), body=BODY), [row(1, entry)], FIRST_MARKS)
        made._logs._files.clear()  # as when others were read
    assert len(made.manifest.logs) == 1
    assert [made.lookup(1, entry, 1, 1 << 20) for entry in range(20)] == [[packet(1, e, BODY)] for e in range(20)]
    made.close()


def test_deleted_logs_are_not_open_any_more(logs: LedgerDir, tmp_path: Path) -> None:
    for ledger in range(LOGS):
        read(logs, ledger)
    logs.bury(range(LOGS - 2))
    logs.collect()
    assert [log.log for log in logs.manifest.logs]
    assert not [path for path in descriptors(tmp_path) if path.endswith("(deleted)")]
    assert read(logs, 0) == []
    assert read(logs, LOGS - 1) == [packet(LOGS - 1, 0, BODY)]


def test_a_file_in_use_stays_what_it_is_when_others_are_opened_and_when_it_is_deleted(
    logs: LedgerDir, tmp_path: Path
) -> None:
    """A reader uses it when its descriptor could already be another file's."""
    read(logs, 7)
    held = logs._logs.get(logs.manifest.logs[7].log)
    begin = held.pread(100, 0)
    for ledger in range(LOGS):
        read(logs, ledger)
    logs.bury([7])
    logs.collect()
    for ledger in range(8, LOGS):
        read(logs, ledger)
    assert held.pread(100, 0) == begin
    assert len([path for path in descriptors(tmp_path) if path.endswith("(deleted)")]) == 1
    del held
    assert not [path for path in descriptors(tmp_path) if path.endswith("(deleted)")]


def test_readers_of_many_threads_hear_the_truth_while_logs_are_closed_written_and_deleted(
    logs: LedgerDir, tmp_path: Path
) -> None:
    rounds = 300

    def reads(seed: int) -> int:
        rng = random.Random(seed)
        for _ in range(rounds):
            ledger = rng.randrange(LOGS)
            found = read(logs, ledger)
            assert found in ([packet(ledger, 0, BODY)], [])
            assert found or ledger in logs.gone, "what exists is found"
        return rounds

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(reads, seed) for seed in range(4)]
        for ledger in range(0, LOGS, 2):
            logs.bury([ledger])
            logs.collect()
            logs.flush(half((LOGS + ledger, 0), body=BODY), [row(LOGS + ledger, 0)], FIRST_MARKS)
        assert sum(reader.result() for reader in readers) == 4 * rounds
    assert len(descriptors(tmp_path)) <= OPEN_MAX
    assert not [path for path in descriptors(tmp_path) if path.endswith("(deleted)")]


def test_a_log_that_is_deleted_while_it_is_opened_is_not_kept(tmp_path: Path) -> None:
    disk, existing = RealDisk(), {1}
    disk.create(f"{tmp_path}/1")

    def open_log(number: int) -> File:
        file = disk.open(f"{tmp_path}/{number}")
        existing.discard(number)  # the collection removes it from the manifest here, and its file is to be dropped
        return file

    logs = OpenLogs(open_log, existing.__contains__, OPEN_MAX)
    assert logs.get(1).size() == 0
    assert len(logs) == 0


def test_what_opening_raises_is_told_and_nothing_is_kept() -> None:
    def open_log(number: int) -> File:
        raise DamagedError(f"an entry log is missing: log={number}")

    logs = OpenLogs(open_log, lambda _: True, OPEN_MAX)
    for _ in range(3):
        with pytest.raises(DamagedError):
            logs.get(1)
        with pytest.raises(DamagedError):
            logs.get_once(1)
    assert len(logs) == 0
