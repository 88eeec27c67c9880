"""Connects to a cluster's write proxies, for what only a stream's owner can do. Reading never needs them."""

from __future__ import annotations

from dlog.client.client import Client, connect
from dlog.errors import UnavailableError
from dlog.spark.cluster_connection import Cluster


async def proxies_of(cluster: Cluster, timeout_s: float) -> Client:
    """A client, not yet open, of the registered write proxies. Raises UnavailableError."""
    members = await cluster.metadata.members()
    addresses = [info.address for info in members.write_proxies.values()]
    if not addresses:
        raise UnavailableError("no write proxy is registered: start one, e.g. with `dlog up`")
    return connect(f"dlog://{','.join(sorted(addresses))}", request_deadline_s=timeout_s)


async def ensure_owned(cluster: Cluster, stream: str, timeout_s: float) -> None:
    """Get a stream owned; a new owner seals what the old one left open. Raises UnavailableError, and what the proxies
    reply."""
    async with await proxies_of(cluster, timeout_s) as client:
        await client.owner(stream)
