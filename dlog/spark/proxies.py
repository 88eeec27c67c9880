"""The proxies of a cluster, for what only the owner of a stream can do. Reading never needs them."""

from __future__ import annotations

from dlog.client.client import Client, connect
from dlog.errors import UnavailableError
from dlog.spark.reach import Cluster


async def proxies_of(cluster: Cluster, timeout_s: float) -> Client:
    """A client of the write proxies that are registered now, not yet open. Raises UnavailableError."""
    members = await cluster.metadata.members()
    addresses = [info.address for info in members.write_proxies.values()]
    if not addresses:
        raise UnavailableError("no write proxy is registered: start one, `dlog up` does")
    return connect(f"dlog://{','.join(sorted(addresses))}", request_deadline_s=timeout_s)


async def have_owned(cluster: Cluster, stream: str, timeout_s: float) -> None:
    """Have somebody own a stream whose owner is gone: it ends what that left open. Raises UnavailableError, and what
    the proxies answer."""
    async with await proxies_of(cluster, timeout_s) as client:
        await client.owner(stream)
