"""Runs a write proxy: opens its backends, runs its server, closes the backends.

Flags, signals and logs of the process are in __main__.py, so that the simulation can run the same code.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from dataclasses import replace

from dlog.events import Event
from dlog.hostport import join_host_port
from dlog.io.metadata_stream import FindRoot
from dlog.io.process import reachable_host
from dlog.model.object_streams import NodeId
from dlog.stores.object_storage.port import Objects
from proxies import parts, serving
from proxies.write.object_controllers import LocalSender, ObjectStorageAccess, controller_options
from proxies.write.options import WriteOptions
from proxies.write.server import WriteProxy


async def run(
    options: WriteOptions,
    stop: asyncio.Event,
    on_ready: Callable[[WriteProxy], None],
    *,
    on_event: Callable[[Event], None] = serving.report_event,
    rng: random.Random | None = None,
    tuning: parts.BackendLimits = parts.TUNING,
) -> None:
    """Serve until `stop`, then hand streams over. on_ready: clients may connect. Raises as WriteProxy.run does."""
    rng = rng or serving.seeded()
    options = _with_id(options)
    access: list[ObjectStorageAccess] = []  # one if the store `s3` is configured

    def host(objects: Objects, find_root: FindRoot, store: str) -> LocalSender:
        its_options = controller_options(tuning.stores.objects)
        access.append(ObjectStorageAccess(objects=objects, find_root=find_root, store=store, options=its_options))
        return access[0].sender

    async with parts.opened(
        options, on_event=on_event, rng=rng, tuning=tuning, join=host, node=_node(options)
    ) as opened:
        hosted = access[0] if access else None
        here = parts.location_of(tuning)
        proxy = WriteProxy(
            options, opened.metadata, opened.stores, location=here, object_storage=hosted, on_event=on_event, rng=rng
        )
        await proxy.run(stop, lambda name, address: on_ready(proxy))


def _with_id(options: WriteOptions) -> WriteOptions:
    """The options with an id that is known before the port is. A proxy whose port the system chooses, and that is given
    no id, has another one at each start."""
    if options.id or options.advertise or options.port:
        return options
    return replace(options, id=f"proxy-{os.urandom(8).hex()}")


def _node(options: WriteOptions) -> NodeId:
    """The id of this process's node: the one under which the proxy registers, the same after a restart."""
    return NodeId(options.id or options.advertise or join_host_port(reachable_host(options.host), options.port))
