"""The file RESERVE of a directory: reserves disk space for writes that a full disk must not prevent.

A bookie needs it for recording deletions; the file store for ending segments (dlog/stores/file/space.py).

To delete an entry log a bookie replaces GONE and MANIFEST by new files, which needs some space. On a full file system
it could therefore delete nothing, and would stay read-only for ever. So each directory holds a file whose only use is
its size. A write that fails for lack of space deletes this file and is repeated.

Invariants:
- RESERVE's bytes mean nothing, and nothing reads them: after a crash it may be missing, torn or too small.
- After it was deleted it is created again before entries may use its space, smaller if necessary.
- A bookie deletes it only to write a small file that frees space (GONE, MANIFEST without some logs, COLLECTION) and
  for a start, the file store only to end a segment; never for entries.
- The file that did not fit is written as always, as a new file that is renamed: a crash leaves the old one or the new.

Between the deletion and the write another process may use the space. The write fails then, as without a reserve.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading

from dlog.io.disk import NO_SPACE, Disk, replace_file

RESERVE = "RESERVE"


class SpaceReserve:
    """The reserve of one directory. size_bytes: its intended size; at least half is kept; 0: no reserve. Safe to use
    from several threads."""

    def __init__(self, disk: Disk, directory: str, size_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{RESERVE}"
        self._size_bytes = size_bytes
        self._lock = threading.Lock()

    def hold(self, small_files_bytes: int) -> None:
        """Create the file, or replace it if it is too small. small_files_bytes: the present size of GONE and MANIFEST.
        Without enough free space it does nothing. Raises OSError."""
        least = self._size_bytes // 2 + small_files_bytes
        if not self._size_bytes:
            return
        with self._lock:
            held = self._held_bytes()
            free = held + self._disk.free_bytes(self._directory)
            if held < least <= free:  # twice the small files, so that it is not replaced whenever they grow
                with contextlib.suppress(FileExistsError):  # another process of the file store makes it
                    self._make(min(self._size_bytes + 2 * small_files_bytes, free))

    def is_held(self) -> bool:
        """Whether there is the file."""
        return self._disk.exists(self._path)

    def _make(self, size_bytes: int) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._path)
            file = self._disk.create(self._path)
            try:  # incompressible bytes: some file systems allocate no space for zeros
                file.pwritev([hashlib.shake_128(self._path.encode()).digest(size_bytes)], 0)
                file.datasync()
            finally:
                file.close()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._path)

    def _held_bytes(self) -> int:
        try:
            file = self._disk.open(self._path)
        except FileNotFoundError:
            return 0
        try:
            return file.size()
        finally:
            file.close()

    def give_up(self) -> bool:
        """Delete the file and return whether there was one. Raises OSError."""
        with self._lock:
            try:
                self._disk.unlink(self._path)
            except FileNotFoundError:
                return False
        self._disk.sync_dir(self._directory)  # some file systems reuse the blocks only after this
        return True

    def replace_file(self, name: str, data: bytes) -> None:
        """As dlog.io.disk.replace_file; without enough free space, delete the reserve and try again."""
        try:
            replace_file(self._disk, self._directory, name, data)
        except OSError as error:
            if error.errno not in NO_SPACE or not self.give_up():
                raise
            replace_file(self._disk, self._directory, name, data)
