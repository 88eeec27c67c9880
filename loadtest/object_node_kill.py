"""Measures the death of a write proxy whose streams are in the store s3, with entries that are not uploaded (W33).

    python -m loadtest.object_node_kill DIRECTORY STREAMS BACKLOG_MB

DIRECTORY is that of a running `dlog up`; how its objects are reached is in the environment. A further write proxy is
started, which nothing restarts; it dies, and the others take over its streams and upload what it had acknowledged.

Invariants:
- nothing of the backlog is uploaded when the proxy dies: it would upload 64 MiB, and nothing by time;
- figures are printed only if every append succeeded and every record is read back exactly once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import dlog
from dlog.cli.discovery import Cluster, RunningCluster, read_run_file
from dlog.cli.object_access import ObjectAccess, open_objects
from dlog.model.ids import ProxyId
from dlog.model.object_streams import NodeId
from dlog.options import MiB
from dlog.ownership.ring import Ring
from loadtest.outages import each, write_proxy
from loadtest.systems.base import CannotRunError
from loadtest.waiting import until

CLIENTS, AT_ONCE = 4, 8
PATIENCE_S = 300.0
STORE = "s3"
UPLOADS = {"DLOG_OBJECTS_UPLOAD_S": "3600"}  # of the proxy that dies
_FIRST, _LAST = b"first", b"last"


class NodeKill:
    """One measurement. streams: that the dying proxy owns. backlog_mb: written to them, and not uploaded."""

    def __init__(self, running: RunningCluster, streams: int, backlog_mb: int) -> None:
        self._running = running
        self._count = streams
        self._payload = random.Random(1).randbytes(backlog_mb * 1_000_000 // streams)
        self._dying = f"dying-{uuid.uuid4().hex[:8]}"
        if backlog_mb * 1_000_000 > 63 * MiB:
            raise ValueError(f"64 MiB are uploaded at once, write less: backlog_mb={backlog_mb}")

    async def run(self) -> dict[str, Any]:
        """The figures. Raises CannotRunError, DLogError."""
        running = self._running
        async with AsyncExitStack() as stack:
            room = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dlog-node-kill-")))
            environment = {key: value for key, value in os.environ.items() if key.startswith("DLOG_OBJECTS_")}
            environment |= {"DLOG_OBJECTS_ROOT": running.objects_root, **UPLOADS}
            proxy = await stack.enter_async_context(write_proxy(running, room / "printed", self._dying, environment))
            target = f"{running.connect},{proxy.address}"
            clients = [
                await stack.enter_async_context(dlog.connect(target, append_deadline_s=PATIENCE_S))
                for _ in range(CLIENTS)
            ]
            streams = await self._make(clients, proxy.address)
            cluster = Cluster(running.connect, running.zookeeper, running.namespace, objects_root=running.objects_root)
            access = await stack.enter_async_context(open_objects(cluster))
            await self._write(clients, streams, self._payload)
            await until(lambda: self._is_known(access), PATIENCE_S, "the metadata of streams in objects lag behind")
            if (await access.image()).nodes[NodeId(self._dying)].set_objects:
                raise CannotRunError("a part of the backlog was uploaded before the proxy was killed")
            proxy.process.kill()
            figures = await self._recovered(clients, streams, access)
            await each(streams, AT_ONCE, lambda stream: self._read_back(clients[0], stream))
        return figures

    async def _is_known(self, access: ObjectAccess) -> bool:
        """Whether the image of this process, which follows the others, has the node that is to die."""
        return NodeId(self._dying) in (await access.image()).nodes

    async def _make(self, clients: Sequence[dlog.Client], address: str) -> list[str]:
        """Create streams that the dying proxy owns."""
        names = [part.id for part in self._running.parts if part.role == "write"]
        ring = Ring(map(ProxyId, (*names, self._dying)))
        owned: list[str] = []
        numbers = iter(range(100 * self._count))

        async def make(client: dlog.Client) -> None:
            for number in numbers:
                if len(owned) >= self._count:
                    return
                stream = f"{self._dying}-{number}"
                if ring.owner(stream) != self._dying:
                    continue
                await client.create(stream, store=STORE)
                await client.append(stream, _FIRST)
                if (await client.owner(stream)).location == address:
                    owned.append(stream)

        async with asyncio.TaskGroup() as group:
            for at in range(AT_ONCE):
                group.create_task(make(clients[at % len(clients)]), name="create streams")
        if len(owned) < self._count:
            raise CannotRunError(f"the proxy to be killed owns {len(owned)} streams only")
        return owned[: self._count]

    async def _write(self, clients: Sequence[dlog.Client], streams: Sequence[str], payload: bytes) -> list[float]:
        """Append to each stream once, to all at the same time; when each was acknowledged, in seconds."""
        begun_s = time.monotonic()

        async def append(stream: str, client: dlog.Client) -> float:
            await client.append(stream, payload)
            return time.monotonic() - begun_s

        async with asyncio.TaskGroup() as group:
            appends = [
                group.create_task(append(stream, clients[at % len(clients)])) for at, stream in enumerate(streams)
            ]
        return sorted(one.result() for one in appends)

    async def _recovered(
        self, clients: Sequence[dlog.Client], streams: Sequence[str], access: ObjectAccess
    ) -> dict[str, Any]:
        """After the kill: when the streams are written again, and when the node's log is uploaded and deleted."""
        begun_s = time.monotonic()

        async def is_uploaded() -> bool:
            node = (await access.image()).nodes[NodeId(self._dying)]
            return node.is_failover and not node.wal

        async def uploaded() -> float:
            await until(is_uploaded, PATIENCE_S, "the log of the killed proxy was not uploaded")
            return time.monotonic() - begun_s

        async with asyncio.TaskGroup() as group:
            uploading = group.create_task(uploaded(), name="wait for the upload")
            written_s = await self._write(clients, streams, _LAST)
        return {
            "streams": len(streams),
            "written_p50_s": round(statistics.median(written_s), 3),
            "written_p99_s": round(written_s[max(0, -(-len(written_s) * 99 // 100) - 1)], 3),
            "written_max_s": round(written_s[-1], 3),
            "uploaded_s": round(uploading.result(), 3),
        }

    async def _read_back(self, client: dlog.Client, stream: str) -> None:
        async with aclosing(client.read(stream, start=dlog.START, follow=False)) as records:
            found = [record.payload async for record in records]
        if found != [_FIRST, self._payload, _LAST]:
            raise CannotRunError(f"{stream}: {len(found)} records were read back, other than the 3 that were written")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures as JSON."""
    directory, streams, backlog_mb = sys.argv[1:] if arguments is None else arguments
    running = read_run_file(Path(directory))
    if running is None:
        print(f"node kill: no `dlog up` runs in this directory: {directory}", file=sys.stderr)
        return 1
    print(json.dumps(asyncio.run(NodeKill(running, int(streams), int(backlog_mb)).run())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
