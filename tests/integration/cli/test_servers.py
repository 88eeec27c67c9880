"""`dlog ... run` starts the servers: their options, exit codes and signals are the servers' own."""

from __future__ import annotations

import dataclasses
import signal
import subprocess
import sys

import pytest

from actors.recovery.options import RecoveryOptions
from dlog.bookie.options import BookieOptions
from proxies.read.options import ReadOptions
from proxies.write.options import WriteOptions

SERVERS = {
    "bookie": BookieOptions,
    "recovery": RecoveryOptions,
    "write-proxy": WriteOptions,
    "read-proxy": ReadOptions,
}


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dlog", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("server", SERVERS)
def test_help_names_every_option(server: str) -> None:
    told = run(server, "run", "--help")
    assert told.returncode == 0
    for field in dataclasses.fields(SERVERS[server]):
        assert "--" + field.name.replace("_", "-") in told.stdout, field.name


@pytest.mark.parametrize("server", SERVERS)
def test_an_unknown_option_is_misuse(server: str) -> None:
    told = run(server, "run", "--bogus", "1")
    assert told.returncode == 2 and "--bogus" in told.stderr


@pytest.mark.parametrize("server", SERVERS)
def test_a_signal_reaches_the_server_itself(server: str, tmp_path: object) -> None:
    more = ["--dir", str(tmp_path)] if server == "bookie" else []
    command = [sys.executable, "-m", "dlog", server, "run", "--zookeeper", "127.0.0.1:1", *more]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while "process.configured" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode is not None
