"""Tests of how a large object is sent: in pieces between which other tasks run, and never hashed or joined whole."""

from __future__ import annotations

import asyncio
from asyncio import StreamReader, StreamWriter

import pytest

from dlog.io.s3_body import SEND_BYTES, UploadBody
from dlog.io.s3_objects import S3Objects
from dlog.stores.object_storage.locations import Location
from dlog.stores.object_storage.options import ObjectStorageOptions
from dlog.stores.object_storage.port import Buffer, Creation

PARTS: list[Buffer] = [
    *(bytes([n % 251]) * 1000 for n in range(3000)),
    b"x" * (2 * SEND_BYTES),
    b"",
    bytearray(b"y"),
    memoryview(b"z"),
]


async def test_every_iteration_sends_all_of_it_in_pieces() -> None:
    body = UploadBody(PARTS)
    for _ in range(2):
        pieces = [piece async for piece in body]
        assert b"".join(pieces) == b"".join(PARTS) == body.read()
        assert max(map(len, pieces)) < 3 * SEND_BYTES + 1000
        assert len(pieces) > len(b"".join(PARTS)) // (3 * SEND_BYTES)
    assert len(body) == sum(map(len, PARTS)) and body.seek(0) == 0


def test_its_beginning() -> None:
    assert UploadBody([b"ab", b"", b"cd"]).beginning(3) == b"abc"
    assert UploadBody([b"ab"]).beginning(3) == b"ab"
    assert UploadBody([]).beginning(3) == b""


async def test_other_tasks_run_between_its_pieces() -> None:
    ran = 0

    async def count() -> None:
        nonlocal ran
        while True:
            ran += 1
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        counting = tasks.create_task(count())
        pieces = 0
        async for _ in UploadBody(PARTS):
            pieces += 1
        assert ran >= pieces - 1
        counting.cancel()


@pytest.mark.parametrize("is_large", [False, True])
async def test_an_upload_is_sent_whole_and_its_signature_leaves_out_the_body(is_large: bool) -> None:
    parts = PARTS if is_large else PARTS[:20]
    received: dict[str, bytes] = {}

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        lines = [line.partition(b": ") for line in head.split(b"\r\n")]
        headers = {name.lower().decode(): value for name, _, value in lines}
        if is_large:  # a small one must not wait for this
            received["expect"] = headers["expect"]
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        received["body"] = await reader.readexactly(int(headers["content-length"]))
        received["hash"] = headers["x-amz-content-sha256"]
        writer.write(b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n')
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=1 << 22)
    port = server.sockets[0].getsockname()[1]
    options = ObjectStorageOptions(
        s3_endpoint=f"http://127.0.0.1:{port}", s3_region="r", s3_access_key="a", s3_secret_key="b"
    )
    objects = S3Objects(options)
    try:
        async with asyncio.timeout(60):
            made = await objects.create_if_absent(Location("s3", "bucket", "/key"), parts, head_bytes=16)
        assert made is Creation.MADE
    finally:
        await objects.close()
        server.close()
        await server.wait_closed()
    assert received["body"] == b"".join(parts)
    assert received["hash"] == b"UNSIGNED-PAYLOAD"
