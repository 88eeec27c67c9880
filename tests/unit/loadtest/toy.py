"""A system that is a file: appends are durable when written, readers follow it. It can be made to misbehave.

`--option toy.breach=...`: lose, duplicate, swap, damage, move, invent. The server process sleeps, and is there to be
killed or frozen.
"""

from __future__ import annotations

import asyncio
import os
import signal
import struct
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.payload import PayloadMaker
from loadtest.systems.base import (
    Acked,
    CannotRunError,
    Client,
    Durability,
    Flavour,
    Node,
    NotApplicable,
    OnAnswer,
    Position,
    System,
    Variant,
    Writer,
)

BREACHES = ("", "lose", "duplicate", "swap", "damage", "move", "invent")
_LENGTH = struct.Struct(">I")


class Toy(System):
    """Starts one process that does nothing."""

    name = "toy"
    owner_role = "server"
    durability = Durability("P", "a file in the page cache")

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._room = Path()
        self._breach = ""
        self._process: subprocess.Popen[bytes] | None = None

    def lacks(self, feature: str) -> str | None:
        return "toys are not hurt" if feature in ("storage", "handover") else None

    async def start(self, room: Path, options: Mapping[str, str]) -> None:
        if set(options) - {"breach"} or options.get("breach", "") not in BREACHES:
            raise ValueError(f"no such option of toy: {dict(options)}")
        self._room, self._breach = room, options.get("breach", "")
        if self.variant == "toy-broken":
            raise CannotRunError("it does not start")
        self._run()

    def _run(self) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    async def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def processes(self) -> Mapping[str, Sequence[int]]:
        return {"server": [self._process.pid]} if self._process is not None else {}

    def versions(self) -> Mapping[str, str]:
        return {"toy": "1"}

    def configuration(self) -> Mapping[str, Any]:
        return {"files": 1}

    async def create(self, log: str) -> None:
        (self._room / log).touch()

    def address(self) -> dict[str, Any]:
        return {"room": str(self._room), "breach": self._breach}

    def client(self, flavour: Flavour) -> str:
        if flavour == "user":
            raise NotApplicable("nobody uses toys")
        return "tests.unit.loadtest.toy:ToyClient"

    def nodes(self) -> Sequence[Node]:
        return [Node("server", "server", self._process.pid)] if self._process is not None else []

    async def owner(self, log: str) -> str:
        return "server"

    async def kill(self, node: str) -> None:
        await self.stop()

    async def revive(self, node: str) -> None:
        self._run()

    async def pause(self, node: str) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)

    async def resume(self, node: str) -> None:
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    async def restart(self, node: str) -> None:
        await self.stop()
        self._run()

    async def whole(self) -> None:
        assert self._process is not None

    async def kill_all(self) -> None:
        await self.stop()

    async def start_all(self) -> None:
        self._run()


class ToyClient(Client):
    """Writes and reads the files itself."""

    def __init__(self, room: Path, breach: str) -> None:
        self._room = room
        self._breach = breach

    @classmethod
    async def connect(cls, address: Mapping[str, Any], options: Mapping[str, str]) -> ToyClient:
        return cls(Path(address["room"]), str(address["breach"]))

    async def close(self) -> None:
        pass

    async def writer(self, log: str, on_answer: OnAnswer) -> ToyWriter:
        return ToyWriter(self._room / log, on_answer)

    async def read(
        self, log: str, *, tail: bool, follow: bool
    ) -> AsyncGenerator[tuple[Position, Sequence[bytes]], None]:
        place = 0
        with (self._room / log).open("rb") as file:
            rest = b""
            while True:
                rest += file.read(1 << 20)
                records = []
                at = 0
                while len(rest) - at >= _LENGTH.size:
                    end = at + _LENGTH.size + _LENGTH.unpack_from(rest, at)[0]
                    if end > len(rest):
                        break
                    records.append(rest[at + _LENGTH.size : end])
                    at = end
                rest = rest[at:]
                if records:
                    given = list(records)
                    begin = spoil(self._breach, given)
                    yield (0, place + begin), given
                    place += len(records)
                elif not follow:
                    return
                else:
                    await asyncio.sleep(0.002)
                if place and not follow:
                    continue
                await asyncio.sleep(0)


def spoil(breach: str, records: list[bytes]) -> int:
    """Corrupt a delivery; returns by how much its position is moved."""
    match breach:
        case "lose":
            del records[-1]
        case "duplicate":
            records.append(records[0])
        case "swap" if len(records) > 1:
            records[0], records[1] = records[1], records[0]
        case "damage":
            records[0] = records[0][:-1] + bytes([records[0][-1] ^ 1])
        case "move":
            return 1
        case "invent":
            records += PayloadMaker(99, 40).make(0, 1, 0)
    return 0


class ToyWriter(Writer):
    """An append is a write."""

    def __init__(self, path: Path, on_answer: OnAnswer) -> None:
        self._on_answer = on_answer
        self._file = path.open("ab", buffering=0)
        self._index = 0
        self._place = 0

    async def hand_over(self, records: Sequence[bytes]) -> None:
        first, self._index = self._index, self._index + len(records)
        place = self._write(records)
        asyncio.get_running_loop().call_later(0.001, self._on_answer, Acked(first, len(records), place))

    async def hand_over_batch(self, records: Sequence[bytes]) -> None:
        await self.hand_over(records)

    async def append(self, record: bytes) -> Position | None:
        self._index += 1
        return self._write([record])

    def _write(self, records: Sequence[bytes]) -> Position:
        self._place = self._place or self._count()
        place, self._place = self._place, self._place + len(records)
        self._file.write(b"".join(_LENGTH.pack(len(record)) + record for record in records))
        return (0, place)

    def _count(self) -> int:
        """Count the records that others wrote before."""
        data = Path(self._file.name).read_bytes()
        at = count = 0
        while at < len(data):
            at += _LENGTH.size + _LENGTH.unpack_from(data, at)[0]
            count += 1
        return count

    async def flush(self) -> None:
        await asyncio.sleep(0.01)

    async def close(self) -> None:
        self._file.close()


VARIANTS = {
    "toy": Variant(Toy, {}, "a file"),
    "toy-broken": Variant(Toy, {}, "does not start"),
}
