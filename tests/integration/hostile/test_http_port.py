"""The HTTP port of a proxy and of a bookie, which have it by the same server. Rows `http.*`."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlog.io.embedded_zookeeper import EmbeddedZooKeeper
from tests.integration.bookie.conftest import new_cluster
from tests.integration.bookie.process import BookieProcess
from tests.integration.cluster import BookieCluster, ServerProcess
from tests.integration.hostile.table import each
from tests.ports import free_ports

pytestmark = pytest.mark.zookeeper

CASES: dict[str, bytes] = {
    "get": b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "path-climbs": b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "post": b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "method-unknown": b"FROB /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "connect": b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    "body-endless": b"POST /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 20_000,
    "pipelined": b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 20,
    "line-endless": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    "headers-endless": b"GET /metrics HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(2000)) + b"\r\n",
    "header-illegal": b"GET /metrics HTTP/1.1\r\nHost: x\r\nno header\r\n\r\n",
    "host-missing": b"GET /metrics HTTP/1.1\r\n\r\n",
    "lengths-contradict": b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "half-a-request": b"GET /metrics HTT",
    "garbage": b"\xff\xfe\x00garbage\r\n\r\n",
    "tls-hello": bytes.fromhex("16030100c8010000c40303") + bytes(197),
    "dlog-hello": struct.pack(">IH", 13, 11) + b"\x96\x01\x01\x01\x01\xa4tool\xa1x",
    "nothing": b"",
}


@pytest.fixture(scope="module")
def processes(
    bookies: BookieCluster, zookeeper: EmbeddedZooKeeper, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[int, ServerProcess | BookieProcess]]:
    """A write proxy and a bookie by their HTTP ports."""
    directory = tmp_path_factory.mktemp("http")
    ports = free_ports(2)
    flags = ("--zookeeper", bookies.hosts, "--namespace", bookies.namespace, "--http-port", str(ports[0]))
    proxy = ServerProcess("proxies.write", directory / "proxy", *flags)
    bookie = BookieProcess(directory / "bookie", new_cluster(zookeeper), http_port=ports[1])
    try:
        proxy.start()
        bookie.start()
        yield dict(zip(ports, (proxy, bookie), strict=True))
        for process in (proxy, bookie):
            os.kill(process.pid, 0)
        assert bookie.terminate() == 0
        assert proxy.stop() == 0
        for log in (proxy.directory / "log", bookie.log):
            assert "Traceback" not in log.read_text() and "died" not in log.read_text()
    finally:
        proxy.kill()
        bookie.kill()


def ask(port: int, data: bytes) -> str:
    """Status of the answer, or `closed`."""
    with socket.create_connection(("127.0.0.1", port), timeout=90) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        try:
            told = connection.recv(65536)
        except ConnectionError:
            return "closed"
    return told.split(b"\r\n", 1)[0].split(b" ")[1].decode() if told else "closed"


@each("http", CASES)
def test_an_http_client_of_any_kind_is_answered_so(
    processes: dict[int, ServerProcess | BookieProcess], case: str, answer: str
) -> None:
    for port in processes:
        assert ask(port, CASES[case]) == answer
        assert ask(port, CASES["get"]) == "200"


def test_a_taken_port_ends_a_process_that_says_so(
    processes: dict[int, ServerProcess | BookieProcess], bookies: BookieCluster, tmp_path: Path
) -> None:
    for port in processes:
        flags = ["--zookeeper", bookies.hosts, "--namespace", bookies.namespace, "--http-port", str(port)]
        for module, more in (("proxies.write", []), ("proxies.read", []), ("actors.bookie", ["--dir", str(tmp_path)])):
            command = [sys.executable, "-m", module, *flags, "--port", "0", *more]
            done = subprocess.run(command, capture_output=True, timeout=180, check=False)
            last = done.stderr.decode().splitlines()[-1]
            assert done.returncode == 2 and last.startswith("ConfigError: http_port cannot be listened on"), last
            assert last.endswith(f"address=127.0.0.1:{port}")
