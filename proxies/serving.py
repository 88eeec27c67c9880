"""Options, listener and command line that read and write proxies share.

Nothing here depends on the role.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dlog.errors import ConfigError, DLogError, OverCapacityError
from dlog.events import ConnectionOpened, ConnectionRefused, Event, VariablesIgnored, WorkFailed
from dlog.hostport import join_host_port
from dlog.io import listening, local_transport, logs, metrics, process
from dlog.io.server_arguments import ServerArgumentParser
from dlog.io.settings import add_flags, configured, ignored_variables, load
from dlog.options import KiB, MiB, check_address, check_positive, option, port_number
from dlog.wire.entry import RECORD_BYTES_MAX
from dlog.wire.proxy import GoAway, Hello
from proxies.connection import Acceptance, Connection, Session
from proxies.meters import Meters
from proxies.proxy_header_policy import OFF, HeaderExpectation, ProxyHeaderPolicy
from proxies.request_tasks import QUESTIONS_MAX

BOUND = "bound"  # as peer_address: the address that is listened on
_ID = re.compile(r"[A-Za-z0-9_:-][A-Za-z0-9._:-]{0,199}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingOptions:
    """Options of every proxy.

    id: name in the cluster, by default the address. advertise: address that clients connect to, by default the one
    listened on. peer_address: where other proxies reach this one, if that is not the advertised address (clients
    outside a container network see other addresses than the proxies do); `bound`: the one listened on.
    proxy_protocol: off, optional or required; proxy_protocol_from: the load balancers' networks, separated by commas,
    see proxies/proxy_header_policy.py. tcp_only: no Unix socket for clients of this machine (none is opened either if
    proxy_protocol is on). http_port: see proxies/health.py. notice_s: time after SIGTERM in which it reports "not
    ready" before it hands over, so that a load balancer that does not retry can notice.
    """

    zookeeper: str = option(
        "127.0.0.1:2181", "addresses of ZooKeeper, host:port separated by commas, and a path if the cluster has one"
    )
    namespace: str = option("/dlog", "path in ZooKeeper below which the streams are")
    host: str = option("127.0.0.1", "address to listen on")
    port: int = option(0, "port to listen on; 0: any free one")
    id: str = option("", "name of the proxy in the cluster; empty: the advertised address")
    advertise: str = option("", "host:port that clients are redirected to; empty: host and port as bound")
    peer_address: str = option(
        "", "host:port at which other proxies reach this one; `bound`: host and port as bound; empty: advertise"
    )
    log_format: str = option("", "json or text; empty: text on a terminal, json elsewhere")
    log_level: str = option("info", "lowest level that is logged: debug, info, warning or error")
    http_port: int = option(0, "port of /metrics, /live, /ready and /haproxy; 0: none")
    stores: tuple[str, ...] = option(
        (),
        "stores of segments, the first for streams that name none: ledger, file, kafka, s3-direct, s3; "
        "empty: ledger, file if [file] has a directory, kafka if [kafka] has topics, and s3-direct and s3 if [objects] "
        "has a root",
    )
    proxy_protocol: str = option(
        "off", "whether a header of the PROXY protocol begins a connection: off, optional or required"
    )
    proxy_protocol_from: str = option("", "networks that may send that header, separated by commas; empty: any")
    tcp_only: bool = option(False, "offer no Unix socket to processes on this machine")
    connections_max: int = option(2000, "open connections; a further one is refused (517)", sim=(1, 4))
    connections_per_host_max: int = option(0, "open connections of one client host; 0: no bound of its own")
    receive_bytes_max: int = option(
        256 * MiB, "memory for frames that are not complete yet, of all connections", sim=(MiB, 8 * MiB)
    )
    hello_s: float = option(5.0, "time in which a new connection must say hello")
    batch_bytes_max: int = option(RECORD_BYTES_MAX, "largest batch that is taken", sim=(KiB, RECORD_BYTES_MAX))
    unready_after_s: float = option(
        120.0, "time without ZooKeeper, or without a writable bookie, after which /ready says 503"
    )
    notice_s: float = option(0.0, "on SIGTERM, time to be not ready before streams are handed over")
    drain_s: float = option(10.0, "on SIGTERM, time for handing over all streams")

    def __post_init__(self) -> None:
        if self.log_format not in ("", "json", "text"):
            raise ValueError(f"log_format is json, text or nothing: {self.log_format}")
        if self.log_level not in logs.LEVELS:
            raise ValueError(f"log_level is one of {', '.join(logs.LEVELS)}: {self.log_level!r}")
        port_number(self, "port", "http_port")
        check_positive(self, "connections_max", "receive_bytes_max", "hello_s")
        if self.id and not _ID.match(self.id):
            raise ValueError(f"an id holds letters, digits, '.', '_', ':' and '-': {self.id!r}")
        check_address(self.advertise)
        if self.peer_address != BOUND:
            check_address(self.peer_address)
        self.preambles()
        if not 0 < self.batch_bytes_max <= RECORD_BYTES_MAX:
            raise ValueError(f"batch_bytes_max is at most {RECORD_BYTES_MAX}: {self.batch_bytes_max}")

    def preambles(self) -> ProxyHeaderPolicy:
        """Which connections begin with a PROXY protocol header. Raises ValueError."""
        return ProxyHeaderPolicy(self.proxy_protocol, self.proxy_protocol_from)


Options = TypeVar("Options", bound=ServingOptions)

HOPS_MAX = 1  # a request is forwarded at most once
REFUSING_MAX = 64  # connections beyond connections_max that are kept open until they got their error
FRAME_OVERHEAD_BYTES = 64 * KiB + 6  # most bytes of a frame beside its body


class Listener:
    """Accepts, limits and counts the connections of a proxy."""

    def __init__(
        self,
        role: str,
        name: str,
        limits: dict[str, int],
        options: ServingOptions,
        open_session: Callable[[Connection, Hello], Session],
        *,
        on_event: Callable[[Event], None],
    ) -> None:
        self.role = role
        self.name = name
        self.limits = limits
        self.bound = ""
        self.hello_s = options.hello_s
        self.connections: dict[Connection, None] = {}  # in order of arrival
        self.accepted = 0
        self.refused_count = 0
        self._is_closed = False
        self._is_full = False  # a connection was refused for capacity, and none was accepted since
        self.incomplete_bytes = 0  # of incomplete frames
        self._options = options
        self._open_session = open_session
        self._on_event = on_event
        self._preambles = options.preambles()
        self._hosts: dict[str, int] = {}  # connections per host, if they are limited
        self._server: asyncio.Server | None = None
        self._unix_servers: list[asyncio.Server] = []
        self._empty = asyncio.Event()

    async def bind(self) -> str:
        """Bind the port; returns host:port, with the machine's name instead of a wildcard host.

        Connections are accepted after `serve` only. Raises ConfigError.
        """
        options = self._options
        try:
            self._server = await listening.create_server(
                lambda: Connection(self), options.host, options.port, start_serving=False, backlog=512
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen: {error.strerror or error}; is the port taken? "
                f"address={join_host_port(options.host, options.port)}"
            ) from error
        self.bound = join_host_port(process.reachable_host(options.host), self._server.sockets[0].getsockname()[1])
        return self.bound

    async def serve(self) -> None:
        """Accept from now on."""
        assert self._server is not None, "bind comes first"
        await self._server.start_serving()
        if not self._options.tcp_only and self._options.proxy_protocol == OFF:
            self._unix_servers = await local_transport.unix_servers(lambda: Connection(self), self._server.sockets)

    def meters(self) -> Meters:
        """Metrics of the connections; the role adds its own."""
        meters = Meters()
        meters.gauge("proxy_connections", "Connections open", lambda: len(self.connections))
        meters.gauge("proxy_half_frames_bytes", "Bytes kept of incomplete frames", lambda: self.incomplete_bytes)
        meters.counter("proxy_connections_accepted", "Connections accepted", lambda: self.accepted)
        meters.counter("proxy_connections_refused", "Connections refused", lambda: self.refused_count)
        return meters

    def close(self) -> None:
        """Accept no more; idempotent. A connection that was being accepted meanwhile is aborted."""
        self._is_closed = True
        if self._server is not None:
            self._server.close()
            self._server = None
        while self._unix_servers:
            self._unix_servers.pop().close()

    def dismiss(self, reason: str) -> None:
        """Send GoAway on every connection and close it."""
        for connection in tuple(self.connections):
            connection.send(GoAway(0, reason))
            connection.end()

    async def gone(self, timeout_s: float) -> None:
        """Wait at most timeout_s until all connections are closed; abort the rest."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.connections:
                    self._empty.clear()
                    await self._empty.wait()
        for connection in tuple(self.connections):
            connection.abort()

    # ---- Reception --------------------------------------------------------------------------------------------------

    def admit(self, connection: Connection) -> Acceptance:
        self.connections[connection] = None
        self.accepted += 1
        if self._is_closed:
            asyncio.get_running_loop().call_soon(connection.abort)
        beyond = len(self.connections) - self._options.connections_max
        if beyond <= 0:
            self._is_full = False
            return Acceptance.SERVED
        return Acceptance.REFUSED if beyond <= REFUSING_MAX else Acceptance.CUT

    def expects(self, host: str) -> HeaderExpectation:
        return self._preambles.of(host)

    def identify(self, connection: Connection) -> bool:
        bound = self._options.connections_per_host_max
        if not bound:
            return True
        host = _host_of(connection.peer)
        self._hosts[host] = self._hosts.get(host, 0) + 1
        return self._hosts[host] <= bound

    def refused(self, connection: Connection, error: DLogError) -> None:
        self.refused_count += 1
        if isinstance(error, OverCapacityError):
            was_full, self._is_full = self._is_full, True
            if was_full:
                return  # reported once, so that many reconnecting clients do not fill the log
        self._on_event(ConnectionRefused(connection.peer, connection.via, error.message))

    def open(self, connection: Connection, hello: Hello) -> Session:
        self._on_event(ConnectionOpened(connection.peer, connection.via, hello.role, hello.name, hello.hops))
        return self._open_session(connection, hello)

    def keeps(self, change: int) -> bool:
        self.incomplete_bytes += change
        return self.incomplete_bytes <= self._options.receive_bytes_max

    def leave(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        if self._hosts and connection.is_identified:
            host = _host_of(connection.peer)
            self._hosts[host] -= 1
            if not self._hosts[host]:
                del self._hosts[host]
        if not self.connections:
            self._empty.set()


def _host_of(peer: str) -> str:
    return peer.rpartition(":")[0]


def peer_address(options: ServingOptions, bound: str) -> str:
    """The address to register for other proxies; "" if it is the advertised one."""
    return bound if options.peer_address == BOUND else options.peer_address


def limits(options: ServingOptions) -> dict[str, int]:
    """Limits that every proxy sends in its Welcome."""
    return {
        "frame_bytes_max": options.batch_bytes_max + FRAME_OVERHEAD_BYTES,
        "batch_bytes_max": options.batch_bytes_max,
        "hops_max": HOPS_MAX,
        "questions_max": QUESTIONS_MAX,
        "regions": 1,
    }


def parse(role: str, cls: type[Any], arguments: Sequence[str] | None) -> dict[str, Any]:
    """Parse a role's command line: flags by option name, and `config`. --help and unknown flags exit."""
    parser = ServerArgumentParser(f"python -m proxies.{role}")
    parser.add_argument("--config", help=f"TOML file; its section [{role}] is used")
    add_flags(parser, cls)
    return parser.parse_flags(arguments)


def configure(role: str, cls: type[Options], flags: dict[str, Any]) -> Options:
    """Load a role's options from defaults, file, environment and flags, and set up logs. Raises ConfigError."""
    given = dict(flags)
    path = given.pop("config")
    options = load(cls, role, path, given)
    logs.setup(options.log_format or None, level=options.log_level, role=role)
    report_event(configured(role, options, path))
    if ignored := ignored_variables():
        report_event(VariablesIgnored(ignored))
    return options


def report_event(event: Event) -> None:
    """Log an event and count it."""
    metrics.count(event)
    logs.log_event(event)


def failed(on_event: Callable[[Event], None]) -> Callable[[str, Exception], None]:
    """An `on_failure` for Lifetime that reports WorkFailed."""
    return lambda work, error: on_event(WorkFailed(work, repr(error)))


def seeded() -> random.Random:
    """A randomly seeded generator for jitter and placement; safety does not depend on it."""
    return random.Random()
