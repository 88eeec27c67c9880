"""Bare requests to S3 as a peer: what aiobotocore does on the same server, without any format: `s3-aiobotocore`.

A log is a prefix. `append` puts one object with the record. Records that are handed over gather in objects of 8 MiB, of
which up to eight are on their way; what has gathered goes out earlier if nothing is handed over for a moment. Objects
are read by ranges of 8 MiB, four at a time. The server is versitygw, which does not sync: see Durability.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from dlog.options import MiB
from loadtest.systems.base import (
    Acked,
    Client,
    Flavour,
    NotApplicable,
    OnAnswer,
    Position,
    Refused,
    System,
    Variant,
    Writer,
)
from loadtest.systems.versitygw import BUCKET, DELAYED, REGION, VERSION, S3Server

OBJECT_BYTES = 8 * MiB
PUTS = 8  # on their way, of one log
READS = 4
LINGER_S = 0.05  # how long gathered records wait for others
_LACKS = ("faults", "storage", "handover", "tail", "many-logs")


class S3System(System):
    """versitygw, and with delays a proxy in front of it."""

    name = "s3-aiobotocore"
    start_s = 1.5
    durability = S3Server.durability
    backlog_bytes = PUTS * OBJECT_BYTES

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._server = S3Server(counts_requests=True)
        self._options: Mapping[str, str] = {}

    def lacks(self, feature: str) -> str | None:
        return "bare requests have loads without faults only" if feature in _LACKS else None

    async def start(self, room: Path, options: Mapping[str, str]) -> None:
        self._options = options
        await self._server.start(room / "s3", options)

    async def stop(self) -> None:
        await self._server.stop()

    def processes(self) -> Mapping[str, Sequence[int]]:
        return self._server.processes()

    def versions(self) -> Mapping[str, str]:
        return {"versitygw": VERSION, "aiobotocore": metadata.version("aiobotocore")}

    def configuration(self) -> Mapping[str, Any]:
        return {"object_bytes": OBJECT_BYTES, "puts": PUTS, "reads": READS, **self._options}

    def requests(self) -> Mapping[str, int]:
        return self._server.requests()

    async def create(self, log: str) -> None:
        """Does nothing: a prefix exists by itself."""

    def address(self) -> dict[str, Any]:
        return {"port": self._server.port}

    def client(self, flavour: Flavour) -> str:
        return f"{__name__}:S3Client"


class S3Client(Client):
    """One client of aiobotocore."""

    def __init__(self, scope: Any, client: Any) -> None:
        self._scope = scope
        self._client = client

    @classmethod
    async def connect(cls, address: Mapping[str, Any], options: Mapping[str, str]) -> S3Client:
        from aiobotocore.config import AioConfig
        from aiobotocore.session import get_session

        scope = get_session().create_client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{address['port']}",
            region_name=REGION,
            aws_access_key_id="testkey",
            aws_secret_access_key="testsecret",
            config=AioConfig(
                s3={"addressing_style": "path"},
                max_pool_connections=32,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        return cls(scope, await scope.__aenter__())

    async def close(self) -> None:
        await self._scope.__aexit__(None, None, None)

    async def writer(self, log: str, on_answer: OnAnswer) -> S3Writer:
        return S3Writer(self._client, log, len([key async for key, _ in self._objects(log)]), on_answer)

    async def read(
        self, log: str, *, tail: bool, follow: bool
    ) -> AsyncGenerator[tuple[Position, Sequence[bytes]], None]:
        if tail or follow:
            raise NotApplicable("objects are read from the first to the last only")
        reading: deque[tuple[Position, int, asyncio.Task[bytes]]] = deque()
        try:
            async for key, size in self._objects(log):
                number, record_bytes = (int(part) for part in key.rpartition("/")[2].split("-"))
                step = OBJECT_BYTES - OBJECT_BYTES % record_bytes
                for at in range(0, size, step):
                    if len(reading) == READS:
                        yield await _records(*reading.popleft())
                    getting = asyncio.get_running_loop().create_task(self._get(key, at, step), name="range read")
                    reading.append(((number, at // record_bytes), record_bytes, getting))
            while reading:
                yield await _records(*reading.popleft())
        finally:
            for _, _, getting in reading:
                getting.cancel()

    async def _objects(self, log: str) -> AsyncGenerator[tuple[str, int], None]:
        """Keys and sizes, in order."""
        pages = self._client.get_paginator("list_objects_v2")
        async for page in pages.paginate(Bucket=BUCKET, Prefix=f"{log}/"):
            for item in page.get("Contents", ()):
                yield item["Key"], item["Size"]

    async def _get(self, key: str, at: int, size: int) -> bytes:
        answer = await self._client.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={at}-{at + size - 1}")
        async with answer["Body"] as body:
            data: bytes = await body.read()
        return data


async def _records(position: Position, size: int, getting: asyncio.Task[bytes]) -> tuple[Position, list[bytes]]:
    data = await getting
    return position, [data[i : i + size] for i in range(0, len(data), size)]


class S3Writer(Writer):
    """One prefix. All records have one size. Positions are (number of the object, number of the record in it)."""

    def __init__(self, client: Any, log: str, objects: int, on_answer: OnAnswer) -> None:
        self._client = client
        self._log = log
        self._on_answer = on_answer
        self._number = objects
        self._next = 0
        self._gathered: list[bytes] = []
        self._gathered_bytes = 0
        self._puts: set[asyncio.Task[None]] = set()
        self._lingering: asyncio.TimerHandle | None = None

    async def hand_over(self, records: Sequence[bytes]) -> None:
        self._next += len(records)
        self._gathered += records
        self._gathered_bytes += sum(map(len, records))
        while self._gathered_bytes >= OBJECT_BYTES and len(self._puts) >= PUTS:
            await asyncio.wait(self._puts, return_when=asyncio.FIRST_COMPLETED)
        if self._gathered_bytes >= OBJECT_BYTES:
            self._send()
        if self._lingering is not None:
            self._lingering.cancel()
        self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self._linger_over)

    async def hand_over_batch(self, records: Sequence[bytes]) -> None:
        await self.hand_over(records)

    async def append(self, record: bytes) -> Position | None:
        assert not self._gathered, "records are appended, or handed over"
        self._next += 1
        number, self._number = self._number, self._number + 1
        await self._put(number, [record])
        return number, 0

    async def flush(self) -> None:
        while self._gathered or self._puts:
            if self._gathered:
                self._send()
            await asyncio.wait(self._puts)

    async def close(self) -> None:
        if self._lingering is not None:
            self._lingering.cancel()

    def _linger_over(self) -> None:
        if self._gathered and len(self._puts) < PUTS:
            self._send()
        elif self._gathered:
            self._lingering = asyncio.get_running_loop().call_later(LINGER_S, self._linger_over)

    def _send(self) -> None:
        """Begin to put what has gathered."""
        records, self._gathered, self._gathered_bytes = self._gathered, [], 0
        number, self._number = self._number, self._number + 1
        first = self._next - len(records)
        task = asyncio.get_running_loop().create_task(self._put_all(number, first, records), name="put")
        self._puts.add(task)
        task.add_done_callback(self._puts.discard)

    async def _put_all(self, number: int, first: int, records: Sequence[bytes]) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            await self._put(number, records)
        except (BotoCoreError, ClientError, OSError) as error:
            self._on_answer(Refused(first, len(records), str(error), unknown=True))
        else:
            self._on_answer(Acked(first, len(records), (number, 0)))

    async def _put(self, number: int, records: Sequence[bytes]) -> None:
        key = f"{self._log}/{number:08d}-{len(records[0])}"
        await self._client.put_object(Bucket=BUCKET, Key=key, Body=b"".join(records))


VARIANTS: Mapping[str, Variant] = {
    "s3-aiobotocore": Variant(S3System, {}, "bare requests of aiobotocore to versitygw, without any format"),
    "s3-aiobotocore-delayed": Variant(S3System, DELAYED, "the same with 100 ms added to a PUT and 30 ms to a GET"),
}
