"""A file as a peer: what one write and one fdatasync cost, without any format. For topics in a directory.

A log is a file; a batch is written by one call and synced before it is acknowledged, in a thread, as dlog does it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.systems.base import Client, Flavour, NotApplicable, OnAnswer, Position, Variant
from loadtest.systems.dlog_regions import DirectorySystem, TaskWriter

READ_RECORDS = 1024


class FileSystem(DirectorySystem):
    """Files."""

    name = "file"

    def client(self, flavour: Flavour) -> str:
        return f"{__name__}:FileClient"

    async def create(self, log: str) -> None:
        (self.root / log).touch()

    def address(self) -> dict[str, Any]:
        return {"root": str(self.root)}

    def versions(self) -> Mapping[str, str]:
        return {"kernel": os.uname().release}


class FileClient(Client):
    """Writes and reads records, all of one size: that of the first one."""

    def __init__(self, root: Path) -> None:
        self._root = root

    @classmethod
    async def connect(cls, address: Mapping[str, Any], options: Mapping[str, str]) -> FileClient:
        return cls(Path(address["root"]))

    async def close(self) -> None:
        """Does nothing."""

    async def writer(self, log: str, on_answer: OnAnswer) -> FileWriter:
        return FileWriter(self._root / log, on_answer)

    async def read(
        self, log: str, *, tail: bool, follow: bool
    ) -> AsyncGenerator[tuple[Position, Sequence[bytes]], None]:
        if tail or follow:
            raise NotApplicable("files are read from the start to the end only")
        size = int((self._root / f"{log}.size").read_text())
        at = 0
        with (self._root / log).open("rb") as file:
            while data := file.read(size * READ_RECORDS):
                yield (at,), [data[i : i + size] for i in range(0, len(data), size)]
                at += -(-len(data) // size)


class FileWriter(TaskWriter):
    """One file."""

    def __init__(self, path: Path, on_answer: OnAnswer) -> None:
        super().__init__(on_answer)
        self._size = path.with_name(f"{path.name}.size")
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self._end = os.fstat(self._fd).st_size
        self._records = -1

    async def close(self) -> None:
        os.close(self._fd)

    async def _put(self, first: int, records: Sequence[bytes]) -> int:
        if self._records < 0:
            self._records = self._end // len(records[0])
            self._size.write_text(str(len(records[0])))
        position, self._records = self._records, self._records + len(records)
        await asyncio.to_thread(self._append, records)
        return position

    def _append(self, records: Sequence[bytes]) -> None:
        self._end += os.pwrite(self._fd, b"".join(records), self._end)
        os.fdatasync(self._fd)


VARIANTS: Mapping[str, Variant] = {
    "file": Variant(FileSystem, {}, "one write and one fdatasync for each batch, without any format"),
}
