"""Runs the load test of streams on S3, with a real S3 server: every result is green, and requests are counted.

No figure is checked, because a busy machine proves nothing.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from loadtest import chain_recovery, object_image, scripts
from loadtest.programs import figures_of
from loadtest.report import figures
from loadtest.report.figures import Figures
from loadtest.s3_proxy import S3Proxy
from loadtest.systems.base import CannotRunError
from loadtest.systems.s3 import OBJECT_BYTES
from loadtest.systems.versitygw import S3Server
from tests.integration.loadtest.rounds import green_round
from tests.integration.storage import need_storage
from tests.ports import HOST

CHANGES = {"seconds": "0.5", "warmup_s": "0.2", "patience_s": "120", "backlog_mb": "12"}


async def ran(workloads: str, names: tuple[str, ...], changes: Mapping[str, str]) -> Figures:
    """Run one round; every result is green."""
    run = await green_round(workloads, names, {**CHANGES, **changes}, {})
    return figures.collect(run)


def value(found: Figures, workload: str, system: str, figure: str) -> float:
    (label,) = found.labels(workload)
    result = found.get(workload, label, system)
    assert result is not None and not result.why, result
    told = result.value(figure)
    assert told is not None, (workload, system, figure)
    return told


async def test_bare_requests_bring_every_record_back() -> None:
    need_storage("s3")
    names = ("s3-aiobotocore", "s3-aiobotocore-delayed")
    found = await ran("W1,W24,W28", names, {"record_bytes": "1000"})
    for name in names:
        assert value(found, "W1", name, "response_ms.p50") > 0
        assert value(found, "W24", name, "scan_mb_per_s") > 0
        assert value(found, "W28", name, "acked") > 0
    assert value(found, "W1", names[1], "response_ms.p50") >= 100
    assert found.letter(names[0]) == "P"


async def test_a_backlog_is_put_in_objects_of_eight_mebibytes(tmp_path: Path) -> None:
    need_storage("s3")
    from loadtest.systems.s3 import S3Client, S3System

    system = S3System("s3-aiobotocore")
    await system.start(tmp_path, {})
    try:
        client = await S3Client.connect(system.address(), {})
        told: list[object] = []
        writer = await client.writer("log", told.append)
        records = [bytes([number % 256]) * 65536 for number in range(2 * OBJECT_BYTES // 65536 + 1)]
        for record in records:
            await writer.hand_over([record])
        await writer.flush()
        await writer.close()
        assert len(told) == 3
        found = [record async for _, some in client.read("log", tail=False, follow=False) for record in some]
        assert found == records
        await client.close()
        assert system.requests()["PutObject"] == 3
    finally:
        await system.stop()


async def test_the_server_delays_what_it_is_told_to(tmp_path: Path) -> None:
    need_storage("s3")
    server = S3Server()
    await server.start(tmp_path, {"put_ms": "300", "get_ms": "0"})
    try:
        assert set(server.processes()) == {"s3", "s3-delay"}
        begun_s = time.monotonic()
        reader, writer = await asyncio.open_connection(HOST, server.port)
        writer.write(b"PUT /logs/x HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nx")
        assert (await reader.readline()).startswith(b"HTTP/1.1 403")
        assert time.monotonic() - begun_s >= 0.3
        writer.close()
    finally:
        await server.stop()


async def test_options_of_the_server_are_checked(tmp_path: Path) -> None:
    for options in ({"put_ms": "many"}, {"colour": "red"}):
        with pytest.raises(ValueError, match="option"):
            await S3Server().start(tmp_path, options)


async def test_a_proxy_passes_every_byte_on() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        body = await reader.readexactly(3_000_000)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\nX-Head: %d\r\n\r\n" % len(head) + body[::-1])
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(echo, HOST, 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with S3Proxy(f"http://{HOST}:{port}") as proxy:
            reader, writer = await asyncio.open_connection(HOST, int(proxy.endpoint.rpartition(":")[2]))
            body = bytes(range(250)) * 12_000
            for _ in range(2):
                writer.write(b"PUT /a HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 3000000\r\n\r\n")
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
                writer.write(body)
                assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
                assert await reader.readexactly(3_000_000) == body[::-1]
            writer.close()


async def test_a_recovery_of_a_chain_is_counted_in_turns() -> None:
    short, long = [await chain_recovery.measure(chunks) for chunks in (10, 3000)]
    assert 3 <= short["turns"] <= long["turns"] < long["requests"]


async def test_the_end_of_an_upload_is_a_pause_and_uploads_without_pauses_are_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def one_more_at_each_of(looks: int) -> Callable[[], Counter[str]]:
        counts = itertools.count()
        return lambda: Counter(PutObject=min(next(counts), looks))

    monkeypatch.setattr(scripts, "QUIET_S", 0.35)
    assert (await scripts.until_uploaded(one_more_at_each_of(3), 5.0))["PutObject"] == 3
    with pytest.raises(CannotRunError, match=re.escape("no upload ended within 0.2 s")):
        await scripts.until_uploaded(one_more_at_each_of(0), 0.2)
    monkeypatch.setattr(scripts, "UNBROKEN_S", 0.5)
    assert 0 < (await scripts.until_uploaded(one_more_at_each_of(1000), 5.0))["PutObject"] < 1000


def test_an_image_is_built_loaded_and_weighed() -> None:
    told = asyncio.run(figures_of("loadtest.object_image", "--json", "2000"))
    assert set(told) == {"applied_per_s", "followed_per_s", "load_s", "image_mb", "snapshot_mb"}
    image, _ = object_image.apply_all(2000)
    assert image.objects.next_id == 2001
    assert sum(len(stream.objects) for stream in image.streams.values()) == 1800
    assert sum(len(node.set_objects) for node in image.nodes.values()) == 200


async def test_metadata_alone_is_measured_without_servers() -> None:
    found = await ran("W30,W34", ("dlog-metadata",), {"objects": "1000"})
    assert value(found, "W30", "dlog-metadata", "p50_us") > 0
    assert value(found, "W34", "dlog-metadata", "turns") > 0


@pytest.mark.zookeeper
@pytest.mark.slow
async def test_streams_on_s3_beside_bare_requests() -> None:
    need_storage("s3")
    names = ("dlog-s3-direct", "s3-aiobotocore", "dlog-s3-direct-delayed")
    found = await ran("W1,W24", names, {"record_bytes": "1024"})
    for name in names:
        assert value(found, "W1", name, "response_ms.p50") > 0
        assert value(found, "W24", name, "scan_mb_per_s") > 0
    assert value(found, "W1", "dlog-s3-direct-delayed", "response_ms.p50") >= 100
    assert {"write", "read", "s3", "s3-delay"} <= set(found.run.results[-1]["usage"])
    assert found.run.systems["dlog-s3-direct"]["configuration"]["store"] == "s3-direct"


@pytest.mark.zookeeper
@pytest.mark.slow
async def test_requests_commits_and_a_killed_node_of_the_store_s3() -> None:
    need_storage("s3")
    changes = {"logs": "6", "seconds": "1", "warmup_s": "0.5", "backlog_mb": "2", "rate": "3000"}
    found = await ran("W29,W32,W33", ("dlog-s3",), {**changes, "record_bytes": "10240"})
    assert value(found, "W29", "dlog-s3", "puts_per_s") > 0
    assert value(found, "W29", "dlog-s3", "requests_per_gib") > 0
    assert value(found, "W29", "dlog-s3", "dollars_per_tb") > 0
    assert value(found, "W32", "dlog-s3", "commits") >= 3
    assert value(found, "W33", "dlog-s3", "streams") == 6
    assert value(found, "W33", "dlog-s3", "uploaded_s") > 0
