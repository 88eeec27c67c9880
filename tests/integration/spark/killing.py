"""A program with a query that copies a stream through the sink, and whose processes are killed at planned points.

At each point of a batch the sink looks for a plan. A plan is a file in a directory, `<batch>.json` with {"at": point,
"who": "worker" | "executor" | "driver"}; it is removed before the kill, so that each kill happens once.

    python -m tests.integration.spark.killing ARGUMENTS   arguments: a JSON object, see `Arguments`
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from dlog.client.client import Client
from dlog.spark import session
from dlog.spark.sink import StreamWriter
from dlog.spark.source import DlogDataSource
from tests.integration.spark.archive import java_options
from tests.integration.spark.deaths import kill

#: points of a kill: in a task before and after its stage, and in the driver
IN_TASKS = ("before the rows", "amid the rows", "behind the stage")
IN_DRIVER = ("before the publish", "amid the publish", "behind the publish")


@dataclass(frozen=True, slots=True)
class Arguments:
    """plans: directory of the planned kills. partitions: at least so many a batch."""

    zookeeper: str
    namespace: str
    source: str
    to: str
    checkpoint: str
    plans: str
    master: str = "local[2,4]"
    append_bytes: str = "256k"
    limit: int = 10
    partitions: int = 2
    sink_epoch: int = 0


class KilledSource(DlogDataSource):
    """The production format under another name, with a sink that looks for plans."""

    @classmethod
    def name(cls) -> str:
        return "dlog-killed"

    def streamWriter(self, schema: StructType, overwrite: bool) -> KilledWriter:
        plans, group = self.options["plans"], int(self.options["group"])
        given = {key: value for key, value in self.options.items() if key.lower() not in ("plans", "group")}
        return KilledWriter(DlogDataSource(given).streamWriter(schema, overwrite), plans, group)


class KilledWriter(StreamWriter):
    """group: process group of the driver."""

    def __init__(self, writer: StreamWriter, plans: str, group: int) -> None:
        super().__init__(writer._options)
        self._plans = Path(plans)
        self._group = group

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        assert context is not None
        number = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        self._pass(number, "before the rows")
        told = super().write(self._watched(number, iterator))
        self._pass(number, "behind the stage")
        return told

    def _watched(self, number: int, iterator: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in iterator:
            yield batch
            self._pass(number, "amid the rows")

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        self._pass(batchId, "before the publish")
        if self._take(batchId, "amid the publish") is not None:
            _die_amid(self._group)
        super().commit(messages, batchId)
        self._pass(batchId, "behind the publish")

    def _pass(self, number: int, point: str) -> None:
        who = self._take(number, point)
        if who is not None:
            kill(who, self._group)

    def _take(self, number: int, point: str) -> str | None:
        """The process to kill here, if a plan names one; each plan is used once."""
        path = self._plans / f"{number}.json"
        try:
            plan = json.loads(path.read_text())
            if plan["at"] != point:
                return None
            path.rename(path.with_suffix(".done"))  # of two tasks one gets it
        except FileNotFoundError:
            return None
        return str(plan["who"])


def _die_amid(group: int) -> None:
    """Kill the process with the request on its way: no process gets the answer."""

    def dying(name: str) -> Any:
        ask = getattr(Client, name)

        async def asked(*given: Any, **more: Any) -> Any:
            delay_s = int.from_bytes(os.urandom(1), "big") / 256 * 0.02
            asyncio.get_running_loop().call_later(delay_s, kill, "driver", group)
            return await ask(*given, **more)

        return asked

    for name in ("import_segments", "append_once"):
        setattr(Client, name, dying(name))


def main() -> None:
    arguments = Arguments(**json.loads(sys.argv[1]))
    spark = session(
        "killed",
        **{
            "spark.master": arguments.master,
            "spark.ui.enabled": "false",
            "spark.log.level": "OFF",
            "spark.sql.shuffle.partitions": "2",
            "spark.task.maxFailures": "4",
            "spark.executor.extraJavaOptions": java_options(),
        },
    )
    spark.dataSource.register(KilledSource)
    place = {"zookeeper": arguments.zookeeper, "namespace": arguments.namespace}
    reader = spark.readStream.format("dlog").schema("value binary").options(**place)
    reader = reader.option("stream", arguments.source).option("startingOffsets", "earliest")
    reader = reader.option("maxOffsetsPerTrigger", arguments.limit).option("minPartitions", arguments.partitions)
    writer = reader.load().writeStream.format("dlog-killed").option("checkpointLocation", arguments.checkpoint)
    writer = writer.options(**place, stream=arguments.to, sinkId="copy", sinkEpoch=arguments.sink_epoch)
    writer = writer.option("appendBytes", arguments.append_bytes)
    writer = writer.option("plans", arguments.plans).option("group", os.getpgid(0))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main()
