"""`python -m actors.bookie` as a process that tests start, kill and start again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.integration.bookie.raw import Raw

#: small files and caches, so that a short test rolls, flushes and merges
SMALL = {
    "journal_file_bytes": 256 * 1024,
    "write_cache_bytes": 128 * 1024,
    "entry_log_bytes": 512 * 1024,
    "disk_free_min_bytes": 0,
    "disk_free_reserve_bytes": 0,
    "disk_check_s": 0.1,
    "checkpoint_s": 0.2,
}


class BookieProcess:
    """One bookie over one directory. The kernel chooses its port at the first start; later starts keep it, and with it
    their znode."""

    def __init__(self, directory: Path, zookeeper: str, **options: Any) -> None:
        self.directory = directory
        self.zookeeper = zookeeper
        self.options = {**SMALL, **options}
        self.log = directory.with_name(directory.name + ".log")
        self.under: list[str] = []  # a command that runs the bookie, e.g. a tracer
        self.id = ""
        self.address = ("", 0)
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> subprocess.Popen[bytes]:
        """Start it and return; `start` also waits until it serves."""
        command = [
            *self.under,
            sys.executable,
            "-m",
            "actors.bookie",
            "--dir",
            str(self.directory),
            "--zookeeper",
            self.zookeeper,
        ]
        command += ["--port", str(self.address[1]), "--log-format", "json"]
        for key, value in self.options.items():
            command += [f"--{key.replace('_', '-')}"] + ([] if value is True else [str(value)])
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
        return self._process

    def start(self, *, again: bool = True) -> BookieProcess:
        process = self.launch()
        assert process.stdout is not None
        line = process.stdout.readline().decode().split()
        if not line and again and not self.address[1] and "written for other directories" in self.log.read_text():
            process.stdout.close()
            process.wait(30)
            return self.start(again=False)  # the kernel chose the port, and so the id, of an earlier test's bookie
        assert line[:2] == ["ready", "bookie"], self.log.read_text()[-4000:]
        self.id = line[2]
        host, _, port = line[3].rpartition(":")
        self.address = (host, int(port))
        return self

    def refusal(self) -> str:
        """Start it where it must refuse; returns its last line of output."""
        process = self.launch()
        assert process.stdout is not None
        assert process.stdout.read() == b""
        process.stdout.close()
        assert process.wait(30) not in (0, None)
        return self.log.read_text().strip().splitlines()[-1]

    def connect(self) -> Raw:
        return Raw(self.address)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL, if it runs."""
        self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """Send SIGTERM; returns the exit code."""
        return self._end(signal.SIGTERM)

    def wait(self) -> int:
        return self._end(None)

    def resident_bytes(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS"))

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of that name that it has logged, over all its starts."""
        lines = [json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")]
        return [line for line in lines if line["event"] == name]

    def _end(self, number: signal.Signals | None) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        if number is not None and process.poll() is None:
            process.send_signal(number)
        try:
            code = process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        if process.stdout is not None:
            process.stdout.close()
        return code
