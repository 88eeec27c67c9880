"""`dlog bookie fsck` of a directory whose index is a database, and what a start refuses; on RocksDB and simulated."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dlog.bookie.index_findings import FindingKind, is_clean
from dlog.bookie.journal import FIRST_MARKS
from dlog.bookie.manifest import IndexKind, decode, encode
from dlog.errors import ConfigError, DamagedError
from dlog.io.disk import Disk, RealDisk, read_file, replace_file
from dlog.io.index_repair import check_dir, repair_dir
from dlog.io.ledger_dir import MANIFEST, LedgerDir
from tests.crashpoints.station import packet
from tests.simulation.disk import SimulatedDisk
from tests.unit.bookie.test_ledger_dir import half, row

World = tuple[Disk, str, Callable[[], None]]  # the disk, the directory, damages the database


@pytest.fixture(params=["rocks", "simulated"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> World:
    """Two flushes, the second of which moves entry 1."""
    simulated = SimulatedDisk()
    disk: Disk = RealDisk() if request.param == "rocks" else simulated
    directory = str(tmp_path) if request.param == "rocks" else "/d"
    made = LedgerDir(disk, directory, 1 << 30, kind=IndexKind.DB)
    made.load()
    made.flush(half(*[(1, entry) for entry in range(20)]), [row(1, 19, fenced=True)], FIRST_MARKS)
    made.flush(half((1, 1), (2, 0)), [row(2, 0)], FIRST_MARKS)
    made.close()

    def damage() -> None:
        if request.param == "simulated":
            simulated.flip_bit("/d/database-00000002.0", 8 * 20)
            return
        path = min(tmp_path.glob("database-*/*.sst"))
        data = bytearray(path.read_bytes())
        data[10] ^= 1
        path.write_bytes(data)

    return disk, directory, damage


def opened(world: World) -> LedgerDir:
    made = LedgerDir(world[0], world[1], 1 << 30, kind=IndexKind.DB)
    assert {one.ledger for one in made.load()} == {1, 2}
    return made


def test_it_is_clean_and_stays_so_when_it_is_repaired(world: World) -> None:
    result = repair_dir(*world[:2])
    assert is_clean(result.findings) and not result.rebuilt
    assert result.ledgers[1].good == 20 and result.ledgers[2].good == 1
    made = opened(world)
    assert not made.manifest.limbo
    assert made.lookup(1, 2, 100, 1 << 20) == [packet(1, entry) for entry in range(2, 20)]
    assert made.lookup(1, 20, 1, 1 << 20) == []
    made.close()


def test_a_check_changes_nothing(world: World, tmp_path: Path) -> None:
    """rocksdict writes a file of its own again, with the same bytes."""
    disk, directory, _ = world
    if isinstance(disk, SimulatedDisk):
        disk.create(f"{directory}/database-00000002.9")  # as an interrupted flush leaves one
        operations = len(disk.operations)
        check_dir(disk, directory)
        assert len(disk.operations) == operations
        return

    def files() -> dict[str, tuple[bytes, int]]:
        paths = [path for path in tmp_path.rglob("*") if path.is_file()]
        times = {path: 0 if path.name == "rocksdict-config.json" else path.stat().st_mtime_ns for path in paths}
        return {str(path): (path.read_bytes(), times[path]) for path in paths}

    before = files()
    assert len(before) > 5
    assert is_clean(check_dir(disk, directory).findings)
    assert not repair_dir(disk, directory).rebuilt
    assert files() == before


def test_a_damaged_database_is_rebuilt_and_the_bookie_denies_nothing(world: World) -> None:
    world[2]()
    kinds = [one.kind for one in check_dir(*world[:2]).findings]
    assert kinds in ([FindingKind.RUN], [FindingKind.RUN, FindingKind.CHUNK]), "all is in one block"
    assert repair_dir(*world[:2]).rebuilt
    assert is_clean(check_dir(*world[:2]).findings)
    made = opened(world)
    assert made.manifest.limbo, "keys and fences are lost"
    for ledger, entry in ((2, 0), *((1, entry) for entry in range(20))):
        assert made.lookup(ledger, entry, 1, 1 << 20) == [packet(ledger, entry)]
    made.close()


def test_only_the_damaged_part_of_a_database_is_lost_and_named(tmp_path: Path) -> None:
    disk, directory = RealDisk(), str(tmp_path)
    made = LedgerDir(disk, directory, 1 << 30, kind=IndexKind.DB)
    made.load()
    states = [row(ledger, 999, fenced=ledger % 2 == 0) for ledger in (1, 2, 3)]
    made.flush(half(*[(ledger, entry) for ledger in (1, 2, 3) for entry in range(1000)]), states, FIRST_MARKS)
    made.close()
    (path,) = tmp_path.glob("database-*/*.sst")
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1  # among the entries, which come first
    path.write_bytes(data)

    result = check_dir(disk, directory)
    (finding,) = result.findings
    assert finding.kind is FindingKind.CHUNK, "the states are there"
    first, end = map(int, re.findall(r"ledger \d+ entry (\d+)", finding.why))
    assert "entries from ledger 2" in finding.why or "entries from ledger 1" in finding.why, finding.why
    good = sum(one.good for one in result.ledgers.values())
    assert 0 < 3000 - good == sum(one.missing for one in result.ledgers.values()) < 500, (first, end)

    assert repair_dir(disk, directory).rebuilt
    assert is_clean(check_dir(disk, directory).findings)
    made = LedgerDir(disk, directory, 1 << 30, kind=IndexKind.DB)
    assert made.load() == states, "with keys and fences"
    assert made.manifest.limbo, "what no log has is not denied"
    for ledger in (1, 2, 3):
        for entry in range(0, 1000, 7):
            assert made.lookup(ledger, entry, 1, 1 << 20) == [packet(ledger, entry)]
    made.close()


@pytest.mark.parametrize("seed", range(6))
def test_damage_anywhere_in_a_table_is_found_and_everything_is_there_again(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    disk, directory = RealDisk(), str(tmp_path)
    made = LedgerDir(disk, directory, 1 << 30, kind=IndexKind.DB)
    made.load()
    for step in range(3):
        ids = [(ledger, entry) for ledger in (1, 2) for entry in range(step * 300, step * 300 + 300)]
        made.flush(half(*ids), [row(1, step * 300 + 299), row(2, step * 300 + 299)], FIRST_MARKS)
    made.close()
    for path in rng.sample(sorted(tmp_path.glob("database-*/*.sst")), rng.choice((1, 1, 2))):
        data = bytearray(path.read_bytes())
        for _ in range(rng.choice((1, 3))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
    repair_dir(disk, directory)
    assert is_clean(check_dir(disk, directory).findings)
    made = LedgerDir(disk, directory, 1 << 30, kind=IndexKind.DB)
    assert {one.ledger: one.last for one in made.load()} == {1: 899, 2: 899}
    for ledger in (1, 2):
        for entry in range(900):
            assert made.lookup(ledger, entry, 1, 1 << 20) == [packet(ledger, entry)]
    made.close()


def test_a_database_that_has_lost_its_last_write_is_refused(world: World) -> None:
    disk, directory, _ = world
    manifest = decode(read_file(disk, directory, MANIFEST) or b"")
    assert manifest.database_writes == 2
    replace_file(disk, directory, MANIFEST, encode(replace(manifest, database_writes=3)))
    with pytest.raises(DamagedError, match="lost writes"):
        opened(world)


def test_the_other_kind_is_refused(world: World) -> None:
    with pytest.raises(ConfigError, match='index = "db"'):
        LedgerDir(world[0], world[1], 1 << 30).load()
