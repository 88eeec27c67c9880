"""JSON lines between the runner and a generator: the generator's side.

Invariants:
- one JSON object per line;
- input is validated before it is used;
- end of input means stop.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from loadtest.systems.base import CannotRunError

LINE_BYTES_MAX = 64 * 1024 * 1024


def say(event: str, **values: Any) -> None:
    """Write a line to the runner."""
    sys.stdout.write(json.dumps({"event": event, **values}, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def job_from(line: bytes) -> dict[str, Any]:
    """Decode a generator's job. Raises CannotRunError."""
    try:
        job = json.loads(line)
    except ValueError as error:
        raise CannotRunError(f"the first input line must be a job, one JSON object: {line[:80]!r}") from error
    if not isinstance(job, dict) or job.get("kind") not in ("produce", "read"):
        raise CannotRunError(f"a job must be a JSON object of kind produce or read: {line[:80]!r}")
    return job


class Orders:
    """The runner's orders to a working generator."""

    def __init__(self) -> None:
        self.start_ns: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.stop = asyncio.Event()
        self.until: dict[str, int] | None = None
        self.news = asyncio.Event()  # set when `until` was received

    async def listen(self, lines: asyncio.StreamReader) -> None:
        """Read orders until the end of the input."""
        try:
            while line := await lines.readline():
                self.receive(line)
        finally:
            if not self.start_ns.done():
                self.start_ns.cancel()
            self.stop.set()
            self.news.set()

    def receive(self, line: bytes) -> None:
        """Raises CannotRunError."""
        try:
            order = json.loads(line)
            match order["do"]:
                case "go":
                    if not self.start_ns.done():
                        self.start_ns.set_result(int(order["start_ns"]))
                case "stop":
                    self.stop.set()
                    if not self.start_ns.done():
                        self.start_ns.set_result(time.monotonic_ns())
                case "until":
                    self.until = {str(log): int(n) for log, n in order["counts"].items()}
                    self.news.set()
                case _:
                    raise ValueError("no such order")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise CannotRunError(f"invalid order from the runner: {line[:80]!r}") from error


async def standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader
