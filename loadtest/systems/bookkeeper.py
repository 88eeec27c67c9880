"""Apache BookKeeper as a peer: three Java bookies and a ZooKeeper, driven by BookKeeper's Java client.

Configuration: BookKeeper's defaults, except for what a loopback cluster in small heaps needs. Client: its fastest setup
(v2 wire, no throttle, CRC32C). As in dlog, acknowledgements come after fdatasync on two of three bookies.
Source: the dependencies notes, section 10, and BookKeeper's configuration reference.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from dlog.errors import DLogError
from dlog.io.zookeeper import ZooKeeper
from loadtest.systems.base import CannotRunError, Durability, Flavour, NotApplicable, System, Variant
from loadtest.systems.java import BOOKKEEPER, FetchFailedError, classes_of, java_version, jvm, run
from loadtest.systems.nodes import (
    HOST,
    Ports,
    Server,
    ServerFailedError,
    ServerSystem,
    known_options,
    listens,
    option_bool,
    option_int,
    start_together,
)

GENERATOR = ("Generator", "Job", "Tally", "History", "Histogram", "Records", "Verifier", "Peer", "BookKeeperPeer")
LEDGERS = "/ledgers"
LOGS = "/loadtest"
INIT_S = 120.0
NOT_NUMBERS = ("sync", "storage", "recovery")
STORAGES = {
    "sorted": "org.apache.bookkeeper.bookie.SortedLedgerStorage",  # the default
    "db": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
}
RECOVERY = {
    "autoRecoveryDaemonEnabled": "true",
    "openLedgerRereplicationGracePeriod": 5000,  # ms; as open_grace_s in recovery.toml
    "rereplicationEntryBatchSize": 100,  # entries in flight of a ledger; with the default, 10, it is slower
}
OPTIONS = {
    "bookies": "3",
    "ensemble": "3",
    "write_quorum": "3",
    "ack_quorum": "2",
    "group_wait_ms": "2",
    "sync": "true",
    "storage": "sorted",  # or "db", DbLedgerStorage: for many ledgers
    "recovery": "false",  # AutoRecovery in every bookie's process; the client replaces a lost bookie at once
    "heap_mib": "384",
    "direct_mib": "256",
    "client_heap_mib": "1024",
}


class BookKeeperSystem(ServerSystem):
    """Bookies and a ZooKeeper. A log is a list of ledgers; the writer stores their ids in ZooKeeper."""

    name: ClassVar[str] = "bookkeeper"
    owner_role: ClassVar[str] = ""
    storage_role: ClassVar[str] = "bookie"
    start_s: ClassVar[float] = 9.0
    _coordinators: ClassVar[frozenset[str]] = frozenset({"zookeeper"})

    def __init__(self, variant: str) -> None:
        super().__init__(variant)
        self._options: dict[str, str] = dict(OPTIONS)
        self._zookeeper = ""
        self._registered: dict[str, int] = {}  # bookie -> session of its killed process
        self._numbers: dict[str, int] = {}
        self._recovers = False
        self._client: ZooKeeper | None = None

    # ---- starting ----------------------------------------------------------------------------------------------------

    def _choose(self, options: Mapping[str, str]) -> None:
        known_options(self.name, options, OPTIONS)
        self._options = {**OPTIONS, **options}
        self._numbers = {
            k: option_int(self._options, k, 0, 0) for k in OPTIONS if k not in ("sync", "recovery", "storage")
        }
        sync, numbers = option_bool(self._options, "sync", True), self._numbers
        self._recovers = option_bool(self._options, "recovery", False)
        if self._options["storage"] not in STORAGES:
            raise ValueError(f"option storage must be one of {', '.join(STORAGES)}: {self._options['storage'][:40]!r}")
        if not 1 <= numbers["ack_quorum"] <= numbers["write_quorum"] <= numbers["ensemble"] <= numbers["bookies"]:
            raise ValueError("must hold: 1 <= ack_quorum <= write_quorum <= ensemble <= bookies")
        quorum = f"{numbers['ack_quorum']} of {numbers['write_quorum']} bookies"
        self.durability = (
            Durability("F", f"fdatasync of the journal on {quorum} before the acknowledgement")
            if sync
            else Durability("P", f"in the page cache of {quorum} before the acknowledgement")
        )

    async def _plan(self, room: Path, ports: Ports) -> list[Server]:
        BOOKKEEPER.need()
        zookeeper, *bookies = ports.take(1 + self._numbers["bookies"])
        self._zookeeper = f"{HOST}:{zookeeper}"
        self._registered.clear()
        servers = [self._plan_zookeeper(room / "zookeeper", zookeeper)]
        servers += [self._plan_bookie(room / f"bookie-{i}", i, port) for i, port in enumerate(bookies, 1)]
        return servers

    def _plan_zookeeper(self, home: Path, port: int) -> Server:
        home.mkdir(parents=True)
        config = home / "zoo.cfg"
        config.write_text(zookeeper_config(home / "data", port))
        command = jvm(
            *(BOOKKEEPER, "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)),
            heap_mib=128,
            flags=("-Dzookeeper.preAllocSize=4096",),
        )

        async def answers() -> bool:
            try:
                client = await self._metadata()
                await client.exists("/")
            except DLogError:
                return False
            return True

        return Server("zookeeper", "zookeeper", self._zookeeper, command, home, answers)

    def _plan_bookie(self, home: Path, number: int, port: int) -> Server:
        home.mkdir(parents=True)
        config = home / "bookie.conf"
        config.write_text(
            bookie_config(
                home,
                port,
                self._zookeeper,
                group_wait_ms=self._numbers["group_wait_ms"],
                sync=self._options["sync"].lower() == "true",
                storage=self._options["storage"],
                recovery=self._recovers,
            )
        )
        command = jvm(
            *(BOOKKEEPER, "org.apache.bookkeeper.server.Main", "--conf", str(config)),
            heap_mib=self._numbers["heap_mib"],
            # its id is made of the interface's first address, and one of IPv6 with a scope is no valid id
            flags=(f"-XX:MaxDirectMemorySize={self._numbers['direct_mib']}m", "-Djava.net.preferIPv4Stack=true"),
        )
        address = f"{HOST}:{port}"

        async def serves() -> bool:
            session = await self._session_of(address)
            return session not in (None, self._registered.get(address)) and await listens(port)

        return Server(f"bookie-{number}", "bookie", address, command, home, serves)

    async def _first_start(self) -> None:
        zookeeper, *bookies = self._servers
        await zookeeper.start()
        config = bookies[0].directory / "bookie.conf"
        try:
            run(
                jvm(
                    *(BOOKKEEPER, "org.apache.bookkeeper.bookie.BookieShell", "-conf", str(config), "initnewcluster"),
                    heap_mib=128,
                    flags=("-XX:TieredStopAtLevel=1",),
                ),
                INIT_S,
            )
        except FetchFailedError as error:
            raise ServerFailedError(f"the cluster could not be initialised: {error}") from error
        await start_together(bookies)
        client = await self._metadata()
        await client.ensure_path(LOGS)

    async def _prepare_stop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _before_start(self, servers: Sequence[Server]) -> None:
        for server in servers:
            session = await self._session_of(server.address) if server.role == "bookie" else None
            if session is not None:
                self._registered[server.address] = session  # the killed process's session lives until it expires

    async def _metadata(self) -> ZooKeeper:
        if self._client is None:
            self._client = await ZooKeeper.connect(self._zookeeper)
        return self._client

    async def _session_of(self, address: str) -> int | None:
        """The session under which a bookie is registered."""
        try:
            client = await self._metadata()
            stat = await client.exists(f"{LEDGERS}/available/{address}")
        except DLogError:
            return None
        return stat.ephemeral_owner if stat is not None else None

    # ---- description -------------------------------------------------------------------------------------------------

    def versions(self) -> Mapping[str, str]:
        return {
            "Apache BookKeeper": jar_version("bookkeeper-server"),
            "Apache ZooKeeper": jar_version("zookeeper"),
            "java": java_version(),
        }

    def configuration(self) -> Mapping[str, Any]:
        return {
            **self._numbers,
            "journalSyncData": self._options["sync"].lower() == "true",
            "ledgerStorageClass": STORAGES[self._options["storage"]],
            "digest": "CRC32C",
            "wire": "v2 (tail readers: v3)",
            "client_throttle": 0,
            "delayEnsembleChange": not self._recovers,
            **(RECOVERY if self._recovers else {}),
        }

    def lacks(self, feature: str) -> str | None:
        match feature:
            case "handover":
                return "a ledger is owned by its writer, the application: nothing can be handed over"
            case "owner":
                return "a ledger is owned by its writer, the application"
        return None

    async def create(self, log: str) -> None:
        client = await self._metadata()
        await client.create(f"{LOGS}/{log}", b"")

    def address(self) -> dict[str, Any]:
        return {
            "zookeeper": self._zookeeper,
            "metadata": f"zk+hierarchical://{self._zookeeper}{LEDGERS}",
            "logs": LOGS,
            "delay_ensemble_change": not self._recovers,
            **{key: self._numbers[key] for key in ("ensemble", "write_quorum", "ack_quorum")},
        }

    def generator(self, job: Mapping[str, Any], flavour: Flavour) -> tuple[Sequence[str], Mapping[str, Any]]:
        if flavour == "user":
            raise NotApplicable("there is no Python client of BookKeeper except dlog's")
        classes = classes_of(BOOKKEEPER, [f"{name}.java" for name in GENERATOR])
        return jvm(
            *(BOOKKEEPER, "Generator", "BookKeeperPeer"),
            heap_mib=self._numbers["client_heap_mib"],
            flags=("-XX:MaxDirectMemorySize=512m",),
            first=(classes,),
        ), {}

    def zookeeper(self) -> str:
        return self._zookeeper

    def bookie(self) -> Server:
        return next(server for server in self._servers if server.role == "bookie")

    async def owner(self, log: str) -> str:
        raise NotApplicable("a ledger is owned by its writer, the application")


def zookeeper_config(data: Path, port: int) -> str:
    """A zoo.cfg. Sessions may last from 1 s to 10 s."""
    return (
        f"tickTime=500\ndataDir={data}\nclientPort={port}\nclientPortAddress={HOST}\nmaxClientCnxns=0\n"
        "admin.enableServer=false\n4lw.commands.whitelist=srvr\n"
    )


def bookie_config(
    home: Path,
    port: int,
    zookeeper: str,
    *,
    group_wait_ms: int,
    sync: bool,
    storage: str = "sorted",
    recovery: bool = False,
) -> str:
    """A bookie's configuration, where it differs from the defaults."""
    settings = {
        "bookiePort": port,
        "advertisedAddress": HOST,
        "listeningInterface": "lo",
        "allowLoopback": "true",
        "metadataServiceUri": f"zk+hierarchical://{zookeeper}{LEDGERS}",
        "zkTimeout": 4000,
        "journalDirectories": home / "journal",
        "ledgerDirectories": home / "ledgers",
        "indexDirectories": home / "index",
        "journalMaxGroupWaitMSec": group_wait_ms,
        "journalSyncData": "true" if sync else "false",
        "ledgerStorageClass": STORAGES[storage],
        **(RECOVERY if recovery else {}),
        "diskUsageThreshold": "0.99",
        "diskUsageWarnThreshold": "0.98",
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def jar_version(artifact: str) -> str:
    """The version of a fetched jar. Raises CannotRunError."""
    for jar in BOOKKEEPER.directory.glob(f"{artifact}-[0-9]*.jar"):
        found = re.fullmatch(re.escape(artifact) + r"-(\d[\w.]*)\.jar", jar.name)
        if found:
            return found[1]
    raise CannotRunError(f"no jar of {artifact} in {BOOKKEEPER.directory}; install the peer again")


def _make(variant: str) -> System:
    system = BookKeeperSystem(variant)
    system._choose(VARIANTS[variant].preset)  # sets `durability` before the start
    return system


VARIANTS: Mapping[str, Variant] = {
    "bookkeeper": Variant(_make, {}, "three Java bookies, E3/Qw3/Qa2, journal synced, Java client on the v2 wire"),
    "bookkeeper-recovery": Variant(
        _make, {"bookies": "4", "recovery": "true"}, "bookkeeper with a fourth bookie, and AutoRecovery in each of them"
    ),
    "bookkeeper-bookie": Variant(
        _make,
        {**dict.fromkeys(("bookies", "ensemble", "write_quorum", "ack_quorum"), "1"), "storage": "db"},
        "one Java bookie",
    ),
    "bookkeeper-nowait": Variant(
        _make, {"group_wait_ms": "0"}, "bookkeeper without the 2 ms group commit delay of the journal"
    ),
}
