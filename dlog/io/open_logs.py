"""Entry logs of one ledger directory that are open for reading: the ones used last, up to a bound.

Invariants:
- At most `open_max` files are kept. A file that leaves the table is closed when its last reader releases it: a thread
  that reads it continues, and no other file gets its descriptor meanwhile.
- A deleted log is not kept, even if it was opened while it was being deleted: its space is free only once it is closed.
  To delete a log, first make `exists` false for it, then call `drop`.

Any thread may call any method.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable

from dlog.io.disk import File


class OpenLogs:
    """Open files by log number.

    open_log: opens a log; `get` raises what it raises. exists: whether the log is one of the directory's.
    """

    def __init__(self, open_log: Callable[[int], File], exists: Callable[[int], bool], open_max: int) -> None:
        self._open_log = open_log
        self._exists = exists
        self._open_max = open_max
        self._lock = threading.Lock()
        self._files: OrderedDict[int, File] = OrderedDict()  # least recently used first

    def __len__(self) -> int:
        return len(self._files)

    def get(self, number: int) -> File:
        """Return the file; open and keep it if necessary."""
        with self._lock:
            file = self._files.get(number)
            if file is not None:
                self._files.move_to_end(number)
                return file
            file = self._open_log(number)
            if self._exists(number):
                self._keep(number, file)
            return file

    def get_once(self, number: int) -> File:
        """Return the file for one pass over all logs: it is not kept if opened here, since that would close others."""
        with self._lock:
            file = self._files.get(number)
            return file if file is not None else self._open_log(number)

    def add(self, number: int, file: File) -> None:
        """Keep a file that was just created, in place of one kept under this number."""
        with self._lock:
            self._keep(number, file)

    def drop(self, number: int) -> None:
        """Stop keeping the file; idempotent."""
        with self._lock:
            self._files.pop(number, None)

    def close(self) -> None:
        """Close every kept file."""
        with self._lock:
            files = list(self._files.values())
            self._files.clear()
        for file in files:
            file.close()

    def _keep(self, number: int, file: File) -> None:
        self._files[number] = file
        self._files.move_to_end(number)
        while len(self._files) > self._open_max:
            self._files.popitem(last=False)
