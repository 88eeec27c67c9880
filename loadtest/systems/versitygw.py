"""versitygw, an S3 server on a directory: built from its Go module, started on loopback with one bucket.

It is not compared with dlog: streams on S3 and bare requests are measured on it (loadtest/plans/s3.toml). The tests of
cold storage and of streams on S3 use it, and with it users can try streams on S3 without an account. It does not sync
what it writes. With delays, clients reach it through loadtest/s3_proxy.py.

Source: the dependencies notes, section 4.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from dlog.io.children import module_environment
from loadtest.systems.base import Durability
from loadtest.systems.java import CACHE, FetchFailedError, PartMissingError, run
from loadtest.systems.nodes import HOST, Ports, Server, known_options, listens, option_int

VERSION = "v1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
SERVER = CACHE / "versitygw" / VERSION / "versitygw"
FETCH_S = 1500.0
BUCKET = "logs"
REGION = "us-east-1"
OPTIONS = {"put_ms": "0", "get_ms": "0"}  # added to each PUT, and to each GET and HEAD
DELAYED = {"put_ms": "100", "get_ms": "30"}  # as a service in another building has it
ACCESS_LOG = "access.log"
_DELAYED = (("put", "PUT"), ("get", "GET"), ("get", "HEAD"))
_OPERATION = re.compile(rb" s3_(\w+) ")
SECTIONS = ("objects", "cold")  # of the configuration that take the server's address and keys


def install() -> bool:
    """Build the server unless present; whether it was built. Raises PartMissingError, FetchFailedError."""
    if SERVER.exists():
        return False
    go = shutil.which("go")
    if go is None:
        raise PartMissingError("no go on PATH to build versitygw: run apt-get install golang-go (1.25 or newer)")
    SERVER.parent.mkdir(parents=True, exist_ok=True)
    run([go, "install", MODULE], FETCH_S, GOBIN=str(SERVER.parent), GOFLAGS="-buildvcs=false")
    if not SERVER.exists():
        raise FetchFailedError(f"go install succeeded but there is no {SERVER}")
    return True


def command(port: int, data: Path, *flags: str) -> tuple[list[str], dict[str, str]]:
    """The command line of a server on a directory, and its environment. Each directory in `data` is a bucket."""
    line = [str(SERVER), "--port", f"{HOST}:{port}", "--region", REGION, "--keep-alive", "--quiet", *flags]
    return [*line, "posix", str(data)], {"ROOT_ACCESS_KEY": "testkey", "ROOT_SECRET_KEY": "testsecret"}


def settings(port: int, section: str) -> dict[str, str]:
    """The environment variables with which dlog finds this server, for a section of the configuration."""
    prefix = f"DLOG_{section.upper()}_S3"
    return {
        f"{prefix}_ENDPOINT": f"http://{HOST}:{port}",
        f"{prefix}_REGION": REGION,
        f"{prefix}_ACCESS_KEY": "testkey",
        f"{prefix}_SECRET_KEY": "testsecret",
    }


class S3Server:
    """One server with the bucket BUCKET: `start`, `stop`. port: where clients connect.

    counts_requests: the server logs each request, see `requests`.
    """

    durability = Durability("P", "in the page cache: versitygw does not sync")

    def __init__(self, *, counts_requests: bool = False) -> None:
        self._ports = Ports()
        self._server: Server | None = None
        self._proxy: Server | None = None
        self._counts_requests = counts_requests
        self._requests: Counter[str] = Counter()
        self._read_bytes = 0  # of the log of requests
        self.port = 0

    @property
    def pid(self) -> int | None:
        """None if it does not run."""
        return None if self._server is None else self._server.pid

    @property
    def environment(self) -> dict[str, str]:
        """With which dlog finds it: see `settings`."""
        return {name: value for section in SECTIONS for name, value in settings(self.port, section).items()}

    def processes(self) -> dict[str, list[int]]:
        """Pids by role."""
        servers = {"s3": self._server, "s3-delay": self._proxy}
        return {role: [server.pid] for role, server in servers.items() if server is not None and server.pid is not None}

    async def start(self, room: Path, options: Mapping[str, str]) -> None:
        """Start it on a directory. options: see OPTIONS. Raises PartMissingError, ServerFailedError, ValueError."""
        known_options("versitygw", options, OPTIONS)
        delays_ms = {key: option_int({**OPTIONS, **options}, key, 0, 0) for key in OPTIONS}
        if not SERVER.exists():
            raise PartMissingError(
                "versitygw is not installed: run python -m loadtest peers install versitygw (needs Go 1.25 or newer)"
            )
        port, proxy_port = self._ports.take(2)
        data = room / "data"
        (data / BUCKET).mkdir(parents=True, exist_ok=True)
        flags = ("--access-log", str(room / ACCESS_LOG)) if self._counts_requests else ()
        line, keys = command(port, data, *flags)
        self._server = Server("versitygw", "server", f"{HOST}:{port}", line, room, lambda: listens(port), keys)
        await self._server.start()
        self.port = port
        if any(delays_ms.values()):
            delays = {method: delays_ms[f"{named}_ms"] for named, method in _DELAYED}
            line = [sys.executable, "-m", "loadtest.s3_proxy", "--port", str(proxy_port)]
            line += ["--server", f"http://{HOST}:{port}"]
            line += [f"--delay={method}={delay_ms / 1000:g}" for method, delay_ms in delays.items()]
            self._proxy = Server(
                *("s3-delay", "server", f"{HOST}:{proxy_port}", line, room, lambda: listens(proxy_port)),
                module_environment(),
            )
            await self._proxy.start()
            self.port = proxy_port

    def requests(self) -> Counter[str]:
        """Number of requests so far, by the name of S3's operation, such as PutObject."""
        assert self._server is not None and self._counts_requests
        with (self._server.directory / ACCESS_LOG).open("rb") as log:
            log.seek(self._read_bytes)
            whole, newline, _ = log.read().rpartition(b"\n")
        self._read_bytes += len(whole) + len(newline)
        self._requests.update(operation.decode() for operation in _OPERATION.findall(whole))
        return self._requests.copy()

    async def restart(self) -> None:
        """Start it again on its data, if it does not run. Raises ServerFailedError."""
        if self._server is not None and not self._server.is_running:
            await self._server.start()

    async def stop(self) -> None:
        """Idempotent."""
        for server in (self._proxy, self._server):
            if server is not None:
                await server.stop()
        self._ports.close()

    def describe(self) -> Sequence[str]:
        """A line on the server, and the environment as lines for a shell."""
        assert self._server is not None
        exports = [f"export {name}={value}" for name, value in self.environment.items()]
        return [f"versitygw {HOST}:{self.port} pid={self.pid} log={self._server.log} bucket={BUCKET}", *exports]
