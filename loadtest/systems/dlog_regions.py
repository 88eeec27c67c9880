"""Regions of dlog as systems: `dlog-region` on Kafka, `dlog-directory-region` and `dlog-directory` without servers.

A log is a region. Its records go to `tables` tables in turns, so record i of one producer after the other is sequence
i // tables + 1 of table i % tables, and i is its position. This holds as long as no append fails.

With `dlog-directory`, a log is one topic of a directory, without a region.
"""

from __future__ import annotations

import asyncio
import sys
from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, ClassVar

from dlog.client.regions import Regions
from dlog.errors import DLogError
from dlog.io.file_topics import DirectoryTopics, FileTopics
from loadtest.systems import region_opening
from loadtest.systems.base import (
    Acked,
    Client,
    Durability,
    Flavour,
    NotApplicable,
    OnAnswer,
    Position,
    Refused,
    Reopened,
    System,
    Writer,
)
from loadtest.systems.kafka import KafkaSystem
from loadtest.systems.nodes import known_options

NAMESPACE = "loadtest"
READ_RECORDS = 512  # yielded at once
READ_BYTES = 1 << 20
_NO_FAULTS = ("faults", "storage", "handover", "tail", "many-logs")


class KafkaRegions(KafkaSystem):
    """Regions in topics of three brokers."""

    name: ClassVar[str] = "dlog-region"

    def lacks(self, feature: str) -> str | None:
        return "regions have loads without faults only" if feature in _NO_FAULTS else None

    def versions(self) -> Mapping[str, str]:
        return {**super().versions(), **_versions()}

    def address(self) -> dict[str, Any]:
        return {"topics": f"kafka://{super().address()['bootstrap']}", "flush": self._flush}

    def client(self, flavour: Flavour) -> str:
        return f"{__name__}:RegionClient"

    async def create_all(self, logs: Sequence[str]) -> None:
        await _create_regions(self.address(), logs)

    async def reopen(self, log: str, *, with_snapshot: bool) -> Reopened:
        return await region_opening.reopen(self.address()["topics"], NAMESPACE, log, with_snapshot=with_snapshot)


class DirectorySystem(System):
    """Files in the directory of a turn; no servers."""

    start_s = 0.0
    durability = Durability("F", "fdatasync of one file before the acknowledgement, no replicas")

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self.root = Path()

    def lacks(self, feature: str) -> str | None:
        return "files have loads without faults only" if feature in _NO_FAULTS else None

    async def start(self, room: Path, options: Mapping[str, str]) -> None:
        known_options(self.variant, options, ())
        self.root = room / "files"
        self.root.mkdir()

    async def stop(self) -> None:
        """Does nothing."""

    def processes(self) -> Mapping[str, Sequence[int]]:
        return {}

    def versions(self) -> Mapping[str, str]:
        return _versions()

    def configuration(self) -> Mapping[str, Any]:
        return {}

    def address(self) -> dict[str, Any]:
        return {"topics": f"file://{self.root}"}

    @abstractmethod
    def client(self, flavour: Flavour) -> str: ...


class DirectoryRegions(DirectorySystem):
    """Regions in topics of a directory."""

    def client(self, flavour: Flavour) -> str:
        return f"{__name__}:RegionClient"

    async def create(self, log: str) -> None:
        await self.create_all([log])

    async def create_all(self, logs: Sequence[str]) -> None:
        await _create_regions(self.address(), logs)

    async def reopen(self, log: str, *, with_snapshot: bool) -> Reopened:
        return await region_opening.reopen(self.address()["topics"], NAMESPACE, log, with_snapshot=with_snapshot)


class TopicsInDirectory(DirectorySystem):
    """Topics of a directory, without regions."""

    def client(self, flavour: Flavour) -> str:
        return f"{__name__}:DirectoryClient"

    async def create(self, log: str) -> None:
        await asyncio.to_thread(DirectoryTopics(str(self.root)).create, log)

    def address(self) -> dict[str, Any]:
        return {"root": str(self.root)}


def _versions() -> dict[str, str]:
    return {
        "dlog": metadata.version("dlogd"),
        "python": sys.version.split()[0],
        "aiokafka": metadata.version("aiokafka"),
    }


async def _create_regions(address: Mapping[str, Any], logs: Sequence[str]) -> None:
    async with region_opening.regions(address, NAMESPACE) as regions:
        for log in logs:
            await regions.open(log, create=True)


# ---- in a generator process -----------------------------------------------------------------------------------------


