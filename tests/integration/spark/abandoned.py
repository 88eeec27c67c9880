"""A sink whose query was given up, with the stages it left behind."""

from __future__ import annotations

import json
import uuid
from typing import Any

from dlog.client.stream_info import ImportResult
from dlog.client.sync import SyncClient
from dlog.errors import LedgerNotFoundError
from dlog.log.staging import StagedSet
from dlog.model.ids import LedgerId
from dlog.model.sink import SinkBatch
from dlog.spark.cluster_connection import Cluster, Work, reach
from dlog.spark.proxies import proxies_of
from dlog.spark.stages import Staged, Stager
from dlog.wire.entry import build_record_set
from tests.integration.cli.up import Up, dlog


class Abandoned:
    """A sink that staged for two streams and wrote to one of them."""

    def __init__(self, cluster: Up, client: SyncClient) -> None:
        self.cluster = cluster
        self.client = client
        self.sink = f"gone-{uuid.uuid4().hex[:8]}"
        self.one, self.two = (f"r-{uuid.uuid4().hex[:8]}" for _ in range(2))
        for stream in (self.one, self.two):
            client.create(stream)
        self.kept = self.stage(0, self.one)
        self.import_segments(0, self.one, self.kept)
        self.left = [self.stage(1, self.one), self.stage(1, self.two)]

    def ask(self, work: Work[Any]) -> Any:
        return reach(self.cluster.running.zookeeper, self.cluster.running.namespace).ask(work)

    def batch(self, number: int) -> SinkBatch:
        return SinkBatch(self.sink, 3, "query", number)

    def stage(self, number: int, stream: str) -> Staged:
        async def work(cluster: Cluster) -> Staged:
            stager = Stager(cluster, self.cluster.running.namespace, self.batch(number))
            rows = [StagedSet(1, 1, build_record_set([b"row %d" % number]))]
            await stager.entry(stream, rows, has_own_txids=False)
            (staged,) = await stager.finish()
            return staged

        staged: Staged = self.ask(work)
        return staged

    def import_segments(self, number: int, stream: str, staged: Staged) -> ImportResult:
        async def work(cluster: Cluster) -> ImportResult:
            async with await proxies_of(cluster, 30.0) as client:
                return await client.import_segments(stream, [(staged.name, staged.last_entry)], self.batch(number))

        told: ImportResult = self.ask(work)
        return told

    def is_there(self, staged: Staged) -> bool:
        async def work(cluster: Cluster) -> bool:
            try:
                await cluster.ledgers.metadata_of(LedgerId(int(staged.name)))
            except LedgerNotFoundError:
                return False
            return True

        return bool(self.ask(work))

    def values(self, stream: str) -> list[bytes]:
        return [record.payload for record in self.client.read(stream, follow=False)]

    def command(self, *arguments: str) -> tuple[int, Any, str]:
        code, out, told = dlog("sink", *arguments, "--json", directory=self.cluster.directory)
        return code, json.loads(out) if out else None, told
