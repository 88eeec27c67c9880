"""A real HAProxy with the configuration of the repository, as a child of the test."""

from __future__ import annotations

import asyncio
import csv
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.integration.cluster import ROOT
from tests.parts import need

CONFIG = ROOT / "config" / "haproxy.cfg"
FETCHED = ROOT / ".cache" / "haproxy"  # as `make haproxy` unpacks it without root
PATIENCE_S = 120.0
Rows = dict[str, dict[str, str]]  # of its statistics, by the name of the server


def command() -> list[str]:
    """The command that starts it; skips or fails the test where it is missing."""
    fetched = FETCHED / "usr" / "sbin" / "haproxy"
    binary = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
    need(bool(binary) or fetched.exists(), "HAProxy", "make haproxy, or apt-get install haproxy")
    return [binary or str(fetched)]


class HAProxy:
    """`backends`: for each server of the configuration, its address and its HTTP port."""

    def __init__(self, directory: Path, ports: dict[str, int], backends: dict[str, tuple[str, int]]) -> None:
        self.write = f"127.0.0.1:{ports['write']}"
        self.read = f"127.0.0.1:{ports['read']}"
        self._socket = directory / "haproxy.sock"
        self._log = directory / "haproxy.log"
        libraries = [str(path.parent) for path in FETCHED.glob("usr/lib/*/*.so*")]
        self._environment = {
            **os.environ,
            "DLOG_HAPROXY_SOCKET": str(self._socket),
            "DLOG_WRITE_BIND": self.write,
            "DLOG_READ_BIND": self.read,
            **({"LD_LIBRARY_PATH": ":".join(sorted(set(libraries)))} if libraries else {}),
        }
        for name, (address, http_port) in backends.items():
            self._environment[f"DLOG_{name.upper()}"] = address
            self._environment[f"DLOG_{name.upper()}_HTTP"] = str(http_port)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def target(self) -> str:
        """The only address that a client needs."""
        return f"dlog://{self.write},{self.read}"

    def spawn(self) -> None:
        """Start it, without a wait."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command(), "-db", "-f", str(CONFIG)], env=self._environment, stdout=log, stderr=log
            )

    async def wait_ready(self) -> None:
        """Wait until all four servers are up."""
        await self.until(lambda rows: len(rows) == 4 and all(row["status"] == "UP" for row in rows.values()))

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    async def say(self, words: str) -> str:
        """Send one command to its runtime socket."""
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            writer.write(words.encode() + b"\n")
            return (await reader.read()).decode()
        finally:
            writer.close()
            await writer.wait_closed()

    async def servers(self) -> Rows:
        """Rows of its statistics, by the name of the server."""
        lines = (await self.say("show stat")).removeprefix("# ").splitlines()
        return {row["svname"]: row for row in csv.DictReader(lines) if row["svname"] not in ("FRONTEND", "BACKEND")}

    async def until(self, condition: Callable[[Rows], bool]) -> Rows:
        """Wait until its statistics satisfy the condition."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                assert self._process is not None
                if self._process.poll() is not None:
                    pytest.fail(f"HAProxy ended: {self._log.read_text()[-2000:]}")
                try:
                    rows = await self.servers()
                except (OSError, ConnectionError):
                    rows = {}
                if condition(rows):
                    return rows
                await asyncio.sleep(0.02)
