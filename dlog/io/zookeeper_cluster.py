"""Creates a cluster: BookKeeper's root znodes and the binding of a DistributedLog namespace to it.

Invariants:
- Existing znodes are not changed; one that differs is an error.
- Doing it twice, or from two processes at once, has the same result.

Source: BookKeeper `ZKRegistrationManager.initNewCluster`, DistributedLog `DLMetadata`.
"""

from __future__ import annotations

import asyncio
import uuid
from dataclasses import dataclass

from dlog.errors import (
    ClusterNotFoundError,
    ConfigError,
    DamagedError,
    MetadataUnavailableError,
    UnsupportedVersionError,
)
from dlog.hostport import join_host_port
from dlog.io.zookeeper import Create, Set, ZooKeeper
from dlog.io.zookeeper_hosts import split_hosts
from dlog.io.zookeeper_layout import (
    LAYOUT,
    LAYOUT_FACTORY,
    LAYOUT_VERSION,
    LedgerPaths,
    StreamPaths,
    parents_of,
    parse_layout,
)
from dlog.io.zookeeper_protocol import (
    BadVersionError,
    ConnectionLossError,
    MultiFailedError,
    NodeExistsError,
    NoNodeError,
    NotConnectedError,
    Op,
)
from dlog.wire.stream_metadata import Binding, decode_binding, encode_binding

_TRIES = 10
_AGAIN_S = 0.2


@dataclass(frozen=True, slots=True)
class ClusterInit:
    """Result of `cluster_init`. made: BookKeeper's root is new. bound: the namespace's binding is new."""

    instance_id: str
    namespace: str
    made: bool
    bound: bool


async def cluster_init(
    hosts: str,
    namespace: str,
    *,
    ledgers_root: str = "/ledgers",
    session_timeout_s: float = 10.0,
    connect_timeout_s: float = 10.0,
) -> ClusterInit:
    """Create the cluster at `hosts` and bind `namespace` to it; one multi creates all that is missing.

    If ZooKeeper is not there yet, or drops the connection, it is tried again until connect_timeout_s is over. Raises
    MetadataUnavailableError; ConfigError if the namespace is bound to another cluster; UnsupportedVersionError if the
    cluster has another ledger layout.
    """
    ledgers, streams = LedgerPaths(ledgers_root), StreamPaths(namespace)
    binding = binding_of(hosts, ledgers_root)
    until_s = asyncio.get_running_loop().time() + connect_timeout_s
    tries_left = _TRIES
    async with await ZooKeeper.connect(
        hosts, session_timeout_s=session_timeout_s, connect_timeout_s=connect_timeout_s
    ) as zk:
        while tries_left:
            try:
                made, instance_id, ops = await _plan_root(zk, ledgers)
                bound, more = await _plan_binding(zk, streams, binding, planned={op.path for op in ops})
                await zk.multi(ops + more)
            except MultiFailedError as failed:
                if not isinstance(failed.error, (NodeExistsError, NoNodeError, BadVersionError)):
                    raise
                tries_left -= 1  # another process creates it at the same time
            except (ConnectionLossError, NotConnectedError):
                if asyncio.get_running_loop().time() >= until_s:
                    raise
                await asyncio.sleep(_AGAIN_S)
            else:
                return ClusterInit(instance_id, namespace, made, bound)
    raise MetadataUnavailableError(f"another process keeps changing the cluster's znodes; try again: hosts={hosts}")


def binding_of(hosts: str, ledgers_root: str) -> Binding:
    """The binding of a namespace of this cluster. For Java clients a chroot of the hosts is part of the path. Raises
    ConfigError."""
    addresses, chroot = split_hosts(hosts)
    servers = ",".join(join_host_port(host, port) for host, port in addresses)
    return Binding(
        bookkeeper_zookeeper=servers,
        ledgers_path=chroot + ledgers_root,
        sanity_check_txid=False,
        encode_region=False,
        bookkeeper_zookeeper_readers=servers,
        zookeeper=servers,
        zookeeper_readers=servers,
    )


async def check_layout(zk: ZooKeeper, ledgers: LedgerPaths) -> None:
    """Raise UnsupportedVersionError if the cluster has a ledger layout that we do not write; a missing one passes."""
    try:
        data, _ = await zk.get(ledgers.layout)
    except NoNodeError:
        return
    if parse_layout(data) != (LAYOUT_FACTORY, LAYOUT_VERSION):
        raise UnsupportedVersionError(
            f"this cluster has another ledger layout: expected={LAYOUT_FACTORY} found={data[:200]!r}"
        )


async def read_instance_id(zk: ZooKeeper, ledgers: LedgerPaths) -> str:
    """The cluster's id. Raises ClusterNotFoundError, DamagedError, MetadataUnavailableError."""
    try:
        data, _ = await zk.get(ledgers.instance_id, fresh=True)
    except NoNodeError:
        raise ClusterNotFoundError(f"no cluster here, run `dlog cluster init`: path={ledgers.instance_id}") from None
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DamagedError(f"the cluster's instance id is not UTF-8: path={ledgers.instance_id}") from None


async def _plan_root(zk: ZooKeeper, ledgers: LedgerPaths) -> tuple[bool, str, list[Op]]:
    if await zk.exists(ledgers.layout) is not None:
        await check_layout(zk, ledgers)
        return False, await read_instance_id(zk, ledgers), []
    instance_id = str(uuid.uuid4())
    wanted = [
        *(Create(path) for path in parents_of(ledgers.root)),
        Create(ledgers.root),
        Create(ledgers.available),
        Create(ledgers.readonly),
        Create(ledgers.instance_id, instance_id.encode()),
        Create(ledgers.layout, LAYOUT),
    ]
    ops: list[Op] = [op for op in wanted if await zk.exists(op.path) is None]
    if all(op.path != ledgers.instance_id for op in ops):
        instance_id = await read_instance_id(zk, ledgers)
    return True, instance_id, ops


async def _plan_binding(
    zk: ZooKeeper, streams: StreamPaths, binding: Binding, planned: set[str]
) -> tuple[bool, list[Op]]:
    try:
        data, stat = await zk.get(streams.namespace)
    except NoNodeError:
        ops: list[Op] = [
            Create(path)
            for path in parents_of(streams.namespace)
            if path not in planned and await zk.exists(path) is None
        ]
        return True, [*ops, Create(streams.namespace, encode_binding(binding))]
    if not data:
        return True, [Set(streams.namespace, encode_binding(binding), stat.version)]
    found = decode_binding(data)
    if found.ledgers_path != binding.ledgers_path:
        raise ConfigError(
            f"the namespace is bound to other ledgers: namespace={streams.namespace} "
            f"expected={binding.ledgers_path} found={found.ledgers_path}"
        )
    return False, []
