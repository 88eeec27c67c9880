"""The Procfile starts a whole cluster under a Procfile runner; only its ports are replaced by free ones."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
DEADLINE_S = 180


def test_the_procfile_starts_a_cluster_that_takes_and_gives_records(tmp_path: Path) -> None:
    procfile, config = (ROOT / "Procfile").read_text(), (ROOT / "config" / "local.toml").read_text()
    given = sorted(set(re.findall(r"(?:--port |127\.0\.0\.1:)(\d+)", procfile)))
    for old, new in zip(given, free_ports(len(given)), strict=True):
        procfile, config = (re.sub(rf"\b{old}\b", str(new), text) for text in (procfile, config))
    (tmp_path / "Procfile").write_text(procfile)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "local.toml").write_text(config)
    port = re.search(r"proxies\.write .*--port (\d+)", procfile)
    assert port is not None
    env = {
        **os.environ,
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "DLOG_CONNECT": f"dlog://127.0.0.1:{port[1]}",
    }

    def dlog(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = ["dlog", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=env, input=text, capture_output=True, text=True, check=False)

    with (tmp_path / "log").open("w") as log:
        runner = subprocess.Popen(["honcho", "start"], cwd=tmp_path, env=env, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + DEADLINE_S
        while (made := dlog("create", "orders")).returncode != 0:
            running = runner.poll() is None
            assert running and time.monotonic() < deadline, _explain(tmp_path / "log") + made.stderr
        assert dlog("append", "orders", "-", text="a\nb\n").returncode == 0
        assert dlog("read", "orders").stdout == "a\nb\n"
    finally:
        runner.send_signal(signal.SIGTERM)
        try:
            runner.wait(timeout=120)
        finally:
            runner.kill()


def _explain(log: Path) -> str:
    """The runner's log, and at its end once more what the process said that stopped first."""
    text = log.read_text()
    stopped = re.search(r"system +\| (\S+) stopped", text)
    of_it = [line for line in text.splitlines() if stopped is not None and f" {stopped[1]} " in line]
    return "\n".join([text, *of_it, ""])
