"""Generator processes, the runner's side: starts one with a job and reads its lines.

Invariants:
- a generator that dies, is silent or sends an invalid line raises an error with the end of its stderr;
- no generator outlives the runner.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlog.io.children import die_with_parent
from loadtest.lines import LINE_BYTES_MAX
from loadtest.systems.base import CannotRunError

READY_S = 120.0
READY_A_LOG_S = 0.1  # added for each log: a producer appends one record to each before it is ready


class Generator:
    """One process. `start` returns once it is ready."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.acked = 0
        self.last_ack_ns = 0
        self.read = 0
        self._process: asyncio.subprocess.Process | None = None
        self._stderr = Path()
        self._ready_s = READY_S
        self._ready = asyncio.Event()
        self._news = asyncio.Event()
        self._result: dict[str, Any] | None = None
        self._failure: str | None = None
        self._listening: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "started"
        return self._process.pid

    async def start(self, command: Sequence[str], job: Mapping[str, Any], stderr: Path, *, wait: bool = True) -> None:
        """Start. wait: until ready. Raises CannotRunError."""
        self._stderr = stderr
        with stderr.open("wb") as errors:
            self._process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=errors,
                limit=LINE_BYTES_MAX,
                start_new_session=True,
                preexec_fn=die_with_parent(),
                env={**os.environ, "MALLOC_TRIM_THRESHOLD_": "268435456", "MALLOC_MMAP_THRESHOLD_": "134217728"},
            )
        self._ready_s = READY_S + READY_A_LOG_S * len(job.get("logs", ()))
        self._send(job)
        self._listening = asyncio.get_running_loop().create_task(self._listen(), name=f"generator {self.name}")
        if wait:
            await self.ready()

    async def ready(self) -> None:
        """Raises CannotRunError."""
        await self._until(self._ready.is_set, self._ready_s, "was not ready")

    def go(self, start_ns: int) -> None:
        self._send({"do": "go", "start_ns": start_ns})

    def stop(self) -> None:
        self._send({"do": "stop"})

    def until(self, counts: Mapping[str, int]) -> None:
        self._send({"do": "until", "counts": counts})

    async def acknowledged(self, more: int, since_ns: int, patience_s: float) -> None:
        """Wait for `more` acknowledgements, the last after `since_ns`. Raises CannotRunError."""
        wanted = self.acked + more
        await self._until(
            lambda: self.acked >= wanted and self.last_ack_ns > since_ns, patience_s, "was not acknowledged again"
        )

    async def result(self, patience_s: float) -> dict[str, Any]:
        """Wait for its result. Raises CannotRunError."""
        await self._until(lambda: self._result is not None, patience_s, "gave no result")
        assert self._result is not None, "waited for"
        return self._result

    async def end(self) -> None:
        """Kill it if it runs. Idempotent."""
        process, listening = self._process, self._listening
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
        if listening is not None:
            listening.cancel()
            await asyncio.wait((listening,))

    async def _until(self, condition: Any, patience_s: float, otherwise: str) -> None:
        try:
            async with asyncio.timeout(patience_s):
                while not condition():
                    if self._failure is not None:
                        raise CannotRunError(f"generator {self.name} {self._failure}: {self._last_words()}")
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise CannotRunError(
                f"generator {self.name} {otherwise} within {patience_s:g} s: {self._last_words()}"
            ) from None

    def _send(self, order: Mapping[str, Any]) -> None:
        assert self._process is not None and self._process.stdin is not None, "started"
        if self._process.returncode is None and not self._process.stdin.is_closing():
            self._process.stdin.write(json.dumps(order).encode() + b"\n")

    async def _listen(self) -> None:
        assert self._process is not None and self._process.stdout is not None, "started"
        try:
            while line := await self._process.stdout.readline():
                self._receive(line)
                self._news.set()
            code = await self._process.wait()
            if self._result is None:
                self._failure = f"ended with {code}"
        except (ValueError, KeyError, TypeError) as error:
            self._failure = f"sent an invalid line: {error!r}"
        self._news.set()

    def _receive(self, line: bytes) -> None:
        message = json.loads(line)
        match message["event"]:
            case "ready":
                self._ready.set()
            case "tick":
                self.acked = int(message.get("acked", self.acked))
                self.last_ack_ns = int(message.get("last_ack_ns", self.last_ack_ns))
                self.read = int(message.get("read", self.read))
            case "result":
                self._result = message

    def _last_words(self) -> str:
        try:
            return self._stderr.read_text(errors="replace")[-800:].strip() or "its stderr is empty"
        except OSError:
            return "its stderr is empty"
