"""The way of a program that is no proxy to the controller of streams in objects: through any write proxy."""

from __future__ import annotations

from random import Random

from dlog.client.connection import Connection
from dlog.client.options import ClientOptions
from dlog.io.metadata import Membership
from dlog.io.object_metadata import ProxySender


def operation_sender(members: Membership, rng: Random, options: ClientOptions | None = None) -> ProxySender:
    """A sender for ObjectMetadataClient (dlog/io/object_metadata.py). members: knows the addresses of write proxies."""
    chosen = options or ClientOptions()
    return ProxySender(members, lambda address: Connection.open(address, chosen), rng)
