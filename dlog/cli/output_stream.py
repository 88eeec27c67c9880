"""Standard output and standard error of a command: a write waits until its reader has taken all of it.

Invariants:
- A write returns only when every byte was handed to the descriptor, or raises OSError. This also holds for a
  descriptor that somebody made non-blocking (a pipe shared with Node.js, ssh or a terminal multiplexer): where a plain
  Python stream raises BlockingIOError and drops the rest, this one waits until the descriptor takes more.
- A character that the terminal's encoding lacks is written as a backslash escape, never an exception.
"""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any


class WaitingWriter(io.RawIOBase):
    """Raw stream over a descriptor that may be non-blocking. Closing it leaves the descriptor open."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any, /) -> int:
        """Write at least one byte and return how many; the buffer above asks again for the rest. Raises OSError."""
        while True:
            try:
                return os.write(self._descriptor, data)
            except BlockingIOError:
                room = select.poll()
                room.register(self._descriptor, select.POLLOUT)
                room.poll()


@contextmanager
def waiting_output() -> Iterator[None]:
    """Make sys.stdout and sys.stderr wait for slow readers while the scope lasts.

    A stream that is closed (None) or has no descriptor (a test's) is left as it is. What is still buffered at the end
    of the scope is the caller's to flush.
    """
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = _waiting(sys.stdout), _waiting(sys.stderr)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _waiting(stream: Any) -> Any:
    try:
        descriptor = stream.fileno()
        stream.flush()
    except (AttributeError, OSError, ValueError):  # io.UnsupportedOperation is both of the last two
        return stream
    errors = "backslashreplace" if stream.errors == "strict" else stream.errors
    buffered: IO[bytes] = io.BufferedWriter(WaitingWriter(descriptor))
    return io.TextIOWrapper(
        buffered, encoding=stream.encoding, errors=errors, line_buffering=stream.line_buffering, newline="\n"
    )
