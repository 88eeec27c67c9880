"""The file RESERVE of a ledger directory: room held back for writing down what is gone.

To delete an entry log a bookie replaces GONE and MANIFEST by new files, which needs some room. On a file system with no
byte free it could therefore delete nothing, and would stay read-only for ever. So each directory holds a file whose
only use is its size. A write that finds no room gives the file up and is repeated.

Invariants:
- RESERVE's bytes mean nothing, and nothing reads them: after a crash it may be missing, torn or too small.
- After it was given up it is held again before entries may take its room, in a smaller size if need be.
- It is given up only for a small file by which room is freed (GONE, MANIFEST without some logs, COLLECTION) and for a
  start; never for entries.
- The file that did not fit is written as ever, as a new file that is renamed: a crash leaves the old one or the new.

Between giving up and writing, another process may take the room. The write fails then, as it would without a reserve.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading

from dlog.io.disk import NO_SPACE, Disk, write_whole

RESERVE = "RESERVE"


class Reserve:
    """Of one directory. size_bytes: what to hold, and half of it at least; 0: nothing is ever held. Safe to use from
    several threads."""

    def __init__(self, disk: Disk, directory: str, size_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._path = f"{directory}/{RESERVE}"
        self._size_bytes = size_bytes
        self._lock = threading.Lock()

    def hold(self, small_files_bytes: int) -> None:
        """Make the file, or make it anew if it is too small for what is to be written: the size of GONE and MANIFEST as
        they are now. Where there is no room nothing happens: the next call may do better. Raises OSError."""
        least = self._size_bytes // 2 + small_files_bytes
        if not self._size_bytes:
            return
        with self._lock:
            held = self._held_bytes()
            free = held + self._disk.free_bytes(self._directory)
            if held < least <= free:  # twice the lists, so that it is not made anew whenever they grow
                self._make(min(self._size_bytes + 2 * small_files_bytes, free))

    def _make(self, size_bytes: int) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                self._disk.unlink(self._path)
            file = self._disk.create(self._path)
            try:  # what cannot be compressed: some file systems keep no room for zeros
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
        """Whether there was anything to give. Raises OSError."""
        with self._lock:
            try:
                self._disk.unlink(self._path)
            except FileNotFoundError:
                return False
        self._disk.sync_dir(self._directory)  # some file systems give no block out again before
        return True

    def write_whole(self, name: str, data: bytes) -> None:
        """As dlog.io.disk.write_whole; where there is no room, with that of the reserve."""
        try:
            write_whole(self._disk, self._directory, name, data)
        except OSError as error:
            if error.errno not in NO_SPACE or not self.give_up():
                raise
            write_whole(self._disk, self._directory, name, data)
