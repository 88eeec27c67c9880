"""dlog with its streams on S3: `dlog-s3-direct` and `dlog-s3`, the latter with its write-ahead log on three bookies.

A `dlog up` whose proxies find a versitygw of this system; its options `put_ms` and `get_ms` delay requests.
`dlog-ledger` is the same cluster with streams on bookies, beside which `dlog-s3` is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dlog.options import MiB
from loadtest import object_commits
from loadtest.programs import figures_of
from loadtest.spec import Shape
from loadtest.systems import versitygw
from loadtest.systems.base import Durability
from loadtest.systems.dlog import Dlog

PUTS_PER_S = 10_000  # the default, 100, bounds the cost of many slow streams, and would be all that is measured of one
BACKLOG_BYTES = 64 * MiB  # pending, so that a backlog is in objects of 8 MiB, as that of bare requests
ROOT = f"s3://{versitygw.BUCKET}/loadtest"


class DlogS3(Dlog):
    """A cluster and its S3 server."""

    name = "dlog-s3"
    start_s = 5.5
    backlog_bytes = BACKLOG_BYTES

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._server = versitygw.S3Server(counts_requests=True)
        self._delays: dict[str, str] = {}
        self._store = "s3-direct" if variant.startswith("dlog-s3-direct") else "s3"
        self.durability = (
            Durability("P", "in an object of versitygw, which does not sync")
            if self._store == "s3-direct"
            else Durability("F", "fdatasync of the write-ahead log on 2 of 3 bookies before the acknowledgement")
        )

    def lacks(self, feature: str) -> str | None:
        return "it has no bookies" if feature == "storage" and self._store != "s3" else super().lacks(feature)

    async def start(self, room: Path, options: Mapping[str, str]) -> None:
        self._delays = {key: value for key, value in options.items() if key in versitygw.OPTIONS}
        await self._server.start(room / "s3", self._delays)
        self.environment = {**self._server.environment, "DLOG_OBJECTS_PUTS_PER_S": str(PUTS_PER_S)}
        bookies = {} if self._store == "s3" else {"bookies": "0"}
        others = {key: value for key, value in options.items() if key not in self._delays}
        await super().start(room, {**bookies, "objects": ROOT, **others})

    async def stop(self) -> None:
        try:
            await super().stop()
        finally:
            await self._server.stop()

    def processes(self) -> Mapping[str, Sequence[int]]:
        return {**super().processes(), **self._server.processes()}

    def versions(self) -> Mapping[str, str]:
        return {**super().versions(), "versitygw": versitygw.VERSION}

    def configuration(self) -> Mapping[str, Any]:
        return {"store": self._store, "puts_per_s": PUTS_PER_S, **self._options, **self._delays}

    def requests(self) -> Mapping[str, int]:
        return self._server.requests()

    async def create(self, log: str) -> None:
        assert self._client is not None, "started"
        await self._client.create(log, store=self._store)

    async def examine(self, shape: Shape) -> Mapping[str, Any]:
        match shape.subject:
            case "commit":
                return await object_commits.measure(self.running(), streams=shape.logs, seconds=shape.seconds)
            case "node-kill":
                arguments = (str(self._room), str(shape.logs), str(shape.backlog_mb))
                return await figures_of("loadtest.object_node_kill", *arguments, **self._server.environment)
        return await super().examine(shape)
