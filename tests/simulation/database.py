"""A database on a simulated disk: each flush writes a file of its rows, then a list of the files in use.

As in RocksDB, what was not flushed is lost in a crash, and a damaged file is noticed when it is read.
"""

from __future__ import annotations

import contextlib
import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator

from dlog.errors import DamagedError
from dlog.io.database import Range, Row
from dlog.io.disk import Disk, read_file, replace_file
from dlog.wire.digest import crc32c

_Rows = dict[bytes, bytes]


class SimulatedDatabase:
    """A Database. Its files are PATH.list and PATH.0, PATH.1, ..."""

    def __init__(self, disk: Disk, path: str, *, create: bool = False, read_only: bool = False) -> None:
        self._disk = disk
        self._read_only = read_only
        self._directory, _, self._name = path.rpartition("/")
        self._fresh: list[tuple[bytes, bytes | None]] = []  # (key, value); with None: deleted
        self._rows: _Rows = {}
        self._keys: list[bytes] | None = None
        self._damage = ""
        self._files: list[tuple[str, int]] = []  # (name, crc)
        self._number = 0
        listed = read_file(disk, self._directory, f"{self._name}.list")
        if listed is None:
            if not create:
                raise DamagedError(f"the list of a database is missing: {path}")
            return
        text, crc = listed[:-8], listed[-8:]
        if b"%08x" % crc32c(text) != crc:
            raise DamagedError(f"the list of a database does not verify: {path}")
        self._files = [tuple(one) for one in json.loads(text)]
        self._number = max((int(name.rpartition(".")[2]) + 1 for name, _ in self._files), default=0)
        for name, crc_of_file in self._files:
            try:
                data = read_file(disk, self._directory, name)
            except OSError:
                data = None
            if data is None or crc32c(data) != crc_of_file:
                self._damage = f"a file of a database does not verify: {self._directory}/{name}"
                return
            for key, value in json.loads(data):
                self._apply(bytes.fromhex(key), None if value is None else bytes.fromhex(value))
        for name in () if read_only else disk.names(self._directory):
            if name.startswith(f"{self._name}.") and name not in {f"{self._name}.list", *(n for n, _ in self._files)}:
                disk.unlink(f"{self._directory}/{name}")

    def _apply(self, key: bytes, value: bytes | None) -> None:
        if value is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = value
        self._keys = None

    def _check(self) -> None:
        if self._damage:
            raise DamagedError(self._damage)

    def get(self, key: bytes) -> bytes | None:
        self._check()
        return self._rows.get(key)

    def scan(self, first: bytes, end: bytes) -> Iterator[Row]:
        self._check()
        if self._keys is None:
            self._keys = sorted(self._rows)
        keys = self._keys
        found = [(key, self._rows[key]) for key in keys[bisect_left(keys, first) : bisect_left(keys, end)]]
        yield from found

    def write(self, rows: Iterable[Row], deleted: Iterable[Range] = ()) -> None:
        self._check()
        assert not self._read_only
        gone = [(key, None) for first, end in deleted for key in self._rows if first <= key < end]
        for key, value in (*gone, *rows):
            self._fresh.append((key, value))
            self._apply(key, value)

    def flush(self) -> None:
        """In two parts, of which a crash may leave the first one."""
        self._check()
        half = len(self._fresh) // 2
        for part in (self._fresh[:half], self._fresh[half:]):
            if part or not self._files:
                self._flush_part(part)
        self._fresh = []

    def _flush_part(self, rows: list[tuple[bytes, bytes | None]]) -> None:
        name = f"{self._name}.{self._number}"
        with contextlib.suppress(FileNotFoundError):
            self._disk.unlink(f"{self._directory}/{name}")
        file = self._disk.create(f"{self._directory}/{name}")
        data = json.dumps([(key.hex(), None if value is None else value.hex()) for key, value in rows]).encode()
        file.pwritev([data], 0)
        file.datasync()
        file.close()
        self._disk.sync_dir(self._directory)
        files = [*self._files, (name, crc32c(data))]
        text = json.dumps(files).encode()
        replace_file(self._disk, self._directory, f"{self._name}.list", text + b"%08x" % crc32c(text))
        self._files = files
        self._number += 1

    def close(self) -> None:
        """Nothing is open between calls."""
