"""Counts the requests of a recovery of a long chain of objects: `python -m loadtest.chain_recovery [--json] [CHUNKS]`.

The chain (100,000 chunks of one entry unless said otherwise, not ended) is in the memory of this process. All requests
take the same time there: those that are on their way together are answered together, and count as one after another
only once. A page of a list is one request.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from bisect import bisect_left, bisect_right, insort
from collections.abc import AsyncIterator, Sequence

from dlog.model.ids import Epoch, SegmentNumber, StreamName
from dlog.stores.contract import SegmentNotFoundError, SegmentRef
from dlog.stores.object_storage.locations import MARKER, Location, parse_root
from dlog.stores.object_storage.port import Buffer, Creation, Found, Objects
from dlog.stores.s3_direct.chunks import Chain, Description
from dlog.stores.s3_direct.options import ObjectsOptions
from dlog.stores.s3_direct.store import SEGMENTS, S3DirectStore, marker_text
from dlog.wire.chunk import NONCE_BYTES, ChunkKind, encode_chunk

FOLDER = parse_root("s3://bucket/loadtest")
NAME = "0123456789abcdef" * 2
STREAM = StreamName("chain")
PAGE = 1000  # names of one answer to a list
SETTLE_S = 0.002  # until the answers to one turn of requests have led to the next ones


class CountingObjects(Objects):
    """Objects in memory, as far as a recovery needs them. requests: all; turns: those one after another."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.names: list[str] = []  # sorted
        self.requests = 0
        self.turns = 0
        self._waiting: list[asyncio.Future[None]] = []

    def put(self, location: Location, data: bytes) -> None:
        self.objects[str(location)] = data
        insort(self.names, str(location))

    async def serve(self) -> None:
        """Answer what is on its way, turn by turn, until cancelled."""
        while True:
            await asyncio.sleep(SETTLE_S)
            waiting, self._waiting = self._waiting, []
            self.turns += bool(waiting)
            for one in waiting:
                if not one.done():
                    one.set_result(None)

    async def _turn(self) -> None:
        self.requests += 1
        answered = asyncio.get_running_loop().create_future()
        self._waiting.append(answered)
        await answered

    async def read(self, location: Location, offset: int, size: int) -> bytes:
        return (await self._whole(location))[offset : offset + size]

    async def read_end(self, location: Location, size: int) -> tuple[bytes, int]:
        data = await self._whole(location)
        return data[-size:], len(data)

    async def _whole(self, location: Location) -> bytes:
        await self._turn()
        data = self.objects.get(str(location))
        if data is None:
            raise SegmentNotFoundError(f"no such object: location={location}")
        return data

    async def create_if_absent(
        self, location: Location, data: Sequence[Buffer], *, head_bytes: int, marker: Location | None = None
    ) -> Creation:
        await self._turn()
        if str(location) in self.objects:
            return Creation.EXISTS
        self.put(location, b"".join(data))
        return Creation.MADE

    async def list(
        self, folder: Location, *, behind: Location | None = None, limit: int | None = None
    ) -> AsyncIterator[Found]:
        at = bisect_right(self.names, str(behind)) if behind is not None else bisect_left(self.names, f"{folder}/")
        left = len(self.names) if limit is None else limit
        while left > 0:
            await self._turn()
            page = [name for name in self.names[at : at + min(left, PAGE)] if name.startswith(f"{folder}/")]
            for name in page:
                yield Found(name, len(self.objects[name]), 0)
            at, left = at + len(page), left - len(page)
            if len(page) < PAGE:
                return


def make_chain(objects: CountingObjects, chunks: int) -> None:
    """BEGIN, and chunks of one entry each, whose writer has died."""
    chain = Chain(FOLDER.below(SEGMENTS), NAME)
    nonce = bytes(NONCE_BYTES)
    begin = Description(STREAM, SegmentNumber(1), Epoch(1)).encode()
    objects.put(FOLDER.below(MARKER), marker_text(FOLDER.name))
    for number in range(chunks + 1):
        is_first = number == 0
        parts = encode_chunk(
            ChunkKind.BEGIN if is_first else ChunkKind.DATA,
            [begin if is_first else b"x"],
            nonce=nonce,
            segment=chain.segment,
            number=number,
            epoch=1,
            contiguous=number,
            first=max(0, number - 1),
            bytes_before=max(0, number - 1),
        )
        objects.put(chain.place(number), b"".join(parts))


async def measure(chunks: int) -> dict[str, float]:
    """Recover the chain. Its end must be that of the last chunk."""
    objects = CountingObjects()  # type: ignore[abstract]  # a recovery needs no more of it
    await asyncio.to_thread(make_chain, objects, chunks)

    async def find_folder(*, creates: bool) -> Location:
        return FOLDER

    async with (
        S3DirectStore(objects, find_folder, ObjectsOptions(), random.Random(1)) as store,
        asyncio.TaskGroup() as tasks,
    ):
        serving = tasks.create_task(objects.serve(), name="answer requests")
        found = await store.recover(SegmentRef(STREAM, SegmentNumber(1), NAME))
        serving.cancel()
    assert found.end == chunks - 1, found
    return {"chunks": chunks, "turns": objects.turns, "requests": objects.requests}


def main(arguments: list[str]) -> int:
    """Print the numbers."""
    as_json = arguments[:1] == ["--json"]
    figures = asyncio.run(measure(int((arguments[as_json:] or ["100000"])[0])))
    print(json.dumps(figures) if as_json else " ".join(f"{name}={value}" for name, value in figures.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
