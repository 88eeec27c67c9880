"""dlog with a bookie of its own: `dlog-recovery` loses it for good, `dlog-bookie` has no other one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlog.io.children import module_environment, python_module
from loadtest.systems.base import Durability
from loadtest.systems.dlog import Dlog
from loadtest.systems.nodes import HOST, Ports, Server, listens


class DlogBookie(Dlog):
    """A `dlog up` and one more bookie, which nothing starts again once it is killed."""

    start_s = 5.5

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._is_alone = variant == "dlog-bookie"
        if self._is_alone:
            self.durability = Durability("F", "fdatasync of one bookie's journal before the acknowledgement")
        self._ports = Ports()
        self._bookie: Server | None = None

    async def start(self, room: Path, options: Mapping[str, str]) -> None:
        await super().start(room, options)
        (port,) = self._ports.take(1)
        home, running = room / "lost", self.running()
        bookie: Server
        command = python_module(
            "actors.bookie",
            *("--zookeeper", running.zookeeper, "--namespace", running.namespace),
            *("--dir", str(home / "bookie"), "--port", str(port)),
        )

        async def serves() -> bool:
            return bookie.has_logged("ready bookie ", since=bookie.log_begin) and await listens(port)

        environment = {"PYTHONPATH": module_environment()["PYTHONPATH"]}
        bookie = self._bookie = Server("lost", "bookie", f"{HOST}:{port}", command, home, serves, environment)
        await bookie.start()

    async def stop(self) -> None:
        try:
            if self._bookie is not None:
                await self._bookie.stop()
            await super().stop()
        finally:
            self._ports.close()

    def processes(self) -> Mapping[str, Sequence[int]]:
        found = {role: list(pids) for role, pids in super().processes().items()}
        if self._bookie is not None and self._bookie.pid is not None:
            found.setdefault("bookie", []).append(self._bookie.pid)
        return found

    def configuration(self) -> Mapping[str, Any]:
        return {"journal": "fdatasync", **self._options} if self._is_alone else super().configuration()

    async def restart(self, node: str) -> None:
        bookie = self.bookie()
        if node != bookie.name:
            await super().restart(node)
        else:
            await bookie.stop()
            await bookie.start()

    async def revive(self, node: str) -> None:
        await (self.bookie().start() if node == self.bookie().name else super().revive(node))

    def zookeeper(self) -> str:
        return self.running().zookeeper

    def bookie(self) -> Server:
        assert self._bookie is not None, "started"
        return self._bookie
