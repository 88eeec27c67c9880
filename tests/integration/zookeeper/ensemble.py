"""A real ZooKeeper ensemble of three JVMs, whose members a test may kill, freeze, and start again."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from dlog.io.embedded_zookeeper import DATA, EmbeddedZooKeeper, ZooKeeperStartError
from tests.ports import free_ports

MEMBERS = 3
_WELL = ["follower", "follower", "leader"]
_TRIES = 3  # ports are picked before they are bound


class EnsembleMember(EmbeddedZooKeeper):
    """One of the servers. It answers only when there is a quorum."""

    def __init__(self, directory: Path, number: int, port: int, servers: str) -> None:
        super().__init__(directory, port=port)
        self.number = number
        self.is_frozen = False
        self._servers = servers

    def launch(self) -> None:
        """Start, without waiting for a quorum."""
        self._running = self._spawn(self.port)

    def freeze(self) -> None:
        assert self.pid
        os.kill(self.pid, signal.SIGSTOP)
        self.is_frozen = True

    def thaw(self) -> None:
        assert self.pid
        os.kill(self.pid, signal.SIGCONT)
        self.is_frozen = False

    def kill(self) -> None:
        super().kill()
        self.is_frozen = False

    async def mode(self) -> str:
        """`leader`, `follower`, or nothing while it does not serve."""
        if self.pid is None or self.is_frozen:
            return ""
        try:
            async with asyncio.timeout(2.0):
                reader, writer = await asyncio.open_connection(self.host, self.port)
                try:
                    writer.write(b"srvr")
                    said = (await reader.read()).decode()
                finally:
                    writer.close()
        except (OSError, TimeoutError):
            return ""
        return said.partition("Mode: ")[2].partition("\n")[0]

    def _settings(self, port: int) -> str:
        (self.directory / DATA / "myid").write_text(str(self.number))
        return super()._settings(port) + "initLimit=20\nsyncLimit=4\n" + self._servers


class ZooKeeperEnsemble:
    """Three members; `hosts` names them all, in order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.members: list[EnsembleMember] = []

    @property
    def hosts(self) -> str:
        return ",".join(member.hosts for member in self.members)

    async def start(self) -> None:
        for left in reversed(range(_TRIES)):
            ports = free_ports(3 * MEMBERS)
            servers = "".join(f"server.{n + 1}=127.0.0.1:{ports[3 * n]}:{ports[3 * n + 1]}\n" for n in range(MEMBERS))
            directory = self._directory / str(left)
            self.members = [
                EnsembleMember(directory / str(n + 1), n + 1, ports[3 * n + 2], servers) for n in range(MEMBERS)
            ]
            try:
                await self.heal()
            except ZooKeeperStartError:
                self.kill()
                if not left:
                    raise
            else:
                return

    async def heal(self) -> None:
        """Resume and start members that do not serve, and wait until all serve."""
        for member in self.members:
            if member.is_frozen:
                member.thaw()
            if member.pid is None:
                member.launch()
        async with asyncio.timeout(60):
            while sorted([await member.mode() for member in self.members]) != _WELL:
                for member in self.members:
                    assert member._running is not None
                    if member._running.process.poll() is not None:
                        raise ZooKeeperStartError(f"a member ended: number={member.number}")
                await asyncio.sleep(0.05)

    async def leader(self) -> EnsembleMember:
        """Wait for a leader with followers."""
        async with asyncio.timeout(60):
            while True:
                modes = [await member.mode() for member in self.members]
                if "leader" in modes and "follower" in modes:
                    return self.members[modes.index("leader")]
                await asyncio.sleep(0.05)

    async def follower(self) -> EnsembleMember:
        """One of the followers, while all members serve."""
        leader = await self.leader()
        return next(member for member in self.members if member is not leader)

    def kill(self) -> None:
        for member in self.members:
            member.kill()
