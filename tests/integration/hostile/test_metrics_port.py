"""The port that is scraped: HTTP from a library, which serves only metrics. Rows `metrics.*`."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.cluster import BookieCluster, ServerProcess
from tests.integration.hostile.table import each

pytestmark = pytest.mark.zookeeper

CASES: dict[str, bytes] = {
    "get": b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "path-climbs": b"GET /../../etc/passwd HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "post": b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    "method-unknown": b"FROB /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    "line-endless": b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
    "headers-endless": b"GET /metrics HTTP/1.1\r\n" + b"".join(b"h%d: x\r\n" % n for n in range(200)) + b"\r\n",
    "garbage": b"\xff\xfe\x00garbage\r\n\r\n",
    "tls-hello": bytes.fromhex("16030100c8010000c40303") + bytes(197),
    "dlog-hello": struct.pack(">IH", 13, 11) + b"\x96\x01\x01\x01\x01\xa4tool\xa1x",
    "nothing": b"",
}


@pytest.fixture(scope="module")
def scraped(bookies: BookieCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ServerProcess, int]]:
    """A write proxy with a metrics port, and the port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    directory: Path = tmp_path_factory.mktemp("scraped")
    flags = ("--zookeeper", bookies.hosts, "--namespace", bookies.namespace, "--metrics-port", str(port))
    process = ServerProcess("proxies.write", directory, *flags)
    process.start()
    yield process, port
    assert process.is_running
    process.kill()


def ask(port: int, data: bytes) -> str:
    """Status of the answer, or `closed`."""
    with socket.create_connection(("127.0.0.1", port), timeout=90) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        try:
            told = connection.recv(65536)
        except ConnectionError:
            return "closed"
    words = told.split(b"\r\n", 1)[0].split(b" ")
    return words[1].decode() if told.startswith(b"HTTP/") else "closed" if not told else "an error page"


@each("metrics", CASES)
def test_a_scraper_of_any_kind_is_answered_so(scraped: tuple[ServerProcess, int], case: str, answer: str) -> None:
    assert ask(scraped[1], CASES[case]) == answer
    assert ask(scraped[1], CASES["get"]) == "200"
