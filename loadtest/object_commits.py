"""Measures a commit of an upload by a running cluster's controller, beside an append of the same bytes.

This program is a node of the controller's (dlog/objects/operations.py) without any object: the controller decides and
records metadata only. Between two commits it appends as many bytes to a stream that is in the same store as the
metadata stream. Both are sent to the owner of a stream, and both are acknowledged by one append to that store.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Sequence
from typing import Any

import dlog
from dlog.cli.discovery import RunningCluster
from dlog.client.operation_sender import operation_sender
from dlog.errors import DLogError
from dlog.io.clock import unix_ms
from dlog.io.object_metadata import ProxySender
from dlog.io.zookeeper_metadata import ZooKeeperMetadata
from dlog.model.ids import Epoch
from dlog.model.object_streams import (
    NodeEpoch,
    NodeId,
    ObjectId,
    ObjectStreamId,
    Slice,
    StreamSetObject,
    WalPosition,
    WalSegment,
)
from dlog.objects.operation_codec import decode_answer, encode_operation
from dlog.objects.operations import (
    BeginWalSegment,
    CommitUpload,
    CreateStreams,
    ObjectsArePrepared,
    OpenNode,
    OpenStream,
    Operation,
    PrepareObjects,
    Result,
    StreamsCreated,
)
from loadtest.histogram import Histogram
from loadtest.waiting import until

ONE, STORE = NodeEpoch(1), "ledger"
PREPARED = 100  # ids asked at once
READY_S = 60.0
EXPIRY_MS = 600_000


async def measure(running: RunningCluster, *, streams: int, seconds: float) -> dict[str, Any]:
    """Figures in ms. streams: with a slice in each commit. Raises DLogError, CannotRunError."""
    rng = random.Random(os.urandom(8))
    async with (
        await ZooKeeperMetadata.connect(running.zookeeper, running.namespace, rng=rng) as metadata,
        dlog.connect(running.connect) as client,
    ):
        sender = operation_sender(metadata, rng)
        try:
            return await _Node(sender, client, streams).run(seconds)
        finally:
            await sender.close()


class _Node:
    """One node with open streams, and the stream beside it."""

    def __init__(self, sender: ProxySender, client: dlog.Client, streams: int) -> None:
        self._sender = sender
        self._client = client
        self._count = streams
        self._name = f"loadtest-{os.urandom(4).hex()}"
        self._node = NodeId(self._name)
        self._ids: list[ObjectId] = []

    async def run(self, seconds: float) -> dict[str, Any]:
        streams = await self._open()
        await self._client.create(self._name, store=STORE)
        commits, appends = Histogram(), Histogram()
        end_s = time.monotonic() + seconds
        size = number = 0
        while time.monotonic() < end_s or number < 3:
            if not self._ids:
                await self._prepare()
            operation = self._commit(streams, number)
            begun_ns = time.monotonic_ns()
            data = encode_operation(operation)
            await self._send(data)
            took_us = (time.monotonic_ns() - begun_ns) // 1000
            size = len(data)
            begun_ns = time.monotonic_ns()
            await self._client.append(self._name, bytes(size))
            if number:  # the first ones open connections
                commits.record(took_us)
                appends.record((time.monotonic_ns() - begun_ns) // 1000)
            number += 1
        figures: dict[str, Any] = {"commits": number, "commit_bytes": size}
        for what, histogram in (("commit", commits), ("append", appends)):
            figures |= {f"{what}_{p}_ms": round(histogram.percentile(at) / 1000, 3) for p, at in _PERCENTS}
        return figures | {"ratio": round(figures["commit_p50_ms"] / figures["append_p50_ms"], 3)}

    async def _open(self) -> Sequence[ObjectStreamId]:
        """Begin the node, and a range of each stream."""
        begun: list[Result] = []

        async def begin() -> bool:
            try:
                begun.append(await self._ask(OpenNode(self._node, ONE, False, os.urandom(16))))
            except DLogError:  # no controller yet
                return False
            return True

        await until(begin, READY_S, "no controller of streams in objects answered")
        await self._ask(BeginWalSegment(self._node, ONE, WalSegment(1, ONE, STORE, "none")))
        streams: list[ObjectStreamId] = []
        for number in range(self._count):
            created = await self._ask(CreateStreams(f"loadtest/{self._name}/{number}", 1))
            assert isinstance(created, StreamsCreated)
            streams += created.streams
            await self._ask(OpenStream(self._node, ONE, created.streams[0], Epoch(1)))
        return streams

    async def _prepare(self) -> None:
        prepared = await self._ask(PrepareObjects(self._node, ONE, PREPARED, EXPIRY_MS))
        assert isinstance(prepared, ObjectsArePrepared)
        self._ids = [ObjectId(prepared.first + at) for at in reversed(range(prepared.count))]

    def _commit(self, streams: Sequence[ObjectStreamId], number: int) -> CommitUpload:
        """One entry of each stream, in one object."""
        object = self._ids.pop()
        slices = tuple(Slice(stream, number, number + 1) for stream in streams)
        made = StreamSetObject(object, object, unix_ms(), 1 << 20, slices)
        return CommitUpload(self._node, ONE, made, (), WalPosition(1, number + 1))

    async def _ask(self, operation: Operation) -> Result:
        return await self._send(encode_operation(operation))

    async def _send(self, data: bytes) -> Result:
        answer = decode_answer(await self._sender.send(data))
        if isinstance(answer, DLogError):
            raise answer
        return answer


_PERCENTS = (("p50", 50.0), ("p99", 99.0))
