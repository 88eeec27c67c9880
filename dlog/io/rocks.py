"""A database in RocksDB, by the package `rocksdict` (extra `db`), which is imported when the first one is opened.

RocksDB's write-ahead log is off: the bookie's journal is replayed instead. `flush` writes what is in memory to a file
of its own, synced, and names it in RocksDB's manifest, synced. rocksdict releases the interpreter lock while it
flushes; reads and writes hold it, hence the small batches and pages, and no write ever waits for a flush or a
compaction of RocksDB's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import struct
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any

from fastcrc.crc32 import iscsi as crc32c

from dlog.errors import ConfigError, DamagedError
from dlog.io.database import DatabaseLimits, Range, Row
from dlog.options import KiB, MiB

_BATCH_ROWS = 1024  # in one write: about 0.5 ms
_PAGE_ROWS = 64  # read at once by a scan
_ROW_MEMORY_BYTES = 128  # of a row in a write buffer, at most
_BLOOM_BITS = 10
_FILES_OPEN_MAX = 128
_NEVER = 1 << 30
_LOG_BYTES = 1 << 20  # of each of two files with RocksDB's own messages
_REOPEN_BYTES = MiB  # free space that opening needs
_BLOCK = 32 * KiB  # of RocksDB's manifest
_RECORD = struct.Struct("<IHB")  # masked CRC32C, length, type
_RECORD_TYPES = range(1, 5)
_REBUILD = "see `dlog bookie fsck --help`"


class RocksDatabase:
    """A Database."""

    def __init__(self, path: str, limits: DatabaseLimits, *, create: bool = False, read_only: bool = False) -> None:
        """Open the directory, or create it. Raises as Database, and ConfigError if rocksdict is not installed.

        read_only: RocksDB changes no file; rocksdict writes its own, rocksdict-config.json, again with the same bytes.
        """
        try:
            import rocksdict
        except ImportError as error:
            raise ConfigError(
                f'the index "db" needs the package rocksdict: install the extra "db" (pip install "dlogd[db]"), or '
                f'set [bookie] index = "sorted" for a new bookie ({error})'
            ) from None
        self._path = path
        self._limits = limits
        self._read_only = read_only
        self._module: Any = rocksdict
        self._lock = threading.Lock()  # of one read, and of opening again
        self._unlogged = self._module.WriteOptions()
        self._unlogged.disable_wal = True
        self._rows_max = max(_BATCH_ROWS, limits.write_buffer_bytes // 2 // _ROW_MEMORY_BYTES)
        self._unflushed = 0  # rows
        self._failed = False  # RocksDB refuses writes until it is opened again
        self._closed = False
        self._db: Any = self._open(create)

    def get(self, key: bytes) -> bytes | None:
        with self._lock, self._named_errors():
            found: bytes | None = self._opened().get(key)
            return found

    def scan(self, first: bytes, end: bytes) -> Iterator[Row]:
        is_last = False
        while not is_last:
            page, is_last = self._page(first, end)
            yield from page
            if page:
                first = page[-1][0] + b"\0"

    def _page(self, first: bytes, end: bytes) -> tuple[list[Row], bool]:
        """Rows, and whether there are no more. Rows before damage are returned; the next page raises it."""
        page: list[Row] = []
        with self._lock, self._named_errors():
            cursor = self._opened().iter()
            cursor.seek(first)
            while len(page) < _PAGE_ROWS:
                if not cursor.valid():
                    if not page:
                        cursor.status()  # raises what ended it, if it was not the end
                    return page, not page
                key = cursor.key()
                if key >= end:
                    return page, True
                page.append((key, cursor.value()))
                cursor.next()
        return page, False

    def write(self, rows: Iterable[Row], deleted: Iterable[Range] = ()) -> None:
        ranges, left = iter(deleted), iter(rows)
        while some := list(islice(ranges, _BATCH_ROWS)):
            batch = self._module.WriteBatch(raw_mode=True)
            for first, end in some:
                batch.delete_range(first, end)
            self._write(batch, len(some))
        while some := list(islice(left, _BATCH_ROWS)):
            batch = self._module.WriteBatch(raw_mode=True)
            for key, value in some:
                batch.put(key, value)
            self._write(batch, len(some))

    def _write(self, batch: Any, rows: int) -> None:
        """Write a batch. Flushes before the write buffer is full, as RocksDB would wait for that under the interpreter
        lock."""
        if self._unflushed + rows > self._rows_max:
            self.flush()
        self._writable()
        with self._fails(), self._named_errors():
            self._db.write(batch, self._unlogged)
        self._unflushed += rows

    def flush(self) -> None:
        self._writable()
        with self._fails(), self._named_errors():
            self._db.flush(True)
        self._unflushed = 0

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._close()

    # ---- opening -----------------------------------------------------------------------------------------------------

    def _open(self, create: bool) -> Any:
        module = self._module
        table = module.BlockBasedOptions()
        table.set_block_cache(module.Cache(self._limits.cache_bytes))
        table.set_cache_index_and_filter_blocks(True)
        table.set_bloom_filter(_BLOOM_BITS, False)
        options = module.Options(raw_mode=True)
        options.create_if_missing(create)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_size(self._limits.write_buffer_bytes)
        options.set_max_write_buffer_number(2)
        options.set_level_zero_slowdown_writes_trigger(_NEVER)
        options.set_level_zero_stop_writes_trigger(_NEVER)
        options.set_soft_pending_compaction_bytes_limit(0)
        options.set_hard_pending_compaction_bytes_limit(0)
        options.set_max_open_files(_FILES_OPEN_MAX)
        options.set_max_background_jobs(2)
        options.set_manifest_preallocation_size(64 * KiB)
        options.set_keep_log_file_num(2)
        options.set_max_log_file_size(_LOG_BYTES)
        options.set_paranoid_checks(True)
        if not create:
            check_manifest(self._path)
        with self._named_errors():
            if self._read_only:
                return module.Rdict(self._path, options, access_type=module.AccessType.read_only(False))
            return module.Rdict(self._path, options)

    def _opened(self) -> Any:
        """The open handle; opened again if that failed before. The caller holds the lock."""
        if self._closed:
            raise OSError(errno.EBADF, "the index database is closed", self._path)
        if self._db is None:
            self._db = self._open(create=False)
        return self._db

    def _writable(self) -> None:
        """Open it again after a failure. Until there is space for that the old handle serves reads."""
        assert not self._read_only
        if self._failed and shutil.disk_usage(self._path).free < _REOPEN_BYTES:
            raise OSError(errno.ENOSPC, "no space for opening the index database again", self._path)
        with self._lock:
            if self._failed:
                self._close()
            self._opened()
            self._failed = False

    def _close(self) -> None:
        handle, self._db = self._db, None
        self._unflushed = 0
        if handle is not None:
            with contextlib.suppress(Exception):  # it flushes; what it could not flush is lost
                handle.close()

    # ---- errors ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _fails(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._failed = True
            raise

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        """Raise dlog's errors. rocksdict raises Exception itself, with RocksDB's status as its text."""
        try:
            yield
        except (OSError, DamagedError):
            raise
        except Exception as error:  # rocksdict has no class of its own
            text = str(error)
            if "No space left" in text or "disk quota" in text.lower():
                raise OSError(errno.ENOSPC, text, self._path) from error
            if text.startswith(("Corruption", "Invalid argument", "Not implemented")) or "No such file" in text:
                raise _damaged(self._path, text) from error
            raise OSError(errno.EIO, text, self._path) from error


def remove_rocks(path: str) -> None:
    """Delete the directory of a closed database. Raises OSError."""
    shutil.rmtree(path)


def check_manifest(path: str) -> None:
    """Check every record of RocksDB's manifest: RocksDB 9.8 never returns from opening one with a damaged type of a
    record. Raises DamagedError, OSError.

    Format: https://github.com/facebook/rocksdb/wiki/Write-Ahead-Log-File-Format
    """
    try:
        with open(os.path.join(path, "CURRENT"), "rb") as file:
            name = file.read(64).decode("ascii", "replace")
        if not name.startswith("MANIFEST-") or not name.endswith("\n") or "/" in name:
            raise _damaged(path, "its file CURRENT names no manifest")
        with open(os.path.join(path, name[:-1]), "rb") as file:
            while block := file.read(_BLOCK):
                _check_records(path, block, is_last=len(block) < _BLOCK)
    except FileNotFoundError as error:
        raise _damaged(path, f"a file is missing: {error.filename}") from error


def _check_records(path: str, block: bytes, *, is_last: bool) -> None:
    """A last record that is cut off was being written in a crash, for all that can be said here: see DbIndex.load."""
    at = 0
    while at + _RECORD.size <= len(block):
        crc, length, kind = _RECORD.unpack_from(block, at)
        end = at + _RECORD.size + length
        if not any(block[at:]) or (is_last and end > len(block) and kind in _RECORD_TYPES):
            return
        found = crc32c(block[at + _RECORD.size - 1 : end])
        if (
            kind not in _RECORD_TYPES
            or end > len(block)
            or crc != ((found >> 15 | found << 17) + 0xA282EAD8) & 0xFFFFFFFF
        ):
            raise _damaged(path, "a record of its manifest does not verify")
        at = end


def _damaged(path: str, why: str) -> DamagedError:
    return DamagedError(f"the index database is damaged, {_REBUILD}: dir={path} ({why})")
