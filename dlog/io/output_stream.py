"""Standard output and standard error of a process, with writes that wait for a slow reader.

Invariants:
- A write returns only when every byte was written to the descriptor, or raises OSError. This also holds if another
  program made the descriptor non-blocking (a pipe shared with Node.js, ssh or a terminal multiplexer): a plain Python
  stream would raise BlockingIOError and drop the rest; this one waits until the descriptor accepts more.
- A signal ends a wait for a slow reader. A handler of the process could only wake the event loop that this write
  blocks, so KeyboardInterrupt is raised instead. Later writes are dropped: the flush at exit would wait, too.
- A character that the terminal's encoding lacks is written as a backslash escape; it raises no exception.
"""

from __future__ import annotations

import io
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any


class WaitingWriter(io.RawIOBase):
    """Raw stream on a descriptor that may be non-blocking. Closing it leaves the descriptor open."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._is_dropping = False

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)

    def write(self, data: Any, /) -> int:
        """Write at least one byte and return how many; the buffer above writes the rest. Raises OSError, and
        KeyboardInterrupt if a signal comes while it waits."""
        while not self._is_dropping:
            if not self._poll.poll(0):
                self._wait()
            try:
                return os.write(self._descriptor, data[: select.PIPE_BUF])  # a pipe with room takes so much at once
            except BlockingIOError:
                continue
        return len(data)

    def _wait(self) -> None:
        try:
            with _interrupted_by_handled_signals():
                self._poll.poll()
        except KeyboardInterrupt:
            self._is_dropping = True
            raise


@contextmanager
def _interrupted_by_handled_signals() -> Iterator[None]:
    """Within this context signals that have a handler in Python raise KeyboardInterrupt. Others keep their meaning."""
    before: dict[signal.Signals, Any] = {}
    try:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if callable(handler := signal.getsignal(number)):
                    before[number] = handler
                    signal.signal(number, signal.default_int_handler)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def waiting_output() -> Iterator[None]:
    """Within this context writes to sys.stdout and sys.stderr wait for slow readers.

    A stream that is closed (None) or has no descriptor (as in tests) is left as it is. The caller must flush before
    the context ends.
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