class RegionClient(Client):
    """The public client of regions. Option `crash`: `close` closes no region, as if the process was killed."""

    def __init__(self, regions: Regions, tables: int, *, crashes: bool) -> None:
        self._regions = regions
        self._tables = tables
        self._crashes = crashes

    @classmethod
    async def connect(cls, address: Mapping[str, Any], options: Mapping[str, str]) -> RegionClient:
        regions = region_opening.regions(address, NAMESPACE)
        return cls(regions, int(options.get("tables", "1")), crashes=options.get("crash") == "true")

    async def close(self) -> None:
        if not self._crashes:
            await self._regions.__aexit__(None, None, None)

    async def writer(self, log: str, on_answer: OnAnswer) -> RegionWriter:
        return RegionWriter(await self._regions.open(log), self._tables, on_answer)

    async def read(
        self, log: str, *, tail: bool, follow: bool
    ) -> AsyncGenerator[tuple[Position, Sequence[bytes]], None]:
        if tail or follow:
            raise NotApplicable("regions are read from the start to the end only")
        view = await self._regions.view(log)
        tables = self._tables
        first = end = 0
        payloads: list[bytes] = []
        async for entry in view.read():
            position = (entry.sequence - 1) * tables + entry.table
            if payloads and (position != end or len(payloads) >= READ_RECORDS):
                yield (first,), payloads
                payloads = []
            if not payloads:
                first = end = position
            payloads.append(entry.payload)
            end += 1
        if payloads:
            yield (first,), payloads


class TaskWriter(Writer):
    """A writer whose appends are coroutines of a batch."""

    def __init__(self, on_answer: OnAnswer) -> None:
        self._on_answer = on_answer
        self._next = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def hand_over(self, records: Sequence[bytes]) -> None:
        for record in records:
            await self.hand_over_batch((record,))

    async def hand_over_batch(self, records: Sequence[bytes]) -> None:
        first, self._next = self._next, self._next + len(records)
        task = asyncio.get_running_loop().create_task(self._write(first, records), name="append")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def append(self, record: bytes) -> Position | None:
        first, self._next = self._next, self._next + 1
        return (await self._put(first, (record,)),)

    async def flush(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Does nothing: the client closes what it opened."""

    async def _write(self, first: int, records: Sequence[bytes]) -> None:
        try:
            position = await self._put(first, records)
        except DLogError as error:
            self._on_answer(Refused(first, len(records), str(error), error.outcome_unknown))
        else:
            self._on_answer(Acked(first, len(records), (position,)))

    @abstractmethod
    async def _put(self, first: int, records: Sequence[bytes]) -> int:
        """Append records together; the position of the first one. first: its index. Raises DLogError."""


class RegionWriter(TaskWriter):
    """One region, whose tables get records in turns."""

    def __init__(self, region: Any, tables: int, on_answer: OnAnswer) -> None:
        super().__init__(on_answer)
        self._region = region
        self._tables = tables
        self._before = sum(table.next_seq_num - 1 for table in region.tables.values())  # of earlier producers

    async def _put(self, first: int, records: Sequence[bytes]) -> int:
        tables = self._tables
        position = self._before + first
        if tables == 1:
            sequences = await self._region.write(0, records)
        else:
            entries = [((position + i) % tables, record) for i, record in enumerate(records)]
            sequences = await self._region.write_many(entries)
        return int((sequences[0] - 1) * tables + position % tables)


class DirectoryClient(Client):
    """dlog's topics in a directory."""

    def __init__(self, topics: FileTopics) -> None:
        self._topics = topics

    @classmethod
    async def connect(cls, address: Mapping[str, Any], options: Mapping[str, str]) -> DirectoryClient:
        return cls(FileTopics(DirectoryTopics(str(address["root"]))))

    async def close(self) -> None:
        """Does nothing: no file is open between calls."""

    async def writer(self, log: str, on_answer: OnAnswer) -> TopicWriter:
        return TopicWriter(self._topics, log, on_answer)

    async def read(
        self, log: str, *, tail: bool, follow: bool
    ) -> AsyncGenerator[tuple[Position, Sequence[bytes]], None]:
        if tail or follow:
            raise NotApplicable("topics are read from the start to the end only")
        offset, _ = await self._topics.offsets(log)
        while found := await self._topics.read(log, offset, READ_BYTES):
            yield (offset,), [one.value for one in found]
            offset = found[-1].offset + 1


class TopicWriter(TaskWriter):
    """One topic of a directory."""

    def __init__(self, topics: FileTopics, log: str, on_answer: OnAnswer) -> None:
        super().__init__(on_answer)
        self._topics = topics
        self._log = log

    async def _put(self, first: int, records: Sequence[bytes]) -> int:
        return await self._topics.append(self._log, [(b"", record) for record in records])
