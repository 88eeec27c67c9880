"""The contract of a database, on RocksDB and on the simulated one; flipped bits and a full disk of the first."""

from __future__ import annotations

import contextlib
import errno
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from dlog.errors import DamagedError
from dlog.io.database import Database, DatabaseLimits
from dlog.io.rocks import RocksDatabase
from dlog.options import KiB
from tests.simulation.database import SimulatedDatabase
from tests.simulation.disk import SimulatedDisk

Open = Callable[..., Database]
SMALL = DatabaseLimits(cache_bytes=64 * KiB, write_buffer_bytes=64 * KiB)


def key(number: int) -> bytes:
    return b"e%08d" % number


@pytest.fixture(params=["rocks", "simulated"])
def open_one(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    disk = SimulatedDisk()

    def opened(*, create: bool = False) -> Database:
        if request.param == "rocks":
            return RocksDatabase(str(tmp_path / "database-1"), SMALL, create=create)
        return SimulatedDatabase(disk, "/d/database-1", create=create)

    return opened


def test_what_was_flushed_is_there_again(open_one: Open) -> None:
    made = open_one(create=True)
    made.write((key(number), b"%d" % number) for number in range(3000))  # more than a batch, a page, a write buffer
    made.write([(key(7), b"new")], [(key(10), key(2900))])
    made.flush()
    for _ in range(2):
        assert made.get(key(7)) == b"new" and made.get(key(10)) is None and made.get(key(9999)) is None
        assert [row[0] for row in made.scan(key(5), key(2905))] == [key(n) for n in (*range(5, 10), *range(2900, 2905))]
        made.close()
        made.close()
        made = open_one()
    made.close()


def test_a_database_that_is_missing_is_not_created(open_one: Open) -> None:
    with pytest.raises(DamagedError):
        open_one()


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("healthy") / "database-1"
    made = RocksDatabase(str(path), SMALL, create=True)
    for part in range(3):
        made.write([(key(number), b"value %d" % number) for number in range(part, 60, 3)] + [(b"w", b"%d" % part)])
        made.flush()
    made.close()
    return path


def test_a_flipped_bit_gives_no_other_bytes_and_no_absence(healthy: Path, tmp_path: Path) -> None:
    """Except if the last write is lost, too, which DbIndex.load notices."""
    rng = random.Random(1)
    refused = 0
    files = [path for path in sorted(healthy.iterdir()) if path.name.partition("-")[0] in ("MANIFEST", "CURRENT")]
    cases = [(path, at) for path in files for at in range(len(path.read_bytes()))]
    tables = [path for path in healthy.iterdir() if path.suffix == ".sst"]
    assert files and tables
    cases = rng.sample(cases, 30) + [(path, at) for path in tables for at in range(0, path.stat().st_size, 401)]
    for number, (path, at) in enumerate(cases):
        copy = tmp_path / str(number)
        shutil.copytree(healthy, copy)
        data = bytearray(path.read_bytes())
        data[at] ^= 1 << rng.randrange(8)
        (copy / path.name).write_bytes(data)
        made = None
        try:
            made = RocksDatabase(str(copy), SMALL, read_only=at % 2 == 0)
            if made.get(b"w") == b"2":
                for entry in range(60):
                    with contextlib.suppress(DamagedError):
                        assert made.get(key(entry)) == b"value %d" % entry, (path, at)
                assert dict(made.scan(key(0), key(60))) == {key(n): b"value %d" % n for n in range(60)}, (path, at)
        except DamagedError:
            refused += 1
        finally:
            if made is not None:
                made.close()
            shutil.rmtree(copy)
    assert refused > 10


def test_a_damaged_type_of_a_record_of_the_manifest_is_refused(healthy: Path, tmp_path: Path) -> None:
    """RocksDB itself would never return."""
    copy = tmp_path / "copy"
    shutil.copytree(healthy, copy)
    (path,) = copy.glob("MANIFEST-*")
    data = bytearray(path.read_bytes())
    data[6] = 5
    path.write_bytes(data)
    with pytest.raises(DamagedError, match="fsck"):
        RocksDatabase(str(copy), SMALL, create=False)


def test_after_a_failed_flush_it_is_opened_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = RocksDatabase(str(tmp_path / "database-1"), SMALL, create=True)
    made.write([(key(1), b"flushed")])
    made.flush()

    class Full:
        def __init__(self, handle: object) -> None:
            self.handle = handle

        def __getattr__(self, name: str) -> object:
            return getattr(self.handle, name)

        def flush(self, wait: bool) -> None:
            raise Exception("IO error: No space left on device: While appending to file")

    made._db = Full(made._db)
    made.write([(key(2), b"not flushed")])
    with pytest.raises(OSError) as failure:
        made.flush()
    assert failure.value.errno == errno.ENOSPC
    with monkeypatch.context() as patch:
        patch.setattr("dlog.io.rocks._REOPEN_BYTES", 1 << 60)
        with pytest.raises(OSError):
            made.write([(key(3), b"refused")])
    assert made.get(key(1)) == b"flushed", "reads go on while there is no space"
    made.write([(key(2), b"again")])
    made.flush()
    assert (made.get(key(1)), made.get(key(2)), made.get(key(3))) == (b"flushed", b"again", None)
    made.close()
