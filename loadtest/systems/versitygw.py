"""versitygw, an S3 server on a directory: built from its Go module, started on loopback with one bucket.

It is not compared with dlog. The tests of cold storage and of streams on S3 use it, and with it users can try streams
on S3 without an account. It does not sync what it writes.

Source: the dependencies notes, section 4.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from loadtest.systems.base import Durability
from loadtest.systems.java import CACHE, FetchFailedError, PartMissingError, run
from loadtest.systems.nodes import HOST, Ports, Server, known_options, listens

VERSION = "v1.8.0"
MODULE = f"github.com/versity/versitygw/cmd/versitygw@{VERSION}"
SERVER = CACHE / "versitygw" / VERSION / "versitygw"
FETCH_S = 1500.0
BUCKET = "logs"
REGION = "us-east-1"
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


def command(port: int, data: Path) -> tuple[list[str], dict[str, str]]:
    """The command line of a server on a directory, and its environment. Each directory in `data` is a bucket."""
    line = [str(SERVER), "--port", f"{HOST}:{port}", "--region", REGION, "--keep-alive", "--quiet", "posix", str(data)]
    return line, {"ROOT_ACCESS_KEY": "testkey", "ROOT_SECRET_KEY": "testsecret"}


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
    """One server with the bucket BUCKET: `start`, `stop`."""

    durability = Durability("P", "in the page cache: versitygw does not sync")

    def __init__(self) -> None:
        self._ports = Ports()
        self._server: Server | None = None
        self.port = 0

    @property
    def pid(self) -> int | None:
        """None if it does not run."""
        return None if self._server is None else self._server.pid

    @property
    def environment(self) -> dict[str, str]:
        """With which dlog finds it: see `settings`."""
        return {name: value for section in SECTIONS for name, value in settings(self.port, section).items()}

    async def start(self, room: Path, options: Mapping[str, str]) -> None:
        """Start it on a directory. Raises PartMissingError, ServerFailedError, ValueError for any option."""
        known_options("versitygw", options, ())
        if not SERVER.exists():
            raise PartMissingError(
                "versitygw is not installed: run python -m loadtest peers install versitygw (needs Go 1.25 or newer)"
            )
        [self.port] = self._ports.take(1)
        data = room / "data"
        (data / BUCKET).mkdir(parents=True, exist_ok=True)
        line, keys = command(self.port, data)
        self._server = Server(
            "versitygw", "server", f"{HOST}:{self.port}", line, room, lambda: listens(self.port), keys
        )
        await self._server.start()

    async def restart(self) -> None:
        """Start it again on its data, if it does not run. Raises ServerFailedError."""
        if self._server is not None and not self._server.is_running:
            await self._server.start()

    async def stop(self) -> None:
        """Idempotent."""
        if self._server is not None:
            await self._server.stop()
        self._ports.close()

    def describe(self) -> Sequence[str]:
        """A line on the server, and the environment as lines for a shell."""
        assert self._server is not None
        exports = [f"export {name}={value}" for name, value in self.environment.items()]
        return [f"versitygw {self._server.address} pid={self.pid} log={self._server.log} bucket={BUCKET}", *exports]
