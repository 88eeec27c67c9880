"""Opens a region in a process of its own, and measures how long that takes.

python -m loadtest.systems.region_opening TOPICS NAMESPACE REGION [--no-snapshot]

The process prints one JSON object and ends without closing the region, so that it saves no snapshot.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import uvloop

from dlog.client.regions import Region, Regions
from dlog.io.kafka_settings import KafkaTopicsOptions
from dlog.region.messages import Topic
from dlog.region.names import topic_names
from loadtest.programs import figures_of
from loadtest.systems.base import CannotRunError, Reopened

OPEN_S = 900.0


def regions(address: Mapping[str, Any], namespace: str) -> Regions:
    """The regions at a system's address. Nothing is deleted from time to time, so that all can be read back."""
    kafka = KafkaTopicsOptions(flush=bool(address.get("flush", True)))
    return Regions(address["topics"], namespace, kafka=kafka, clean_every_s=None)


async def reopen(topics: str, namespace: str, region: str, *, with_snapshot: bool) -> Reopened:
    """Open a region in another process. Raises CannotRunError."""
    arguments = (topics, namespace, region, *(() if with_snapshot else ("--no-snapshot",)))
    try:
        async with asyncio.timeout(OPEN_S):
            figures = await figures_of(__name__, *arguments)
    except TimeoutError:
        raise CannotRunError(f"the region was not opened within {OPEN_S:g} s: region={region}") from None
    return Reopened(float(figures["seconds"]), str(figures["state"]))


def state_of(region: Region) -> str:
    """A digest of what is known of the tables of a region."""
    known = [
        (
            number,
            table.next_seq_num,
            table.latest_marked_deleted,
            table.current_high_watermark,
            list(table.seq_offset_mapping.items()),
            table.payload_bytes,
            table.begin,
        )
        for number, table in sorted(region.tables.items())
    ]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:16]


async def measure(topics: str, namespace: str, name: str, *, with_snapshot: bool) -> dict[str, Any]:
    """Open the region; the seconds, and a digest of its state."""
    made = regions({"topics": topics}, namespace)
    if not with_snapshot:
        meta = topic_names(namespace, name)[Topic.META]
        _, end = await made.topics.offsets(meta)
        await made.topics.delete_before(meta, end)
    begin_s = time.monotonic()
    region = await made.open(name)
    return {"seconds": time.monotonic() - begin_s, "state": state_of(region)}


def main(arguments: Sequence[str]) -> None:
    """Ends the process."""
    topics, namespace, region, *more = arguments

    async def go() -> None:
        print(json.dumps(await measure(topics, namespace, region, with_snapshot=not more)), flush=True)
        os._exit(0)

    uvloop.run(go())


if __name__ == "__main__":
    main(sys.argv[1:])
