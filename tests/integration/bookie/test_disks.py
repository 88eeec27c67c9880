"""Foreign, emptied, shared, damaged and full disks."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from dlog.io.metadata import Members
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from tests.integration.bookie.conftest import new_cluster
from tests.integration.bookie.process import BookieProcess
from tests.integration.bookie.raw import RECOVERY, Raw, add_frame, packet
from tests.parts import need

pytestmark = pytest.mark.zookeeper
Make = Callable[..., BookieProcess]
OK, NO_ENTRY, IO_ERROR, READ_ONLY = 0, 2, 101, 105


def members(hosts: str) -> Members:
    async def look() -> Members:
        async with await ZooKeeperMetadata.connect(hosts, "/dlog") as metadata:
            return await metadata.members()

    return asyncio.run(look())


def until(condition: Callable[[], bool]) -> None:
    """Wait for another process, for a limited time."""
    end = time.monotonic() + 90
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


def with_data(make_bookie: Make) -> BookieProcess:
    bookie = make_bookie().start()
    with bookie.connect() as raw:
        assert raw.add(1, 0, b"data") == OK
    bookie.terminate()
    return bookie


def test_a_second_bookie_on_the_same_directories_is_refused(make_bookie: Make) -> None:
    first = make_bookie().start()
    second = make_bookie()  # the same directory
    assert "another bookie runs on this directory" in second.refusal()
    with first.connect() as raw:
        assert raw.add(1, 0) == OK


@pytest.mark.parametrize("part", ["journal", "ledgers"])
def test_an_emptied_directory_is_refused_and_the_message_helps(make_bookie: Make, part: str) -> None:
    bookie = with_data(make_bookie)
    shutil.rmtree(bookie.directory / part)
    said = bookie.refusal()
    assert "CookieError" in said and "re-replicate" in said and part in said


def test_both_directories_emptied_is_refused(make_bookie: Make) -> None:
    bookie = with_data(make_bookie)
    shutil.rmtree(bookie.directory)
    bookie.options["bookie_id"] = bookie.id
    assert "mount the right disk" in bookie.refusal()


def test_a_missing_version_file_is_refused(make_bookie: Make) -> None:
    bookie = with_data(make_bookie)
    (bookie.directory / "ledgers" / "VERSION").unlink()
    assert "no VERSION file" in bookie.refusal()


def test_the_disk_of_another_cluster_is_refused(make_bookie: Make, zookeeper: EmbeddedZooKeeper) -> None:
    bookie = with_data(make_bookie)
    bookie.zookeeper = new_cluster(zookeeper)
    assert "another cluster" in bookie.refusal()


def test_the_disk_of_another_bookie_is_refused(make_bookie: Make) -> None:
    bookie = with_data(make_bookie)
    bookie.options["bookie_id"] = "somebody-else"
    assert "another bookie" in bookie.refusal()


def test_a_cluster_that_was_never_made_is_refused(make_bookie: Make, zookeeper: EmbeddedZooKeeper) -> None:
    bookie = make_bookie(zookeeper=zookeeper.hosts + "/nothing-here")
    assert "Error" in bookie.refusal()


def test_a_flipped_bit_in_an_entry_log_is_an_io_error(make_bookie: Make) -> None:
    bookie = with_data(make_bookie)
    (log,) = (bookie.directory / "ledgers").glob("entries-*")
    data = bytearray(log.read_bytes())
    data[data.index(b"data")] ^= 1
    log.write_bytes(data)
    bookie.start()
    with bookie.connect() as raw:
        assert raw.read(1, 0) == (IO_ERROR, b"")
        assert raw.read(1, 1) == (NO_ENTRY, b"")
    assert bookie.events("entry.damaged")[0]["ledger"] == 1


def test_the_index_db_outlives_a_kill_and_is_refused_as_sorted(make_bookie: Make) -> None:
    bookie = make_bookie(index="db", checkpoint_s=0.2).start()
    with bookie.connect() as raw:
        assert all(raw.add(1, entry, b"entry %d" % entry) == OK for entry in range(50))
        until(lambda: any((bookie.directory / "ledgers").glob("database-*/*.sst")))
    bookie.kill()
    bookie.start()
    with bookie.connect() as raw:
        assert all(raw.read(1, entry) == (OK, packet(1, entry, b"entry %d" % entry)) for entry in range(50))
        assert raw.read(1, 50) == (NO_ENTRY, b"")
    bookie.terminate()
    bookie.options["index"] = "sorted"
    said = bookie.refusal()
    assert 'index = "db"' in said and "dlog bookie convert" in said


def test_a_damaged_journal_is_refused_and_salvaged_on_demand(make_bookie: Make, cluster: str) -> None:
    bookie = make_bookie(checkpoint_s=60.0).start()
    with bookie.connect() as raw:
        for entry in range(5):
            assert raw.add(1, entry, b"entry %d" % entry) == OK
    bookie.kill()
    (journal,) = [p for p in (bookie.directory / "journal").glob("journal-*") if b"entry 2" in p.read_bytes()]
    data = bytearray(journal.read_bytes())
    data[data.index(b"entry 2")] ^= 1
    journal.write_bytes(data)
    assert "--salvage" in bookie.refusal()
    bookie.options["salvage"] = True
    bookie.start()
    with bookie.connect() as raw:
        assert raw.read(1, 1) == (OK, packet(1, 1, b"entry 1"))
        assert raw.read(1, 2) == raw.read(1, 9) == raw.read(77, 0) == (IO_ERROR, b"")
        assert raw.add(2, 0) == READ_ONLY
    assert bookie.id in members(cluster).readonly


def test_registered_while_it_lives(make_bookie: Make, cluster: str) -> None:
    bookie = make_bookie().start()
    info = members(cluster).writable[bookie.id]  # type: ignore[index]
    assert (info.host, info.port) == bookie.address
    bookie.terminate()
    assert bookie.id not in members(cluster).writable


def test_read_only_by_threshold(make_bookie: Make, cluster: str) -> None:
    free = shutil.disk_usage("/").free
    bookie = make_bookie(disk_free_min_bytes=2 * free, disk_free_reserve_bytes=1).start()
    with bookie.connect() as raw:
        assert raw.add(1, 0) == READ_ONLY
        assert raw.ask(add_frame(1, 0, b"r", flags=RECOVERY)).rc == OK
        assert raw.read(1, 0) == (OK, packet(1, 0, b"r"))
        assert raw.fence(1).rc == OK
    now = members(cluster)
    assert bookie.id in now.readonly and bookie.id not in now.writable


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    path = tmp_path / "small"
    path.mkdir()
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    options = f"size=16m,uid={os.geteuid()}"
    mount = [*as_root, "mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    mounted = shutil.which(mount[0]) is not None and subprocess.run(mount, capture_output=True).returncode == 0
    need(mounted, "a small filesystem of our own (a full disk)", "mounting a tmpfs needs root, or sudo without a word")
    yield path
    subprocess.run([*as_root, "umount", "-l", str(path)], check=True)


def fill(raw: Raw, ledger: int) -> int:
    """Add until the bookie refuses; returns how many adds it accepted."""
    entry = 0
    while (rc := raw.add(ledger, entry, bytes(20_000))) == OK:
        entry += 1
        assert entry < 3000
    assert rc == READ_ONLY
    return entry


@pytest.mark.parametrize("index", ["sorted", "db"])
def test_a_full_disk_makes_it_read_only_with_everything_readable(
    make_bookie: Make, small_disk: Path, cluster: str, index: str
) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(8 << 20))
    bookie = make_bookie("small/bookie", index=index).start()
    with bookie.connect() as raw:
        taken = fill(raw, 1)
        assert taken > 20
        assert all(raw.read(1, entry) == (OK, packet(1, entry, bytes(20_000))) for entry in range(taken))
        until(lambda: bookie.id in members(cluster).readonly)
        ballast.unlink()
        until(lambda: bookie.id in members(cluster).writable)
        assert raw.add(2, 0, b"room again") == OK
    bookie.kill()
    bookie.start()
    with bookie.connect() as raw:
        assert all(raw.read(1, entry) == (OK, packet(1, entry, bytes(20_000))) for entry in range(taken))
        assert raw.read(2, 0) == (OK, packet(2, 0, b"room again"))
