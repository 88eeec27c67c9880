"""NATS JetStream as a peer: three servers, streams with three replicas in files.

With `sync`, each server syncs every message before it answers (class F, as dlog); without, as is NATS's default, files
are synced every two minutes and messages are acknowledged from page caches (class P). A log is a stream of one subject.
A pipelined message without acknowledgement counts as failed with unknown outcome. It is not sent again, because that
would change the order.
Source: the dependencies notes, section 9, and NATS's configuration reference.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import nats as nats_py
from nats.aio.client import Client as NATS
from nats.aio.client import __version__ as NATS_PY
from nats.errors import Error as NatsError
from nats.js.api import RetentionPolicy, StorageType, StreamConfig

from loadtest.systems.base import CannotRunError, Durability, Flavour, System, Variant
from loadtest.systems.java import CACHE, FetchFailedError, PartMissingError, run
from loadtest.systems.nodes import (
    HOST,
    READY_S,
    Ports,
    Server,
    ServerSystem,
    known_options,
    option_bool,
    option_int,
    start_together,
)

VERSION = "v2.15.2"
MODULE = f"github.com/nats-io/nats-server/v2@{VERSION}"
SERVER = CACHE / "nats" / VERSION / "nats-server"
FETCH_S = 1500.0
STEP_S = 0.1
ASK_S = 5.0
MAX_PAYLOAD = 8 << 20
OPTIONS = {"servers": "3", "replicas": "3", "sync": "true", "ack_wait_s": "5"}


def install() -> bool:
    """Build the server from the Go module proxy unless present; whether it was built. Raises PartMissingError,
    FetchFailedError."""
    if SERVER.exists():
        return False
    go = shutil.which("go")
    if go is None:
        raise PartMissingError("no go on PATH to build nats-server: run apt-get install golang-go (1.25 or newer)")
    SERVER.parent.mkdir(parents=True, exist_ok=True)
    run([go, "install", MODULE], FETCH_S, GOBIN=str(SERVER.parent), GOFLAGS="-buildvcs=false")
    if not SERVER.exists():
        raise FetchFailedError(f"go install succeeded but there is no {SERVER}")
    return True


def need_server() -> None:
    """Raises PartMissingError."""
    if not SERVER.exists():
        raise PartMissingError(
            "nats-server is not installed: run python -m loadtest peers install nats (needs Go 1.25 or newer)"
        )


class NatsSystem(ServerSystem):
    """Servers of one cluster. The owner of a log is the leader of its stream."""

    name: ClassVar[str] = "nats"
    owner_role: ClassVar[str] = "server"
    storage_role: ClassVar[str] = "server"
    start_s: ClassVar[float] = 2.0

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._options: dict[str, str] = dict(OPTIONS)
        self._numbers: dict[str, int] = {}
        self._sync = True
        self._streams: list[str] = []
        self._client: NATS | None = None
        self._asking = asyncio.Lock()

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _choose(self, options: Mapping[str, str]) -> None:
        known_options(self.name, options, OPTIONS)
        self._options = {**OPTIONS, **options}
        self._numbers = {k: option_int(self._options, k, 0) for k in OPTIONS if k != "sync"}
        self._sync = option_bool(self._options, "sync", True)
        if self._numbers["replicas"] > self._numbers["servers"]:
            raise ValueError("must hold: replicas <= servers")
        majority = f"{self._numbers['replicas'] // 2 + 1} of {self._numbers['replicas']} servers"
        self.durability = (
            Durability("F", f"fsync of every message on {majority} before the acknowledgement (sync_interval: always)")
            if self._sync
            else Durability("P", f"in the page cache of {majority} before the acknowledgement")
        )

    async def _plan(self, room: Path, ports: Ports) -> list[Server]:
        need_server()
        self._streams.clear()
        count = self._numbers["servers"]
        taken = ports.take(3 * count)
        routes = [f"nats://{HOST}:{port}" for port in taken[count : 2 * count]]
        return [
            self._plan_server(room / f"server-{i + 1}", f"server-{i + 1}", taken[i::count], routes)
            for i in range(count)
        ]

    def _plan_server(self, home: Path, name: str, ports: Sequence[int], routes: Sequence[str]) -> Server:
        home.mkdir(parents=True)
        config = home / "nats.conf"
        config.write_text(server_config(home / "data", name, ports, routes, sync=self._sync))

        async def serves() -> bool:
            return await healthy(ports[2])

        return Server(name, "server", f"{HOST}:{ports[0]}", [str(SERVER), "-c", str(config)], home, serves)

    async def _first_start(self) -> None:
        await start_together(self._servers)

    async def _prepare_stop(self) -> None:
        await self._let_go()

    # ---- description -------------------------------------------------------------------------------------------------

    def versions(self) -> Mapping[str, str]:
        output = run([str(SERVER), "--version"], 60.0)
        return {"nats-server": output.rpartition("v")[2], "nats-py": NATS_PY}

    def configuration(self) -> Mapping[str, Any]:
        return {
            **self._numbers,
            "sync_interval": "always" if self._sync else "default (2 minutes)",
            "storage": "file",
            "client": "one connection; our pipelined client for maximum throughput, nats-py as a program would use it",
        }

    def address(self) -> dict[str, Any]:
        return {
            "servers": [server.address for server in self._servers],
            "ack_wait_s": self._numbers["ack_wait_s"],
        }

    def client(self, flavour: Flavour) -> str:
        return f"loadtest.systems.nats_clients:{'RawClient' if flavour == 'fast' else 'NatsClient'}"

    # ---- its logs ----------------------------------------------------------------------------------------------------

    async def create(self, log: str) -> None:
        config = StreamConfig(
            name=log,
            subjects=[log],
            retention=RetentionPolicy.LIMITS,
            storage=StorageType.FILE,
            num_replicas=self._numbers["replicas"],
        )
        async with asyncio.timeout(READY_S):
            while True:
                try:
                    client = await self._connected()
                    await client.jetstream(timeout=ASK_S).add_stream(config)
                except (NatsError, OSError, TimeoutError):  # an election may be under way
                    await asyncio.sleep(STEP_S)
                    continue
                break
        self._streams.append(log)

    async def owner(self, log: str) -> str:
        async with asyncio.timeout(READY_S):
            while True:
                cluster = await self._cluster_of(log)
                leader = str(cluster.get("leader") or "")
                if leader and self._server(leader).is_running:
                    return leader
                await asyncio.sleep(STEP_S)

    async def hand_over(self, log: str) -> None:
        before = await self.owner(log)
        client = await self._connected()
        answer = await client.request(f"$JS.API.STREAM.LEADER.STEPDOWN.{log}", b"", timeout=ASK_S)
        if not json.loads(answer.data).get("success"):
            raise CannotRunError(f"the leader of {log} did not step down: {answer.data[:200]!r}")
        async with asyncio.timeout(READY_S):
            while await self.owner(log) == before:  # noqa: ASYNC110 - the servers elect
                await asyncio.sleep(STEP_S)

    async def whole(self) -> None:
        await super().whole()
        others = self._numbers["replicas"] - 1
        async with asyncio.timeout(READY_S):
            for log in self._streams:
                while True:
                    cluster = await self._cluster_of(log)
                    peers = cluster.get("replicas") or []
                    current = [peer for peer in peers if peer.get("current") and not peer.get("offline")]
                    if cluster.get("leader") and len(current) == others:
                        break
                    await asyncio.sleep(STEP_S)

    async def kill(self, node: str) -> None:
        await self._let_go()
        await super().kill(node)

    async def pause(self, node: str) -> None:
        await self._let_go()
        await super().pause(node)

    async def kill_all(self) -> None:
        await self._let_go()
        await super().kill_all()

    async def _cluster_of(self, log: str) -> dict[str, Any]:
        """The stream leader's view of its replicas; empty without a leader."""
        try:
            client = await self._connected()
            answer = await client.request(f"$JS.API.STREAM.INFO.{log}", b"", timeout=ASK_S)
            cluster: dict[str, Any] = json.loads(answer.data).get("cluster") or {}
        except (NatsError, OSError, TimeoutError, ValueError):
            await self._let_go()
            return {}
        return cluster

    async def _connected(self) -> NATS:
        async with self._asking:
            if self._client is None or not self._client.is_connected:
                await self._let_go()
                live = [f"nats://{s.address}" for s in self._servers if s.is_running and not s.is_paused]
                self._client = await nats_py.connect(
                    live, allow_reconnect=False, connect_timeout=int(ASK_S), error_cb=_silent
                )
            return self._client

    async def _let_go(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()


async def _silent(_: Exception) -> None:
    """Ignore connection errors: the next request raises them."""


def server_config(data: Path, name: str, ports: Sequence[int], routes: Sequence[str], *, sync: bool) -> str:
    """ports: for clients, cluster and monitoring."""
    always = "  sync_interval: always\n" if sync else ""
    return (
        f"server_name: {name}\nlisten: {HOST}:{ports[0]}\nhttp: {HOST}:{ports[2]}\nmax_payload: {MAX_PAYLOAD}\n"
        f"max_pending: {256 << 20}\n"
        f'jetstream {{\n  store_dir: "{data}"\n  max_memory_store: {256 << 20}\n  max_file_store: {64 << 30}\n'
        f"{always}}}\n"
        f"cluster {{\n  name: peers\n  listen: {HOST}:{ports[1]}\n  routes: [{', '.join(routes)}]\n}}\n"
    )


async def healthy(port: int) -> bool:
    """Whether a server reports that it, its meta group and its streams are current."""
    try:
        async with asyncio.timeout(ASK_S):
            reader, writer = await asyncio.open_connection(HOST, port)
            try:
                writer.write(b"GET /healthz HTTP/1.0\r\nHost: " + HOST.encode() + b"\r\n\r\n")
                return b" 200 " in (await reader.readline())
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False


def _make(variant: str) -> System:
    system = NatsSystem(variant)
    system._choose(VARIANTS[variant].preset)  # sets `durability` before the start
    return system


VARIANTS: Mapping[str, Variant] = {
    "nats": Variant(_make, {}, "three NATS servers, JetStream R3 in files, every message synced"),
    "nats-default": Variant(_make, {"sync": "false"}, "nats with its default, acknowledging from page caches"),
}
